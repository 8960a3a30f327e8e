"""The report: a single HTML file that needs no server and no network.

The folder page/ has its HTML with {{placeholders}}, its style and its scripts.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image

from .charts import as_svg, charts, layer_label
from .colours import CIVIDIS, DIVERGING
from .inside import Inside
from .packing import Packed, pack
from .pictures import saliency_picture

SCRIPTS = ("maps.js", "report.js")


def report(inside: Inside, title: str, graph: str) -> str:
    """Return the page about one image; `graph` is the SVG of a block (see block_graph)."""
    from .. import __version__

    rows, columns = inside.grid
    depth, heads = inside.before.shape[:2]
    packed = pack(inside.before)
    parts: dict[str, Any] = {
        "title": escape(title),
        "model": escape(inside.model),
        "version": __version__,
        "rows": rows,
        "columns": columns,
        "depth": max(1, len(packed.layers)),
        "scale": _gradient(CIVIDIS),
        "signed": _gradient(DIVERGING),
        "sharpness": "pixelated" if inside.image.shape[0] < 128 else "auto",
        "image": _data_url(Image.fromarray(inside.image), "PNG" if inside.image.shape[0] < 128 else "JPEG"),
        "predictions": "\n".join(_predictions(inside)),
        "class_maps": "\n".join(_class_maps(inside)),
        "saliency": "\n".join(_saliency(inside)),
        "self_maps": "\n".join(
            _figure(inside, kind, "", "", f"{kind.title()} mixing", f"eq-{kind}", f"Self-attention {kind} mixing")
            for kind in ("before", "after")
        ),
        "head_choice": "".join(
            f'<label><input type="radio" name="head" value="{h}"{" checked" if h == 0 else ""}>{h + 1}</label>'
            for h in range(heads)
        ),
        "no_self": "" if depth else " hidden",
        "rounding": _rounding(packed, depth),
        "charts": "\n".join(f'<h3>{c.title}</h3>\n<div class="scroll">{as_svg(c)}</div>' for c in charts(inside)),
        "table": "\n".join(_table(inside)),
        "graph": graph,
        "no_graph": "" if graph else " hidden",
        "equations": _page("equations.html"),
        "numbers": json.dumps(_numbers(inside, packed), separators=(",", ":")),
        "packed": packed.text,
        "script": "\n".join(["", *map(_page, SCRIPTS)]),
    }
    parts["script_hash"] = _hash(parts["script"])  # the page runs this script, loads nothing, and sends nothing
    parts["style"] = _fill(_page("report.css"), parts)
    return _fill(_page("report.html"), parts)


def rounded(values: np.ndarray, digits: int = 5) -> Any:
    """Convert to nested lists, rounded to `digits` significant digits."""
    if values.ndim:
        return [rounded(part, digits) for part in values]
    return float(f"{values:.{digits}g}")


def _page(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _fill(text: str, parts: dict[str, Any]) -> str:
    """Fill in placeholders, in one pass: inserted text is not searched again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(parts[found[1]]), text)


def _hash(script: str) -> str:
    """Hash of an inline script, as a Content-Security-Policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _gradient(colours: np.ndarray) -> str:
    return f"linear-gradient(90deg, {', '.join('rgb({:g} {:g} {:g})'.format(*c) for c in colours)})"


def _numbers(inside: Inside, packed: Packed) -> dict[str, Any]:
    """Collect the numbers for the scripts."""
    rows, columns = inside.grid
    layers, heads = inside.class_attention.shape[:2]
    return {
        "rows": rows,
        "columns": columns,
        "heads": heads,
        "start": inside.start,
        "scale": CIVIDIS.astype(int).tolist(),
        "signed": DIVERGING.astype(int).tolist(),
        "class_attention": rounded(inside.class_attention.reshape(layers, heads, -1)),
        "layers": packed.layers,
        "steps": packed.steps,
        "mixing": rounded(inside.mixing[packed.layers]),
    }


def _predictions(inside: Inside) -> Iterator[str]:
    for rank, i in enumerate(inside.best):
        name, p = escape(inside.classes[i]), float(inside.probabilities[i])
        yield (
            f'<li tabindex="{-1 if rank else 0}" data-equation="eq-probability" aria-label="{name}: {p:.2%}">'
            f'<span class="name"><span>{name}</span><span>{p:.1%}</span></span>'
            f'<span class="bar" style="width: {100 * p:.2f}%"></span></li>'
        )


def _class_maps(inside: Inside) -> Iterator[str]:
    layers, heads = inside.class_attention.shape[:2]
    for layer in range(layers):
        own = ", ".join(f"{share:.1%}" for share in inside.to_itself[layer])
        name = f"Class attention, layer {layer + 1}"
        yield f'<h3>{name}</h3>\n<p class="small">Attention to itself, by head: {own}.</p>\n<div class="maps">'
        for head in range(heads):
            yield _figure(inside, "class", layer, head, f"Head {head + 1}", "eq-8", f"{name}, head {head + 1}")
        yield _figure(inside, "class", layer, "mean", "Mean of heads", "eq-mean", f"{name}, mean of heads")
        yield "</div>"


def _figure(inside: Inside, kind: str, layer: object, head: object, caption: str, equation: str, name: str) -> str:
    """Return a map: a canvas that the script fills, a frame around the selected patch, and a caption.

    Its role is `application`, so that screen readers pass the arrow keys on.
    """
    rows, columns = inside.grid
    return (
        f'<figure data-kind="{kind}" data-layer="{layer}" data-head="{head}" data-name="{name}" '
        f'data-equation="{equation}"><div class="map" tabindex="0" role="application" '
        f'aria-roledescription="map of patches" aria-label="{name}. Arrow keys select a patch.">'
        f'<canvas width="{columns}" height="{rows}"></canvas><span class="cursor"></span></div>'
        f'<figcaption><b>{caption}</b> <span class="range"></span> <span class="value"></span></figcaption></figure>'
    )


def _saliency(inside: Inside) -> Iterator[str]:
    for layer in range(len(inside.class_attention)):
        url = _data_url(saliency_picture(inside, layer), "JPEG")
        alt = f"Saliency of class-attention layer {layer + 1}: bright where the heads attend most"
        yield f'<figure><img src="{url}" alt="{alt}"><figcaption><b>Layer {layer + 1}</b></figcaption></figure>'


def _table(inside: Inside) -> Iterator[str]:
    for b in inside.branches:
        cells = "".join(f"<td>{value:.4g}</td>" for value in (b.scale, b.largest, b.ratio))
        yield f'<tr><th scope="row">{layer_label(b.name)}</th><td>{b.kind}</td>{cells}</tr>'


def _rounding(packed: Packed, depth: int) -> str:
    omitted = depth - len(packed.layers)
    return (
        f"To keep this file small, weights before mixing are rounded to {packed.steps + 1} levels between the minimum "
        "and the maximum of each patch, and weights after mixing are computed from them. All other numbers are rounded "
        f"to five digits.{f' For the same reason, {omitted} of the {depth} layers are omitted.' if omitted else ''}"
    )


def _data_url(picture: Image.Image, kind: str) -> str:
    content = io.BytesIO()
    picture.save(content, kind, quality=90)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"

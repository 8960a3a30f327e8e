"""The report: a single HTML file that needs no server and no network.

The folder page/ has its HTML with {{placeholders}}, its texts, style and scripts; `sections` chooses among them by what
the model has. An equation is on the page if a section refers to it, and the footer names the papers of these.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

import numpy as np

from .colours import CIVIDIS, DIVERGING
from .facts import Facts, sentences, verdict
from .inside import Inside
from .maps import all_maps, patch_labels
from .packing import Packed, pack
from .sections import branch_section, map_sections, patch_section, predictions, texts
from .templates import fill, gradient, image_url, page_file, script_data, script_hash, sharpness

STYLES = ("base.css", "report.css")
SCRIPTS = ("draw.js", "maps.js", "report.js")


def report(inside: Inside, title: str, graph: str, facts: Facts | None = None) -> str:
    """Return the page about one image; `graph` is the SVG of a block (see block_graph)."""
    from .. import __version__

    rows, columns = inside.grid
    packed = pack(inside.between)
    sections = {
        "predictions": predictions(inside),
        "maps": "\n".join(map_sections(inside)),
        **patch_section(inside, packed),
        **branch_section(inside),
    }
    equations, sources = _equations("\n".join(sections.values()))
    article = "An" if re.match("[AEIOU]|[FHLMNRSX][A-Z]", inside.model) else "A"
    parts: dict[str, Any] = {
        **sections,
        "equations": equations,
        "sources": sources,
        "facts": _facts(inside, facts or Facts()),
        "title": escape(title),
        "model": f"{article} {escape(inside.model)}",
        "version": __version__,
        "rows": rows,
        "columns": columns,
        "depth": max(1, len(packed.layers)),
        "scale": gradient(CIVIDIS),
        "signed": gradient(DIVERGING),
        "sharpness": sharpness(inside.image.shape[0]),
        "image": image_url(inside.image),
        "graph": graph,
        "no_graph": "" if graph else " hidden",
        "numbers": script_data(_numbers(inside, packed)),
        "packed": packed.text,
        "script": "\n".join(["", *map(page_file, SCRIPTS)]),
    }
    parts["script_hash"] = script_hash(parts["script"])  # the page runs this script, loads nothing, and sends nothing
    parts["style"] = "".join(fill(page_file(name), parts) for name in STYLES)
    return fill(page_file("report.html"), parts)


def _facts(inside: Inside, facts: Facts) -> str:
    judged, more = verdict(inside, facts), " ".join(sentences(inside, facts))
    lines = [f'<p class="small">{escape(more)}</p>'] if more else []
    if judged is not None:
        kind = "correct" if judged[0] else "wrong"
        lines.insert(0, f'<p class="verdict"><b class="{kind}">{kind.capitalize()}.</b> {escape(judged[1])}</p>')
    return "\n".join(lines)


def rounded(values: np.ndarray, digits: int = 5) -> Any:
    """Convert to nested lists, rounded to `digits` significant digits."""
    if values.ndim:
        return [rounded(part, digits) for part in values]
    return float(f"{values:.{digits}g}")


def _equations(body: str) -> tuple[str, str]:
    """Return the equations that the sections refer to, and the papers that they are from."""
    wanted = set(re.findall(r"\beq-[\w-]+", body))
    found = [equation for name, equation in texts("equations.html").items() if name in wanted]
    papers = {equation.words: texts()[equation.words] for equation in found if equation.words}
    lines = []
    for text, source in found:
        of = f" ({papers[source].words})" if source and len(papers) > 1 else ""
        lines.append(text.replace("</strong>", f"{of}</strong>", 1))
    return "\n".join(lines), "; ".join(paper.text for paper in papers.values())


def _numbers(inside: Inside, packed: Packed) -> dict[str, Any]:
    """Collect the numbers for the scripts."""
    rows, columns = inside.grid
    numbers = {
        "rows": rows,
        "columns": columns,
        "heads": inside.between.shape[1],
        "start": inside.start,
        "scale": CIVIDIS.astype(int).tolist(),
        "signed": DIVERGING.astype(int).tolist(),
        "layers": packed.layers,
        "steps": packed.steps,
        "mixing": rounded(inside.mixing[packed.layers]) if len(inside.before) else [],
    }
    for maps in all_maps(inside):
        numbers[maps.name.replace("-", "_")] = rounded(maps.values.reshape(*maps.values.shape[:2], -1))
    if len(inside.patch_classes):
        labels = patch_labels(inside)
        numbers["patch_classes"] = {
            "names": labels.names,
            "colours": labels.colours,
            "index": labels.which.tolist(),
            "probability": rounded(labels.probability),
        }
    return numbers

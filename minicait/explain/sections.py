"""The sections of a report as HTML. What the model does not have is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import NamedTuple

from .charts import Chart, as_svg, block_equation, charts, layer_label, sparsity_chart
from .inside import Inside
from .maps import Maps, all_maps, patch_labels
from .packing import Packed
from .pictures import saliency_picture
from .templates import data_url, page_file

OF_ALL_MAPS = """
<label>Opacity <input type="range" id="opacity" min="0" max="100" value="70">
<output id="opacity-value">70 %</output></label>
<label><input type="checkbox" id="smooth"> smooth</label>"""
MAGNITUDES = '\n<span class="legend"><span>{}min</span><span class="scale"></span><span>{}</span></span>'
SIGNS = '\n<span class="legend"><span>{}negative</span><span class="scale signed">0</span><span>positive</span></span>'


class Text(NamedTuple):
    text: str
    words: str  # behind its name


@cache
def texts(name: str = "texts.html") -> dict[str, Text]:
    """Read a file of texts by name: each stands under a comment with its name and perhaps more words."""
    _, *parts = re.split(r"<!-- (\S+) ?(.*) -->\n", page_file(name))
    return {key: Text(text.strip(), words) for key, words, text in zip(*(parts[i::3] for i in range(3)), strict=True)}


def predictions(inside: Inside) -> str:
    alone = len(inside.class_attention) and not len(inside.distillation) and not len(inside.patch_classes)
    equation, lines = "eq-probability" if alone else "eq-logits", []  # of the class token alone, or in general
    for rank, i in enumerate(inside.best):
        name, p = escape(inside.classes[i]), float(inside.probabilities[i])
        lines.append(
            f'<li tabindex="{-1 if rank else 0}" data-equation="{equation}" aria-label="{name}: {p:.2%}">'
            f'<span class="name"><span>{name}</span><span>{p:.1%}</span></span>'
            f'<span class="bar" style="width: {100 * p:.2f}%"></span></li>'
        )
    return "\n".join(lines)


def map_sections(inside: Inside) -> Iterator[str]:
    """Yield a section for each group of maps. The first has the controls of all maps on the page."""
    for number, maps in enumerate(all_maps(inside)):
        about, last = texts()[maps.text], escape(maps.layers[-1])
        yield f'<section aria-labelledby="h-{maps.name}" data-equations="{about.words}">'
        yield f'<h2 id="h-{maps.name}">{maps.title}</h2>\n{about.text}'
        controls = "" if number else OF_ALL_MAPS + (SIGNS.format("") if maps.signed else _magnitudes(maps.share))
        if maps.has_slider:
            controls = (
                f'\n<label>Layer <input type="range" class="layers" min="1" max="{len(maps.layers)}" '
                f'value="{len(maps.layers)}" aria-valuetext="layer {last}"> <output>{last}</output></label>{controls}'
            )
        if controls:
            yield f'<div class="controls">{controls}\n</div>'
        if maps.text == "patch-classes":
            yield _patch_classes(inside)
        yield from (_layer(inside, maps, layer) for layer in range(len(maps.layers)))
        if maps.name == "class-attention":
            yield _saliency(inside, maps)
        yield "</section>\n"


def _magnitudes(share: float, of: str = "") -> str:
    """The legend of a scale that covers a share of the patches."""
    return MAGNITUDES.format(of, "max" if share == 1 else f"top {100 * (1 - share):.0f} %")


def _layer(inside: Inside, maps: Maps, layer: int) -> str:
    """The maps of one layer, side by side."""
    label = escape(maps.layers[layer])
    name = f"{maps.what}, layer {label.removeprefix('C')}" if label else maps.what
    hidden = " hidden" if maps.has_slider and layer < len(maps.layers) - 1 else ""
    lines = [f'<div class="layer" data-label="{label}"{hidden}>', f"<h3>{name}</h3>" if label else ""]
    if maps.to_itself is not None:
        shares = ", ".join(f"{share:.1%}" for share in maps.to_itself[layer])
        lines.append(f'<p class="small">Attention to itself{", by head" if maps.has_mean else ""}: {shares}.</p>')
    data = {"kind": "class", "maps": maps.name.replace("-", "_"), "layer": layer, "share": maps.share}
    data |= {"signed": ""} if maps.signed else {}
    lines.append(f'<div class="maps{"" if maps.has_mean else " wide"}">')
    for column, caption in enumerate(map(escape, maps.columns)):
        own = f"{name}, {caption.lower()}" if maps.has_mean else ", ".join([name, caption][: len(maps.columns)])
        lines.append(figure(inside, own, caption, maps.equation, **data, head=column))
    if maps.has_mean:
        lines.append(figure(inside, f"{name}, mean of heads", "Mean of heads", "eq-mean", **data, head="mean"))
    return "\n".join([*lines, "</div>", "</div>"])


def figure(inside: Inside, name: str, caption: str, equation: str, **data: object) -> str:
    """Return a map: a canvas that the script fills, a frame around the selected patch, and a caption.

    Its role is `application`, so that screen readers pass the arrow keys on.
    """
    rows, columns = inside.grid
    more = "".join(f' data-{key}="{value}"' for key, value in data.items())
    return (
        f'<figure data-name="{name}" data-equation="{equation}"{more}><div class="map" tabindex="0" role="application" '
        f'aria-roledescription="map of patches" aria-label="{name}. Arrow keys select a patch.">'
        f'<canvas width="{columns}" height="{rows}"></canvas><span class="cursor"></span></div>'
        f'<figcaption><b>{caption}</b> <span class="range"></span> <span class="value"></span></figcaption></figure>'
    )


def _patch_classes(inside: Inside) -> str:
    """The map of the patches' classes, beside the names of its colours."""
    legend = "\n".join(f'<li><span style="background: rgb{colour}"></span>{escape(name)}</li>'
                       for name, colour in patch_labels(inside).legend)  # fmt: skip
    whole = figure(inside, "Most probable class", "Most probable class", "eq-patch", kind="classes")
    return f'<div class="beside">\n<div class="maps wide">{whole}</div>\n<ul class="classes">\n{legend}\n</ul>\n</div>'


def _saliency(inside: Inside, maps: Maps) -> str:
    """Pictures of the layers whose class attention says most."""
    lines = ["<h3>Saliency</h3>", texts()[f"saliency-{maps.text}"].text, '<div class="maps">']
    for layer in inside.salient:
        label = escape(maps.layers[layer] or "1").removeprefix("C")
        url = data_url(saliency_picture(inside, layer), "JPEG")
        alt = f"Saliency of class-attention layer {label}: bright where the heads attend most"
        lines.append(f'<figure><img src="{url}" alt="{alt}"><figcaption><b>Layer {label}</b></figcaption></figure>')
    return "\n".join([*lines, "</div>"])


def patch_section(inside: Inside, packed: Packed) -> dict[str, str]:
    """Return the parts of the section on what patches take from each other, by attention or by fixed weights."""
    depth, heads = inside.between.shape[:2]
    if not depth:
        names = ("patch_text", "patch_controls", "patch_maps", "patch_charts", "rounding")
        return {"no_self": " hidden", **dict.fromkeys(names, "")}
    more = chart = ""
    if inside.heads_talk:
        text, legend = "talking-heads", _magnitudes(1, "before: ") + SIGNS.format("after: ")
        maps = [
            figure(inside, "Self-attention before mixing", "Before mixing", "eq-before", kind="before"),
            figure(inside, "Self-attention after mixing", "After mixing", "eq-after", kind="after", signed=""),
        ]
    elif len(inside.before):
        text, legend, data = "self-attention", _magnitudes(inside.share), {"kind": "before", "share": inside.share}
        maps = [figure(inside, "Self-attention", "Attention of the patch", "eq-attention", **data)]
    else:
        text, legend, name = "cross-patch", SIGNS.format(""), "Weight of the patch that is farthest from zero"
        maps = [figure(inside, "Weight", "Weights of the patch", "eq-cross-patch", kind="before", signed="")]
        more = figure(inside, name, "Weights of all patches", "eq-cross-patch", kind="rows")
        chart = f"{texts()['sparsity'].text}\n{_chart(sparsity_chart(inside))}"
    options = (f'<label><input type="radio" name="head" value="{h}"{" checked" * (h == 0)}>{h + 1}</label>'
               for h in range(heads))  # fmt: skip
    choice = f"<fieldset><legend>Head</legend>{''.join(options)}</fieldset>" if heads > 1 else ""
    first = not list(all_maps(inside))
    return {
        "no_self": "",
        "patch_text": texts()[text].text,
        "patch_controls": choice + OF_ALL_MAPS * first + legend,
        "patch_maps": "\n".join(['<div class="maps wide">', *maps, "</div>", more]),
        "patch_charts": chart,
        "rounding": _rounding(packed, depth, inside.heads_talk),
    }


def _rounding(packed: Packed, depth: int, heads_talk: bool) -> str:
    omitted = depth - len(packed.layers)
    before = "weights before mixing" if heads_talk else "the weights of patches"
    after = ", and weights after mixing are computed from them" if heads_talk else ""
    return (
        f"To keep this file small, {before} are rounded to {packed.steps + 1} levels between the minimum and the "
        f"maximum of each patch{after}. All other numbers are rounded to five digits."
        f"{f' For the same reason, {omitted} of the {depth} layers are omitted.' if omitted else ''}"
    )


def branch_section(inside: Inside) -> dict[str, str]:
    """Return the parts of the section on what each layer adds."""
    if not inside.branches:
        return {"no_branches": " hidden", **dict.fromkeys(("branches", "charts", "scale_columns", "table"), "")}
    learned, rows = any(b.learned for b in inside.branches), []
    for b in inside.branches:
        values = (b.scale, b.largest, b.ratio) if learned else (b.ratio,)
        cells = "".join(f"<td>{value:.4g}</td>" for value in values)
        rows.append(f'<tr><th scope="row">{escape(layer_label(b.name))}</th><td>{b.kind}</td>{cells}</tr>')
    return {
        "no_branches": "",
        "branches": " ".join(_about_branches(inside, learned)),
        "charts": "\n".join(map(_chart, charts(inside))),
        "scale_columns": '<th scope="col">mean |λ|</th><th scope="col">largest |λ|</th>' * learned,
        "table": "\n".join(rows),
    }


def _about_branches(inside: Inside, learned: bool) -> Iterator[str]:
    """Yield sentences: what a block adds, what the charts show, and which layers are not blocks."""
    yield texts()[block_equation(inside)].text.replace("SCALE", f"{inside.branches[0].scale:.3g}")
    cait = inside.own_stage and inside.heads_talk
    yield f"The {'second ' * learned}chart is Fig. 4 of {'the paper' if cait else 'the paper on CaiT, for this model'}."
    last = list(dict.fromkeys(label for b in inside.branches if (label := layer_label(b.name)).startswith("C")))
    if last:
        names, kind = (
            " and ".join(filter(None, (", ".join(last[:-1]), last[-1]))),
            "attention" if inside.own_stage else "MLP",
        )
        yield f"{names} {f'are the class-{kind} layers' if last[1:] else f'is the class-{kind} layer'}."


def _chart(chart: Chart) -> str:
    return f'<h3>{chart.title}</h3>\n<div class="scroll">{as_svg(chart)}</div>'

"""Charts of a value per layer: laid out once, and drawn as SVG or as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from autograd.draw import Svg

from .inside import Inside

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 250, 62, 10, 36, 40
COLOURS = ("#2b6cb0", "#c05621", "#2f855a")


class Mark(NamedTuple):
    kind: str  # bar, dot, line, rule or text
    coordinates: tuple[float, ...]
    series: int = 0
    text: str = ""  # to write, or the label of the mark


class Chart(NamedTuple):
    name: str  # of its picture
    title: str
    equation: str  # id of its explanation on the page
    marks: list[Mark]


def charts(inside: Inside) -> list[Chart]:
    """Lay out the charts of LayerScale, if it is learned, and of the residual branches' relative norms (Fig. 4)."""
    labels = list(dict.fromkeys(layer_label(branch.name) for branch in inside.branches))
    kinds = dict.fromkeys(branch.kind for branch in inside.branches)
    series = sorted(kinds, key=lambda kind: {"FFN": 1, "branch": 2}.get(kind, 0))
    scales: dict[str, dict[str, float]] = {kind: {} for kind in series}
    ratios: dict[str, dict[str, float]] = {kind: {} for kind in series}
    for b in inside.branches:
        scales[b.kind][layer_label(b.name)] = b.scale
        ratios[b.kind][layer_label(b.name)] = b.ratio
    learned = any(b.learned for b in inside.branches)
    title = "Residual branches: ‖branch‖ / ‖main path‖, logarithmic scale"
    equation = "eq-ratio" if learned and not {"cross-patch", "convolution"} & kinds.keys() else "eq-branch-ratio"
    ratio = Chart("residual-ratio", title, equation, _marks(labels, ratios, bars=False))
    if not learned:
        return [ratio]
    title, equation = "LayerScale: mean |λ| of each layer", block_equation(inside)
    return [Chart("layer-scale", title, equation, _marks(labels, scales, bars=True)), ratio]


def block_equation(inside: Inside) -> str:
    """Id of the equation of a block: its first branch tells which one it is."""
    first = inside.branches[0]
    if first.kind in ("cross-patch", "convolution"):
        return f"eq-{first.kind}"
    if first.kind != "attention":
        return "eq-residual"
    return "eq-4" if first.learned else "eq-2" if first.scale == 1 else "eq-alpha"


def sparsity_chart(inside: Inside) -> Chart:
    """Lay out the share of small weights in the matrices of each layer (Fig. 4.3 of ResMLP's chapter in the thesis)."""
    series = {matrix: {layer_label(name): share for name, share in shares.items()}
              for matrix, shares in inside.sparsity.items()}  # fmt: skip
    labels = list(dict.fromkeys(label for shares in series.values() for label in shares))
    title = "Share of weights below 5 % of the largest in their matrix"
    return Chart("sparsity", title, "eq-sparse", _marks(labels, series, bars=True))


def layer_label(name: str) -> str:
    """Return the label of a branch's layer: 1 for blocks.0.attn, C1 for blocks_token_only.0.attn, else its name."""
    stage, number, *_ = [*name.split("."), ""]
    if number.isdigit() and stage in ("blocks", "blocks_token_only"):
        return f"{'' if stage == 'blocks' else 'C'}{int(number) + 1}"
    return name.rpartition(".")[0] or name


def _marks(labels: Sequence[str], series: Mapping[str, Mapping[str, float]], bars: bool) -> list[Mark]:
    """Marks for values by layer: bars side by side, or dots above each other."""
    column, height = (WIDTH - LEFT - RIGHT) / max(1, len(labels)), HEIGHT - TOP - BOTTOM
    known = [value for values in series.values() for value in values.values() if value > 0] or [1.0]
    ticks = [0.0, max(known) / 2, max(known)] if bars else _powers_of_ten(min(known), max(known))
    low, top = ticks[0], ticks[-1]

    def y(value: float) -> float:
        if bars:
            return TOP + height * (1 - value / top)
        fraction = math.log(max(value, low) / low) / math.log(top / low)
        return TOP + height * (1 - fraction)

    marks = []
    for value in ticks:
        marks.append(Mark("rule", (LEFT, y(value), WIDTH - RIGHT, y(value))))
        marks.append(Mark("text", (LEFT - 8, y(value) + 4, 1), text=f"{value:.3g}"))
    every = 1 if len(labels) <= 30 else 4 if len(labels) <= 72 else 8
    for i, label in enumerate(labels):
        if i % every == 0 or label.startswith("C"):
            marks.append(Mark("text", (LEFT + (i + 0.5) * column, HEIGHT - BOTTOM + 18, 0.5), text=label))
    marks.append(Mark("text", (LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 4, 0.5), text="layer"))
    middle = {label: LEFT + (i + 0.5) * column for i, label in enumerate(labels)}
    beside = {label: [name for name, values in series.items() if label in values] for label in labels}
    for s, (name, values) in enumerate(series.items()):
        colour = s % len(COLOURS)
        stages = [[label for label in values if label.startswith("C") == last] for last in (False, True)]
        if not bars:  # a line per stage: the main path of the second is the class token
            lines = [tuple(z for label in stage for z in (middle[label], y(values[label]))) for stage in stages]
            marks += [Mark("line", line, colour) for line in lines if line]
        for label, value in values.items():
            text = f"Layer {label}, {name}: {value:.4g}"
            width = 0.8 * column / len(beside[label])
            left = middle[label] + (beside[label].index(name) - len(beside[label]) / 2) * width
            coordinates = (left, y(value), left + width, y(0)) if bars else (middle[label], y(value))
            marks.append(Mark("bar" if bars else "dot", coordinates, colour, text))
        marks.append(Mark("text", (LEFT + 130 * s, 20, 0), colour + 1, name))
    return marks


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Return at most seven evenly spaced powers of ten that enclose [low, high]."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    step = -(-(last - first) // 6)
    return [10.0**power for power in range(first, last + step, step)]


def as_svg(chart: Chart) -> Svg:
    """Draw a chart for the page, where bars and dots can be hovered over, or reached with the arrow keys."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f'aria-label="{escape(chart.title)}">'
    ]
    first = True
    for kind, at, series, text in chart.marks:
        if kind == "rule":
            parts.append('<line class="rule" x1="{:g}" y1="{:.1f}" x2="{:g}" y2="{:.1f}"/>'.format(*at))
        elif kind == "line":
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(at[::2], at[1::2], strict=True))
            parts.append(f'<polyline class="line s{series}" points="{points}"/>')
        elif kind == "text":
            anchor = {0: "start", 0.5: "middle", 1: "end"}[at[2]]
            colour = f' class="s{series - 1}"' if series else ""
            parts.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}"{colour}>{escape(text)}</text>')
        else:
            where = (
                f'rect x="{at[0]:.1f}" y="{at[1]:.1f}" width="{at[2] - at[0]:.1f}" height="{at[3] - at[1]:.1f}"'
                if kind == "bar"
                else f'circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4.5"'
            )
            parts.append(
                f'<{where} class="point s{series}" role="img" tabindex="{0 if first else -1}" '
                f'aria-label="{escape(text)}" data-equation="{chart.equation}"/>'
            )
            first = False
    return Svg("\n".join([*parts, "</svg>"]))


def as_picture(chart: Chart) -> Image.Image:
    """Draw a chart as an image, at twice the size."""
    picture = Image.new("RGB", (2 * WIDTH, 2 * HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(24)
    for kind, at, series, text in chart.marks:
        xy = [2 * z for z in at]
        if kind == "rule":
            draw.line(xy, "#dddddd", 2)
        elif kind == "line":
            draw.line(xy, COLOURS[series], 4)
        elif kind == "text":
            anchor = {0: "ls", 0.5: "ms", 1: "rs"}[at[2]]
            draw.text((xy[0], xy[1]), text, COLOURS[series - 1] if series else "#333333", font, anchor)
        elif kind == "bar":
            draw.rectangle(xy, COLOURS[series])
        else:
            draw.circle(xy, 8, COLOURS[series])
    return picture

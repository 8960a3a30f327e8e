"""draw: the graph behind a Tensor as an SVG picture.

Boxes with square corners are operations with their output shape, boxes with round corners are leaves, and dashed boxes
are constants, of which the graph keeps nothing. Arrows follow the data from the top down to the output; gradients flow
back along them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple

import numpy as np

from .. import engine
from ..backend import to_device
from ..function import Context
from ..tensor import Tensor
from .layout import Layout, layered
from .svg import Svg

MARGIN, LINE, PADDING, LETTER = 14, 15, 9, 6.8  # LETTER: about the mean width at font size 12
LONGEST = 26  # letters shown of a name; the tooltip has all
KINDS = {  # fill, frame, round corners, dashes
    "operation": ("#e6f0fa", "#2b6cb0", 2, ""),
    "leaf": ("#fdf0e1", "#c05621", 11, ""),
    "constant": ("#f4f4f4", "#8a8a8a", 11, ' stroke-dasharray="4 3"'),
}


class Box(NamedTuple):
    kind: str
    title: str
    lines: list[str]
    inputs: list[int]  # numbers of boxes


def draw(
    output: Tensor, names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None, gradients: bool = False
) -> Svg:
    """Draw the recorded graph of `output` as an SVG picture, which notebooks display.

    names      names of leaves or intermediate Tensors: {"w": w}, or model.named_parameters()
    gradients  also run backward, and show in each box the norm of its gradient. `output` must be a single value; the
               graph is kept, and no `.grad` is touched.
    """
    if not isinstance(output, Tensor):
        raise TypeError(f"draw: expected a Tensor, got {type(output).__name__}")
    root = engine._target(output)
    nodes = _nodes(root)
    leaves = {id(p): p for node in nodes for p in node.parents or [] if isinstance(p, Tensor)}
    targets: list[engine.Target] = [*nodes, *leaves.values()] if nodes else [output]
    norms = _norms(output, targets) if gradients else None
    boxes = _boxes(targets, _names(names), norms)
    sizes = [_size(box) for box in boxes]
    layout = layered([box.inputs for box in boxes], sizes)
    return _picture(boxes, sizes, layout, f"The graph behind a Tensor of shape {output.shape}")


def _nodes(root: engine.Target) -> list[Context]:
    try:
        return list(engine._consumers_first(root))
    except RuntimeError:
        assert isinstance(root, Context)
        raise RuntimeError(
            f"draw: the graph behind this Tensor, made by {root.function.name}, was freed by an earlier backward; draw "
            "it first, or pass retain_graph=True to that backward"
        ) from None


def _names(names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None) -> dict[int, str]:
    """Names by the id of the operation or leaf."""
    found: dict[int, str] = {}
    for name, tensor in names.items() if isinstance(names, Mapping) else names or ():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"draw: names must map to Tensors, got {type(tensor).__name__} for {name!r}")
        found.setdefault(id(engine._target(tensor)), str(name))
    return found


def _norms(output: Tensor, targets: list[engine.Target]) -> dict[int, float]:
    if output.size != 1:
        raise ValueError(
            f"draw: gradients need an output with a single value, got shape {output.shape}; draw a loss, or the sum of "
            "the output"
        )
    found = engine._run(output, None, True, targets, {}, accumulate=False)
    return {id(target): float(np.linalg.norm(to_device(g, "cpu").astype(np.float64).ravel())) for target, g in found}


def _boxes(targets: list[engine.Target], names: dict[int, str], norms: dict[int, float] | None) -> list[Box]:
    """A box for every operation and leaf in the given order, then one for every constant argument."""
    number = {id(target): i for i, target in enumerate(targets)}
    boxes, constants = [], 0
    for target in targets:
        inputs = []
        if isinstance(target, Context):
            kind, what = "operation", target.function.name
            for parent in target.parents or []:
                if parent is None:
                    inputs.append(len(targets) + constants)
                    constants += 1
                elif id(parent) in number:
                    inputs.append(number[id(parent)])
        else:
            kind = "leaf" if target.requires_grad else "constant"
            what = kind if type(target) is Tensor else type(target).__name__  # the name of a subclass says more
        name = names.get(id(target))
        shape = str(target.shape)
        lines = [what, shape] if name is None else [_short(name), what, shape]
        if kind == "leaf" and name is not None and type(target) is Tensor:
            lines = [_short(name), shape]
        title = f"{name or what}: {what if name else kind}, {shape} {target.dtype}"
        if norms is not None:
            norm = norms.get(id(target))
            lines.append("no gradient" if norm is None else f"|grad| {norm:.3g}")
            title += "" if norm is None else f", norm of its gradient {norm:.6g}"
        boxes.append(Box(kind, title, lines, inputs))
    plain = Box("constant", "constant: a Tensor that requires no gradient", ["constant"], [])
    return boxes + [plain] * constants


def _short(name: str) -> str:
    """The end of a long name, its most telling part: …attn.proj_l.weight"""
    end = name
    while len(end) > LONGEST:
        _, dot, rest = end.partition(".")
        end = rest if dot else end[-LONGEST:]
    return end if end == name else f"…{end}"


def _size(box: Box) -> tuple[float, float]:
    letters = [sum(1.0 if letter.isascii() else 2.0 for letter in line) for line in box.lines]
    letters[0] *= 1.1  # bold
    return round(LETTER * max(letters)) + 2 * PADDING, len(box.lines) * LINE + PADDING


# ---- the picture


def _picture(boxes: list[Box], sizes: list[tuple[float, float]], layout: Layout, title: str) -> Svg:
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    count = {kind: sum(box.kind == kind for box in boxes) for kind in KINDS}
    plural = {"operation": "operations", "leaf": "leaves", "constant": "constants"}
    counted = ", ".join(f"{n} {kind if n == 1 else plural[kind]}" for kind, n in count.items() if n)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="12" '
        f'style="max-width: 100%; min-width: {0.75 * width:.0f}px; height: auto">',  # text of at least 9 pixels
        f"<title>{_text(title)}</title>",
        f"<desc>{counted}. The data flows from the top to the output at the bottom ({_text(boxes[0].title)}).</desc>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="6" fill="white"/>',
        f'<g transform="translate({MARGIN} {MARGIN})" text-anchor="middle" stroke-width="1.2">',
        *_arrows(layout, sizes),
    ]
    for i, (box, size) in enumerate(zip(boxes, sizes, strict=True)):
        parts += _drawn(i, box, layout.x[i], layout.y[i], *size)
    return Svg("\n".join([*parts, "</g>", "</svg>"]) + "\n")


def _drawn(i: int, box: Box, x: float, y: float, width: float, height: float) -> list[str]:
    fill, frame, corner, dashes = KINDS[box.kind]
    thick = ' stroke-width="2.4"' if i == 0 else ""  # the output
    inputs = " ".join(map(str, box.inputs))
    first = y - height / 2 + PADDING / 2 + LINE * 0.75
    bold, plain = 'fill="#1a202c" font-weight="600"', 'fill="#4a5568"'
    return [
        f'<g class="{box.kind}" data-box="{i}" data-inputs="{inputs}"><title>{_text(box.title)}</title>',
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{corner}" fill="{fill}" stroke="{frame}"{dashes}{thick}/>',
        *(
            f'<text x="{x:.1f}" y="{first + LINE * k:.1f}" {plain if k else bold}>{_text(line)}</text>'
            for k, line in enumerate(box.lines)
        ),
        "</g>",
    ]


def _arrows(layout: Layout, sizes: list[tuple[float, float]]) -> list[str]:
    """Curves from layer to layer. Those that end at one box arrive side by side, in the order of their sources."""
    arriving: dict[int, list[int]] = {}
    for source, item in layout.links:
        arriving.setdefault(item, []).append(source)
    lines, heads = [], []
    for item, sources in arriving.items():
        box = item < len(sizes)
        step = min(14.0, sizes[item][0] / (len(sources) + 1)) if box else 0.0
        end = layout.y[item] + (-sizes[item][1] if box else layout.heights[item]) / 2  # top of a box, bottom of a dummy
        for k, source in enumerate(sorted(sources, key=layout.x.__getitem__)):
            x, x_end = layout.x[source], layout.x[item] + step * (k - (len(sources) - 1) / 2)
            height = sizes[source][1] if source < len(sizes) else layout.heights[source]
            upper = layout.y[source] + layout.heights[source] / 2  # between the layers
            lower = layout.y[item] - layout.heights[item] / 2 - 5
            bend = (upper + lower) / 2
            lines.append(
                f"M{x:.1f} {layout.y[source] + height / 2:.1f}V{upper:.1f}C{x:.1f} {bend:.1f} {x_end:.1f} {bend:.1f} "
                f"{x_end:.1f} {lower:.1f}V{end - 5 if box else end:.1f}"
            )
            if box:
                heads.append(f"M{x_end:.1f} {end:.1f}l-3.5 -7h7z")
    if not lines:
        return []
    return [
        f'<path class="arrows" fill="none" stroke="#718096" d="{"".join(lines)}"/>',
        f'<path class="heads" fill="#718096" d="{"".join(heads)}"/>',
    ]


def _text(text: str) -> str:
    """Escape text for XML, which allows no control characters."""
    return escape(re.sub(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text), quote=False)

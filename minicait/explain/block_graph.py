"""The graph that autograd records for one block."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from autograd import Tensor
from autograd.function import Context
from autograd.svg import Svg

from ..models.cait import CaiT

WIDTH, STEP, BOX = 460, 56, 34


def block_graph(model: CaiT) -> str:
    """Of the first block of `model`, as SVG."""
    rows, columns = (side // model.config["patch_size"] for side in model.config["img_size"])
    dtype = model.pos_embed.dtype
    patches = Tensor(np.zeros((1, rows * columns, model.config["dim"]), dtype), requires_grad=True)
    out = model.blocks[0](patches) if model.blocks else model.blocks_token_only[0](model.cls_token, patches)
    return _svg(out)


def _svg(out: Tensor) -> Svg:
    """The operations from top to bottom, and a line to each from those whose results it takes."""
    order: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, Context) and node not in order:
            for parent in node.parents or ():
                visit(parent)
            order.append(node)

    visit(out.node)
    names = escape(", then ".join(node.function.name for node in order))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="0 0 {WIDTH} {STEP * (len(order) + 1)}" '
        'fill="none" stroke="currentColor" font-family="sans-serif" font-size="14" '
        f'role="img" aria-label="The operations of one block: {names}">'
    ]
    lines = []
    for i, node in enumerate(["x", *order]):
        y = i * STEP + 4
        name = "input" if node == "x" else f"{node.function.name}  {node.shape}"
        parts.append(f'<rect x="80" y="{y}" width="300" height="{BOX}" rx="6"/>')
        parts.append(
            f'<text x="230" y="{y + 22}" text-anchor="middle" fill="currentColor" stroke="none">{escape(name)}</text>'
        )
        for parent in {id(p): p for p in (() if node == "x" else node.parents or ())}.values():
            j = order.index(parent) + 1 if isinstance(parent, Context) else 0
            if isinstance(parent, Context) or getattr(parent, "shape", None) == order[0].shape:
                bend = 80 - 24 * min(i - j - 1, 3)
                path = f"M230 {j * STEP + 4 + BOX}V{y}" if i - j == 1 else f"M80 {j * STEP + 21}H{bend}V{y + 17}H80"
                lines.append(f'<path d="{path}"/>')
    return Svg("\n".join([*parts, *lines, "</svg>"]))

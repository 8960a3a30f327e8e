"""Pictures of a run: its curves as SVG, and a batch as the model sees it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from autograd.draw import Svg

from ..data.picture import denormalise
from ..files.atomic import write_bytes

WIDTH, HEIGHT, LEFT, TOP, EDGE = 420, 260, 64, 34, 16
COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#6b46c1", "#718096")


def curves(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Svg:
    """One panel per title, one line per name, from (x, y) points. Where a page is narrow, all of it is smaller."""
    name = ", ".join(filter(None, panels)) or "curves"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(panels)}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" '
        'style="max-width:100%;height:auto" role="img" font-family="sans-serif" font-size="12" fill="#333">',
        f"<title>{escape(name)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, (title, lines) in enumerate(panels.items()):
        parts += [f'<g transform="translate({i * WIDTH} 0)">', *_panel(title, lines), "</g>"]
    return Svg("\n".join([*parts, "</svg>"]) + "\n")


def _panel(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    points = [point for line in lines.values() for point in line] or [(0.0, 0.0)]
    (x0, y0), (x1, y1) = ([f(values) for values in zip(*points, strict=True)] for f in (min, max))
    across, down = WIDTH - LEFT - EDGE, HEIGHT - TOP - 34

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + across * (x - x0) / ((x1 - x0) or 1), TOP + down * (1 - (y - y0) / ((y1 - y0) or 1))

    parts = [f'<text x="{EDGE}" y="20" font-weight="bold">{escape(title)}</text>']
    for value in (y0, (y0 + y1) / 2, y1):
        y = place(x0, value)[1]
        said = 0.0 if abs(value) < 1e-3 * (y1 - y0) else value
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + across}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(said)}</text>')
    for value in (x0, x1):
        x = place(value, y0)[0]
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 18}" text-anchor="middle">{value:g}</text>')
    for colour, line in zip(COLOURS, lines.values(), strict=False):
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if line:
            x, y = place(*line[-1])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    for i, (colour, name) in enumerate(zip(COLOURS, lines, strict=False)):
        x = 162 + (90 if len(lines) < 4 else 250 / len(lines)) * i
        parts.append(f'<text x="{x:.0f}" y="20" fill="{colour}">{escape(name)}</text>')
    return parts


def _label(value: float) -> str:
    """In so few digits that there is room for it beside the axis."""
    said = f"{value:.3g}"
    return said if len(said) <= 6 else f"{value:.2g}"


def batch_picture(images: np.ndarray, columns: int = 8) -> Image.Image:
    """Normalised images (B, 3, H, W) side by side, each at least 64 pixels wide."""
    pixels = denormalise(images)
    whole = max(columns, len(pixels) // columns * columns)
    rows = [np.concatenate(list(pixels[i : i + columns]), axis=1) for i in range(0, min(whole, len(pixels)), columns)]
    sheet = Image.fromarray(np.concatenate(rows, axis=0))
    factor = max(1, -(-64 // images.shape[-1]))
    return sheet.resize((sheet.width * factor, sheet.height * factor), Image.Resampling.NEAREST)


def write_picture(path: Path, picture: Image.Image) -> None:
    """As the kind that its name says."""
    content = io.BytesIO()
    picture.save(content, Image.registered_extensions()[path.suffix], quality=92)
    write_bytes(path, content.getvalue())

"""Pictures of a run: curves as SVG, a training batch, and the attention of the trained model."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from autograd.draw import Svg

from ..data.loader import Dataset, some_of_each_class
from ..data.picture import denormalise
from ..data.transforms import Transform
from ..explain import attention_sheet, write_reports
from ..files.atomic import write_bytes
from ..models import Model

WIDTH, HEIGHT, LEFT, TOP, EDGE = 420, 260, 64, 34, 16
SHEET_IMAGES, REPORTS = 6, 3
COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#6b46c1", "#718096")


def curves(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Svg:
    """Draw a panel per title, with a line through (x, y) points per name. On a narrow page the picture shrinks."""
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

    def position(x: float, y: float) -> tuple[float, float]:
        return LEFT + across * (x - x0) / ((x1 - x0) or 1), TOP + down * (1 - (y - y0) / ((y1 - y0) or 1))

    parts = [f'<text x="{EDGE}" y="20" font-weight="bold">{escape(title)}</text>']
    for value in (y0, (y0 + y1) / 2, y1):
        y = position(x0, value)[1]
        label = _label(0.0 if abs(value) < 1e-3 * (y1 - y0) else value)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + across}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value in (x0, x1):
        x = position(value, y0)[0]
        parts.append(f'<text x="{x:.1f}" y="{TOP + down + 18}" text-anchor="middle">{value:g}</text>')
    for i, (colour, (name, line)) in enumerate(zip(COLOURS, lines.items(), strict=False)):
        path = " ".join("{:.1f},{:.1f}".format(*position(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if line:
            x, y = position(*line[-1])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        x = 162 + (90 if len(lines) < 4 else 250 / len(lines)) * i
        parts.append(f'<text x="{x:.0f}" y="20" fill="{colour}">{escape(name)}</text>')
    return parts


def _label(value: float) -> str:
    """Format a number, with fewer digits if it would not fit beside the axis."""
    label = f"{value:.3g}"
    return label if len(label) <= 6 else f"{value:.2g}"


def batch_picture(images: np.ndarray, columns: int = 8) -> Image.Image:
    """Arrange normalised images (B, 3, H, W) in rows; small ones are enlarged."""
    pixels = denormalise(images)
    whole = max(columns, len(pixels) // columns * columns)
    rows = [np.concatenate(list(pixels[i : i + columns]), axis=1) for i in range(0, min(whole, len(pixels)), columns)]
    sheet = Image.fromarray(np.concatenate(rows, axis=0))
    factor = max(1, -(-64 // images.shape[-1]))
    return sheet.resize((sheet.width * factor, sheet.height * factor), Image.Resampling.NEAREST)


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture in the format that its file name implies."""
    content = io.BytesIO()
    picture.save(content, Image.registered_extensions()[path.suffix], quality=92)
    write_bytes(path, content.getvalue())


def draw_attention(folder: Path, model: Model, images: Dataset, transform: Transform | None) -> list[Path]:
    """Write attention.png for one image of each of some classes, if the model has maps of where it looks, and reports
    on a few, whose paths are returned.
    """
    chosen = some_of_each_class(images, transform, SHEET_IMAGES)
    sheet = attention_sheet(model, np.stack(list(chosen.values())), list(chosen), images.classes)
    if sheet is not None:
        write_picture(folder / "attention.png", sheet)
    titles = [f"Validation image of class {images.classes[label]}" for label in chosen]
    pixels = [denormalise(image) for image in chosen.values()]
    return write_reports(model, pixels[:REPORTS], titles[:REPORTS], images.classes, folder / "report.html")

"""The pictures of a report as separate images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .attention import overlay, saliency
from .charts import as_picture, charts
from .colours import CIVIDIS, DIVERGING, colourise, rescale, rescale_around_zero
from .inside import Inside

MIN_SIDE, TILE, GAP, CAPTION = 224, 112, 6, 18  # pixels: sides of a picture and of a tile in a sheet, margins


def enlarged(inside: Inside) -> Image.Image:
    """Return the image; small ones are enlarged by repeating pixels."""
    image = Image.fromarray(inside.image)
    factor = -(-MIN_SIDE // min(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def saliency_picture(inside: Inside, layer: int) -> Image.Image:
    """Draw saliency as in Fig. D.2: the grey image times the rescaled, enlarged mean over heads, in cividis."""
    grey = enlarged(inside).convert("L")
    heat = Image.fromarray(saliency(inside.class_attention[layer]).astype(np.float32))
    strength = np.clip(np.asarray(heat.resize(grey.size, Image.Resampling.BICUBIC)), 0, 1)
    return Image.fromarray(colourise(np.asarray(grey) / 255 * strength))


def pictures(inside: Inside) -> Iterator[tuple[str, Image.Image]]:
    """Yield all pictures with their names."""
    yield "image", enlarged(inside)
    layers, heads = inside.class_attention.shape[:2]
    titles = [*(f"head {h + 1}" for h in range(heads)), "mean"]
    rows = {f"layer C{i}": [*layer, layer.mean(axis=0)] for i, layer in enumerate(inside.class_attention, 1)}
    yield "class-attention", _sheet(inside, titles, rows)
    for layer in range(layers):
        yield f"saliency-{layer + 1}", saliency_picture(inside, layer)
    if len(inside.before):
        titles = [f"{when} {h + 1}" for when in ("before", "after") for h in range(heads)]
        both = np.concatenate([inside.before, inside.after], axis=1)[:, :, inside.start]
        maps = both.reshape(*both.shape[:2], *inside.grid)
        rows = {f"layer {i}": list(layer) for i, layer in enumerate(maps, 1)}
        yield "self-attention", _sheet(inside, titles, rows, signed=heads)
    for name, chart in zip(("layer-scale", "residual-ratio"), charts(inside), strict=True):
        yield name, as_picture(chart)


def _sheet(
    inside: Inside, titles: Sequence[str], rows: Mapping[str, Sequence[np.ndarray]], signed: int | None = None
) -> Image.Image:
    """Draw maps over the image, a row per layer. If they are attention of a patch, a frame shows it, and from column
    `signed` on, values are signed, and 0 is white.
    """
    image = enlarged(inside)
    image = image.resize((TILE * image.width // image.height, TILE))
    width, left = image.width + GAP, 60
    sheet = Image.new("RGB", (left + width * len(titles), CAPTION + (TILE + GAP) * len(rows)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for column, title in enumerate(titles):
        draw.text((left + column * width, 2), title, "black", font)
    for row, (name, maps) in enumerate(rows.items()):
        top = CAPTION + row * (TILE + GAP)
        draw.text((4, top + TILE // 2 - 8), name, "black", font)
        for column, values in enumerate(maps):
            corner = (left + column * width, top)
            is_signed = signed is not None and column >= signed
            heat, colours = (rescale_around_zero(values), DIVERGING) if is_signed else (rescale(values), CIVIDIS)
            sheet.paste(overlay(image, heat, colours=colours), corner)
            if signed is not None:
                high, wide = TILE / inside.grid[0], image.width / inside.grid[1]
                x, y = corner[0] + inside.start % inside.grid[1] * wide, top + inside.start // inside.grid[1] * high
                draw.rectangle((x, y, x + wide, y + high), outline="black" if is_signed else "white")
    return sheet

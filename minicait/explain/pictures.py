"""The pictures of a report as separate images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .attention import overlay, saliency
from .charts import as_picture, charts, sparsity_chart
from .colours import CIVIDIS, DIVERGING, colourise, rescale, rescale_around_zero
from .inside import Inside
from .maps import Maps, all_maps, patch_labels

MIN_SIDE, TILE, PANEL, GAP, CAPTION = 224, 112, 280, 6, 18  # pixels: sides of a picture and its parts, margins
MIDDLE = 6  # rows and columns of patches whose weights are drawn, as in Fig. 4.2 of the thesis


def enlarged(inside: Inside) -> Image.Image:
    """Return the image; small ones are enlarged by repeating pixels."""
    image = Image.fromarray(inside.image)
    factor = -(-MIN_SIDE // min(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def saliency_picture(inside: Inside, layer: int) -> Image.Image:
    """Draw saliency as in Fig. D.2: the grey image times the rescaled, enlarged mean over heads, in cividis."""
    grey = enlarged(inside).convert("L")
    heat = Image.fromarray(saliency(inside.class_attention[layer], inside.share).astype(np.float32))
    strength = np.clip(np.asarray(heat.resize(grey.size, Image.Resampling.BICUBIC)), 0, 1)
    return Image.fromarray(colourise(np.asarray(grey) / 255 * strength))


def pictures(inside: Inside) -> Iterator[tuple[str, Image.Image]]:
    """Yield all pictures with their names."""
    yield "image", enlarged(inside)
    if len(inside.patch_classes):
        yield "patch-classes", _classes_picture(inside)
    for maps in all_maps(inside):
        yield maps.name, _maps_picture(inside, maps)
    for layer in inside.salient:
        yield f"saliency-{layer + 1}", saliency_picture(inside, layer)
    if len(inside.before):
        heads = inside.before.shape[1]
        kinds = {"before": inside.before, "after": inside.after} if inside.heads_talk else {"head": inside.before}
        titles = [f"{kind} {h + 1}" for kind in kinds for h in range(heads)]
        both = np.concatenate(list(kinds.values()), axis=1)
        yield "self-attention", _patch_sheet(inside, titles, both, heads, inside.share)
    if len(inside.cross_patch):
        yield "cross-patch", _patch_sheet(inside, ["weights"], inside.cross_patch[:, None], signed=0)
        yield "cross-patch-rows", _rows_picture(inside)
        yield "sparsity", as_picture(sparsity_chart(inside))
    for chart in charts(inside):
        yield chart.name, as_picture(chart)


def _maps_picture(inside: Inside, maps: Maps) -> Image.Image:
    titles = maps.columns
    rows = {f"layer {name}" if name else "": list(layer) for name, layer in zip(maps.layers, maps.values, strict=True)}
    if maps.has_mean:
        titles = [*(title.lower() for title in titles), "mean"]
        rows = {name: [*layer, layer.mean(axis=0)] for name, layer in zip(rows, maps.values, strict=True)}
    return _sheet(inside, titles, rows, 0 if maps.signed else len(titles), share=maps.share)


def _patch_sheet(
    inside: Inside, titles: Sequence[str], between: np.ndarray, signed: int, share: float = 1.0
) -> Image.Image:
    """Draw maps (layers, columns, N, N) for the patch that the report shows first, with a frame around it."""
    maps = between[:, :, inside.start].reshape(*between.shape[:2], *inside.grid)
    rows = {f"layer {i}": list(layer) for i, layer in enumerate(maps, 1)}
    return _sheet(inside, titles, rows, signed, inside.start, share)


def _sheet(
    inside: Inside,
    titles: Sequence[str],
    rows: Mapping[str, Sequence[np.ndarray]],
    signed: int,
    framed: int | None = None,
    share: float = 1.0,
) -> Image.Image:
    """Draw maps over the image, a row per layer. From column `signed` on, values are signed, and 0 is white.

    framed  a patch to draw a frame around
    share   of the patches that a scale covers
    """
    image = enlarged(inside)
    image, font = image.resize((TILE * image.width // image.height, TILE)), ImageFont.load_default(12)
    width, left = max(image.width, *(int(font.getlength(title)) for title in titles)) + GAP, 60
    sheet = Image.new("RGB", (left + width * len(titles), CAPTION + (TILE + GAP) * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        draw.text((left + column * width, 2), title, "black", font)
    for row, (name, maps) in enumerate(rows.items()):
        top = CAPTION + row * (TILE + GAP)
        draw.text((4, top + TILE // 2 - 8), name, "black", font)
        for column, values in enumerate(maps):
            corner = (left + column * width, top)
            is_signed = column >= signed
            heat, colours = (rescale_around_zero(values), DIVERGING) if is_signed else (rescale(values, share), CIVIDIS)
            sheet.paste(overlay(image, heat, colours=colours), corner)
            if framed is not None:
                high, wide = TILE / inside.grid[0], image.width / inside.grid[1]
                x, y = corner[0] + framed % inside.grid[1] * wide, top + framed // inside.grid[1] * high
                draw.rectangle((x, y, x + wide, y + high), outline="black" if is_signed else "white")
    return sheet


def _rows_picture(inside: Inside) -> Image.Image:
    """Draw the weights of the patches in the middle as small maps, side by side, a panel per layer: Fig. 4.2 of the
    thesis. A panel has one scale.
    """
    rows, columns = inside.grid
    high, wide = min(MIDDLE, rows), min(MIDDLE, columns)
    whole = inside.cross_patch.reshape(-1, rows, columns, rows, columns)
    middle = whole[:, (rows - high) // 2 :, (columns - wide) // 2 :][:, :high, :wide]
    across, size = 4, max(2, PANEL // (wide * (columns + 1)))  # panels, and pixels of a weight
    width, height = size * wide * (columns + 1) + 2 * GAP, size * high * (rows + 1) + CAPTION + GAP
    sheet = Image.new("RGB", (across * width, -(-len(middle) // across) * height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for i, layer in enumerate(middle):
        tiles = np.full((high, rows + 1, wide, columns + 1, 3), 255, np.uint8)  # with a white line between two
        tiles[:, :-1, :, :-1] = colourise(rescale_around_zero(layer.transpose(0, 2, 1, 3)), DIVERGING)
        panel = Image.fromarray(tiles.reshape(high * (rows + 1), wide * (columns + 1), 3))
        left, top = GAP + i % across * width, i // across * height
        draw.text((left, top + 2), f"layer {i + 1}", "black", font)
        panel = panel.resize((size * panel.width, size * panel.height), Image.Resampling.NEAREST)
        sheet.paste(panel, (left, top + CAPTION))
    return sheet


def _classes_picture(inside: Inside) -> Image.Image:
    """Draw every patch in the colour of its class, more opaque the more probable that is, and the names of the colours
    beside it.
    """
    labels, image = patch_labels(inside), enlarged(inside)
    grey, (rows, columns) = image.convert("L").convert("RGB"), inside.grid
    colours = np.array(labels.colours, np.uint8)[labels.which].reshape(rows, columns, 3)
    strength = (255 * labels.probability).astype(np.uint8).reshape(rows, columns)
    layer, mask = (Image.fromarray(x).resize(image.size, Image.Resampling.NEAREST) for x in (colours, strength))
    sheet = Image.new("RGB", (image.width + 260, image.height), "white")
    sheet.paste(Image.composite(layer, grey, mask))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, (name, colour) in enumerate(labels.legend):
        top = GAP + 22 * i
        draw.rectangle((image.width + 10, top, image.width + 26, top + 16), colour)
        draw.text((image.width + 34, top), name, "black", font)
    return sheet

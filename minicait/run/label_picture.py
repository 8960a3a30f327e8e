"""A picture of label maps: some images, and beside each its cells in the colours of their classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from autograd.kernels import softmax

from ..data.label_file import LabelFile
from ..data.loader import Dataset
from ..data.picture import Picture
from ..data.token_labels import dense
from ..explain.colours import CATEGORIES, OTHER
from ..text import shortened
from .pictures import write_picture

IMAGES, ACROSS = 6, 2
SIDE, GAP, CAPTION, LEGEND = 192, 8, 20, 260  # pixels
OPAQUE = 220  # of 255, where the annotator is sure


def write_label_picture(file: LabelFile, images: Dataset) -> Path:
    """Write a PNG beside a file of label maps, of images evenly spread over the dataset, and return its path."""
    chosen = {}
    for index in np.linspace(0, len(images) - 1, min(IMAGES, len(images))).astype(int).tolist():
        logits, classes = file.read(index)
        if np.isfinite(logits).all():
            scores = softmax(dense(logits, classes, len(file.description.classes)), -1)
            chosen[index] = scores.argmax(-1), scores.max(-1)
    path = file.path.with_suffix(".png")
    write_picture(path, _sheet(images, chosen, file.description.classes))
    return path


def _sheet(images: Dataset, chosen: dict[int, tuple[np.ndarray, np.ndarray]], names: list[str]) -> Image.Image:
    """Every image twice: as it is, and grey under its map, where a cell is the more opaque the surer the annotator.

    Colours are for the classes of these images, and then for those that most cells have.
    """
    found = [best.reshape(-1) for best, _ in chosen.values()]
    cells = np.bincount(np.concatenate([np.zeros(0, int), *found]), minlength=len(names))
    own = np.isin(np.arange(len(names)), [images[index][1] for index in chosen])
    coloured = np.lexsort((-cells, ~own))[: len(CATEGORIES)]
    colours = np.full((len(names), 3), OTHER, np.uint8)
    colours[coloured] = CATEGORIES[: len(coloured)]
    width, height = 2 * SIDE + 2 * GAP, SIDE + CAPTION + GAP
    rows = -(-len(chosen) // ACROSS) or 1
    sheet = Image.new("RGB", (ACROSS * width + LEGEND, max(rows * height, 200)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, (index, (best, probability)) in enumerate(chosen.items()):
        left, top = i % ACROSS * width, i // ACROSS * height
        image, label = images[index]
        image = (image if isinstance(image, Picture) else Picture(image)).decode()
        image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        layer, mask = (
            Image.fromarray(x).resize(image.size, Image.Resampling.NEAREST)
            for x in (colours[best], (OPAQUE * probability).astype(np.uint8))
        )
        draw.text((left + 4, top + 3), shortened(names[label], 40), "black", font)
        sheet.paste(image, (left, top + CAPTION))
        sheet.paste(Image.composite(layer, image.convert("L").convert("RGB"), mask), (left + SIDE, top + CAPTION))
    legend = [(names[number], tuple(colours[number].tolist())) for number in coloured if own[number] or cells[number]]
    legend += [("other classes", OTHER)] if cells.sum() > cells[coloured].sum() else []
    for i, (name, colour) in enumerate(legend):
        left, top = ACROSS * width + GAP, CAPTION + 22 * i
        draw.rectangle((left, top, left + 16, top + 16), colour)
        draw.text((left + 24, top), shortened(name, 28), "black", font)
    below = ACROSS * width + GAP, CAPTION + 22 * len(legend) + 6
    draw.text(below, "the surer, the stronger the colour", "black", font)
    return sheet

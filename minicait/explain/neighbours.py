"""A picture of images and their nearest neighbours (Fig. 2.3 of the thesis)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

SIDE, FRAME, GAP, CAPTION = 96, 4, 6, 18  # pixels
COLOURS = {True: "#2f855a", False: "#c53030", None: "#718096"}  # of a frame: right, wrong, unknown
QUERY = "#222222"


class Shown(NamedTuple):
    """An image with its caption."""

    image: Image.Image  # square
    name: str
    right: bool | None = None  # of the query's fine class; None: unknown


def neighbours_sheet(rows: Sequence[tuple[Shown, Sequence[Shown]]]) -> Image.Image:
    """Draw a row for each query: the query in a dark frame, then its neighbours, framed green if they are right."""
    columns, width, height = max(len(found) for _, found in rows) + 1, SIDE + GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (columns * width + 3 * GAP, len(rows) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for row, (query, found) in enumerate(rows):
        for column, shown in enumerate((query, *found)):
            left, top = GAP + column * width + (2 * GAP if column else 0), GAP + row * height
            small = shown.image.width < SIDE
            inside = SIDE - 2 * FRAME
            picture = shown.image.resize((inside, inside), Image.Resampling.NEAREST if small else None)
            draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), COLOURS[shown.right] if column else QUERY)
            sheet.paste(picture, (left + FRAME, top + FRAME))
            draw.text((left, top + SIDE + 2), _fitting(shown.name, font), "black", font)
    return sheet


def _fitting(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """A name as far as it fits below an image; its end says more than its beginning."""
    if font.getlength(name) <= SIDE:
        return name
    while name and font.getlength(f"…{name}") > SIDE:
        name = name[1:]
    return f"…{name}"

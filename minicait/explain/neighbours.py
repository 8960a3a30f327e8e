"""A picture of images and their nearest neighbours (Fig. 2.3 of the thesis)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

SIDE, FRAME, GAP, CAPTION, LEGEND = 96, 4, 6, 18, 28  # pixels
QUERY, UNKNOWN = "#222222", "#a0a0a0"
GRADES = {  # of a found image: colour of its frame, and what that means; Okabe and Ito's
    "same": ("#009e73", "same fine class"),
    "same class": ("#f0e442", "another fine class of the same class"),
    "other": ("#d55e00", "another class"),
}


class Shown(NamedTuple):
    """An image with its caption."""

    image: Image.Image  # square
    name: str
    grade: str | None = None  # of GRADES; None: unknown


def neighbours_sheet(rows: Sequence[tuple[Shown, Sequence[Shown]]]) -> Image.Image:
    """Draw a row for each query: the query in a dark frame, then its neighbours, nearest first, in those of GRADES."""
    columns, width, height = max(len(found) for _, found in rows) + 1, SIDE + GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (columns * width + 3 * GAP, len(rows) * height + LEGEND), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    _draw_legend(draw, font, {shown.grade for _, found in rows for shown in found})
    for row, (query, found) in enumerate(rows):
        for column, shown in enumerate((query, *found)):
            left, top = GAP + column * width + (2 * GAP if column else 0), LEGEND + row * height
            frame = QUERY if not column else UNKNOWN if shown.grade is None else GRADES[shown.grade][0]
            small = shown.image.width < SIDE
            inside = SIDE - 2 * FRAME
            picture = shown.image.resize((inside, inside), Image.Resampling.NEAREST if small else None)
            draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), frame)
            sheet.paste(picture, (left + FRAME, top + FRAME))
            draw.text((left, top + SIDE + 2), _fitting(shown.name, font), "black", font)
    return sheet


def _draw_legend(draw: ImageDraw.ImageDraw, font: Any, grades: set[str | None]) -> None:
    left = GAP
    meanings = [(QUERY, "query"), *(own for grade, own in GRADES.items() if grade in grades)]
    for colour, meaning in meanings:
        draw.rectangle((left, GAP, left + 12, GAP + 12), colour)
        draw.text((left + 18, GAP - 1), meaning, "black", font)
        left += 18 + int(font.getlength(meaning)) + 3 * GAP


def _fitting(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """A name as far as it fits below an image; its end says more than its beginning."""
    if font.getlength(name) <= SIDE:
        return name
    while name and font.getlength(f"…{name}") > SIDE:
        name = name[1:]
    return f"…{name}"

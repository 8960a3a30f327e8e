"""Pictures of a run: a training batch, and the attention of the trained model."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.groups import unwrapped
from ..data.loader import Dataset, some_of_each_class
from ..data.picture import denormalise
from ..data.shapes import Shapes
from ..data.transforms import Transform
from ..explain import Facts, attention_sheet, write_reports
from ..files.atomic import write_bytes
from ..models import Model

SHEET_IMAGES, REPORTS = 6, 3


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


def draw_attention(
    folder: Path, model: Model, images: Dataset, transform: Transform | None, weights: str | None = None
) -> list[Path]:
    """Write attention.png for one image of each of some classes, if the model has maps of where it looks, and reports
    on a few, whose paths are returned. `weights` tells the origin of the model's weights.
    """
    chosen = some_of_each_class(images, transform, SHEET_IMAGES)
    labels = [each.label for each in chosen]
    sheet = attention_sheet(model, np.stack([each.image for each in chosen]), labels, images.classes)
    if sheet is not None:
        write_picture(folder / "attention.png", sheet)
    drawn = unwrapped(images)
    masks = [drawn.mask(each.position) if isinstance(drawn, Shapes) else None for each in chosen]
    facts = [Facts(label, weights, mask) for label, mask in zip(labels, masks, strict=True)]
    titles = [f"Validation image of class {images.classes[label]}" for label in labels]
    pixels = [denormalise(each.image) for each in chosen]
    first = slice(REPORTS)
    return write_reports(model, pixels[first], titles[first], images.classes, folder / "report.html", facts[first])

"""Pictures: image files of any kind as upright RGB, decoded no finer than needed, and then as numbers.

Two differences from the reference are meant: the rotation that cameras note in EXIF is carried out, and what is
transparent is shown on white, so that a model sees what a person sees.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MEAN = (0.485, 0.456, 0.406)  # ImageNet's, of red, green and blue
STD = (0.229, 0.224, 0.225)
ORIENTATION, QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # in EXIF
LAST = 8  # a JPEG can be decoded at 1/2, 1/4 and 1/8 of its size, at a fraction of the cost


class BadImageError(ValueError):
    """A file that is no image, or a damaged one; the message has its path and the reason."""


class Picture:
    """An image that is not decoded yet. Its size is known, so a crop can be chosen before it is."""

    def __init__(self, source: str | Path | np.ndarray) -> None:
        """From a file, or from pixels (H, W, 3) in uint8."""
        self.path: str | Path = ""
        if isinstance(source, np.ndarray):
            self._image, self._orientation = Image.fromarray(source), 1
        else:
            self.path = source
            try:
                self._image, self._orientation = _open(Path(source))
            except MemoryError:  # which says nothing about the image
                raise
            except Exception as error:  # whatever a damaged file can bring about in a decoder
                raise self._bad(error) from error
        width, height = self._image.size
        self.size = (height, width) if self._orientation in QUARTER_TURNS else (width, height)

    def decode(self, shrink: float = 1) -> Image.Image:
        """The image, once. A JPEG may come smaller, by a power of two that is at most `shrink`."""
        try:
            if shrink >= 2:
                width, height = (int(side // min(shrink, LAST)) for side in self._image.size)
                self._image.draft(None, (width, height))
            return _rgb(_upright(self._image) if self._orientation != 1 else self._image)
        except MemoryError:
            raise
        except Exception as error:
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadImageError:
        reason = getattr(error, "strerror", None) or str(error) or repr(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "it is no image that Pillow knows"
        return BadImageError(f"{self.path} cannot be read: {reason}")


def _open(path: Path) -> tuple[Image.Image, int]:
    content = path.read_bytes()  # all at once, so that no file stays open until it is decoded
    if not content:
        raise ValueError("it is empty")
    image = Image.open(io.BytesIO(content))
    if image.format == "JPEG":  # the kind that can wait, and be decoded at a smaller size
        return image, _orientation(image)
    image.load()  # some kinds are turned here already
    return _upright(image) if _orientation(image) != 1 else image, 1


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged note about the image is no damage to it
        return 1


def _upright(image: Image.Image) -> Image.Image:
    turned = ImageOps.exif_transpose(image)
    assert turned is not None
    return turned


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255; or, in 32, any number
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are whole numbers of an unknown range")
        scale = 1 if image.mode == "I" and values.max() <= 255 else 257
        return Image.fromarray((values / scale + 0.5).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of an unknown range")
    return image.convert("RGB")


def normalise(images: np.ndarray, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """uint8 (..., H, W, 3) to float32 (..., 3, H, W): (x / 255 - mean) / std, by default ImageNet's."""
    factor = (1 / (255 * np.asarray(std))).astype(np.float32)
    shift = (np.asarray(mean) / np.asarray(std)).astype(np.float32)
    channels_first = np.moveaxis(images, -1, -3)
    return channels_first * factor[:, None, None] - shift[:, None, None]


def denormalise(images: np.ndarray) -> np.ndarray:
    """The way back, for pictures: float32 (..., 3, H, W) to uint8 (..., H, W, 3)."""
    pixels = (np.moveaxis(images, -3, -1) * STD + MEAN) * 255
    return np.clip(pixels.round(), 0, 255).astype(np.uint8)

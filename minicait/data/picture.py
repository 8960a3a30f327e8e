"""Pictures: image files of any kind as upright RGB, decoded no finer than needed, and as normalised arrays.

Two differences from the reference are deliberate: EXIF rotation is applied, and transparent pixels are shown on white,
so that a model sees what a person sees.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's red, green and blue
STD = (0.229, 0.224, 0.225)
ORIENTATION, QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # in EXIF
MAX_SHRINK = 8  # a JPEG can be decoded at 1/2, 1/4 and 1/8 of its size, at a fraction of the cost


class BadImageError(ValueError):
    """A file that is damaged or not an image; the message has its path and the reason."""


class Picture:
    """An image that is decoded on demand. Its size is known before, so that a crop can be chosen first."""

    def __init__(self, source: str | Path | np.ndarray) -> None:
        """Open a file, or wrap pixels (H, W, 3) in uint8."""
        self.path: str | Path = ""
        if isinstance(source, np.ndarray):
            self._image, self._orientation = Image.fromarray(source), 1
        else:
            self.path = source
            try:
                self._image, self._orientation = _open(Path(source))
            except MemoryError:  # not the image's fault
                raise
            except Exception as error:  # decoders can raise anything on a damaged file
                raise self._bad(error) from error
        width, height = self._image.size
        self.size = (height, width) if self._orientation in QUARTER_TURNS else (width, height)

    def decode(self, shrink: float = 1) -> Image.Image:
        """Decode the image, once. A JPEG may come out smaller, by a power of two up to `shrink`."""
        try:
            if shrink >= 2:
                width, height = (int(side // min(shrink, MAX_SHRINK)) for side in self._image.size)
                self._image.draft(None, (width, height))
            return _rgb(_upright(self._image) if self._orientation != 1 else self._image)
        except MemoryError:
            raise
        except Exception as error:
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadImageError:
        reason = getattr(error, "strerror", None) or str(error) or repr(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "Pillow does not recognise it as an image"
        return BadImageError(f"{self.path} cannot be read: {reason}")


def _open(path: Path) -> tuple[Image.Image, int]:
    content = path.read_bytes()  # at once, so that no file stays open until it is decoded
    if not content:
        raise ValueError("it is empty")
    image = Image.open(io.BytesIO(content))
    if image.format == "JPEG":  # can be decoded later, at a smaller size
        return image, _orientation(image)
    image.load()  # applies the rotation of some formats
    return _upright(image) if _orientation(image) != 1 else image, 1


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF does not make a bad image
        return 1


def _upright(image: Image.Image) -> Image.Image:
    turned = ImageOps.exif_transpose(image)
    assert turned is not None
    return turned


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255, or any 32-bit integers
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels are integers of unknown range")
        scale = 1 if image.mode == "I" and values.max() <= 255 else 257
        return Image.fromarray((values / scale + 0.5).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    return image.convert("RGB")


def normalise(images: np.ndarray, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """Convert uint8 (..., H, W, 3) to float32 (..., 3, H, W): (x / 255 - mean) / std."""
    factor = (1 / (255 * np.asarray(std))).astype(np.float32)
    shift = (np.asarray(mean) / np.asarray(std)).astype(np.float32)
    channels_first = np.moveaxis(images, -1, -3)
    return channels_first * factor[:, None, None] - shift[:, None, None]


def denormalise(images: np.ndarray) -> np.ndarray:
    """Invert `normalise` for display: float32 (..., 3, H, W) to uint8 (..., H, W, 3)."""
    pixels = (np.moveaxis(images, -3, -1) * STD + MEAN) * 255
    return np.clip(pixels.round(), 0, 255).astype(np.uint8)

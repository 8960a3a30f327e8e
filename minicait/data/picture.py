"""Pictures: image files of six formats as upright RGB, decoded no finer than needed, and as normalised arrays.

Two differences from the reference are deliberate: EXIF rotation is applied, and transparent pixels are shown on white,
so that a model sees what a person sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..text import shortened
from .formats import MAX_METADATA, open_image, read

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's red, green and blue
STD = (0.229, 0.224, 0.225)
ORIENTATION = 0x0112  # in EXIF
_T = Image.Transpose
UPRIGHT = {2: _T.FLIP_LEFT_RIGHT, 3: _T.ROTATE_180, 4: _T.FLIP_TOP_BOTTOM, 5: _T.TRANSPOSE, 6: _T.ROTATE_270,
           7: _T.TRANSVERSE, 8: _T.ROTATE_90}  # fmt: skip
QUARTER_TURNS = (5, 6, 7, 8)
MAX_SHRINK = 8  # a JPEG can be decoded at 1/2, 1/4 and 1/8 of its size, at a fraction of the cost
TILE = 1024  # side of the parts in which a large image is converted, so that no copy of all of it is needed
MAX_REASON = 200  # characters: a decoder may quote from the file


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
            self._image, self._orientation = _upright(self._image, self._orientation), 1
            self._image = _rgb(self._image)
            return self._image
        except MemoryError:
            raise
        except Exception as error:
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadImageError:
        reason = getattr(error, "strerror", None) or str(error) or repr(error)
        return BadImageError(f"{self.path} cannot be read: {shortened(reason, MAX_REASON)}")


def _open(path: Path) -> tuple[Image.Image, int]:
    image = open_image(read(path))
    if image.format == "JPEG":  # can be decoded later, at a smaller size
        return image, _orientation(image)
    image.load()  # applies the rotation of some formats
    return _upright(image, _orientation(image)), 1


def _orientation(image: Image.Image) -> int:
    try:
        if len(image.info.get("exif", b"")) > MAX_METADATA:
            return 1
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF does not make a bad image
        return 1
    return orientation if isinstance(orientation, int) else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def _rgb(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "RGB":
        return image
    scale = _integer_scale(image) if image.mode.startswith("I") else None
    if max(image.size) <= TILE:
        return _tile_to_rgb(image, scale)
    whole = Image.new("RGB", image.size)
    for box in _tiles(image):
        whole.paste(_tile_to_rgb(image.crop(box), scale), box)
    return whole


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    for top in range(0, image.height, TILE):
        for left in range(0, image.width, TILE):
            yield left, top, min(left + TILE, image.width), min(top + TILE, image.height)


def _integer_scale(image: Image.Image) -> int:
    """Divisor to 8 bits of 16-bit grey, which Pillow would clip at 255, or of 32-bit integers."""
    ranges = [(tile.min(), tile.max()) for tile in (np.asarray(image.crop(box)) for box in _tiles(image))]
    least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    if least < 0 or most > 65535:
        raise ValueError("its pixels are integers of unknown range")
    return 1 if image.mode == "I" and most <= 255 else 257


def _tile_to_rgb(image: Image.Image, scale: int | None) -> Image.Image:
    if scale is not None:
        return Image.fromarray((np.asarray(image) / scale + 0.5).astype(np.uint8)).convert("RGB")
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
    channels_first = np.ascontiguousarray(np.moveaxis(images, -1, -3))  # in bytes: cheaper than in floats
    normalised = channels_first * factor[:, None, None]
    normalised -= shift[:, None, None]
    return normalised


def denormalise(images: np.ndarray) -> np.ndarray:
    """Invert `normalise` for display: float32 (..., 3, H, W) to uint8 (..., H, W, 3)."""
    pixels = (np.moveaxis(images, -3, -1) * STD + MEAN) * 255
    return np.clip(pixels.round(), 0, 255).astype(np.uint8)

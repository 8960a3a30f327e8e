"""A folder of JPEG files to predict, drawn for a measurement: as large as photographs, and as hard to decode."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 375)  # pixels, as most photographs of ImageNet
COARSEST, FINEST = 128, 1  # pixels of a grain of noise
CONTRAST = 15  # standard deviation of the noise of one scale, of 255
QUALITY = 90  # of the JPEG files: about 100 kB each


@contextmanager
def drawn_folder(count: int) -> Iterator[str]:
    """A temporary folder of `count` different JPEG files."""
    with tempfile.TemporaryDirectory(prefix="minicait-bench-") as folder:
        for i in range(count):
            draw(i).save(Path(folder) / f"{i:05d}.jpg", quality=QUALITY)
        yield folder


def draw(seed: int) -> Image.Image:
    """Noise of all scales with the same contrast, as photographs have it: so a file takes as long to decode."""
    rng = np.random.default_rng(seed)
    width, height = SIZE
    pixels = np.full((height, width, 3), 128, np.float32)
    grain = COARSEST
    while grain >= FINEST:
        noise = rng.standard_normal((3, -(-height // grain), -(-width // grain)), dtype=np.float32)
        layers = [np.asarray(Image.fromarray(channel).resize(SIZE, Image.Resampling.BILINEAR)) for channel in noise]
        pixels += CONTRAST * np.stack(layers, axis=-1)
        grain //= 2
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

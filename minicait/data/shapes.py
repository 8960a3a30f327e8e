"""Shapes: synthetic images for training without downloads. Ten kinds of objects on textured backgrounds.

Image i of a seed is always the same. Size, position, angle and colours are independent of the class, so a linear
classifier, which weighs single pixels, learns little. Every image comes with the mask of its object, to measure how
much of the attention falls on it. Objects may be drawn in four named colours, which are fine labels then (`groups`).
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from autograd.random import Stream

CLASSES = ("circle", "ring", "triangle", "square", "bar", "star", "plus", "heart", "crescent", "arrow")
DIFFICULTIES = ("easy", "medium", "hard")
COLOURS = {"red": (250, 20, 20), "green": (10, 240, 30), "blue": (30, 60, 255), "yellow": (250, 240, 10)}
_SHADE = 15  # largest difference from a named colour, in every channel
_SUPERSAMPLING = 4  # objects are drawn at four times the size and scaled down, for smooth edges
_BACKGROUND = {"easy": (20, 90), "medium": (60, 195), "hard": (60, 195)}  # base colour
_COLOUR = {"easy": (160, 255), "medium": (0, 255), "hard": (0, 255)}  # of the object
_CONTRAST = {"easy": 90, "medium": 80, "hard": 55}  # least difference from the background, in some channel
_TEXTURE = {"easy": 12, "medium": 25, "hard": 35}
_RADIUS = {"easy": (0.28, 0.40), "medium": (0.20, 0.36), "hard": (0.15, 0.34)}  # of the object, relative to the side
_ROTATION = {"easy": math.pi / 12, "medium": math.pi / 4, "hard": math.pi}  # at most, in either direction


class Shapes:
    """A dataset: `shapes[i]` is (image, label) with image uint8 (size, size, 3); `shapes.mask(i)` is boolean.

    coloured  objects are red, green, blue or yellow, and fine labels are form and colour
    """

    classes = CLASSES

    def __init__(
        self, count: int, size: int = 32, seed: int = 0, difficulty: str = "medium", coloured: bool = False
    ) -> None:
        if difficulty not in DIFFICULTIES:
            raise ValueError(f"shapes: difficulty must be one of {', '.join(DIFFICULTIES)}, got {difficulty!r}")
        if count < 1 or size < 8:
            raise ValueError(f"shapes: needs at least 1 image of at least 8 pixels, got {count} of {size}")
        self.count, self.size, self.seed, self.difficulty, self.coloured = count, size, seed, difficulty, coloured

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, _, label = self.render(index)
        return image, label

    def mask(self, index: int) -> np.ndarray:
        return self.render(index)[1]

    def label(self, index: int) -> int:
        return int(self._stream(index).generator().integers(len(CLASSES)))  # the first that `render` draws

    @property
    def fine_classes(self) -> list[str]:
        return [f"{colour} {form}" for form in CLASSES for colour in COLOURS] if self.coloured else list(CLASSES)

    def fine(self, index: int) -> int:
        return self.label(index) * len(COLOURS) + self._shade(index)[0] if self.coloured else self.label(index)

    def render(self, index: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return image, mask and label."""
        if not 0 <= index < self.count:
            raise IndexError(f"shapes: index {index} is out of range for {self.count} images")
        rng = self._stream(index).generator()
        label = int(rng.integers(len(CLASSES)))
        background = self._background(rng)
        alpha = self._object(rng, CLASSES[label])[..., None]
        colour = self._shade(index)[1] if self.coloured else self._colour(rng, background)
        texture = rng.normal(0, _TEXTURE[self.difficulty] / 3, background.shape)
        image = background * (1 - alpha) + (colour + texture) * alpha
        return np.clip(image, 0, 255).astype(np.uint8), alpha[..., 0] > 0.5, label

    def _stream(self, index: int) -> Stream:
        return Stream(self.seed, f"shapes/{self.difficulty}", sample=index)

    def _shade(self, index: int) -> tuple[int, np.ndarray]:
        """Draw one of the named colours, and a shade of it."""
        rng = self._stream(index).named("colour").generator()
        number = int(rng.integers(len(COLOURS)))
        return number, np.array(list(COLOURS.values())[number]) + rng.uniform(-_SHADE, _SHADE, 3)

    def _background(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a base colour with waves in random directions, and noise."""
        strength = _TEXTURE[self.difficulty]
        y, x = np.mgrid[: self.size, : self.size] / self.size
        image = np.zeros((self.size, self.size, 3)) + rng.uniform(*_BACKGROUND[self.difficulty], 3)
        for _ in range(3):
            angle, frequency, phase = rng.uniform(0, [2 * math.pi, 5, 2 * math.pi])
            wave = np.sin(2 * math.pi * frequency * (x * math.cos(angle) + y * math.sin(angle)) + phase)
            image += wave[..., None] * rng.normal(0, strength, 3)
        return image + rng.normal(0, strength / 2, image.shape)

    def _colour(self, rng: np.random.Generator, background: np.ndarray) -> np.ndarray:
        """Draw a colour that is far enough from the background's mean."""
        mean = background.mean(axis=(0, 1))
        while True:
            colour = rng.uniform(*_COLOUR[self.difficulty], 3)
            if np.abs(colour - mean).max() > _CONTRAST[self.difficulty]:
                return colour

    def _object(self, rng: np.random.Generator, name: str) -> np.ndarray:
        """Draw the object: the covered fraction of every pixel."""
        side = self.size * _SUPERSAMPLING
        radius = rng.uniform(*_RADIUS[self.difficulty]) * side
        centre = rng.uniform(radius, side - radius, 2)
        angle = rng.uniform(-1, 1) * _ROTATION[self.difficulty]
        rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        picture = Image.new("L", (side, side))
        draw = ImageDraw.Draw(picture)
        for polygon, fill in _outline(name):
            draw.polygon([tuple(p) for p in polygon @ rotation.T * radius + centre], fill=fill)
        return np.asarray(picture.resize((self.size, self.size), Image.Resampling.BOX), dtype=np.float64) / 255


def _outline(name: str) -> list[tuple[np.ndarray, int]]:
    """Return polygons in the unit circle, drawn in order: 255 adds to the object, 0 cuts out."""
    angles = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if name == "circle":
        return [(circle, 255)]
    if name == "ring":
        return [(circle, 255), (circle * 0.55, 0)]
    if name == "crescent":
        return [(circle, 255), (circle * 0.8 + [0.45, 0], 0)]
    if name == "heart":
        x = 16 * np.sin(angles) ** 3
        y = 13 * np.cos(angles) - 5 * np.cos(2 * angles) - 2 * np.cos(3 * angles) - np.cos(4 * angles)
        return [(np.stack([x, -y], axis=1) / 17, 255)]
    corners = {
        "triangle": _regular_polygon(3),
        "square": _regular_polygon(4),
        "bar": np.array([[-1, -0.28], [1, -0.28], [1, 0.28], [-1, 0.28]]),
        "star": _regular_polygon(10) * np.where(np.arange(10) % 2, 0.42, 1)[:, None],
        "plus": np.array(
            [[-1, -0.3], [-0.3, -0.3], [-0.3, -1], [0.3, -1], [0.3, -0.3], [1, -0.3],
             [1, 0.3], [0.3, 0.3], [0.3, 1], [-0.3, 1], [-0.3, 0.3], [-1, 0.3]]
        ),
        "arrow": np.array([[1, 0], [0.2, 0.75], [0.2, 0.28], [-1, 0.28], [-1, -0.28], [0.2, -0.28], [0.2, -0.75]]),
    }  # fmt: skip
    return [(corners[name], 255)]


def _regular_polygon(corners: int) -> np.ndarray:
    angles = np.arange(corners) * 2 * math.pi / corners
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)

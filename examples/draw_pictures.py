"""Draw a golf ball, a parachute and a church: pictures to try a model on that nobody had to photograph.

python examples/draw_pictures.py                      # writes examples/pictures/*.jpg
minicait predict examples/pictures/*.jpg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE, FINE = 320, 960  # pixels of a picture, and of the drawing that is reduced to it
DIMPLES = 420
Colour = tuple[int, int, int]


def noise(rng: np.random.Generator, grain: int) -> np.ndarray:
    """Smooth values (FINE, FINE, 1) around 0, random at distances of `grain` pixels."""
    coarse = rng.uniform(-1, 1, (FINE // grain, FINE // grain)).astype(np.float32)
    return np.asarray(Image.fromarray(coarse).resize((FINE, FINE), Image.Resampling.BICUBIC))[..., None]


def background(rng: np.random.Generator, top: Colour, bottom: Colour, grain: int, strength: float) -> np.ndarray:
    """A gradient from one colour to another, with texture."""
    t = np.linspace(0, 1, FINE)[:, None, None]
    return (1 - t) * np.array(top) + t * np.array(bottom) + strength * noise(rng, grain)


def as_image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def golf_ball(rng: np.random.Generator, at: tuple[float, float] = (0.5, 0.52), radius: float = 0.33) -> Image.Image:
    """A lit sphere with dimples, in the grass; its centre and radius are parts of the side of the picture."""
    y, x = np.mgrid[:FINE, :FINE] / FINE
    u, v = (x - at[0]) / radius, (y - at[1]) / radius
    inside = u**2 + v**2 < 1
    normal = np.stack([u[inside], v[inside], np.sqrt(1 - u[inside] ** 2 - v[inside] ** 2)], axis=-1)
    height = 1 - 2 * (np.arange(DIMPLES) + 0.5) / DIMPLES  # a Fibonacci lattice: evenly spread over the sphere
    angle = np.pi * (1 + 5**0.5) * np.arange(DIMPLES)
    around = np.sqrt(1 - height**2)
    nearest, centre = np.full(len(normal), -1.0), np.zeros_like(normal)
    for dimple in np.stack([around * np.cos(angle), around * np.sin(angle), height], axis=1):
        cosine = normal @ dimple
        closer = cosine > nearest
        nearest[closer], centre[closer] = cosine[closer], dimple
    depth = np.clip(1 - np.arccos(np.clip(nearest, -1, 1)) / 0.075, 0, 1)[..., None]
    bent = normal + 6 * depth * (normal - centre)
    bent /= np.linalg.norm(bent, axis=-1, keepdims=True)
    light = np.zeros(u.shape)
    light[inside] = 0.42 + 0.58 * np.clip(bent @ np.array([-0.5, -0.65, 0.57]), 0, 1)
    grass = background(rng, (60, 110, 40), (80, 140, 50), 5, 40)
    shadow = np.exp(-((u - 0.3) ** 2) / 1.2 - ((v - 0.95) / 0.25) ** 2)[..., None]
    image = as_image(np.where(inside[..., None], 250 * light[..., None], grass * (1 - 0.6 * shadow)))
    draw = ImageDraw.Draw(image)
    for _ in range(900):
        foot = rng.uniform((0, 0.86 * FINE), FINE)
        tip = foot + (rng.normal(0, 14), -rng.uniform(30, 90))
        draw.line([*foot, *tip], _shade((70, 130, 45), rng.uniform(0.6, 1.4)), 4)
    return image


def parachute(rng: np.random.Generator) -> Image.Image:
    """A striped canopy against the sky, and somebody below it."""
    image = as_image(background(rng, (70, 125, 200), (165, 200, 235), 200, 10) + 3 * noise(rng, 3))
    draw, man = ImageDraw.Draw(image), (0.5 * FINE, 0.86 * FINE)
    seams = 0.5 * FINE + 0.34 * FINE * np.cos(np.linspace(np.pi, 2 * np.pi, 11))
    for seam in seams:
        draw.line([seam, 0.4 * FINE, *man], (60, 60, 70), 3)
    rise = np.linspace(0, np.pi / 2, 20)
    for i in range(10):
        edges = [[(0.5 * FINE + (seam - 0.5 * FINE) * np.cos(a), (0.4 - 0.26 * np.sin(a)) * FINE) for a in rise]
                 for seam in seams[i : i + 2]]  # fmt: skip
        colour = (200, 40, 40) if i % 2 else (240, 235, 225)
        draw.polygon([*edges[0], *edges[1][::-1]], _shade(colour, 0.75 + 0.25 * np.sin((i + 0.5) / 10 * np.pi)))
    x, y = man
    draw.ellipse([x - 16, y - 6, x + 16, y + 26], (90, 60, 50))
    draw.rectangle([x - 22, y + 24, x + 22, y + 80], (40, 45, 60))
    for side in (-1, 1):
        draw.line([x + side * 12, y + 78, x + side * 18, y + 130], (30, 30, 40), 16)
    return image


def church(rng: np.random.Generator) -> Image.Image:
    """A nave with arched windows, and a tower with a clock and a spire."""
    image = as_image(background(rng, (95, 145, 205), (190, 210, 230), 200, 14))
    draw = ImageDraw.Draw(image)
    stone, shaded, roof, glass, oak = (205, 190, 165), (170, 155, 130), (90, 70, 65), (55, 60, 80), (70, 45, 30)

    def box(left: float, top: float, right: float, bottom: float, colour: Colour, arched: float = 0.0) -> None:
        draw.rectangle([left * FINE, top * FINE, right * FINE, bottom * FINE], colour)
        if arched:
            draw.pieslice([left * FINE, (top - arched) * FINE, right * FINE, (top + arched) * FINE], 180, 360, colour)

    def polygon(colour: Colour, *points: tuple[float, float]) -> None:
        draw.polygon([(x * FINE, y * FINE) for x, y in points], colour)

    box(0, 0.84, 1, 1, (85, 120, 60))
    box(0.42, 0.50, 0.86, 0.88, stone)
    polygon(roof, (0.39, 0.51), (0.47, 0.36), (0.84, 0.36), (0.89, 0.51))
    box(0.18, 0.34, 0.42, 0.88, shaded)
    polygon(roof, (0.15, 0.35), (0.30, 0.06), (0.45, 0.35))
    box(0.295, 0.0, 0.305, 0.07, (40, 40, 40))
    box(0.275, 0.02, 0.325, 0.03, (40, 40, 40))
    for x in (0.49, 0.61, 0.73):
        box(x, 0.62, x + 0.06, 0.78, glass, arched=0.035)
    box(0.255, 0.72, 0.345, 0.88, oak, arched=0.045)
    box(0.275, 0.56, 0.325, 0.64, glass)
    draw.ellipse([0.26 * FINE, 0.42 * FINE, 0.34 * FINE, 0.50 * FINE], (235, 235, 225))
    return as_image(np.asarray(image) + 12 * noise(rng, 6) + 8 * noise(rng, 30))


def _shade(colour: Colour, light: float) -> Colour:
    red, green, blue = (min(255, int(part * light)) for part in colour)
    return red, green, blue


PICTURES: tuple[Callable[[np.random.Generator], Image.Image], ...] = (golf_ball, parachute, church)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures", help="(default: %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        path = args.out / f"{picture.__name__}.jpg"
        picture(np.random.default_rng(0)).resize((SIDE, SIDE), Image.Resampling.LANCZOS).save(path, quality=88)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

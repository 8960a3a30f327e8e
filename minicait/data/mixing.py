"""Mixup and cutmix: a batch is mixed with itself in reverse order, images and targets alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autograd.random import Stream

Pair = tuple[np.ndarray, np.ndarray]  # images (B, 3, H, W) and soft targets (B, C)
Reverse = Callable[[np.ndarray], np.ndarray]  # rows of a batch -> those in their place in reverse order
Box = tuple[int, int, int, int]  # top, bottom, left, right


def reversed_rows(x: np.ndarray) -> np.ndarray:
    return x[::-1]


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """One-hot targets (B, classes)."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise IndexError(f"labels must be in [0, {classes - 1}], got {labels.min()} to {labels.max()}")
    return np.eye(classes, dtype=np.float32)[labels]


class Mixing(NamedTuple):
    """How a batch is mixed with itself in reverse order."""

    keep: float  # weight of an image's own target
    box: Box | None = None  # what cutmix takes from the partner; None: mixup, which blends whole images

    def images(self, images: np.ndarray, reverse: Reverse = reversed_rows) -> np.ndarray:
        if self.box is None:
            return _blend(images, reverse(images), self.keep)
        top, bottom, left, right = self.box
        mixed = images.copy()
        mixed[..., top:bottom, left:right] = reverse(images[..., top:bottom, left:right])
        return mixed

    def targets(self, targets: np.ndarray, reverse: Reverse = reversed_rows) -> np.ndarray:
        return _blend(targets, reverse(targets), self.keep)


def mix(
    images: np.ndarray, targets: np.ndarray, mixup_alpha: float, cutmix_alpha: float, stream: Stream,
    reverse: Reverse = reversed_rows,
) -> Pair:  # fmt: skip
    """Apply mixup or cutmix to a batch, either with probability 1/2; lambda ~ Beta(alpha, alpha), alpha 0 disables."""
    height, width = images.shape[-2:]
    mixing = draw_mixing(height, width, mixup_alpha, cutmix_alpha, stream)
    return (images, targets) if mixing is None else (mixing.images(images, reverse), mixing.targets(targets, reverse))


def draw_mixing(height: int, width: int, mixup_alpha: float, cutmix_alpha: float, stream: Stream) -> Mixing | None:
    """Draw how `mix` mixes a batch of images of this size; None if it does not."""
    if mixup_alpha <= 0 and cutmix_alpha <= 0:
        return None
    rng = stream.generator()
    use_cutmix = cutmix_alpha > 0 and (mixup_alpha <= 0 or rng.random() < 0.5)
    alpha = cutmix_alpha if use_cutmix else mixup_alpha
    keep = float(rng.beta(alpha, alpha))
    if not use_cutmix:
        return Mixing(keep)
    centre = int(rng.integers(height)), int(rng.integers(width))
    return _pasting(box_around(centre, (height, width), keep), (height, width))


def mixup(images: np.ndarray, targets: np.ndarray, keep: float) -> Pair:
    """Blend whole images (Zhang et al., 2018): keep x + (1 - keep) x', and likewise the targets."""
    mixing = Mixing(keep)
    return mixing.images(images), mixing.targets(targets)


def cutmix(images: np.ndarray, targets: np.ndarray, box: Box) -> Pair:
    """Paste a box of the partner image (Yun et al., 2019) and blend the targets by area."""
    height, width = images.shape[-2:]
    mixing = _pasting(box, (height, width))
    return mixing.images(images), mixing.targets(targets)


def _pasting(box: Box, size: tuple[int, int]) -> Mixing:
    top, bottom, left, right = box
    return Mixing(1 - (bottom - top) * (right - left) / (size[0] * size[1]), box)


def box_around(centre: tuple[int, int], size: tuple[int, int], keep: float) -> Box:
    """Return a box with the image's aspect ratio and 1 - keep of its area, clipped at the border."""
    ends = []
    for middle, length in zip(centre, size, strict=True):
        side = int(length * (1 - keep) ** 0.5)
        ends += [max(0, middle - side // 2), min(length, middle + (side + 1) // 2)]
    top, bottom, left, right = ends
    return top, bottom, left, right


def _blend(x: np.ndarray, partners: np.ndarray, keep: float) -> np.ndarray:
    return x * np.float32(keep) + partners * np.float32(1 - keep)

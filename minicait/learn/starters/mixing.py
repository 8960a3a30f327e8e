"""Chapters 10 and 22: images, targets and tokens that are mixed with those of the reversed batch."""

from __future__ import annotations

import numpy as np

from .tensor import Tensor

Box = tuple[int, int, int, int]  # top, bottom, left, right, in this order


def mixup(images: np.ndarray, targets: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """10.2  Blend each image (B, 3, H, W) with its partner, the image at the same place of the reversed batch.

        x~ = mu x + (1 - mu) x'        t~ = mu t + (1 - mu) t'

    share    mu, the share of the first image
    targets  (B, C)
    returns  the mixed images and the mixed targets, of the dtypes of the arguments, which stay as they are

    Example: with two images and share 0.75, the first becomes 0.75 times itself plus 0.25 times the second.
    """
    raise NotImplementedError("10.2")


def cutmix(images: np.ndarray, targets: np.ndarray, box: Box) -> tuple[np.ndarray, np.ndarray]:
    """10.2  Paste the box of each image's partner into it, and mix the targets by area: mu is the share outside.

    images   (B, 3, H, W), targets (B, C), and the result as for mixup; the partner is the same
    box      (top, bottom, left, right), as from `box_around` in chapter 10: the pixels of the rows top to bottom - 1
             and of the columns left to right - 1 are the partner's

    Example: the box (0, 8, 0, 16), of 8 x 16 pixels in images of 32 x 32, takes an eighth, so mu is 0.875.
    """
    raise NotImplementedError("10.2")


def mix_token(x: Tensor, targets: np.ndarray, inside: np.ndarray) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """22.1  MixToken, eqs. 8 to 10 of LV-ViT's paper: exchange the tokens inside a box with the reversed batch.

    x        (B, rows, columns, d): tokens
    targets  (B, C): of the images
    inside   (rows, columns), bool: True where the token comes from the partner
    returns  the mixed tokens (B, rows, columns, d)                                              (8)
             the target of each token (B, rows * columns, C): that of the image it is from       (9)
             the target of each image (B, C), mixed by area                                      (10)

    Gradients must flow to both images. `x[::-1]` is the reversed batch.
    """
    raise NotImplementedError("22.1")

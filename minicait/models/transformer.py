"""Sizes that all transformers have, also as a file shows them, and drop rates over their depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .config import MOST, Config
from .recognise import blocks_in, mlp_ratio, preset_of

CHANNELS = 64  # of a head in most vision transformers


@dataclass(frozen=True)
class TransformerConfig(Config):
    heads: int
    mlp_ratio: float  # hidden values of the FFN, per channel

    least: ClassVar[Mapping[str, int]] = {**Config.least, "heads": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} does not divide into {self.heads} heads")
        check_ratio(self.dim, self.mlp_ratio)

    @property
    def hidden(self) -> int:
        """Hidden values of the FFN."""
        return int(self.dim * self.mlp_ratio)


def sizes_in(
    shapes: Mapping[str, tuple[int, ...]], presets: Mapping[str, TransformerConfig], prefix: int = 0
) -> dict[str, Any]:
    """Fields of a TransformerConfig, from the shapes of a file whose positions begin with `prefix` tokens."""
    _, tokens, dim = shapes["pos_embed"]
    depth, patch = blocks_in(shapes), shapes["patch_embed.proj.weight"][-1]
    preset = preset_of(presets, dim=dim, depth=depth)
    return {
        "num_classes": shapes["head.weight"][0], "img_size": math.isqrt(tokens - prefix) * patch, "patch_size": patch,
        "dim": dim, "depth": depth, "mlp_ratio": mlp_ratio(shapes, dim),
        "heads": dim // CHANNELS if preset is None else preset.heads,
        "drop_path_rate": 0.0 if preset is None else preset.drop_path_rate,
    }  # fmt: skip


def check_ratio(dim: int, mlp_ratio: float) -> None:
    if not 1 <= dim * mlp_ratio <= MOST:
        raise ValueError(
            f"mlp_ratio must make at least one hidden value, and fewer than {MOST:,}, of {dim}, got {mlp_ratio}"
        )


def linear_rates(rate: float, depth: int) -> list[float]:
    """Drop rates of stochastic depth that grow linearly over the blocks, from 0 to `rate`."""
    return [rate * i / max(1, depth - 1) for i in range(depth)]

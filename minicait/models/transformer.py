"""Sizes that all transformers of the family have, and how they share out stochastic depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .model import MOST, Config


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


def check_ratio(dim: int, mlp_ratio: float) -> None:
    if not 1 <= dim * mlp_ratio <= MOST:
        raise ValueError(
            f"mlp_ratio must make at least one hidden value, and fewer than {MOST:,}, of {dim}, got {mlp_ratio}"
        )


def linear_rates(rate: float, depth: int) -> list[float]:
    """Drop rates of stochastic depth that grow linearly over the blocks, from 0 to `rate`."""
    return [rate * i / max(1, depth - 1) for i in range(depth)]

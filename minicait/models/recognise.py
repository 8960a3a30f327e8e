"""The model in a file that says nothing about itself, from the names and shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .config import Config


def blocks_in(shapes: Mapping[str, tuple[int, ...]], stage: str = "blocks") -> int:
    """Number of blocks of a stage."""
    return len({name.split(".")[1] for name in shapes if name.startswith(f"{stage}.")})


def mlp_ratio(shapes: Mapping[str, tuple[int, ...]], dim: int) -> float:
    """A ratio for which int(dim * ratio) is the number of hidden values of the first block's MLP."""
    hidden = shapes["blocks.0.mlp.fc1.weight"][0]
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else math.nextafter(ratio, math.inf)


def first_block(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Names of the tensors of the first block, by which families differ."""
    return {name for name in shapes if name.startswith("blocks.0.")}


def preset_of(presets: Mapping[str, Config], **sizes: Any) -> Any:
    """The first preset of these sizes, or None. It knows what weights do not show, such as drop rates."""
    return next((p for p in presets.values() if all(getattr(p, key) == size for key, size in sizes.items())), None)

"""Sources of the golden files: small models, and random weights, images and labels that anyone can draw again.

Nothing is left at its initial value: LayerScale, biases and norms are random too, so that no part can hide behind a
zero or a one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autograd.random import Stream

FOLDER = Path(__file__).parent
MODELS: dict[str, dict[str, Any]] = {
    "square": {"img_size": (32, 32), "patch_size": 8, "dim": 24, "heads": 3, "depth": 2, "num_classes": 7},
    "rectangle": {"img_size": (8, 24), "patch_size": 4, "dim": 32, "heads": 2, "depth": 1, "num_classes": 5},
    "deep": {"img_size": (8, 8), "patch_size": 4, "dim": 16, "heads": 4, "depth": 6, "num_classes": 3},
}
BATCH = 3


def random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    weights = {}
    for name, shape in shapes.items():
        values = Stream(0, f"golden/{name}").generator().standard_normal(shape)
        if "gamma" in name:
            values = 0.5 + 0.2 * values
        elif "norm" in name and name.endswith("weight"):
            values = 1 + 0.2 * values
        else:
            values *= 0.3
        weights[name] = values
    return weights


def batch(model: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    rng = Stream(0, "golden batch").generator()
    return rng.standard_normal((BATCH, 3, *model["img_size"])), rng.integers(0, model["num_classes"], BATCH)

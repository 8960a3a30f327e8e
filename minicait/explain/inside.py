"""Everything that one forward pass of one image shows, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import autograd as ag
from autograd.kernels import softmax

from ..data.picture import MEAN, STD, normalise
from ..models import Model
from ..nn import Mlp, evaluation_mode
from ..nn.record import Residual, record
from ..train.evaluate import NOT_FINITE

MAX_RECORDED = 3_800_000_000  # bytes of activations, kept twice; the largest published model has 3,760,000,000


class Branch(NamedTuple):
    """A residual branch: its LayerScale, and how much it adds to the main path (eq. 4, Fig. 4)."""

    name: str  # such as blocks.0.attn
    kind: str  # "attention", "FFN" or, for anything else, "branch"
    scale: float  # mean |lambda|
    largest: float  # largest |lambda|
    ratio: float  # ||branch|| / ||main path||, mean over tokens


@dataclass(frozen=True)
class Inside:
    """One image and what a model computes from it. The N patches are rows x columns, row by row."""

    model: str  # its description
    image: np.ndarray  # (H, W, 3) uint8, as the model sees it
    classes: Sequence[str]
    probabilities: np.ndarray  # of all classes
    class_attention: np.ndarray  # (layers, heads, rows, columns): from the class token to the patches, eq. 8
    to_itself: np.ndarray  # (layers, heads): from the class token to itself; with the patches it sums to one
    before: np.ndarray  # (depth, heads, N, N): self-attention from a patch (row) to another (column)
    after: np.ndarray  # the same after the heads are mixed
    mixing: np.ndarray  # (depth, heads, heads + 1): weights that mix the heads, and their bias
    branches: list[Branch]  # in order of computation, class attention last

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.class_attention.shape[-2:]
        return rows, columns

    @property
    def best(self) -> list[int]:
        """The five most probable classes."""
        return [int(i) for i in np.argsort(-self.probabilities, kind="stable")[:5]]

    @property
    def start(self) -> int:
        """The patch to show first: the one with the most attention in the first class-attention layer."""
        return int(self.class_attention[0].mean(axis=0).argmax())


def look(
    model: Model,
    image: np.ndarray,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Inside:
    """Record a forward pass of one image (H, W, 3) in uint8, of the size that the model takes."""
    if (needed := model.cost().activation_bytes) > MAX_RECORDED:
        raise ValueError(f"a report keeps all attention maps, and for this model these take {needed / 2**30:.0f} GB")
    with ag.no_grad(), evaluation_mode(model), np.errstate(all="ignore"), record(model) as inside:
        logits = model(normalise(image, mean, std)[None]).numpy()[0]
    if not np.isfinite(logits).all():
        raise ValueError(NOT_FINITE)
    if not inside.class_attention:
        raise ValueError(f"{type(model).__name__} has no class attention to look at")
    tokens = np.stack([maps[0, :, 0] for maps in inside.class_attention.values()])
    heads, patches = tokens.shape[1], tokens.shape[2] - 1
    maps = [m for m in inside.attention.values() if m.before.shape[1:] == (heads, patches, patches)]
    empty = np.zeros((0, heads, patches, patches), np.float32)  # of a model without self-attention
    unmixed = np.eye(heads, heads + 1)  # weights, and no bias, of heads that do not talk
    modules = dict(model.named_modules())
    attention = {*inside.attention, *inside.class_attention}

    def kind(name: str) -> str:
        return "attention" if name in attention else "FFN" if isinstance(modules[name], Mlp) else "branch"

    return Inside(
        " of ".join(filter(None, (type(model).__name__, model.describe()))),
        image,
        classes or [f"class {i}" for i in range(model.num_classes)],
        softmax(logits, -1),
        tokens[:, :, 1:].reshape(-1, heads, *model.grid),
        tokens[:, :, 0],
        np.stack([m.before[0] for m in maps]) if maps else empty,
        np.stack([m.after[0] for m in maps]) if maps else empty,
        np.array([unmixed if m.mixing is None else m.mixing for m in maps]).reshape(-1, *unmixed.shape),
        [_branch(name, kind(name), residual) for name, residual in inside.residual.items()],
    )


def _branch(name: str, kind: str, residual: Residual) -> Branch:
    scale = np.ones(1) if residual.scale is None else abs(residual.scale)
    return Branch(name, kind, float(scale.mean()), float(scale.max()), residual.ratio)

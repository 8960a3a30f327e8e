"""Everything that one forward pass of one image shows, as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autograd.kernels import softmax

from ..data.picture import MEAN, STD, normalise
from ..models import Config, Model
from ..models.maps import class_maps, token_rows
from ..nn import Conv2d, Mlp, Module, TokenLinear
from ..nn.record import Record, Residual
from ..train.evaluate import NOT_FINITE
from .attention import SHARE, recorded

MAX_RECORDED = 3_800_000_000  # bytes of activations, kept twice; the largest published model has 3,760,000,000
SHOWN_CLASSES = 3  # that have maps, as in Fig. 5.6 of the thesis
SMALL_WEIGHT = 0.05  # of a matrix's largest weight, as in Fig. 4.3 of the thesis


class Branch(NamedTuple):
    """A residual branch: its scale, and how much it adds to the main path (CaiT, eq. 4 and Fig. 4)."""

    name: str  # such as blocks.0.attn
    kind: str  # "attention", "cross-patch", "convolution", "FFN" or, for anything else, "branch"
    scale: float  # mean |lambda|
    largest: float  # largest |lambda|
    ratio: float  # ||branch|| / ||main path||, mean over tokens
    learned: bool  # LayerScale, and not a constant or none


@dataclass(frozen=True)
class Inside:
    """One image and what a model computes from it. The N patches are rows x columns, row by row.

    What the model does not have, has no layers (length 0 on the first axis).
    """

    model: str  # its description
    image: np.ndarray  # (H, W, 3) uint8, as the model sees it
    classes: Sequence[str]
    probabilities: np.ndarray  # of all classes
    grid: tuple[int, int]  # rows and columns of patches
    class_attention: np.ndarray  # (layers, heads, rows, columns): from the class token to the patches
    to_itself: np.ndarray  # (layers, heads): from the class token to itself
    class_layers: list[str]  # names of these layers
    own_stage: bool  # class attention is a stage of its own, and not that of the blocks
    distillation: np.ndarray  # (layers, heads, rows, columns): from the distillation token to the patches
    class_maps: np.ndarray  # (3, rows, columns): a map for each of the most probable classes
    patch_classes: np.ndarray  # (N, C): probabilities of the classes of every patch
    before: np.ndarray  # (depth, heads, N, N): self-attention from a patch (row) to another (column)
    after: np.ndarray  # the same after the heads are mixed
    mixing: np.ndarray  # (depth, heads, heads + 1): weights that mix the heads, and their bias
    cross_patch: np.ndarray  # (depth, N, N): weights of linear layers along the patches, the same for every image
    class_weights: np.ndarray  # (layers, rows, columns): such weights with which a class token gathers the patches
    sparsity: Mapping[
        str, Mapping[str, float]
    ]  # share of small weights, by matrix and branch, beside cross-patch layers
    branches: list[Branch]  # in order of computation, class attention last

    @property
    def best(self) -> list[int]:
        """The five most probable classes."""
        return [int(i) for i in np.argsort(-self.probabilities, kind="stable")[:5]]

    @property
    def salient(self) -> list[int]:
        """The layers whose class attention says most: those of the class-attention stage, or the last block."""
        layers = list(range(len(self.class_attention)))
        return layers if self.own_stage else layers[-1:]

    @property
    def first_map(self) -> np.ndarray | None:
        """Where the model looks (rows, columns): the first of `image_maps`; None if it has no such map."""
        if self.salient:
            return self.class_attention[self.salient[0]].mean(axis=0)
        return self.class_maps[0] if len(self.class_maps) else None

    @property
    def share(self) -> float:
        """Share of the patches that the scale of class attention covers."""
        return 1.0 if self.own_stage else SHARE

    @property
    def start(self) -> int:
        """The patch to show first: the one that the class token looks at most, or one in the middle."""
        if self.first_map is not None:
            return int(self.first_map.argmax())
        return self.grid[0] // 2 * self.grid[1] + self.grid[1] // 2

    @property
    def between(self) -> np.ndarray:
        """Weights of all patches in each patch (depth, heads, N, N): attention or, without it, those of a layer."""
        return self.before if len(self.before) else self.cross_patch[:, None]

    @property
    def heads_talk(self) -> bool:
        """True if self-attention mixes its heads."""
        return bool((self.mixing != np.eye(*self.mixing.shape[1:])).any())


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
    with np.errstate(all="ignore"):
        inside, outputs = recorded(model, normalise(image, mean, std)[None])
    logits = outputs.logits.numpy()[0]
    if not np.isfinite(logits).all():
        raise ValueError(NOT_FINITE)
    grid, patches = model.grid, model.config.patches
    first = token_rows(inside, model.config)
    second = {} if outputs.distilled is None else token_rows(inside, model.config, token=1)
    tokens, distillation = (_stack([row[0] for row in rows.values()], (1, 1 + patches)) for rows in (first, second))
    by_class, best = class_maps(inside, outputs, model.config), np.argsort(-logits, kind="stable")[:SHOWN_CLASSES]
    modules = dict(model.body.named_modules())
    linear = [m.weight.numpy() for name in inside.residual if isinstance(m := modules[name], TokenLinear)]
    across = [weight for weight in linear if weight.shape == (patches, patches)]
    gather = [weight[0, 1:] for weight in linear if weight.shape == (1, 1 + patches)]
    before, after, mixing = _between_patches(inside, model.config)
    return Inside(
        model=" of ".join(filter(None, (type(model).__name__, model.describe()))),
        image=image,
        classes=classes or [f"class {i}" for i in range(model.num_classes)],
        probabilities=softmax(logits, -1),
        grid=grid,
        class_attention=tokens[:, :, 1:].reshape(*tokens.shape[:2], *grid),
        to_itself=tokens[:, :, 0],
        class_layers=list(first),
        own_stage=bool(inside.class_attention),
        distillation=distillation[:, :, 1:].reshape(*distillation.shape[:2], *grid),
        class_maps=np.zeros((0, *grid)) if by_class is None else by_class[0, best].reshape(-1, *grid),
        patch_classes=np.zeros((0, 0)) if outputs.tokens is None else softmax(outputs.tokens.numpy()[0], -1),
        before=before,
        after=after,
        mixing=mixing,
        cross_patch=_stack(across, (patches, patches)),
        class_weights=_stack(gather, (patches,)).reshape(-1, *grid),
        sparsity=_sparsity(inside, modules) if linear else {},
        branches=[_branch(name, _kind(name, inside, modules), residual) for name, residual in inside.residual.items()],
    )


def _stack(layers: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Stack layers, of which there may be none, of such a shape."""
    return np.stack(layers) if layers else np.zeros((0, *shape), np.float32)


def _between_patches(inside: Record, config: Config) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Self-attention between patches, without the tokens in front of them, before and after mixing, and its mixing."""
    n, heads = config.patches, max((m.before.shape[1] for m in inside.attention.values()), default=1)
    shapes = [(heads, n, n), (heads, config.prefix + n, config.prefix + n)]
    maps = [m for m in inside.attention.values() if m.before.shape[1:] in shapes]
    unmixed = np.eye(heads, heads + 1)  # weights, and no bias, of heads that do not talk
    mixing = np.array([unmixed if m.mixing is None else m.mixing for m in maps]).reshape(-1, *unmixed.shape)
    before, after = [m.before[0, :, -n:, -n:] for m in maps], [m.after[0, :, -n:, -n:] for m in maps]
    return _stack(before, (heads, n, n)), _stack(after, (heads, n, n)), mixing


def _kind(name: str, inside: Record, modules: Mapping[str, Module]) -> str:
    branch = modules[name]
    if name in inside.attention or name in inside.class_attention:
        return "attention"
    if isinstance(branch, Mlp):
        return "FFN"
    if isinstance(branch, TokenLinear):
        return "cross-patch"
    return "convolution" if any(isinstance(part, Conv2d) for _, part in branch.named_modules()) else "branch"


def _branch(name: str, kind: str, residual: Residual) -> Branch:
    scale = np.ones(()) if residual.scale is None else abs(residual.scale)
    return Branch(name, kind, float(scale.mean()), float(scale.max()), residual.ratio, scale.ndim > 0)


def _sparsity(inside: Record, modules: Mapping[str, Module]) -> dict[str, dict[str, float]]:
    """Share of weights below 5 % of their matrix's largest, for the matrices A, B and C of eqs. 4.2 and 4.3."""
    shares: dict[str, dict[str, float]] = {"A (patches)": {}, "B (fc1)": {}, "C (fc2)": {}}
    a, b, c = shares.values()
    for name in inside.residual:
        if isinstance(branch := modules[name], TokenLinear):
            a[name] = _small(branch.weight.numpy())
        elif isinstance(branch, Mlp):
            b[name], c[name] = _small(branch.fc1.weight.numpy()), _small(branch.fc2.weight.numpy())
    return shares


def _small(weight: np.ndarray) -> float:
    return float((np.abs(weight) < SMALL_WEIGHT * np.abs(weight).max()).mean())

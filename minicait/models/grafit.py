"""Grafit: "Grafit: Learning fine-grained image representations with coarse labels", Touvron et al., 2021 (chapter 2 of
the thesis).

Images of one class are to be told apart although their labels do not. A trunk, which is any of the other models, is
followed by a projector instead of a classifier, and images are compared by their embeddings. Those of all training
images are kept in a memory: the class of an image is that of its neighbours there. Besides, a predictor guesses the
embedding of another view of the same image (Fig. 2.2). `train.grafit` has the two losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from autograd import Tensor, ops
from autograd.backend import Array, array_module, constant, is_array, to_device
from autograd.random import Stream

from .. import nn
from ..nn import normalised
from ..nn.layers import TINY
from . import cait, cost, deit, deit3, lvvit, patchconvnet, resmlp
from .config import Config
from .cost import Cost, Part
from .model import Family, LazyTensor, Model, Outputs

SIGMA = 0.05  # sigma of eq. 2.2, the temperature
UNSEEN = -60.0  # logit of a class that the memory does not have: below all others, which are at least -1 / sigma
EPS = 1e-5  # of the heads' norms
TRUNKS = (cait.FAMILY, deit.FAMILY, deit3.FAMILY, resmlp.FAMILY, patchconvnet.FAMILY, lvvit.FAMILY)
PROJECTORS = ("mlp", "fc")
SIZES = ("img_size", "patch_size", "dim", "depth", "drop_path_rate")  # of the trunk


def find_trunk(name: str) -> tuple[Family, Any]:
    """Family and configuration of a model that can be a trunk, because it has one vector of features."""
    for family in TRUNKS:
        config = family.presets.get(name)
        if config is not None and not getattr(config, "multi_class", False):
            return family, config
    raise ValueError(f"trunk must be the name of a model with one vector of features, got {name[:80]!r}")


class Head(nn.Module):
    """Projector or predictor: fc2(ReLU(norm(fc1(x)))). BYOL's have batch norm; layer norm couples no samples."""

    def __init__(self, inputs: int, hidden: int, outputs: int, stream: Stream) -> None:
        self.fc1 = nn.Linear(inputs, hidden, stream=stream.named("fc1"))
        self.norm = nn.LayerNorm(hidden, EPS)
        self.fc2 = nn.Linear(hidden, outputs, stream=stream.named("fc2"))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.fc1(x)).relu())


class Identity(nn.Module):
    """In place of a classifier."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class GrafitConfig(Config):
    trunk: str  # name of a model; its sizes are the fields above, everything else is as there
    embedding: int  # values of an embedding
    projector: str  # "mlp", or "fc": linear
    memory: int  # number of training images

    least: ClassVar[Mapping[str, int]] = {**Config.least, "embedding": 1, "memory": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projector not in PROJECTORS:
            raise ValueError(f"projector must be one of {', '.join(PROJECTORS)}, got {self.projector[:80]!r}")
        _ = self.trunk_config  # refuses sizes that fit no trunk

    @property
    def trunk_config(self) -> Any:
        return find_trunk(self.trunk)[1].changed(**{name: getattr(self, name) for name in ("num_classes", *SIZES)})

    @property
    def prefix(self) -> int:
        return self.trunk_config.prefix

    @property
    def crop_ratio(self) -> float:
        return self.trunk_config.crop_ratio

    @property
    def blocks(self) -> int:
        return self.trunk_config.blocks

    @property
    def layers(self) -> str:
        return self.trunk_config.layers

    @property
    def kept(self) -> int:
        return self.memory * (self.embedding + 1)

    def cost(self) -> Cost:
        d, e, n = self.dim, self.embedding, self.memory
        projector = _head(d, 2 * d, e) if self.projector == "mlp" else cost.linear(1, d, e)
        heads = projector + Part(saved=e - d) + _head(e, 2 * e, e)  # the trunk's head has counted the features
        # without a classifier: the costs of a trunk are linear in its number of classes
        one, two = (self.trunk_config.changed(num_classes=count).cost() for count in (1, 2))
        trunk = Cost(*(2 * a - b for a, b in zip(one, two, strict=True)))
        compared = 4 * (3 * n + self.num_classes)  # similarities to the whole memory, twice masked in the loss
        return Cost(
            trunk.parameters + heads.parameters,
            trunk.multiply_adds + heads.multiply_adds + n * e,
            trunk.activation_bytes + 4 * heads.saved + compared,
            trunk.forward_bytes + compared,
            *trunk[4:],
        )


def _head(inputs: int, hidden: int, outputs: int) -> Part:
    return cost.linear(1, inputs, hidden) + cost.layer_norm(1, hidden) + cost.linear(1, hidden, outputs)


class Grafit(Model):
    """Images (B, 3, H, W) to embeddings of length one (B, D), and to logits (B, C) of coarse classes.

    In evaluation, the logit of a class is log sum exp(cos(g(x), m_j) / sigma) over its images in the memory, so that
    the softmax over classes is the sum in eq. 2.3. In training, `outputs` has cos(g(x), m_j) / sigma for every image j
    of the memory as logits (B, N), and the predictor's guess.

    trunk      name of a model, whose sizes count where none are given; without its classifier, it is `backbone`
    embedding  D, number of values of an embedding
    projector  "mlp", or "fc" for Grafit FC: linear
    memory     number of training images; `remember` changes it
    """

    config: GrafitConfig
    config_type: ClassVar[type[Config]] = GrafitConfig
    no_decay = frozenset({"pos_embed", "cls_token"})
    classifiers = ("memory", "memory_labels")
    has_memory = True

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | None = None,
        dim: int | None = None,
        depth: int | None = None,
        trunk: str = "deit_small_patch16_224",
        embedding: int = 256,
        projector: str = "mlp",
        memory: int = 0,
        drop_path_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        family, preset = find_trunk(trunk)
        given: dict[str, Any] = dict(zip(SIZES, (img_size, patch_size, dim, depth, drop_path_rate), strict=True))
        sizes = {name: getattr(preset, name) if size is None else size for name, size in given.items()}
        self.config = c = self.configure(
            num_classes=num_classes, **sizes, trunk=trunk, embedding=embedding, projector=projector, memory=memory,
        )  # fmt: skip
        stream = Stream(seed, "grafit")
        self.backbone = family.model.from_config(c.trunk_config, seed)
        for name in self.backbone.classifiers:
            setattr(self.backbone, name, Identity())
        self.projector: nn.Module = (
            Head(c.dim, 2 * c.dim, embedding, stream.named("projector"))
            if projector == "mlp"
            else nn.Linear(c.dim, embedding, stream=stream.named("projector"))
        )
        self.predictor = Head(embedding, 2 * embedding, embedding, stream.named("predictor"))
        self.memory = nn.Memory(np.zeros((memory, embedding), np.float32))  # of length one, or 0: not seen yet
        self.memory_labels = nn.Memory(np.full(memory, -1, np.int64))  # -1: not seen yet

    @property
    def body(self) -> Model:
        return self.backbone

    def outputs(self, images: Any) -> Outputs:
        projected = self._projected(images)
        g = normalised(projected)
        neighbours = ops.linear(g / SIGMA, self.memory)  # cos / sigma: all vectors have length one
        if self.training:
            return Outputs(neighbours, features=g, predicted=self.predictor(projected))
        return Outputs(self._by_class(neighbours), features=g)

    def embed(self, images: Any) -> Tensor:
        """g(x), without a look into the memory."""
        return normalised(self._projected(images))

    def _projected(self, images: Any) -> Tensor:
        features = self.backbone.outputs(self.checked(images)).features
        assert features is not None
        return self.projector(features)

    def evaluated(self, outputs: Outputs) -> Tensor:
        return self._by_class(outputs.logits) if self.training else outputs.logits

    def _by_class(self, neighbours: Tensor) -> Tensor:
        """log sum exp over the images of each class (B, C), from those of all images (B, N)."""
        xp, classes = array_module(neighbours.data), self.num_classes
        labels = to_device(self.memory_labels.data, "cpu")
        order = np.argsort(labels, kind="stable")
        present, first = np.unique(labels[order], return_index=True)
        columns, place = [Tensor(xp.full((len(neighbours), 1), UNSEEN, neighbours.dtype))], np.zeros(classes, int)
        for label, rows in zip(present, np.split(order, first)[1:], strict=True):
            if 0 <= label < classes:
                place[label] = len(columns)
                columns.append(ops.logsumexp(neighbours[:, rows], -1, keepdims=True).astype(neighbours.dtype))
        return ops.concat(columns, axis=1)[:, place]

    # ---- the memory

    def remember(self, count: int) -> None:
        """Size the memory for a training set of `count` images. One of another size is forgotten."""
        if count != self.config.memory:
            self.config = self.config.changed(memory=count)
            xp = array_module(self.memory.data)
            self.memory.data = xp.zeros((count, self.config.embedding), self.memory.dtype)
            self.memory_labels.data = xp.full(count, -1, np.int64)

    def targets(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Add "related" (B, N), how the images of the memory are related to each image of the batch.

        0  not compared: it is the image itself, or was not seen yet
        1  of another class
        2  of the same class

        The numbers of the images are in "samples". Views of an image stand side by side: only the first is compared,
        and the others have 0 everywhere.
        """
        samples, labels = _integers(targets, "samples"), _integers(targets, "labels")
        known = self.memory_labels.data
        if len(samples) and not 0 <= samples.min() <= samples.max() < len(known):
            raise ValueError(
                f"Grafit: there is no image {samples.max()} in a memory of {len(known)}; call remember(count) with the "
                "number of training images"
            )
        rows, chosen, wanted = (constant(x, known) for x in (first_views(samples), samples, labels))
        related = array_module(known).zeros((len(samples), len(known)), np.int8)
        related[rows] = (np.int8(1) + (known == wanted[rows, None])) * (known >= 0)
        related[rows, chosen[rows]] = 0
        return {**targets, "related": related}

    def memorise(self, targets: Mapping[str, Any], features: Array) -> None:
        """m_i <- (m_i + g(x_i)) / 2 for the first view of every image, then of length one again.

        The thesis does not say whether m_i is normalised again; the code of SNCA, whose loss it adopts, does so. An
        image that is seen for the first time has m_i = 0 before, and m_i = g(x_i) after it.
        """
        samples, labels = _integers(targets, "samples"), _integers(targets, "labels")
        memory, known = self.memory.data, self.memory_labels.data
        rows, chosen, wanted = (constant(x, known) for x in (first_views(samples), samples, labels))
        xp = array_module(memory)
        mean = (memory[chosen[rows]] + features[rows]) / 2
        memory[chosen[rows]] = mean / xp.maximum(xp.linalg.norm(mean, axis=-1, keepdims=True), TINY)
        known[chosen[rows]] = wanted[rows]

    def refresh(self, samples: np.ndarray, labels: np.ndarray, vectors: np.ndarray) -> None:
        """Replace the memory by embeddings of training images with the weights as they are; others are forgotten."""
        memory, known = self.memory.data, self.memory_labels.data
        memory[...], known[...] = 0, -1
        chosen = constant(samples, known)
        memory[chosen], known[chosen] = constant(vectors, memory), constant(labels, known)

    # ---- files

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        prefix = "backbone."
        inner = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        inner = self.backbone.adapted(inner, stored.trunk_config if isinstance(stored, GrafitConfig) else None)
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
        return own | {f"{prefix}{name}": tensor for name, tensor in inner.items()}

    def describe(self) -> str:
        c = self.config
        return f"embeddings of {c.embedding} from a {c.trunk.partition('_')[0]} of {self.backbone.describe()}"


def first_views(samples: np.ndarray) -> np.ndarray:
    """Rows of a batch in which an image stands for the first time."""
    return np.sort(np.unique(samples, return_index=True)[1])


def _integers(targets: Mapping[str, Any], name: str) -> np.ndarray:
    """Targets of a kind, on the host."""
    if name not in targets:
        raise ValueError(f"Grafit: targets must have {name}; Loader(numbered=True) gives the number of every image")
    values = targets[name].data if isinstance(targets[name], Tensor) else targets[name]
    values = to_device(values, "cpu") if is_array(values) else np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"Grafit: {name} must be integers, one for every image, got {values.dtype} {values.shape}")
    return values


def _preset(trunk: str, projector: str) -> GrafitConfig:
    sizes = {name: getattr(find_trunk(trunk)[1], name) for name in SIZES}
    return GrafitConfig(**sizes, num_classes=1000, trunk=trunk, embedding=128, projector=projector, memory=0)


# ours, for small images; the thesis has a ResNet-50 with embeddings of 256, or of 128 for Grafit FC
PRESETS = {
    f"grafit_{trunk}{'_fc' if projector == 'fc' else ''}_{size}": _preset(f"{trunk}_{size}", projector)
    for trunk in ("deit_mini", "cait_tiny")
    for projector in PROJECTORS
    for size in (32, 64)
}

FAMILY = Family("grafit", Grafit, PRESETS, {})

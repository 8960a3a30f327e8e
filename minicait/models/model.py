"""A model, as everything around it knows it: what it returns, and the family it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from autograd import Tensor
from autograd.backend import Array, constant

from ..nn import Module, normalised
from ..nn.layers import shapes_only
from .config import Config
from .cost import Cost


class Outputs(NamedTuple):
    """Everything an objective may look at. Axis 0 of each Tensor is the samples."""

    logits: Tensor  # (B, C): what one evaluates; of a model in training, what learns from the labels
    distilled: Tensor | None = None  # (B, C): the second head of DeiT
    tokens: Tensor | None = None  # (B, N, C): LV-ViT's class for every patch
    features: Tensor | None = None  # (B, d): what Grafit projects; of Grafit itself, the embedding
    predicted: Tensor | None = None  # (B, d): Grafit's prediction of the embedding of another view


class LazyTensor(NamedTuple):
    """An array in a file: its shape is known, its values are read when `read` is called."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class Model(Module):
    """Images (B, 3, H, W) to logits (B, C). Subclasses define `outputs`, and set `config` first in `__init__`.

    no_decay           parameters without weight decay, by the last part of their name; everything 1-d goes without, too
    classifiers        names of layers and parameters that belong to classes, to be replaced for other classes, the head
                       first
    classifies_patches True if `outputs` has logits of every patch
    has_memory   True if images are compared with a memory of training images, as in Grafit
    stem_modules       names of the modules that couple samples, if `outputs(images)` is `trunk(stem(images))` and all
                       of them are in `stem`: that runs on the whole batch, and `trunk` on micro-batches
    """

    config: Any
    config_type: ClassVar[type[Config]]
    no_decay: ClassVar[frozenset[str]] = frozenset()
    classifiers: tuple[str, ...] = ("head",)
    classifies_patches: ClassVar[bool] = False
    has_memory: ClassVar[bool] = False
    stem_modules: ClassVar[tuple[str, ...]] = ()

    def stem(self, images: Any) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method stem(self, images)")

    def trunk(self, x: Tensor) -> Outputs:
        raise TypeError(f"{type(self).__name__} needs a method trunk(self, x)")

    def targets(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Targets of a batch in training as the objective needs them: mixed, if the model mixes its samples."""
        return dict(targets)

    def remember(self, count: int) -> None:
        """Prepare for a training set of `count` images, before the first of them: nothing, unless it has a memory."""

    def memorise(self, targets: Mapping[str, Any], features: Array) -> None:
        """Keep the features of a batch after its step, if the objective has kept them: nothing, without a memory."""

    def refresh(self, samples: np.ndarray, labels: np.ndarray, vectors: np.ndarray) -> None:
        """Replace what is in the memory by embeddings of these images: nothing, without a memory."""

    def outputs(self, images: Any) -> Outputs:
        raise TypeError(f"{type(self).__name__} needs a method outputs(self, images)")

    def evaluated(self, outputs: Outputs) -> Tensor:
        """The logits one evaluates, from outputs in the model's present mode."""
        return outputs.logits

    def forward(self, images: Any) -> Tensor:
        return self.evaluated(self.outputs(images))

    def embed(self, images: Any) -> Tensor:
        """Vectors of length one (B, d), to compare images by."""
        return self.embedding(self.outputs(images))

    def embedding(self, outputs: Outputs) -> Tensor:
        """The same, from outputs: the features."""
        if outputs.features is None:
            raise ValueError(f"{type(self).__name__} ({self.describe()}) has no features to compare images by")
        return normalised(outputs.features)

    @property
    def body(self) -> Model:
        """The model whose blocks one looks at: itself, unless it is built around another."""
        return self

    @classmethod
    def from_config(cls, config: Config, seed: int = 0) -> Self:
        return cls(**asdict(config) | {"seed": seed})

    @classmethod
    def configure(cls, kind: type[Config] | None = None, **sizes: Any) -> Any:
        """The checked configuration, of the model's own kind by default; an error names the model."""
        try:
            return (kind or cls.config_type)(**sizes)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None

    @classmethod
    def shapes_of(cls, config: Config) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of a model, without its memory."""
        with shapes_only():
            return {name: tensor.shape for name, tensor in cls.from_config(config).named_tensors()}

    @classmethod
    def official(cls, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Official name and shape of a tensor in a file of other people, such as timm's; ours are the official ones."""
        return name, shape

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """Configuration of a model with tensors of these shapes, for files that do not say; KeyError if it is none."""
        raise KeyError(f"{cls.__name__} cannot tell its configuration from shapes")

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        """Tensors of a file as this model wants them: positions of another image size.

        stored  the configuration in the file, if it has one
        """
        return dict(tensors)

    def is_of_classes(self, name: str) -> bool:
        """True if a tensor of this name belongs to classes."""
        return any(name == part or name.startswith(f"{part}.") for part in self.classifiers)

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def img_size(self) -> tuple[int, int]:
        """Height and width of the images it takes."""
        return self.config.img_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.config.grid

    def cost(self) -> Cost:
        return self.config.cost()

    def checked(self, images: Any) -> Tensor:
        """Images as a Tensor on the model's device, after a check of their shape and dtype."""
        like = next((p.data for _, p in self.named_parameters()), None)
        if not isinstance(images, Tensor):
            images = Tensor(images if like is None else constant(images, like=like))
        name, (height, width) = type(self).__name__, self.img_size
        if like is not None and images.dtype != like.dtype:
            raise ValueError(f"{name}: images must be normalised, in {like.dtype} like the weights, got {images.dtype}")
        if images.ndim != 4 or images.shape[1:] != (3, height, width):
            raise ValueError(
                f"{name}: this model takes images of shape (B, 3, {height}, {width}), got {images.shape}; resize them, "
                "or create the model with another img_size"
            )
        return images


def outputs_of(model: Module, x: Any, behind_stem: bool = False) -> Outputs:
    """Outputs for images of a Model, or of any Module that maps them to logits; or for outputs of the model's stem."""
    if not isinstance(model, Model):
        return Outputs(model(x))
    return model.trunk(x) if behind_stem else model.outputs(x)


def evaluated_logits(model: Module, outputs: Outputs) -> Tensor:
    """The logits that model(images) returns, from its outputs."""
    return model.evaluated(outputs) if isinstance(model, Model) else outputs.logits


class Published(NamedTuple):
    """The authors' weights of a model: a file on Meta's server or its whole address, and a copy on the hub, if any."""

    official: str
    hub: str | None = None


@dataclass(frozen=True)
class Family:
    """Models of one paper: their class, every size by name, and published weights.

    Weights have the name of their model. If there are several, a tag is behind it: `resmlp_12_224.dist`.
    """

    name: str
    model: type[Model]
    presets: Mapping[str, Config]
    published: Mapping[str, Published]

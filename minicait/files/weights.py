"""Weights in and out of files.

In: `.safetensors` (timm's hub copies, and ours), `.npz`, and the released `.pth`, under the authors' names or timm's,
each tensor read straight into its parameter. Out: `.safetensors` whose metadata has everything needed to build the
model again and to prepare images for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autograd.backend import to_device

from ..data.crops import MIN_CROP_RATIO
from ..data.picture import MEAN, STD
from ..models import Config, Model, check_fits, family_named, family_of
from ..models.model import LazyTensor
from ..nn import Module
from ..text import shortened
from .atomic import check_destination
from .bounds import MAX_NAME
from .npz import read_npz
from .pth import read_pth, read_tensor, tensors_in
from .tensorfile import open_tensors, write_tensors
from .zipped import Entry, verify

PYTORCH = (".pth", ".pt", ".pth.tar")
FORMATS = (".safetensors", ".npz", *PYTORCH)
MAX_CLASS_NAME = 500  # characters; those of ImageNet have up to 121
MAX_ORIGIN = 200  # characters
MAX_SHARING = 4  # times the size of a .pth file that its tensors may have together, because some are tied
PLAIN_ENTRIES, EMA_ENTRIES = ("model", "state_dict", ""), ("model_ema", "state_dict_ema")  # in training checkpoints


@dataclass
class Info:
    """Metadata of a weights file."""

    family: str
    config: Config
    class_names: list[str] | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    crop_ratio: float = 1.0
    origin: str | None = None  # such as "shapes-tiny-1, epoch 9 of 10, averaged weights"

    def __post_init__(self) -> None:
        names, count = self.class_names, self.config.num_classes
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("class_names must be a list of strings")
        if names is not None and max(map(len, names), default=0) > MAX_CLASS_NAME:
            raise ValueError(f"a class name has more than {MAX_CLASS_NAME} characters")
        if names is not None and len(names) != count:
            raise ValueError(f"{len(names)} class names do not fit a model with {count} classes")
        self.mean, self.std = _numbers(self.mean), _numbers(self.std)
        (self.crop_ratio,) = _numbers([self.crop_ratio])
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) < 1e-3:
            raise ValueError("mean and std must be three numbers each, std at least 0.001")
        if not MIN_CROP_RATIO <= self.crop_ratio <= 1:
            raise ValueError(f"a crop_ratio of {self.crop_ratio} is not in [{MIN_CROP_RATIO}, 1]")
        if self.origin is not None and not (isinstance(self.origin, str) and len(self.origin) <= MAX_ORIGIN):
            raise ValueError(f"origin must be a string of at most {MAX_ORIGIN} characters")

    def to_json(self) -> dict[str, Any]:
        known = {key: value for key, value in vars(self).items() if key != "origin" or value is not None}
        return {**known, "config": self.config.to_json()}

    @staticmethod
    def from_json(content: Any) -> Info:
        """Ignore entries that a later version may add; files of version 0.1 have no family."""
        if not isinstance(content, dict):
            raise ValueError("expected an object")
        family = family_named(content.get("family", "cait"))
        config = family.model.config_type.from_json(content.get("config"))
        rest = {key: content[key] for key in ("class_names", "mean", "std", "crop_ratio", "origin") if key in content}
        return Info(family.name, config, **rest)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or any(type(x) not in (int, float) or not abs(x) <= 1e3 for x in values):
        raise ValueError("mean, std and crop_ratio must be numbers up to 1000")
    return tuple(map(float, values))


@dataclass
class WeightFile:
    """An open file: names and shapes are known, values are read one tensor at a time."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    info: Info | None = None

    def tensors(self) -> dict[str, LazyTensor]:
        return {name: LazyTensor(shape, partial(self.read, name)) for name, shape in self.shapes.items()}

    def renamed(self, rename: Callable[[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]) -> WeightFile:
        """The same tensors under other names, with other shapes; ValueError if two of them get the same name."""
        renamed = {name: rename(name, shape) for name, shape in self.shapes.items()}
        shapes, old = dict(renamed.values()), {new: name for name, (new, _) in renamed.items()}
        if len(shapes) != len(self.shapes):
            raise ValueError(f"{self.path.name} has the same tensor twice, under two names")
        return replace(self, shapes=shapes, read=lambda name: self.read(old[name]).reshape(shapes[name]))


def open_weights(path: str | Path, ema: bool = False) -> WeightFile:
    """Open a weights file. `ema` selects the averaged weights of a PyTorch training checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}")
    if not path.name.endswith(FORMATS):
        raise ValueError(f"{path.name}: expected a file that ends in {', '.join(FORMATS)}")
    if path.name.endswith(PYTORCH):
        opened = _open_pth(path, ema)
    elif ema:
        raise ValueError(f"{path.name}: only training checkpoints of PyTorch have averaged weights beside the others")
    else:
        opened = _open_npz(path) if path.suffix == ".npz" else _open_safetensors(path)
    if not opened.shapes:
        raise ValueError(f"{path.name} holds no tensors")
    if (longest := max(map(len, opened.shapes))) > MAX_NAME:
        raise ValueError(f"{path.name} is refused: a tensor's name has {longest:,} characters, more than {MAX_NAME}")
    # PyTorch's data parallelism prefixes every name with "module."
    return opened.renamed(lambda name, shape: (name.removeprefix("module."), shape))


def load_weights(model: Module, path: str | Path, new_head: bool = False, ema: bool = False) -> None:
    """Read a weights file into a model.

    Position embeddings of another image size are resized. `new_head` keeps the model's own head, or all that belongs to
    its classes, where the file has none or is for another number of classes; without it, that is an error. Nothing
    changes unless all of it fits.
    """
    file, wanted = open_weights(path, ema), dict(model.named_tensors())
    if isinstance(model, Model):
        own = family_of(model)
        if file.info is not None and own is not None and own.name != file.info.family:
            what = f"it holds a {file.info.family}, the model is a {own.name}"
            raise ValueError(f"{file.path.name} does not fit the model: {what}")
        file = file.renamed(model.official)
        tensors = file.tensors()
        if _other_classes(file, model, new_head):
            tensors = {name: tensor for name, tensor in tensors.items() if not model.is_of_classes(name)}
            wanted = {name: tensor for name, tensor in wanted.items() if not model.is_of_classes(name)}
        try:
            tensors = model.adapted(tensors, None if file.info is None else file.info.config)
        except ValueError as error:
            raise ValueError(f"{file.path.name} does not fit the model: {error}") from None
    else:
        tensors = file.tensors()
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is unknown" for name in tensors if name not in wanted]
    problems += [
        f"{name} must have shape {wanted[name].shape}, got {tensor.shape}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if problems:
        listed = "; ".join(shortened(problem, 150) for problem in problems[:4])
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"{file.path.name} does not fit the model: {listed}{more}")

    def read(name: str, dtype: np.dtype) -> np.ndarray:
        stored = tensors[name].read()
        with np.errstate(over="ignore", invalid="ignore"):
            values = stored.astype(dtype, copy=False)
        if not np.isfinite(values).all() or (dtype.kind in "iu" and (values != stored).any()):
            kind = "not finite in" if dtype.kind == "f" else "no"
            raise ValueError(f"{file.path.name} cannot be used: {name} has values that are {kind} {dtype}")
        return values

    for name, tensor in wanted.items():  # read twice, so that a model is not half loaded when a value is damaged
        read(name, tensor.dtype)
    for name, tensor in wanted.items():
        tensor.data[...] = to_device(read(name, tensor.dtype), tensor.device)


def _other_classes(file: WeightFile, model: Model, new_head: bool) -> bool:
    """True if the file is for another number of classes, or for none; ValueError if that needs a new head."""
    head = f"{model.classifiers[0]}."
    matrices = (shape for name, shape in file.shapes.items() if name.startswith(head) and name.endswith(".weight"))
    count = sum(shape[0] for shape in matrices if len(shape) == 2)  # a matrix, or a row for each class
    if count and count != model.num_classes and not new_head:
        raise ValueError(
            f"{file.path.name} is for {count} classes, the model has {model.num_classes}: create it with "
            f"num_classes={count}, or pass new_head=True to start with a new head"
        )
    return new_head and count != model.num_classes


def save_weights(
    model: Model,
    path: str | Path,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    crop_ratio: float = 1.0,
    origin: str | None = None,
    dtype: Any = None,
) -> None:
    """Write `.safetensors` from which `load_model` builds the model again.

    `mean`, `std` and `crop_ratio` tell how images were prepared, `origin` where the weights come from. With `dtype`
    float16 the file is half as large; the weights are float32 again when they are read. The file appears under its name
    only when it is complete.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path.name}: weights are written as .safetensors")
    check_destination(path)
    if isinstance(classes, str):
        raise ValueError("classes must be a list of names, got one string")
    family = family_of(model)
    if family is None:
        raise ValueError(f"save_weights: {type(model).__name__} is not a model of a family, so no file can describe it")
    names = None if classes is None else [str(name) for name in classes]
    means, stds = tuple(map(float, mean)), tuple(map(float, std))
    info = Info(family.name, model.config, names, means, stds, float(crop_ratio), origin)
    tensors = {name: _stored(name, array, dtype) for name, array in model.state_dict().items()}
    write_tensors(path, tensors, {"format": "np", "minicait": json.dumps(info.to_json())})


def _stored(name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    """Floating-point values in another dtype; ValueError if they do not fit."""
    if dtype is None or values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if not np.isfinite(stored).all():
        raise ValueError(f"save_weights: {name} has values that are not finite in {np.dtype(dtype)}")
    return stored


def with_origin(name: str, origin: str | None) -> str:
    """Name of a weights file, followed by the origin of the weights if it is known."""
    return name if origin is None else f"{name} ({origin})"


def _open_safetensors(path: Path) -> WeightFile:
    file = open_tensors(path)
    if "minicait_checkpoint" in file.metadata:
        raise ValueError(f"{path.name}: this is the checkpoint of a run; its weights are in weights/best.safetensors")
    info = None
    if "minicait" in file.metadata:
        try:
            info = Info.from_json(json.loads(file.metadata["minicait"]))
            check_fits(info.config, file.shapes)
        except (ValueError, RecursionError) as error:
            reason = shortened(str(error), 300)
            raise ValueError(f"{path.name} is damaged: its metadata does not describe its model ({reason})") from error
    return WeightFile(path, file.shapes, file.read, info)


def _open_npz(path: Path) -> WeightFile:
    arrays = read_npz(path)
    return WeightFile(path, {name: a.shape for name, a in arrays.items()}, lambda name: arrays[name].read(path))


def _open_pth(path: Path, ema: bool) -> WeightFile:
    tensors = tensors_in(read_pth(path), EMA_ENTRIES if ema else PLAIN_ENTRIES)
    if tensors is None:
        raise ValueError(f"{path.name} has no {'averaged ' if ema else ''}weights in it")
    if sum(t.itemsize * math.prod(t.shape) for t in tensors.values()) > MAX_SHARING * path.stat().st_size:
        raise ValueError(f"{path.name} is refused: more of its tensors share their values than in any model")
    intact: set[Entry] = set()

    def read(name: str) -> np.ndarray:
        if tensors[name].entry not in intact:
            verify(path, tensors[name].entry)
            intact.add(tensors[name].entry)
        return read_tensor(path, tensors[name])

    return WeightFile(path, {name: tensor.shape for name, tensor in tensors.items()}, read)

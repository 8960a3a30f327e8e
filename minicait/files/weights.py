"""Weights in and out of files.

In: `.safetensors` (timm's hub copies, and ours), `.npz`, and the released `.pth`, each tensor read straight into its
parameter. Out: `.safetensors` whose metadata has everything needed to build the model again and to prepare images for
it.
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

FORMATS = (".safetensors", ".npz", ".pth", ".pt")
MAX_CLASS_NAME = 500  # characters; those of ImageNet have up to 121
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

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "config": self.config.to_json()}

    @staticmethod
    def from_json(content: Any) -> Info:
        """Ignore entries that a later version may add; files of version 0.1 have no family."""
        if not isinstance(content, dict):
            raise ValueError("expected an object")
        family = family_named(content.get("family", "cait"))
        config = family.model.config_type.from_json(content.get("config"))
        rest = {key: content[key] for key in ("class_names", "mean", "std", "crop_ratio") if key in content}
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


def open_weights(path: str | Path, ema: bool = False) -> WeightFile:
    """Open a weights file. `ema` selects the averaged weights of a PyTorch training checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name}: expected a file that ends in {', '.join(FORMATS)}")
    if path.suffix in (".pth", ".pt"):
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
    full = {name.removeprefix("module."): name for name in opened.shapes}
    shapes = {name: opened.shapes[original] for name, original in full.items()}
    if len(shapes) != len(opened.shapes):
        raise ValueError(f"{path.name} has the same tensor twice, with and without the prefix module.")
    return replace(opened, shapes=shapes, read=lambda name: opened.read(full[name]))


def load_weights(model: Module, path: str | Path, new_head: bool = False, ema: bool = False) -> None:
    """Read a weights file into a model.

    Position embeddings of another image size are resized. `new_head` keeps the model's own head where the file has none
    or one for another number of classes; without it, that is an error. Nothing changes unless all of it fits.
    """
    file = open_weights(path, ema)
    own = dict(model.named_tensors())
    skipped = _skipped_heads(file, model, new_head)
    tensors = {name: LazyTensor(shape, partial(file.read, name)) for name, shape in file.shapes.items()}
    if isinstance(model, Model):
        try:
            tensors = model.adapted(tensors, None if file.info is None else file.info.config)
        except ValueError as error:
            raise ValueError(f"{file.path.name} does not fit the model: {error}") from None
    problems = [f"{name} is missing" for name in own if name not in tensors and name not in skipped]
    problems += [f"{name} is unknown" for name in tensors if name not in own]
    problems += [
        f"{name} must have shape {own[name].shape}, got {tensor.shape}"
        for name, tensor in tensors.items()
        if name in own and name not in skipped and tensor.shape != own[name].shape
    ]
    if problems:
        listed = "; ".join(shortened(problem, 150) for problem in problems[:4])
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"{file.path.name} does not fit the model: {listed}{more}")

    def read(name: str, dtype: np.dtype) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = tensors[name].read().astype(dtype, copy=False)
        if not np.isfinite(values).all():
            raise ValueError(f"{file.path.name} cannot be used: {name} has values that are not finite in {dtype}")
        return values

    wanted = {name: tensor for name, tensor in own.items() if name not in skipped}
    for name, tensor in wanted.items():  # read twice, so that a model is not half loaded when a value is damaged
        read(name, tensor.dtype)
    for name, tensor in wanted.items():
        tensor.data[...] = to_device(read(name, tensor.dtype), tensor.device)


def _skipped_heads(file: WeightFile, model: Module, new_head: bool) -> set[str]:
    """Names of the classifier heads' tensors that are not read from the file."""
    if not isinstance(model, Model):
        return set()
    skipped = set()
    for head in model.classifiers:
        shape = file.shapes.get(f"{head}.weight")
        if shape is not None and len(shape) == 2 and shape[0] != model.num_classes and not new_head:
            raise ValueError(
                f"{file.path.name} is for {shape[0]} classes, the model has {model.num_classes}: create it with "
                f"num_classes={shape[0]}, or pass new_head=True to start with a new head"
            )
        if new_head and (shape is None or shape[:1] != (model.num_classes,)):
            skipped |= {f"{head}.weight", f"{head}.bias"}
    return skipped


def save_weights(
    model: Model,
    path: str | Path,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    crop_ratio: float = 1.0,
) -> None:
    """Write `.safetensors` from which `load_model` builds the model again.

    `mean`, `std` and `crop_ratio` tell how images were prepared. The file appears under its name only when it is
    complete.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path.name}: weights are written as .safetensors")
    check_destination(path)
    if isinstance(classes, str):
        raise ValueError("classes must be a list of names, got one string")
    family = family_of(model)
    if family is None:
        raise ValueError(f"save_weights: {type(model).__name__} is no model of a family, so no file can describe it")
    names = None if classes is None else [str(name) for name in classes]
    info = Info(family.name, model.config, names, tuple(map(float, mean)), tuple(map(float, std)), float(crop_ratio))
    write_tensors(path, model.state_dict(), {"format": "np", "minicait": json.dumps(info.to_json())})


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

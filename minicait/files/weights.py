"""Weights in and out of files.

In: `.safetensors` (timm's hub copies, and ours), `.npz`, and the released `.pth`, each tensor read straight into its
parameter. Out: `.safetensors` with everything in its metadata that is needed to build the model again and to prepare
images for it.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autograd.backend import to_device

from ..data.picture import MEAN, STD
from ..models.cait import CaiT
from .pth import read_pth, read_tensor, tensors_in
from .tensorfile import open_tensors, write_tensors

FORMATS = (".safetensors", ".npz", ".pth", ".pt")
PLAIN_ENTRIES, EMA_ENTRIES = ("model", "state_dict", ""), ("model_ema", "state_dict_ema")  # of training checkpoints


@dataclass
class Info:
    """What a weights file of ours knows beside the weights."""

    config: dict[str, Any] = field(default_factory=dict)  # the arguments of CaiT
    class_names: list[str] | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    crop_ratio: float = 1.0


@dataclass
class WeightFile:
    """An open file: names and shapes are known, values are read one tensor at a time."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    info: Info | None = None
    verify: Callable[[], None] = lambda: None  # raises if values cannot be read; after it, `read` works


def open_weights(path: str | Path, ema: bool = False) -> WeightFile:
    """Look into a weights file. `ema` takes the averaged weights of a PyTorch training checkpoint."""
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
    # "module." is what PyTorch's data parallelism puts in front of every name
    full = {name.removeprefix("module."): name for name in opened.shapes}
    shapes = {name: opened.shapes[original] for name, original in full.items()}
    return replace(opened, shapes=shapes, read=lambda name: opened.read(full[name]))


def load_weights(model: CaiT, path: str | Path, new_head: bool = False, ema: bool = False) -> None:
    """Read a weights file into a model.

    Position embeddings of another image size are resized. `new_head` keeps the model's own head where the file has none
    or one for another number of classes; without it, that is an error. Nothing is changed unless all of it fits.
    """
    file = open_weights(path, ema)
    own = dict(model.named_parameters())
    skipped = _skipped_head(file, model, new_head)
    resize = _resizer(file, model)
    problems = [f"{name} is missing" for name in own if name not in file.shapes and name not in skipped]
    problems += [f"{name} is unknown" for name in file.shapes if name not in own]
    problems += [
        f"{name} must have shape {own[name].shape}, got {shape}"
        for name, shape in file.shapes.items()
        if name in own and name not in skipped and shape != own[name].shape and not (name == "pos_embed" and resize)
    ]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"{file.path.name} does not fit the model: {'; '.join(problems[:4])}{more}")
    file.verify()
    for name, parameter in own.items():
        if name not in skipped:
            value = file.read(name)
            if name == "pos_embed" and resize is not None:
                value = resize(value)
            parameter.data[...] = to_device(value.astype(parameter.dtype, copy=False), parameter.device)


def _skipped_head(file: WeightFile, model: CaiT, new_head: bool) -> set[str]:
    """The parameters that the model keeps as they are."""
    shape = file.shapes.get("head.weight")
    classes = model.config["num_classes"]
    if shape is not None and len(shape) == 2 and shape[0] != classes and not new_head:
        raise ValueError(
            f"{file.path.name} is for {shape[0]} classes, the model has {classes}: create it with "
            f"num_classes={shape[0]}, or pass new_head=True to start with a new head"
        )
    return {"head.weight", "head.bias"} if new_head and (shape is None or shape[:1] != (classes,)) else set()


def save_weights(
    model: CaiT,
    path: str | Path,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] = Info.mean,
    std: Sequence[float] = Info.std,
    crop_ratio: float = Info.crop_ratio,
) -> None:
    """Write `.safetensors` from which `load_model` builds the model again.

    `mean`, `std` and `crop_ratio` tell how images were prepared; they default to CaiT's. The file appears under its
    name only when it is complete.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path.name}: weights are written as .safetensors")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    if isinstance(class_names, str):
        raise ValueError("class_names must be a list of names, got one string")
    names = None if class_names is None else [str(name) for name in class_names]
    if names is not None and len(names) != model.config["num_classes"]:
        raise ValueError(f"{len(names)} class names do not fit a model with {model.config['num_classes']} classes")
    info = Info(model.config, names, tuple(map(float, mean)), tuple(map(float, std)), float(crop_ratio))
    write_tensors(path, model.state_dict(), {"format": "np", "minicait": json.dumps(asdict(info))})


def resize_positions(pos_embed: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    """Position embeddings (1, rows * columns, d) for another grid, by bicubic interpolation as in the reference."""
    grid = pos_embed[0].reshape(*old, -1).astype(np.float64)
    grid = np.einsum("ri,ijd->rjd", bicubic(old[0], new[0]), grid)
    grid = np.einsum("cj,rjd->rcd", bicubic(old[1], new[1]), grid)
    return grid.reshape(1, new[0] * new[1], -1).astype(pos_embed.dtype)


def bicubic(old: int, new: int) -> np.ndarray:
    """The matrix (new, old) of cubic convolution with a = -0.75; pixel centres at half integers, edges repeated."""
    a = -0.75
    matrix = np.zeros((new, old))
    for i in range(new):
        place = (i + 0.5) * old / new - 0.5
        first = int(np.floor(place)) - 1
        for j in range(first, first + 4):
            t = abs(place - j)
            weight = (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * (t**3 - 5 * t**2 + 8 * t - 4)
            matrix[i, min(max(j, 0), old - 1)] += weight
    return matrix


def _resizer(file: WeightFile, model: CaiT) -> Callable[[np.ndarray], np.ndarray] | None:
    """What turns the file's position embeddings into the model's, if their grids of patches differ."""
    shape = file.shapes.get("pos_embed", ())
    new = _grid(model.config)
    if len(shape) != 3 or shape[0] != 1 or shape[2] != model.config["dim"] or not shape[1]:
        return None  # not positions: it will be said that the shape does not fit
    root = math.isqrt(shape[1])
    square = (root, root) if root * root == shape[1] else new  # as the published models are
    old = square if file.info is None else _grid(file.info.config)
    if old[0] * old[1] != shape[1]:
        raise ValueError(f"{file.path.name} does not fit: {shape[1]} positions are not a grid of {old[0]} x {old[1]}")
    return None if old == new else lambda pos_embed: resize_positions(pos_embed, old, new)


def _grid(config: dict[str, Any]) -> tuple[int, int]:
    """Rows and columns of patches."""
    height, width = config["img_size"]
    return height // config["patch_size"], width // config["patch_size"]


def _open_safetensors(path: Path) -> WeightFile:
    file = open_tensors(path)
    if "minicait_checkpoint" in file.metadata:
        raise ValueError(f"{path.name}: this is the checkpoint of a run; its weights are in weights/best.safetensors")
    try:
        info = _info(file.metadata["minicait"]) if "minicait" in file.metadata else None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: its metadata describes no model ({error})") from error
    return WeightFile(path, file.shapes, file.read, info)


def _info(text: str) -> Info:
    """Our metadata. Entries that a later version may add are left aside."""
    content = json.loads(text)
    info = Info(
        **{key: content[key] for key in ("config", "class_names", "mean", "std", "crop_ratio") if key in content}
    )
    CaiT.check_config(info.config)
    return info


def _open_npz(path: Path) -> WeightFile:
    def read(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as entry:
            return np.lib.format.read_array(entry, allow_pickle=False)

    def shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
        with archive.open(name) as entry:
            version = np.lib.format.read_magic(entry)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            size, _, dtype = header(entry)
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} has dtype {dtype}, not numbers")
        return tuple(size)

    try:
        with zipfile.ZipFile(path) as archive:
            shapes = {name.removesuffix(".npy"): shape(archive, name) for name in archive.namelist()}
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is damaged or no NumPy archive ({error})") from error
    return WeightFile(path, shapes, read, verify=lambda: _verify_zip(path))


def _open_pth(path: Path, ema: bool) -> WeightFile:
    tensors = tensors_in(read_pth(path), EMA_ENTRIES if ema else PLAIN_ENTRIES)
    if tensors is None:
        raise ValueError(f"{path.name} has no {'averaged ' if ema else ''}weights in it")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return WeightFile(path, shapes, lambda name: read_tensor(path, tensors[name]), verify=lambda: _verify_zip(path))


def _verify_zip(path: Path) -> None:
    """Read everything once and compare checksums, so that a model is not half loaded when a value is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error
    if broken is not None:
        raise ValueError(f"{path.name} is damaged: the checksum of {broken} is wrong")

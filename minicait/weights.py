"""Weights in and out of files.

In: `.safetensors` (timm's hub copies, and ours), `.npz`, and the released `.pth`, each tensor read straight into its
parameter. Out: `.safetensors` with everything in its metadata that is needed to build the model again and to prepare
images for it.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from autograd.backend import to_device

from .models.cait import CaiT
from .pth import from_bfloat16, read_pth, tensors_in

FORMATS = (".safetensors", ".npz", ".pth")
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass
class Info:
    """What a weights file of ours knows beside the weights."""

    config: dict[str, Any] = field(default_factory=dict)  # the arguments of CaiT
    class_names: list[str] | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop_ratio: float = 1.0


@dataclass
class WeightFile:
    """An open file: shapes are known, values are read one tensor at a time."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    info: Info | None = None


def open_weights(path: str | Path, ema: bool = False) -> WeightFile:
    """Look into a weights file. `ema` takes the averaged weights of a training checkpoint, where it has both."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name}: expected a file that ends in {', '.join(FORMATS)}")
    opened = {".safetensors": _open_safetensors, ".npz": _open_npz, ".pth": _open_pth}[path.suffix](path, ema)
    if not opened.shapes:
        raise ValueError(f"{path.name} holds no tensors")
    # "module." is what PyTorch's data parallelism puts in front of every name
    full = {name.removeprefix("module."): name for name in opened.shapes}
    shapes = {name: opened.shapes[original] for name, original in full.items()}
    return WeightFile(path, shapes, lambda name: opened.read(full[name]), opened.info)


def load_weights(model: CaiT, path: str | Path, new_head: bool = False, ema: bool = False) -> None:
    """Read a weights file into a model.

    Position embeddings of another image size are resized. `new_head` keeps the model's own head where the file's is for
    another number of classes; without it, that is an error. Nothing is changed unless all of it fits.
    """
    file = open_weights(path, ema)
    own = dict(model.named_parameters())
    convert: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    skipped: set[str] = set()
    classes, file_classes = model.config["num_classes"], file.shapes.get("head.weight", (0,))[0]
    if "head.weight" in file.shapes and classes != file_classes:
        if not new_head:
            raise ValueError(
                f"{file.path.name} is for {file_classes} classes, the model has {classes}: create it with "
                f"num_classes={file_classes}, or pass new_head=True to start with a new head"
            )
        skipped = {"head.weight", "head.bias"}
    if "pos_embed" in file.shapes and file.shapes["pos_embed"] != own["pos_embed"].shape:
        convert["pos_embed"] = _resizer(file, model)

    problems = [f"{name} is missing" for name in own if name not in file.shapes]
    problems += [f"{name} is unknown" for name in file.shapes if name not in own]
    problems += [
        f"{name} must have shape {own[name].shape}, got {shape}"
        for name, shape in file.shapes.items()
        if name in own and name not in skipped and name not in convert and shape != own[name].shape
    ]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"{file.path.name} does not fit the model: {'; '.join(problems[:4])}{more}")
    for name, parameter in own.items():
        if name not in skipped:
            value = file.read(name)
            if name in convert:
                value = convert[name](value)
            parameter.data[...] = to_device(value.astype(parameter.dtype, copy=False), parameter.device)


def save_weights(model: CaiT, path: str | Path, class_names: Sequence[str] | None = None, **preprocessing: Any) -> None:
    """Write `.safetensors` from which `load_model` builds the model again.

    `mean`, `std` and `crop_ratio` tell how images were prepared; they default to CaiT's. The file appears under its
    name only when it is complete.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path.name}: weights are written as .safetensors")
    names = None if class_names is None else list(class_names)
    if names is not None and len(names) != model.config["num_classes"]:
        raise ValueError(f"{len(names)} class names do not fit a model with {model.config['num_classes']} classes")
    info = Info(model.config, names, **preprocessing)
    tensors = {name: np.ascontiguousarray(value) for name, value in model.state_dict().items()}
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        save_file(tensors, unfinished, {"format": "np", "minicait": json.dumps(asdict(info))})
        unfinished.chmod(0o666 & ~_umask())  # the library makes it readable by its owner only
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)  # there is no other way to ask
    os.umask(mask)
    return mask


def load_model(path: str | Path) -> tuple[CaiT, Info]:
    """The model of a file that `save_weights` wrote, in evaluation mode, and what the file knows about it."""
    file = open_weights(path)
    if file.info is None:
        raise ValueError(
            f"{file.path.name} does not say which model it is for: create that with minicait.create_model, then use "
            "minicait.load_weights"
        )
    model = CaiT(**file.info.config)
    load_weights(model, path)
    return model.eval(), file.info


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


def _resizer(file: WeightFile, model: CaiT) -> Callable[[np.ndarray], np.ndarray]:
    """What turns the file's position embeddings into the model's."""
    shape, size, patch = file.shapes["pos_embed"], model.config["img_size"], model.config["patch_size"]
    new = (size[0] // patch, size[1] // patch)
    if file.info is not None:
        height, width = file.info.config["img_size"]
        old = (height // file.info.config["patch_size"], width // file.info.config["patch_size"])
    else:
        old = (round(shape[1] ** 0.5),) * 2
    if len(shape) != 3 or old[0] * old[1] != shape[1] or shape[2] != model.config["dim"]:
        raise ValueError(f"{file.path.name} does not fit: pos_embed of shape {shape} cannot be resized to {new}")
    return lambda pos_embed: resize_positions(pos_embed, old, new)


def _open_safetensors(path: Path, ema: bool) -> WeightFile:
    """Eight bytes of length, a JSON header, then the values.

    Read here and not through the library, which maps the file into memory: a large model would count twice.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < min(MAX_HEADER, path.stat().st_size):
                raise ValueError("its header has no sensible length")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        end = path.stat().st_size - 8 - length
        entries = {name: (DTYPES[e["dtype"]], tuple(e["shape"]), *e["data_offsets"]) for name, e in header.items()}
        for name, (dtype, shape, first, last) in entries.items():
            values = int(np.prod(shape, dtype=np.int64))
            if not 0 <= first <= last <= end or last - first != values * np.dtype(dtype).itemsize:
                raise ValueError(f"{name} lies outside of the file")
        info = Info(**json.loads(metadata["minicait"])) if "minicait" in metadata else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is damaged or no safetensors file ({error})") from error

    def read(name: str) -> np.ndarray:
        dtype, shape, first, _ = entries[name]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.fromfile(path, dtype, count, offset=8 + length + first).reshape(shape)
        return from_bfloat16(values) if header[name]["dtype"] == "BF16" else values

    return WeightFile(path, {name: shape for name, (_, shape, _, _) in entries.items()}, read, info)


def _open_npz(path: Path, ema: bool) -> WeightFile:
    def read(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as entry:
            return np.lib.format.read_array(entry, allow_pickle=False)

    def shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
        with archive.open(name) as entry:
            version = np.lib.format.read_magic(entry)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            return tuple(header(entry)[0])

    try:
        with zipfile.ZipFile(path) as archive:
            shapes = {name.removesuffix(".npy"): shape(archive, name) for name in archive.namelist()}
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is damaged or no NumPy archive ({error})") from error
    return WeightFile(path, shapes, read)


def _open_pth(path: Path, ema: bool) -> WeightFile:
    tensors = tensors_in(read_pth(path), "model_ema" if ema else None)
    return WeightFile(path, {name: t.shape for name, t in tensors.items()}, lambda name: tensors[name].read())

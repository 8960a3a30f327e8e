"""Read PyTorch's .pth files without PyTorch, and without executing anything in them.

A .pth file is a zip archive: `data.pkl` is a pickle that describes tensors, and each `data/<key>` holds the bytes of
one storage. This reader refuses all but a short list of names in the pickle, and checks that every tensor lies inside
its storage. Values stay on disk until they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..text import shortened
from .bounds import checked_shape
from .tensorfile import from_bfloat16
from .unpickle import IGNORED, MAX_PICKLE, UnsafeFileError, unpickle
from .zipped import STORED, Entry, content, open_zip

_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "bfloat16",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}  # fmt: skip
_BUILTINS = {"set", "frozenset", "slice", "complex", "list", "dict", "tuple", "int", "float", "str", "bool"}
_IGNORED = {  # objects that training scripts save beside the weights
    "argparse": {"Namespace"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"scalar", "_reconstruct"},
    "numpy._core.multiarray": {"scalar", "_reconstruct"},
    "_codecs": {"encode"},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "collections": {"Counter", "defaultdict", "deque"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"},
    "torch": {"device", "float16", "float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool"},
}


class StoredTensor(NamedTuple):
    """Location of a tensor in the archive; offset and stride count elements."""

    entry: Entry
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def extent(self) -> int:
        """Number of elements of the storage from the tensor's first to its last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


class _Storage(NamedTuple):
    """Created only for a persistent id, so that a tuple in the pickle cannot pass for one."""

    entry: Entry
    dtype: str


class _Dtype(NamedTuple):
    """Likewise, for the name of a class of storages."""

    name: str


def read_tensor(path: Path, tensor: StoredTensor) -> np.ndarray:
    """Read a tensor into memory."""
    bfloat16 = tensor.dtype == "bfloat16"
    dtype = np.dtype("<u2" if bfloat16 else tensor.dtype)
    offset = tensor.entry.start + tensor.offset * dtype.itemsize
    values = np.fromfile(path, dtype, tensor.extent, offset=offset)
    if len(values) != tensor.extent:
        raise ValueError(f"{path.name} is cut short")
    values = from_bfloat16(values) if bfloat16 else values
    return np.lib.stride_tricks.as_strided(values, tensor.shape, [s * values.itemsize for s in tensor.stride])


def read_pth(path: Path) -> Any:
    """Return the contents of a file: containers with their named entries, and a StoredTensor for every tensor."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            raise ValueError(
                f"{path.name} is not a zip archive: it is damaged, or older than PyTorch 1.6 (load it there and save "
                "it again)"
            )
    try:
        entries = open_zip(path)
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"it has {len(pickles)} data.pkl instead of one")
        if any(entry.method != STORED for entry in entries.values()):
            raise ValueError("its entries are compressed, unlike those of PyTorch")
        if entries[pickles[0]].size > MAX_PICKLE:
            raise ValueError("its data.pkl is too large to be a description of tensors")
        root = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{root}byteorder")
        if order is not None and (order.size > 10 or b"".join(content(path, order)) != b"little"):
            raise ValueError("its numbers are big-endian: load it on the machine that wrote it, and save safetensors")
        reader = _Reader(entries, f"{root}data/")
        return unpickle(b"".join(content(path, entries[pickles[0]])), reader.named, reader.call, reader.storage)
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path.name} is refused: {error}") from None
    except (ValueError, IndexError, KeyError) as error:  # of an empty stack, and of what is not in the memo
        raise ValueError(f"{path.name} is damaged or not a PyTorch file ({shortened(str(error), 200)})") from error


class _Reader:
    """The meaning of names in PyTorch's pickles."""

    def __init__(self, entries: Mapping[str, Entry], folder: str) -> None:
        self.entries, self.folder = entries, folder
        self.functions: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): dict,
            ("torch", "Size"): lambda sizes: sizes,
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
            ("torch._utils", "_rebuild_parameter_with_state"): lambda tensor, *_: tensor,
        }

    def named(self, module: str, name: str) -> Any:
        if (module, name) in self.functions:
            return self.functions[module, name]
        if module == "torch" and name in _STORAGES:
            return _Dtype(_STORAGES[name])
        if name in _IGNORED.get(module, ()):
            return IGNORED
        raise UnsafeFileError(
            f"it asks for {shortened(f'{module}.{name}')}, but only tensors and plain containers are read, because "
            "anything else could run code on this machine"
        )

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        if not callable(function) or (function is dict and arguments):
            raise UnsafeFileError("it calls something that is not a function")
        try:
            return function(*arguments)
        except TypeError:
            raise UnsafeFileError("it calls a function with wrong arguments") from None

    def storage(self, pid: Any) -> _Storage:
        kind, dtype, key = pid[:3] if type(pid) is tuple and len(pid) >= 3 else (pid, None, None)
        if kind != "storage" or type(dtype) is not _Dtype or type(key) is not str:
            raise UnsafeFileError(f"it refers to {shortened(kind)!r}, which is not a tensor's storage")
        if f"{self.folder}{key}" not in self.entries:
            raise ValueError(f"it has no storage {shortened(key)}")
        return _Storage(self.entries[f"{self.folder}{key}"], dtype.name)

    def tensor(
        self, storage: Any, offset: Any, shape: Any, stride: Any, grad: Any = 0, hooks: Any = 0, metadata: Any = None
    ) -> StoredTensor:
        if type(storage) is not _Storage or type(shape) is not tuple or type(stride) is not tuple:
            raise UnsafeFileError("it describes an impossible tensor")
        sizes = checked_shape("a tensor", shape)
        if len(stride) != len(sizes) or not all(type(n) is int and n >= 0 for n in (offset, *stride)):
            raise UnsafeFileError("it describes an impossible tensor")
        if metadata:
            raise UnsafeFileError("it has a tensor whose values are to be negated: save it after resolve_neg()")
        # PyTorch allows any stride along an axis with one element, or none
        steps = tuple(s if n > 1 and 0 not in sizes else 0 for n, s in zip(sizes, stride, strict=True))
        result = StoredTensor(storage.entry, storage.dtype, offset, sizes, steps)
        if (offset + result.extent) * result.itemsize > storage.entry.size:
            raise UnsafeFileError("it describes a tensor that reaches beyond its storage")
        if math.prod(sizes) > result.extent:
            raise UnsafeFileError("it describes a tensor whose values overlap")
        return result


def tensors_in(content: Any, entries: tuple[str, ...]) -> dict[str, StoredTensor] | None:
    """Return the named tensors of the first entry that a checkpoint has, where "" is its top level, or None."""
    for entry in entries:
        found = content if entry == "" else content.get(entry) if isinstance(content, dict) else None
        if isinstance(found, dict):
            return {name: t for name, t in found.items() if isinstance(t, StoredTensor)}
    return None

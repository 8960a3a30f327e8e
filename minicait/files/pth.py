"""Read PyTorch's .pth files without PyTorch, and without executing anything in them.

A .pth file is a zip archive: `data.pkl` is a pickle that describes tensors, and each `data/<key>` holds the bytes of
one storage. A pickle can call any Python function and rewrite attributes of the objects it creates. So this reader
refuses all but a short list of names, gives the pickle no object with attributes to rewrite, and checks that every
tensor lies inside its storage. Values stay on disk until they are read.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .tensorfile import from_bfloat16

MAX_PICKLE = 100_000_000  # bytes; a large model has a few hundred thousand


class UnsafeFileError(ValueError):
    """The file asks for something that tensors do not need."""


class StoredTensor(NamedTuple):
    """Location of a tensor in the archive; offset and stride count elements."""

    entry: str
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


def read_tensor(path: Path, tensor: StoredTensor) -> np.ndarray:
    """Read a tensor into memory."""
    with zipfile.ZipFile(path) as archive, archive.open(tensor.entry) as data:
        data.seek(tensor.offset * tensor.itemsize)
        raw = bytearray(data.read(tensor.extent * tensor.itemsize))
    if len(raw) != tensor.extent * tensor.itemsize:
        raise ValueError(f"{path.name} is cut short: {tensor.entry} ends early")
    bfloat16 = tensor.dtype == "bfloat16"
    values = from_bfloat16(np.frombuffer(raw, np.uint16)) if bfloat16 else np.frombuffer(raw, tensor.dtype)
    return np.lib.stride_tricks.as_strided(values, tensor.shape, [s * values.itemsize for s in tensor.stride])


class _SealedFunction:
    """A function that the pickle may call, without attributes that it could rewrite."""

    __slots__ = ("_function",)

    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setattr__(self, *args: Any) -> None:
        raise UnsafeFileError("the pickle tries to rewrite the reader")

    __setstate__ = __setattr__


class _Storage(NamedTuple):
    """Created only by `persistent_load`, so that a tuple in the pickle cannot pass for one."""

    entry: str
    dtype: str


class _Inert:
    """Stand-in for an object that is ignored: it accepts anything and does nothing."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = __init__


_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_IGNORED = {  # objects that training scripts save beside the weights
    "argparse": {"Namespace"},
    "numpy": {"dtype"},
    "numpy.core.multiarray": {"scalar"},
    "numpy._core.multiarray": {"scalar"},
    "_codecs": {"encode"},
    "builtins": {"set", "frozenset", "slice", "complex"},
    "collections": {"Counter", "defaultdict", "deque"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"},
    "torch": {"device", "float16", "float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool"},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, path: Path, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.path, self.root = path, root
        self.sizes = {info.filename: info.file_size for info in archive.infolist()}
        self.inert = type("Inert", (_Inert,), {"__slots__": ()})  # a class of its own for every file
        self.known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): _SealedFunction(tuple),
            ("torch._utils", "_rebuild_tensor_v2"): _SealedFunction(self.tensor),
            ("torch._utils", "_rebuild_parameter"): _SealedFunction(lambda tensor, *_: tensor),
            ("torch._utils", "_rebuild_parameter_with_state"): _SealedFunction(lambda tensor, *_: tensor),
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.known:
            return self.known[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if name in _IGNORED.get(module, ()):
            return self.inert
        raise UnsafeFileError(
            f"it asks for {module}.{name}, but only tensors and plain containers are read, because anything else could "
            "run code on this machine"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, *_ = pid
        if kind != "storage" or dtype not in _STORAGES.values() or not isinstance(key, str):
            raise UnsafeFileError(f"it refers to {str(kind)[:40]!r}, which is not a tensor's storage")
        return _Storage(f"{self.root}/data/{key}", dtype)

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
        whole = all(type(n) is int and n >= 0 for n in (offset, *shape, *stride))
        if type(storage) is not _Storage or not whole or len(shape) != len(stride):
            raise UnsafeFileError("it describes an impossible tensor")
        result = StoredTensor(storage.entry, storage.dtype, offset, tuple(shape), tuple(stride))
        if (offset + result.extent) * result.itemsize > self.sizes.get(storage.entry, 0):
            raise UnsafeFileError(f"it describes a tensor that reaches beyond its storage {storage.entry}")
        if int(np.prod(result.shape, dtype=object)) > max(1, result.extent) and 0 not in result.shape:
            raise UnsafeFileError("it describes a tensor whose values overlap")
        return result


def read_pth(path: Path) -> Any:
    """Return the contents of a file: containers as they are, and a StoredTensor for every tensor."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ValueError(f"it has {len(pickles)} data.pkl instead of one")
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("its entries are compressed, unlike those of PyTorch")
            if archive.getinfo(pickles[0]).file_size > MAX_PICKLE:
                raise ValueError("its data.pkl is too large to be a description of tensors")
            return _Unpickler(archive, path, pickles[0].removesuffix("/data.pkl")).load()
    except zipfile.BadZipFile:
        raise ValueError(
            f"{path.name} is not a zip archive: it is damaged, cut short, or older than PyTorch 1.6 (load it there and "
            "save it again)"
        ) from None
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path.name} is refused: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{path.name} is damaged or not a PyTorch file ({str(error)[:200]})") from error


def tensors_in(content: Any, entries: tuple[str, ...]) -> dict[str, StoredTensor] | None:
    """Return the named tensors of the first entry that a checkpoint has, where "" is its top level, or None."""
    for entry in entries:
        found = content if entry == "" else content.get(entry) if isinstance(content, Mapping) else None
        if isinstance(found, Mapping):
            return {name: t for name, t in found.items() if type(name) is str and isinstance(t, StoredTensor)}
    return None

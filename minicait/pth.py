"""Reading PyTorch's .pth files without PyTorch, and without running anything that is in them.

Such a file is a zip archive: `data.pkl` is a pickle that describes tensors, and each `data/<key>` holds the bytes of
one storage. A pickle can ask for any Python function to be called, so this reader knows a short list of names, all of
them harmless here, and refuses a file that asks for any other. Tensors stay on disk until they are read.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


class UnsafeFileError(ValueError):
    """The file asks for something to be run that is not needed to read tensors."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in the archive; `read()` brings it into memory."""

    path: Path
    entry: str
    dtype: str
    offset: int  # all three counted in values
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> np.ndarray:
        size = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).itemsize
        count = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) if 0 not in self.shape else 0
        with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as data:
            data.seek(self.offset * size)
            raw = bytearray(data.read(count * size))
        if len(raw) != count * size:
            raise ValueError(f"{self.path.name} is cut short: {self.entry} has {len(raw)} bytes, not {count * size}")
        bfloat16 = self.dtype == "bfloat16"
        values = from_bfloat16(np.frombuffer(raw, np.uint16)) if bfloat16 else np.frombuffer(raw, self.dtype)
        return np.lib.stride_tricks.as_strided(values, self.shape, [s * values.itemsize for s in self.stride])


def from_bfloat16(halves: np.ndarray) -> np.ndarray:
    """A bfloat16 is the upper half of a float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


class _Inert:
    """Stands for an object that is in the file and not wanted: it takes anything and does nothing."""

    def __init__(self, *args: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_INERT = {
    ("argparse", "Namespace"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, path: Path, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.path = path
        self.root = root

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) in _INERT:
            return _Inert
        raise UnsafeFileError(
            f"{self.path.name} is refused: it asks for {module}.{name}, and only tensors and plain containers are read "
            "from such files, because anything else could run code on this machine"
        )

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        """A storage, as its entry in the archive and its dtype."""
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, str):
            raise UnsafeFileError(f"{self.path.name} is refused: it refers to {kind!r}, which is no tensor's storage")
        return f"{self.root}/data/{key}", dtype

    def tensor(self, storage: tuple[str, str], offset: int, shape: Any, stride: Any, *_: Any) -> StoredTensor:
        entry, dtype = storage
        return StoredTensor(self.path, entry, dtype, offset, tuple(shape), tuple(stride))


def read_pth(path: Path) -> Any:
    """What the file holds: containers as they are, with a StoredTensor for every tensor."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ValueError(f"{path.name}: this zip archive is not a PyTorch file, it has no data.pkl")
            return _Unpickler(archive, path, pickles[0].removesuffix("/data.pkl")).load()
    except zipfile.BadZipFile:
        raise ValueError(
            f"{path.name} is not a zip archive: it is damaged, cut short, or older than PyTorch 1.6 (load it there and "
            "save it again)"
        ) from None
    except UnsafeFileError:
        raise
    except (pickle.UnpicklingError, EOFError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"{path.name}: the pickle in this PyTorch file is damaged ({error})") from error


def tensors_in(content: Any, entry: str | None = None) -> dict[str, StoredTensor]:
    """The named tensors of a checkpoint: at its top, or under the given entry, "model", "state_dict" or "model_ema"."""
    for key in ["model", "state_dict", "model_ema"] if entry is None else [entry]:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        return {}
    return {str(name): value for name, value in content.items() if isinstance(value, StoredTensor)}

"""safetensors files: named arrays and a few strings.

Eight bytes of length, a JSON header, then the values. Reading does not use the library, which maps the file into
memory: a large model would count twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from .atomic import atomic

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass
class TensorFile:
    """An open file: names, shapes and metadata are loaded, values are read one tensor at a time."""

    path: Path
    metadata: dict[str, str]
    entries: dict[str, tuple[str, tuple[int, ...], int]]  # dtype, shape, offset in the file

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (_, shape, _) in self.entries.items()}

    def read(self, name: str) -> np.ndarray:
        dtype, shape, offset = self.entries[name]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.fromfile(self.path, DTYPES[dtype], count, offset=offset).reshape(shape)
        return from_bfloat16(values) if dtype == "BF16" else values


def open_tensors(path: Path) -> TensorFile:
    """Read and check the header of a file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < min(MAX_HEADER, path.stat().st_size):
                raise ValueError("its header has an impossible length")
            header = json.loads(file.read(length))
        metadata: dict[str, str] = header.pop("__metadata__", {})
        start, end = 8 + length, path.stat().st_size
        entries = {}
        for name, entry in header.items():
            dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            size = int(np.prod(shape, dtype=object)) * np.dtype(DTYPES[dtype]).itemsize
            if min(shape, default=0) < 0 or not 0 <= first <= last <= end - start or last - first != size:
                raise ValueError(f"{name} lies outside the file")
            entries[name] = (dtype, shape, start + first)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged or not a safetensors file ({error})") from error
    return TensorFile(path, metadata, entries)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a file atomically."""
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    try:
        with atomic(path) as file:
            file.write(save(contiguous, dict(metadata)))
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path.name} could not be written: {error}") from error


def from_bfloat16(halves: np.ndarray) -> np.ndarray:
    """Convert bfloat16, the upper halves of float32 values, given as uint16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)

"""safetensors files: named arrays and a few strings.

Eight bytes of length, a JSON header, then the values, one tensor after the other. The library would map the file into
memory when it reads, so that a large model counts twice, and leave files of its own behind when it is killed while it
writes. This reader is as strict as the library, and the writer writes the same bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..text import shortened
from .atomic import atomic
from .bounds import checked_shape

# In the order in which the library writes them, so that every tensor is aligned.
DTYPES = {
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "BF16": "<u2", "F16": "<f2",
    "U16": "<u2", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
WRITTEN = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}  # NumPy has no bfloat16
# bytes. The format allows 100 million, of which Python would make objects of 3 GB; 1,000 tensors need 100,000, and a
# checkpoint of ours also has the loss of every batch in an epoch, for which this leaves room for 200,000
MAX_HEADER = 5_000_000
BLOCK = 1 << 24  # bytes that are read or written at a time, of an array that may be larger than memory


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
        return self._values(name, self.entries[name][1], 0)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Part of a tensor, along its first axis."""
        _, (rows, *row), _ = self.entries[name]
        start, stop = min(start, rows), min(stop, rows)
        return self._values(name, (stop - start, *row), start * math.prod(row))

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """The parts of a tensor along its first axis, in order, each of some megabytes."""
        dtype, (rows, *row), _ = self.entries[name]
        size = block_rows(math.prod(row) * np.dtype(DTYPES[dtype]).itemsize)
        return (self.read_rows(name, start, start + size) for start in range(0, rows, size))

    def _values(self, name: str, shape: tuple[int, ...], skipped: int) -> np.ndarray:
        dtype, _, offset = self.entries[name]
        offset += skipped * np.dtype(DTYPES[dtype]).itemsize
        values = np.fromfile(self.path, DTYPES[dtype], math.prod(shape), offset=offset)
        if len(values) != math.prod(shape):
            raise ValueError(f"{self.path.name} is cut short: it ends before {name} does")
        return (from_bfloat16(values) if dtype == "BF16" else values).reshape(shape)


def block_rows(row_bytes: int) -> int:
    """Number of rows in a block."""
    return max(1, BLOCK // max(1, row_bytes))


def array_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The parts of an array along its first axis, in order, each of some megabytes: it may be a memory map."""
    if array.nbytes <= BLOCK:  # it may have no axis
        yield array
        return
    size = block_rows(array.nbytes // len(array))
    yield from (array[start : start + size] for start in range(0, len(array), size))


def open_tensors(path: Path) -> TensorFile:
    """Read and check the header of a file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                raise ValueError("its header has an impossible length")
            if length > MAX_HEADER:
                raise ValueError(f"its header has {length:,} bytes, more than {MAX_HEADER:,}")
            header = _parsed(file.read(length).decode())
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata is not text")
        "".join([*header, *metadata, *metadata.values()]).encode()  # no half characters: they cannot be printed
        entries, end = {}, 8 + length
        for name, dtype, shape, first, last in sorted(map(_entry, header.items()), key=lambda entry: entry[3:]):
            if last - first != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
                raise ValueError(f"{shortened(name)} has a shape that does not fit its size")
            if 8 + length + first != end:
                raise ValueError(f"{shortened(name)} does not begin where the tensor before it ends")
            entries[name] = (dtype, shape, end)
            end += last - first
        if end != size:
            raise ValueError("its tensors do not end where the file ends")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged or not a safetensors file ({shortened(str(error), 200)})") from error
    return TensorFile(path, metadata, {name: entries[name] for name in header})


def _parsed(text: str) -> dict[str, Any]:
    """JSON without what Python allows and the format does not."""

    def number(text: str) -> int:
        if text.startswith("-") or len(text) > 20:
            raise ValueError("its header has numbers that are not valid sizes")
        return int(text)

    def refuse(_: str) -> NoReturn:
        raise ValueError("its header has numbers that are not valid sizes")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) != len(result := dict(pairs)):
            raise ValueError("its header has the same name twice")
        return result

    if not text.startswith("{"):
        raise ValueError("its header is not a JSON object")
    return json.loads(text, parse_int=number, parse_float=refuse, parse_constant=refuse, object_pairs_hook=unique)


def _entry(item: tuple[str, Any]) -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, dtype, shape, and first and last offset of a tensor, with the right types."""
    name, entry = item
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise ValueError(f"{shortened(name)} has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{shortened(name)} has dtype {shortened(dtype)}, expected {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not isinstance(offsets, list) or [type(n) for n in offsets] != [int, int]:
        raise ValueError(f"{shortened(name)} has an impossible shape or impossible offsets")
    return name, dtype, checked_shape(name, shape), offsets[0], offsets[1]


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], previous: Path | None = None
) -> None:
    """Write a file atomically; the one that it replaces is renamed to `previous`, if that is given."""
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    dtypes = {name: array.dtype.newbyteorder("<") for name, array in arrays.items()}
    for name, dtype in dtypes.items():
        if dtype.str not in WRITTEN:
            raise ValueError(f"{name} cannot be written: safetensors files have no {dtype}")
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    ranks = {name: rank for rank, name in enumerate(DTYPES)}
    end, order = 0, sorted(arrays, key=lambda name: (ranks[WRITTEN[dtypes[name].str]], name))
    for name in order:
        first, end = end, end + arrays[name].size * dtypes[name].itemsize
        offsets = [first, end]
        header[name] = {"dtype": WRITTEN[dtypes[name].str], "shape": arrays[name].shape, "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"{path.name} cannot be written: its header has {len(text):,} bytes, more than {MAX_HEADER:,}")
    with atomic(path, previous) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for block in array_blocks(arrays[name]):
                values = np.ascontiguousarray(block, dtypes[name]).reshape(-1)
                file.write(values.view(np.uint8).data)


def from_bfloat16(halves: np.ndarray) -> np.ndarray:
    """Convert bfloat16, the upper halves of float32 values, given as uint16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)

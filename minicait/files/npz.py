"""NumPy's .npz files: a zip archive with one .npy file for each array."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..text import shortened
from .bounds import checked_shape
from .zipped import Entry, content, open_zip

MAX_NPY_HEADER = 1_000  # bytes; NumPy writes about 120
# NumPy's own reader takes any Python literal, some of which take a second each
HEADER = re.compile(
    rb"\{'descr': '([<>|](?:b1|f[248]|[iu][1248]))', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n"
)


class StoredArray(NamedTuple):
    entry: Entry
    start: int  # of the values
    shape: tuple[int, ...]
    dtype: np.dtype
    order: str  # "C" or "F"

    def read(self, path: Path) -> np.ndarray:
        try:
            raw = b"".join(content(path, self.entry))
        except ValueError as error:
            raise ValueError(f"{path.name} is damaged ({error})") from None
        return np.frombuffer(raw, self.dtype, offset=self.start).reshape(self.shape, order=self.order)  # type: ignore[call-overload]


def read_npz(path: Path) -> dict[str, StoredArray]:
    """Return the location, the shape and the dtype of every array."""
    try:
        return {name.removesuffix(".npy"): _array(path, name, entry) for name, entry in open_zip(path).items()}
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged or no NumPy archive ({shortened(str(error), 200)})") from error


def _array(path: Path, name: str, entry: Entry) -> StoredArray:
    if not name.endswith(".npy"):
        raise ValueError(f"{shortened(name)} is not an array")
    name = name.removesuffix(".npy")
    beginning = next(content(path, entry), b"")[: MAX_NPY_HEADER + 12]
    wide = beginning[:7] == b"\x93NUMPY\x02"  # version 2 has four bytes of length
    first = 12 if wide else 10
    start = first + int.from_bytes(beginning[8:first], "little")
    header = HEADER.fullmatch(beginning[first:start])
    if beginning[:7] not in (b"\x93NUMPY\x01", b"\x93NUMPY\x02") or header is None or start > len(beginning):
        raise ValueError(f"{shortened(name)} is not an array of numbers with NumPy's header")
    dtype, fortran = np.dtype(header[1].decode()), header[2] == b"True"
    sizes = checked_shape(name, [int(n) for n in header[3].split(b",") if n.strip()])
    if start + math.prod(sizes) * dtype.itemsize != entry.size:
        raise ValueError(f"{shortened(name)} has a shape that does not fit its size")
    return StoredArray(entry, start, sizes, dtype, "F" if fortran else "C")

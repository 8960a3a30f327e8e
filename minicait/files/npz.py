"""NumPy's .npz files: a zip archive with one .npy file for each array."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .bounds import checked_shape, shortened
from .zipped import Entry, content, open_zip

MAX_NPY_HEADER = 10_000  # characters; NumPy's own limit for the Python literal that it parses


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
    beginning = io.BytesIO(next(content(path, entry), b"")[: MAX_NPY_HEADER + 12])
    try:
        version = np.lib.format.read_magic(beginning)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(beginning, max_header_size=MAX_NPY_HEADER)
    except Exception:  # it parses a Python literal, which can fail in any way
        raise ValueError(f"{shortened(name)} has a header that is not NumPy's") from None
    if dtype.kind not in "biuf":
        raise ValueError(f"{shortened(name)} is not numbers")
    sizes, start = checked_shape(name, shape), beginning.tell()
    if start + math.prod(sizes) * dtype.itemsize != entry.size:
        raise ValueError(f"{shortened(name)} has a shape that does not fit its size")
    return StoredArray(entry, start, sizes, dtype, "F" if fortran else "C")

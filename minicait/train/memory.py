"""Memory that processes share. An array in it is sent to a process by reference: where it is, not its values."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..processes import shared

ALIGNMENT = 64  # bytes
INBOX = 1 << 28  # bytes for a batch: more than most need, but pages that nobody writes cost nothing


class SharedMemory:
    """Arrays that processes share if they are forked later.

    inbox  bytes of the batch that is sent to them
    """

    def __init__(self, inbox: int = 0) -> None:
        self.blocks: list[tuple[int, np.ndarray]] = []  # address and bytes
        self.inbox = self.empty((max(inbox, INBOX),), np.dtype(np.uint8))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        block = shared((size,), np.uint8)
        self.blocks.append((_address(block), block))
        return block.view(dtype).reshape(shape)

    def put(self, arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Copies in the inbox, which the next call overwrites; Python objects cannot be there, and stay as they are."""
        copies, start = [], 0
        for array in arrays:
            if not array.dtype.hasobject:
                part = self.inbox[start : start + array.nbytes]
                start += _aligned(array.nbytes)
                copy = part.view(array.dtype).reshape(array.shape)
                copy[...], array = array, copy
            copies.append(array)
        return copies

    def find(self, array: Any) -> tuple[int, int] | None:
        """Number of the block that an array is in, and where it begins there; None if it is elsewhere."""
        if type(array) is np.ndarray:
            address = _address(array)
            for number, (start, block) in enumerate(self.blocks):
                if start <= address < start + block.size:
                    return number, address - start
        return None

    def dumps(self, message: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self).dump(message)
        return file.getvalue()

    def loads(self, data: bytes) -> Any:
        return _Unpickler(io.BytesIO(data), self).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.memory = memory

    def persistent_id(self, x: Any) -> Any:
        place = self.memory.find(x) if type(x) is np.ndarray else None
        return place and (*place, x.shape, x.strides, x.dtype.str)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file)
        self.memory = memory

    def persistent_load(self, place: Any) -> np.ndarray:
        number, offset, shape, strides, dtype = place
        return np.ndarray(shape, dtype, self.memory.blocks[number][1], offset, strides)


def inbox_size(arrays: Iterable[np.ndarray]) -> int:
    """Bytes that `put` needs for these arrays."""
    return sum(_aligned(array.nbytes) for array in arrays)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]

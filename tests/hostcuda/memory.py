"""Device memory, which is host memory here.

Fresh memory is poisoned: all bits are set, which is NaN in every float and -1 in every integer, so that a result that
uses what nobody wrote shows it. Inside `guarded()`, an array ends where a page begins that nobody may touch, and is
unmapped as soon as it is freed: a kernel that reads or writes past its end, or after its end, dies there and then.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from . import counters

POISON = 0xFF
ALIGNMENT = 256  # as from the driver
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
total = 16 << 30  # bytes that the device claims to have

_libc = ctypes.CDLL(None)
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.aligned_alloc.restype, _libc.aligned_alloc.argtypes = _pointer, [_size, _size]
_libc.free.argtypes = [_pointer]
_libc.mmap.restype, _libc.mmap.argtypes = _pointer, [_pointer, _size, _int, _int, _int, ctypes.c_long]
_libc.mprotect.argtypes = [_pointer, _size, _int]
_libc.munmap.argtypes = [_pointer, _size]

_sizes: dict[int, int] = {}  # of what is allocated, by address
_maps: dict[int, tuple[int, int]] = {}  # address and length of what is mapped for it, if it is guarded
_guarding = False


def allocate(size: int) -> int:
    if size > free_bytes():
        from cupy_backends.cuda.api import runtime

        raise runtime.CUDARuntimeError(OUT_OF_MEMORY)
    address = _allocate_guarded(size) if _guarding else _libc.aligned_alloc(ALIGNMENT, _rounded(size, ALIGNMENT))
    if not address:
        raise MemoryError(f"no {size} bytes for device memory")
    ctypes.memset(address, POISON, size)
    _sizes[address] = size
    for count in counters.active:
        count.allocations.append(size)
    return address


def free(address: int) -> None:
    if not address:
        return
    del _sizes[address]  # a KeyError here is memory that was freed twice
    if address in _maps:
        _libc.munmap(*_maps.pop(address))
    else:
        _libc.free(address)


def free_bytes() -> int:
    return total - sum(_sizes.values())


def _allocate_guarded(size: int) -> int:
    """The last byte is the last of a page, and the page after it may not be touched."""
    length = _rounded(size, mmap.PAGESIZE)
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _libc.mmap(None, length + mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    _libc.mprotect(start + length, mmap.PAGESIZE, 0)
    address = start + length - size
    _maps[address] = start, length + mmap.PAGESIZE
    return address


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@contextmanager
def guarded() -> Iterator[None]:
    global _guarding
    before, _guarding = _guarding, True
    try:
        yield
    finally:
        _guarding = before

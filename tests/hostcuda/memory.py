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

from . import capture, counters, devices
from .unsupported import HostCudaError

POISON = 0xFF
ALIGNMENT = 256  # as from the driver
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
total = 16 << 30  # bytes that each device claims to have
HOST = -1  # in place of a device: memory of the host that a device can see

_libc = ctypes.CDLL(None)
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.aligned_alloc.restype, _libc.aligned_alloc.argtypes = _pointer, [_size, _size]
_libc.free.argtypes = [_pointer]
_libc.mmap.restype, _libc.mmap.argtypes = _pointer, [_pointer, _size, _int, _int, _int, ctypes.c_long]
_libc.mprotect.argtypes = [_pointer, _size, _int]
_libc.munmap.argtypes = [_pointer, _size]

_sizes: dict[int, int] = {}  # of what is allocated, by address
_homes: dict[int, int] = {}  # and the device that it belongs to
_maps: dict[int, tuple[int, int]] = {}  # address and length of what is mapped for it, if it is guarded
_guarding = False


def allocate(size: int, device: int | None = None) -> int:
    capture.refuse("an allocation")
    device = devices.current() if device is None else device
    if device != HOST and size > free_bytes():
        from cupy_backends.cuda.api import runtime

        raise runtime.CUDARuntimeError(OUT_OF_MEMORY)
    address = _allocate_guarded(size) if _guarding else _libc.aligned_alloc(ALIGNMENT, _rounded(size, ALIGNMENT))
    if not address:
        raise MemoryError(f"no {size} bytes for device memory")
    ctypes.memset(address, POISON, size)
    _sizes[address], _homes[address] = size, device
    for count in counters.active:
        count.allocations.append(size)
    return address


def free(address: int) -> None:
    if not address:
        return
    del _sizes[address], _homes[address]  # a KeyError here is memory that was freed twice
    if address in _maps:
        _libc.munmap(*_maps.pop(address))
    else:
        _libc.free(address)


def free_bytes() -> int:
    """On the current device."""
    return total - sum(size for address, size in _sizes.items() if _homes[address] == devices.current())


def check_here(address: int, what: str) -> None:
    """Raises if this is memory of a device that is not current."""
    near = {HOST, devices.current()}
    for start, device in _homes.items():
        if device not in near and start <= address < start + _sizes[start]:
            here = devices.current()
            raise HostCudaError(f"{what}: this memory belongs to device {device}, and device {here} is current")


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

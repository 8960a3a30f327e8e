"""The CUDA runtime and driver over host memory: a few devices, on which everything is done before the call returns.

Streams and events are therefore numbers that mean nothing, and waiting for them takes no time; but it is counted. Only
a stream that captures does nothing yet: see `capture`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from . import capture, compiler, counters, devices, memory
from .hooks import hook
from .unsupported import HostCudaError, refuse

SCHEDULES = ("together", "forwards", "backwards")  # as in shim.h
MOST_THREADS = 1024
SHARED_BYTES = 48 * 1024  # that a block may have without asking for more
MOST_SHARED_BYTES = 99 * 1024  # the least that GPUs since 2018 give when they are asked
VERSION = 13000
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind
MAX_DYNAMIC_SHARED_SIZE = 8  # CUfunction_attribute

_handles = itertools.count(0x1000, 16)
_schedule = 0


def _handle(*_: Any) -> int:
    return next(_handles)


def _nothing(*_: Any) -> None:
    return None


def _zero(*_: Any) -> int:
    return 0


# ---- the device


def _attributes() -> dict[int, int]:
    """cudaDeviceAttr: what CuPy asks for, of a GPU of the architecture that is compiled for."""
    major, minor = divmod(compiler.ARCHITECTURES[0], 10)
    return {1: MOST_THREADS, 8: SHARED_BYTES, 10: 32, 16: 108, 39: 2048, 75: major, 76: minor, 97: MOST_SHARED_BYTES}


def _attribute(attribute: int, device: int) -> int:
    known = _attributes()
    return known[attribute] if attribute in known else refuse(f"cudaDeviceGetAttribute of attribute {attribute}")


def _properties(device: int) -> dict[str, Any]:
    major, minor = divmod(compiler.ARCHITECTURES[0], 10)
    return {
        "name": b"hostcuda", "major": major, "minor": minor, "multiProcessorCount": 108, "warpSize": 32,
        "maxThreadsPerBlock": MOST_THREADS, "sharedMemPerBlock": SHARED_BYTES, "totalGlobalMem": memory.total,
    }  # fmt: skip


# ---- copies


def _copy(to: int, source: int, size: int, kind: int, stream: int = 0) -> None:
    if kind in (HOST_TO_DEVICE, DEVICE_TO_HOST):
        capture.refuse("a copy from or to the host")
    if capture.keep(lambda: _copy(to, source, size, kind), stream, "a copy"):
        return
    for count in counters.active:
        if kind == HOST_TO_DEVICE:
            count.bytes_to_device.append(size)
        elif kind == DEVICE_TO_HOST:
            count.bytes_to_host.append(size)
        else:
            count.bytes_on_device.append(size)
    # a copy from one device to another is made on the one that it goes to
    memory.check_here(source if kind == DEVICE_TO_HOST else to, "a copy")
    ctypes.memmove(to, source, size)


def _fill(address: int, value: int, size: int, stream: int = 0) -> None:
    if capture.keep(lambda: _fill(address, value, size), stream, "memset"):
        return
    memory.check_here(address, "memset")
    ctypes.memset(address, value, size)


def _synchronise(*_: Any) -> None:
    capture.refuse("a synchronisation")
    for count in counters.active:
        count.synchronisations += 1


def _noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which leaves a note of its calls: their order is all that is left of streams and events here."""

    def call(*arguments: Any) -> Any:
        for count in counters.active:
            count.calls.append((name, *arguments))
        return function(*arguments)

    return call


RUNTIME = {
    "driverGetVersion": lambda: VERSION,
    "getDevice": devices.current,
    "getDeviceCount": lambda: devices.COUNT,
    "setDevice": devices.set_current,
    "deviceGetAttribute": _attribute,
    "getDeviceProperties": _properties,
    "deviceCanAccessPeer": _zero,
    "deviceSynchronize": _synchronise,
    "_ensure_context": _nothing,
    "malloc": memory.allocate,
    "free": memory.free,
    "hostAlloc": lambda size, flags: memory.allocate(size, memory.HOST),
    "freeHost": memory.free,
    "hostRegister": _noted("hostRegister", _nothing),
    "hostUnregister": _noted("hostUnregister", _nothing),
    "memGetInfo": lambda: (memory.free_bytes(), memory.total),
    "memcpy": _copy,
    "memcpyAsync": _noted("memcpyAsync", _copy),
    "memset": _fill,
    "memsetAsync": _fill,
    "pointerGetMemoryType": _zero,
    "streamCreate": _handle,
    "streamCreateWithFlags": _handle,
    "streamCreateWithPriority": _handle,
    "streamDestroy": _nothing,
    "streamGetFlags": lambda stream: 1,
    "streamGetPriority": _zero,
    "streamIsCapturing": capture.is_capturing,
    "streamBeginCapture": capture.begin,
    "streamEndCapture": capture.end,
    "graphInstantiate": capture.instantiate,
    "graphLaunch": capture.launch,
    "graphDestroy": capture.destroy,
    "graphExecDestroy": capture.destroy,
    "streamQuery": _zero,
    "streamSynchronize": _synchronise,
    "streamWaitEvent": _noted("streamWaitEvent", _nothing),
    "eventCreate": _handle,
    "eventCreateWithFlags": _handle,
    "eventDestroy": _nothing,
    "eventElapsedTime": lambda start, end: 0.0,
    "eventQuery": _zero,
    "eventRecord": _noted("eventRecord", _nothing),
    "eventSynchronize": _noted("eventSynchronize", _synchronise),
}

# ---- kernels


class Function(NamedTuple):
    name: str
    launch: Any  # in the library that g++ made of it
    pointers: list[int]  # the parameters that are pointers
    sizes: list[int]  # of all parameters


_modules: dict[int, ctypes.PyDLL] = {}
_functions: dict[int, Function] = {}
_shared_limits: dict[int, int] = {}


def _load_module(image: bytes) -> int:
    number = _handle()
    _modules[number] = compiler.library_of(image)
    return number


def _get_function(module: int, name: str) -> int:
    launch = getattr(_modules[module], f"hostcuda_launch_{name}", None)
    if launch is None:
        raise HostCudaError(f"there is no kernel {name} in this source; kernels must not be templates")
    three = ctypes.POINTER(ctypes.c_uint)
    launch.argtypes = [three, three, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
    launch.restype = ctypes.c_char_p
    sizes = getattr(_modules[module], f"hostcuda_sizes_{name}")
    sizes.restype = ctypes.POINTER(ctypes.c_size_t)
    number = _handle()
    every = list(itertools.takewhile(bool, sizes()))
    _functions[number] = Function(name, launch, compiler.pointers_of(_modules[module], name), every)
    return number


def _set_function_attribute(function: int, attribute: int, value: int) -> None:
    if attribute == MAX_DYNAMIC_SHARED_SIZE:
        if value > MOST_SHARED_BYTES:
            raise HostCudaError(f"a GPU may have no {value} bytes of shared memory for {_functions[function].name}")
        _shared_limits[function] = value


def _launch(function: int, *rest: int) -> None:
    grid, block, (shared, stream, parameters, _extra) = rest[:3], rest[3:6], rest[6:]
    name, launch, pointers, sizes = _functions[function]
    threads = block[0] * block[1] * block[2]
    if not 0 < threads <= MOST_THREADS or 0 in grid:
        raise HostCudaError(f"{name}: no GPU launches a grid of {grid} blocks of {block} threads")
    if shared > (limit := _shared_limits.get(function, SHARED_BYTES)):
        raise HostCudaError(f"{name}: {shared} bytes of shared memory are more than the {limit} that it may have")
    if capture.is_capturing(stream):
        kept = capture.copied_parameters(sizes, parameters)
        capture.keep(lambda: _launch(function, *rest[:7], 0, ctypes.addressof(kept), 0), stream, name)
        return
    capture.refuse(f"{name} on another stream")
    for count in counters.active:
        count.kernels.append(name)
        count.calls.append(("launchKernel", name, stream))
    for i in pointers:
        place = ctypes.c_void_p.from_address(parameters + i * ctypes.sizeof(ctypes.c_void_p)).value
        memory.check_here(ctypes.c_void_p.from_address(place or 0).value or 0, name)
    three = ctypes.c_uint * 3
    if (failure := launch(three(*grid), three(*block), shared, parameters, _schedule)) is not None:
        raise HostCudaError(f"{name}: {failure.decode()}")


@contextmanager
def schedule(name: str) -> Iterator[None]:
    global _schedule
    before, _schedule = _schedule, SCHEDULES.index(name)
    try:
        yield
    finally:
        _schedule = before


DRIVER = {
    "ctxGetCurrent": lambda: 1,
    "moduleLoadData": _load_module,
    "moduleUnload": _nothing,
    "moduleGetFunction": _get_function,
    "funcGetAttribute": lambda attribute, function: MOST_THREADS,
    "funcSetAttribute": _set_function_attribute,
    "launchKernel": _launch,
}


def install() -> None:
    from cupy_backends.cuda.api import driver, runtime

    hook(runtime, RUNTIME)
    hook(driver, DRIVER)

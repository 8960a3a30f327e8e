"""The devices that there are, and which of them is current: a matter of each thread, as in CUDA.

Memory belongs to the device that was current when it was allocated. No device may touch the memory of another. CuPy
looks after that for the kernels it generates, but not for RawKernels, copies within a device, and cuBLAS. On GPUs with
peer access those work, slowly, and in no order with what the other device does. So they raise here.
"""

from __future__ import annotations

import threading

COUNT = 2
INVALID_DEVICE = 101  # cudaErrorInvalidDevice

_of_thread = threading.local()


def current() -> int:
    return getattr(_of_thread, "device", 0)


def set_current(device: int) -> None:
    if not 0 <= device < COUNT:
        from cupy_backends.cuda.api import runtime

        raise runtime.CUDARuntimeError(INVALID_DEVICE)
    _of_thread.device = device

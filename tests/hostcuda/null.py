"""A device that computes nothing: what a training step costs the host, at full size.

    python -m tests.hostcuda.null cait_xxs24_224 --batch 128 --precision fp16 --drop-path 0.05

As in the rest of this package, CuPy is the real one. But memory is only addresses, and a launch or a copy returns at
once from C, after it was counted. What remains is the time of Python and CuPy, which on a GPU must be less than that of
the kernels, or the GPU waits. What is copied to the host is zero: a finite loss, and a finite norm.

One process has either this device or that of `hostcuda.install`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from autograd import cublas

from . import blas, counters, runtime, unsupported
from .hooks import hook

MOST = 1 << 16  # launches that are counted
LAUNCHED = f"""
extern "C" {{ long launched; intptr_t launches[{MOST}][3]; }}
"""
LAUNCH = f"""if (launched < {MOST}) {{
    intptr_t* l = launches[launched++];
    l[0] = (intptr_t)a0; l[1] = (intptr_t)a1 * a2 * a3; l[2] = (intptr_t)a4 * a5 * a6;
}}"""
COPIED = """
#include <cstring>
extern "C" { long copied[5]; }  // by cudaMemcpyKind, of which CuPy uses the last on one device
"""
COPY = f"copied[(intptr_t)a3]++; if ((intptr_t)a3 == {runtime.DEVICE_TO_HOST}) memset((void*)a0, 0, (size_t)a2);"
QUICK = {  # all that a step calls, again and again
    **dict.fromkeys(("getDevice", "setDevice", "streamIsCapturing", "streamQuery", "streamWaitEvent", "eventRecord",
                     "eventQuery", "pointerGetMemoryType", "_ensure_context", "memset", "memsetAsync"), ""),
    "memcpy": COPY, "memcpyAsync": COPY,
}  # fmt: skip


class Launch(NamedTuple):
    kernel: str
    blocks: int
    threads: int  # of a block


class Step(NamedTuple):
    """What one training step asks of the GPU, and costs the host."""

    graph_launches: int  # whose launches, products and copies are not counted
    launches: list[Launch]
    gemms: list[counters.Gemm]
    to_device: int  # copies
    to_host: int
    on_device: int
    seconds: float  # of this process, in the fastest of some steps
    unit: float  # seconds of one `cupy.add` of two arrays, in the same process
    pool_gigabytes: float


class NullDevice:
    """Installs itself; `import cupy` then works, and computes nothing."""

    def __init__(self) -> None:
        os.environ["CUPY_ACCELERATORS"] = ""
        self.gemms: list[counters.Gemm] = []
        self.graph_launches = 0
        self._names: dict[int, str] = {}
        self._next, self._pinned = 1 << 40, dict[int, Any]()
        own_runtime = runtime.RUNTIME | {
            "malloc": self._allocate, "free": lambda address: None, "hostAlloc": self._pin,
            "freeHost": lambda address: self._pinned.pop(address, None) and None,
            "memGetInfo": lambda: (1 << 39, 1 << 39), "getDevice": lambda: 0, "setDevice": lambda device: None,
            "memcpy": self._copy, "memcpyAsync": self._copy, "graphLaunch": self._launch_graph,
        }  # fmt: skip
        own_driver = runtime.DRIVER | {
            "moduleLoadData": lambda image: 1, "moduleGetFunction": self._function,
            "funcSetAttribute": lambda *_: None, "launchKernel": lambda *_: None,
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from cupy_backends.cuda.api import driver
            from cupy_backends.cuda.api import runtime as cuda_runtime

            self._runtime = hook(cuda_runtime, own_runtime, QUICK, COPIED)
            self._driver = hook(driver, own_driver, {"launchKernel": LAUNCH}, LAUNCHED)
            self.install_blas()
            unsupported.before_import()
            import cupy

            unsupported.after_import()
            cupy.cuda.compiler._compile_module_with_cache = self._compile
        from autograd import cuda

        cuda._usable.update((None, 0))  # it could not multiply two matrices
        self._launched = ctypes.c_long.in_dll(self._driver, "launched")
        self._launches = (ctypes.c_ssize_t * 3 * MOST).in_dll(self._driver, "launches")
        self._copied = (ctypes.c_long * 5).in_dll(self._runtime, "copied")

    def install_blas(self) -> None:
        blas.install()
        library: Any = sys.modules[blas.NAME]
        library.gemmEx, library.gemmStridedBatchedEx = self._gemm, self._gemm_batch
        cublas.load = lambda: _Library(self)

    def reset(self) -> None:
        self._launched.value = self.graph_launches = 0
        self._copied[:] = [0] * 5
        self.gemms.clear()

    def launches(self) -> list[Launch]:
        found = self._launches[: self._launched.value]
        return [Launch(self._names[handle], blocks, threads) for handle, blocks, threads in found]

    def copies(self) -> tuple[int, int, int]:
        """To the device, to the host, and from one place on the device to another."""
        _, to_device, to_host, *on_device = self._copied
        return to_device, to_host, sum(on_device)

    def _launch_graph(self, graph: int, stream: int) -> None:
        self.graph_launches += 1

    def _allocate(self, size: int) -> int:
        address, self._next = self._next, self._next + (size + 1023) // 512 * 512
        return address

    def _pin(self, size: int, flags: int) -> int:
        memory = (ctypes.c_char * size)()
        self._pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _copy(self, to: int, source: int, size: int, kind: int, stream: int = 0) -> None:
        self._copied[kind] += 1
        if kind == runtime.DEVICE_TO_HOST:
            ctypes.memset(to, 0, size)

    def _compile(self, source: str, options: tuple[str, ...] = (), **_: Any) -> Any:
        from cupy.cuda import function

        module = function.Module()
        module.load(b"nothing")
        return module

    def _function(self, module: int, name: str) -> int:
        handle = len(self._names) + 1
        self._names[handle] = name
        return handle

    def _gemm(self, _, ta, tb, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, kind, algo):
        self.gemms.append(counters.Gemm("gemmEx", 1, m, n, k, type_a, type_c, kind))

    def _gemm_batch(self, _, ta, tb, m, n, k, alpha, a, type_a, lda, step_a, b, type_b, ldb, step_b, beta, c, type_c,
                    ldc, step_c, batch, kind, algo):  # fmt: skip
        self.gemms.append(counters.Gemm("gemmStridedBatchedEx", batch, m, n, k, type_a, type_c, kind))


class _Library(blas.Library):
    def __init__(self, device: NullDevice) -> None:
        super().__init__()
        self.cublasGemmEx = _counted(device._gemm)
        self.cublasGemmStridedBatchedEx = _counted(device._gemm_batch)


def _counted(product: Callable[..., None]) -> Callable[..., int]:
    """As a function of libcublas, which returns 0 for success."""
    return lambda *arguments: product(*arguments) or 0


def measure(name: str, batch: int, precision: str, drop_path: float, graph: bool, steps: int = 5) -> Step:
    """One training step of a model, after two that fill caches and the pool."""
    device = NullDevice()
    import cupy

    from autograd import cuda
    from minicait.models import find_model
    from minicait.train import Recipe, Trainer

    family, config = find_model(name)
    config = replace(config, drop_path_rate=drop_path)
    model = family.model.from_config(config, 0)
    trainer = Trainer(model, Recipe(clip_norm=1.0, ema_decay=0.9, precision=precision), "cuda", graph=graph)
    images, labels = cupy.empty((batch, 3, *model.img_size), "float32"), cupy.zeros(batch, "int64")
    times = []
    for i in range(2 + steps):
        device.reset()
        before = time.process_time()
        trainer.step(images, labels)
        times += [time.process_time() - before] if i > 1 else []
    copies = device.copies()
    launches, gemms = device.launches(), list(device.gemms)
    held = cuda.memory("cuda").held / 2**30  # graphs included
    return Step(
        device.graph_launches, launches, gemms, *copies, min(times), min(_additions() for _ in range(steps)), held
    )


def _additions(count: int = 2000) -> float:
    """Seconds of one addition of two arrays on the device, for the host."""
    import cupy

    x = cupy.empty(1000, "float32")
    before = time.process_time()
    for _ in range(count):
        cupy.add(x, x)
    return (time.process_time() - before) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--drop-path", type=float, default=0.0)
    parser.add_argument("--graph", action="store_true", help="forward and backward are one CUDA graph")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    step = measure(args.model, args.batch, args.precision, args.drop_path, args.graph)
    if args.json:
        print(json.dumps(step._asdict()))
        return
    print(f"{args.model}, batch {args.batch}, {args.precision}, drop rate {args.drop_path}: "
          f"{step.graph_launches} graph launches, {len(step.launches)} launches, {len(step.gemms)} calls of cuBLAS, "
          f"{step.to_device} copies to the device, "
          f"{step.to_host} to the host, {step.on_device} on the device; {1e3 * step.seconds:.0f} ms of the host, as "
          f"{step.seconds / step.unit:.0f} times cupy.add ({1e6 * step.unit:.1f} us); pool {step.pool_gigabytes:.2f} GB"
    )  # fmt: skip
    for kernel, count in Counter(launch.kernel for launch in step.launches).most_common():
        print(
            f"{count:6d} {kernel}, {min(launch.blocks for launch in step.launches if launch.kernel == kernel)} blocks"
        )
    for gemm, count in Counter(gemm[:5] for gemm in step.gemms).most_common(20):
        print(f"{count:6d} {gemm}")


if __name__ == "__main__":
    main()

"""Self-test: does everything work on this machine? Each part can fail without stopping the others.

machine     the CPU, the GPU, and versions
compare     the same computation in two places, with differences counted in roundings
operations  every operation of the engine, and every gradient
kernels     kernels with CUDA code of our own, for rows of many lengths
training    some steps of a small CaiT
speed       memory of all this; a step and a prediction, beside PyTorch
report      parts, their table, and the file for a bug report
"""

from __future__ import annotations

from functools import partial

from autograd.cases import CASES

from . import kernels, machine, operations, speed, training
from .report import NOT_RUN, Finding, Part


def parts(device: str, quick: bool = False) -> list[Part]:
    """All parts. A GPU is compared with NumPy; without one, NumPy in lower precision with float64."""
    on_gpu = device != "cpu"
    pair = f"{device} against NumPy" if on_gpu else "NumPy against its float64"
    dtypes = "float32, float16" + (", float64" if on_gpu else "")
    rows = f"{min(kernels.LENGTHS)} to {max(kernels.LENGTHS)}"
    skip = partial(Finding, NOT_RUN, "skipped in a quick self-test")
    return [
        Part("machine", "CPU, GPU and versions", partial(machine.describe, device)),
        Part("gradients", "the gradient of every operation against finite differences, NumPy", operations.gradients),
        Part("operations", f"{len(CASES)} cases in {dtypes}, value and gradients: {pair}",
             partial(operations.values, device)),
        Part("kernels", f"rows of {rows}, heads, branches, AdamW, LAMB in {dtypes}: {pair}",
             partial(kernels.values, device)),
        *(Part(f"training, {precision}", f"{training.STEPS} steps of a small CaiT, the same batches: {pair}",
               partial(training.losses_agree, device, precision))
          for precision in (training.PRECISIONS if on_gpu else ("fp32",))),
        Part("memory", "peak memory of all of the above", partial(speed.memory, device)),
        *(Part(f"speed, {name}", f"{speed.MODEL}, batch {speed.batch(device)}, {precision}",
               skip if quick else partial(speed.measured, device, work, precision))
          for name, work, precision in (("training", "train", "fp32"),
                                        *([("training, fp16", "train", "fp16")] if on_gpu else []),
                                        ("prediction", "predict", "fp32"))),
    ]  # fmt: skip

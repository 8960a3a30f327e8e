"""Does it work on this machine? Parts that can each fail without keeping the others from running.

machine     what it is: CPU, GPU, and the versions that matter
compare     the same computation in two places, in roundings apart
operations  every operation of the engine, and every gradient
kernels     those with code of our own for a GPU, for rows of many lengths
training    some steps of a small CaiT
memory      what all this took
speed       a step and a prediction, beside PyTorch
report      parts, their table, and the file for a bug report
"""

from __future__ import annotations

from functools import partial

from autograd.cases import CASES

from . import kernels, machine, memory, operations, speed, training
from .report import Part, not_run

__all__ = ["parts"]


def parts(device: str, quick: bool = False) -> list[Part]:
    """What there is to do. A GPU is held against NumPy; without one, NumPy in lower precision against its float64."""
    on_gpu = device != "cpu"
    pair = f"{device} against NumPy" if on_gpu else "NumPy against its float64"
    dtypes = "float32, float16" + (", float64" if on_gpu else "")
    rows = f"{min(kernels.LENGTHS)} to {max(kernels.LENGTHS)}"
    leave_out = partial(not_run, "skipped in a quick self-test")
    return [
        Part("machine", "what this is", partial(machine.describe, device)),
        Part("gradients", "every operation's gradient against differences of its value, NumPy", operations.gradients),
        Part("operations", f"{len(CASES)} cases in {dtypes}, value and gradients: {pair}",
             partial(operations.values, device)),
        Part("kernels", f"rows of {rows}, heads, branches, AdamW in {dtypes}: {pair}",
             partial(kernels.values, device)),
        *(Part(f"training, {precision}", f"{training.STEPS} steps of a small CaiT, the same batches: {pair}",
               partial(training.losses_agree, device, precision))
          for precision in (training.PRECISIONS if on_gpu else ("fp32",))),
        Part("memory", "the most that all of the above took", partial(memory.taken, device)),
        *(Part(f"speed, {name}", f"{speed.MODEL}, batch {speed.batch(device)}, {precision}",
               leave_out if quick else partial(speed.measured, device, work, precision))
          for name, work, precision in (("training", "train", "fp32"),
                                        *([("training, fp16", "train", "fp16")] if on_gpu else []),
                                        ("prediction", "predict", "fp32"))),
    ]  # fmt: skip

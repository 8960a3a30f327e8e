"""Self-test: does everything work on this machine? Each part can fail without stopping the others.

machine     the CPU, the GPU, and versions
compare     the same computation in two places, with differences counted in roundings
operations  every operation of the engine, and every gradient
kernels     kernels with CUDA code of our own, for rows of many lengths
block       a block of cait_xxs24_224 at full size
training    some steps of a small CaiT
images      batches of a loader for a GPU, beside a step that computes
repeats     the same steps again, and from a checkpoint, with equal bits
speed       memory of all this; a step and a prediction, beside PyTorch; the times of the host and the GPU
report      parts, their table, and the file for a bug report
"""

from __future__ import annotations

from functools import partial

from autograd.cases import CASES

from . import block, images, kernels, machine, operations, repeats, speed, training
from .report import NOT_RUN, Finding, Part


def parts(device: str, quick: bool = False) -> list[Part]:
    """All parts. A GPU is compared with NumPy; without one, NumPy in lower precision with float64."""
    on_gpu = device != "cpu"
    pair = f"{device} against NumPy" if on_gpu else "NumPy against its float64"
    dtypes = "float32, float16" + (", float64" if on_gpu else "")
    rows = f"{min(kernels.LENGTHS)} to {max(kernels.LENGTHS)}"
    precisions = training.PRECISIONS if on_gpu else ("fp32",)
    most = max(speed.sizes(device))
    batch = f"batch {most}" + (" or what fits" if on_gpu else "")
    skip = partial(Finding, NOT_RUN, "skipped in a quick self-test")
    return [
        Part("machine", "CPU, GPU and versions", partial(machine.describe, device)),
        Part("gradients", "the gradient of every operation against finite differences, NumPy", operations.gradients),
        Part("operations", f"{len(CASES)} cases in {dtypes}, value and gradients: {pair}",
             partial(operations.values, device)),
        Part("kernels", f"rows of {rows}, heads, branches, AdamW, LAMB in {dtypes}: {pair}",
             partial(kernels.values, device)),
        *([Part("block", f"a block of {block.MODEL} with {block.BATCH} images, forward and backward: {pair}",
                partial(block.block_agrees, device))] if on_gpu else []),
        *(Part(f"training, {precision}", f"{training.STEPS} steps of a small CaiT, the same batches: {pair}",
               partial(training.losses_agree, device, precision))
          for precision in precisions),
        Part("equal bits", f"{training.STEPS} steps of a small CaiT repeated, and interrupted and resumed",
             partial(repeats.bits_are_equal, device, precisions)),
        *([Part("images", f"{images.EPOCHS * images.BATCHES} batches by workers, copied beside steps of "
                f"{images.MODEL} as a CUDA graph: {pair}", partial(images.images_arrive, device))] if on_gpu else []),
        Part("memory", "peak memory of all of the above", partial(speed.memory, device)),
        *([Part("host and GPU",
                f"forward and backward of {speed.MODEL}, fp16, {batch}: kernel by kernel, and as a CUDA graph",
                skip if quick else partial(speed.host_and_gpu, device))] if on_gpu else []),
        *(Part(f"speed, {name}", f"{speed.MODEL}, {precision}, {batch}",
               skip if quick else partial(speed.measured, device, work, precision))
          for name, work, precision in (("training", "train", "fp32"),
                                        *([("training, fp16", "train", "fp16")] if on_gpu else []),
                                        ("prediction", "predict", "fp32"))),
    ]  # fmt: skip

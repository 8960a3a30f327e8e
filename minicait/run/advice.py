"""Errors with advice: how to resume a run, and which option to change when memory runs out.

Weights, gradients and moments occupy a GPU's memory throughout a run. The activations of a batch depend on how many
images are processed at a time, which can be changed without changing the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from autograd import cuda

from ..data.picture import BadImageError
from ..machine import cpu_count
from ..models import Model
from ..train.not_finite import NotFiniteError
from ..train.recipe import Recipe
from ..train.workers import WorkerError
from .console import resume_command
from .progress import previous

if TYPE_CHECKING:
    from .run import Run

FLOAT32, FLOAT16 = 4, 2  # bytes
POOL = 1.125  # times what is in use is held by CuPy's pool, which cannot use every freed block again
GB = 2**30
SMALLER = "a smaller --preset or --img-size"


@contextmanager
def error_advice(run: Run) -> Iterator[None]:
    """Add to an error how to resume the run, or which option to change."""
    resume = resume_command(run)
    try:
        with memory_advice(run.device, run.memory, SMALLER, resume_command(run, with_micro_batch=False)):
            yield
    except BadImageError as error:
        advice = f"repair or remove it, or skip such images: {resume} --skip-bad-images"
        raise BadImageError(f"{error}; {advice}") from error
    except OSError as error:
        saved = run.checkpoint.is_file() or previous(run.checkpoint).is_file()
        advice = f"; the last checkpoint is intact: {resume}" if saved else ""
        raise OSError(f"a file could not be written or read ({error}){advice}") from error
    except WorkerError as error:
        raise WorkerError(f"{error}; to resume: {resume}; --threads 1 needs no worker processes") from error
    except MemoryError as error:
        if run.device != "cpu":
            raise
        fewer = (run.threads or cpu_count()) // 2
        threads = f"--threads {fewer} (each holds a micro-batch and its gradients), or " if fewer else ""
        raise MemoryError(f"try {threads}a smaller --preset") from error
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}; the last good checkpoint is {run.checkpoint}") from error


class MemoryEstimate(NamedTuple):
    """GPU memory, as far as it is known in advance."""

    images: int  # processed at a time
    per_image: int  # bytes
    fixed: int  # bytes, for any number of images

    def fitting_micro_batch(self, available: int) -> int:
        """Return a power of two, at most half of `images`, since those did not fit; 0 if there is none."""
        most = min((available - self.fixed) // self.per_image, self.images // 2)
        return 1 << (most.bit_length() - 1) if most > 0 else 0


def training_memory(
    model: Model,
    recipe: Recipe,
    micro_batch: int | None = None,
    teacher: Model | None = None,
    token_labels: bool = False,
) -> MemoryEstimate:
    """Memory of a training step: never less than it needs, and for most models at most 15 % more."""
    # weights, the optimiser's two moments, gradients, and room for temporary arrays, such as LAMB's, which is as large;
    # and what else the recipe keeps for each
    copies = 5 + (recipe.ema_decay is not None) + (recipe.accumulate > 1)
    cost, images = model.cost(), min(micro_batch or recipe.batch_size, recipe.batch_size)
    values = copies * cost.parameters + recipe.batch_size * 3 * math.prod(model.img_size)
    values += model.config.kept  # a memory of training images, and how a batch is related to it, in bytes
    values += recipe.batch_size * getattr(model.config, "memory", 0) // FLOAT32
    values += 0 if teacher is None else teacher.cost().parameters
    values += recipe.batch_size * model.config.patches * model.num_classes if token_labels else 0
    narrow = cost.parameters if recipe.precision == "fp16" else 0
    # and temporary arrays in the backward pass of a block: about as much as the block saves
    per_image = POOL * (cost.gpu_activation_bytes(recipe.precision) + cost.forward_bytes)
    return MemoryEstimate(images, math.ceil(per_image), FLOAT32 * values + FLOAT16 * narrow)


def evaluation_memory(model: Model, batch_size: int, micro_batch: int | None = None) -> MemoryEstimate:
    cost, images = model.cost(), min(micro_batch or batch_size, batch_size)
    per_image = cost.forward_bytes + FLOAT32 * 3 * math.prod(model.img_size)
    return MemoryEstimate(images, per_image, FLOAT32 * cost.parameters)


@contextmanager
def memory_advice(device: str, estimate: MemoryEstimate, smaller: str, resume: str | None = None) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into a MemoryError with advice.

    smaller  what to try if not even one image fits
    resume   command that resumes, to which a new --micro-batch is added
    """
    try:
        yield
    except Exception as error:
        if device == "cpu" or not cuda.is_out_of_memory(error):
            raise
        cuda.free_memory(error, device)
        memory = cuda.memory(device)
        fits = estimate.fitting_micro_batch(memory.total - memory.others)
        advice = f"try --micro-batch {fits}, which splits the batch" if fits else f"try {smaller}"
        if fits and resume is not None:
            advice += f"; to resume: {resume} --micro-batch {fits}"
        there = f"{memory.total / GB:.1f} GB, {memory.others / GB:.1f} GB of it used by other processes"
        raise MemoryError(f"out of memory on cuda:{cuda.device_id(device)} ({there}); {advice}") from error

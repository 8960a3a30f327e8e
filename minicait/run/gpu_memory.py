"""When the memory of a GPU runs out: which option helps, and which value of it fits.

Weights, gradients and averages are there for the whole of a run. What the images of a batch take beside them depends
on how many are worked on at a time, and that can be changed without changing what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from autograd import cuda

from ..models import Model
from ..train.recipe import Recipe

VALUE = 4  # bytes of a float32
GB = 2**30


class Needs(NamedTuple):
    """What some work asks of the memory of a GPU, as far as it is known before."""

    piece: int  # images at a time, as it was tried
    image: int  # bytes for each of them
    rest: int  # bytes whatever their number

    def piece_that_fits(self, room: int) -> int:
        """A power of two, at most half of what was tried, as that did not fit; 0 if there is none."""
        most = min((room - self.rest) // self.image, self.piece // 2)
        return 1 << (most.bit_length() - 1) if most > 0 else 0


def to_train(model: Model, recipe: Recipe, micro_batch: int | None = None, teacher: Model | None = None) -> Needs:
    # weights, AdamW's two moments, gradients, and room for temporary arrays; and what else the recipe keeps for each
    copies = 5 + (recipe.ema_decay is not None) + (recipe.accumulate > 1)
    own = model.cost()
    rest = copies * own.parameters + recipe.batch_size * _values_of_image(model)
    rest += 0 if teacher is None else teacher.cost().parameters
    return Needs(min(micro_batch or recipe.batch_size, recipe.batch_size), own.activation_bytes, VALUE * rest)


def to_evaluate(model: Model, batch_size: int, micro_batch: int | None = None) -> Needs:
    own = model.cost()
    image = own.forward_bytes + VALUE * _values_of_image(model)
    return Needs(min(micro_batch or batch_size, batch_size), image, VALUE * own.parameters)


def _values_of_image(model: Model) -> int:
    height, width = model.img_size
    return int(3 * height * width)


@contextmanager
def advising(device: str, needs: Needs, smaller: str, command: str | None = None) -> Iterator[None]:
    """Where the memory of this GPU runs out inside, a MemoryError that says what to do; elsewhere nothing.

    smaller   what to try if not even one image at a time fits
    command   that goes on from where it ended, to be given a new --micro-batch
    """
    try:
        yield
    except Exception as error:
        if device == "cpu" or not cuda.is_out_of_memory(error):
            raise
        cuda.free_memory(error)
        memory = cuda.memory(device)
        fits = needs.piece_that_fits(memory.total - memory.others)
        advice = f"try --micro-batch {fits}: same batch, in pieces" if fits else f"try {smaller}"
        if fits and command is not None:
            advice += f"; to go on: {command} --micro-batch {fits}"
        there = f"{memory.total / GB:.1f} GB, {memory.others / GB:.1f} GB of it used by others"
        name = f"cuda:{cuda.device_id(device)}"
        raise MemoryError(f"out of memory on {name} ({there}); {advice}") from error

"""When numbers are not finite: name the first offender, and leave the trainer as it was before the update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import autograd as ag
from autograd.backend import array_module
from autograd.tensor import as_tensor

from .buffers import copies, restore
from .gradients import Gradients
from .recipe import PRODUCTS

if TYPE_CHECKING:
    from .trainer import Trainer


OVERFLOWS = "the sum of the gradients overflows; try a lower learning rate"


class NotFiniteError(ArithmeticError):
    """The loss or a gradient is NaN or infinite; the message names the first offender."""


def stopped(trainer: Trainer, images: Any, targets: dict[str, Any]) -> NotFiniteError:
    """The error for a batch that no loss scale can help; the trainer goes back to before its update."""
    buffers = copies(trainer.buffers)
    found = trainer.ranks.gather(_offender(trainer, images, targets), patient=True)  # each has looked at its images
    reason = next((reason for reason in found if reason != OVERFLOWS), OVERFLOWS)
    error = NotFiniteError(f"training stopped at batch {trainer.batches + 1}: {reason}")
    restore(buffers)  # the search ran forward once more
    begun = trainer.batches % trainer.recipe.accumulate
    trainer.batches, trainer.accumulated = trainer.batches - begun, None
    del trainer.losses[max(0, len(trainer.losses) - begun) :]
    return error


def _offender(trainer: Trainer, images: Any, targets: dict[str, Any]) -> str:
    """Name the first value that is not finite: weights, images, then operations."""
    if (name := first_not_finite(trainer)) is not None:
        return f"the weights of {name} are not finite"
    values = as_tensor(images).data
    if not bool(array_module(values).isfinite(values).all()):
        return "an image is not finite"
    alone = Gradients(trainer.model, 1, trainer.micro_batch, processes=False)
    try:
        precision = ag.autocast(PRODUCTS[trainer.recipe.precision])
        with trainer.randomness(), precision, ag.detect_anomaly(), np.errstate(all="ignore"):
            alone(trainer.objective, images, targets)
    except ag.AnomalyError as error:
        return str(error).split(".")[0] + "; try a lower learning rate"
    return OVERFLOWS


def first_not_finite(trainer: Trainer) -> str | None:
    """Name of the first parameter or buffer that is not all finite."""
    trainer.optimiser.parameters.attach()
    arrays = [trainer.optimiser.parameters.array, *(buffer.data for buffer in trainer.buffers)]
    if all(bool(array_module(x).isfinite(x).all()) for x in arrays):
        return None
    tensors = trainer.model.named_tensors()
    return next(name for name, t in tensors if not bool(array_module(t.data).isfinite(t.data).all()))

"""Whether a step may be taken, and how far: decided where the gradients are, by NumPy or by one thread of a GPU.

This is dynamic loss scaling (what PyTorch calls a GradScaler), with clipping and AdamW's bias correction. A memory of
float64 values is all that is known from step to step. After its named places it has room for the losses of batches, so
that one copy tells everything.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .. import cuda
from ..backend import Array, device_of, to_device
from . import launch as rows
from .optim import PACE_PLACES, pace_of


class Known(NamedTuple):
    """The places of a memory by name."""

    scale: float = 1.0  # what the loss is multiplied by, or small gradients would vanish in float16
    good: float = 0.0  # steps since the scale was changed
    bad: float = 0.0  # 1 if a batch of the step that is being made was not finite
    steps: float = 0.0  # that were taken
    skipped: float = 0.0  # that were left out
    failed: float = 0.0  # the number of the first batch that no smaller scale can help: nothing moves any more; or 0


SCALE, GOOD, BAD, STEPS, SKIPPED, FAILED, LOSSES = range(len(Known._fields) + 1)
_PLACES = f"enum {{ {', '.join(Known._fields).upper()}, LOSSES }};"


class Rules(NamedTuple):
    """How it is judged."""

    clip: float = math.inf  # gradients are shortened to this length
    max_scale: float = 1.0  # the scale doubles up to this,
    interval: int = 2000  # each time that so many steps in a row were good
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    ema_decay: float = 1.0


_JUDGE = (
    _PLACES
    + PACE_PLACES
    + """
    double square = 0;
    for (int k = 0; k < squares.size(); k++) square += squares[k];
    memory[LOSSES + slot] = loss;
    const bool bad = memory[BAD] != 0 || !isfinite(square) || !isfinite((float)loss);
    const double scale = memory[SCALE];
    memory[BAD] = bad && !last;
    pace[BY] = pace[PART] = 0;
    if (memory[FAILED] != 0) {
        // until the host has looked, nothing moves
    } else if (bad && scale <= 1) {
        memory[FAILED] = batch;  // no smaller scale can help
    } else if (last && bad) {
        memory[SCALE] = scale / 2;  // and the step is left out: BY and PART stay 0
        memory[GOOD] = 0;
        memory[SKIPPED] += 1;
    } else if (last) {
        const double norm = sqrt(square) / scale, t = memory[STEPS] += 1;
        pace[BY] = (norm > clip ? clip / (norm + 1e-6) : 1) / scale;
        pace[OF_MEAN] = 1 / (1 - pow(b1, t));
        pace[OF_ROOT] = 1 / sqrt(1 - pow(b2, t));
        pace[PART] = 1 - min(ema_decay, (1 + t) / (10 + t));
        memory[GOOD] += 1;
        if (memory[GOOD] >= interval) {
            memory[SCALE] = min(2 * scale, max_scale);
            memory[GOOD] = 0;
        }
    }
"""
)
_ARGUMENTS = (
    "T loss, raw float64 squares, int64 batch, int64 slot, bool last, "
    "float64 clip, float64 max_scale, int64 interval, float64 b1, float64 b2, float64 ema_decay"
)


def judge(
    memory: Array, pace: Array, loss: Array, squares: Array, batch: int, slot: int, last: bool, rules: Rules
) -> None:
    """Note the loss of a batch, see whether it and its gradients are finite, and if it is the last of a step, set the
    pace of that step.

    squares  whose sum is the square of the length of the batch's gradients, or of the sum of the step's if it is last
    batch    its number, from 1
    slot     where its loss is left, from 0

    Not finite: the step is left out and the scale halved; at a scale of 1, which is the only one without float16, there
    is nothing to be done, so that the batch has failed.
    """
    if rows.on_gpu(memory):
        kernel = cuda.elementwise(_ARGUMENTS, "raw float64 memory, raw P pace", _JUDGE, "judge")
        kernel(loss, squares, batch, slot, last, *rules[:3], *rules.betas, rules.ema_decay, memory, pace)
        return
    here = to_device(memory, "cpu")
    chosen = np.asarray(_judge(here, float(loss), float(squares.sum()), batch, slot, last, rules), pace.dtype)
    pace[...] = to_device(chosen, device_of(pace))
    if here is not memory:
        memory[...] = to_device(here, device_of(memory))


def _judge(
    memory: np.ndarray, loss: float, square: float, batch: int, slot: int, last: bool, rules: Rules
) -> list[float]:
    memory[LOSSES + slot] = loss
    bad = bool(memory[BAD]) or not (math.isfinite(square) and math.isfinite(loss))
    scale = float(memory[SCALE])
    memory[BAD] = bad and not last
    stay = [0.0] * 4
    if memory[FAILED]:
        return stay
    if bad and scale <= 1:
        memory[FAILED] = batch
    elif last and bad:
        memory[SCALE], memory[GOOD] = scale / 2, 0
        memory[SKIPPED] += 1
    elif last:
        norm = math.sqrt(square) / scale
        memory[STEPS] += 1
        memory[GOOD] += 1
        if memory[GOOD] >= rules.interval:
            memory[SCALE], memory[GOOD] = min(2 * scale, rules.max_scale), 0
        by = rules.clip / (norm + 1e-6) if norm > rules.clip else 1.0
        return pace_of(float(memory[STEPS]), rules.betas, rules.ema_decay, by / scale)
    return stay

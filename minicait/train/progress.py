"""Where training is, what an epoch came to, and what ends it before its time."""

from __future__ import annotations

from dataclasses import dataclass, field

from .evaluate import Scores


class NotFiniteError(ArithmeticError):
    """The loss or a gradient is NaN or infinite; the message names the first parameter that it reached."""


@dataclass
class Epoch:
    """What `fit` reports after each epoch."""

    number: int  # from 1
    steps: int
    lr: float
    loss: float  # the mean over the epoch
    scores: Scores  # of the weights as they are
    ema_scores: Scores | None  # of their average
    seconds: float = field(compare=False)  # of training, since `fit` began with it
    skipped: int = 0  # steps so far that were left out, since float16 could not hold their gradients
    loss_scale: float = 1.0


@dataclass
class Position:
    """Where a run is: the epoch, the batch in it, and the losses of its batches so far."""

    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)

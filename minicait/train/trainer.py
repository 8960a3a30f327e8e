"""Trainer: one step is forward, backward, clip, AdamW, EMA; `fit` runs the epochs of a recipe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autograd as ag
from autograd import ops, random
from autograd.backend import Array, array_module, is_array, to_device
from autograd.random import Stream

from ..data.loader import Loader
from ..data.mixing import mix, soft_targets
from ..flat import flatten
from ..models.cait import CaiT
from ..optim import EMA, AdamW, clip_gradients, global_norm, learning_rate
from ..threads import cpu_count
from .evaluate import Scores, evaluate
from .losses import SoftDistillation, hard_distillation
from .recipe import Recipe
from .value_and_grad import value_and_grad, workers_for
from .workers import Workers, processes_work

Teacher = Callable[[Any], Any]  # images to logits


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


@dataclass
class Position:
    """Where a run is: the epoch, the batch in it, and the losses of its batches so far."""

    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)


class Trainer:
    """Without a recipe: AdamW at a constant rate of 5e-4 with weight decay 0.05, and nothing else.

    teacher    any callable from images to logits, for a recipe with distillation
    processes  whether `threads` are processes instead, which need not wait for each other; by default, on Linux
    """

    def __init__(
        self,
        model: CaiT,
        recipe: Recipe | None = None,
        device: str | None = None,
        threads: int | None = None,
        micro_batch: int | None = None,
        teacher: Teacher | None = None,
        processes: bool | None = None,
    ) -> None:
        self.model = model if device is None else model.to(device)
        self.recipe = recipe or Recipe()
        if (self.recipe.distillation is None) != (teacher is None):
            raise ValueError("Trainer: distillation needs both a recipe that asks for it and a teacher")
        self.teacher, self.threads, self.micro_batch = teacher, threads, micro_batch
        self.optimiser = AdamW(model, self.recipe.peak_lr, self.recipe.weight_decay)
        self.ema = None if self.recipe.ema_decay is None else EMA(model, self.recipe.ema_decay)
        self.processes = processes_work() if processes is None else processes
        self.workers: Workers | None = None
        self.batches = 0  # seen so far; random masks and mixing are drawn by this number
        self.steps_in_all: int | None = None  # which the schedule needs; `fit` knows it
        self.position = Position()
        self.waiting: dict[str, Array] = {}  # gradients of the batches that make up the next step

    def step(self, images: Any, targets: Any) -> float:
        """One batch: class indices (B,) or soft targets (B, K). Returns its loss."""
        r = self.recipe
        self.model.train()
        targets = targets.numpy() if isinstance(targets, ag.Tensor) else targets
        targets = to_device(targets, "cpu") if is_array(targets) else np.asarray(targets)
        if targets.dtype.kind in "iu" and (r.label_smoothing or self.teacher is not None):
            targets = soft_targets(targets, self.model.config["num_classes"], r.label_smoothing)
        loss_fn: Any = ops.cross_entropy
        if self.teacher is not None:
            with ag.no_grad():
                teacher = ag.tensor.as_tensor(self.teacher(images)).numpy()
            if r.distillation == "hard":
                targets = hard_distillation(targets, teacher, r.distillation_weight)
            else:
                targets = np.concatenate([targets, teacher.astype(targets.dtype)], axis=1)
                loss_fn = SoftDistillation(r.distillation_weight, r.temperature)
        with random.using(Stream(r.seed, "train", step=self.batches)):
            arguments = self.model, loss_fn, images, targets, self.threads, self.micro_batch, self._workers()
            loss, gradients = value_and_grad(*arguments)
            norm = global_norm(gradients)
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise NotFiniteError(f"training stopped at batch {self.batches + 1}: {self._offender(*arguments)}")
        self.batches += 1
        self._accumulate(gradients)
        return loss

    def _workers(self) -> Workers | None:
        """Processes for the pieces of a batch, started when they are first needed, and anew for other weights."""
        count = self.threads or cpu_count()
        if self.workers is not None and not self.workers.know(self.optimiser.parameters):
            self.end_workers()
        if self.workers is None and self.processes and count > 1 and self.device == "cpu":
            self.workers = workers_for(self.model, count)
        return self.workers

    def end_workers(self) -> None:
        """The weights leave the memory that was shared with them. The next step starts others."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None
            flatten(self.model, lambda size: np.empty(size, self.model.pos_embed.dtype))

    def _offender(self, model: CaiT, loss_fn: Any, images: Any, targets: Any, *_: Any) -> str:
        """What is not finite first, on the way from the weights and images to the gradients."""
        if (name := self.not_finite()) is not None:
            return f"the weights of {name} are not finite"
        values = images.numpy() if isinstance(images, ag.Tensor) else images
        if not bool(array_module(values).isfinite(values).all()):
            return "an image is not finite"
        try:
            with ag.detect_anomaly(), np.errstate(all="ignore"):
                value_and_grad(model, loss_fn, images, targets, 1, self.micro_batch)
        except ag.AnomalyError as error:
            return str(error).split(".")[0] + "; try a lower learning rate"
        return "the sum of the gradients is too large for a number; try a lower learning rate"

    def not_finite(self) -> str | None:
        """The first parameter whose weights are not all finite."""
        for name, p in self.model.named_parameters():
            if not bool(array_module(p.data).isfinite(p.data).all()):
                return name
        return None

    def _accumulate(self, gradients: dict[str, Array]) -> None:
        """Add a batch's gradients, and move when there are enough."""
        r = self.recipe
        if r.accumulate > 1:
            for g in gradients.values():
                g *= 1 / r.accumulate
        if not self.waiting:
            self.waiting = gradients
        else:
            for name, g in gradients.items():
                self.waiting[name] += g
        if self.batches % r.accumulate == 0:
            if r.clip_norm is not None:
                clip_gradients(self.waiting, r.clip_norm)
            self.optimiser.lr = self.lr
            threads = self.threads or cpu_count()
            self.optimiser.step(self.waiting, threads)
            self.waiting = {}
            if self.ema is not None:
                self.ema.update(threads)

    @property
    def device(self) -> str:
        return self.model.pos_embed.device

    @property
    def lr(self) -> float:
        """Of the next step."""
        r = self.recipe
        if r.constant_lr or self.steps_in_all is None:
            return r.peak_lr
        warmup = round(r.warmup_epochs * self.steps_in_all / r.epochs)
        warmup = min(warmup, self.steps_in_all // 5)  # a run of few epochs must not spend them all on warming up
        return learning_rate(self.optimiser.steps, self.steps_in_all, warmup, r.peak_lr, r.warmup_lr, r.min_lr)

    def fit(
        self,
        train_loader: Loader,
        val_loader: Loader,
        after_batch: Callable[[float], None] | None = None,
        after_epoch: Callable[[Epoch], None] | None = None,
    ) -> list[Epoch]:
        """Train for the epochs of the recipe, from where the trainer is. Returns their scores.

        `after_batch` is called with the loss of every batch, `after_epoch` with the scores of every epoch. Either may
        raise to stop: the trainer's state is whole then, and `fit` goes on from it.
        """
        epochs = []
        if not hasattr(train_loader, "epoch"):
            raise TypeError("fit: train_loader must be a minicait.data.Loader, which can find any batch again")
        self.steps_in_all = max(1, self.recipe.epochs * len(train_loader) // self.recipe.accumulate)
        self._workers()  # which are best forked before the threads of the loader begin
        try:
            while self.position.epoch < self.recipe.epochs:
                epochs.append(self._epoch(train_loader, val_loader, after_batch))
                if after_epoch is not None:
                    after_epoch(epochs[-1])
        finally:
            self.end_workers()
        return epochs

    def _epoch(self, train_loader: Loader, val_loader: Loader, after_batch: Callable[[float], None] | None) -> Epoch:
        """What is left of an epoch, and its evaluation."""
        at, r = self.position, self.recipe
        started = time.perf_counter()
        with closing(train_loader.epoch(at.epoch, at.batch)) as batches:
            for images, labels in batches:
                targets: np.ndarray = labels
                if r.mixup or r.cutmix:
                    targets = soft_targets(labels, self.model.config["num_classes"], r.label_smoothing)
                    images, targets = mix(images, targets, r.mixup, r.cutmix, Stream(r.seed, "mix", self.batches))
                at.losses.append(self.step(images, targets))
                at.batch += 1
                if after_batch is not None:
                    after_batch(at.losses[-1])
        if (name := self.not_finite()) is not None:
            raise NotFiniteError(f"training stopped after batch {self.batches}: the weights of {name} are not finite")
        seconds = time.perf_counter() - started
        scores = evaluate(self.model, val_loader, self.threads, self.micro_batch)
        ema_scores = None
        if self.ema is not None:
            with self.ema.applied():
                ema_scores = evaluate(self.model, val_loader, self.threads, self.micro_batch)
        self.position = Position(at.epoch + 1)
        loss = float(np.mean(at.losses))
        return Epoch(at.epoch + 1, self.optimiser.steps, self.optimiser.lr, loss, scores, ema_scores, seconds)

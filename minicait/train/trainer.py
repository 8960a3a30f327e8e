"""Trainer: one step is forward, backward, clip, AdamW, EMA; `fit` runs the epochs of a recipe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

import autograd as ag
from autograd import random
from autograd.backend import Array, array_module
from autograd.random import Stream

from ..data.loader import Batch, Loader
from ..data.mixing import mix, soft_targets
from ..machine import cpu_count
from ..models.cait import CaiT
from ..optim import EMA, AdamW, learning_rate
from ..optim.loss_scaler import ROOM, Gate
from ..optim.parameters import Flat, flatten
from .evaluate import Scores, evaluate
from .gradients import loss_and_gradients, value_and_grad, workers_for
from .objectives import objective
from .progress import Epoch, NotFiniteError, Position
from .recipe import PRODUCTS, Recipe
from .workers import Workers, processes_work

Teacher = Callable[[Any], Any]  # images to logits
Find = Callable[[int], tuple[Any, Any]]  # images and targets of a batch that was queued, by its number
AfterBatch = Callable[[float | None], None]
READ_EVERY = 0.5  # seconds after which `fit` waits for a GPU, to tell how it goes


class Trainer:
    """Without a recipe: AdamW at a constant rate of 5e-4 with weight decay 0.05, and nothing else.

    teacher    any callable from images to logits, for a recipe with distillation; it works in the student's precision
    processes  whether `threads` are processes instead, which need not wait for each other; by default, on Linux
    precision  "fp32", "tf32" or "fp16", instead of the recipe's: in which matrices are multiplied. Weights and all that
               is kept for them are float32. With fp16 the loss is scaled, and a step that overflows is left out.
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
        precision: str | None = None,
    ) -> None:
        self.model = model if device is None else model.to(device)
        self.recipe = r = (recipe or Recipe()).changed(precision=precision)
        if (r.distillation is None) != (teacher is None):
            raise ValueError("Trainer: distillation needs both a recipe that asks for it and a teacher")
        self.teacher, self.threads, self.micro_batch = teacher, threads, micro_batch
        self.optimiser = AdamW(model, r.peak_lr, r.weight_decay)
        self.ema = None if r.ema_decay is None else EMA(model, r.ema_decay)
        self.gate = Gate(self.optimiser, self.ema, r.clip_norm, scaled=r.precision == "fp16")
        self.processes = processes_work() if processes is None else processes
        self.workers: Workers | None = None
        self.batches = 0  # seen so far; random masks and mixing are drawn by this number
        self.steps_in_all: int | None = None  # which the schedule needs; `fit` knows it
        self.position = Position()
        self.waiting: dict[str, Array] = {}  # gradients of the batches that make up the next step
        self._find: Find | None = None

    def step(self, images: Any, targets: Any) -> float:
        """One batch: class indices (B,) or soft targets (B, K). Returns its loss, for which it waits if on a GPU."""
        self.queue(images, targets)
        with self._finding(lambda number: (images, targets)):
            self.settle()
        return self.position.losses.pop()

    def queue(self, images: Any, targets: Any) -> None:
        """A step that nobody waits for: a GPU may still have to do it. What became of it is known by `settle`."""
        if self.gate.unread == ROOM:
            self.settle()
        self.model.train()
        with self._as_in(self.batches):
            batch = self._arguments(images, targets)
            loss, gradients = loss_and_gradients(
                *batch, self.threads, self.micro_batch, self._workers(), self.gate.scale, is_mean=True
            )
        rate = self.lr
        self.batches += 1
        last = self.batches % self.recipe.accumulate == 0
        self._accumulate(gradients)
        self.gate.judge(loss, self.waiting if last else gradients, self.batches, last)
        if last:
            self.optimiser.lr = rate
            self.optimiser.step(self.waiting, self.threads or cpu_count(), self.gate.pace, self.ema)
            self.waiting = {}

    def settle(self) -> None:
        """Wait until all that was queued is done, and count it.

        If a batch is not finite, in such a way that its step cannot be left out, the trainer is as it was before that
        step, and NotFiniteError says why.
        """
        if not self.gate.unread:
            return
        at = self.position
        at.losses += self.gate.read()
        if number := int(self.gate.known.failed):
            offender = self._offender(number)
            before = (number - 1) // self.recipe.accumulate * self.recipe.accumulate
            at.batch = max(0, at.batch - (self.batches - before))
            del at.losses[at.batch :]
            self.batches, self.waiting = before, {}
            self.gate.restore(self.gate.known._replace(bad=0.0, failed=0.0))
            raise NotFiniteError(f"training stopped at batch {number}: {offender}")

    def _arguments(self, images: Any, targets: Any) -> tuple[CaiT, Any, Any, Any]:
        """Of value_and_grad."""
        taught = None
        if self.teacher is not None:
            with ag.no_grad():
                taught = ag.tensor.as_tensor(self.teacher(images)).data
        loss_fn, targets = objective(self.recipe, self.model.config["num_classes"], targets, taught, self.device)
        return self.model, loss_fn, images, targets

    def _evaluate(self, loader: Loader) -> Scores:
        with ag.autocast(PRODUCTS[self.recipe.precision]):
            return evaluate(self.model, loader, self.threads, self.micro_batch)

    @contextmanager
    def _as_in(self, batch: int) -> Iterator[None]:
        """With the random masks of a batch, by its number from 0, and products in the precision of the recipe."""
        products = PRODUCTS[self.recipe.precision]
        with random.using(Stream(self.recipe.seed, "train", step=batch)), ag.autocast(products):
            yield

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

    def _offender(self, number: int) -> str:
        """What is not finite first, on the way from the weights and images of a batch to its gradients."""
        if (name := self.not_finite()) is not None:
            return f"the weights of {name} are not finite"
        if self._find is None:
            return "its loss or its gradients are not finite"
        images, targets = self._find(number)
        values = images.data if isinstance(images, ag.Tensor) else images
        if not bool(array_module(values).isfinite(values).all()):
            return "an image is not finite"
        try:
            with self._as_in(number - 1), ag.detect_anomaly(), np.errstate(all="ignore"):
                value_and_grad(*self._arguments(images, targets), 1, self.micro_batch)
        except ag.AnomalyError as error:
            return str(error).split(".")[0] + "; try a lower learning rate"
        return "the sum of the gradients is too large for a number; try a lower learning rate"

    def not_finite(self) -> str | None:
        """The first parameter whose weights are not all finite."""
        weights = flatten(self.model, parameters=self.optimiser.parameters)
        if weights is not None and bool(array_module(weights.whole).isfinite(weights.whole).all()):
            return None
        for name, p in self.model.named_parameters():
            if not bool(array_module(p.data).isfinite(p.data).all()):
                return name
        return None

    def _accumulate(self, gradients: Flat) -> None:
        """Add a batch's gradients to those that wait for its step."""
        if self.recipe.accumulate > 1:
            gradients.whole *= 1 / self.recipe.accumulate
        if not self.waiting:
            self.waiting = gradients
        elif isinstance(self.waiting, Flat) and (wholes := self.waiting.wholes(gradients)) is not None:
            wholes[0] += wholes[1]
        else:
            for name, g in gradients.items():
                self.waiting[name] += g

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
        done = self.batches // r.accumulate  # or left out: the schedule follows the data
        return learning_rate(done, self.steps_in_all, warmup, r.peak_lr, r.warmup_lr, r.min_lr)

    def fit(
        self,
        train_loader: Loader,
        val_loader: Loader,
        after_batch: AfterBatch | None = None,
        after_epoch: Callable[[Epoch], None] | None = None,
    ) -> list[Epoch]:
        """Train for the epochs of the recipe, from where the trainer is. Returns their scores.

        `after_batch` is called with the loss of every batch, or with None if it is not known yet: a GPU is asked twice
        a second, and whenever somebody calls `settle`. `after_epoch` is called with the scores of every epoch. Either
        may raise to stop: the trainer's state is whole then, and `fit` goes on from it.
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

    def _epoch(self, train_loader: Loader, val_loader: Loader, after_batch: AfterBatch | None) -> Epoch:
        """What is left of an epoch, and its evaluation."""
        at = self.position
        started = told = time.perf_counter()

        def find(number: int) -> tuple[np.ndarray, np.ndarray]:
            with closing(train_loader.epoch(at.epoch, at.batch - 1 - (self.batches - number))) as batches:
                return self._mixed(next(batches), number - 1)

        with self._finding(find), closing(train_loader.epoch(at.epoch, at.batch)) as batches:
            for batch in batches:
                self.queue(*self._mixed(batch, self.batches))
                at.batch += 1
                if self.device == "cpu" or time.perf_counter() - told > READ_EVERY:
                    self.settle()
                    told = time.perf_counter()
                if after_batch is not None:
                    after_batch(None if self.gate.unread else at.losses[-1])
            self.settle()
        if (name := self.not_finite()) is not None:
            raise NotFiniteError(f"training stopped after batch {self.batches}: the weights of {name} are not finite")
        seconds = time.perf_counter() - started
        scores, ema_scores = self._evaluate(val_loader), None
        if self.ema is not None:
            with self.ema.applied():
                ema_scores = self._evaluate(val_loader)
        self.position = Position(at.epoch + 1)
        known, finite = self.gate.known, [loss for loss in at.losses if math.isfinite(loss)]
        loss = float(np.mean(finite)) if finite else math.nan
        counts = int(known.skipped), known.scale
        return Epoch(at.epoch + 1, self.optimiser.steps, self.optimiser.lr, loss, scores, ema_scores, seconds, *counts)

    @contextmanager
    def _finding(self, find: Find) -> Iterator[None]:
        """Batches that fail inside this block can be found again, to see what was wrong with them."""
        self._find = find
        try:
            yield
        finally:
            self._find = None

    def _mixed(self, batch: Batch, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Images and targets of a batch, by its number from 0, as the recipe mixes them."""
        r, (images, labels) = self.recipe, batch
        if not (r.mixup or r.cutmix):
            return images, labels
        targets = soft_targets(labels, self.model.config["num_classes"], r.label_smoothing)
        return mix(images, targets, r.mixup, r.cutmix, Stream(r.seed, "mix", number))

"""Trainer: `step` turns a batch into new weights; `fit` runs the epochs of a recipe."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import autograd as ag
from autograd import random
from autograd.backend import to_device
from autograd.random import Stream

from ..data.device_loader import AnyLoader
from ..data.loader import Loader
from ..data.mixing import Reverse, reversed_rows
from ..machine import cpu_count
from ..models.model import Model
from ..nn import Memory, Module
from ..optim import EMA, AdamW, FlatArrays, Lamb, LossScaler, Optimiser, clip_gradients, learning_rate, norm_and_loss
from ..optim.sweep import together
from .buffers import copies, restore
from .evaluate import Guesses, Scores, evaluate
from .gradients import Gradients
from .not_finite import NotFiniteError, first_not_finite, stopped
from .objectives import Objective, objective_for
from .ranks import ALONE, Ranks
from .recipe import PRODUCTS, Recipe
from .sharding import sharded
from .targets import BatchTargets, Teacher, check_recipe


@dataclass
class Epoch:
    """Report of `fit` on an epoch."""

    number: int  # from 1
    steps: int
    lr: float
    loss: float  # the mean over the epoch
    scores: Scores | None  # of the weights as they are, if they were evaluated
    ema_scores: Scores | None  # of their average
    guesses: Guesses | None = field(compare=False)  # of their average, or of the weights if there is none
    seconds: float = field(compare=False)  # of training
    skipped: int = 0  # steps so far whose gradients overflowed float16
    loss_scale: float = 1.0


class Trainer:
    """Train a model by a recipe; without one, by AdamW at a constant learning rate of 5e-4 with weight decay 0.05.

    model      any Module that maps images to logits
    teacher    any callable from images to logits, for a recipe with distillation; for a model on a GPU, `fit` hands it
               images on that GPU
    processes  compute on processes instead of threads; by default on Linux
    objective  instead of the recipe's: a callable from `Outputs` and a dict of targets to a mean over samples
    precision  "fp32", "tf32" or "fp16", the precision of matrix products, instead of the recipe's. Weights stay
               float32. With fp16 the loss is scaled, and a step whose gradients overflow is skipped.
    graph      on a GPU, launch forward and backward of a batch as one CUDA graph; by default with the recipe's
               objective only. A graph keeps what Python computed when it was made, and is made anew when a number,
               string or tuple changes that is an attribute of the objective, or a public one of a module. Any other
               value that changes from step to step needs graph=False.
    ranks      that train together, by default this process alone
    """

    def __init__(
        self,
        model: Module,
        recipe: Recipe | None = None,
        device: str | None = None,
        threads: int | None = None,
        micro_batch: int | None = None,
        teacher: Teacher | None = None,
        precision: str | None = None,
        processes: bool | None = None,
        objective: Objective | None = None,
        graph: bool | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model if device is None else model.to(device)
        self.recipe = r = (recipe or Recipe()).changed(precision=precision)
        self.teacher, self.threads, self.micro_batch = teacher, threads, micro_batch
        check_recipe(r, model, teacher is not None, objective is not None)
        if ranks.size > 1 and r.loss == "neighbours":
            raise ValueError("Trainer: loss=neighbours fills a memory of all images, and trains on a single rank only")
        self.objective = objective or objective_for(r)
        self.scaler = LossScaler(enabled=r.precision == "fp16")
        count = threads or cpu_count()
        self.optimiser: Optimiser
        if r.optimiser == "lamb":  # which clips by itself
            self.optimiser = Lamb(model, r.peak_lr, r.weight_decay, threads=count, max_norm=r.clip_norm)
            self.clip_norm = None
        else:
            self.optimiser, self.clip_norm = AdamW(model, r.peak_lr, r.weight_decay, threads=count), r.clip_norm
        self.ema = None if r.ema_decay is None else EMA(model, r.ema_decay, count, not r.has_target_network)
        updated = [self.optimiser.mean, self.optimiser.square, *([] if self.ema is None else [self.ema.average])]
        self.ranks = ranks
        graph = objective is None if graph is None else graph
        self.gradients = Gradients(model, threads, micro_batch, processes, updated, graph, ranks)
        self.targets = BatchTargets(model, r, teacher, self.ema, threads, micro_batch)
        self.buffers = [buffer for _, buffer in model.named_buffers() if not isinstance(buffer, Memory)]
        self.accumulated: FlatArrays | None = None  # gradients of the batches that make up the next update
        self.batches = 0  # trained on so far; random masks and mixing are drawn by this number
        self.epoch = 0  # epochs completed, evaluation included
        self.losses: list[float] = []  # of the batches of this epoch
        self.total_steps: int | None = None  # the schedule needs it; `fit` knows it
        self.total: int | None = None  # images of a batch, of which the loader brings those of this rank
        self.reverse: Reverse = reversed_rows

    def step(self, images: Any, targets: Any, total: int | None = None) -> float:
        """Train on one batch and return its loss. Targets are class indices (B,), soft labels (B, C), or a dict.

        total  images of the batch, if these are only the rows of this rank; else it takes its rows of them
        """
        self.model.train()
        if total is None and self.ranks.size > 1:
            total, rows = len(images), self.gradients.rows(len(images))[self.ranks.rank]
            images, targets = images[rows.start : rows.stop], rows_of(targets, rows)
        buffers = copies(self.buffers)
        with self.randomness(), ag.autocast(PRODUCTS[self.recipe.precision]):
            targets = self.targets(images, targets)
            mean = self.scaler.scale / self.recipe.accumulate  # over the batches of an update
            loss, gradients = self.gradients(self.objective, images, targets, mean, total)
        self.scaler.unscale(gradients)
        gradients = self._accumulate(gradients)
        norm, loss = norm_and_loss(gradients, loss)  # the one wait for a GPU
        if not math.isfinite(norm):
            restore(buffers)
            if self.scaler.exhausted:
                raise stopped(self, images, targets)
        if (self.batches + 1) % self.recipe.accumulate == 0:
            if self.scaler.accepts(norm):  # a step that overflowed is skipped
                with together():  # one pass over all arrays
                    if self.clip_norm is not None:
                        clip_gradients(gradients, self.clip_norm, norm)
                    self.optimiser.step(gradients, self.lr, norm)
                    if self.ema is not None:
                        self.ema.update()
                if self.gradients.features is not None and isinstance(self.model, Model):
                    self.model.memorise(targets, self.gradients.features)
            self.accumulated = None
        self.batches += 1
        return loss

    def randomness(self) -> AbstractContextManager[Any]:
        """Random masks of the next batch, drawn by its number."""
        return random.using(Stream(self.recipe.seed, "train", step=self.batches))

    def _accumulate(self, gradients: FlatArrays) -> FlatArrays:
        """Sum of the gradients of the batches that make up one update."""
        if self.recipe.accumulate == 1:
            return gradients
        if self.accumulated is None:
            self.accumulated = self.gradients.kept(gradients)
        else:
            self.accumulated.add(gradients)
        return self.accumulated

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        r = self.recipe
        if r.constant_lr or self.total_steps is None:
            return r.peak_lr
        warmup = round(r.warmup_epochs * self.total_steps / r.epochs)
        warmup = min(warmup, self.total_steps // 5)  # a run of few epochs must not spend them all on warm-up
        done = self.batches // r.accumulate  # skipped steps count: the schedule follows the data
        first, last = min(r.warmup_lr, r.peak_lr), min(r.min_lr, r.peak_lr)  # a peak for tiny batches may be below them
        return learning_rate(done, self.total_steps, warmup, r.peak_lr, first, last)

    # ---- epochs

    def fit(
        self,
        train_loader: Loader,
        val_loader: Loader,
        after_batch: Callable[[float], None] | None = None,
        after_epoch: Callable[[Epoch], None] | None = None,
        evaluate_every: int = 1,
    ) -> list[Epoch]:
        """Train for the epochs of the recipe, from where the trainer is, and report on each. Evaluate after the last
        one, and every `evaluate_every` epochs before it.

        `after_batch` is called with the loss of every batch, `after_epoch` with the report on every epoch. Either may
        raise to stop: the trainer's state is whole then, and `fit` continues from it.
        """
        if not hasattr(train_loader, "epoch"):
            raise TypeError("fit: train_loader must be a minicait.data.Loader, which supports random access to batches")
        self.total_steps = max(1, self.recipe.epochs * len(train_loader) // self.recipe.accumulate)
        self.epoch = min(self.epoch, self.batches // len(train_loader))  # a failed update may have begun earlier
        if isinstance(self.model, Model):
            self.model.remember(len(train_loader.dataset))  # before processes share its memory
        self.gradients.start()
        self._compare_ranks()
        several, epochs = self.ranks.size > 1, []
        shares = self.gradients.rows(train_loader.batch_size)
        self.total, self.reverse = (train_loader.batch_size if several else None), partial(self.ranks.mirrored, shares)
        try:
            with sharded(self.ranks, shares, train_loader, val_loader, self.device) as (train, val):
                while self.epoch < self.recipe.epochs:
                    evaluated = (self.recipe.epochs - self.epoch - 1) % evaluate_every == 0
                    epochs.append(self._epoch(train, val if evaluated else None, after_batch))
                    self._compare_ranks()
                    if after_epoch is not None:
                        after_epoch(epochs[-1])
        finally:
            self.close()
        return epochs

    def _epoch(
        self, train_loader: AnyLoader, val_loader: AnyLoader | None, after_batch: Callable[[float], None] | None
    ) -> Epoch:
        """Train on the rest of an epoch, and evaluate."""
        started = time.perf_counter()
        with closing(train_loader.epoch(self.epoch, self.batches - self.epoch * len(train_loader))) as batches:
            for batch in batches:
                images, targets = self.targets.mixed(batch, self.batches, self.reverse)
                self.losses.append(self.step(images, targets, self.total))
                if after_batch is not None:
                    after_batch(self.losses[-1])
        if (name := first_not_finite(self)) is not None:
            raise NotFiniteError(f"training stopped after batch {self.batches}: the weights of {name} are not finite")
        seconds = time.perf_counter() - started
        scores, ema_scores, guesses = None, None, None
        if val_loader is not None:
            scores = self._evaluate(val_loader, guesses := Guesses())
        if val_loader is not None and self.ema is not None:
            with self.ema.applied():
                ema_scores = self._evaluate(val_loader, guesses := Guesses())
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        loss = float(np.mean(finite)) if finite else math.nan
        self.epoch, self.losses = self.epoch + 1, []
        return Epoch(
            self.epoch, self.optimiser.steps, self.optimiser.lr, loss, scores, ema_scores, guesses, seconds,
            self.scaler.skipped, self.scaler.scale,
        )  # fmt: skip

    def _evaluate(self, loader: AnyLoader, guesses: Guesses) -> Scores:
        with ag.autocast(PRODUCTS[self.recipe.precision]):
            return evaluate(self.model, loader, self.threads, self.micro_batch, guesses=guesses, ranks=self.ranks)

    def _compare_ranks(self) -> None:
        """Raise RanksError if the weights, moments or averages of the ranks are not all the same."""
        if self.ranks.size > 1:
            self.optimiser.parameters.attach()
            arrays = [self.optimiser.parameters.weights, self.optimiser.mean, self.optimiser.square]
            digest = hashlib.sha256()
            for flat in [*arrays, *([] if self.ema is None else [self.ema.average])]:
                digest.update(to_device(flat.array, "cpu"))
            self.ranks.require_equal("weights", digest.digest(), "their CPUs or libraries may round differently: see "
                                     "docs/ranks.md, and resume the run")  # fmt: skip

    def close(self) -> None:
        """End worker processes. The next step starts others."""
        self.gradients.close()

    @property
    def device(self) -> str:
        return self.model.device


def rows_of(targets: Any, rows: range) -> Any:
    """Some rows of the targets, which are an array or a dict of arrays."""
    if isinstance(targets, Mapping):
        return {name: values[rows.start : rows.stop] for name, values in targets.items()}
    return targets[rows.start : rows.stop]

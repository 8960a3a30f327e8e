"""A training run: trains by a plan, shows progress, and keeps everything in a folder, from which it can resume."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from .. import __version__
from ..data.groups import unwrapped
from ..data.loader import Loader
from ..data.shapes import Shapes
from ..data.transforms import evaluation, training
from ..files.weights import save_weights
from ..machine import numerics, peak_megabytes, why_no_gpu
from ..models import Model
from ..text import printable, shortened
from ..train.checkpoint import Checkpoint, Snapshot
from ..train.evaluate import attention_inside
from ..train.micro_batch import default_micro_batch
from ..train.not_finite import NotFiniteError, first_not_finite
from ..train.ranks import ALONE, Ranks
from ..train.teacher import Teacher
from ..train.trainer import Epoch, Trainer
from .advice import SMALLER, error_advice, memory_advice, training_memory
from .background import Background
from .console import estimate, first_lines, resume_command
from .finish import after_training
from .folder import make_weights_folder, write_plan
from .journal import Row, write_journal
from .lock import FolderLock
from .overview import Overview
from .pictures import batch_picture, write_picture
from .plan import Plan
from .progress import Progress, previous
from .signals import Stopped, StopSignals

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_MINUTES = 5.0
ESTIMATE_AFTER = 5  # batches
EVALUATION_BATCH = 64
NAMED_BAD_IMAGES = 5  # more are only counted


class Run:
    """A training run in a folder: index.html, args.json, log.csv, curves.svg, train_batch.jpg, weights/,
    checkpoint.safetensors, report-1.html etc., and attention.png for a model that has a map of where it looks.

    checkpoint_minutes  from one checkpoint to the next within an epoch; each epoch ends with one, too
    model               receives the weights of a checkpoint; by default the plan's initial model
    graph               on a GPU, a step is a CUDA graph, if it can be
    ranks               that train together; rank 0 alone prints and writes
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        checkpoint_minutes: float = CHECKPOINT_MINUTES,
        skip_bad: bool = False,
        model: Model | None = None,
        micro_batch: int | None = None,
        graph: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        r = plan.recipe
        if device == "cpu" and r.precision != "fp32":
            why = why_no_gpu()
            reason = "--device cpu was given" if why is None else f"none is usable: {why}"
            raise ValueError(f"this run needs a GPU for {r.precision} (a CPU is fastest with fp32), but {reason}")
        self.plan, self.path, self.device, self.threads = plan, path, device, threads
        self.checkpoint_minutes, self.skip_bad, self.micro_batch = checkpoint_minutes, skip_bad, micro_batch
        self.graph, self.ranks = graph, ranks
        ranks.require_equal("numerics", numerics(device), "their weights would drift apart; see docs/ranks.md")
        side = plan.side() if model is None else model.img_size[0]
        images = ranks.staggered(lambda: plan.data.open(side, r.seed, r.crop_ratio))  # downloads what is missing
        ranks.require_equal("images", images.fingerprint, f"copy {plan.data.data} from one machine to the others")
        self.images = images._replace(val=images.train) if plan.overfit else images
        self.classes = list(images.train.classes)
        self.model, self.head_kept = (
            (model, True) if model else ranks.staggered(lambda: plan.initial_model(self.classes))
        )
        self.model.remember(len(images.train))
        machine = device, threads, micro_batch
        # a teacher sees the student's micro-batches, which are the same on any number of ranks
        pieces = micro_batch or (default_micro_batch(self.model, r.batch_size) if device == "cpu" else None)
        teacher = None
        if plan.teacher is not None:
            taught = plan.teacher, self.model, self.classes, device, threads, pieces
            teacher = ranks.staggered(lambda: Teacher(*taught))
        self.label_maps = maps = plan.label_maps(images.train, self.model)
        identity = __version__, getattr(teacher, "hash", None), maps and maps.file.hash
        ranks.require_equal("minicait, teacher or token labels", identity, "copy them from one machine to the others")
        augment = training(r.augmentation, side, r.crop_ratio, token_labels=maps is not None)
        crop = evaluation(side, r.crop_ratio)
        self.train_loader = Loader(
            images.train, r.batch_size, True, r.seed, augment, r.repeats, threads, skip_bad,
            numbered=r.loss == "neighbours", label_maps=maps,
        )  # fmt: skip
        self.val_loader = Loader(self.images.val, EVALUATION_BATCH, False, r.seed, crop, 1, threads, skip_bad)
        self.loaders = self.train_loader, self.val_loader
        self.evaluate_every = plan.epochs_per_evaluation(len(images.train), len(self.images.val))
        self.memory = training_memory(
            self.model, r, micro_batch, None if teacher is None else teacher.model, maps is not None
        )
        with memory_advice(device, self.memory, SMALLER):
            self.trainer = Trainer(self.model, r, *machine, teacher, graph=graph, ranks=ranks)
        self.trainer.gradients.rows(r.batch_size)  # raises if it cannot be shared out
        self.lock: FolderLock | None = None
        self.warnings: list[str] = []
        self.signals, self.background = StopSignals(), Background()
        self.start_time = self.saved = time.perf_counter()  # the first minus the duration of earlier sessions
        self.rows: list[Row] = []
        self.best = -1.0
        drawn = unwrapped(self.images.val)
        self.shapes = drawn if isinstance(drawn, Shapes) else None  # only of these it is known where the objects are
        self.attention_at_start: float | None = None
        self.attention_at_end: float | None = None  # of the best weights
        self.reports: list[Path] = []
        self.overview = Overview(self.images.val, crop, r.epochs, self.model.grid)

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def best_weights(self) -> Path:
        return self.path / "weights/best.safetensors"

    def train(self) -> Row:
        """Train from the current state to the end, print progress, and return the last row of the log."""
        try:
            return self._train()
        finally:
            if self.lock is not None:
                self.lock.release()

    def _train(self) -> Row:
        if self.ranks.leads:
            make_weights_folder(self.path)
            write_plan(self.path, self.plan)
        warnings = [f"warning: {printable(warning)}" for warning in self.warnings]
        print("\n".join([first_lines(self), *warnings]), flush=True)
        done, total = self.trainer.batches, self.plan.recipe.epochs * len(self.train_loader)
        with self.signals, error_advice(self), self.background:
            if not done:
                self.ranks.lead(self._before_training)
            with tqdm(total=total, initial=done, disable=None, unit="batch") as self.bar:
                self.session_batch, self.session_network, self.train_loader.waited = done, self.ranks.seconds, 0.0
                loaders, calls = self.loaders, (self._after_batch, self._after_epoch)
                self.trainer.fit(*loaders, *calls, self.evaluate_every)
            self.ranks.lead(lambda: after_training(self))
            self._told_to_stop()
        return self.rows[-1]

    def _before_training(self) -> None:
        self._save_checkpoint()  # so that a run can be resumed even before its first batch
        first = next(self.train_loader.epoch(0))
        write_picture(self.path / "train_batch.jpg", batch_picture(first.images[:32]))
        self.attention_at_start = self.attention_inside(self.model)
        if self.attention_at_start is not None:
            print(f"attention inside the object, before training: {self.attention_at_start:.1%}")
        self.overview.update(self)
        self.background.wait()  # workers are forked next: what another thread holds, they would wait for

    def _after_batch(self, loss: float) -> None:
        self.bar.update()
        self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        done = self.trainer.batches - self.session_batch
        if done == 1:
            self.timed_from = time.perf_counter()  # the first batch also starts processes and checks the model
        if done == ESTIMATE_AFTER:
            tqdm.write(estimate(self, (time.perf_counter() - self.timed_from) / (ESTIMATE_AFTER - 1)))
            sys.stdout.flush()
        stopping = self._told_to_stop()
        if stopping or self.due:
            self._share_bad()
            self.ranks.lead(self._save_checkpoint)
        if stopping:
            self._stop()
        self.background.raise_error()

    def _told_to_stop(self) -> bool:
        """True on all ranks if one of them has received a signal. `due` is a checkpoint when rank 0 says so."""
        due = time.perf_counter() - self.saved >= 60 * self.checkpoint_minutes
        found = self.ranks.gather((self.signals.received, due))
        self.signals.received = next((number for number, _ in found if number is not None), None)
        self.due = found[0][1]
        return self.signals.received is not None

    def _share_bad(self) -> None:
        """Tell all ranks which images the others could not read."""
        for loader in self.loaders:
            for bad in self.ranks.gather(loader.bad):
                loader.bad.update(bad)

    def _stop(self) -> NoReturn:
        assert self.signals.received is not None
        self.ranks.lead(self.background.wait)
        raise Stopped(self.signals.received, resume_command(self))

    def _after_epoch(self, epoch: Epoch) -> None:
        loader, scores, ema = self.train_loader, epoch.scores, epoch.ema_scores
        val_loss, top1, top5 = (None, None, None) if scores is None else (scores.loss, scores.top1, scores.top5)
        ema_top1, ema_top5 = (None, None) if ema is None else (ema.top1, ema.top5)
        batches = min(len(loader), self.trainer.batches - self.session_batch)  # a resumed epoch has fewer
        self._share_bad()
        bad = list(dict.fromkeys(reason for loader in self.loaders for reason in loader.bad.values()))
        reported = self.rows[-1].left_out if self.rows else 0
        row = Row(
            epoch.number, epoch.steps, epoch.lr, epoch.loss, val_loss, top1, top5, ema_top1, ema_top5,
            self.attention_inside(self.model), batches * loader.batch_size / epoch.seconds,
            loader.waited / epoch.seconds, time.perf_counter() - self.start_time, len(bad), epoch.skipped,
            epoch.loss_scale, peak_megabytes(),
        )  # fmt: skip
        loader.waited = 0.0
        self.rows.append(row)
        tqdm.write(f"epoch {row.epoch}/{self.plan.recipe.epochs}: {row}")
        for reason in bad[reported:NAMED_BAD_IMAGES]:
            tqdm.write(f"skipped: {printable(reason)}")
        if len(bad) > reported:
            tqdm.write(f"corrupt images skipped so far: {len(bad)}")
        sys.stdout.flush()
        self.ranks.lead(lambda: self._write(row, epoch))
        if self._told_to_stop() and epoch.number < self.plan.recipe.epochs:
            self._stop()

    def _write(self, row: Row, epoch: Epoch) -> None:
        """Weights, log, page and checkpoint after an epoch."""
        self._save_weights("last")
        if row.top1 is not None and max(row.top1, row.score) >= self.best:  # of equals, the later one
            self.best = max(row.top1, row.score)
            average = None if row.score < row.top1 else self.trainer.ema
            with nullcontext() if average is None else average.applied():
                self._save_weights("best", "" if average is None else ", averaged weights")
        write_journal(self.path, self.rows)
        self.overview.update(self, epoch.guesses)
        self._save_checkpoint()

    def attention_inside(self, model: Model) -> float | None:
        if self.shapes is None:
            return None
        return attention_inside(model, self.shapes, threads=self.threads, micro_batch=self.micro_batch)

    def _save_weights(self, name: str, kind: str = "") -> None:
        path, r = self.path / f"weights/{name}.safetensors", self.plan.recipe
        origin = f"{shortened(printable(self.path.resolve().name))}, epoch {self.trainer.epoch} of {r.epochs}{kind}"
        save_weights(self.model, path, self.classes, crop_ratio=r.crop_ratio, origin=origin)

    def _save_checkpoint(self) -> None:
        if (name := first_not_finite(self.trainer)) is not None:  # do not overwrite a good one
            at = f"at batch {self.trainer.batches}"
            raise NotFiniteError(f"training stopped {at}: the weights of {name} are not finite")
        bad = [{str(i): reason for i, reason in loader.bad.items()} for loader in self.loaders]
        rows, seconds = [asdict(row) for row in self.rows], time.perf_counter() - self.start_time
        progress = Progress(**self._identity(), rows=rows, best=self.best, bad=bad, seconds=seconds)
        snapshot = Snapshot.of(self.trainer, asdict(progress))
        write = partial(snapshot.write, self.checkpoint, previous(self.checkpoint))
        if self.device == "cpu":  # the snapshot is not a copy
            write()
        else:
            self.background.start(write)
        self.saved = time.perf_counter()

    def load(self, checkpoint: Checkpoint) -> None:
        """Return to the state of a checkpoint; later rows of the log are dropped."""
        progress, rows = Progress.of(checkpoint, len(self.train_loader))
        if progress.version != __version__:
            raise ValueError(f"{self.checkpoint} was written by version {progress.version}, this is {__version__}")
        groups = "" if self.plan.data.groups is None else f", or the groups {self.plan.data.groups},"
        names = {"plan": self.path / "args.json", "images": f"the images in {self.plan.data.data}{groups}",
                 "teacher": f"the teacher {self.plan.teacher}",
                 "token_labels": f"the token labels {self.plan.token_labels}"}  # fmt: skip
        identity = self._identity()
        for key, name in names.items():
            if getattr(progress, key) != identity[key]:
                raise ValueError(f"{name} changed since the run started")
        checkpoint.load_into(self.trainer)
        self.rows, self.best = rows, progress.best
        for loader, bad in zip(self.loaders, progress.bad, strict=True):
            loader.bad.update({int(i): reason for i, reason in bad.items()})
        self.start_time -= progress.seconds
        if self.ranks.leads:
            write_journal(self.path, self.rows)

    def _identity(self) -> dict[str, Any]:
        """Everything that must stay the same between the sessions of a run, as JSON returns it."""
        return {
            "version": __version__,
            "plan": json.loads(json.dumps(asdict(self.plan))),
            "images": self.images.fingerprint,
            "teacher": getattr(self.trainer.teacher, "hash", None),
            "token_labels": None if self.label_maps is None else self.label_maps.file.hash,
        }

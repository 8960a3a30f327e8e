"""A training run as a person sees it: a plan, progress, a folder with everything in it, and a way to go on."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from autograd import cuda

from .. import __version__
from ..data.loader import Loader, some_of_each_class
from ..data.picture import BadImageError, denormalise
from ..data.shapes import Shapes
from ..data.transforms import evaluation, training
from ..explain import attention_sheet, has_class_attention, write_reports
from ..files.atomic import write_text
from ..files.pretrained import load_model
from ..files.weights import save_weights
from ..machine import cpu_count
from ..models import Model
from ..train.checkpoint import checkpoint_model, load_checkpoint, save_checkpoint
from ..train.evaluate import attention_inside
from ..train.teacher import Teacher
from ..train.trainer import Epoch, NotFiniteError, Trainer
from .console import estimate, first_lines, resume_command
from .gpu_memory import advising, to_train
from .journal import Row, write_journal
from .pictures import batch_picture, write_picture
from .plan import Plan
from .signals import Signals, Stopped

ESTIMATE_AFTER = 5  # batches
EVALUATION_BATCH = 64
TOLD = 5  # bad images that are named
SMALLER = "a smaller --preset or --img-size"
ON_THE_SHEET, REPORTS = 6, 3  # images whose attention is drawn, and those that have a report


class Run:
    """A folder: args.json, log.csv, curves.svg, train_batch.jpg, weights/, checkpoint.safetensors; for a model with
    class attention also attention.png, report-1.html and others.

    model  where a checkpoint will bring the weights; by default what the plan says training starts from
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        checkpoint_batches: int = 100,
        skip_bad: bool = False,
        model: Model | None = None,
        micro_batch: int | None = None,
    ) -> None:
        if device == "cpu" and plan.recipe.precision != "fp32":
            asked = f"this run is planned in {plan.recipe.precision}, which needs a GPU (a CPU is fastest with fp32)"
            why = cuda.why_unusable()
            raise ValueError(f"{asked}; {'--device cpu was asked for' if why is None else f'there is none: {why}'}")
        self.plan, self.path, self.device, self.threads = plan, path, device, threads
        self.checkpoint_batches, self.skip_bad, self.micro_batch = checkpoint_batches, skip_bad, micro_batch
        self.rows: list[Row] = []
        self.best = -1.0
        self.signals = Signals()
        self.told = 0  # bad images
        r = plan.recipe
        side = plan.side() if model is None else model.img_size[0]
        images = plan.data.open(side, r.seed, r.crop_ratio)
        self.images = images._replace(val=images.train) if plan.overfit else images
        self.classes = list(images.train.classes)
        self.head_kept = True
        if model is None:
            model, self.head_kept = plan.starting_model(self.classes)
        self.model = model
        teacher, self.teacher_hash = None, None
        if plan.teacher is not None:
            teacher = Teacher(plan.teacher, model, self.classes, device, threads, micro_batch)
            self.teacher_hash = teacher.hash
        self.train_loader, self.val_loader = (
            Loader(images.train, r.batch_size, True, r.seed, training(r.augmentation, side, r.crop_ratio), r.repeats,
                   threads, skip_bad),
            Loader(self.images.val, EVALUATION_BATCH, False, r.seed, evaluation(side, r.crop_ratio), 1, threads,
                   skip_bad),
        )  # fmt: skip
        self.needs = to_train(model, r, micro_batch, None if teacher is None else teacher.model)
        with advising(device, self.needs, SMALLER):
            self.trainer = Trainer(model, r, device, threads, micro_batch, teacher)
        self.before = time.perf_counter()  # minus the seconds of earlier sessions, once resumed
        drawn = getattr(self.images.val, "dataset", None)
        self.shapes = drawn if isinstance(drawn, Shapes) else None  # whose objects are known
        self.attention_at_start: float | None = None
        self.attention_at_end: float | None = None  # of the best weights
        self.reports: list[Path] = []

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def best_weights(self) -> Path:
        return self.path / "weights/best.safetensors"

    def go(self) -> Row:
        """Train from where the run is. Prints what it does; returns the last row of the log."""
        with advising(self.trainer.device, self.needs, SMALLER, resume_command(self, in_pieces=False)):
            return self._go()

    def _go(self) -> Row:
        (self.path / "weights").mkdir(parents=True, exist_ok=True)
        write_text(self.path / "args.json", json.dumps({**asdict(self.plan), "version": __version__}, indent=1))
        print(first_lines(self), flush=True)
        resume = resume_command(self)
        try:
            if not self.rows and not self.trainer.batches:
                self._save()  # so that a run can be resumed from its first moment on
                self.attention_at_start = self._attention_inside(self.model)
                first = next(self.train_loader.epoch(0))
                write_picture(self.path / "train_batch.jpg", batch_picture(first.images[:32]))
                if self.attention_at_start is not None:
                    print(f"class attention inside the object, before training: {self.attention_at_start:.1%}")
            total = self.plan.recipe.epochs * len(self.train_loader)
            with (
                self.signals.noted(),
                tqdm(total=total, initial=self.trainer.batches, disable=None, unit="batch") as bar,
            ):
                self.bar, self.started, self.first_batch = bar, time.perf_counter(), self.trainer.batches
                self.epoch_first, self.train_loader.waited = self.first_batch, 0.0
                self.trainer.fit(self.train_loader, self.val_loader, self._after_batch, self._after_epoch)
            self._look_inside()
        except BadImageError as error:
            hint = f"mend or remove it, or leave such images out: {resume} --skip-bad-images"
            raise BadImageError(f"{error}; {hint}") from error
        except OSError as error:
            hint = f"; the last checkpoint is intact: {resume}" if self.checkpoint.is_file() else ""
            raise OSError(f"a file could not be written or read ({error}){hint}") from error
        except MemoryError as error:
            if self.device != "cpu":
                raise
            fewer = (self.threads or cpu_count()) // 2
            advice = f"try --threads {fewer} (each holds a micro-batch and its gradients), or " if fewer else "try "
            raise MemoryError(f"{advice}a smaller --preset") from error
        except NotFiniteError as error:
            raise NotFiniteError(f"{error}; the last good checkpoint is {self.checkpoint}") from error
        return self.rows[-1]

    def resume(self) -> None:
        """Go back to where the checkpoint was written; log rows that came after it are dropped."""
        extra = load_checkpoint(self.trainer, self.checkpoint)
        if extra.get("version") != __version__:
            raise ValueError(f"{self.checkpoint} was written by version {extra.get('version')}, this is {__version__}")
        if extra["plan"] != json.loads(json.dumps(asdict(self.plan))):
            raise ValueError(f"{self.path / 'args.json'} was changed since the checkpoint was written")
        if extra["images"] != self.images.fingerprint:
            raise ValueError(f"the images in {self.plan.data.data} are not those that this run began with")
        if extra["teacher"] != self.teacher_hash:
            raise ValueError(f"the teacher {self.plan.teacher} is not the one that this run began with")
        self.rows = [Row(**row) for row in extra["rows"]]
        self.best = extra["best"]
        for loader, bad in zip(self._loaders, extra["bad"], strict=True):
            loader.bad.update({int(i): reason for i, reason in bad.items()})
        self.before -= extra["seconds"]
        write_journal(self.path, self.rows)

    def _after_batch(self, loss: float) -> None:
        self.bar.update()
        self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        if self.trainer.batches - self.first_batch == ESTIMATE_AFTER:
            tqdm.write(estimate(self, (time.perf_counter() - self.started) / ESTIMATE_AFTER))
            sys.stdout.flush()
        if self.signals.asked is not None:
            self._save()
            raise Stopped(self.signals.asked, resume_command(self))
        if self.trainer.batches % self.checkpoint_batches == 0:
            self._save()

    def _after_epoch(self, epoch: Epoch) -> None:
        ema, now = epoch.ema_scores, time.perf_counter()
        images = (self.trainer.batches - self.epoch_first) * self.plan.recipe.batch_size
        row = Row(
            epoch.number, epoch.steps, epoch.lr, epoch.loss, epoch.scores.loss, epoch.scores.top1, epoch.scores.top5,
            None if ema is None else ema.top1, None if ema is None else ema.top5,
            self._attention_inside(self.model), images / epoch.seconds,
            self.train_loader.waited / epoch.seconds, now - self.before, len(self._bad_images()),
            epoch.skipped, epoch.loss_scale,
        )  # fmt: skip
        self.epoch_first, self.train_loader.waited = self.trainer.batches, 0.0
        self.rows.append(row)
        tqdm.write(f"epoch {row.epoch}/{self.plan.recipe.epochs}: {row}")
        self._tell_bad()
        sys.stdout.flush()
        self._save_weights("last")
        score = max(row.top1, row.ema_top1 or 0)
        if score >= self.best:  # of equals, the later one
            self.best = score
            if self.trainer.ema is not None and ema is not None and ema.top1 >= row.top1:
                with self.trainer.ema.applied():
                    self._save_weights("best")
            else:
                self._save_weights("best")
        write_journal(self.path, self.rows)
        self._save()
        if self.signals.asked is not None and epoch.number < self.plan.recipe.epochs:
            raise Stopped(self.signals.asked, resume_command(self))

    def _save_weights(self, name: str) -> None:
        ratio = self.plan.recipe.crop_ratio
        path = self.path / f"weights/{name}.safetensors"
        save_weights(self.model, path, self.classes, crop_ratio=ratio)

    def _tell_bad(self) -> None:
        """How many images were left out so far, and why, for the first few."""
        reasons = self._bad_images()
        if len(reasons) > self.told:
            for reason in reasons[self.told : TOLD]:
                tqdm.write(f"left out: {reason}")
            self.told = len(reasons)
            tqdm.write(f"left out so far: {self.told} images")

    def _bad_images(self) -> list[str]:
        """What was wrong with each that was left out."""
        return list({reason: None for loader in self._loaders for reason in loader.bad.values()})

    @property
    def _loaders(self) -> tuple[Loader, Loader]:
        return self.train_loader, self.val_loader

    @cached_property
    def _has_class_attention(self) -> bool:
        return has_class_attention(self.model)

    def _attention_inside(self, model: Model) -> float | None:
        if self.shapes is None or not self._has_class_attention:
            return None
        return attention_inside(model, self.shapes, threads=self.threads, micro_batch=self.micro_batch)

    def _look_inside(self) -> None:
        """What the best weights look at: pictures, and a page for each of a few images."""
        if self.shapes is not None:
            write_picture(self.path / "example.png", Image.fromarray(self.shapes[0][0]))
        if not self._has_class_attention:
            return
        model, _ = load_model(self.best_weights)
        self.attention_at_end = self._attention_inside(model)
        images = some_of_each_class(self.images.val, self.val_loader.transform, ON_THE_SHEET)
        sheet = attention_sheet(model, np.stack(list(images.values())), list(images), self.classes)
        write_picture(self.path / "attention.png", sheet)
        titles = [f"Validation image of class {self.classes[label]}" for label in images][:REPORTS]
        few = [denormalise(image) for image in images.values()][:REPORTS]
        self.reports = write_reports(model, few, titles, self.classes, self.path / "report.html")

    def _save(self) -> None:
        if (name := self.trainer.first_not_finite()) is not None:  # never in place of a good one
            at = f"at batch {self.trainer.batches}"
            raise NotFiniteError(f"training stopped {at}: the weights of {name} are not finite")
        extra = {
            "plan": asdict(self.plan),
            "version": __version__,
            "images": self.images.fingerprint,
            "teacher": self.teacher_hash,
            "rows": [asdict(row) for row in self.rows],
            "best": self.best,
            "bad": [{str(i): reason for i, reason in loader.bad.items()} for loader in self._loaders],
            "seconds": time.perf_counter() - self.before,
        }
        save_checkpoint(self.trainer, self.checkpoint, extra)


def new_run(plan: Plan, parent: Path, name: str, **options: Any) -> Run:
    """A run in a folder of its own, which is made only when the plan has turned out to be possible."""
    run = Run(plan, Path(), **options)
    run.path = new_folder(parent, name)
    return run


def new_folder(parent: Path, name: str) -> Path:
    """runs/name-1, runs/name-2 and so on: the first that is not there."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1


def resumed(path: Path, **options: Any) -> Run:
    """The run in a folder, where its checkpoint left it."""
    arguments = path / "args.json"
    if not arguments.is_file():
        raise ValueError(f"there is no run in {path}: it has no args.json")
    try:
        plan = Plan.from_json(json.loads(arguments.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{arguments} is damaged ({error})") from error
    run = Run(plan, path, model=checkpoint_model(path / "checkpoint.safetensors"), **options)
    run.resume()
    return run


def summary(scores: list[float]) -> str:
    """Mean and deviation of several runs."""
    spread = f" ± {np.std(scores, ddof=1):.1%}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.1%}{spread} over {len(scores)} run{'s' if len(scores) > 1 else ''}"

"""A training run as a person sees it: a plan, progress, a folder with everything in it, and a way to go on."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from autograd import cuda

from .. import __version__
from ..data.loader import Loader
from ..data.shapes import Shapes
from ..models import create_model
from ..models.summary import cost
from ..weights import save_weights
from .checkpoint import load_checkpoint, save_checkpoint
from .evaluate import attention_inside
from .pictures import batch_picture, curves, write_text
from .recipe import Recipe
from .trainer import Epoch, NotFiniteError, Trainer
from .value_and_grad import cpu_count

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ESTIMATE_AFTER = 5  # batches


@dataclass(frozen=True)
class Plan:
    """All that decides the result of a run. Saved as args.json."""

    model: str
    recipe: Recipe
    train_images: int = 4000
    val_images: int = 500
    difficulty: str = "easy"
    img_size: int | None = None
    patch_size: int | None = None
    overfit: bool = False  # validate on the training images: has it learned them by heart?

    @staticmethod
    def from_json(content: dict[str, Any]) -> Plan:
        known = {f.name for f in fields(Plan)}
        plan = {key: value for key, value in content.items() if key in known}
        return Plan(**{**plan, "recipe": Recipe(**plan["recipe"])})


class Stopped(Exception):  # noqa: N818  (not an error)
    """A signal asked the run to end; its checkpoint is written."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@dataclass
class Row:
    """A line of log.csv."""

    epoch: int
    steps: int
    lr: float
    loss: float
    top1: float
    top5: float
    ema_top1: float | None
    ema_top5: float | None
    attention_inside: float
    seconds: float

    @property
    def score(self) -> float:
        """top-1 of the averaged weights, if there are any, else of the last ones."""
        return self.top1 if self.ema_top1 is None else self.ema_top1


class Run:
    """A folder with args.json, log.csv, curves.svg, train_batch.jpg, weights/ and checkpoint.safetensors."""

    def __init__(
        self, plan: Plan, path: Path, device: str = "cpu", threads: int | None = None, checkpoint_batches: int = 100
    ) -> None:
        self.plan, self.path, self.device, self.threads = plan, path, device, threads
        self.checkpoint_batches = checkpoint_batches
        self.rows: list[Row] = []
        self.best = -1.0
        r = plan.recipe
        classes = len(Shapes.classes)
        model = create_model(plan.model, classes, plan.img_size, plan.patch_size, seed=r.seed)
        side = model.config["img_size"][0]
        self.train_set = Shapes(plan.train_images, side, r.seed, plan.difficulty)
        others = Shapes(plan.val_images, side, r.seed + 1_000_003, plan.difficulty)
        self.val_set = self.train_set if plan.overfit else others
        self.train_loader = Loader(self.train_set, r.batch_size, True, r.seed)
        self.val_loader = Loader(self.val_set, 100)
        self.trainer = Trainer(model, r, device, threads)
        self.before = time.perf_counter()  # minus the seconds of earlier sessions, once resumed
        self.stop: int | None = None
        self.attention_at_start = attention_inside(model, self.val_set, threads=threads)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def go(self) -> Row:
        """Train from where the run is. Prints what it does; returns the last row of the log."""
        (self.path / "weights").mkdir(parents=True, exist_ok=True)
        write_text(self.path / "args.json", json.dumps({**asdict(self.plan), "version": __version__}, indent=1))
        self._announce()
        at = self.trainer.position
        if not self.rows and not at.batch:
            first = next(iter(self.train_loader.epoch(0)))
            batch_picture(first.images[:32]).save(self.path / "train_batch.jpg", quality=92)
            self._save()  # so that a run can be resumed from its first moment on
            print(f"class attention inside the object, before training: {self.attention_at_start:.1%}")
        total = self.plan.recipe.epochs * len(self.train_loader)
        with self._signals(), tqdm(total=total, initial=self.trainer.batches, disable=None, unit="batch") as bar:
            self.bar, self.started, self.first_batch = bar, time.perf_counter(), self.trainer.batches
            try:
                self.trainer.fit(self.train_loader, self.val_loader, self._after_batch, self._after_epoch)
            except OSError as error:
                hint = f"the last checkpoint is intact: minicait train --resume {self.path}"
                raise OSError(f"a file could not be written ({error}); {hint}") from error
            except NotFiniteError as error:
                raise NotFiniteError(f"{error}; the last good checkpoint is {self.checkpoint}") from error
        return self.rows[-1]

    def resume(self) -> None:
        """Go back to where the checkpoint was written; log rows that came after it are dropped."""
        extra = load_checkpoint(self.trainer, self.checkpoint)
        if extra["plan"] != json.loads(json.dumps(asdict(self.plan))):
            raise ValueError(f"{self.path / 'args.json'} was changed since the checkpoint was written")
        self.rows = [Row(**row) for row in extra["rows"]]
        self.best = extra["best"]
        self.before -= extra["seconds"]
        self._write_log()

    def _announce(self) -> None:
        r, config = self.plan.recipe, self.trainer.model.config
        where = f"CuPy on {self.device}" if self.device != "cpu" else f"NumPy on {self.threads or cpu_count()} threads"
        why = cuda.why_unusable()
        reason = "the GPU works" if self.device != "cpu" else "as asked for" if why is None else f"no GPU: {why}"
        c = cost(config)
        print(f"device: {where}; {reason}")
        flops = f"{c.multiply_adds / 1e9:.2f} GFLOPs per image"
        print(f"model: {self.plan.model}, patches of {config['patch_size']}, {c.parameters:,} parameters, {flops}")
        kind = f"shapes ({self.plan.difficulty}), {len(Shapes.classes)} classes, {config['img_size'][0]} pixels"
        print(f"data: {kind}, {len(self.train_set):,} to train, {len(self.val_set):,} to validate")
        plain = Recipe()
        changed = {key: value for key, value in asdict(r).items() if value != getattr(plain, key)}
        print("recipe:", ", ".join(f"{key} {value}" for key, value in changed.items()) or "plain")
        print(f"folder: {self.path}", flush=True)

    def _after_batch(self, loss: float) -> None:
        self.bar.update()
        self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        done = self.trainer.batches - self.first_batch
        if done == ESTIMATE_AFTER:
            left = self.plan.recipe.epochs * len(self.train_loader) - self.trainer.batches
            seconds = (time.perf_counter() - self.started) / done * left
            memory = ""
            if resource is not None:
                unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, kilobytes elsewhere
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
                memory = f", {peak:.2f} GB of memory at the peak so far"
            tqdm.write(f"estimate: {seconds / 60:.1f} minutes to go{memory}")
            sys.stdout.flush()
        if self.stop is not None:
            self._save()
            raise Stopped(self.stop)
        if self.trainer.batches % self.checkpoint_batches == 0:
            self._save()

    def _after_epoch(self, epoch: Epoch) -> None:
        ema = epoch.ema_scores
        model = self.trainer.model
        row = Row(
            epoch.number, epoch.steps, epoch.lr, epoch.loss, epoch.scores.top1, epoch.scores.top5,
            None if ema is None else ema.top1, None if ema is None else ema.top5,
            attention_inside(model, self.val_set, threads=self.threads), time.perf_counter() - self.before,
        )  # fmt: skip
        self.rows.append(row)
        average = "" if ema is None else f" (EMA {ema.top1:.1%})"
        tqdm.write(
            f"epoch {row.epoch}/{self.plan.recipe.epochs}: loss {row.loss:.3f}, top-1 {row.top1:.1%}{average}, "
            f"attention inside {row.attention_inside:.1%}, {row.seconds:.0f} s"
        )
        sys.stdout.flush()
        names = Shapes.classes
        save_weights(model, self.path / "weights/last.safetensors", names)
        score = max(row.top1, row.ema_top1 or 0)
        if score > self.best:
            self.best = score
            if self.trainer.ema is not None and ema is not None and ema.top1 >= row.top1:
                with self.trainer.ema.applied():
                    save_weights(model, self.path / "weights/best.safetensors", names)
            else:
                save_weights(model, self.path / "weights/best.safetensors", names)
        self._write_log()
        self._save()
        if self.stop is not None and epoch.number < self.plan.recipe.epochs:
            raise Stopped(self.stop)

    def _save(self) -> None:
        if (name := self.trainer.not_finite()) is not None:  # never in place of a good one
            at = f"at batch {self.trainer.batches}"
            raise NotFiniteError(f"training stopped {at}: the weights of {name} are not finite")
        extra = {
            "plan": asdict(self.plan),
            "rows": [asdict(row) for row in self.rows],
            "best": self.best,
            "seconds": time.perf_counter() - self.before,
        }
        save_checkpoint(self.trainer, self.checkpoint, extra)

    def _write_log(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)
        write_text(self.path / "log.csv", text.getvalue())
        lines = {name: [(r.epoch, getattr(r, name)) for r in self.rows if getattr(r, name) is not None] for name in
                 ("loss", "top1", "ema_top1", "attention_inside")}  # fmt: skip
        panels = {
            "loss": {"training": lines["loss"]},
            "top-1": {"weights": lines["top1"], "EMA": lines["ema_top1"]},
            "attention": {"inside the object": lines["attention_inside"]},
        }
        write_text(self.path / "curves.svg", curves(panels))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the batch it is in. A second one ends it at once."""

        def note(number: int, _: Any) -> None:
            if self.stop is not None:
                raise KeyboardInterrupt
            self.stop = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


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
        run = Run(plan, path, **options)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{arguments} is damaged ({error})") from error
    run.resume()
    return run


def summary(scores: list[float]) -> str:
    """Mean and deviation of several runs."""
    spread = f" ± {np.std(scores, ddof=1):.1%}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.1%}{spread} over {len(scores)} run{'s' if len(scores) > 1 else ''}"

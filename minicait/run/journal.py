"""The journal of a run: a row per epoch, as log.csv and as curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from ..files.atomic import write_text
from .curves import Lines, curves


@dataclass
class Row:
    """A line of log.csv."""

    epoch: int
    steps: int
    lr: float
    loss: float  # in training, the mean over the epoch
    val_loss: float | None  # None, as the next four, if the epoch was not evaluated
    top1: float | None
    top5: float | None
    ema_top1: float | None
    ema_top5: float | None
    attention_inside: float | None  # share of attention on the object, which is known for shapes
    images_per_second: float  # in training
    waiting: float  # share of that time spent waiting for images
    seconds: float
    left_out: int = 0  # corrupt images so far
    skipped: int = 0  # steps so far whose gradients overflowed float16
    loss_scale: float = 1.0
    megabytes: float | None = None  # peak memory so far, of the host

    @property
    def score(self) -> float:
        """top-1 of the averaged weights, if there are any; NaN if the epoch was not evaluated."""
        top1 = self.top1 if self.ema_top1 is None else self.ema_top1
        return math.nan if top1 is None else top1

    @property
    def best_top1(self) -> float | None:
        """The better top-1 of the weights and their average; None if the epoch was not evaluated."""
        return max((top1 for top1 in (self.top1, self.ema_top1) if top1 is not None), default=None)

    def __str__(self) -> str:
        top1 = "" if self.top1 is None else f", top-1 {self.top1:.1%}"
        top1 += "" if self.ema_top1 is None else f" (EMA {self.ema_top1:.1%})"
        inside = "" if self.attention_inside is None else f", attention inside {self.attention_inside:.1%}"
        speed = f"{self.images_per_second:.3g} images/s, {self.waiting:.0%} waiting for images"
        skipped = f"; {self.skipped} steps skipped so far, loss scale {self.loss_scale:.0f}" if self.skipped else ""
        return f"loss {self.loss:.3f}{top1}{inside}; {speed}; {self.seconds:.0f} s{skipped}"


def best_row(rows: Sequence[Row]) -> Row | None:
    """The epoch with the best top-1, of equals the last; None if none was evaluated."""
    evaluated = [(row.best_top1, row.epoch, row) for row in rows if row.best_top1 is not None]
    return max(evaluated, key=lambda entry: entry[:2], default=(None, None, None))[2]


def read_log(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's log.csv, as text; ValueError if it has none."""
    path = folder / "log.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []
    if not rows or not {f.name for f in fields(Row)} <= rows[0].keys():
        raise ValueError(f"{folder} holds no run with a finished epoch")
    return rows


def write_journal(folder: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(folder / "log.csv", text.getvalue())
    panels = learning_panels(rows)
    write_text(folder / "curves.svg", curves({p.title: p.lines for p in panels}, "epoch", [p.y for p in panels]))


class Panel(NamedTuple):
    title: str
    y: str  # label of the vertical axis
    lines: Lines


def learning_panels(rows: Sequence[Row]) -> list[Panel]:
    """Curves over the epochs: loss, accuracy and, for shapes, attention; without lines that have no points."""
    panels = [
        Panel("Loss", "loss", {"training": line(rows, "loss"), "validation": line(rows, "val_loss")}),
        Panel("Accuracy", "top-1 in %", {"weights": line(rows, "top1", 100), "EMA": line(rows, "ema_top1", 100)}),
        Panel("Attention inside the object", "attention in %", {"": line(rows, "attention_inside", 100)}),
    ]
    panels = [p._replace(lines={name: points for name, points in p.lines.items() if points}) for p in panels]
    return [panel for panel in panels if panel.lines]


def line(rows: Sequence[Row], name: str, factor: float = 1.0) -> list[tuple[float, float]]:
    """The points of the epochs that have this value."""
    return [(row.epoch, factor * getattr(row, name)) for row in rows if getattr(row, name) is not None]

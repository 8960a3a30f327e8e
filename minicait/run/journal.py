"""The journal of a run: a row per epoch, as log.csv and as curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..files.atomic import write_text
from .pictures import curves


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

    @property
    def score(self) -> float:
        """top-1 of the averaged weights, if there are any; NaN if the epoch was not evaluated."""
        top1 = self.top1 if self.ema_top1 is None else self.ema_top1
        return math.nan if top1 is None else top1

    def __str__(self) -> str:
        top1 = "" if self.top1 is None else f", top-1 {self.top1:.1%}"
        top1 += "" if self.ema_top1 is None else f" (EMA {self.ema_top1:.1%})"
        inside = "" if self.attention_inside is None else f", attention inside {self.attention_inside:.1%}"
        speed = f"{self.images_per_second:.3g} images/s, {self.waiting:.0%} waiting for images"
        skipped = f"; {self.skipped} steps skipped so far, loss scale {self.loss_scale:.0f}" if self.skipped else ""
        return f"loss {self.loss:.3f}{top1}{inside}; {speed}; {self.seconds:.0f} s{skipped}"


def write_journal(folder: Path, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(folder / "log.csv", text.getvalue())

    def line(name: str) -> list[tuple[float, float]]:
        return [(row.epoch, getattr(row, name)) for row in rows if getattr(row, name) is not None]

    panels = {
        "loss": {"training": line("loss"), "validation": line("val_loss")},
        "top-1": {"weights": line("top1"), "EMA": line("ema_top1")},
    }
    if inside := line("attention_inside"):
        panels["attention"] = {"inside the object": inside}
    write_text(folder / "curves.svg", curves(panels))

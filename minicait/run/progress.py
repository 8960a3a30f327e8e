"""Progress of a run, in the last two of its checkpoints: the log so far, and what must not change when it resumes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..machine import numerics
from ..schema import check_fields, from_json
from ..train.checkpoint import Checkpoint, read_checkpoint
from .journal import Row


@dataclass(frozen=True)
class Progress:
    """Saved with each checkpoint. The first four entries are the run's identity."""

    version: str
    plan: dict[str, Any]
    images: str  # fingerprint
    teacher: str | None  # hash
    rows: list[dict[str, Any]]
    best: float
    bad: list[dict[str, str]]  # for each loader, index and reason
    seconds: float

    def __post_init__(self) -> None:
        check_fields(self, {"best": (-1, 1), "seconds": (0, 1e12)})

    @staticmethod
    def of(checkpoint: Checkpoint, batches_per_epoch: int) -> tuple[Progress, list[Row]]:
        """Progress and log of a checkpoint; ValueError if they contradict each other."""
        state = checkpoint.state
        try:
            progress = from_json(Progress, state.extra)
            rows = [from_json(Row, row) for row in progress.rows]
            first = state.epoch * batches_per_epoch
            if [row.epoch for row in rows] != list(range(1, state.epoch + 1)):
                raise ValueError("its log has other epochs")
            if not first <= state.batches <= first + batches_per_epoch:
                raise ValueError(f"batch {state.batches} is not in epoch {state.epoch}")
            if len(progress.bad) != 2 or not all(i.isdecimal() for bad in progress.bad for i in bad):
                raise ValueError("its list of corrupt images is none")
        except ValueError as error:
            raise ValueError(f"{checkpoint.path.name} is damaged: it describes no run ({error})") from error
        return progress, rows


def previous(checkpoint: Path) -> Path:
    return checkpoint.with_stem(f"{checkpoint.stem}-previous")


def keep_previous(checkpoint: Path) -> None:
    """Give the last checkpoint a second name, before the next one replaces it."""
    if checkpoint.is_file():
        previous(checkpoint).unlink(missing_ok=True)
        try:
            os.link(checkpoint, previous(checkpoint))
        except OSError:  # a file system without hard links
            checkpoint.replace(previous(checkpoint))


def last_checkpoint(path: Path) -> tuple[Checkpoint, str | None]:
    """Read a checkpoint. If it is missing or damaged, the one before it takes its place, with a warning."""
    try:
        return read_checkpoint(path), None
    except ValueError as error:
        try:
            checkpoint = read_checkpoint(previous(path))
        except ValueError:
            raise error from None
        previous(path).replace(path)
        return checkpoint, f"{error}; resuming from the one before it"


def other_numerics(checkpoint: Checkpoint, device: str) -> str | None:
    """A warning if the checkpoint was written with other libraries or kernels, under which rounding may differ."""
    before, now = checkpoint.state.numerics, numerics(device)
    names = [name for name in now if before.get(name, now[name]) != now[name]]
    changed = [f"{name} {before[name]}, now {now[name]}" for name in names]
    return f"results may differ in their last bits: the checkpoint has {'; '.join(changed)}" if changed else None

"""Progress of a run, in the last two of its checkpoints: the log so far, and what must not change when it resumes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema import check_fields, from_json
from ..text import shortened
from ..train import Trainer
from ..train.checkpoint import Checkpoint, DamagedCheckpointError, numerics_of, read_checkpoint
from .journal import Row


@dataclass(frozen=True)
class Progress:
    """Saved with each checkpoint. The first five entries are the run's identity."""

    version: str
    plan: dict[str, Any]
    images: str  # fingerprint
    teacher: str | None  # hash
    token_labels: str | None  # hash
    rows: list[dict[str, Any]]
    best: float
    bad: list[dict[str, str]]  # for each loader, index and reason
    seconds: float

    def __post_init__(self) -> None:
        check_fields(self, {"best": (-1, 1), "seconds": (0, 1e18)})

    @staticmethod
    def of(checkpoint: Checkpoint, batches_per_epoch: int) -> tuple[Progress, list[Row]]:
        """Progress and log of a checkpoint; ValueError if they contradict each other."""
        state = checkpoint.state
        try:
            progress = from_json(Progress, state.extra)
            rows = [from_json(Row, row) for row in progress.rows]
            first = state.epoch * batches_per_epoch
            if progress.seconds > 1e9:
                raise ValueError("it has trained for more than thirty years")
            if [row.epoch for row in rows] != list(range(1, state.epoch + 1)):
                raise ValueError("its log has other epochs")
            if not first <= state.batches <= first + batches_per_epoch:
                raise ValueError(f"batch {state.batches} is not in epoch {state.epoch}")
            if len(progress.bad) != 2 or not all(re.fullmatch("[0-9]{1,12}", i) for bad in progress.bad for i in bad):
                raise ValueError("its list of corrupt images is invalid")
        except ValueError as error:
            raise ValueError(f"{checkpoint.path.name} is damaged: it describes no run ({error})") from error
        return progress, rows


def previous(checkpoint: Path) -> Path:
    return checkpoint.with_stem(f"{checkpoint.stem}-previous")


def last_checkpoint(path: Path) -> tuple[Checkpoint, str | None]:
    """Read a checkpoint. If it is missing or damaged, read the one before it, with a warning."""
    try:
        return read_checkpoint(path), None
    except DamagedCheckpointError as error:
        if not previous(path).is_file():
            raise
        return read_checkpoint(previous(path)), f"{error}; resuming from the one before it"


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that the next one does not push out the good one before it."""
    if path.is_file():
        path.replace(path.with_stem(f"{path.stem}-damaged"))


def other_numerics(checkpoint: Checkpoint, trainer: Trainer) -> str | None:
    """A warning if the checkpoint was written with other libraries or kernels, under which rounding may differ."""
    before, now = checkpoint.state.numerics, numerics_of(trainer)
    names = [name for name in now if before.get(name, now[name]) != now[name]]
    changed = [f"{name} {shortened(before[name])}, now {now[name]}" for name in names]
    return f"results may differ in their last bits: the checkpoint has {'; '.join(changed)}" if changed else None

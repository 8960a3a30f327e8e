"""A run at its start: a new one, or one that is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..train.checkpoint import Checkpoint
from ..train.ranks import ALONE, Ranks
from .folder import new_folder, read_plan
from .lock import FolderLock
from .plan import Plan
from .progress import last_checkpoint, other_numerics, set_aside
from .run import CHECKPOINT, Run


def new_run(plan: Plan, parent: Path, name: str, ranks: Ranks = ALONE, **options: Any) -> Run:
    """Create a run in a new folder, which is made only once the plan has proved possible."""
    run = Run(ranks.broadcast(lambda: plan), Path(), ranks=ranks, **options)
    run.path = ranks.broadcast(lambda: new_folder(parent, name))
    run.lock = FolderLock(run.path) if ranks.leads else None
    return run


def resume_run(path: Path, ranks: Ranks = ALONE, **options: Any) -> Run:
    """Load the run in a folder, as its checkpoint left it. Only rank 0 needs the folder."""
    lock: list[FolderLock] = []

    def read() -> tuple[Plan, Checkpoint, str | None]:
        plan = read_plan(path)
        lock.append(FolderLock(path))
        return plan, *last_checkpoint(path / CHECKPOINT)

    try:
        plan, checkpoint, damage = ranks.broadcast(read)
        run = Run(plan, path, model=checkpoint.model(), ranks=ranks, **options)
        run.load(checkpoint)
        if damage is not None and ranks.leads:
            set_aside(run.checkpoint)
    except BaseException:
        for own in lock:
            own.release()
        raise
    warnings = [damage, other_numerics(checkpoint, run.trainer)]
    if ranks.leads:
        run.lock = lock[0]
        warnings.append(run.overview.load(path, run.trainer.epoch))
    run.warnings = [warning for warning in warnings if warning is not None]
    return run

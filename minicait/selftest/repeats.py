"""Equal bits: a training that is repeated, and one that is interrupted and resumed from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..train import Trainer
from ..train.checkpoint import Snapshot, load_checkpoint
from . import training
from .report import DIFFERS, OK, Finding


def bits_are_equal(device: str, precisions: Sequence[str]) -> Finding:
    """Compare everything that a checkpoint holds: weights, moments, averages. No difference is allowed."""
    wrong, lines = [], []
    for precision in precisions:
        whole = trained(device, precision)
        again = {"repeated": trained(device, precision), "resumed": trained(device, precision, interrupted=True)}
        for how, arrays in again.items():
            apart = [name for name, value in arrays.items() if not np.array_equal(value, whole[name])]
            lines.append(f"{precision}, {how}: {len(apart)} of {len(whole)} arrays differ {' '.join(apart)}".rstrip())
            wrong += [f"{precision}, {how}"] if apart else []
    if wrong:
        return Finding(DIFFERS, f"other bits: {'; '.join(wrong)}", lines)
    return Finding(OK, f"equal bits when repeated and when resumed, in {', '.join(precisions)}", lines)


def trained(device: str, precision: str, interrupted: bool = False) -> dict[str, np.ndarray]:
    """Arrays of a trainer after some steps."""
    model, other = training.small_model(), training.small_model(seed=1)
    batches = training.some_batches(model)
    trainer = Trainer(model, training.RECIPE, device, precision=precision)
    for number, (images, labels) in enumerate(batches):
        if interrupted and number == len(batches) // 2:
            trainer = _resumed(trainer, Trainer(other, training.RECIPE, device, precision=precision))
        trainer.step(images, labels)
    found = {name: array.copy() for name, array in Snapshot.of(trainer).arrays.items()}
    trainer.close()
    return found


def _resumed(first: Trainer, second: Trainer) -> Trainer:
    """The second trainer, in the state of the first."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        Snapshot.of(first).write(path)
        first.close()
        load_checkpoint(second, path)
    return second

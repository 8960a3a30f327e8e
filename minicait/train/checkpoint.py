"""Checkpoints: everything a run needs to go on to the bit, in one file that is whole or not there.

Arrays are the weights, AdamW's two means, the EMA, and gradients that wait for their step; counts and the position in
the data are JSON in the file's metadata, with a hash of all arrays. No random state is needed: random numbers are named
by seed and step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from autograd.backend import to_device
from autograd.kernels.judge import Known

from ..files.tensorfile import open_tensors, write_tensors
from ..optim.parameters import zeros_like
from .progress import Position
from .trainer import Trainer


def save_checkpoint(trainer: Trainer, path: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write the state of a trainer, and anything else that JSON can hold."""
    trainer.settle()
    arrays = {key: to_device(array, "cpu") for key, array in _arrays(trainer).items()}
    state = {
        "config": trainer.model.config,
        "recipe": asdict(trainer.recipe),
        "batches": trainer.batches,
        "gate": trainer.gate.known._asdict(),
        "lr": trainer.optimiser.lr,
        "position": asdict(trainer.position),
        "waiting": sorted(trainer.waiting),
        "extra": dict(extra or {}),
    }
    text = json.dumps(state)
    write_tensors(path, arrays, {"minicait_checkpoint": text, "sha256": _digest(text, arrays)})


def load_checkpoint(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Put a trainer where the one that wrote the checkpoint was. Returns the extra that was saved with it.

    Nothing is changed unless the file is whole, unaltered, and of the same model and recipe.
    """
    state, arrays = read_checkpoint(path)
    for what, ours in (("config", trainer.model.config), ("recipe", asdict(trainer.recipe))):
        if state[what] != ours:
            different = sorted(key for key in {*ours, *state[what]} if ours.get(key) != state[what].get(key))
            raise ValueError(f"{path.name} is of another run: its {what} differs in {', '.join(different)}")
    own = {key: array for key, array in _arrays(trainer).items() if not key.startswith("waiting/")}
    own |= {f"waiting/{name}": trainer.optimiser.mean[name] for name in state["waiting"]}
    if {key: array.shape for key, array in own.items()} != {key: array.shape for key, array in arrays.items()}:
        raise ValueError(f"{path.name} is of another run: its arrays are others")
    waiting = {name: mean for name, mean in trainer.optimiser.mean.items() if name in state["waiting"]}
    trainer.waiting = zeros_like(waiting) if waiting else {}
    for key, array in _arrays(trainer).items():
        array[...] = to_device(arrays[key], trainer.device)
    trainer.batches, trainer.optimiser.lr = state["batches"], state["lr"]
    trainer.gate.restore(Known(**state["gate"]))
    trainer.position = Position(**state["position"])
    return state["extra"]


def checkpoint_state(path: Path) -> dict[str, Any]:
    """What a checkpoint knows beside its arrays: configuration, recipe, position, and the extra."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    metadata = open_tensors(path).metadata
    if "minicait_checkpoint" not in metadata:
        raise ValueError(f"{path.name} is no checkpoint of a training run")
    return json.loads(metadata["minicait_checkpoint"])


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The state and the arrays of a checkpoint, checked against its hash."""
    state, file = checkpoint_state(path), open_tensors(path)
    arrays = {name: file.read(name) for name in file.entries}
    if _digest(file.metadata["minicait_checkpoint"], arrays) != file.metadata.get("sha256"):
        raise ValueError(f"{path.name} was altered or damaged: its content does not fit its hash")
    return state, arrays


def _arrays(trainer: Trainer) -> dict[str, Any]:
    """All arrays of a trainer by name: the very ones it uses."""
    parts = {
        "model": {name: p.data for name, p in trainer.model.named_parameters()},
        "mean": trainer.optimiser.mean,
        "square": trainer.optimiser.square,
        "ema": {} if trainer.ema is None else trainer.ema.average,
        "waiting": trainer.waiting,
    }
    return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()

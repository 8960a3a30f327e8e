"""Checkpoints: everything a run needs to continue to the bit, in one file that is whole or not there.

Arrays are the weights and buffers, AdamW's two moments, the EMA, and accumulated gradients; counts and losses are JSON
in the file's metadata, with a hash of all arrays. No random state is needed: random numbers are named by seed and step.
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

from ..files.tensorfile import open_tensors, write_tensors
from ..models import Model, family_named, family_of
from .trainer import Trainer


def save_checkpoint(trainer: Trainer, path: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write the state of a trainer, and anything else that JSON can hold."""
    arrays = {key: to_device(array, "cpu") for key, array in _arrays(trainer).items()}
    state = {
        "family": getattr(family_of(trainer.model), "name", None),
        "config": _config(trainer),
        "recipe": asdict(trainer.recipe),
        "scaler": trainer.scaler.state_dict(),
        "batches": trainer.batches,
        "epoch": trainer.epoch,
        "losses": trainer.losses,
        "steps": trainer.optimiser.steps,
        "ema_steps": 0 if trainer.ema is None else trainer.ema.steps,
        "lr": trainer.optimiser.lr,
        "extra": dict(extra or {}),
    }
    text = json.dumps(state)
    write_tensors(path, arrays, {"minicait_checkpoint": text, "sha256": _digest(text, arrays)})


def load_checkpoint(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Put a trainer where the one that wrote the checkpoint was. Return the extra that was saved with it.

    Nothing changes unless the file is whole, unaltered, and of the same model and recipe.
    """
    state, arrays = read_checkpoint(path)
    for what, ours in (("config", _config(trainer)), ("recipe", asdict(trainer.recipe))):
        if state[what] != ours:
            different = sorted(key for key in {*ours, *state[what]} if ours.get(key) != state[what].get(key))
            raise ValueError(f"{path.name} is of another run: its {what} differs in {', '.join(different)}")
    before = trainer.accumulated
    trainer.accumulated = trainer.optimiser.parameters.zeros() if "accumulated" in arrays else None
    own = _arrays(trainer)
    if {key: array.shape for key, array in own.items()} != {key: array.shape for key, array in arrays.items()}:
        trainer.accumulated = before
        raise ValueError(f"{path.name} is of another run: its arrays have other names or shapes")
    for key, array in own.items():
        array[...] = to_device(arrays[key], trainer.device)
    trainer.scaler.load_state_dict(state["scaler"])
    trainer.batches, trainer.epoch, trainer.losses = state["batches"], state["epoch"], state["losses"]
    trainer.optimiser.steps, trainer.optimiser.lr = state["steps"], state["lr"]
    if trainer.ema is not None:
        trainer.ema.steps = state["ema_steps"]
    return state["extra"]


def _config(trainer: Trainer) -> dict[str, Any]:
    """Configuration of a Model; other modules have none."""
    return trainer.model.config.to_json() if isinstance(trainer.model, Model) else {}


def checkpoint_state(path: Path) -> dict[str, Any]:
    """Everything in a checkpoint but its arrays: configuration, recipe, counts, and the extra."""
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    metadata = open_tensors(path).metadata
    if "minicait_checkpoint" not in metadata:
        raise ValueError(f"{path.name} is not a training checkpoint")
    return json.loads(metadata["minicait_checkpoint"])


def checkpoint_model(path: Path) -> Model:
    """A model of the kind that a checkpoint is of, with new weights."""
    state = checkpoint_state(path)
    if state["family"] is None:
        raise ValueError(f"{path.name} is of a model that belongs to no family: create it, and load the checkpoint")
    family = family_named(state["family"])
    return family.model.from_config(family.model.config_type.from_json(state["config"]))


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
        "model": {name: tensor.data for name, tensor in trainer.model.named_tensors()},
        "mean": trainer.optimiser.mean,
        "square": trainer.optimiser.square,
        "ema": {} if trainer.ema is None else {**trainer.ema.average, **trainer.ema.buffers},
    }
    named = {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}
    return named if trainer.accumulated is None else {**named, "accumulated": trainer.accumulated.array}


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()

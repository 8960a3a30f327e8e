"""Checkpoints: everything a run needs to continue to the bit, in one file that is whole or not there.

Arrays are the weights and buffers, the optimiser's two moments, the EMA, accumulated gradients, and the losses of the
epoch; counts are JSON in the file's metadata, with a hash of all arrays. No random state is needed: random numbers are
named by seed and step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autograd.backend import to_device

from ..files.tensorfile import open_tensors, write_tensors
from ..machine import numerics
from ..models import Model, check_fits, family_named, family_of
from ..schema import check_fields, from_json
from .gradients import AS_GRAPH
from .trainer import Trainer

MAX_COUNT = 2**62
LOSSES = "losses"  # the array of those of this epoch


class DamagedCheckpointError(ValueError):
    """The file is missing, cut short, or not what was written."""


@dataclass(frozen=True)
class State:
    """Everything in a checkpoint but its arrays."""

    family: str | None  # of the model; None if it belongs to none
    config: dict[str, Any]
    recipe: dict[str, Any]
    scaler: dict[str, float]
    batches: int
    epoch: int
    steps: int
    ema_steps: int
    lr: float
    extra: dict[str, Any]
    numerics: dict[str, str] = field(default_factory=dict)  # libraries and kernels that determine the last bits

    def __post_init__(self) -> None:
        check_fields(self, dict.fromkeys(("batches", "epoch", "steps", "ema_steps", "lr"), (0, MAX_COUNT)))


class Checkpoint(NamedTuple):
    """A checkpoint in memory, checked against its hash."""

    path: Path
    state: State
    arrays: dict[str, np.ndarray]

    @property
    def losses(self) -> np.ndarray:
        """Losses of the batches of this epoch."""
        return self.arrays.get(LOSSES, np.zeros(0))

    def model(self) -> Model:
        """A model of the kind that the checkpoint is of, with new weights."""
        name = self.path.name
        if self.state.family is None:
            raise ValueError(f"{name} is of a model that belongs to no family: create it, and load the checkpoint")
        shapes = {key: array.shape for key, array in self.arrays.items() if key.startswith("model/")}
        try:
            family = family_named(self.state.family)
            config = family.model.config_type.from_json(self.state.config)
            check_fits(config, shapes)  # before a giant is built
        except ValueError as error:
            raise ValueError(f"{name} is damaged: it does not hold the model that it describes ({error})") from error
        return family.model.from_config(config)

    def load_into(self, trainer: Trainer) -> None:
        """Put a trainer where the one that wrote the checkpoint was.

        Nothing changes unless the checkpoint is of the same model and recipe.
        """
        state, name = self.state, self.path.name
        for what, ours, theirs in (("config", _config(trainer), state.config),
                                   ("recipe", asdict(trainer.recipe), state.recipe)):  # fmt: skip
            if theirs != ours:
                different = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
                raise ValueError(f"{name} is of another run: its {what} differs in {', '.join(different)}")
        before = trainer.accumulated
        trainer.accumulated = trainer.optimiser.parameters.zeros() if "accumulated" in self.arrays else None
        own = _arrays(trainer, trainer.device)
        try:
            stored = {key: array for key, array in self.arrays.items() if key != LOSSES}
            if max(state.steps, state.ema_steps) > state.batches:
                raise ValueError(f"{name} is damaged: it has more steps than batches")
            if _kinds(own) != _kinds(stored) or self.losses.ndim != 1 or self.losses.dtype != np.float64:
                raise ValueError(f"{name} is of another run: its arrays have other names, shapes or types")
            trainer.scaler.load_state_dict(state.scaler)
        except ValueError:
            trainer.accumulated = before
            raise
        for key, array in own.items():
            array[...] = to_device(self.arrays[key], trainer.device)
        trainer.batches, trainer.epoch, trainer.losses = state.batches, state.epoch, self.losses.tolist()
        trainer.optimiser.steps, trainer.optimiser.lr = state.steps, state.lr
        if trainer.ema is not None:
            trainer.ema.steps = state.ema_steps


class Snapshot(NamedTuple):
    """State of a trainer at one moment, ready to be written.

    From a GPU it is a copy, and training may continue while it is written. On a CPU it holds the trainer's own arrays,
    to be written before the next step: a copy would take four times the memory of the weights, and save little time.
    """

    text: str  # JSON of a State
    arrays: dict[str, np.ndarray]

    @staticmethod
    def of(trainer: Trainer, extra: Mapping[str, Any] | None = None) -> Snapshot:
        """The trainer's state, and anything else that JSON can hold."""
        arrays = {**_arrays(trainer, "cpu"), LOSSES: np.array(trainer.losses, np.float64)}
        family, ema = family_of(trainer.model), trainer.ema
        state = State(
            None if family is None else family.name, _config(trainer), asdict(trainer.recipe),
            trainer.scaler.state_dict(), trainer.batches, trainer.epoch, trainer.optimiser.steps,
            0 if ema is None else ema.steps, trainer.optimiser.lr, dict(extra or {}), numerics_of(trainer),
        )  # fmt: skip
        return Snapshot(json.dumps(asdict(state)), arrays)

    def write(self, path: Path, previous: Path | None = None) -> None:
        """Write a checkpoint. The one that was at `path` is renamed to `previous`, if that is given."""
        metadata = {"minicait_checkpoint": self.text, "sha256": _digest(self.text, self.arrays)}
        write_tensors(path, self.arrays, metadata, previous)


def save_checkpoint(trainer: Trainer, path: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write the state of a trainer, and anything else that JSON can hold."""
    Snapshot.of(trainer, extra).write(path)


def load_checkpoint(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Put a trainer where the one that wrote the checkpoint was. Return the extra that was saved with it."""
    checkpoint = read_checkpoint(path)
    checkpoint.load_into(trainer)
    return checkpoint.state.extra


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file, check it against its hash, and only then believe what it says."""
    if not path.is_file():
        raise DamagedCheckpointError(f"there is no checkpoint {path}")
    try:
        file = open_tensors(path)
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    if (text := file.metadata.get("minicait_checkpoint")) is None:
        raise ValueError(f"{path.name} is not a training checkpoint")
    arrays = {name: file.read(name) for name in file.entries}
    if _digest(text, arrays) != file.metadata.get("sha256"):
        raise DamagedCheckpointError(f"{path.name} was altered or damaged: its content does not fit its hash")
    try:
        return Checkpoint(path, from_json(State, json.loads(text)), arrays)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not of this version: it describes no training ({error})") from error


def numerics_of(trainer: Trainer) -> dict[str, str]:
    """Everything that determines the last bits of a training: a graph computes what stochastic depth drops, too.

    Before the first batch, it is not known if there can be a graph.
    """
    launched = trainer.gradients.graph_line()
    graph = {} if launched is None else {"CUDA graph": "on" if launched == AS_GRAPH else "off"}
    return numerics(trainer.device) | graph


def _config(trainer: Trainer) -> dict[str, Any]:
    """Configuration of a Model; other modules have none."""
    return trainer.model.config.to_json() if isinstance(trainer.model, Model) else {}


def _kinds(arrays: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {key: (array.shape, array.dtype.name) for key, array in arrays.items()}


def _arrays(trainer: Trainer, device: str) -> dict[str, Any]:
    """All arrays of a trainer by name: the very ones it uses if it is on this device, else copies.

    Of parameters, whole flat arrays are copied: that is four copies from a GPU, and not one for each of 1,700 tensors.
    """
    parameters, ema = trainer.optimiser.parameters, trainer.ema
    parameters.attach()
    flat = {"model": parameters.weights, "mean": trainer.optimiser.mean, "square": trainer.optimiser.square}
    flat |= {} if ema is None else {"ema": ema.average}
    buffers = {"model": {name: buffer.data for name, buffer in trainer.model.named_buffers()}}
    buffers |= {} if ema is None else {"ema": ema.buffers}
    accumulated = {} if trainer.accumulated is None else {"accumulated": trainer.accumulated.array}
    return {
        **{f"{part}/{name}": view for part, arrays in flat.items() for name, view in arrays.on(device).items()},
        **{f"{part}/{name}": to_device(x, device) for part, arrays in buffers.items() for name, x in arrays.items()},
        **{name: to_device(x, device) for name, x in accumulated.items()},
    }


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()

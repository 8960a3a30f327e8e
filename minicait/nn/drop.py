"""Dropout, and stochastic depth: residual branches that some samples skip in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any

import numpy as np

from autograd import Tensor, ops, random
from autograd.backend import Array, on_device_of, to_device
from autograd.tensor import as_tensor

from .module import Module

# by the id of a layer: samples that keep their branch, or a factor for every sample
_rows: ContextVar[dict[int, Array | None]] = ContextVar("minicait_drop_path_rows", default={})  # noqa: B039
_factors: ContextVar[dict[int, Array]] = ContextVar("minicait_drop_path_factors", default={})  # noqa: B039


class Dropout(Module):
    """Dropout: in training, drops values with probability `rate`. `purpose` names the layer's random stream."""

    drop = staticmethod(ops.dropout)

    def __init__(self, rate: float, purpose: str) -> None:
        self.rate = rate
        self.purpose = purpose

    def forward(self, x: Any) -> Tensor:
        if not self.training or self.rate == 0:
            return as_tensor(x)
        stream = random.current() or self.next_stream()
        return self.drop(x, self.rate, stream.named(self.purpose))

    def describe(self) -> str:
        return f"{self.rate}"


class DropPath(Dropout):
    """Stochastic depth: in training, drops the whole residual branch of a sample with probability `rate`.

    As a layer it drops what was computed; `residual` asks for `rows` first and does not compute the rest. Inside
    `drop_path_factors`, shapes cannot change: every sample has a factor, 0 for those that are dropped.
    """

    drop = staticmethod(ops.drop_path)

    def forward(self, x: Any) -> Tensor:
        if (factors := self.given_factors) is None:
            return super().forward(x)
        x = as_tensor(x)
        return x * on_device_of(factors).astype(x.dtype, copy=False).reshape(-1, *(1,) * (x.ndim - 1))

    def rows(self, samples: int) -> Array | None:
        """Indices of the samples that keep their branch, or None if all do; as drawn by `drop_paths_drawn`, or now."""
        drawn = _rows.get()
        return drawn[id(self)] if id(self) in drawn else self.kept(samples)

    def kept(self, samples: int) -> np.ndarray | None:
        """Draw the samples that keep their branch, as indices; None if all do."""
        if not self.active:
            return None
        stream = random.current() or self.next_stream()
        rows = np.flatnonzero(stream.named(self.purpose).uniform((samples,)) >= self.rate)
        return None if len(rows) == samples else rows

    @property
    def active(self) -> bool:
        return self.training and self.rate > 0

    @property
    def factor(self) -> float:
        """Scale of the branches that are kept, so that their mean stays the same."""
        return 1 / (1 - self.rate) if self.training else 1.0

    @property
    def given_factors(self) -> Array | None:
        """Factors of `drop_path_factors` for this layer."""
        return _factors.get().get(id(self))


def drop_path_layers(modules: Iterable[Module]) -> list[DropPath]:
    """Layers of stochastic depth that drop something."""
    return [module for module in modules if isinstance(module, DropPath) and module.active]


def drawn_factors(layers: Sequence[DropPath], samples: int, stream: random.Stream) -> np.ndarray:
    """`factor` where a sample keeps its branch, 0 where it does not, (layers, samples): as `kept` draws them."""
    drawn = random.uniform_each([stream.named(layer.purpose) for layer in layers], samples)
    numbers = np.array([(layer.rate, layer.factor) for layer in layers], np.float32)  # as `kept` compares them
    rates, factors = numbers.reshape(-1, 2, 1).swapaxes(0, 1)
    return np.where(drawn >= rates, factors, np.float32(0))


@contextmanager
def drop_paths_drawn(model: Module, x: Tensor) -> Iterator[None]:
    """Draw for all branches of `model` at once which samples keep them, so that a GPU gets them in one copy."""
    layers = drop_path_layers(module for _, module in model.named_modules()) if x.device != "cpu" else []
    if not layers or layers[0].given_factors is not None or (stream := random.current()) is None:
        yield
        return
    rows = [np.flatnonzero(keeps) for keeps in drawn_factors(layers, x.shape[0], stream)]
    whole, ends = to_device(np.concatenate(rows), x.device), accumulate(map(len, rows))
    parts = (
        None if len(own) == x.shape[0] else whole[end - len(own) : end] for own, end in zip(rows, ends, strict=True)
    )
    token = _rows.set(dict(zip(map(id, layers), parts, strict=True)))
    try:
        yield
    finally:
        _rows.reset(token)


@contextmanager
def drop_path_factors(layers: Sequence[DropPath], factors: Array) -> Iterator[None]:
    """Layers of stochastic depth take these factors, (layers, samples), instead of drawing which samples they keep."""
    token = _factors.set({id(layer): own for layer, own in zip(layers, factors, strict=True)})
    try:
        yield
    finally:
        _factors.reset(token)

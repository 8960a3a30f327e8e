"""record: the one way to see inside a model, without a second implementation of anything.

Layers offer what they compute to `observe` or `observer`; outside of a `with record(model)` block nobody listens, and
that costs one look at a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autograd import Tensor, no_grad
from autograd.backend import Array, to_device

if TYPE_CHECKING:
    from .module import Module


class Attention(NamedTuple):
    """Maps (B, heads, queries, keys). Each row of `before` sums to one; `after` the heads were mixed, it need not."""

    before: np.ndarray
    after: np.ndarray


class Residual(NamedTuple):
    """x + branch: the main path and what a block adds to it, after LayerScale and before stochastic depth."""

    main: np.ndarray
    branch: np.ndarray

    @property
    def ratio(self) -> float:
        """||branch|| / ||main||, the paper's Fig. 4; the mean over samples and tokens."""
        norms = (np.linalg.norm(x, axis=-1) for x in (self.branch, self.main))
        return float(np.mean(np.divide(*norms)))


@dataclass
class Record:
    """What the last forward pass computed, by the name of the layer: `record.attention["blocks.0.attn"].before`.

    attention        self-attention between patches, before and after head mixing
    class_attention  of the class token, to itself (first) and to every patch: (B, heads, 1, 1 + patches)
    residual         both branches of every block, "blocks.0.attn" and "blocks.0.mlp"
    """

    attention: dict[str, Attention] = field(default_factory=dict)
    class_attention: dict[str, np.ndarray] = field(default_factory=dict)
    residual: dict[str, Residual] = field(default_factory=dict)


_Listener = tuple[Record, dict[int, str]]  # and the names of the layers that it listens to, by their id
_listening: ContextVar[tuple[_Listener, ...]] = ContextVar("minicait_record", default=())


@contextmanager
def record(model: Module) -> Iterator[Record]:
    """Keep the attention maps and residual branches of `model`: with record(model) as r: model(images)."""
    names = {id(module): name for name, module in model.named_modules()}
    result = Record()
    token = _listening.set((*_listening.get(), (result, names)))
    try:
        yield result
    finally:
        _listening.reset(token)


def stop_listening() -> None:
    """In a new process, which nobody will ask for what it heard."""
    _listening.set(())


def is_recorded() -> bool:
    """Whether somebody listens, to whichever model."""
    return bool(_listening.get())


def observer(layer: Module, of_class_token: bool = False) -> Callable[..., None] | None:
    """What an attention layer hands to its operation, or None when nobody listens."""
    listeners = [(result, names[id(layer)]) for result, names in _listening.get() if id(layer) in names]
    if not listeners:
        return None

    def observe(maps: Array, mixed: Array | None = None) -> None:
        before = to_device(maps, "cpu")
        after = before if mixed is None else to_device(mixed, "cpu")
        for result, name in listeners:
            if of_class_token:
                result.class_attention[name] = before
            else:
                result.attention[name] = Attention(before, after)

    return observe


def observe_residual(block: Module, part: str, main: Tensor, branch: Callable[[], Tensor], scale: Tensor) -> None:
    """Offer the two sides of x + scale * branch(): `part` is the name of the layer that made the branch."""
    for result, names in _listening.get():
        if id(block) in names:
            name = f"{names[id(block)]}.{part}" if names[id(block)] else part
            with no_grad():
                result.residual[name] = Residual(main.numpy(), (scale * branch()).numpy())

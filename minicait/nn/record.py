"""record: the one way to see inside a model, without a second implementation of anything.

Layers offer what they compute to `observer` and `observe_residual`; outside of a `with record(model)` block that costs
one look at a context variable.
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
    from .layers import Linear
    from .module import Module


class Attention(NamedTuple):
    """Maps (B, heads, queries, keys). Each row of `before` sums to one; `after` the heads were mixed, it need not."""

    before: np.ndarray
    after: np.ndarray
    mixing: np.ndarray | None = None  # (heads, heads + 1): the weights that mixed the heads, and their bias


class Residual(NamedTuple):
    """x + branch: the main path and what a block adds to it, after LayerScale and before stochastic depth."""

    main: np.ndarray
    branch: np.ndarray
    scale: np.ndarray | None = None  # LayerScale (dim,), one learned number (1,), or a constant ()

    @property
    def ratio(self) -> float:
        """||branch|| / ||main||, the paper's Fig. 4; the mean over samples and tokens."""
        norms = (np.linalg.norm(x, axis=-1) for x in (self.branch, self.main))
        return float(np.mean(np.divide(*norms)))


@dataclass
class Record:
    """Values of the last forward pass, by the name of the layer: `record.attention["blocks.0.attn"].before`.

    attention        self-attention between tokens, before and after head mixing
    class_attention  attention of the class token to itself (first) and to every patch: (B, heads, 1, 1 + patches); if
                     every class has a token, of each of them to every patch: (B, heads, classes, patches)
    residual         the branches of every block, "blocks.0.attn" and "blocks.0.mlp"
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
    """Forget all records, in a forked process."""
    _listening.set(())


def is_recorded() -> bool:
    """True if any model is being recorded."""
    return bool(_listening.get())


def observer(layer: Module, of_class_token: bool = False, mixing: Linear | None = None) -> Callable[..., None] | None:
    """Callback for an attention operation to hand its maps to, or None when nobody records."""
    listeners = [(result, names[id(layer)]) for result, names in _listening.get() if id(layer) in names]
    if not listeners:
        return None
    weights = None
    if mixing is not None and mixing.bias is not None:
        weights = np.hstack([mixing.weight.numpy(), mixing.bias.numpy()[:, None]])

    def observe(maps: Array, mixed: Array | None = None) -> None:
        before = to_device(maps, "cpu")
        after = before if mixed is None else to_device(mixed, "cpu")
        for result, name in listeners:
            if of_class_token:
                result.class_attention[name] = before
            else:
                result.attention[name] = Attention(before, after, weights)

    return observe


def observe_residual(branch: Module, main: Tensor, output: Callable[[], Tensor], scale: Tensor | float | None) -> None:
    """Offer both sides of x + scale * branch; `output` computes the branch, and is called only if somebody records."""
    for result, names in _listening.get():
        if id(branch) in names:
            with no_grad():
                y = output() if scale is None else scale * output()
            factor = scale.numpy() if isinstance(scale, Tensor) else None if scale is None else np.array(scale)
            result.residual[names[id(branch)]] = Residual(main.numpy(), y.numpy(), factor)

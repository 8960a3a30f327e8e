"""Gradient checkpointing: keep the inputs of a part of the graph, and recompute its activations in backward.

The graph itself is recorded as usual, so gradients also reach parameters that `fn` closes over. Only the arrays that
its operations saved are dropped; a second run recomputes them when backward first needs one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from . import modes
from .function import Context
from .tensor import Tensor


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """Call fn(*args), and recompute its activations in backward: less memory for about one extra forward pass.

    `fn` must do the same both times. Masks from an `autograd.random.Stream` or of a layer are the same; numbers from a
    stateful generator, or variables of the enclosing scope that have changed since, are not. Pass those as arguments.
    """
    if not modes.current().grad:
        return fn(*args)
    tape = _Tape(fn, args)
    with modes.changed(tape=tape):
        return fn(*args)


class _Tape:
    """All that a checkpoint needs to run again. Nodes reference it, not the reverse, so there is no reference cycle."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = args
        self.context = contextvars.copy_context()  # the second run uses the modes of the first
        self.outer = modes.current().tape  # in a nested checkpoint
        self.signatures: list[tuple[Any, ...]] = []  # operations of the first run, to compare
        self.drawn: list[Any] = []  # results of `modes.replayed` in the first run, in order
        self.recomputed: dict[int, tuple[Any, ...]] | None = None  # saved by the second run, by index of the operation

    def record(self, node: Context) -> None:
        node.restore = partial(self.restore, len(self.signatures))
        node.saved = ()
        self.signatures.append(_signature(node))

    def draw(self, draw: Callable[[], Any]) -> Any:
        self.drawn.append(draw() if self.outer is None else self.outer.draw(draw))
        return self.drawn[-1]

    def restore(self, index: int) -> tuple[Any, ...]:
        """Return what an operation saved. The first call runs fn again; every operation asks once."""
        if self.recomputed is None:
            replay = _Replay(self.drawn)
            self.context.copy().run(self.run_again, replay)
            if replay.signatures != self.signatures:
                difference = _difference(self.signatures, replay.signatures)
                raise RuntimeError(f"checkpoint: fn must do the same both times; {difference}")
            if any(True for _ in replay.drawn):
                raise RuntimeError(
                    "checkpoint: fn must do the same both times; it drew fewer random streams the second time"
                )
            self.recomputed = dict(enumerate(replay.saved))
        return self.recomputed.pop(index)

    def run_again(self, replay: _Replay) -> None:
        with modes.changed(tape=replay):
            self.fn(*self.args)


def _signature(node: Context) -> tuple[Any, ...]:
    """Cheap description of an operation: its name, its output shape and the leaves it used."""
    return node.function.name, node.shape, [id(p) for p in node.parents or [] if isinstance(p, Tensor)]


def _difference(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> str:
    for a, b in zip(first, second, strict=False):
        if a[:2] != b[:2]:
            return f"it ran {a[0]} {a[1]}, then {b[0]} {b[1]}"
        if a != b:
            return f"{a[0]} {a[1]} used other Tensors the second time (a loop variable that has changed?)"
    return f"it ran {len(first)} operations, then {len(second)}"


class _Replay:
    """The second run's tape: collects what every operation saves."""

    def __init__(self, drawn: list[Any]) -> None:
        self.drawn = iter(drawn)
        self.signatures: list[tuple[Any, ...]] = []
        self.saved: list[tuple[Any, ...]] = []

    def record(self, node: Context) -> None:
        self.signatures.append(_signature(node))
        self.saved.append(node.saved)

    def draw(self, _: Callable[[], Any]) -> Any:
        for value in self.drawn:
            return value
        raise RuntimeError("checkpoint: fn must do the same both times; it drew more random streams the second time")

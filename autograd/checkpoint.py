"""checkpoint: keep the inputs of a piece of the graph instead of what is inside, and compute that again in backward.

The graph itself is recorded as always, so gradients also reach parameters that `fn` uses without being given them. Only
the arrays that its operations saved are dropped, and made again by a second run when backward first needs one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from . import modes
from .function import Context
from .tensor import Tensor


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """fn(*args), with its activations recomputed in backward: less memory for about one more forward.

    `fn` must do the same both times. Masks from an `autograd.random.Stream` do; a generator with a state does not, nor
    does a variable that fn reads from around it and that has changed by then. Pass such things as arguments.
    """
    if not modes.current().grad:
        return fn(*args)
    tape = _Tape(fn, args)
    with modes.changed(tape=tape):
        return fn(*args)


class _Tape:
    """What a checkpoint needs to run again. It holds no nodes (they hold it), so there is no reference cycle."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = args
        self.context = contextvars.copy_context()  # the second run happens in the modes of the first
        self.made: list[tuple[Any, ...]] = []  # the operations of the first run, to compare
        self.again: dict[int, tuple[Any, ...]] | None = None  # what the second run saved, by number of the operation

    def record(self, node: Context) -> None:
        node.tape = _Place(self, len(self.made))
        node.saved = ()
        self.made.append(_signature(node))

    def run_again(self) -> dict[int, tuple[Any, ...]]:
        replay = _Replay()

        def run() -> None:
            with modes.changed(tape=replay):
                self.fn(*self.args)

        self.context.copy().run(run)
        if replay.made != self.made:
            raise RuntimeError(f"checkpoint: fn must do the same both times; {_difference(self.made, replay.made)}")
        return dict(enumerate(replay.saved))


def _signature(node: Context) -> tuple[Any, ...]:
    """What an operation was, as far as it costs nothing to tell: its name, shape, and the leaves it used."""
    return node.function.name, node.shape, [id(p) for p in node.parents or [] if isinstance(p, Tensor)]


def _difference(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> str:
    for a, b in zip(first, second, strict=False):
        if a[:2] != b[:2]:
            return f"it did {a[0]} {a[1]}, then {b[0]} {b[1]}"
        if a != b:
            return f"{a[0]} {a[1]} used other Tensors the second time (a variable of a loop, read too late?)"
    return f"it did {len(first)} operations, then {len(second)}"


class _Place:
    """One operation's place in a tape."""

    __slots__ = ("number", "tape")

    def __init__(self, tape: _Tape, number: int) -> None:
        self.tape = tape
        self.number = number

    def restore(self, node: Context) -> None:
        if self.tape.again is None:
            self.tape.again = self.tape.run_again()
        node.saved = self.tape.again.pop(self.number)
        node.tape = None


class _Replay:
    """The second run's tape: collects what every operation saves."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.saved: list[tuple[Any, ...]] = []

    def record(self, node: Context) -> None:
        self.made.append(_signature(node))
        self.saved.append(node.saved)

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


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """fn(*args), with its activations recomputed in backward: less memory for about one more forward.

    `fn` must do the same both times. Masks from an `autograd.random.Stream` do; a generator with a state does not.
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
        self.made: list[str] = []  # the operations of the first run, to compare
        self.again: dict[int, tuple[Any, ...]] | None = None  # what the second run saved, by number of the operation

    def record(self, node: Context) -> None:
        node.tape = _Place(self, len(self.made))
        node.saved = ()
        self.made.append(f"{node.function.name} {node.shape}")

    def run_again(self) -> dict[int, tuple[Any, ...]]:
        replay = _Replay()

        def run() -> None:
            with modes.changed(tape=replay):
                self.fn(*self.args)

        self.context.copy().run(run)
        if replay.made != self.made:
            first, second = next(
                ((a, b) for a, b in zip(self.made, replay.made, strict=False) if a != b),
                (f"{len(self.made)} operations", f"{len(replay.made)}"),
            )
            raise RuntimeError(f"checkpoint: fn must do the same both times; it did {first}, then {second}")
        return dict(enumerate(replay.saved))


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
        self.made: list[str] = []
        self.saved: list[tuple[Any, ...]] = []

    def record(self, node: Context) -> None:
        self.made.append(f"{node.function.name} {node.shape}")
        self.saved.append(node.saved)

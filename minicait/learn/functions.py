"""Checks of a learner's Function beside the project's operation: forward, backward, and how backward goes about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autograd as ag
from autograd.cases import CASES
from autograd.contract import ContractError

from .compare import OVERFLOW, Slips, cotangent, same, unchanged
from .exercise import Wrong
from .learner import Learner

EXAMPLE = "the example of the docstring"


@dataclass
class Tried:
    """A case: arguments of an operation, and the upstream gradient, unless it is random."""

    name: str
    arrays: list[np.ndarray]
    settings: dict[str, Any] = field(default_factory=dict)
    g: np.ndarray | None = None

    def astype(self, dtype: Any) -> Tried:
        """A copy, with this dtype."""
        settings = {k: v.astype(dtype) if isinstance(v, np.ndarray) else v for k, v in self.settings.items()}
        g = None if self.g is None else self.g.astype(dtype)
        return Tried(self.name, [x.astype(dtype) for x in self.arrays], settings, g)

    def named(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """All arrays, with those among the settings. `names` are those of the inputs."""
        settings = {k: v for k, v in self.settings.items() if isinstance(v, np.ndarray)}
        return dict(zip(names, self.arrays, strict=True)) | settings


def overflow(tried: Tried, _: np.ndarray) -> Slips:
    """Softmax without a shift, for large scores."""
    return [OVERFLOW] if np.abs(tried.arrays[0]).max() > 100 else []


def table(op: str, *variants: str, prefix: str = "", between: str = ", ") -> list[Tried]:
    """Rows of the project's own table of cases, which test its operations, named by their shapes behind the prefix."""
    found = [case.arrays() for case in CASES if case.op == op and case.variant in variants]
    return [Tried(prefix + between.join(str(x.shape) for x in arrays), arrays) for arrays in found]


def normal(name: str, *shapes: tuple[int, ...], size: float = 1.0, seed: int = 0, **settings: Any) -> Tried:
    """A case with normal arrays of these shapes."""
    rng = np.random.default_rng([seed, len(shapes)])
    return Tried(name, [size * rng.standard_normal(shape) for shape in shapes], settings)


def check_function(
    me: Learner, theirs: Any, ours: Callable[..., ag.Tensor], names: Sequence[str], cases: Iterable[Tried],
    forward: bool = True, backward: bool = True, slips: Callable[[Tried, np.ndarray], Slips] = lambda tried, g: (),
) -> None:  # fmt: skip
    """Raise Wrong unless a learner's Function does what the project's operation does, in float64 and in float32.

    names  of the arrays, as the starter has them
    cases  the first without a g of its own is an ordinary one: there, `autograd.check_grads` runs, too
    slips  what typical mistakes make of a case and its upstream gradient, as output or as gradient
    """
    cases = list(cases)
    for tried in cases:
        for dtype in (np.float64, np.float32):
            me.case = tried.name + (", float32" if dtype == np.float32 else "")
            _compare(me, theirs, ours, names, tried.astype(dtype), forward, backward, slips)
    if backward and (ordinary := next((tried for tried in cases if tried.g is None), None)):
        me.case = ordinary.name
        contract(me, theirs, ordinary)


def context(me: Learner, theirs: Any, arrays: Sequence[np.ndarray]) -> Any:
    """The ctx that forward gets for these arrays: a node of the learner's own engine."""
    make = me.get("tensor.Tensor")
    return me.get("tensor.Context")(theirs, tuple(make(x, requires_grad=True) for x in arrays))


def _compare(
    me: Learner, theirs: Any, ours: Callable[..., ag.Tensor], names: Sequence[str], tried: Tried,
    forward: bool, backward: bool, slips: Callable[[Tried, np.ndarray], Slips],
) -> None:  # fmt: skip
    given = tried.astype(tried.arrays[0].dtype)
    ctx, before, now = context(me, theirs, given.arrays), tried.named(names), given.named(names)
    tensors = [ag.Tensor(x, requires_grad=True) for x in tried.arrays]
    want = ours(*tensors, **tried.settings)
    got = theirs.forward(ctx, *given.arrays, **given.settings)
    unchanged("forward", [*now], [*now.values()], [*before.values()])
    g = cotangent(want.shape, want.dtype) if tried.g is None else tried.g
    known = slips(tried, g)
    if forward:
        same("the output", got, want.numpy(), slips=known)
    if not backward:
        return
    gradients = [x.numpy() for x in ag.grad(want, tensors, g) if x is not None]
    for call in ("", " in a second call with the same ctx"):
        upstream = g.copy()
        found = theirs.backward(ctx, upstream)
        unchanged("backward", ["g", *now], [upstream, *now.values()], [g, *before.values()])
        same_gradients(names, found, gradients, call, known)


def same_gradients(
    names: Sequence[str], found: Any, gradients: Sequence[np.ndarray], call: str = "", slips: Slips = ()
) -> None:
    """Raise Wrong unless what a backward returned are these gradients."""
    if found is None:
        raise Wrong("backward returned None: is there a `return`?")
    found = found if isinstance(found, tuple | list) else (found,)
    if len(found) != len(names):
        listed = ", ".join(names)
        raise Wrong(f"backward returned {len(found)} gradients, expected {len(names)}, of {listed}")
    for name, got, want in zip(names, found, gradients, strict=True):
        if got is None:
            raise Wrong(f"backward returned None for the gradient of {name}")
        same(f"the gradient of {name}{call}", got, want, slips=slips)


def contract(me: Learner, theirs: Any, tried: Tried) -> None:
    """Run a learner's Function on the project's engine, under `autograd.check_grads`: see `autograd.contract`."""

    def forward(ctx: Any, *arrays: np.ndarray) -> Any:
        own = context(me, theirs, arrays)
        y = theirs.forward(own, *arrays, **tried.settings)
        ctx.save(own, *vars(own).values())  # their arrays, too: the contract watches what is saved
        return y

    def backward(ctx: Any, g: np.ndarray) -> Any:
        return theirs.backward(ctx.saved[0], g)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    adapted: Any = type(theirs.__name__, (ag.Function,), methods)
    try:
        ag.check_grads(adapted.apply, tried.arrays, directions=1, float32_tolerance=None)
    except (ag.GradientError, ContractError) as error:
        sentence = str(error).splitlines()[0].partition(" (operations: ")[0]
        raise Wrong(f"autograd.check_grads: {sentence.removeprefix('check_grads: ')}") from None

"""Mutation tests: the mistakes of `tests.engine.mistakes` are injected into every operation, and all must be caught.

`pytest tests/engine/test_mutations.py -s` prints the table: kinds of mistakes, operations, how many were injected.
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
from autograd import gradcheck, ops
from autograd.cases import CASES
from autograd.function import Context
from autograd.ops.nn import Softmax
from tests.engine import mistakes
from tests.engine.mistakes import Call, scaled
from tests.engine.test_op_cases import FUNCTIONS, check_float16, functions_used, values_and_gradients

README = Path(__file__).parents[2] / "README.md"
ALL = {cls.name for cls in FUNCTIONS} - {"to_device"}  # needs two devices
USED = {case: functions_used(case) for case in CASES}
SMALL = [case for case in CASES if sum(x.size for x in case.arrays()) < 200]
ALWAYS = (mistakes.overwrites_saved, mistakes.overwrites_upstream)

# Operations that a mistake cannot be made in: they save no array, or the same one for any input, or have one input.
SAVE_NO_VALUES = {"add", "astype", "broadcast_to", "concat", "cumsum", "flip", "mean"}
SAVE_NO_VALUES |= {"negative", "pad", "reshape", "subtract", "sum", "transpose", "tril"}
SAVE_A_CHOICE = {"clip", "dropout", "getitem", "max", "min", "take_along_axis", "where"}
CONSTANT = SAVE_NO_VALUES - {"transpose"} | {"dropout", "kl_div", "where"}  # conv2d transposes twice
SEVERAL_INPUTS = {"add", "subtract", "multiply", "divide", "pow", "maximum", "minimum", "where", "concat", "matmul"}
SEVERAL_INPUTS |= {"einsum", "linear", "layer_norm", "linear_residual", "attention", "talking_heads_attention"}
SEVERAL_INPUTS |= {"conv2d", "batch_norm", "query_attention", "affine", "token_linear"}
IMPOSSIBLE = {
    "last entry lost": {"dropout"},  # the last entry is dropped anyway
    "gradients swapped": ALL - SEVERAL_INPUTS,
    "overwrites what it saved": SAVE_NO_VALUES | SAVE_A_CHOICE,
    "state on the class": CONSTANT,
    "cache of the first call": CONSTANT,
}


def check_float64(case):
    ag.check_grads(case.fn, case.arrays(), float32_tolerance=None)


def check_float32(case):
    ag.check_grads(case.fn, case.arrays(), directions=0)


KINDS = {  # a mistake, cases to catch it, the check, and the operations to inject it into
    **{kind: (mistake, SMALL, check_float64, ALL) for kind, mistake in (mistakes.VALUES | mistakes.MANNERS).items()},
    **{kind: (mistake, CASES, check_float64, ALL) for kind, mistake in mistakes.STRUCTURE.items()},
    **{kind: (mistake, CASES, check_float64, names) for kind, (names, mistake) in mistakes.ARGUMENTS.items()},
    "float32 off by 5e-5": (mistakes.scaled_in(np.float32, 1 + 5e-5), SMALL, check_float32, ALL),
    "float16 off by 1 %": (mistakes.scaled_in(np.float16, 1.01), SMALL, check_float16, ALL),
}  # fmt: skip


@contextmanager
def injected(cls, mistake):
    """Inject a mistake into a Function. The list says for each call of backward whether the mistake was made."""
    forward, backward = cls.forward, cls.backward
    made, state, arguments = [], {}, {}

    def right(ctx, g):
        result = backward(ctx, g)
        return list(result) if isinstance(result, tuple) else [result]

    def recording(ctx, *args, **kwargs):
        result = forward(ctx, *args, **kwargs)
        state.setdefault("first", ctx.saved)
        state["last"] = ctx.saved
        arguments[id(ctx)] = ctx, args, kwargs  # keep ctx alive, so that its id stays unique
        return result

    def wrong(ctx, g):
        want = [None if x is None else np.array(x) for x in right(ctx, g)]
        _, args, kwargs = arguments[id(ctx)]
        got = mistake(Call(cls, forward, right, ctx, g, args, kwargs, state))
        made.append(got is not None and (mistake in ALWAYS or not all(map(same, got, want))))
        return tuple(want if got is None else got)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "forward", staticmethod(recording))
        patch.setattr(cls, "backward", staticmethod(wrong))
        yield made


def same(a, b) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))


def fails(check: Callable[..., None], case) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradcheck, "JACOBIAN_LIMIT", 0)  # nobody reads the message
        try:
            check(case)
        except AssertionError:
            return True
    return False


@cache
def inject(kind: str) -> dict[str, bool]:
    """Inject a kind of mistake into one operation after the other. Was it caught in each that it was made in?

    Wrong values must fail in every case, other mistakes in one.
    """
    mistake, cases, check, names = KINDS[kind]
    found: dict[str, bool] = {}
    for case in cases:
        for cls in USED[case]:
            if cls.name not in names or (found.get(cls.name) and kind not in mistakes.VALUES):
                continue
            with injected(cls, mistake) as made, np.errstate(all="ignore"):
                if cases is CASES:  # many are large, and few of them can show the mistake
                    values_and_gradients(case.fn, case.arrays())
                    if not any(made):
                        continue
                failed = fails(check, case)
                if any(made):
                    found[cls.name] = failed and found.get(cls.name, True) if kind in mistakes.VALUES else failed
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_injected_mistake_is_caught(kind):
    found = inject(kind)
    assert {name for name, was_caught in found.items() if not was_caught} == set(), "not caught by any case"
    expected = KINDS[kind][-1] - IMPOSSIBLE.get(kind, set())
    assert set(found) == expected, "an operation needs a case that shows this mistake, or belongs in IMPOSSIBLE"


def test_the_readme_says_how_many():
    names = sorted(ALL)
    print(f"\n{len(KINDS)} kinds of mistakes (x: injected and caught) in {len(names)} operations: {', '.join(names)}")
    for kind in KINDS:
        print(f"{kind:34}{''.join('x' if inject(kind).get(name) else '.' for name in names)} {len(inject(kind)):4}")
    injected, caught = (
        sum(count(inject(kind)) for kind in KINDS) for count in (len, lambda found: sum(found.values()))
    )
    print(f"{injected:,} injected, {caught:,} caught")
    assert injected == caught
    claim = f"{caught:,} mistakes of {len(KINDS)} kinds"
    assert claim in " ".join(README.read_text("utf-8").split()), f"the README must say: {claim}"


def test_without_a_mistake_nothing_is_caught():
    for case in SMALL:
        check_float64(case)
        check_float32(case)
        check_float16(case)


def test_missing_unbroadcast_is_caught(monkeypatch):
    monkeypatch.setattr(Context, "unbroadcast", lambda ctx, i, g: g if ctx.needs[i] else None)
    broadcasting = [c for c in CASES if c.variant == "broadcast"]
    assert len(broadcasting) >= 7
    for case in broadcasting:
        with pytest.raises(ag.GradientError, match="must be"):
            ag.check_grads(case.fn, case.arrays())


@pytest.mark.parametrize("factor", [7, 1.001, 0])
def test_softmax_scaled(factor):
    """A mistake that the usual check misses, and this one catches."""
    x = np.random.default_rng(0).standard_normal((3, 4))

    with injected(Softmax, scaled(factor)):
        tensor = ag.Tensor(x, requires_grad=True)
        ops.softmax(tensor).sum().backward()  # the all-ones cotangent
        numerical = np.zeros_like(x)  # the sum of a softmax is constant
        np.testing.assert_allclose(tensor.grad.numpy(), numerical, atol=1e-6)

        with pytest.raises(ag.GradientError) as error:
            ag.check_grads(ops.softmax, x)
        if factor:
            assert f"the analytic gradient is {factor} times the numerical one" in str(error.value)
        else:
            assert "the analytic gradient is zero" in str(error.value)

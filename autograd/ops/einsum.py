"""Sums of products in Einstein's notation: each axis has a letter, and those that the result lacks are summed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from .. import kernels
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import matmul_operands


class Einsum(Function):
    """y = sum of products of the operands;  dx = the same sum, with g in the place of x

    For "ij,jk->ik", da is "ik,jk->ij" of g and b. A letter that only one operand has is summed over there alone, so
    all values along its axis get the same gradient.
    """

    @staticmethod
    def forward(ctx: Context, *xs: Array, subscripts: str) -> Array:
        inputs, output = _letters(subscripts, xs)
        shapes = [x.shape for x in xs]
        ctx.save(inputs, output, shapes, *(x if any(_others(ctx.needs, i)) else None for i, x in enumerate(xs)))
        return _einsum(inputs, output, xs)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        inputs, output, shapes, *xs = ctx.saved

        def gradient(i: int) -> Array:
            others = [output, *_others(inputs, i)]
            known = "".join(letter for letter in inputs[i] if letter in "".join(others))
            dx = _einsum(others, known, [g, *_others(xs, i)])
            dx = dx.reshape([n if letter in known else 1 for letter, n in zip(inputs[i], shapes[i], strict=True)])
            return array_module(g).broadcast_to(dx, shapes[i])

        return tuple(gradient(i) if needed else None for i, needed in enumerate(ctx.needs))


def _others(items: list[Any], i: int) -> list[Any]:
    return items[:i] + items[i + 1 :]


def _einsum(inputs: list[str], output: str, xs: Sequence[Array]) -> Array:
    wide = [kernels.widened(x) for x in xs]
    y = array_module(xs[0]).einsum(f"{','.join(inputs)}->{output}", *wide, optimize="greedy")
    return y.astype(xs[0].dtype, copy=False)


def _letters(subscripts: str, xs: Sequence[Array]) -> tuple[list[str], str]:
    """The letters of each operand and of the result: by default those that occur once, in alphabetical order."""
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs, count = left.split(","), Counter(left.replace(",", ""))
    if not arrow:
        output = "".join(sorted(letter for letter in count if count[letter] == 1))
    if not {*count, *output} <= {*ascii_letters}:
        raise OperandError(f"subscripts must be letters, commas and one '->', got {subscripts!r}")
    if len(inputs) != len(xs):
        raise OperandError(f"{subscripts!r} is for {len(inputs)} operands, got {len(xs)}")
    sizes: dict[str, int] = {}
    for letters, x in zip(inputs, xs, strict=True):
        if len(letters) != x.ndim:
            raise OperandError(f"{letters!r} is for {len(letters)} axes, got an operand of shape {x.shape}")
        if len({*letters}) < len(letters):
            raise OperandError(f"{letters!r} has a letter twice, and diagonals are not supported")
        for letter, size in zip(letters, x.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise OperandError(f"all axes {letter!r} must have one size, got {sizes[letter]} and {size}")
    if len({*output}) < len(output) or not {*output} <= count.keys():
        raise OperandError(f"the result {output!r} must have letters of the operands, each once")
    return inputs, output


def einsum(subscripts: str, *xs: Any) -> Tensor:
    """Sum of products: `einsum("bqc,bkc->bqk", q, k)` sums over c. Each operand must have different letters."""
    if not isinstance(subscripts, str) or not xs:
        raise TypeError(f"einsum: expected a string and operands, got {subscripts!r} and {len(xs)} operands")
    return Einsum.apply(*matmul_operands("einsum", *xs), subscripts=subscripts)

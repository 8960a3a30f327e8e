"""Cost of a model from its sizes alone, before it is built: its parts, and their sum.

stem + depth * (attention + mlp) + linear(1, dim, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """Cost of a model, from its configuration alone."""

    parameters: int
    multiply_adds: int  # per image, forward; the papers call these FLOPs
    activation_bytes: int  # per image in float32: what forward saves for backward
    forward_bytes: int  # per image without backward: about one block's share of it
    left_out: int = 0  # those of the multiply-adds that need not be made


@dataclass(frozen=True)
class Part:
    """Cost of a part of a model: parameters, multiply-adds of one image, and values saved for backward.

    left_out  multiply-adds that the papers count, and that are not made
    """

    parameters: int = 0
    multiply_adds: int = 0
    saved: int = 0
    left_out: int = 0

    def __add__(self, other: Part) -> Part:
        sums = (getattr(self, name) + getattr(other, name) for name in vars(self))
        return Part(*sums)

    def __rmul__(self, count: int) -> Part:
        return Part(*(count * value for value in vars(self).values()))


def cost_of(stem: Part, blocks: tuple[tuple[int, Part], ...], head: Part) -> Cost:
    """Cost of a stem, blocks with their numbers, and a head."""
    whole = stem + head
    for count, block in blocks:
        whole += count * block
    largest = stem.saved + max((block.saved for _, block in blocks), default=0)
    return Cost(whole.parameters, whole.multiply_adds, 4 * whole.saved, 4 * largest, whole.left_out)


def linear(tokens: int, inputs: int, outputs: int, bias: bool = True) -> Part:
    """A linear layer, which saves its input. A convolution is one whose inputs are those of a kernel."""
    return Part(inputs * outputs + bias * outputs, tokens * inputs * outputs, tokens * inputs)


def values(count: int) -> Part:
    """Learned values: a token, positions, LayerScale."""
    return Part(parameters=count)


def layer_norm(tokens: int, dim: int) -> Part:
    """Layer normalisation, which saves x_hat and the inverse deviation of each token."""
    return Part(2 * dim, 0, tokens * (dim + 1))


def attention(tokens: int, dim: int, heads: int, qkv_bias: bool = True) -> Part:
    """Self-attention: saves q, k and v, and a map for each head."""
    maps = Part(0, 2 * tokens * tokens * dim, tokens * 3 * dim + heads * tokens * tokens)
    return linear(tokens, dim, 3 * dim, qkv_bias) + maps + linear(tokens, dim, dim)


def class_attention(tokens: int, dim: int, heads: int, queries: int | None = None) -> Part:
    """Attention of the class token to all tokens, or of several class tokens: `queries`.

    A single query computes no keys and values (`kernels.query`), and saves the tokens in their place.
    """
    count = queries or 1
    left_out = 2 * tokens * dim * dim - 2 * dim * (tokens * (heads - 1) + dim) if queries is None else 0
    saved = tokens * dim + count * (dim + heads * tokens)  # tokens, q, maps
    saved += 2 * heads * dim if queries is None else (2 * tokens + count) * dim  # keys, values, and what q is made of
    project = linear(count, dim, dim)
    key = value = linear(tokens, dim, dim)
    made = project + key + value + project
    return Part(made.parameters, made.multiply_adds + 2 * count * tokens * dim, saved + count * dim, left_out)


def mlp(tokens: int, dim: int, hidden: int) -> Part:
    """An FFN, which saves its input, the derivative of GELU, and the input of its second layer."""
    return linear(tokens, dim, hidden) + Part(saved=tokens * hidden) + linear(tokens, hidden, dim)

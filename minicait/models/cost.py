"""Cost of a model from its sizes alone, before it is built: its parts, and their sum.

stem + depth * (attention + mlp) + linear(1, dim, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autograd.kernels.fused_heads import fits


class Cost(NamedTuple):
    """Cost of a model, from its configuration alone."""

    parameters: int
    multiply_adds: int  # per image, forward; the papers call these FLOPs
    activation_bytes: int  # per image in float32: what forward saves for backward
    forward_bytes: int  # per image without backward: about one block's share of it
    left_out: int = 0  # those of the multiply-adds that need not be made
    recomputed_bytes: int = 0  # those of activation_bytes that a GPU does not save
    narrow_bytes: int = 0  # those of the others that are float16 under autocast, and then half as many

    def gpu_activation_bytes(self, precision: str) -> int:
        """Per image on a GPU: what forward saves for backward."""
        saved = self.activation_bytes - self.recomputed_bytes
        return saved - self.narrow_bytes // 2 if precision == "fp16" else saved


@dataclass(frozen=True)
class Part:
    """Cost of a part of a model: parameters, multiply-adds of one image, and values saved for backward.

    left_out    multiply-adds that the papers count, and that are not made
    recomputed  saved values that backward computes again on a GPU, where they are not saved
    narrow      the others of them that are float16 under autocast; all that is not known to be is float32
    """

    parameters: int = 0
    multiply_adds: int = 0
    saved: int = 0
    left_out: int = 0
    recomputed: int = 0
    narrow: int = 0

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
    return Cost(
        whole.parameters, whole.multiply_adds, 4 * whole.saved, 4 * largest, whole.left_out, 4 * whole.recomputed,
        4 * whole.narrow,
    )  # fmt: skip


def saved(count: int) -> Part:
    """Values around matrix products that are saved for backward, under autocast in float16."""
    return Part(saved=count, narrow=count)


def linear(tokens: int, inputs: int, outputs: int, bias: bool = True) -> Part:
    """A linear layer, which saves its input. A convolution is one whose inputs are those of a kernel."""
    return Part(inputs * outputs + bias * outputs, tokens * inputs * outputs) + saved(tokens * inputs)


def values(count: int) -> Part:
    """Learned values: a token, positions, LayerScale."""
    return Part(parameters=count)


def layer_norm(tokens: int, dim: int) -> Part:
    """Layer normalisation, which saves x_hat and the inverse deviation of each token."""
    return Part(2 * dim, 0, tokens * (dim + 1))


def attention(tokens: int, dim: int, heads: int, qkv_bias: bool = True) -> Part:
    """Self-attention: saves q, k and v, and a map for each head."""
    maps = saved(heads * tokens * tokens)
    return _attention(tokens, dim, maps, qkv_bias)


def talking_heads(tokens: int, dim: int, heads: int) -> Part:
    """Self-attention whose heads are mixed before and after the softmax. A fused kernel for GPUs saves no maps."""
    count = heads * tokens * tokens
    maps = Part(saved=count, recomputed=count) if fits(heads, tokens) else saved(count)
    return _attention(tokens, dim, maps) + 2 * Part(heads * heads + heads, heads * count)


def _attention(tokens: int, dim: int, maps: Part, qkv_bias: bool = True) -> Part:
    heads = Part(multiply_adds=2 * tokens * tokens * dim) + saved(tokens * 3 * dim) + maps
    return linear(tokens, dim, 3 * dim, qkv_bias) + heads + linear(tokens, dim, dim)


def class_attention(tokens: int, dim: int, heads: int, queries: int | None = None) -> Part:
    """Attention of the class token to all tokens, or of several class tokens: `queries`.

    A single query computes no keys and values (`kernels.query`), and saves the tokens in their place.
    """
    count = queries or 1
    left_out = 2 * tokens * dim * dim - 2 * dim * (tokens * (heads - 1) + dim) if queries is None else 0
    values = tokens * dim + count * (dim + heads * tokens)  # tokens, q, maps
    values += 2 * heads * dim if queries is None else (2 * tokens + count) * dim  # keys, values, and what q is made of
    values += count * dim
    project = linear(count, dim, dim)
    key = value = linear(tokens, dim, dim)
    made = project + key + value + project
    multiply_adds = made.multiply_adds + 2 * count * tokens * dim
    return Part(made.parameters, multiply_adds, left_out=left_out) + saved(values)


def mlp(tokens: int, dim: int, hidden: int) -> Part:
    """An FFN, which saves its input, the derivative of GELU, and the input of its second layer."""
    return linear(tokens, dim, hidden) + saved(tokens * hidden) + linear(tokens, hidden, dim)

"""Attention, fused into one operation, because the attention maps are the largest arrays of a model.

`observe`, if given, is called with the attention maps of forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import kernels
from ..backend import Array
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import layer_operands, matmul_operands

Observer = Callable[..., None] | None


class Attention(Function):
    """y = softmax(q k^T / sqrt(c)) v, for each of the heads, of size c and side by side in the last axis"""

    @staticmethod
    def forward(ctx: Context, q: Array, k: Array, v: Array, heads: int, observe: Observer) -> Array:
        if not q.ndim == k.ndim == v.ndim == 3 or k.shape != v.shape or q.shape[::2] != k.shape[::2]:
            raise OperandError(
                f"q must have shape (B, M, d), k and v (B, N, d), got {q.shape}, {k.shape} and {v.shape}"
            )
        _check_heads(q.shape[-1], heads)
        y, maps = kernels.attention(q, k, v, heads)
        if observe is not None:
            observe(maps=maps)
        ctx.save(q, k, v, maps)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return kernels.attention_grad(g, *ctx.saved)

    @staticmethod
    def reference(q: Tensor, k: Tensor, v: Tensor, heads: int, observe: Observer) -> Tensor:
        q, k, v = (_heads_first(x, heads) for x in (q, k, v))
        maps = (q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return _heads_last(maps @ v)


class TalkingHeadsAttention(Function):
    """y = (W_w softmax(W_l (q k^T / sqrt(c)) + b_l) + b_w) v, where W_l and W_w mix the heads

    Talking-heads attention (Shazeer et al., 2020), as in every self-attention layer of CaiT. q, k and v are
    concatenated in `qkv` (B, N, 3d).
    """

    @staticmethod
    def forward(
        ctx: Context, qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array, observe: Observer
    ) -> Array:
        heads = weight_l.shape[0]
        if qkv.ndim != 3 or qkv.shape[-1] % 3:
            raise OperandError(f"qkv must have shape (B, N, 3d), got {qkv.shape}")
        _check_heads(qkv.shape[-1] // 3, heads)
        for name, x, shape in (
            ("weight_l", weight_l, (heads, heads)),
            ("weight_w", weight_w, (heads, heads)),
            ("bias_l", bias_l, (heads,)),
            ("bias_w", bias_w, (heads,)),
        ):
            if x.shape != shape:
                raise OperandError(f"{name} must have shape {shape}, got {x.shape}")
        y, maps, mixed = kernels.talking_heads(qkv, weight_l, bias_l, weight_w, bias_w)
        if observe is not None:
            observe(maps=maps, mixed=mixed + bias_w[:, None, None])
        ctx.save(qkv, maps, weight_l, weight_w, bias_w)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return kernels.talking_heads_grad(g, *ctx.saved)

    @staticmethod
    def reference(
        qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor, bias_w: Tensor, observe: Observer
    ) -> Tensor:
        heads, width = weight_l.shape[0], qkv.shape[-1] // 3
        q, k, v = (_heads_first(qkv[..., i * width : (i + 1) * width], heads) for i in range(3))
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        maps = _mix(scores, weight_l, bias_l).softmax(-1)
        return _heads_last(_mix(maps, weight_w, bias_w) @ v)


def _mix(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer over the heads, moved to the last axis and back."""
    return (maps.transpose(0, 2, 3, 1) @ weight.T + bias).transpose(0, 3, 1, 2)


def _heads_first(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _heads_last(x: Tensor) -> Tensor:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _check_heads(width: int, heads: int) -> None:
    if heads < 1 or width % heads:
        raise OperandError(f"a width of {width} is not divisible by {heads} heads")


def attention(q: Any, k: Any, v: Any, heads: int, observe: Observer = None) -> Tensor:
    """Multi-head attention of q (B, M, d) over k and v (B, N, d)."""
    return Attention.apply(*matmul_operands("attention", q, k, v), heads, observe)


def talking_heads_attention(
    qkv: Any, weight_l: Any, bias_l: Any, weight_w: Any, bias_w: Any, observe: Observer = None
) -> Tensor:
    """Self-attention whose heads are mixed before (l) and after (w) the softmax; `qkv` is (B, N, 3d)."""
    operands = layer_operands("talking_heads_attention", [qkv], [weight_l, bias_l, weight_w, bias_w])
    return TalkingHeadsAttention.apply(*operands, observe)

"""Attention, fused into one operation, because the attention maps are the largest arrays of a model.

`mask`, if given, says where queries may attend, and gets no gradient. `observe`, if given, is called with the
attention maps of forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import kernels
from ..backend import Array, to_device
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import as_tensor_like, broadcasts, layer_operands, matmul_operands
from .arithmetic import where
from .indexing import split

Observer = Callable[..., None] | None


class Attention(Function):
    """y = softmax(q k^T / sqrt(d / heads)) v for each head. The heads, of d / heads channels, are concatenated."""

    @staticmethod
    def forward(ctx: Context, q: Array, k: Array, v: Array, heads: int, mask: Array | None, observe: Observer) -> Array:
        if not q.ndim == k.ndim == v.ndim == 3 or k.shape != v.shape or q.shape[::2] != k.shape[::2]:
            raise OperandError(
                f"q must have shape (B, M, d), k and v (B, N, d), got {q.shape}, {k.shape} and {v.shape}"
            )
        _check_heads(q.shape[-1], heads)
        _check_mask(mask, (q.shape[0], heads, q.shape[1], k.shape[1]))
        y, maps = kernels.attention(q, k, v, heads, mask)
        if observe is not None:
            observe(maps=maps)
        ctx.save(q, k, v, maps)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return kernels.attention_grad(g, *ctx.saved)

    @staticmethod
    def reference(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Array | None, observe: Observer) -> Tensor:
        q, k, v = (_heads_first(x, heads) for x in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = where(mask, scores, -math.inf)
        return _heads_last(scores.softmax(-1) @ v)


class SelfAttention(Function):
    """y = softmax(q k^T / sqrt(d / heads)) v, with q, k and v concatenated in `qkv` (B, N, 3d)

    One array in and one gradient out: three slices of qkv would each get a gradient of the size of all.
    """

    @staticmethod
    def forward(ctx: Context, qkv: Array, heads: int, mask: Array | None, observe: Observer) -> Array:
        _check_qkv(qkv, heads)
        batch, tokens, _ = qkv.shape
        _check_mask(mask, (batch, heads, tokens, tokens))
        y, maps, apart = kernels.self_attention(qkv, heads, mask)
        if observe is not None:
            observe(maps=maps)
        ctx.save(apart, maps)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        return kernels.self_attention_grad(g, *ctx.saved)

    @staticmethod
    def reference(qkv: Tensor, heads: int, mask: Array | None, observe: Observer) -> Tensor:
        q, k, v = split(qkv, 3, -1)
        return Attention.reference(q, k, v, heads, mask, observe)


class QueryAttention(Function):
    """y = softmax(q k^T / sqrt(d / heads)) v, with one query q per sample, k = z W_k^T + b_k and v = z W_v^T + b_v

    Neither k nor v is computed: one query can do without, in a fraction of the products.
    """

    @staticmethod
    def forward(
        ctx: Context, q: Array, z: Array, weight_k: Array, bias_k: Array, weight_v: Array, bias_v: Array, heads: int,
        observe: Observer,
    ) -> Array:  # fmt: skip
        if q.ndim != 2 or z.ndim != 3 or z.shape[::2] != q.shape or not z.shape[1]:
            raise OperandError(
                f"q must have shape (B, d), z (B, N, d) with at least one token, got {q.shape}, {z.shape}"
            )
        width = q.shape[-1]
        _check_heads(width, heads)
        _check_shapes(weight_k=(weight_k, (width, width)), bias_k=(bias_k, (width,)))
        _check_shapes(weight_v=(weight_v, (width, width)), bias_v=(bias_v, (width,)))
        y, *kept = kernels.query_attention(q, z, weight_k, weight_v, bias_v, heads)
        if observe is not None:
            observe(maps=kept[0][:, :, None])
        ctx.save(q, z, weight_k, weight_v, *kept)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        return kernels.query_attention_grad(g, *ctx.saved)

    @staticmethod
    def reference(
        q: Tensor, z: Tensor, weight_k: Tensor, bias_k: Tensor, weight_v: Tensor, bias_v: Tensor, heads: int,
        observe: Observer,
    ) -> Tensor:  # fmt: skip
        k, v = z @ weight_k.T + bias_k, z @ weight_v.T + bias_v
        return Attention.reference(q.reshape(len(q), 1, -1), k, v, heads, None, observe)[:, 0]


class TalkingHeadsAttention(Function):
    """y = (W_w softmax(W_l (q k^T / sqrt(d / heads)) + b_l) + b_w) v, where W_l and W_w mix the heads

    Talking-heads attention (Shazeer et al., 2020), as in every self-attention layer of CaiT. q, k and v are
    concatenated in `qkv` (B, N, 3d).
    """

    @staticmethod
    def forward(
        ctx: Context, qkv: Array, weight_l: Array, bias_l: Array, weight_w: Array, bias_w: Array, observe: Observer
    ) -> Array:
        heads = weight_l.shape[0]
        _check_qkv(qkv, heads)
        _check_shapes(weight_l=(weight_l, (heads, heads)), weight_w=(weight_w, (heads, heads)))
        _check_shapes(bias_l=(bias_l, (heads,)), bias_w=(bias_w, (heads,)))
        parameters = weight_l, bias_l, weight_w, bias_w
        y, kept, maps, mixed = kernels.talking_heads(qkv, *parameters, observed=observe is not None)
        if observe is not None:
            observe(maps=maps, mixed=mixed + bias_w[:, None, None])
        ctx.save(weight_l, weight_w, bias_w, *kept)
        return y

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        weight_l, weight_w, bias_w, *kept = ctx.saved
        return kernels.talking_heads_grad(g, kept, weight_l, weight_w, bias_w)

    @staticmethod
    def reference(
        qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor, bias_w: Tensor, observe: Observer
    ) -> Tensor:
        q, k, v = (_heads_first(x, weight_l.shape[0]) for x in split(qkv, 3, -1))
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


def _check_shapes(**parameters: tuple[Array, tuple[int, ...]]) -> None:
    for name, (x, shape) in parameters.items():
        if x.shape != shape:
            raise OperandError(f"{name} must have shape {shape}, got {x.shape}")


def _check_qkv(qkv: Array, heads: int) -> None:
    if qkv.ndim != 3 or qkv.shape[-1] % 3:
        raise OperandError(f"qkv must have shape (B, N, 3d), got {qkv.shape}")
    _check_heads(qkv.shape[-1] // 3, heads)


def _check_mask(mask: Array | None, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    if mask.dtype != bool:
        raise OperandError(f"mask must be boolean, True where a query may attend, got {mask.dtype}")
    if not broadcasts(mask.shape, shape):
        raise OperandError(f"mask must broadcast to (B, heads, M, N) = {shape}, got shape {mask.shape}")


def _constant_mask(name: str, mask: Any, like: Tensor) -> Array | None:
    """The mask as an array on the device of `like`."""
    return None if mask is None else to_device(as_tensor_like(name, mask, like).data, like.device)


def attention(q: Any, k: Any, v: Any, heads: int, mask: Any = None, observe: Observer = None) -> Tensor:
    """Multi-head attention of q (B, M, d) over k and v (B, N, d).

    `mask` is True where a query may attend to a key, and broadcasts to (B, heads, M, N). A query that may attend to
    nothing gets zeros.
    """
    q, k, v = matmul_operands("attention", q, k, v)
    return Attention.apply(q, k, v, heads, _constant_mask("attention", mask, q), observe)


def self_attention(qkv: Any, heads: int, mask: Any = None, observe: Observer = None) -> Tensor:
    """Multi-head attention of all tokens over all tokens; `qkv` is (B, N, 3d), `mask` as in `attention`."""
    (qkv,) = matmul_operands("self_attention", qkv)
    return SelfAttention.apply(qkv, heads, _constant_mask("self_attention", mask, qkv), observe)


def query_attention(
    q: Any, z: Any, weight_k: Any, bias_k: Any, weight_v: Any, bias_v: Any, heads: int, observe: Observer = None
) -> Tensor:
    """Multi-head attention of one query per sample, q (B, d), over tokens z (B, N, d): returns (B, d).

    Keys and values are linear(z, weight_k, bias_k) and linear(z, weight_v, bias_v), but need not be computed.
    """
    operands = layer_operands("query_attention", [q, z], [weight_k, bias_k, weight_v, bias_v])
    return QueryAttention.apply(*operands, heads, observe)


def talking_heads_attention(
    qkv: Any, weight_l: Any, bias_l: Any, weight_w: Any, bias_w: Any, observe: Observer = None
) -> Tensor:
    """Self-attention whose heads are mixed before (l) and after (w) the softmax; `qkv` is (B, N, 3d)."""
    operands = layer_operands("talking_heads_attention", [qkv], [weight_l, bias_l, weight_w, bias_w])
    return TalkingHeadsAttention.apply(*operands, observe)

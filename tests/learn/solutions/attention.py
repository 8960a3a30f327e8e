"""Chapters 6 and 8: attention, talking heads, class attention."""

from __future__ import annotations

import numpy as np

from .layers import Softmax, Weights, linear, part
from .tensor import Context, Function, Tensor


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """(B, N, d) to (B, h, N, d/h)."""
    batch, tokens, d = x.shape
    return x.reshape(batch, tokens, heads, d // heads).transpose(0, 2, 1, 3)


def join_heads(x: np.ndarray) -> np.ndarray:
    """(B, h, N, d/h) to (B, N, d)."""
    batch, heads, tokens, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)


class Attention(Function):
    """y = softmax(Q K^T / sqrt(d/h)) V in each of h heads, whose channels are side by side in the last axis (eq. 8)"""

    @staticmethod
    def forward(ctx: Context, q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
        """6.1  q (B, M, d), k and v (B, N, d) give (B, M, d): M queries attend to N keys.

        Split the last axis into (h, d/h), move the heads in front of the tokens, (B, h, M, d/h), and compute the maps
        A (B, h, M, N) and A V. Then put the heads side by side again. Scores may be as large as 10,000. The result has
        the dtype of q, k and v.

        Example: with q = 0, every query receives the mean of v over the N tokens.
        """
        q, k, v = (split_heads(x, heads) for x in (q, k, v))
        scale = q.shape[-1] ** -0.5
        scores = q @ k.swapaxes(-1, -2) * scale
        scores -= scores.max(axis=-1, keepdims=True)  # softmax stays the same, and nothing overflows
        maps = np.exp(scores)
        maps /= maps.sum(axis=-1, keepdims=True)
        ctx.save(q, k, v, maps, scale)
        return join_heads(maps @ v)

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """6.2  The gradients of q (B, M, d), k (B, N, d) and v (B, N, d), from g (B, M, d).

        Go backwards through forward, one line at a time: the product A V, the softmax (4.2), the scale, the product
        Q K^T, the split into heads.
        """
        q, k, v, maps, scale = ctx.saved
        g = split_heads(g, q.shape[1])
        dv = maps.swapaxes(-1, -2) @ g
        dmaps = g @ v.swapaxes(-1, -2)
        dscores = maps * (dmaps - (dmaps * maps).sum(axis=-1, keepdims=True)) * scale
        dq = dscores @ k
        dk = dscores.swapaxes(-1, -2) @ q
        return join_heads(dq), join_heads(dk), join_heads(dv)


def mix_heads(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One linear layer along the heads of (B, h, N, N)."""
    return linear(maps.transpose(0, 2, 3, 1), {"weight": weight, "bias": bias}).transpose(0, 3, 1, 2)


def talking_heads(qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor, bias_w: Tensor) -> Tensor:
    """6.3  Self-attention whose heads mix their scores before the softmax, and their maps after it.

        y = (W_w softmax(W_l Q K^T / sqrt(d/h) + b_l) + b_w) V

    qkv       (B, N, 3 d): queries, keys and values side by side, each with its heads side by side
    weight_l  (h, h) and bias_l (h,): row i has the weights with which head i takes the scores of all heads
    weight_w  (h, h) and bias_w (h,): likewise for the maps
    returns   (B, N, d)

    Work with Tensors: reshape, transpose, @ and Softmax.apply from layers.py; your engine does backward. To mix
    heads, move their axis to the end and multiply by the transposed matrix.

    Example: with identity matrices and zero biases, this is Attention.
    """
    batch, tokens, width = qkv.shape
    heads = weight_l.shape[0]
    q, k, v = (qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)[i] for i in range(3))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    maps = Softmax.apply(mix_heads(scores, weight_l, bias_l))
    y = mix_heads(maps, weight_w, bias_w) @ v
    return y.transpose(0, 2, 1, 3).reshape(batch, tokens, width // 3)


def class_attention(z: Tensor, w: Weights, heads: int) -> Tensor:
    """8.1  CA, eqs. 5 to 9: the class token is the only query; keys and values come from all tokens.

    z        (B, 1 + N, d), the class token first
    w        "q.weight" (d, d) and "q.bias" (d,), and the same for k, v and proj
    returns  (B, 1, d)

        Q = W_q x_class + b_q    (5)        A = softmax(Q K^T / sqrt(d/h))    (8)
        K = W_k z + b_k          (6)        out = W_o A V + b_o               (9)
        V = W_v z + b_v          (7)

    W_o and b_o are the weights called proj. Use `linear` and `part` from layers.py, and your Attention.
    """
    q = linear(z[:, :1], part(w, "q"))
    k = linear(z, part(w, "k"))
    v = linear(z, part(w, "v"))
    return linear(Attention.apply(q, k, v, heads=heads), part(w, "proj"))

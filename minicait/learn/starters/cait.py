"""Chapters 7 and 8: CaiT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .attention import class_attention, talking_heads
from .layers import Weights, feed_forward, layer_norm, linear, part
from .patches import patch_embed
from .tensor import Concat, Tensor


def unchanged(branch: Tensor) -> Tensor:
    return branch


def self_attention_block(x: Tensor, w: Weights, heads: int, drop: Callable[[Tensor], Tensor] = unchanged) -> Tensor:
    """7.1  SA and FFN with LayerScale, eq. 4; x (B, N, d) in, (B, N, d) out.

        x'  = x  + diag(lambda)  SA(LN(x))
        x'' = x' + diag(lambda') FFN(LN(x'))

    w     "gamma_1" and "gamma_2", lambda and lambda', both (d,); and the parts "norm1", "attn", "norm2", "mlp"
    drop  applied to each of the two branches, after its scale, before it is added: stochastic depth (7.2)

    `layer_norm`, `feed_forward` and `part` are in layers.py, SA is `self_attention` below.
    """
    raise NotImplementedError("7.1")


def drop_path(branch: Tensor, rate: float, rng: np.random.Generator | None) -> Tensor:
    """7.2  Stochastic depth: drop the branch (B, N, d) of whole samples, each with the probability `rate` (d_r).

    rng  draws, for each sample on its own; None in evaluation, where the branch returns unchanged

    The branches that are kept are divided by 1 - rate, so that the mean over many draws is the branch itself. The
    result has the dtype of the branch.

    Example: with rate 0.2, about one sample in five becomes all zeros, and the others 1.25 times as large.
    """
    raise NotImplementedError("7.2")


def class_attention_block(x_class: Tensor, patches: Tensor, w: Weights, heads: int) -> Tensor:
    """8.2  CA and FFN with LayerScale for the class token (B, 1, d); the patches (B, N, d) stay as they are.

        z = [x_class, patches]
        x'_class  = x_class  + diag(lambda)  CA(LN(z))
        x''_class = x'_class + diag(lambda') FFN(LN(x'_class))

    `Concat` in tensor.py makes z; w has the same names as for self_attention_block.
    """
    raise NotImplementedError("8.2")


def cait(images: np.ndarray, w: Weights, heads: int) -> Tensor:
    """8.2  Logits (B, C) from images (B, 3, H, W), as in Fig. 2, right.

    1. Patches become tokens, with the part "patch_embed"; their positions w["pos_embed"] (1, N, d) are added.
    2. They go through the blocks "blocks.0", "blocks.1", ... (`count` says how many there are).
    3. The class token w["cls_token"] (1, 1, d), one for each image, goes through "blocks_token_only.0", ...
    4. Its LayerNorm "norm" and the linear layer "head" make the logits.

    To repeat the class token for each image, add an array of zeros, of shape (B, 1, d), to its Tensor. An array that
    you add to a Tensor takes on its dtype; a Tensor of zeros would be float64 and make everything after it float64.
    """
    raise NotImplementedError("8.2")


# ---- given


def self_attention(x: Tensor, w: Weights, heads: int) -> Tensor:
    """SA of eq. 4: q, k and v from one product, talking heads, then a projection."""
    mixing = [w[f"proj_{which}.{kind}"] for which in "lw" for kind in ("weight", "bias")]
    return linear(talking_heads(linear(x, part(w, "qkv")), *mixing), part(w, "proj"))


def count(w: Weights, name: str) -> int:
    """The number of blocks called name.0, name.1, ..."""
    return len({key.split(".")[1] for key in w if key.startswith(f"{name}.")})


def initial_weights(
    classes: int, side: int, p: int, d: int, depth: int, heads: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """First weights of a small CaiT, in float32: images side x side, patches p x p, d channels, depth + 1 blocks."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, d), "pos_embed": (1, (side // p) ** 2, d)}
    shapes |= {"patch_embed.proj.weight": (d, 3, p, p), "norm.weight": (d,), "head.weight": (classes, d)}
    layers = {"attn.proj": (d, d), "mlp.fc1": (4 * d, d), "mlp.fc2": (d, 4 * d)}
    first = layers | {"attn.qkv": (3 * d, d), "attn.proj_l": (heads, heads), "attn.proj_w": (heads, heads)}
    last = layers | {"attn.q": (d, d), "attn.k": (d, d), "attn.v": (d, d)}
    for block, own in [*((f"blocks.{i}", first) for i in range(depth)), ("blocks_token_only.0", last)]:
        shapes |= {f"{block}.{layer}.weight": shape for layer, shape in own.items()}
        shapes |= {f"{block}.{name}": (d,) for name in ("gamma_1", "gamma_2", "norm1.weight", "norm2.weight")}
    weights = {}
    for name, shape in shapes.items():
        fan_in = int(np.prod(shape[1:])) if name.endswith("weight") else 2500
        weights[name] = rng.normal(0, fan_in**-0.5, shape).astype(np.float32)
        if "gamma" in name or "norm" in name:
            weights[name] = np.full(shape, 0.1 if "gamma" in name else 1, np.float32)
        elif "proj_" in name:  # heads start nearly unmixed
            weights[name] = (np.eye(heads) + 0.02 * rng.standard_normal(shape)).astype(np.float32)
        if name.endswith(".weight"):
            weights[name.removesuffix("weight") + "bias"] = np.zeros(shape[0], np.float32)
    return weights

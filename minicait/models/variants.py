"""What CaiT was compared with: other ways to add a residual branch (Fig. 1), and other ways to a class (Fig. 2).

A Variant is a CaiT in which one thing is exchanged, so that two of them differ in nothing else. `Variant()` without
changes computes what CaiT computes, from weights of the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autograd import Tensor, ops
from autograd.backend import constant
from autograd.random import Stream

from ..nn import Branch, LayerNorm, LayerScale, Mlp, Module, MultiHeadAttention, Parameter
from ..nn.record import observe_residual
from .cait import CaiT


class Residual(NamedTuple):
    """x + scale * branch(norm(x)): whether there is a norm, where the learned scale starts, and how many it is."""

    norm: bool
    start: float | None  # None: at epsilon
    scales: str  # "none", "one" for the whole branch, or "channels"

    def scale(self, dim: int, epsilon: float) -> Parameter | None:
        if self.scales == "none":
            return None
        return LayerScale(dim if self.scales == "channels" else 1, epsilon if self.start is None else self.start)


RESIDUALS = {
    "plain": Residual(True, 1.0, "none"),  # x + f(norm(x)): eq. 2, Fig. 1 (a), as in ViT and DeiT
    "rezero": Residual(False, 0.0, "one"),  # x + alpha f(x), alpha = 0 at first: eq. 3, Fig. 1 (b)
    "rezero_norm": Residual(True, 0.0, "one"),  # x + alpha f(norm(x)): Fig. 1 (c), "Rezero" in Table 1
    "scalar": Residual(True, None, "one"),  # the same from alpha = epsilon: a column of Table 1
    "layer_scale": Residual(True, None, "channels"),  # x + diag(lambda) f(norm(x)): eq. 4, Fig. 1 (d)
}
POOLINGS = ("class_attention", "class_token", "average")


class Block(Module):
    """Attention and FFN, each added as a row of RESIDUALS says. Among patches, or of a class token over patches."""

    def __init__(self, residual: Residual, attn: Branch, mlp: Mlp, dim: int, epsilon: float) -> None:
        self.gamma_1 = residual.scale(dim, epsilon)
        self.gamma_2 = residual.scale(dim, epsilon)
        self.norm1 = LayerNorm(dim) if residual.norm else None
        self.attn = attn
        self.norm2 = LayerNorm(dim) if residual.norm else None
        self.mlp = mlp

    def forward(self, x: Tensor, patches: Tensor | None = None) -> Tensor:
        """With patches, x is the class token, and they stay as they are."""
        z = x if patches is None else ops.concat([x, patches], axis=1)
        x = self._add("attn", x, self.attn, z if self.norm1 is None else self.norm1(z), self.gamma_1)
        return self._add("mlp", x, self.mlp, x if self.norm2 is None else self.norm2(x), self.gamma_2)

    def _add(self, name: str, x: Tensor, branch: Branch, z: Tensor, scale: Parameter | None) -> Tensor:
        """x + scale * branch(z), where one scale for the whole branch is one for every channel, repeated."""
        one = Tensor(constant(np.ones(1), like=x.data))
        scale_of_channel = ops.broadcast_to(one if scale is None else scale, x.shape[-1:])
        inner = branch.inner(z)
        observe_residual(self, name, x, lambda: branch.last(inner), scale_of_channel)
        return ops.linear_residual(x, inner, branch.last.weight, branch.last.bias, scale_of_channel)


class Variant(CaiT):
    """CaiT with other parts, and without stochastic depth.

    residual       a name in RESIDUALS, for all blocks
    talking_heads  False: plain multi-head attention, whose heads are not mixed
    pooling        "class_attention"; "class_token": a token among the patches, as in ViT and DeiT, and no second stage;
                   "average": the mean of all patches, and no second stage
    insert_at      the block before which that token joins the patches; in ViT and DeiT it is there from the first, 0
    sizes          as of CaiT
    """

    blocks: Any  # of Block
    blocks_token_only: Any

    def __init__(
        self,
        residual: str = "layer_scale",
        talking_heads: bool = True,
        pooling: str = "class_attention",
        insert_at: int = 0,
        seed: int = 0,
        **sizes: Any,
    ) -> None:
        super().__init__(**sizes, drop_path_rate=0.0, seed=seed)
        depth, dim, heads = (self.config[name] for name in ("depth", "dim", "heads"))
        if residual not in RESIDUALS:
            raise ValueError(f"Variant: residual must be one of {', '.join(RESIDUALS)}, got {residual!r}")
        if pooling not in POOLINGS:
            raise ValueError(f"Variant: pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        if pooling == "class_token" and not 0 <= insert_at < depth:
            raise ValueError(f"Variant: insert_at must be the number of a block, 0 to {depth - 1}, got {insert_at}")
        if pooling != "class_attention":
            self.blocks_token_only = []
            self.config["depth_token_only"] = 0
        if pooling == "average":
            del self.cls_token
        # CaiT's own layers, and so its own first weights, in blocks that add them up otherwise
        for blocks in (self.blocks, self.blocks_token_only):
            blocks[:] = [Block(RESIDUALS[residual], b.attn, b.mlp, dim, self.config["layer_scale"]) for b in blocks]
        if not talking_heads:
            for i, block in enumerate(self.blocks):  # by the names that they have in CaiT, so q, k, v start as there
                block.attn = MultiHeadAttention(dim, heads, Stream(seed, "cait").named(f"blocks.{i}").named("attn"))
        self.pooling, self.insert_at = pooling, insert_at
        # a file with these is not taken for the weights of a CaiT
        self.config |= {
            "residual": residual, "talking_heads": talking_heads, "pooling": pooling, "insert_at": insert_at,
        }  # fmt: skip

    def features(self, images: Any) -> Tensor:
        """What the head classifies (B, dim): the class token, or the mean over the patches, normalised."""
        x = self.patch_embed(self._checked(images)) + self.pos_embed
        for i, block in enumerate(self.blocks):
            if self.pooling == "class_token" and i == self.insert_at:
                x = ops.concat([self._class_tokens(x), x], axis=1)
            x = block(x)
        if self.pooling == "average":
            return self.norm(x).mean(1)
        if self.pooling == "class_token":
            return self.norm(x[:, 0])
        cls = self._class_tokens(x)
        for block in self.blocks_token_only:
            cls = block(cls, x)
        return self.norm(cls[:, 0])

    def _class_tokens(self, x: Tensor) -> Tensor:
        """One for each image. (ViT adds a learned position to it; the sum of two learned vectors is one.)"""
        return ops.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2]))

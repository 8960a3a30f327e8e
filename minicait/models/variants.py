"""Baselines of the paper: other ways to add a residual branch (Fig. 1), and other ways to pool a class (Fig. 2).

A Variant is a CaiT in which one thing is exchanged, so that two of them differ in nothing else. `Variant()` without
changes computes what CaiT computes, from weights of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from autograd import Tensor, ops
from autograd.random import Stream

from ..nn import LayerScale, MultiHeadAttention, Parameter
from ..nn.record import observer
from .cait import CaiT, CaiTConfig
from .cost import Cost


class Residual(NamedTuple):
    """x + scale * branch(norm(x)): with a norm or without, and with how many learned scales, starting where."""

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


class OneWayAttention(MultiHeadAttention):
    """Self-attention in which the class token, the first one, attends to all tokens, and patches to patches alone."""

    def inner(self, x: Any) -> Tensor:
        may_attend = np.ones((x.shape[1], x.shape[1]), bool)  # (queries, keys)
        may_attend[1:, 0] = False
        return ops.self_attention(self.qkv(x), self.heads, may_attend, observer(self))


@dataclass(frozen=True)
class VariantConfig(CaiTConfig):
    residual: str
    talking_heads: bool
    pooling: str
    insert_at: int
    masked: bool

    least: ClassVar = {**CaiTConfig.least, "depth_token_only": 0}

    @property
    def prefix(self) -> int:
        return int(self.pooling == "class_token")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual must be one of {', '.join(RESIDUALS)}, got {self.residual!r}")
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.pooling == "class_token" and not 0 <= self.insert_at < self.depth:
            raise ValueError(f"insert_at must be the index of a block, 0 to {self.depth - 1}, got {self.insert_at}")
        if self.masked and (self.talking_heads or self.pooling != "class_token"):
            raise ValueError('masked=True needs pooling="class_token" and talking_heads=False')


class Variant(CaiT):
    """CaiT with other parts.

    residual       a name in RESIDUALS, for all blocks
    talking_heads  False: plain multi-head attention, whose heads are not mixed
    pooling        "class_attention"; "class_token": a token among the patches, as in ViT and DeiT, and no second stage;
                   "average": the mean of all patches, and no second stage
    insert_at      the block before which that token joins the patches; in ViT and DeiT it is there from the first, 0
    masked         True: patches do not attend to that token, and so do not depend on it
    sizes          as in CaiT
    """

    config: VariantConfig
    config_type = VariantConfig
    blocks: Any  # their norms and scales may be None
    blocks_token_only: Any

    def __init__(
        self,
        residual: str = "layer_scale",
        talking_heads: bool = True,
        pooling: str = "class_attention",
        insert_at: int = 0,
        masked: bool = False,
        seed: int = 0,
        **sizes: Any,
    ) -> None:
        super().__init__(**sizes, seed=seed)
        own = {**vars(self.config), "residual": residual, "talking_heads": talking_heads, "pooling": pooling}
        if pooling != "class_attention":
            own["depth_token_only"] = 0
            self.blocks_token_only = []
        own |= {"insert_at": insert_at, "masked": masked}
        self.config = self.configure(VariantConfig, **own)
        if pooling == "average":
            del self.cls_token
        # CaiT's own blocks, and so its own initial weights, with other norms, scales and attention
        kind, stream = RESIDUALS[residual], Stream(seed, "cait")
        for block in [*self.blocks, *self.blocks_token_only]:
            block.gamma_1, block.gamma_2 = (kind.scale(self.config.dim, self.config.layer_scale) for _ in range(2))
            if not kind.norm:
                block.norm1 = block.norm2 = None
        if not talking_heads:
            for i, block in enumerate(self.blocks):  # named as in CaiT, so q, k and v start as there
                named = stream.named(f"blocks.{i}").named("attn")
                attention = OneWayAttention if masked and i >= insert_at else MultiHeadAttention
                block.attn = attention(self.config.dim, self.config.heads, named)

    def features(self, images: Any) -> Tensor:
        """Input of the head (B, dim): the class token, or the mean over the patches, normalised."""
        c = self.config
        x = self.patch_embed(self.checked(images)) + self.pos_embed
        for i, block in enumerate(self.blocks):
            if c.pooling == "class_token" and i == c.insert_at:
                x = ops.concat([self._class_tokens(x), x], axis=1)
            x = block(x)
        if c.pooling == "average":
            return self.norm(x).mean(1)
        if c.pooling == "class_token":
            return self.norm(x[:, 0])
        cls = self._class_tokens(x)
        for block in self.blocks_token_only:
            cls = block(cls, x)
        return self.norm(cls[:, 0])

    def cost(self) -> Cost:
        """About that of CaiT, but for the number of parameters."""
        return super().cost()._replace(parameters=self.parameter_count())

    def _class_tokens(self, x: Tensor) -> Tensor:
        """One per image. (ViT adds a learned position to it; the sum of two learned vectors is one.)"""
        return ops.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2]))

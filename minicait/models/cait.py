"""CaiT, Class-Attention in Image Transformers: "Going deeper with Image Transformers", Touvron et al., 2021.

Two stages (Fig. 2, right). In the first, patches attend to patches, many layers deep, with no class token in the way.
In the second, two layers long, the patches are frozen, and a class token gathers from them what the classifier needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from numbers import Integral
from operator import index
from typing import Any

import numpy as np

from autograd import Tensor, ops
from autograd.backend import Array, constant, to_device
from autograd.random import Stream

from ..nn import (
    Branch,
    ClassAttention,
    DropPath,
    LayerNorm,
    LayerScale,
    Linear,
    Mlp,
    Module,
    Parameter,
    PatchEmbed,
    TalkingHeadsAttention,
)
from ..nn.layers import truncated_normal
from ..nn.record import observe_residual

_SIZES = {"num_classes": 1, "patch_size": 1, "dim": 1, "depth": 0, "heads": 1, "depth_token_only": 1}  # and the least
_NUMBERS = ("layer_scale", "drop_path_rate", "mlp_ratio")
Rows = Array | None  # samples by number; None is all of them
Kept = tuple[Rows, Rows]  # those that have the first branch of a block, and the second


class SelfAttentionBlock(Module):
    """SA + FFN with LayerScale, eq. 4 and Fig. 1 (d), and stochastic depth on both branches:

    x' = x  + diag(lambda)  SA(norm1(x))
    x" = x' + diag(lambda') FFN(norm2(x'))
    """

    def __init__(
        self, dim: int, heads: int, mlp_ratio: float, layer_scale: float, drop_path: float, stream: Stream
    ) -> None:
        self.gamma_1 = LayerScale(dim, layer_scale)
        self.gamma_2 = LayerScale(dim, layer_scale)
        self.norm1 = LayerNorm(dim)
        self.attn = TalkingHeadsAttention(dim, heads, stream.named("attn"))
        self.drop_path_1 = DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), stream.named("mlp"))
        self.drop_path_2 = DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor, kept: Kept | None = None) -> Tensor:
        """`kept` are the samples that have a branch, for both branches; by default they are drawn here."""
        first, second = kept or kept_samples([self], x)[0]
        x = self._residual("attn", x, self.norm1, self.attn, self.gamma_1, self.drop_path_1, first)
        return self._residual("mlp", x, self.norm2, self.mlp, self.gamma_2, self.drop_path_2, second)

    def _residual(
        self, name: str, x: Tensor, norm: LayerNorm, branch: Branch, scale: LayerScale, drop: DropPath, rows: Rows
    ) -> Tensor:
        """x + drop_path(diag(scale) branch(norm(x))), where a branch that is dropped is not computed."""
        if rows is not None and not len(rows):
            return x
        inner = branch.inner(norm(x if rows is None else x[rows]))
        if rows is None:
            observe_residual(self, name, x, lambda: branch.last(inner), scale)
        return ops.linear_residual(x, inner, branch.last.weight, branch.last.bias, scale, drop.factor, rows)


def kept_samples(blocks: Sequence[SelfAttentionBlock], x: Tensor) -> list[Kept]:
    """What stochastic depth keeps, for each branch of each block: drawn on the host, and sent to a GPU in one copy."""
    samples = x.shape[0]
    drawn = [drop.kept(samples) for block in blocks for drop in (block.drop_path_1, block.drop_path_2)]
    drawn = [None if rows is None or len(rows) == samples else rows for rows in drawn]
    some = [rows for rows in drawn if rows is not None]
    if some and x.device != "cpu":
        ends = accumulate(map(len, some))
        whole = to_device(np.concatenate(some), x.device)
        there = iter([whole[end - len(rows) : end] for rows, end in zip(some, ends, strict=True)])
        drawn = [None if rows is None else next(there) for rows in drawn]
    return list(zip(drawn[::2], drawn[1::2], strict=True))


class ClassAttentionBlock(Module):
    """CA + FFN with LayerScale, eqs. 5-9: only the class token changes, the patches stay as they are."""

    def __init__(self, dim: int, heads: int, mlp_ratio: float, layer_scale: float, stream: Stream) -> None:
        self.gamma_1 = LayerScale(dim, layer_scale)
        self.gamma_2 = LayerScale(dim, layer_scale)
        self.norm1 = LayerNorm(dim)
        self.attn = ClassAttention(dim, heads, stream.named("attn"))
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), stream.named("mlp"))

    def forward(self, cls: Tensor, patches: Tensor) -> Tensor:
        z = ops.concat([cls, patches], axis=1)
        cls = self._residual("attn", cls, self.attn, self.norm1(z), self.gamma_1)
        return self._residual("mlp", cls, self.mlp, self.norm2(cls), self.gamma_2)

    def _residual(self, name: str, cls: Tensor, branch: Branch, normed: Tensor, scale: LayerScale) -> Tensor:
        """cls + diag(scale) branch(normed)."""
        inner = branch.inner(normed)
        observe_residual(self, name, cls, lambda: branch.last(inner), scale)
        return ops.linear_residual(cls, inner, branch.last.weight, branch.last.bias, scale)


class CaiT(Module):
    """Images (B, 3, H, W) to logits (B, classes).

    img_size    side of square images, or (height, width); multiples of patch_size
    layer_scale epsilon, at which LayerScale starts; drop_path_rate is that of stochastic depth, the same in every layer
    seed        of the initial weights, which depend on nothing else
    """

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 192,
        depth: int = 24,
        heads: int = 4,
        depth_token_only: int = 2,
        layer_scale: float = 1e-5,
        drop_path_rate: float = 0.0,
        mlp_ratio: float = 4.0,
        seed: int = 0,
    ) -> None:
        sizes: Any = [img_size, img_size] if isinstance(img_size, Integral) else img_size
        self.config: dict[str, Any] = {
            "num_classes": num_classes, "img_size": sizes, "patch_size": patch_size, "dim": dim,
            "depth": depth, "heads": heads, "depth_token_only": depth_token_only, "layer_scale": layer_scale,
            "drop_path_rate": drop_path_rate, "mlp_ratio": mlp_ratio,
        }  # fmt: skip
        self.check_config(self.config)
        height, width = self.config["img_size"]
        stream = Stream(seed, "cait")
        patches = (height // patch_size) * (width // patch_size)
        self.cls_token = Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
        self.pos_embed = Parameter(truncated_normal((1, patches, dim), stream.named("pos_embed")))
        self.patch_embed = PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [
            SelfAttentionBlock(dim, heads, mlp_ratio, layer_scale, drop_path_rate, stream.named(f"blocks.{i}"))
            for i in range(depth)
        ]
        self.blocks_token_only = [
            ClassAttentionBlock(dim, heads, mlp_ratio, layer_scale, stream.named(f"blocks_token_only.{i}"))
            for i in range(depth_token_only)
        ]
        self.norm = LayerNorm(dim)
        self.head = Linear(dim, num_classes, stream=stream.named("head"))

    @staticmethod
    def check_config(config: dict[str, Any]) -> None:
        """Raise ValueError unless a CaiT can be built so. NumPy's numbers become Python's, so that it can be saved."""
        if not isinstance(config, dict) or set(config) != set(_SIZES) | {"img_size"} | set(_NUMBERS):
            raise ValueError("CaiT: this configuration is not that of a CaiT")
        try:
            config["img_size"] = [index(side) for side in config["img_size"]]
            config.update({name: index(config[name]) for name in _SIZES})
            config.update({name: float(config[name]) for name in _NUMBERS})
            height, width = config["img_size"]
        except (TypeError, ValueError) as error:
            raise ValueError(f"CaiT: sizes must be numbers, and img_size one or two of them ({error})") from None
        for name, least in _SIZES.items():
            if config[name] < least:
                raise ValueError(f"CaiT: {name} must be at least {least}, got {config[name]}")
        patch, dim, heads = config["patch_size"], config["dim"], config["heads"]
        if height % patch or width % patch or min(height, width) < 1:
            raise ValueError(f"CaiT: an image of {height} x {width} does not divide into patches of {patch}")
        if dim % heads:
            raise ValueError(f"CaiT: dim {dim} does not divide into {heads} heads")
        if not 0 <= config["drop_path_rate"] < 1:
            raise ValueError(f"CaiT: drop_path_rate must be in [0, 1), got {config['drop_path_rate']}")

    def forward(self, images: Any) -> Tensor:
        return self.head(self.features(images))

    def features(self, images: Any) -> Tensor:
        """The normalised class token (B, dim), which the head classifies."""
        patches = self.patch_embed(self._checked(images)) + self.pos_embed
        for block, kept in zip(self.blocks, kept_samples(self.blocks, patches), strict=True):
            patches = block(patches, kept)
        cls = ops.broadcast_to(self.cls_token, (patches.shape[0], 1, patches.shape[2]))
        for class_block in self.blocks_token_only:
            cls = class_block(cls, patches)
        return self.norm(cls[:, 0])

    def _checked(self, images: Any) -> Tensor:
        """Images as a Tensor beside the parameters: plain arrays take their dtype and go to their device."""
        if not isinstance(images, Tensor):
            images = Tensor(constant(images, like=self.pos_embed.data))
        height, width = self.config["img_size"]
        if images.dtype != self.pos_embed.dtype:
            wanted = self.pos_embed.dtype
            raise ValueError(f"CaiT: images must be normalised, in {wanted} as the weights, got {images.dtype}")
        if images.ndim != 4 or images.shape[1:] != (3, height, width):
            raise ValueError(
                f"CaiT: this model takes images of shape (B, 3, {height}, {width}), got {images.shape}; resize them, "
                "or create the model with another img_size"
            )
        return images

    def describe(self) -> str:
        c = self.config
        return f"{c['depth']} + {c['depth_token_only']} blocks of {c['dim']}, patches of {c['patch_size']}"

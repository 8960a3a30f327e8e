"""CaiT, Class-Attention in Image Transformers: "Going deeper with Image Transformers", Touvron et al., 2021.

Two stages (Fig. 2, right). In the first, patches attend to patches, many layers deep, with no class token in the way.
In the second, two layers long, the patches are frozen, and a class token gathers from them what the classifier needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autograd import Tensor, ops
from autograd.random import Stream

from .. import nn
from ..nn import drop_paths_drawn, residual
from ..nn.layers import truncated_normal
from . import cost
from .config import Config
from .cost import Cost, cost_of
from .model import Family, LazyTensor, Model, Outputs, Published
from .positions import resized_positions
from .recognise import blocks_in
from .transformer import TransformerConfig, sizes_in


class SelfAttentionBlock(nn.Module):
    """SA + FFN with LayerScale and stochastic depth, eq. 4 and Fig. 1 (d):

    x' = x  + diag(lambda)  SA(norm1(x))
    x" = x' + diag(lambda') FFN(norm2(x'))
    """

    def __init__(
        self, dim: int, heads: int, mlp_ratio: float, layer_scale: float, drop_path: float, stream: Stream
    ) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.TalkingHeadsAttention(dim, heads, stream.named("attn"))
        self.drop_path_1 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, int(dim * mlp_ratio), stream.named("mlp"))
        self.drop_path_2 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor) -> Tensor:
        x = residual(x, self.attn, self.norm1, self.gamma_1, self.drop_path_1)
        return residual(x, self.mlp, self.norm2, self.gamma_2, self.drop_path_2)


class ClassAttentionBlock(nn.Module):
    """CA + FFN with LayerScale, eqs. 5-9: only the class token changes, the patches stay as they are."""

    def __init__(self, dim: int, heads: int, mlp_ratio: float, layer_scale: float, stream: Stream) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.ClassAttention(dim, heads, stream.named("attn"))
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, int(dim * mlp_ratio), stream.named("mlp"))

    def forward(self, cls: Tensor, patches: Tensor) -> Tensor:
        cls = residual(cls, self.attn, self.norm1, self.gamma_1, reads=ops.concat([cls, patches], axis=1))
        return residual(cls, self.mlp, self.norm2, self.gamma_2)


@dataclass(frozen=True)
class CaiTConfig(TransformerConfig):
    depth_token_only: int  # class-attention layers
    layer_scale: float  # epsilon, the initial value of LayerScale

    least: ClassVar[Mapping[str, int]] = {**TransformerConfig.least, "depth_token_only": 1}

    @property
    def blocks(self) -> int:
        return self.depth + self.depth_token_only

    @property
    def layers(self) -> str:
        return f"{self.depth}+{self.depth_token_only}"

    def cost(self) -> Cost:
        d, h, n, tokens = self.dim, self.heads, self.patches, self.patches + 1
        stem = cost.linear(n, 3 * self.patch_size**2, d) + cost.values((1 + n) * d)
        block = 2 * (cost.layer_norm(n, d) + cost.values(d))
        block += cost.talking_heads(n, d, h) + cost.mlp(n, d, self.hidden)
        class_block = cost.layer_norm(tokens, d) + cost.layer_norm(1, d) + cost.values(2 * d)
        class_block += cost.class_attention(tokens, d, h) + cost.mlp(1, d, self.hidden)
        head = cost.layer_norm(1, d) + cost.linear(1, d, self.num_classes)
        return cost_of(stem, ((self.depth, block), (self.depth_token_only, class_block)), head)


class CaiT(Model):
    """Images (B, 3, H, W) to logits (B, C).

    img_size        side of square images, or (height, width); multiples of patch_size
    layer_scale     epsilon, the initial value of LayerScale
    drop_path_rate  rate of stochastic depth, the same in every layer
    seed            seed of the initial weights, which depend on nothing else
    """

    config: CaiTConfig
    config_type: ClassVar[type[Config]] = CaiTConfig
    no_decay = frozenset({"pos_embed", "cls_token"})

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
        self.config = self.configure(
            CaiTConfig, num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth,
            heads=heads, depth_token_only=depth_token_only, layer_scale=layer_scale, drop_path_rate=drop_path_rate,
            mlp_ratio=mlp_ratio,
        )  # fmt: skip
        stream = Stream(seed, "cait")
        self.cls_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
        self.pos_embed = nn.Parameter(truncated_normal((1, self.config.patches, dim), stream.named("pos_embed")))
        self.patch_embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [
            SelfAttentionBlock(dim, heads, mlp_ratio, layer_scale, drop_path_rate, stream.named(f"blocks.{i}"))
            for i in range(depth)
        ]
        self.blocks_token_only = [
            ClassAttentionBlock(dim, heads, mlp_ratio, layer_scale, stream.named(f"blocks_token_only.{i}"))
            for i in range(depth_token_only)
        ]
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))

    def outputs(self, images: Any) -> Outputs:
        features = self.features(images)
        return Outputs(self.head(features), features=features)

    def features(self, images: Any) -> Tensor:
        """The normalised class token (B, dim), which the head classifies."""
        patches = self.patch_embed(self.checked(images)) + self.pos_embed
        with drop_paths_drawn(self, patches):
            for block in self.blocks:
                patches = block(patches)
        cls = ops.broadcast_to(self.cls_token, (patches.shape[0], 1, patches.shape[2]))
        for class_block in self.blocks_token_only:
            cls = class_block(cls, patches)
        return self.norm(cls[:, 0])

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        return resized_positions(tensors, self.config, stored)

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> CaiTConfig:
        heads, depth_token_only = shapes["blocks.0.attn.proj_l.weight"][0], blocks_in(shapes, "blocks_token_only")
        own = {"heads": heads, "depth_token_only": depth_token_only, "layer_scale": 1e-5}  # the weights hold its result
        return CaiTConfig(**sizes_in(shapes, PRESETS) | own)

    def describe(self) -> str:
        c = self.config
        return f"{c.depth} + {c.depth_token_only} blocks with {c.dim} channels, patches of {c.patch_size}"


# dim, depth, LayerScale epsilon, drop rate of stochastic depth, resolutions
_SIZES = {
    # Table 3, with the official code's epsilon
    "xxs24": (192, 24, 1e-5, 0.1, (224, 384)),
    "xxs36": (192, 36, 1e-5, 0.1, (224, 384)),
    "xs24": (288, 24, 1e-5, 0.1, (224, 384)),
    "xs36": (288, 36, 1e-6, 0.2, (224, 384)),
    "s24": (384, 24, 1e-5, 0.1, (224, 384)),
    "s36": (384, 36, 1e-6, 0.2, (224, 384)),
    "s48": (384, 48, 1e-6, 0.3, (224, 384)),
    "m24": (768, 24, 1e-5, 0.2, (224, 384)),
    "m36": (768, 36, 1e-6, 0.3, (224, 384)),
    "m48": (768, 48, 1e-6, 0.4, (224, 448)),
    # ours, for small images: an eighth of the side as patch, so 64 tokens
    "tiny": (96, 6, 0.1, 0.0, (32, 64)),
    "small": (192, 12, 0.1, 0.05, (32, 64)),
}

PRESETS = {
    f"cait_{name}_{size}": CaiTConfig(
        num_classes=1000, img_size=(size, size), patch_size=min(16, size // 8), dim=dim, depth=depth,
        heads=dim // 48, depth_token_only=2, layer_scale=epsilon, drop_path_rate=drop, mlp_ratio=4.0,
    )
    for name, (dim, depth, epsilon, drop, sizes) in _SIZES.items()
    for size in sizes
}  # fmt: skip
PUBLISHED = {
    f"cait_{name}": Published(f"{name.upper()}.pth", f"timm/cait_{name}.fb_dist_in1k")
    for name in ("xxs24_224", "xxs24_384", "xxs36_224", "xxs36_384", "xs24_384", "s24_224", "s24_384", "s36_384",
                 "m36_384", "m48_448")
}  # fmt: skip

FAMILY = Family("cait", CaiT, PRESETS, PUBLISHED)

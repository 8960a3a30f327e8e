"""DeiT III: "DeiT III: Revenge of the ViT", Touvron et al., 2022 (chapter 6 of the thesis).

DeiT with LayerScale. Positions belong to the patches alone: the class token joins after they are added.
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
from .transformer import TransformerConfig, sizes_in


class Block(nn.Module):
    """MSA + FFN with LayerScale and stochastic depth, eq. 4 of CaiT's paper with plain attention:

    x' = x  + diag(lambda)  MSA(norm1(x))
    x" = x' + diag(lambda') FFN(norm2(x'))
    """

    def __init__(self, dim: int, heads: int, hidden: int, layer_scale: float, drop_path: float, stream: Stream) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiHeadAttention(dim, heads, stream.named("attn"))
        self.drop_path_1 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))
        self.drop_path_2 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor) -> Tensor:
        x = residual(x, self.attn, self.norm1, self.gamma_1, self.drop_path_1)
        return residual(x, self.mlp, self.norm2, self.gamma_2, self.drop_path_2)


@dataclass(frozen=True)
class DeiT3Config(TransformerConfig):
    layer_scale: float  # initial value of LayerScale

    @property
    def prefix(self) -> int:
        return 1

    def cost(self) -> Cost:
        d, tokens = self.dim, self.patches + 1
        stem = cost.linear(self.patches, 3 * self.patch_size**2, d) + cost.values(tokens * d)
        block = 2 * (cost.layer_norm(tokens, d) + cost.values(d))
        block += cost.attention(tokens, d, self.heads) + cost.mlp(tokens, d, self.hidden)
        return cost_of(stem, ((self.depth, block),), cost.layer_norm(1, d) + cost.linear(1, d, self.num_classes))


class DeiT3(Model):
    """Images (B, 3, H, W) to logits (B, C).

    layer_scale     initial value of LayerScale, 1e-4 at any depth
    drop_path_rate  rate of stochastic depth, the same in every block
    """

    config: DeiT3Config
    config_type: ClassVar[type[Config]] = DeiT3Config
    no_decay = frozenset({"pos_embed", "cls_token"})

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 384,
        depth: int = 12,
        heads: int = 6,
        layer_scale: float = 1e-4,
        drop_path_rate: float = 0.0,
        mlp_ratio: float = 4.0,
        seed: int = 0,
    ) -> None:
        self.config = c = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth, heads=heads,
            layer_scale=layer_scale, drop_path_rate=drop_path_rate, mlp_ratio=mlp_ratio,
        )  # fmt: skip
        stream = Stream(seed, "deit3")
        self.cls_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
        self.pos_embed = nn.Parameter(truncated_normal((1, c.patches, dim), stream.named("pos_embed")))
        self.patch_embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [
            Block(dim, heads, c.hidden, layer_scale, drop_path_rate, stream.named(f"blocks.{i}")) for i in range(depth)
        ]
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))

    def outputs(self, images: Any) -> Outputs:
        features = self.features(images)
        return Outputs(self.head(features), features=features)

    def features(self, images: Any) -> Tensor:
        """The normalised class token (B, dim), which the head classifies."""
        patches = self.patch_embed(self.checked(images)) + self.pos_embed
        cls = ops.broadcast_to(self.cls_token, (len(patches), 1, self.config.dim))
        x = ops.concat([cls, patches], axis=1)
        with drop_paths_drawn(self, x):
            for block in self.blocks:
                x = block(x)
        return self.norm(x[:, 0])

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        return resized_positions(tensors, self.config, stored)

    @classmethod
    def official(cls, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        return name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"), shape

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> DeiT3Config:
        return DeiT3Config(**sizes_in(shapes, PRESETS), layer_scale=1e-4)  # the weights hold its result

    def describe(self) -> str:
        c = self.config
        return f"{c.depth} blocks with {c.dim} channels, patches of {c.patch_size}"


# dim, depth, heads, patch size, initial LayerScale, drop rate of stochastic depth, resolutions
_SIZES = {
    # the sizes of Table 6.7 of the thesis, and what else the authors' code has
    "tiny_patch16": (192, 12, 3, 16, 1e-4, 0.0, (224,)),
    "small_patch16": (384, 12, 6, 16, 1e-4, 0.05, (224, 384)),
    "medium_patch16": (512, 12, 8, 16, 1e-4, 0.1, (224,)),
    "base_patch16": (768, 12, 12, 16, 1e-4, 0.2, (224, 384)),
    "large_patch16": (1024, 24, 16, 16, 1e-4, 0.45, (224, 384)),
    "huge_patch14": (1280, 32, 16, 14, 1e-4, 0.6, (224,)),
    # ours, for small images: an eighth of the side as patch
    "mini": (96, 6, 3, None, 0.1, 0.0, (32, 64)),
}

PRESETS = {
    f"deit3_{name}_{size}": DeiT3Config(
        num_classes=1000, img_size=(size, size), patch_size=patch or size // 8, dim=dim, depth=depth,
        drop_path_rate=drop, heads=heads, mlp_ratio=4.0, layer_scale=scale,
    )
    for name, (dim, depth, heads, patch, scale, drop, sizes) in _SIZES.items()
    for size in sizes
}  # fmt: skip
# trained on ImageNet-1k; .in21k: on ImageNet-21k, then fine-tuned on ImageNet-1k
PUBLISHED = {
    f"deit3_{size}_patch{patch}_{side}{tag}": Published(
        f"deit_3_{size}_{side}_{file}.pth", f"timm/deit3_{size}_patch{patch}_{side}.{hub}"
    )
    for size, patch, sides in (("small", 16, (224, 384)), ("medium", 16, (224,)), ("base", 16, (224, 384)),
                               ("large", 16, (224, 384)), ("huge", 14, (224,)))
    for side in sides
    for tag, file, hub in (("", "1k", "fb_in1k"),
                           (".in21k", "21k_v1" if size == "huge" else "21k", "fb_in22k_ft_in1k"))
}  # fmt: skip

FAMILY = Family("deit3", DeiT3, PRESETS, PUBLISHED)

"""DeiT, Data-efficient image Transformers: "Training data-efficient image transformers & distillation through
attention", Touvron et al., 2021 (chapter 3 of the thesis).

A class token joins the patches from the start, every token attends to every token, and the head classifies the class
token. The distilled form has a second token beside it, with a head of its own, which learns from a teacher.
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
from .transformer import TransformerConfig, linear_rates, sizes_in


class Block(nn.Module):
    """MSA + FFN with stochastic depth, eq. 2 of CaiT's paper and its Fig. 1 (a):

    x' = x  + MSA(norm1(x))
    x" = x' + FFN(norm2(x'))
    """

    def __init__(self, dim: int, heads: int, hidden: int, drop_path: float, stream: Stream) -> None:
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiHeadAttention(dim, heads, stream.named("attn"))
        self.drop_path_1 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))
        self.drop_path_2 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor) -> Tensor:
        x = residual(x, self.attn, self.norm1, drop_path=self.drop_path_1)
        return residual(x, self.mlp, self.norm2, drop_path=self.drop_path_2)


@dataclass(frozen=True)
class DeiTConfig(TransformerConfig):
    distilled: bool  # with a distillation token

    @property
    def prefix(self) -> int:
        return 1 + self.distilled

    @property
    def crop_ratio(self) -> float:
        return 0.875

    def cost(self) -> Cost:
        d, tokens = self.dim, self.patches + self.prefix
        stem = cost.linear(self.patches, 3 * self.patch_size**2, d) + cost.values((self.prefix + tokens) * d)
        block = (
            2 * cost.layer_norm(tokens, d) + cost.attention(tokens, d, self.heads) + cost.mlp(tokens, d, self.hidden)
        )
        head = self.prefix * (cost.layer_norm(1, d) + cost.linear(1, d, self.num_classes))
        head += cost.values(-2 * d * self.distilled)  # one norm serves both
        return cost_of(stem, ((self.depth, block),), head)


class DeiT(Model):
    """Images (B, 3, H, W) to logits (B, C).

    distilled       with a distillation token. In training, the class token's logits learn from labels and the
                    distillation token's from a teacher (without one, from labels, too), and `outputs` has both. In
                    evaluation, logits are their mean.
    drop_path_rate  rate of stochastic depth in the last block; it grows linearly from 0 in the first
    """

    config: DeiTConfig
    config_type: ClassVar[type[Config]] = DeiTConfig
    # The distillation token is decayed, so that training is the reference's. timm exempts it, like the class token.
    no_decay = frozenset({"pos_embed", "cls_token"})

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        distilled: bool = False,
        drop_path_rate: float = 0.0,
        mlp_ratio: float = 4.0,
        seed: int = 0,
    ) -> None:
        self.config = c = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth, heads=heads,
            distilled=distilled, drop_path_rate=drop_path_rate, mlp_ratio=mlp_ratio,
        )  # fmt: skip
        stream = Stream(seed, "deit")
        self.cls_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
        if distilled:
            self.dist_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("dist_token")))
        shape = (1, c.patches + c.prefix, dim)
        self.pos_embed = nn.Parameter(truncated_normal(shape, stream.named("pos_embed")))
        self.patch_embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [
            Block(dim, heads, c.hidden, rate, stream.named(f"blocks.{i}"))
            for i, rate in enumerate(linear_rates(drop_path_rate, depth))
        ]
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))
        if distilled:
            self.classifiers = ("head", "head_dist")
            self.head_dist = nn.Linear(dim, num_classes, stream=stream.named("head_dist"))

    def outputs(self, images: Any) -> Outputs:
        features = self.features(images)
        logits = self.head(features[:, 0])
        if not self.config.distilled:
            return Outputs(logits, features=features[:, 0])
        distilled = self.head_dist(features[:, 1])
        return Outputs(logits if self.training else (logits + distilled) / 2, distilled, features=features[:, 0])

    def evaluated(self, outputs: Outputs) -> Tensor:
        if outputs.distilled is None or not self.training:
            return outputs.logits
        return (outputs.logits + outputs.distilled) / 2

    def features(self, images: Any) -> Tensor:
        """The normalised class token, and the distillation token if there is one (B, prefix, dim)."""
        patches = self.patch_embed(self.checked(images))
        tokens = [self.cls_token, self.dist_token] if self.config.distilled else [self.cls_token]
        in_front = [ops.broadcast_to(token, (len(patches), *token.shape[1:])) for token in tokens]
        x = ops.concat([*in_front, patches], axis=1) + self.pos_embed
        with drop_paths_drawn(self, x):
            for block in self.blocks:
                x = block(x)
        return self.norm(x[:, : self.config.prefix])

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        return resized_positions(tensors, self.config, stored, self.config.prefix)

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> DeiTConfig:
        distilled = "dist_token" in shapes
        return DeiTConfig(**sizes_in(shapes, PRESETS, 1 + distilled), distilled=distilled)

    def describe(self) -> str:
        c = self.config
        return f"{c.depth} blocks with {c.dim} channels, patches of {c.patch_size}{', distilled' * c.distilled}"


# dim, depth, heads, drop rate of stochastic depth, patch size, image size; "{}" is where "_distilled" goes
_SIZES = {
    # Table 3.1 of the thesis
    "deit_tiny{}_patch16_224": (192, 12, 3, 0.1, 16, 224),
    "deit_small{}_patch16_224": (384, 12, 6, 0.1, 16, 224),
    "deit_base{}_patch16_224": (768, 12, 12, 0.1, 16, 224),
    "deit_base{}_patch16_384": (768, 12, 12, 0.1, 16, 384),
    # ours, for small images
    "deit_mini{}_32": (96, 6, 3, 0.0, 4, 32),
    "deit_mini{}_64": (96, 6, 3, 0.0, 8, 64),
}

PRESETS = {
    name.format("_distilled" * distilled): DeiTConfig(
        num_classes=1000, img_size=(size, size), patch_size=patch, dim=dim, depth=depth, drop_path_rate=drop,
        heads=heads, mlp_ratio=4.0, distilled=distilled,
    )
    for distilled in (False, True)
    for name, (dim, depth, heads, drop, patch, size) in _SIZES.items()
}  # fmt: skip
PUBLISHED = {
    name: Published(f"{name}-{digest}.pth", f"timm/{name}.fb_in1k")
    for name, digest in {
        "deit_tiny_patch16_224": "a1311bcf", "deit_small_patch16_224": "cd65a155",
        "deit_base_patch16_224": "b5f2ef4d", "deit_base_patch16_384": "8de9b5d1",
        "deit_tiny_distilled_patch16_224": "b40b3cf7", "deit_small_distilled_patch16_224": "649709d9",
        "deit_base_distilled_patch16_224": "df68dfff", "deit_base_distilled_patch16_384": "d0272ac0",
    }.items()
}  # fmt: skip

FAMILY = Family("deit", DeiT, PRESETS, PUBLISHED)

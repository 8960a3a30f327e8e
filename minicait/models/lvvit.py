"""LV-ViT: "All Tokens Matter: Token Labeling for Training Better Vision Transformers", Jiang et al., 2021. Equations,
figures and tables have the numbers of the paper's first version.

A vision transformer with a convolutional stem and a residual factor, whose patches are classified, too: beside the
head of the class token, a second head gives a class for every patch (Fig. 2). In training, MixToken exchanges a box of
tokens between two images (Fig. 3).
"""

from __future__ import annotations

import math
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
from .cost import Cost, Part, cost_of
from .model import Family, LazyTensor, Model, Outputs, Published
from .positions import resized_positions
from .recognise import preset_of
from .transformer import TransformerConfig, linear_rates, sizes_in

EPS = 1e-5  # of every norm


class ConvStem(nn.Module):
    """Images to a grid of patches: 7 x 7 with stride 2, twice 3 x 3, each with batch norm and ReLU, then a projection.

    (B, 3, H, W)  ->  (B, H / 2, W / 2, channels)  ->  (B, H / p, W / p, dim)
    """

    def __init__(self, patch_size: int, channels: int, dim: int, stream: Stream) -> None:
        for i, (inputs, kernel, stride) in enumerate([(3, 7, 2), (channels, 3, 1), (channels, 3, 1)], 1):
            conv = nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, bias=False, stream=stream.named(f"conv{i}"))
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm(channels, EPS))
        half = patch_size // 2
        self.proj = nn.Conv2d(channels, dim, half, half, stream=stream.named("proj"))

    def forward(self, images: Tensor) -> Tensor:
        x = images.transpose(0, 2, 3, 1)
        for i in (1, 2, 3):
            conv, norm = getattr(self, f"conv{i}"), getattr(self, f"bn{i}")
            x = norm(conv(x)).relu()
        return self.proj(x)


class Block(nn.Module):
    """MSA + FFN with stochastic depth, and branches divided by a constant (eq. 5):

    x' = x  + MSA(norm1(x))  / lambda
    x" = x' + FFN(norm2(x')) / lambda
    """

    def __init__(
        self, dim: int, heads: int, hidden: int, residual_factor: float, drop_path: float, stream: Stream
    ) -> None:
        self.scale = 1 / residual_factor
        self.norm1 = nn.LayerNorm(dim, EPS)
        self.attn = nn.MultiHeadAttention(dim, heads, stream.named("attn"), False)
        self.drop_path_1 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = nn.LayerNorm(dim, EPS)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))
        self.drop_path_2 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor) -> Tensor:
        x = residual(x, self.attn, self.norm1, self.scale, self.drop_path_1)
        return residual(x, self.mlp, self.norm2, self.scale, self.drop_path_2)


@dataclass(frozen=True)
class LVViTConfig(TransformerConfig):
    residual_factor: float  # lambda: branches are divided by it
    stem_channels: int

    least: ClassVar[Mapping[str, int]] = {**TransformerConfig.least, "stem_channels": 1, "patch_size": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size % 2:
            raise ValueError(f"patch_size must be even, got {self.patch_size}")
        if not 1e-3 <= self.residual_factor <= 1e3:
            raise ValueError(f"residual_factor must be from 0.001 to 1000, got {self.residual_factor}")

    @property
    def prefix(self) -> int:
        return 1

    @property
    def crop_ratio(self) -> float:
        return 0.9 if self.dim < 512 else 1.0

    def cost(self) -> Cost:
        d, c, n, half = self.dim, self.stem_channels, self.patches, self.patch_size // 2
        tokens, pixels = n + 1, math.prod(self.img_size)
        stem = cost.values((1 + tokens) * d) + cost.linear(n, c * half * half, d)
        for inputs, kernel in ((3, 7), (c, 3), (c, 3)):
            conv = cost.linear(pixels // 4, inputs * kernel * kernel, c, bias=False)
            kept = pixels * 3 if inputs == 3 else pixels // 4 * c  # a convolution saves its input, and ReLU shares it
            stem += Part(conv.parameters + 2 * c, conv.multiply_adds, kept + pixels // 4 * c)  # batch norm saves x_hat
        block = 2 * cost.layer_norm(tokens, d) + cost.attention(tokens, d, self.heads, qkv_bias=False)
        block += cost.mlp(tokens, d, self.hidden)
        head = cost.layer_norm(tokens, d) + cost.linear(1, d, self.num_classes) + cost.linear(n, d, self.num_classes)
        return cost_of(stem, ((self.depth, block),), head)


class LVViT(Model):
    """Images (B, 3, H, W) to logits (B, C).

    In evaluation, the logits are those of the class token plus half of the largest over all patches. In training,
    `outputs` has the logits of the class token alone, and those of each patch.

    residual_factor  lambda: the branches of all blocks are divided by it
    stem_channels    channels of the convolutional stem
    drop_path_rate   rate of stochastic depth in the last block; it grows linearly from 0 in the first
    """

    config: LVViTConfig
    config_type: ClassVar[type[Config]] = LVViTConfig
    no_decay = frozenset({"pos_embed", "cls_token"})
    classifiers = ("head", "aux_head")
    classifies_patches = True
    stem_modules = ("patch_embed", "mix_token")

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 384,
        depth: int = 16,
        heads: int = 6,
        residual_factor: float = 2.0,
        stem_channels: int = 64,
        drop_path_rate: float = 0.0,
        mlp_ratio: float = 3.0,
        seed: int = 0,
    ) -> None:
        self.config = c = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth, heads=heads,
            residual_factor=residual_factor, stem_channels=stem_channels, drop_path_rate=drop_path_rate,
            mlp_ratio=mlp_ratio,
        )  # fmt: skip
        stream = Stream(seed, "lvvit")
        self.cls_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
        self.pos_embed = nn.Parameter(truncated_normal((1, 1 + c.patches, dim), stream.named("pos_embed")))
        self.patch_embed = ConvStem(patch_size, stem_channels, dim, stream.named("patch_embed"))
        self.mix_token = nn.MixToken()
        self.blocks = [
            Block(dim, heads, c.hidden, residual_factor, rate, stream.named(f"blocks.{i}"))
            for i, rate in enumerate(linear_rates(drop_path_rate, depth))
        ]
        self.norm = nn.LayerNorm(dim, EPS)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))
        self.aux_head = nn.Linear(dim, num_classes, stream=stream.named("aux_head"))

    def outputs(self, images: Any) -> Outputs:
        return self.trunk(self.stem(images))

    def stem(self, images: Any) -> Tensor:
        """The grid of patches (B, rows, columns, dim), with a box of them mixed: all that couples samples."""
        return self.mix_token(self.patch_embed(self.checked(images)))

    def trunk(self, x: Tensor) -> Outputs:
        batch, dim = len(x), self.config.dim
        cls = ops.broadcast_to(self.cls_token, (batch, 1, dim))
        x = ops.concat([cls, x.reshape(batch, self.config.patches, dim)], axis=1) + self.pos_embed
        with drop_paths_drawn(self, x):
            for block in self.blocks:
                x = block(x)
        x = self.norm(x)
        logits, tokens = self.head(x[:, 0]), self.aux_head(x[:, 1:])
        return Outputs(logits if self.training else _evaluated(logits, tokens), tokens=tokens, features=x[:, 0])

    def evaluated(self, outputs: Outputs) -> Tensor:
        assert outputs.tokens is not None
        return _evaluated(outputs.logits, outputs.tokens) if self.training else outputs.logits

    def targets(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Labels as MixToken mixes the images: of the class token by area, of each patch by its place (eqs. 9, 10)."""
        if not self.mix_token.active or "labels" not in targets:
            return dict(targets)
        mixed = self.mix_token.labels(targets["labels"], self.grid, self.num_classes, targets.get("token_labels"))
        return {**targets, "labels": mixed[0], "token_labels": mixed[1]}

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        return resized_positions(tensors, self.config, stored, self.config.prefix)

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> LVViTConfig:
        channels, sizes = shapes["patch_embed.conv1.weight"][0], sizes_in(shapes, PRESETS, 1)
        preset = preset_of(PRESETS, dim=sizes["dim"], depth=sizes["depth"])
        if preset is None:
            raise KeyError("the residual factor is not in the weights, and there is no preset of these sizes")
        sizes |= {"patch_size": 2 * sizes["patch_size"], "img_size": 2 * sizes["img_size"]}  # after a stride of 2
        return LVViTConfig(**sizes, stem_channels=channels, residual_factor=preset.residual_factor)

    def describe(self) -> str:
        c = self.config
        return f"{c.depth} blocks with {c.dim} channels, patches of {c.patch_size}"


def _evaluated(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits + 0.5 * tokens.max(1)


# dim, depth, heads, lambda, channels of the stem, drop rate of stochastic depth, resolutions
_SIZES = {
    # Table 8, with the official code's drop rates (of T, none is given: ours)
    "t": (240, 12, 4, 1.0, 64, 0.1, (224,)),
    "s": (384, 16, 6, 2.0, 64, 0.1, (224, 384)),
    "m": (512, 20, 8, 2.0, 64, 0.2, (224, 384, 448)),
    "l": (768, 24, 12, 3.0, 128, 0.3, (224, 288, 448, 512)),
    # ours, for small images: an eighth of the side as patch
    "mini": (96, 6, 3, 2.0, 16, 0.0, (32, 64)),
}

PRESETS = {
    f"lvvit_{name}_{size}": LVViTConfig(
        num_classes=1000, img_size=(size, size), patch_size=16 if size >= 224 else size // 8, dim=dim, depth=depth,
        drop_path_rate=drop, heads=heads, mlp_ratio=3.0, residual_factor=factor, stem_channels=channels,
    )
    for name, (dim, depth, heads, factor, channels, drop, sizes) in _SIZES.items()
    for size in sizes
}  # fmt: skip
_RELEASES = "https://github.com/zihangJiang/TokenLabeling/releases/download"
PUBLISHED = {
    f"lvvit_{name}": Published(f"{_RELEASES}/{file}")
    for name, file in {
        "t_224": "v0.2.0/lvvit_t.pth",
        "s_224": "1.0/lvvit_s-26M-224-83.3.pth.tar",
        "s_384": "1.0/lvvit_s-26M-384-84.4.pth.tar",
        "m_224": "1.0/lvvit_m-56M-224-84.0.pth.tar",
        "m_384": "1.0/lvvit_m-56M-384-85.4.pth.tar",
        "m_448": "1.0/lvvit_m-56M-448-85.5.pth.tar",
        "l_448": "1.0/lvvit_l-150M-448-86.2.pth.tar",
        "l_512": "1.0/lvvit_l-150M-512-86.4.pth.tar",
    }.items()
}

FAMILY = Family("lvvit", LVViT, PRESETS, PUBLISHED)

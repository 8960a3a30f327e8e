"""PatchConvNet: "Augmenting Convolutional networks with attention-based aggregation", Touvron et al., 2021 (chapter 5
of the thesis).

A convolutional stem makes the patches, and a trunk of depthwise convolutions mixes them at constant resolution, without
positions. One class-attention layer then gathers what the classifier needs (Fig. 5.1): its attention is a map of what
the model looks at. The multi-class form has a class token, and so a map, for every class (Fig. 5.6).
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
from .model import Family, Model, Outputs, Published
from .recognise import blocks_in, preset_of

CLASS_MLP_RATIO = 3


class ConvStem(nn.Module):
    """Images to tokens by 3 x 3 convolutions of stride 2, each with twice the channels, and GELU between them."""

    def __init__(self, patch_size: int, dim: int, stream: Stream) -> None:
        widths = _stem_widths(patch_size, dim)
        layers: list[Any] = []
        for i, (inputs, outputs) in enumerate(zip([3, *widths], widths, strict=False)):
            named = stream.named(f"proj.{2 * i}.0")
            layers += [nn.Sequence(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False, stream=named)), ops.gelu]
        self.proj = nn.Sequence(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(images.transpose(0, 2, 3, 1))
        batch, rows, columns, dim = x.shape
        return x.reshape(batch, rows * columns, dim)


def _stem_widths(patch_size: int, dim: int) -> list[int]:
    """Channels after each convolution: dim / 8, dim / 4, dim / 2, dim for patches of 16."""
    count = patch_size.bit_length() - 1
    return [dim >> i for i in reversed(range(count))]


class SqueezeExcite(nn.Module):
    """Every channel scaled by a gate that depends on the means of all channels over the image:

    s = mean over the grid,    x * sigmoid(W_e relu(W_r s + b_r) + b_e)
    """

    def __init__(self, dim: int, reduced: int, stream: Stream) -> None:
        self.conv_reduce = nn.Pointwise(dim, reduced, stream.named("conv_reduce"))
        self.conv_expand = nn.Pointwise(reduced, dim, stream.named("conv_expand"))

    def forward(self, x: Tensor) -> Tensor:
        s = x.mean((1, 2), keepdims=True)
        return x * self.conv_expand(self.conv_reduce(s).relu()).sigmoid()


class ConvBranch(nn.Branch):
    """The branch of a block, on the grid of patches: 1 x 1, GELU, depthwise 3 x 3, GELU, squeeze-excite, 1 x 1."""

    def __init__(self, dim: int, grid: tuple[int, int], stream: Stream) -> None:
        self.grid = grid
        named = stream.named("qkv_pos").named
        self.qkv_pos = nn.Sequence(  # the authors' name: the branch stands where a transformer has attention
            nn.Pointwise(dim, dim, named("0")),
            ops.gelu,
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim, stream=named("2")),
            ops.gelu,
            SqueezeExcite(dim, round(dim / 4), named("4")),
            nn.Pointwise(dim, dim, named("5")),
        )

    def inner(self, x: Tensor) -> Tensor:
        """Tokens (B, N, dim) to the input of the last 1 x 1 convolution."""
        batch, tokens, dim = x.shape
        x = x.reshape(batch, *self.grid, dim)
        for layer in self.qkv_pos.layers[:-1]:
            x = layer(x)
        return x.reshape(batch, tokens, dim)

    @property
    def last(self) -> nn.Pointwise:
        return self.qkv_pos.layers[-1]


class Block(nn.Module):
    """One branch with LayerScale and stochastic depth (Fig. 5.1): x' = x + diag(lambda) f(norm1(x))."""

    def __init__(self, dim: int, grid: tuple[int, int], layer_scale: float, drop_path: float, stream: Stream) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = ConvBranch(dim, grid, stream.named("attn"))
        self.drop_path = nn.DropPath(drop_path, f"{stream.purpose}/drop_path")

    def forward(self, x: Tensor) -> Tensor:
        return residual(x, self.attn, self.norm1, self.gamma_1, self.drop_path)


class ClassBlock(nn.Module):
    """Attention-based aggregation: CaiT's class-attention block (its eqs. 5-9) with one head.

    A single class token also attends to itself; several attend to the patches alone.
    """

    def __init__(self, dim: int, class_tokens: int | None, layer_scale: float, stream: Stream) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.ClassAttention(dim, 1, stream.named("attn"), class_tokens)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, CLASS_MLP_RATIO * dim, stream.named("mlp"))

    def forward(self, cls: Tensor, patches: Tensor) -> Tensor:
        cls = residual(cls, self.attn, self.norm1, self.gamma_1, reads=ops.concat([cls, patches], axis=1))
        return residual(cls, self.mlp, self.norm2, self.gamma_2)


class OutputPerToken(nn.Module):
    """A linear layer with one output for each of C tokens: logit c = w_c . x_c + b_c, weights named `head.c`."""

    def __init__(self, dim: int, count: int, stream: Stream) -> None:
        for k in range(count):
            setattr(self, str(k), nn.Linear(dim, 1, stream=stream.named(str(k))))

    def forward(self, x: Tensor) -> Tensor:
        heads: Any = [head for _, head in self.children()]
        weight, bias = (ops.concat([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        return (x * weight).sum(-1) + bias


@dataclass(frozen=True)
class PatchConvNetConfig(Config):
    layer_scale: float  # initial value of LayerScale
    multi_class: bool  # a class token, and an attention map, for every class

    def __post_init__(self) -> None:
        super().__post_init__()
        p = self.patch_size
        if p < 2 or p & (p - 1) or self.dim % (p // 2):
            raise ValueError(
                f"patch_size must be a power of 2, and dim a multiple of half of it, got {p} and {self.dim}"
            )

    @property
    def crop_ratio(self) -> float:
        return 0.875

    @property
    def class_tokens(self) -> int:
        return self.num_classes if self.multi_class else 1

    @property
    def blocks(self) -> int:
        return self.depth + 1 + self.multi_class * self.num_classes

    @property
    def layers(self) -> str:
        return f"{self.depth}+1"

    def cost(self) -> Cost:
        n, d, k = self.patches, self.dim, self.class_tokens
        widths, stem = _stem_widths(self.patch_size, d), cost.values(k * d)
        for i, (inputs, outputs) in enumerate(zip([3, *widths], widths, strict=False)):
            grid = math.prod(self.img_size) // 4 ** (i + 1)
            conv = cost.linear(grid, 9 * inputs, outputs, bias=False)
            gelu = 0 if outputs == d else grid * outputs
            stem += Part(conv.parameters, conv.multiply_adds, 4 * grid * inputs + gelu)  # saves its input, not patches
        reduced = round(d / 4)
        pointwise, depthwise = cost.linear(n, d, d), Part(10 * d, 9 * n * d, n * d)
        gate = cost.linear(1, d, reduced) + cost.linear(1, reduced, d) + Part(0, 0, n * d + 2 * d + reduced)
        block = cost.layer_norm(n, d) + cost.values(d) + 2 * pointwise + depthwise + gate + Part(saved=2 * n * d)
        tokens = n if self.multi_class else 1 + n
        pool = 2 * (cost.layer_norm(k, d) + cost.values(d))
        pool += cost.class_attention(tokens, d, 1, k if self.multi_class else None)
        pool += Part(0, 0, n * (d + 1)) + cost.mlp(k, d, CLASS_MLP_RATIO * d)
        head = cost.layer_norm(k, d) + cost.linear(1, d, self.num_classes)
        head += Part(saved=(2 * k - 1) * d if self.multi_class else 0)  # the tokens, and all weights beside each other
        return cost_of(stem, ((self.depth, block), (1, pool)), head)


class PatchConvNet(Model):
    """Images (B, 3, H, W) to logits (B, C).

    patch_size      a power of 2: the stem has a convolution of stride 2 for each factor of 2
    layer_scale     initial value of LayerScale
    multi_class     a class token, and an attention map, for every class
    drop_path_rate  rate of stochastic depth, the same in every block; the class block has none
    """

    config: PatchConvNetConfig
    config_type: ClassVar[type[Config]] = PatchConvNetConfig
    no_decay = frozenset({"cls_token"})

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 384,
        depth: int = 60,
        layer_scale: float = 1e-4,
        multi_class: bool = False,
        drop_path_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.config = c = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth,
            layer_scale=layer_scale, multi_class=multi_class, drop_path_rate=drop_path_rate,
        )  # fmt: skip
        stream = Stream(seed, "patchconvnet")
        self.cls_token = nn.Parameter(truncated_normal((1, c.class_tokens, dim), stream.named("cls_token")))
        self.patch_embed = ConvStem(patch_size, dim, stream.named("patch_embed"))
        self.blocks = [
            Block(dim, c.grid, layer_scale, drop_path_rate, stream.named(f"blocks.{i}")) for i in range(depth)
        ]
        several = c.class_tokens if multi_class else None
        self.blocks_token_only = [ClassBlock(dim, several, layer_scale, stream.named("blocks_token_only.0"))]
        self.norm = nn.LayerNorm(dim)
        head: Any = OutputPerToken if multi_class else nn.Linear
        self.head = head(dim, num_classes, stream=stream.named("head"))
        if multi_class:
            self.classifiers = ("head", "cls_token")

    def outputs(self, images: Any) -> Outputs:
        features = self.features(images)
        if self.config.multi_class:
            return Outputs(self.head(features))
        return Outputs(self.head(features[:, 0]), features=features[:, 0])

    def features(self, images: Any) -> Tensor:
        """The normalised class token, or those of all classes (B, tokens, dim)."""
        patches = self.patch_embed(self.checked(images))
        with drop_paths_drawn(self, patches):
            for block in self.blocks:
                patches = block(patches)
        cls = ops.broadcast_to(self.cls_token, (len(patches), *self.cls_token.shape[1:]))
        for class_block in self.blocks_token_only:
            cls = class_block(cls, patches)
        return self.norm(cls)

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> PatchConvNetConfig:
        dim, depth = shapes["blocks.0.attn.qkv_pos.0.weight"][0], blocks_in(shapes)
        patch = 2 ** sum(name.startswith("patch_embed.proj.") for name in shapes)  # a convolution for each factor
        preset = preset_of(PRESETS, dim=dim, depth=depth, patch_size=patch)
        multi_class = "head.0.weight" in shapes
        return PatchConvNetConfig(
            num_classes=blocks_in(shapes, "head") if multi_class else shapes["head.weight"][0], multi_class=multi_class,
            img_size=(224, 224) if preset is None else preset.img_size, patch_size=patch, dim=dim, depth=depth,
            drop_path_rate=0.0 if preset is None else preset.drop_path_rate, layer_scale=1e-6,
        )  # fmt: skip

    def describe(self) -> str:
        c = self.config
        kind = ", a class token per class" if c.multi_class else ""
        return f"{c.depth} + 1 blocks with {c.dim} channels, patches of {c.patch_size}{kind}"


# dim, depth, initial LayerScale, drop rate of stochastic depth, resolutions
_SIZES = {
    # Tables 5.1, 5.2 and 5.8 of the thesis, with the official code's epsilon; drop rates of L, and epsilons of
    # sizes that only the thesis has, are ours
    "s20": (384, 20, 1e-6, 0.0, (224,)),
    "s36": (384, 36, 1e-6, 0.05, (224,)),
    "s60": (384, 60, 1e-4, 0.15, (224, 384, 512)),
    "s60_multi": (384, 60, 1e-4, 0.15, (224,)),
    "s120": (384, 120, 1e-6, 0.2, (224,)),
    "b36": (768, 36, 1e-6, 0.2, (224,)),
    "b60": (768, 60, 1e-6, 0.3, (224, 384)),
    "b120": (768, 120, 1e-6, 0.4, (224, 384)),
    "l60": (1024, 60, 1e-6, 0.3, (224, 384)),
    "l120": (1024, 120, 1e-6, 0.4, (224, 384)),
    # ours, for small images: an eighth of the side as patch
    "mini": (96, 8, 0.1, 0.0, (32, 64)),
    "mini_multi": (96, 8, 0.1, 0.0, (32, 64)),
}

PRESETS = {
    f"patchconvnet_{name}_{size}": PatchConvNetConfig(
        num_classes=1000, img_size=(size, size), patch_size=16 if size >= 224 else size // 8, dim=dim, depth=depth,
        drop_path_rate=drop, layer_scale=scale, multi_class=name.endswith("_multi"),
    )
    for name, (dim, depth, scale, drop, sizes) in _SIZES.items()
    for size in sizes
}  # fmt: skip
# trained on ImageNet-1k; .in21k: on ImageNet-21k, then fine-tuned on ImageNet-1k
PUBLISHED = {
    f"patchconvnet_{name}{tag}": Published(f"{name}_{file}.pth")
    for tag, file, names in (
        ("", "1k", ("s60_224", "s120_224", "b60_224", "b120_224")),
        (".in21k", "21k", ("s60_224", "s60_384", "s60_512", "b60_224", "b60_384", "b120_224", "b120_384")),
    )
    for name in names
} | {  # from new weights, and fine-tuned from those of one class token
    "patchconvnet_s60_multi_224": Published("s60_multi_scratch_1k.pth"),
    "patchconvnet_s60_multi_224.finetuned": Published("s60_multi_finetune_1k.pth"),
}

FAMILY = Family("patchconvnet", PatchConvNet, PRESETS, PUBLISHED)

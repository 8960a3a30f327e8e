"""ResMLP: "ResMLP: Feedforward networks for image classification with data-efficient training", Touvron et al., 2021
(chapter 4 of the thesis).

No attention and no normalisation: a linear layer mixes the patches, the same for every channel, and an MLP mixes the
channels, the same for every patch. The head classifies the mean over patches, or a class token that a second stage
fills from them (class-MLP, Table 4.3).
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
from .recognise import blocks_in, mlp_ratio, preset_of
from .transformer import check_ratio

CLASS_BLOCKS = 2  # of the class-MLP, as CaiT has class-attention layers
TIMM_NAMES = {
    "stem.": "patch_embed.", "linear_tokens.": "attn.", "mlp_channels.": "mlp.", ".ls1": ".gamma_1", ".ls2": ".gamma_2",
}  # fmt: skip


class Block(nn.Module):
    """Cross-patch layer + MLP with LayerScale and stochastic depth, eqs. 4.2 and 4.3 of the thesis:

    z = x + diag(lambda)  (A Aff1(x) + b)
    y = z + diag(lambda') MLP(Aff2(z))
    """

    def __init__(
        self, patches: int, dim: int, hidden: int, layer_scale: float, drop_path: float, stream: Stream
    ) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.Affine(dim)
        self.attn = nn.TokenLinear(patches, patches, stream.named("attn"))
        self.drop_path_1 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_1")
        self.norm2 = nn.Affine(dim)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))
        self.drop_path_2 = nn.DropPath(drop_path, f"{stream.purpose}/drop_path_2")

    def forward(self, x: Tensor) -> Tensor:
        x = residual(x, self.attn, self.norm1, self.gamma_1, self.drop_path_1)
        return residual(x, self.mlp, self.norm2, self.gamma_2, self.drop_path_2)


class ClassBlock(nn.Module):
    """Class-MLP: CaiT's class stage, in which a linear layer gathers from the tokens instead of attention.

    cls' = cls  + diag(lambda)  (a Aff1([cls, x]) + b)        one output: a has 1 + N values
    cls" = cls' + diag(lambda') MLP(Aff2(cls'))
    """

    def __init__(self, patches: int, dim: int, hidden: int, layer_scale: float, stream: Stream) -> None:
        self.gamma_1 = nn.LayerScale(dim, layer_scale)
        self.gamma_2 = nn.LayerScale(dim, layer_scale)
        self.norm1 = nn.Affine(dim)
        self.attn = nn.TokenLinear(1 + patches, 1, stream.named("attn"))
        self.norm2 = nn.Affine(dim)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))

    def forward(self, cls: Tensor, patches: Tensor) -> Tensor:
        cls = residual(cls, self.attn, self.norm1, self.gamma_1, reads=ops.concat([cls, patches], axis=1))
        return residual(cls, self.mlp, self.norm2, self.gamma_2)


@dataclass(frozen=True)
class ResMLPConfig(Config):
    layer_scale: float  # initial value of LayerScale
    mlp_ratio: float
    class_mlp: bool  # instead of the mean over patches

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.dim, self.mlp_ratio)

    @property
    def crop_ratio(self) -> float:
        return 0.9

    @property
    def hidden(self) -> int:
        return int(self.dim * self.mlp_ratio)

    @property
    def blocks(self) -> int:
        return self.depth + CLASS_BLOCKS * self.class_mlp

    @property
    def layers(self) -> str:
        return f"{self.depth}+{CLASS_BLOCKS}" if self.class_mlp else str(self.depth)

    def cost(self) -> Cost:
        n, d = self.patches, self.dim
        stem = cost.linear(n, 3 * self.patch_size**2, d) + cost.values(d * self.class_mlp)
        block = _block(n, n, d, self.hidden)
        head = Part(2 * d, 0, d if self.class_mlp else n * d) + cost.linear(1, d, self.num_classes)
        return cost_of(
            stem, ((self.depth, block), (CLASS_BLOCKS * self.class_mlp, _block(1 + n, 1, d, self.hidden))), head
        )


def _block(inputs: int, outputs: int, d: int, hidden: int) -> Part:
    """Two LayerScales, two Affs that save their inputs, the layer along the tokens, whose output LayerScale saves."""
    along = Part(inputs * outputs + outputs, inputs * outputs * d, (inputs + outputs) * d)
    return Part(6 * d, 0, (inputs + outputs) * d) + along + cost.mlp(outputs, d, hidden)


class ResMLP(Model):
    """Images (B, 3, H, W) to logits (B, C). The image size is fixed, because a matrix has a row for every patch.

    layer_scale     initial value of LayerScale
    class_mlp       pool by two class-MLP blocks instead of the mean over patches
    drop_path_rate  rate of stochastic depth, the same in every block
    """

    config: ResMLPConfig
    config_type: ClassVar[type[Config]] = ResMLPConfig
    no_decay = frozenset({"cls_token"})

    def __init__(
        self,
        num_classes: int = 1000,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        dim: int = 384,
        depth: int = 12,
        layer_scale: float = 0.1,
        class_mlp: bool = False,
        drop_path_rate: float = 0.0,
        mlp_ratio: float = 4.0,
        seed: int = 0,
    ) -> None:
        self.config = c = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth,
            layer_scale=layer_scale, class_mlp=class_mlp, drop_path_rate=drop_path_rate, mlp_ratio=mlp_ratio,
        )  # fmt: skip
        stream = Stream(seed, "resmlp")
        self.patch_embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [
            Block(c.patches, dim, c.hidden, layer_scale, drop_path_rate, stream.named(f"blocks.{i}"))
            for i in range(depth)
        ]
        if class_mlp:
            self.cls_token = nn.Parameter(truncated_normal((1, 1, dim), stream.named("cls_token")))
            self.blocks_token_only = [
                ClassBlock(c.patches, dim, c.hidden, layer_scale, stream.named(f"blocks_token_only.{i}"))
                for i in range(CLASS_BLOCKS)
            ]
        self.norm = nn.Affine(dim)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))

    def outputs(self, images: Any) -> Outputs:
        features = self.features(images)
        return Outputs(self.head(features), features=features)

    def features(self, images: Any) -> Tensor:
        """Input of the head (B, dim): the mean over patches, or the class token."""
        x = self.patch_embed(self.checked(images))
        with drop_paths_drawn(self, x):
            for block in self.blocks:
                x = block(x)
        if not self.config.class_mlp:
            return self.norm(x).mean(1)
        cls = ops.broadcast_to(self.cls_token, (len(x), 1, self.config.dim))
        for class_block in self.blocks_token_only:
            cls = class_block(cls, x)
        return self.norm(cls[:, 0])

    def adapted(self, tensors: Mapping[str, LazyTensor], stored: Config | None) -> dict[str, LazyTensor]:
        layer, patches = tensors.get("blocks.0.attn.bias"), self.config.patches
        if layer is not None and len(layer.shape) == 1 and layer.shape[0] != patches:
            kept = "" if stored is None else f" ({stored.img_size[0]} x {stored.img_size[1]} pixels)"
            raise ValueError(f"a ResMLP takes images of one size: {layer.shape[0]} patches{kept}, not {patches}")
        return dict(tensors)

    @classmethod
    def official(cls, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        if name.endswith((".alpha", ".beta")) and shape[:-1] == (1, 1):
            shape = shape[-1:]
        for theirs, ours in TIMM_NAMES.items():
            name = name.replace(theirs, ours)
        return name, shape

    @classmethod
    def config_of(cls, shapes: Mapping[str, tuple[int, ...]]) -> ResMLPConfig:
        (dim,), (patches,) = shapes["norm.alpha"], shapes["blocks.0.attn.bias"]
        depth, patch = blocks_in(shapes), shapes["patch_embed.proj.weight"][-1]
        preset = preset_of(PRESETS, dim=dim, depth=depth)
        return ResMLPConfig(
            num_classes=shapes["head.weight"][0], img_size=(math.isqrt(patches) * patch,) * 2, patch_size=patch,
            dim=dim, depth=depth, drop_path_rate=0.0 if preset is None else preset.drop_path_rate,
            layer_scale=1e-5, class_mlp="cls_token" in shapes, mlp_ratio=mlp_ratio(shapes, dim),
        )  # fmt: skip

    def describe(self) -> str:
        c = self.config
        return f"{c.layers.replace('+', ' + ')} blocks with {c.dim} channels, patches of {c.patch_size}"


# dim, depth, patch size, initial LayerScale, class-MLP, drop rate of stochastic depth, image size
_SIZES = {
    # published
    "resmlp_12_224": (384, 12, 16, 0.1, False, 0.05, 224),
    "resmlp_24_224": (384, 24, 16, 1e-5, False, 0.05, 224),
    "resmlp_36_224": (384, 36, 16, 1e-6, False, 0.05, 224),
    "resmlp_big_24_224": (768, 24, 8, 1e-6, False, 0.05, 224),
    # only in the thesis: Table 4.3
    "resmlp_12_patch14_224": (384, 12, 14, 0.1, False, 0.05, 224),
    "resmlp_12_patch8_224": (384, 12, 8, 0.1, False, 0.05, 224),
    "resmlp_12_class_mlp_224": (384, 12, 16, 0.1, True, 0.05, 224),
    "resmlp_big_24_patch16_224": (768, 24, 16, 1e-6, False, 0.05, 224),
    # ours, for small images
    "resmlp_mini_32": (96, 6, 4, 0.1, False, 0.0, 32),
    "resmlp_mini_64": (96, 6, 8, 0.1, False, 0.0, 64),
}

PRESETS = {
    name: ResMLPConfig(
        num_classes=1000, img_size=(size, size), patch_size=patch, dim=dim, depth=depth, drop_path_rate=drop,
        layer_scale=scale, mlp_ratio=4.0, class_mlp=class_mlp,
    )
    for name, (dim, depth, patch, scale, class_mlp, drop, size) in _SIZES.items()
}  # fmt: skip
# trained on labels; .dist: on those of a teacher; .dino: on none, so the head is to be trained;
# .in21k: on ImageNet-21k, then fine-tuned on ImageNet-1k
_TAGS = {
    "": ("no_dist", "fb_in1k"), ".dist": ("dist", "fb_distilled_in1k"), ".dino": ("dino", "fb_dino"),
    ".in21k": ("22k", "fb_in22k_ft_in1k"),
}  # fmt: skip
PUBLISHED = {
    f"{name}{tag}": Published(f"{file}_{_TAGS[tag][0]}.pth", f"timm/{name}.{_TAGS[tag][1]}")
    for name, file, tags in (
        ("resmlp_12_224", "resmlp_12", ("", ".dist", ".dino")),
        ("resmlp_24_224", "resmlp_24", ("", ".dist", ".dino")),
        ("resmlp_36_224", "resmlp_36", ("", ".dist")),
        ("resmlp_big_24_224", "resmlpB_24", ("", ".dist", ".in21k")),
    )
    for tag in tags
}

FAMILY = Family("resmlp", ResMLP, PRESETS, PUBLISHED)

# mypy: disable-error-code="misc"
"""PatchConvNet and LV-ViT as plain PyTorch modules, to measure against: timm has neither.

They have the layers of the published code, with its names, so that our weights load into them.
"""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

from ..models.transformer import linear_rates

torch: Any = import_module("torch")  # not type-checked, even if it is installed
nn: Any = torch.nn
functional: Any = torch.nn.functional


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Any) -> Any:
        return self.fc2(functional.gelu(self.fc1(x)))


class DropPath(nn.Module):
    """Stochastic depth: a branch is computed, then dropped for a sample with probability `drop_prob`, as in timm."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Any) -> Any:
        if not self.training or self.drop_prob == 0:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty((len(x), 1, 1)).bernoulli_(keep).div_(keep)


# ---- PatchConvNet


class SqueezeExcite(nn.Module):
    def __init__(self, dim: int, reduced: int) -> None:
        super().__init__()
        self.conv_reduce, self.conv_expand = nn.Conv2d(dim, reduced, 1), nn.Conv2d(reduced, dim, 1)

    def forward(self, x: Any) -> Any:
        s = functional.relu(self.conv_reduce(x.mean((2, 3), keepdim=True)))
        return x * self.conv_expand(s).sigmoid()


class ConvBranch(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        depthwise = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.qkv_pos = nn.Sequential(
            nn.Conv2d(dim, dim, 1), nn.GELU(), depthwise, nn.GELU(), SqueezeExcite(dim, round(dim / 4)),
            nn.Conv2d(dim, dim, 1),
        )  # fmt: skip

    def forward(self, x: Any, grid: tuple[int, int]) -> Any:
        x = x.transpose(1, 2).reshape(len(x), -1, *grid)
        return self.qkv_pos(x).flatten(2).transpose(1, 2)


class ConvBlock(nn.Module):
    def __init__(self, dim: int, epsilon: float, rate: float) -> None:
        super().__init__()
        self.gamma_1 = nn.Parameter(epsilon * torch.ones(dim))
        self.norm1, self.attn, self.drop_path = nn.LayerNorm(dim, eps=1e-6), ConvBranch(dim), DropPath(rate)

    def forward(self, x: Any, grid: tuple[int, int]) -> Any:
        return x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x), grid))


class ClassAttention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x[:, :1]), self.k(x), self.v(x)
        return self.proj(functional.scaled_dot_product_attention(q, k, v))


class ClassBlock(nn.Module):
    def __init__(self, dim: int, epsilon: float) -> None:
        super().__init__()
        self.gamma_1, self.gamma_2 = (nn.Parameter(epsilon * torch.ones(dim)) for _ in range(2))
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = ClassAttention(dim), Mlp(dim, 3 * dim)

    def forward(self, cls: Any, patches: Any) -> Any:
        cls = cls + self.gamma_1 * self.attn(self.norm1(torch.cat([cls, patches], 1)))
        return cls + self.gamma_2 * self.mlp(self.norm2(cls))


class PatchEmbed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        widths, layers = [3, dim // 8, dim // 4, dim // 2, dim], []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, images: Any) -> Any:
        return self.proj(images)


class PatchConvNet(nn.Module):
    """PatchConvNet with one class token, for patches of 16."""

    def __init__(self, c: Any, num_classes: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.patch_embed = PatchEmbed(c.dim)
        self.blocks = nn.ModuleList([ConvBlock(c.dim, c.layer_scale, c.drop_path_rate) for _ in range(c.depth)])
        self.blocks_token_only = nn.ModuleList([ClassBlock(c.dim, c.layer_scale)])
        self.norm, self.head = nn.LayerNorm(c.dim, eps=1e-6), nn.Linear(c.dim, num_classes)

    def forward(self, images: Any) -> Any:
        x = self.patch_embed(images)
        grid, x = x.shape[2:], x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, grid)
        cls = self.blocks_token_only[0](self.cls_token.expand(len(x), -1, -1), x)
        return self.head(self.norm(cls)[:, 0])


# ---- LV-ViT


class Stem(nn.Module):
    def __init__(self, patch_size: int, channels: int, dim: int) -> None:
        super().__init__()
        c, half = channels, patch_size // 2
        self.conv1 = nn.Conv2d(3, c, 7, 2, 3, bias=False)
        self.conv2, self.conv3 = (nn.Conv2d(c, c, 3, 1, 1, bias=False) for _ in range(2))
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(c) for _ in range(3))
        self.proj = nn.Conv2d(c, dim, half, half)

    def forward(self, x: Any) -> Any:
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = functional.relu(norm(conv(x)))
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, dim))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, factor: float, rate: float) -> None:
        super().__init__()
        self.factor, self.drop_path = factor, DropPath(rate)
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-5) for _ in range(2))
        self.attn, self.mlp = Attention(dim, heads), Mlp(dim, hidden)

    def forward(self, x: Any) -> Any:
        x = x + self.drop_path(self.attn(self.norm1(x)) / self.factor)
        return x + self.drop_path(self.mlp(self.norm2(x)) / self.factor)


class LVViT(nn.Module):
    """LV-ViT: in training the logits of the class token and of every patch, in evaluation their sum."""

    def __init__(self, c: Any, num_classes: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + c.patches, c.dim))
        self.patch_embed = Stem(c.patch_size, c.stem_channels, c.dim)
        rates = linear_rates(c.drop_path_rate, c.depth)
        self.blocks = nn.ModuleList([Block(c.dim, c.heads, c.hidden, c.residual_factor, rate) for rate in rates])
        self.norm = nn.LayerNorm(c.dim, eps=1e-5)
        self.head, self.aux_head = (nn.Linear(c.dim, num_classes) for _ in range(2))

    def forward(self, images: Any) -> Any:
        x = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits, tokens = self.head(x[:, 0]), self.aux_head(x[:, 1:])
        return (logits, tokens) if self.training else logits + 0.5 * tokens.amax(1)

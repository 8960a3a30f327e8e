"""Layers. `module` is what they all are; `layers` the small ones, `attention` the three kinds of attention, `conv`
convolution and batch normalisation, `drop` dropout and stochastic depth; `residual` adds a branch to the main path,
`record` looks inside.
"""

from .attention import ClassAttention, MultiHeadAttention, TalkingHeadsAttention
from .conv import BatchNorm, Conv2d
from .drop import Dropout, DropPath, drawn_factors, drop_path_factors, drop_path_layers, drop_paths_drawn
from .layers import (
    Affine,
    Branch,
    LayerNorm,
    LayerScale,
    Linear,
    Mlp,
    PatchEmbed,
    Pointwise,
    TokenLinear,
    normalised,
)
from .mix_token import MixToken
from .module import Buffer, Memory, Module, Parameter, Sequence, evaluation_mode
from .residual import residual

__all__ = [
    "Affine", "BatchNorm", "Branch", "Buffer", "ClassAttention", "Conv2d", "DropPath", "Dropout", "LayerNorm",
    "LayerScale", "Linear", "Memory", "MixToken", "Mlp", "Module", "MultiHeadAttention", "Parameter", "PatchEmbed",
    "Pointwise", "Sequence", "TalkingHeadsAttention", "TokenLinear", "drawn_factors", "drop_path_factors",
    "drop_path_layers", "drop_paths_drawn", "evaluation_mode", "normalised", "residual",
]  # fmt: skip

"""Layers. `module` is what they all are; `layers` the small ones, `attention` the three kinds of attention, `residual`
adds a branch to the main path, `record` looks inside.
"""

from .attention import ClassAttention, MultiHeadAttention, TalkingHeadsAttention
from .layers import Branch, Dropout, DropPath, LayerNorm, LayerScale, Linear, Mlp, PatchEmbed
from .module import Buffer, Module, Parameter, evaluation_mode
from .residual import residual, stochastic_depth

__all__ = [
    "Branch", "Buffer", "ClassAttention", "DropPath", "Dropout", "LayerNorm", "LayerScale", "Linear", "Mlp", "Module",
    "MultiHeadAttention", "Parameter", "PatchEmbed", "TalkingHeadsAttention", "evaluation_mode", "residual",
    "stochastic_depth",
]  # fmt: skip

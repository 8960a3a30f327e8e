"""Layers: `module` is what they all are, `layers` the small ones, `attention` the three kinds of attention."""

from .attention import ClassAttention, MultiHeadAttention, TalkingHeadsAttention
from .layers import Branch, Dropout, DropPath, LayerNorm, LayerScale, Linear, Mlp, PatchEmbed
from .module import Module, Parameter

__all__ = [
    "Branch",
    "ClassAttention",
    "DropPath",
    "Dropout",
    "LayerNorm",
    "LayerScale",
    "Linear",
    "Mlp",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "PatchEmbed",
    "TalkingHeadsAttention",
]

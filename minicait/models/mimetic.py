"""Initial weights with which small models learn from few images: self-attention as it looks in trained transformers.

"Mimetic Initialization of Self-Attention Layers", Trockman and Kolter, 2023 (arXiv 2305.09828). Weights drawn at random
make attention flat, and a model needs many images to learn that patches near each other belong together. In trained
models two products of weights have a pattern, and a model that starts with it learns faster:

    W_q^T W_k ~ 0.7 (Z + I)      a token attends to those that resemble it
    W_o W_v   ~ 0.4 (Z - I)      and moves away from what it finds there; Z is noise of variance 1/d

Positions start as waves along rows and columns, so that neighbours resemble each other: attention starts local.

So far the paper. Two things are ours. Talking heads, which the paper's models do not have, start near the identity, so
that every head begins with its own map. And the other layers of the blocks start with a variance of 1/inputs, so that
outputs are as large as inputs: with the reference's standard deviation of 0.02 they are so for 2,500 inputs, and for 96
they are a fifth as large.
"""

from __future__ import annotations

import numpy as np

from autograd.random import Stream

from ..machine import blas_threads
from ..nn import ClassAttention, Linear, Mlp, MultiHeadAttention, TalkingHeadsAttention
from .model import Model

SELF_ATTENTION = (MultiHeadAttention, TalkingHeadsAttention)
LONGEST = 10_000  # ratio of the longest wave to the shortest, which is 2 pi patches


def initialise_mimetically(model: Model, seed: int = 0) -> None:
    """Change the initial weights of a new model, in blocks and positions. One without self-attention stays as it is."""
    if any(isinstance(layer, SELF_ATTENTION) for _, layer in model.named_modules()):
        initialise_attention(model, seed)
        initialise_other_layers(model, seed)


def initialise_attention(model: Model, seed: int = 0) -> None:
    """Initialise self-attention and positions."""
    for name, layer in model.named_modules():
        if isinstance(layer, SELF_ATTENTION):
            _self_attention(layer, _stream(seed, name))
    for name, parameter in model.named_parameters():
        if name.endswith("pos_embed"):
            parameter.data[:, -model.config.patches :] = waves(*model.grid, parameter.shape[-1])


def initialise_other_layers(model: Model, seed: int = 0) -> None:
    """Initialise MLPs and class attention."""
    for name, layer in model.named_modules():
        if isinstance(layer, Mlp | ClassAttention):
            rng = _stream(seed, name)
            for linear in (part for _, part in layer.named_modules() if isinstance(part, Linear)):
                shape = linear.weight.shape
                linear.weight.data[...] = rng.standard_normal(shape, dtype=np.float32) * shape[1] ** -0.5


def _stream(seed: int, name: str) -> np.random.Generator:
    return Stream(seed, "mimetic").named(name).generator()


def _self_attention(layer: MultiHeadAttention | TalkingHeadsAttention, rng: np.random.Generator) -> None:
    d = layer.proj.weight.shape[0]
    heads = [factors(rng, d, d // layer.heads, 0.7, 1) for _ in range(layer.heads)]
    out, values = factors(rng, d, d, 0.4, -1)
    layer.qkv.weight.data[...] = np.concatenate([*(q.T for q, _ in heads), *(k for _, k in heads), values])
    layer.proj.weight.data[...] = out
    if isinstance(layer, TalkingHeadsAttention):
        for mixing in (layer.proj_l, layer.proj_w):
            mixing.weight.data += np.eye(layer.heads, dtype=np.float32)


def factors(rng: np.random.Generator, d: int, rank: int, size: float, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices (d, rank) and (rank, d) whose product is as near to size (Z + sign I) as their rank allows."""
    noise = rng.standard_normal((d, d)) * d**-0.5
    with blas_threads(1):  # the same bits on any number of threads
        left, singular, right = np.linalg.svd(size * (noise + sign * np.eye(d)))
    root = np.sqrt(singular[:rank])
    return left[:, :rank] * root, root[:, None] * right[:rank]


def waves(rows: int, columns: int, dim: int) -> np.ndarray:
    """Sines and cosines of a patch's column and row, (rows * columns, dim): a quarter of the channels each."""
    frequencies = LONGEST ** -np.linspace(0, 1, -(-dim // 4))
    row, column = (index.reshape(-1, 1) * frequencies for index in np.mgrid[:rows, :columns])
    parts = [np.sin(column), np.cos(column), np.sin(row), np.cos(row)]
    return np.concatenate(parts, axis=1)[:, :dim].astype(np.float32)

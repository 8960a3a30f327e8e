"""Maps over the patches of where a model looks, from a recorded forward pass, whatever the model.

A model tells by its class tokens, and by its classes of single patches. Models that have neither offer no map.
"""

from __future__ import annotations

import numpy as np

from autograd.kernels import softmax

from ..nn.record import Record
from .config import Config
from .model import Outputs


def token_rows(inside: Record, config: Config, token: int = 0) -> dict[str, np.ndarray]:
    """Attention of a token in front of the patches, by layer: (B, heads, 1 + patches), first to itself.

    Token 0 is the class token. If the model has class attention, that is where it looks; else in every block.
    """
    if inside.class_attention:
        found = inside.class_attention.items() if token == 0 else ()
        return {name: maps[:, :, 0] for name, maps in found if maps.shape[2:] == (1, 1 + config.patches)}
    keys = [token, *range(config.prefix, config.prefix + config.patches)]
    whole = {name: maps.before for name, maps in inside.attention.items() if token < config.prefix}
    return {name: maps[:, :, token, keys] for name, maps in whole.items() if maps.shape[-1] == keys[-1] + 1}


def class_maps(inside: Record, outputs: Outputs, config: Config) -> np.ndarray | None:
    """A map for every class (B, C, N): the probability of the class in each patch, or the attention of its token."""
    if outputs.tokens is not None:
        return softmax(outputs.tokens.numpy(), -1).swapaxes(1, 2)
    several = (maps for maps in inside.class_attention.values() if maps.shape[3] == config.patches)  # without itself
    return next((maps.mean(axis=1) for maps in several), None)


def image_maps(inside: Record, outputs: Outputs, config: Config) -> list[np.ndarray]:
    """Maps (B, N) of where the model looks in each image, as the papers show them; empty if there are none.

    Attention of the class token, mean over heads, in every class-attention layer, or in the last block. Without a class
    token, the map of the predicted class: of its own token, or of its probability in each patch.
    """
    rows = [row[..., 1:].mean(axis=1) for row in token_rows(inside, config).values()]
    if rows:
        return rows if inside.class_attention else rows[-1:]
    maps = class_maps(inside, outputs, config)
    return [] if maps is None else [maps[np.arange(len(maps)), outputs.logits.numpy().argmax(-1)]]

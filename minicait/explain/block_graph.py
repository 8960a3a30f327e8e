"""The graph that autograd records for one block."""

from __future__ import annotations

import numpy as np

from autograd import Tensor, draw
from autograd.draw import Svg

from ..models import Model


def block_graph(model: Model) -> Svg:
    """Graph of the first block, which maps tokens (1, N, dim) to tokens; empty if the model has no such `blocks`."""
    modules = dict(model.named_modules())
    block = modules.get("blocks.0") or modules.get("blocks_token_only.0")
    if block is None:
        return Svg("")
    like = model.parameters()[0]
    tokens = Tensor(np.zeros((1, model.config.patches, model.config.dim), like.dtype), requires_grad=True)
    out = block(tokens) if "blocks.0" in modules else block(tokens[:, :1], tokens[:, 1:])
    return draw(out, {"x": tokens, **dict(block.named_parameters())})

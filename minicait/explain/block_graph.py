"""The graph that autograd records for one block."""

from __future__ import annotations

import numpy as np

from autograd import Tensor, draw
from autograd.draw import Svg

from ..models import Model


def block_graph(model: Model) -> Svg:
    """Graph of the first block, which maps tokens (1, N, dim) to tokens; empty if the model has no such `blocks`."""
    modules, config = dict(model.body.named_modules()), model.config
    block = modules.get("blocks.0") or modules.get("blocks_token_only.0")
    if block is None:
        return Svg("")
    in_blocks = "blocks.0" in modules
    first = config.prefix if in_blocks else getattr(model.body.config, "class_tokens", 1)
    like = model.parameters()[0]
    tokens = Tensor(np.zeros((1, first + config.patches, config.dim), like.dtype), requires_grad=True)
    out = block(tokens) if in_blocks else block(tokens[:, :first], tokens[:, first:])
    return draw(out, {"x": tokens, **dict(block.named_parameters())})

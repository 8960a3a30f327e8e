"""The graph that autograd records for one block."""

from __future__ import annotations

import numpy as np

from autograd import Tensor, draw
from autograd.draw import Svg

from ..models.cait import CaiT


def block_graph(model: CaiT) -> Svg:
    """Draw the graph of the first block of a model."""
    rows, columns = (side // model.config["patch_size"] for side in model.config["img_size"])
    patches = Tensor(np.zeros((1, rows * columns, model.config["dim"]), model.pos_embed.dtype), requires_grad=True)
    block = model.blocks[0] if model.blocks else model.blocks_token_only[0]
    out = block(patches) if model.blocks else block(model.cls_token, patches)
    return draw(out, {"x": patches, **dict(block.named_parameters())})

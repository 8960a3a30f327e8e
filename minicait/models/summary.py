"""What a model costs, from its sizes alone: parameters, multiply-adds, and memory for training."""

from __future__ import annotations

from typing import Any, NamedTuple


class Cost(NamedTuple):
    parameters: int
    multiply_adds: int  # per image, forward; the papers call these FLOPs
    activation_bytes: int  # per image in float32: what forward keeps for backward
    forward_bytes: int  # and without backward: about what one block keeps


def cost(config: dict[str, Any]) -> Cost:
    """Of a CaiT with this configuration: `model.config`, or the `config()` of a preset."""
    size = config["img_size"]
    height, width = (size, size) if isinstance(size, int) else size
    p, d, h = config["patch_size"], config["dim"], config["heads"]
    depth, depth_ca, classes = config["depth"], config.get("depth_token_only", 2), config["num_classes"]
    n = (height // p) * (width // p)  # patches
    hidden = int(d * config.get("mlp_ratio", 4.0))
    linear = {  # (inputs, outputs) of the layers in a block
        "qkv": (d, 3 * d), "proj": (d, d), "fc1": (d, hidden), "fc2": (hidden, d),
    }  # fmt: skip
    weights = sum(i * o for i, o in linear.values())
    block = weights + sum(o for _, o in linear.values()) + 6 * d  # biases; two norms and two LayerScales
    mixing = 2 * (h * h + h)
    parameters = (
        d + n * d + (3 * p * p * d + d)  # class token, positions, patch projection
        + depth * (block + mixing) + depth_ca * block
        + 2 * d + (d * classes + classes)  # final norm, head
    )  # fmt: skip

    self_attention = n * weights + 2 * n * n * d + 2 * h * h * n * n
    tokens = n + 1
    class_attention = (
        tokens * 2 * d * d + 2 * d * d + 2 * tokens * d + 2 * d * hidden
    )  # k and v of all, the rest of one
    multiply_adds = n * 3 * p * p * d + depth * self_attention + depth_ca * class_attention + d * classes

    # Kept by a block: both x_hat and the norms' outputs, qkv, the maps, what goes into proj, and around the GELU its
    # derivative and its output.
    kept = n * (8 * d + 2 * hidden) + 2 * n + h * n * n
    kept_ca = tokens * (4 * d + 1) + h * tokens + 6 * d + 2 * hidden + 1
    activation_bytes = 4 * (n * 3 * p * p + depth * kept + depth_ca * kept_ca + 3 * d + 1)
    return Cost(parameters, multiply_adds, activation_bytes, 4 * (n * 3 * p * p + kept))

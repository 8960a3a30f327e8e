"""A trained model from whatever names it: a file of ours, a file of published weights, or a published model's name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.imagenet import imagenet_classes
from ..models import PRESETS, PUBLISHED
from ..models.cait import CaiT
from .published import get_weights
from .weights import Info, WeightFile, load_weights, open_weights


def load_model(
    weights: str | Path, img_size: int | None = None, classes: Sequence[str] | None = None, seed: int = 0
) -> tuple[CaiT, Info]:
    """The model in evaluation mode, and what is known about it: its classes, and how images are prepared for it.

    For another image size, the positions are resized. For other classes, the head starts anew.
    """
    if img_size is not None and img_size < 1:
        raise ValueError(f"the image size must be at least 1, got {img_size}")
    file, info = open_trained(weights)
    changes: dict[str, Any] = {} if img_size is None else {"img_size": [img_size] * 2}
    if classes is not None:
        changes["num_classes"] = len(classes)
    model = CaiT(**info.config | changes, seed=seed)
    new_head = {name: p.data.copy() for name, p in model.head.named_parameters()}
    load_weights(model, file.path, new_head=classes is not None)
    if classes is not None and info.class_names != list(classes):
        model.head.load_state_dict(new_head)
        info = replace(info, class_names=list(classes))
    return model.eval(), replace(info, config=model.config)


def open_trained(weights: str | Path) -> tuple[WeightFile, Info]:
    """A file, and what is known about the model in it."""
    path = get_weights(str(weights)) if str(weights) in PUBLISHED else Path(weights)
    if not path.suffix and not path.exists():
        raise ValueError(f"there are no weights {weights}: give a file, or one of {', '.join(sorted(PUBLISHED))}")
    file = open_weights(path)
    return file, file.info or _info(file)


def outputs_for(classes: Sequence[str], info: Info, outputs: int) -> np.ndarray:
    """For each class of the data, the model's output that stands for it: by name where the model has names."""
    known = info.class_names
    if known is not None and list(classes) == list(known):  # also where two classes have one name
        return np.arange(outputs)
    if known is None:
        if len(classes) != outputs:
            raise ValueError(f"the model has {outputs} unnamed classes, the data has {len(classes)}")
        return np.arange(outputs)
    unknown = [name for name in classes if name not in known]
    if unknown:
        raise ValueError(f"the model does not know {len(unknown)} of the data's classes: {', '.join(unknown[:5])}")
    return np.array([known.index(name) for name in classes])


def _info(file: WeightFile) -> Info:
    """Published files say nothing about themselves, but the shapes of a CaiT's weights tell all that matters."""
    try:
        config = _config(file.shapes)
        CaiT.check_config(config)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{file.path.name} does not hold the weights of a CaiT ({error})") from error
    names = list(imagenet_classes()) if config["num_classes"] == len(imagenet_classes()) else None
    return Info(config, names)


def _config(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    _, tokens, dim = shapes["pos_embed"]
    patch = shapes["patch_embed.proj.weight"][-1]
    depths = {stage: len({n.split(".")[1] for n in shapes if n.startswith(f"{stage}.")})
              for stage in ("blocks", "blocks_token_only")}  # fmt: skip
    config = {
        "num_classes": shapes["head.weight"][0],
        "img_size": [math.isqrt(tokens) * patch] * 2,
        "patch_size": patch,
        "dim": dim,
        "depth": depths["blocks"],
        "heads": shapes["blocks.0.attn.proj_l.weight"][0],
        "depth_token_only": depths["blocks_token_only"],
        "mlp_ratio": shapes["blocks.0.mlp.fc1.weight"][0] / dim,
    }
    preset = next((p for p in PRESETS.values() if (p.dim, p.depth) == (dim, config["depth"])), None)
    # what LayerScale has learned is in the weights; stochastic depth matters to further training only
    return config | {"layer_scale": 1e-5, "drop_path_rate": 0.0 if preset is None else preset.drop_path_rate}

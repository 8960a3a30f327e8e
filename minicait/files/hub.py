"""Export a model as a folder in the layout of the Hugging Face hub, which timm loads:

config.json          timm's name and arguments for the architecture, and how images are prepared
model.safetensors    weights under the official names, with the metadata of `save_weights`
README.md            model card
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..models import Config, Family, Model, family_named, family_of
from .atomic import write_text
from .weights import Info, save_weights

WEIGHTS = "model.safetensors"
Architecture = tuple[str, dict[str, Any]]  # timm's name, and the arguments in which the model differs from it


def _vit(c: Any) -> dict[str, Any]:
    sizes = {"img_size": list(c.img_size), "patch_size": c.patch_size, "embed_dim": c.dim, "depth": c.depth}
    return {**sizes, "num_heads": c.heads, "mlp_ratio": c.mlp_ratio}


def _cait(c: Any) -> Architecture:
    own = {"depth_token_only": c.depth_token_only, "mlp_ratio_token_only": c.mlp_ratio, "init_values": c.layer_scale}
    return "cait_xxs24_224", {**_vit(c), **own}


def _deit(c: Any) -> Architecture:
    return f"deit_tiny{'_distilled' * c.distilled}_patch16_224", _vit(c)


def _deit3(c: Any) -> Architecture:
    return "deit3_small_patch16_224", {**_vit(c), "init_values": c.layer_scale}


def _resmlp(c: Any) -> Architecture:
    names = {(12, 384, 16): "12", (24, 384, 16): "24", (36, 384, 16): "36", (24, 768, 8): "big_24"}
    name = names.get((c.depth, c.dim, c.patch_size))
    if name is None or c.class_mlp or c.mlp_ratio != 4:
        raise ValueError(f"timm has ResMLP in the sizes {', '.join(names.values())} without a class-MLP, and no others")
    return f"resmlp_{name}_224", {"img_size": list(c.img_size)}


ARCHITECTURES: dict[str, Callable[[Any], Architecture]] = {
    "cait": _cait, "deit": _deit, "deit3": _deit3, "resmlp": _resmlp,
}  # fmt: skip


def architecture(family: Family, config: Config) -> Architecture:
    """timm's name and arguments of a model; ValueError if timm does not have it."""
    if family.name not in ARCHITECTURES:
        raise ValueError(f"timm has no {family.model.__name__}; it has {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[family.name](config)


def hub_config(info: Info) -> dict[str, Any]:
    """The content of config.json."""
    c = info.config
    name, arguments = architecture(family_named(info.family), c)
    classifier = ["head", "head_dist"] if getattr(c, "distilled", False) else "head"
    prepared: dict[str, Any] = {
        "tag": "minicait", "custom_load": False, "input_size": [3, *c.img_size], "fixed_input_size": True,
        "interpolation": "bicubic", "crop_pct": info.crop_ratio, "crop_mode": "center", "mean": list(info.mean),
        "std": list(info.std), "num_classes": c.num_classes, "pool_size": None,
        "first_conv": "stem.proj" if info.family == "resmlp" else "patch_embed.proj", "classifier": classifier,
    }  # fmt: skip
    if info.class_names is not None:
        prepared["label_names"] = info.class_names
    sizes = {"num_classes": c.num_classes, "num_features": c.dim}
    return {"architecture": name, **sizes, "model_args": arguments, "pretrained_cfg": prepared}


def export_model(model: Model, info: Info, folder: Path, card: str, half: bool = False) -> None:
    """Write config.json, model.safetensors and README.md into a folder that is created; `half` stores float16."""
    config = hub_config(info)
    if folder.exists():
        raise ValueError(f"{folder} exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    own, dtype = (info.class_names, info.mean, info.std, info.crop_ratio, info.origin), np.float16 if half else None
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        save_weights(model, whole / WEIGHTS, *own, dtype=dtype)
        write_text(whole / "config.json", json.dumps(config, indent=1) + "\n")
        write_text(whole / "README.md", card)
        whole.rename(folder)


def model_card(model: Model, info: Info, title: str, training: str = "") -> str:
    """The README.md of an exported model. `training` is Markdown on how the weights came about."""
    family = family_of(model)
    assert family is not None
    side, names = model.img_size[0], info.class_names
    classes = f"{model.num_classes} classes"
    if names is not None and len(names) <= 20:
        classes += f": {', '.join(names)}"
    return f"""---
library_name: timm
tags: [image-classification, timm, minicait, {family.name}]
---
# {title}

A {type(model).__name__} of {model.describe()}: {model.parameter_count():,} parameters. It classifies images of \
{side} x {side} pixels into {classes}.

{training}## Use

With minicait:

    minicait predict --weights FOLDER photo.jpg
    minicait explain --weights FOLDER photo.jpg --out report.html

With timm, where FOLDER is this folder (on the hub it is `hf-hub:OWNER/NAME`):

    import timm
    model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))

From there to ONNX:

    import torch
    torch.onnx.export(model, torch.zeros(1, 3, {side}, {side}), "model.onnx", dynamo=True)  # needs onnxscript
"""

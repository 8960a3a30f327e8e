"""minicait models, minicait weights: what models there are, and their weights in files."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from ..files.pretrained import get_weights, recognised
from ..files.weights import WeightFile, open_weights
from ..models import family_named, find_model, list_models, published_models


def add_to(commands: Any) -> None:
    models = commands.add_parser("models", help="list the models with their sizes and costs")
    models.add_argument("pattern", nargs="?", default="*", help="such as 'cait_xxs*' (default: all)")
    models.add_argument("--json", action="store_true", help="print JSON instead of a table")
    models.set_defaults(run=_models)

    weights = commands.add_parser("weights", help="look into weights files, and download published ones")
    actions = weights.add_subparsers(title="actions", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="print what a file holds")
    info.add_argument("file", help="a .safetensors, .npz or .pth file")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_weights_info)
    get = actions.add_parser("get", help="download the published weights of a model into the cache")
    get.add_argument("name", help="such as cait_xxs24_224; published are those with a * in `minicait models`")
    get.set_defaults(run=_weights_get)


def _models(args: argparse.Namespace) -> int:
    names = list_models(args.pattern)
    if not names:
        raise ValueError(f"no model fits {args.pattern!r}; `minicait models` lists all")
    published, found = published_models(), {name: find_model(name) for name in names}
    if args.json:
        rows = [
            {
                "name": name,
                "family": family.name,
                "published": name in published,
                **config.to_json(),
                **config.cost()._asdict(),
            }
            for name, (family, config) in found.items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    width = max(16, *(len(name) + 2 * (name in published) for name in names))
    print(f"{'model':{width}s}  dim heads  depth patch  params M  GFLOPs MB/image")
    for name, (_, config) in found.items():
        c, heads = config.cost(), getattr(config, "heads", "")
        print(
            f"{name + ' *' * (name in published):{width}s} {config.dim:4d} {heads:5} {config.layers:>6s} "
            f"{config.patch_size:5d} "
            f"{c.parameters / 1e6:9.1f} {c.multiply_adds / 1e9:7.1f} {c.activation_bytes / 1e6:8.0f}"
        )
    print("\n* has published weights: minicait weights get NAME")
    print("GFLOPs are multiply-adds of one forward pass, as in the paper; MB/image is what it keeps for backward.")
    return 0


def _weights_info(args: argparse.Namespace) -> int:
    file = open_weights(args.file)
    values = sum(int(np.prod(shape)) for shape in file.shapes.values())
    if args.json:
        info = None if file.info is None else file.info.to_json()
        print(json.dumps({"tensors": {k: list(v) for k, v in file.shapes.items()}, "values": values, "info": info}))
        return 0
    for name, shape in file.shapes.items():
        print(f"{name:40s} {shape}")
    print(f"\n{len(file.shapes)} tensors, {values:,} values; {_recognised(file)}")
    if file.info is not None:
        names = file.info.class_names
        shown = "unnamed" if names is None else ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        print(f"configuration: {json.dumps(file.info.config.to_json())}")
        print(f"classes: {shown}\nmean {file.info.mean}, std {file.info.std}, crop ratio {file.info.crop_ratio}")
    return 0


def _recognised(file: WeightFile) -> str:
    """The model of the table whose tensors have these shapes."""
    try:
        info = file.info or recognised(file)
    except ValueError:
        return "the sizes of no model of the table"
    ignored = {"num_classes": 1, "drop_path_rate": 0.0, "layer_scale": None}  # they do not show in the shapes
    for name, config in family_named(info.family).presets.items():
        if {**config.to_json(), **ignored} == {**info.config.to_json(), **ignored}:
            return f"the sizes of {name}"
    return "the sizes of no model of the table"


def _weights_get(args: argparse.Namespace) -> int:
    path = get_weights(args.name)
    print(f"{path}\nuse: model = minicait.create_model({args.name!r}); minicait.load_weights(model, {str(path)!r})")
    return 0

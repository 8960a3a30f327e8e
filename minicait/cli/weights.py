"""minicait models, minicait weights: the models, and their weights in files."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..files.atomic import write_text
from ..files.hub import WEIGHTS, export_model, model_card
from ..files.pretrained import SHIPPED, get_weights, load_model, recognised, shipped_weights
from ..files.weights import WeightFile, open_weights
from ..models import family_named, find_model, list_models, published_models
from ..run.card import training_section
from ..text import printable, shortened
from .options import add_command

CURVES = "curves.svg"  # of a run, and of the weights that come with the package
EXPORT = """examples:
  minicait weights export runs/photos-tiny-1 --out my-model              with a model card on its training
  minicait weights export best.safetensors --out my-model --fp16         half the size
"""


def add_to(commands: Any) -> None:
    models = add_command(commands, "models", _models, "list the models with their sizes and costs")
    models.add_argument("pattern", nargs="?", default="*", help="such as 'cait_xxs*' or 'deit3*' (default: all)")
    models.add_argument("--json", action="store_true", help="print JSON instead of a table")
    weights = commands.add_parser("weights", help="list, download and export weights")
    actions = weights.add_subparsers(title="actions", required=True, metavar="ACTION")
    info = add_command(actions, "info", _weights_info, "list the contents of a file")
    info.add_argument("file", help="a .safetensors, .npz, .pth or .pth.tar file")
    info.add_argument("--json", action="store_true", help="print JSON")
    get = add_command(actions, "get", _weights_get, "download published weights of a model into the cache")
    get.add_argument("name", help="such as cait_xxs24_224 or resmlp_12_224.dist; `minicait models` lists them")
    export = add_command(
        actions, "export", _weights_export, "write a folder in the layout of the Hugging Face hub, for timm", EXPORT
    )
    export.add_argument("weights", help="a run's folder, a file, or published weights")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet")
    export.add_argument("--fp16", action="store_true", help="store float16: half the size")


def _models(args: argparse.Namespace) -> int:
    names = list_models(args.pattern)
    if not names:
        raise ValueError(f"no model matches {args.pattern!r}; `minicait models` lists all")
    found = {name: find_model(name) for name in names}
    if args.json:
        rows = [{"name": name, "family": family.name, "published": published_models(name), **config.to_json(),
                 **config.cost()._asdict()} for name, (family, config) in found.items()]  # fmt: skip
        print(json.dumps(rows, indent=1))
        return 0
    width = max(16, *map(len, names))
    print(f"{'model':{width}s}  dim heads  depth patch  params M  GFLOPs MB/image  weights")
    for name, (_, config) in found.items():
        c, heads = config.cost(), getattr(config, "heads", "")
        weights = " ".join(published.removeprefix(name) or "*" for published in published_models(name))
        print(f"{name:{width}s} {config.dim:4d} {heads:5} {config.layers:>6s} {config.patch_size:5d} "
              f"{c.parameters / 1e6:9.1f} {c.multiply_adds / 1e9:7.1f} {c.activation_bytes / 1e6:8.0f}  "
              f"{weights}".rstrip())  # fmt: skip
    print("\nGFLOPs: multiply-adds of one forward pass, as in the papers; MB/image: activations kept for backward.")
    print("weights: published ones. * is for `minicait weights get NAME`, a tag for `minicait weights get NAME.tag`:")
    print(".in21k pre-trained on ImageNet-21k, .dist distilled, .finetuned from a model with one class token, .dino")
    print("self-supervised, with a head that is to be trained.")
    return 0


def _weights_info(args: argparse.Namespace) -> int:
    file = open_weights(args.file)
    values = sum(map(math.prod, file.shapes.values()))
    if args.json:
        info = None if file.info is None else file.info.to_json()
        tensors = {name: list(shape) for name, shape in file.shapes.items()}
        print(json.dumps({"tensors": tensors, "values": values, "info": info}, allow_nan=False))
        return 0
    for name, shape in file.shapes.items():
        print(f"{printable(name):40s} {shape}")
    print(f"\n{len(file.shapes)} tensors, {values:,} values; the sizes of {_preset(file) or 'no known model'}")
    if file.info is not None:
        names = file.info.class_names
        shown = "unnamed" if names is None else ", ".join(map(shortened, names[:5])) + ", ..." * (len(names) > 5)
        print(f"family: {file.info.family}")
        print(f"configuration: {json.dumps(file.info.config.to_json())}")
        print(f"classes: {printable(shown)}")
        print(f"mean {file.info.mean}, std {file.info.std}, crop ratio {file.info.crop_ratio}")
        if file.info.origin is not None:
            print(f"origin: {printable(file.info.origin)}")
    return 0


def _preset(file: WeightFile) -> str | None:
    """Name of the model whose tensors have these shapes."""
    try:
        info = file.info or recognised(file)
    except ValueError:
        return None
    unknown = {"num_classes": 1, "drop_path_rate": 0.0, "layer_scale": None, "memory": 0}  # not of the preset
    wanted, presets = info.config.to_json() | unknown, family_named(info.family).presets
    return next((name for name, config in presets.items() if config.to_json() | unknown == wanted), None)


def _weights_export(args: argparse.Namespace) -> int:
    model, info = load_model(args.weights)
    if args.weights == SHIPPED:
        folder, has_curves = shipped_weights().parent, True
        card = (folder / "README.md").read_text(encoding="utf-8")  # is true of float16 and of float32
    else:
        folder = Path(args.weights)
        has_curves = (folder / "args.json").is_file()  # is a run
        card = model_card(model, info, args.out.name, training_section(folder) if has_curves else "")
    export_model(model, info, args.out, card, args.fp16)
    if has_curves:
        write_text(args.out / CURVES, (folder / CURVES).read_text(encoding="utf-8"))
    size = (args.out / WEIGHTS).stat().st_size / 1e6
    print(printable(f"{args.out}: config.json, {WEIGHTS} ({size:.1f} MB), README.md{f', {CURVES}' * has_curves}"))
    print(printable(f'timm: timm.create_model("local-dir:{args.out}", pretrained=True)'))
    return 0


def _weights_get(args: argparse.Namespace) -> int:
    path = get_weights(args.name)
    print(printable(path))
    print(f"use: model, info = minicait.load_model({args.name!r})")
    return 0

"""The command line: `minicait train | models | weights info | weights get`, also as `python -m minicait`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autograd import cuda
from autograd.cuda import DeviceError

from . import __version__
from .download import DownloadError
from .models import PRESETS, PUBLISHED, list_models, preset
from .models.summary import cost
from .published import get_weights
from .train import NotFiniteError, recipe
from .train.run import Plan, Run, Stopped, new_folder, resumed, summary
from .weights import open_weights

EXAMPLES = """examples:
  minicait train                         a small CaiT learns to tell shapes apart, without any download
  minicait models 'cait_xxs*'            the smallest models of the paper
  minicait weights get cait_xxs24_224    download published weights
  minicait weights info FILE             what a weights file holds
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Bad input is one sentence and exit code 2."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        return args.run(args)
    except (ValueError, NotFiniteError, DownloadError, DeviceError, OSError) as error:
        print(f"minicait: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print(
            "minicait: out of memory; use fewer --threads (each holds a micro-batch) or a smaller --preset",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("minicait: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("minicait", description=__doc__, epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"minicait {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    _add_train(commands)
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
    return parser


TRAIN_EXAMPLES = """examples:
  minicait train                                        the tiny preset on easy shapes
  minicait train --preset small --difficulty hard --epochs 40
  minicait train --resume runs/shapes-tiny-1            go on where a run stopped
"""


# options that are part of a run's plan, which a resumed run has already
PLANNED = (
    "preset", "img_size", "patch_size", "difficulty", "train_images", "val_images", "recipe", "epochs", "batch_size",
    "lr", "seed", "out", "runs", "smoke", "overfit_one_batch",
)  # fmt: skip


def _add_train(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    train = commands.add_parser("train", help="train a model on shapes", epilog=TRAIN_EXAMPLES, formatter_class=raw)
    what = train.add_argument_group("what to train")
    what.add_argument("--preset", default="tiny", help="tiny, small, xxs24, ... (default: %(default)s)")
    what.add_argument("--img-size", type=int, help="side of the images in pixels (default: the preset's)")
    what.add_argument("--patch-size", type=int, help="side of the patches (default for tiny, small: a quarter)")
    data = train.add_argument_group("data")
    data.add_argument("--difficulty", default="easy", help="easy, medium or hard (default: %(default)s)")
    data.add_argument("--train-images", type=int, default=6000, metavar="N", help="(default: %(default)s)")
    data.add_argument("--val-images", type=int, default=500, metavar="N", help="(default: %(default)s)")
    how = train.add_argument_group("recipe")
    how.add_argument("--recipe", default="small", help="cait, imagenette or small (default: %(default)s)")
    how.add_argument("--epochs", type=int, help="(default: the recipe's)")
    how.add_argument("--batch-size", type=int, help="(default: the recipe's)")
    how.add_argument("--lr", type=float, help="learning rate at its peak (default: the recipe's)")
    how.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    run = train.add_argument_group("run")
    run.add_argument("--out", type=Path, default=Path("runs"), help="where its folder is made (default: %(default)s)")
    run.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a run, to the bit")
    run.add_argument("--device", default=None, help="cpu, cuda or cuda:1 (default: cuda if it works, else cpu)")
    run.add_argument("--threads", type=int, help="(default: all CPUs this process may use); changes no result")
    run.add_argument("--checkpoint-batches", type=int, default=100, metavar="N", help="(default: every %(default)s)")
    run.add_argument(
        "--runs", type=int, default=1, metavar="N", help="with N seeds, of data and weights: mean and deviation"
    )
    run.add_argument("--smoke", action="store_true", help="a few seconds, to see that everything works")
    run.add_argument("--overfit-one-batch", action="store_true", help="learn one batch by heart, as a check")
    train.set_defaults(run=_train, defaults={name: train.get_default(name) for name in PLANNED})


def _train(args: argparse.Namespace) -> int:
    device = args.device or ("cuda" if cuda.cuda_available() else "cpu")
    for name in ("threads", "runs", "checkpoint_batches", "train_images", "val_images", "img_size", "patch_size"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    options = {"device": device, "threads": args.threads, "checkpoint_batches": args.checkpoint_batches}
    given = [name for name in PLANNED if getattr(args, name) != args.defaults[name]]
    if args.resume is not None and given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--resume goes on with a run as it was planned; leave out {named}")
    scores = []
    for number in range(args.runs):
        if args.resume is not None:
            run = resumed(args.resume, **options)
        else:
            run = Run(_plan(args, args.seed + number), Path(), **options)  # which checks everything, then
            run.path = new_folder(args.out, f"shapes-{args.preset.removeprefix('cait_')}")
        try:
            last = run.go()
        except Stopped as stop:
            print(f"stopped by {stop}; to go on: minicait train --resume {run.path}")
            return stop.code
        scores.append(last.score)
        if args.overfit_one_batch:
            print("the batch is learned by heart" if last.top1 == 1 else f"of the batch, {last.top1:.0%} is learned")
        print(f"best weights: {run.path / 'weights/best.safetensors'}; curves: {run.path / 'curves.svg'}")
        if run.stop is not None and number + 1 < args.runs:
            print(f"stopped after {number + 1} of {args.runs} runs: {summary(scores)}")
            return 128 + run.stop
    print(f"top-1: {summary(scores)}")
    return 0


def _plan(args: argparse.Namespace, seed: int) -> Plan:
    """What the options of `train` ask for."""
    if args.smoke and args.overfit_one_batch:
        raise ValueError("choose one of --smoke and --overfit-one-batch")
    small = args.preset in ("tiny", "small")
    names = (args.preset, f"cait_{args.preset}", f"cait_{args.preset}_32", f"cait_{args.preset}_224")
    model = next((name for name in names if name in PRESETS), args.preset)
    size = args.img_size or preset(model).img_size
    patch = args.patch_size or (size // 4 if small else None)
    chosen = recipe(args.recipe).changed(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr, seed=seed)
    train_images, val_images = args.train_images, args.val_images
    if args.smoke:
        chosen = chosen.changed(epochs=args.epochs or 2, batch_size=args.batch_size or 8)
        train_images, val_images = 4 * chosen.batch_size, 20
    if args.overfit_one_batch:
        plain = {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "weight_decay": 0.0, "constant_lr": True}
        chosen, train_images = chosen.changed(epochs=args.epochs or 60, **plain), chosen.batch_size
    return Plan(model, chosen, train_images, val_images, args.difficulty, size, patch, args.overfit_one_batch)


def _models(args: argparse.Namespace) -> int:
    names = list_models(args.pattern)
    if not names:
        raise ValueError(f"no model fits {args.pattern!r}; `minicait models` lists all")
    if args.json:
        rows = [
            {
                "name": name,
                "published": name in PUBLISHED,
                **(config := PRESETS[name].config()),
                **cost(config)._asdict(),
            }
            for name in names
        ]
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'model':16s}  dim heads  depth patch  params M  GFLOPs MB/image")
    for name in names:
        p = PRESETS[name]
        c = cost(p.config())
        print(
            f"{name + ' *' * (name in PUBLISHED):16s} {p.dim:4d} {p.heads:5d} {p.depth:4d}+2 {p.patch_size:5d} "
            f"{c.parameters / 1e6:9.1f} {c.multiply_adds / 1e9:7.1f} {c.activation_bytes / 1e6:8.0f}"
        )
    print("\n* has published weights: minicait weights get NAME")
    print("GFLOPs are multiply-adds of one forward pass, as in the paper; MB/image is what it keeps for backward.")
    return 0


def _weights_info(args: argparse.Namespace) -> int:
    file = open_weights(args.file)
    values = sum(int(np.prod(shape)) for shape in file.shapes.values())
    if args.json:
        info = None if file.info is None else vars(file.info)
        print(json.dumps({"tensors": {k: list(v) for k, v in file.shapes.items()}, "values": values, "info": info}))
        return 0
    for name, shape in file.shapes.items():
        print(f"{name:40s} {shape}")
    print(f"\n{len(file.shapes)} tensors, {values:,} values; {_recognised(file.shapes)}")
    if file.info is not None:
        names = file.info.class_names
        shown = "unnamed" if names is None else ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        print(f"configuration: {json.dumps(file.info.config)}")
        print(f"classes: {shown}\nmean {file.info.mean}, std {file.info.std}, crop ratio {file.info.crop_ratio}")
    return 0


def _recognised(shapes: dict[str, tuple[int, ...]]) -> str:
    """Which model of the table has such tensors."""
    blocks = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    for name, p in PRESETS.items():
        positions = (1, (p.img_size // p.patch_size) ** 2, p.dim)
        mixing = shapes.get("blocks.0.attn.proj_l.weight")
        if shapes.get("pos_embed") == positions and blocks == p.depth and mixing == (p.heads, p.heads):
            return f"the sizes of {name}"
    return "the sizes of no model of the table"


def _weights_get(args: argparse.Namespace) -> int:
    preset(args.name)
    path = get_weights(args.name)
    print(f"{path}\nuse: model = minicait.create_model({args.name!r}); minicait.load_weights(model, {str(path)!r})")
    return 0

"""Options that several commands have."""

from __future__ import annotations

import argparse
from typing import Any

from autograd import cuda

from ..data.source import Source

DATA = "shapes, imagenette, imagenette-320, imagenette-full, or a folder with a folder for each class"


def add_data(group: Any, default: str, val_fraction: float | None = Source.val_fraction) -> None:
    plain = Source()
    group.add_argument("--data", default=default, help=f"{DATA} (default: %(default)s)")
    part = "all of it" if val_fraction is None else "%(default)s"
    kept = f"the part that is for validation if a folder has no val/ (default: {part})"
    group.add_argument("--val-fraction", type=float, default=val_fraction, metavar="F", help=kept)
    group.add_argument("--val-images", type=int, metavar="N", help="validate on so many (default: all; of shapes, 500)")
    kinds = "of shapes: easy, medium or hard (default: %(default)s)"
    group.add_argument("--difficulty", default=plain.difficulty, help=kinds)
    keep = "read images once and keep them in memory, those to learn from shrunk to N pixels"
    group.add_argument("--keep-side", type=int, metavar="N", help=keep)


def add_machine(group: Any) -> None:
    group.add_argument("--device", default=None, help="cpu, cuda or cuda:1 (default: cuda if it works, else cpu)")
    group.add_argument("--threads", type=int, help="(default: all CPUs this process may use); changes no result")
    pieces = "images at a time (default: a few on a CPU, the batch on a GPU); changes results by rounding only"
    group.add_argument("--micro-batch", type=int, metavar="N", help=pieces)
    group.add_argument("--skip-bad-images", action="store_true", help="leave damaged images out, and count them")


def add_precision(group: Any) -> None:
    kinds = "fp32, or on a GPU tf32 or fp16, which are faster and less exact (default: the recipe's, fp32)"
    group.add_argument("--precision", choices=["fp32", "tf32", "fp16"], help=kinds)


def source(args: argparse.Namespace, **more: Any) -> Source:
    own = {"val_images": args.val_images, "val_fraction": args.val_fraction, "keep_side": args.keep_side}
    return Source(args.data, args.difficulty, **own, **more)


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """Where and how a run is done, which is no part of its plan."""
    return {
        "device": device(args), "threads": args.threads, "micro_batch": args.micro_batch,
        "skip_bad": args.skip_bad_images,
    }  # fmt: skip


def device(args: argparse.Namespace) -> str:
    for name in ("threads", "micro_batch"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return device_named(args.device)


def device_named(name: str | None) -> str:
    """By default the GPU if it works, else the CPU."""
    if name is None:
        return "cuda" if cuda.cuda_available() else "cpu"
    if name != "cpu":
        cuda.device_id(name)  # says so if there is no such GPU, before anything is loaded or downloaded
    return name

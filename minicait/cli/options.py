"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autograd import cuda

from ..data.groups import COLOURS, GROUPS
from ..data.source import Source
from ..files.pretrained import SHIPPED, load_model
from ..files.weights import Info
from ..machine import cpu_count
from ..models import Model
from ..run.plan import absolute
from ..text import printable
from ..train.job import fail, world
from ..train.recipe import PRODUCTS

MAX_CLASSES_FILE = 1_000_000  # bytes
THREADS_PER_CPU = 4  # more only take memory
PUBLISHED = "cait_xxs24_224, deit3_small_patch16_224.in21k, ..."
DATA = "shapes, imagenette, imagenette-320, imagenette-full, or a folder with a folder for each class"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print a wrong argument, such as a hostile file name from a shell's wildcard, without terminal escapes."""
        if world() is not None:
            fail(2, f"{self.prog}: ", printable(message))
            sys.exit(2)
        super().error(printable(message))


def add_command(
    commands: Any, name: str, run: Callable[[Any], int], summary: str, examples: str = "", about: str | None = None
) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=about, epilog=examples, formatter_class=raw)
    parser.set_defaults(run=run)
    return parser


def add_weights(parser: Any, shipped: bool = False) -> None:
    """--weights, by default those that come with the package, if `shipped`."""
    default = {"default": SHIPPED} if shipped else {"required": True}
    more = f", or {SHIPPED}, which comes with the package (default)" if shipped else ""
    parser.add_argument("--weights", **default, help=f"a file, a run's folder, published weights: {PUBLISHED}{more}")
    parser.add_argument("--img-size", type=int, help="side of the images in pixels (default: the model's)")


def load(args: argparse.Namespace) -> tuple[Model, Info]:
    """Load the model of --weights. If those are the default, say on standard error what they know."""
    model, info = load_model(args.weights, args.img_size)
    if args.weights == SHIPPED:
        known = f"{len(info.class_names or ())} classes: {', '.join(info.class_names or ())}"
        print(f"weights: {SHIPPED}, which come with the package and know only {known}", file=sys.stderr)
    return model, info


def add_data(group: Any, val_fraction: float | None) -> None:
    add, share = group.add_argument, "all" if val_fraction is None else val_fraction
    add("--data", default="shapes", help=f"{DATA} (default: %(default)s)")
    add("--val-fraction", type=float, default=val_fraction, metavar="F",
        help=f"share of a folder without val/ that is for validation (default: {share})")  # fmt: skip
    add("--val-images", type=int, metavar="N", help="use at most N validation images (default: all, or 500 shapes)")
    add_classes(group)
    add(
        "--groups",
        metavar="NAME",
        help=f"coarser classes: {', '.join([*GROUPS, COLOURS])}, or a JSON file with the classes of each group",
    )
    add("--difficulty", default=Source.difficulty, help="easy, medium or hard shapes (default: %(default)s)")
    add("--keep-side", type=int, metavar="N", help="keep images in memory, those for training shrunk to N pixels")


def add_classes(group: Any) -> None:
    group.add_argument("--classes", metavar="LIST", help="only these classes: n01440764,n02102040,... or "
                       "tench,church,..., or a file with one in each line (default: all)")  # fmt: skip


def add_device(group: Any) -> None:
    group.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if it works, else cpu)")


def add_machine(group: Any) -> None:
    add_device(group)
    add = group.add_argument
    add(
        "--threads",
        type=int,
        help="on a CPU, or processes that prepare images for a GPU; no effect on results (default: all usable CPUs)",
    )
    add("--micro-batch", type=int, metavar="N",
        help="images at a time; changes rounding only (default: a few on a CPU, the batch on a GPU)")  # fmt: skip
    add("--skip-bad-images", action="store_true", help="skip corrupt images, and count them")


def add_precision(group: Any) -> None:
    group.add_argument("--precision", choices=list(PRODUCTS), help="of matrix products; tf32 and fp16 are faster "
                       "and less exact, on a GPU only (default: the recipe's, fp32)")  # fmt: skip


def source(args: argparse.Namespace, **more: Any) -> Source:
    own = {"val_images": args.val_images, "val_fraction": args.val_fraction, "keep_side": args.keep_side}
    own["groups"] = absolute(args.groups)
    return Source(args.data, args.difficulty, classes=class_list(args.classes), **own, **more)


def class_list(text: str | None) -> list[str] | None:
    """Names from a list with commas, or from the lines of a file."""
    if text is None:
        return None
    path = Path(text)
    if path.is_file() and path.stat().st_size > MAX_CLASSES_FILE:
        raise ValueError(f"{path} is too large for a list of classes: it has more than {MAX_CLASSES_FILE:,} bytes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else text.split(",")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a list of classes in UTF-8") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ValueError("--classes names no class")
    if len(names) != len(set(names)):
        raise ValueError(f"--classes names {next(n for n in names if names.count(n) > 1)} twice")
    return names


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """Options of a run that are not part of its plan. Under mpiexec, each rank has a GPU, or its share of the CPUs."""
    own = {"threads": args.threads, "micro_batch": args.micro_batch, "skip_bad": args.skip_bad_images}
    if (ranks := world()) is None:
        return {"device": device(args), **own}
    chosen = device(args)
    if args.device is None or args.device == "cuda":
        chosen = "cpu" if chosen == "cpu" else ranks.device()
    return {"device": chosen, **own, "threads": args.threads or ranks.threads, "ranks": ranks}


def device(args: argparse.Namespace) -> str:
    """Check the options of the machine before anything is loaded or downloaded, and return the device."""
    check_positive(args, "threads", "micro_batch")
    check_threads(getattr(args, "threads", None))
    if args.device is None:
        return "cuda" if cuda.cuda_available() else "cpu"
    if args.device != "cpu":
        cuda.device_id(args.device)  # raises if it cannot be used
    return args.device


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Raise ValueError if one of these options is given and less than 1."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise ValueError(f"{flag(name)} must be at least 1, got {value}")


def check_threads(threads: int | None) -> None:
    most = THREADS_PER_CPU * cpu_count()
    if threads is not None and threads > most:
        raise ValueError(f"--threads must be at most {most} with the {cpu_count()} CPUs of this process, got {threads}")


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

"""What a run tells a person: what it will do, how long that takes, and what can be done with the result."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autograd import cuda

from ..data.folder import ImageFolder
from ..data.source import NAMED, Source
from ..machine import cpu_count, peak_megabytes
from ..train.recipe import changes

if TYPE_CHECKING:
    from .run import Run

PRECISIONS = {
    "fp32": "fp32, all in float32",
    "tf32": "tf32, matrices are multiplied with 10 bits of each factor behind the point; all else in float32",
    "fp16": "fp16, matrices are multiplied in float16, with a loss that is scaled for it; weights in float32",
}
FORWARD = 0.35  # of the cost of a training step, for an estimate


def first_lines(run: Run) -> str:
    """Device with the reason, model, data, recipe, folder."""
    plan, model = run.plan, run.model
    c, side = model.cost(), model.img_size[0]
    start = plan.model if plan.weights is None else f"from {plan.weights}"
    if plan.weights is not None:
        start += ", head kept" if run.head_kept else f", new head for {len(run.classes)} classes"
    counts = f"{len(run.images.train):,} to train, {len(run.images.val):,} to validate"
    said = {key: value for key, value in changes(plan.recipe).items() if key != "precision"}
    lines = {
        "device": device_line(run.device, run.threads),
        "model": f"{start}, patches of {model.config.patch_size}, {c.parameters:,} parameters, "
        f"{c.multiply_adds / 1e9:.2f} GFLOPs per image",
        "data": f"{run.images.name}, {len(run.classes)} classes, {side} pixels, {counts}",
        "precision": PRECISIONS[plan.recipe.precision],
        "teacher": plan.teacher,
        "recipe": ", ".join(f"{key} {value}" for key, value in said.items()) or "plain",
        "folder": run.path,
    }
    return "\n".join(f"{name}: {line}" for name, line in lines.items() if line is not None)


def device_line(device: str, threads: int | None = None) -> str:
    """Where it will run, and why there."""
    if device != "cpu":
        return f"CuPy on {device}; the GPU works"
    why = cuda.why_unusable()
    return f"NumPy on {threads or cpu_count()} threads; {'as asked for' if why is None else f'no GPU: {why}'}"


def estimate(run: Run, seconds_per_batch: float) -> str:
    """Of the time that is left, with the evaluations after each epoch, and of the memory."""
    r = run.plan.recipe
    seconds = seconds_per_batch * (r.epochs * len(run.train_loader) - run.trainer.batches)
    evaluations = (r.epochs - run.trainer.epoch) * (1 if run.trainer.ema is None else 2)
    seconds += seconds_per_batch / r.batch_size * FORWARD * evaluations * len(run.images.val)
    peak = peak_megabytes()
    memory = "" if peak is None else f", {peak / 2**10:.2f} GB of memory at the peak so far"
    if run.trainer.device != "cpu":
        gpu = cuda.memory(run.trainer.device)
        memory += f", {gpu.held / 2**30:.1f} of {gpu.total / 2**30:.1f} GB of GPU memory held"
    return f"estimate: {seconds / 60:.1f} minutes to go{memory}"


def program() -> str:
    """How to call the command line here: by its name, if that is on the path."""
    return "minicait" if shutil.which("minicait") else f"{shlex.quote(sys.executable)} -m minicait"


def next_commands(run: Run) -> str:
    """To predict, evaluate and resume, to be pasted as they are."""
    weights = shlex.quote(str(run.best_weights))
    image = run.path / "example.png"  # of shapes, which are no files
    if isinstance(files := getattr(run.images.val, "dataset", run.images.val), ImageFolder):
        image = next(path for i, (path, _) in enumerate(files.samples) if i not in run.val_loader.bad)
    lines = {"predict": f"{program()} predict --weights {weights} {shlex.quote(str(image))}"}
    if not run.plan.overfit:  # which was validated on images that it learned from
        lines["evaluate"] = f"{program()} eval --weights {weights}{_data_options(run)}{_machine_options(run)}"
    lines["resume"] = resume_command(run)
    return "\n".join(f"{name + ':':10s} {line}" for name, line in lines.items())


def resume_command(run: Run, in_pieces: bool = True) -> str:
    """As it ran, or without what was said of pieces."""
    pieces = f" --micro-batch {run.micro_batch}" if in_pieces and run.micro_batch is not None else ""
    return f"{program()} train --resume {shlex.quote(str(run.path))}{_machine_options(run)}{pieces}"


def _machine_options(run: Run) -> str:
    """Where it ran, if not where it would run by itself; and whether it went on without damaged images."""
    device = "" if run.device == ("cuda" if cuda.cuda_available() else "cpu") else f" --device {run.device}"
    return device + (" --skip-bad-images" if run.skip_bad else "")


def _data_options(run: Run) -> str:
    """Those that find the same validation images again."""
    own, plain = asdict(run.plan.data), asdict(Source(val_fraction=None))
    if own["data"] in NAMED:
        own["val_fraction"] = None  # they have images for validation
    chosen: dict[str, Any] = {key: value for key, value in own.items() if value != plain[key]}
    chosen.pop("train_images", None)
    if run.plan.data.data == "shapes" and run.plan.recipe.seed:
        chosen["seed"] = run.plan.recipe.seed
    return "".join(f" --{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in chosen.items())

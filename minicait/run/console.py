"""Printed text of a run: the plan at its start, the time left, and commands for its result."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autograd import cuda

from ..data.folder import ImageFolder
from ..data.groups import fine_classes, unwrapped
from ..data.source import NAMED, Source
from ..machine import cpu_count, peak_megabytes, why_no_gpu
from ..text import printable
from ..train.ranks import ALONE
from ..train.recipe import main_settings
from .plan import FORWARD_COST

if TYPE_CHECKING:
    from .run import Run

PRECISIONS = {
    "fp32": "fp32, everything in float32",
    "tf32": "tf32, matrix products with mantissas of 10 bits, everything else in float32",
    "fp16": "fp16, matrix products in float16 with loss scaling, weights in float32",
}


def first_lines(run: Run) -> str:
    """Device, model, data, recipe and folder, one per line."""
    plan, model = run.plan, run.model
    cost, source = model.cost(), plan.model
    if plan.weights is not None:
        source = f"from {plan.weights}, {'head kept' if run.head_kept else f'new head for {len(run.classes)} classes'}"
    counts = f"{len(run.images.train):,} training images, {len(run.images.val):,} validation images"
    lines = {
        "ranks": run.ranks.describe(),
        "device": device_line(run.device, run.threads),
        "model": f"{source}, patches of {model.config.patch_size}, {cost.parameters:,} parameters, "
        f"{cost.multiply_adds / 1e9:.2f} GFLOPs per image",
        "data": f"{run.images.name}, {len(run.classes)} classes{_finer(run)}, {model.img_size[0]} pixels, {counts}",
        "precision": PRECISIONS[plan.recipe.precision],
        "teacher": plan.teacher,
        "token labels": token_labels_line(run),
        "recipe": ", ".join(f"{key} {value}" for key, value in main_settings(plan.recipe).items()),
        "folder": run.path,
    }
    return "\n".join(f"{name}: {printable(line)}" for name, line in lines.items() if line is not None)


def _finer(run: Run) -> str:
    """How many fine classes there are, if the model is meant to find them."""
    if not run.model.has_memory or (names := fine_classes(run.images.train)) == run.classes:
        return ""
    return f" ({len(names)} fine ones, for `retrieve`)"


def token_labels_line(run: Run) -> str | None:
    """Source of the labels of patches, and the augmentation that they exclude."""
    if run.label_maps is None:
        return None
    file, r = run.label_maps.file, run.plan.recipe
    (rows, columns), annotator = file.cells, file.description.annotator
    without = "; RandAugment does not rotate, shear or translate" if r.augmentation.rand_augment else ""
    return f"{file.path}, {rows} x {columns} cells for each image, by {annotator}{without}"


def device_line(device: str, threads: int | None = None) -> str:
    """The device, and why it was chosen."""
    if device != "cpu":
        return f"CuPy on {device}; the GPU works"
    why = why_no_gpu()
    return f"NumPy on {threads or cpu_count()} threads; {'as requested' if why is None else f'no GPU: {why}'}"


def estimate(run: Run, seconds_per_batch: float) -> str:
    """Time left, including evaluation, and memory in use."""
    r = run.plan.recipe
    seconds = seconds_per_batch * (r.epochs * len(run.train_loader) - run.trainer.batches)
    evaluations = -(-(r.epochs - run.trainer.epoch) // run.evaluate_every) * (1 if run.trainer.ema is None else 2)
    seconds += seconds_per_batch / r.batch_size * FORWARD_COST * evaluations * len(run.images.val)
    memory = ", ".join(f"{size} {what}" for size, what in memory_in_use(run.trainer.device))
    launched, network = run.trainer.gradients.graph_line(), communication_line(run, seconds_per_batch)
    return ", ".join(filter(None, (f"estimate: {seconds / 60:.1f} minutes left", memory, launched, network)))


def communication_line(run: Run, seconds_per_batch: float) -> str | None:
    """Share of a step that several ranks spend on the network, and what one more rank would bring."""
    ranks, steps = run.ranks, run.trainer.batches - run.session_batch
    if ranks.size == 1:
        return None
    network = (ranks.seconds - run.session_network) / steps
    leaves = run.trainer.gradients.leaves(run.train_loader.batch_size)
    told = f"{network / seconds_per_batch:.0%} of a step is communication"
    if ranks.size == leaves:
        return f"{told}, and a batch has no work for more ranks"
    busiest, next_busiest = (-(-leaves // count) for count in (ranks.size, ranks.size + 1))
    transfers = ranks.size**2 / (ranks.size**2 - 1)  # 2 bytes (P - 1) / P, divided by the same for one rank less
    computing = max(0.0, seconds_per_batch - network) * next_busiest / busiest
    gain = seconds_per_batch / (computing + network * transfers)
    return f"{told}, and one more rank would train {gain:.2f} times as fast"


def memory_in_use(device: str) -> Iterator[tuple[str, str]]:
    """Yield sizes, and what is so large, as far as they are known."""
    peak = peak_megabytes()
    if peak is not None:
        yield f"{peak / 2**10:.2f} GB", "peak memory so far"
    if device != "cpu":
        gpu = cuda.memory(device)
        yield f"{gpu.held / 2**30:.1f}", f"of {gpu.total / 2**30:.1f} GB of GPU memory in use"


def next_commands(run: Run, resume: bool = True) -> str:
    """Commands to predict, evaluate and, if wanted, resume, ready to paste."""
    weights = shlex.quote(str(run.best_weights))
    image = run.path / "example.png"  # shapes are not files
    if isinstance(files := unwrapped(run.images.val), ImageFolder):
        image = next((path for i, (path, _) in enumerate(files.samples) if i not in run.val_loader.bad), image)
    lines = {"predict": f"{_program()} predict --weights {weights} {shlex.quote(str(image))}"}
    if not run.plan.overfit:  # there are no validation images
        lines["evaluate"] = f"{_program()} eval --weights {weights}{_data_options(run)}{_machine_options(run)}"
    if run.model.has_memory and not run.plan.overfit:
        chosen = _data_options(run, with_train_images=True)
        lines["retrieve"] = f"{_program()} retrieve --weights {weights}{chosen}{_machine_options(run)}"
    if resume:
        lines["resume"] = resume_command(run)
    return "\n".join(f"{name + ':':10s} {printable(line)}" for name, line in lines.items())


def resume_command(run: Run, with_micro_batch: bool = True) -> str:
    micro_batch = f" --micro-batch {run.micro_batch}" if with_micro_batch and run.micro_batch is not None else ""
    graph = "" if run.graph else " --no-graph"
    program = _program()
    if run.ranks.size > 1:
        program = f"mpiexec -n {run.ranks.size} {shlex.quote(sys.executable)} -m mpi4py -m minicait"
    return f"{program} train --resume {shlex.quote(str(run.path))}{_machine_options(run)}{micro_batch}{graph}"


def _program() -> str:
    return "minicait" if shutil.which("minicait") else f"{shlex.quote(sys.executable)} -m minicait"


def _machine_options(run: Run) -> str:
    """--device, unless it is the default, and --skip-bad-images."""
    default = "cuda" if why_no_gpu() is None else "cpu"
    own = run.device if run.ranks is ALONE else run.device.partition(":")[0]  # each rank has its own GPU
    device = "" if own == default else f" --device {own}"
    return device + (" --skip-bad-images" if run.skip_bad else "")


def _data_options(run: Run, with_train_images: bool = False) -> str:
    """Options that select the same validation images again, or also the same training images."""
    own, default = asdict(run.plan.data), asdict(Source(val_fraction=None))
    own["classes"] = None if own["classes"] is None else ",".join(own["classes"])
    if own["data"] in NAMED:
        own["val_fraction"] = None  # they have validation images of their own
    chosen: dict[str, Any] = {key: value for key, value in own.items() if value != default[key]}
    if not with_train_images:
        chosen.pop("train_images", None)
    if run.plan.data.data == "shapes" and run.plan.recipe.seed:
        chosen["seed"] = run.plan.recipe.seed
    return "".join(f" --{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in chosen.items())

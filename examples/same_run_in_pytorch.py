"""Train a model in PyTorch as a run of ours was trained, in the same time: how far does it get?

    python examples/train_imagenette.py
    python examples/same_run_in_pytorch.py runs/imagenette-1        # as long again; pip install -e '.[compare]' first

The model is timm's. Initial weights, images, augmentation, mixing, AdamW, clipping, learning-rate schedule and the
average of the weights are those of the run. Both read images with our loader. The number of epochs is what PyTorch
manages in the run's time: before it trains, both take turns, some steps each, and the median of the ratios of their
throughput tells. It prints a table and writes pytorch.csv into the run's folder.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm import tqdm

from minicait.bench.torch_side import import_timm
from minicait.cli.guard import guarded
from minicait.data.loader import Loader
from minicait.data.transforms import evaluation, training
from minicait.files.atomic import write_text
from minicait.files.hub import export_model
from minicait.files.weights import Info
from minicait.machine import cpu_count, peak_megabytes
from minicait.models import family_of
from minicait.optim import learning_rate
from minicait.optim.parameters import is_decayed
from minicait.run.folder import read_plan
from minicait.run.journal import read_log
from minicait.train import Trainer
from minicait.train.targets import BatchTargets

TURNS, STEPS, SKIPPED = 9, 20, 4  # the first steps of a turn find batches prepared during the other's turn


class TorchTrainer:
    """The training step of a recipe in PyTorch's eager mode, with fused AdamW and averages by foreach."""

    def __init__(self, torch: Any, net: Any, recipe: Any, no_decay: frozenset[str]) -> None:
        self.torch, self.net, self.recipe, self.steps = torch, net, recipe, 0
        decayed = {n: is_decayed(n, tuple(p.shape), no_decay) for n, p in net.named_parameters()}
        groups = [
            {"params": [p for n, p in net.named_parameters() if decayed[n] == decay],
             "weight_decay": recipe.weight_decay * decay}
            for decay in (True, False)
        ]  # fmt: skip
        self.optimiser = torch.optim.AdamW(groups, lr=recipe.peak_lr, fused=True)
        self.parameters = list(net.parameters())
        self.average = [p.detach().clone() for p in self.parameters]

    def step(self, images: np.ndarray, targets: np.ndarray, lr: float) -> float:
        torch, r = self.torch, self.recipe
        self.net.train()
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.zero_grad()
        logits = self.net(torch.from_numpy(images))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets), label_smoothing=r.label_smoothing)
        loss.backward()
        if r.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, r.clip_norm)
        self.optimiser.step()
        self.steps += 1
        if r.ema_decay is not None:
            decay = min(r.ema_decay, (1 + self.steps) / (10 + self.steps))
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - decay)
        return loss.item()

    def accuracy(self, loader: Loader, averaged: bool) -> float:
        """top-1 of the averaged weights, or of the weights as they are."""
        torch, right = self.torch, 0
        own = [p.detach().clone() for p in self.parameters]
        self.net.eval()
        with torch.inference_mode():
            if averaged:
                torch._foreach_copy_([p.detach() for p in self.parameters], self.average)
            for batch in loader.epoch(0):
                guesses = self.net(torch.from_numpy(batch.images)).argmax(1).numpy()
                right += int((guesses == batch.labels).sum())
            torch._foreach_copy_([p.detach() for p in self.parameters], own)
        return right / len(loader.dataset)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--epochs", type=int, help="(default: as many as fit into the time of the run)")
    parser.add_argument("--threads", type=int, default=cpu_count(), help="for both (default: one per CPU)")
    args = parser.parse_args()
    plan, rows = read_plan(args.run), read_log(args.run)
    if len(rows) < plan.recipe.epochs:
        raise ValueError(f"the run in {args.run} is not finished")
    minutes = float(rows[-1]["seconds"]) / 60
    r, side = plan.recipe, plan.side()
    images = plan.data.open(side, r.seed, r.crop_ratio)
    classes = list(images.train.classes)
    model, _ = plan.initial_model(classes)
    family = family_of(model)
    others = (
        r.optimiser != "adamw" or r.loss != "cross_entropy" or plan.teacher is not None or plan.token_labels is not None
    )
    if family is None or others or r.constant_lr or r.accumulate > 1 or r.mix_token:
        raise ValueError("this comparison knows AdamW with a schedule and cross entropy, without a teacher, only")
    timm, torch = import_timm(), import_module("torch")
    torch.set_num_threads(args.threads)

    def start_trainer() -> TorchTrainer:
        """timm's model with our initial weights."""
        with TemporaryDirectory() as folder:
            export_model(model, Info(family.name, model.config), Path(folder) / "hub", "")
            source, rate = f"local-dir:{folder}/hub", model.config.drop_path_rate
            net = timm.create_model(source, pretrained=True, drop_path_rate=rate)
        return TorchTrainer(torch, net, r, model.no_decay)

    train_loader = Loader(
        images.train, r.batch_size, True, r.seed, training(r.augmentation, side, r.crop_ratio), r.repeats
    )
    val_loader = Loader(images.val, 64, False, r.seed, evaluation(side, r.crop_ratio))
    targets = BatchTargets(model, r)

    every = plan.epochs_per_evaluation(len(images.train), len(images.val))
    epochs, versions = args.epochs, f"PyTorch {torch.__version__}, timm {timm.__version__}"
    if epochs is None:
        for i in range(len(images.train)):  # read from disk before anything is timed
            images.train[i]
        beside = Trainer(plan.initial_model(classes)[0], r, threads=args.threads)  # `model` keeps its initial weights
        ratio = relative_throughput(start_trainer(), beside, train_loader, targets)
        beside.close()
        epochs = max(1, round(len(rows) * ratio))
    print(f"{versions}: {epochs} epochs, beside {len(rows)} of the run in {minutes:.0f} minutes", flush=True)

    trainer, total = start_trainer(), epochs * len(train_loader)
    warmup = min(round(r.warmup_epochs * len(train_loader)), total // 5)
    start = time.perf_counter()
    log: list[dict[str, Any]] = []
    for epoch in range(epochs):
        losses = []
        for batch in tqdm(train_loader.epoch(epoch), total=len(train_loader), leave=False, disable=None):
            lr = learning_rate(trainer.steps, total, warmup, r.peak_lr, r.warmup_lr, r.min_lr)
            mixed = targets.mixed(batch, trainer.steps)
            losses.append(trainer.step(*mixed, lr))
        top1 = None
        if (epochs - epoch - 1) % every == 0:
            top1 = trainer.accuracy(val_loader, averaged=r.ema_decay is not None)
        elapsed = time.perf_counter() - start
        log.append({"epoch": epoch + 1, "loss": float(np.mean(losses)), "top1": top1, "seconds": elapsed})
        shown = "" if top1 is None else f", top-1 {top1:.1%}"
        print(f"epoch {epoch + 1}/{epochs}: loss {log[-1]['loss']:.3f}{shown}; {elapsed:.0f} s", flush=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(log[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
        write_text(args.run / "pytorch.csv", text.getvalue())
    memory = peak_megabytes() or math.nan
    print(f"\n| {args.threads} threads | minutes | epochs | top-1 | peak memory |\n| --- | --- | --- | --- | --- |")
    ours, used = float(rows[-1]["ema_top1"] or rows[-1]["top1"]), float(rows[-1]["megabytes"] or math.nan)
    print(f"| minicait | {minutes:.1f} | {len(rows)} | {ours:.1%} | {used:.0f} MB |")
    print(f"| PyTorch | {log[-1]['seconds'] / 60:.1f} | {epochs} | {log[-1]['top1']:.1%} | {memory:.0f} MB |")
    return 0


def relative_throughput(theirs: TorchTrainer, ours: Trainer, loader: Loader, targets: BatchTargets) -> float:
    """Throughput of PyTorch's job divided by that of ours, loading included: the median of turns."""
    batches = (batch for epoch in range(10**6) for batch in loader.epoch(epoch))
    steps: dict[str, Callable[[int], float]] = {
        "minicait": lambda number: ours.step(*ours.targets.mixed(next(batches), number)),
        "PyTorch": lambda number: theirs.step(*targets.mixed(next(batches), number), 1e-6),
    }
    ratios = []
    for turn in range(TURNS):
        seconds = {}
        for name, step in steps.items():
            for number in range(SKIPPED + STEPS):
                if number == SKIPPED:
                    before = time.perf_counter()
                step(number)
            seconds[name] = (time.perf_counter() - before) / STEPS
        ratios.append(seconds["minicait"] / seconds["PyTorch"])
        rates = ", ".join(f"{name} {loader.batch_size / each:.0f}" for name, each in seconds.items())
        print(f"turn {turn + 1}: images/s: {rates}; {ratios[-1]:.3f}", flush=True)
    return float(np.median(ratios))


if __name__ == "__main__":
    sys.exit(guarded(main, "same_run_in_pytorch"))

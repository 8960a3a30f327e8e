"""Batches on their way to a GPU while it computes: do the images arrive that a CPU prepares?

Workers write pixels, a stream of their own copies them, and a kernel normalises and mixes them, while the step before
still runs as a CUDA graph. If any of these did not wait for another, images would be of two batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import autograd as ag
from autograd import random
from autograd.backend import to_device
from autograd.random import Stream

from ..data.device_loader import AnyLoader, DeviceLoader, on_device
from ..data.loader import Loader
from ..data.shapes import Shapes
from ..data.slots import STEPS as NOISE_STEPS
from ..data.transforms import Augmentation, training
from ..machine import cpu_count
from ..models import create_model
from ..train import Recipe, Trainer
from ..train.recipe import PRODUCTS
from .report import DIFFERS, NOT_RUN, OK, Finding
from .speed import release

MODEL, BATCH, BATCHES, EPOCHS = "cait_xxs24_224", 32, 4, 2
RECIPE = Recipe(mixup=0.8, cutmix=1.0, augmentation=Augmentation("resized", flip=0.5, erasing=0.25), precision="fp16")
ALLOWED = 0.5 / NOISE_STEPS + 1e-4  # erasing's noise comes in steps, everything else as on a CPU


def images_arrive(device: str) -> Finding:
    """Compare every batch of a loader for a GPU with the same of a CPU, and tell how its memory is copied."""
    model = create_model(MODEL, len(Shapes.classes), drop_path_rate=0.0)
    side = model.img_size[0]
    trainer = Trainer(model, RECIPE, device)
    loader = Loader(
        Shapes(BATCH * BATCHES, side), BATCH, True, 0, training(RECIPE.augmentation, side), threads=max(2, cpu_count())
    )
    with on_device(loader, device) as there:
        if not isinstance(there, DeviceLoader):
            return Finding(NOT_RUN, "not as bytes here: processes cannot be forked, or kernels cannot be compiled")
        locked = all(transfer.address is not None for transfer in there.transfers)
        found = []
        for images, targets in batches(there, trainer):
            found.append((images, targets))  # to be looked at in the end, or the host would wait
            with random.using(Stream(0)), ag.autocast(PRODUCTS[RECIPE.precision]):
                trainer.gradients(trainer.objective, images, {"labels": targets})
    lines, worst = [], 0.0
    for i, ((images, targets), (own, own_targets)) in enumerate(zip(found, batches(loader, trainer), strict=True)):
        apart = float(np.abs(to_device(images, "cpu") - own).max())
        lines.append(f"batch {i + 1}: images {apart:.1e} apart, targets {float(np.abs(targets - own_targets).max())}")
        worst = float(np.maximum(worst, np.maximum(apart, np.abs(targets - own_targets).max())))  # NaN if any is
    del found, images
    launched = trainer.gradients.graph_line()
    trainer.close()
    release(device)
    result = (
        f"{EPOCHS * BATCHES} batches at most {worst:.1e} apart ({ALLOWED:.0e} allowed), by {loader.threads} workers, "
        f"memory {'' if locked else 'not '}page-locked, beside steps launched {launched}"
    )
    return Finding(OK if worst <= ALLOWED else DIFFERS, result, lines)


def batches(loader: AnyLoader, trainer: Trainer) -> Iterator[tuple[Any, Any]]:
    """Mixed images and targets of all epochs."""
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader.epoch(epoch), epoch * BATCHES):
            yield trainer.targets.mixed(batch, number)

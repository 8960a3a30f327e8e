"""One side of a measurement, as a process of its own: python -m minicait.bench.worker SIDE JOB."""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
from autograd import cuda
from autograd.backend import to_device

from ..data.transforms import evaluation
from ..machine import peak_megabytes
from ..models import Model, create_model
from ..train import Recipe, Trainer, predict
from ..train.evaluate import predict_files
from ..train.recipe import PRODUCTS
from . import OUT_OF_MEMORY, Job
from .batch import CLASSES, random_batch
from .cores import cpu_seconds
from .torch_side import PLAIN, TIMM, torch_step

TORCH = ("timm", "torch")  # sides in PyTorch
MEMORY = 10_000  # images that a Grafit compares with
Step = Callable[[], Any]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    name, job = sys.argv[1], Job(**json.loads(sys.argv[2]))
    step: Step | None = None
    for request in map(str.strip, sys.stdin):
        answer: Any = True
        try:
            if request == "begin":
                step = SIDES[name](job)
            elif request == "step":
                assert step is not None
                answer = timed(step, name, job)
            elif request == "cpu":
                answer = cpu_seconds()
            else:
                answer = peak(name, job.device)
        except (ImportError, ValueError, cuda.DeviceError) as error:
            answer = f"{name} cannot be measured: {error}"
        except Exception as error:
            line = traceback.format_exception_only(error)[-1].splitlines()[0]
            answer = f"{name} cannot be measured: {OUT_OF_MEMORY if is_out_of_memory(error) else line}"
        print(json.dumps(answer), flush=True)


def timed(step: Step, name: str, job: Job) -> float:
    """Seconds of one of several steps, after the last of which a GPU is waited for."""
    started = time.perf_counter()
    for _ in range(job.steps):
        step()
    if job.device != "cpu" and name.startswith(TORCH):
        import_module("torch").cuda.synchronize(job.device)
    elif job.device != "cpu":
        cuda.module().cuda.Device(cuda.device_id(job.device)).synchronize()
    return (time.perf_counter() - started) / job.steps


def is_out_of_memory(error: Exception) -> bool:
    """True for the errors of NumPy, CuPy, cuBLAS and PyTorch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or cuda.is_out_of_memory(error)


def peak(name: str, device: str) -> float:
    """Peak memory in megabytes; on a GPU, what the allocator took from it and keeps."""
    if device == "cpu":
        return peak_megabytes() or float("nan")
    if name.startswith(TORCH):
        return import_module("torch").cuda.max_memory_reserved(device) / 2**20
    return cuda.memory(device).held / 2**20


def minicait_step(job: Job, processes: bool | None = None) -> Step:
    model = create_model(job.model, CLASSES, drop_path_rate=job.drop_path_rate).to(job.device)
    if job.folder is not None:
        return folder_step(model, Path(job.folder), job.threads, job.micro_batch, job.precision)
    return bench_step(model, job.batch, job.work, job.threads, job.micro_batch, processes, job.precision)


def bench_step(
    model: Model,
    batch: int,
    work: str,
    threads: int,
    micro_batch: int | None = None,
    processes: bool | None = None,
    precision: str = "fp32",
) -> Step:
    """Return a function that does one step on the model's device. It may return before a GPU has completed it."""
    images, labels = random_batch(model.img_size[0], batch)
    images = to_device(images, model.device)
    if work == "predict":
        model.eval()

        def prediction() -> None:
            with ag.autocast(PRODUCTS[precision]):
                predict(model, images, threads, micro_batch)

        return prediction
    recipe, targets = (None, labels) if not model.has_memory else two_views(model, labels)
    trainer = Trainer(model, recipe, None, threads, micro_batch, precision=precision, processes=processes)
    return lambda: trainer.step(images, targets)


def folder_step(model: Model, folder: Path, threads: int, micro_batch: int | None, precision: str) -> Step:
    """Return a function that predicts all files of a folder, as `minicait predict` does."""
    paths = sorted(folder.iterdir())
    transform = evaluation(model.img_size[0], model.config.crop_ratio)

    def prediction() -> None:
        with ag.autocast(PRODUCTS[precision]):
            for _ in predict_files(model, paths, transform, threads, micro_batch):
                pass

    return prediction


def two_views(model: Model, labels: np.ndarray) -> tuple[Recipe, dict[str, np.ndarray]]:
    """Recipe and targets of a batch with two views of every image, which a memory knows, and a target network."""
    recipe = Recipe(batch_size=len(labels), loss="neighbours", repeats=2, ema_decay=0.99)
    model.remember(MEMORY)
    samples = np.arange(len(labels)) // 2
    return recipe, {"labels": labels[samples], "samples": samples}


SIDES: dict[str, Callable[[Job], Step]] = {
    "minicait": minicait_step,
    "timm": partial(torch_step, TIMM),
    "timm-bf16": partial(torch_step, TIMM, bfloat16=True),
    "timm-compiled": partial(torch_step, TIMM, compiled=True),
    "torch": partial(torch_step, PLAIN),
    "torch-bf16": partial(torch_step, PLAIN, bfloat16=True),
    "minicait-threads": partial(minicait_step, processes=False),
}

if __name__ == "__main__":
    main()

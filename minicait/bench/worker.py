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
from typing import Any

import numpy as np

import autograd as ag
from autograd import cuda
from autograd.backend import to_device

from ..machine import peak_megabytes
from ..models import Config, Model, find_model

CLASSES = 10
KEPT_ALIVE: list[Any] = []


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this ends it
    name, job = sys.argv[1], json.loads(sys.argv[2])
    step: Callable[[], Any] | None = None
    for line in sys.stdin:
        answer: Any = True
        try:
            if line == "begin\n":
                step = SIDES[name](**job)
            elif line == "step\n":
                assert step is not None
                before = time.perf_counter()
                step()
                answer = time.perf_counter() - before
            else:
                answer = peak(name, job["device"])
        except (ImportError, ValueError, MemoryError, cuda.DeviceError) as error:
            answer = f"{name} cannot be measured: {error or 'out of memory'}"
        except Exception as error:
            answer = f"{name} cannot be measured: {traceback.format_exception_only(error)[-1].splitlines()[0]}"
        print(json.dumps(answer), flush=True)


def peak(name: str, device: str) -> float:
    """Megabytes; on a GPU those that its allocator took from the GPU, which it keeps, so this is the most there was."""
    if device == "cpu":
        return peak_megabytes() or float("nan")  # where it cannot be told
    if name.startswith("timm"):
        return import_module("torch").cuda.max_memory_reserved(device) / 2**20
    cupy = cuda.module()
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        return cupy.get_default_memory_pool().total_bytes() / 2**20


def data(side: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 3, side, side)).astype(np.float32), rng.integers(0, CLASSES, batch)


def minicait_step(
    model: str,
    batch: int,
    work: str,
    threads: int,
    micro_batch: int | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    processes: bool | None = None,
) -> Callable[[], Any]:
    from .. import create_model

    net = create_model(model, CLASSES, drop_path_rate=0.0).to(device)
    return own_step(net, batch, work, threads, micro_batch, processes, precision)


def own_step(
    net: Model,
    batch: int,
    work: str,
    threads: int,
    micro_batch: int | None = None,
    processes: bool | None = None,
    precision: str = "fp32",
) -> Callable[[], Any]:
    """Where the model is. A step ends when a GPU has done all of it, the optimiser's part as well."""
    from ..train import Trainer, predict
    from ..train.recipe import PRODUCTS

    images, labels = data(net.img_size[0], batch)
    images = to_device(images, net.device)
    if work == "predict":
        net.eval()

        def prediction() -> None:
            with ag.autocast(PRODUCTS[precision]):
                predict(net, images, threads)

        return prediction
    trainer = Trainer(net, threads=threads, micro_batch=micro_batch, processes=processes, precision=precision)
    wait = (lambda: None) if net.device == "cpu" else net.parameters()[0].data.device.synchronize
    return lambda: (trainer.step(images, labels), wait())


def timm_step(
    model: str,
    batch: int,
    work: str,
    threads: int,
    micro_batch: None = None,
    device: str = "cpu",
    precision: str = "fp32",
    compiled: bool = False,
) -> Callable[[], Any]:
    torch: Any = import_module("torch")  # its types, where it is installed, are not ours to check

    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"PyTorch {torch.__version__} cannot use the GPU")
    torch.set_num_threads(threads)
    family, config = find_model(model)
    if family.name not in REFERENCES:
        raise ValueError(f"there is no model of PyTorch to compare {family.name} with")
    net = REFERENCES[family.name](import_timm(), config).to(device)
    net = torch.compile(net) if compiled else net
    images, labels = (torch.from_numpy(array).to(device) for array in data(config.img_size[0], batch))

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    kind, half = device.partition(":")[0], precision == "fp16"
    narrow = partial(torch.autocast, kind, torch.float16, enabled=half)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    wait()
    if work == "predict":
        net.eval()

        def predict() -> None:
            with torch.inference_mode(), narrow():
                net(images)
            wait()

        return predict
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(kind, enabled=half)  # which does nothing if not

    def step() -> None:
        optimiser.zero_grad()
        with narrow():
            loss = torch.nn.functional.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        wait()

    return step


def import_timm() -> Any:
    """timm, also beside a torchvision without its compiled part, whose operators timm expects to be declared."""
    torch: Any = import_module("torch")
    try:
        torch.ops.torchvision.nms  # noqa: B018
    except (AttributeError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT_ALIVE.append(library)  # for they last as long as it does
    return import_module("timm")


def cait_in_timm(timm: Any, config: Config) -> Any:
    c: Any = config
    return timm.models.cait.Cait(
        img_size=c.img_size, patch_size=c.patch_size, num_classes=CLASSES, embed_dim=c.dim, depth=c.depth,
        num_heads=c.heads, init_values=c.layer_scale,
    )  # fmt: skip


REFERENCES: dict[str, Callable[[Any, Config], Any]] = {"cait": cait_in_timm}  # PyTorch's model, by family

SIDES: dict[str, Callable[..., Callable[[], Any]]] = {
    "minicait": minicait_step,
    "timm": timm_step,
    "timm-compiled": partial(timm_step, compiled=True),
    "minicait-threads": partial(minicait_step, processes=False),
}

if __name__ == "__main__":
    main()

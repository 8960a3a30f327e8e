"""One side of a measurement, as a process of its own: python -m minicait.bench.worker SIDE JOB."""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import autograd as ag
from autograd import cuda
from autograd.backend import to_device

from ..machine import peak_megabytes
from ..models import Model, create_model, find_model
from ..train import Recipe, Trainer, predict
from ..train.objectives import CrossEntropy
from ..train.recipe import PRODUCTS
from . import Job

CLASSES = 10
MEMORY = 10_000  # images that a Grafit compares with
Step = Callable[[], Any]
_libraries: list[Any] = []  # of PyTorch: their operators disappear with them


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
                started = time.perf_counter()
                step()
                answer = time.perf_counter() - started
            else:
                answer = peak(name, job.device)
        except (ImportError, ValueError, MemoryError, cuda.DeviceError) as error:
            answer = f"{name} cannot be measured: {error or 'out of memory'}"
        except Exception as error:
            answer = f"{name} cannot be measured: {traceback.format_exception_only(error)[-1].splitlines()[0]}"
        print(json.dumps(answer), flush=True)


def peak(name: str, device: str) -> float:
    """Peak memory in megabytes; on a GPU, what the allocator took from it and keeps."""
    if device == "cpu":
        return peak_megabytes() or float("nan")
    if name.startswith(("timm", "torch")):
        return import_module("torch").cuda.max_memory_reserved(device) / 2**20
    cupy = cuda.module()
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        return cupy.get_default_memory_pool().total_bytes() / 2**20


def data(side: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 3, side, side)).astype(np.float32), rng.integers(0, CLASSES, batch)


def minicait_step(job: Job, processes: bool | None = None) -> Step:
    model = create_model(job.model, CLASSES, drop_path_rate=0.0).to(job.device)
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
    """Return a function that does one step on the model's device, and waits for a GPU to complete it."""
    images, labels = data(model.img_size[0], batch)
    images = to_device(images, model.device)
    if work == "predict":
        model.eval()

        def prediction() -> None:
            with ag.autocast(PRODUCTS[precision]):
                predict(model, images, threads)

        return prediction
    recipe, targets = (None, labels) if not model.has_memory else two_views(model, labels)
    trainer = Trainer(model, recipe, None, threads, micro_batch, precision=precision, processes=processes)
    wait = (lambda: None) if model.device == "cpu" else model.parameters()[0].data.device.synchronize
    return lambda: (trainer.step(images, targets), wait())


def two_views(model: Model, labels: np.ndarray) -> tuple[Recipe, dict[str, np.ndarray]]:
    """Recipe and targets of a batch with two views of every image, which a memory knows, and a target network."""
    recipe = Recipe(batch_size=len(labels), loss="neighbours", repeats=2, ema_decay=0.99)
    model.remember(MEMORY)
    samples = np.arange(len(labels)) // 2
    return recipe, {"labels": labels[samples], "samples": samples}


def torch_step(references: Mapping[str, Callable[[Any], Any]], job: Job, compiled: bool = False) -> Step:
    family, config = find_model(job.model)
    if family.name not in references:
        known = ", ".join(references)
        raise ValueError(f"there is no {family.name} to compare with, only {known}; see --against in `bench --help`")
    torch: Any = import_module("torch")  # not type-checked, even if it is installed
    device, half = job.device, job.precision == "fp16"
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"PyTorch {torch.__version__} cannot use the GPU")
    torch.set_num_threads(job.threads)
    net = references[family.name](config).to(device)
    net = torch.compile(net) if compiled else net
    images, labels = (torch.from_numpy(array).to(device) for array in data(config.img_size[0], job.batch))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    autocast = partial(torch.autocast, device.partition(":")[0], torch.float16, enabled=half)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    wait()
    if job.work == "predict":
        net.eval()

        def prediction() -> None:
            with torch.inference_mode(), autocast():
                net(images)
            wait()

        return prediction
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(device.partition(":")[0], enabled=half)

    def step() -> None:
        optimiser.zero_grad()
        with autocast():
            loss = torch_loss(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        wait()

    return step


def torch_loss(output: Any, labels: Any) -> Any:
    """Our objective for labels: of one head, of two (their mean), or of a class token and every patch."""
    cross_entropy: Any = import_module("torch").nn.functional.cross_entropy
    if not isinstance(output, tuple):
        return cross_entropy(output, labels)
    logits, other = output
    if other.ndim == 2:
        return (cross_entropy(logits, labels) + cross_entropy(other, labels)) / 2
    of_tokens = cross_entropy(other.flatten(0, 1), labels.repeat_interleave(other.shape[1]))
    return cross_entropy(logits, labels) + CrossEntropy.token_weight * of_tokens


def import_timm() -> Any:
    """Import timm, even if torchvision lacks its compiled part: timm expects these operators to be declared."""
    torch: Any = import_module("torch")
    try:
        torch.ops.torchvision.nms  # noqa: B018
    except (AttributeError, RuntimeError):
        _libraries.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _libraries[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module("timm")


def _sizes(c: Any) -> dict[str, Any]:
    return {"img_size": c.img_size, "patch_size": c.patch_size, "num_classes": CLASSES, "embed_dim": c.dim}


def timm_cait(c: Any) -> Any:
    cait = import_timm().models.cait
    return cait.Cait(**_sizes(c), depth=c.depth, num_heads=c.heads, init_values=c.layer_scale)


def timm_deit(c: Any) -> Any:
    deit, sizes = import_timm().models.deit, {"depth": c.depth, "num_heads": c.heads}
    if not c.distilled:
        return deit.VisionTransformer(**_sizes(c), **sizes)
    net = deit.VisionTransformerDistilled(**_sizes(c), **sizes)
    net.set_distilled_training(True)
    return net


def timm_deit3(c: Any) -> Any:
    deit, sizes = import_timm().models.deit, {"depth": c.depth, "num_heads": c.heads}
    return deit.VisionTransformer(**_sizes(c), **sizes, no_embed_class=True, init_values=c.layer_scale)


def timm_resmlp(c: Any) -> Any:
    if c.class_mlp:
        raise ValueError("timm has no ResMLP with a class-MLP")
    mixer = import_timm().models.mlp_mixer
    block = partial(mixer.ResBlock, init_values=c.layer_scale)
    return mixer.MlpMixer(
        **_sizes(c), num_blocks=c.depth, mlp_ratio=c.mlp_ratio, block_layer=block, norm_layer=mixer.Affine
    )


def torch_patchconvnet(c: Any) -> Any:
    if c.multi_class or c.patch_size != 16:
        raise ValueError("the PatchConvNet to compare with has one class token, and patches of 16 pixels")
    return import_module("minicait.bench.torch_models").PatchConvNet(c, CLASSES)


def torch_lvvit(c: Any) -> Any:
    return import_module("minicait.bench.torch_models").LVViT(c, CLASSES)


# models of PyTorch, by family: timm's, and plain modules where timm has none
TIMM = {"cait": timm_cait, "deit": timm_deit, "deit3": timm_deit3, "resmlp": timm_resmlp}
PLAIN = {"patchconvnet": torch_patchconvnet, "lvvit": torch_lvvit}

SIDES: dict[str, Callable[[Job], Step]] = {
    "minicait": minicait_step,
    "timm": partial(torch_step, TIMM),
    "timm-compiled": partial(torch_step, TIMM, compiled=True),
    "torch": partial(torch_step, PLAIN),
    "minicait-threads": partial(minicait_step, processes=False),
}

if __name__ == "__main__":
    main()

"""The other side of a measurement: the same step in PyTorch, with models of timm or of `torch_models`.

Nothing imports PyTorch or timm before a step is made: both are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..data.crops import centre_crop
from ..data.picture import MEAN, STD
from ..models import find_model
from ..train.evaluate import FILES
from ..train.objectives import CrossEntropy
from . import Job
from .batch import CLASSES, random_batch

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of a CPU that multiplies bfloat16; the last is Arm's
_libraries: list[Any] = []  # of PyTorch: their operators disappear with them


def torch_step(
    references: Mapping[str, Callable[[Any], Any]], job: Job, compiled: bool = False, bfloat16: bool = False
) -> Callable[[], Any]:
    """Return a function that does one step in PyTorch. It may return before a GPU has completed it.

    bfloat16  under autocast to bfloat16, on a CPU
    """
    family, config = find_model(job.model)
    if family.name not in references:
        known = ", ".join(references)
        raise ValueError(f"there is no {family.name} to compare with, only {known}; see --against in `bench --help`")
    if bfloat16:
        check_bfloat16(job.device)
    torch: Any = import_module("torch")  # not type-checked, even if it is installed
    device, half = job.device, job.precision == "fp16"
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"PyTorch {torch.__version__} cannot use the GPU")
    torch.set_num_threads(job.threads)
    net = references[family.name](config.changed(drop_path_rate=job.drop_path_rate)).to(device)
    net = torch.compile(net) if compiled else net
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    kind, dtype = device.partition(":")[0], torch.bfloat16 if bfloat16 else torch.float16
    autocast = partial(torch.autocast, kind, dtype, enabled=half or bfloat16)

    if job.work != "train":
        net.eval()
        batches: Any = file_batches(job, config) if job.folder else None
        if batches is None:
            batches = [torch.from_numpy(random_batch(config.img_size[0], job.batch)[0]).to(device)]

        def prediction() -> None:
            with torch.inference_mode(), autocast():
                for images in batches:
                    net(images.to(device))

        return prediction
    images, labels = (torch.from_numpy(array).to(device) for array in random_batch(config.img_size[0], job.batch))
    optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(kind, enabled=half)

    def step() -> None:
        optimiser.zero_grad()
        with autocast():
            loss = torch_loss(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()

    return step


def check_bfloat16(device: str) -> None:
    """Raise ValueError unless bfloat16 is fast here: PyTorch emulates it on other CPUs."""
    if device != "cpu":
        raise ValueError("it is for CPUs; a GPU has --precision fp16 on both sides")
    lines = CPUINFO.read_text().splitlines() if CPUINFO.is_file() else []
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    if not flags & BFLOAT16:
        raise ValueError("this CPU has no instructions for bfloat16 (AVX512-BF16 or AMX)")


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


# ---- image files


class Files:
    """A dataset for PyTorch's DataLoader: images decoded and cropped by Pillow, and normalised by PyTorch."""

    def __init__(self, paths: list[Path], side: int, crop_ratio: float) -> None:
        self.paths, self.side, self.crop_ratio = paths, side, crop_ratio

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        torch: Any = import_module("torch")
        with Image.open(self.paths[index]) as file:
            image = centre_crop(file.convert("RGB"), self.side, self.crop_ratio)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return pixels.sub_(mean).div_(std)


def file_batches(job: Job, config: Any) -> Any:
    """Batches of a folder, as large as ours, read ahead by as many processes as there are threads."""
    assert job.folder is not None
    files = Files(sorted(Path(job.folder).iterdir()), config.img_size[0], config.crop_ratio)
    loader: Any = import_module("torch.utils.data").DataLoader
    return loader(files, FILES, num_workers=job.threads, persistent_workers=True)


# ---- models by family: timm's, and plain modules where timm has none


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
    sizes = {"img_size": c.img_size, "patch_size": c.patch_size, "num_classes": CLASSES, "embed_dim": c.dim}
    return {**sizes, "drop_path_rate": c.drop_path_rate}


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
    timm, sizes = import_timm(), {"depth": c.depth, "num_heads": c.heads}
    net = timm.models.deit.VisionTransformer(**_sizes(c), **sizes, no_embed_class=True, init_values=c.layer_scale)
    for block in net.blocks if c.drop_path_rate else ():  # the rate grows with depth in timm, as in DeiT
        block.drop_path1, block.drop_path2 = (timm.layers.DropPath(c.drop_path_rate) for _ in range(2))
    return net


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


TIMM = {"cait": timm_cait, "deit": timm_deit, "deit3": timm_deit3, "resmlp": timm_resmlp}
PLAIN = {"patchconvnet": torch_patchconvnet, "lvvit": torch_lvvit}

"""The published CaiT weights: where they are, and how they get here."""

from __future__ import annotations

import os
from pathlib import Path

from ..models import PUBLISHED, preset
from ..models.cait import CaiT
from .download import DownloadError, cache_directory, download
from .weights import open_weights

HUB = "https://huggingface.co"  # HF_ENDPOINT names a mirror
OFFICIAL = "https://dl.fbaipublicfiles.com/deit"  # MINICAIT_OFFICIAL names a mirror


def sources(name: str) -> list[tuple[str, str]]:
    """(address, file name) of a model's weights: timm's copy on its hub first, then the authors' file."""
    hub, official = os.environ.get("HF_ENDPOINT", HUB), os.environ.get("MINICAIT_OFFICIAL", OFFICIAL)
    short = name.removeprefix("cait_").upper()
    return [
        (f"{hub}/timm/{name}.fb_dist_in1k/resolve/main/model.safetensors", f"{name}.safetensors"),
        (f"{official}/{short}.pth", f"{name}.pth"),
    ]


def get_weights(name: str) -> Path:
    """The file with the published weights of a model, downloaded to the cache unless it is there."""
    preset(name)
    if name not in PUBLISHED:
        raise ValueError(f"there are no published weights for {name}; there are for {', '.join(sorted(PUBLISHED))}")
    folder = cache_directory() / "weights"
    for _, file_name in sources(name):
        if (folder / file_name).is_file():
            return folder / file_name
    failures = []
    for url, file_name in sources(name):
        try:
            path = download(url, folder / file_name)
            _check_shapes(name, path)
            return path
        except DownloadError as error:
            failures.append(str(error))
    raise DownloadError("; ".join(failures))


def _check_shapes(name: str, path: Path) -> None:
    """A download that is not this model's weights must not stay in the cache."""
    try:
        if open_weights(path).shapes != _shapes(name):
            raise ValueError(f"its tensors are not those of {name}")
    except ValueError as error:
        path.unlink()
        raise DownloadError(f"what was downloaded for {name} is not its weights: {error}; it was deleted") from error


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Of a model's parameters, read off one that is a single block deep: the others are alike."""
    wanted = preset(name)
    shallow = CaiT(**(wanted.config() | {"depth": 1}))
    shapes = {}
    for key, parameter in shallow.named_parameters():
        for i in range(wanted.depth if key.startswith("blocks.0.") else 1):
            shapes[key.replace("blocks.0.", f"blocks.{i}.")] = parameter.shape
    return shapes

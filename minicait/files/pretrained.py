"""A trained model: from a file or folder of ours, a file of published weights, the name of a published model, or the
weights that come with the package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin

import numpy as np

from ..data.imagenet import imagenet_classes
from ..models import FAMILIES, Config, Family, Model, check_fits, family_named, find_published, published_models
from ..models.config import MAX_SIDE
from ..models.recognise import first_block
from .download import DownloadError, cache_directory, download
from .hub import WEIGHTS
from .weights import FORMATS, Info, WeightFile, load_weights, open_weights

SHIPPED = "imagenette"  # name of the weights that come with the package
HUB = "https://huggingface.co"  # HF_ENDPOINT names a mirror
OFFICIAL = "https://dl.fbaipublicfiles.com/deit/"  # MINICAIT_OFFICIAL names a mirror of this and other servers


def load_model(
    weights: str | Path, img_size: int | None = None, classes: Sequence[str] | None = None, seed: int = 0
) -> tuple[Model, Info]:
    """Return the model in evaluation mode, and its classes and preprocessing.

    For another image size, position embeddings are resized. For other classes, the head is initialised.
    """
    if img_size is not None and not 1 <= img_size <= MAX_SIDE:
        raise ValueError(f"img_size must be from 1 to {MAX_SIDE}, got {img_size}")
    file, info = open_pretrained(weights)
    changed = info.config.changed(img_size=img_size, num_classes=None if classes is None else len(classes))
    model = family_named(info.family).model.from_config(changed, seed)
    new_head = {name: x.copy() for name, x in model.state_dict().items() if model.is_of_classes(name)}
    load_weights(model, file.path, new_head=classes is not None)
    names = info.class_names if classes is None else list(classes)
    if classes is not None and info.class_names != names:
        model.load_state_dict(new_head, strict=False)
    return model.eval(), replace(info, config=model.config, class_names=names)


def open_pretrained(weights: str | Path) -> tuple[WeightFile, Info]:
    """Open a weights file, and return it with what is known about its model."""
    name, path = str(weights), Path(weights)
    if name == SHIPPED:
        path = shipped_weights()
    elif path.is_dir():
        path = weights_in(path)
    if name in published_models():
        file = open_weights(get_weights(name))
        family, config, _ = find_published(name)
        return file, file.info or _info(family, config)
    if not path.exists() and not name.endswith(FORMATS):
        try:
            find_published(name)
        except ValueError as error:
            raise ValueError(f"there is no weights file {name}, and {error}") from None
    file = open_weights(path)
    return file, file.info or recognised(file)


def shipped_weights() -> Path:
    """The file of the weights that come with the package."""
    return Path(str(files("minicait").joinpath("weights", SHIPPED, WEIGHTS)))


def weights_in(folder: Path) -> Path:
    """The weights in a folder: of a run, the best; of an exported model, its only ones."""
    for name in ("weights/best.safetensors", WEIGHTS):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder} holds neither a run nor an exported model")


def recognised(file: WeightFile) -> Info:
    """Derive the model of a file without metadata from the names and shapes of its tensors."""
    for family in FAMILIES:
        some = next(iter(family.presets.values())).changed(depth=1)
        try:
            shapes = file.renamed(family.model.official).shapes
            if first_block(shapes) != _first_block(family.model, some):  # type: ignore[arg-type]  # classes are hashable
                continue
            config = family.model.config_of(shapes)
        except (KeyError, IndexError, ValueError, ZeroDivisionError):
            continue
        try:
            check_fits(config, shapes)
        except ValueError as error:
            raise ValueError(f"{file.path.name} has the names of a {family.name}, but {error}") from None
        return _info(family, config)
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(f"{file.path.name} does not hold the weights of a known model ({known})")


@cache
def _first_block(model: type[Model], config: Config) -> set[str]:
    """Names of the tensors of the first block: by these, families exclude each other."""
    return first_block(model.shapes_of(config))


def _info(family: Family, config: Config) -> Info:
    """Classes and preprocessing for a file without metadata: a thousand classes are ImageNet's."""
    names = list(imagenet_classes()) if config.num_classes == len(imagenet_classes()) else None
    return Info(family.name, config, names, crop_ratio=config.crop_ratio)


def outputs_for(classes: Sequence[str], info: Info, outputs: int) -> np.ndarray:
    """Index of the model's output for each class of the data, by name unless the model's classes are unnamed."""
    known = info.class_names
    if known is None and len(classes) != outputs:
        raise ValueError(f"the model has {outputs} unnamed classes, the data has {len(classes)}")
    if known is None or list(classes) == list(known):  # even if two classes share a name
        return np.arange(outputs)
    unknown = [name for name in classes if name not in known]
    if unknown:
        some = ", ".join(unknown[:5]) + ", ..." * (len(unknown) > 5)
        raise ValueError(f"the model does not know {len(unknown)} of the data's classes: {some}")
    return np.array([known.index(name) for name in classes])


# ---- published weights


def get_weights(name: str) -> Path:
    """Return the file with published weights, downloaded to the cache unless it is there."""
    find_published(name)
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


def sources(name: str) -> list[tuple[str, str]]:
    """URL and file name of published weights: timm's copy on the hub first, then the authors' file."""
    hub, mirror = os.environ.get("HF_ENDPOINT", HUB), os.environ.get("MINICAIT_OFFICIAL")
    published = find_published(name)[2]
    address = urljoin(OFFICIAL, published.official)
    authors = address if mirror is None else f"{mirror}/{address.rpartition('/')[2]}"
    copies = [] if published.hub is None else [f"{hub}/{published.hub}/resolve/main/model.safetensors"]
    return [*((url, f"{name}.safetensors") for url in copies), (authors, f"{name}.pth")]


def _check_shapes(name: str, path: Path) -> None:
    """Delete a download that does not hold these weights."""
    try:
        if open_weights(path).renamed(find_published(name)[0].model.official).shapes != _shapes(name):
            raise ValueError(f"its tensors are not those of {name}")
    except ValueError as error:
        path.unlink()
        raise DownloadError(f"the download for {name} is not its weights: {error}; it was deleted") from error


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    family, config, _ = find_published(name)
    return family.model.shapes_of(config)

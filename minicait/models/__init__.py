"""Models: `model` says what one is, `config` what sizes it has; each family is one file that ends in a table of sizes.

cait          CaiT: talking heads, class attention, LayerScale
deit          DeiT: a class token, a distillation token
deit3         DeiT III: DeiT with LayerScale
resmlp        ResMLP: linear layers along patches and along channels
patchconvnet  PatchConvNet: depthwise convolutions, and class attention as pooling
lvvit         LV-ViT: a convolutional stem, and a class for every patch
grafit        Grafit: one of the others without its classifier, images compared by their embeddings
variants      what CaiT was compared with
mimetic       initial weights for learning from few images
maps          where a model looks, whatever its family
transformer, positions, recognise, cost    what several of them share
"""

from __future__ import annotations

import difflib
import fnmatch

from . import cait, deit, deit3, grafit, lvvit, patchconvnet, resmlp
from .config import Config, check_fits
from .cost import Cost
from .model import Family, Model, Outputs, Published, outputs_of

FAMILIES: tuple[Family, ...] = (
    cait.FAMILY, deit.FAMILY, deit3.FAMILY, resmlp.FAMILY, patchconvnet.FAMILY, lvvit.FAMILY,
    grafit.FAMILY,
)  # fmt: skip

__all__ = [
    "FAMILIES", "Config", "Cost", "Family", "Model", "Outputs", "check_fits", "create_model", "family_named",
    "find_model", "find_published", "list_models", "outputs_of", "published_models",
]  # fmt: skip


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern such as "cait_xxs*"."""
    return fnmatch.filter([name for family in FAMILIES for name in family.presets], pattern)


def published_models(model: str | None = None) -> list[str]:
    """Names of the weights that the authors published, of all models or of one: `resmlp_12_224.dist`."""
    names = [name for family in FAMILIES for name in family.published]
    return [name for name in names if model is None or name.partition(".")[0] == model]


def find_model(name: str) -> tuple[Family, Config]:
    """Family and configuration of a model, by its name."""
    for family in FAMILIES:
        if name in family.presets:
            return family, family.presets[name]
    raise ValueError(f"unknown model {name!r}: {_hint(name, list_models())}")


def find_published(name: str) -> tuple[Family, Config, Published]:
    """Family, configuration and addresses of published weights, by their name."""
    for family in FAMILIES:
        if name in family.published:
            return family, family.presets[name.partition(".")[0]], family.published[name]
    raise ValueError(f"there are no published weights {name}: {_hint(name, published_models())}")


def _hint(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`minicait models` lists them."


def family_named(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise ValueError(f"unknown family {name!r}: expected {', '.join(family.name for family in FAMILIES)}")


def family_of(model: object) -> Family | None:
    """The family whose class the model is an instance of: exactly, since a subclass may compute something else."""
    return next((family for family in FAMILIES if type(model) is family.model), None)


def create_model(
    name: str,
    num_classes: int = 1000,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    drop_path_rate: float | None = None,
    seed: int = 0,
) -> Model:
    """A model by name, with new weights. None keeps the preset's own value."""
    family, config = find_model(name)
    changes = {"img_size": img_size, "patch_size": patch_size, "drop_path_rate": drop_path_rate}
    try:
        return family.model.from_config(config.changed(num_classes=num_classes, **changes), seed)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

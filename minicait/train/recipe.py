"""Recipes: what a training run does, as plain data that is printed at its start and saved with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..data.crops import MIN_CROP_RATIO
from ..data.transforms import Augmentation
from ..schema import check_fields

PRODUCTS = {"fp32": "as given", "tf32": "tf32", "fp16": "float16"}  # precisions, as `autograd.autocast` knows them

# The most is beyond any use, and below what would overflow or hang.
RANGES = {
    "epochs": (1, 1e6), "batch_size": (1, 1e6), "accumulate": (1, 1e6), "seed": (0, 2**62), "lr": (0, 1e3),
    "lr_for_batch": (1, 1e6), "warmup_epochs": (0, 1e6), "warmup_lr": (0, 1e3), "min_lr": (0, 1e3),
    "weight_decay": (0, 1e3), "clip_norm": (1e-12, 1e12), "label_smoothing": (0, 1), "mixup": (0, 1e3),
    "cutmix": (0, 1e3), "repeats": (1, 1e3), "crop_ratio": (MIN_CROP_RATIO, 1), "ema_decay": (0, 1),
    "distillation_weight": (0, 1), "temperature": (1e-6, 1e6), "token_weight": (0, 1e3),
    "instance_weight": (0, 1e3),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The defaults are the plainest training there is: AdamW at a constant rate, and nothing else."""

    epochs: int = 1
    batch_size: int = 128
    lr: float = 5e-4  # at the peak
    lr_for_batch: int | None = None  # if given, lr is meant for this batch size, and scaled to the real one
    constant_lr: bool = True  # no warm-up and no cosine
    warmup_epochs: float = 0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    weight_decay: float = 0.05
    clip_norm: float | None = None
    accumulate: int = 1  # batches that make one step
    loss: str = "cross_entropy"  # or "bce": every class by itself; "neighbours": Grafit's
    instance_weight: float = 1.0  # with "neighbours", of the loss between the `repeats` views of an image
    label_smoothing: float = 0.0
    token_weight: float = 0.5  # of the loss of the patches, if the model classifies each
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_token: bool = False  # exchange a box of tokens between images, if the model can
    augmentation: Augmentation = field(default_factory=Augmentation)
    repeats: int = 1  # of every image in an epoch, each augmented otherwise
    crop_ratio: float = 1.0  # in evaluation, the part of the shorter side that is seen
    ema_decay: float | None = None
    distillation: str | None = None  # "hard" or "soft", from a teacher
    distillation_weight: float = 0.5
    temperature: float = 3.0
    precision: str = "fp32"  # of products of matrices; "tf32" and "fp16" are for GPUs
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            check_fields(self, RANGES)
        except ValueError as error:
            raise ValueError(f"recipe: {error}") from None
        if self.precision not in PRODUCTS:
            raise ValueError(f"recipe: precision must be fp32, tf32 or fp16, got {self.precision!r}")
        if self.loss not in ("cross_entropy", "bce", "neighbours"):
            raise ValueError(f"recipe: loss must be cross_entropy, bce or neighbours, got {self.loss!r}")
        if self.distillation not in (None, "hard", "soft"):
            raise ValueError(f"recipe: distillation must be hard or soft, got {self.distillation!r}")

    @property
    def peak_lr(self) -> float:
        if self.lr_for_batch is None:
            return self.lr
        return self.lr * self.batch_size * self.accumulate / self.lr_for_batch

    def changed(self, **changes: Any) -> Recipe:
        """A copy with those changes that are not None."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


_SCHEDULED = Recipe(constant_lr=False, label_smoothing=0.1)
_DEIT = Augmentation("resized", crop_scale=0.08, flip=0.5, rand_augment=9, erasing=0.25)
_GENTLE = Augmentation("resized", crop_scale=0.25, flip=0.5)

RECIPES: dict[str, Recipe] = {
    # the paper's: DeiT's recipe, for 400 epochs
    "cait": replace(
        _SCHEDULED, epochs=400, batch_size=1024, lr_for_batch=512, warmup_epochs=5, mixup=0.8, cutmix=1.0,
        augmentation=_DEIT, repeats=3, ema_decay=0.99996,
    ),
    # some thousand photographs, from scratch, on a GPU
    "imagenette": replace(
        _SCHEDULED, epochs=100, batch_size=128, lr=1e-3, lr_for_batch=512, warmup_epochs=5, mixup=0.8, cutmix=1.0,
        augmentation=replace(_DEIT, crop_scale=0.25), ema_decay=0.9998,
    ),
    # photographs with a small model, on a laptop: few epochs, so little that blurs the labels
    "small": replace(
        _SCHEDULED, epochs=30, batch_size=64, lr=1e-3, warmup_epochs=1, clip_norm=1.0, ema_decay=0.999,
        augmentation=_GENTLE,
    ),
    # many images no larger than the model's input, such as CIFAR's, for some ten epochs: too few to learn them by
    # heart, so all that makes learning harder is left out
    "tiny-images": replace(
        _SCHEDULED, epochs=9, batch_size=64, lr=2e-3, label_smoothing=0.0, warmup_epochs=1, clip_norm=1.0,
        ema_decay=0.999, augmentation=Augmentation(flip=0.5),
    ),
    # photographs with coarse labels and a small Grafit, on a laptop; an image has two views that must differ
    "small-grafit": replace(
        _SCHEDULED, epochs=30, batch_size=64, lr=1e-3, label_smoothing=0.0, warmup_epochs=1, clip_norm=1.0,
        loss="neighbours", repeats=2, ema_decay=0.99, augmentation=replace(_GENTLE, crop_scale=0.4, colour_jitter=0.2),
    ),
    # the shapes that are drawn here
    "shapes": replace(
        _SCHEDULED, epochs=10, batch_size=32, lr=1e-3, warmup_epochs=1, clip_norm=1.0, ema_decay=0.999,
    ),
    # a trained model learns another, small task
    "transfer": replace(
        _SCHEDULED, epochs=20, batch_size=32, lr=2e-4, warmup_epochs=1, clip_norm=1.0, ema_decay=0.999,
        augmentation=_GENTLE,
    ),
    # the paper's fine-tuning at a higher resolution
    "finetune": Recipe(
        epochs=30, batch_size=512, lr=5e-6, weight_decay=1e-8, label_smoothing=0.1, mixup=0.8, cutmix=1.0,
        augmentation=_DEIT,
    ),
}  # fmt: skip


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        raise ValueError(f"unknown recipe {name!r}: {f'did you mean {near[0]}?' if near else ', '.join(RECIPES)}")
    return RECIPES[name]


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings such as "mixup=0.2" or "crop=padded", in itself or in its augmentation."""
    own, augmentation = ({f.name for f in fields(kind)} - {"augmentation"} for kind in (Recipe, Augmentation))
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in own | augmentation:
            near = difflib.get_close_matches(name, own | augmentation, n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(own | augmentation))
            raise ValueError(f"setting {setting!r}: expected NAME=VALUE with a name of the recipe; {hint}")
        try:
            value = json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
        except (ValueError, RecursionError):  # a word, or more brackets than anybody means
            value = text
        if name in own:
            recipe = replace(recipe, **{name: value})
        else:
            recipe = replace(recipe, augmentation=replace(recipe.augmentation, **{name: value}))
    return recipe


def changes(recipe: Recipe) -> dict[str, Any]:
    """Settings in which a recipe differs from the default one."""
    plain, own = asdict(Recipe()), asdict(recipe)
    flat = {**{key: own[key] for key in own if own[key] != plain[key] and key != "augmentation"}}
    return flat | {k: v for k, v in own["augmentation"].items() if v != plain["augmentation"][k]}

"""Recipes: what a training run does, as plain data that is printed at its start and saved with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
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
    "distillation_weight": (0, 1), "temperature": (1e-6, 1e6), "token_weight": (0, 1e3), "relabel": (0, 1),
    "bce_threshold": (0, 0.99), "instance_weight": (0, 1e3),
}  # fmt: skip

SHOWN = ("epochs", "batch_size", "optimiser", "lr", "weight_decay")  # at the start of a run, even if they are defaults


@dataclass(frozen=True)
class Recipe:
    """The defaults are the plainest training there is: AdamW at a constant rate, and nothing else."""

    epochs: int = 1
    batch_size: int = 128
    init: str = "reference"  # of a new model in `minicait train`; or "mimetic", for few images: see models/mimetic.py
    optimiser: str = "adamw"  # or "lamb"
    lr: float = 5e-4  # at the peak
    lr_for_batch: int | None = None  # if given, lr is meant for this batch size, and scaled to the real one
    constant_lr: bool = True  # no warm-up and no cosine
    warmup_epochs: float = 0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    weight_decay: float = 0.05
    clip_norm: float | None = None  # most that the norm of all gradients may be; LAMB clips by itself, to this
    accumulate: int = 1  # batches that make one step
    loss: str = "cross_entropy"  # or "bce": every class by itself; "neighbours": Grafit's
    bce_threshold: float | None = None  # targets above it become 1 and others 0; DeiT III: 0
    instance_weight: float = 1.0  # with "neighbours", of the loss between the `repeats` views of an image
    label_smoothing: float = 0.0
    token_weight: float = 0.5  # of the loss of the patches, if the model classifies each
    relabel: float = 0.0  # share of the annotator's label of the crop in that of the image, if there are label maps
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_token: bool = False  # exchange a box of tokens between images, if the model can
    augmentation: Augmentation = field(default_factory=Augmentation)
    repeats: int = 1  # of every image in an epoch, each augmented otherwise
    crop_ratio: float = 1.0  # in evaluation, the part of the shorter side that is seen
    ema_decay: float | None = None
    distillation: str | None = None  # "hard" or "soft", from a teacher
    distillation_weight: float = 0.5  # the thesis: 0.5 for hard, 0.1 for soft distillation; DeiT's code: 0.5 for both
    temperature: float = 3.0  # of soft distillation, as in the thesis; DeiT's code: 1
    precision: str = "fp32"  # of products of matrices; "tf32" and "fp16" are for GPUs
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            check_fields(self, RANGES)
        except ValueError as error:
            raise ValueError(f"recipe: {error}") from None
        if self.precision not in PRODUCTS:
            raise ValueError(f"recipe: precision must be fp32, tf32 or fp16, got {self.precision!r}")
        if self.init not in ("reference", "mimetic"):
            raise ValueError(f"recipe: init must be reference or mimetic, got {self.init!r}")
        if self.optimiser not in ("adamw", "lamb"):
            raise ValueError(f"recipe: optimiser must be adamw or lamb, got {self.optimiser!r}")
        if self.loss not in ("cross_entropy", "bce", "neighbours"):
            raise ValueError(f"recipe: loss must be cross_entropy, bce or neighbours, got {self.loss!r}")
        if self.bce_threshold is not None and self.loss != "bce":
            raise ValueError(f"recipe: bce_threshold needs loss=bce, got {self.loss}")
        for name in ("label_smoothing", "relabel"):
            if self.bce_threshold is not None and getattr(self, name):
                raise ValueError(f"recipe: bce_threshold makes zeros and ones of targets, so {name} must be 0")
        if self.distillation not in (None, "hard", "soft"):
            raise ValueError(f"recipe: distillation must be hard or soft, got {self.distillation!r}")
        if self.loss == "neighbours":
            self._check_neighbours()

    def _check_neighbours(self) -> None:
        """Raise ValueError if a setting does not go with Grafit's loss."""
        names = ("mixup", "cutmix", "mix_token", "label_smoothing", "distillation")
        if used := [name for name in names if getattr(self, name)]:
            raise ValueError(f"recipe: loss neighbours compares images by their class, and takes no {', '.join(used)}")
        if self.accumulate > 1:
            raise ValueError("recipe: loss neighbours changes its memory in every step, so accumulate must be 1")
        if self.batch_size % self.repeats:
            views = f"{self.repeats}, the views of an image (repeats)"
            raise ValueError(f"recipe: batch_size must be a multiple of {views}, got {self.batch_size}")
        if self.instance_weight and (self.repeats < 2 or self.ema_decay is None):
            needs = "repeats of at least 2" if self.repeats < 2 else "ema_decay, for the network to compare them with"
            raise ValueError(f"recipe: an instance_weight above 0 compares views of an image, and needs {needs}")

    @property
    def has_target_network(self) -> bool:
        """True if the moving average is what predictions are compared with, as in Grafit."""
        return self.loss == "neighbours" and self.instance_weight > 0

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
_DEIT3 = Augmentation("resized", crop_scale=0.08, flip=0.5, colour_jitter=0.3, three_augment=True)
_LAMB = replace(
    _SCHEDULED, optimiser="lamb", epochs=400, batch_size=2048, warmup_epochs=5, clip_norm=1.0, mixup=0.8, cutmix=1.0,
    repeats=3,
)  # fmt: skip
_ADAMW = replace(
    _SCHEDULED, epochs=300, batch_size=1024, lr_for_batch=512, warmup_epochs=5, mixup=0.8, cutmix=1.0, repeats=3,
    augmentation=_DEIT, ema_decay=0.99996,
)  # fmt: skip
_SMALL = replace(
    _SCHEDULED, epochs=30, batch_size=64, lr=1e-3, warmup_epochs=1, clip_norm=1.0, ema_decay=0.999,
    augmentation=_GENTLE,
)  # fmt: skip
_MIMETIC = replace(_SMALL, init="mimetic", crop_ratio=0.875)

RECIPES: dict[str, Recipe] = {
    # the paper's: DeiT's recipe, for 400 epochs
    "cait": replace(_ADAMW, epochs=400),
    # some thousand photographs, from scratch, on a GPU
    "imagenette": replace(
        _SCHEDULED, epochs=100, batch_size=128, lr=1e-3, lr_for_batch=512, warmup_epochs=5, mixup=0.8, cutmix=1.0,
        augmentation=replace(_DEIT, crop_scale=0.25), ema_decay=0.9998,
    ),
    # photographs with a small model, on a laptop: few epochs, so little that blurs the labels. Random crops enlarge
    # what is in the image, so evaluation crops, too. docs/results has what both are worth.
    "small": _MIMETIC,
    # the same for so many epochs that the model would learn the photographs by heart
    "small-long": replace(_MIMETIC, epochs=120, mixup=0.8, cutmix=1.0),
    # for a model that classifies patches, such as lvvit_mini, with label maps of the photographs
    "small-tokens": replace(_SMALL, mix_token=True),
    # many images no larger than the model's input, such as CIFAR's, for about half an hour on two cores: too short to
    # overfit them, so labels are neither smoothed nor mixed
    "tiny-images": replace(
        _SCHEDULED, epochs=15, batch_size=64, init="mimetic", lr=1e-3, label_smoothing=0.0, warmup_epochs=1,
        clip_norm=1.0, ema_decay=0.999, augmentation=Augmentation("padded", flip=0.5),
    ),
    # photographs with coarse labels and a small Grafit, on a laptop; an image has two views that must differ
    "small-grafit": replace(
        _SMALL, label_smoothing=0.0, loss="neighbours", repeats=2, ema_decay=0.99,
        augmentation=replace(_GENTLE, crop_scale=0.4, colour_jitter=0.2),
    ),
    # the shapes that are drawn here
    "shapes": replace(
        _SCHEDULED, epochs=10, batch_size=32, lr=1e-3, warmup_epochs=1, clip_norm=1.0, ema_decay=0.999,
    ),
    # a trained model learns another, small task
    "transfer": replace(_SMALL, epochs=20, batch_size=32, lr=2e-4),
    # the paper's fine-tuning at a higher resolution
    "finetune": Recipe(
        epochs=30, batch_size=512, lr=5e-6, weight_decay=1e-8, label_smoothing=0.1, mixup=0.8, cutmix=1.0,
        augmentation=_DEIT,
    ),
    # DeiT's own (thesis, Table 3.9); the EMA is the code's
    "deit": replace(_ADAMW, crop_ratio=0.875),
    # DeiT III's (thesis, Table 6.1). The published commands have lr 4e-3 for S, and weight decay 0.05 for 800 epochs.
    "deit3": replace(
        _LAMB, lr=3e-3, weight_decay=0.02, loss="bce", bce_threshold=0.0, label_smoothing=0.0, augmentation=_DEIT3,
    ),
    # DeiT III's at another resolution, from the published commands; after warm-up the rate is constant
    "deit3-finetune": replace(
        _SCHEDULED, epochs=20, batch_size=512, lr=1e-5, min_lr=1e-5, warmup_epochs=5, weight_decay=0.1, mixup=0.8,
        cutmix=1.0, augmentation=replace(_DEIT, erasing=0.0),
    ),
    # ResMLP's (thesis, section 4.3), which leaves the rest to DeiT's; epochs and batch are what its author gave later
    "resmlp": replace(_LAMB, lr=5e-3, weight_decay=0.2, augmentation=_DEIT, crop_ratio=0.9),
    # PatchConvNet's (thesis, section 5.2.3), for its S models; wider ones have weight decay 0.05. The thesis clips
    # nothing, but the LAMB of its code clips at 1.
    "patchconvnet": replace(
        _LAMB, lr=3e-3, weight_decay=0.01, augmentation=replace(_DEIT, erasing=0.0), crop_ratio=0.875,
    ),
    # LV-ViT's (section 4.1 of its paper) with token labels; without, the rate is for batches of 1024. The code adds ten
    # epochs at the least rate and the EMA, which the paper does not mention, has a token_weight of 1, and gives the
    # class token the annotator's label (relabel=1).
    "lvvit": replace(
        _SCHEDULED, epochs=300, batch_size=1024, lr=1e-3, lr_for_batch=640, warmup_epochs=5, mix_token=True,
        augmentation=_DEIT, ema_decay=0.99992, crop_ratio=0.9,
    ),
    # photographs with a small model, on a laptop, in the manner of DeiT III, without what blurs the labels.
    # Its learning rate was not searched.
    "small-deit3": replace(
        _LAMB, epochs=30, batch_size=64, lr=5e-3, weight_decay=0.05, warmup_epochs=1, loss="bce", bce_threshold=0.0,
        label_smoothing=0.0, mixup=0.0, cutmix=0.0, repeats=1, ema_decay=0.999,
        augmentation=replace(_DEIT3, crop_scale=0.25),
    ),
}  # fmt: skip

# Settings that mean something only with others, and these.
NEEDS: dict[str, tuple[str, Callable[[Recipe], object]]] = {
    "distillation_weight": ("a teacher", lambda r: r.distillation),
    "temperature": ("distillation=soft", lambda r: r.distillation == "soft"),
    "instance_weight": ("loss=neighbours", lambda r: r.loss == "neighbours"),
    "crop_scale": ("crop=resized", lambda r: r.augmentation.crop == "resized"),
    "warmup_epochs": ("constant_lr=false", lambda r: not r.constant_lr),
    "warmup_lr": ("constant_lr=false", lambda r: not r.constant_lr),
    "min_lr": ("constant_lr=false", lambda r: not r.constant_lr),
}


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        raise ValueError(f"unknown recipe {name!r}: {f'did you mean {near[0]}?' if near else ', '.join(RECIPES)}")
    return RECIPES[name]


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with settings such as "mixup=0.2" or "crop=padded", in itself or in its augmentation.

    A setting that would have no effect is an error.
    """
    own, augmentation = ({f.name for f in fields(kind)} - {"augmentation"} for kind in (Recipe, Augmentation))
    values: dict[str, Any] = {}  # set together, since some need each other
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in own | augmentation:
            near = difflib.get_close_matches(name, own | augmentation, n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(own | augmentation))
            raise ValueError(f"setting {setting!r}: expected NAME=VALUE with a name of the recipe; {hint}")
        try:
            values[name] = json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
        except (ValueError, RecursionError):  # a word, or more brackets than anybody means
            values[name] = text
    augment = replace(recipe.augmentation, **{name: value for name, value in values.items() if name in augmentation})
    changed = replace(recipe, augmentation=augment, **{name: value for name, value in values.items() if name in own})
    for name in values:
        if name in NEEDS and not NEEDS[name][1](changed):
            raise ValueError(f"setting {name} has no effect without {NEEDS[name][0]}")
    return changed


def main_settings(recipe: Recipe) -> dict[str, Any]:
    """SHOWN, and all settings in which a recipe differs from the default one. lr is the peak learning rate."""
    plain, own = (asdict(r) | asdict(r.augmentation) for r in (Recipe(), replace(recipe, lr=recipe.peak_lr)))
    hidden = ("augmentation", "lr_for_batch", "precision", *(("warmup_lr", "min_lr") if recipe.constant_lr else ()))
    return {key: own[key] for key in own if key not in hidden and (key in SHOWN or own[key] != plain[key])}

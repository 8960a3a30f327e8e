"""The plan of a run: everything that decides its result, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..data.label_file import open_label_file
from ..data.loader import Dataset
from ..data.source import Source
from ..data.token_labels import LabelMaps
from ..files.pretrained import load_model, open_pretrained
from ..models import Model, create_model, find_model
from ..models.config import MAX_SIDE
from ..models.mimetic import initialise_mimetically
from ..schema import check_fields
from ..train.recipe import Recipe

FORWARD_COST = 0.35  # of a training step


@dataclass(frozen=True)
class Plan:
    """Saved as args.json.

    model        name of a model; ignored if there are weights
    weights      initial weights: a file, or the name of a published model; other classes get a new head
    teacher      distil this model: a file or a name, as for weights
    overfit      validate on the training images
    token_labels file of label maps of the training images
    evaluate_every  evaluate after so many epochs, and after the last; None: as often as costs a twentieth of the time
    """

    recipe: Recipe
    data: Source = field(default_factory=Source)
    model: str = "cait_tiny_32"
    img_size: int | None = None
    patch_size: int | None = None
    weights: str | None = None
    teacher: str | None = None
    overfit: bool = False
    token_labels: str | None = None
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, {"img_size": (1, MAX_SIDE), "patch_size": (1, MAX_SIDE), "evaluate_every": (1, 1e6)})

    def side(self) -> int:
        """Side of the model's images, in pixels."""
        if self.img_size is not None:
            return self.img_size
        if self.weights is None:
            return find_model(self.model)[1].img_size[0]
        return open_pretrained(self.weights)[1].config.img_size[0]

    def initial_model(self, classes: Sequence[str]) -> tuple[Model, bool]:
        """Return the model with its initial weights, and True if these include its head."""
        if self.weights is None:
            model = create_model(self.model, len(classes), self.img_size, self.patch_size, seed=self.recipe.seed)
            if self.recipe.init == "mimetic":
                initialise_mimetically(model, self.recipe.seed)
            return model, True
        known = open_pretrained(self.weights)[1].class_names
        return load_model(self.weights, self.img_size, classes, self.recipe.seed)[0], known == list(classes)

    def epochs_per_evaluation(self, train_images: int, val_images: int) -> int:
        """Epochs from one evaluation to the next: of long runs, a twentieth of the time is for evaluation."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        weights = 1 if self.recipe.ema_decay is None else 2
        share = weights * FORWARD_COST * val_images / train_images
        return max(1, min(round(20 * share), self.recipe.epochs // 5))

    def label_maps(self, images: Dataset, model: Model) -> LabelMaps | None:
        """The label maps of the training images, after a check that model and recipe can use them."""
        r = self.recipe
        if self.token_labels is None:
            if r.relabel:
                raise ValueError(f"relabel={r.relabel} needs token labels, from which labels of crops are made")
            return None
        if not model.classifies_patches:
            name = type(model).__name__
            raise ValueError(f"token labels need a model that classifies patches, such as LV-ViT, but this is a {name}")
        if not r.token_weight and not r.relabel:
            raise ValueError("token labels have no effect with token_weight=0")
        if r.mixup or r.cutmix:
            raise ValueError("token labels cannot be mixed by mixup and cutmix; set both to 0, and mix_token to true")
        if r.bce_threshold is not None:
            raise ValueError("token labels are probabilities, which bce_threshold makes zeros and ones; set it to None")
        return LabelMaps(open_label_file(self.token_labels), images, model.grid)


def absolute(file: str | None) -> str | None:
    """Make the path of a file absolute, so that a run resumes from any folder; names stay as they are."""
    return str(Path(file).resolve()) if file is not None and Path(file).is_file() else file

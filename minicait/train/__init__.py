"""Training: `value_and_grad` computes on threads, `recipe` says what to do, `trainer` does it, `evaluate` looks."""

from .evaluate import Scores, attention_inside, evaluate, predict
from .gradients import value_and_grad
from .progress import Epoch, NotFiniteError
from .recipe import RECIPES, Recipe, recipe
from .trainer import Trainer

__all__ = [
    "RECIPES",
    "Epoch",
    "NotFiniteError",
    "Recipe",
    "Scores",
    "Trainer",
    "attention_inside",
    "evaluate",
    "predict",
    "recipe",
    "value_and_grad",
]

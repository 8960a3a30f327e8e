"""Training.

trainer     a step, and the epochs of a recipe
gradients   how a batch becomes gradients, on any number of threads or processes
shares      the share of a batch that one worker computes
tree        the one order in which gradients are added
workers     threads and processes
memory      memory that processes share
coupling    samples that must not be separated
targets     what outputs are compared with: labels, mixed or not, and what a teacher says
objectives  what training minimises
recipe      what a run does, as plain data
evaluate    accuracy, and where a model looks; `retrieval`, which images it finds alike
teacher     a trained model to distil from; `target_network`, the average of a model as its own teacher
grafit      the losses of Grafit
annotate    a trained model that labels every place of images
checkpoint  everything a run needs to continue to the bit
"""

from .evaluate import Guesses, Scores, attention_inside, evaluate, predict
from .gradients import value_and_grad
from .recipe import RECIPES, Recipe, recipe
from .trainer import Epoch, NotFiniteError, Trainer

__all__ = [
    "RECIPES",
    "Epoch",
    "Guesses",
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

"""Training.

trainer     a step, and the epochs of a recipe
gradients   how a batch becomes gradients, on any number of threads or processes
shares      the share of a batch that one worker computes
micro_batch its size: a rule
tree        the one order in which gradients are added
ranks       processes that train together, on one machine or several; `mpi`, through MPI; `job`, how
            they start and end; `sharding`, what each loads
workers     threads and processes
memory      memory that processes share
coupling    samples that must not be separated
targets     what outputs are compared with: labels, mixed or not, and what a teacher says
objectives  what training minimises
recipe      what a run does, as plain data
evaluate    accuracy, and where a model looks; `retrieval`, which images it finds alike
teacher     a trained model to distil from; `target_network`, the average of a model as its own teacher
buffers     running averages, and how to undo what a batch wrote into them
grafit      the losses of Grafit
annotate    a trained model that labels every place of images
not_finite  who made a NaN
checkpoint  everything a run needs to continue to the bit
"""

from .evaluate import Guesses, Scores, attention_inside, evaluate, predict
from .gradients import value_and_grad
from .not_finite import NotFiniteError
from .ranks import Ranks, RanksError
from .recipe import RECIPES, Recipe, recipe
from .trainer import Epoch, Trainer

__all__ = [
    "RECIPES",
    "Epoch",
    "Guesses",
    "NotFiniteError",
    "Ranks",
    "RanksError",
    "Recipe",
    "Scores",
    "Trainer",
    "attention_inside",
    "evaluate",
    "predict",
    "recipe",
    "value_and_grad",
]

"""Optimisation.

parameters   all parameters of a model as one array
optimiser    what AdamW and LAMB have in common
adamw        AdamW
lamb         LAMB
schedule     the learning rate over a run
norm         the norm of all gradients, and clipping by it
loss_scaler  dynamic loss scaling for float16
ema          a moving average of the weights
sweep        one pass over large arrays, in chunks, on threads or processes
"""

from .adamw import AdamW
from .ema import EMA
from .lamb import Lamb
from .loss_scaler import LossScaler
from .norm import clip_gradients, global_norm, norm_and_loss
from .optimiser import Optimiser
from .parameters import FlatArrays, FlatParameters, flat_parameters
from .schedule import learning_rate

__all__ = [
    "EMA", "AdamW", "FlatArrays", "FlatParameters", "Lamb", "LossScaler", "Optimiser", "clip_gradients",
    "flat_parameters", "global_norm", "learning_rate", "norm_and_loss",
]  # fmt: skip

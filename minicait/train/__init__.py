"""Training: `value_and_grad` computes on threads, `losses` and `recipe` say what, `trainer` drives."""

from .value_and_grad import value_and_grad

__all__ = ["value_and_grad"]

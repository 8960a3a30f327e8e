"""Base of AdamW and LAMB: two moments for every parameter, and the way from gradients to an update."""

from __future__ import annotations

from collections.abc import Mapping

from autograd.backend import Array

from ..nn import Module
from .parameters import FlatArrays, flat_parameters


class Optimiser:
    """Moves the parameters of a model, which it keeps in one flat array, along their gradients.

    mean, square  running means of the gradients and of their squares
    steps         updates so far
    """

    def __init__(
        self,
        model: Module,
        lr: float,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        threads: int = 1,
    ) -> None:
        self.parameters = flat_parameters(model)
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.steps, self.threads = 0, threads
        self.mean, self.square = self.parameters.zeros(), self.parameters.zeros()

    def step(
        self, gradients: Mapping[str, Array] | None = None, lr: float | None = None, norm: float | None = None
    ) -> None:
        """Move the parameters along the given gradients, by default along their `.grad`. Others stay.

        lr    the learning rate from now on
        norm  that of all gradients, if it is known, for an optimiser that clips them
        """
        if gradients is None:
            learned = self.parameters.parameters.items()
            gradients = {name: p.grad.data for name, p in learned if p.grad is not None}
        self.lr = self.lr if lr is None else lr
        self.steps += 1
        self.parameters.attach()
        scale = self._scale(gradients, norm)
        layout = self.parameters.layout
        if isinstance(gradients, FlatArrays) and gradients.layout == layout:
            self._move(slice(0, layout.size), gradients.array, scale)
        else:
            for name, g in gradients.items():
                self._move(layout.slices[name], g.reshape(-1), scale)

    def _scale(self, gradients: Mapping[str, Array], norm: float | None) -> float:
        """The number by which an optimiser that clips multiplies all gradients of this step."""
        return 1.0

    def _move(self, part: slice, g: Array, scale: float) -> None:
        """The fused update of a part of the flat array, along `scale` g."""
        raise TypeError(f"{type(self).__name__} needs a method _move(self, part, g, scale)")

    def zero_grad(self) -> None:
        for p in self.parameters.parameters.values():
            p.grad = None

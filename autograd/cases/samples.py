"""Inputs for the table of cases: functions that draw an array from a generator, each fit for some operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Maker = Callable[[np.random.Generator], np.ndarray]


def normal(*shape: int) -> Maker:
    return lambda rng: rng.standard_normal(shape)


def quiet(*shape: int) -> Maker:
    """Small values, so that a sum over many of them is not all rounding error."""
    return lambda rng: 0.1 * rng.standard_normal(shape)


def positive(*shape: int) -> Maker:
    return lambda rng: rng.uniform(0.5, 2.0, shape)


def apart(*shape: int) -> Maker:
    """Values at least 0.1 apart and 0.05 from zero, away from the kinks of abs, max and the like."""

    def make(rng: np.random.Generator) -> np.ndarray:
        size = int(np.prod(shape))
        return ((rng.permutation(size) - size // 2 + 0.5) * 0.1).reshape(shape)

    return make


def between(*shape: int) -> Maker:
    """Values at least 0.03 from those of `apart`."""
    return lambda rng: apart(*shape)(rng) + 0.03


def same(*shape: int) -> Maker:
    """The same values for each input."""
    return lambda rng: apart(*shape)(np.random.default_rng(0))


def tied(*shape: int) -> Maker:
    """Values apart, but each row has its largest and smallest twice: there, a numerical gradient gives half to each."""

    def make(rng: np.random.Generator) -> np.ndarray:
        x = np.sort(apart(*shape)(rng), axis=-1)
        x[..., 1], x[..., -1] = x[..., 0], x[..., -2]
        return rng.permuted(x, axis=-1)

    return make


def tiny(make: Maker) -> Maker:
    """The first value of each row is 1e-4 times as large."""

    def made(rng: np.random.Generator) -> np.ndarray:
        x = make(rng)
        x[..., 0] *= 1e-4
        return x

    return made


def probabilities(*shape: int) -> np.ndarray:
    p = np.random.default_rng(1).uniform(0.1, 1, shape)
    return p / p.sum(-1, keepdims=True)

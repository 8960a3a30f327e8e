"""What `detect_anomaly` looks at: non-finite values, and saved arrays that were edited before backward read them."""

from __future__ import annotations

import math
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .backend import FLOATS, Array, array_module, is_array, to_device, work_with

_HERE = Path(__file__).resolve().parent


class AnomalyError(ArithmeticError):
    """A NaN or Inf appeared, or a saved array was edited in place. The message names the operation and the line."""


class Trace:
    """Where an operation was called, and the checksums of what it saved."""

    __slots__ = ("checksums", "where")

    def __init__(self, saved: tuple[Any, ...]) -> None:
        self.where = _caller()
        self.checksums = [_checksum(value) for value in saved]

    def check_saved(self, name: str, saved: tuple[Any, ...]) -> None:
        for value, before in zip(saved, self.checksums, strict=True):
            if _checksum(value) != before:
                raise AnomalyError(
                    f"{name}: {_what(value)} that it saved for backward was edited in place after "
                    f"forward; work on a copy instead. Forward was called here:\n{self.where}"
                )


def check_backward(name: str, g: Array, gradients: list[Array], where: str) -> None:
    for i, gradient in enumerate(gradients):
        if fault := _made(gradient, [g]):
            raise AnomalyError(f"{name}: backward made {fault} in gradient {i}. Forward was called here:\n{where}")


def check_forward(name: str, output: Array, inputs: list[Any]) -> None:
    if fault := _made(output, inputs):
        raise AnomalyError(f"{name}: forward made {fault}. It was called here:\n{_caller()}")


def _made(output: Array, inputs: list[Any]) -> str | None:
    """What is wrong with `output`. An Inf is a mistake only where none came in: -inf is how attention is masked."""
    if output.dtype not in FLOATS:
        return None
    xp = array_module(output)
    if bool(xp.isnan(output).any()):
        came_in = any(is_array(x) and x.dtype in FLOATS and bool(array_module(x).isnan(x).any()) for x in inputs)
        return "NaN (its input already holds NaN)" if came_in else "NaN"
    for infinity in (math.inf, -math.inf):
        if bool((work_with(output) == infinity).any()) and not any(_holds(x, infinity) for x in inputs):
            return "Inf" if infinity > 0 else "-Inf"
    return None


def _holds(x: Any, infinity: float) -> bool:
    if is_array(x):
        return x.dtype in FLOATS and bool((work_with(x) == infinity).any())
    return isinstance(x, float) and x == infinity


def _checksum(value: Any) -> Any:
    """Of an array, and of every array inside a tuple or list, such as an index."""
    if isinstance(value, tuple | list):
        return [_checksum(item) for item in value]
    if not is_array(value) or not value.size:
        return None
    return zlib.crc32(np.ascontiguousarray(to_device(value, "cpu")).data.cast("B"))


def _what(value: Any) -> str:
    return f"an array of shape {value.shape}" if is_array(value) else "an index"


def _caller() -> str:
    """The innermost lines outside this package that led here."""
    frames = [f for f in traceback.extract_stack() if _HERE not in Path(f.filename).resolve().parents]
    return "".join(traceback.format_list(frames[-3:])).rstrip()

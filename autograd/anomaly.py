"""The checks behind `detect_anomaly`: non-finite values, and saved arrays edited in place before backward."""

from __future__ import annotations

import math
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .backend import FLOATS, Array, array_module, is_array, on_device_of, to_device

_HERE = Path(__file__).resolve().parent


class AnomalyError(ArithmeticError):
    """A NaN or Inf appeared, or a saved array was edited in place. The message names the operation and the line."""


class Trace:
    """The line that called an operation, and checksums of the arrays it saved."""

    __slots__ = ("checksums", "where")

    def __init__(self, saved: tuple[Any, ...]) -> None:
        self.where = _caller()
        self.checksums = [checksum(value) for value in saved]

    def check_saved(self, name: str, saved: tuple[Any, ...]) -> None:
        for value, before in zip(saved, self.checksums, strict=True):
            if checksum(value) != before:
                what = f"an array of shape {value.shape}" if is_array(value) else "an index"
                raise AnomalyError(
                    f"{name}: {what} that it saved for backward was edited in place after forward; edit a copy "
                    f"instead. Forward was called here:\n{self.where}"
                )


def check_backward(name: str, g: Array, gradients: list[Array], where: str) -> None:
    for i, gradient in enumerate(gradients):
        if fault := _fault(gradient, [g]):
            raise AnomalyError(f"{name}: backward produced {fault} in gradient {i}. Forward was called here:\n{where}")


def check_forward(name: str, output: Array, inputs: list[Any]) -> None:
    if fault := _fault(output, inputs):
        raise AnomalyError(f"{name}: forward produced {fault}. It was called here:\n{_caller()}")


def _fault(output: Array, inputs: list[Any]) -> str | None:
    """Name the NaN or Inf in `output`. An Inf is a fault only if no input contains it: attention masks are -inf."""
    if output.dtype not in FLOATS:
        return None
    xp = array_module(output)
    if bool(xp.isnan(output).any()):
        in_input = any(is_array(x) and x.dtype in FLOATS and bool(array_module(x).isnan(x).any()) for x in inputs)
        return "NaN (its input already contains NaN)" if in_input else "NaN"
    for infinity in (math.inf, -math.inf):
        if bool((on_device_of(output) == infinity).any()) and not any(_contains(x, infinity) for x in inputs):
            return "Inf" if infinity > 0 else "-Inf"
    return None


def _contains(x: Any, infinity: float) -> bool:
    if is_array(x):
        return x.dtype in FLOATS and bool((on_device_of(x) == infinity).any())
    return isinstance(x, float) and x == infinity


def checksum(value: Any) -> Any:
    """CRC-32 of an array, or of every array in a tuple, list or dict."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, tuple | list):
        return [checksum(item) for item in value]
    if not is_array(value) or not value.size:
        return None
    return zlib.crc32(np.ascontiguousarray(to_device(value, "cpu")).data.cast("B"))


def _caller() -> str:
    """The innermost stack frames outside this package."""
    frames = [f for f in traceback.extract_stack() if _HERE not in Path(f.filename).resolve().parents]
    return "".join(traceback.format_list(frames[-3:])).rstrip()

"""Profile of operations: seconds in forward and backward, and bytes kept between the two."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autograd.backend import is_array
from autograd.function import Function

from ..nn import Module


@dataclass
class Cost:
    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0
    kept: int = 0  # bytes saved for backward, each array counted once


@contextmanager
def profiled(model: Module) -> Iterator[dict[str, Cost]]:
    """Time every operation inside the block. Use a single thread, or waiting for others is counted, too.

    Saved weights of the model are not counted as kept, since they exist anyway.
    """
    costs: dict[str, Cost] = defaultdict(Cost)
    weights = {id(p.data) for p in model.parameters()}
    seen: set[int] = set()
    originals = [(cls, name, cls.__dict__[name]) for cls in _operations(Function) for name in ("forward", "backward")
                 if name in cls.__dict__]  # fmt: skip

    def timed(cls: Any, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            cost, started = costs[cls.name], time.perf_counter()
            result = run(ctx, *args, **kwargs)
            elapsed = time.perf_counter() - started
            if name == "forward":
                cost.calls += 1
                cost.forward += elapsed
                for value in getattr(ctx, "saved", ()):
                    if is_array(value) and id(value) not in seen and id(value) not in weights:
                        seen.add(id(value))
                        cost.kept += value.nbytes
            else:
                cost.backward += elapsed
                seen.clear()  # backward frees arrays, and new ones reuse their ids
            return result

        return call

    try:
        for cls, name, method in originals:
            setattr(cls, name, staticmethod(timed(cls, name, method.__func__)))
        yield costs
    finally:
        for cls, name, method in originals:
            setattr(cls, name, method)


def _operations(base: Any) -> Iterator[Any]:
    for cls in base.__subclasses__():
        yield cls
        yield from _operations(cls)

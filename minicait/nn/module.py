"""Module: a tree of layers whose parameters have names, and Parameter: a Tensor that is learned.

Attributes are the registry: a Parameter, a Module, or a list of Modules that is set on a Module belongs to it, in the
order in which it was set, its own parameters before those of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from autograd import Tensor, random
from autograd.backend import on_device_of, to_device


class Parameter(Tensor):
    """A Tensor that requires grad, found by the Module on which it is set."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)


class Module:
    """Subclasses set parameters and parts in `__init__` and write `forward`."""

    training: bool = True
    flat: Any = None  # its weights as one array, once `minicait.flat.flatten` made them so
    _calls: int = 0

    def forward(self, *args: Any) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method forward(self, ...)")

    def __call__(self, *args: Any) -> Tensor:
        if not self.training or random.current() is not None:
            return self.forward(*args)
        with random.using(self.next_stream()):
            return self.forward(*args)

    def next_stream(self) -> random.Stream:
        """Random numbers for a call in training where nobody said which: new ones for every call."""
        self._calls += 1
        return random.Stream(purpose="unnamed", step=self._calls)

    def __getstate__(self) -> dict[str, Any]:
        """For copies, whose weights are not parts of one array any more."""
        return {name: value for name, value in vars(self).items() if name != "flat"}

    # ---- the tree

    def children(self) -> Iterator[tuple[str, Module]]:
        """Its direct parts with their names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Itself, under the name `prefix`, and all modules below."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter):
                    yield f"{path}.{name}" if path else name, value

    def parameters(self) -> list[Parameter]:
        return [parameter for _, parameter in self.named_parameters()]

    def parameter_count(self) -> int:
        return sum(parameter.size for _, parameter in self.named_parameters())

    # ---- modes, devices

    def train(self, mode: bool = True) -> Self:
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        return self.train(False)

    def to(self, device: str) -> Self:
        """Move all parameters, in place."""
        for parameter in self.parameters():
            parameter.data = to_device(parameter.data, device)
        return self

    def astype(self, dtype: Any) -> Self:
        """Convert all parameters, in place: float64 for comparing, float32 for everything else."""
        for parameter in self.parameters():
            parameter.data = on_device_of(parameter.data).astype(dtype)
        return self

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    # ---- state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Every parameter by name, as a NumPy array. On the CPU these are the parameters themselves, not copies."""
        return {name: parameter.numpy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, mapping: Mapping[str, Any], strict: bool = True) -> None:
        """Copy arrays into the parameters. Nothing is changed unless all of it fits.

        strict=False allows names that are missing or too many; shapes must always fit.
        """
        own = dict(self.named_parameters())
        values = {name: np.asarray(mapping[name]) for name in own if name in mapping}
        problems = [
            f"{name} must have shape {own[name].shape}, got {value.shape}"
            for name, value in values.items()
            if value.shape != own[name].shape
        ]
        problems += [f"{name} is not numbers but {v.dtype}" for name, v in values.items() if v.dtype.kind not in "biuf"]
        if strict:
            problems += _listed("missing", [name for name in own if name not in mapping])
            problems += _listed("unexpected", [name for name in mapping if name not in own])
        if problems:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise ValueError(f"{type(self).__name__}: the weights do not fit: {'; '.join(problems[:5])}{more}")
        for name, value in values.items():
            parameter = own[name]
            parameter.data[...] = to_device(value.astype(parameter.dtype, copy=False), parameter.device)

    # ---- for people

    def describe(self) -> str:
        """What to print in brackets behind the name."""
        return ""

    def __repr__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, name: str, indent: int = 0) -> Iterator[str]:
        label = f"{name}: " if name else ""
        yield f"{'  ' * indent}{label}{type(self).__name__}({self.describe()})  {self.parameter_count():,}"
        if not any(True for _ in self.children()):
            return  # a plain layer: its name and numbers say it all
        for key, value in vars(self).items():
            if isinstance(value, Parameter):
                yield f"{'  ' * (indent + 1)}{key}: {value.shape}  {value.size:,}"
            elif isinstance(value, Module):
                yield from value._lines(key, indent + 1)
            elif isinstance(value, list | tuple) and value and isinstance(value[0], Module):
                last = f" to {key}.{len(value) - 1}, each" if len(value) > 1 else ""
                yield from value[0]._lines(f"{key}.0{last}", indent + 1)


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return [f"{what}: {shown}"]

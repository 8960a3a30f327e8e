"""Module: a tree of layers with named tensors. Parameters are learned; buffers are state that is only kept.

Attributes are the registry: a Parameter, a Buffer, a Module, or a list of Modules set on a Module belongs to it, in the
order in which it was set; its own tensors come before those of its children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from autograd import Tensor, random
from autograd.backend import FLOATS, on_device_of, to_device
from autograd.modes import replayed


class Parameter(Tensor):
    """A learned Tensor: it requires grad, and the Module it is set on finds it."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)


class Buffer(Tensor):
    """State that is saved, moved and averaged with the parameters but not learned, such as a running mean.

    A layer updates it in place: `self.running_mean.data[...] = …`.
    """

    __slots__ = ()


class Memory(Buffer):
    """A buffer that forward only reads: it is written between steps, and has no average."""

    __slots__ = ()


class Module:
    """Base class of layers and models. Subclasses set tensors and children in `__init__` and define `forward`.

    couples_samples  True if, in training, the output for one sample depends on the others, as with batch statistics.
                     Such a batch stays whole, in the stem of a Model that has one, else throughout.
    """

    training: bool = True
    couples_samples: bool = False
    _calls: int = 0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method forward(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if not self.training or random.current() is not None:
            return self.forward(*args, **kwargs)
        with random.using(self.next_stream()):
            return self.forward(*args, **kwargs)

    def next_stream(self) -> random.Stream:
        """Random stream for a training call outside of `random.using`: a new one for every call."""
        return replayed(self._new_stream)

    def _new_stream(self) -> random.Stream:
        self._calls += 1
        return random.Stream(purpose="unnamed", step=self._calls)

    # ---- the tree

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct children with their names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The module itself, under the name `prefix`, and all modules below it."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        return self._named(Parameter)

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        return self._named(Buffer)

    def _named(self, kind: Any) -> Iterator[tuple[str, Any]]:
        """Tensors of a kind, each once: one that is shared by several layers has the first of its names."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, kind) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers."""
        return self._named((Parameter, Buffer))

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

    @property
    def device(self) -> str:
        """Device of the parameters, "cpu" if there are none."""
        return next((tensor.device for _, tensor in self.named_tensors()), "cpu")

    def to(self, device: str) -> Self:
        """Move all parameters and buffers, in place."""
        for _, tensor in self.named_tensors():
            tensor.data = to_device(tensor.data, device)
        return self

    def astype(self, dtype: Any) -> Self:
        """Convert all floating-point tensors, in place: float64 to compare, float32 for everything else."""
        for _, tensor in self.named_tensors():
            if tensor.dtype in FLOATS:
                tensor.data = on_device_of(tensor.data).astype(dtype)
        return self

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    # ---- state

    def state_dict(self) -> dict[str, np.ndarray]:
        """All parameters and buffers by name, as NumPy arrays. On the CPU these share memory with the model."""
        return {name: tensor.numpy() for name, tensor in self.named_tensors()}

    def load_state_dict(self, mapping: Mapping[str, Any], strict: bool = True) -> None:
        """Copy arrays into the parameters and buffers. Nothing changes unless all of it fits.

        strict=False allows missing and unexpected names; shapes must always match.
        """
        own = dict(self.named_tensors())
        given = {name: mapping[name] for name in own if name in mapping}
        values = {name: x.numpy() if isinstance(x, Tensor) else np.asarray(x) for name, x in given.items()}
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
            tensor = own[name]
            tensor.data[...] = to_device(value.astype(tensor.dtype, copy=False), tensor.device)

    # ---- printing

    def describe(self) -> str:
        """Text in brackets behind the name."""
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


class Sequence(Module):
    """Layers one after the other, named by their position: `proj.0`, `proj.2`. Some may be plain functions."""

    def __init__(self, *layers: Callable[..., Tensor]) -> None:
        self._count = len(layers)
        for i, layer in enumerate(layers):
            setattr(self, str(i), layer)

    @property
    def layers(self) -> list[Any]:
        return [getattr(self, str(i)) for i in range(self._count)]

    def forward(self, x: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@contextmanager
def evaluation_mode(model: Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the block, and each of its modules back into its own mode after it."""
    modes = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return [f"{what}: {shown}"]

"""The configuration of a model: its sizes, which check themselves, as JSON and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from operator import index
from typing import Any, ClassVar, Self

from .cost import Cost

MOST = 10**9  # of any size in a configuration: far beyond any model, and small enough for exact costs
MAX_FORWARD = 1 << 29  # bytes of a forward pass of one image that a file may claim; the largest published takes 300 MB
MAX_SIDE = 4096  # pixels that a file may claim; the largest published models take 512


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _size(value: Any) -> tuple[int, int]:
    """Height and width, from one side or two."""
    height, width = value if isinstance(value, tuple | list) else (value, value)
    return _integer(height), _integer(width)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return check


@dataclass(frozen=True)
class Config:
    """Sizes of a model that cuts images into patches. It checks itself, and `to_json` and `from_json` are inverse.

    A subclass adds its own fields, their minima in `least`, and `cost`.
    """

    num_classes: int
    img_size: tuple[int, int]  # height, width
    patch_size: int
    dim: int
    depth: int
    drop_path_rate: float

    least: ClassVar[Mapping[str, int]] = {"num_classes": 1, "patch_size": 1, "dim": 1, "depth": 0}
    _kinds: ClassVar[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
        "int": (_integer, "an integer"), "float": (_number, "a number"), "bool": (_exactly(bool), "True or False"),
        "str": (_exactly(str), "a string"), "tuple[int, int]": (_size, "an integer or two"),
    }  # fmt: skip

    def __post_init__(self) -> None:
        """Turn NumPy numbers into Python's, so that JSON takes them, and refuse sizes that fit no model."""
        for field in fields(self):
            name = field.type.__name__ if isinstance(field.type, type) else str(field.type)
            (convert, kind), given = self._kinds[name], getattr(self, field.name)
            try:
                value = convert(given)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{field.name} must be {kind}, got {repr(given)[:80]}") from None
            if any(type(n) is int and abs(n) > MOST for n in (value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{field.name} is larger than {MOST:,}")
            object.__setattr__(self, field.name, value)
        for name, least in self.least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        height, width = self.img_size
        if min(height, width) < 1 or height % self.patch_size or width % self.patch_size:
            raise ValueError(f"an image of {height} x {width} does not divide into patches of {self.patch_size}")
        if not 0 <= self.drop_path_rate < 1:
            raise ValueError(f"drop_path_rate must be in [0, 1), got {self.drop_path_rate}")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.img_size[0] // self.patch_size, self.img_size[1] // self.patch_size

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def prefix(self) -> int:
        """Number of tokens in front of the patches, in the blocks."""
        return 0

    @property
    def crop_ratio(self) -> float:
        """Share of the shorter side that the published weights were evaluated on."""
        return 1.0

    @property
    def blocks(self) -> int:
        """Number of blocks in all stages, and of heads where every class has its own: each has tensors of its own."""
        return self.depth

    @property
    def layers(self) -> str:
        """Number of layers, for tables."""
        return str(self.depth)

    @property
    def kept(self) -> int:
        """Number of values in buffers whose size is not bounded by that of the parameters."""
        return 0

    def cost(self) -> Cost:
        raise TypeError(f"{type(self).__name__} needs a method cost(self)")

    def changed(self, **changes: Any) -> Self:
        """A copy with those changes that are not None."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != names:
            raise ValueError(f"expected a configuration with the entries {', '.join(sorted(names))}")
        return cls(**content)


def check_fits(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError if tensors of these shapes are too few or too small for a model of this configuration.

    To be called before a model is built from a file's claims: the model is then no larger than the file.
    """
    values, parameters = sum(map(math.prod, shapes.values())), config.cost().parameters
    if config.blocks > len(shapes) or parameters + config.kept > values:
        more = f" beside {config.kept:,} values in its memory" if config.kept else ""
        raise ValueError(
            f"the model of its configuration has {config.blocks:,} blocks and {parameters:,} parameters{more}, but "
            f"there are only {len(shapes):,} tensors with {values:,} values"
        )
    if config.cost().forward_bytes > MAX_FORWARD:
        raise ValueError(f"a forward pass of {config.patches:,} patches would take too much memory")
    if max(config.img_size) > MAX_SIDE:
        raise ValueError(f"images of {max(config.img_size):,} pixels are larger than {MAX_SIDE:,}")

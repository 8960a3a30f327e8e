"""The one source of randomness: streams keyed by (seed, purpose, step, sample).

A stream is a name, not a state. Opening it twice gives the same numbers, so recomputing a checkpoint, changing the
number of threads or the device, or resuming a run cannot change what is drawn, and there is no state to save.

The generator is Philox, which is counter-based: number n of a stream is computed directly, by scrambling a counter. The
128-bit key holds (seed, purpose), the upper half of the 256-bit counter holds (sample, step), and the lower half counts
the numbers drawn, so no two streams overlap.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral

import numpy as np


@dataclass(frozen=True)
class Stream:
    """A reproducible stream of random numbers.

    Row i of a batch belongs to sample `sample + i`, however the batch is split into micro-batches.

    >>> stream = Stream(seed=0, purpose="dropout", step=7)
    >>> whole, tail = stream.uniform((4, 3)), stream.at(sample=2).uniform((2, 3))
    >>> bool((whole[2:] == tail).all())
    True
    """

    seed: int = 0
    purpose: str = ""
    step: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        for name in ("seed", "step", "sample"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or not 0 <= int(value) < 2**64:
                raise ValueError(f"Stream: {name} must be an integer in [0, 2**64), got {value}")

    def named(self, purpose: str) -> Stream:
        """Derive a stream for one purpose: `stream.named("blocks.3.drop_path")`."""
        return replace(self, purpose=f"{self.purpose}/{purpose}")

    def at(self, *, step: int | None = None, sample: int | None = None) -> Stream:
        """The same stream at another training step, or starting at another sample."""
        return replace(self, step=self.step if step is None else step, sample=self.sample if sample is None else sample)

    def generator(self) -> np.random.Generator:
        """NumPy generator at the start of this stream, for numbers that are not drawn per sample."""
        key = np.array([self.seed, _hash(self.purpose)], np.uint64)
        counter = np.array([0, 0, self.sample, self.step], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform float32 values in [0, 1), on the host; each row along axis 0 comes from its own sample's stream."""
        rows = np.empty(shape, np.float32)
        for i in range(shape[0]):
            rows[i] = self.at(sample=self.sample + i).generator().random(shape[1:], dtype=np.float32)
        return rows


@lru_cache(1024)
def _hash(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


_current: ContextVar[Stream | None] = ContextVar("autograd_stream", default=None)


def current() -> Stream | None:
    """The stream that layers draw from, or None outside `using`."""
    return _current.get()


_unnamed = itertools.count()


def unnamed() -> Stream:
    """A new stream at every call, for callers without a stream or name. Results depend on the order of calls."""
    return Stream(purpose=f"unnamed/{next(_unnamed)}")


@contextmanager
def using(stream: Stream) -> Iterator[Stream]:
    """Make the layers inside the block draw from `stream`, each under its own name."""
    token = _current.set(stream)
    try:
        yield stream
    finally:
        _current.reset(token)

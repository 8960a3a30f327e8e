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
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral

import numpy as np

from . import modes

HALF, SHIFT = np.uint64(2**32 - 1), np.uint64(32)
MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)  # constants of Philox4x64
KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
MANY, SHORT = 128, 64  # for at least MANY rows of at most SHORT values, our Philox beats NumPy's row by row
BLOCKS = 8192  # counters to scramble at once: few enough to stay in the cache


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
        modes.refuse_in_graph("random numbers that the host draws")
        key = np.array([self.seed, _hash(self.purpose)], np.uint64)
        counter = np.array([0, 0, self.sample, self.step], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform float32 values in [0, 1), on the host; each row along axis 0 comes from its own sample's stream."""
        if not shape:
            raise ValueError("Stream: uniform needs a first axis of samples, got shape ()")
        modes.refuse_in_graph("random numbers that the host draws")
        rows = np.empty((shape[0], math.prod(shape[1:])), np.float32)
        if rows.size:
            self.at(sample=int(self.sample) + shape[0] - 1)  # the last sample must fit in 64 bits, too
            draw = self._draw_together if rows.shape[0] >= MANY and rows.shape[1] <= SHORT else self._draw_one_by_one
            draw(rows)
        return rows.reshape(shape)

    def _draw_one_by_one(self, rows: np.ndarray) -> None:
        """Move one generator from sample to sample: NumPy's own Philox is the fastest for long rows."""
        generator = self.generator()
        start = generator.bit_generator.state
        for i, row in enumerate(rows):
            start["state"]["counter"][2] = self.sample + i
            generator.bit_generator.state = start
            generator.random(dtype=np.float32, out=row)

    def _draw_together(self, rows: np.ndarray) -> None:
        """The same bits for many short rows at once."""
        at_once = BLOCKS // -(-rows.shape[1] // 8)
        for first in range(0, len(rows), at_once):
            part = rows[first : first + at_once]
            _draw([self.at(sample=self.sample + first)], part[None])


def uniform_each(streams: Sequence[Stream], samples: int) -> np.ndarray:
    """stream.uniform((samples,)) for each of the streams, (streams, samples), drawn at once.

    The streams have one seed, step and sample, and differ in their purpose.
    """
    modes.refuse_in_graph("random numbers that the host draws")
    values = np.empty((len(streams), samples, 1), np.float32)
    if values.size:
        _draw(streams, values)
    return values[..., 0]


def _draw(streams: Sequence[Stream], out: np.ndarray) -> None:
    """Fill out (streams, samples, values): numbers of each sample, of streams that differ in their purpose."""
    first, (_, samples, values) = streams[0], out.shape
    blocks = -(-values // 8)  # one counter gives four words of 64 bits: eight numbers of 32
    counter = np.zeros((4, 1, samples, blocks), np.uint64)
    counter[0] += np.arange(1, blocks + 1, dtype=np.uint64)  # NumPy increments the counter before it draws
    counter[2] += np.arange(samples, dtype=np.uint64)[:, None]
    counter[2:] += np.array([first.sample, first.step], np.uint64)[:, None, None, None]
    purposes = np.array([_hash(stream.purpose) for stream in streams], np.uint64).reshape(-1, 1, 1)
    words = _philox(counter, (np.full((1, 1, 1), first.seed, np.uint64), purposes))
    halves = words.astype("<u8", copy=False).view("<u4")  # NumPy draws the lower half of a word first
    bits = halves.reshape(*out.shape[:2], -1)[..., :values] >> 8
    np.multiply(bits, np.float32(2**-24), out=out, casting="unsafe")


def _philox(counter: np.ndarray, key: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Philox4x64-10: scramble counters of four words, (4, ...), into random words, (..., 4).

    Each of the ten rounds multiplies two words to 128 bits, shuffles the words and mixes in the key.
    """
    a, b, c, d = counter
    for i in range(10):
        key_0, key_1 = (k + np.uint64(i * step % 2**64) for k, step in zip(key, KEY_STEPS, strict=True))
        (high_a, low_a), (high_c, low_c) = _multiply(a, MULTIPLIERS[0]), _multiply(c, MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ key_0, low_c, high_a ^ d ^ key_1, low_a
    return np.stack(np.broadcast_arrays(a, b, c, d), axis=-1)


def _multiply(x: np.ndarray, factor: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """Upper and lower word of a 128-bit product, by long multiplication of 32-bit halves."""
    low, high = x & HALF, x >> SHIFT
    factor_low, factor_high = factor & HALF, factor >> SHIFT
    middle = high * factor_low + (low * factor_low >> SHIFT)
    carry = low * factor_high + (middle & HALF)
    return high * factor_high + (middle >> SHIFT) + (carry >> SHIFT), x * factor


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
    return modes.replayed(lambda: Stream(purpose=f"unnamed/{next(_unnamed)}"))


@contextmanager
def using(stream: Stream) -> Iterator[Stream]:
    """Make the layers inside the block draw from `stream`, each under its own name."""
    token = _current.set(stream)
    try:
        yield stream
    finally:
        _current.reset(token)

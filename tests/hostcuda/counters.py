"""Counts of what a piece of code asks of the GPU: its launches, copies, synchronisations and products.

Inside `with hostcuda.counting() as count:` everything is noted down; `assert count.copies_to_host == 1` afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple


class Gemm(NamedTuple):
    """One product of matrices, or a batch of them: (m, k) times (k, n), as cuBLAS counts in columns."""

    function: str  # of cuBLAS
    batch: int
    m: int
    n: int
    k: int
    inputs: str  # their dtype
    output: str
    compute: str  # the kind of arithmetic, "32F" and so on


@dataclass
class Count:
    """Copies to the host make the host wait for the GPU, as do synchronisations: those are to be few in a step."""

    kernels: list[str] = field(default_factory=list)  # names, in the order of their launches
    gemms: list[Gemm] = field(default_factory=list)
    bytes_to_host: list[int] = field(default_factory=list)
    bytes_to_device: list[int] = field(default_factory=list)
    bytes_on_device: list[int] = field(default_factory=list)  # copied from one place there to another
    allocations: list[int] = field(default_factory=list)
    synchronisations: int = 0
    graph_launches: int = 0  # whose kernels and products are not counted
    calls: list[tuple] = field(default_factory=list)  # of streams, events and copies: name and arguments, in order

    @property
    def launches(self) -> int:
        return len(self.kernels)

    @property
    def copies_to_host(self) -> int:
        return len(self.bytes_to_host)

    @property
    def copies_to_device(self) -> int:
        return len(self.bytes_to_device)

    def by_kernel(self) -> Counter[str]:
        return Counter(self.kernels)


active: list[Count] = []  # one for every `with` that is open


@contextmanager
def counting() -> Iterator[Count]:
    count = Count()
    active.append(count)
    try:
        yield count
    finally:
        active[:] = [other for other in active if other is not count]

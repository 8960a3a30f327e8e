"""Ranks: processes on one machine or several that train one model together. Here there is one; `mpi` has the others.

All ranks hold the whole model. Each computes the gradients of its share of every batch, all add them up along the same
tree (`tree`), and all make the same update. So the weights have the same bits on any number of ranks, and need not be
sent. Rank 0 alone prints and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from autograd.backend import Array

from .tree import Node

T = TypeVar("T")


class RanksError(RuntimeError):
    """The ranks cannot go on together; the message names the rank, its host, and what to do."""


class Ranks:
    """A single rank: nobody to talk to. What `MPIRanks` does for several is trivial here."""

    rank, size = 0, 1
    seconds = waited = 0.0  # spent on the network, and in waiting for the slowest rank before that

    @property
    def leads(self) -> bool:
        """True for the rank that prints and writes."""
        return self.rank == 0

    def gather(self, value: T, patient: bool = False) -> list[T]:
        """The values of all ranks, by rank, on every rank.

        patient  give the others an hour to arrive
        """
        return [value]

    def broadcast(self, work: Callable[[], T]) -> T:
        """The result of work() on rank 0, for every rank; or its error, raised on every rank."""
        return work()

    def lead(self, work: Callable[[], object]) -> None:
        """Run work() on rank 0, while the others wait."""
        work()

    def staggered(self, work: Callable[[], T]) -> T:
        """work() on the first rank of every host, then on the others, which find what it has downloaded."""
        return work()

    def sum(self, arrays: Sequence[Array], covers: Sequence[Sequence[Node]], out: Array) -> None:
        """Add up the nodes of all ranks along the tree: `out` gets the sum on every rank.

        arrays  this rank's nodes, which may be overwritten
        covers  the nodes of every rank
        """

    def mirrored(self, shares: Sequence[range], rows: np.ndarray) -> np.ndarray:
        """This rank's rows of the whole batch in reverse order. Rank r has the rows in shares[r]."""
        return rows[::-1]

    def joined(self, values: Sequence[T]) -> list[T]:
        """The values of all ranks in one list, those of rank 0 first."""
        return [value for own in self.gather(list(values), patient=True) for value in own]

    def require_equal(self, what: str, value: Any, advice: str) -> None:
        """Raise RanksError, with the advice, if a rank has another value than rank 0."""
        every = self.gather(value)
        if others := [rank for rank, own in enumerate(every) if own != every[0]]:
            raise RanksError(f"{self.name(others[0])} has other {what} than {self.name(0)}; {advice}")

    def name(self, rank: int) -> str:
        """The rank and its host."""
        return f"rank {rank}"

    def describe(self) -> str | None:
        """For the first lines of a run: how many ranks, where. None if there is just this process."""
        return None


ALONE = Ranks()

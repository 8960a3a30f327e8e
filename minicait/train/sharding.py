"""Sharding: each rank loads its rows of every training batch, and some of the validation batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..data.device_loader import AnyLoader, on_device
from ..data.loader import Edge, Loader
from .ranks import ALONE, Ranks
from .tree import even_ranges


@contextmanager
def sharded(
    ranks: Ranks, shares: Sequence[range], train_loader: Loader, val_loader: Loader, device: str
) -> Iterator[tuple[AnyLoader, AnyLoader]]:
    """The loaders as this rank needs them. Rank r computes the rows shares[r] of a batch.

    Under MPI, threads prepare images for a GPU, too: it may not survive a fork.
    """
    if ranks is ALONE:
        with on_device(train_loader, device) as train, on_device(val_loader, device) as val:
            yield train, val
        return
    if not (isinstance(train_loader, Loader) and isinstance(val_loader, Loader)):
        raise TypeError("fit: several ranks need loaders of the type minicait.data.Loader, which they can share out")
    train_loader.part = partial(_rows, shares[ranks.rank])
    val_loader.part = partial(_contiguous, ranks.rank, ranks.size)
    try:
        yield train_loader, val_loader
    finally:
        train_loader.part = val_loader.part = None


def _rows(own: range, edges: list[Edge]) -> list[Edge]:
    return [(begin + own.start, begin + own.stop) for begin, _ in edges]


def _contiguous(rank: int, size: int, edges: list[Edge]) -> list[Edge]:
    own = even_ranges(len(edges), size)[rank]
    return edges[own.start : own.stop]

"""Batches on a GPU: worker processes prepare images as bytes, a stream of its own copies them, a kernel does the rest.

Threads would share Python's lock with the thread that launches kernels, so that neither runs at full speed. Processes
do not. They are forked, as PyTorch's are: they have the dataset without a copy, whatever it is. CUDA may be in use by
then. It does not work in a forked process, and nothing here needs it to: a worker reads, crops and augments, and writes
uint8 pixels into a slot.

There are three slots: one is on the GPU, one is copied there, one is written by the workers.
"""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from autograd import cuda

from ..machine import blas_threads
from ..processes import Forked, answer_messages, can_fork, shared
from .loader import AHEAD, Batch, InMemory, Loader, Sample
from .picture import MEAN, STD
from .pixels import Pixels, Transfer
from .slots import Slot
from .transforms import Viewing

SLOTS = AHEAD + 1


class Job(NamedTuple):
    """A batch to prepare: each worker does its share of the positions."""

    turn: int  # of this pass over the loader; if another has begun, nobody waits for the batch
    slot: int
    epoch: int
    begin: int
    end: int


class Share(NamedTuple):
    """A worker's report on its share of a batch, besides what it wrote into the slot."""

    skipped: list[int]  # rows
    bad: list[tuple[int, str]]  # images that could not be read: index and reason


class DeviceLoader:
    """The batches of a Loader, on a GPU. Iteration yields normalised images; `epoch` yields Pixels, still to be mixed.

    The Loader's `bad` and `waited` are kept up to date.

    sample  one of the Loader's, as `Loader.look` sees it: all others have its shape
    """

    def __init__(self, loader: Loader, device: str, sample: Sample) -> None:
        self.loader = loader
        how = loader.transform
        self.mean, self.std = (how.mean, how.std) if isinstance(how, Viewing) else (MEAN, STD)
        self.slots = [Slot(loader.batch_size, sample) for _ in range(SLOTS)]
        self.turn = shared((1,), np.int64)
        self.count = loader.threads  # of workers
        self.workers = Forked(self.count, self._serve)
        self.transfers: list[Transfer] = []
        try:
            with cuda.module().cuda.Device(cuda.device_id(device)):
                self.stream = cuda.module().cuda.Stream(non_blocking=True)
                for slot in self.slots:
                    self.transfers.append(Transfer(slot, self.stream))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    def __iter__(self) -> Iterator[Batch]:
        with closing(self.epoch(self.loader.next_epoch())) as batches:
            for batch in batches:
                yield batch._replace(images=batch.images.normalised())

    def epoch(self, number: int, start: int = 0) -> Generator[Batch]:
        """Yield the batches of an epoch, from batch `start` on, with Pixels as images."""
        self.turn += 1
        jobs = [Job(int(self.turn[0]), i % SLOTS, number, *edge) for i, edge in enumerate(self.loader.edges(start))]
        given: list[Job] = []
        taken: list[Batch | None] = []
        try:
            for i in range(len(jobs)):
                before = time.perf_counter()
                for job in jobs[len(given) : i + SLOTS]:
                    self._give(job)
                    given.append(job)
                if len(taken) == i:
                    taken.append(self._take(given[i]))
                if i + 1 < len(given) and all(pipe.poll() for pipe in self.workers.pipes):
                    taken.append(self._take(given[i + 1]))  # so that it is copied while this one is computed
                self.loader.waited += time.perf_counter() - before
                batch, taken[i] = taken[i], None
                if batch is not None:  # all may have been skipped
                    yield batch
        except GeneratorExit:
            self._cancel(len(given) - len(taken))
            raise
        except BaseException:  # the workers are in the middle of work that nobody waits for any more
            self.close()
            raise

    def close(self) -> None:
        """End the workers, and copies to the GPU."""
        self.turn += 1
        self.workers.close()
        if self.transfers:
            self.stream.synchronize()
        for transfer in self.transfers:
            transfer.close()
        self.transfers = []

    def _give(self, job: Job) -> None:
        self.transfers[job.slot].copied.synchronize()  # the batch that was there has left
        message = pickle.dumps(job)
        for worker in range(self.count):
            self.workers.send(worker, message)

    def _take(self, job: Job) -> Batch | None:
        """Wait for the workers, and start to copy their batch; None if all of it was skipped."""
        shares: list[Share] = [self.workers.receive(worker) for worker in range(self.count)]
        for share in shares:
            for index, reason in share.bad:
                self.loader.skip(index, reason)
        skipped = {row for share in shares for row in share.skipped}
        slot, rows = self.slots[job.slot], [row for row in range(job.end - job.begin) if row not in skipped]
        if not rows:
            return None
        if skipped:
            slot.keep(rows)
        transfer = self.transfers[job.slot]
        transfer.send(len(rows))
        return Batch(Pixels(transfer, len(rows), self.mean, self.std), slot.copied_targets(len(rows)))

    def _cancel(self, count: int) -> None:
        """Have the workers drop the batches they are at, and wait until they have."""
        self.turn += 1
        try:
            for _ in range(count):
                for worker in range(self.count):
                    with suppress(Exception):  # of a batch that nobody wants
                        self.workers.receive(worker)
        except BaseException:
            self.close()
            raise

    # ---- in a worker

    def _serve(self, worker: int, pipe: Connection) -> None:
        gc.freeze()  # the parent's arrays on the GPU are not ours to free
        sys.modules["cupy"] = None  # type: ignore[assignment]  # CUDA does not survive a fork: raise instead of hanging
        with blas_threads(1):
            answer_messages(pipe, partial(self._prepare, worker, {}))

    def _prepare(self, worker: int, orders: dict[int, np.ndarray], message: bytes) -> Share:
        loader, job = self.loader, Job(*pickle.loads(message))
        if job.epoch not in orders:
            orders.clear()
            orders[job.epoch] = loader.order(job.epoch)
        order, stream, known = orders[job.epoch], loader.stream(job.epoch), len(loader.bad)
        # what is kept in memory is kept by one worker each
        owners = order[job.begin : job.end] if isinstance(loader.dataset, InMemory) else range(job.end - job.begin)
        skipped = []
        for row, owner in enumerate(owners):
            if owner % self.count != worker:
                continue
            if self.turn[0] != job.turn:
                break
            sample = loader.sample(order, job.begin + row, stream, loader.look)
            if sample is None:
                skipped.append(row)
            else:
                self.slots[job.slot].put(row, sample)
        return Share(skipped, list(loader.bad.items())[known:])


AnyLoader = Loader | DeviceLoader


@contextmanager
def on_device(loader: Any, device: str) -> Iterator[AnyLoader]:
    """The loader for a model on this device: for a GPU a DeviceLoader if possible, whose workers end with the block.

    It is not possible where processes cannot be forked, with a single thread, and with a loader or a transform of
    another kind, which has no uint8 pixels to offer. Then, as on a CPU, the loader stays as it is.
    """
    sample = None
    if device != "cpu" and cuda.compiles() and can_fork() and _offers_pixels(loader):
        sample = _first_sample(loader)
    if sample is None:
        yield loader
        return
    with closing(DeviceLoader(loader, device, sample)) as there:
        yield there


def _offers_pixels(loader: Any) -> bool:
    own = isinstance(loader, Loader) and type(loader).epoch is Loader.epoch and loader.threads > 1
    return own and (loader.transform is None or isinstance(loader.transform, Viewing))


def _first_sample(loader: Loader) -> Sample | None:
    """A sample, to know its shapes; None if no image can be read, or it is not of bytes."""
    order, stream = loader.order(0), loader.stream(0)
    samples = (loader.sample(order, position, stream, loader.look) for position in range(len(order)))
    sample = next((sample for sample in samples if sample is not None), None)
    return None if sample is None or sample.view.pixels.dtype != np.uint8 else sample

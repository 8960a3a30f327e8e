"""Processes that compute the gradients of pieces, on weights that they share with this one.

Threads of one process take turns at Python's lock, and those of a small model, with its short calls into NumPy, often
wait for it. Processes do not. They are forked from this one, so they have the model without a copy. Before that, its
weights move to memory that all of them see, so that what the optimiser writes is there at once. Each worker leaves the
gradients of a piece in such memory too, and goes on with the next piece while they are added up; only when its forward
pass is done must they be gone. Images and losses go through a pipe.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from autograd import Tensor

from ..flat import Flat
from ..threads import blas_threads, keep_freed_memory

Piece = tuple[Any, list[Any], Any]  # a loss, gradients (or None), logits
Place = Callable[[], list[Any]]  # arrays for the gradients, once they are free


def processes_work() -> bool:
    """On Linux. Elsewhere processes cannot be forked, or the system's libraries do not survive it."""
    return sys.platform == "linux"


class Workers:
    """`count` processes that compute `piece(task, start, place)` for the pieces of a batch.

    parameters  of the model, in shared memory, and in the order of the gradients that `piece` returns
    """

    def __init__(
        self, count: int, parameters: list[Tensor], names: list[str], piece: Callable[[Any, int, Place], Piece]
    ) -> None:
        keep_freed_memory()
        self.count, self.weights = count, [p.data for p in parameters]
        shapes = {name: p.shape for name, p in zip(names, parameters, strict=True)}
        dtype = parameters[0].dtype
        places = [Flat(shapes, lambda size: shared_memory(size, dtype)) for _ in range(count)]
        self.gradients = [list(place.values()) for place in places]
        self.pipes: list[Connection] = []
        context = multiprocessing.get_context("fork")
        processes = []
        for gradients in self.gradients:
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            arguments = (theirs, list(self.pipes), piece, gradients)
            process = context.Process(target=_work, args=arguments, daemon=True, name="minicait")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads: those of BLAS know about forks
                process.start()
            theirs.close()
            processes.append(process)
        self.close = weakref.finalize(self, _end, self.pipes, processes)

    def know(self, parameters: list[Tensor]) -> bool:
        """Whether these are the weights that the workers see. They are not where one was frozen or replaced."""
        same = (p.data is shared for p, shared in zip(parameters, self.weights, strict=False))
        return self.close.alive and len(parameters) == len(self.weights) and all(same)

    def run(self, task: Any, starts: range) -> Generator[Piece]:
        """The results of all pieces, in order. The gradients of one are gone when the next is asked for."""
        try:
            for i, pipe in enumerate(self.pipes):
                pipe.send((task, starts[i :: self.count]))
            for i in range(len(starts)):
                pipe, gradients = self.pipes[i % self.count], self.gradients[i % self.count]
                answer = pipe.recv()
                if isinstance(answer, BaseException):
                    raise answer
                loss, known, logits = answer
                yield loss, [g if k else None for g, k in zip(gradients, known, strict=True)], logits
                pipe.send(True)  # they are added up
        except (EOFError, ConnectionError) as error:
            self.close()
            raise MemoryError("a worker process was killed") from error  # which the system does when memory runs out
        except BaseException:  # they are in the middle of something that nobody waits for any more
            self.close()
            raise


def shared_memory(size: int, dtype: np.dtype) -> np.ndarray:
    """An array of so many values that processes share if they are forked later."""
    return np.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype)


def _end(pipes: list[Connection], processes: list[Any]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():  # in the middle of a piece that nobody waits for
            process.kill()
            process.join()


def _work(
    pipe: Connection, others: list[Connection], piece: Callable[[Any, int, Place], Piece], gradients: list[Any]
) -> None:
    """What a worker does until the pipe is closed, also by the end of the process at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()  # this process has copies of their ends
    unread = 0  # pieces whose gradients may still be needed

    def place() -> list[Any]:
        nonlocal unread
        for _ in range(unread):
            pipe.recv()
        unread = 0
        return gradients

    try:
        with blas_threads(1):
            while True:
                task, starts = pipe.recv()
                for start in starts:
                    loss, found, logits = piece(task, start, place)
                    pipe.send((loss, [g is not None for g in found], logits))
                    unread += 1
                place()
    except (EOFError, OSError):
        pass
    except BaseException as error:
        pipe.send(_told(error))
    os._exit(0)  # without what the first process has to do at its end


def _told(error: BaseException) -> BaseException:
    """With where it happened, for the traceback does not go through a pipe."""
    import traceback

    error.add_note("in a worker process:\n" + "".join(traceback.format_tb(error.__traceback__)))
    return error

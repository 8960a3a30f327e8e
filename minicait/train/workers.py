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
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from autograd import Tensor, modes

from ..machine import blas_threads, keep_freed_memory
from ..nn import Module
from ..nn.record import stop_listening
from ..optim.parameters import Flat

Piece = tuple[Any, list[Any], Any]  # a loss, gradients (or None), logits
Place = Callable[[], list[Any]]  # arrays for the gradients, once they are free
Work = Callable[[Any, int, Place], Piece]  # from a task, and where the piece starts


def processes_work() -> bool:
    """On Linux. Elsewhere processes cannot be forked, or the system's libraries do not survive it.

    A process that must not have children, such as one of a `multiprocessing.Pool`, does without.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class Workers:
    """`count` processes that do `work(task, start, place)` for the pieces of a batch.

    They see what is written into the model's weights, which must be in shared memory, and nothing else that changes in
    it after they were forked: neither arrays that take a weight's place, nor plain values such as a drop rate.
    """

    def __init__(self, count: int, model: Module, work: Work) -> None:
        keep_freed_memory()
        self.count = count
        self.weights = {name: (p.data, p.requires_grad) for name, p in model.named_parameters()}
        learned = {name: data.shape for name, (data, needed) in self.weights.items() if needed}
        dtype = next(data.dtype for data, needed in self.weights.values() if needed)
        places = [Flat(learned, lambda size: shared_memory(size, dtype)) for _ in range(count)]
        self.gradients = [list(place.values()) for place in places]
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        context = multiprocessing.get_context("fork")
        for gradients in self.gradients:
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            arguments = (theirs, list(self.pipes), work, gradients)
            process = context.Process(target=_in_worker, args=arguments, daemon=True, name="minicait")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads: those of BLAS know about forks
                process.start()
            theirs.close()
            self.processes.append(process)
        # also when this object is no longer used, and at the end of the program, before multiprocessing waits for them
        self.close = Finalize(self, _end, (self.pipes, self.processes), exitpriority=10)

    @property
    def alive(self) -> bool:
        return self.close.still_active()

    def know(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether they see these weights of the model, and which of them are learned."""
        if not self.alive or parameters.keys() != self.weights.keys():
            return False
        pairs = ((parameters[name], *known) for name, known in self.weights.items())
        return all(p.data is data and p.requires_grad == learned for p, data, learned in pairs)

    def run(self, tasks: Callable[[range], Any], starts: range) -> Generator[Piece]:
        """The results of all pieces, in order. The gradients of one are gone when the next is asked for.

        tasks  from the starts of some pieces, what a worker must know to do them
        """
        try:
            for i in range(min(self.count, len(starts))):
                own = starts[i :: self.count]
                self._pipe(i, Connection.send, (tasks(own), own))
            for i in range(len(starts)):
                worker = i % self.count
                answer = self._pipe(worker, Connection.recv)
                if isinstance(answer, BaseException):
                    raise answer
                loss, known, logits = answer
                yield loss, [g if k else None for g, k in zip(self.gradients[worker], known, strict=True)], logits
                self._pipe(worker, Connection.send, True)  # they are added up
        except BaseException:  # they are in the middle of something that nobody waits for any more
            self.close()
            raise

    def _pipe(self, worker: int, use: Callable[..., Any], *message: Any) -> Any:
        try:
            return use(self.pipes[worker], *message)
        except (EOFError, ConnectionError) as error:
            self.processes[worker].join(timeout=1)
            code = self.processes[worker].exitcode
            if code == -signal.SIGKILL:  # which the system does when memory runs out
                raise MemoryError("a worker process was killed") from error
            raise RuntimeError(f"a worker process ended by itself, with exit code {code}") from error


def shared_memory(size: int, dtype: np.dtype) -> np.ndarray:
    """An array of so many values that processes share if they are forked later."""
    return np.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype)


def _end(pipes: list[Connection], processes: list[Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(None)
        pipe.close()
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():  # in the middle of a piece that nobody waits for
            process.kill()
            process.join()


def _in_worker(pipe: Connection, others: list[Connection], work: Work, gradients: list[Any]) -> None:
    """What a worker does until it is told to end, or the process at the other end is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes; the first one decides
        signal.signal(number, signal.SIG_IGN)
    for other in others:
        other.close()  # this process has copies of their ends
    stop_listening()  # nor is it in any mode of the process that it was forked from
    with blas_threads(1), modes.changed(**modes.Modes()._asdict()), suppress(EOFError, OSError):
        _serve(pipe, work, gradients)
    os._exit(0)  # without what the first process has to do at its end


def _serve(pipe: Connection, work: Work, gradients: list[Any]) -> None:
    unread = 0  # pieces whose gradients may still be needed

    def place() -> list[Any]:
        nonlocal unread
        for _ in range(unread):
            if pipe.recv() is None:
                os._exit(0)
        unread = 0
        return gradients

    while (message := pipe.recv()) is not None:
        task, starts = message
        for start in starts:
            try:
                loss, found, logits = work(task, start, place)
            except BaseException as error:
                pipe.send(_told(error))
                return
            pipe.send((loss, [g is not None for g in found], logits))
            unread += 1
        place()


def _told(error: BaseException) -> BaseException:
    """With where it happened, for the traceback does not go through a pipe; nor do some kinds of errors."""
    where = "in a worker process:\n" + "".join(traceback.format_tb(error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
    error.add_note(where)
    return error

"""Forked worker processes, which answer messages through a pipe each, and the memory that they share."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

END = b""  # message to a worker


class WorkerError(RuntimeError):
    """A worker process could not be started, or ended in the middle of its work."""


def can_fork() -> bool:
    """Return whether worker processes can be forked: on Linux only, where the system's libraries survive it.

    A daemonic process, such as one of a `multiprocessing.Pool`, must not have children.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def shared(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that processes share if they are forked later.

    The memory has no name that could be left behind, and is not in /dev/shm, which containers limit to 64 MB.
    """
    count = math.prod(shape)
    block = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(block, dtype, count).reshape(shape)


class Forked:
    """Processes that have this one's objects without a copy. Each runs serve(number, pipe), which ends with it.

    `close` ends them; so does dropping this object, and the end of the program.
    """

    def __init__(self, count: int, serve: Callable[[int, Connection], None]) -> None:
        self.count = count
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        context = multiprocessing.get_context("fork")
        for worker in range(count):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            arguments = (serve, worker, theirs, list(self.pipes))
            process = context.Process(target=_in_worker, args=arguments, daemon=True, name="minicait")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # about threads: those of BLAS know about forks
                    process.start()
            except OSError as error:  # the system's limit on processes or memory
                _end(self.pipes, self.processes)
                raise WorkerError(f"a worker process could not be started: {error.strerror}") from error
            theirs.close()
            self.processes.append(process)
        # also when this object is dropped, and at exit, before multiprocessing joins its children
        self.close = Finalize(self, _end, (self.pipes, self.processes), exitpriority=10)

    @property
    def alive(self) -> bool:
        return self.close.still_active()

    def send(self, worker: int, message: bytes) -> None:
        self._pipe(worker, Connection.send_bytes, message)

    def receive(self, worker: int) -> Any:
        """The worker's next answer; an exception that it raised is raised here."""
        answer = self._pipe(worker, Connection.recv)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _pipe(self, worker: int, use: Callable[..., Any], *message: Any) -> Any:
        try:
            return use(self.pipes[worker], *message)
        except (EOFError, ConnectionError) as error:
            self.processes[worker].join(timeout=1)
            code = self.processes[worker].exitcode or 0
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            maybe = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
            raise WorkerError(f"a worker process {how}{maybe}") from error


def answer_messages(pipe: Connection, answer: Callable[[bytes], Any]) -> None:
    """Send back answer(message), or what it raised, until told to end, or until the parent is gone."""
    while (message := pipe.recv_bytes()) != END:
        try:
            result = answer(message)
        except BaseException as error:
            result = _with_traceback(error)
        pipe.send(result)


def _in_worker(
    serve: Callable[[int, Connection], None], worker: int, pipe: Connection, others: list[Connection]
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they may reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    for other in others:
        other.close()  # copies of the parent's ends
    with suppress(EOFError, OSError):
        serve(worker, pipe)
    os._exit(0)  # without the parent's exit handlers


def _end(pipes: list[Connection], processes: list[Any]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send_bytes(END)
        pipe.close()
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():
            process.kill()
            process.join()


def _with_traceback(error: BaseException) -> BaseException:
    """The error with a note on where it happened, since tracebacks do not pickle; nor do some kinds of errors."""
    where = "in a worker process:\n" + "".join(traceback.format_tb(error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
    error.add_note(where)
    return error


LAUNCHERS = ("mpiexec", "mpiexec.hydra", "mpirun", "orterun", "prterun", "prte")  # of MPI


def launcher() -> int | None:
    """Process number of the mpiexec above this process, if it is on this host."""
    number = os.getpid()
    while number > 1:
        try:
            name, _, rest = Path(f"/proc/{number}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # not Linux
            return None
        if name in LAUNCHERS:
            return number
        number = int(rest.split()[1])
    return None

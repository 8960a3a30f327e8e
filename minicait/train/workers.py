"""Workers: threads or processes that each compute a share of a batch on the same weights.

Threads of one process take turns at Python's lock, and with a small model, whose calls into NumPy are short, they often
wait for it. Processes do not. They are forked from this one, so they have the model without a copy; before that, its
weights move to shared memory, so that workers see each other's updates. Batches, gradients, and what the optimiser
keeps are in shared memory, too. Through a pipe go references to them, the settings of the modules, losses, and features
that an objective keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import autograd as ag
from autograd import Tensor, modes
from autograd.backend import Array

from ..machine import blas_threads, keep_freed_memory, use_huge_pages
from ..nn.record import stop_listening
from ..optim import sweep
from ..processes import Forked, WorkerError, answer_messages, can_fork
from .memory import SharedMemory, inbox_size

__all__ = ["Processes", "Threads", "WorkerError", "can_fork"]

Work = Callable[[Any, int, Any], Any]  # work(state, worker, argument)


class Threads:
    """Threads that work on a common state; a single worker is this thread itself.

    When one of them fails, `state.cancelled` tells the others, and they may return early.

    blas  threads of a matrix product in each of them
    """

    def __init__(self, state: Any, blas: int = 1) -> None:
        self.state, self.blas = state, blas

    def put(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays where workers see them: as they are."""
        return arrays

    def run(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """work(state, worker, argument) for worker 0, 1, … with one argument each; results in that order."""
        keep_freed_memory()
        with blas_threads(self.blas):
            self.state.cancelled = False
            if len(arguments) == 1:
                return [work(self.state, 0, arguments[0])]
            pool = ThreadPoolExecutor(len(arguments), thread_name_prefix="minicait")
            run = ag.inherit_modes(self._attempt)
            try:
                return [f.result() for f in [pool.submit(run, work, i, own) for i, own in enumerate(arguments)]]
            except BaseException:  # or Ctrl-C
                self.state.cancelled = True
                raise
            finally:  # nothing runs on behind it
                pool.shutdown()

    def _attempt(self, work: Work, worker: int, argument: Any) -> Any:
        try:
            return work(self.state, worker, argument)
        except BaseException:
            self.state.cancelled = True
            raise


class Processes(Forked):
    """Forked processes, each with its copy of `state`. Sweeps over arrays in the memory they share are their work, too.

    They see what is written into the tensors they were forked with, which must be in that memory. They must be told
    about other changes to the model.
    """

    def __init__(self, count: int, state: Any, tensors: Mapping[str, Tensor], memory: SharedMemory) -> None:
        keep_freed_memory()
        self.memory = memory
        self.tensors = {name: (t, t.data, t.requires_grad) for name, t in tensors.items()}
        super().__init__(count, partial(_serve, state, memory))
        sweep.processes.add(self)

    def see(self, tensors: Mapping[str, Tensor]) -> bool:
        """True if the workers see these tensors, and know which of them require grad."""
        if not self.alive or tensors.keys() != self.tensors.keys():
            return False
        pairs = ((tensors[name], *known) for name, known in self.tensors.items())
        return all(t is own and t.data is data and t.requires_grad == learned for t, own, data, learned in pairs)

    def has_room(self, batch: Sequence[Array]) -> bool:
        return inbox_size(batch) <= self.memory.inbox.size

    def put(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays where workers see them: copies, which the next call overwrites."""
        return self.memory.put(arrays)

    def run(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """work(state, worker, argument) in every worker, as in `Threads`; `work` and the arguments must pickle."""
        try:
            for worker, own in enumerate(arguments):
                if worker == 0 or own is not arguments[worker - 1]:
                    message = self.memory.dumps((work, own))
                self.send(worker, message)
            return [self.receive(worker) for worker in range(len(arguments))]
        except BaseException:  # the others are in the middle of work that nobody waits for any more
            self.close()
            raise

    def share(self, arrays: Sequence[Array]) -> bool:
        """True if the workers see all of these arrays."""
        return self.alive and all(self.memory.find(array) is not None for array in arrays)

    def each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """[work(item) for item in items], each worker on a fixed share of them; `work` must pickle."""
        count = min(self.count, len(items))
        results: list[Any] = [None] * len(items)
        try:
            for i, part in enumerate(self.run(_every, [(work, items, count)] * count)):
                results[i::count] = part
        except WorkerError as error:
            raise WorkerError(f"{error}; the weights may be half updated: go back to a checkpoint") from error
        return results


def _every(state: Any, worker: int, job: tuple[Callable[[Any], Any], Sequence[Any], int]) -> list[Any]:
    work, items, count = job
    return [work(item) for item in items[worker::count]]


def _serve(state: Any, memory: SharedMemory, worker: int, pipe: Connection) -> None:
    def answer(message: bytes) -> Any:
        work, argument = memory.loads(message)
        return work(state, worker, argument)

    use_huge_pages()  # for this process's own heap
    sweep.processes.clear()  # the parent's
    stop_listening()  # and no mode of the parent
    with blas_threads(1), modes.changed(**modes.Modes()._asdict()):
        answer_messages(pipe, answer)

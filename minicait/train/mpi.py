"""Several ranks through MPI: `mpiexec -n 4 python -m mpi4py -m minicait train ...`

Everything is non-blocking and polled, with a deadline: where MPI would wait forever for a rank that is frozen, or cut
off by the network, the job ends with a sentence that names it. A rank sends nothing before all have met; so the time of
a sum is that of the network, and the time before it that of the slowest rank.

A sum of gradients has each rank add up one slice of the flat array: it receives that slice of every node from the
others, adds in the order of the tree, and sends its slice of the result to all. That is as many bytes as the fastest
all-reduce, and each addition has its place whoever makes it.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from subprocess import DEVNULL
from typing import Any, TypeVar

import numpy as np

from autograd import cuda
from autograd.backend import Array, array_module, to_device

from ..machine import cpu_count
from ..processes import launcher
from .ranks import Ranks
from .tree import Node, additions

T = TypeVar("T")

DEADLINE = 120.0  # seconds for the others to arrive, and for what they send
LEADING = 3600.0  # seconds for what rank 0 does alone: checkpoints, pictures, a download
FROZEN = 75  # exit code: temporary failure, resume
TOGETHER = 2.0  # seconds in which ranks fail that fail alike
GRACE = 3.0  # seconds for MPI to end the job
NAP, LONGEST_NAP = 2e-5, 5e-4  # seconds between polls while waiting for others; transfers are polled without a break
GPU_AWARE = "MINICAIT_GPU_AWARE_MPI"
DEADLINE_SETTING = "MINICAIT_MPI_DEADLINE"


class MPIRanks(Ranks):
    """The ranks of an MPI communicator.

    deadline  seconds without an answer after which a rank is taken for dead
    """

    def __init__(self, comm: Any, deadline: float | None = None) -> None:
        self.mpi = import_module("mpi4py.MPI")
        self.rank, self.size = comm.rank, comm.size
        self.others = [r for r in range(self.size) if r != self.rank]
        self.deadline = deadline or _deadline_setting()
        self.gpu_aware = os.environ.get(GPU_AWARE, "0") not in ("", "0")
        self.seconds = self.waited = 0.0
        self.bytes_sent = self.sums = 0  # on the network by this rank, and sums of gradients
        self._pinned: dict[Any, np.ndarray] = {}
        self._hosts = ["a host not known yet"] * self.size
        (self.comm, first), (self.failing, second) = comm.Idup(), comm.Idup()
        self._wait([first, second], [self.others] * 2, self.deadline, nap=LONGEST_NAP)
        cpus = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
        facts = self.gather((gethostname(), cpus))
        self._hosts = [host for host, _ in facts]
        here = [r for r, host in enumerate(self._hosts) if host == self._hosts[self.rank]]
        self.local, self._here = here.index(self.rank), len(here)  # among the ranks of this host, and how many
        apart = sum(len(facts[r][1]) for r in here) == len(frozenset().union(*(facts[r][1] for r in here)))
        self.threads = cpu_count() if apart and cpus else max(1, cpu_count() // len(here))  # bound to CPUs, or not

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"

    def describe(self) -> str:
        hosts = ", ".join(f"{host} {count}" for host, count in Counter(self._hosts).items())
        several = f"{len(set(self._hosts))} hosts ({hosts})" if len(set(self._hosts)) > 1 else self._hosts[0]
        return f"{self.size} on {several}; {self.mpi.Get_library_version().splitlines()[0].partition(',')[0]}"

    def device(self) -> str:
        """The GPU of this rank: each of a host has its own."""
        count = cuda.module().cuda.runtime.getDeviceCount()
        if self._here > count:
            there = f"{self._hosts[self.rank]} shows {count} for {self._here} ranks"
            raise ValueError(f"each rank needs a GPU, but {there}; start fewer there, let each see all GPUs, or train "
                             "with --device cpu")  # fmt: skip
        return f"cuda:{self.local}"

    # ---- values of any kind

    def gather(self, value: T, patient: bool = False) -> list[T]:
        return self._gather(value, LEADING if patient else self.deadline)

    def broadcast(self, work: Callable[[], T]) -> T:
        found: tuple[Any, Exception | None] = self._attempt(work) if self.leads else (None, None)
        value, error = self._gather(found, LEADING)[0]
        if error is not None:
            raise error
        return value

    def lead(self, work: Callable[[], object]) -> None:
        if self.leads:
            work()
        self._meet(b"", None if self.leads else LEADING)

    def staggered(self, work: Callable[[], T]) -> T:
        first: tuple[Any, Exception | None] = self._attempt(work) if self.local == 0 else (None, None)
        result, error = first
        if errors := [other for other in self._gather(error, LEADING) if other is not None]:
            raise error or errors[0]
        return result if self.local == 0 else work()

    @staticmethod
    def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """The result of work(), or its error, such that it can be sent."""
        try:
            return work(), None
        except Exception as error:
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                return None, ValueError(str(error))
            return None, error

    def _gather(self, value: T, deadline: float) -> list[T]:
        own = pickle.dumps(value)
        sizes = self._meet(np.array([len(own)], np.int64).tobytes(), deadline)
        incoming = [np.empty(int(np.frombuffer(size, np.int64)[0]), np.uint8) for size in sizes]
        outgoing = np.frombuffer(own, np.uint8)
        self._exchange([(r, outgoing) for r in self.others], [(r, incoming[r]) for r in self.others], deadline)
        return [value if r == self.rank else pickle.loads(incoming[r].tobytes()) for r in range(self.size)]

    # ---- gradients and images

    def sum(self, arrays: Sequence[Array], covers: Sequence[Sequence[Node]], out: Array) -> None:
        self._meet()
        if isinstance(out, np.ndarray):
            self._sum(arrays, covers, out)
        elif self.gpu_aware:
            cuda.module().cuda.get_current_stream().synchronize()
            self._sum(arrays, covers, out)
        else:  # through page-locked memory of the host
            on_host = [self._host_copy(number, array) for number, array in enumerate(arrays)]
            self._sum(on_host, covers, on_host[0])
            out.set(on_host[0])
        self.sums += 1

    def _sum(self, arrays: Sequence[Array], covers: Sequence[Sequence[Node]], out: Array) -> None:
        edges = [len(out) * r // self.size for r in range(self.size + 1)]
        slices = [slice(*pair) for pair in pairwise(edges)]
        own, others = slices[self.rank], self.others
        parts = {(self.rank, k): array[own] for k, array in enumerate(arrays)}
        for r in others:
            parts |= {(r, k): array_module(out).empty_like(out[own]) for k in range(len(covers[r]))}
        outgoing = [(r, array[slices[r]]) for r in others for array in arrays]
        self._exchange(outgoing, [(r, parts[r, k]) for r in others for k in range(len(covers[r]))])
        in_order = [node._replace(buffer=(r, k)) for r, cover in enumerate(covers) for k, node in enumerate(cover)]
        pairs, _ = additions(in_order)
        for into, other in pairs:
            parts[into] += parts[other]
        out[own] = parts[in_order[0].buffer]
        if not isinstance(out, np.ndarray):
            cuda.module().cuda.get_current_stream().synchronize()
        self._exchange([(r, out[own]) for r in others], [(r, out[slices[r]]) for r in others])

    def _host_copy(self, number: int, array: Array) -> np.ndarray:
        """A copy in page-locked memory, which is kept for the next one."""
        key = number, array.size, array.dtype.str
        if key not in self._pinned:
            memory = cuda.module().cuda.alloc_pinned_memory(array.nbytes)
            self._pinned[key] = np.frombuffer(memory, array.dtype, array.size)
        array.get(out=self._pinned[key])  # waits for the GPU
        return self._pinned[key]

    def mirrored(self, shares: Sequence[range], rows: np.ndarray) -> np.ndarray:
        if self.size == 1:
            return rows[::-1]
        rows, count = np.ascontiguousarray(to_device(rows, "cpu")), shares[-1].stop
        wanted = [range(count - share.stop, count - share.start) for share in shares]
        own, want = shares[self.rank], wanted[self.rank]
        out = np.empty((len(want), *rows.shape[1:]), rows.dtype)
        outgoing, incoming = [], []
        for r in range(self.size):
            theirs, mine = _overlap(own, wanted[r]), _overlap(shares[r], want)
            there, here = _shifted(theirs, own), _shifted(mine, want)
            if r == self.rank:
                out[here] = rows[there]
            else:
                outgoing += [(r, rows[there])] if theirs else []
                incoming += [(r, out[here])] if mine else []
        self._meet()
        self._exchange(outgoing, incoming)
        return out[::-1]

    # ---- the network

    def _meet(self, token: bytes = b"", deadline: float | None = None) -> list[bytes]:
        """Wait until all ranks are here; return their tokens, all of one length, by rank."""
        tokens = [np.frombuffer(token, np.uint8) if r == self.rank else np.empty(len(token), np.uint8)
                  for r in range(self.size)]  # fmt: skip
        outgoing, incoming = [(r, tokens[self.rank]) for r in self.others], [(r, tokens[r]) for r in self.others]
        self._exchange(outgoing, incoming, deadline, waiting=True)
        return [array.tobytes() for array in tokens]

    def _exchange(
        self, outgoing: Sequence[tuple[int, Array]], incoming: Sequence[tuple[int, Array]],
        deadline: float | None = None, waiting: bool = False,
    ) -> None:  # fmt: skip
        """Send and receive arrays; those between two ranks arrive in order.

        waiting  for others who are still at work: leave them the CPU
        """
        started = time.perf_counter()
        peers = [[r] for r, _ in [*incoming, *outgoing]]
        requests = [self.comm.Irecv(array, r) for r, array in incoming]
        requests += [self.comm.Isend(array, r) for r, array in outgoing]
        self._wait(requests, peers, deadline or self.deadline, NAP if waiting else 0.0)
        seconds = time.perf_counter() - started
        if waiting:
            self.waited += seconds
        else:
            self.seconds += seconds
            self.bytes_sent += sum(array.nbytes for _, array in outgoing)

    def _wait(self, requests: Sequence[Any], peers: Sequence[Sequence[int]], deadline: float, nap: float) -> None:
        """Poll until all requests are done. `nap` grows while the others are at work; without, every poll counts.

        peers  the ranks on which each request depends
        """
        end = time.monotonic() + deadline
        while not self.mpi.Request.Testall(requests):
            if time.monotonic() > end:
                missing = {r for own, request in zip(peers, requests, strict=True) if not request.Test() for r in own}
                self._give_up(sorted(missing), deadline)
            if nap:
                time.sleep(nap)
                nap = min(2 * nap, LONGEST_NAP)

    def _give_up(self, missing: Sequence[int], seconds: float) -> None:
        names = ", ".join(map(self.name, missing))
        print(f"minicait: {self.name(self.rank)} has had no answer from {names} for {seconds:.0f} seconds: "
              "it is frozen, or the network is cut. The last checkpoint is intact: resume the run, on any number "
              f"of ranks ({DEADLINE_SETTING}=SECONDS waits longer)", file=sys.stderr, flush=True)  # fmt: skip
        if (mpiexec := launcher()) is not None:  # it, too, would wait for ever for a host that is cut off
            subprocess.Popen(["sh", "-c", f"sleep {GRACE}; kill -INT {mpiexec}"], start_new_session=True,
                             stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)  # fmt: skip
        os._exit(FROZEN)  # which has mpiexec end the others; MPI's own Abort waits for ever where a network is cut

    def all_have_failed(self) -> bool:
        """True if all ranks call this within some seconds."""
        nothing = bytearray(0)
        requests = [self.failing.Irecv(nothing, r) for r in self.others]
        requests += [self.failing.Isend(nothing, r) for r in self.others]
        end = time.monotonic() + TOGETHER
        while not (done := self.mpi.Request.Testall(requests)) and time.monotonic() < end:
            time.sleep(LONGEST_NAP)
        return bool(done)

    def finalise(self) -> None:
        """End MPI on all ranks, which are here. It would wait for ever for one that is frozen at this moment."""
        with self._ending():
            self.mpi.Finalize()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End this process if what is inside takes long: MPI waits without letting Python's threads run."""
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(GRACE, exit=True, file=nowhere)
            yield
            faulthandler.cancel_dump_traceback_later()

    def abort(self, code: int) -> None:
        """End all ranks. Where MPI cannot, because a network is cut, end this one: the others have their deadlines."""
        with self._ending():
            self.comm.Abort(code)


def _deadline_setting() -> float:
    text = os.environ.get(DEADLINE_SETTING, str(DEADLINE))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not seconds > 0:
        raise ValueError(f"{DEADLINE_SETTING} must be a number of seconds above 0, got {text!r}")
    return seconds


def _overlap(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))


def _shifted(part: range, whole: range) -> slice:
    return slice(part.start - whole.start, max(part.start, part.stop) - whole.start)

"""The command line, with a fault on one rank in a step: `python faulty.py KIND RANK STEP train ...`"""

import os
import signal
import sys
import time

from minicait.cli import main
from minicait.train import Trainer
from minicait.train.mpi import MPIRanks


def fail(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "exit":
        sys.exit(3)
    if kind == "bug":
        raise RuntimeError("a bug on one rank")
    if kind == "error":
        raise ValueError("the image 7.jpg is damaged")


kind, rank, step, *arguments = sys.argv[1:]
real, done = Trainer.step, []


def faulty(self, *batch):
    done.append(1)
    if self.ranks.rank == int(rank) and len(done) == int(step):
        print(f"fault at {time.time()}", file=sys.stderr, flush=True)
        fail(kind)
        if kind == "overflow":
            return real(self, batch[0] * 1e30, *batch[1:])
        if kind == "not_finite":
            return real(self, batch[0] * float("nan"), *batch[1:])
        if kind == "freeze_at_the_end":
            MPIRanks.finalise = lambda ranks: fail("freeze")
    return real(self, *batch)


Trainer.step = faulty
sys.exit(main(arguments))

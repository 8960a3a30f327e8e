"""The MPI job that this process belongs to, if it belongs to one: how it starts, and how all of its ranks end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .mpi import MPIRanks

# of mpiexec and srun, in the environment of what they start
LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
_world: list[MPIRanks] = []


def world() -> MPIRanks | None:
    """All ranks of this job, if it was started by mpiexec or srun, or as `python -m mpi4py`; else None."""
    launched = any(name in os.environ for name in LAUNCHED)
    if not _world and ("mpi4py" in sys.modules or launched):
        if find_spec("mpi4py") is None:
            raise ValueError("several ranks need mpi4py: pip install mpi4py, or start this without mpiexec")
        _world.append(MPIRanks(import_module("mpi4py.MPI").COMM_WORLD))
        hook = sys.excepthook

        def hook_and_end(*error: Any) -> None:
            hook(*error)
            fail(1, "minicait: ", "an unexpected error; its traceback is above")

        sys.excepthook = hook_and_end  # the others would wait for ever
        if not _world[0].leads:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  (until the process ends)
    return _world[0] if _world else None


def fail(code: int, name: str = "", sentence: str | None = None) -> None:
    """Print what went wrong, and end all ranks: in peace if all have failed alike, else by force."""
    ranks = _world[0] if _world and _world[0].size > 1 else None
    alike = ranks is not None and ranks.all_have_failed()
    if sentence is not None and (ranks is None or ranks.leads or not alike):  # of ranks that fail alike, one speaks
        where = "" if ranks is None or alike else f"{ranks.name(ranks.rank)}: "
        with suppress(OSError):  # nobody can be told
            print(f"{name}{where}{sentence}", file=sys.stderr, flush=True)
    if ranks is not None and alike:
        ranks.finalise()  # or mpi4py would abort when the first one exits with this code
    elif ranks is not None:
        ranks.abort(code)


def finish(code: int) -> None:
    """End all ranks together after a command that went well, or had this exit code on each."""
    if _world and _world[0].size > 1:
        _world[0].gather(code)
        _world[0].finalise()

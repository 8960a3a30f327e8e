"""Readers that do what no reader may, to show that the harness sees it: prints what it says about each."""

import ctypes
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .readers import Reader
from .runner import fuzz


def crash(path: Path) -> None:
    ctypes.string_at(0)


def hang(path: Path) -> None:
    while True:
        time.sleep(0.01)


def hang_where_no_signal_reaches(path: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    hang(path)


def take_memory(path: Path) -> None:
    bytearray(200 << 20)


def raise_another_error(path: Path) -> None:
    raise KeyError("x")


def recurse(path: Path) -> None:
    recurse(path)


def fail_on_mutations(path: Path) -> None:
    if path.read_bytes() != b"seed":
        raise IndexError("only the seed is fine")


def refuse_everything(path: Path) -> None:
    raise ValueError("no")


def behave(path: Path) -> None:
    if path.read_bytes() != b"seed":
        raise ValueError("not the seed")


@dataclass(frozen=True)
class Misbehaving(Reader):
    def seeds(self) -> dict[str, bytes]:
        return {"valid.txt": b"seed"}


if __name__ == "__main__":
    for function in (crash, hang, hang_where_no_signal_reaches, take_memory, raise_another_error, recurse,
                     fail_on_mutations, refuse_everything, behave):  # fmt: skip
        reader = Misbehaving(function.__name__, ".txt", function, megabytes=100, seconds=0.1)
        with tempfile.TemporaryDirectory() as folder:
            outcome = fuzz(reader, 0, 20 if function in (fail_on_mutations, behave) else 0, 0, Path(folder))
        print(json.dumps(asdict(outcome)))
    sys.exit(0)

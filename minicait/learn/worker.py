"""Checks in a process of their own: whatever a learner's code does to it, grading goes on."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .exercise import WRONG, Exercise, Result
from .exercises import find
from .verdict import ENDLESS, run_check, too_long

GRACE = 2.0  # seconds that a check has, after its time limit, to stop by itself and say where
LINES, CHARACTERS = 20, 2000  # of what a check prints


class Worker:
    """Runs checks in another process, which is started when it is needed, and again if a check ended it.

    show  is called with what the learner's code prints
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, folder: Path, exercise: Exercise, seconds: float) -> Result:
        """`run_check`, over there."""
        if self._process is None:
            self._start()
        end = time.monotonic() + seconds + GRACE
        message = self._ask((folder.absolute(), exercise.number, seconds), end)
        while message is not None:
            if isinstance(message, Result):
                return message
            self._show(message)
            message = self._next(end)
        self._process.join(timeout=0.5)  # its pipe may close a moment before it has ended
        code = self._process.exitcode
        self.close()
        if code is None:
            return Result(
                exercise.number, WRONG, f"{too_long(exercise, seconds)}, and no exception stops it: {ENDLESS}"
            )
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Result(exercise.number, WRONG, f"{exercise.number}: your code ended Python, {how}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True, name="minicait learn")
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for this process alone
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        self._pipe.recv()  # imports are done, and do not count

    def _ask(self, question: tuple[Path, str, float], end: float) -> Any:
        try:
            self._pipe.send(question)
        except OSError:
            return None
        return self._next(end)

    def _next(self, end: float) -> Any:
        """The next message; None if there is none in time, or the process has ended."""
        try:
            return self._pipe.recv() if self._pipe.poll(max(0.0, end - time.monotonic())) else None
        except (EOFError, OSError):
            return None


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows does not inherit it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what a subprocess prints does not mix with JSON
    pipe.send("ready")
    while True:
        folder, number, seconds = pipe.recv()
        printed = Printed(pipe.send)
        with redirect_stdout(printed), redirect_stderr(printed):
            result = run_check(folder, find(number), seconds)
        printed.finish()
        pipe.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Printed(io.TextIOBase):
    """A stream that passes on the first lines, and counts the rest."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lines, self._characters, self._left_out = LINES, CHARACTERS, 0
        self._end = "\n"

    def write(self, text: str) -> int:
        shown = "".join(text[: self._characters].splitlines(keepends=True)[: self._lines])
        self._lines -= shown.count("\n")
        self._characters -= len(shown)
        self._left_out += len(text) - len(shown)
        if shown:
            self._end = shown[-1]
            self._show(shown)
        return len(text)

    def finish(self) -> None:
        """Say how much was left out; the next output begins on a line of its own."""
        if self._end != "\n":
            self._show("\n")
        if self._left_out:
            self._show(f"... and {self._left_out:,} more characters\n")

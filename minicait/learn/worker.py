"""Checks in a process of their own: whatever a learner's code does to it, grading goes on."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .exercise import WRONG, Exercise, Result
from .exercises import find
from .verdict import ENDLESS, run_check, too_long

GRACE = 2.0  # seconds that a check has, after its time limit, to stop by itself and say where
FIRST, LAST = 10, 20  # lines that are shown of what a check prints
WIDTH = 300  # characters of a line


class Worker:
    """Runs checks in another process, which is started when it is needed, and again if a check ended it.

    show   is called with what the learner's code prints
    asked  exercises whose prints are shown, unless all are; others run only because one of these builds on them
    """

    def __init__(self, show: Callable[[str], None], asked: Container[Exercise] | None = None) -> None:
        self._show, self._asked = show, asked
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
            if self._asked is None or exercise in self._asked:
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
    """A stream that passes on the first lines at once, and the last ones at the end: those of the case that failed."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lines = 0
        self._last: deque[str] = deque(maxlen=LAST)
        self._open = ""  # the line that has not ended

    def write(self, text: str) -> int:
        *lines, self._open = (self._open + text).split("\n")
        self._open = self._open[: WIDTH + 1]
        for line in lines:
            self._line(line)
        return len(text)

    def _line(self, line: str) -> None:
        self._lines += 1
        line = f"{line[:WIDTH]}{'...' * (len(line) > WIDTH)}\n"
        if self._lines <= FIRST:
            self._show(line)
        else:
            self._last.append(line)

    def finish(self) -> None:
        """Show what has been kept, and say how much was left out; the next output begins on a line of its own."""
        if self._open:
            self._line(self._open)
        if left_out := max(0, self._lines - FIRST - len(self._last)):
            self._show(f"... {left_out:,} lines ...\n")
        for line in self._last:
            self._show(line)

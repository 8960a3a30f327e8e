"""Ctrl-C, SIGTERM and SIGHUP, as when a terminal closes, stop a run after the current batch."""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(Exception):  # noqa: N818  (not an error)
    """A signal stopped the run; its checkpoint is written."""

    def __init__(self, number: int, resume: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; to resume: {resume}")
        self.code = 128 + number


class StopSignals:
    """Inside a `with` block, keep the number of the first signal in `received`. A second Ctrl-C interrupts at once.

    Other signals often come twice: a shell passes SIGHUP on, and `timeout` signals a process and its group.
    """

    received: int | None = None

    def __enter__(self) -> None:
        handled = [n for n in STOPPING if signal.getsignal(n) is not signal.SIG_IGN]  # as `nohup` leaves SIGHUP
        self._previous = {n: signal.signal(n, self._handle) for n in handled}
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (Lasting(s) if s is not None and s.isatty() else s for s in self._streams)

    def _handle(self, number: int, _: Any) -> None:
        _forget_closed_terminal()
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._streams
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Lasting:
    """A stream to a terminal that may be closed: writing then fails before the signal is handled, and is no error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _forget_closed_terminal() -> None:
    """Send output nowhere once its terminal is closed: every write would fail, and the run could not save its state."""
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

"""Ctrl-C, SIGTERM and SIGHUP, as when a terminal closes, stop a run after the current batch."""

from __future__ import annotations

import os
import signal
import stat
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

    def _handle(self, number: int, _: Any) -> None:
        _forget_closed_terminal()
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _forget_closed_terminal() -> None:
    """Send output nowhere once its terminal is closed: every write would fail, and the run could not save its state."""
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

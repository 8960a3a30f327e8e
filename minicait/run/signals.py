"""Ctrl-C and SIGTERM stop a run after the current batch."""

from __future__ import annotations

import signal
from typing import Any


class Stopped(Exception):  # noqa: N818  (not an error)
    """A signal stopped the run; its checkpoint is written."""

    def __init__(self, number: int, resume: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; to resume: {resume}")
        self.code = 128 + number


class StopSignals:
    """Inside a `with` block, keep the number of the first signal in `received`. A second one interrupts at once."""

    received: int | None = None

    def __enter__(self) -> None:
        self._previous = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}

    def _handle(self, number: int, _: Any) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

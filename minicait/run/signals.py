"""Ctrl-C and SIGTERM ask a run to end at a good moment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(Exception):  # noqa: N818  (not an error)
    """A signal asked the run to end; its checkpoint is written."""

    def __init__(self, number: int, resume: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; to go on: {resume}")
        self.code = 128 + number


class Signals:
    """`asked` is the signal that came while `noted` was active. A second one interrupts at once."""

    asked: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        def note(number: int, _: Any) -> None:
            if self.asked is not None:
                raise KeyboardInterrupt
            self.asked = number

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

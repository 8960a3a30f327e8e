"""Work in the background: a file is written on a thread of its own while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress


class Background:
    """Runs one piece of work at a time on a thread. Its error is raised by the next call of any method.

    At the end of a `with` block, wait for the work: the next process may rely on the file. If another error ends the
    block, an error of the work is dropped.
    """

    _running: tuple[ThreadPoolExecutor, Future[None]] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start work, once the work before it is done."""
        self.wait()
        pool = ThreadPoolExecutor(1, thread_name_prefix="minicait-background")
        self._running = pool, pool.submit(work)

    def raise_error(self) -> None:
        """Raise the error of work that has failed, without waiting for work that has not ended."""
        if self._running is not None and self._running[1].done():
            self.wait()

    def wait(self) -> None:
        if self._running is not None:
            pool, result = self._running
            pool.shutdown()  # a Ctrl-C here leaves it running, to be waited for again
            self._running = None
            result.result()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(*([] if kind is None else [Exception])):
            self.wait()

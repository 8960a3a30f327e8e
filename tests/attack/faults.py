"""Faults of the machine, set up in a process before it runs a command."""

import os
import signal
import stat
import threading
from functools import wraps


def kill_at_write(number: int) -> None:
    """SIGKILL at step `number` of all writes: with a file half written, not yet on disk, or around its renaming."""
    count = 0

    def step(before=lambda: None) -> None:
        nonlocal count
        count += 1
        if count == number:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function):
        @wraps(function)
        def watched(*args, **kwargs):
            step()
            result = function(*args, **kwargs)
            step()
            return result

        return watched

    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # or it is a folder
            step(lambda: os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2))
        step()
        real(descriptor)

    os.fsync = fsync
    os.replace, os.link, os.unlink = around(os.replace), around(os.link), around(os.unlink)


def no_processes(_: int) -> None:
    """The system's limit on processes is reached."""

    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    os.fork = fork


def no_threads(_: int) -> None:
    """The system's limit on threads is reached."""

    def start(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start

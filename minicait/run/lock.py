"""A lock on a folder, so that two processes never write to the same run."""

from __future__ import annotations

import os
import socket
import stat
import time
import weakref
from contextlib import suppress
from pathlib import Path

from ..files.atomic import HOUR, remove_unfinished

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """The lock of a run's folder, held until it is released or dropped, or until the process ends, however it ends.

    The file `.lock` names the process that holds it. On Windows and on file systems without locks, nothing is locked.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / ".lock"
        descriptor = _acquire(path)
        self.release = weakref.finalize(self, _release, path, descriptor)  # callable; does nothing the second time
        _HELD.add(descriptor)
        os.ftruncate(descriptor, 0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {started}".encode())
        for part in (folder, folder / "weights"):
            if not part.is_symlink() or part == folder:  # nobody else writes here now
                remove_unfinished(part, older_than=0 if fcntl else HOUR)


def _acquire(path: Path) -> int:
    """Open and lock a file, and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # what is written to it would be elsewhere, too
            os.close(descriptor)
            raise ValueError(f"{path} is not a file of its own; remove it")
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise ValueError(f"{path.parent} is in use by {holder}; wait for it, or stop it first") from None
        except OSError:  # a file system without locks
            pass
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # the process that held it has just removed it


def _release(path: Path, descriptor: int) -> None:
    if descriptor in _HELD:  # else this is a forked process
        _HELD.discard(descriptor)
        with suppress(OSError):  # Windows does not remove open files, and the folder may be gone
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _close_inherited() -> None:
    """In a forked process, close the locks of its parent, or they would outlive it."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


_HELD: set[int] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)

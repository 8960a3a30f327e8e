"""A lock on a folder, so that two processes never write to the same run."""

from __future__ import annotations

import os
import socket
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
    """The lock of a run's folder, held from its creation to its release, or to the end of the process however it ends.

    The file `.lock` names the process that holds it. Where the system has no locks, nothing is locked.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self.descriptor = self._acquire()
        _HELD.add(self)
        os.ftruncate(self.descriptor, 0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(self.descriptor, f"process {os.getpid()} on {socket.gethostname()} since {started}".encode())
        for part in (folder, folder / "weights"):  # nobody else writes here now
            remove_unfinished(part, older_than=0 if fcntl else HOUR)

    def _acquire(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise ValueError(f"{self.path.parent} is in use by {holder}; wait for it, or stop it first") from None
            except OSError:  # a file system without locks
                pass
            if self.path.exists() and os.path.samestat(os.fstat(descriptor), self.path.stat()):
                return descriptor
            os.close(descriptor)  # the process that held it has just removed it

    def release(self) -> None:
        """Release the lock and remove its file; a second time, do nothing."""
        if self in _HELD:
            _HELD.discard(self)
            with suppress(PermissionError):  # Windows does not remove open files
                self.path.unlink(missing_ok=True)
            os.close(self.descriptor)

    @staticmethod
    def _close_inherited() -> None:
        """In a forked process, close the locks of its parent, or they would outlive it."""
        for lock in _HELD:
            os.close(lock.descriptor)
        _HELD.clear()


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FolderLock._close_inherited)

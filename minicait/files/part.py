"""A partial download: `name.part`, and the ETag of what it is a part of in `name.part.etag`.

Whatever is at these names, nothing else than a plain file there is read or written: no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import IO

from .atomic import sync_folder

TAG = re.compile('"[!#-~]{1,200}"')  # an ETag that a file and a request can hold; weak ones identify no bytes


class Part:
    def __init__(self, path: Path) -> None:
        self.path, self._tag = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.etag")

    @property
    def length(self) -> int:
        try:
            return self.path.lstat().st_size
        except OSError:  # it is not there, or the folder cannot be entered
            return 0

    def remove_links(self) -> None:
        """Remove links, pipes and devices at the two names."""
        for path in (self.path, self._tag):
            if os.path.lexists(path):
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                    path.unlink()

    def open(self, append: bool) -> IO[bytes]:
        """Open the file to write to it, after what it has or from its start."""
        return _open(self.path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC), "wb")

    @property
    def tag(self) -> str:
        """The ETag, or "" if there is none; then it may be a part of any file."""
        if not self._tag.exists():
            return ""
        with _open(self._tag, os.O_RDONLY, "rb") as file:
            tag = file.read(1000).decode("latin-1")
        return tag if TAG.fullmatch(tag) else ""

    @tag.setter
    def tag(self, tag: str) -> None:
        with _open(self._tag, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "wb") as file:
            file.write(tag.encode() if TAG.fullmatch(tag) else b"")

    def rename(self, path: Path) -> None:
        """Put the file on disk, then give it its name there."""
        with _open(self.path, os.O_RDWR, "r+b") as file:
            os.fsync(file.fileno())
        self.path.replace(path)
        self.discard()
        sync_folder(path.parent)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)


def _open(path: Path, flags: int, mode: str) -> IO[bytes]:
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), mode)

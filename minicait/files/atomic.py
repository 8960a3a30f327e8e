"""Atomic writes: a file appears under its name complete, or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

HOUR = 60 * 60
UNFINISHED = ".minicait-{}.tmp"


@contextmanager
def atomic(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a temporary file beside `path` to write to; at the end of the block, flush it to disk and rename it.

    A file that was at `path` is renamed to `previous`, if that is given. If the block raises, the temporary file is
    removed, and everything stays as it was. A link at `path` is replaced, never followed: in a folder from a stranger
    it might point anywhere. An OSError names `path`.
    """
    unfinished = path.with_name(UNFINISHED.format(secrets.token_hex(8)))
    try:
        with unfinished.open("xb") as file:  # x: fails at anything that exists, a link included
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.is_file():
            path.replace(previous)
        unfinished.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # the error above says more
            unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path, older_than: float = 0) -> None:
    """Remove temporary files that killed processes left behind; ones that are newer may still be written to."""
    for left in folder.glob(UNFINISHED.format("*")):
        with suppress(OSError):  # another process was faster, or owns it
            if time.time() - left.lstat().st_mtime >= older_than:
                left.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: until then, a crash of the machine may undo a rename."""
    with suppress(OSError):  # Windows cannot open folders, and some file systems do not sync them
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_destination(path: Path) -> None:
    """Raise ValueError if no file can be written at `path`, before any work is done; remove old leftovers there."""
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    remove_unfinished(path.parent, older_than=HOUR)


def write_bytes(path: Path, content: bytes) -> None:
    with atomic(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8. Names that are no valid text, as files can have, are written with escapes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))

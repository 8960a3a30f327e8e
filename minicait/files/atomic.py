"""Atomic writes: a file appears under its name complete, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; at the end of the block, flush it to disk and rename it.

    If the block raises, the temporary file is removed, and a file that was at `path` stays as it was. Links are
    followed. An OSError names `path`, not the temporary file.
    """
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.tmp")
    try:
        yield unfinished
        with unfinished.open("r+b") as file:  # Windows flushes only files that are open for writing
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # the error above says more
            unfinished.unlink(missing_ok=True)


def check_destination(path: Path) -> None:
    """Raise ValueError if no file can be written at `path`, before any work is done."""
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")


def write_bytes(path: Path, content: bytes) -> None:
    with atomic(path) as unfinished:
        unfinished.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))

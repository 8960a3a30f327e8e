"""Downloads that resume, show progress, and appear under their name only when complete and verified."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without data
TRIES = 3  # as long as each makes progress


class DownloadError(RuntimeError):
    """A download failed. A partial file is kept if the next attempt can use it."""


class UnreachableError(DownloadError):
    """Nothing arrived: there is no network, or no such server or file."""


def cache_directory() -> Path:
    """Return the folder for downloads: MINICAIT_CACHE, or the system's cache folder."""
    if chosen := os.environ.get("MINICAIT_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/minicait"
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "minicait"


def download(url: str, path: Path, sha256: str | None = None, size: int | None = None) -> Path:
    """Download `url` to `path` unless it exists; check size and hash if they are known.

    A partial file is resumed if the server's ETag is still the same. If the caller does not give a hash, the one that
    model hubs announce in a header (X-Linked-Etag) is used.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if path.is_file() and size in (None, path.stat().st_size):  # another process was faster
                return path
            for tries in range(TRIES):
                before = _length(part)
                try:
                    return _complete(url, part, path, sha256, size)
                except _EndedEarlyError:
                    if tries + 1 == TRIES or _length(part) <= before:
                        raise
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        kind = UnreachableError if isinstance(error, urllib.error.URLError) and not _length(part) else DownloadError
        kept = f"; {_length(part):,} bytes are kept for the next try" if _length(part) else ""
        raise kind(f"could not download {url}: {reason}{kept}") from error
    raise AssertionError("the last try returns or raises")


class _EndedEarlyError(DownloadError):
    pass


def _complete(url: str, part: Path, path: Path, sha256: str | None, size: int | None) -> Path:
    """Fetch what is missing of `part`, verify it, and rename it to `path`."""
    if size is None or sha256 is None or _length(part) != size:  # otherwise only the check is missing
        expected = _fetch(url, part)
        size, sha256 = size or expected.size, sha256 or expected.sha256
    arrived = _length(part)
    if size is not None and arrived < size:
        raise _EndedEarlyError(
            f"{url} ended early, after {arrived:,} of {size:,} bytes; run the command again to resume"
        )
    if (size is not None and arrived > size) or (sha256 is not None and _hash(part) != sha256):
        _discard(part)
        raise DownloadError(f"{url} arrived damaged: its size or SHA-256 is wrong; it was deleted, try again")
    part.replace(path)
    _discard(part)
    return path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time download to a folder, where the system has file locks."""
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


class _Expected(urllib.request.HTTPRedirectHandler):
    """Size and hash that the server announces, in the response or in a redirect before it."""

    size: int | None = None
    sha256: str | None = None

    def read(self, headers: Any) -> None:
        tag = (headers.get("X-Linked-Etag") or "").strip('"')
        if re.fullmatch("[0-9a-f]{64}", tag):
            self.sha256 = tag
        if (linked := headers.get("X-Linked-Size") or "").isdigit():
            self.size = int(linked)

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self.read(headers)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, part: Path) -> _Expected:
    """Append what is missing to `part`, or fetch all of it."""
    expected = _Expected()
    tag = _tag_file(part).read_text() if _tag_file(part).exists() else ""
    done = part.stat().st_size if part.exists() and tag else 0  # a part without a tag may be of any file
    request = urllib.request.Request(url, headers={"User-Agent": "minicait"})
    if done:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", tag)  # or send the whole file, if it has changed
    try:
        answer = urllib.request.build_opener(expected).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        _discard(part)  # the server has no more bytes: the part is complete, or of another file
        return _fetch(url, part)
    with answer:
        expected.read(answer.headers)
        if answer.status != 206 or not (answer.headers.get("Content-Range") or "").startswith(f"bytes {done}-"):
            if answer.status == 206:
                raise OSError("the server sent a different range than requested")
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else expected.size
        expected.size = expected.size or total
        _tag_file(part).write_text(answer.headers.get("ETag") or "")
        with (
            part.open("ab" if done else "wb") as file,
            tqdm(total=total, initial=done, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar,
        ):
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    return expected


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag_file(part).unlink(missing_ok=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

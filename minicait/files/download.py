"""Downloads that resume, show progress, and appear under their name only when complete and verified.

A server is not believed: never more bytes are written than the file should have, or MAX_SIZE where that is unknown.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..text import shortened
from .fetch import Redirects, Watchdog, open_url
from .part import Part

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHUNK = 1 << 18
TRIES = 3  # as long as each makes progress
MAX_SIZE = 4 << 30  # bytes, where no size is known; the largest published weights have 2.5 GB
MAX_WORDS = 120  # characters that are repeated of what a server says
MAX_WAIT = 24 * 3600  # seconds for another process that downloads to the same folder
SILENT_WAIT = 1  # seconds of them before the user is told


class DownloadError(RuntimeError):
    """A download failed. A partial file is kept if the next attempt can use it."""


class UnreachableError(DownloadError):
    """Nothing arrived: there is no network, or no such server or file."""


def cache_directory() -> Path:
    """Return the folder for downloads: MINICAIT_CACHE, or the system's cache folder."""
    if chosen := os.environ.get("MINICAIT_CACHE"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    if base and sys.platform != "darwin":
        return Path(base) / "minicait"
    try:
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "minicait"
    except RuntimeError:
        raise DownloadError(
            "there is no home folder to keep downloads in: set MINICAIT_CACHE to the folder to use"
        ) from None


def download(url: str, path: Path, sha256: str | None = None, size: int | None = None) -> Path:
    """Download `url` to `path` unless it is there already; check size and hash if they are known.

    A partial file is resumed if the server's ETag is still the same. If the caller does not give a hash, the one that
    model hubs announce in a header (X-Linked-Etag) is used.
    """
    part = Part(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if path.is_file() and size in (None, path.stat().st_size) and sha256 in (None, _hash(path, sha256)):
                return path
            part.remove_links()
            for tries in range(TRIES):
                before = part.length
                try:
                    return _complete(url, part, path, sha256, size)
                except _EndedEarlyError:
                    if tries + 1 == TRIES or part.length <= before:
                        raise
    except (OSError, http.client.HTTPException) as error:
        kept = part.length
        kind = UnreachableError if isinstance(error, urllib.error.URLError) and not kept else DownloadError
        note = f"; {kept:,} bytes are kept for the next try" if kept else ""
        raise kind(f"could not download {url}: {_words(error)}{note}") from error
    raise AssertionError("the last try returns or raises")


def _words(error: Exception) -> str:
    """The reason of an error, which may be in a server's words, in one line."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, OSError) and reason.strerror:
        reason = f"{reason.strerror}: {reason.filename}" if reason.filename else reason.strerror
    return shortened(" ".join(str(reason).split()) or type(error).__name__, MAX_WORDS)


class _EndedEarlyError(DownloadError):
    pass


def _complete(url: str, part: Part, path: Path, sha256: str | None, size: int | None) -> Path:
    """Fetch what is missing of `part`, verify it, and rename it to `path`."""
    if size is None or sha256 is None or part.length != size:  # otherwise only the check is missing
        expected = _fetch(url, part, sha256, size)
        size, sha256 = expected.size, expected.sha256
    arrived = part.length
    if size is not None and arrived < size:
        raise _EndedEarlyError(
            f"{url} ended early, after {arrived:,} of {size:,} bytes; run the command again to resume"
        )
    if (size is not None and arrived > size) or sha256 not in (None, _hash(part.path, sha256)):
        part.discard()
        raise DownloadError(f"{url} arrived damaged: its size or SHA-256 is wrong; it was deleted, try again")
    part.rename(path)
    return path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time download to a folder, where the system has file locks."""
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        start, told = time.monotonic(), False
        while not _try_lock(lock):
            waited = time.monotonic() - start
            if waited > MAX_WAIT:
                raise DownloadError(f"another process has been downloading to {folder} for too long: stop it first")
            if waited > SILENT_WAIT and not told:
                print(f"waiting for another process that downloads to {folder}", file=sys.stderr)
                told = True
            time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Expected(Redirects):
    """Size and hash of a file: those that are known, or that the server announces in the response or a redirect."""

    def __init__(self, sha256: str | None, size: int | None) -> None:
        self.sha256, self.size = sha256, size

    def read(self, headers: Any) -> None:
        tag = (headers.get("X-Linked-Etag") or "").strip('"')
        if self.sha256 is None and re.fullmatch("[0-9a-f]{64}", tag):
            self.sha256 = tag
        if "X-Linked-Size" in headers:
            self.expect(_number(headers["X-Linked-Size"]))

    def expect(self, announced: int) -> None:
        """Take a size from the server, unless it contradicts what is known."""
        if self.size not in (None, announced):
            raise OSError(f"the server announces {announced:,} bytes instead of {self.size:,}")
        if self.size is None and announced > MAX_SIZE:
            raise OSError(f"the server announces {announced:,} bytes, more than any file here has")
        self.size = announced

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self.read(headers)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise OSError(f"the server announces a size of {text[:40]!r}")
    return int(text)


def _fetch(url: str, part: Part, sha256: str | None, size: int | None) -> _Expected:
    """Append what is missing to `part`, or fetch all of it."""
    done = part.length if part.tag else 0
    request = urllib.request.Request(url, headers={"User-Agent": "minicait"})
    if done:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", part.tag)  # or send the whole file, if it has changed
    try:
        return _receive(request, part, done, _Expected(sha256, size))
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
    except (OSError, http.client.HTTPException):
        raise
    except ValueError as error:  # from urllib, about an address it was redirected to
        raise OSError(f"the server's answer cannot be read ({error})") from error
    part.discard()  # the server has no more bytes: the part is complete, or of another file
    return _fetch(url, part, sha256, size)


def _receive(request: urllib.request.Request, part: Part, done: int, expected: _Expected) -> _Expected:
    """Send a request and write the answer to `part`, after its first `done` bytes if the server sends the rest."""
    with Watchdog() as watchdog, open_url(request, watchdog, expected) as answer:
        expected.read(answer.headers)
        done = _check_headers(answer, done, expected)
        part.tag = answer.headers.get("ETag") or ""
        limit = MAX_SIZE if expected.size is None else expected.size
        with (
            part.open(append=done > 0) as file,
            tqdm(
                total=expected.size, initial=done, unit="B", unit_scale=True, desc=part.path.stem, disable=None
            ) as bar,
        ):
            # read1 returns what has arrived, where read would wait for a whole chunk
            while chunk := answer.read1(min(CHUNK, limit - done + 1)):
                done += len(chunk)
                watchdog.arrived += len(chunk)
                if done > limit:
                    break
                file.write(chunk)
                bar.update(len(chunk))
    if done > limit:
        part.discard()
        raise DownloadError(f"{request.full_url} has more than the {limit:,} bytes it should have; it was deleted")
    return expected


def _check_headers(answer: http.client.HTTPResponse, done: int, expected: _Expected) -> int:
    """Return how many bytes of the part stay; OSError if the answer is not what was asked for."""
    encoding = answer.headers.get("Content-Encoding") or "identity"
    if encoding != "identity" and expected.sha256 is None:  # a hash would tell which bytes were meant
        raise OSError(f"the server sent it compressed ({encoding}), which was not asked for")
    length = answer.headers.get("Content-Length")
    if answer.status == 200:
        if length is not None:
            expected.expect(_number(length))
        return 0
    found = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", answer.headers.get("Content-Range", ""))
    if answer.status != 206 or found is None or int(found[1]) != done:
        raise OSError(f"the server sent a different range than requested (status {answer.status})")
    expected.expect(int(found[2]) + 1 if found[3] == "*" else int(found[3]))
    return done


def _hash(path: Path, wanted: str | None) -> str | None:
    """SHA-256 of a file, if one is wanted."""
    if wanted is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Unpack a .tgz from elsewhere: only plain files and folders, and only below the folder that they are meant for."""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from tqdm import tqdm

# One step of a path that means the same on every system: no '..', root, drive, backslash, control character, nor the
# dots and spaces at the end that Windows drops. What is refused on one machine is refused on all.
PLAIN = re.compile(r"[^/\\:\x00-\x1f]*[^/\\:\x00-\x1f. ]")


def extract(archive: Path, folder: Path, limit: int) -> None:
    """Write what is in `archive` to `folder`, at most `limit` bytes of it; ValueError if it is damaged or not harmless.

    Owners, permissions and dates in the archive are ignored. After an error, part of it may have been written.
    """
    try:
        with (
            archive.open("rb") as packed,
            gzip.open(packed) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
            tqdm(total=archive.stat().st_size, unit="B", unit_scale=True, desc=archive.name, disable=None) as bar,
        ):
            written = 0
            for member in tar:
                _check(member, limit - written, archive)
                _write(tar, member, folder)
                written += member.size
                bar.update(packed.tell() - bar.n)
            _check_end(stream)
            bar.update(packed.tell() - bar.n)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{archive} is damaged: {error}") from error


def _check(member: tarfile.TarInfo, room: int, archive: Path) -> None:
    if not (member.isdir() or member.isreg()) or member.issparse():
        raise ValueError(f"{archive} holds {member.name!r}, which is neither a file nor a folder; it is not unpacked")
    parts = PurePosixPath(member.name).parts
    if not all(map(PLAIN.fullmatch, parts)) or (member.isreg() and not parts):
        raise ValueError(f"{archive} holds {member.name!r}, which is not a plain relative path; it is not unpacked")
    if not 0 <= member.size <= room:
        raise ValueError(f"{archive} holds more bytes than it should, counted up to {member.name!r}")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Not tarfile's own extract, which sets modes and owners, and cannot be told not to in every Python 3.11."""
    path = folder / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # as it is for all but files and links
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _check_end(stream: gzip.GzipFile) -> None:
    """tarfile takes a damaged header for the end; after the true one come only zeros, then gzip's checksum."""
    zeros = 0
    while chunk := stream.read(1 << 16):
        if chunk.strip(b"\0"):
            raise tarfile.ReadError("a header in the middle of it cannot be read")
        zeros += len(chunk)
    if zeros < tarfile.BLOCKSIZE:  # of the two blocks that mark the end, tarfile has read one
        raise tarfile.ReadError("its end is missing")

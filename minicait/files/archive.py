"""Safe extraction of a .tgz: only plain files and folders, and only below the target folder."""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from tqdm import tqdm

# A path component that means the same on every system: no '..', root, drive, backslash, control character, and no
# trailing dots or spaces, which Windows drops. What one machine refuses, all refuse.
PLAIN = re.compile(r"[^/\\:\x00-\x1f]*[^/\\:\x00-\x1f. ]")


def extract(archive: Path, folder: Path, limit: int) -> None:
    """Unpack `archive` into `folder`, at most `limit` bytes; ValueError if it is damaged or unsafe.

    Owners, permissions and dates are ignored. After an error, some of the files may have been written.
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
                _extract_member(tar, member, folder)
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


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file or make a folder. tarfile's own extract sets modes and owners, unavoidably in some Python 3.11."""
    path = folder / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # the member is a file
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _check_end(stream: gzip.GzipFile) -> None:
    """Check that only zeros follow, then gzip's checksum: tarfile takes a damaged header for the end."""
    zeros = 0
    while chunk := stream.read(1 << 16):
        if chunk.strip(b"\0"):
            raise tarfile.ReadError("a header in the middle of it cannot be read")
        zeros += len(chunk)
    if zeros < tarfile.BLOCKSIZE:  # two blocks mark the end, and tarfile has read one
        raise tarfile.ReadError("its end is missing")

"""Safe extraction of a .tgz: only plain files and folders, and only below the target folder.

The tar format is read here and not by tarfile, which believes an archive: it reads a header of any size into memory,
calls itself for each of a chain of headers, and takes quadratic time for some. Here, memory is a megabyte, and time is
proportional to what is unpacked: at most MAX_HEADERS headers of MAX_EXTENSION bytes, and `limit` bytes of files.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm import tqdm

from ..text import shortened

BLOCK = 512  # bytes; a header is one block, and contents are padded to blocks
CHUNK = 1 << 18  # bytes that are copied at once
MAX_HEADERS = 200_000  # with those that only name the next; Imagenette has 13,420 files and folders
MAX_EXTENSION = 1 << 16  # bytes of one header that gives a long name; the longest path has 4,096
MAX_EXTENSIONS = 4  # of them for one member: nobody needs more than a pax header, a long name and a long link
MAX_PATH, MAX_PART = 1024, 255  # bytes of a member's path and of each component: what all systems can store
MAX_DEPTH = 32  # folders in each other: or a short name would make hundreds
MAX_END = 1 << 20  # bytes of zeros after the last member; tar fills up to 10 kB, or more if told to
FILES, FOLDER, LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL = (b"0", b"\0", b"7"), b"5", b"L", b"K", b"x", b"g"

# A path component that means the same on every system: no '..', root, drive, backslash, control character, and no
# trailing dots or spaces, which Windows drops. What one machine refuses, all refuse.
PLAIN = re.compile(r"[^/\\:\x00-\x1f]*[^/\\:\x00-\x1f. ]")


class _DamagedError(Exception):
    pass


class Member(NamedTuple):
    name: str
    kind: bytes  # one of FILES, FOLDER, or what is refused
    size: int


def extract(archive: Path, folder: Path, limit: int) -> None:
    """Unpack `archive` into `folder`, at most `limit` bytes; ValueError if it is damaged or unsafe.

    Owners, permissions and dates are ignored. After an error, some of the files may have been written.
    """
    try:
        with (
            archive.open("rb") as packed,
            gzip.open(packed) as stream,
            tqdm(total=archive.stat().st_size, unit="B", unit_scale=True, desc=archive.name, disable=None) as bar,
        ):
            folder.mkdir(parents=True, exist_ok=True)
            for member in _members(stream):
                limit -= member.size
                _check(member, limit, archive)
                try:
                    _extract_member(stream, member, folder)
                except (FileExistsError, IsADirectoryError, NotADirectoryError):
                    raise ValueError(f"{archive} holds {member.name!r} both as a file and as a folder") from None
                bar.update(packed.tell() - bar.n)
            bar.update(packed.tell() - bar.n)
    except (_DamagedError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{archive} is damaged: {error}") from error


def _check(member: Member, room: int, archive: Path) -> None:
    name = repr(shortened(member.name, 100))
    if member.kind not in (*FILES, FOLDER):
        raise ValueError(f"{archive} holds {name}, which is neither a file nor a folder; it is not unpacked")
    parts = PurePosixPath(member.name).parts
    if not all(map(PLAIN.fullmatch, parts)) or (member.kind != FOLDER and not parts):
        raise ValueError(f"{archive} holds {name}, which is not a plain relative path; it is not unpacked")
    if max(map(_bytes, parts), default=0) > MAX_PART or _bytes(member.name) > MAX_PATH or len(parts) > MAX_DEPTH:
        raise ValueError(f"{archive} holds {name}, a name too long or too deep for some systems; it is not unpacked")
    if room < 0:
        raise ValueError(f"{archive} holds more bytes than it should, counted up to {name}")


def _bytes(name: str) -> int:
    return len(name.encode("utf-8", "surrogateescape"))


def _extract_member(stream: gzip.GzipFile, member: Member, folder: Path) -> None:
    """Write a file or make a folder. Nothing at `path` can be a link, because links are not unpacked."""
    path = folder / member.name
    if member.kind == FOLDER:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, member.size, CHUNK):
            file.write(_exactly(stream, min(CHUNK, member.size - start)))
    _exactly(stream, -member.size % BLOCK)


# ---- the tar format


def _members(stream: gzip.GzipFile) -> Iterator[Member]:
    """Headers of files and folders; whoever takes one must read its content before the next. Check the end, too."""
    long_name, pax, extensions = b"", dict[bytes, bytes](), 0
    for _ in range(MAX_HEADERS):
        block = _exactly(stream, BLOCK)
        if not block.strip(b"\0"):
            if extensions:
                raise _DamagedError("a header in the middle of it cannot be read")
            return _check_end(stream)
        name, kind, size = _header(block)
        if kind in (LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL):
            extensions += 1
            if size > MAX_EXTENSION or extensions > MAX_EXTENSIONS:
                raise _DamagedError("its headers are longer than names can be")
            content = _exactly(stream, size)
            _exactly(stream, -size % BLOCK)
            if kind == LONG_NAME:
                long_name = content.partition(b"\0")[0]
            elif kind == PAX:
                pax = _pax_records(content)
            continue
        if any(key.startswith(b"GNU.sparse") for key in pax):
            kind = b"S"
        name = long_name or pax.get(b"path") or name
        size = _decimal(pax[b"size"]) if b"size" in pax else size
        if kind == b"\0" and name.endswith(b"/"):  # before POSIX, folders had no kind of their own
            kind = FOLDER
        if kind == FOLDER:  # whatever it claims, no content follows
            name, size = name.rstrip(b"/") or name, 0
        yield Member(name.decode("utf-8", "surrogateescape"), kind, size)
        long_name, pax, extensions = b"", {}, 0
    raise _DamagedError(f"it has more than {MAX_HEADERS:,} headers")


def _header(block: bytes) -> tuple[bytes, bytes, int]:
    """Name, kind and size of a member."""
    blank = block[:148] + b" " * 8 + block[156:]
    if sum(blank) != _number(block[148:156]):
        raise _DamagedError("a header in the middle of it cannot be read")
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    if prefix and block[257:263] == b"ustar\0":  # GNU keeps other things there
        name = prefix + b"/" + name
    return name, block[156:157], _number(block[124:136])


def _number(field: bytes) -> int:
    """Octal digits, or after a byte of 0x80 a binary number."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not re.fullmatch(b"[0-7]*", digits):
        raise _DamagedError("a header has an impossible number")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not re.fullmatch(b"[0-9]{1,18}", digits):
        raise _DamagedError("a header has an impossible number")
    return int(digits)


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Records such as "17 path=long/name\\n", where 17 is the length of all of it."""
    records, start = {}, 0
    while start < len(content):
        space = content.find(b" ", start, start + 6)
        end = start + _decimal(content[start : max(start, space)])
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals or not space < end <= len(content) or content[end - 1] != ord("\n"):
            raise _DamagedError("a header cannot be read")
        records[key], start = value, end
    return records


def _check_end(stream: gzip.GzipFile) -> None:
    """Check that only zeros follow, a block of them at least, then gzip's checksum."""
    zeros = 0
    while chunk := stream.read(1 << 16):
        if chunk.strip(b"\0"):
            raise _DamagedError("something follows its end")
        zeros += len(chunk)
        if zeros > MAX_END:
            raise _DamagedError("its end is too long")
    if zeros < BLOCK:  # two blocks mark the end
        raise _DamagedError("its end is missing")


def _exactly(stream: gzip.GzipFile, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise _DamagedError("it ends early")
    return content

"""Untrusted zip archives: `.pth` and `.npz` files.

Nothing in an archive is believed before it is checked against the size of the file: where entries are, how large they
are, and that no two share bytes. Python's zipfile believes the directory, in which 60,000 entries may all claim the
same gigabyte.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_ENTRIES = 50_000  # a training checkpoint of the largest model has about 5,000
MAX_DIRECTORY = 10_000_000  # bytes; 100 for an entry are usual
MAX_EXPANSION = 20  # times the size of the file. Weights hardly compress: a factor of 1.1 is usual
FREE_EXPANSION = 64_000_000  # bytes that may be reached in any case: small models of zeros compress well
CHUNK = 1 << 16  # bytes that are decompressed at once

STORED, DEFLATED = 0, 8  # methods of compression
END, END64, LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
UNKNOWN32 = 0xFFFFFFFF  # the number is in the 64-bit extension


class Entry(NamedTuple):
    """A file in an archive: its place, its size there and unpacked, and its checksum."""

    start: int
    packed: int
    size: int
    crc: int
    method: int


def open_zip(path: Path) -> dict[str, Entry]:
    """Return the entries of an archive by name. ValueError if it contradicts itself."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        try:
            count, first, directory = _directory(file, length)
            found, entries = list(_listed(directory, count)), {}
            found.sort(key=lambda listed: listed[1])
            ends = [*(offset for _, offset, _ in found[1:]), first] if found else []
            for (name, offset, entry), end in zip(found, ends, strict=True):
                if offset + 30 + entry.packed > end:
                    raise ValueError("its entries overlap")
                file.seek(offset)
                signature, _, method, names, extra = struct.unpack("<4sI H16x HH", file.read(30))
                start = offset + 30 + names + extra
                if signature != b"PK\x03\x04" or method != entry.method or file.read(names) != name:
                    raise ValueError("its entries are not where its directory says")
                if start + entry.packed > end:
                    raise ValueError("its entries overlap")
                entries[name.decode()] = entry._replace(start=start)
        except struct.error:
            raise ValueError("it is cut short") from None
    if len(entries) != count:
        raise ValueError("two of its entries have the same name")
    if sum(entry.size for entry in entries.values()) > max(MAX_EXPANSION * length, FREE_EXPANSION):
        raise ValueError("its entries would expand to much more than weights do")
    return entries


def content(path: Path, entry: Entry) -> Iterator[bytes]:
    """Yield an entry's content in chunks. ValueError at its end if its size or its checksum is wrong."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == DEFLATED else None
    crc, size, left = 0, 0, entry.packed
    with path.open("rb") as file:
        file.seek(entry.start)
        while size < entry.size:
            data = inflate.unconsumed_tail if inflate else b""
            if not data:
                data = file.read(min(CHUNK, left))
                left -= len(data)
            try:
                chunk = inflate.decompress(data, CHUNK) if inflate else data
            except zlib.error as error:
                raise ValueError(f"an entry cannot be decompressed: {error}") from None
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            if size > entry.size or not (data or chunk):
                break
            yield chunk
    if size != entry.size or crc != entry.crc:
        raise ValueError("the size or the checksum of an entry is wrong")


def verify(path: Path, entry: Entry) -> None:
    """ValueError if the checksum of an entry is wrong."""
    try:
        for _ in content(path, entry):
            pass
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged ({error})") from None


def _directory(file: BinaryIO, length: int) -> tuple[int, int, bytes]:
    """Number of entries, and the offset and the bytes of the directory at the end of the file."""
    file.seek(max(0, length - 22 - 0xFFFF))  # a comment may follow
    tail = file.read()
    at = tail.rfind(END)
    if at < 0:
        raise ValueError("it is no zip archive, or cut short")
    count, size, first = struct.unpack("<H II", tail[at + 10 : at + 20])
    end = length - len(tail) + at
    if at >= 20 and tail[at - 20 : at - 16] == LOCATOR64:
        end = struct.unpack("<Q", tail[at - 12 : at - 4])[0]
        if end > length:
            raise ValueError("its directory is not where it says")
        file.seek(end)
        signature, count, size, first = struct.unpack("<4s28xQQQ", file.read(56))
        if signature != END64:
            raise ValueError("its directory is not where it says")
    if count > MAX_ENTRIES or size > MAX_DIRECTORY:
        raise ValueError(f"it has more than {MAX_ENTRIES:,} entries, or names that are too long")
    if first + size != end:
        raise ValueError("its directory is not where it says")
    file.seek(first)
    return count, first, file.read(size)


def _listed(directory: bytes, count: int) -> Iterator[tuple[bytes, int, Entry]]:
    """Yield the name and the offset of each entry in the directory, and what it says about it."""
    at = 0
    for _ in range(count):
        header = struct.unpack("<4s4xHH4xIIIHHH8xI", directory[at : at + 46])
        signature, flags, method, crc, packed, size, names, extras, comment, offset = header
        name, extra = directory[at + 46 : at + 46 + names], directory[at + 46 + names : at + 46 + names + extras]
        at += 46 + names + extras + comment
        if signature != b"PK\x01\x02" or at > len(directory):
            raise ValueError("its directory is damaged")
        size, packed, offset = _extended((size, packed, offset), extra)
        if flags & 0x41:
            raise ValueError("its entries are encrypted")
        if method not in (STORED, DEFLATED):
            raise ValueError(f"its entries are compressed by method {method}, which is not supported")
        if method == STORED and size != packed:
            raise ValueError("its entries have impossible sizes")
        yield name, offset, Entry(0, packed, size, crc, method)
    if at != len(directory):
        raise ValueError("its directory is damaged")


def _extended(numbers: tuple[int, ...], extra: bytes) -> list[int]:
    """Replace numbers that did not fit 32 bits by those of the 64-bit extension, which has only these."""
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        wide = extra[4 : 4 + length] if kind == 1 else wide
        extra = extra[4 + length :]
    result = []
    for number in numbers:
        if number == UNKNOWN32:
            (number,), wide = struct.unpack("<Q", wide[:8]), wide[8:]
        result.append(number)
    return result

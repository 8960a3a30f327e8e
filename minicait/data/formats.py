"""Image files that are read: JPEG, PNG, WebP, GIF, BMP and TIFF, and no other of Pillow's decoders.

Files come from strangers, and a few bytes can claim gigabytes. So a file's size, its header and the number of its
pixels are checked before Pillow decodes it. Decoding then takes at most 16 bytes per pixel (a WebP image), or 1 GB,
beside the file itself, and time in proportion to the size of the file and the number of pixels.
"""

from __future__ import annotations

import ctypes
import io
import logging
import math
import re
import stat
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    _imaging,
)

MAX_PIXELS = 1 << 26  # 67 million: cameras and phones have up to 64, and those of more usually combine them
MAX_SIDE = 65_535  # the limit of JPEG
MAX_METADATA = 1 << 24  # bytes before the pixels: colour profiles, previews and depth maps take a few millions
MAX_BYTES = 4 * MAX_PIXELS + MAX_METADATA  # the size of the largest image, uncompressed
MAX_PARTS = 1 << 18  # segments, chunks, blocks, strips: enough for the largest image in tiles of 32 x 32
SMALL = 1 << 20  # bytes: metadata in such a file can do no harm, and need not be counted
MAX_SCANS = 100  # of a progressive JPEG: encoders write about ten, and each costs a pass over all pixels
MAX_RLE = 1 << 22  # bytes of a BMP with run-length encoding: some three seconds
MAX_DIRECTORIES = 8  # of a TIFF: its own, and those for EXIF and GPS


def quiet_decoders() -> None:
    """For a program: do not print what Pillow and libtiff say about odd metadata and damaged files."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # also of large images, which have a limit of our own
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError):  # Windows has libtiff built in, where this fails
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


def read(path: Path) -> bytes:
    """Return the content of a file, at once, so that no file stays open until it is decoded."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # reading from a pipe or a device might never end
        raise ValueError("it is not an ordinary file")
    if about.st_size > MAX_BYTES:
        raise ValueError(f"it has {about.st_size:,} bytes; images may have {MAX_BYTES:,}")
    content = path.read_bytes()
    if not content:
        raise ValueError("it is empty")
    return content


class Metered(io.BytesIO):
    """A file in memory that counts what is read from it: Python code in Pillow takes time and memory for every part."""

    parts, metadata = MAX_PARTS, MAX_METADATA

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self.parts -= 1
        self.metadata -= len(part)
        if self.parts < 0 or self.metadata < 0:
            raise ValueError(f"it has more than {MAX_METADATA:,} bytes or {MAX_PARTS:,} parts of metadata")
        return part


def open_image(content: bytes) -> Image.Image:
    """Return an image whose size is known and bounded, and whose pixels are not decoded yet."""
    known = next((known for signature, known in FORMATS.items() if content.startswith(signature)), None)
    if known is None:
        raise ValueError("it is not a JPEG, PNG, WebP, GIF, BMP or TIFF image")
    check, stream, opener = known
    if check is not None:
        check(content)
    file = stream(content) if len(content) > SMALL else io.BytesIO(content)
    try:
        image = opener(file)
    except Image.DecompressionBombError as error:
        raise ValueError(f"it has more than the {MAX_PIXELS:,} pixels that images may have") from error
    if isinstance(file, Metered):
        file.metadata = 2 * MAX_BYTES  # from here on, pixels are read
    width, height = image.size
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise ValueError(f"it has {width:,} x {height:,} pixels; images may have {MAX_PIXELS:,}, {MAX_SIDE:,} a side")
    return image


MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")  # of a JPEG's segments; the others have no content
START_OF_SCAN, END_OF_IMAGE = b"\xda", b"\xd9"
FRAMES = [bytes([code]) for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC)]  # headers of the image
PROGRESSIVE = (b"\xc2", b"\xc6", b"\xca", b"\xce")  # those whose pixels are refined scan by scan


def check_scans(content: bytes) -> None:
    """Raise if a JPEG has too many scans: each is a pass over all pixels, even if it has no bytes."""
    position, scans, progressive, components = 2, 0, False, b""
    for _ in range(MAX_PARTS):
        found = MARKER.search(content, position)
        if found is None or found[1] == END_OF_IMAGE:
            return
        segment = content[found.end() : found.end() + 8]
        if found[1] == START_OF_SCAN:
            scans += 1
            if not progressive and segment[2:3] == components:  # one scan has them all
                return
        elif found[1] in FRAMES:
            progressive, components = found[1] in PROGRESSIVE, segment[7:8]
        position = found.end() + int.from_bytes(segment[:2], "big")
        if scans > MAX_SCANS:
            raise ValueError(f"it has more than {MAX_SCANS} scans")
    raise ValueError(f"it has more than {MAX_PARTS:,} segments")


SUBDIRECTORIES, TILE_SIDES = (34665, 34853, 40965), (322, 323)  # tags of a TIFF: EXIF, GPS, interoperability; tiles
BYTES, SHORT, INTEGERS = (1, 2, 7), 3, (3, 4, 13)  # types of values; in a BigTIFF, integers of 8 bytes, too


def check_directories(content: bytes) -> None:
    """Raise if a TIFF has too many values, or too large tiles.

    As Python objects, values take some fifty times the memory. Tiles are allocated even if the image is smaller.
    """
    order, big = "<" if content.startswith(b"I") else ">", content[2:3] == b"+"
    length, pointer, first = ("Q", "Q", 8) if big else ("H", "I", 4)
    head, entry = struct.Struct(order + length), struct.Struct(order + "HH" + 2 * pointer)
    pending, values, tile = list(struct.unpack_from(order + pointer, content, first)), 0, dict.fromkeys(TILE_SIDES, 1)
    for _ in range(MAX_DIRECTORIES):
        if not pending:
            break
        begin = pending.pop() + head.size
        count = int.from_bytes(content[begin - head.size : begin], "little" if order == "<" else "big")
        whole = content[begin : begin + min(count, MAX_PARTS + 1) * entry.size]
        for tag, kind, number, value in entry.iter_unpack(whole[: len(whole) // entry.size * entry.size]):
            values += 1 if kind in BYTES else max(1, number)
            if values > MAX_PARTS:
                raise ValueError(f"it has more than {MAX_PARTS:,} strips or other values")
            if tag not in SUBDIRECTORIES + TILE_SIDES:
                continue
            if number != 1 or kind not in (*INTEGERS, *((16, 18) if big else ())):
                raise ValueError("its directories are damaged")
            if kind == SHORT:  # is in the first two of the bytes
                value = value >> (8 * struct.calcsize(order + pointer) - 16 if order == ">" else 0) & 0xFFFF
            if tag in SUBDIRECTORIES:
                pending.append(value)
            else:
                tile[tag] = max(tile[tag], value)
    if pending:
        raise ValueError(f"it has more than {MAX_DIRECTORIES} directories")
    if math.prod(tile.values()) > MAX_PIXELS:
        raise ValueError(f"it has tiles of {' x '.join(map('{:,}'.format, tile.values()))} pixels")


def check_rle(content: bytes) -> None:
    """Raise if a BMP has much run-length encoding, which Pillow decodes byte by byte in Python."""
    if content[30:34] in (b"\1\0\0\0", b"\2\0\0\0") and len(content) > MAX_RLE:
        raise ValueError(f"it has {len(content):,} bytes; BMP images with RLE may have {MAX_RLE:,}")


Check = Callable[[bytes], None]
FORMATS: dict[bytes, tuple[Check | None, type[io.BytesIO], Callable[[io.BytesIO], Image.Image]]] = {
    b"\xff\xd8\xff": (check_scans, Metered, JpegImagePlugin.jpeg_factory),  # also for the MPO of phones
    b"\x89PNG\r\n\x1a\n": (None, Metered, PngImagePlugin.PngImageFile),
    b"RIFF": (None, io.BytesIO, WebPImagePlugin.WebPImageFile),  # reads the whole file at once
    b"GIF8": (None, Metered, GifImagePlugin.GifImageFile),
    b"BM": (check_rle, io.BytesIO, BmpImagePlugin.BmpImageFile),  # has a header of fixed size
    b"II": (check_directories, io.BytesIO, TiffImagePlugin.TiffImageFile),
    b"MM": (check_directories, io.BytesIO, TiffImagePlugin.TiffImageFile),
}

"""Makers of image files: honest, damaged and hostile ones, in a few bytes."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type


def saved(kind, size=(40, 30), mode="RGB", **options):
    """An image of a smooth colour gradient."""
    pixels = np.full((*size[::-1], 3), 90, np.uint8)
    pixels[..., 0] = (np.arange(size[1]) * 200 // size[1])[:, None]
    pixels[..., 1] = np.arange(size[0]) * 200 // size[0]
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, content=b""):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, colour=2, depth=8, extra=b"", pixels=True):
    """A PNG of zeros; without its pixels, for sizes that nobody should allocate."""
    line = bytes(1 + (width * PNG_CHANNELS[colour] * depth + 7) // 8) if pixels else b""
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(line) for _ in range(height if pixels else 0)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", packed) + chunk(b"IEND")


def jpeg_of_size(width, height, **options):
    """A JPEG whose header claims another size."""
    content = saved("jpeg", **options)
    start = content.index(b"\xff\xc0") + 5
    return content[:start] + struct.pack(">HH", height, width) + content[start + 4 :]


def jpeg_with_scans(count, size=(40, 30)):
    """A progressive JPEG whose last scan is repeated."""
    content = saved("jpeg", size, progressive=True)
    last = content.rindex(b"\xff\xc4", 0, content.rindex(b"\xff\xda"))  # with its table
    return content[:-2] + content[last:-2] * (count - content.count(b"\xff\xda")) + content[-2:]


def jpeg_of_empty_scans(count, frame=0xC0):
    """A JPEG that is not progressive, with the three components in turn in scans without a byte."""
    width, height = (8000, 8000) if count > 100 else (40, 30)
    content = jpeg_of_size(width, height, subsampling=0)
    head = content[: content.index(b"\xff\xda")].replace(b"\xff\xc0", bytes([0xFF, frame]))
    scans = [b"\xff\xda\0\x08\x01" + bytes([i % 3 + 1, 0x11 if i % 3 else 0]) + b"\0\x3f\0" for i in range(count)]
    return head + b"".join(scans) + b"\xff\xd9"


def bmp_with_rle(count):
    """A BMP of four pixels, whose `count` bytes of run-length encoding add nothing before the last row."""
    palette, pixels = bytes(1024), b"\0\2\0\0" * (count // 4) + b"\2\1\0\0\2\1\0\1"
    info = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(pixels), 0, 0, 1078) + info + palette + pixels


def jpeg_with_segments(count, start=b"Exif\0\0II*\0", length=65000, marker=b"\xff\xe1"):
    content, segment = saved("jpeg"), start + bytes(length - len(start))
    return content[:2] + (marker + struct.pack(">H", length + 2) + segment) * count + content[2:]


def webp_of_size(width, height):
    """A lossless WebP that ends after its header."""
    header = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(11)
    return b"RIFF" + struct.pack("<I", 12 + len(header)) + b"WEBPVP8L" + struct.pack("<I", len(header)) + header


def gif(screen=(8, 8), extension=b""):
    content = saved("gif", (8, 8), "P")
    frame = content.index(b",\0\0\0\0")
    return content[:6] + struct.pack("<HH", *screen) + content[10:frame] + extension + content[frame:]


def bmp_of_size(width, height):
    content = saved("bmp")
    return content[:18] + struct.pack("<ii", width, height) + content[26:]


def tiff(tail=b"", next_to_it=(), **changes):
    """An uncompressed grey TIFF of 10 x 10: tag, type, count and value of each entry, and bytes from offset 200 on."""
    tags = {"width": (256, 4, 1, 10), "height": (257, 4, 1, 10), "bits": (258, 3, 1, 8), "compression": (259, 3, 1, 1),
            "photometric": (262, 3, 1, 1), "offsets": (273, 4, 1, 200), "samples": (277, 3, 1, 1),
            "rows": (278, 4, 1, 10), "lengths": (279, 4, 1, 100)}  # fmt: skip
    entries = sorted([*(tags | changes).values(), *next_to_it])
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries if entry)
    content = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + packed + bytes(4)
    return content.ljust(200, b"\0") + (tail or bytes(100))


def directory(*entries):
    return struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)

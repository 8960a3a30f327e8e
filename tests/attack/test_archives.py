"""Archives that claim, nest, repeat or expand without end: refused in one sentence, with little memory and time."""

import gzip
import io
import itertools
import tarfile
import time
import tracemalloc
import zlib

import pytest

from minicait.files import archive as module
from minicait.files.archive import extract

LIMIT = 10**6
MEMORY, SECONDS = 8e6, 8  # bounds for each archive here


def header(name="a", kind=b"0", size=0, magic=b"ustar\x0000", prefix=b"", octal=None):
    """A tar header with a correct checksum; `octal` replaces the twelve bytes of the size."""
    block = bytearray(512)
    block[: len(name)] = name.encode()
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size if octal is None else octal
    block[156:157], block[257:265] = kind, magic
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def padded(content):
    return content + bytes(-len(content) % 512)


def pax(kind=b"x", **records):
    """A pax header with these records."""
    content = b""
    for key, value in records.items():
        body = f" {key.replace('__', '.')}={value}\n".encode()
        length = next(n for n in itertools.count(len(body)) if len(str(n)) + len(body) == n)
        content += str(length).encode() + body
    return header("pax", kind, len(content)) + padded(content)


def extension(content, kind=b"x"):
    return header("extension", kind, len(content)) + padded(content)


END = bytes(1024)
FILE = header(size=3) + padded(b"abc")


def expanding(*parts, end=END):
    """Compress without ever holding it: each part is bytes, or bytes and how often they come."""
    packer = zlib.compressobj(9, wbits=31)
    packed = []
    for part in (*parts, end):
        content, times = part if isinstance(part, tuple) else (part, 1)
        packed += [packer.compress(content) for _ in range(times)]
    return b"".join([*packed, packer.flush()])


MEGABYTE = bytes(1 << 20)
BIG = b"\x80" + bytes(6) + b"\xff" * 5
NEGATIVE = b"\xff" * 12

# {attack: (maker of the .tgz, reason)}
ATTACKS = {
    "a bomb": (lambda: expanding(header(size=40 << 20), (MEGABYTE, 40)), "more bytes than it should"),
    "a bomb of many files": (lambda: expanding((header(size=10240) + bytes(10240), 9999)), "more bytes than it should"),
    "a pax header of 40 MB": (lambda: expanding(header(kind=b"x", size=40 << 20), (MEGABYTE, 40)), "longer than"),
    "a long name of 40 MB": (lambda: expanding(header(kind=b"L", size=40 << 20), (MEGABYTE, 40)), "longer than"),
    "a long link of 40 MB": (lambda: expanding(header(kind=b"K", size=40 << 20), (MEGABYTE, 40)), "longer than"),
    "a global header of 40 MB": (lambda: expanding(header(kind=b"g", size=40 << 20), (MEGABYTE, 40)), "longer than"),
    "a claim of 8 GB": (lambda: expanding(header(kind=b"x", size=8 << 30)), "longer than names can be"),
    "a claim of 2^63 bytes": (lambda: expanding(header(kind=b"x", octal=BIG)), "longer than names can be"),
    "a chain of pax headers": (lambda: expanding((pax(path="b"), 5000), FILE), "longer than names can be"),
    "a chain of long names": (lambda: expanding((extension(b"b\0", b"L"), 5000), FILE), "longer than names can be"),
    "pax digits": (lambda: expanding((extension(b"1" * 65536) + FILE, 50)), "impossible number"),
    "pax without an end": (lambda: expanding(extension(b"99999 path=b\n"), FILE), "cannot be read"),
    "pax of length 0": (lambda: expanding(extension(b"0 path=b\n"), FILE), "cannot be read"),
    "a negative pax size": (lambda: expanding(pax(size="-512"), FILE), "impossible number"),
    "a pax size in words": (lambda: expanding(pax(size="many"), FILE), "impossible number"),
    "a pax size of 5000 digits": (lambda: expanding(pax(size="9" * 5000), FILE), "impossible number"),
    "a huge pax size": (lambda: expanding(pax(size=10**15), FILE), "more bytes than it should"),
    "a pax size beyond the end": (lambda: expanding(pax(size=90_000), FILE), "ends early"),
    "a negative size": (lambda: expanding(header(octal=NEGATIVE)), "impossible number"),
    "a size of 2^40 in binary": (lambda: expanding(header(octal=BIG)), "more bytes than it should"),
    "a size in words": (lambda: expanding(header(octal=b"as you like\0")), "impossible number"),
    "a GNU sparse file": (lambda: expanding(header(kind=b"S", size=512) + bytes(512)), "neither a file nor a folder"),
    "a pax sparse file": (lambda: expanding(pax(GNU__sparse__major="1", GNU__sparse__minor="0"), FILE), "neither"),
    "an unknown kind": (lambda: expanding(header(kind=b"Z", size=8 << 30)), "neither a file nor a folder"),
    "a link": (lambda: expanding(header(kind=b"2")), "neither a file nor a folder"),
    "a long component": (lambda: expanding(extension(b"x" * 256, b"L"), FILE), "too deep for some systems"),
    "a deep path": (lambda: expanding(extension(b"d/" * 600, b"L"), FILE), "too deep for some systems"),
    "a path of 60 kB": (lambda: expanding(extension(b"d" * 60_000, b"L"), FILE), "too deep for some systems"),
    "a prefix that leads out": (lambda: expanding(header(prefix=b"../..")), "not a plain relative path"),
    "a pax path that leads out": (lambda: expanding(pax(path="../../outside"), FILE), "not a plain relative path"),
    "a long name that leads out": (lambda: expanding(extension(b"/etc/x", b"L"), FILE), "not a plain relative path"),
    "a name with a null byte": (lambda: expanding(pax(path="a\0b"), FILE), "not a plain relative path"),
    "a file that becomes a folder": (lambda: expanding(FILE, header("a/b")), "both as a file and as a folder"),
    "a folder that becomes a file": (lambda: expanding(header("a/b"), FILE), "both as a file and as a folder"),
    "a file that becomes a folder itself": (lambda: expanding(FILE, header("a", b"5")), "both as a file and"),
    "an extension of nothing": (lambda: expanding(FILE, pax(path="b")), "a header in the middle"),
    "a wrong checksum": (lambda: expanding(FILE.replace(b"0000644", b"0000645")), "a header in the middle"),
    "zeros without end": (lambda: expanding(FILE, (MEGABYTE, 40)), "its end is too long"),
    "one block of zeros": (lambda: expanding(FILE, end=bytes(512)), "its end is missing"),
    "no end": (lambda: expanding(FILE, end=b""), "ends early"),
    "something after the end": (lambda: expanding(FILE, END, FILE), "something follows its end"),
    "garbage after gzip's end": (lambda: expanding(FILE) + b"garbage", "Not a gzipped file"),
    "a wrong CRC": (lambda: expanding(FILE)[:-8] + bytes(8), "CRC check failed"),
    "10,000 empty gzip members": (lambda: gzip.compress(b"") * 10_000, "ends early"),
    "a gzip name without end": (lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 10**6, "ended before"),
    "too many members": (lambda: expanding((header("d", b"5"), 2001)), "more than 2,000 headers"),
}  # fmt: skip


@pytest.mark.parametrize("what", ATTACKS)
def test_attacks(tmp_path, monkeypatch, what):
    monkeypatch.setattr(module, "MAX_HEADERS", 2000 if "members" in what else 20_000)
    make, reason = ATTACKS[what]
    (tmp_path / "it.tgz").write_bytes(make())
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(ValueError) as caught:
            extract(tmp_path / "it.tgz", tmp_path / "out", LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value) and len(str(caught.value)) < 400
    assert time.monotonic() - start < SECONDS and peak < MEMORY
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) <= LIMIT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it.tgz", "out"]


LONG = "/".join(["d" * 200] * 5)
FINE = {
    "plain": (lambda: expanding(FILE), {"a": 3}),
    "no ustar": (lambda: expanding(header(size=3, magic=bytes(8)) + padded(b"abc")), {"a": 3}),
    "a file of the old kind": (lambda: expanding(header(kind=b"\0", size=3) + padded(b"abc")), {"a": 3}),
    "a folder of the old kind": (lambda: expanding(header("d/", kind=b"\0"), header("d/a")), {"d/a": 0}),
    "a folder that claims a size": (lambda: expanding(header("d/", b"5", size=10**9), FILE), {"a": 3}),
    "a prefix": (lambda: expanding(header(prefix=b"p/q", size=3) + padded(b"abc")), {"p/q/a": 3}),
    "a pax path": (lambda: expanding(pax(path=LONG), FILE), {LONG: 3}),
    "a pax size": (lambda: expanding(pax(size=5), header(), padded(b"hello")), {"a": 5}),
    "a long name": (lambda: expanding(extension(LONG.encode() + b"\0", b"L"), FILE), {LONG: 3}),
    "comments for all": (lambda: expanding(pax(b"g", comment="hi"), pax(mtime="1.5"), FILE), {"a": 3}),
    "a binary size": (lambda: expanding(header(octal=b"\x80" + bytes(10) + b"\3"), padded(b"abc")), {"a": 3}),
    "spaces around a size": (lambda: expanding(header(octal=b"         3 \0"), padded(b"abc")), {"a": 3}),
    "two gzip members": (lambda: gzip.compress(FILE) + gzip.compress(END), {"a": 3}),
    "zeros after gzip's end": (lambda: expanding(FILE) + bytes(1000), {"a": 3}),
    "large records": (lambda: expanding(FILE, end=bytes(1 << 20)), {"a": 3}),
    "the same folder twice": (lambda: expanding(header("d", b"5"), header("d", b"5"), FILE), {"a": 3}),
    "names that are not UTF-8": (lambda: expanding(extension(b"\xff\0", b"L"), FILE), {"\udcff": 3}),
}


@pytest.mark.parametrize("what", FINE)
def test_odd_but_valid_archives_are_unpacked_as_by_tarfile(tmp_path, what):
    make, sizes = FINE[what]
    (tmp_path / "it.tgz").write_bytes(make())
    extract(tmp_path / "it.tgz", tmp_path / "out", LIMIT)
    found = {p.relative_to(tmp_path / "out").as_posix(): p for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {name: path.stat().st_size for name, path in found.items()} == sizes
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(make()))) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar if m.isfile()} == {
            name: path.read_bytes() for name, path in found.items()
        }

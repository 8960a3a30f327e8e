"""Makers of hostile .pth files: opcodes by hand, and zip archives with false directories."""

import pickle
import struct
import zipfile
import zlib

MARK, STOP, EMPTY_TUPLE = b"(", b".", b")"


def plain(value) -> bytes:
    """Opcodes that push a value."""
    return pickle.dumps(value, 2)[2:-1]


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def storage(key="0", kind="FloatStorage", size=100) -> bytes:
    parts = plain("storage") + named("torch", kind) + plain(key) + plain("cpu") + plain(size)
    return MARK + parts + b"tQ"


def tensor(shape=(2, 3), stride=(3, 1), offset=0, of=None, more=b"\x89}") -> bytes:
    def value(x):
        return x if isinstance(x, bytes) else plain(x)

    arguments = (of or storage()) + value(offset) + value(shape) + value(stride) + more
    return named("torch._utils", "_rebuild_tensor_v2") + MARK + arguments + b"tR"


def checkpoint(made: bytes = b"", before: bytes = b"", after: bytes = b"") -> bytes:
    """The pickle of {"model": {"cls_token": tensor}}, with opcodes before, after, and instead of the tensor."""
    inner = b"}" + plain("cls_token") + (made or tensor()) + b"s" + after
    return b"\x80\x02" + before + b"}" + plain("model") + inner + b"s" + STOP


def pth(path, pkl: bytes = b"", entries=None, root="x"):
    """A sound archive around a pickle."""
    contents = {"data.pkl": pkl or checkpoint(), "byteorder": b"little", "data/0": bytes(400)} | (entries or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(f"{root}/{name}", content)
    return path


def zip_file(path, entries, **end):
    """A zip archive in which anything may be false.

    An entry is a dict: name and content, and flags, method, crc, packed, size, offset as the directory claims them.
    `end` replaces count, size and offset in the record at the end.
    """
    out, directory = bytearray(), bytearray()
    for entry in entries:
        name, content, at = entry["name"].encode(errors="surrogateescape"), entry.get("content", b""), len(out)
        claims = {"flags": 0, "method": 0, "crc": zlib.crc32(content), "packed": len(content), "size": len(content),
                  "offset": at} | entry  # fmt: skip
        out += struct.pack(
            "<4s5H3I2H", b"PK\x03\x04", 20, claims["flags"], claims["method"], 0, 0, 0, 0, 0, len(name), 0
        )
        if not entry.get("shared"):
            out += name + content
        else:
            del out[at:]
        numbers, extra = [claims["packed"], claims["size"], claims["offset"]], b""
        if max(numbers) > 0xFFFFFFFE:  # the 64-bit extension: size, packed, offset
            extra = struct.pack("<HHQQQ", 1, 24, claims["size"], claims["packed"], claims["offset"])
            numbers = [0xFFFFFFFF] * 3
        directory += struct.pack("<4s6H", b"PK\x01\x02", 20, 20, claims["flags"], claims["method"], 0, 0)
        directory += struct.pack("<3I5H2I", claims["crc"], *numbers[:2], len(name), len(extra), 0, 0, 0, 0, numbers[2])
        directory += name + extra
    last = {"count": len(entries), "size": len(directory), "offset": len(out)} | end
    out += directory
    if max(last.values()) > 0xFFFF:
        here = len(out)
        out += struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, last["count"], last["count"], last["size"],
                           last["offset"])  # fmt: skip
        out += struct.pack("<4sIQI", b"PK\x06\x07", 0, here, 1)
    count, size, offset = (min(n, most) for n, most in zip((last["count"], last["size"], last["offset"]),
                                                            (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF), strict=True))  # fmt: skip
    out += struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, count, count, size, offset, 0)
    path.write_bytes(out)
    return path


def parts(**changes):
    """The entries of a sound file, with changes to the storage's."""
    return [{"name": "x/data.pkl", "content": checkpoint()}, {"name": "x/data/0", "content": bytes(400)} | changes]


KINDS = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage"}


def save_pth(path, content):
    """A file as PyTorch writes it, from nested dicts with arrays and plain values in them."""
    storages = {}

    def opcodes(value) -> bytes:
        if isinstance(value, dict):
            return b"}" + b"".join(plain(key) + opcodes(part) + b"s" for key, part in value.items())
        if not hasattr(value, "dtype"):
            return plain(value)
        key = str(len(storages))
        storages[f"data/{key}"] = value.tobytes()
        stride = tuple(step // value.itemsize for step in value.copy("C").strides)
        return tensor(value.shape, stride, of=storage(key, KINDS[str(value.dtype)], value.size))

    made = opcodes(content)
    return pth(path, b"\x80\x02" + made + STOP, storages)

"""Formats as parts that can be mutated one by one, and put together again with correct checksums and lengths.

Without this, nearly every mutation would end at the first checksum. A wrapping takes the bytes of a file and returns
its parts and the function that joins them.
"""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence

CHECKPOINT, LABELS = "minicait_checkpoint", "minicait_token_labels"  # what their metadata are called
Parts = tuple[list[bytes], Callable[[Sequence[bytes]], bytes]]


def lines(data: bytes) -> Parts:
    return data.split(b"\n"), b"\n".join


def zip_entries(data: bytes) -> Parts:
    """The names, then the contents."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        contents = [archive.read(name) for name in names]

    def join(parts: Sequence[bytes]) -> bytes:
        buffer = io.BytesIO()
        changed = parts[0].decode("latin-1").split("\n") + names[len(parts[0].split(b"\n")) :]
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in zip(changed, parts[1:], strict=False):
                archive.writestr(zipfile.ZipInfo(name[:20_000] or "?"), content)  # 65,535 bytes fit
        return buffer.getvalue()

    return ["\n".join(names).encode(), *contents], join


def safetensors(data: bytes) -> Parts:
    """The JSON of tensors, the metadata's values, and the bytes of all tensors; a file with a hash gets its new one."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__", {})
    keys = [key for key in metadata if key != "sha256"]

    def join(parts: Sequence[bytes]) -> bytes:
        values = {key: part.decode("latin-1") for key, part in zip(keys, parts[1:-1], strict=True)}
        try:
            changed = json.loads(parts[0])
            if "sha256" in metadata:
                own = _labels_hash if LABELS in values else _checkpoint_hash
                values["sha256"] = own(values[LABELS if LABELS in values else CHECKPOINT], changed, parts[-1])
            text = json.dumps({"__metadata__": values, **changed}).encode()
        except Exception:  # whatever it is now, it is not a header of tensors
            text = parts[0]
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + parts[-1]

    return [json.dumps(header).encode(), *(metadata[key].encode() for key in keys), body], join


def _checkpoint_hash(text: str, header: dict, body: bytes) -> str:
    """As train/checkpoint.py computes it, for tensors of float32."""
    total = hashlib.sha256(text.encode())
    for name in sorted(header):
        first, last = header[name]["data_offsets"]
        total.update(f"{name} float32 {tuple(header[name]['shape'])}".encode())
        total.update(body[first:last])
    return total.hexdigest()


def _labels_hash(text: str, header: dict, body: bytes) -> str:
    """As data/label_file.py computes it."""
    total = hashlib.sha256(text.encode())
    for name, dtype in (("logits", "F16"), ("classes", "U16"), ("images", "U8")):
        first, last = header[name]["data_offsets"]
        total.update(f"{name} {dtype} {tuple(header[name]['shape'])}".encode())
        total.update(body[first:last])
    return total.hexdigest()


def png(data: bytes) -> Parts:
    """The chunks, each with its kind in front; pixels are decompressed."""
    parts, place = [], 8
    while place + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        content = data[place + 8 : place + 8 + length]
        parts.append(kind + (zlib.decompress(content) if kind == b"IDAT" else content))
        place += 12 + length

    def join(parts: Sequence[bytes]) -> bytes:
        chunks = [data[:8]]
        for part in parts:
            chunk = part[:4] + (zlib.compress(part[4:]) if part[:4] == b"IDAT" else part[4:])
            chunks.append(struct.pack(">I", max(0, len(chunk) - 4)) + chunk + struct.pack(">I", zlib.crc32(chunk)))
        return b"".join(chunks)

    return parts, join


def tgz(data: bytes) -> Parts:
    """The blocks of the tar file."""
    tar = gzip.decompress(data)
    parts = [tar[i : i + 512] for i in range(0, len(tar.rstrip(b"\0")), 512)]

    def join(parts: Sequence[bytes]) -> bytes:
        checked = []
        for part in parts:
            block = bytearray(part)
            if len(block) == 512 and block[257:262] == b"ustar":
                block[148:156] = b"%06o\0 " % tarfile.calc_chksums(block)[0]
            checked.append(bytes(block))
        return gzip.compress(b"".join(checked) + bytes(1024), mtime=0)

    return parts, join

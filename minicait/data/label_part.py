"""Label maps so far: a record for each image, in a `.part` file that survives a kill at any time."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..files.part import Part
from .label_file import Description, write_label_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class LabelPart:
    """The records of the first images, which the file at `path` is made of at the end.

    At its start is a hash of all that the maps depend on; ValueError if it is of other images, or made otherwise. Each
    record has a checksum of itself and its place: after a crash of the machine, it goes on at the first that is not
    whole.
    """

    def __init__(self, path: Path, description: Description, images: Sequence[bytes], cells: tuple[int, int]) -> None:
        self.path, self.description, self.images = path, description, images
        shape = (*cells, description.top)
        self.record = np.dtype([("logits", "<f2", shape), ("classes", "<u2", shape), ("check", "<u4")])
        self.count = 0
        self._part = Part(path)
        self._part.remove_links()
        text = json.dumps([asdict(description), cells]).encode()
        self._head = hashlib.sha256(b"\0".join([text, *images])).digest()
        self._file = self._part.open(append=True)
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise ValueError(f"{self._part.path} is in use by another process; wait for it, or stop it") from None
            except OSError:  # a file system without locks
                pass
        with self._part.path.open("rb") as file:
            found = file.read(len(self._head))
        if not self._head.startswith(found):
            self.close()
            name = self._part.path
            raise ValueError(f"{name} was begun with other images, weights or options; remove it to start again")
        self._file.write(self._head[len(found) :])
        self._file.flush()

    def keep(self, multiple: int) -> int:
        """Drop all behind the last whole record, and return the number of records, a multiple of this or all."""
        count = 0
        with self._part.path.open("rb") as file:
            file.seek(len(self._head))
            while count < len(self.images) and len(record := file.read(self.record.itemsize)) == self.record.itemsize:
                if zlib.crc32(record[:-4], count) != int.from_bytes(record[-4:], "little"):
                    break
                count += 1
        if count < len(self.images):
            count -= count % multiple
        self._file.truncate(len(self._head) + count * self.record.itemsize)
        self.count = count
        return count

    def append(self, logits: np.ndarray, classes: np.ndarray) -> None:
        """Add maps (B, rows, columns, top) of the next images."""
        records = np.zeros(len(logits), self.record)
        records["logits"], records["classes"] = logits, classes
        for i, record in enumerate(records):
            records["check"][i] = zlib.crc32(record.tobytes()[:-4], self.count + i)
        self.count += len(records)
        self._file.write(records.tobytes())
        self._file.flush()

    def finish(self) -> None:
        """Write the file, and remove the part."""
        records = np.memmap(self._part.path, self.record, "r", len(self._head), (len(self.images),))
        write_label_file(self.path, self.description, self.images, records["logits"], records["classes"])
        del records  # Windows removes no file that is mapped
        self.close()
        self._part.discard()

    def close(self) -> None:
        self._file.close()

"""The table of readers. Given any bytes, a reader returns a valid result or raises its errors, within its bounds."""

import hashlib
import json
import math
import re
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from minicait.data.label_file import open_label_file
from minicait.data.picture import Picture
from minicait.data.token_labels import dense, labels_of_crop
from minicait.data.transforms import evaluation
from minicait.files import download, fetch
from minicait.files.archive import extract
from minicait.files.pretrained import load_model
from minicait.files.weights import open_weights
from minicait.run.folder import read_plan
from minicait.run.plan import Plan
from minicait.train.checkpoint import read_checkpoint
from minicait.train.recipe import recipe, with_settings

from . import wrappings
from .wrappings import Parts

SEEDS = Path(__file__).parent / "seeds"
BODY = b"content " * 40  # of the HTTP seeds
SIDE = 32  # pixels that images are prepared for


@dataclass(frozen=True)
class Reader:
    """A reader of the file at a path. Its seeds end in `suffix`, in the folder with the first word of its name."""

    name: str
    suffix: str
    read: Callable[[Path], object]
    wrapping: Callable[[bytes], Parts] | None = None
    tokens: Sequence[bytes] = ()
    errors: tuple[type[Exception], ...] = (ValueError,)
    megabytes: int = 400  # of address space, beside what Python has already
    seconds: float = 5

    def seeds(self) -> dict[str, bytes]:
        """By file name: those that begin with "valid" must be accepted."""
        folder = SEEDS / re.split("[.-]", self.name)[0]
        return {path.name: path.read_bytes() for path in sorted(folder.glob(f"*{self.suffix}"))}

    @property
    def file_name(self) -> str:
        return f"it{self.suffix}" if self.suffix.startswith(".") else self.suffix


def weights(path: Path) -> None:
    file = open_weights(path)
    for name, shape in file.shapes.items():
        array = file.read(name)
        assert array.shape == tuple(shape) and array.dtype.kind in "fiub", "a tensor is not what was announced"
    model, info = load_model(path)
    assert model.config == info.config and all(p.data.dtype == np.float32 for _, p in model.named_parameters())


def picture(path: Path) -> None:
    image = Picture(path).decode()
    assert image.mode == "RGB" and min(image.size) > 0, "a picture is not what was announced"
    array = evaluation(SIDE)(Picture(path), None)
    assert array.shape == (3, SIDE, SIDE) and array.dtype == np.float32 and np.isfinite(array).all()


def archive(path: Path) -> None:
    folder, limit = path.with_name("out"), 100_000
    try:
        extract(path, folder, limit)
    finally:
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        shutil.rmtree(folder, ignore_errors=True)
        assert size <= limit, "more was unpacked than allowed"
        assert {p.name for p in path.parent.iterdir()} == {path.name}, "something was written outside the folder"


def plan(path: Path) -> None:
    read = read_plan(path.parent)
    assert isinstance(read, Plan) and json.dumps(asdict(read), allow_nan=False)


def checkpoint(path: Path) -> None:
    read = read_checkpoint(path)
    assert json.dumps(asdict(read.state), allow_nan=False)
    assert all(isinstance(array, np.ndarray) for array in read.arrays.values())
    read.model()


def labels(path: Path) -> None:
    file = open_label_file(path)
    assert json.dumps(asdict(file.description), allow_nan=False)
    for number in range(min(3, len(file.images))):
        logits, numbers = file.read(number)
        assert logits.shape == numbers.shape == (*file.cells, file.description.top)
        if np.isfinite(logits).all():
            scores = dense(logits, numbers, len(file.description.classes))
            label = labels_of_crop(scores, (0.1, 0.2, 0.7, 0.5), True, (2, 2))
            assert np.isfinite(label).all() and np.allclose(label.sum(-1), 1, atol=1e-3)


def settings(path: Path) -> None:
    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")[:30]  # nobody types more
    made = with_settings(recipe("small"), words)
    assert json.dumps(asdict(made), allow_nan=False) and math.isfinite(made.peak_lr)


def response(path: Path) -> None:
    _download(path, {})


def response_of_known_file(path: Path) -> None:
    assert _download(path, {"sha256": hashlib.sha256(BODY).hexdigest(), "size": len(BODY)}) == BODY


def _download(path: Path, known: dict) -> bytes:
    server = _server()
    server.answer = path.read_bytes()
    target = path.with_name("target")
    try:
        return download.download(f"http://127.0.0.1:{server.port}/file", target, **known).read_bytes()
    finally:
        assert {p.name for p in path.parent.iterdir()} <= {path.name, "target", "target.part", "target.part.etag"}
        for made in path.parent.glob("target*"):
            made.unlink()


class _Server:
    """Sends `answer` to whoever connects."""

    def __init__(self) -> None:
        self.answer = b""
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(1)
                connection.recv(65536)
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a reset would overtake what was sent
                    pass


@cache  # one for the process of this reader
def _server() -> _Server:
    server, connect = _Server(), socket.create_connection

    def connect_here(address, *args, **options):
        """Mutated redirects lead anywhere: nobody else is called."""
        if address != ("127.0.0.1", server.port):
            raise ConnectionRefusedError("not here")
        return connect(address, *args, **options)

    socket.create_connection = connect_here
    fetch.TIMEOUT = fetch.WINDOW = 1
    fetch.LEAST, download.MAX_SIZE = 1, 10**6
    return server


PICKLE = [
    b"(", b")", b"}", b"]", b"t", b"Q", b"R", b"b", b"u", b"s", b"0", b"2", b"\x85", b"\x86", b"\x87", b"\x8a\x01\x05",
    b"\x94", b"h\x00", b"j\xff\xff\xff\x1f", b"r\xff\xff\xff\x1f", b"K\x07", b"N", b"X\x01\x00\x00\x00a", b"\x93",
    b"cbuiltins\neval\n", b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"I9\n", b"F1\n", b"l.",
    b"\x8b\xff\xff\xff\x7f", b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x81", b"\x92", b"\x8f", b"\x90", b"\x91",
]  # fmt: skip
HTTP = [
    b"\r\n", b"\r\n\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 206 OK\r\n", b"HTTP/1.1 302 Found\r\nLocation: ", b"HTTP/1.1 416 No\r\n", b"bytes 0-9/", b'ETag: "',
    b"http://[::1", b"http://127.0.0.1:x/", b"//", b"\xb2", b"0\r\n\r\n", b"Content-Encoding: gzip\r\n", b"%00",
    b"X-Linked-Size: ", b": ", b" \t", b"file:///etc/passwd", b"-",
]  # fmt: skip
SETTINGS = [b"=", b"null", b"None", b"[1]", b"{}", b"true", b"epochs=", b"crop=", b"lr=", b"augmentation=", b"-"]
NPY = [b"'<f4'", b"'|O'", b"True", b"(", b",)", b"'descr': "]
TAR = [b"../", b"/", b"ustar", b"17 path=", b"9 size=1\n"]
IMAGES = ((".jpg", None), (".png", wrappings.png), (".webp", None), (".gif", None), (".bmp", None), (".tiff", None))

READERS = {
    reader.name: reader
    for reader in (
        Reader("pth", ".pth", weights, wrappings.zip_entries, PICKLE),
        Reader("safetensors", ".safetensors", weights, wrappings.safetensors),
        Reader("npz", ".npz", weights, wrappings.zip_entries, NPY),
        # the largest photographs have 67 million pixels of four bytes, and transparent ones are held four times
        *(
            Reader(f"image{suffix}", suffix, picture, wrapping, megabytes=1400, seconds=15)
            for suffix, wrapping in IMAGES
        ),
        Reader("tgz", ".tgz", archive, wrappings.tgz, TAR),
        Reader("plan", "args.json", plan),
        Reader("checkpoint", ".safetensors", checkpoint, wrappings.safetensors),
        Reader("labels", ".safetensors", labels, wrappings.safetensors),
        Reader("settings", ".txt", settings, wrappings.lines, SETTINGS),
        Reader("http", ".http", response, wrappings.lines, HTTP, (download.DownloadError,)),
        Reader("http-known", ".http", response_of_known_file, wrappings.lines, HTTP, (download.DownloadError,)),
    )
}

"""Write the seeds: python -m tests.attack.fuzz.make_seeds. The same bytes each time, for the same libraries."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save

from minicait.data.label_file import Description, write_label_file
from minicait.files.weights import save_weights
from minicait.models.cait import CaiT
from minicait.run.plan import Plan
from minicait.train import Trainer
from minicait.train.checkpoint import save_checkpoint
from minicait.train.recipe import recipe

from .readers import BODY, SEEDS
from .wrappings import safetensors

MODEL = {"num_classes": 3, "img_size": 8, "patch_size": 4, "dim": 4, "heads": 2, "depth": 1, "depth_token_only": 1}


def model() -> CaiT:
    return CaiT(**MODEL, mlp_ratio=2.0, seed=0)


def write(name: str, content: bytes) -> None:
    path = SEEDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # with a fixed date
    return buffer.getvalue()


class Named:
    """Pickled as the global module.name, or as a call of it."""

    def __init__(self, module: str, name: str, *args: object) -> None:
        self.module, self.name, self.args = module, name, args


class TorchPickler(pickle._Pickler):  # the one in Python, which can be told how to save globals
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.storages: list[np.ndarray] = []

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Named):
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
            if obj.args:
                super().save(obj.args)
                self.write(pickle.REDUCE)
        elif isinstance(obj, np.ndarray):
            self.storages.append(obj)
            storage, stride = Storage(len(self.storages) - 1, obj.size), tuple(s // obj.itemsize for s in obj.strides)
            args = (storage, 0, obj.shape, stride, False, OrderedDict())
            self.save(Named("torch._utils", "_rebuild_tensor_v2", *args))
        elif isinstance(obj, Storage):
            super().save(("storage", Named("torch", "FloatStorage"), str(obj.key), "cpu", obj.size))
            self.write(pickle.BINPERSID)
        else:
            super().save(obj, save_persistent_id)


class Storage:
    def __init__(self, key: int, size: int) -> None:
        self.key, self.size = key, size


def pth(content: object) -> bytes:
    """As torch.save writes it."""
    buffer = io.BytesIO()
    pickler = TorchPickler(buffer, 2)
    pickler.dump(content)
    storages = {f"it/data/{i}": array.tobytes() for i, array in enumerate(pickler.storages)}
    return zipped({"it/data.pkl": buffer.getvalue(), "it/byteorder": b"little", **storages, "it/version": b"3\n"})


def weights() -> None:
    """A whole model for each format, and small files, which are read much faster."""
    state = model().state_dict()
    small = {"a": np.ones((2, 3), np.float32), "b": np.zeros((), np.float32)}
    write("pth/valid-model.pth", pth({"model": OrderedDict(state), "args": Named("argparse", "Namespace", 1)}))
    write("pth/plain.pth", pth(small))
    write("pth/averaged.pth", pth({"model_ema": {}, "state_dict": OrderedDict(small), "epoch": 3, "best": 0.5}))
    write("pth/parameter.pth", pth({"a": Named("torch._utils", "_rebuild_parameter", small["a"], True, OrderedDict())}))
    write(
        "pth/size.pth", pth({"size": Named("torch", "Size", (1, 2)), "it": [small["b"], {"x": None, 7: (True, "s")}]})
    )
    write("npz/valid-model.npz", zipped({f"{name}.npy": npy(array) for name, array in state.items()}))
    write("npz/plain.npz", zipped({"a.npy": npy(np.ones((2, 3), np.float16)), "b.npy": npy(np.arange(4))}))
    write("npz/fortran.npz", zipped({"a.npy": npy(np.asfortranarray(np.ones((2, 3))))}))
    save_weights(model(), SEEDS / "safetensors/valid-model.safetensors", ["cat", "dog", "owl"])
    write("safetensors/plain.safetensors", save(small))
    write("safetensors/described.safetensors", save(small, read_metadata("safetensors/valid-model.safetensors")))
    save_checkpoint(Trainer(model(), recipe("shapes")), SEEDS / "checkpoint/valid-new.safetensors", {"best": 0.5})
    unfinished = save({"model/a": small["a"], "mean/a": small["a"]}, read_metadata("checkpoint/valid-new.safetensors"))
    parts, join = safetensors(unfinished)
    write("checkpoint/small.safetensors", join(parts))  # with its new hash, but not the model that it describes


def labels() -> None:
    """Label maps of patches, and by windows, with fewer classes than a cell can have."""
    rng = np.random.default_rng(0)
    for name, classes, window in (("patches", 7, None), ("windows", 3, 0.5)):
        about = Description([f"class {i}" for i in range(classes)], "w.safetensors", "0" * 64, 16, window)
        logits = rng.standard_normal((4, 2, 3, about.top)).astype(np.float16)
        numbers = rng.integers(0, classes, logits.shape).astype(np.uint16)
        names = [f"cat/{i}.jpg ({i} bytes)".encode() for i in range(4)]
        write_label_file(SEEDS / f"labels/valid-{name}.safetensors", about, names, logits, numbers)


def read_metadata(name: str) -> dict[str, str]:
    data = (SEEDS / name).read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array))
    return buffer.getvalue()


def images() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 4), dtype=np.uint8)
    pixels[4:20] //= 32  # so that it compresses
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    rgb, rgba = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels)
    grey, palette = Image.fromarray(pixels[..., 0]), rgb.quantize(16)
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    made = {
        "valid-turned.jpg": (rgb, {"exif": exif, "quality": 60}),
        "valid-progressive.jpg": (grey, {"progressive": True}),
        "valid-cmyk.jpg": (rgb.convert("CMYK"), {"quality": 50}),
        "valid-rgba.png": (rgba, {"exif": exif}),
        "valid-palette.png": (palette, {"transparency": 3}),
        "valid-deep.png": (deep, {}),
        "valid-lossy.webp": (rgb, {"quality": 50, "exif": exif}),
        "valid-lossless.webp": (rgba, {"lossless": True}),
        "valid-animation.webp": (rgb, {"save_all": True, "append_images": [rgb.rotate(90)]}),
        "valid-palette.gif": (palette, {}),
        "valid-animation.gif": (palette, {"save_all": True, "append_images": [palette.rotate(90)], "transparency": 2}),
        "valid-rgb.bmp": (rgb, {}),
        "valid-palette.bmp": (palette, {}),
        "valid-plain.tiff": (rgb, {}),
        "valid-lzw.tiff": (rgba, {"compression": "tiff_lzw"}),
        "valid-jpeg.tiff": (rgb, {"compression": "jpeg"}),
        "valid-deflate.tiff": (palette, {"compression": "tiff_adobe_deflate"}),
    }
    for name, (image, options) in made.items():
        buffer = io.BytesIO()
        image.save(buffer, name.rpartition(".")[2].replace("jpg", "jpeg"), **options)
        write(f"image/{name}", buffer.getvalue())


def archives() -> None:
    files = {"top/a": b"one", "top/deep/b": BODY * 4, "top/" + "long" * 20 + "/" + "name" * 20: b"x", "top/empty": b""}
    for kind, number in {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}.items():
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=number) as tar:
            folder = tarfile.TarInfo("top")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        write(f"tgz/valid-{kind}.tgz", gzip.compress(buffer.getvalue(), mtime=0))


def texts() -> None:
    for name in ("shapes", "cait"):
        plan = json.dumps({**asdict(Plan(recipe(name))), "version": "1"}, indent=1)
        write(f"plan/valid-{name}.args.json", plan.encode())
    write("settings/valid-some.txt", b"mixup=0.2\ncrop=padded\nepochs=3\nclip_norm=None\nlr=1e-3\nema_decay=0.99")
    write(
        "settings/valid-others.txt",
        b"loss=bce\nlr_for_batch=512\naccumulate=2\nconstant_lr=true\nprecision=fp32\nseed=7",
    )


def responses() -> None:
    size, head, end = len(BODY), b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (BODY[:100], BODY[100:])) + b"0\r\n\r\n"
    made = {
        "valid-length": head + b'Server: s\r\nETag: "tag"\r\nContent-Length: %d' % size + end + BODY,
        "valid-chunked": head + b"Transfer-Encoding: chunked" + end + chunks,
        "valid-close": head + b"Connection: close" + end + BODY,
        "valid-range": b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-%d/%d" % (size - 1, size) + end + BODY,
        "valid-continue": b"HTTP/1.1 100 Continue" + end + head + b"Content-Length: %d" % size + end + BODY,
        "short": head + b'ETag: "tag"\r\nContent-Length: %d' % size + end + BODY[:99],
        "redirect": b"HTTP/1.1 302 Found\r\nLocation: /other\r\nX-Linked-Size: %d\r\nContent-Length: 0" % size + end,
        "missing": b"HTTP/1.1 404 Not Found\r\nContent-Length: 3" + end + b"no\n",
        "satisfied": b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */9" + end,
    }
    for name, content in made.items():
        write(f"http/{name}.http", content)


if __name__ == "__main__":
    for folder in ("safetensors", "checkpoint", "labels"):
        Path(SEEDS / folder).mkdir(parents=True, exist_ok=True)
    for make in (weights, labels, images, archives, texts, responses):
        make()

"""Images from strangers: every hostile or damaged file gets one sentence, in bounded memory and time."""

import json
import os
import socket
import struct

import pytest
from PIL import Image

import minicait
from minicait.data.formats import MAX_BYTES
from minicait.models.cait import CaiT
from tests.attack import images
from tests.attack.bounded import refused, run
from tests.attack.images import (
    bmp_with_rle,
    chunk,
    directory,
    gif,
    jpeg_of_empty_scans,
    jpeg_with_scans,
    jpeg_with_segments,
    png,
    saved,
    tiff,
)

OTHER = "it is not a JPEG, PNG, WebP, GIF, BMP or TIFF image"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) show\n"
PARTS = "parts of metadata"
VALUES = "strips or other values"

ATTACKS = {  # name: (maker, reason)
    "EPS": (lambda: EPS, OTHER),
    **{kind: (lambda kind=kind: saved(kind, (32, 32)), OTHER)
       for kind in ("ppm", "ico", "tga", "pcx", "sgi", "jpeg2000", "avif", "dds", "icns", "pdf")},
    "text": (lambda: b"<svg></svg>", OTHER),
    "PNG of 13300 x 13300": (lambda: png(13300, 13300, 6, pixels=False), "it has 13,300 x 13,300 pixels; images may"),
    "PNG of 20 billion pixels": (lambda: png(1 << 30, 20, pixels=False), "1,073,741,824 x 20 pixels"),
    "PNG of a row too long": (lambda: png(65536, 1), "65,536 x 1 pixels; images may have 67,108,864, 65,535 a side"),
    "PNG just too large": (lambda: png(8193, 8192, pixels=False), "8,193 x 8,192 pixels"),
    "PNG without pixels": (lambda: png(0, 5), "cannot be read"),
    "JPEG of 65535 x 65535": (lambda: images.jpeg_of_size(65535, 65535), "65,535 x 65,535 pixels"),
    "JPEG of no height": (lambda: images.jpeg_of_size(40, 0), "cannot be read"),
    "WebP of 16383 x 16383": (lambda: images.webp_of_size(16383, 16383), "more than the 67,108,864 pixels"),
    "WebP of 9000 x 9000": (lambda: images.webp_of_size(9000, 9000), "9,000 x 9,000 pixels"),
    "WebP without pixels": (lambda: images.webp_of_size(90, 90), "cannot be read"),
    "sound": (lambda: images.webp_of_size(9, 9).replace(b"WEBP", b"WAVE"), "cannot be read: not a WEBP file"),
    "GIF of a large screen": (lambda: gif((65535, 65535)), "65,535 x 65,535 pixels"),
    "BMP of a billion pixels": (lambda: images.bmp_of_size(1 << 20, 1 << 10), "1,048,576 x 1,024 pixels"),
    "TIFF of 100 GB": (lambda: tiff(width=(256, 4, 1, 1 << 31), height=(257, 4, 1, 50)), "2,147,483,648 x 50 pixels"),
    "PNG of many chunks": (lambda: png(4, 4, extra=chunk(b"prVt") * 200_000), PARTS),
    "PNG of much metadata": (lambda: png(4, 4, extra=chunk(b"prVt", bytes(17 << 20))), PARTS),
    "PNG of many chunks after pixels": (lambda: png(4, 4)[:-12] + chunk(b"prVt") * 200_000 + chunk(b"IEND"), PARTS),
    "GIF of long comments": (lambda: gif(extension=b"!\xfe" + b"\x01a" * 600_000 + b"\0"), PARTS),
    "GIF of hidden comments": (lambda: gif(extension=b"!\xf9\0\x01,\0!\xfe" + b"\x01a" * 600_000 + b"\0"), PARTS),
    "JPEG of much EXIF": (lambda: jpeg_with_segments(300), PARTS),
    "JPEG of many segments": (lambda: jpeg_with_segments(300_000, b"", 0, b"\xff\xe9"), "segments"),
    "JPEG of many scans": (lambda: jpeg_with_scans(101), "it has more than 100 scans"),
    "JPEG of a thousand scans": (lambda: jpeg_with_scans(1000, (2000, 2000)), "it has more than 100 scans"),
    "JPEG of empty scans": (lambda: jpeg_of_empty_scans(101), "it has more than 100 scans"),
    "JPEG of many empty scans": (lambda: jpeg_of_empty_scans(20_000, 0xC9), "it has more than 100 scans"),
    "BMP of run-length encoding": (lambda: bmp_with_rle(1 << 22), "BMP images with RLE may have 4,194,304"),
    "TIFF of many strips": (lambda: tiff(bytes(1_200_000), offsets=(273, 4, 300_000, 200)), VALUES),
    "TIFF of many tags": (lambda: b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 1 << 60) + bytes(6_000_000), VALUES),
    "TIFF of long EXIF": (lambda: tiff(directory((0x9000, 3, 300_000, 200)) + bytes(600_000), [(34665, 4, 1, 200)]),
                          VALUES),
    "TIFF of odd EXIF": (lambda: tiff(next_to_it=[(34665, 1, 1, 200)]), "its directories are damaged"),
    "TIFF in a circle": (lambda: tiff(directory((34665, 4, 1, 200)), [(34665, 4, 1, 200)]), "more than 8 directories"),
    "TIFF of many samples": (lambda: tiff(samples=(277, 4, 1, 1 << 31)), "cannot be read"),
    "TIFF of large tiles": (lambda: tiff(
        compression=(259, 3, 1, 8), offsets=(322, 4, 1, 60000), rows=(323, 4, 1, 60000), lengths=(324, 4, 1, 200),
        next_to_it=[(325, 4, 1, 90)]), "tiles of 60,000 x 60,000 pixels"),
    "TIFF of long tiles": (lambda: tiff(
        compression=(259, 3, 1, 8), offsets=(322, 4, 1, 60000), rows=(323, 4, 1, 30000), lengths=(324, 4, 1, 200),
        next_to_it=[(325, 4, 1, 90)]), "tiles of 60,000 x 30,000 pixels"),
    "TIFF of a damaged JPEG": (lambda: saved("tiff", compression="jpeg").replace(b"\xff\xda", b"\xff\x02"),
                               "cannot be read"),
    "TIFF of much EXIF": (lambda: tiff(next_to_it=[(34665, 4, 9, 200)]), "its directories are damaged"),
    "TIFF of floats": (lambda: saved("tiff", mode="F"), "floating-point numbers of unknown range"),
    "TIFF that ends": (lambda: b"II*\0", "cannot be read"),
    "GIF that ends": (lambda: b"GIF89a", "cannot be read"),
    "BMP that ends": (lambda: b"BM", "cannot be read"),
}  # fmt: skip


@pytest.fixture(scope="module")
def predict(tmp_path_factory):
    """Arguments of `minicait predict` with a small model."""
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    minicait.save_weights(CaiT(num_classes=3, img_size=32, patch_size=16, dim=16, heads=2, depth=1), path)
    return ["predict", "--device", "cpu", "--weights", path]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with all of them."""
    folder = tmp_path_factory.mktemp("hostile")
    for i, (make, _) in enumerate(ATTACKS.values()):
        (folder / f"{i}.jpg").write_bytes(make())
    return folder


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_images_are_refused(name, predict, hostile):
    path = hostile / f"{list(ATTACKS).index(name)}.jpg"
    result = refused(*predict, path, because=ATTACKS[name][1], megabytes=250, seconds=5)
    assert f"{path} cannot be read: " in result.err


def test_all_of_them_can_be_skipped(predict, hostile, tmp_path):
    (tmp_path / "good.jpg").write_bytes(saved("jpeg"))
    result = run(*predict, "--skip-bad-images", "--json", hostile, tmp_path)
    good, *bad = json.loads(result.out)
    assert result.code == 0 and good["file"].endswith("good.jpg") and len(bad) == len(ATTACKS)
    lines = result.err.splitlines()
    assert len(lines) == len(ATTACKS) and result.megabytes < 600
    for i, (_, reason) in enumerate(ATTACKS.values()):
        assert any(f"/{i}.jpg cannot be read: " in line and reason in line for line in lines), i


GOOD = {
    **{kind: lambda kind=kind: saved(kind) for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff")},
    **{f"pixel of {kind}": lambda kind=kind: saved(kind, (1, 1)) for kind in ("jpeg", "png", "webp", "gif", "tiff")},
    **{f"moving {kind}": lambda kind=kind: saved(kind, save_all=True, append_images=[Image.new("RGB", (40, 30))] * 3)
       for kind in ("gif", "webp", "png", "tiff")},
    "MPO": lambda: saved("mpo", save_all=True, append_images=[Image.new("RGB", (40, 30))]),
    "interlaced PNG": lambda: saved("png", interlace=1),
    "progressive JPEG": lambda: saved("jpeg", progressive=True),
    "JPEG of a hundred scans": lambda: jpeg_with_scans(100),
    "JPEG of three scans": lambda: jpeg_of_empty_scans(3),
    "BMP with some RLE": lambda: bmp_with_rle(1000),
    "JPEG with a profile": lambda: saved("jpeg", icc_profile=bytes(2_000_000)),
    "JPEG with a video behind it": lambda: saved("jpeg", progressive=True) + b"\xff\xda" * 1000,
    "CMYK in a TIFF": lambda: saved("tiff", mode="CMYK"),
    "JPEG in a TIFF": lambda: saved("tiff", compression="jpeg"),
    "TIFF in tiles": lambda: tiff(bytes(256), compression=(259, 3, 1, 1), offsets=(322, 3, 1, 16), rows=(323, 3, 1, 16),
                                  lengths=(324, 4, 1, 200), next_to_it=[(325, 4, 1, 256)]),
    "TIFF of many strips": lambda: tiff(bytes(100) + struct.pack("<10I", *range(200, 300, 10)),
                                        offsets=(273, 4, 10, 300), rows=(278, 4, 1, 1)),
    "PNG of some chunks": lambda: png(4, 4, extra=chunk(b"prVt") * 5_000),
    "GIF of a comment": lambda: gif(extension=b"!\xfe" + b"\x05hello" * 1000 + b"\0"),
    "PNG of one row": lambda: png(60000, 1),
    "PNG of one column": lambda: png(1, 60000),
    "PNG of one long row": lambda: png(65535, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_honest_images_are_read(name, predict, tmp_path):
    (tmp_path / "a").write_bytes(GOOD[name]())
    result = run(*predict, tmp_path / "a")
    assert result.code == 0 and result.err == "" and result.out.count("%  class ") == 3, result
    assert result.megabytes < 250 and result.seconds < 5


SIDE = 3072
LARGE = {  # name: (maker, bytes per pixel)
    "RGBA": (lambda: png(SIDE, SIDE, 6), 10),
    "grey with alpha": (lambda: png(SIDE, SIDE, 4), 10),
    "grey of 16 bits": (lambda: png(SIDE, SIDE, 0, 16), 8),
    "progressive": (lambda: saved("jpeg", (SIDE, SIDE), progressive=True), 14),
    "WebP": (lambda: saved("webp", (SIDE, SIDE), quality=1, method=0), 17),
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_is_bounded_by_the_number_of_pixels(name, predict, tmp_path):
    make, bytes_per_pixel = LARGE[name]
    (tmp_path / "a").write_bytes(make())
    small = run(*predict, "--threads", 1, tmp_path / "nothing").megabytes
    result = run(*predict, "--threads", 1, tmp_path / "a")
    assert result.code == 0, result
    assert (result.megabytes - small) * 2**20 < bytes_per_pixel * SIDE**2 + (20 << 20), result.megabytes - small


def test_the_largest_image_is_read(predict, tmp_path):
    (tmp_path / "a").write_bytes(png(8192, 8192, 0, 1))
    result = run(*predict, tmp_path / "a")
    assert result.code == 0 and result.megabytes < 500, result


def test_files_of_other_kinds(predict, tmp_path):
    """Pipes, sockets, folders and devices block nothing, whether they are named or in a folder."""
    os.mkfifo(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "c.jpg"))
    (tmp_path / "d.jpg").symlink_to("/dev/zero")
    (tmp_path / "e.jpg").symlink_to("e.jpg")
    (tmp_path / "f.jpg").symlink_to("nowhere")
    (tmp_path / "g.jpg").write_bytes(saved("jpeg"))
    for name in "acdef":
        refused(*predict, tmp_path / f"{name}.jpg", because="there is no image")
    refused(*predict, tmp_path / "b.jpg", because="has no images")
    result = run(*predict, tmp_path, "--json", seconds=10)
    assert [r["file"] for r in json.loads(result.out)] == [str(tmp_path / "g.jpg")]
    for name in "acd":
        with pytest.raises(minicait.data.BadImageError, match="it is not an ordinary file"):
            minicait.data.Picture(tmp_path / f"{name}.jpg")


def test_a_sparse_file_is_not_read(predict, tmp_path):
    with (tmp_path / "a.jpg").open("wb") as file:
        file.write(saved("jpeg"))
        file.truncate(3 << 30)
    refused(*predict, tmp_path / "a.jpg", because=f"it has 3,221,225,472 bytes; images may have {MAX_BYTES:,}")
    with (tmp_path / "a.jpg").open("r+b") as file:
        file.truncate(50 << 20)
    assert run(*predict, tmp_path / "a.jpg").code == 0


def test_eval_skips_bad_images_and_says_so(predict, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"data/{name}").mkdir(parents=True)
        (tmp_path / f"data/{name}/good.png").write_bytes(saved("png"))
    (tmp_path / "data/b/bad.png").write_bytes(png(13300, 13300, 6, pixels=False))
    command = ["eval", *predict[1:], "--data", tmp_path / "data"]
    refused(*command, because="bad.png cannot be read: it has 13,300 x 13,300 pixels")
    result = run(*command, "--skip-bad-images")
    assert result.code == 0 and "3 images of 32 pixels" in result.out and "skipped: " in result.out, result
    for folder in "abc":
        (tmp_path / f"data/{folder}/good.png").write_bytes(b"none")
    refused(*command, "--skip-bad-images", because="there is no image to evaluate on")


@pytest.mark.parametrize("ratio", ["1e-300", "0", "-1", "nan", "inf", "1.01", "0.0099"])
def test_crop_ratios(ratio, predict):
    refused("eval", *predict[1:], "--crop-ratio", ratio, because="--crop-ratio must be from 0.01 to 1, got ")


def test_the_smallest_crop_ratio(predict, tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(60000, 3))
        (tmp_path / name / "b.png").write_bytes(saved("png"))
    result = run("eval", *predict[1:], "--data", tmp_path, "--crop-ratio", "0.01", "--img-size", "224")
    assert result.code == 0 and result.megabytes < 300, result

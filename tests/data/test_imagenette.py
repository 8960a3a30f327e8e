"""A small Imagenette from a local server: downloaded once, complete, and robust against interruptions."""

import errno
import hashlib
import importlib
import io
import os
import re
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from minicait.data import imagenet_classes
from minicait.data.imagenette import ARCHIVES, Archive, imagenette
from minicait.files.archive import _extract_member
from minicait.files.download import DownloadError
from tests.local_server import local_server

module = importlib.import_module("minicait.data.imagenette")  # the package exports a function of the same name
NAME = "imagenette2-160"
ADDRESS = f"/{NAME}.tgz"
CLASSES = {  # by WordNet ID, the name of the folder in train/ and val/; in ImageNet's order
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def pictures():
    """{path: content} of two noisy images of every class, one for training and one for validation."""
    rng = np.random.default_rng(0)
    files = {}
    for part in ("train", "val"):
        for number in CLASSES:
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(buffer, "jpeg", quality=95)
            files[f"{part}/{number}/{number}_{part}.JPEG"] = buffer.getvalue()
    return files


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{NAME}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PICTURES = pictures()
TGZ = packed(PICTURES)


def announced(content):
    return Archive(NAME, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def server(tmp_path, monkeypatch):
    with local_server() as running:
        running.files[ADDRESS] = TGZ
        monkeypatch.setenv("MINICAIT_IMAGENETTE", running.url)
        monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path))
        monkeypatch.setitem(ARCHIVES, "160", announced(TGZ))
        yield running


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "imagenette"


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_complete(folder):
    assert {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")} == PICTURES
    assert names_in(folder) == ["train", "val"] and names_in(folder.parent) == [NAME]  # no leftovers


def test_it_comes_once(server, cache):
    folder = imagenette()
    assert folder == cache / NAME
    assert_complete(folder)
    assert server.log == [(ADDRESS, None)]
    server.files.clear()
    assert imagenette("160") == folder and len(server.log) == 1


def test_the_sizes_and_classes_are_those_that_fastai_published():
    names = imagenet_classes()
    assert [names.index(name) for name in CLASSES.values()] == [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    assert list(CLASSES) == sorted(CLASSES) and all(re.fullmatch(r"n\d{8}", number) for number in CLASSES)
    assert {size: (a.name, a.size, a.sha256[:8]) for size, a in ARCHIVES.items()} == {
        "160": ("imagenette2-160", 99_003_388, "64d0c485"),
        "320": ("imagenette2-320", 341_663_724, "569b4497"),
        "full": ("imagenette2", 1_557_161_267, "6cbfac23"),
    }
    assert all(re.fullmatch("[0-9a-f]{64}", archive.sha256) for archive in ARCHIVES.values())


def test_it_comes_from_where_fastai_keeps_it(server, monkeypatch):
    def refuse(url, path, sha256, size):
        raise DownloadError(f"{url} -> {path.name}, {size} bytes")

    monkeypatch.delenv("MINICAIT_IMAGENETTE")
    monkeypatch.setattr(module, "download", refuse)
    wanted = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2.tgz -> imagenette2.tgz, 1557161267 bytes"
    with pytest.raises(DownloadError, match=f"^{re.escape(wanted)}$"):
        imagenette("full")


def test_an_interrupted_download_goes_on(server, cache, monkeypatch):
    monkeypatch.setattr("minicait.files.download.TRIES", 1)
    server.cut = 10_000
    with pytest.raises(DownloadError, match=rf"ended early, after 10,000 of {len(TGZ):,} bytes; run the command again"):
        imagenette()
    assert not (cache / NAME).exists()
    server.cut = None
    assert_complete(imagenette())
    assert server.log == [(ADDRESS, None), (ADDRESS, "bytes=10000-")]


def test_an_archive_with_another_hash_is_refused(server, cache):
    server.files[ADDRESS] = TGZ[:-1] + bytes([TGZ[-1] ^ 1])
    with pytest.raises(DownloadError, match="its size or SHA-256 is wrong; it was deleted, try again"):
        imagenette()
    assert names_in(cache) == []
    server.files[ADDRESS] = TGZ
    assert_complete(imagenette())


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_interrupted_unpacking_leaves_no_folder_and_the_archive(server, cache, monkeypatch, interruption):
    seen = []

    def stop_in_the_middle(stream, member, folder):
        seen.append(member.name)
        assert names_in(cache) == sorted([f"{NAME}.tgz", folder.name])
        if len(seen) == len(PICTURES) // 2:
            raise interruption
        _extract_member(stream, member, folder)

    with monkeypatch.context() as patched:
        patched.setattr("minicait.files.archive._extract_member", stop_in_the_middle)
        with pytest.raises((KeyboardInterrupt, DownloadError)) as caught:
            imagenette()
    if isinstance(interruption, OSError):
        assert str(caught.value) == f"could not unpack {cache / NAME}.tgz: No space left on device"
    assert names_in(cache) == [f"{NAME}.tgz"]
    assert_complete(imagenette())
    assert len(server.log) == 1  # the archive was not downloaded again


def test_what_a_killed_process_left_goes_when_it_is_certainly_not_in_use(server, cache):
    for age, name in [(2 * module.DAY, "unpacking-old"), (60, "unpacking-new")]:
        (cache / name / NAME / "train").mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    imagenette()
    assert names_in(cache) == [NAME, "unpacking-new"]
    os.utime(cache / "unpacking-new", (0, 0))
    assert_complete(imagenette())


def test_an_archive_in_the_cache_is_used_if_it_is_as_long_as_it_should_be(server, cache):
    cache.mkdir()
    (cache / f"{NAME}.tgz").write_bytes(TGZ[:-1])
    assert_complete(imagenette())
    assert len(server.log) == 1


def test_a_damaged_archive_in_the_cache_is_not_met_again(server, cache):
    cache.mkdir()
    (cache / f"{NAME}.tgz").write_bytes(TGZ[:2000] + bytes(len(TGZ) - 2000))
    assert_complete(imagenette())
    assert len(server.log) == 1  # its hash is checked before it is unpacked


@pytest.mark.parametrize("content", [{"../../outside": b"x"}, {"train/zeros": bytes(10**6)}])
def test_an_archive_with_other_things_in_it_is_refused(server, cache, monkeypatch, content):
    """Even if its hash is correct."""
    server.files[ADDRESS] = packed(PICTURES | content)
    monkeypatch.setitem(ARCHIVES, "160", announced(server.files[ADDRESS]))
    with pytest.raises(DownloadError, match=rf"holds .*{next(iter(content))}.*; it was deleted, try again"):
        imagenette()
    assert names_in(cache) == [] and names_in(cache.parent) == ["imagenette"]


@pytest.mark.parametrize("name", ["elsewhere/a", NAME])
def test_an_archive_without_the_folder_is_refused_and_not_met_again(server, cache, monkeypatch, name):
    """It has another one, or a file of that name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    server.files[ADDRESS] = buffer.getvalue()
    monkeypatch.setitem(ARCHIVES, "160", announced(buffer.getvalue()))
    with pytest.raises(DownloadError, match=rf"{NAME}\.tgz holds no folder {NAME}; it was deleted, try again"):
        imagenette()
    assert names_in(cache) == []


def test_the_files_are_on_disk_before_the_archive_is_deleted(server, cache, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "sync", lambda: seen.append((names_in(cache)[0], (cache / NAME).exists())))
    assert_complete(imagenette())
    assert seen == [(f"{NAME}.tgz", False)]


@pytest.mark.parametrize("moment", ["before it is opened", "before it is renamed"])
def test_another_process_may_be_faster(server, cache, monkeypatch, moment):
    extract = module.extract

    def overtaken(archive, folder, limit):
        """The other process does everything, up to deleting the archive, before or after this one unpacks."""
        if moment == "before it is renamed":
            extract(archive, folder, limit)
        monkeypatch.setattr(module, "extract", extract)
        assert imagenette() == cache / NAME
        (cache / NAME / "by the other").touch()
        if moment == "before it is opened":
            extract(archive, folder, limit)

    monkeypatch.setattr(module, "extract", overtaken)
    folder = imagenette()
    (folder / "by the other").unlink()
    assert_complete(folder)
    assert len(server.log) == 1


def test_an_unknown_size(server, cache):
    with pytest.raises(ValueError, match=r"^there is no Imagenette of size '224'; the sizes are 160, 320, full$"):
        imagenette("224")
    assert not cache.exists() and server.log == []


def test_without_a_network_it_says_so_in_one_sentence(server, cache):
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadError, match=rf"^could not download {server.url}/imagenette2-160\.tgz: .*refused.*$"):
        imagenette()
    assert names_in(cache) == []

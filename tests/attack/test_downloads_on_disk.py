"""The cache folder: links at temporary names, a full disk, no home, other processes. Nothing is overwritten or lost."""

import fcntl
import hashlib
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from minicait.data.imagenette import imagenette
from minicait.files import download as module
from minicait.files.download import DownloadError, cache_directory, download
from tests.attack.bounded import refused
from tests.local_server import local_server

CONTENT = np.random.default_rng(0).bytes(1_000_000)
TAG = f'"{hashlib.md5(CONTENT).hexdigest()}"'


@pytest.fixture
def server():
    with local_server() as running:
        running.files["/file"] = CONTENT
        yield running


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["file.part", "file.part.etag", "file"])
@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "dangling link", "pipe"])
def test_what_lies_at_a_temporary_name_is_not_written_to(server, tmp_path, name, kind):
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    folder.mkdir()
    victim.write_text(TAG if name.endswith("etag") else "precious")
    before = victim.read_bytes()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "hard link":
        (folder / name).hardlink_to(victim)
    else:
        (folder / name).symlink_to(victim if kind == "symbolic link" else tmp_path / "new")
    path = download(f"{server.url}/file", folder / "file", hashlib.sha256(CONTENT).hexdigest())
    assert path.read_bytes() == CONTENT and not path.is_symlink() and victim.read_bytes() == before
    assert names_in(folder) == ["file"] and names_in(tmp_path) == ["cache", "victim"]


def test_a_tag_that_was_put_there_is_not_sent_if_it_is_none(server, tmp_path):
    """Or a link to a secret would send it to a server."""
    (tmp_path / "file.part").write_bytes(CONTENT[:9])
    (tmp_path / "file.part.etag").write_text("root:x:0:0\r\nX-Injected: yes")
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert server.log == [("/file", None)]


def test_a_full_disk_is_one_sentence_and_what_arrived_stays(server, tmp_path):
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, unlimited[1]))
    try:
        with pytest.raises(
            DownloadError, match=r"file: File too large; [1-4]\d\d,\d\d\d bytes are kept for the next try$"
        ):
            download(f"{server.url}/file", tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    kept = (tmp_path / "file.part").stat().st_size
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert server.log[-1] == ("/file", f"bytes={kept}-")


def test_ctrl_c_keeps_what_arrived(server, tmp_path, monkeypatch):
    class Interrupted(module.tqdm):
        def update(self, n=1):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "tqdm", Interrupted)
        download(f"{server.url}/file", tmp_path / "file")
    kept = (tmp_path / "file.part").stat().st_size
    assert kept > 0 and threading.active_count() < 5
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert server.log[-1] == ("/file", f"bytes={kept}-")


def test_the_file_is_on_disk_before_it_has_its_name(server, tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def record(descriptor):
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, names_in(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    download(f"{server.url}/file", tmp_path / "file")
    assert synced == [("file.part", ["file.part", "file.part.etag"]), (tmp_path.name, ["file"])]


def test_no_home(monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "MINICAIT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(DownloadError, match=r"^there is no home folder to keep downloads in: set MINICAIT_CACHE to"):
        cache_directory()
    with pytest.raises(DownloadError, match="MINICAIT_CACHE"):
        imagenette()
    monkeypatch.setenv("MINICAIT_CACHE", "here")
    assert str(cache_directory()) == "here"


@pytest.mark.parametrize("command", [("weights", "get", "cait_xxs24_224"), ("train", "--data", "imagenette")])
@pytest.mark.parametrize("cache", ["/proc/nowhere", "/dev/null", "/dev/null/below", "x" * 300])
def test_a_cache_that_cannot_be_written(command, cache):
    address = "http://127.0.0.1:9"
    environment = {"MINICAIT_CACHE": cache, "HF_ENDPOINT": address, "MINICAIT_OFFICIAL": address}
    refused(*command, because="", environment={**environment, "MINICAIT_IMAGENETTE": address}, cwd="/proc")


def test_a_process_that_holds_the_folder_is_waited_for_and_then_not(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "MAX_WAIT", 0.3)
    monkeypatch.setattr(module, "SILENT_WAIT", 0.1)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(DownloadError, match=f"another process has been downloading to {tmp_path} for too long"):
        download(f"{server.url}/file", tmp_path / "file")
    assert capsys.readouterr().err == f"waiting for another process that downloads to {tmp_path}\n"
    os.close(other)
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT

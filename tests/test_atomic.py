"""Atomic writes: after a failure, the file is what it was, and nothing else is left."""

import os

import pytest

from minicait.files.atomic import atomic, write_bytes, write_text


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old: é\n")
    with atomic(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_bytes() == "old: é\n".encode()
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append((os.fstat(fd).st_size, (tmp_path / "file").exists())))
    write_bytes(tmp_path / "file", b"four")
    assert flushed == [(4, False)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), OSError(28, "No space left on device")])
def test_an_error_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with pytest.raises(type(error)), atomic(path) as unfinished:
        unfinished.write_bytes(b"half")
        raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    write_bytes(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*file'$"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere/file", tmp_path / "folder", tmp_path / ("x" * 252)):
        with pytest.raises(OSError) as caught:
            write_text(path, "text")
        assert caught.value.filename == str(path) and caught.value.filename2 is None
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/file")
    for text in ("one", "two"):
        write_text(link, text)
        assert link.is_symlink() and (tmp_path / "there/file").read_text() == text


def test_permissions_are_the_usual_ones(tmp_path):
    (tmp_path / "plain").touch()
    write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode

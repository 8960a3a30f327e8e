"""Atomic writes: after a failure, the file is what it was, and nothing else is left."""

import os

import pytest

from minicait.files.atomic import atomic, check_destination, write_bytes, write_text


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old: é\n")
    with atomic(path) as file:
        file.write(b"new")
        assert path.read_bytes() == "old: é\n".encode()
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append((os.fstat(fd).st_size, (tmp_path / "file").exists())))
    write_bytes(tmp_path / "file", b"four")
    assert flushed[0] == (4, False)
    assert len(flushed) == 2 and flushed[1][1], "the folder is flushed once the file has its name"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), OSError(28, "No space left on device")])
def test_an_error_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with pytest.raises(type(error)), atomic(path) as file:
        file.write(b"half")
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
    for path in (tmp_path / "nowhere/file", tmp_path / "folder", tmp_path / ("x" * 256)):
        with pytest.raises(OSError) as caught:
            write_text(path, "text")
        assert caught.value.filename == str(path) and caught.value.filename2 is None
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_link_is_replaced_and_its_target_stays(tmp_path):
    (tmp_path / "target").write_text("precious")
    link = tmp_path / "link"
    link.symlink_to("target")
    write_text(link, "new")
    assert not link.is_symlink() and link.read_text() == "new" and (tmp_path / "target").read_text() == "precious"


def test_old_leftovers_of_killed_processes_are_removed(tmp_path):
    old, new = tmp_path / ".minicait-0123.tmp", tmp_path / ".minicait-4567.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    check_destination(tmp_path / "file")
    assert not old.exists() and new.exists(), "another process may still write to a new one"


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    with atomic(tmp_path / "file") as one:
        one.write(b"one")
        write_bytes(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"


def test_the_file_before_it_is_kept_on_request(tmp_path):
    path, previous = tmp_path / "file", tmp_path / "previous"
    for text in (b"one", b"two", b"three"):
        with atomic(path, previous) as file:
            file.write(text)
    assert path.read_bytes() == b"three" and previous.read_bytes() == b"two"
    with pytest.raises(ValueError), atomic(path, previous) as file:
        raise ValueError
    assert path.read_bytes() == b"three" and previous.read_bytes() == b"two"


def test_names_that_are_no_text_are_escaped(tmp_path):
    write_text(tmp_path / "file", "caf\udce9")
    assert (tmp_path / "file").read_text() == r"caf\udce9"


def test_permissions_are_the_usual_ones(tmp_path):
    (tmp_path / "plain").touch()
    write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode

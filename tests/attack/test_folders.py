"""Folders of images from strangers: names that are no text, links, folders that cannot be read, files that vanish."""

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import minicait
from minicait.cli import main
from minicait.data import BadImageError, Loader, train_and_val
from minicait.data.folder import images_in
from minicait.models.cait import CaiT
from tests.attack.bounded import refused, run
from tests.attack.images import saved

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text, and permissions differ")
LATIN = "caf\udce9"  # é in Latin-1
NASTY = "\x1b[2J\u202ered\n\x07"
TRAIN = ["train", "--device", "cpu", "--preset", "tiny", "--img-size", "16", "--patch-size", "8", "--batch-size", "4",
         "--epochs", "1"]  # fmt: skip


def fill(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(saved("jpeg"))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "w.safetensors"
    model = CaiT(num_classes=2, img_size=32, patch_size=16, dim=16, heads=2, depth=1)
    minicait.save_weights(model, path, ["blue", NASTY])
    return path


@pytest.mark.parametrize("layout", ["{}", "train/{}"])
def test_a_class_that_is_no_text_is_found_out_first(layout, tmp_path):
    for name in ("dog", LATIN):
        fill(tmp_path / "photos" / layout.format(name), "1.jpg", "2.jpg", "3.jpg")
    with pytest.raises(ValueError, match="is not valid UTF-8; rename the folder"):
        train_and_val(tmp_path / "photos")
    result = run(*TRAIN, "--data", tmp_path / "photos", "--out", tmp_path / "runs")
    assert result.code == 2 and "is not valid UTF-8" in result.err and result.err.count("\n") == 1, result
    assert not (tmp_path / "runs").exists()


def test_names_of_files_that_are_no_text(weights, tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / "photos" / name, f"{LATIN}.jpg", f"{NASTY}.jpg", "a.jpg", "b.jpg")
    result = run(*TRAIN, "--data", tmp_path / "photos", "--out", tmp_path / "runs")
    assert result.code == 0, result
    predict = ["predict", "--device", "cpu", "--weights", weights, tmp_path / "photos/cat"]
    result = run(*predict)
    lines = result.out.splitlines()
    assert result.code == 0 and len(lines) == 12 and all(line.isprintable() for line in lines)
    assert sum(r"/caf\udce9.jpg" in line for line in lines) == 1
    assert sum(r"/\x1b[2J\u202ered\n\x07.jpg" in line for line in lines) == 1
    assert sum(line.endswith(r"%  \x1b[2J\u202ered\n\x07") for line in lines) == 4  # the class
    results = json.loads(run(*predict, "--json").out)
    files = [result["file"].rpartition("/")[2] for result in results]
    assert sorted(files) == sorted([r"caf\udce9.jpg", f"{NASTY}.jpg", "a.jpg", "b.jpg"])
    assert {guess["class"] for guess in results[0]["guesses"]} == {"blue", NASTY}


def test_skipped_files_are_named_without_escapes(weights, tmp_path):
    fill(tmp_path / "photos", "a.jpg")
    for name in (LATIN, NASTY):
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(b"no image")
    result = run("predict", "--weights", weights, "--skip-bad-images", "--json", tmp_path / "photos")
    lines = result.err.splitlines()
    assert result.code == 0 and len(lines) == 2 and all(line.isprintable() for line in lines), result
    json.dumps(json.loads(result.out), ensure_ascii=False).encode()  # no half of a pair


def test_two_classes_of_one_name(tmp_path):
    for name in ("n01440764", "tench"):
        fill(tmp_path / name, "1.jpg", "2.jpg")
    train, val = train_and_val(tmp_path)
    assert train.classes == ["tench", "tench"] and len(val) == 2
    assert [label for _, label in train.samples] == [0, 1]


@contextmanager
def as_nobody():
    """Without the privileges of root, which reads every folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public():
    """A folder that others may read, unlike those of pytest."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for folder in path.rglob("*"):
        folder.chmod(0o700)
    shutil.rmtree(path)


@pytest.mark.parametrize("locked", ["cat", "cat/more", "."])
def test_a_folder_that_cannot_be_read_is_named(locked, public):
    fill(public / "photos/cat/more", "1.jpg", "2.jpg")
    fill(public / "photos/dog", "1.jpg", "2.jpg")
    folder = public / "photos" / locked
    with as_nobody():
        assert len(images_in(public / "photos")) == 4
    folder.chmod(0)
    with as_nobody():
        for read in (train_and_val, images_in):
            with pytest.raises(PermissionError) as error:
                read(public / "photos")
            assert Path(error.value.filename).is_relative_to(folder)
    folder.chmod(0o755)


def test_predict_names_a_folder_that_cannot_be_read(weights, tmp_path, monkeypatch, capsys):
    fill(tmp_path / "photos/inner", "1.jpg")
    fill(tmp_path / "photos", "1.jpg")
    scan = os.scandir

    def denied(path):
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert main(["predict", "--weights", str(weights), str(tmp_path / "photos")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/photos/inner cannot be read" in error and "Permission denied" in error
    assert error.count("\n") == 1


def test_links_in_a_circle(weights, tmp_path):
    fill(tmp_path / "photos/cat", "1.jpg", "2.jpg")
    fill(tmp_path / "photos/dog", "1.jpg", "2.jpg")
    (tmp_path / "photos/cat/up").symlink_to("..")
    (tmp_path / "photos/cat/self").symlink_to("self")
    (tmp_path / "photos/bird").symlink_to("dog")  # a class may be a link
    train, val = train_and_val(tmp_path / "photos")
    assert len(train) + len(val) == 6 and train.classes == ["bird", "cat", "dog"]
    result = run("predict", "--weights", weights, "--json", tmp_path / "photos", seconds=10)
    assert result.code == 0 and len(json.loads(result.out)) == 4


def test_files_that_vanish(weights, tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / name, "1.jpg", "2.jpg")
    train, _ = train_and_val(tmp_path)
    path = train.samples[0][0]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=path.name):
        train.fingerprint()
    with pytest.raises(BadImageError, match=r"cat/.\.jpg cannot be read: No such file or directory"):
        train[0]
    loader = Loader(train, 2, skip_bad=True, transform=lambda picture, _: picture.decode())
    assert sum(len(batch.labels) for batch in loader) == 1 and list(loader.bad) == [0]
    shutil.rmtree(tmp_path / "cat")
    with pytest.raises(FileNotFoundError, match="cat"):
        images_in(tmp_path / "cat")
    refused("predict", "--weights", weights, tmp_path / "cat", because="there is no image")

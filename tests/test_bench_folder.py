"""minicait bench --work folder, and prediction of files: images are read while others are computed."""

import json
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minicait import create_model
from minicait.bench import torch_side
from minicait.bench.folder import SIZE, drawn_folder
from minicait.cli import main
from minicait.data.loader import Loader
from minicait.data.picture import BadImageError, Picture
from minicait.data.transforms import evaluation
from minicait.train.evaluate import evaluate, predict, predict_files

TINY = ["bench", "--model", "cait_tiny_32", "--work", "folder", "--rounds", "1", "--threads", "1"]


class Meeting:
    """Make the third image and the computation of the first batch wait for each other: neither goes on alone."""

    def __init__(self):
        self.computing, self.read = threading.Event(), threading.Event()

    def third_image(self):
        assert self.computing.wait(30), "the third image is read before the first batch is computed"
        self.read.set()

    def compute(self, model, images, *_):
        self.computing.set()
        assert self.read.wait(30), "no image is read while a batch is computed"
        return np.zeros((len(images), 10), np.float32)


def test_predict_reads_files_while_it_computes(monkeypatch):
    meeting = Meeting()
    monkeypatch.setitem(predict_files.__globals__, "FILES", 2)
    monkeypatch.setitem(predict_files.__globals__, "predict", meeting.compute)
    real = evaluation(32)

    def transform(picture, rng):
        if picture.path.name == "00002.jpg":
            meeting.third_image()
        return real(picture, rng)

    with drawn_folder(5) as folder:
        paths = sorted(Path(folder).iterdir())
        found = list(predict_files(create_model("cait_tiny_32", 10), paths, transform, threads=2))
    assert [path for path, _ in found] == paths and found[0][1].shape == (10,)


def test_eval_reads_images_while_it_computes(monkeypatch):
    meeting = Meeting()

    class Images(list):
        classes = ("a",)

        def __getitem__(self, index):
            if index == 2:
                meeting.third_image()
            return np.zeros((32, 32, 3), np.uint8), 0

    monkeypatch.setitem(predict_files.__globals__, "predicted_logits", meeting.compute)
    scores = evaluate(create_model("cait_tiny_32", 10), Loader(Images(range(5)), 2, threads=2))
    assert scores.top1 == 1


def test_logits_of_files_are_those_of_their_images(tmp_path):
    model, transform = create_model("cait_tiny_32", 10), evaluation(32)
    with drawn_folder(3) as folder:
        paths = sorted(Path(folder).iterdir())
        found = list(predict_files(model, paths, transform, threads=2))
        images = np.stack([transform(Picture(path), None) for path in paths])
    assert np.array_equal(np.stack([logits for _, logits in found]), predict(model, images))


def test_a_file_that_cannot_be_read(tmp_path):
    model, transform = create_model("cait_tiny_32", 10), evaluation(32)
    good, bad = tmp_path / "a.png", tmp_path / "b.jpg"
    Image.new("RGB", (40, 40)).save(good)
    bad.write_bytes(b"no image")
    with pytest.raises(BadImageError, match=r"b\.jpg cannot be read"):
        list(predict_files(model, [good, bad], transform))
    skipped = []
    found = list(predict_files(model, [bad, good], transform, skip=lambda *what: skipped.append(what)))
    assert [path for path, _ in found] == [good] and [path for path, _ in skipped] == [bad]


def test_the_folder_is_drawn_and_removed():
    with drawn_folder(3) as folder:
        paths = sorted(Path(folder).iterdir())
        assert len(paths) == 3 and len({path.read_bytes() for path in paths}) == 3
        assert all(Picture(path).size == SIZE and 50_000 < path.stat().st_size < 200_000 for path in paths)
    assert not Path(folder).exists()


def test_throughput_of_a_folder(capsys):
    assert main([*TINY, "--batch", "3"]) == 0
    assert "cait_tiny_32, batch 3, prediction of JPEG files, 1 thread," in capsys.readouterr().out
    assert main([*TINY, "--batch", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["batch"] == 3 and result["folder"] is None and "on_cores" not in result


@pytest.mark.parity
def test_a_folder_beside_timm(capsys):
    if find_spec("timm") is None:  # importing it here would fail where torchvision lacks its compiled part
        pytest.skip("timm is not installed: pip install -e '.[compare]'")
    assert main([*TINY, "--batch", "3", "--against", "timm", "--json"]) == 0
    ours, theirs = json.loads(capsys.readouterr().out)["sides"]
    assert ours["worker_cpu"] == 0 < theirs["worker_cpu"]  # which reads the files


@pytest.mark.parity
def test_both_sides_see_the_same_pixels():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    with drawn_folder(1) as folder:
        (path,) = Path(folder).iterdir()
        ours = evaluation(64, 0.9)(Picture(path), None)
        np.testing.assert_allclose(torch_side.Files([path], 64, 0.9)[0].numpy(), ours, atol=1e-5)

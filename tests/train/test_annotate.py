"""Annotators: whole images, by patches or by windows; stopped anywhere, a file ends with the same bytes."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import minicait
from autograd.kernels import softmax
from minicait.cli import main
from minicait.data import BadImageError, Picture, train_and_val
from minicait.data.label_file import open_label_file
from minicait.data.picture import normalise
from minicait.data.token_labels import dense
from minicait.train import annotate as module
from minicait.train.annotate import Annotator, annotate, strongest
from minicait.train.evaluate import predict
from tests.data.test_crops import photograph
from tests.models.small_models import SMALL_MODELS
from tests.train.runs import ROOT

CLASSES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for i, name in enumerate(CLASSES):
        (root / name).mkdir()
        for j in range(5):
            photograph(30 + 4 * j, 44 - 3 * i, seed=10 * i + j).save(root / name / f"{j}.png")
    return root


@pytest.fixture(scope="module")
def images(photos):
    return train_and_val(photos, None)[0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model that classifies patches and one that does not, of more classes than the data, in another order."""
    folder = tmp_path_factory.mktemp("weights")
    names = ["owl", *CLASSES[::-1], "rat"]
    for kind in ("lvvit", "deit"):
        model = SMALL_MODELS[kind](num_classes=len(names), seed=3)
        rng = np.random.default_rng(0)
        for name, p in model.named_parameters():
            if name.endswith(".weight") and p.ndim > 1:
                p.data[...] = rng.normal(0, 0.5, p.shape)  # so that images differ
        minicait.save_weights(model, folder / f"{kind}.safetensors", names, mean=(0.5, 0.4, 0.3))
    return {kind: str(folder / f"{kind}.safetensors") for kind in ("lvvit", "deit")}


def whole(path, side, box=None):
    """The pixels of an image, or of a box in it, squashed to a square."""
    image = Picture(path).decode()
    image = image if box is None else image.crop(box)
    return normalise(np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)), (0.5, 0.4, 0.3))


@pytest.mark.parametrize("side", [None, 24])
def test_the_patches_of_whole_images(weights, images, tmp_path, side):
    annotator = Annotator(weights["lvvit"], CLASSES, side)
    cells = (side or 16) // 4
    assert annotator.cells == (cells, cells) and annotator.looks == 1
    file = annotate(images, annotator, tmp_path / "maps.safetensors")
    model, info = minicait.load_model(weights["lvvit"], side)
    of_data = [info.class_names.index(name) for name in CLASSES]
    for number in (0, 17, 34):
        pixels = whole(images.samples[number][0], side or 16)
        tokens = model.outputs(pixels[None]).tokens.numpy()[0].reshape(cells, cells, -1)[..., of_data]
        logits, classes = file.read(number)
        np.testing.assert_array_equal(classes, np.argsort(-tokens, axis=-1)[..., :5])
        differences = np.diff(np.take_along_axis(tokens, classes.astype(int), -1), axis=-1)
        np.testing.assert_allclose(np.diff(logits.astype(float), axis=-1), differences, atol=0.01)


def test_the_windows_of_an_image(weights, images, tmp_path):
    """Four cells on a side, of which the outer ones look at windows that were moved inside."""
    annotator = Annotator(weights["deit"], CLASSES, cells=4, window=0.5)
    assert annotator.cells == (4, 4) and annotator.looks == 16
    file = annotate(images, annotator, tmp_path / "maps.safetensors")
    model, info = minicait.load_model(weights["deit"])
    of_data = [info.class_names.index(name) for name in CLASSES]
    path = images.samples[9][0]
    width, height = Picture(path).size
    starts = [0, 0.125, 0.375, 0.5]
    down, across = ([(round(s * n), round((s + 0.5) * n)) for s in starts] for n in (height, width))
    boxes = [(left, top, right, bottom) for top, bottom in down for left, right in across]
    logits = predict(model, np.stack([whole(path, 16, box) for box in boxes]))[:, of_data].reshape(4, 4, -1)
    halves, classes = strongest(logits, 5)
    np.testing.assert_array_equal(file.read(9)[1], classes)
    np.testing.assert_allclose(file.read(9)[0], halves, atol=0.01)


def test_windows_at_the_border_are_shared(weights):
    annotator = Annotator(weights["deit"], CLASSES, cells=7, window=0.5)
    assert annotator.looks == 25 and annotator.of_cell.tolist() == [0, 0, 1, 2, 3, 4, 4]
    one = Annotator(weights["deit"], CLASSES, cells=3, window=1.0)
    assert one.looks == 1 and one.of_cell.tolist() == [0, 0, 0]
    for size in ((1, 1), (1, 300), (5, 2)):
        looks = annotator.transform(Picture(np.asarray(photograph(*size))), None)
        assert looks.shape == (3, 25 * 16, 16) and np.isfinite(looks).all()


@pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("classes", [3, 5, 6, 40])
def test_stored_logits_keep_the_probabilities(shift, classes):
    """Those of the strongest classes are the annotator's, and the others share the rest, wherever its zero is."""
    logits = np.random.default_rng(0).normal(shift, 3, (4, 4, classes)).astype(np.float32)
    halves, numbers = strongest(logits, min(5, classes))
    assert halves.dtype == np.float16 and numbers.dtype == np.uint16
    got, want = softmax(dense(halves, numbers, classes), -1), softmax(logits, -1)
    kept = [np.take_along_axis(p, numbers.astype(int), -1) for p in (got, want)]
    np.testing.assert_allclose(*kept, rtol=0.03, atol=1e-4)  # of float16
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
    assert (np.diff(halves.astype(float), axis=-1) <= 0).all()


def test_logits_that_a_file_cannot_have():
    with pytest.raises(ValueError, match="the model's outputs are not finite"):
        strongest(np.array([[[1e6, 0, 0, 0, 0, 0, 0]]], np.float32), 5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("lvvit", CLASSES, 16, 4), "cells and window are for models without a class for every patch"),
        (("deit", CLASSES, None, 0), "cells must be from 1 to 32, got 0"),
        (("deit", CLASSES, None, 33), "cells must be from 1 to 32, got 33"),
        (("deit", CLASSES, None, 4, 1.5), "window must be from 0.01 to 1, got 1.5"),
        (("deit", ["ant", "yak"]), "cannot label these images: the model does not know 1 of the data's classes: yak"),
    ],
)
def test_annotators_that_cannot_be(weights, settings, sentence):
    kind, *rest = settings
    with pytest.raises(ValueError, match=sentence):
        Annotator(weights[kind], *rest)


# ---- stopped at any time


class Stop(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("kind", ["lvvit", "deit"])
def test_stopped_after_every_batch(weights, images, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 8 if kind == "lvvit" else 40)
    once = annotate(images, Annotator(weights[kind], CLASSES, threads=1), tmp_path / "once.safetensors")
    out, seen = tmp_path / "often.safetensors", []

    def stop(done):
        if seen[-1:] != [done]:  # the first report is of where it went on
            seen.append(done)
            if done < len(images):
                raise Stop

    for threads in range(1, 100):
        try:
            annotate(images, Annotator(weights[kind], CLASSES, threads=1 + threads % 3), out, after_batch=stop)
            break
        except Stop:
            assert not out.exists()
    assert len(seen) == 1 + -(-len(images) // Annotator(weights[kind], CLASSES).batch)
    assert out.read_bytes() == once.path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["often.safetensors", "once.safetensors"]


def test_a_complete_file_stays_as_it_is(weights, images, tmp_path):
    out = tmp_path / "maps.safetensors"
    annotator = Annotator(weights["lvvit"], CLASSES)
    annotate(images, annotator, out)
    before = out.stat()
    (tmp_path / "maps.safetensors.part").write_bytes(b"killed before this was removed")
    assert annotate(images, annotator, out).images
    assert out.stat().st_mtime_ns == before.st_mtime_ns and [p.name for p in tmp_path.iterdir()] == [out.name]
    with pytest.raises(ValueError, match="has other label maps: remove it, or choose another name"):
        annotate(images.first(7), annotator, out)
    with pytest.raises(ValueError, match="has other label maps"):
        annotate(images, Annotator(weights["lvvit"], CLASSES, 24), out)


def test_images_that_cannot_be_read(weights, photos, tmp_path, monkeypatch):
    """A batch of them, some more, and the last one; the others have the maps that they always have."""
    monkeypatch.setattr(module, "BATCH", 4)
    images = train_and_val(photos, None)[0]
    good = annotate(images, Annotator(weights["lvvit"], CLASSES), tmp_path / "good.safetensors")
    bad = [4, 5, 6, 7, 13, 34]
    samples = images.samples
    for number in bad:
        (tmp_path / f"{number}.png").write_bytes(b"no image")
        images.samples[number] = (tmp_path / f"{number}.png", samples[number][1])
    images.root = images.samples[0][0].parents[len(images.samples[0][0].parts) - 2]
    out = tmp_path / "maps.safetensors"
    with pytest.raises(BadImageError, match=r"4.png cannot be read"):
        annotate(images, Annotator(weights["lvvit"], CLASSES), out)
    maps = annotate(images, Annotator(weights["lvvit"], CLASSES), out, skip_bad=True)
    for number in range(35):
        (logits, classes), want = maps.read(number), good.read(number)
        if number in bad:
            assert np.isnan(logits).all() and not classes.any()
        else:
            np.testing.assert_array_equal(classes, want[1])
            np.testing.assert_allclose(logits, want[0], atol=0.01)  # other images in its batch change the rounding


# ---- as a person uses it


def label(*options):
    return main(["label-tokens", "--device", "cpu", *map(str, options)])


def test_the_command(weights, photos, tmp_path, capsys):
    out = tmp_path / "maps.safetensors"
    options = ["--weights", weights["deit"], "--data", photos, "--cells", 3, "--window", 0.4, "--out", out]
    assert label(*options) == 0
    text = capsys.readouterr().out
    for part in ("device: NumPy on", "at 16 pixels", "35 training images, 7 classes", "from 9 windows", "estimate: ",
                 "35 images, ", "images/s", f"label maps: {out}, see {tmp_path / 'maps.png'}"):  # fmt: skip
        assert part in text, part
    assert label(*options) == 0
    assert "complete already" in capsys.readouterr().out
    file = open_label_file(out)
    assert file.cells == (3, 3) and file.description.annotator == "deit.safetensors" and file.description.window == 0.4
    assert str(tmp_path) not in out.read_bytes().decode("latin-1")
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.size[0] > 800 and len(np.unique(np.asarray(picture))) > 100
    assert label(*options[:-1], tmp_path / "few.safetensors", "--train-images", 7) == 0
    assert len(open_label_file(tmp_path / "few.safetensors").images) == 7


def test_shapes_can_be_labelled(tmp_path):
    minicait.save_weights(SMALL_MODELS["lvvit"](), tmp_path / "w.safetensors", minicait.data.shapes.CLASSES)
    out = tmp_path / "maps.safetensors"
    options = ["--weights", tmp_path / "w.safetensors", "--train-images", 9, "--img-size", 32, "--seed", 3]
    assert label(*options, "--difficulty", "hard", "--out", out) == 0
    file = open_label_file(out)
    assert file.cells == (8, 8) and file.images[2] == b"shapes/hard/16/3/2"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", "maps.pt"], "--out must be a file whose name ends in .safetensors, got maps.pt"),
        (["--cells", "0"], "--cells must be at least 1, got 0"),
        (["--cells", "50"], "--cells must be from 1 to 32, got 50"),
        (["--window", "7"], "--window must be from 0.01 to 1, got 7.0"),
        (["--img-size", "17"], "an image of 17 x 17 does not divide into patches of 4"),
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", "shapes"], "cannot label these images: the model does not know 10 of the data's classes: circle"),
        (["--weights", "nothing"], "there is no weights file nothing"),
        (["--out", "/nowhere/maps.safetensors"], "there is no folder /nowhere"),
    ],
)
def test_wrong_input(weights, photos, tmp_path, capsys, options, sentence):
    given = ["--weights", weights["deit"], "--data", photos, "--out", tmp_path / "maps.safetensors", *options]
    assert label(*given) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("minicait: ") and error.count("\n") == 1
    assert not list(tmp_path.glob("*.safetensors*"))


def test_damaged_images_can_be_skipped(weights, photos, tmp_path, capsys):
    data = tmp_path / "data"
    for path in sorted(photos.rglob("*.png")):
        (data / path.parent.name).mkdir(parents=True, exist_ok=True)
        (data / path.parent.name / path.name).write_bytes(path.read_bytes())
    (data / "cat/2.png").write_bytes(b"")
    options = ["--weights", weights["lvvit"], "--data", data, "--out", tmp_path / "maps.safetensors"]
    assert label(*options) == 2
    assert "cat/2.png cannot be read: it is empty; --skip-bad-images skips such images" in capsys.readouterr().err
    assert label(*options, "--skip-bad-images") == 0
    assert "images that could not be read, and have no map: 1" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_stopped_or_killed(weights, photos, tmp_path, number):
    def start(out, *options):
        command = [sys.executable, "-m", "minicait", "label-tokens", "--device", "cpu", "--weights", weights["deit"]]
        command += ["--data", str(photos), "--cells", "16", "--window", "0.2", "--out", str(out), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=environment, **output)

    process = start(tmp_path / "whole.safetensors")
    process.communicate(timeout=60)
    assert process.returncode == 0
    out = tmp_path / "maps.safetensors"
    process = start(out, "--threads", "1")
    for line in process.stdout:
        if line.startswith("estimate: "):
            process.send_signal(number)
            break
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert ("to resume: the same command again" in rest) == (number != signal.SIGKILL) and "Traceback" not in rest
    assert not out.exists() and out.with_name("maps.safetensors.part").stat().st_size > 32
    process = start(out, "--threads", "2")
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "continuing after " in text
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not out.with_name("maps.safetensors.part").exists()

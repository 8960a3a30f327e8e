"""The main job, examples/train_imagenette.py: with photographs, without a network, and what it would do on a GPU."""

import importlib.util
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.cli.guard import guarded
from minicait.data import Source
from minicait.data.imagenette import ARCHIVES
from minicait.train import RECIPES
from tests.data.test_crops import photograph
from tests.data.test_imagenette import ADDRESS, CLASSES, announced, packed
from tests.local_server import local_server
from tests.train.runs import narrow_presets

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _narrow_presets():
    with narrow_presets():
        yield


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_example(monkeypatch, name, *arguments):
    monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
    return guarded(example(name).main, name)


def test_the_main_job_on_imagenette(tmp_path, monkeypatch, capsys):
    """From the download to the picture of the attention, with a small Imagenette on this machine."""
    rng = np.random.default_rng(0)
    files = {}
    for part, count in (("train", 2), ("val", 1)):
        for number in CLASSES:
            for i in range(count):
                path = tmp_path / "image.jpg"
                photograph(90, 70, seed=int(rng.integers(1000))).save(path)
                files[f"{part}/{number}/{i}.JPEG"] = path.read_bytes()
    content = packed(files)
    monkeypatch.setitem(RECIPES, "small", RECIPES["small"].changed(batch_size=8))
    monkeypatch.setitem(ARCHIVES, "160", announced(content))
    monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path / "cache"))
    with local_server() as server:
        server.files[ADDRESS] = content
        monkeypatch.setenv("MINICAIT_IMAGENETTE", server.url)
        options = ["--epochs", 1, "--device", "cpu", "--out", tmp_path / "runs"]
        assert run_example(monkeypatch, "train_imagenette", *options) == 0
    text = capsys.readouterr().out
    parts = [
        "init mimetic", "device: NumPy", "plan: cait_tiny_64 on Imagenette",
        "data: imagenette, 10 classes, 64 pixels, 20 training images, 10 validation images",
        "of the validation images", "attention.png", "index.html", "minicait predict --weights", "minicait eval",
        "--resume",
    ]  # fmt: skip
    for part in parts:
        assert part in text, part
    with Image.open(tmp_path / "runs/imagenette-1/attention.png") as sheet:
        assert sheet.width > 400
    _, info = minicait.load_model(tmp_path / "runs/imagenette-1/weights/best.safetensors")
    assert info.class_names == list(CLASSES.values())


def test_the_main_job_without_a_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINICAIT_IMAGENETTE", "http://127.0.0.1:9")
    monkeypatch.setattr("sys.argv", ["job", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "runs")])
    job = example("train_imagenette")
    monkeypatch.setattr(job, "images_per_second", lambda model, threads: 0.5)  # a machine that needs hours for an epoch
    monkeypatch.setattr(job, "Source", lambda data, **_: Source(data, train_images=64, val_images=20))
    assert guarded(job.main) == 0
    text = capsys.readouterr().out
    assert (
        text.startswith("plan: ")
        and "device: NumPy on" in text
        and "NO IMAGENETTE: could not download http://127.0.0.1:9/" in text
    )
    for part in ("TRAINING ON SHAPES INSTEAD", "of the validation images", "is on the object", "attention.png"):
        assert part in text, part
    for line in text.splitlines()[-3:]:  # the commands, as they stand there
        words = shlex.split(line.partition(":")[2])
        start = next(i for i, word in enumerate(words) if word in ("predict", "eval", "train"))
        assert main(words[start:]) == 0


def test_another_subset_of_imagenet(tmp_path, monkeypatch, capsys):
    for part, count in (("train", 40), ("val", 2)):
        for number in list(CLASSES)[:3]:
            (folder := tmp_path / "photos" / part / number).mkdir(parents=True)
            for i in range(count):
                photograph(90, 70, seed=i).save(folder / f"{i}.jpg")
    options = ["--data", tmp_path / "photos", "--epochs", 1, "--device", "cpu", "--out", tmp_path / "runs"]
    names = list(CLASSES.values())
    assert run_example(monkeypatch, "train_imagenette", *options, "--classes", f"{names[0]},{names[2]}") == 0
    text = capsys.readouterr().out
    assert "plan: cait_tiny_64 on photos, 1 epochs" in text and "2 classes, 64 pixels, 80 training images" in text
    assert "teacher:" not in text
    options += ["--classes", f"{names[0]},{names[1]}", "--teacher", "imagenette"]
    assert run_example(monkeypatch, "train_imagenette", *options) == 0
    text = capsys.readouterr().out
    assert "teacher: imagenette" in text and "distillation hard" in text
    assert run_example(monkeypatch, "train_imagenette", *options, "--teacher", "nobody") == 2
    assert "there is no weights file nobody" in capsys.readouterr().err
    assert run_example(monkeypatch, "train_imagenette", *options, "--classes", "tench,sofa") == 2
    assert "has no class sofa; it has" in capsys.readouterr().err


def test_shapes_take_no_classes(tmp_path, monkeypatch, capsys):
    options = ["--data", "shapes", "--classes", "star", "--device", "cpu", "--out", tmp_path / "runs"]
    assert run_example(monkeypatch, "train_imagenette", *options) == 2
    error = capsys.readouterr().err
    assert "classes are chosen from folders of images, not from shapes" in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_plan_for_a_gpu(capsys, monkeypatch):
    job = example("train_imagenette")
    plan = job.plan_photographs(Source("imagenette"), "cuda", {"epochs": None, "precision": "fp16", "seed": 0})
    assert (plan.model, plan.data.data) == ("cait_xxs24_224", "imagenette-320") and plan.recipe.precision == "fp16"
    assert "342 MB" in capsys.readouterr().out  # what the plan needs, and it is said first
    monkeypatch.setattr("sys.argv", ["job", "--device", "gpu"])
    assert guarded(job.main) == 2 and "unknown device 'gpu'" in capsys.readouterr().err

"""Runs with token labels: stopped and resumed to the bit, and refused where labels do not fit."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from minicait.cli import main
from minicait.data import train_and_val
from minicait.data.loader import Batch
from minicait.models.deit import DeiT
from minicait.train import Recipe, Trainer, recipe
from minicait.train.recipe import RECIPES
from minicait.train.targets import BatchTargets
from tests.data.test_token_labels import labelled, placed
from tests.models.small_models import SMALL_MODELS
from tests.train.runs import assert_same_run, tensors

LVVIT = ["--preset", "lvvit_mini", "--img-size", "16", "--patch-size", "4", "--batch-size", "6", "--epochs", "2",
         "--checkpoint-minutes", "0"]  # fmt: skip
SETTINGS = ["--set", "mix_token=true", "--set", "relabel=0.4", "--set", "rand_augment=9", "--set", "erasing=0.3"]


def train(*options):
    return main(["train", "--device", "cpu", *map(str, options)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder that is split into training and validation images, and label maps of all of them."""
    root = tmp_path_factory.mktemp("data")
    for name in ("cat", "cow", "dog"):
        (root / "photos" / name).mkdir(parents=True)
        for i in range(10):
            placed(40 + i, 30 + len(name) + ord(name[0])).rotate(5 * i).save(root / f"photos/{name}/{i}.png")
    return root


@pytest.fixture(scope="module")
def maps(photos):
    return labelled(photos / "labels.safetensors", train_and_val(photos / "photos", None)[0], cells=(5, 5)).path


@pytest.fixture(scope="module")
def whole(photos, maps, tmp_path_factory):
    """The folder of a run with token labels that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert train("--data", photos / "photos", *LVVIT, *SETTINGS, "--token-labels", maps, "--out", out) == 0
    return out / "photos-lvvit_mini-1"


@pytest.mark.parametrize(("threads", "batch"), [("1", 2), ("2", 5), ("3", 7)])
def test_stopped_and_resumed(photos, maps, whole, tmp_path, monkeypatch, threads, batch):
    real, steps = Trainer.step, []

    def interrupted(self, *given):
        steps.append(1)
        if len(steps) == batch:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    given = ["--data", photos / "photos", *LVVIT, *SETTINGS, "--token-labels", maps, "--out", tmp_path]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert train(*given, "--threads", threads) == 128 + signal.SIGTERM
    assert train("--resume", tmp_path / whole.name, "--threads", 3 - int(threads) % 3) == 0
    assert_same_run(tmp_path / whole.name, whole)


def test_what_the_plan_says(photos, maps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(maps.parent)
    given = ["--data", photos / "photos", *LVVIT, "--epochs", 1, "--token-labels", maps.name, "--out", tmp_path]
    assert train(*given, "--set", "rand_augment=9") == 0
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("token labels: "))
    without = "RandAugment does not rotate, shear or translate"
    assert line == f"token labels: {maps}, 5 x 5 cells for each image, by model.safetensors; {without}"
    plan = json.loads((tmp_path / "photos-lvvit_mini-1/args.json").read_text())
    assert plan["token_labels"] == str(maps) and plan["recipe"]["mix_token"]  # of small-tokens
    assert train(*given, "--train-images", 12, "--keep-side", 20) == 0
    text = capsys.readouterr().out
    assert "12 training images" in text and "RandAugment" not in text


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--data", "photos", "--preset", "lvvit_mini_32"], "small-tokens"),
        (["--data", "photos", "--preset", "lvvit_mini"], "small-tokens"),
        (["--data", "shapes", "--preset", "lvvit_mini"], "small-tokens"),
        (["--data", "photos", "--preset", "lvvit_t"], "lvvit"),
        (["--data", "imagenette", "--preset", "lvvit_t"], "lvvit"),
    ],
)
def test_the_recipe_by_default(monkeypatch, options, name):
    plans = []

    def planned(plan, *_, **__):
        plans.append(plan)
        raise ValueError("enough")

    monkeypatch.setattr("minicait.cli.train.new_run", planned)
    assert train(*options, "--token-labels", "labels.safetensors") == 2
    assert plans[0].recipe == recipe(name)


def test_labels_change_what_is_learned(photos, maps, tmp_path):
    """With the same images: the recipe has nothing that does otherwise when there are token labels."""
    given = ["--data", photos / "photos", *LVVIT, "--epochs", 1, "--recipe", "small-tokens"]
    learned = []
    for name, labels in {"without": [], "again": [], "with": ["--token-labels", maps]}.items():
        assert train(*given, *labels, "--out", tmp_path / name) == 0
        learned.append(tensors(tmp_path / name / "photos-lvvit_mini-1/weights/last.safetensors"))
    without, again, with_maps = learned
    assert all(np.array_equal(without[name], again[name]) for name in without)
    assert not any(np.array_equal(without[name], with_maps[name]) for name in ("head.weight", "aux_head.weight"))


def test_a_changed_file_is_refused(photos, maps, whole, tmp_path, capsys):
    copy = tmp_path / "labels.safetensors"
    shutil.copy(maps, copy)
    given = ["--data", photos / "photos", *LVVIT, "--epochs", 1, "--token-labels", copy, "--out", tmp_path]
    assert train(*given) == 0
    run, before = tmp_path / "photos-lvvit_mini-1", copy.read_bytes()
    labelled(copy, train_and_val(photos / "photos", None)[0], seed=1)
    capsys.readouterr()
    assert train("--resume", run) == 2
    assert f"the token labels {copy} changed since the run started" in capsys.readouterr().err
    copy.write_bytes(before[:-1])
    assert train("--resume", run) == 2
    assert "labels.safetensors is damaged" in capsys.readouterr().err
    copy.unlink()
    assert train("--resume", run) == 2
    assert f"there is no file of label maps {copy}" in capsys.readouterr().err
    copy.write_bytes(before)
    assert train("--resume", run) == 0


WRONG = {
    "a model without a class for each patch": (
        ["--preset", "tiny"],
        "token labels need a model that classifies patches",
    ),
    "mixup": (["--set", "mixup=0.2"], "token labels cannot be mixed by mixup and cutmix; set both to 0"),
    "cutmix": (["--set", "cutmix=1"], "token labels cannot be mixed by mixup and cutmix"),
    "a threshold": (["--recipe", "small-deit3"], "token labels are probabilities, which bce_threshold makes zeros"),
    "no weight": (["--set", "token_weight=0"], "token labels have no effect with token_weight=0"),
    "no file": (["--token-labels", "nowhere"], "there is no file of label maps"),
    "another file": (["--token-labels", __file__], "test_token_runs.py is damaged or not a safetensors file"),
    "other data": (["--data", "shapes"], "labels.safetensors is for other classes: it has 3, the data has 10"),
}


@pytest.mark.parametrize(("options", "sentence"), WRONG.values(), ids=WRONG)
def test_refused(photos, maps, tmp_path, capsys, options, sentence):
    given = ["--data", photos / "photos", *LVVIT, "--token-labels", maps, "--out", tmp_path / "runs", *options]
    assert train(*given) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("minicait: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_relabel_needs_label_maps(tmp_path, capsys):
    assert train(*LVVIT, "--set", "relabel=0.5", "--out", tmp_path / "runs") == 2
    assert "relabel=0.5 needs token labels" in capsys.readouterr().err
    trainer = Trainer(SMALL_MODELS["lvvit"](), Recipe(relabel=0.5), threads=1)
    with pytest.raises(ValueError, match="relabel needs crop_labels among the targets"):
        trainer.step(np.zeros((2, 3, 16, 16), np.float32), np.array([1, 2]))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_labels_of_crops_are_part_of_labels(share):
    """As much as the recipe says; the objective never sees them apart."""
    rng = np.random.default_rng(0)
    soft = rng.dirichlet(np.ones(10), 4).astype(np.float32)
    images = rng.standard_normal((4, 3, 16, 16)).astype(np.float32)
    targets_of = BatchTargets(SMALL_MODELS["lvvit"](), Recipe(relabel=share))
    targets = targets_of(images, {"labels": np.arange(4), "crop_labels": soft, "token_labels": np.zeros((4, 16), int)})
    assert set(targets) == {"labels", "token_labels"}
    one_hot = targets["labels"] if targets["labels"].ndim == 2 else np.eye(10, dtype=np.float32)[targets["labels"]]
    np.testing.assert_allclose(one_hot, (1 - share) * np.eye(10)[:4] + share * soft, rtol=1e-6)


def test_the_recipe():
    small, tokens = recipe("small"), recipe("small-tokens")
    assert (small.init, small.crop_ratio) == ("mimetic", 0.875)
    assert tokens == small.changed(mix_token=True, init="reference", crop_ratio=1.0) and "small-tokens" in RECIPES


def test_mixup_refuses_more_than_labels():
    targets_of = BatchTargets(DeiT(10, 16, 4, 12, 1, 3), Recipe(mixup=0.5))
    batch = Batch(
        np.zeros((2, 3, 16, 16), np.float32), {"labels": np.arange(2), "token_labels": np.zeros((2, 16), int)}
    )
    with pytest.raises(ValueError, match="mixup and cutmix mix labels only, not labels, token_labels"):
        targets_of.mixed(batch, 0)

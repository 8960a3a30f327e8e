"""A small model and a run of it, to be damaged."""

import shutil
import sys

import pytest

import minicait
from minicait.data.shapes import CLASSES
from minicait.models.cait import CaiT
from tests.attack.bounded import run

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py", "fuzz/*"]  # processes are forked and bounded
SMALL = {"img_size": 16, "patch_size": 8, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}
DATA = ["--train-images", "16", "--val-images", "8", "--batch-size", "8", "--epochs", "2", "--checkpoint-minutes", "0"]


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A weights file of a model with 3,694 parameters."""
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    minicait.save_weights(CaiT(**SMALL), path, CLASSES)
    return path


@pytest.fixture(scope="session")
def whole_run(weights, tmp_path_factory):
    """The folder of a run that nothing damaged."""
    out = tmp_path_factory.mktemp("runs")
    result = run("train", "--device", "cpu", "--weights", weights, "--out", out, *DATA)
    assert result.code == 0, result.err
    return out / "shapes-from-weights-1"


@pytest.fixture
def folder(whole_run, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(whole_run, tmp_path / "run")

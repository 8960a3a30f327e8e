"""A run with every family: it trains, is stopped, resumes bit by bit, predicts and evaluates."""

import json
import os
import signal

import pytest

import minicait
from minicait.cli import main
from minicait.cli.train import _model_name
from minicait.data.shapes import CLASSES
from minicait.models import FAMILIES
from minicait.train import Trainer
from tests.train.runs import assert_same_run, log, narrow_presets

PRESETS = ["tiny", "deit_mini", "deit_mini_distilled", "deit3_mini", "resmlp_mini", "patchconvnet_mini",
           "patchconvnet_mini_multi", "lvvit_mini", "grafit_deit_mini"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _narrow_presets():
    with narrow_presets():
        yield


def train(*options):
    return main(["train", "--device", "cpu", *map(str, options)])


def train_and_stop(monkeypatch, *options):
    """Train until the second epoch, where the run is told to end."""
    real, steps = Trainer.step, []

    def interrupted(self, *given):
        steps.append(1)
        if len(steps) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert train(*options) == 128 + signal.SIGTERM


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run(preset, tmp_path, monkeypatch, capsys):
    smoke = ["--preset", preset, "--data", "shapes", "--img-size", 16, "--patch-size", 4, "--smoke"]
    assert train(*smoke, "--out", tmp_path / "whole") == 0
    whole, stopped = (tmp_path / name / f"shapes-{preset}-1" for name in ("whole", "stopped"))
    train_and_stop(monkeypatch, *smoke, "--out", tmp_path / "stopped")
    assert train("--resume", stopped) == 0
    assert_same_run(whole, stopped)
    printed = capsys.readouterr().out

    weights = ["--device", "cpu", "--weights", str(whole / "weights/best.safetensors")]
    assert main(["eval", *weights, "--val-images", "20", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["top1"] == scores["top1_of_data_classes"]
    if preset.startswith("grafit"):  # its memory is computed anew at the end
        assert f"computed anew: top-1 {scores['top1']:.1%}" in printed
    else:
        assert scores["top1"] == max(float(row[name]) for row in log(whole) for name in ("top1", "ema_top1"))
    assert main(["predict", *weights, str(whole / "example.png"), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert {guess["class"] for guess in result["guesses"]} <= set(CLASSES)
    assert minicait.load_model(weights[-1])[1].class_names == list(CLASSES)
    assert json.loads((whole / "args.json").read_text())["model"] == _model_name(preset, "shapes")


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_run_with_a_teacher(kind, tmp_path, monkeypatch, capsys):
    """On one thread, and stopped and resumed on two; but not if the teacher is another."""
    smoke = ["--data", "shapes", "--img-size", 16, "--smoke"]
    assert train(*smoke, "--preset", "tiny", "--out", tmp_path / "teacher") == 0
    teacher, other = (tmp_path / f"teacher/shapes-tiny-1/weights/{name}.safetensors" for name in ("best", "last"))
    smoke += ["--preset", "deit_mini_distilled", "--teacher", teacher, "--set", f"distillation={kind}"]
    assert train(*smoke, "--threads", 1, "--out", tmp_path / "whole") == 0
    whole, stopped = (tmp_path / name / "shapes-deit_mini_distilled-1" for name in ("whole", "stopped"))
    train_and_stop(monkeypatch, *smoke, "--threads", 2, "--out", tmp_path / "stopped")
    own = teacher.read_bytes()
    teacher.write_bytes(other.read_bytes())
    assert train("--resume", stopped, "--threads", 2) == 2
    assert f"the teacher {teacher} changed since the run started" in capsys.readouterr().err
    teacher.write_bytes(own)
    assert train("--resume", stopped, "--threads", 2) == 0
    assert_same_run(whole, stopped)


def test_every_family_has_small_presets():
    """Short names are completed for shapes and for photographs."""
    for preset in PRESETS:
        names = [_model_name(preset, data) for data in ("shapes", "photos")]
        assert [name[-3:] for name in names] == ["_32", "_64"] and names[0].endswith(f"{preset}_32")
    assert {family.name for family in FAMILIES} == {_model_name(p, "shapes").partition("_")[0] for p in PRESETS}


@pytest.mark.parametrize(
    ("short", "name"),
    [("deit_tiny", "deit_tiny_patch16_224"), ("deit3_base", "deit3_base_patch16_224"), ("s60", "patchconvnet_s60_224"),
     ("lvvit_s", "lvvit_s_224"), ("resmlp_12", "resmlp_12_224"), ("small", "cait_small_64"), ("nope", "nope")],
)  # fmt: skip
def test_short_names(short, name):
    assert _model_name(short, "photos") == name

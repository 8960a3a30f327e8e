"""Every example says how to call it; examples/train_cait.py learns; the experiment on training compares as it says."""

import argparse
import json
import re

import pytest

from tests.test_main_job import ROOT, example, run_example

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_help(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        example(name).main()
    text = capsys.readouterr().out
    assert stop.value.code == 0 and f"python examples/{name}.py" in text and "(default: " in text


def test_train_cait_learns(monkeypatch, capsys):
    assert run_example(monkeypatch, "train_cait", "--images", 320, "--epochs", 4, "--batch-size", 16) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "CaiT of 917,650 parameters, 320 images, 80 steps" and len(lines) == 5
    found = [re.fullmatch(r"epoch \d: loss (\d\.\d+), validation accuracy (\d+\.\d)%", line) for line in lines[1:]]
    losses, accuracies = zip(*((float(m[1]), float(m[2])) for m in found if m), strict=True)
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.2
    assert accuracies[-1] > 15  # chance is 10


def test_train_cait_refuses_a_batch_that_cannot_be_made(monkeypatch, capsys):
    assert run_example(monkeypatch, "train_cait", "--images", 8) == 2
    assert capsys.readouterr().err.startswith("train_cait: a batch of 32 cannot be made from 8 images")


def test_a_question_of_the_training_experiment(monkeypatch, tmp_path):
    """With its control, which belongs to another question, too."""
    given = ["--quick", "--only", "recipe", "--epochs", 1, "--out", tmp_path, "--results", tmp_path / "it.json"]
    assert run_example(monkeypatch, "training_experiment", *given) == 0
    results = json.loads((tmp_path / "it.json").read_text())["results"]
    assert [result["row"] for result in results] == ["no teacher", "LAMB, BCE, 3-Augment"]
    assert all(0 <= result[name] <= 1 for result in results for name in ("top1", "ema_top1"))


def test_what_the_training_experiment_measures(monkeypatch, tmp_path):
    """The last weights, and a number of neighbours that is not chosen by its accuracy."""
    module = example("training_experiment")
    row = next(row for row in module.ROWS if row.question == "grafit")
    options = argparse.Namespace(out=tmp_path, quick=True, epochs=1, weights="")
    (tmp_path / "log.csv").write_text("top1,ema_top1,seconds\n0.5,0.4,9\n0.3,0.2,10\n")
    found = dict.fromkeys(("map_cos", "map_conditioned", "map_oracle", "coarse", "mean_cosine", "spread"), 0)
    found["knn"] = {"10": 0.9, "20": 0.6, "30": 0.8}
    commands = []
    monkeypatch.setattr(module.Experiment, "trained", lambda *_: tmp_path)
    monkeypatch.setattr(module, "_minicait", lambda command: commands.append(command) or found)
    result = module.Experiment(options, 0).measured(row)
    assert result["top1"] == 0.3 and result["knn"] == 0.6
    assert len(commands) == 1 and f"--weights {tmp_path}/weights/last.safetensors " in commands[0]

"""Every example says how to call it; examples/train_cait.py learns; the experiment on training compares as it says."""

import argparse
import csv
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from minicait.cli import main
from tests.test_main_job import ROOT, example, run_example
from tests.train.runs import train

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


def test_the_recipe_experiment(monkeypatch, capsys, tmp_path):
    """Two rows on shapes; with a file, a row that it has is not measured again."""
    assert run_example(monkeypatch, "recipe_experiment", "--quick", "--processes", 1) == 0
    text = capsys.readouterr().out
    found = re.findall(r"^(as it is|initial weights of the reference) +(\d+\.\d)% \(0\.0%\), not cropped", text, re.M)
    assert [name for name, _ in found] == ["as it is", "initial weights of the reference"]
    module, calls = example("recipe_experiment"), []

    def measure(job):
        calls.append(job.row)
        return {
            "accuracy": 0.5,
            "whole": 0.4,
            "seen": 0.6,
            "loss": 1.0,
            "seconds": 1.0,
            "curve": [{"epoch": 1, "averaged": 0.5}],
        }

    monkeypatch.setattr(module, "run", measure)
    given = ["--rows", "as it is", "mixup 0.2", "--processes", "1", "--out", str(tmp_path / "recipe.csv")]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["recipe_experiment", *given])
        assert module.main() == 0
    assert calls == ["as it is", "mixup 0.2"]


def test_a_question_of_the_training_experiment(monkeypatch, tmp_path):
    """With its control, which belongs to another question, too."""
    given = ["--quick", "--only", "recipe", "--epochs", 1, "--out", tmp_path, "--results", tmp_path / "it.json"]
    assert run_example(monkeypatch, "training_experiment", *given) == 0
    results = json.loads((tmp_path / "it.json").read_text())["results"]
    assert [result["row"] for result in results] == ["no teacher", "LAMB, BCE, 3-Augment"]
    assert all(0 <= result[name] <= 1 for result in results for name in ("top1", "ema_top1"))


def test_the_training_experiment_keeps_what_is_measured(monkeypatch, tmp_path):
    """Rows in the file are not measured again, its machine is kept, and results of other settings are refused."""
    module, path = example("training_experiment"), tmp_path / "it.json"
    measured = []

    def fake(self, row):
        measured.append((self.seed, row.name))
        return {"question": row.question, "row": row.name, "seed": self.seed, "top1": 0.5, "ema_top1": 0.4,
                "seconds": 1.0, "options": row.options}  # fmt: skip

    monkeypatch.setattr(module.Experiment, "measured", fake)

    def run(*more):
        given = ["--quick", "--only", "recipe", "--out", tmp_path, "--results", path, *more]
        monkeypatch.setattr(module.sys, "argv", ["training_experiment", *map(str, given)])
        return module.main()

    assert run("--machine", "a laptop") == 0 and run("--seeds", "0,1") == 0
    names = ["no teacher", "LAMB, BCE, 3-Augment"]
    assert measured == [(seed, name) for seed in (0, 1) for name in names]
    saved = json.loads(path.read_text())
    assert saved["machine"] == "a laptop" and saved["command"].endswith("--seeds 0,1") and len(saved["results"]) == 4
    with pytest.raises(ValueError, match="has results of"):
        run("--epochs", 7)
    with pytest.raises(ValueError, match="has results of"):
        run("--weights", "another.safetensors")
    assert json.loads(path.read_text()) == saved
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a file of results"):
        run()


def test_options_of_a_row_name_its_folder(monkeypatch, tmp_path):
    module = example("training_experiment")
    outs = []

    def fake(command):
        if "--resume" in command:  # it was there
            return
        outs.append(shlex.split(command)[-1])
        (Path(outs[-1]) / "run").mkdir(parents=True)
        (Path(outs[-1]) / "run/checkpoint.safetensors").touch()

    monkeypatch.setattr(module, "_minicait", fake)
    for weights in ("one", "two"):
        for options in ("--preset deit_mini", "--preset resmlp_mini", "--weights {weights}"):
            names = argparse.Namespace(out=tmp_path / "a folder", quick=True, epochs=1, weights=weights)
            module.Experiment(names, 0).trained(module.Row("recipe", "a row", options), 1)
    assert len(outs) == len({*outs}) == 4  # the weights are another only for the row that names them
    assert all(out.startswith(f"{tmp_path}/a folder/") for out in outs)


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


def test_pictures_are_drawn_again(tmp_path, monkeypatch, capsys):
    assert run_example(monkeypatch, "draw_pictures", "--out", tmp_path) == 0
    assert {Path(line).name for line in capsys.readouterr().out.splitlines()} == {p.name for p in tmp_path.iterdir()}
    assert main(["predict", "--json", str(tmp_path)]) == 0
    results = json.loads(capsys.readouterr().out)
    named = [Path(result["file"]).stem.replace("_", " ") for result in results]
    assert [result["guesses"][0]["class"] for result in results] == named == ["church", "golf ball", "parachute"]


def test_a_job_beside_its_bare_step(monkeypatch, capsys, tmp_path):
    module = example("measure_job")
    monkeypatch.setattr(module, "STEPS", 1)
    options = "--data shapes --model cait_tiny_32 --recipe shapes --keep-side 32 --turns 1"
    monkeypatch.setattr("sys.argv", ["job", *options.split(), "--out", str(tmp_path / "turns.csv")])
    assert module.main() == 0
    ratio = re.search(r"the job has (\d\.\d{3}) of the bare step's throughput", capsys.readouterr().out)[1]
    (turn,) = csv.DictReader((tmp_path / "turns.csv").read_text().splitlines())
    assert float(turn["ratio"]) == pytest.approx(float(ratio), abs=6e-4)
    assert float(turn["job"]) / float(turn["bare"]) == pytest.approx(float(ratio), abs=1e-3)
    assert run_example(monkeypatch, "measure_job", "--turns", 0) == 2
    assert capsys.readouterr().err == "measure_job: --turns must be at least 1, got 0\n"


@pytest.mark.parity
def test_the_same_run_in_pytorch(monkeypatch, tmp_path, capsys):
    """It begins with the same weights and sees the same images, so losses and accuracies are ours."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install -e '.[compare]'")
    settings = ["mixup=0.2", "init=mimetic", "crop_ratio=0.875"]
    assert train(tmp_path, "--epochs", "2", *(word for s in settings for word in ("--set", s))) == 0
    run, module = tmp_path / "shapes-tiny-1", example("same_run_in_pytorch")
    turns = module.relative_throughput
    monkeypatch.setattr(module, "TURNS", 1)
    monkeypatch.setattr(module, "relative_throughput", lambda *arguments: turns(*arguments) and 1.0)  # as many epochs
    monkeypatch.setattr("sys.argv", ["same_run_in_pytorch", str(run)])
    assert module.main() == 0
    assert "| PyTorch | " in capsys.readouterr().out
    ours, theirs = (list(csv.DictReader((run / name).read_text().splitlines())) for name in ("log.csv", "pytorch.csv"))
    for a, b in zip(ours, theirs, strict=True):
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-3)
        assert float(a["ema_top1"]) == pytest.approx(float(b["top1"]), abs=0.021)  # of the averaged weights

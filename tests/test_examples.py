"""Every example says how to call it; examples/train_cait.py learns."""

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

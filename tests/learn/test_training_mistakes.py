"""Mistakes in training (12.1): each is caught, in three steps instead of all of them where that is enough."""

import pytest

from minicait.learn import EXERCISES, Result, grade
from minicait.learn.checks import training
from tests.learn.folders import write

OTHERS = {e.number: Result(e.number, "passed") for e in EXERCISES[:-1]}
QUICK = [
    ("    return losses\n", "    return None\n", "expected a list of 3 losses (case: 3 steps of 32 images"),
    ("        optimiser.step(", "        (lambda *_: None)(", "no weight has changed: does the optimiser step"),
    ("return losses", "w.clear()\n    return losses", "KeyError"),
    ("labels[chosen]", "labels[:batch_size]", "losses[0] is wrong: yours "),
    ("targets=targets)", "targets=targets, smoothing=0.1)", "losses[0] is wrong: yours 2.638, expected 2.616"),
    (
        "return losses",
        "return [2.3] * steps",
        "losses[0] is wrong: yours 2.300, expected 2.616, of the first weights and images",
    ),
    ("losses.append(loss)", "losses.append(loss if step == 0 else np.nan)", "losses[1] is nan"),
    ("losses.append(loss)", "losses.append(Tensor(loss))", "losses[0] is a Tensor, expected a number"),
    ("", "", " of 50 new images are classified correctly, expected 80%; the loss was "),  # three steps are too few
]


@pytest.mark.parametrize(("old", "new", "words"), QUICK)
def test_training_that_cannot_work(old, new, words, tmp_path, monkeypatch):
    result = three_steps(tmp_path, monkeypatch, old, new)
    assert result.message.startswith("12.1: ") and words in result.message, result.message


def three_steps(folder, monkeypatch, old, new, enough=0.8):
    for name, value in {"IMAGES": 64, "NEW_IMAGES": 50, "STEPS": 3, "ENOUGH": enough}.items():
        monkeypatch.setattr(training, name, value)
    return grade(write(folder, {"training.py": (old, new)} if old else None), "12.1", known=OTHERS)


def test_losses_that_do_not_belong_to_the_weights(tmp_path, monkeypatch):
    assert three_steps(tmp_path, monkeypatch, "", "", enough=0).passed
    invented = three_steps(tmp_path, monkeypatch, "append(loss)", "append(loss if step == 0 else 0.3)", enough=0)
    assert "the last 20 losses are 1.072 on average, but the weights in w have a loss of " in invented.message


@pytest.mark.slow
def test_training_that_does_not_learn(tmp_path):
    result = grade(write(tmp_path, {"training.py": ("learning_rate(step", "-learning_rate(step")}), "12.1")
    assert " new images are classified correctly, expected " in result.message, result.message

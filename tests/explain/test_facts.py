"""What a report says beyond the forward pass: whether the guess is correct, the weights, attention on the object."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.data.imagenet import imagenet_classes, imagenet_names
from minicait.data.shapes import CLASSES, Shapes
from minicait.explain import Facts, find_class, look, report
from minicait.explain.facts import as_numbers, attention_on_object, sentences, verdict
from minicait.models import create_model
from minicait.run.pictures import draw_attention
from minicait.train import attention_inside

SHAPES = Shapes(1, 32)


@pytest.fixture(scope="module")
def inside():
    return look(create_model("cait_tiny_32", 10, seed=3), SHAPES[0][0], CLASSES)


def test_the_verdict(inside):
    best, other = inside.best[:2]
    assert verdict(inside, Facts(best)) == (True, f"The true class is {CLASSES[best]}.")
    right, said = verdict(inside, Facts(other))
    assert not right and said == f"The true class is {CLASSES[other]}, with a probability of " + (
        f"{inside.probabilities[other]:.1%}."
    )
    assert verdict(inside, Facts()) is None
    assert '<b class="correct">Correct.</b>' in report(inside, "a shape", "", Facts(best))
    assert '<b class="wrong">Wrong.</b>' in report(inside, "a shape", "", Facts(other))
    assert "Correct." not in (page := report(inside, "a shape", "")) and "Wrong." not in page


def test_attention_on_the_object(inside):
    """The same share that a run measures over many images."""
    facts = Facts(mask=SHAPES.mask(0))
    share = attention_on_object(inside, facts)
    assert share == pytest.approx(attention_inside(create_model("cait_tiny_32", 10, seed=3), SHAPES), rel=1e-4)
    (sentence,) = sentences(inside, facts)
    assert sentence == (
        f"{share:.1%} of the model's attention is on the object, which covers {SHAPES.mask(0).mean():.1%} of the image."
    )
    without = look(create_model("resmlp_mini_32", 10), SHAPES[0][0], CLASSES)
    assert attention_on_object(without, facts) is None and list(sentences(without, facts)) == []


def test_names_in_facts_are_escaped(inside):
    nasty = "</p><script>alert(1)</script>"
    hostile = replace(inside, classes=[nasty] * 10)
    page = report(hostile, "a shape", "", Facts(0, f"w.safetensors ({nasty})"))
    assert "<script>alert" not in page and page.count("<script") == 3


def test_facts_as_numbers(inside):
    assert as_numbers(inside, Facts()) == {}
    found = as_numbers(inside, Facts(inside.best[1], "w.safetensors", SHAPES.mask(0)))
    assert found["weights"] == "w.safetensors" and found["correct"] is False and 0 < found["attention_on_object"] < 1
    assert found["true_class"] == CLASSES[inside.best[1]]


def test_classes_by_name_and_by_wordnet_id():
    assert find_class("ring", CLASSES) == find_class("Ring", CLASSES) == 1
    assert find_class("photos", CLASSES) is None and find_class("", CLASSES) is None
    names = imagenet_classes()
    for wordnet_id in ("n02012849", "n03126707"):  # both are called crane
        assert find_class(wordnet_id, names) == list(imagenet_names()).index(wordnet_id)
    assert find_class("n01440764", ["goldfish", "tench"]) == 1 and find_class("n01440764", ["dog"]) is None
    assert find_class("RING", ["Ring", "ring"]) is None  # which of them?


def test_reports_of_a_run(tmp_path):
    model = create_model("cait_tiny_32", 10, seed=3)
    for path in draw_attention(tmp_path, model, Shapes(40, 32), None, "best.safetensors (a-1, epoch 2 of 3)"):
        page = path.read_text(encoding="utf-8")
        assert "The true class is " in page and "Weights: best.safetensors (a-1, epoch 2 of 3)." in page
        assert "attention is on the object, which covers" in page


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    minicait.save_weights(
        create_model("cait_tiny_32", 3), folder / "w.safetensors", ["ant", "bee", "owl"], origin="x-1"
    )
    for name in ("ant", "photos"):
        (folder / name).mkdir()
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(folder / name / "a.png")
    return folder


def explain(files, image, out, *more):
    options = ["--weights", str(files / "w.safetensors"), "--out", str(out / "r.html"), "--json", *more]
    code = main(["explain", str(files / image), *options])
    return code, json.loads((out / "r.json").read_text()) if code == 0 else None


def test_the_true_class_by_folder_or_option(files, tmp_path, monkeypatch, capsys):
    _, numbers = explain(files, "ant/a.png", tmp_path)
    guess = numbers["guesses"][0]["class"]
    assert numbers["true_class"] == "ant" and numbers["correct"] == (guess == "ant")
    assert numbers["weights"] == "w.safetensors (x-1)"
    said = capsys.readouterr().out
    assert (", correct; " if guess == "ant" else ", true class: ant; ") in said
    _, numbers = explain(files, "photos/a.png", tmp_path)
    assert "true_class" not in numbers and "correct" not in capsys.readouterr().out
    for label in ("owl", "OWL"):
        assert explain(files, "ant/a.png", tmp_path, "--label", label)[1]["true_class"] == "owl"
    monkeypatch.chdir(files / "ant")
    assert main(["explain", "a.png", "--weights", "../w.safetensors", "--out", str(tmp_path / "s.html")]) == 0
    assert "The true class is ant" in (tmp_path / "s.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("label", "hint"), [("anr", "did you mean ant?"), ("zebra", "it has ant, bee, owl")])
def test_a_label_that_is_no_class(files, tmp_path, capsys, label, hint):
    assert explain(files, "ant/a.png", tmp_path, "--label", label) == (2, None)
    assert capsys.readouterr().err == f"minicait: --label: the model has no class {label}; {hint}\n"

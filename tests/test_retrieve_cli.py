"""minicait retrieve: training images that are similar to others, by any model; and wrong input."""

import json

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.data import Loader, Shapes, fine_labels
from minicait.explain.neighbours import GAP, GRADES, LEGEND, QUERY, SIDE, UNKNOWN, Shown, neighbours_sheet
from minicait.models.deit import DeiT
from minicait.models.grafit import Grafit
from minicait.train.retrieval import embed_batches

SIZES = {"img_size": 16, "patch_size": 4, "dim": 12, "depth": 1}
FEW = ["--device", "cpu", "--train-images", "40", "--val-images", "15"]
CLASSES = list(Shapes.classes)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Files of a Grafit with coarse classes, of a classifier of them, and of one of other classes."""
    folder = tmp_path_factory.mktemp("weights")
    models = {
        "grafit": (Grafit(10, **SIZES, trunk="deit_mini_32", embedding=8, seed=1), CLASSES),
        "deit": (DeiT(10, **SIZES, heads=3, seed=1), CLASSES),
        "other": (DeiT(3, **SIZES, heads=3, seed=1), ["a", "b", "c"]),
    }
    for name, (model, classes) in models.items():
        minicait.save_weights(model, folder / f"{name}.safetensors", classes)
    return folder


@pytest.fixture
def run(weights, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(name, *options, code=0):
        assert main(["retrieve", "--weights", str(weights / f"{name}.safetensors"), *FEW, *map(str, options)]) == code
        return capsys.readouterr()

    return command


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes, of which one has two folders."""
    root, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, count in (("cat", 6), ("dog/poodle", 6), ("dog/setter", 6)):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 255, (20, 24, 3), np.uint8)).save(root / name / f"{i}.png")
    return root


def size(path):
    with Image.open(path) as picture:
        return picture.size


@pytest.mark.parametrize(("name", "coarse"), [("grafit", True), ("deit", True), ("other", False)])
def test_scores_of_coloured_shapes(run, name, coarse):
    text = run(name, "--groups", "colours").out
    lines = text.splitlines()
    assert lines[0] == "40 training images searched for 15 images" and lines[-1] == "see neighbours.png"
    assert ("conditioned on the predicted class" in text) == ("coarse top-1" in text) == coarse
    summary = json.loads(run(name, "--groups", "colours", "--json", "--out", "other.jpg").out)
    assert (summary["collection"], summary["coarse_classes"]) == (40, 10) and 0 <= summary["map_cos"] <= 1
    assert set(summary["knn"]) == {"10", "15", "20", "25", "30"} and (summary["coarse"] is None) != coarse
    assert f"{summary['map_oracle']:.1%} with the class known" in text
    _, fine = fine_labels(Shapes(40, 16, 0, "easy", True))
    assert summary["fine_classes"] == len(set(fine)) and summary["compared"] < summary["queries"] == 15
    assert size("neighbours.png") == (9 * (SIDE + GAP) + 3 * GAP, 8 * (SIDE + 18 + GAP) + LEGEND)
    assert size("other.jpg") == size("neighbours.png")


def test_nothing_finer_than_the_classes(run):
    text = run("deit").out
    assert "these images have no finer labels than their classes; --groups makes coarser ones" in text
    assert "100.0% with the class known" in text


def test_the_nearest_of_given_images(run, weights, photos, tmp_path):
    """... in the order of their cosines; of a training image, itself first."""
    given = photos / "dog/poodle/3.png"
    options = [given, photos / "cat", "--data", photos, "--val-fraction", "0.2", "--neighbours", 4]
    result = json.loads(run("grafit", *options, "--json").out)
    assert "map_cos" not in result and len(result["results"]) == result["queries"] == 7
    first = result["results"][0]
    cosines = [n["cosine"] for n in first["neighbours"]]
    assert first["file"] == str(given) and cosines == sorted(cosines, reverse=True) and len(cosines) == 4
    model, _ = minicait.load_model(weights / "grafit.safetensors")
    train, _ = minicait.data.train_and_val(photos, 0.2)
    transform = minicait.data.evaluation(16)
    vectors = embed_batches(model, Loader(train, 4, transform=transform, numbered=True, threads=0)).vectors
    query = model.embed(transform(minicait.data.Picture(given), None)[None]).numpy()[0]
    want = np.sort(vectors @ query)[::-1][:4]
    np.testing.assert_allclose(cosines, want, atol=1e-5)
    assert {n["class"] for n in first["neighbours"]} <= {"cat", "dog/poodle", "dog/setter"}
    text = run("grafit", *options).out
    assert f"{given}\n  {cosines[0]:6.3f}  " in text and text.count("\n  ") == 28
    assert size("neighbours.png")[1] == 7 * (SIDE + 18 + GAP) + LEGEND


def test_groups_of_folders(run, photos, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps({"pet": ["cat", "dog"]}))
    options = ["--data", photos, "--val-fraction", "0.2", "--groups", tmp_path / "g.json", "--json"]
    summary = json.loads(run("grafit", *options).out)
    assert (summary["coarse_classes"], summary["fine_classes"], summary["coarse"]) == (1, 2, 1.0)
    summary = json.loads(run("grafit", "--data", photos, "--val-fraction", "0.2", "--json").out)
    assert (summary["coarse_classes"], summary["fine_classes"]) == (2, 3)


def test_a_tiny_collection(run, photos):
    """What cannot be compared is counted, and no more neighbours vote than there are."""
    options = ["--data", photos, "--val-fraction", "0.2", "--train-images", 2]
    text, summary = run("grafit", *options).out, json.loads(run("grafit", *options, "--json").out)
    left_out = summary["queries"] - summary["compared"]
    assert left_out and f"{left_out} images do not count: no training image has their fine class" in text
    assert list(summary["knn"]) == ["2"] and "k=2: " in text and "no finer labels" not in text


def test_damaged_images(run, photos, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    options = ["--data", photos, tmp_path / "bad.png"]
    error = run("grafit", *options, code=2).err
    assert "bad.png cannot be read" in error and "--skip-bad-images skips such images" in error
    assert "none of the images can be read" in run("grafit", *options, "--skip-bad-images", code=2).err
    both = run("grafit", *options, photos / "cat/0.png", "--skip-bad-images", "--json")
    assert [r["file"] for r in json.loads(both.out)["results"]] == [str(photos / "cat/0.png")] and "skipped" in both.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", "neighbours.txt"], "--out must be a file whose name ends in .png, .jpg, .jpeg, got neighbours.txt"),
        (["--out", "missing/n.png"], "missing"),
        (["--neighbours", "0"], "--neighbours must be at least 1, got 0"),
        (["--groups", "letters"], "there are no groups letters: expected cifar10"),
        (["--groups", "cifar10"], "is not a class of these images, which have circle"),
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["none.jpg"], "there is no image none.jpg"),
    ],
)
def test_wrong_input_is_one_sentence(run, options, sentence):
    error = run("grafit", *options, code=2).err
    assert error.startswith("minicait: ") and sentence in error and error.count("\n") == 1


def test_a_model_without_features(weights, tmp_path, capsys):
    minicait.save_weights(minicait.create_model("patchconvnet_mini_multi_32", 10), tmp_path / "m.safetensors", CLASSES)
    assert main(["retrieve", "--weights", str(tmp_path / "m.safetensors"), *FEW, "--out", str(tmp_path / "n.png")]) == 2
    assert "has no features to compare images by" in capsys.readouterr().err


# ---- the picture


def test_frames_tell_right_from_wrong():
    grey = Image.new("RGB", (32, 32), (128, 128, 128))
    found = [Shown(grey, "a", grade) for grade in GRADES] + [Shown(grey, "a name that is far too long to fit")]
    sheet = np.asarray(neighbours_sheet([(Shown(grey, "a"), found), (Shown(grey, "b"), found[:1])]))
    left = [GAP + i * (SIDE + GAP) + (2 * GAP if i else 0) for i in range(5)]
    colours = [tuple(sheet[LEGEND + 1, x + 1]) for x in left]
    want = [QUERY, *(colour for colour, _ in GRADES.values()), UNKNOWN]
    assert colours == [tuple(bytes.fromhex(colour[1:])) for colour in want]
    in_legend = {tuple(pixel) for pixel in sheet[GAP + 6]}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in want[:-1]} <= in_legend
    assert (sheet[LEGEND + SIDE // 2, [x + SIDE // 2 for x in left]] == 128).all()
    assert (sheet[:, -GAP:] == 255).all()  # a long name is cut, and the second row is shorter
    second = LEGEND + SIDE + 18 + GAP
    assert (sheet[second : second + SIDE, left[2] :] == 255).all()


# ---- training and evaluation with groups


def test_training_and_evaluating_on_groups(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"round": CLASSES[:5], "angular": CLASSES[5:]}
    (tmp_path / "mine.json").write_text(json.dumps(names))
    smoke = ["--device", "cpu", "--preset", "grafit_deit_mini", "--img-size", "16", "--smoke", "--groups", "mine.json"]
    assert main(["train", *smoke]) == 0
    out = capsys.readouterr().out
    run = tmp_path / "runs/shapes-grafit_deit_mini-1"
    assert "loss neighbours" in out and "attention inside" in out  # small-grafit by itself
    assert "2 classes (10 fine ones, for `retrieve`)" in out
    assert out.count(f"--groups {tmp_path / 'mine.json'}") == 2  # of the commands at its end
    assert "retrieve: " in out and "--train-images 32 --val-images 20" in out
    plan = json.loads((run / "args.json").read_text())
    assert plan["data"]["groups"] == str(tmp_path / "mine.json") and plan["recipe"]["loss"] == "neighbours"
    weights = ["--device", "cpu", "--weights", str(run / "weights/best.safetensors"), "--val-images", "20"]
    assert main(["eval", *weights, "--groups", "mine.json", "--json"]) == 0
    top1 = json.loads(capsys.readouterr().out)["top1"]
    assert f"computed anew: top-1 {top1:.1%}; mean cosine of two images" in out
    searched = [*weights, "--groups", "mine.json", "--train-images", "32", "--json"]
    assert main(["retrieve", *searched]) == 0  # embeds all images, and finds what the memory of the file has
    assert json.loads(capsys.readouterr().out)["coarse"] == pytest.approx(top1)
    assert main(["eval", *weights]) == 2
    assert "the model does not know 10 of the data's classes" in capsys.readouterr().err
    (tmp_path / "mine.json").write_text(json.dumps({"a": CLASSES}))
    assert main(["train", "--resume", str(run)]) == 2
    assert f"the groups {tmp_path / 'mine.json'}, changed since the run started" in capsys.readouterr().err


def test_a_run_from_the_weights_of_a_grafit(tmp_path, capsys):
    """... has its recipe, and a memory of its own."""
    smoke = ["--device", "cpu", "--img-size", "16", "--smoke", "--out", str(tmp_path)]
    assert main(["train", *smoke, "--preset", "grafit_deit_mini"]) == 0
    first = tmp_path / "shapes-grafit_deit_mini-1/weights/best.safetensors"
    assert main(["train", *smoke, "--weights", str(first), "--groups", "shapes"]) == 0
    out = capsys.readouterr().out
    assert "loss neighbours" in out and "new head for 2 classes" in out
    model, info = minicait.load_model(tmp_path / "shapes-from-weights-1/weights/last.safetensors")
    assert info.class_names == ["round", "angular"] and model.memory_labels.numpy().max() == 1


def test_learning_a_batch_by_heart(tmp_path, capsys):
    options = ["--preset", "grafit_deit_mini", "--img-size", "16", "--batch-size", "8", "--epochs", "2"]
    assert main(["train", "--device", "cpu", *options, "--overfit-one-batch", "--out", str(tmp_path)]) == 0
    assert "of the batch correctly" in capsys.readouterr().out


def test_explaining_a_grafit(tmp_path, capsys):
    """Its trunk is shown."""
    model = Grafit(3, **SIZES, trunk="cait_tiny_32", embedding=8)
    minicait.save_weights(model, tmp_path / "w.safetensors", ["a", "b", "c"])
    Image.fromarray(Shapes(1, 16)[0][0]).save(tmp_path / "x.png")
    weights = ["--weights", str(tmp_path / "w.safetensors"), "--out", str(tmp_path / "r.html")]
    assert main(["explain", str(tmp_path / "x.png"), *weights, "--json"]) == 0
    numbers = json.loads((tmp_path / "r.json").read_text())
    assert [branch["name"] for branch in numbers["branches"]][:2] == ["blocks.0.attn", "blocks.0.mlp"]
    assert np.shape(numbers["class_attention"])[1:] == (2, 4, 4)

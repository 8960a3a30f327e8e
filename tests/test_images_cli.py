"""One's own images from beginning to end: train, resume, evaluate, predict, fine-tune, distil; and wrong input."""

import json
import os
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main, parser
from minicait.cli.train import _plan
from minicait.data import Source
from minicait.data.picture import MEAN, STD, Picture
from minicait.data.transforms import evaluation
from minicait.models.cait import CaiT
from minicait.run.console import next_commands
from minicait.run.start import resume_run
from minicait.train import RECIPES, Trainer
from minicait.train.teacher import Teacher
from tests.data.test_crops import photograph
from tests.test_main_job import run_example
from tests.train.runs import assert_same_run, log, narrow_presets

ROOT = Path(__file__).parents[1]
SMALL = ["--device", "cpu", "--preset", "tiny", "--img-size", "16", "--patch-size", "8", "--batch-size", "8"]


@pytest.fixture(scope="module", autouse=True)
def _narrow_presets():
    with narrow_presets():
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Reddish and bluish photographs."""
    root = tmp_path_factory.mktemp("data") / "photos"
    for name, tint in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (root / name).mkdir(parents=True)
        for i in range(20):
            tinted = Image.blend(photograph(30 + i, 40, seed=i), Image.new("RGB", (30 + i, 40), tint), 0.6)
            tinted.save(root / name / f"{i}.jpg")
    return root


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    options = ["--data", str(photos), "--val-fraction", "0.2", "--epochs", "6", "--lr", "3e-3", "--out", str(out)]
    assert main(["train", *SMALL, *options]) == 0
    return out / "photos-tiny-1"


def weights(folder):
    return str(folder / "weights/best.safetensors")


def test_a_run_on_photographs(trained):
    assert (trained / "attention.png").is_file()
    rows = (trained / "log.csv").read_text().splitlines()
    assert len(rows) == 7 and float(rows[-1].split(",")[5]) > 0.9  # of the two tints
    _, info = minicait.load_model(weights(trained))
    assert info.class_names == ["blue", "red"]
    plan = json.loads((trained / "args.json").read_text())
    assert plan["recipe"]["augmentation"]["crop"] == "resized" and Path(plan["data"]["data"]).is_absolute()


def test_evaluate(trained, photos, capsys):
    arguments = [
        "eval",
        "--device",
        "cpu",
        "--weights",
        weights(trained),
        "--data",
        str(photos),
        "--val-fraction",
        "0.2",
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "top-1 100.00%" in text and "8 images of 16 pixels" in text and "classes" not in text
    assert main([*arguments, "--img-size", "24", "--crop-ratio", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] > 0.8


def test_evaluate_on_a_part_of_the_classes(photos, tmp_path, capsys):
    """A model that always says green, then red."""
    model = CaiT(num_classes=3, img_size=16, patch_size=8, dim=16, heads=2, depth=1)
    model.head.weight.data[...], model.head.bias.data[...] = 0, [0, 2, 1]
    minicait.save_weights(model, tmp_path / "w.safetensors", ["blue", "green", "red"])
    arguments = ["eval", "--device", "cpu", "--weights", str(tmp_path / "w.safetensors"), "--data", str(photos)]
    assert main(arguments) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("top-1 0.00%") and "(guesses among all 3 classes of the model); 40 images" in first
    assert second == "top-1 50.00% (guesses among the 2 classes of the data only)"
    assert main([*arguments, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["top1"], scores["top1_of_data_classes"], scores["images"]) == (0, 0.5, 40)


def test_the_classes_of_data_and_model_are_matched_by_name(tmp_path, trained, photos, capsys):
    (tmp_path / "only").mkdir()
    shutil.copytree(photos / "red", tmp_path / "only/red")
    shutil.copytree(photos / "blue", tmp_path / "only/green")
    assert main(["eval", "--weights", weights(trained), "--data", str(tmp_path / "only")]) == 2
    assert "the model does not know 1 of the data's classes: green" in capsys.readouterr().err
    plain = CaiT(num_classes=5, img_size=16, patch_size=8, dim=16, heads=2, depth=1)
    minicait.save_weights(plain, tmp_path / "plain.safetensors")
    assert main(["eval", "--weights", str(tmp_path / "plain.safetensors"), "--data", str(photos)]) == 2
    assert "the model has 5 unnamed classes, the data has 2" in capsys.readouterr().err


def test_predict(trained, photos, tmp_path, capsys):
    arguments = ["predict", "--device", "cpu", "--weights", weights(trained)]
    assert main([*arguments, str(photos / "red/3.jpg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("3.jpg") and lines[1].endswith("%  red") and len(lines) == 3
    assert main([*arguments, str(photos / "blue"), str(photos / "red/0.jpg"), "--json", "--top", "1"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert len(results) == 21 and [r["guesses"][0]["class"] for r in results].count("blue") >= 19
    assert 0.5 < results[0]["guesses"][0]["probability"] <= 1
    (tmp_path / "bad.jpg").write_bytes(b"")
    assert main([*arguments, str(tmp_path / "bad.jpg"), str(photos / "red/0.jpg")]) == 2
    assert "bad.jpg cannot be read: it is empty" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad-images", str(tmp_path / "bad.jpg"), str(photos / "red/0.jpg")]) == 0
    captured = capsys.readouterr()
    assert "skipped: " in captured.err and captured.out.startswith(str(photos / "red/0.jpg"))
    both = [str(tmp_path / "bad.jpg"), str(photos / "red/0.jpg")]
    assert main([*arguments, "--skip-bad-images", "--json", *both]) == 0
    good, bad = json.loads(capsys.readouterr().out)
    assert good["file"] == both[1] and bad["file"] == both[0] and "it is empty" in bad["error"]


def test_fine_tuning_and_distilling(trained, photos, tmp_path, capsys, monkeypatch):
    options = ["--data", str(photos), "--batch-size", "8", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main(["train", *options, "--weights", weights(trained), "--img-size", "24"]) == 0
    text = capsys.readouterr().out
    assert (
        f"model: from {weights(trained)}" in text and "24 pixels" in text and "100.0%" in text
    )  # it knows them already
    assert main(["train", *SMALL, *options, "--teacher", weights(trained)]) == 0
    text = capsys.readouterr().out
    assert f"teacher: {weights(trained)}" in text and "distillation hard" in text
    assert main(["train", *SMALL, *options, "--teacher", weights(trained), "--set", "distillation=null"]) == 2
    assert "a teacher needs a recipe with distillation=hard or distillation=soft" in capsys.readouterr().err
    options = ["--weights", weights(trained), "--epochs", 1, "--batch-size", 8, "--out", tmp_path]
    assert run_example(monkeypatch, "finetune_folder", photos, *options) == 0
    assert (tmp_path / "photos-finetuned-1/weights/best.safetensors").is_file()


def test_a_run_on_photographs_resumes_without_the_weights_it_began_with(trained, photos, tmp_path, capsys):
    start = tmp_path / "start.safetensors"
    shutil.copy(weights(trained), start)
    options = ["--data", str(photos), "--batch-size", "8", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main(["train", *options, "--weights", str(start)]) == 0
    start.unlink()
    folder = tmp_path / "photos-from-weights-1"
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0


def test_images_that_changed_are_noticed(photos, tmp_path, capsys):
    mine = tmp_path / "mine"
    shutil.copytree(photos, mine)
    assert main(["train", *SMALL, "--data", str(mine), "--epochs", "1", "--out", str(tmp_path)]) == 0
    photograph(20, 20).save(mine / "red/new.jpg")
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "mine-tiny-1"), "--device", "cpu"]) == 2
    assert f"the images in {mine} changed since the run started" in capsys.readouterr().err


def test_a_damaged_image_stops_a_run_that_then_goes_on_without_it(photos, tmp_path, capsys):
    mine = tmp_path / "mine"
    shutil.copytree(photos, mine)
    (mine / "red/7.jpg").write_bytes((mine / "red/7.jpg").read_bytes()[:300])
    arguments = ["train", *SMALL, "--data", str(mine), "--epochs", "2", "--out", str(tmp_path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "red/7.jpg cannot be read" in error and error.count("\n") == 1
    proposed = shlex.split(error.partition("skip such images: ")[2])
    assert main([*proposed[proposed.index("train") :], "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.count("skipped: ") == 1 and "corrupt images skipped so far: 1\n" in text
    for name in ("evaluate", "resume"):  # and the commands for later go on without it, too
        assert next(line for line in text.splitlines() if line.startswith(f"{name}:")).endswith("--skip-bad-images")
    assert log(tmp_path / "mine-tiny-1")[-1]["left_out"] == "1"
    training, validation = resume_run(tmp_path / "mine-tiny-1", skip_bad=True).loaders
    assert [*training.bad.values(), *validation.bad.values()] == [bad_image(text)]


def bad_image(text):
    return next(line for line in text.splitlines() if line.startswith("skipped: ")).removeprefix("skipped: ")


def test_too_little_memory_names_an_option_and_a_value(photos, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(Trainer, "step", full)
    options = ["train", *SMALL, "--data", str(photos), "--out", str(tmp_path), "--threads"]
    assert main([*options, "4"]) == 2
    assert "out of memory; try --threads 2 (each holds a micro-batch" in capsys.readouterr().err
    assert main([*options, "1"]) == 2
    assert "out of memory; try a smaller --preset\n" in capsys.readouterr().err


def test_whoever_doubts_an_error_can_see_where_it_comes_from(monkeypatch):
    monkeypatch.setenv("MINICAIT_DEBUG", "1")
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        main(["train", "--data", "nowhere"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--data", "nowhere"], "there is no folder"),
        (["--data", "{photos}", "--batch-size", "100"],
         "a batch of 100 cannot be made from 36 images: --batch-size must be at most 36"),
        (["--data", "{photos}", "--val-fraction", "0"], "--val-fraction must be between 0 and 1, got 0"),
        (["--data", "{photos}", "--train-images", "0"], "--train-images must be at least 1, got 0"),
        (["--data", "{photos}", "--keep-side", "-3"], "--keep-side must be at least 1, got -3"),
        (["--data", "{photos}", "--weights", "none.safetensors"], "there is no weights file none.safetensors"),
        (["--data", "{photos}", "--weights", "cait_xxs25"], "there are no published weights cait_xxs25"),
        (["--data", "{photos}", "--weights", "x.pth", "--preset", "small"], "omit --preset"),
        (["--data", "{photos}", "--teacher", "none.safetensors"], "there is no weights file none.safetensors"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_makes_no_folder(options, sentence, photos, tmp_path, capsys):
    filled = [option.format(photos=photos) for option in options]
    assert main(["train", "--device", "cpu", "--epochs", "1", "--out", str(tmp_path / "runs"), *filled]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1 and not (tmp_path / "runs").exists()


def test_a_teacher_of_other_classes(trained, tmp_path, capsys):
    assert main(["train", *SMALL, "--teacher", weights(trained), "--out", str(tmp_path / "runs")]) == 2
    assert "cannot teach this: the model does not know 10 of the data's classes: circle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["predict", "--weights", "{weights}", "nowhere.jpg"], "there is no image nowhere.jpg"),
        (["predict", "--weights", "{weights}", "{empty}"], "has no images"),
        (["predict", "--weights", "{weights}", "--top", "0", "a.jpg"], "--top must be at least 1, got 0"),
        (["predict", "--weights", "none.pth", "{image}"], "there is no weights file none.pth"),
        (["predict", "--weights", "{weights}", "--img-size", "17", "{image}"], "does not divide into patches"),
        (["eval", "--weights", "{weights}", "--data", "nowhere"], "there is no folder nowhere"),
        (["eval", "--weights", "{weights}", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["eval", "--weights", "{weights}", "--data", "{photos}", "--batch-size", "0"],
         "--batch-size must be at least 1, got 0"),
        (["eval", "--weights", "{weights}", "--data", "{photos}", "--crop-ratio", "2"],
         "--crop-ratio must be from 0.01 to 1, got 2.0"),
    ],
)  # fmt: skip
def test_bad_input_of_eval_and_predict(arguments, sentence, trained, photos, tmp_path, capsys):
    places = {"weights": weights(trained), "empty": tmp_path, "image": photos / "red/0.jpg", "photos": photos}
    assert main([argument.format(**places) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_the_printed_evaluation_gives_the_printed_score(trained, photos, capsys):
    run = resume_run(trained, device="cpu")
    words = shlex.split(next_commands(run).splitlines()[1].partition(":")[2])
    assert main([*words[words.index("eval") :], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == run.best


def test_distillation_between_sizes(trained, photos, tmp_path, capsys, monkeypatch):
    """The teacher was trained at 16 pixels, the student has 24."""
    options = ["--preset", "cait_tiny_32", "--epochs", 1, "--batch-size", 8, "--device", "cpu", "--out", tmp_path]
    assert run_example(monkeypatch, "distill", weights(trained), photos, *options, "--soft", "--alone") == 0
    text = capsys.readouterr().out
    assert "distilled: " in text and "alone: " in text and text.count("epoch 1/1") == 2
    folder = tmp_path / "photos-distilled-1"
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    plan = json.loads((folder / "args.json").read_text())
    assert plan["teacher"] == str(Path(weights(trained)).resolve())


def test_a_teacher_sees_images_as_it_was_taught(tmp_path):
    model = CaiT(num_classes=2, img_size=16, patch_size=8, dim=16, heads=2, depth=1, layer_scale=0.1)
    minicait.save_weights(model, tmp_path / "w.safetensors", ["a", "b"], mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    student = CaiT(num_classes=2, img_size=8, patch_size=8, dim=16, heads=2, depth=1)
    grey = np.full((1, 3, 8, 8), 0.5)  # a flat image stays flat at any size
    given = (grey - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    logits = Teacher(str(tmp_path / "w.safetensors"), student, ["a", "b"])(given.astype(np.float32))
    np.testing.assert_allclose(logits, model.eval()(np.zeros((1, 3, 16, 16), np.float32)).numpy(), atol=1e-5)


def test_a_run_on_photographs_goes_on_to_the_bit_from_the_middle_of_an_epoch(photos, tmp_path, monkeypatch):
    arguments = ["train", *SMALL, "--data", str(photos), "--epochs", "2", "--recipe", "imagenette"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    real, steps = Trainer.step, []

    def interrupted(self, *given):
        steps.append(1)
        if len(steps) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 128 + signal.SIGTERM
    assert main(["train", "--resume", str(tmp_path / "b/photos-tiny-1"), "--device", "cpu", "--threads", "1"]) == 0
    assert_same_run(tmp_path / "a/photos-tiny-1", tmp_path / "b/photos-tiny-1")


def test_a_folder_without_parts_is_evaluated_whole(trained, photos, capsys):
    options = ["eval", "--device", "cpu", "--weights", weights(trained), "--json", "--data"]
    assert main([*options, str(photos)]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 40


@pytest.mark.parametrize(
    ("preset", "name"),
    [("tiny", "small"), ("cait_tiny_64", "small"), ("cait_small_64", "small"), ("cait_tiny_32", "tiny-images"),
     ("cait_xxs24_224", "imagenette")],
)  # fmt: skip
def test_the_recipe_suits_the_model_however_it_is_called(preset, name, photos):
    args = parser().parse_args(["train", "--data", str(photos), "--preset", preset])
    assert _plan(args, 0).recipe == RECIPES[name]


def test_anything_in_a_recipe_can_be_set(photos, capsys):
    settings = ["--set", "mixup=0.2", "--set", "crop=padded", "--set", "clip_norm=None", "--set", "colour_jitter=0.3"]
    how = _plan(parser().parse_args(["train", "--data", str(photos), *settings]), 0).recipe
    assert (how.mixup, how.clip_norm) == (0.2, None)
    assert (how.augmentation.crop, how.augmentation.colour_jitter) == ("padded", 0.3)
    for wrong, sentence in {
        "mixip=1": "did you mean mixup?",
        "mixup": "expected NAME=VALUE",
        "flip=2": "flip must be in [0, 1]",
        "mixup=much": "mixup must be a number",
    }.items():
        assert main(["train", *SMALL, "--data", str(photos), "--set", wrong]) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1


def test_weights_are_not_initialised_again(photos, tmp_path, capsys):
    """The recipe `small` asks for a mimetic start; with weights there is none, and asking for one is an error."""
    minicait.save_weights(
        CaiT(num_classes=2, img_size=16, patch_size=8, dim=16, heads=2, depth=1), tmp_path / "w.safetensors"
    )
    given = [
        "--data",
        str(photos),
        "--weights",
        str(tmp_path / "w.safetensors"),
        "--recipe",
        "small",
        "--out",
        str(tmp_path),
    ]
    assert main(["train", *given, "--set", "init=mimetic"]) == 2
    assert capsys.readouterr().err == "minicait: --weights are the initial weights; omit --set init\n"
    assert main(["train", *given, "--epochs", "1", "--batch-size", "2"]) == 0
    assert "init mimetic" not in capsys.readouterr().out


def test_images_are_not_kept_smaller_than_the_model_takes_them(photos, tmp_path, capsys):
    assert main(["train", *SMALL, "--data", str(photos), "--keep-side", "8", "--out", str(tmp_path)]) == 2
    assert "--keep-side 8 is smaller than the 16 pixels that the model takes" in capsys.readouterr().err


@pytest.mark.parametrize("ratio", [1.0, 0.875, 0.6])
def test_validation_sees_the_reference_s_pixels_also_where_images_are_kept(photos, ratio):
    kept, plain = (Source(str(photos), keep_side=side).open(16, crop_ratio=ratio) for side in (20, None))
    prepare = evaluation(16, ratio)
    assert isinstance(kept.val[0][0], np.ndarray)
    for i in range(len(plain.val)):
        ours = prepare(Picture(kept.val[i][0]), None)
        np.testing.assert_array_equal(ours, prepare(plain.val[i][0], None))


def test_a_published_teacher_knows_the_classes_among_others(photos, tmp_path):
    student = CaiT(num_classes=2, img_size=16, patch_size=8, dim=16, heads=2, depth=1)
    teacher = CaiT(num_classes=3, img_size=16, patch_size=8, dim=16, heads=2, depth=1)
    minicait.save_weights(teacher, tmp_path / "t.safetensors", ["red", "green", "blue"])
    images = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    logits = Teacher(str(tmp_path / "t.safetensors"), student, ["blue", "red"])(images)
    np.testing.assert_allclose(logits, teacher.eval()(images).numpy()[:, [2, 0]], atol=1e-6)

"""Options and settings that cannot be meant: one sentence before anything is built, read or written."""

import os
from pathlib import Path

import pytest
from PIL import Image

from minicait.machine import cpu_count
from minicait.train.recipe import RANGES, Recipe
from tests.attack.bounded import refused, run

SETTINGS = {
    "epochs=null": "epochs must be an integer, got None",
    "epochs=1.5": "epochs must be an integer, got 1.5",
    "epochs=0": "epochs must be at least 1",
    "epochs=true": "epochs must be an integer, got True",
    "epochs=" + "9" * 400: "epochs must be at most 1,000,000",
    "epochs=" + "9" * 5000: "epochs must be an integer",
    "accumulate=1.5": "accumulate must be an integer",
    "accumulate=[]": "accumulate must be an integer, got []",
    "lr_for_batch=-5": "lr_for_batch must be at least 1, got -5",
    "lr_for_batch=0": "lr_for_batch must be at least 1, got 0",
    "lr_for_batch=1.5": "lr_for_batch must be an integer or null, got 1.5",
    "lr=NaN": "lr must be at least 0, got nan",
    "lr=1e400": "lr must be at most 1,000, got inf",
    "lr={}": "lr must be a number, got {}",
    "seed=1e400": "seed must be an integer, got inf",
    "seed=-1": "seed must be at least 0",
    "batch_size=null": "batch-size must be an integer",
    "mixup=[1]": "mixup must be a number, got [1]",
    "mixup=1e300": "mixup must be at most 1,000",
    "loss=null": "loss must be a string, got None",
    "loss=[]": "loss must be a string, got []",
    "constant_lr=0": "constant_lr must be true or false, got 0",
    "crop_ratio=1e-300": "crop_ratio must be at least 0.01",
    "crop=null": "crop must be one of",
    "crop=[[]]": "crop must be one of",
    "crop_scale=null": "crop_scale must be in [0, 1], got None",
    "flip=true": "flip must be in [0, 1], got True",
    "precision=[]": "precision must be a string",
    "ema_decay=2": "ema_decay must be at most 1",
    "augmentation={}": "expected NAME=VALUE",
    "lr=" + "[" * 100_000: "lr must be a number",
    "": "expected NAME=VALUE",
    "=": "expected NAME=VALUE",
    "\x1b[2J=1": r"setting '\x1b[2J=1'",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting[:20])
def test_settings(setting, tmp_path):
    refused("train", "--out", tmp_path / "runs", "--set", setting, because=SETTINGS[setting])
    assert not (tmp_path / "runs").exists()


def test_every_field_of_a_recipe_has_a_type_and_every_number_a_range():
    for name, value in vars(Recipe()).items():
        with pytest.raises(ValueError, match="recipe: "):
            Recipe(**{name: object()})
        if type(value) in (int, float):
            assert name in RANGES, name
    least = Recipe(loss="bce", **{name: least for name, (least, _) in RANGES.items()})
    assert least.epochs == 1 and least.clip_norm == 1e-12


@pytest.mark.parametrize("command", [["train"], ["eval", "--weights", "x"], ["predict", "--weights", "x", "y"],
                                     ["bench"]], ids=lambda command: command[0])  # fmt: skip
def test_threads_are_at_most_four_for_each_cpu(command):
    refused(*command, "--threads", 4 * cpu_count() + 1, because=f"--threads must be at most {4 * cpu_count()} ")


def test_names_are_printed_without_terminal_escapes(tmp_path):
    """Class folders and file names that would clear the screen, or look like another line of output."""
    data = tmp_path / "data\x1b]0;x\x07"
    for name in ("a\x1b[2J", "b\ntop-1 100%", "c\u202e"):
        (data / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (16, 16), (40 * i, 0, 0)).save(data / name / f"{i}\x1b[31m.png")
    options = ["--img-size", "16", "--batch-size", "4", "--epochs", "1", "--out", tmp_path]
    result = run("train", "--device", "cpu", "--data", data, *options)
    assert result.code == 0, result.err
    weights = next(tmp_path.glob("*/weights/best.safetensors"))
    image = next(data.rglob("*.png"))
    outputs = [result.out]
    for command in (["predict", image], ["explain", image, "--out", tmp_path / "report.html"], ["weights", "info"],
                    ["eval", "--data", data]):  # fmt: skip
        option = [] if command[0] == "weights" else ["--weights"]
        result = run(*command, *option, weights)
        assert result.code == 0, (command, result.err)
        outputs.append(result.out + result.err)
    (image.parent / "bad\x1b[2J.png").write_bytes(b"no image")
    outputs.append(run("predict", "--weights", weights, image.parent / "bad\x1b[2J.png").err)
    for text in outputs:
        assert text.replace("\n", "").isprintable(), [line for line in text.splitlines() if not line.isprintable()]
        assert "\ntop-1 100%" not in text


def test_a_report_about_a_name_that_is_no_text(whole_run, tmp_path):
    """The page is written, or the old one stays: never an empty one."""
    image = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    image.write_bytes((whole_run / "example.png").read_bytes())
    out = tmp_path / "report.html"
    out.write_text("the old report")
    weights = whole_run / "weights/best.safetensors"
    result = run("explain", image, "--weights", weights, "--out", out, "--json", "--png")
    assert result.code == 0, result.err
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and r"caf\udce9.png" in page and r"caf\udce9.png" in result.out
    (tmp_path / "other.png").write_bytes(b"no image")
    refused("explain", tmp_path / "other.png", "--weights", weights, "--out", out, because="other.png cannot be read")
    assert out.read_text(encoding="utf-8") == page
    assert sorted(p.suffix for p in tmp_path.glob(".*")) == []

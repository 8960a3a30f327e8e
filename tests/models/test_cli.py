"""The command line: what it prints, and one sentence and exit code 2 for what it cannot do."""

import json
import subprocess
import sys

import numpy as np
import pytest

import minicait
from minicait.cli import main
from minicait.cli.guard import in_flags
from minicait.models.cait import CaiT
from minicait.train import RECIPES
from tests.golden.recipe import FOLDER


def test_models(capsys):
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    lines = table.splitlines()
    rows = {line.split()[0]: line for line in lines[: lines.index("")]}
    assert " ".join(rows["cait_xxs24_224"].split()) == "cait_xxs24_224 192 4 24+2 16 12.0 2.5 74 *"
    assert " ".join(rows["resmlp_12_224"].split()) == "resmlp_12_224 384 12 16 15.4 3.0 48 * .dist .dino"
    assert rows["patchconvnet_s60_384"].endswith("  .in21k") and rows["deit_mini_32"].endswith(" 3")
    ends = [lines[0].index(title) + len(title) for title in ("heads", "depth", "patch", "params M", "GFLOPs")]
    for row in rows.values():  # columns, whatever the length of a name; heads are empty where there are none
        assert all(row[end] == " " for end in ends) and len(row) < 120
    assert not rows["resmlp_12_224"][ends[0] - 5 : ends[0]].strip()
    assert main(["models", "cait_tiny*", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["cait_tiny_32", "cait_tiny_64"]
    assert rows[0]["parameters"] == 1_004_464 and rows[0]["heads"] == 2 and rows[0]["published"] == []


def test_weights_info(tmp_path, capsys):
    model = minicait.create_model("cait_tiny_32", num_classes=3)
    minicait.save_weights(model, tmp_path / "w.safetensors", ["cat", "dog", "owl"])
    assert main(["weights", "info", str(tmp_path / "w.safetensors")]) == 0
    text = capsys.readouterr().out
    assert "the sizes of cait_tiny_32" in text and "classes: cat, dog, owl" in text and "pos_embed" in text
    assert main(["weights", "info", str(tmp_path / "w.safetensors"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["info"]["config"]["dim"] == 96 and content["tensors"]["head.bias"] == [3]
    assert main(["weights", "info", str(FOLDER / "deep.pth")]) == 0
    assert "the sizes of no known model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["models", "nope*"], "no model matches 'nope*'"),
        (["weights", "info", "nowhere.npz"], "there is no weights file nowhere.npz"),
        (
            ["weights", "get", "cait_xxs24_225"],
            "there are no published weights cait_xxs24_225: did you mean cait_xxs24",
        ),
        (["weights", "get", "cait_tiny_32"], "there are no published weights cait_tiny_32"),
        (["train", "--preset", "deit_minni"], "unknown model 'deit_minni': did you mean deit_mini_"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"minicait: {sentence}") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("choose batch_size=8", "choose --batch-size 8"),
        ("micro_batch must be at least 1", "--micro-batch must be at least 1"),
        ("precision=fp16 is for GPUs", "--precision fp16 is for GPUs"),
        ("the names are batch_size, val_images", "the names are batch_size, val_images"),
        ("my_batch_size=8, num_classes=3", "my_batch_size=8, num_classes=3"),
        ("runs/img_size=32/x cannot be read", "runs/img_size=32/x cannot be read"),
    ],
)
def test_errors_name_flags(message, printed):
    assert in_flags(message) == printed


def test_no_network_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path))
    for name in ("HF_ENDPOINT", "MINICAIT_OFFICIAL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert main(["weights", "get", "cait_xxs24_224"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("minicait: could not download http://127.0.0.1:9/timm/") and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["weights"]])
def test_wrong_commands_are_explained(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: minicait" in capsys.readouterr().err


def test_help_knows_all_recipes(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    listed = capsys.readouterr().out.partition("\nrecipes:\n")[2]
    assert {name.strip() for line in listed.splitlines() for name in line[:50].split(",")} == set(RECIPES)


def test_help_and_module(tmp_path):
    done = subprocess.run([sys.executable, "-m", "minicait", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "examples:" in done.stdout
    np.savez(tmp_path / "w.npz", **CaiT(img_size=8, patch_size=4, dim=8, heads=2, depth=1).state_dict())
    done = subprocess.run(
        [sys.executable, "-m", "minicait", "weights", "info", tmp_path / "w.npz"], capture_output=True
    )
    assert done.returncode == 0

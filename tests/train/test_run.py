"""A run as a person sees it: its folder, its output, and wrong input."""

import json
import re
from types import SimpleNamespace

import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.run.plan import Plan
from minicait.train import Trainer, recipe
from minicait.train.checkpoint import Snapshot
from tests.train.runs import log, train


def test_the_folder_of_a_run(finished):
    names = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    assert names == {"args.json", "log.csv", "curves.svg", "train_batch.jpg", "attention.png", "example.png",
                     "checkpoint.safetensors", "checkpoint-previous.safetensors", "report-1.html", "report-2.html",
                     "report-3.html", "index.html", "page.safetensors", "weights/last.safetensors",
                     "weights/best.safetensors"}  # fmt: skip
    plan = json.loads((finished / "args.json").read_text())
    assert plan["recipe"]["epochs"] == 3 and plan["model"] == "cait_tiny_32" and plan["img_size"] == 16
    rows = log(finished)
    assert [row["epoch"] for row in rows] == ["1", "2", "3"] and 0 <= float(rows[-1]["ema_top1"]) <= 1
    assert (finished / "curves.svg").read_text().count("<polyline") == 5
    with Image.open(finished / "train_batch.jpg") as picture:
        assert picture.size == (8 * 64, 64)
    model, info = minicait.load_model(finished / "weights/best.safetensors")
    assert info.class_names[0] == "circle" and model.num_classes == 10
    assert re.fullmatch(r"shapes-tiny-1, epoch [123] of 3(, averaged weights)?", info.origin)


def test_what_it_prints(narrow, tmp_path, capsys):
    assert train(tmp_path, "--runs", "2", "--epochs", "2", "--train-images", "24") == 0
    text = capsys.readouterr().out
    parts = [
        "device: NumPy on", "no GPU:", "model: cait_tiny_32", "data: shapes (easy)",
        "precision: fp32, everything in float32", "recipe: epochs 2", "estimate:", "before training:",
        "epoch 2/2: loss", "(EMA", "waiting for images",
        "over 2 runs", "±", "best weights:", "minicait predict --weights", "minicait eval --weights",
        "minicait train --resume",
    ]  # fmt: skip
    for part in parts:
        assert part in text, part
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shapes-tiny-1", "shapes-tiny-2"]


def test_some_epochs_are_evaluated_and_the_last_is(narrow, tmp_path, capsys):
    assert train(tmp_path, "--epochs", "5", "--evaluate-every", "3", "--train-images", "16") == 0
    rows, evaluated = log(tmp_path / "shapes-tiny-1"), [False, True, False, False, True]
    assert [bool(row["top1"]) for row in rows] == [bool(row["ema_top5"]) for row in rows] == evaluated


@pytest.mark.parametrize(
    ("epochs", "images", "every"),
    [(100, (9469, 3925), 6), (10, (6000, 500), 1), (9, (50000, 10000), 1), (30, (900, 100), 2), (1, (10, 1000), 1)],
)
def test_evaluation_takes_a_twentieth_of_a_long_run(epochs, images, every):
    assert Plan(recipe("small").changed(epochs=epochs)).epochs_per_evaluation(*images) == every


def test_smoke_and_overfit(tmp_path, capsys):
    few = ["--set", "batch_size=4"]  # settings come last
    assert main(["train", "--smoke", *few, "--device", "cpu", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "recipe: epochs 2, batch_size 4, optimiser adamw, lr 0.001, " in out and "16 training images" in out
    assert train(tmp_path, "--overfit-one-batch", "--epochs", "18", "--lr", "5e-3", "--val-images", "8") == 0
    assert "the model classifies 100.0% of the batch correctly" in capsys.readouterr().out
    losses = [float(row["loss"]) for row in log(tmp_path / "shapes-tiny-2")]
    assert losses[-1] < 0.2 < losses[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--preset", "huge"], "unknown model 'huge'"),
        (["--recipe", "smal"], "unknown recipe 'smal': did you mean small?"),
        (["--difficulty", "extreme"], "difficulty must be one of easy, medium, hard"),
        (["--img-size", "17"], "an image of 17 x 17 does not divide into patches of 8"),
        (["--batch-size", "100"], "a batch of 100 cannot be made from 48 images"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--lr", "-1"], "lr must be at least 0, got -1"),
        (["--lr", "inf"], "lr must be at most 1,000, got inf"),
        (["--patch-size", "0"], "--patch-size must be at least 1, got 0"),
        (["--smoke", "--overfit-one-batch"], "choose one of --smoke and --overfit-one-batch"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--runs", "0"], "--runs must be at least 1, got 0"),
        (["--checkpoint-minutes", "-1"], "--checkpoint-minutes must be at least 0, got -1"),
        (["--checkpoint-minutes", "nan"], "--checkpoint-minutes must be at least 0, got nan"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--precision", "fp16"], "this run needs a GPU for fp16 (a CPU is fastest with fp32), but "),
        (["--set", "precision=tf32"], "this run needs a GPU for tf32"),
        (["--set", "precision=fp8"], "precision must be fp32, tf32 or fp16, got 'fp8'"),
        (["--set", "distillation=soft"], "minicait: distillation=soft needs --teacher FILE"),
        (["--set", "token_weight=1"], "token_weight is for a model that classifies patches, such as LV-ViT, got CaiT"),
        (["--recipe", "small-grafit"], "CaiT needs loss=cross_entropy or loss=bce, got loss=neighbours"),
        (["--out", "/dev/null/x"], "/dev/null/x cannot be read or written: Not a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_no_folder(options, sentence, tmp_path, capsys):
    assert train(tmp_path / "runs", *options) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.startswith("minicait: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("change", ["[]", '{"model": 1}', "nonsense", "difficulty", "train_images"])
def test_a_changed_plan_is_refused(tmp_path, finished, capsys, change):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint.safetensors").write_bytes((finished / "checkpoint.safetensors").read_bytes())
    plan = json.loads((finished / "args.json").read_text())
    data = plan["data"]
    changes = {
        "difficulty": {**plan, "data": {**data, "difficulty": "hard"}},
        "train_images": {**plan, "data": {**data, "train_images": "a"}},
    }
    (folder / "args.json").write_text(json.dumps(changes[change]) if change in changes else change)
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "args.json" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "there is no run in nowhere"),
        (["--runs", "2"], "--resume continues a run as planned; omit --runs"),
        (["--epochs", "5", "--lr", "1"], "omit --epochs, --lr"),
    ],
)
def test_resuming_takes_the_plan_as_it_was(options, sentence, capsys):
    assert main(["train", "--resume", "nowhere", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_is_resumed_with_another_micro_batch(narrow, tmp_path, capsys):
    """It belongs to the machine, not to the plan: results differ by rounding, if at all."""
    assert train(tmp_path, "--micro-batch", "1", "--epochs", "1") == 0
    folder = tmp_path / "shapes-tiny-1"
    assert f"train --resume {folder}" in (said := capsys.readouterr().out) and "--micro-batch 1\n" in said
    assert main(["train", "--resume", str(folder), "--device", "cpu", "--micro-batch", "2"]) == 0
    said = capsys.readouterr().out
    assert (
        "the run is complete (1 of 1 epochs)" in said
        and "predict:" in said
        and "resume:" not in said
        and "--resume" not in said
    )
    for wrong in ("0", "-1"):
        assert main(["train", "--out", str(tmp_path), "--micro-batch", wrong]) == 2
        assert capsys.readouterr().err == f"minicait: --micro-batch must be at least 1, got {wrong}\n"


@pytest.mark.parametrize("minutes, seconds, batches", [
    ("0", 0, [0, *range(1, 7), 6, *range(7, 13), 12]), ("1e5", 1000, [0, 6, 12]), ("5", 101, [0, 3, 6, 6, 9, 12, 12]),
])  # fmt: skip
def test_checkpoints_are_written_by_time(narrow, tmp_path, monkeypatch, minutes, seconds, batches):
    """And before training, and after each epoch; a batch takes so many seconds."""
    clock, written = [0.0], []
    real_step, real_write = Trainer.step, Snapshot.write

    def step(self, *args):
        clock[0] += seconds
        return real_step(self, *args)

    def write(self, *args):
        written.append(json.loads(self.text)["batches"])
        real_write(self, *args)

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(Snapshot, "write", write)
    monkeypatch.setattr("minicait.run.run.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert train(tmp_path, "--epochs", "2", "--checkpoint-minutes", minutes) == 0
    assert written == batches

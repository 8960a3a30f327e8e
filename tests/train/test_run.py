"""A run as a person sees it: its folder, its output, wrong input, and that nothing is lost when it dies."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.files.tensorfile import open_tensors
from minicait.train.gradients import Gradients

ROOT = Path(__file__).parents[2]
TINY = ["--preset", "tiny", "--img-size", "16", "--patch-size", "8", "--train-images", "48", "--val-images", "20",
        "--batch-size", "8", "--epochs", "3", "--checkpoint-batches", "2"]  # fmt: skip


def train(out, *options):
    return main(["train", "--device", "cpu", "--out", str(out), *TINY, *options])


def start(out, *options):
    """The same as a process of its own."""
    command = [sys.executable, "-m", "minicait", "train", "--device", "cpu", *options]
    command += [] if "--resume" in options else ["--out", str(out), *TINY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **output)


def tensors(path):
    file = open_tensors(path)
    return {name: file.read(name) for name in file.entries}


def log(folder):
    return list(csv.DictReader((folder / "log.csv").read_text().splitlines()))


def assert_same_run(a, b):
    """All weights, the optimiser, the averages, and the log but for its times."""
    for name in ("weights/last.safetensors", "weights/best.safetensors", "checkpoint.safetensors"):
        left, right = tensors(a / name), tensors(b / name)
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name}: {key}")
    times = {"seconds", "images_per_second", "waiting"}
    logs = [[{k: v for k, v in row.items() if k not in times} for row in log(folder)] for folder in (a, b)]
    assert logs[0] == logs[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs")
    assert train(out) == 0
    return out / "shapes-tiny-1"


def test_the_folder_of_a_run(finished):
    names = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    assert names == {"args.json", "log.csv", "curves.svg", "train_batch.jpg", "attention.png", "example.png",
                     "checkpoint.safetensors", "report-1.html", "report-2.html", "report-3.html",
                     "weights/last.safetensors", "weights/best.safetensors"}  # fmt: skip
    plan = json.loads((finished / "args.json").read_text())
    assert plan["recipe"]["epochs"] == 3 and plan["model"] == "cait_tiny_32" and plan["img_size"] == 16
    rows = log(finished)
    assert [row["epoch"] for row in rows] == ["1", "2", "3"] and 0 <= float(rows[-1]["ema_top1"]) <= 1
    assert (finished / "curves.svg").read_text().count("<polyline") == 5
    with Image.open(finished / "train_batch.jpg") as picture:
        assert picture.size == (8 * 64, 64)
    model, info = minicait.load_model(finished / "weights/best.safetensors")
    assert info.class_names[0] == "circle" and model.num_classes == 10


def test_what_it_prints(tmp_path, capsys):
    assert train(tmp_path, "--runs", "2", "--epochs", "2") == 0
    text = capsys.readouterr().out
    parts = [
        "device: NumPy on", "no GPU:", "model: cait_tiny_32", "data: shapes (easy)", "recipe: epochs 2", "estimate:",
        "precision: fp32, everything in float32", "before training:", "epoch 2/2: loss", "(EMA", "waiting for images",
        "over 2 runs", "±", "best weights:", "minicait predict --weights", "minicait eval --weights",
        "minicait train --resume",
    ]  # fmt: skip
    for part in parts:
        assert part in text, part
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shapes-tiny-1", "shapes-tiny-2"]


def test_smoke_and_overfit(tmp_path, capsys):
    assert main(["train", "--smoke", "--device", "cpu", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert train(tmp_path, "--overfit-one-batch", "--epochs", "40", "--lr", "3e-3") == 0
    assert "the model classifies 100.0% of the batch correctly" in capsys.readouterr().out
    losses = [float(row["loss"]) for row in log(tmp_path / "shapes-tiny-2")]
    assert losses[-1] < 0.2 < losses[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_and_resuming_goes_on(tmp_path, finished, number):
    """It reaches the worker processes too, as it does from a terminal, `timeout`, or a batch system."""
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 1/"):
            os.killpg(process.pid, number)
            break
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; to resume: " in rest and "minicait train --resume" in rest
    assert "Traceback" not in rest
    assert main(["train", "--resume", str(tmp_path / "shapes-tiny-1"), "--device", "cpu", "--threads", "1"]) == 0
    assert_same_run(tmp_path / "shapes-tiny-1", finished)


def kill_and_resume(out, finished, seed):
    """Kill a run at a random moment, resume it, kill it again, until it is through. Returns how often it was killed."""
    rng = random.Random(seed)
    folder, kills = out / "shapes-tiny-1", 0
    while True:
        resume = ["--resume", str(folder)] if (folder / "checkpoint.safetensors").exists() else []
        if not resume and folder.exists():  # killed before its first batch
            for path in sorted(folder.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            folder.rmdir()
        process = start(out, *resume)
        for line in process.stdout:
            if line.startswith("folder:"):
                break
        try:
            process.wait(timeout=rng.uniform(0.02, 0.6) * (1 + kills / 8))  # on a busy machine it must get on, too
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        process.stdout.close()
        if code == 0:
            assert_same_run(folder, finished)
            return kills
        assert code == -signal.SIGKILL
        kills += 1
        if kills > 40:
            pytest.fail("it never got through")


def test_killed_at_random_moments_it_ends_the_same(tmp_path, finished):
    assert kill_and_resume(tmp_path, finished, seed=0) >= 1


@pytest.mark.slow
def test_twenty_kills(tmp_path, finished):
    kills, seed = 0, 1
    while kills < 20:
        (tmp_path / str(seed)).mkdir()
        kills += kill_and_resume(tmp_path / str(seed), finished, seed)
        seed += 1
    print(f"\n{kills} kills in {seed - 1} runs; all ended with the same bits")


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path, finished):
    """A run that died after writing its log and before its checkpoint must not have the epoch twice."""
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            process.kill()
            break
    process.communicate()
    folder = tmp_path / "shapes-tiny-1"
    with (folder / "log.csv").open("a") as file:
        file.write(",".join("9" * 13) + "\n")
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    assert_same_run(folder, finished)


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, monkeypatch, capsys):
    saved = []

    def full(fd):
        saved.append(1)
        if len(saved) > 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert train(tmp_path) == 2
    error = capsys.readouterr().err
    for part in ("could not be written", "No space left on device", "is intact: "):
        assert part in error
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "shapes-tiny-1"), "--device", "cpu"]) == 0


def test_a_damaged_checkpoint_is_refused(tmp_path, finished, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("args.json", "checkpoint.safetensors"):
        (folder / name).write_bytes((finished / name).read_bytes())
    content = bytearray((folder / "checkpoint.safetensors").read_bytes())
    content[-1000] ^= 1
    (folder / "checkpoint.safetensors").write_bytes(content)
    assert main(["train", "--resume", str(folder)]) == 2
    assert "checkpoint.safetensors was altered or damaged" in capsys.readouterr().err


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
        (["--lr", "inf"], "lr must be at least 0, got inf"),
        (["--patch-size", "0"], "--patch-size must be at least 1, got 0"),
        (["--smoke", "--overfit-one-batch"], "choose one of --smoke and --overfit-one-batch"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--runs", "0"], "--runs must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--precision", "fp16"], "this run needs a GPU for fp16 (a CPU is fastest with fp32), but "),
        (["--set", "precision=tf32"], "this run needs a GPU for tf32"),
        (["--set", "precision=fp8"], "precision must be fp32, tf32 or fp16, got 'fp8'"),
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


def test_a_weight_that_is_not_finite_never_becomes_a_checkpoint(tmp_path, capsys, monkeypatch):
    import minicait.optim as optim

    real, count = optim.AdamW.step, []

    def explode(self, *args):
        real(self, *args)
        count.append(1)
        if len(count) == 6:
            self.parameters.weights["norm.weight"][0] = np.inf

    monkeypatch.setattr(optim.AdamW, "step", explode)
    assert train(tmp_path) == 2
    assert "the weights of norm.weight are not finite" in capsys.readouterr().err
    state = tensors(tmp_path / "shapes-tiny-1/checkpoint.safetensors")
    assert all(np.isfinite(value).all() for value in state.values())


def test_a_signal_in_the_last_evaluation_ends_the_other_runs_too(tmp_path, capsys, monkeypatch):
    import minicait.train.trainer as trainer

    real = trainer.evaluate
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 2:  # of the only epoch: the weights, then their average
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(trainer, "evaluate", interrupted)
    assert train(tmp_path, "--epochs", "1", "--runs", "3") == 128 + signal.SIGTERM
    assert "stopped after 1 of 3 runs" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["shapes-tiny-1"]


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


def test_a_run_is_resumed_with_another_micro_batch(tmp_path, capsys):
    """It belongs to the machine, not to the plan: results differ by rounding, if at all."""
    assert train(tmp_path, "--micro-batch", "1") == 0
    folder = tmp_path / "shapes-tiny-1"
    assert f"train --resume {folder}" in (said := capsys.readouterr().out) and "--micro-batch 1\n" in said
    assert main(["train", "--resume", str(folder), "--device", "cpu", "--micro-batch", "2"]) == 0
    for wrong in ("0", "-1"):
        assert main(["train", "--out", str(tmp_path), "--micro-batch", wrong]) == 2
        assert capsys.readouterr().err == f"minicait: --micro-batch must be at least 1, got {wrong}\n"


def test_a_diverging_run_stops_with_a_word(tmp_path, capsys, monkeypatch):
    real, count = Gradients.__call__, []

    def sometimes_nan(*args):
        loss, gradients = real(*args)
        count.append(1)
        return (np.float32("nan"), gradients) if len(count) == 5 else (loss, gradients)

    monkeypatch.setattr(Gradients, "__call__", sometimes_nan)
    assert train(tmp_path) == 2
    error = capsys.readouterr().err
    assert "training stopped at batch 5: " in error
    assert f"the last good checkpoint is {tmp_path / 'shapes-tiny-1/checkpoint.safetensors'}" in error
    assert time.time() - (tmp_path / "shapes-tiny-1/checkpoint.safetensors").stat().st_mtime < 60

"""Training runs from the command line, in this process or in one of their own, and what they leave behind.

Run as a module, this file is the command line with narrow presets.
"""

import csv
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from minicait.__main__ import main as program
from minicait.cli import main
from minicait.files.tensorfile import open_tensors
from minicait.models import FAMILIES

ROOT = Path(__file__).parents[2]
TINY = ["--preset", "tiny", "--img-size", "16", "--patch-size", "8", "--train-images", "48", "--val-images", "20",
        "--batch-size", "8", "--epochs", "3", "--checkpoint-minutes", "0"]  # fmt: skip


def train(out, *options):
    return main(["train", "--device", "cpu", "--out", str(out), *TINY, *options])


def start(out, *options, module="tests.train.runs"):
    """The same as a process of its own."""
    command = [sys.executable, "-m", module, "train", "--device", "cpu", *options]
    command += [] if "--resume" in options else ["--out", str(out), *TINY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, start_new_session=True, **output)


@contextmanager
def narrow_presets():
    """Two narrow blocks instead of many in the presets for small images: a run does the same in half the time."""
    with pytest.MonkeyPatch.context() as patch:
        for family in FAMILIES:
            for name in [name for name, config in family.presets.items() if config.dim == 96]:
                patch.setitem(family.presets, name, family.presets[name].changed(dim=24, depth=2))
        yield


def tensors(path):
    file = open_tensors(path)
    return {name: file.read(name) for name in file.entries}


def log(folder):
    return list(csv.DictReader((folder / "log.csv").read_text().splitlines()))


def assert_same_run(a, b):
    """All weights, the optimiser, the averages, the numbers of the page, and the log but for its times."""
    weights = "weights/last.safetensors", "weights/best.safetensors"
    for name in (*weights, "checkpoint.safetensors", "page.safetensors"):
        left, right = tensors(a / name), tensors(b / name)
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name}: {key}")
    times = {"seconds", "images_per_second", "waiting", "megabytes"}
    logs = [[{k: v for k, v in row.items() if k not in times} for row in log(folder)] for folder in (a, b)]
    assert logs[0] == logs[1]


if __name__ == "__main__":
    with narrow_presets():
        sys.exit(program())

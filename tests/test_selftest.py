"""minicait selftest: it agrees where all is well, names what is wrong, and tells nobody whose machine it was."""

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from autograd import cuda, kernels
from autograd.cases import CASES, roundings_apart
from minicait.bench import Measured
from minicait.cli import main
from minicait.selftest import machine, speed, training
from minicait.selftest.report import Finding, Part, table, without_names
from tests import stand_in_cupy


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "STEPS", 3)
    small = {"img_size": 16, "dim": 12, "heads": 3, "depth": 2}
    monkeypatch.setattr(training, "CONFIG", training.CONFIG | small)


@pytest.fixture
def selftest(capsys):
    """Exit code, what was printed, and the file."""

    def run(*options):
        code = main(["selftest", *options])
        return code, capsys.readouterr().out, Path("minicait-selftest.txt").read_text(encoding="utf-8")

    return run


def found(file, name):
    """What a part found, in the file's section about it."""
    return re.search(rf"\n\n{name}: .*\n  (.*)", file).group(1)


def test_all_is_well(selftest):
    code, said, file = selftest("--quick")
    assert code == 0 and "everything that was run agrees" in said
    assert max(map(len, said.split("\n\n")[1].splitlines())) <= 100
    assert f"ok: {2 * len(CASES)} of {2 * len(CASES)} agree" in file
    assert "not run: left out by --quick" in file and "Traceback" not in file
    assert file.count("\n  step ") == 3 and file.count("\n  average ") == 1
    for case in CASES:
        assert len(re.findall(rf"^  {re.escape(str(case))} +float32 .* ok +float16 .* ok$", file, re.MULTILINE)) == 1
    assert [path.name for path in Path().iterdir()] == ["minicait-selftest.txt"]


def test_a_wrong_gradient_is_named(selftest, monkeypatch):
    real = kernels.layer_norm_grad
    monkeypatch.setattr(kernels, "layer_norm_grad", lambda *args: (real(*args)[0] * 1.01, *real(*args)[1:]))
    code, said, file = selftest("--quick")
    assert code == 1 and "something is wrong with: gradients" in said
    assert f"{len(CASES) - 1} of {len(CASES)} agree, not layer_norm-plain" in file and "GradientError" in file


def test_a_kernel_that_is_wrong_in_float32_is_named(selftest, monkeypatch):
    gelu = import_module("autograd.kernels.gelu")  # the package has a function of that name
    monkeypatch.setattr(gelu, "_Q", (0.13, *gelu._Q[1:]))
    code, said, file = selftest("--quick")
    assert code == 1 and "not gelu-plain in float32 (" in found(file, "operations")
    assert re.search(r"^  gelu-plain +float32 .* DIFFERS", file, re.MULTILINE)
    assert re.search(r"^  GELU +float32 .* DIFFERS", file, re.MULTILINE)
    assert "differs" in said and "training, fp32" in said


def test_an_operation_that_raises_leaves_the_others_running(selftest, monkeypatch):
    def broken(*args):
        raise RuntimeError("this kernel does not compile")

    monkeypatch.setattr(kernels, "log_softmax", broken)
    monkeypatch.setattr(training, "losses", broken)
    code, _, file = selftest("--quick")
    assert code == 1
    assert "failed: RuntimeError: this kernel does not compile" in found(file, "training, fp32")
    assert "log_softmax-last axis in float32 (error)" in found(file, "operations")
    assert "ok" in found(file, "kernels") and "ok" in found(file, "memory")
    assert "Traceback" in file


def test_a_gpu_that_is_asked_for_and_not_there(capsys, monkeypatch):
    monkeypatch.setattr(cuda, "why_unusable", lambda: "CuPy finds no CUDA device")
    assert main(["selftest", "--gpu"]) == 2
    assert capsys.readouterr().err == "minicait: --gpu: no GPU can be used here: CuPy finds no CUDA device\n"
    assert not list(Path().iterdir())


def test_where_cupy_is_another_one(selftest, monkeypatch):
    """With the tests' stand-in, operations agree, and parts that ask for more than it has say so."""
    with stand_in_cupy.installed(monkeypatch):
        code, _, file = selftest("--quick", "--gpu")
    assert code == 1 and f"{3 * len(CASES)} of {3 * len(CASES)} agree" in found(file, "operations")
    assert "unknown (AttributeError: " in found(file, "machine")
    assert "failed: AttributeError" in found(file, "memory")


@pytest.mark.parametrize(
    ("out", "sentence"),
    [("nowhere/file.txt", "there is no folder nowhere"), (".", "is a folder"), ("x" * 252, "cannot be written: ")],
)
def test_out_that_cannot_be_written(out, sentence, capsys):
    assert main(["selftest", "--quick", "--out", out]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and not said.out and "Traceback" not in said.err


def test_speed_beside_pytorch_and_without(monkeypatch):
    def measure(job, names, rounds):
        return [Measured(name, [0.5] * rounds, 100.0) for name in names]

    def measure_without_timm(job, names, rounds):
        if "timm" in names:
            raise ValueError("timm cannot be measured: no CUDA")
        return measure(job, names, rounds)

    def result(installed, measure):
        monkeypatch.setattr(speed, "find_spec", lambda name: True if installed else None)
        monkeypatch.setattr(speed, "measure", measure)
        return speed.measured("cpu", "train").result

    assert result(True, measure) == "8.0 images/s, 100 MB; PyTorch 8.0 images/s, 100 MB"
    assert result(False, measure) == f"8.0 images/s, 100 MB; {speed.INSTALL}"
    assert result(True, measure_without_timm) == "8.0 images/s, 100 MB; timm cannot be measured: no CUDA"


def test_the_file_does_not_tell_whose_it_is(monkeypatch):
    monkeypatch.setenv("HOME", "/data/people/jane")
    monkeypatch.setattr("getpass.getuser", lambda: "jane")
    for text, want in [
        ('File "/data/people/jane/env/lib/x.py"', 'File "~/env/lib/x.py"'),
        ("/home/joe/x.py and /Users/joe/x.py", "~/x.py and ~/x.py"),
        ("C:\\Users\\Joe\\x.py", "~\\x.py"),
        (json.dumps("C:\\Users\\Joe\\x.py"), '"~\\\\x.py"'),
        ("/scratch/jane/run", "/scratch/USER/run"),
        ("no jane in paths", "no jane in paths"),
    ]:
        assert without_names(text) == want


def test_the_machine_is_told_without_names():
    finding = machine.look("cpu")
    told = dict(re.split(r": +", line, maxsplit=1) for line in finding.lines)
    assert told["numpy"] == np.__version__ and told["tested on"] == "cpu" and "CPUs" in told["CPU"]
    assert "/" not in told["BLAS"] and machine.version(12090) == "12.9"


def test_roundings():
    one = np.ones(2, np.float32)
    eps = np.finfo(np.float32).eps
    assert roundings_apart([one], [one + eps], "float32") == pytest.approx(1)
    assert roundings_apart([1000 * one], [1000 * (one + eps)], "float32") == pytest.approx(1, rel=0.1)
    assert roundings_apart([one], [one * np.nan], "float32") == roundings_apart([one], [one[:1]], "float32") == np.inf
    assert roundings_apart([one * np.inf], [one], "float32") == np.inf
    assert roundings_apart([one * np.nan, one * np.inf], [one * np.nan, one * np.inf], "float16") == 0


def test_long_cells_go_on_below():
    part = Part("a part", "words " * 20, lambda: Finding("ok", "more words " * 10))
    part.run()
    lines = table([part]).splitlines()
    assert len(lines) > 4 and max(map(len, lines)) <= 100

"""minicait selftest: it agrees where all is well, names what is wrong, and tells nobody whose machine it was."""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from autograd import cuda, kernels
from autograd.cases import CASES, roundings_apart
from minicait.bench import Job, Measured, OutOfMemoryError
from minicait.cli import main, options
from minicait.cli import selftest as command
from minicait.models.cait import CaiT
from minicait.selftest import block, machine, operations, parts, repeats, speed, training
from minicait.selftest.report import OK, Finding, Part, anonymise, table
from minicait.train.gradients import AS_GRAPH, NO_GRAPH
from minicait.train.step_graph import NO_MEMORY
from tests import stand_in_cupy

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "STEPS", 3)
    small = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "layer_scale": 0.1}
    monkeypatch.setattr(training, "create_model", lambda _, classes, **own: CaiT(classes, **small, **own))


@pytest.fixture
def selftest(capsys):
    """Exit code, what was printed, and the file."""

    def run(*options):
        code = main(["selftest", *options])
        return code, capsys.readouterr().out, Path("minicait-selftest.txt").read_text(encoding="utf-8")

    return run


def found(file, name):
    """Return the section of the file about one part."""
    return re.search(rf"\n\n{name}: .*\n  (.*)", file).group(1)


def test_all_is_well(selftest):
    code, said, file = selftest("--quick")
    assert code == 0 and "all results agree" in said
    assert max(map(len, said.split("\n\n")[1].splitlines())) <= 100
    assert f"ok: {2 * len(CASES)} of {2 * len(CASES)} agree" in file
    assert "not run: skipped in a quick self-test" in file and "Traceback" not in file
    assert "ok: equal bits when repeated and when resumed, in fp32" in file
    assert file.count("\n  step ") == 3 and file.count("\n  average ") == 1
    for case in CASES:
        assert len(re.findall(rf"^  {re.escape(str(case))} +float32 .* ok +float16 .* ok$", file, re.MULTILINE)) == 1
    assert [path.name for path in Path().iterdir()] == ["minicait-selftest.txt"]


@pytest.fixture
def small_cases(monkeypatch):
    """Instead of all cases, those of few values: enough to see a mistake."""
    small = [case for case in CASES if sum(x.size for x in case.arrays()) < 200]
    monkeypatch.setattr(operations, "CASES", small)
    return small


def test_a_wrong_gradient_is_named(selftest, small_cases, monkeypatch):
    real = kernels.layer_norm_grad
    monkeypatch.setattr(kernels, "layer_norm_grad", lambda *args: (real(*args)[0] * 1.01, *real(*args)[1:]))
    code, said, file = selftest("--quick")
    assert code == 1 and "something is wrong with: gradients" in said
    wrong, count = [str(case) for case in small_cases if case.op == "layer_norm"], len(small_cases)
    assert f"{count - len(wrong)} of {count} agree, not {', '.join(wrong)}" in file and "GradientError" in file


def test_a_kernel_that_is_wrong_in_float32_is_named(selftest, small_cases, monkeypatch):
    gelu = import_module("autograd.kernels.gelu")  # the package has a function of that name
    monkeypatch.setattr(gelu, "_R", (1.6, *gelu._R[1:]))
    code, said, file = selftest("--quick")
    assert code == 1 and "not gelu-plain in float32 (" in found(file, "operations")
    assert re.search(r"^  gelu-plain +float32 .* DIFFERS", file, re.MULTILINE)
    assert re.search(r"^  GELU +float32 .* DIFFERS", file, re.MULTILINE)
    assert "differs" in said and "training, fp32" in said


def test_an_operation_that_raises_leaves_the_others_running(selftest, small_cases, monkeypatch):
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
    """Operations agree on the tests' stand-in, and parts that ask for more than it has say so."""
    monkeypatch.setattr(operations, "gradients", lambda: Finding(OK, "checked on NumPy, as anywhere"))
    monkeypatch.setattr(block, "BATCH", 1)
    with stand_in_cupy.installed(monkeypatch):
        code, _, file = selftest("--quick", "--gpu")
    assert code == 1 and f"{3 * len(CASES)} of {3 * len(CASES)} agree" in found(file, "operations")
    assert "unknown (AttributeError: " in found(file, "machine")
    assert "matrix products by CuPy, with copies: slower" in found(file, "machine")
    assert "failed: AttributeError" in found(file, "memory")


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("nowhere/file.txt", "there is no folder nowhere"),
        (".", "it is a folder"),
        ("x" * 256, "cannot be read or written: File name too long"),
        ("-", "give the name of a file instead of -"),
    ],
)
def test_out_that_cannot_be_written(out, sentence, capsys, few_parts):
    assert main(["selftest", "--quick", "--out", out]) == 2
    said = capsys.readouterr()
    assert sentence in said.err and not said.out and "Traceback" not in said.err
    assert not list(Path().iterdir())


@pytest.fixture
def few_parts(monkeypatch):
    """Instead of the real ones: three, whose work a test may replace."""
    few = [Part(name, "nothing", lambda: Finding(OK, "well", iter(["a line"]))) for name in ("one", "two", "three")]
    monkeypatch.setattr(command, "parts", lambda device, quick: few)
    return few


def test_out_that_is_a_link_is_replaced(few_parts):
    Path("real.txt").write_text("precious")
    Path("out.txt").symlink_to("real.txt")
    assert main(["selftest", "--out", "out.txt"]) == 0
    assert not Path("out.txt").is_symlink() and "three: nothing" in Path("out.txt").read_text()
    assert Path("real.txt").read_text() == "precious"


def test_out_that_is_a_pipe_is_written_to_once(few_parts):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    assert main(["selftest", "--out", "pipe"]) == 0
    reader.join(10)
    assert read[0].count(" selftest\n") == 1 and read[0].count("  a line\n") == 3
    assert Path("pipe").is_fifo() and [path.name for path in Path().iterdir()] == ["pipe"]


def test_ctrl_c_keeps_what_was_found(few_parts, selftest):
    seen = []

    def stopped():
        seen.append(Path("minicait-selftest.txt").read_text())  # all that a crash would leave
        raise KeyboardInterrupt

    few_parts[1].work = stopped
    code, said, file = selftest()
    assert code == 130 and "all results so far agree" in said and "bug report: minicait-selftest.txt" in said
    assert "  ok: well\n  a line\n" in seen[0] and found(seen[0], "two") == "not run: it started and did not finish"
    assert found(file, "one") == "ok: well" and "  a line\n" in file
    assert found(file, "two") == found(file, "three") == "not run: stopped" and found(seen[0], "three") == "not run"


def test_a_disk_that_is_full_in_the_end_is_told_after_the_table(few_parts, capsys, monkeypatch):
    def full(path, text):
        if few_parts[0].has_run:
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(command, "write", full)
    assert main(["selftest"]) == 2
    said = capsys.readouterr()
    assert "ok: well" in said.out
    assert said.err == "minicait: minicait-selftest.txt cannot be read or written: No space left on device\n"


@pytest.mark.parametrize("columns, width", [("40", 72), ("90", 90), ("200", 120)])
def test_the_table_is_as_wide_as_the_terminal(columns, width, few_parts, selftest, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    _, said, file = selftest()
    assert f"\n{'-' * width}\n" in said and f"\n{'-' * 100}\n" in file
    assert max(map(len, said.split("\n\n")[1].splitlines())) <= width


def test_which_device(monkeypatch, capsys):
    assert main(["selftest", "--gpu", "--device", "cpu"]) == 2
    assert "choose one of --gpu and --device cpu" in capsys.readouterr().err
    assert main(["selftest", "--device", "gpu"]) == 2
    assert "unknown device 'gpu'" in capsys.readouterr().err
    monkeypatch.setattr(cuda, "device_id", lambda name: 1)
    args = argparse.Namespace(gpu=True, device="cuda:1")
    assert options.device(args) == command._device(args) == "cuda:1"
    names = [part.name for part in parts("cuda:1")]
    assert {"training, fp16", "speed, training, fp16", "block", "equal bits", "host and GPU", "images"} <= set(names)
    here = [part.name for part in parts("cpu")]
    assert here.count("speed, training") == here.count("equal bits") == 1 and "block" not in here


def test_help_names_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["selftest", "--help"])
    assert re.findall(r"^  (\d+) ", capsys.readouterr().out, re.MULTILINE) == ["0", "1", "2", "130"]


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

    assert result(True, measure) == "batch 4: 8.0 images/s, 100 MB; PyTorch 8.0 images/s, 100 MB"
    assert result(False, measure) == f"batch 4: 8.0 images/s, 100 MB; {speed.INSTALL}"
    assert result(True, measure_without_timm) == "batch 4: 8.0 images/s, 100 MB; timm cannot be measured: no CUDA"


@pytest.mark.parametrize("fits, tried", [(128, [128]), (32, [128, 64, 32]), (0, [128, 64, 32, 16, 8, 4, 2, 1])])
def test_a_gpu_is_measured_with_as_many_images_as_fit(monkeypatch, fits, tried):
    jobs: list[Job] = []

    def measure(job, names, rounds):
        jobs.append(job)
        if job.batch > fits:
            raise OutOfMemoryError("minicait cannot be measured: out of memory")
        return [Measured(name, [0.5] * rounds, 100.0) for name in names]

    monkeypatch.setattr(speed, "find_spec", lambda name: None)
    monkeypatch.setattr(speed, "measure", measure)
    part = Part("speed", "", lambda: speed.measured("cuda:1", "train", "fp16"))
    part.run()
    assert [job.batch for job in jobs] == tried
    assert {(job.device, job.precision, job.steps) for job in jobs} == {("cuda:1", "fp16", speed.STEPS)}
    if fits:
        assert part.finding.result.startswith(f"batch {fits}: {2 * fits}.0 images/s, 100 MB; PyTorch and timm are not")
    else:
        assert part.outcome == "failed: OutOfMemoryError: minicait cannot be measured: out of memory"


def test_the_host_and_the_gpu_apart(monkeypatch):
    """As many images are taken as there is memory for, with a graph, too."""

    def launched(device, size, precision, graph):
        if size > 64:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
        how = AS_GRAPH if graph and size <= 32 else f"{NO_GRAPH}: {NO_MEMORY if graph else 'it is off'}"
        return speed.Launched([(0.010, gpu), (0.012, gpu), (0.011, gpu)], np.ones(1), how)

    freed = []
    monkeypatch.setattr(speed, "launched", launched)
    monkeypatch.setattr(cuda, "free_memory", lambda error, device: freed.append(device))
    monkeypatch.setattr(speed, "release", lambda device: None)
    for gpu, limit in ((0.02, "the GPU"), (0.0111, "the host: the GPU waits for launches")):
        finding = speed.host_and_gpu("cuda:1")
        assert finding.verdict == OK and finding.result.endswith(f"; the limit is {limit}")
        assert finding.result.startswith("batch 32: without a CUDA graph: it is off: host 11.0 ms, GPU ")
        assert f"; as a CUDA graph: host 11.0 ms, GPU {1e3 * gpu:.1f} ms; gradients 0.0e+00 apart" in finding.result
    assert freed == ["cuda:1"] * 2


def test_a_block_in_each_precision(monkeypatch):
    """NumPy against itself: float16 is close, and the gradients of all parameters are compared."""
    monkeypatch.setattr(block, "BATCH", 1)
    finding = block.block_agrees("cpu")
    assert finding.verdict == OK and finding.result.startswith("largest relative difference: fp32 0.0e+00 (1e-05 allow")
    assert len(finding.lines) == 3 * (2 + 18) and any(line.startswith("fp16 mlp.fc2.bias ") for line in finding.lines)
    monkeypatch.setitem(block.ALLOWED, "fp16", 1e-5)
    assert block.block_agrees("cpu").verdict == "differs"


def test_other_bits_are_named(monkeypatch):
    """A sum in random order would be so; and a moment that a checkpoint lacks."""
    real, wrong = repeats.trained, {"repeated": False, "resumed": False}
    calls = []

    def trained(device, precision, interrupted=False):
        arrays = real(device, precision, interrupted)
        calls.append(interrupted)
        if (wrong["resumed"] and interrupted) or (wrong["repeated"] and len(calls) == 2):
            arrays["mean/head.weight"][0, 0] += 1e-7
        return arrays

    monkeypatch.setattr(repeats, "trained", trained)
    assert repeats.bits_are_equal("cpu", ["fp32"]).verdict == OK
    for how in wrong:
        wrong.update(dict.fromkeys(wrong, False) | {how: True})
        calls.clear()
        finding = repeats.bits_are_equal("cpu", ["fp32"])
        assert finding.result == f"other bits: fp32, {how}"
        assert any(line.endswith(" arrays differ mean/head.weight") for line in finding.lines)


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
        assert anonymise(text) == want


def test_the_machine_is_told_without_names(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    finding = machine.describe("cpu")
    told = dict(re.split(r": +", line, maxsplit=1) for line in finding.lines)
    assert told["numpy"] == np.__version__ and told["tested on"] == "cpu" and "CPUs" in told["CPU"]
    assert "/" not in told["BLAS"] and machine.version(12090) == "12.9"
    assert told["NVIDIA_TF32_OVERRIDE"] == "0" and machine.version(0) == "none"


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


def test_a_cpu_that_was_asked_for_leaves_the_gpu_alone(tmp_path):
    """CuPy is there, and nothing imports it: that, or a look at the GPU, would take memory of it."""
    (tmp_path / "cupy.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def minicait(*options):
        command = [sys.executable, "-m", "minicait", *options, "--device", "cpu"]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert not (tmp_path / "imported").exists()
        return result

    small = ["--img-size", "16", "--patch-size", "8", "--out", "runs"]
    said = minicait("train", "--smoke", *small)
    assert said.returncode == 0, said.stderr
    assert "threads; as requested\n" in said.stdout
    assert re.search(r"resume: .*train --resume runs/shapes-tiny-1 --device cpu\n", said.stdout)
    assert "fp32), but --device cpu was given\n" in minicait("train", *small, "--precision", "fp16").stderr
    describe = "import minicait.selftest.machine as m; print(m.describe('cpu').result)"
    said = subprocess.run(
        [sys.executable, "-c", describe], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert said.stdout.endswith("; GPU: not looked for\n") and not (tmp_path / "imported").exists()

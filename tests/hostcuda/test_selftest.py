"""minicait selftest on the real CuPy: a GPU that works, and one with a kernel that does not compile."""

from importlib import import_module

import pytest

from autograd.cases import CASES
from autograd.kernels import launch
from minicait.cli import main
from minicait.models.cait import CaiT
from minicait.selftest import kernels, operations, training

pytestmark = pytest.mark.hostcuda
SMALL = {"img_size": 16, "patch_size": 8, "dim": 12, "heads": 3, "depth": 1, "layer_scale": 0.1}


@pytest.fixture
def selftest(monkeypatch, tmp_path):
    """Exit code, and the file. A small model: every thread of a kernel has its turn."""
    monkeypatch.setattr(training, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    monkeypatch.setattr(training, "STEPS", 2)
    monkeypatch.setattr(training, "BATCH", 4)
    monkeypatch.setattr(kernels, "MANY", 5000)
    monkeypatch.setattr(kernels, "TALKING", (1, 20, 2, 6))

    def run(*options):
        code = main(["selftest", "--gpu", "--quick", "--out", str(tmp_path / "out.txt"), *options])
        return code, (tmp_path / "out.txt").read_text(encoding="utf-8")

    return run


def test_all_is_well(selftest):
    code, file = selftest()
    assert code == 0, file
    assert f"ok: {3 * len(CASES)} of {3 * len(CASES)} agree" in file
    assert (
        "hostcuda, compute capability" in file
        and "CuPy's memory pool: " in file
        and "unknown (" not in file.replace("unknown (HostCudaError: hostcuda cannot run cuBLAS, getVersion", "")
    )
    assert "matrix products by cuBLAS, called directly" in " ".join(file.split())
    assert "steps skipped: " in file and "talking-heads attention " in file


def test_another_gpu(selftest, monkeypatch):
    monkeypatch.setattr(operations, "CASES", CASES[:3])
    monkeypatch.setattr(kernels, "LENGTHS", (31,))
    monkeypatch.setattr(training, "PRECISIONS", ("fp16",))
    code, file = selftest("--device", "cuda:1")
    assert code == 0 and "cuda:1 against NumPy" in file, file


def test_a_kernel_that_does_not_compile(selftest, monkeypatch):
    softmax = import_module("autograd.kernels.softmax")  # the package has a function of that name
    monkeypatch.setattr(softmax, "_SOFTMAX", softmax._SOFTMAX.replace("over_row", "over_nothing"))
    code, file = selftest()
    launch.compiled.cache_clear()
    assert code == 1 and "over_nothing" in file
    assert "softmax, rows of 129" in file and "attention-two heads in float32 (error)" in " ".join(file.split())
    assert "training, fp32" in file and "layer norm, rows of 129 " in file

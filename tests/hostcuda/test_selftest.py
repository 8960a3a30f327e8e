"""minicait selftest on the real CuPy: a GPU that works, and one with a kernel that does not compile."""

from contextlib import nullcontext
from importlib import import_module

import numpy as np
import pytest

from autograd.cases import CASES
from autograd.cuda import OUT_OF_MEMORY
from autograd.graph import Graph
from autograd.kernels import launch
from minicait.bench import worker
from minicait.cli import main
from minicait.data.pixels import Pixels
from minicait.models.cait import CaiT
from minicait.selftest import block, images, kernels, operations, repeats, speed, training
from minicait.train.gradients import Gradients
from tests import hostcuda

pytestmark = pytest.mark.hostcuda
SMALL = {"img_size": 16, "patch_size": 8, "dim": 12, "heads": 3, "depth": 1, "layer_scale": 0.1}


@pytest.fixture
def selftest(monkeypatch, tmp_path):
    """Exit code, and the file. A small model: every thread of a kernel has its turn."""
    monkeypatch.setattr(training, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    monkeypatch.setattr(training, "STEPS", 2)
    monkeypatch.setattr(training, "BATCH", 4)
    monkeypatch.setattr(block, "create_model", lambda _, **own: CaiT(10, **SMALL, **own))
    monkeypatch.setattr(block, "BATCH", 3)
    monkeypatch.setattr(images, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
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
    assert "hostcuda, compute capability" in file and "CuPy's memory pool: " in file and "unknown (" not in file
    assert "equal bits when repeated and when resumed, in fp32, tf32, fp16" in file
    assert "ok: largest relative difference: fp32 " in file and "\n  fp16 attn.proj_w.weight " in file
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


def test_a_block_that_is_wrong_is_noticed(selftest, monkeypatch):
    real = block.outcome

    def wrong(device, precision):
        found = real(device, precision)
        if device != "cpu":
            found["mlp.fc1.weight"][0, 0] *= 1.01 if precision == "fp32" else np.nan
        return found

    assert block.block_agrees("cuda").verdict == "ok"
    monkeypatch.setattr(block, "outcome", wrong)
    finding = block.block_agrees("cuda")
    assert finding.verdict == "differs" and "tf32 nan (1e-02 allowed)" in finding.result


def test_a_training_in_another_order_is_noticed(selftest, monkeypatch):
    real = training.some_batches
    calls = []
    monkeypatch.setattr(
        training, "some_batches", lambda model: real(model)[:: 1 if calls.append(1) or len(calls) == 1 else -1]
    )
    finding = repeats.bits_are_equal("cuda", ["fp16"])
    assert finding.result == "other bits: fp16, repeated; fp16, resumed"


def test_times_of_the_host_and_the_gpu(monkeypatch):
    """A pass is launched without a wait, but for the first, which may make the graph; its end is waited for."""
    monkeypatch.setattr(speed, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    waits = []
    real = Gradients.__call__

    def counted(self, *args):
        with hostcuda.counting() as count:
            result = real(self, *args)
        waits.append((count.synchronisations, count.copies_to_host))
        return result

    monkeypatch.setattr(Gradients, "__call__", counted)
    for graph, how in ((False, "without a CUDA graph: it is off"), (True, "as a CUDA graph")):
        waits.clear()
        with hostcuda.counting() as count:
            found = speed.launched("cuda:1", 2, "fp16", graph)
        assert found.how == how
        assert len(found.times) == speed.ROUNDS and all(host > 0 and gpu == 0 for host, gpu in found.times)  # not timed
        assert waits[1:] == [(0, 0)] * (speed.ROUNDS + speed.WARM_UP - 1) and count.synchronisations >= len(waits)


@pytest.mark.parametrize("factor, verdict", [(1, "ok"), (1.02, "differs"), (np.nan, "differs")])
def test_a_graph_beside_single_launches(monkeypatch, factor, verdict):
    monkeypatch.setattr(speed, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    monkeypatch.setattr(speed, "sizes", lambda device: [2])
    real = speed.launched

    def changed(device, size, precision, graph):
        found = real(device, size, precision, graph)
        return found._replace(gradients=found.gradients * (factor if graph else 1))

    monkeypatch.setattr(speed, "launched", changed)
    finding = speed.host_and_gpu("cuda")
    assert finding.verdict == verdict
    assert (
        "batch 2: without a CUDA graph: it is off: host " in finding.result
        and "; as a CUDA graph: host " in finding.result
    )


@pytest.fixture
def few_images(monkeypatch):
    monkeypatch.setattr(images, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    monkeypatch.setattr(images, "BATCH", 8)


def test_images_arrive_while_a_graph_computes(few_images, monkeypatch, cp):
    finding = images.images_arrive("cuda:1")
    assert finding.verdict == "ok" and "8 batches at most " in finding.result
    assert finding.result.endswith(", memory page-locked, beside steps launched as a CUDA graph")
    real = Pixels.normalised
    monkeypatch.setattr(Pixels, "normalised", lambda self, mixing: real(self, mixing and mixing._replace(keep=0.5)))
    assert images.images_arrive("cuda").verdict == "differs"
    monkeypatch.setattr(images, "on_device", lambda loader, device: nullcontext(loader))
    assert images.images_arrive("cuda").verdict == "not run"


def test_memory_that_cannot_be_page_locked_is_told(few_images, monkeypatch, cp):
    def refused(*_):
        raise cp.cuda.runtime.CUDARuntimeError(1)

    monkeypatch.setattr(cp.cuda.runtime, "hostRegister", refused)
    with pytest.warns(UserWarning, match="could not be page-locked"):
        finding = images.images_arrive("cuda")
    assert finding.verdict == "ok" and ", memory not page-locked, " in finding.result


def test_a_graph_that_cannot_be_made_is_told(selftest, monkeypatch):
    monkeypatch.setattr(speed, "create_model", lambda _, classes, **own: CaiT(classes, **SMALL, **own))
    monkeypatch.setattr(speed, "sizes", lambda device: [4, 2])
    real, failing = Graph.__init__, [OUT_OF_MEMORY[0]]

    def fails_at_times(self, work, device):
        if failing:
            raise RuntimeError(failing.pop())
        real(self, work, device)

    monkeypatch.setattr(Graph, "__init__", fails_at_times)
    with pytest.warns(UserWarning, match="not enough memory"):
        finding = speed.host_and_gpu("cuda")  # with fewer images
    assert finding.verdict == "ok" and finding.result.startswith("batch 2: ")
    for part in (speed.host_and_gpu, training.losses_agree):
        failing.append("the stream objects")
        with pytest.warns(UserWarning, match="the stream objects"):
            finding = part("cuda", "fp16")
        assert finding.verdict == "differs" and "without a CUDA graph: the stream objects" in finding.result


def test_other_processes_find_the_memory_of_this_one(cp, monkeypatch):
    pool = cp.get_default_memory_pool()
    monkeypatch.setattr(speed, "launched", lambda *_: speed.Launched([(1.0, 1.0)], np.ones(1), "as a CUDA graph"))
    cp.cuda.set_allocator(pool.malloc)  # hostcuda switches it off
    try:
        for part in (speed.memory, speed.host_and_gpu):
            cp.zeros(1 << 20, "int8")
            part("cuda")
            assert pool.total_bytes() == 0
    finally:
        cp.cuda.set_allocator(None)


def test_memory_that_runs_out_is_recognised(cp):
    for error in (cp.cuda.memory.OutOfMemoryError(1, 2), MemoryError(), RuntimeError("cudaErrorMemoryAllocation: x")):
        assert worker.is_out_of_memory(error)
    assert not worker.is_out_of_memory(RuntimeError("no kernel image"))

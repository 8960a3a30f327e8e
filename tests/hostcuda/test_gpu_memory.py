"""The memory of a GPU: reported as it is, and when it runs out, advice that works."""

import gc
import re
import warnings

import numpy as np
import pytest
from PIL import Image

from autograd import Tensor, cuda, ops, random
from autograd.kernels.gather import _on_gpu, _pieces
from minicait.cli import main
from minicait.files.weights import save_weights
from minicait.models.cait import CaiT
from minicait.run.advice import MemoryEstimate, memory_advice
from minicait.train import Recipe, Trainer, predict, value_and_grad
from tests.hostcuda import memory
from tests.hostcuda.test_training import SMALL, batch  # noqa: F401  (a fixture)

pytestmark = pytest.mark.hostcuda
MB = 2**20
NO_GRAPH = ".*without a CUDA graph, which is slower: there is not enough memory for it"
SHAPES = ["--img-size", "16", "--val-images", "8"]
RUN = ["--patch-size", "4", "--train-images", "16", "--epochs", "1", "--batch-size", "16", "--device", "cuda"]


@pytest.fixture
def pool(cp):
    """CuPy's, which hostcuda switches off."""
    gc.collect()
    pool = cp.get_default_memory_pool()
    cp.cuda.set_allocator(pool.malloc)
    yield pool
    cp.cuda.set_allocator(None)
    gc.collect()
    pool.free_all_blocks()


def leave(monkeypatch, size):
    """So many bytes of the GPU are free; what is taken already, is taken by others as far as the pool knows."""
    gc.collect()
    for tables in (_on_gpu, _pieces):  # which would hold on to a block with much room
        tables.cache_clear()
    cuda.module().get_default_memory_pool().free_all_blocks()
    assert cuda.memory("cuda").held - cuda.memory("cuda").used < MB // 10  # that would be there besides
    monkeypatch.setattr(memory, "total", memory.total - memory.free_bytes() + size)


def test_report(pool, cp, monkeypatch):
    assert cuda.memory("cuda").total == cuda.memory("cuda:0").total == cuda.memory("cuda:1").total
    pool.free_all_blocks()  # of the probes
    with cp.cuda.Device(1):
        pool.free_all_blocks()
    leave(monkeypatch, 10 * MB)
    before = cuda.memory("cuda:0")
    assert (before.used, before.held, before.free) == (0, 0, 10 * MB) and before.total == memory.total
    x = cp.zeros(MB, "int8")
    y = cp.zeros(2 * MB, "int8")
    del y
    now = cuda.memory("cuda")
    assert (now.used, now.held, now.free) == (MB, 3 * MB, 7 * MB) and now.others == before.others
    other = cuda.memory("cuda:1")
    assert (other.used, other.held) == (0, 0) and cp.cuda.runtime.getDevice() == 0
    with pytest.raises(MemoryError) as caught:
        cp.zeros(11 * MB, "int8")
    assert cuda.is_out_of_memory(caught.value)
    cuda.free_memory(caught.value)
    assert cuda.memory("cuda").held == cuda.memory("cuda").used == x.nbytes


def test_what_is_a_gpu_out_of_memory(cp, monkeypatch):
    leave(monkeypatch, 1000)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as caught:
        cp.empty(1001, "int8")
    assert cuda.is_out_of_memory(caught.value)
    for other in (MemoryError(), MemoryError("Unable to allocate 8 EiB"), ValueError("of shape"), OSError("disk full")):
        assert not cuda.is_out_of_memory(other)


def test_pieces_on_a_gpu_give_the_same(batch):  # noqa: F811
    model = CaiT(**SMALL, drop_path_rate=0.3).to("cuda")

    def gradients(micro_batch):
        with random.using(random.Stream(0)):
            return value_and_grad(model, ops.cross_entropy, *batch, micro_batch=micro_batch)

    whole, want = gradients(None)
    for micro_batch in (3, 1, 100):
        loss, got = gradients(micro_batch)
        assert loss == pytest.approx(whole, rel=1e-6)
        for name, g in want.items():
            np.testing.assert_allclose(got[name].get(), g.get(), rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(predict(model, batch[0], None, 3), predict(model, batch[0]), rtol=1e-5, atol=1e-6)


def test_pieces_take_no_memory_of_their_own_between_steps(pool, batch):  # noqa: F811
    """They accumulate into one buffer, however many there are."""
    held = []
    for micro_batch in (None, 1):
        gc.collect()
        before = pool.used_bytes()
        trainer = Trainer(CaiT(**SMALL), Recipe(), "cuda", micro_batch=micro_batch)
        trainer.step(*batch)
        held.append(pool.used_bytes() - before)
        del trainer
    assert held[1] <= held[0]


def test_memory_runs_out_and_the_advice_works(pool, monkeypatch, tmp_path, capsys):
    train = ["train", "--out", str(tmp_path), *SHAPES, *RUN]
    leave(monkeypatch, 25 * MB)  # 22 for the weights and what is kept for each of them, 0.7 for each image
    with pytest.warns(UserWarning, match=NO_GRAPH):
        assert main(train) == 2
    err = capsys.readouterr().err
    advice = re.fullmatch(
        r"minicait: out of memory on cuda:0 \(0\.0 GB, 0\.0 GB of it used by other processes\); try --micro-batch 4, "
        r"which splits the batch; to resume: .* train (--resume \S+ --micro-batch 4)\n",
        err,
    )
    assert advice, err
    assert pool.total_bytes() < 19 * MB  # weights, moments, average and gradients were still there, and no more
    assert main(["train", *advice[1].split()]) == 0
    assert "best weights" in capsys.readouterr().out
    evaluating = ["eval", "--weights", f"{tmp_path}/shapes-tiny-1/weights/best.safetensors", "--device", "cuda"]
    gc.collect()
    pool.free_all_blocks()
    leave(monkeypatch, 6 * MB)  # 3.4 for the weights, 0.1 for each image
    evaluating += ["--img-size", "16", "--val-images", "64"]
    assert main(evaluating) == 2
    advice = re.search(r"; try (--micro-batch \d+), which splits the batch\n", capsys.readouterr().err)
    assert main([*evaluating, *advice[1].split()]) == 0


def test_the_estimate_tells_what_is_held(pool, tmp_path, capsys):
    small = ["--patch-size", "8", "--train-images", "12", "--epochs", "1", "--batch-size", "2", "--device", "cuda:1"]
    assert main(["train", "--out", str(tmp_path), *SHAPES, *small]) == 0
    assert re.search(
        r"estimate: .* GB peak memory so far, 0\.\d of 16\.0 GB of GPU memory in use, as a CUDA graph\n",
        capsys.readouterr().out,
    )


def test_not_even_one_image_fits(pool, monkeypatch, tmp_path, capsys):
    leave(monkeypatch, 4 * MB)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NO_GRAPH)  # if that much fits
        assert main(["train", "--out", str(tmp_path), *SHAPES, *RUN]) == 2
    assert capsys.readouterr().err.endswith("used by other processes); try a smaller --preset or --img-size\n")


def test_evaluation_and_prediction(pool, monkeypatch, tmp_path, capsys):
    model = CaiT(**SMALL | {"img_size": 32, "patch_size": 4, "depth": 1, "num_classes": 10})
    weights = tmp_path / "w.safetensors"
    save_weights(model, weights, [str(i) for i in range(10)])
    for i in range(32):
        Image.fromarray(np.full((32, 32, 3), 8 * i, np.uint8)).save(tmp_path / f"{i}.png")
    predicting = ["predict", str(tmp_path), "--weights", str(weights), "--device", "cuda"]
    leave(monkeypatch, 3 * MB // 2)  # half of what all images take
    assert main(predicting) == 2
    advice = re.search(r"try --micro-batch (\d+), which splits the batch\n", capsys.readouterr().err)
    assert main([*predicting, "--micro-batch", advice[1]]) == 0


def test_only_a_gpu_that_is_full_gets_advice():
    estimate = MemoryEstimate(8, 100, 1000)
    for device, error in (("cpu", MemoryError("a")), ("cuda", MemoryError("b")), ("cuda", ValueError("c"))):
        with pytest.raises(type(error), match=f"^{error}$"), memory_advice(device, estimate, "less"):
            raise error
    assert Tensor([1.0]).to("cuda").numpy().tolist() == [1]

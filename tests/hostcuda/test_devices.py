"""Two GPUs: arrays are worked on where they are, whichever of the two was worked on before; and copies between them."""

import threading

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, cuda, ops
from autograd.backend import array_module, constant, device_of, to_device
from autograd.cases import CASES
from minicait.cli import main
from minicait.models.cait import CaiT
from minicait.nn.record import record
from minicait.optim import AdamW, Lamb
from minicait.train import Recipe, Trainer, evaluate, predict, value_and_grad
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from tests import hostcuda
from tests.engine.test_devices import assert_same_on
from tests.hostcuda.test_training import FULL, SMALL, batch, loaders  # noqa: F401  (a fixture)

pytestmark = pytest.mark.hostcuda


@pytest.fixture
def away(monkeypatch, cp):
    """Before every operation, forward and backward, the other GPU is current, as if there had been work meanwhile."""
    for kind, name in ((ag.Function, "apply"), (ag.engine, "_call_backward")):
        work = getattr(kind, name)
        work = getattr(work, "__func__", work)

        def after_leaving(*args, work=work, **kwargs):
            cp.cuda.runtime.setDevice(0)
            return work(*args, **kwargs)

        monkeypatch.setattr(kind, name, classmethod(after_leaving) if kind is ag.Function else after_leaving)


def draw(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


# ---- hostcuda itself


def test_hostcuda_notices_memory_of_the_other_device(cp):
    with cp.cuda.Device(1):
        there = cp.ones((2, 3), "float32")
    kernel = cp.RawKernel('extern "C" __global__ void more(float* x, int n) { x[threadIdx.x] += n; }', "more")
    with pytest.raises(ValueError, match="Peer access is unavailable"):
        there + 1
    for wrong in (
        lambda: there @ there.T,
        lambda: kernel((1,), (6,), (there, np.int32(1))),
        lambda: there.data.copy_from_device_async(there.data, 4),
        lambda: there.data.memset_async(0, 4),
    ):
        with pytest.raises(hostcuda.HostCudaError, match="belongs to device 1, and device 0 is current"):
            wrong()
    with cp.cuda.Device(1):
        kernel((1,), (6,), (there, np.int32(1)))
    assert there.get().tolist() == [[2, 2, 2]] * 2
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidDevice"):
        cp.cuda.runtime.setDevice(2)


def test_the_current_device_is_a_matter_of_the_thread(cp):
    seen = []
    Tensor([1.0]).to("cuda:1")
    thread = threading.Thread(target=lambda: seen.append(Tensor([1.0]).to("cuda").device))
    thread.start()
    thread.join()
    assert seen == ["cuda:0"] and cp.cuda.runtime.getDevice() == 1


# ---- operations


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_on_the_second_gpu(case, away):
    assert_same_on(case, "cuda:1", np.float32)


def test_cuda_is_where_work_was_last(cp):
    assert Tensor([1.0]).to("cuda").device == "cuda:0"
    there = Tensor([1.0]).to("cuda:1")
    assert Tensor([1.0]).to("cuda").device == "cuda:1"
    here = Tensor([1.0]).to("cuda:0")
    assert there.to("cuda") is there and here.to("cuda") is here  # they are on one


def test_a_graph_over_both(cp):
    x = Tensor(draw(2, 3), requires_grad=True)
    y = x.to("cuda:0").exp()
    z = y.to("cuda:1") * 3
    assert (y.device, z.device, (z > 1).device, z.astype(int).device) == ("cuda:0", "cuda:1", "cuda:1", "cuda:1")
    y * 2
    assert (y > 1).device == "cuda:0" and (z + np.ones(3)).device == "cuda:1"
    (y.to("cpu").sum() + (z * z).sum().to("cpu")).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(x.numpy()) + 18 * np.exp(2 * x.numpy()), rtol=1e-5)
    with pytest.raises(ValueError, match="add: all Tensors must be on one device, got cuda:0, cuda:1"):
        y + z
    with pytest.raises(ValueError, match="the array is on cuda:1 but the Tensor on cuda:0; move one of them"):
        y + z.data


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x > 1,
        lambda x: x.astype(int),
        lambda x: x + to_device(np.ones(3, int), "cuda:1"),
        lambda x: Tensor(constant(to_device(np.ones(3), "cuda:1"), like=x.data)),
        lambda x: next(iter(CaiT(**SMALL).to("cuda:1").astype("float64").parameters())),
    ],
)
def test_what_is_done_beside_operations(work, cp, monkeypatch):
    """Conversions and comparisons, after the other GPU was current."""
    x = Tensor(draw(3)).to("cuda:1")
    make = cp.array

    def array(*args):
        made = make(*args)
        cp.cuda.runtime.setDevice(0)
        return made

    monkeypatch.setattr(cp, "array", array)
    cp.cuda.runtime.setDevice(0)
    assert work(x).device == "cuda:1"


def test_anomalies_are_looked_for_where_they_are(cp):
    x = Tensor([1.0, np.inf], requires_grad=True)
    with ag.detect_anomaly():
        there = x.to("cuda:0").to("cuda:1")
        there.to("cuda:0").backward(np.ones(2))
        with pytest.raises(ag.AnomalyError, match="log: forward produced -Inf"):
            (there > 5).astype("float32").log()
    assert x.grad.numpy().tolist() == [1, 1]


def test_gradients_stay_with_their_leaves(cp):
    """Copies too: of an array on another GPU, CuPy makes its copy on the current one."""
    here, there = (Tensor(draw(2), requires_grad=True) for _ in range(2))
    here.data, there.data = to_device(here.data, "cuda:0"), to_device(there.data, "cuda:1")
    for _ in range(2):
        total = (here + here).to("cuda:1") + there
        total.sum().backward()
        here.backward(np.ones(2))
    assert (here.grad.device, there.grad.device) == ("cuda:0", "cuda:1")
    assert here.grad.numpy().tolist() == [6, 6] and there.grad.numpy().tolist() == [2, 2]
    total = here.to("cuda:1") + there
    got = ag.grad(total.to("cuda:0"), [here, there, here, there], draw(2))
    assert [g.device for g in got] == ["cuda:0", "cuda:1"] * 2
    cp.cuda.runtime.setDevice(0)
    there.grad = None
    Tensor(there.data[0], requires_grad=True).backward()  # a leaf, whose gradient starts from 1
    with ag.detect_anomaly():
        (there.exp().to("cuda:0") - here).sum().backward()
    assert there.grad.device == "cuda:1"


# ---- training


def test_two_trainers_in_turn(batch, cp, tmp_path):  # noqa: F811
    def trainer(device, seed=0):
        return Trainer(CaiT(**SMALL, drop_path_rate=0.2, seed=seed), FULL.changed(mixup=0, cutmix=0), device)

    here, there = trainer("cuda:0"), trainer("cuda:1")
    assert (here.device, there.device) == ("cuda:0", "cuda:1")
    for _ in range(4):
        assert here.step(*batch) == there.step(*batch)
    for t in (here, there):
        arrays = [t.optimiser.mean, t.optimiser.square, t.ema.average, {"flat": t.optimiser.parameters.array}]
        assert {device_of(array) for part in arrays for array in part.values()} == {t.device}
    other = trainer("cuda:1", seed=1)
    here.step(*batch)  # gradients that wait
    save_checkpoint(here, tmp_path / "c.safetensors")
    load_checkpoint(other, tmp_path / "c.safetensors")
    assert other.device == "cuda:1"
    assert here.step(*batch) == other.step(*batch)
    for name, value in here.model.state_dict().items():
        np.testing.assert_array_equal(other.model.state_dict()[name], value, err_msg=name)
    assert evaluate(here.model, [batch]) == evaluate(other.model, [batch])
    with here.ema.applied(), other.ema.applied():
        assert evaluate(here.model, [batch]) == evaluate(other.model, [batch])


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_fit_there(cp, optimiser):
    recipe = FULL.changed(optimiser=optimiser)
    (here,) = Trainer(CaiT(**SMALL), recipe, "cuda:0").fit(*loaders())
    (there,) = Trainer(CaiT(**SMALL), recipe, "cuda:1").fit(*loaders())
    assert here == there


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_by_hand(batch, away, kind):  # noqa: F811
    images, labels = batch
    results = []
    for device in ("cuda:0", "cuda:1"):
        model = CaiT(**SMALL).to(device)
        optimiser = kind(model, 1e-3)
        ops.cross_entropy(model(images), labels).backward()
        optimiser.step()
        model.load_state_dict(model.state_dict())
        assert {p.device for p in model.astype("float64").parameters()} == {device}
        results.append(predict(model.astype("float32"), images))
        with record(model.eval()) as inside:
            model(images)
        assert inside.attention
    np.testing.assert_array_equal(*results)


def test_the_command_line(tmp_path, capsys):
    small = ["--img-size", "16", "--val-images", "8", "--patch-size", "8", "--train-images", "8", "--epochs", "1"]
    assert main(["train", "--device", "cuda:1", "--out", str(tmp_path), *small, "--batch-size", "8"]) == 0
    out = capsys.readouterr().out
    assert "device: CuPy on cuda:1; the GPU works" in out and "--device cuda:1" in out


@pytest.mark.parametrize(
    "device, reason",
    [
        ("cuda:7", "device 'cuda:7' is not usable: this machine has 2 CUDA devices, numbered from 0"),
        ("cuda:x", "unknown device 'cuda:x': expected 'cpu', 'cuda', or a GPU by number such as 'cuda:1'"),
        ("gpu", "unknown device 'gpu': expected 'cpu', 'cuda', or a GPU by number such as 'cuda:1'"),
    ],
)
@pytest.mark.parametrize("command", ["train --data imagenette", "eval --weights w", "predict x.png --weights w"])
def test_a_bad_device_is_one_sentence_before_all_else(command, device, reason, capsys):
    assert main([*command.split(), "--device", device]) == 2
    assert capsys.readouterr().err == f"minicait: {reason}\n"


def test_a_broken_gpu_beside_one_that_works(monkeypatch, cp):
    """The probe is asked once for each of them."""
    cuda._usable.clear()
    try:
        arange = cp.arange
        monkeypatch.setattr(cp, "arange", lambda *a, **k: 1 / 0 if cp.cuda.runtime.getDevice() else arange(*a, **k))
        assert Tensor([1.0]).to("cuda:0").device == "cuda:0" and ag.cuda_available()
        with pytest.raises(cuda.DeviceError, match="device 'cuda:1' is not usable: division by zero"):
            Tensor([1.0]).to("cuda:1")
        assert cp.cuda.runtime.getDevice() == 0
    finally:
        cuda._usable.clear()


# ---- copies


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "int32", "uint8", "bool", ">f4", ">i8"])
@pytest.mark.parametrize(
    "layout", ["plain", "strided", "transposed", "reversed", "0-d", "empty", "read-only", "spread"]
)
def test_copies_keep_values(dtype, layout, cp):
    x = (10 * draw(4, 6)).astype(dtype)
    x = {"strided": x[::2, 1::2], "transposed": x.T, "reversed": x[::-1], "0-d": x[0, 0, ...], "empty": x[:0]}.get(
        layout, np.broadcast_to(x[:1], (3, 6)) if layout == "spread" else x
    )
    if layout == "read-only":
        x.flags.writeable = False
    there = to_device(x, "cuda:1")
    back = to_device(to_device(there, "cuda:0"), "cpu")
    for got in (to_device(there, "cpu"), back):
        assert got.dtype == x.dtype.newbyteorder("=") and got.shape == x.shape and got.flags.writeable
        np.testing.assert_array_equal(got, x)
    view = there[..., ::-1] if there.ndim else there  # not contiguous there
    np.testing.assert_array_equal(to_device(to_device(view, "cuda:0"), "cpu"), x[..., ::-1] if x.ndim else x)
    assert array_module(there) is cp and to_device(there, "cuda:1") is there


def test_copies_are_copies(cp):
    x = draw(3)
    there = to_device(x, "cuda:0")
    twice = to_device(there, "cuda:1")
    back = to_device(there, "cpu")
    x[0], back[1] = 7, 7
    cp.cuda.runtime.setDevice(1)
    twice[2] = 7
    assert 7 not in there.get()


def test_constants_beside_a_tensor(cp):
    like = to_device(draw(3), "cuda:1")
    for data in (1.5, [1, 2], np.float64(2), np.array(3.0), draw(2, 3)[:, ::2], np.arange(3), np.array([True]), []):
        got = constant(data, like)
        assert device_of(got) == "cuda:1"
        assert got.dtype == (np.float32 if np.asarray(data).dtype.kind == "f" else np.asarray(data).dtype)
        np.testing.assert_allclose(got.get(), data, rtol=1e-6)


def test_a_model_moves_from_one_to_the_other(batch, cp):  # noqa: F811
    model = CaiT(**SMALL)
    want = predict(model, batch[0])
    AdamW(model.to("cuda:1"), 1e-3)  # its weights are parts of one array now
    _, gradients = value_and_grad(model, ops.cross_entropy, *batch)
    assert {device_of(g) for g in gradients.values()} == {"cuda:1"}
    assert {p.device for p in model.to("cuda").parameters()} == {"cuda:1"}
    np.testing.assert_allclose(predict(model.to("cuda:0"), batch[0]), want, rtol=1e-4, atol=1e-6)
    assert Trainer(model, Recipe(ema_decay=0.9), "cuda:0").step(*batch) > 0
    assert {p.device for p in model.to("cpu").parameters()} == {"cpu"}

"""No operation assumes NumPy: the whole table of cases runs on arrays of a strict stand-in for CuPy."""

import re
import sys

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, cuda, ops
from autograd.cases import CASES, roundings_apart
from tests import stand_in_cupy

ROUNDINGS = 4  # tolerance between devices, which sum in different orders


def assert_same_on(case, device, dtype):
    """Value and gradients equal those of the CPU, up to the order of summation."""
    got, want = case.run(device, dtype), case.run("cpu", dtype)
    assert [x.dtype for x in got] == [x.dtype for x in want]
    apart = roundings_apart(got, want, dtype)
    assert apart <= ROUNDINGS * case.slack(dtype), (
        f"{case}: {apart:.3g} roundings of {np.dtype(dtype)} apart: {got}, on the CPU {want}"
    )


@pytest.fixture
def cupy(monkeypatch):
    with stand_in_cupy.installed(monkeypatch) as module:
        yield module


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_on_another_device(case, dtype, cupy):
    assert_same_on(case, "cuda", dtype)


def test_the_stand_in_refuses_what_cupy_refuses(cupy):
    x = cupy.array(np.ones(3))
    for wrong in (
        lambda: np.exp(x),
        lambda: x + np.ones(3),
        lambda: np.ones(3) * x,
        lambda: np.asarray(x),
        lambda: cupy.where(np.ones(3, bool), x, x),
        lambda: x[np.array([0])],
        lambda: x.sum(initial=0),
    ):
        with pytest.raises(TypeError):
            wrong()
    assert not hasattr(cupy, "errstate")


def test_a_tensor_moves_there_and_back(cupy):
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x.to("cuda:0")
    assert y.device == "cuda:0" and y.to("cuda") is y and isinstance(y.data, cupy.ndarray)
    assert "device='cuda:0'" in repr(y)
    loss = (y * y).to("cpu").sum()
    loss.backward()
    assert x.grad.device == "cpu"
    np.testing.assert_array_equal(x.grad.numpy(), [2, 4])
    assert y.numpy().tolist() == [1, 2]


def test_mixing_devices_is_an_error(cupy):
    here, there = Tensor([1.0]), Tensor([1.0]).to("cuda")
    with pytest.raises(ValueError, match=r"add: all Tensors must be on one device, got cpu, cuda:0"):
        here + there
    with pytest.raises(ValueError, match="the array is on cuda:0 but the Tensor on cpu; move one of them"):
        here + there.data
    assert (there + np.ones(1)).device == "cuda:0"  # plain host data moves to the Tensor's device
    with pytest.raises(RuntimeError, match=r"'cuda:1' is not usable: .* has 1 CUDA device, number 0"):
        here.to("cuda:1")
    for wrong in ("gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:²", "cuda:1\n", "CUDA", ""):
        with pytest.raises(ValueError, match=r"unknown device .* expected 'cpu', 'cuda', or a GPU by number"):
            here.to(wrong)


def test_checkpoint_anomaly_and_random_masks_there(cupy):
    x = Tensor(np.ones((4, 3), np.float32)).to("cuda")
    x.requires_grad = True
    stream = ag.random.Stream(0)
    with ag.detect_anomaly():
        ag.checkpoint(lambda t: ops.dropout(t.exp(), 0.5, stream), x).sum().backward()
    want = ops.dropout(np.full((4, 3), np.exp(np.float32(1))), 0.5, stream).numpy()
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-6)


def test_cuda_available_runs_a_computation(cupy, monkeypatch):
    assert ag.cuda_available()
    for name, broken, reason in [
        ("getDeviceCount", lambda: 0, "finds no CUDA device"),
        ("getDeviceCount", lambda: 1 / 0, "division by zero"),
        ("driverGetVersion", lambda: 0, "no NVIDIA driver is installed"),
        (
            "driverGetVersion",
            lambda: 12040,
            r"driver is for CUDA 12\.4 and this CuPy for 13\.2: update the driver, or pip",
        ),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(cupy.cuda.runtime, name, broken)
            cuda._usable.clear()
            assert not ag.cuda_available() and re.search(reason, cuda.why_unusable())
            with pytest.raises(RuntimeError, match=f"device 'cuda' is not usable: .*{reason}"):
                Tensor([1.0]).to("cuda")
    assert ag.cuda_available()  # failures are not cached


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # import cupy now fails
    cuda._usable.clear()
    try:
        assert not ag.cuda_available()
        with pytest.raises(RuntimeError, match=r"CuPy is not installed: pip install -e '\.\[cuda12\]'"):
            Tensor([1.0]).to("cuda")
    finally:
        cuda._usable.clear()

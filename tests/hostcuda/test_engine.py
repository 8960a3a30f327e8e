"""The engine on the real CuPy: every operation of the table, in every dtype, as on the CPU."""

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from autograd.cases import CASES
from tests import hostcuda
from tests.engine.test_devices import assert_same_on
from tests.engine.test_logic import arguments
from tests.engine.test_op_cases import ENDS_OF_GRAPHS

pytestmark = pytest.mark.hostcuda


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case, dtype):
    assert_same_on(case, "cuda", dtype)


@pytest.mark.parametrize("schedule", ["forwards", "backwards"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_with_warps_in_another_order(case, schedule):
    with hostcuda.schedule(schedule), hostcuda.guarded():
        assert_same_on(case, "cuda", np.float32)


@pytest.mark.parametrize("name", sorted(ENDS_OF_GRAPHS))
def test_an_operation_without_a_gradient(name):
    x = np.random.default_rng(0).standard_normal((3, 4)).round()
    want = getattr(ops, name)(*arguments(name, Tensor(x)))
    y = getattr(ops, name)(*arguments(name, Tensor(x).to("cuda")))
    assert y.device == "cuda:0" and y.dtype == want.dtype
    np.testing.assert_array_equal(y.numpy(), want)


def test_topk_of_nan_and_infinity():
    values, indices = ops.topk(Tensor([-np.inf, np.nan, 1, -np.inf, np.inf, 1]).to("cuda"), 6)
    assert indices.numpy().tolist() == [1, 4, 2, 5, 0, 3]
    np.testing.assert_array_equal(values.numpy(), [np.nan, np.inf, 1, 1, -np.inf, -np.inf])


def test_the_probe_finds_a_device(cp):
    assert ag.cuda_available()
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x.to("cuda:0")
    assert y.device == "cuda:0" and isinstance(y.data, cp.ndarray) and "device='cuda:0'" in repr(y)
    (y * y).to("cpu").sum().backward()
    assert x.grad.device == "cpu" and x.grad.numpy().tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="'cuda:2' is not usable: this machine has 2 CUDA devices, numbered from 0"):
        x.to("cuda:2")


def test_devices_do_not_mix(cp):
    here, there = Tensor([1.0]), Tensor([1.0]).to("cuda")
    with pytest.raises(ValueError, match=r"add: all Tensors must be on one device, got cpu, cuda:0"):
        here + there
    with pytest.raises(ValueError, match="the array is on cuda:0 but the Tensor on cpu; move one of them"):
        here + there.data
    assert (there + np.ones(1)).device == "cuda:0"


def test_softmax_is_one_launch_and_its_gradient_another(cp):
    x = Tensor(cp.ones((2, 3, 5), "float32"), requires_grad=True)
    with hostcuda.counting() as count:
        y = ops.softmax(x)
    assert count.kernels == ["softmax_of_rows"]
    with hostcuda.counting() as count:
        ag.grad(y, [x], y.data)
    assert count.by_kernel()["softmax_of_rows_grad"] == 1 and count.launches <= 3  # copies of what is not its own


def test_extremes():
    """Values that overflow or do not exist follow the rules of the CPU."""
    rows = np.array([[1e4, -1e4, 0], [-np.inf, 0, 1], [-np.inf] * 3, [1e38, 1e38, 0]], np.float32)
    for operation in (ops.softmax, ops.log_softmax, lambda x: ops.logsumexp(x, -1), ops.sigmoid, ops.gelu):
        with np.errstate(all="ignore"):
            want = operation(rows).numpy()
        np.testing.assert_allclose(operation(Tensor(rows).to("cuda")).numpy(), want, rtol=1e-6)


def test_checkpoint_anomaly_and_random_masks():
    x = Tensor(np.ones((4, 3), np.float32)).to("cuda")
    x.requires_grad = True
    stream = ag.random.Stream(0)
    with ag.detect_anomaly():
        ag.checkpoint(lambda t: ops.dropout(t.exp(), 0.5, stream), x).sum().backward()
    want = ops.dropout(np.full((4, 3), np.exp(np.float32(1))), 0.5, stream).numpy()
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-6)

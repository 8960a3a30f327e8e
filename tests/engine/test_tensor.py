"""Tensor: construction, repr, and mixing with arrays and numbers."""

import copy
import pickle

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops


def test_shares_memory_and_dtype_with_an_array():
    for dtype in (np.float16, np.float32, np.float64, np.int64, bool):
        array = np.ones((2, 3), dtype)
        x = Tensor(array)
        assert x.data is array and x.dtype == dtype and x.shape == (2, 3)
        assert x.device == "cpu" and x.ndim == 2 and x.size == 6 and len(x) == 2
        assert x.numpy() is array


def test_python_numbers_and_lists_become_float32():
    for value in (1, 2.5, [1, 2], [[1.0], [2.0]], (3, 4)):
        assert Tensor(value).dtype == np.float32


def test_numpy_scalars_keep_their_dtype():
    assert Tensor(np.float64(1)).dtype == np.float64 and Tensor(np.float64(1)).shape == ()


def test_scalars_and_constants_never_promote():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    constants = [2, 2.5, True, np.float64(2), np.int64(2), np.ones(3), np.ones(3, np.int64), [1, 2, 3], x > 0]
    for c in constants:
        for y in (x + c, c + x, x - c, c - x, x * c, c * x, x / (c + 1 if isinstance(c, int) else x), x**2):
            assert y.dtype == np.float32 and isinstance(y, Tensor)
            (g,) = ag.grad(y.sum(), x)
            assert g.dtype == np.float32


def test_arrays_on_the_left_give_tensors():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = np.array([3.0, 4.0], np.float32) * x
    assert isinstance(y, Tensor) and y.requires_grad
    z = np.eye(2, dtype=np.float32) @ x
    assert isinstance(z, Tensor) and z.requires_grad


def test_comparisons_give_boolean_tensors():
    x, y = Tensor([1.0, 2.0]), Tensor([2.0, 2.0])
    for result, want in [
        (x < y, [True, False]),
        (x <= y, [True, True]),
        (x > y, [False, False]),
        (x >= 2, [False, True]),
        (x == y, [False, True]),
        (x != y, [True, False]),
    ]:
        assert result.dtype == bool and result.numpy().tolist() == want
    assert len({x, y, x}) == 2  # hashed by identity


def test_a_tensor_equals_no_string_and_no_object():
    x = Tensor([1.0, 2.0])
    for other in ("a", None, object(), {}, np.array(["a", "b"])):
        assert (x == other) is False and (x != other) is True
    assert None not in [x] and x in [None, "a", x]


def test_a_single_value_formats_as_its_number():
    loss = Tensor([1.0, 2.0], requires_grad=True).sum()
    assert f"{loss:.3f}" == "3.000" and f"{Tensor([[0.25]]):>6.0%}" == "   25%"
    assert f"{Tensor(np.int64(7)):03d}" == "007"
    assert f"{loss}" == f"{loss!s}" == "Tensor(3., made by sum)" and f"{Tensor([1.0, 2.0])}" == "Tensor([1., 2.])"


def test_repr():
    assert repr(Tensor([1.0, 2.5])) == "Tensor([1. , 2.5])"
    assert repr(Tensor(np.zeros(2), requires_grad=True)) == "Tensor([0., 0.], dtype=float64, requires_grad=True)"
    assert repr(Tensor([1.0], requires_grad=True).exp()) == "Tensor([2.7183], made by exp)"


def test_numbers_and_truth():
    assert float(Tensor(2.5)) == 2.5 and int(Tensor([3])) == 3 and Tensor([[4.0]]).item() == 4
    assert bool(Tensor(1.0)) and not bool(Tensor(0.0))
    with pytest.raises(ValueError, match=r"item: expected a Tensor with a single value, got shape \(2,\)"):
        float(Tensor([1.0, 2.0]))
    with pytest.raises(ValueError):
        bool(Tensor([1.0, 2.0]) == 1)
    with pytest.raises(TypeError, match="no length"):
        len(Tensor(1.0))


def test_numpy_functions_get_the_values_of_a_constant():
    x = Tensor([1.0, 2.0])
    np.testing.assert_array_equal(np.asarray(x), [1, 2])
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.sum(x, axis=0) == np.dot(x, [1, 1]) == 3 and np.max(x) == 2
    np.testing.assert_array_equal(np.concatenate([x, (x * 2).numpy()], axis=0), [1, 2, 2, 4])
    np.testing.assert_array_equal(np.where(x > 1, x, 0), [0, 2])
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.exp(x)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda x: np.reshape(x, 2), "numpy.reshape: .*; use ops.reshape, or .numpy()"),
        (lambda x: np.dot(x, x), "numpy.dot: .*ops.matmul"),
        (lambda x: np.where([True, False], 0, x), "numpy.where: .*ops.where"),
        (lambda x: np.concatenate([x.numpy(), x]), "numpy.concatenate: .*ops.concat,"),
        (lambda x: np.stack((x.detach(), x)), "numpy.stack: .*ops.stack"),
        (lambda x: np.einsum("i,i", x, x), "numpy.einsum: .*ops.einsum"),
        (lambda x: np.clip(x, 0, 1), "numpy.clip: .*ops.clip"),
        (lambda x: np.clip(x.numpy(), 0, a_max=x), "numpy.clip: .*ops.clip"),
        (lambda x: np.linalg.norm(x), "numpy.linalg.norm: .*ops.norm"),
        (lambda x: np.sum(x), "numpy.sum: .*ops.sum"),
        (lambda x: np.mean(x, axis=0), "numpy.mean: .*ops.mean"),
        (lambda x: np.copyto(np.ones(2), x), "numpy.copyto"),
        (lambda x: np.ones(2).__setitem__(slice(None), x), "numpy.asarray: .*autograd.ops"),
        (lambda x: np.asarray(x), "numpy.asarray"),
        (lambda x: np.array([x, x]), "numpy.asarray"),
        (lambda x: np.testing.assert_array_equal(x, x), "numpy.asarray"),
        (lambda x: np.ones(2).dot(x), "numpy.asarray"),
    ],
)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_numpy_functions_may_not_cut_the_graph(call, instead, is_leaf):
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(TypeError, match=instead) as error:
        call(x if is_leaf else x * 2)
    assert "NumPy would cut the graph of a Tensor that requires grad" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_graph_leaves_its_values_when_asked():
    x = Tensor([1.0, 2.0], requires_grad=True) * 2
    assert np.shape(x) == (2,) and np.ndim(x) == 1 and np.size(x) == 2
    assert np.size(x.reshape(1, 2), 0) == 1 and np.zeros_like(x).tolist() == [0, 0] and np.argmax(x) == 1
    for values in (x.numpy(), np.asarray(x.detach())):
        assert values.tolist() == [2, 4]
    with ag.no_grad():
        assert np.sum(x * 2) == 12
    losses = np.zeros(2)
    losses[1] = x.sum()  # a single number, like float(loss)
    assert losses.tolist() == [0, 6]


def test_iteration_keeps_the_graph():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    a, b = x
    (a * b).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[3, 4], [1, 2]])


def test_methods_are_the_operations():
    x = Tensor(np.random.default_rng(0).uniform(0.1, 1, (2, 3)))
    names = (
        "abs exp expm1 log log1p sin cos sqrt tanh erf sigmoid relu gelu silu sum mean var std norm cumsum max min any "
        "all argmax logsumexp softmax log_softmax squeeze flip"
    )
    for name in names.split():
        np.testing.assert_array_equal(getattr(x, name)().numpy(), getattr(ops, name)(x).numpy())
    np.testing.assert_array_equal(x.T.numpy(), x.numpy().T)
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape([3, -1]).shape == (3, 2)
    assert x.transpose(1, 0).shape == x.transpose((1, 0)).shape == x.swapaxes(0, 1).shape == (3, 2)
    assert x.broadcast_to(4, 2, 3).shape == x.broadcast_to((4, 2, 3)).shape == (4, 2, 3)
    assert x.expand_dims(0).shape == (1, 2, 3) and x.clip(0.2, 0.4).max().item() == 0.4
    assert x.sum(1, keepdims=True).shape == x.std(1, True).shape == x.norm(1, True).shape == (2, 1)
    assert x.cumsum(0).shape == (2, 3) and x.argmax(1).shape == x.any(1).shape == x.all(1).shape == (2,)
    np.testing.assert_allclose(x.std(0, ddof=1).numpy() ** 2, x.var(0, ddof=1).numpy())
    assert x.astype("float16").dtype == np.float16
    assert (-x).numpy().max() < 0 and abs(-x).numpy().min() > 0


def test_requires_grad_can_be_toggled():
    x = Tensor([1.0])
    x.requires_grad = True
    y = x * 2
    with pytest.raises(RuntimeError, match=r"use detach\(\)"):
        y.requires_grad = False
    x.requires_grad = False
    assert not (x * 2).requires_grad


def test_wrapping_a_tensor_shares_its_array():
    x = Tensor([1.0])
    assert Tensor(x).data is x.data


def test_moving_to_the_same_device_returns_the_tensor():
    x = Tensor([1.0])
    assert x.to("cpu") is x


def test_numpy_scalars_never_promote_as_parameters_either():
    x, two = Tensor(np.ones((2, 4), np.float32), requires_grad=True), np.float64(0.25)
    stream = ag.random.Stream()
    for y in (
        x.clip(two), x.clip(max=two), ops.layer_norm(x, np.ones(4), np.zeros(4), two), ops.dropout(x, two, stream),
        ops.drop_path(x, two, stream), ops.cross_entropy(x, [0, 1], two), ops.pad(x, 1, two), x**two, two**x,
        ops.where(x > two, x, two), ops.maximum(x, two), two / x,
    ):  # fmt: skip
        assert y.dtype == np.float32
        assert ag.grad(y.sum(), x)[0].dtype == np.float32


@pytest.mark.parametrize("there", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("here", [np.float16, np.float32, np.float64])
def test_the_gradient_of_astype_has_the_dtype_of_the_input(here, there):
    x = Tensor(np.array([1.0, 2.0], here), requires_grad=True)
    y = x.astype(there)
    assert y.dtype == there
    (g,) = ag.grad(y, x, np.array([3.0, 4.0]))
    assert g.dtype == here and g.numpy().tolist() == [3, 4]
    assert not x.astype(int).requires_grad


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_leaves_can_be_copied_and_pickled_but_results_cannot(duplicate):
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.sum().backward(retain_graph=True)
    twin = duplicate(x)
    assert twin.requires_grad and twin.node is None and twin.grad.numpy().tolist() == [2, 4]
    twin.data[0], twin.grad.data[0] = 5, 7
    assert x.numpy().tolist() == [1, 2] and x.grad.numpy().tolist() == [2, 4]
    for result in (y, [y], {"a": y.sum()}):
        with pytest.raises(TypeError, match=r"computed by (multiply|sum) cannot be .*: detach\(\) it first"):
            duplicate(result)
    assert duplicate(y.detach()).numpy().tolist() == [1, 4]

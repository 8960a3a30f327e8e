"""Error messages: one sentence with the operation, what was expected and what came."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from autograd.random import Stream

F = np.float32


def t(*shape: int, dtype=F) -> Tensor:
    return Tensor(np.ones(shape, dtype))


# operation -> a wrong call, the type of the error, and a pattern for its message
MISTAKES = {
    "add": (lambda: t(3, 4) + t(5), ValueError, r"add: shapes \(3, 4\) and \(5,\) do not broadcast together"),
    "subtract": (
        lambda: t(3) - t(3, dtype=np.float64),
        TypeError,
        "subtract: .*one float dtype, got float32 and float64",
    ),
    "multiply": (lambda: t(2) * "x", TypeError, "expected booleans, integers or floats"),
    "divide": (
        lambda: t(2, dtype=int) / t(2, dtype=int),
        TypeError,
        "divide: the result would silently become float64",
    ),
    "negative": (lambda: ops.negative(t(2, dtype=bool)), TypeError, "negative: .*bool"),
    "pow": (lambda: t(2, 3) ** t(3, 2), ValueError, r"pow: shapes \(2, 3\) and \(3, 2\) do not broadcast"),
    "exp": (lambda: ops.exp(t(2, dtype=int)), TypeError, r"exp: .*float64; cast integers first.*\(2,\) int64"),
    "log": (lambda: ops.log(t(2, dtype=int)), TypeError, "log: the result would silently become float64"),
    "sqrt": (lambda: ops.sqrt(t(2, dtype=int)), TypeError, "sqrt: the result would silently become float64"),
    "tanh": (lambda: ops.tanh(t(2, dtype=int)), TypeError, "tanh: the result would silently become float64"),
    "erf": (lambda: ops.erf(t(2, dtype=int)), TypeError, "erf: expected floating-point values, got int64"),
    "sigmoid": (lambda: ops.sigmoid(t(2, dtype=int)), TypeError, "sigmoid: the result would silently become float64"),
    "relu": (lambda: ops.relu("x"), TypeError, "expected booleans, integers or floats"),
    "abs": (lambda: ops.abs(None), TypeError, "expected booleans, integers or floats"),
    "maximum": (lambda: ops.maximum(t(2), t(3)), ValueError, r"maximum: shapes \(2,\) and \(3,\) do not broadcast"),
    "minimum": (lambda: ops.minimum(t(2), t(3)), ValueError, r"minimum: shapes \(2,\) and \(3,\) do not broadcast"),
    "where": (lambda: ops.where(t(2), t(2), t(2)), ValueError, "where: condition must be boolean, got float32"),
    "clip": (lambda: ops.clip(t(2)), ValueError, "clip: expected min, max or both, got neither"),
    "astype": (lambda: ops.astype(t(2), "complex64"), TypeError, "expected booleans, integers or floats"),
    "to_device": (lambda: t(2).to("gpu"), ValueError, "unknown device 'gpu': expected 'cpu', 'cuda'"),
    "sum": (lambda: t(2, 3).sum(2), ValueError, r"sum: axis 2 is out of range for 2 axes .*\(2, 3\) float32"),
    "mean": (lambda: t(2, 0).mean(1), ValueError, r"mean: the mean over an empty axis is undefined.*\(2, 0\)"),
    "var": (lambda: t(2, 1).var(1, ddof=1), ValueError, "var: the variance needs more than ddof=1 values, got 1"),
    "max": (lambda: t(0).max(), ValueError, "max: the max over an empty axis is undefined"),
    "min": (lambda: t(2, 2).min((0, 0)), ValueError, r"min: axis \(0, 0\) names an axis twice"),
    "logsumexp": (lambda: t(2).logsumexp(1), ValueError, "logsumexp: axis 1 is out of range for 1 axes"),
    "reshape": (lambda: t(2, 3).reshape(4), ValueError, r"reshape: .*size 6 into shape \(4,\)"),
    "transpose": (lambda: t(2, 3).transpose(0, 0), ValueError, r"transpose: axis \(0, 0\) names an axis twice"),
    "swapaxes": (lambda: t(2).swapaxes(0, 1), ValueError, r"swapaxes: axis 0 or 1 is out of range for shape \(2,\)"),
    "broadcast_to": (lambda: t(3).broadcast_to(2), ValueError, r"broadcast_to: .*\(3,\)"),
    "expand_dims": (lambda: t(3).expand_dims(4), ValueError, "expand_dims: axis 4 does not fit"),
    "squeeze": (lambda: t(3).squeeze(0), ValueError, r"squeeze: axis 0 of shape \(3,\) .* not of size 1"),
    "concat": (lambda: ops.concat([t(2, 3), t(2)]), ValueError, r"concat: .*\(2, 3\) float32, \(2,\) float32"),
    "stack": (lambda: ops.stack([t(2), t(3)]), ValueError, r"stack: all shapes must be equal, got \(2,\), \(3,\)"),
    "split": (lambda: ops.split(t(3), 2), ValueError, r"split: axis 0 of shape \(3,\) does not divide into 2"),
    "pad": (lambda: ops.pad(t(2, 3), ((1, 1), (0, -1))), ValueError, r"pad: pad_width must give .* axes of \(2, 3\)"),
    "flip": (lambda: ops.flip(t(3), 1), ValueError, r"flip: axis 1 is out of range for 1 axes .*\(3,\) float32"),
    "getitem": (lambda: t(3)[5], IndexError, r"getitem: index 5 is out of bounds.*\(3,\) float32"),
    "take_along_axis": (
        lambda: ops.take_along_axis(t(2, 3), [[3], [0]]),
        IndexError,
        r"take_along_axis: indices must be in \[-3, 2\], got 0 to 3",
    ),
    "matmul": (lambda: t(2, 3) @ t(4, 5), ValueError, r"matmul: the last axis of a \(2, 3\) must match .* b \(4, 5\)"),
    "linear": (
        lambda: ops.linear(t(2, 3), t(4, 5)),
        ValueError,
        r"linear: weight must have shape \(out, 3\) to match the last axis of x \(2, 3\), got \(4, 5\)",
    ),
    "conv2d": (
        lambda: ops.conv2d(t(2, 3, 8, 8), t(4, 5, 3, 3)),
        ValueError,
        r"conv2d: weight must have shape .* got \(4, 5, 3, 3\) for 3 channels with groups=1",
    ),
    "batch_norm": (
        lambda: ops.batch_norm(t(2, 3, 8, 8), t(8), t(3)),
        ValueError,
        r"batch_norm: weight must have shape \(3,\) to match axis 1 of x \(2, 3, 8, 8\), got \(8,\)",
    ),
    "attention": (
        lambda: ops.attention(t(2, 3, 4), t(2, 5, 6), t(2, 5, 6), 2),
        ValueError,
        r"attention: q must have shape \(B, M, d\), k and v \(B, N, d\), got \(2, 3, 4\), \(2, 5, 6\)",
    ),
    "talking_heads_attention": (
        lambda: ops.talking_heads_attention(t(2, 3, 12), t(3, 3), t(3), t(3, 3), t(3)),
        ValueError,
        "talking_heads_attention: a width of 4 is not divisible by 3 heads",
    ),
    "softmax": (
        lambda: ops.softmax(t(3), 1),
        ValueError,
        r"softmax: axis 1 is out of range for 1 axes.*\(3,\) float32",
    ),
    "log_softmax": (lambda: ops.log_softmax(t(2, dtype=int)), TypeError, "log_softmax: expected floating-point values"),
    "linear_residual": (
        lambda: ops.linear_residual(t(2, 3, 4), t(2, 5), t(4, 5), t(4), t(4)),
        ValueError,
        r"linear_residual: x \(2, 3, 4\) needs h of shape \(2, 3, 'in'\) and a weight .*, got \(2, 5\) and \(4, 5\)",
    ),
    "layer_norm": (
        lambda: ops.layer_norm(t(8, 196, 192), t(196), t(192)),
        ValueError,
        r"layer_norm: weight must have shape \(192,\) to match the last axis of x \(8, 196, 192\), got \(196,\)",
    ),
    "gelu": (lambda: ops.gelu(t(2, dtype=int)), TypeError, "gelu: expected floating-point values, got int64"),
    "dropout": (lambda: ops.dropout(t(2), 1.5, Stream()), ValueError, r"dropout: rate must be in \[0, 1\), got 1.5"),
    "drop_path": (
        lambda: ops.drop_path(t(), 0.5, Stream()),
        ValueError,
        r"drop_path: x needs a first axis of samples, got shape \(\)",
    ),
    "cross_entropy": (
        lambda: ops.cross_entropy(t(2, 3), [0, 3]),
        IndexError,
        r"cross_entropy: class indices must be in \[0, 2\], got 0 to 3",
    ),
    "bce_with_logits": (
        lambda: ops.bce_with_logits(t(2, 3), [0, 1]),
        ValueError,
        r"bce_with_logits: targets must have shape \(2, 3\) to match the logits, got \(2,\)",
    ),
    "kl_div": (lambda: ops.kl_div(t(2, 3), t(2, 4)), ValueError, r"kl_div: p must have shape \(2, 3\) .* got \(2, 4\)"),
}


def test_every_operation_is_here():
    assert set(MISTAKES) == set(ops.__all__)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name):
    call, kind, sentence = MISTAKES[name]
    with pytest.raises(kind, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: Tensor([1, 2], requires_grad=True).astype(int).__setattr__("requires_grad", True), TypeError, "int64"),
        (lambda: Tensor(np.ones(2, int), requires_grad=True), TypeError, "only floating-point .* got dtype int64"),
        (lambda: Tensor(["a"]), TypeError, "got dtype <U1"),
        (lambda: Tensor(np.ones(2, complex)), TypeError, "got dtype complex128"),
        (lambda: Tensor([t(1), t(1)]), TypeError, "join them with ops.stack or ops.concat"),
        (lambda: t(2).__setitem__(0, 1), TypeError, "cannot be assigned to.*ops.where"),
        (lambda: t(2)[t(2)], IndexError, "getitem: index arrays must be integers or booleans, got float32"),
        (lambda: t() @ t(2), ValueError, r"matmul: operands need at least one axis, got shapes \(\) and \(2,\)"),
        (lambda: ops.concat([]), ValueError, "concat: needs at least one Tensor"),
        (
            lambda: ops.concat([t(1), t(1, dtype=np.float64)]),
            TypeError,
            "concat: operands must have one float dtype",
        ),
        (lambda: t(2, 2) @ t(2, dtype=np.float64), TypeError, "matmul: operands must have one float dtype"),
        (lambda: ops.linear(t(2, 3), t(4, 3), t(5)), ValueError, r"linear: bias must have shape \(4,\)"),
        (lambda: ops.cross_entropy(t(2, 3), [0]), ValueError, r"class indices must have shape \(2,\) .* got \(1,\)"),
        (lambda: ops.cross_entropy(t(2, 3), t(2, 4)), ValueError, r"soft targets must have shape \(2, 3\)"),
        (lambda: ops.cross_entropy(t(2, 3), [0, 1], 1.0), ValueError, r"label_smoothing must be in \[0, 1\)"),
        (lambda: ops.cross_entropy(t(2, 3), [0, 1], reduction="avg"), ValueError, "'mean', 'sum' or 'none', got 'avg'"),
        (
            lambda: ops.cross_entropy(t(0, 3), np.zeros(0, int)),
            ValueError,
            "mean loss of an empty batch is undefined",
        ),
        (lambda: ops.cross_entropy(t(3, dtype=int), 1), TypeError, "expected floating-point logits, got int64"),
        (lambda: ops.take_along_axis(t(2), [0.5]), ValueError, "take_along_axis: indices must be integers"),
        (lambda: ops.layer_norm(t(2, 0), t(0), t(0)), ValueError, "needs a last axis with at least one value"),
        (lambda: Tensor([[t(), t()], [t(), t()]]), TypeError, "join them with ops.stack or ops.concat"),
        (lambda: t(2) * [t(), t()], TypeError, "multiply: a list of Tensors is not a Tensor"),
        (lambda: Tensor([[1, 2], [3]]), ValueError, "cannot make an array of this list"),
        (lambda: t(2) + None, TypeError, "add: .*got dtype object"),
        (lambda: ops.where(None, t(2), t(2)), TypeError, "where: .*got dtype object"),
        (lambda: t(2) < t(3), ValueError, r"lt: a Tensor of shape \(2,\) cannot be compared"),
        (lambda: t(2) < "a", TypeError, "'<' not supported between instances of 'Tensor' and 'str'"),
        (lambda: t(2) >= None, TypeError, "'>=' not supported between instances of 'Tensor' and 'NoneType'"),
        (lambda: t(2) < np.array(["a", "b"]), TypeError, "'<' not supported between instances of 'Tensor'"),
        (lambda: t(2) < [t(), t()], TypeError, "a list of Tensors is not a Tensor"),
        (lambda: f"{t(2):.3f}", TypeError, r"format: '.3f' is for a single value, got a Tensor of shape \(2,\)"),
        (lambda: ops.layer_norm(t(2), None, None), TypeError, "layer_norm: weight and bias must be arrays, got None"),
        (lambda: ops.layer_norm(t(2), t(2), None), TypeError, "layer_norm: weight and bias must be arrays, got None"),
        (lambda: t(2).astype("nope"), TypeError, "astype: .*nope"),
        (lambda: ops.concat([t(2)], 3), ValueError, "concat: axis 3 is out of range for 1 axes"),
        (lambda: ops.concat([t()]), ValueError, "concat: all inputs must have the same number of axes, at least one"),
        (lambda: ops.stack([t(2)], 3), ValueError, "stack: axis 3 is out of range for 2 axes"),
        (lambda: ops.dropout(t(2), 0.5, None), TypeError, "dropout: stream must be an autograd.random.Stream"),
        (lambda: ops.dropout(t(2, dtype=int), 0.5, Stream()), TypeError, "dropout: expected floating-point values"),
        (lambda: Stream(0.5), ValueError, "seed must be an integer"),
        (lambda: ag.grad(3.0, t(1)), TypeError, "grad: output must be a Tensor, got float"),
        (lambda: ag.grad(t(1), t(1), create_graph=True), RuntimeError, "first derivatives only"),
        (lambda: t(1).backward(create_graph=True), RuntimeError, "first derivatives only"),
        (lambda: t(2).to("cuda:x"), ValueError, "unknown device 'cuda:x'"),
        (lambda: ag.check_grads(lambda x: 3, np.ones(2)), TypeError, "fn must return a Tensor, got int"),
    ],
)
def test_more_mistakes(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call()


def test_targets_that_require_grad_are_refused():
    teacher = Tensor(np.ones((2, 3)) / 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"targets must not require grad; detach\(\) them"):
        ops.cross_entropy(np.ones((2, 3)), teacher * 1)


def test_a_function_that_promotes_is_caught():
    class Promotes(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return x * np.float64(2)

    with pytest.raises(TypeError, match=r"promotes: .*keep float64 constants out of forward .*\(2,\) float32"):
        Promotes.apply(t(2))


def test_a_function_without_methods_says_what_it_needs():
    class Empty(ag.Function):
        pass

    with pytest.raises(TypeError, match=r"empty: a Function needs a static method forward\(ctx, \*args\)"):
        Empty.apply(t(2))


@pytest.mark.parametrize(
    "result", [None, lambda x: (x, x), lambda x: Tensor(x), lambda x: 3.0], ids=["none", "two", "tensor", "number"]
)
def test_forward_must_return_one_array(result):
    class Newcomer(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return result and result(x)

    with pytest.raises(TypeError, match=r"newcomer: forward must return one array, got (NoneType|tuple|Tensor|float)"):
        Newcomer.apply(t(2))


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x, lambda x: [x], lambda x: (1, x), lambda x: {"a": x}, lambda x: [0, [{"a": (None, x)}]],
        lambda x: Pair(1, x),
    ],
)  # fmt: skip
def test_tensors_by_keyword_or_inside_a_container_are_refused(hide):
    class Hides(ag.Function):
        @staticmethod
        def forward(ctx, x, *others, weight=None):
            return x * 1

    hidden = hide(Tensor([1.0], requires_grad=True))
    with pytest.raises(TypeError, match="hides: pass Tensors by position, each as an argument of its own"):
        Hides.apply(t(2), weight=hidden)
    if not isinstance(hidden, Tensor):
        with pytest.raises(TypeError, match=r"hides: .*inside a list they would get no gradient"):
            Hides.apply(t(2), hidden)
    Hides.apply(t(2), hide(2), hide(np.ones(2)), weight=hide(None))


def test_messages_stay_on_one_line():
    index = (np.zeros((40, 40), int), np.zeros((3, 3), int))
    with pytest.raises(IndexError) as error:
        t(2, 2)[index]
    assert "\n" not in str(error.value)


def test_numpy_integers_are_integers():
    n = np.int64(2)
    assert t(2, 2).reshape(n, n).shape == ops.reshape(t(4), (n, n)).shape == (2, 2)
    assert ops.expand_dims(t(2), np.int64(0)).shape == (1, 2) and len(ops.split(t(4), n)) == 2
    assert ops.pad(t(2), np.array([[1, 2]])).shape == (5,)


def test_names_of_functions():
    class ReLU(ag.Function): ...

    class HTTPServer2Go(ag.Function): ...

    assert ReLU.name == "re_lu" and HTTPServer2Go.name == "http_server2_go"


@pytest.mark.parametrize(
    "call",
    [
        lambda x, t: ops.pad(x, 1, t),
        lambda x, t: ops.layer_norm(x, np.ones(3), np.zeros(3), eps=t),
        lambda x, t: ops.batch_norm(x, np.ones(3), np.zeros(3), eps=t),
        lambda x, t: ops.linear_residual(x, x, np.ones((3, 3)), np.ones(3), np.ones(3), factor=t),
        lambda x, t: ops.dropout(x, t, Stream()),
        lambda x, t: ops.cross_entropy(x, [0, 1], label_smoothing=t),
    ],
)
def test_a_number_that_would_lose_its_gradient_is_refused(call):
    x, t = Tensor(np.ones((2, 3), np.float32)), Tensor(0.5, requires_grad=True)
    with pytest.raises(TypeError, match=r"gets no gradient: pass a number, or detach\(\) the Tensor"):
        call(x, t)
    call(x, t.detach())


def test_a_backward_that_returns_a_list_is_refused():
    class Listed(ag.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return [g * 2]

    with pytest.raises(RuntimeError, match="listed: backward must return an array or a tuple of arrays, got a list"):
        Listed.apply(Tensor([1.0], requires_grad=True)).backward()

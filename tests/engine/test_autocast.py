"""autocast: matrix products in float16, what would lose precision in float32, gradients in the dtype of the inputs."""

import threading

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from minicait.models.cait import CaiT
from minicait.train import value_and_grad

RNG = np.random.default_rng(0)
SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}


def draw(*shape, dtype=np.float32):
    return Tensor(RNG.standard_normal(shape).astype(dtype), requires_grad=True)


PRODUCTS = {
    "matmul": (ops.matmul, (draw(4, 5), draw(5, 3))),
    "matmul of many": (ops.matmul, (draw(2, 4, 5), draw(2, 5, 3))),
    "einsum": (lambda a, b: ops.einsum("ij,jk->ki", a, b), (draw(4, 5), draw(5, 3))),
    "linear": (ops.linear, (draw(2, 4, 5), draw(3, 5), draw(3))),
    "linear without bias": (ops.linear, (draw(4, 5), draw(3, 5))),
    "conv2d": (ops.conv2d, (draw(2, 3, 4, 5), draw(4, 3, 2, 2), draw(4))),
    "depthwise": (lambda x, w: ops.conv2d(x, w, padding=1, groups=3), (draw(2, 3, 4, 5), draw(3, 1, 3, 3))),
    "attention": (lambda q, k, v: ops.attention(q, k, v, 2), (draw(2, 1, 6), draw(2, 5, 6), draw(2, 5, 6))),
    "self_attention": (lambda qkv: ops.self_attention(qkv, 2), (draw(2, 5, 18),)),
    "query_attention": (
        lambda *xs: ops.query_attention(*xs, 2),
        (draw(2, 6), draw(2, 5, 6), *[draw(6, 6), draw(6)] * 2),
    ),
    "talking heads": (ops.talking_heads_attention, (draw(2, 5, 18), draw(2, 2), draw(2), draw(2, 2), draw(2))),
}
IN_FULL = {
    "layer_norm": (ops.layer_norm, (draw(4, 5), draw(5), draw(5))),
    "softmax": (ops.softmax, (draw(4, 5),)),
    "log_softmax": (ops.log_softmax, (draw(4, 5),)),
    "logsumexp": (ops.logsumexp, (draw(4, 5),)),
    "cross_entropy": (lambda x: ops.cross_entropy(x, [0, 1, 2, 3]), (draw(4, 5),)),
    "bce_with_logits": (lambda x: ops.bce_with_logits(x, np.ones((4, 5))), (draw(4, 5),)),
    "kl_div": (lambda x: ops.kl_div(ops.log_softmax(x), np.full((4, 5), 0.2)), (draw(4, 5),)),
}


def with_gradients(fn, inputs):
    y = fn(*inputs)
    return [y, *ag.grad(y, list(inputs), np.random.default_rng(1).standard_normal(y.shape))]


def close(got, want, tolerance=4e-3):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=tolerance * max(1, np.abs(b.numpy()).max()))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_return_float16_and_gradients_keep_the_dtype_of_the_inputs(name):
    fn, inputs = PRODUCTS[name]
    want = with_gradients(fn, inputs)
    with ag.autocast():
        got = with_gradients(fn, inputs)
    assert got[0].dtype == np.float16 and {g.dtype for g in got[1:]} == {np.dtype("float32")}
    assert not np.array_equal(got[0].numpy(), want[0].numpy())
    close(got, want)


def test_gradients_of_parameters_are_not_rounded_to_float16():
    x, weight, bias = (
        Tensor(RNG.standard_normal(s).astype(np.float32), requires_grad=True) for s in [(9, 5), (3, 5), (3,)]
    )
    with ag.autocast():
        gradients = ag.grad(ops.linear(x, weight, bias), [weight, bias], RNG.standard_normal((9, 3)).astype(np.float16))
    for g in gradients:
        assert (g.numpy() != g.numpy().astype(np.float16)).any()


def test_the_sum_of_a_residual_branch_stays_in_float32():
    inputs = draw(2, 3, 4), draw(2, 3, 6), draw(4, 6), draw(4), Tensor(np.full(4, 1e-5, "f4"), requires_grad=True)
    want = with_gradients(ops.linear_residual, inputs)
    with ag.autocast():
        got = with_gradients(ops.linear_residual, (inputs[0], inputs[1].astype("float16"), *inputs[2:]))
        whole = with_gradients(ops.linear_residual, inputs)
    assert got[0].dtype == np.float32 and got[2].dtype == np.float16
    close(got, want)
    close(whole, want)
    branch = want[0].numpy() - inputs[0].numpy()
    assert np.abs(whole[0].numpy() - inputs[0].numpy() - branch).max() < 0.05 * np.abs(branch).max()  # not rounded off


@pytest.mark.parametrize("name", IN_FULL)
def test_other_operations_stay_in_float32(name):
    fn, inputs = IN_FULL[name]
    half = [Tensor(x.numpy().astype("float16"), requires_grad=True) for x in inputs]
    want = with_gradients(fn, [Tensor(x.numpy().astype("float32"), requires_grad=True) for x in half])
    with ag.autocast():
        y, *gradients = with_gradients(fn, half)
    assert y.dtype == np.float32 and {g.dtype for g in gradients} == {np.dtype("float16")}
    np.testing.assert_allclose(y.numpy(), want[0].numpy(), rtol=1e-6)


def test_mixed_float_dtypes_give_float32_under_autocast_and_an_error_elsewhere():
    half, full = draw(3, dtype=np.float16), draw(3)
    with ag.autocast():
        assert (half + full).dtype == (full * half).dtype == ops.concat([half, full]).dtype == np.float32
        (g,) = ag.grad((half * full).sum(), [half])
        assert g.dtype == np.float16
    with pytest.raises(TypeError, match="one float dtype, got float16 and float32"):
        half + full
    with pytest.raises(TypeError, match="one float dtype"):
        ops.linear(draw(2, 3), draw(4, 3), draw(4, dtype=np.float16))


def test_float64_and_plain_numbers_are_left_alone():
    with ag.autocast():
        assert ops.linear(draw(4, 5, dtype=np.float64), draw(3, 5, dtype=np.float64)).dtype == np.float64
        assert (draw(3, dtype=np.float16) * 2.5).dtype == np.float16
        assert ops.matmul(np.ones((2, 2), "f4"), draw(2, 2)).dtype == np.float16


def test_tf32_is_float32_to_numpy():
    fn, inputs = PRODUCTS["linear"]
    want = with_gradients(fn, inputs)
    with ag.autocast("tf32"):
        got = with_gradients(fn, inputs)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(got, want, strict=True))


def test_bad_precision_is_refused():
    with pytest.raises(ValueError, match=r"products must be 'float16' or 'tf32' .*, got 'bfloat16'"):
        ag.autocast("bfloat16")


def test_autocast_is_per_thread():
    seen = []
    with ag.autocast():
        plain = threading.Thread(target=lambda: seen.append(ops.matmul(draw(2, 2), draw(2, 2)).dtype))
        heir = threading.Thread(target=ag.inherit_modes(lambda: seen.append(ops.matmul(draw(2, 2), draw(2, 2)).dtype)))
        for thread in (plain, heir):
            thread.start()
            thread.join()
    assert [dtype.name for dtype in seen] == ["float32", "float16"]


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_whole_model_needs_loss_scaling_for_its_small_gradients(drop):
    images, labels = np.random.default_rng(2).standard_normal((6, 3, 16, 16)).astype("f4"), np.arange(6)
    model = CaiT(**SMALL, drop_path_rate=drop)

    def run(scale):
        with ag.random.using(ag.random.Stream(1)):
            loss, gradients = value_and_grad(model, lambda x, t: ops.cross_entropy(x, t) * scale, images, labels)
        return loss / scale, {name: g / np.float32(scale) for name, g in gradients.items()}

    want, exact = run(1)
    with ag.autocast():
        loss, scaled = run(2.0**16)
        _, unscaled = run(1)
        assert model(images).dtype == np.float16
    assert loss == pytest.approx(want, rel=2e-3) and loss != want
    for name, g in exact.items():
        assert scaled[name].dtype == np.float32
        if not name.endswith(("proj_l.bias", "attn.k.bias")):  # their exact gradient is zero: rounding noise in both
            assert np.abs(scaled[name] - g).max() <= 0.03 * np.abs(g).max(), name
    lost = [name for name in exact if exact[name].any() and not unscaled[name].any()]
    assert "blocks.0.norm1.weight" in lost


def test_checkpoint_recomputes_in_the_same_precision():
    x, w = draw(4, 5), draw(3, 5)
    with ag.autocast():
        y = ag.checkpoint(lambda t: ops.gelu(ops.linear(t, w)), x)
        want = ag.grad(ops.gelu(ops.linear(x, w)).sum(), [x, w])
    got = ag.grad(y.sum(), [x, w])
    assert y.dtype == np.float16 and all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(got, want, strict=True))

"""Streams: reproducible, and independent of each other and of how a batch is split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from autograd.random import BLOCKS, MANY, SHORT, Stream


def test_a_stream_is_a_name_not_a_state():
    stream = Stream(seed=1, purpose="x")
    np.testing.assert_array_equal(stream.uniform((3, 4)), stream.uniform((3, 4)))
    np.testing.assert_array_equal(stream.generator().random(5), stream.generator().random(5))


def test_the_numbers_never_change():
    """Resuming a run with a later version must draw the same masks: these values may never change."""
    values = Stream(seed=7, purpose="dropout", step=2, sample=3).uniform((2, 3)) * 2**24
    assert values.astype(int).tolist() == [[4501974, 6815648, 2653105], [8279080, 1624921, 6352315]]


def numpys_uniform(stream, shape):
    """One NumPy generator per sample: the definition of the bits."""
    rows = [stream.at(sample=stream.sample + i).generator().random(shape[1:], np.float32) for i in range(shape[0])]
    return np.array(rows, np.float32).reshape(shape)


@pytest.mark.parametrize(
    "shape",
    [
        (0,), (1,), (MANY - 1,), (MANY,), (2 * MANY, 1, 1), (0, 3), (MANY, 0), (MANY, 7), (MANY, 8), (MANY, 9),
        (MANY, 3, 5), (MANY, SHORT), (MANY, SHORT + 1), (MANY - 1, SHORT), (BLOCKS + 3, 2), (BLOCKS // 3 + 1, 17),
        (2, 5, 301),
    ],
)  # fmt: skip
def test_rows_drawn_together_have_the_bits_of_numpys_philox(shape):
    stream = Stream(seed=2**64 - 1, purpose="bits", step=2**63 + 5, sample=2**40 - 7)
    values = stream.uniform(shape)
    assert values.dtype == np.float32 and values.shape == shape
    np.testing.assert_array_equal(values, numpys_uniform(stream, shape))


WORD = st.integers(0, 2**64 - 1)


@given(WORD, st.text(), WORD, st.integers(0, 2**64 - MANY), st.integers(1, 20))
def test_any_key_has_the_bits_of_numpys_philox(seed, purpose, step, sample, values):
    stream = Stream(seed, purpose, step, sample)
    rows = stream.uniform((MANY, values))
    for i in (0, 1, MANY - 1):
        alone = stream.at(sample=sample + i).generator().random(values, np.float32)
        np.testing.assert_array_equal(rows[i], alone)


@pytest.mark.parametrize("rows", [2, MANY])
def test_samples_do_not_wrap_around(rows):
    last = Stream(sample=2**64 - rows)
    np.testing.assert_array_equal(last.uniform((rows, 3)), numpys_uniform(last, (rows, 3)))
    with pytest.raises(ValueError, match=r"sample must be an integer in \[0, 2\*\*64\), got 18446744073709551616"):
        last.uniform((rows + 1, 3))


def test_uniform_needs_samples():
    with pytest.raises(ValueError, match=r"uniform needs a first axis of samples, got shape \(\)"):
        Stream().uniform(())


@pytest.mark.parametrize("other", [Stream(1, "a"), Stream(0, "b"), Stream(0, "a", 1), Stream(0, "a", 0, 8)])
def test_each_part_of_the_key_matters(other):
    assert not (Stream(0, "a").uniform((8, 50)) == other.uniform((8, 50))).any()


def test_batches_can_be_split_anywhere():
    stream = Stream(3, "split", step=5)
    whole = stream.uniform((7, 2, 3))
    pieces = [stream.at(sample=i).uniform((n, 2, 3)) for i, n in ((0, 2), (2, 4), (6, 1))]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    x = np.ones((7, 3), np.float32)
    cut = [ops.dropout(x[i : i + n], 0.5, stream.at(sample=i)).numpy() for i, n in ((0, 3), (3, 4))]
    np.testing.assert_array_equal(np.concatenate(cut), ops.dropout(x, 0.5, stream).numpy())


def test_uniform_is_uniform():
    values = Stream(0).uniform((100, 1000))
    assert values.dtype == np.float32 and values.min() >= 0 and values.max() < 1
    np.testing.assert_allclose(np.histogram(values, 10, (0, 1))[0] / values.size, 0.1, atol=0.003)
    rows = np.corrcoef(values[:50])
    assert np.abs(rows - np.eye(50)).max() < 0.2


def test_dropout_keeps_the_mean_and_drops_at_the_rate():
    x = np.ones((50, 400), np.float32)
    y = ops.dropout(x, 0.3, Stream(0)).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}
    assert abs((y == 0).mean() - 0.3) < 0.01
    assert abs(y.mean() - 1) < 0.02


def test_drop_path_drops_whole_samples():
    y = ops.drop_path(np.ones((400, 3, 2), np.float32), 0.25, Stream(0)).numpy()
    per_sample = y.reshape(400, 6)
    assert (per_sample == per_sample[:, :1]).all()
    assert abs((per_sample[:, 0] == 0).mean() - 0.25) < 0.06


def test_rate_zero_is_the_input_itself():
    x = Tensor([1.0], requires_grad=True)
    assert ops.dropout(x, 0.0, Stream()) is x and ops.drop_path(x, 0.0, Stream()) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_bad_rates(rate):
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\)"):
        ops.dropout([1.0], rate, Stream())


def test_bad_keys():
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*64\), got -1"):
        Stream(-1)
    assert ag.random.Stream(2**64 - 1, "é", 2**64 - 1, 5).uniform((1, 1)).shape == (1, 1)

"""no_grad, detect_anomaly and inherit_modes."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import autograd as ag
from autograd import Function, Tensor, ops


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, dtype=np.float32), requires_grad=True)


def test_no_grad_records_nothing():
    x = leaf(1, 2)
    with ag.no_grad():
        y = x * 2
        with ag.no_grad():
            pass
        z = x * 2
    assert not y.requires_grad and y.node is None and not z.requires_grad
    assert (x * 2).requires_grad


def test_no_grad_is_a_decorator_and_ends_with_an_exception():
    x = leaf(1, 2)

    @ag.no_grad()
    def evaluate():
        assert not (x * 2).requires_grad
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            evaluate()
    assert (x * 2).requires_grad


def test_workers_inherit_modes_when_asked():
    x = leaf(1, 2)

    def work(_):
        return (x * 2).requires_grad

    with ThreadPoolExecutor(2) as pool, ag.no_grad():
        assert list(pool.map(ag.inherit_modes(work), range(4))) == [False] * 4
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ag.inherit_modes(work), range(4))) == [True] * 4


def test_detach_ends_the_graph_and_shares_memory():
    x = leaf(1, 2)
    y = (x * 2).detach()
    assert not y.requires_grad and y.node is None
    d = x.detach()
    d.data[0] = 7
    assert x.numpy()[0] == 7


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_anomaly_names_the_operation_and_the_line_in_forward():
    x = leaf(0, 1)
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError) as error:
        ops.exp(x.log() * 2)  # log(0): this line
    message = str(error.value)
    assert message.startswith("log: forward produced -Inf")
    assert "test_modes.py" in message and "# log(0): this line" in message
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError, match="log: forward produced NaN"):
        leaf(-1).log()


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_anomaly_names_the_operation_and_the_line_in_backward():
    x = leaf(0, 1)
    with ag.detect_anomaly():
        loss = x.sqrt().sum()  # infinite slope at 0: this line
        with pytest.raises(ag.AnomalyError) as error:
            loss.backward()
    message = str(error.value)
    assert message.startswith("sqrt: backward produced Inf in gradient 0")
    assert "# infinite slope at 0: this line" in message


def test_anomaly_reports_nan_in_the_input_and_allows_masks():
    with ag.detect_anomaly():
        with pytest.raises(ag.AnomalyError, match=r"multiply: forward produced NaN \(its input already contains NaN\)"):
            leaf(float("nan")) * 2
        scores = ops.where(np.array([True, False]), leaf(1, 2), -np.inf)  # masking is not a mistake
        ops.softmax(scores).backward([1, 2])


def test_anomaly_catches_an_edited_array():
    x = leaf(1, 2)
    with ag.detect_anomaly():
        y = x * x  # saved here
        x.data[0] = 5
        with pytest.raises(ag.AnomalyError) as error:
            y.backward([1, 1])
    assert "multiply: an array of shape (2,) that it saved for backward was edited in place" in str(error.value)
    assert "# saved here" in str(error.value)


def test_anomaly_changes_no_result():
    def run():
        x = leaf(1, 2, 3)
        loss = ops.cross_entropy(ops.gelu(x)[None] * 3, [1])
        loss.backward()
        return x.grad.numpy()

    plain = run()
    with ag.detect_anomaly():
        np.testing.assert_array_equal(run(), plain)


def test_errors_in_forward_keep_their_cause():
    class Broken(Function):
        @staticmethod
        def forward(ctx, x):
            raise KeyError("not a shape error: passed through unchanged")

    with pytest.raises(KeyError):
        Broken.apply(leaf(1))


def test_anomaly_catches_an_edited_index():
    x, rows = Tensor(np.ones((3, 2)), requires_grad=True), np.array([0, 1])
    with ag.detect_anomaly():
        y = x[rows, :]
        rows[:] = 2
        with pytest.raises(ag.AnomalyError, match="getitem: an index that it saved for backward was edited"):
            y.sum().backward()


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_anomaly_works_for_backward_alone_and_distinguishes_infinities():
    loss = leaf(0).sqrt().sum()
    message = r"sqrt: backward produced Inf .*\n.*unknown: forward ran outside detect_anomaly"
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError, match=message):
        loss.backward()
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError, match="exp: forward produced Inf"):
        leaf(1000, -np.inf).exp()


def test_one_mode_in_two_threads():
    """Both enter the same object before one of them, the first or the second, leaves it."""
    x, mode, both = leaf(1), ag.no_grad(), threading.Barrier(2, timeout=10)

    def work(leaves_first):
        with mode:
            both.wait()
            inside = (x * 2).requires_grad
            if not leaves_first:
                both.wait()
        outside = (x * 2).requires_grad
        if leaves_first:
            both.wait()
        return inside, outside

    with ThreadPoolExecutor(2) as pool:
        for order in ((True, False), (False, True)):
            assert list(pool.map(work, order)) == [(False, True)] * 2
    assert (x * 2).requires_grad


def test_a_mode_in_two_coroutines():
    x, mode = leaf(1), ag.no_grad()

    async def work(steps):
        with mode:
            for _ in range(steps):
                await asyncio.sleep(0)
            inside = (x * 2).requires_grad
        await asyncio.sleep(0)
        return inside, (x * 2).requires_grad

    async def main():
        return await asyncio.gather(work(1), work(4), work(2))

    assert asyncio.run(main()) == [(False, True)] * 3


def test_a_decorated_function_may_be_recursive_and_run_in_threads():
    x = leaf(1)

    @ag.no_grad()
    def down(n):
        return down(n - 1) if n else (x * 2).requires_grad

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(down, range(20)))
    assert (x * 2).requires_grad


def test_generators_and_coroutines_cannot_be_decorated():
    def generator():
        yield

    async def coroutine(): ...

    async def asynchronous_generator():
        yield

    for mode in (ag.no_grad(), ag.autocast(), ag.detect_anomaly()):
        for fn in (generator, coroutine, asynchronous_generator):
            with pytest.raises(TypeError, match=f"a mode cannot decorate {fn.__name__}: .*use a with block inside it"):
                mode(fn)


def test_a_mode_can_be_entered_again():
    x, mode = leaf(1), ag.no_grad()
    with mode, mode:
        assert not (x * 2).requires_grad
    with mode:
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad

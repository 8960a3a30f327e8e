"""Memory, reference cycles, deep graphs and threads."""

import gc
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import autograd as ag
from autograd import Tensor, ops


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, dtype=np.float32), requires_grad=True)


def test_frozen_weights_keep_no_activations():
    tracemalloc.start()
    try:
        weight = np.eye(500, dtype=np.float32)
        x = y = Tensor(np.ones((500, 500), np.float32), requires_grad=True)
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(5):
            y = ops.linear(y @ weight, weight)
        assert tracemalloc.get_traced_memory()[0] - start < 2 * y.data.nbytes
    finally:
        tracemalloc.stop()
    assert x.requires_grad


def test_long_chains_need_no_recursion():
    x = y = Tensor(1.0, requires_grad=True)
    for _ in range(50_000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1
    for _ in range(50_000):  # and a chain that is freed without backward
        y = y + x
    del y


def test_memory_is_freed_while_backward_runs():
    """60 operations on 8 MB arrays: backward may hold little more than forward left, and must free all of it."""
    array = np.full(2_000_000, 0.5, np.float32)
    megabytes = array.nbytes / 1e6
    tracemalloc.start()
    try:
        x = y = Tensor(array, requires_grad=True)
        for _ in range(30):
            y = (y * 0.9).tanh()
        loss = y.sum()
        del y
        forward = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.reset_peak()
        loss.backward()
        after, peak = (m / 1e6 for m in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert 29 * megabytes < forward < 31 * megabytes  # tanh saves its output, scaling saves nothing
    assert peak < forward + 4 * megabytes
    assert after < 1.1 * megabytes  # the gradient of x
    assert x.grad is not None


def test_no_reference_cycles():
    gc.collect()
    gc.disable()
    try:
        x = leaf(1, 2, 3)
        y = ops.softmax(x * 2 + 1) @ x
        z = ag.checkpoint(lambda t: (t * t).exp(), y)
        alive = [weakref.ref(t) for t in (y, z)]
        z.backward()
        z2 = (x * x).sum()  # and a graph without backward
        alive.append(weakref.ref(z2))
        del y, z, z2
        assert [ref() for ref in alive] == [None, None, None]
        assert gc.collect() == 0, "the collector found garbage that reference counting should have freed"
    finally:
        gc.enable()


def test_threads_share_parameters():
    rng = np.random.default_rng(0)
    w = Tensor(rng.standard_normal((32, 32)), requires_grad=True)
    batches = [rng.standard_normal((16, 32)) for _ in range(64)]

    def work(batch):
        return ag.grad(ops.gelu(batch @ w).sum(), w)[0].numpy()

    alone = [work(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, batches))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
    assert w.grad is None


def test_modes_of_one_thread_do_not_reach_another():
    inside, done = threading.Event(), threading.Event()

    def other():
        with ag.no_grad():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    assert (leaf(1) * 2).requires_grad
    done.set()
    thread.join()

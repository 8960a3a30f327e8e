"""Processes instead of threads: the same bits, and nothing of them is left, however they end."""

import copy
import gc
import multiprocessing
import os
import sys
import time

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import ops, random
from autograd.random import Stream
from minicait.models.cait import CaiT
from minicait.train import Trainer, value_and_grad
from minicait.train.gradients import workers_for
from minicait.train.workers import processes_work

pytestmark = pytest.mark.skipif(not processes_work(), reason="processes cannot be forked on this system")
SMALL = {"num_classes": 5, "img_size": 16, "patch_size": 8, "dim": 16, "heads": 2, "depth": 2, "layer_scale": 0.1}
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.standard_normal((7, 3, 16, 16)).astype(np.float32), RNG.integers(0, 5, 7)


@pytest.fixture(autouse=True)
def nothing_before():
    gc.collect()  # trainers of other tests that an exception keeps alive, and their processes with them


def model():
    return CaiT(**SMALL, drop_path_rate=0.3)


def gradients(net, workers=None, threads=2, micro_batch=2, loss=ops.cross_entropy):
    with random.using(Stream(3, "test", step=5)):
        return value_and_grad(net, loss, IMAGES, LABELS, threads, micro_batch, workers)


def same(a, b):
    assert a[0] == b[0] and a[1].keys() == b[1].keys()
    for name in a[1]:
        np.testing.assert_array_equal(a[1][name], b[1][name], err_msg=name)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_bits_as_threads(count):
    net = model()
    want = gradients(net)
    workers = workers_for(net, count)
    first, second = gradients(net, workers), gradients(net, workers)
    assert workers.alive
    same(first, want)
    same(second, want)
    assert not np.shares_memory(first[1]["norm.weight"], second[1]["norm.weight"])
    workers.close()


def test_workers_see_what_the_optimiser_writes_and_modes_that_change():
    trainers = [Trainer(model(), threads=2, micro_batch=2, processes=processes) for processes in (True, False)]
    losses = [[trainer.step(IMAGES, LABELS) for _ in range(4)] for trainer in trainers]
    assert losses[0] == losses[1] and trainers[0].workers is not None and trainers[1].workers is None
    for a, b in zip(*(t.model.state_dict().values() for t in trainers), strict=True):
        np.testing.assert_array_equal(a, b)
    trained = gradients(trainers[0].model, trainers[0].workers)
    evaluated = gradients(trainers[0].model.eval(), trainers[0].workers)  # without stochastic depth
    assert trained[0] != evaluated[0]
    same(evaluated, gradients(trainers[1].model.eval()))


def test_weights_that_were_replaced_or_frozen_are_noticed():
    net = model()
    workers = workers_for(net, 2)
    net.norm.weight.data = net.norm.weight.data * 2  # not where the workers look
    same(gradients(net, workers), gradients(net))
    net.head.bias.requires_grad = False
    assert "head.bias" not in gradients(net, workers)[1]
    workers.close()


def test_a_trainer_starts_others_for_weights_that_were_replaced():
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    before = trainer.workers
    trainer.model.norm.weight.data = trainer.model.norm.weight.data * 2
    other = Trainer(copy.deepcopy(trainer.model), threads=2, micro_batch=2, processes=False)
    trainer.batches = 0
    assert trainer.step(IMAGES, LABELS) == other.step(IMAGES, LABELS)
    assert not before.alive and trainer.workers.alive and len(alive()) == 2


def test_they_do_the_work(monkeypatch):
    net = model()
    want, workers = gradients(net), workers_for(net, 2)
    monkeypatch.delattr(sys.modules["minicait.train.gradients"], "pieces_in_order")  # the way of threads
    same(gradients(net, workers), want)
    workers.close()
    with pytest.raises(NameError):
        gradients(net, workers)


def test_modes_are_obeyed_so_threads_do_the_work():
    net = model()
    workers = workers_for(net, 2)
    net.head.weight.data[...] = np.nan
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError):
        gradients(net, workers)
    net.head.weight.data[...] = 0
    with minicait.record(net.eval()) as inside:
        gradients(net, workers)
    assert inside.class_attention
    here = []
    gradients(net, workers, loss=lambda z, t: here.append(1) or ops.cross_entropy(z, t))  # which cannot be sent
    assert len(here) >= 4
    workers.close()


def train_in_a_pool(_):
    return Trainer(model(), threads=2, micro_batch=2).step(IMAGES, LABELS)


def test_a_process_that_may_have_no_children_trains_too():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (loss,) = pool.map(train_in_a_pool, [0])
    assert loss == Trainer(model(), threads=2, micro_batch=2, processes=False).step(IMAGES, LABELS)


def test_of_two_trainers_at_once_each_ends_its_own():
    """By telling them: the second's have copies of the first's pipes, which therefore do not close."""
    trainers = [Trainer(model(), threads=2, micro_batch=2, processes=True) for _ in range(2)]
    for trainer in trainers:
        trainer.step(IMAGES, LABELS)
    processes = alive()
    for trainer in trainers:
        trainer.end_workers()
    assert [process.exitcode for process in processes] == [0] * 4 and not alive()  # not one had to be killed


def test_what_several_dtypes_cannot_share():
    net = model()
    net.norm.weight.data = net.norm.weight.data.astype(np.float64)
    with pytest.raises(ValueError, match="must have one dtype"):
        workers_for(net, 2)


class Broken:
    def __call__(self, logits, labels):
        raise ArithmeticError("this loss is broken")


class NotToBeSentError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class BrokenLike:
    def __init__(self, kind):
        self.kind = kind

    def __call__(self, logits, labels):
        raise NotToBeSentError("one", "two") if self.kind == "odd" else OSError("no such thing")


@pytest.mark.parametrize(("kind", "error", "text"), [("odd", RuntimeError, "one and two"), ("os", OSError, "no such")])
def test_errors_that_look_like_those_of_the_pipe_or_do_not_go_through_it(kind, error, text):
    with pytest.raises(error, match=text):
        gradients((net := model()), workers_for(net, 2), loss=BrokenLike(kind))
    assert not alive()


def test_an_error_in_a_worker_comes_here_with_its_place():
    net = model()
    workers = workers_for(net, 2)
    with pytest.raises(ArithmeticError, match="this loss is broken") as error:
        gradients(net, workers, loss=Broken())
    assert "in __call__" in "".join(error.value.__notes__)
    assert not alive()


def test_a_worker_that_was_killed_is_noticed_and_replaced():
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    os.kill(alive()[0].pid, 9)
    with pytest.raises(MemoryError, match="a worker process was killed"):
        trainer.step(IMAGES, LABELS)
    assert not alive()
    assert np.isfinite(trainer.step(IMAGES, LABELS)) and len(alive()) == 2


def test_a_step_that_is_left_in_the_middle_leaves_nothing_behind():
    net = model()
    want = gradients(net)
    workers = workers_for(net, 2)
    with pytest.raises(ValueError, match="not a mean over samples"):
        gradients(net, workers, loss=total)
    assert not alive()
    same(gradients(net, workers), want)  # by threads, as the workers are gone


def total(logits, labels):
    return ops.cross_entropy(logits, labels, reduction="sum")


def alive():
    return [process for process in multiprocessing.active_children() if process.name == "minicait"]


def test_nothing_is_left():
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    assert len(alive()) == 2
    del trainer
    gc.collect()
    deadline = time.time() + 5
    while alive() and time.time() < deadline:
        time.sleep(0.01)
    assert not alive()


def test_workers_end_with_the_process_that_made_them():
    """Also when that one is killed, and can tell nobody."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        workers = workers_for(model(), 2)
        os.write(write, b"".join(p.pid.to_bytes(4, "little") for p in multiprocessing.active_children()))
        assert workers.count == 2
        time.sleep(60)
        os._exit(1)
    pids = [int.from_bytes(os.read(read, 4), "little") for _ in range(2)]
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    deadline = time.time() + 10
    while any(running(pid) for pid in pids) and time.time() < deadline:
        time.sleep(0.02)
    assert not any(running(pid) for pid in pids)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False

"""Processes instead of threads: the same bits, and nothing of them is left, however they end."""

import copy
import gc
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import ops, random
from autograd.random import Stream
from minicait.models.cait import CaiT
from minicait.train import Trainer
from minicait.train.gradients import Gradients
from minicait.train.objectives import CrossEntropy, LossFunction
from minicait.train.workers import WorkerError, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked on this system")
SMALL = {"num_classes": 5, "img_size": 16, "patch_size": 8, "dim": 16, "heads": 2, "depth": 2, "layer_scale": 0.1}
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.standard_normal((7, 3, 16, 16)).astype(np.float32), RNG.integers(0, 5, 7)


@pytest.fixture(autouse=True)
def nothing_before():
    gc.collect()  # trainers of other tests that an exception keeps alive, and their processes with them


def model():
    return CaiT(**SMALL, drop_path_rate=0.3)


def in_processes(net, count=2, micro_batch=2):
    return Gradients(net, count, micro_batch, processes=True)


def result(gradients, objective=None, images=IMAGES, labels=LABELS):
    """The loss, and copies of the gradients."""
    with random.using(Stream(3, "test", step=5)):
        loss, flat = gradients(objective or CrossEntropy(), images, {"labels": labels})
    return float(loss), {name: g.copy() for name, g in flat.items()}


def on_threads(net, objective=None):
    return result(Gradients(net, 2, 2, processes=False), objective)


def same(a, b):
    assert a[0] == b[0] and a[1].keys() == b[1].keys()
    for name in a[1]:
        np.testing.assert_array_equal(a[1][name], b[1][name], err_msg=name)


def alive():
    return [process for process in multiprocessing.active_children() if process.name == "minicait"]


def wait_until(done, seconds=10):
    deadline = time.time() + seconds
    while not done() and time.time() < deadline:
        time.sleep(0.01)
    assert done()


# ---- the same bits


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_bits_as_threads(count):
    net = model()
    want, gradients = on_threads(net), in_processes(net, count)
    for _ in range(2):
        same(result(gradients), want)
    assert len(alive()) == (count if count > 1 else 0)
    gradients.close()


@pytest.mark.parametrize(("count", "pieces"), [(5, (14, 16, 3)), (6, (15, 1)), (9, (11, 13)), (19, (17,))])
def test_any_number_of_processes_and_pieces(count, pieces):
    """Buffers for the partial sums are shared before anybody knows how many pieces will come."""
    net = model()
    gradients = in_processes(net, count, micro_batch=1)
    for number in pieces:
        batch = {"images": np.concatenate([IMAGES] * 6)[:number], "labels": np.arange(number) % 5}
        same(result(gradients, **batch), result(Gradients(net, 1, 1, processes=False), **batch))
    assert len(alive()) == min(count, 16)  # there are no more leaves
    gradients.close()


@dataclass
class NotingWhere:
    """The cross-entropy, and a line with the number of the process that computed it."""

    path: Path

    def __call__(self, logits, labels):
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return ops.cross_entropy(logits, labels)


def test_they_do_the_work(tmp_path):
    net = model()
    gradients, path = in_processes(net), tmp_path / "pids"
    result(gradients)
    path.write_text("")
    same(result(gradients, LossFunction(NotingWhere(path))), on_threads(net))
    pids = [int(line) for line in path.read_text().split()]
    assert set(pids) - {os.getpid()} == {process.pid for process in alive()}
    assert pids.count(os.getpid()) == 5  # the batch and its four pieces: is the loss a mean?
    gradients.close()


def test_workers_see_what_the_optimiser_writes_and_modes_that_change():
    trainers = [Trainer(model(), threads=2, micro_batch=2, processes=processes) for processes in (True, False)]
    losses = [[trainer.step(IMAGES, LABELS) for _ in range(4)] for trainer in trainers]
    assert losses[0] == losses[1] and len(alive()) == 2
    for a, b in zip(*(t.model.state_dict().values() for t in trainers), strict=True):
        np.testing.assert_array_equal(a, b)
    trained = result(trainers[0].gradients)
    trainers[0].model.eval(), trainers[1].model.eval()  # without stochastic depth
    evaluated = result(trainers[0].gradients)
    assert trained[0] != evaluated[0]
    same(evaluated, on_threads(trainers[1].model))


def test_every_module_is_in_its_own_mode():
    """Workers are forked while a block is in evaluation mode; a step puts all of the model into training mode."""
    losses = []
    for processes in (True, False):
        net = CaiT(**SMALL, drop_path_rate=0.5)
        net.blocks[0].eval()
        trainer = Trainer(net, threads=2, micro_batch=2, processes=processes)
        trainer.gradients.start()
        losses.append([result(trainer.gradients)[0], trainer.step(IMAGES, LABELS)])
        trainer.close()
    assert losses[0] == losses[1]


# ---- changes that processes would not see


def test_weights_that_were_replaced_or_frozen_are_noticed():
    net = model()
    gradients = in_processes(net)
    same(result(gradients), on_threads(net))
    net.norm.weight.data = net.norm.weight.data * 2  # not where the workers look
    same(result(gradients), on_threads(net))
    net.head.bias.requires_grad = False
    found = result(gradients)
    assert "head.bias" not in found[1]
    same(found, on_threads(net))
    assert len(alive()) == 2
    gradients.close()


def test_a_trainer_starts_others_for_weights_that_were_replaced():
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    before = alive()
    trainer.model.norm.weight.data = trainer.model.norm.weight.data * 2
    other = Trainer(copy.deepcopy(trainer.model), threads=2, micro_batch=2, processes=False)
    trainer.batches = 0
    assert trainer.step(IMAGES, LABELS) == other.step(IMAGES, LABELS)
    assert not any(process.is_alive() for process in before) and len(alive()) == 2
    trainer.close()


def test_modes_are_obeyed_so_threads_do_the_work():
    net = model()
    gradients = in_processes(net)
    result(gradients)
    net.head.weight.data[...] = np.nan
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError):
        result(gradients)
    net.head.weight.data[...] = 0
    with minicait.record(net.eval()) as inside:
        result(gradients)
    assert inside.class_attention
    here = []
    result(gradients, lambda outputs, targets: here.append(1) or CrossEntropy()(outputs, targets))  # does not pickle
    assert len(here) >= 4
    gradients.close()


def train_in_a_pool(_):
    return Trainer(model(), threads=2, micro_batch=2).step(IMAGES, LABELS)


def test_a_process_that_may_have_no_children_trains_too():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (loss,) = pool.map(train_in_a_pool, [0])
    assert loss == Trainer(model(), threads=2, micro_batch=2, processes=False).step(IMAGES, LABELS)


def test_several_dtypes_cannot_be_shared():
    net = model()
    net.norm.weight.data = net.norm.weight.data.astype(np.float64)
    with pytest.raises(ValueError, match="must have one dtype"):
        in_processes(net).start()
    assert not alive()


# ---- errors


class NotToBeSentError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


@dataclass
class Broken:
    kind: str
    is_mean = True

    def __call__(self, outputs, targets):
        raise {
            "plain": ArithmeticError("this loss is broken"),
            "odd": NotToBeSentError("one", "two"),
            "os": OSError("no such thing"),
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [("plain", ArithmeticError, "this loss"), ("odd", RuntimeError, "one and two"), ("os", OSError, "no such")],
)
def test_an_error_in_a_worker_arrives_with_its_place(kind, error, text):
    """Also one that looks like an error of the pipe, or that does not go through it."""
    net = model()
    gradients = in_processes(net)
    with pytest.raises(error, match=text) as caught:
        result(gradients, Broken(kind))
    assert "in __call__" in "".join(caught.value.__notes__)
    assert not alive()
    same(result(gradients), on_threads(net))  # by others
    gradients.close()


def total(logits, labels):
    return ops.cross_entropy(logits, labels, reduction="sum")


def test_a_loss_that_is_refused_changes_nothing():
    net = model()
    want, gradients = on_threads(net), in_processes(net)
    with pytest.raises(ValueError, match="not a mean over samples"):
        result(gradients, LossFunction(total))
    same(result(gradients), want)
    gradients.close()


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_a_worker_that_was_killed_is_noticed_and_replaced(number):
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    os.kill(alive()[0].pid, number)
    with pytest.raises(WorkerError, match=f"a worker process was ended by {number.name}"):
        trainer.step(IMAGES, LABELS)
    assert not alive()
    assert np.isfinite(trainer.step(IMAGES, LABELS)) and len(alive()) == 2
    trainer.close()


def test_of_two_trainers_at_once_each_ends_its_own():
    """By telling them: the second's have copies of the first's pipes, which therefore do not close."""
    trainers = [Trainer(model(), threads=2, micro_batch=2, processes=True) for _ in range(2)]
    for trainer in trainers:
        trainer.step(IMAGES, LABELS)
    processes = alive()
    for trainer in trainers:
        trainer.close()
    assert [process.exitcode for process in processes] == [0] * 4 and not alive()  # not one had to be killed


def test_after_closing_a_trainer_goes_on():
    trainer, other = (Trainer(model(), threads=2, micro_batch=2, processes=p) for p in (True, False))
    losses = [trainer.step(IMAGES, LABELS)]
    trainer.close()
    trainer.close()
    assert not alive()
    losses.append(trainer.step(IMAGES, LABELS))
    assert losses == [other.step(IMAGES, LABELS) for _ in range(2)]
    trainer.close()


def test_nothing_is_left():
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    trainer.step(IMAGES, LABELS)
    assert len(alive()) == 2
    del trainer
    gc.collect()
    wait_until(lambda: not alive())


def test_workers_end_with_the_process_that_made_them():
    """Also when that one is killed, and can tell nobody."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        gradients = in_processes(model())
        gradients.start()
        os.write(write, b"".join(p.pid.to_bytes(4, "little") for p in multiprocessing.active_children()))
        time.sleep(60)
        os._exit(1)
    pids = [int.from_bytes(os.read(read, 4), "little") for _ in range(2)]
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    wait_until(lambda: not any(running(pid) for pid in pids))


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_attributes_that_change_between_steps_reach_the_processes():
    results = []
    for processes in (False, True):
        trainer = Trainer(model(), threads=2, micro_batch=2, processes=processes)
        first = trainer.step(IMAGES, LABELS)
        for block in trainer.model.blocks:
            block.drop_path_1.rate = block.drop_path_2.rate = 0.9
        results.append((first, trainer.step(IMAGES, LABELS)))
        trainer.close()
    assert results[0] == results[1]


def test_processes_work_after_threads_that_failed():
    """The signal that stops other threads must not reach processes that are forked later."""
    want = gradients_of(Trainer(model(), threads=2, micro_batch=2, processes=False))
    trainer = Trainer(model(), threads=2, micro_batch=2, processes=True)
    with ag.detect_anomaly(), pytest.raises(ag.AnomalyError):  # in this mode, threads do the work
        gradients_of(trainer, np.full_like(IMAGES, np.inf))
    assert gradients_of(trainer) == want
    trainer.close()


def gradients_of(trainer, images=IMAGES):
    with random.using(Stream(3, "test")), np.errstate(all="ignore"):
        loss, flat = trainer.gradients(trainer.objective, images, {"labels": LABELS})
    return float(loss), flat.array.tobytes()

"""Memory shared with worker processes: only references go through pipes, and workers update all flat arrays."""

import os
import pickle
import signal
from contextlib import closing, nullcontext
from multiprocessing.connection import Connection

import numpy as np
import pytest

import autograd as ag
from autograd import random
from autograd.random import Stream
from minicait.optim.sweep import each, results, sweep, together
from minicait.train import Recipe, Trainer, memory
from minicait.train.gradients import Gradients
from minicait.train.memory import SharedMemory, inbox_size
from minicait.train.objectives import CrossEntropy
from minicait.train.workers import Processes, WorkerError, can_fork
from tests.train.helpers import assert_same, small, state

forking = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked on this system")
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.standard_normal((12, 3, 16, 16)).astype(np.float32), RNG.integers(0, 10, 12)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    monkeypatch.setattr("minicait.optim.sweep.CHUNK", 1000)


def trainer(threads=2, processes=True, frozen=(), **changes):
    model = small(drop_path_rate=0.2)
    for name, p in model.named_parameters():
        p.requires_grad = not name.startswith(frozen or " ")
    recipe = Recipe(**{"lr": 1e-2, "clip_norm": 0.1, "ema_decay": 0.9, **changes})
    return Trainer(model, recipe, threads=threads, micro_batch=2, processes=processes)


# ---- the same bits, whoever updates


@forking
@pytest.mark.parametrize(
    "options",
    [{}, {"clip_norm": None, "ema_decay": None}, {"optimiser": "lamb"}, {"accumulate": 2}, {"frozen": ("blocks.0",)}],
    ids=str,
)
def test_the_same_bits_for_any_number_of_threads_or_processes(options):
    states = []
    for threads, processes in ((1, False), (3, False), (2, True), (3, True)):
        with closing(trainer(threads, processes, **options)) as made:
            losses = [made.step(IMAGES[:count], LABELS[:count]) for count in (12, 12, 5, 12, 12)]
            states.append({**state(made), "losses": np.array(losses)})
    for other in states[1:]:
        assert_same(states[0], other)


@forking
@pytest.mark.parametrize("options", [{}, {"optimiser": "lamb"}, {"accumulate": 2}], ids=str)
def test_processes_do_all_sweeps(options, monkeypatch):
    with closing(trainer(**options)) as made:
        made.step(IMAGES, LABELS)
        monkeypatch.setattr(
            "minicait.optim.sweep.on_threads", lambda work, items, threads: pytest.fail("in the parent")
        )
        before = made.model.norm.weight.numpy().copy()
        for _ in range(3):
            made.step(IMAGES, LABELS)
        assert (made.model.norm.weight.numpy() != before).any()


@forking
def test_all_arrays_go_back_to_ordinary_memory():
    made, other = trainer(), trainer(processes=False)
    arrays = [made.optimiser.parameters.weights, made.optimiser.mean, made.optimiser.square, made.ema.average]
    losses = [made.step(IMAGES, LABELS)]
    shared = made.gradients.processes.memory
    assert all(shared.find(own.array) is not None for own in arrays)
    with made.ema.applied():
        assert shared.find(made.model.norm.weight.data) is not None
    losses.append(made.step(IMAGES, LABELS))
    made.close()
    assert not any(shared.find(own.array) or shared.find(own["norm.weight"]) for own in arrays)
    losses.append(made.step(IMAGES, LABELS))  # in other memory
    made.close()
    assert losses == [other.step(IMAGES, LABELS) for _ in range(3)]
    assert_same(state(made), state(other))


# ---- what goes through the pipes


@forking
def test_nothing_large_goes_through_the_pipes(monkeypatch):
    sizes, dumps, recv = [], SharedMemory.dumps, Connection.recv

    def sent(self, message):
        sizes.append(len(data := dumps(self, message)))
        return data

    def received(self):
        sizes.append(len(pickle.dumps(answer := recv(self))))
        return answer

    with closing(trainer()) as made:
        made.step(IMAGES, LABELS)
        monkeypatch.setattr(SharedMemory, "dumps", sent)
        monkeypatch.setattr(Connection, "recv", received)
        made.step(IMAGES, LABELS)
    assert 4 <= len(sizes) <= 4 + 2 * 4 and max(sizes) < 2000 < IMAGES.nbytes  # four messages to two workers


@forking
def test_a_batch_grows_and_shrinks(monkeypatch):
    """One that does not fit the memory reserved for it gets new processes, with more room."""
    monkeypatch.setattr(memory, "INBOX", inbox_size([IMAGES[:6], LABELS[:6]]))
    counts, found = (4, 6, 12, 4, 12, 11), []
    made, other = trainer(), trainer(processes=False)
    for count in counts:
        assert made.step(IMAGES[:count], LABELS[:count]) == other.step(IMAGES[:count], LABELS[:count])
        found.append(made.gradients.processes)
    assert found[0] is found[1] is not found[2] and found[2:] == found[2:3] * 4
    made.close()
    assert_same(state(made), state(other))


class Distances:
    """Two kinds of targets, and names that are Python objects."""

    is_mean = True

    def __call__(self, outputs, targets):
        assert targets["names"].tolist() == [f"image {i}" for i in targets["numbers"]]
        weights = targets["weights"][:, None] * (1 + targets["numbers"][:, None] % 3)
        return ((outputs.logits - targets["wanted"]) * weights).mean()


@forking
def test_targets_of_several_kinds():
    wanted, weights = RNG.standard_normal((2, 12, 10)), RNG.random(12).astype(np.float32)
    names = np.array([f"image {i}" for i in range(12)], dtype=object)
    targets = {"wanted": wanted[0], "numbers": np.arange(12), "weights": weights, "names": names}
    found = []
    for processes in (False, True):
        with closing(Gradients(small(), 2, 2, processes)) as gradients, random.using(Stream(3, "test")):
            loss, flat = gradients(Distances(), IMAGES, targets)
            found.append({"loss": loss, **{name: g.copy() for name, g in flat.items()}})
    assert_same(*found)


def outputs(gradients, count=12):
    with random.using(Stream(3, "test")):
        return float(gradients(CrossEntropy(), IMAGES[:count], {"labels": LABELS[:count]})[0])


@forking
@pytest.mark.parametrize("between", ["threads", "fewer leaves"])
def test_settings_reach_workers_that_had_nothing_to_do_when_they_changed(between):
    """Before them, threads did the work, since a mode was active; or there were fewer leaves than workers."""
    model = small(drop_path_rate=0.5)
    with closing(Gradients(model, 4, 2, processes=True)) as gradients:
        before = outputs(gradients)
        for block in model.blocks:
            block.drop_path_1.rate = block.drop_path_2.rate = 0.9
        with ag.detect_anomaly() if between == "threads" else nullcontext():
            outputs(gradients, 12 if between == "threads" else 4)
        want = outputs(Gradients(model, 1, 2, processes=False))
        assert outputs(gradients) == want != before


def end_here(item):
    os.kill(os.getpid(), signal.SIGKILL)


@forking
def test_a_worker_that_dies_in_an_update_is_an_error():
    made = trainer()
    made.step(IMAGES, LABELS)
    array = made.optimiser.mean.array
    with pytest.raises(WorkerError, match=r"ended by SIGKILL.*; the weights may be half updated"):
        each(end_here, [1, 2], [array])
    assert np.isfinite(made.step(IMAGES, LABELS))
    made.close()


# ---- memory


def test_references():
    shared = SharedMemory()
    array = shared.empty((4, 6), np.dtype(np.float32))
    array[...] = np.arange(24).reshape(4, 6)
    for view in (array, array[1:, ::2], array.T, array[2], array[3, 5:], array.view(np.int32), array[::-1]):
        data = shared.dumps({"view": [view]})
        found = shared.loads(data)["view"][0]
        assert len(data) < 200 and np.shares_memory(found, array) and found.dtype == view.dtype
        np.testing.assert_array_equal(found, view)
    elsewhere = array.copy()
    assert shared.find(elsewhere) is None and shared.find("no array") is None
    found = shared.loads(shared.dumps(elsewhere))
    np.testing.assert_array_equal(found, elsewhere)
    assert not np.shares_memory(found, elsewhere)


def test_arrays_of_a_batch_lie_side_by_side():
    shared = SharedMemory()
    batch = [IMAGES[::2], LABELS, np.zeros((3, 0)), np.array(True), np.array([None, "a"])]
    copies = shared.put(batch)
    for copy, array in zip(copies, batch, strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)
    assert copies[4] is batch[4] and shared.find(copies[1]) == (0, IMAGES[::2].nbytes)
    assert not np.shares_memory(copies[0], copies[1])


# ---- sweeps


def note(notes, name, start, *arrays):
    notes.append((name, start, *(len(array) for array in arrays)))


def test_sweeps_together_go_chunk_by_chunk():
    x, y, notes = np.zeros(2500), np.zeros(2500), []
    with together():
        sweep(lambda start, *arrays: note(notes, "a", start, *arrays), x, y)
        sweep(lambda start, *arrays: note(notes, "b", start, *arrays), y)
        assert not notes
        assert results(lambda start, part: start, x) == [0, 1000, 2000]  # needs those before it
        assert notes[:2] == [("a", 0, 1000, 1000), ("b", 0, 1000)] and notes[4:] == [
            ("a", 2000, 500, 500),
            ("b", 2000, 500),
        ]
        sweep(lambda start, *arrays: note(notes, "c", start, *arrays), x[:10])
        sweep(lambda start, *arrays: note(notes, "d", start, *arrays), y)
    assert [name for name, *_ in notes[6:]] == ["c", "d", "d", "d"]
    with pytest.raises(ZeroDivisionError), together():
        sweep(lambda start, part: notes.clear(), x)
        raise ZeroDivisionError
    assert len(notes) == 10


def add_one(start, part):
    part += 1
    return start


@forking
def test_processes_sweep_over_memory_that_they_share_and_no_other():
    shared = SharedMemory()
    inside, outside = shared.empty((3500,), np.dtype(np.float64)), np.zeros(3500)
    processes = Processes(3, None, {}, shared)
    for array in (inside, outside):
        assert results(add_one, array, threads=2) == [0, 1000, 2000, 3000] and (array == 1).all()
    assert processes.share([inside]) and not processes.share([inside, outside])
    processes.close()
    assert not processes.share([inside])
    assert results(add_one, inside) == [0, 1000, 2000, 3000] and (inside == 2).all()

"""Batches on a GPU: the CPU's images within a rounding, in the same order, by workers that leave nothing behind."""

import multiprocessing
import os
import signal
import time
from contextlib import closing

import numpy as np
import pytest

from autograd.random import Stream
from minicait.data import Augmentation, BadImageError, InMemory, LabelMaps, Loader, Shapes, evaluation, mix, training
from minicait.data.device_loader import SLOTS, DeviceLoader, on_device
from minicait.data.folder import train_and_val
from minicait.data.mixing import one_hot
from minicait.data.pixels import Pixels
from minicait.data.slots import STEPS
from minicait.processes import WorkerError
from tests import hostcuda
from tests.data.test_loader import damaged  # noqa: F401  (a fixture)
from tests.data.test_token_labels import labelled, photos  # noqa: F401

pytestmark = pytest.mark.hostcuda
ROUNDING = 1 / (255 * 0.224)  # of a byte, in a normalised image


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    assert not multiprocessing.active_children()


def there(loader, number=0, start=0, device="cuda"):
    """The batches of an epoch from a GPU, as NumPy arrays."""
    with on_device(loader, device) as loader:
        assert isinstance(loader, DeviceLoader)
        with closing(loader.epoch(number, start)) as batches:
            return [batch._replace(images=batch.images.normalised().get()) for batch in batches]


def equal(got, want, tolerance=1e-6):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.images.dtype == np.float32 and a.images.shape == b.images.shape
        np.testing.assert_allclose(a.images, b.images, rtol=0, atol=tolerance)
        x, y = (batch.targets if isinstance(batch.targets, dict) else {"labels": batch.targets} for batch in (a, b))
        assert x.keys() == y.keys()
        for name, value in y.items():
            assert x[name].dtype == value.dtype
            np.testing.assert_array_equal(x[name], value)


WAYS = {
    "none": None,
    "crop": Augmentation("resized"),
    "flip": Augmentation("padded", flip=0.5),
    "augmented": Augmentation("resized", flip=0.5, colour_jitter=0.3, rand_augment=9),
    "three": Augmentation("simple", three_augment=True),
    "erased": Augmentation(flip=0.5, erasing=0.7),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("repeats", [1, 3])
def test_images_are_those_of_the_cpu(way, repeats):
    augmentation = WAYS[way]
    transform = None if augmentation is None else training(augmentation, 16)
    loader = Loader(Shapes(40, 16), 8, True, 3, transform, repeats, threads=3, numbered=True)
    equal(there(loader, 2), list(loader.epoch(2)), tolerance=0.5 / STEPS + 1e-6 if way == "erased" else 1e-6)


def test_noise_is_rounded_to_less_than_one_part_in_fifty():
    loader = Loader(Shapes(64, 24), 32, True, 0, training(Augmentation(erasing=1.0), 24), threads=2)
    plain = Loader(Shapes(64, 24), 32, True, 0, training(Augmentation(), 24), threads=2)
    (got, _), (want, _), (before, _) = there(loader), list(loader.epoch(0)), list(plain.epoch(0))
    noise = want.images != before.images
    apart = np.abs(got.images - want.images)
    assert 0.05 < noise.mean() < 0.4 and apart[~noise].max() < 1e-6
    assert (
        0.4 / STEPS < apart[noise].max() <= 0.5 / STEPS + 1e-6 and abs((got.images - want.images)[noise].mean()) < 1e-3
    )
    assert apart.max() < 1.2 * ROUNDING


@pytest.mark.parametrize("mixup, cutmix", [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
@pytest.mark.parametrize("erasing", [0.0, 0.6])
def test_mixing_in_the_same_launch(mixup, cutmix, erasing):
    loader = Loader(Shapes(40, 16), 10, True, 1, training(Augmentation(flip=0.5, erasing=erasing), 16), threads=2)
    batches = list(loader.epoch(0))
    with on_device(loader, "cuda") as device_loader, hostcuda.counting() as count:
        for i, batch in enumerate(device_loader.epoch(0)):
            labels, how = one_hot(batch.labels, 10), (mixup, cutmix, Stream(0, "mix", i))
            (images, targets), want = batch.images.mix(labels, *how), mix(batches[i].images, labels, *how)
            np.testing.assert_allclose(images.get(), want[0], rtol=0, atol=1e-6 + (erasing > 0) * 0.5 / STEPS)
            np.testing.assert_array_equal(targets, want[1])
    assert count.kernels == ["images_of_pixels"] * 4


def test_an_odd_batch_mixes_its_middle_with_itself():
    loader = Loader(Shapes(5, 8), 5, threads=2)
    (want,) = loader
    with on_device(loader, "cuda") as device_loader:
        (batch,) = device_loader.epoch(0)
        images, _ = batch.images.mix(one_hot(batch.labels, 10), 1.0, 0.0, Stream(0))
    np.testing.assert_allclose(images.get()[2], want.images[2], atol=1e-6)


@pytest.mark.parametrize("number, start", [(0, 3), (5, 1), (1, 5)])
def test_an_epoch_resumes_at_any_batch(number, start):
    loader = Loader(Shapes(50, 8), 10, True, 2, training(WAYS["augmented"], 8), threads=2)
    equal(there(loader, number, start), list(loader.epoch(number, start)))


def test_evaluation_has_every_image_once_and_its_own_colours():
    crop = evaluation(16, 0.8, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2))
    for size in (4, 8, 64):
        loader = Loader(Shapes(22, 16), size, transform=crop, threads=2)
        with hostcuda.guarded(), on_device(loader, "cuda") as device_loader:
            for _ in range(2):
                got = [batch._replace(images=batch.images.get()) for batch in device_loader]
                equal(got, list(loader))
                assert len(got) == len(device_loader)


def test_workers_share_what_is_kept_in_memory(tmp_path):
    class Counted(Shapes):
        def __getitem__(self, index):
            with (tmp_path / str(index)).open("a") as file:
                file.write("x")
            return super().__getitem__(index)

    loader = Loader(InMemory(Counted(24, 8)), 6, True, repeats=2, threads=3)
    with on_device(loader, "cuda") as device_loader:
        for number in range(4):
            got = [batch._replace(images=batch.images.normalised().get()) for batch in device_loader.epoch(number)]
            equal(got, list(Loader(Shapes(24, 8), 6, True, repeats=2, threads=1).epoch(number)))
    times = [len(path.read_text()) for path in tmp_path.iterdir()]
    assert sorted(times)[:-1] == [1] * (len(times) - 1) and max(times) <= 2  # the first also told its shape


def test_label_maps_follow_the_crops(photos, tmp_path):  # noqa: F811
    train, _ = train_and_val(photos)
    maps = LabelMaps(labelled(tmp_path / "l.safetensors", train), train, (4, 4))
    loader = Loader(train, 5, True, 1, training(Augmentation("resized", flip=0.5), 16), threads=2, label_maps=maps)
    got = there(loader, 1)
    equal(got, list(loader.epoch(1)))
    assert set(got[0].targets) == {"labels", "token_labels", "crop_labels"}


def test_images_of_another_size_are_an_error():
    class Odd(Shapes):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image[: 4 + 4 * (index != 13)], label

    with pytest.raises(ValueError, match=r"^images must have one size, got 8 x 8 and 8 x 4: give"):
        there(Loader(Odd(20, 8), 5, threads=2))


def test_on_the_other_gpu(cp):
    loader = Loader(Shapes(12, 8), 4, True, threads=2)
    with on_device(loader, "cuda:1") as device_loader:
        cp.cuda.runtime.setDevice(0)
        for batch, want in zip(device_loader.epoch(0), loader.epoch(0), strict=True):
            images = batch.images.normalised()
            assert images.device.id == 1
            np.testing.assert_allclose(images.get(), want.images, atol=1e-6)
            cp.cuda.runtime.setDevice(0)


# ---- copies


def test_one_copy_of_bytes_a_batch_from_page_locked_memory_on_a_stream_of_its_own(cp):
    loader = Loader(Shapes(60, 8), 6, True, 0, training(Augmentation(erasing=0.5), 8), threads=2)
    with hostcuda.counting() as count, on_device(loader, "cuda") as device_loader:
        for batch in device_loader.epoch(0):
            assert isinstance(batch.images, Pixels)
            batch.images.normalised()
    size = 6 * (8 * 8 * 3 + 16)  # bytes, and the erased box
    assert count.bytes_to_device == [size] * 10 and not count.bytes_to_host and not count.bytes_on_device
    copies = [call for call in count.calls if call[0] == "memcpyAsync"]
    locked = [call[1:3] for call in count.calls if call[0] == "hostRegister"]
    assert len(copies) == 10 and len(locked) == SLOTS and {bytes_ for _, bytes_ in locked} == {size}
    assert {source for _, _, source, *_ in copies} == {address for address, _ in locked}
    streams = {stream for *_, stream in copies}
    computing = {call[2] for call in count.calls if call[0] == "launchKernel"}
    assert len(streams) == 1 and not streams & computing
    assert [call[1] for call in count.calls if call[0] == "hostUnregister"] == [address for address, _ in locked]


def test_the_order_of_copies_launches_and_events():
    """Everything happens at once here. On a GPU, events make the order; so their calls have to be in this order."""
    loader = Loader(Shapes(80, 8), 8, True, threads=2)
    with on_device(loader, "cuda") as device_loader, hostcuda.counting() as count:
        given = []

        def give(job, original=device_loader._give):
            original(job)
            count.calls.append(("give", job.slot))
            given.append(job.slot)

        device_loader._give = give
        for i, batch in enumerate(device_loader.epoch(0)):
            batch.images.normalised()
            deadline = time.monotonic() + 10
            while i < 8 and time.monotonic() < deadline and not all(p.poll() for p in device_loader.workers.pipes):
                time.sleep(0.001)
            time.sleep(0.1)  # like a step that takes longer than the workers
        copied = {t.copied.ptr: i for i, t in enumerate(device_loader.transfers)}
        read = {t.read.ptr: i for i, t in enumerate(device_loader.transfers)}
        sources = {t.slot.bytes.ctypes.data: i for i, t in enumerate(device_loader.transfers)}
        copying = device_loader.stream.ptr
    assert given == [i % SLOTS for i in range(10)]
    state = dict.fromkeys(range(SLOTS), "free")
    ahead = 0
    waits = set()  # what the next copy, or the next launch, waits for
    for name, *arguments in count.calls:
        if name == "eventSynchronize" and arguments[0] in copied:
            waits.add(("host", copied[arguments[0]]))
        elif name == "give":
            assert ("host", arguments[0]) in waits and state[arguments[0]] in ("free", "copied", "read")
            waits.discard(("host", arguments[0]))
        elif name == "streamWaitEvent" and arguments[0] == copying:
            waits.add(("copy", read[arguments[1]]))
        elif name == "memcpyAsync":
            slot = sources[arguments[1]]
            assert ("copy", slot) in waits and state[slot] in ("free", "read") and arguments[4] == copying
            waits.discard(("copy", slot))
            state[slot] = "copying"
        elif name == "eventRecord" and arguments[0] in copied:
            assert arguments[1] == copying and state[copied[arguments[0]]] == "copying"
            state[copied[arguments[0]]] = "copied"
            ahead = max(ahead, list(state.values()).count("copied"))
        elif name == "streamWaitEvent":
            assert state[copied[arguments[1]]] == "copied"
            waits.add(("compute", copied[arguments[1]]))
        elif name == "launchKernel":
            (slot,) = (slot for who, slot in waits if who == "compute")
            waits.discard(("compute", slot))
            state[slot] = "reading"
        elif name == "eventRecord":
            assert state[read[arguments[0]]] == "reading" and arguments[1] != copying
            state[read[arguments[0]]] = "read"
    assert set(state.values()) == {"read"} and ahead == 2  # one is computed while the next is copied


# ---- what can go wrong


def test_a_damaged_image_is_an_error_with_its_path_or_skipped(damaged):  # noqa: F811
    train, val = train_and_val(damaged, 0.3)
    for part, is_training in ((train, True), (val, False)):
        with pytest.raises(BadImageError) as error:
            there(Loader(part, 2, is_training, transform=evaluation(16), threads=2))
        assert str(part.samples[2][0]) in str(error.value) or str(part.samples[3][0]) in str(error.value)
        loaders = [Loader(part, 2, is_training, transform=evaluation(16), threads=2, skip_bad=True) for _ in range(2)]
        equal(there(loaders[0]), list(loaders[1].epoch(0)))
        assert loaders[0].bad == loaders[1].bad and set(loaders[0].bad) == {2, 3}


def test_too_many_damaged_images(damaged, monkeypatch):  # noqa: F811
    train, _ = train_and_val(damaged, 0.3)
    for path, _ in train.samples[1:]:
        path.write_bytes(b"")
    monkeypatch.setattr("minicait.data.loader.MAX_BAD", 5)
    loader = Loader(train, 7, True, transform=evaluation(16), threads=2, skip_bad=True)
    with pytest.raises(BadImageError, match=r"more than 5 images cannot be read; the last: .* it is empty"):
        there(loader)


def test_no_image_can_be_read(damaged):  # noqa: F811
    _, val = train_and_val(damaged, 0.3)
    for path, _ in val.samples:
        path.write_bytes(b"")
    loader = Loader(val, 2, transform=evaluation(16), threads=2, skip_bad=True)
    with on_device(loader, "cuda") as same:
        assert same is loader and list(same) == []


class Slow(Shapes):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


def test_a_killed_worker_is_one_sentence():
    with on_device(Loader(Slow(400, 8), 40, True, threads=2), "cuda") as loader:
        batches = loader.epoch(0)
        next(batches)
        os.kill(loader.workers.processes[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"^a worker process was ended by SIGKILL, as the system does when"):
            list(batches)


def test_an_epoch_that_is_left_early_leaves_no_trace_in_the_next():
    loader = Loader(Slow(64, 8), 8, True, 0, training(WAYS["augmented"], 8), threads=3)
    with on_device(loader, "cuda") as device_loader:
        for number in range(3):
            with closing(device_loader.epoch(number)) as batches:
                next(batches)
        got = [batch._replace(images=batch.images.normalised().get()) for batch in device_loader.epoch(3, 2)]
    equal(got, list(loader.epoch(3, 2)))


def test_ctrl_c_in_the_middle_ends_all_workers():
    with pytest.raises(KeyboardInterrupt), on_device(Loader(Slow(400, 8), 40, True, threads=2), "cuda") as loader:
        for _ in loader.epoch(0):
            for process in loader.workers.processes:  # as a terminal does
                os.kill(process.pid, signal.SIGINT)
            raise KeyboardInterrupt
    assert not multiprocessing.active_children()


def test_ctrl_c_while_waiting_for_a_batch_ends_all_workers():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), on_device(Loader(Slow(400, 8), 200, True, threads=2), "cuda") as loader:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            list(loader.epoch(0))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_workers_do_not_touch_cuda():
    """Neither do they, nor could they: the import is refused."""

    with hostcuda.counting() as count:

        class Asked(Shapes):
            def __getitem__(self, index):
                image, _ = super().__getitem__(index)
                if os.getpid() == parent:
                    return image, 0
                assert count.calls == before and not count.allocations and not count.kernels
                try:
                    import cupy  # noqa: F401
                except ImportError:
                    return image, 1
                return image, 2

        parent, before = os.getpid(), []
        batches = there(Loader(Asked(24, 8), 6, True, threads=2))
    assert all((batch.labels == 1).all() for batch in batches)


def test_loaders_that_stay_as_they_are():
    class Own(Loader):
        def epoch(self, number, start=0):
            yield from super().epoch(number, start)

    shapes = Shapes(8, 8)
    kept = (
        (Loader(shapes, 4, threads=2), "cpu"),
        (Loader(shapes, 4, threads=1), "cuda"),
        (Loader(shapes, 4, transform=lambda picture, rng: np.zeros((3, 8, 8), np.float32), threads=2), "cuda"),
        (Own(shapes, 4, threads=2), "cuda"),
        ([], "cuda"),
    )
    for loader, device in kept:
        with on_device(loader, device) as same:
            assert same is loader

"""The loader: batches depend only on (seed, epoch) and are prepared ahead on threads; damaged images."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from minicait.data import Augmentation, BadImageError, InMemory, Loader, Shapes, evaluation, train_and_val, training
from minicait.data.crops import shrink
from minicait.data.picture import Picture, normalise
from tests.data.test_crops import photograph

ALL = Augmentation("resized", flip=0.5, colour_jitter=0.3, rand_augment=9, erasing=0.5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for i in range(26):
            photograph(40 + i, 60 - i, seed=hash_of(name) + i).save(root / name / f"{i}.jpg")
    return root


def hash_of(name):
    return sum(map(ord, name))


def same(a, b):
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left.images, right.images)
        np.testing.assert_array_equal(left.labels, right.labels)


def test_threads_change_nothing_and_any_step_can_be_found_again(photos):
    train, _ = train_and_val(photos)
    loaders = [Loader(train, 20, True, 3, training(ALL, 32), repeats=2, threads=threads) for threads in (1, 2, 5)]
    batches = [list(loader.epoch(4)) for loader in loaders]
    assert len(batches[0]) == len(loaders[0]) == 2 and batches[0][0].images.shape == (20, 3, 32, 32)
    same(batches[0], batches[1])
    same(batches[0], batches[2])
    same(batches[0][1:], list(loaders[0].epoch(4, start=1)))
    other = list(loaders[0].epoch(5))
    assert not np.array_equal(other[0].images, batches[0][0].images)
    assert not np.array_equal(next(iter(Loader(train, 20, True, 4, training(ALL, 32)))).images, batches[0][0].images)


def test_an_epoch_has_every_image_once(photos):
    train, val = train_and_val(photos)
    labels = np.concatenate([batch.labels for batch in Loader(train, 1, True, transform=evaluation(16)).epoch(1)])
    assert len(labels) == len(train) and (np.bincount(labels) == [23, 23]).all() and (np.diff(labels) != 0).sum() > 5
    batches = list(Loader(val, 4, transform=evaluation(16)))
    assert [len(b.labels) for b in batches] == [4, 2] and (
        np.diff(np.concatenate([b.labels for b in batches])) >= 0
    ).all()


def test_repeats_see_fewer_images_each_prepared_otherwise():
    shapes = Shapes(30, 16)
    loader = Loader(shapes, 15, True, transform=training(Augmentation(flip=0.5, erasing=1.0), 16), repeats=3)
    batches = list(loader.epoch(0))
    assert len(batches) == 2
    labels = np.concatenate([b.labels for b in batches]).reshape(10, 3)
    assert (labels == labels[:, :1]).all()
    three = batches[0].images[:3]
    assert not np.array_equal(three[0], three[1]) and not np.array_equal(three[1], three[2])
    plain = Loader(shapes, 15, True, repeats=3)
    (first, *_) = plain.epoch(0)
    np.testing.assert_array_equal(first.images[0], first.images[2])
    assert len(list(Loader(Shapes(31, 16), 4, True, repeats=3).epoch(0))) == 7  # whole batches


def test_every_pass_is_another_epoch():
    loader = Loader(Shapes(20, 8), 20, True)
    first, second = (next(iter(loader)).labels for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, next(loader.epoch(1)).labels)


def test_without_a_transform_images_are_taken_as_they_are():
    shapes = Shapes(5, 16)
    (batch,) = Loader(shapes, 5)
    np.testing.assert_array_equal(batch.images[2], normalise(shapes[2][0]))


def test_batches_are_made_while_others_are_used():
    class Slow(Shapes):
        begun = 0

        def __getitem__(self, index):
            Slow.begun += 1
            return super().__getitem__(index)

    loader = Loader(Slow(320, 8), 32, threads=2)
    batches = loader.epoch(0)
    next(batches)
    deadline = time.time() + 5
    while Slow.begun < 64 and time.time() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert 64 <= Slow.begun <= 128  # the next batch is ready, but not the whole epoch
    assert loader.waited > 0
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("minicait")]


def test_what_is_kept_in_memory_is_read_once(photos):
    train, _ = train_and_val(photos)
    kept = InMemory(train, partial(shrink, side=24))
    pixels, label = kept[3]
    assert min(pixels.shape[:2]) == 24 and pixels.shape[2] == 3 and label == train[3][1]
    assert kept[3][0] is pixels and kept.classes == train.classes and len(kept) == len(train)
    whole = InMemory(train)
    np.testing.assert_array_equal(whole[3][0], np.asarray(train[3][0].decode()))
    ways = [Loader(dataset, 8, True, 0, training(Augmentation(flip=0.5), 32)) for dataset in (train, whole, whole)]
    same(list(ways[0].epoch(0)), list(ways[1].epoch(0)))
    same(list(ways[1].epoch(0)), list(ways[2].epoch(0)))


@pytest.fixture
def damaged(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(10):
            photograph(24, 20, seed=i).save(tmp_path / name / f"{i}.jpg")
    for part in train_and_val(tmp_path, 0.3):
        part.samples[2][0].write_bytes(part.samples[2][0].read_bytes()[:500])
        part.samples[3][0].write_bytes(b"")
    return tmp_path


def test_a_damaged_image_is_an_error_with_its_path(damaged):
    for i, part in enumerate(train_and_val(damaged, 0.3)):
        with pytest.raises(BadImageError) as error:
            list(Loader(part, 2, i == 0, transform=evaluation(16)))
        assert str(part.samples[2][0]) in str(error.value) or str(part.samples[3][0]) in str(error.value)


def test_damaged_images_can_be_left_out(damaged):
    train, val = train_and_val(damaged, 0.3)
    seen = Loader(val, 2, transform=evaluation(16), skip_bad=True)
    assert sum(len(batch.labels) for batch in seen) == len(val) - 2 and set(seen.bad) == {2, 3}  # one batch is empty
    loader = Loader(train, 7, True, transform=training(ALL, 16), skip_bad=True)
    first = list(loader.epoch(0))
    assert [len(batch.labels) for batch in first] == [7, 7] and set(loader.bad) == {2, 3}
    assert "it is empty" in loader.bad[3]
    same(first, list(Loader(train, 7, True, transform=training(ALL, 16), skip_bad=True, threads=1).epoch(0)))
    for path, _ in train.samples:
        path.write_bytes(b"")
    with pytest.raises(BadImageError, match="none of the images can be read"):
        next(loader.epoch(0))


def test_batches_that_cannot_be_made():
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        Loader(Shapes(100, 8), 0)
    with pytest.raises(
        ValueError, match=r"^a batch of 101 cannot be made from 100 images: batch_size must be at most 100$"
    ):
        Loader(Shapes(100, 8), 101, training=True)
    with pytest.raises(ValueError, match=r"^a batch of 1 cannot be made from 0 images: the dataset is empty$"):
        Loader([], 1)


def test_training_crops_are_decoded_coarsely_and_look_the_same(tmp_path):
    """A crop from a JPEG decoded at half the size hardly differs from one decoded in full."""
    photo = photograph(500, 400)
    photo.save(tmp_path / "a.jpg", quality=95)
    photo.save(tmp_path / "a.png")
    how = training(Augmentation("resized", crop_scale=0.5), 32)
    for seed in range(5):
        fast, fine = (how(Picture(tmp_path / f"a.{kind}"), np.random.default_rng(seed)) for kind in ("jpg", "png"))
        assert np.abs(fast - fine).mean() < 0.1 < fine.std()


def test_what_augmentation_does(tmp_path):
    picture = Picture(np.asarray(photograph(50, 40)))
    rng = np.random.default_rng
    plain = training(Augmentation(), 32)(picture, rng(0))
    np.testing.assert_array_equal(plain, evaluation(32)(picture, None))
    mirrored = training(Augmentation(flip=1.0), 32)(picture, rng(0))
    np.testing.assert_array_equal(mirrored, plain[:, :, ::-1])
    moved = training(Augmentation("padded"), 32)(picture, rng(2))
    assert moved.shape == (3, 32, 32) and not np.array_equal(moved, plain)
    for how in (Augmentation(colour_jitter=0.4), Augmentation(rand_augment=9), Augmentation(erasing=1.0)):
        changed = [training(how, 32)(picture, rng(seed)) for seed in range(6)]
        assert any(not np.array_equal(image, plain) for image in changed)
    smaller = evaluation(32, 0.5)(picture, None)
    assert not np.array_equal(smaller, plain)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"crop": "random"}, "crop must be one of none, padded, resized"), ({"flip": 2}, r"flip must be in \[0, 1\]"),
     ({"rand_augment": 11}, r"rand_augment must be in \[0, 10\]"), ({"erasing": None}, "erasing must be")],
)  # fmt: skip
def test_wrong_augmentation(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Augmentation(**wrong)


def test_numbered_images_come_with_their_index():
    shapes = InMemory(Shapes(7, 16))
    for batch in Loader(shapes, 3, training=True, seed=1, repeats=2, numbered=True):
        assert set(batch.targets) == {"labels", "samples"}
        np.testing.assert_array_equal(batch.labels, [shapes[i][1] for i in batch.targets["samples"]])
        np.testing.assert_array_equal(batch.images, [normalise(shapes[i][0]) for i in batch.targets["samples"]])

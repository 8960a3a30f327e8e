"""Gradients of a batch: those of the whole batch, the same bits for any number of threads, errors that surface."""

import threading
import time
import tracemalloc
from itertools import count

import numpy as np
import pytest

import autograd as ag
from autograd import ops, random
from autograd.random import Stream
from minicait import create_model, nn
from minicait.machine import cpu_count
from minicait.models.cait import CaiT
from minicait.train import value_and_grad
from minicait.train.micro_batch import default_micro_batch

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5, "layer_scale": 0.5}
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((11, 3, 16, 16)).astype(np.float32)
LABELS = RNG.integers(0, 5, 11)


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith("minicait")]


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 11, 50])
@pytest.mark.parametrize("targets", [LABELS, np.eye(5, dtype=np.float32)[LABELS] * 0.9 + 0.02], ids=["labels", "soft"])
def test_equals_the_whole_batch(micro_batch, targets):
    model = CaiT(**SMALL)
    loss = ops.cross_entropy(model(IMAGES), targets)
    want = dict(zip([n for n, _ in model.named_parameters()], ag.grad(loss, model.parameters()), strict=True))
    got_loss, got = value_and_grad(model, ops.cross_entropy, IMAGES, targets, threads=2, micro_batch=micro_batch)
    assert got_loss == pytest.approx(loss.item(), rel=1e-6)
    assert list(got) == list(want)
    for name, g in got.items():
        np.testing.assert_allclose(g, want[name].numpy(), atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_the_same_bits_for_any_number_of_threads():
    model = CaiT(**SMALL, drop_path_rate=0.4)
    results = []
    for threads in (1, 2, 3, 8):
        with random.using(Stream(3, "train", step=7)):
            results.append(value_and_grad(model, ops.cross_entropy, IMAGES, LABELS, threads=threads, micro_batch=2))
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        for name, g in gradients.items():
            np.testing.assert_array_equal(g, results[0][1][name])
    with random.using(Stream(3, "train", step=8)):
        assert value_and_grad(model, ops.cross_entropy, IMAGES, LABELS)[0] != results[0][0]  # another step, other masks


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 16, 17, 23, 40])
def test_the_same_bits_for_any_number_of_pieces_and_threads(pieces):
    """Fewer pieces than leaves, as many, and more; and more threads than either."""
    model, images = CaiT(**SMALL), np.concatenate([IMAGES] * 4)[:pieces]
    labels = np.arange(pieces) % 5
    want = value_and_grad(model, ops.cross_entropy, images, labels, threads=1, micro_batch=1)
    for threads in (2, 3, 5, 19):
        loss, gradients = value_and_grad(model, ops.cross_entropy, images, labels, threads=threads, micro_batch=1)
        assert loss == want[0] and gradients.array.tobytes() == want[1].array.tobytes()


def test_gradients_of_one_call_are_not_touched_by_the_next():
    model = CaiT(**SMALL)
    _, first = value_and_grad(model, ops.cross_entropy, IMAGES, LABELS)
    before = {name: g.copy() for name, g in first.items()}
    value_and_grad(model, ops.cross_entropy, IMAGES * 2, LABELS)
    for name, g in first.items():
        np.testing.assert_array_equal(g, before[name])


def test_masks_belong_to_samples_however_a_batch_is_cut():
    model, losses = CaiT(**SMALL, drop_path_rate=0.4), []
    for micro_batch in (11, 4, 1):
        with random.using(Stream(3, "train", step=7)):
            losses.append(value_and_grad(model, ops.cross_entropy, IMAGES, LABELS, micro_batch=micro_batch)[0])
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-6)


def test_masks_change_from_call_to_call_when_nobody_chose_them():
    model = CaiT(**SMALL, drop_path_rate=0.4)
    assert value_and_grad(model, ops.cross_entropy, IMAGES, LABELS) != value_and_grad(
        model, ops.cross_entropy, IMAGES, LABELS
    )


def test_a_loss_that_couples_samples_is_refused():
    model = CaiT(**SMALL)

    def contrast(logits, targets):
        return (logits - logits.mean(0, keepdims=True)).abs().sum()

    with pytest.raises(ValueError, match=r"is not a mean over samples .*micro_batch=11") as error:
        value_and_grad(model, contrast, IMAGES, LABELS, threads=3, micro_batch=2)
    assert error.value.__traceback__ is not None  # which holds the frames, and they must not hold threads
    assert not own_threads()
    value_and_grad(model, contrast, IMAGES, LABELS, micro_batch=11)
    for micro_batch in (2, 11):
        with pytest.raises(ValueError, match=r"the loss must be one number, the mean over samples, got \(\d+,\)"):
            value_and_grad(model, one_for_each, IMAGES, LABELS, micro_batch=micro_batch)


@pytest.mark.parametrize("labels", [[2, 2, 0, 1, 2, 0], [0, 1, 2, 2, 2, 2]])
def test_a_loss_that_weighs_classes_or_mines_hard_samples_is_refused(labels):
    """Both look independent on some micro-batches."""

    def balanced(logits, targets):
        weights = 1 / np.bincount(targets)[targets]
        return (ops.cross_entropy(logits, targets, reduction="none") * weights.astype("float32")).sum()

    def hardest(logits, targets):
        losses = ops.cross_entropy(logits, targets, reduction="none")
        return losses[np.argsort(-losses.numpy())[: (len(targets) + 1) // 2]].mean()

    for loss in (balanced, hardest):
        with pytest.raises(ValueError, match="is not a mean over samples"):
            value_and_grad(CaiT(**SMALL), loss, IMAGES[:6], np.array(labels), micro_batch=2)


def one_for_each(logits, targets):
    return ops.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_in_a_worker_surfaces_with_its_own_traceback(threads):
    model, seen = CaiT(**SMALL), []

    def loss(logits, targets):
        seen.append(1)
        if len(seen) == 4:
            raise ZeroDivisionError("here it broke")
        return ops.cross_entropy(logits, targets)

    with pytest.raises(ZeroDivisionError, match="here it broke") as error:
        value_and_grad(model, loss, IMAGES, LABELS, threads=threads, micro_batch=1)
    assert any(entry.name == "loss" for entry in error.traceback)
    assert not own_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_ctrl_c_and_errors_end_the_threads_at_once(error):
    """The others finish the micro-batch they are in, and no more, however many there are."""
    model, calls = CaiT(**SMALL), count(1)

    def loss(logits, targets):
        if next(calls) == 9:
            raise error
        time.sleep(0.01)
        return ops.cross_entropy(logits, targets)

    images, labels = np.concatenate([IMAGES] * 6), np.concatenate([LABELS] * 6)
    with pytest.raises(error):
        value_and_grad(model, loss, images, labels, threads=3, micro_batch=1)
    assert not own_threads()
    assert next(calls) < 30  # of 66; a busy machine may be late to tell the others


@pytest.mark.parametrize(
    ("images", "targets", "options", "sentence"),
    [
        (IMAGES, LABELS[:3], {}, "11 images need as many labels, at least one, got 3"),
        (IMAGES[:0], LABELS[:0], {}, "0 images need as many labels"),
        (IMAGES, LABELS, {"micro_batch": -1}, "micro_batch must be at least 1, got -1"),
    ],
)
def test_bad_input(images, targets, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        value_and_grad(CaiT(**SMALL), ops.cross_entropy, images, targets, **options)


def test_memory_does_not_grow_with_the_batch():
    """Beyond the partial sums of the tree, of which there are few: one more whenever the number of leaves doubles."""
    model = CaiT(**SMALL | {"dim": 48})

    def peak(count):
        images = np.zeros((count, 3, 16, 16), np.float32)
        tracemalloc.start()
        try:
            value_and_grad(model, ops.cross_entropy, images, np.zeros(count, int), threads=1, micro_batch=2)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(4)
    few, many, more = peak(8), peak(128), peak(256)  # 4, 16 and 16 leaves
    assert more < 1.05 * many and many < few + 3.5 * 4 * model.parameter_count()


def test_the_size_of_a_piece_and_the_number_of_threads():
    deep = create_model("cait_xxs24_224")
    assert default_micro_batch(deep, 64) == 2  # by what it keeps for backward
    assert default_micro_batch(create_model("cait_xxs24_224", img_size=384), 64) == 1
    assert default_micro_batch(create_model("cait_tiny_32"), 64) == 16  # by its tokens
    assert default_micro_batch(nn.Linear(3, 3), 64) == 8  # of which nothing is known
    assert [default_micro_batch(deep, batch) for batch in (1, 2, 3, 4)] == [1, 1, 2, 2]  # two pieces, if there can be
    assert cpu_count() >= 1


def test_frozen_parameters_are_left_alone():
    model = CaiT(**SMALL)
    for p in model.patch_embed.parameters():
        p.requires_grad = False
    _, gradients = value_and_grad(model, ops.cross_entropy, IMAGES, LABELS)
    assert set(gradients) == {n for n, _ in model.named_parameters() if not n.startswith("patch_embed")}


def test_blocks_that_were_dropped_for_all_have_zero_gradients():
    """As in the reference, where the optimiser moves them on by their momentum."""
    model = CaiT(**SMALL, drop_path_rate=0.97)
    with random.using(Stream(0, "test")):
        _, gradients = value_and_grad(model, ops.cross_entropy, IMAGES[:2], LABELS[:2], micro_batch=1)
    assert list(gradients) == [name for name, _ in model.named_parameters()]
    assert not gradients["blocks.0.mlp.fc1.weight"].any() and gradients["head.weight"].any()


def test_a_model_without_anything_to_learn():
    model = CaiT(**SMALL)
    for p in model.parameters():
        p.requires_grad = False
    with pytest.raises(ValueError, match="none of the model's parameters requires grad"):
        value_and_grad(model, ops.cross_entropy, IMAGES, LABELS)

"""Evaluation, and the order of batches."""

import numpy as np
import pytest

from autograd import ops
from minicait.data import Shapes
from minicait.data.loader import normalise
from minicait.train import attention_inside, evaluate, predict
from minicait.train.evaluate import Guesses
from tests.train.helpers import loaders, small


def test_evaluation_counts():
    model = small()
    _, val = loaders()
    logits = predict(model, np.concatenate([b.images for b in val]), threads=3)
    labels = np.concatenate([b.labels for b in val])
    scores = evaluate(model, val)
    assert scores.top1 == (logits.argmax(1) == labels).mean()
    top5 = np.mean([label in np.argsort(-row)[:5] for row, label in zip(logits, labels, strict=True)])
    assert scores.top5 == top5
    assert scores.loss == pytest.approx(ops.cross_entropy(logits, labels).item(), rel=1e-6)


def test_guesses_tell_what_is_confused():
    guesses = Guesses()
    labels, classes = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 1, 1, 0])
    for part in (slice(4), slice(4, None)):
        logits = np.eye(3)[classes[part]] * np.arange(1, 7)[part, None]
        guesses.add(logits, labels[part])
    np.testing.assert_array_equal(guesses.confusion(3), [[1, 1, 0], [0, 1, 0], [1, 2, 0]])
    assert guesses.most_confused(2).tolist() == [[2, 1, 2], [0, 1, 1]]
    assert guesses.worst(3).tolist() == [5, 4, 3]  # the surest first
    assert Guesses().most_confused(5).shape == (0, 3) and Guesses().worst(5).shape == (0,)


def test_guesses_among_the_classes_of_the_data():
    model = small()
    _, val = loaders()
    known = np.array([7, 2, 4])  # in the order of the data
    batches = [(b.images, known[b.labels % 3]) for b in val]
    logits = predict(model, np.concatenate([images for images, _ in batches]))
    labels = np.concatenate([labels for _, labels in batches])
    scores = evaluate(model, batches, data_classes=known)
    assert scores.top1 == (logits.argmax(1) == labels).mean()
    others = np.setdiff1d(np.arange(logits.shape[1]), known)
    logits[:, others] = -np.inf
    assert scores.top1_of_data_classes == (logits.argmax(1) == labels).mean() > scores.top1
    assert evaluate(model, batches).top1_of_data_classes is None


def test_attention_inside_of_a_model_that_looks_everywhere_alike():
    model, shapes = small(), Shapes(30, 16)
    for block in model.blocks_token_only:
        block.attn.q.weight.data[...] = 0
    covered = np.mean([shapes.mask(i).mean() for i in range(30)])
    assert attention_inside(model, shapes) == pytest.approx(covered, rel=1e-5)


def test_loader_order():
    train, val = loaders()
    assert len(train) == 5 and len(val) == 3 and sum(len(b.labels) for b in val) == 20
    first, again, other = (list(train.epoch(n)) for n in (0, 0, 1))
    np.testing.assert_array_equal(first[2].images, again[2].images)
    np.testing.assert_array_equal(first[3].images, next(iter(train.epoch(0, 3))).images)
    assert not np.array_equal(first[0].images, other[0].images)
    image, label = Shapes(20, 16, seed=1)[0]
    np.testing.assert_array_equal(next(iter(val)).images[0], normalise(image))
    assert next(iter(val)).labels[0] == label
    with pytest.raises(ValueError, match="a batch of 100 cannot be made from 44 images"):
        loaders(100)

"""Grafit trained by the real CuPy: the losses, memory and predictions of the CPU, and one synchronisation in a step."""

import numpy as np
import pytest

from minicait.train import Recipe, Trainer, predict
from tests import hostcuda
from tests.models.small_models import SMALL_GRAFITS
from tests.train.helpers import some_batches

pytestmark = pytest.mark.hostcuda
RECIPE = Recipe(lr=1e-3, clip_norm=1.0, ema_decay=0.9, loss="neighbours", repeats=2, batch_size=8)


def batch():
    """Views, here equal, of four images."""
    images, labels = some_batches()[0]
    samples = np.repeat(np.arange(4), 2)
    return images[samples], {"labels": labels[samples] % 2, "samples": samples}


def trained(device, steps=3, **changes):
    model = SMALL_GRAFITS["grafit"](num_classes=2, **changes)
    model.remember(6)
    trainer = Trainer(model, RECIPE, device)
    return trainer, [trainer.step(*batch()) for _ in range(steps)]


def test_training_is_that_of_the_cpu():
    (here, losses), (there, others) = trained("cpu"), trained("cuda")
    np.testing.assert_allclose(others, losses, rtol=1e-4, atol=1e-5)
    assert there.model.memory.device.startswith("cuda")
    np.testing.assert_allclose(there.model.memory.numpy(), here.model.memory.numpy(), atol=1e-3)
    np.testing.assert_array_equal(there.model.memory_labels.numpy(), here.model.memory_labels.numpy())
    images = batch()[0]
    np.testing.assert_allclose(predict(there.model, images), predict(here.model, images), atol=0.05)


def test_a_step_synchronises_once():
    trainer, _ = trained("cuda", 1)
    with hostcuda.counting() as count:
        trainer.step(*batch())
    assert count.copies_to_host == 1

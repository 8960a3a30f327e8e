"""Every family trained by the real CuPy, in float32 and float16: the losses and predictions of the CPU."""

import numpy as np
import pytest

import minicait
from autograd import ops
from minicait.data import Picture, Shapes
from minicait.data.shapes import CLASSES
from minicait.train import Recipe, Trainer, predict, value_and_grad
from minicait.train.annotate import Annotator, annotate
from tests import hostcuda
from tests.models.small_models import SMALL_MODELS
from tests.train.helpers import some_batches

pytestmark = pytest.mark.hostcuda
FAMILY = pytest.mark.parametrize("name", [name for name in SMALL_MODELS if name != "cait"])


@FAMILY
def test_gradients_are_those_of_the_cpu(name):
    images, labels = some_batches()[0]
    model = SMALL_MODELS[name]()
    loss, want = value_and_grad(model, ops.cross_entropy, images, labels)
    there, got = value_and_grad(model.to("cuda"), ops.cross_entropy, images, labels)
    assert there == pytest.approx(loss, rel=1e-5)
    largest = max(np.abs(g).max() for g in want.values())
    for key, g in want.items():
        np.testing.assert_allclose(got[key].get(), g, rtol=1e-3, atol=1e-5 * largest, err_msg=key)


@FAMILY
@pytest.mark.parametrize("precision, tolerance", [("fp32", 2e-5), ("fp16", 5e-3)])
def test_training_is_that_of_the_cpu(name, precision, tolerance):
    """For float16 the CPU computes in float32, so that both are compared with the same numbers."""
    images, labels = some_batches()[0]
    results = []
    for device, own in (("cpu", "fp32"), ("cuda", precision)):
        mix_token = name == "lvvit"
        recipe = Recipe(lr=1e-3, clip_norm=1.0, ema_decay=0.9, precision=own, mix_token=mix_token)
        trainer = Trainer(SMALL_MODELS[name](drop_path_rate=0.2), recipe, device)
        results.append(([trainer.step(images, labels) for _ in range(3)], predict(trainer.model, images)))
        assert trainer.scaler.skipped == 0
    (here, logits), (there, others) = results
    np.testing.assert_allclose(there, here, rtol=tolerance)
    np.testing.assert_allclose(others, logits, atol=20 * tolerance * np.abs(logits).max())


@FAMILY
def test_a_step_synchronises_once(name):
    images, labels = some_batches()[0]
    trainer = Trainer(SMALL_MODELS[name](), Recipe(clip_norm=1.0), "cuda")
    trainer.step(images, labels)
    with hostcuda.counting() as count:
        trainer.step(images, labels)
    assert count.copies_to_host == 1


def test_half_precision_in_pieces():
    images, labels = some_batches()[0]
    steps = [(None, "fp32"), ("cuda", "fp16")]
    losses = [Trainer(SMALL_MODELS["lvvit"](), Recipe(), d, 1, 3, precision=p).step(images, labels) for d, p in steps]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)


def test_a_stem_on_the_whole_batch_and_a_trunk_in_pieces():
    images, labels = some_batches()[0]
    model = SMALL_MODELS["lvvit"]()
    _, whole = value_and_grad(model.to("cuda"), ops.cross_entropy, images, labels)
    whole = {key: g.get() for key, g in whole.items()}
    _, cut = value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=3)
    largest = max(np.abs(g).max() for g in whole.values())
    for key, g in whole.items():
        np.testing.assert_allclose(cut[key].get(), g, rtol=1e-3, atol=1e-5 * largest, err_msg=key)


@pytest.mark.parametrize(("name", "windows"), [("lvvit", {}), ("deit", {"cells": 3})])
def test_an_annotator(name, windows, tmp_path):
    minicait.save_weights(SMALL_MODELS[name](), tmp_path / "w.safetensors", CLASSES)
    picture = Picture(Shapes(1, 40)[0][0])
    maps = []
    for device in ("cpu", "cuda"):
        annotator = Annotator(str(tmp_path / "w.safetensors"), CLASSES, device=device, **windows)
        maps.append(annotator(annotator.transform(picture, None)[None]))
    assert maps[0].shape == (1, *annotator.cells, 10)
    np.testing.assert_allclose(*maps, atol=1e-5 * np.abs(maps[0]).max() + 1e-6)


@pytest.mark.parametrize(("name", "windows"), [("lvvit", {}), ("deit", {"cells": 3})])
def test_label_maps_by_workers(name, windows, tmp_path):
    """Processes cut out bytes, as for training, and the maps are those of the CPU."""
    minicait.save_weights(SMALL_MODELS[name](), tmp_path / "w.safetensors", CLASSES, mean=(0.5, 0.4, 0.3))
    found = []
    for device in ("cpu", "cuda"):
        annotator = Annotator(str(tmp_path / "w.safetensors"), CLASSES, device=device, threads=2, **windows)
        with hostcuda.counting() as count:
            found.append(annotate(Shapes(6, 24), annotator, tmp_path / device))
    assert count.kernels.count("images_of_pixels") == -(-6 // annotator.batch)
    for here, there in zip(*([maps.read(i) for i in range(6)] for maps in found), strict=True):
        np.testing.assert_allclose(there[0], here[0], atol=0.01)
        np.testing.assert_array_equal(there[1], here[1])


def test_a_step_with_token_labels_and_labels_of_crops():
    images, labels = some_batches()[0]
    rng = np.random.default_rng(0)
    soft = {"crop_labels": rng.dirichlet(np.ones(10), 8), "token_labels": rng.dirichlet(np.ones(10), (8, 16))}
    targets = {"labels": labels, **{key: value.astype(np.float32) for key, value in soft.items()}}
    recipe = Recipe(mix_token=True, relabel=0.3)
    here = Trainer(SMALL_MODELS["lvvit"](), recipe, "cpu").step(images, targets)
    with pytest.warns(UserWarning, match="without a CUDA graph, .* random numbers that the host draws"):
        there = Trainer(SMALL_MODELS["lvvit"](), recipe, "cuda").step(images, targets)
    assert there == pytest.approx(here, rel=1e-5)

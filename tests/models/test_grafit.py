"""Grafit beside numbers of an independent transcription of the thesis' equations, and its memory, files and trunks."""

import json

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import Tensor, ops
from autograd.random import Stream
from minicait import nn
from minicait.files.weights import load_weights
from minicait.models import Outputs
from minicait.models.config import check_fits
from minicait.models.deit import DeiT
from minicait.models.grafit import EPS, SIGMA, TRUNKS, Grafit, Head, first_views
from minicait.nn import normalised
from minicait.optim import EMA
from minicait.train.grafit import Neighbours, instance_loss, neighbour_loss
from tests.golden.recipe import FOLDER

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "depth": 2, "embedding": 6}
IMAGES = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
NAMES = {
    "fc1.weight": "w1",
    "fc1.bias": "b1",
    "norm.weight": "bn_w",
    "norm.bias": "bn_b",
    "fc2.weight": "w2",
    "fc2.bias": "b2",
}


def small(trunk="deit_mini_32", **changes):
    return Grafit(**{"num_classes": 3, "trunk": trunk, **SMALL, **changes})


@pytest.fixture(scope="module")
def z():
    with np.load(FOLDER / "family/grafit_losses.npz") as file:
        return dict(file)


def of_golden_memory(z, labels="knn_coarse"):
    model = small(memory=14).astype(np.float64)
    model.memory.data[...], model.memory_labels.data[...] = normalised(z["knn_memory"]).numpy(), z[labels]
    return model


def others(x):
    """For every view, the other ones (images, views, D) -> (images * views, views - 1, D)."""
    views = x.shape[1]
    return np.stack([np.delete(own, i, axis=0) for own in x for i in range(views)])


def close(got, want, tolerance=1e-12):
    got = got.numpy() if isinstance(got, Tensor) else np.asarray(got)
    return np.abs(got - want).max() <= tolerance * np.abs(want).max()


# ---- the equations


def test_the_instance_loss(z):
    """Eq. 2.1, and its gradient."""
    q = Tensor(z["inst_q"].reshape(12, 6), requires_grad=True)
    losses = instance_loss(q, others(z["inst_target"]))
    assert close(losses.numpy().reshape(4, 3).mean(1), z["inst_loss_per_image"])
    assert close(losses.mean(), z["inst_loss"])
    (gradient,) = ag.grad(losses.mean(), [q])
    assert close(gradient.numpy().reshape(4, 3, 6), z["inst_grad_q"])


@pytest.mark.parametrize(("sigma", "name"), [(SIGMA, "knn_loss"), (0.1, "knn_loss_sigma_0_1")])
def test_the_neighbour_loss(z, sigma, name):
    """Eqs. 2.2 and 2.3, and their gradient."""
    model, g = of_golden_memory(z), Tensor(z["knn_g"], requires_grad=True)
    index = z["knn_index"]
    neighbours = model.targets({"samples": index, "labels": z["knn_coarse"][index]})["related"]
    logits = ops.linear(normalised(g) / sigma, model.memory)
    losses = neighbour_loss(logits, neighbours)
    assert close(losses.mean(), z[name])
    if sigma == SIGMA:
        p = ops.softmax(ops.where(neighbours > 0, logits, -1e4))
        assert close(p, z["knn_p"]) and close(losses, z["knn_loss_per_image"])
        (gradient,) = ag.grad(losses.mean(), [g])
        assert close(gradient, z["knn_grad_g"])


@pytest.mark.parametrize(("weight", "name"), [(1.0, "total_loss"), (0.4, "total_loss_lambda_0_4")])
def test_the_total_loss_as_a_mean_over_samples(z, weight, name):
    """Eq. 2.4, also over micro-batches that separate the views of an image."""
    model, samples = of_golden_memory(z), np.repeat(z["knn_index"], 3)
    targets = model.targets({"samples": samples, "labels": z["knn_coarse"][samples]})
    targets["other_views"] = others(z["inst_target"])
    logits = ops.linear(normalised(np.repeat(z["knn_g"], 3, axis=0)) / SIGMA, model.memory)
    outputs = Outputs(logits, predicted=Tensor(z["inst_q"].reshape(12, 6)))
    objective = Neighbours(3, weight)
    assert objective.is_mean and close(objective(outputs, targets), z[name])

    def part(cut):
        own = Outputs(outputs.logits[cut], predicted=outputs.predicted[cut])
        return objective(own, {key: values[cut] for key, values in targets.items()}).item()

    assert close(np.mean([part(slice(i, i + 2)) for i in range(0, 12, 2)]), z[name])


def test_a_sample_without_a_neighbour_of_its_class_is_left_out():
    logits = Tensor(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), requires_grad=True)
    losses = neighbour_loss(logits, np.array([[1, 0, 1], [0, 0, 0], [2, 2, 0]], np.int8))
    assert losses.numpy().tolist() == [0, 0, 0]
    (gradient,) = ag.grad(losses.sum(), [logits])
    assert np.isfinite(gradient.numpy()).all() and not gradient.numpy()[:2].any()


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_heads(z, norm):
    """Projector, predictor and the target's projector, with the gradients of the sum of both losses."""
    heads = {}
    for name, sizes in (("proj", (5, 8, 6)), ("pred", (6, 8, 6)), ("proj_xi", (5, 8, 6))):
        heads[name] = Head(*sizes, Stream(0))
        if norm == "batch":  # BYOL's
            heads[name].norm = nn.BatchNorm(8, EPS)
        heads[name].astype(np.float64)
        heads[name].load_state_dict({k: z[f"weight:{name}.{v}"] for k, v in NAMES.items()}, strict=False)
    features = Tensor(z["features"].reshape(12, 5), requires_grad=True)
    projected, target = heads["proj"](features), heads["proj_xi"](z["features_xi"].reshape(12, 5)).numpy()
    predicted = heads["pred"](projected)
    for name, got in (("z", projected.numpy()), ("q", predicted.numpy()), ("target", target)):
        assert close(got.reshape(4, 3, 6), z[f"{norm}:{name}"]), name
    inst = instance_loss(predicted, others(target.reshape(4, 3, 6))).mean()
    model, index = of_golden_memory(z), z["knn_index"]
    targets = model.targets({"samples": index, "labels": z["knn_coarse"][index]})
    knn = neighbour_loss(ops.linear(normalised(projected[::3]) / SIGMA, model.memory), targets["related"]).mean()
    assert close(inst, z[f"{norm}:loss_inst"]) and close(knn, z[f"{norm}:loss_knn"])
    names = [(head, name) for head in ("proj", "pred") for name in NAMES]
    parameters = [dict(heads[head].named_parameters())[name] for head, name in names]
    gradients = ag.grad(inst + knn, [features, *parameters])
    errors = [abs(gradients[0].numpy().reshape(4, 3, 5) - z[f"{norm}:grad:features"]).max()]
    for (head, name), gradient in zip(names, gradients[1:], strict=True):
        errors.append(abs(gradient.numpy() - z[f"{norm}:grad:{head}.{NAMES[name]}"]).max())
    largest = max(abs(z[f"{norm}:grad:{head}.{NAMES[name]}"]).max() for head, name in names)
    print(f"\nheads with {norm} norm: gradients {max(errors) / largest:.1e}")
    assert max(errors) < 1e-12 * largest


def test_the_memory_moves_halfway_and_has_length_one(z):
    model = small(memory=14).astype(np.float64)
    model.memory.data[...], model.memory_labels.data[...] = z["knn_memory"], z["knn_coarse"]
    index = z["knn_index"]
    targets = {"samples": index, "labels": z["knn_coarse"][index]}
    model.memorise(targets, normalised(z["knn_g"]).numpy())
    untouched = np.setdiff1d(np.arange(14), index)
    assert close(model.memory.numpy()[index], z["memory_after_renormalised"][index])
    np.testing.assert_array_equal(model.memory.numpy()[untouched], z["knn_memory"][untouched])
    before = z["memory_after"][index]  # as the thesis writes it, without the new length
    assert close(model.memory.numpy()[index], before / np.linalg.norm(before, axis=1, keepdims=True))


def test_the_target_network_is_the_moving_average(z):
    class Five(nn.Module):
        def __init__(self):
            self.theta = nn.Parameter(z["ema_xi"])

    model = Five()
    ema = EMA(model, float(z["ema_tau"]))
    ema.steps, model.theta.data = 10**6, z["ema_theta"].copy()  # long after the first steps, which average less
    ema.update()
    assert close(ema.average["theta"], z["ema_xi_after"])


# ---- the model


def seen(model, count=8):
    """A model with images of three classes in its memory."""
    model.remember(count)
    rng = np.random.default_rng(1)
    features = normalised(rng.standard_normal((count, model.config.embedding)).astype(np.float32)).numpy()
    model.memorise({"samples": np.arange(count), "labels": np.arange(count) % 3}, features)
    return model


def test_logits_of_coarse_classes():
    """In evaluation, log sum exp over the memory of each class: the softmax is the sum of eq. 2.3."""
    model = seen(small(num_classes=4)).eval()
    outputs = model.outputs(IMAGES)
    cos = outputs.features.numpy() @ model.memory.numpy().T
    p = np.exp(cos / SIGMA) / np.exp(cos / SIGMA).sum(1, keepdims=True)
    want = np.stack([p[:, np.arange(8) % 3 == k].sum(1) for k in range(4)], axis=1)
    np.testing.assert_allclose(ops.softmax(outputs.logits).numpy(), want, atol=1e-5)
    assert (outputs.logits.numpy().argmin(1) == 3).all()  # a class that nobody has seen
    assert outputs.predicted is None and outputs.features.shape == (4, 6)
    np.testing.assert_allclose(np.linalg.norm(outputs.features.numpy(), axis=1), 1, rtol=1e-6)
    training = model.train().outputs(IMAGES)
    assert training.logits.shape == (4, 8) and training.predicted.shape == (4, 6)
    np.testing.assert_allclose(training.logits.numpy(), cos / SIGMA, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model(IMAGES).numpy(), outputs.logits.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(model.eval().embed(IMAGES).numpy(), outputs.features.numpy())


def test_gradients_of_the_logits_of_classes():
    model = seen(small(num_classes=4)).train()
    neighbours = Tensor(np.random.default_rng(3).standard_normal((2, 8)), requires_grad=True)
    ag.check_grads(lambda x: model.evaluated(Outputs(x)), neighbours)


def test_neighbours_of_a_batch():
    model = small(memory=6)
    model.memory_labels.data[...] = [0, 1, -1, 0, 2, 0]
    targets = {"samples": np.array([3, 3, 2, 2, 4, 4]), "labels": np.array([0, 0, 1, 1, 2, 2]), "more": np.zeros(6)}
    got = model.targets(targets)
    assert got["related"].dtype == np.int8 and got.keys() == {*targets, "related"}
    assert got["related"].tolist() == [
        [2, 1, 0, 0, 1, 2], [0] * 6,  # itself is not compared, nor is an image that was not seen; nor a second view
        [1, 2, 0, 1, 1, 1], [0] * 6,
        [1, 1, 0, 1, 0, 1], [0] * 6,
    ]  # fmt: skip
    assert first_views(np.array([3, 3, 2, 2, 4])).tolist() == [0, 2, 4] and not len(first_views(np.zeros(0, int)))


def test_the_first_view_of_an_image_is_remembered_as_it_is():
    model = small(memory=5)
    features = normalised(np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)).numpy()
    model.memorise({"samples": np.array([4, 4, 0, 0]), "labels": np.array([2, 2, 1, 1])}, features)
    np.testing.assert_allclose(model.memory.numpy()[[4, 0]], features[[0, 2]], rtol=1e-6)
    assert model.memory_labels.numpy().tolist() == [1, -1, -1, -1, 2] and not model.memory.numpy()[1:4].any()


@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        ({"labels": np.array([0, 1])}, "Grafit: targets must have samples; Loader.numbered=True. gives"),
        ({"labels": np.array([0, 1]), "samples": np.array([0, 9])}, r"no image 9 in a memory of 5; call remember"),
        ({"labels": np.array([0, 1]), "samples": np.array([-1, 0])}, r"in a memory of 5"),
        ({"labels": np.eye(2), "samples": np.array([0, 1])}, r"labels must be integers, .* got float64 \(2, 2\)"),
    ],
)
def test_targets_that_are_missing_or_wrong(targets, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(memory=5).targets(targets)


def test_an_image_that_comes_again_later_in_a_batch_has_one_first_view():
    assert first_views(np.array([9, 9, 1, 1, 5, 5, 9, 9])).tolist() == [0, 2, 4]


def test_refreshing_forgets_what_was_there():
    model = small(memory=4)
    seen(model, 4)
    vectors = normalised(np.random.default_rng(5).standard_normal((2, model.config.embedding))).numpy()
    model.refresh(np.array([3, 1]), np.array([2, 0]), vectors)
    assert model.memory_labels.numpy().tolist() == [-1, 0, -1, 2]
    np.testing.assert_allclose(model.memory.numpy()[[3, 1]], vectors, rtol=1e-6)
    assert not model.memory.numpy()[[0, 2]].any()


def test_the_memory_has_the_size_of_the_training_set():
    model = seen(small())
    kept = model.memory.numpy().copy()
    model.remember(8)
    np.testing.assert_array_equal(model.memory.numpy(), kept)
    model.remember(5)
    assert model.config.memory == 5 and model.memory.shape == (5, 6) and not model.memory.numpy().any()
    assert (model.memory_labels.numpy() == -1).all() and model.memory_labels.dtype.kind == "i"


# ---- trunks, configurations


def names_of_trunks():
    return [min(f.presets, key=lambda name: (f.presets[name].img_size, "multi" in name)) for f in TRUNKS]


@pytest.mark.parametrize("trunk", names_of_trunks())
def test_every_family_can_be_a_trunk(trunk):
    model = minicait.models.grafit.Grafit(5, trunk=trunk, embedding=10, memory=4).eval()
    images = np.random.default_rng(0).standard_normal((2, 3, *model.img_size)).astype(np.float32)
    assert model.parameter_count() == model.cost().parameters and model(images).shape == (2, 5)
    alone = minicait.create_model(trunk, 5).eval()
    features = alone.outputs(images).features.numpy()
    np.testing.assert_array_equal(model.backbone.outputs(images).features.numpy(), features)
    assert not any("head" in name for name, _ in model.named_parameters())
    assert model.config.prefix == alone.config.prefix and model.config.layers == alone.config.layers


def test_what_cannot_be_a_trunk():
    for name in ("patchconvnet_mini_multi_32", "grafit_deit_mini_32", "nothing"):
        with pytest.raises(
            ValueError, match=f"trunk must be the name of a model with one vector of features, got '{name}'"
        ):
            Grafit(trunk=name)
    with pytest.raises(ValueError, match="Grafit: projector must be one of mlp, fc, got 'deep'"):
        small(projector="deep")
    with pytest.raises(ValueError, match="Grafit: dim 13 does not divide into 3 heads"):
        small(dim=13)


def test_a_trunk_starts_as_the_model_alone():
    model, alone = small(seed=3), DeiT(3, 16, 4, 12, 2, 3, seed=3)
    for name, value in model.backbone.state_dict().items():
        np.testing.assert_array_equal(value, alone.state_dict()[name])


def test_nothing_couples_samples_and_a_linear_projector_is_one_layer():
    assert not any(m.couples_samples for _, m in small().named_modules())
    fc = small(projector="fc")
    assert type(fc.projector) is nn.Linear and fc.parameter_count() == fc.cost().parameters


def test_a_model_without_features_cannot_embed():
    multi = minicait.create_model("patchconvnet_mini_multi_32", 3).eval()
    with pytest.raises(ValueError, match=r"PatchConvNet \(.*a class token per class\) has no features to compare"):
        multi.embed(np.zeros((1, 3, 32, 32), np.float32))


# ---- files


def test_files_keep_the_memory(tmp_path):
    model = seen(small(num_classes=3))
    minicait.save_weights(model, tmp_path / "w.safetensors", ["a", "b", "c"])
    again, info = minicait.load_model(tmp_path / "w.safetensors")
    assert info.family == "grafit" and again.config == model.config
    np.testing.assert_array_equal(again(IMAGES).numpy(), model.eval()(IMAGES).numpy())
    other, info = minicait.load_model(tmp_path / "w.safetensors", classes=["a", "b"])  # another training set
    assert (other.memory_labels.numpy() == -1).all() and info.class_names == ["a", "b"]
    np.testing.assert_array_equal(other.projector.fc1.weight.numpy(), model.projector.fc1.weight.numpy())
    larger, _ = minicait.load_model(tmp_path / "w.safetensors", img_size=24)
    assert larger.backbone.pos_embed.shape == (1, 37, 12) and larger(np.zeros((1, 3, 24, 24), np.float32)).shape == (
        1,
        3,
    )
    with pytest.raises(ValueError, match=r"memory must have shape \(0, 6\), got \(8, 6\)"):
        load_weights(small(), tmp_path / "w.safetensors")


def test_an_empty_memory_is_written_and_read(tmp_path):
    minicait.save_weights(small(), tmp_path / "w.safetensors")
    again, _ = minicait.load_model(tmp_path / "w.safetensors")
    assert again.memory.shape == (0, 6) and np.isfinite(again(IMAGES).numpy()).all()


def test_a_file_may_not_claim_a_giant_memory(tmp_path):
    model = seen(small())
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    check_fits(model.config, shapes)
    with pytest.raises(ValueError, match=r"parameters beside 6,300,000,000 values in its memory, but there are only"):
        check_fits(model.config.changed(memory=9 * 10**8), shapes)
    with pytest.raises(ValueError, match="a forward pass of 16 patches would take too much memory"):
        check_fits(model.config.changed(num_classes=10**9), shapes)
    assert json.loads(json.dumps(model.config.to_json()))["memory"] == 8

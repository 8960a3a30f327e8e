"""Models that this package does not know train through its public names: a plain Module, and a Model with a Config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from autograd import ops
from autograd.random import Stream
from minicait import nn
from minicait.models import Config, Cost, Model, Outputs
from minicait.train import Recipe, Trainer, evaluate, predict, value_and_grad
from minicait.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from minicait.train.micro_batch import default_micro_batch
from tests.train.helpers import FULL, assert_same, loaders, some_batches, state


class Means(nn.Module):
    """Logits of the mean colours of an image: no patches, no positions, no configuration."""

    def __init__(self, seed=0):
        self.hidden = nn.Linear(3, 16, stream=Stream(seed, "means/hidden"))
        self.head = nn.Linear(16, 10, stream=Stream(seed, "means/head"))

    def forward(self, images):
        return self.head(ops.gelu(self.hidden(10 * ops.mean(images, (2, 3)))))


class Affine(nn.Module):
    """diag(alpha) x + beta, which ResMLP has in place of a norm."""

    def __init__(self, dim):
        self.alpha = nn.Parameter(np.ones(dim, np.float32))
        self.beta = nn.Parameter(np.zeros(dim, np.float32))

    def forward(self, x):
        return self.alpha * x + self.beta


class AlongTokens(nn.Module):
    """One linear layer along the patches, the same for every channel."""

    def __init__(self, patches, stream):
        self.linear = nn.Linear(patches, patches, stream=stream)

    def forward(self, x):
        return self.linear(x.transpose(0, 2, 1)).transpose(0, 2, 1)


class Block(nn.Module):
    def __init__(self, config, stream):
        self.norm1, self.attn = Affine(config.dim), AlongTokens(config.patches, stream.named("attn"))
        self.norm2, self.mlp = Affine(config.dim), nn.Mlp(config.dim, 4 * config.dim, stream.named("mlp"))
        self.gamma_1, self.gamma_2 = nn.LayerScale(config.dim, 0.1), nn.LayerScale(config.dim, 0.1)
        self.drop = nn.DropPath(config.drop_path_rate, f"{stream.purpose}/drop")

    def forward(self, x):
        x = nn.residual(x, self.attn, self.norm1, self.gamma_1, self.drop)
        return nn.residual(x, self.mlp, self.norm2, self.gamma_2, self.drop)


@dataclass(frozen=True)
class PerceptronConfig(Config):
    least: ClassVar[Mapping[str, int]] = {**Config.least, "depth": 1}

    def cost(self):
        n, d = self.patches, self.dim
        parameters = 3 * self.patch_size**2 * d + self.depth * (n * n + 8 * d * d) + d * self.num_classes
        return Cost(parameters, n * parameters, 4 * n * self.depth * 12 * d, 4 * n * 12 * d)


class Perceptron(Model):
    """Like ResMLP: patches, linear layers along tokens and along channels, the mean over patches, a head."""

    config_type = PerceptronConfig
    no_decay = frozenset({"start"})

    def __init__(self, num_classes=10, img_size=16, patch_size=4, dim=12, depth=2, drop_path_rate=0.0, seed=0):
        self.config = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth,
            drop_path_rate=drop_path_rate,
        )  # fmt: skip
        stream = Stream(seed, "perceptron")
        self.start = nn.Parameter(np.zeros((1, 1, dim), np.float32))
        self.patch_embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("patch_embed"))
        self.blocks = [Block(self.config, stream.named(f"blocks.{i}")) for i in range(depth)]
        self.norm = Affine(dim)
        self.head = nn.Linear(dim, num_classes, stream=stream.named("head"))

    def outputs(self, images):
        x = self.patch_embed(self.checked(images)) + self.start
        for block in self.blocks:
            x = block(x)
        features = self.norm(x).mean(1)
        return Outputs(self.head(features), features=features)


MODELS = pytest.mark.parametrize("make", [Means, Perceptron, lambda seed=0: Perceptron(drop_path_rate=0.3, seed=seed)],
                                 ids=["module", "model", "stochastic depth"])  # fmt: skip
RECIPE = FULL.changed(mixup=0.0, cutmix=0.0, epochs=2)  # mixing needs to know the number of classes


@MODELS
def test_it_learns_and_predicts(make):
    trainer = Trainer(make(), Recipe(lr=2e-2))
    images, labels = some_batches()[0]
    losses = [trainer.step(images, labels) for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]
    logits = predict(trainer.model, images)
    assert logits.shape == (8, 10) and trainer.model.training
    np.testing.assert_allclose(trainer.model.eval()(images).numpy(), logits, rtol=1e-5, atol=1e-6)
    assert evaluate(trainer.model, [(images, labels)]).top1 == (logits.argmax(1) == labels).mean()


@MODELS
def test_images_are_taken_in_the_dtype_of_the_model(make):
    images, labels = some_batches()[0]
    model, wide = make().eval(), make().eval().astype("float64")
    for part in (images, images[:1]):
        logits = predict(wide, part)
        assert logits.dtype == np.float64 and predict(model, part).dtype == np.float32
        np.testing.assert_allclose(logits, predict(model, part), rtol=1e-4, atol=1e-6)
    assert Trainer(wide, threads=1).step(images, labels) == pytest.approx(
        Trainer(model, threads=1).step(images, labels)
    )


@MODELS
def test_gradients_are_those_of_the_whole_batch(make):
    model, (images, labels) = make().eval(), some_batches()[0]
    loss = ops.cross_entropy(model(images), labels)
    loss.backward()
    for options in ({}, {"micro_batch": 3}, {"threads": 3, "micro_batch": 1}):
        got, gradients = value_and_grad(model, ops.cross_entropy, images, labels, **options)
        assert got == pytest.approx(loss.item(), rel=1e-6) and gradients.keys() == dict(model.named_parameters()).keys()
        for name, p in model.named_parameters():
            np.testing.assert_allclose(gradients[name], p.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@MODELS
def test_the_same_bits_on_threads_and_processes_and_from_a_checkpoint(make, tmp_path):
    whole = Trainer(make(), RECIPE, threads=1, micro_batch=2)

    def keep(loss):
        if whole.batches == 3:
            save_checkpoint(whole, tmp_path / "c.safetensors", {"note": 1})

    want = whole.fit(*loaders(), after_batch=keep)
    for threads, processes in ((3, False), (3, True)):
        other = Trainer(make(), RECIPE, threads=threads, micro_batch=2, processes=processes)
        assert other.fit(*loaders()) == want
        assert_same(state(other), state(whole))
    other = Trainer(make(seed=9), RECIPE, threads=2, micro_batch=2)
    assert load_checkpoint(other, tmp_path / "c.safetensors") == {"note": 1}
    assert other.fit(*loaders()) == want
    assert_same(state(other), state(whole))


def test_a_model_mixes_its_labels_and_a_module_says_what_is_missing():
    recipe = RECIPE.changed(mixup=0.8, epochs=1)
    assert len(Trainer(Perceptron(), recipe).fit(*loaders())) == 1
    with pytest.raises(ValueError, match="mixup and cutmix need a minicait Model, whose number of classes is known"):
        Trainer(Means(), recipe).fit(*loaders())


def test_the_size_of_a_micro_batch_follows_from_its_cost():
    assert [default_micro_batch(Perceptron(img_size=side), 200) for side in (16, 32, 64, 128)] == [64, 16, 4, 1]
    assert default_micro_batch(Means(), 200) == 8  # of which nothing is known


def test_what_a_model_knows_of_itself():
    model = Perceptron(img_size=(16, 24))
    assert (model.num_classes, model.img_size, model.grid, model.device) == (10, (16, 24), (4, 6), "cpu")
    assert Perceptron.from_config(PerceptronConfig.from_json(model.config.to_json())).config == model.config
    with pytest.raises(ValueError, match="Perceptron: depth must be at least 1, got 0"):
        Perceptron(depth=0)
    with pytest.raises(ValueError, match=r"Perceptron: this model takes images of shape \(B, 3, 16, 24\)"):
        Trainer(model).step(*some_batches()[0])
    assert {name for name, p in model.named_parameters() if p.ndim > 1 and name in model.no_decay} == {"start"}


def test_checkpoints_of_another_model_are_refused(tmp_path):
    save_checkpoint(Trainer(Perceptron(), RECIPE), tmp_path / "model.safetensors")
    save_checkpoint(Trainer(Means(), RECIPE), tmp_path / "module.safetensors")
    with pytest.raises(ValueError, match="its config differs in depth"):
        load_checkpoint(Trainer(Perceptron(depth=1), RECIPE), tmp_path / "model.safetensors")
    for trained, other in (("model", Means()), ("module", Perceptron())):
        with pytest.raises(ValueError, match="is of another run"):
            load_checkpoint(Trainer(other, RECIPE), tmp_path / f"{trained}.safetensors")
    for name in ("model", "module"):
        with pytest.raises(ValueError, match=f"{name}.safetensors is of a model that belongs to no family"):
            read_checkpoint(tmp_path / f"{name}.safetensors").model()


def test_the_same_arrays_of_another_module_are_still_another_run(tmp_path):
    class Wide(nn.Module):
        def __init__(self):
            self.hidden, self.head = nn.Linear(3, 20), nn.Linear(20, 10)

        def forward(self, images):
            return self.head(self.hidden(ops.mean(images, (2, 3))))

    save_checkpoint(Trainer(Means(), RECIPE), tmp_path / "c.safetensors")
    trainer = Trainer(Wide(), RECIPE)
    trainer.step(*some_batches()[0])  # the first of two that make an update
    before = state(trainer)
    with pytest.raises(ValueError, match="is of another run: its arrays have other names, shapes or types"):
        load_checkpoint(trainer, tmp_path / "c.safetensors")
    assert_same(state(trainer), before)


def test_weights_are_saved_and_loaded_by_name(tmp_path):
    model, other = Perceptron(), Perceptron(seed=3)
    other.load_state_dict(model.state_dict())
    assert_same(other.state_dict(), model.state_dict())

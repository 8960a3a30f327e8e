"""A model whose samples meet in its stem alone: the stem sees the whole batch, the rest runs in micro-batches."""

import numpy as np
import pytest

from autograd import ops, random
from autograd.random import Stream
from minicait import nn
from minicait.models.lvvit import LVViT
from minicait.nn.mix_token import in_box
from minicait.train import Recipe, Trainer, value_and_grad
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from minicait.train.coupling import coupled_modules
from minicait.train.gradients import Gradients
from minicait.train.objectives import CrossEntropy
from minicait.train.workers import can_fork
from tests.train.helpers import assert_same, loaders, some_batches, state

RECIPE = Recipe(
    epochs=2, batch_size=8, lr=1e-3, ema_decay=0.9, clip_norm=1.0, label_smoothing=0.1, mixup=0.8, mix_token=True
)


def lvvit(seed=0, **changes):
    sizes = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "stem_channels": 6}
    return LVViT(**sizes | {"drop_path_rate": 0.3} | changes, seed=seed)


def gradients(micro_batch, threads=1, processes=False):
    """Loss, gradients and buffers of one batch, with MixToken and stochastic depth."""
    model, (images, labels) = lvvit().train(), some_batches()[0]
    model.mix_token.enabled = True
    each = Gradients(model, threads, micro_batch, processes)
    with random.using(Stream(0, "test", step=3)):
        loss, flat = each(CrossEntropy(0.1), images, model.targets({"labels": labels}))
    arrays = {name: g.copy() for name, g in flat.items()}
    each.close()
    return float(loss), arrays, {name: b.numpy().copy() for name, b in model.named_buffers()}


def test_pieces_give_the_gradients_of_the_whole_batch():
    loss, whole, buffers = gradients(micro_batch=8)
    for micro_batch in (1, 3, 4):
        cut_loss, cut, cut_buffers = gradients(micro_batch)
        assert cut_loss == pytest.approx(loss, rel=1e-6)
        for name, g in whole.items():
            np.testing.assert_allclose(cut[name], g, rtol=1e-3, atol=1e-5 * np.abs(g).max() + 1e-8, err_msg=name)
        assert_same(cut_buffers, buffers)  # running statistics moved once, by those of the whole batch
    assert all(g.any() for g in whole.values())


def test_the_same_bits_on_any_number_of_workers():
    _, want, _ = gradients(2)
    for threads, processes in ((2, False), (4, False), (2, can_fork()), (3, can_fork())):
        _, got, _ = gradients(2, threads, processes)
        assert_same(got, want)


def test_a_run_on_threads_and_processes():
    results = []
    for threads, processes in ((1, False), (2, False), (2, can_fork())):
        trainer = Trainer(lvvit(), RECIPE, threads=threads, micro_batch=3, processes=processes)
        results.append((trainer.fit(*loaders()), state(trainer)))
    for epochs, arrays in results[1:]:
        assert epochs == results[0][0]
        assert_same(arrays, results[0][1])


def test_a_checkpoint_continues_to_the_bit(tmp_path):
    first, second = (Trainer(lvvit(seed), RECIPE, micro_batch=2) for seed in (0, 1))
    batches = some_batches(3)
    first.step(*batches[0])
    save_checkpoint(first, tmp_path / "c.safetensors")
    load_checkpoint(second, tmp_path / "c.safetensors")
    assert [first.step(*b) for b in batches] == [second.step(*b) for b in batches]
    assert_same(state(first), state(second))


def test_a_frozen_stem_gets_no_gradient():
    model = lvvit()
    for p in model.patch_embed.parameters():
        p.requires_grad = False
    images, labels = some_batches()[0]
    _, found = value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)
    assert not any(name.startswith("patch_embed") for name in found) and found["pos_embed"].any()


class Coupled(LVViT):
    """Batch statistics in the trunk, too."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.blocks[1].norm1 = nn.BatchNorm(self.config.dim)


def test_samples_that_meet_behind_the_stem_are_refused_by_name():
    model, (images, labels) = Coupled(**vars(lvvit().config)), some_batches()[0]
    assert coupled_modules(model) == ["BatchNorm (blocks.1.norm1)"]
    with pytest.raises(ValueError, match=r"BatchNorm \(blocks\.1\.norm1\) couples the samples of a batch"):
        value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)
    value_and_grad(model, ops.cross_entropy, images, labels)  # whole


def test_a_coupling_behind_the_stem_that_nobody_declared_is_found():
    model, (images, labels) = Coupled(**vars(lvvit().config)), some_batches()[0]
    model.blocks[1].norm1.couples_samples = False
    with pytest.raises(ValueError, match=r"BatchNorm \(blocks\.1\.norm1\) couples the samples of a batch"):
        value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)


def test_a_model_that_cannot_mix_tokens_says_so():
    from minicait.models.deit import DeiT

    with pytest.raises(ValueError, match="mix_token needs a model that mixes tokens, such as LV-ViT, got DeiT"):
        Trainer(DeiT(10, 16, 4, 12, 1, 3), Recipe(mix_token=True))


def test_half_precision_behind_the_stem():
    """The stem returns float16, and the check for coupled samples runs in full precision."""
    images, labels = some_batches()[0]
    losses = [
        Trainer(lvvit(), Recipe(precision=p), threads=1, micro_batch=3).step(images, labels) for p in ("fp32", "fp16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)


def test_a_teacher_cannot_see_what_is_mixed_inside():
    with pytest.raises(ValueError, match="mix_token mixes inside the model, where a teacher cannot see it"):
        Trainer(lvvit(), Recipe(mix_token=True, distillation="hard"), teacher=lambda images: images)


def test_a_recipe_without_mixing_does_not_mix():
    """Also if another trainer of the same model mixes."""
    model, (images, labels) = lvvit(), some_batches()[0]
    mixing, plain = Trainer(model, RECIPE, threads=1), Trainer(model, Recipe(lr=0.0), threads=1)
    mixing.step(images, labels)
    plain.step(images, labels)
    assert not model.mix_token.enabled


def test_the_gradient_is_that_of_the_logits_that_the_model_returns():
    model, (images, labels) = lvvit(drop_path_rate=0.0), some_batches()[0]
    want = ops.cross_entropy(model(images), labels)
    want.backward()
    loss, got = value_and_grad(model, ops.cross_entropy, images, labels, threads=1, micro_batch=3)
    assert loss == pytest.approx(want.item(), rel=1e-5)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(got[name], p.grad.numpy(), rtol=1e-3, atol=1e-6, err_msg=name)
    assert got["aux_head.weight"].any()


@pytest.mark.parametrize("kind", ["indices", "one-hot integers", "soft"])
def test_labels_of_tokens_that_are_given_are_mixed(kind):
    model, labels = lvvit().train(), np.array([3, 1, 4, 7])
    model.mix_token.enabled = True
    given = np.arange(4 * 16).reshape(4, 16) % 10
    own = {"indices": (labels, given), "one-hot integers": (np.eye(10, dtype=np.int64)[labels], given),
           "soft": (np.eye(10)[labels], np.eye(10)[given])}[kind]  # fmt: skip
    with random.using(Stream(0, "test", step=5)):
        inside = in_box(model.grid, model.mix_token.box(model.grid)).reshape(-1)
        mixed = model.targets({"labels": own[0], "token_labels": own[1]})
    np.testing.assert_allclose(mixed["labels"][0, [3, 7]], [1 - inside.mean(), inside.mean()], rtol=1e-6)
    want = np.where(inside, given[::-1], given)
    np.testing.assert_array_equal(mixed["token_labels"], want if kind != "soft" else np.eye(10)[want])


def test_labels_are_mixed_by_the_box_that_the_tokens_were():
    """Class 3 everywhere but in one image: tokens inside the box carry the label of the partner."""
    model, labels = lvvit().train(), np.array([3, 3, 3, 7])
    model.mix_token.enabled = True
    with random.using(Stream(0, "test", step=5)):
        row, column, last_row, last_column = model.mix_token.box(model.grid)
        mixed = model.targets({"labels": labels})
    area = (last_row - row) * (last_column - column)
    assert 0 < area < 16
    of_tokens = mixed["token_labels"].reshape(4, 4, 4)
    assert (of_tokens[0, row:last_row, column:last_column] == 7).all() and (of_tokens[0] == 7).sum() == area
    assert (of_tokens[3] == 3).sum() == area and (of_tokens[1] == 3).all()
    np.testing.assert_allclose(mixed["labels"][0, [3, 7]], [1 - area / 16, area / 16])
    assert model.eval().targets({"labels": labels})["labels"] is labels

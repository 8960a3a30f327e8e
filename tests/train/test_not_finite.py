"""Numbers that are not finite: training stops, names the offender, and nothing has moved."""

import numpy as np
import pytest

import autograd as ag
from autograd import ops
from minicait import nn
from minicait.train import NotFiniteError, Trainer
from tests.train.helpers import FULL, PLAIN, assert_same, loaders, overflowing, small, some_batches, spoiled, state


def test_what_is_not_finite_is_named():
    images, labels = some_batches()[0]
    trainer = Trainer(small(), PLAIN, threads=1)
    trainer.step(images, labels)
    before = state(trainer)
    with pytest.raises(NotFiniteError, match="stopped at batch 2: an image is not finite"):
        trainer.step(spoiled(images), labels)
    assert_same(state(trainer), before)
    assert trainer.batches == 1
    for name in ("patch_embed.proj.weight", "blocks.1.mlp.fc1.weight"):
        trainer = Trainer(small(), threads=1)
        dict(trainer.model.named_parameters())[name].data.flat[0] = np.nan
        with pytest.raises(NotFiniteError, match=f"the weights of {name} are not finite"):
            trainer.step(images, labels)
    trainer = Trainer(small(), threads=1)
    trainer.model.norm.weight.data = np.full(12, np.nan, np.float32)  # another array in its place
    with pytest.raises(NotFiniteError, match=r"the weights of norm\.weight are not finite"):
        trainer.step(images, labels)
    trainer = Trainer(small(), threads=1)
    trainer.model.head.weight.data[...] = 3e38
    named = r"(linear|cross_entropy|layer_norm): (forward|backward) produced"
    with pytest.raises(NotFiniteError, match=named), np.errstate(all="ignore"):
        trainer.step(images, labels)


class Large(ag.Function):
    """The identity, with a gradient of which float32 can hold one but not the sum of two."""

    @staticmethod
    def forward(ctx, x):
        return x.copy()

    @staticmethod
    def backward(ctx, g):
        return np.full_like(g, 2e38)


class OneWeight(nn.Module):
    def __init__(self):
        self.w = nn.Parameter(np.zeros((1, 10), np.float32))

    def forward(self, images):
        return Large.apply(ops.broadcast_to(self.w, (len(images), 10)))


def test_a_sum_that_overflows_is_told_from_an_operation_that_does():
    images, labels = some_batches()[0]
    named = "the sum of the gradients overflows; try a lower learning rate"
    with pytest.raises(NotFiniteError, match=named), np.errstate(over="ignore"):
        Trainer(OneWeight(), threads=1, micro_batch=1).step(images, labels)


@pytest.mark.parametrize("in_loss", [False, True], ids=["gradients", "loss"])
@pytest.mark.parametrize(("accumulate", "bad"), [(1, 2), (2, 2), (2, 3)])
def test_the_batch_is_named_and_nothing_of_its_update_remains(accumulate, bad, in_loss):
    recipe = PLAIN.changed(accumulate=accumulate)
    trainer, want = Trainer(small(), recipe, threads=1), Trainer(small(), recipe, threads=1)
    good, objective = trainer.objective, overflowing(trainer, bad, in_loss=in_loss).objective
    batches = some_batches(5)
    for batch in batches[:2]:
        want.step(*batch)
    with pytest.raises(NotFiniteError, match=f"stopped at batch {bad + 1}: "):
        for batch in batches:
            trainer.step(*batch)
    assert_same(state(trainer), state(want))
    assert trainer.batches == 2 and trainer.optimiser.steps == 2 // accumulate and trainer.objective is objective
    trainer.objective = good
    assert trainer.step(*batches[2]) == want.step(*batches[2])  # it can go on
    assert_same(state(trainer), state(want))


@pytest.mark.parametrize(("accumulate", "left", "epoch"), [(1, 7, 1), (2, 6, 1), (4, 4, 0)])
def test_fit_continues_after_a_batch_that_failed(accumulate, left, epoch):
    """From before its update, which may have begun in the epoch before. The result has the same bits as ever."""
    recipe = FULL.changed(accumulate=accumulate, epochs=2)
    trainer, want = Trainer(small(), recipe, threads=1), Trainer(small(), recipe, threads=1)
    epochs = want.fit(*loaders())
    good = trainer.objective
    with pytest.raises(NotFiniteError, match="stopped at batch 8: overflow: backward produced NaN"):
        overflowing(trainer, 7).fit(*loaders())
    assert trainer.batches == left
    trainer.objective = good
    got = trainer.fit(*loaders())
    assert [e.number for e in got] == [1, 2][epoch:] and got[-1] == epochs[-1] and trainer.batches == 10
    assert_same(state(trainer), state(want))

"""The trainer: steps, recipes, distillation, guards, checkpoints that continue to the bit."""

import json
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import minicait
from autograd import Tensor, ops
from autograd.random import Stream
from minicait.data import Shapes
from minicait.data.loader import Loader, normalise
from minicait.data.mixing import mix, soft_targets
from minicait.models.cait import CaiT
from minicait.optim import AdamW, learning_rate
from minicait.train import (
    RECIPES,
    NotFiniteError,
    Recipe,
    Trainer,
    attention_inside,
    evaluate,
    predict,
    recipe,
    value_and_grad,
)
from minicait.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from minicait.train.objectives import SoftDistillation, hard_distillation

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}
FULL = Recipe(
    epochs=3, batch_size=8, lr=1e-3, constant_lr=False, warmup_epochs=0.5, clip_norm=1.0, label_smoothing=0.1,
    mixup=0.8, cutmix=1.0, ema_decay=0.99, accumulate=2,
)  # fmt: skip


HEAD = b'"model/head.weight":{"dtype":"F32"'  # in the header of a checkpoint


def loaders(batch_size=8):
    return Loader(Shapes(44, 16), batch_size, training=True), Loader(Shapes(20, 16, seed=1), 8)


def state(trainer):
    parts = {f"model/{k}": v for k, v in trainer.model.state_dict().items()}
    parts |= {f"ema/{k}": v for k, v in (trainer.ema.average if trainer.ema else {}).items()}
    return {name: value.copy() for name, value in (parts | trainer.optimiser.square).items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_without_a_recipe_a_step_is_plain_adamw():
    model, other = CaiT(**SMALL), CaiT(**SMALL)
    images, labels = next(iter(loaders()[0]))
    trainer, optimiser = Trainer(model), AdamW(other, 5e-4, 0.05)
    for _ in range(3):
        loss = trainer.step(images, labels)
        want, gradients = value_and_grad(other, ops.cross_entropy, images, labels)
        optimiser.step(gradients)
        assert loss == want
    assert_same(model.state_dict(), other.state_dict())
    assert trainer.ema is None and model.training


def test_soft_targets_and_labels_are_the_same():
    images, labels = next(iter(loaders()[0]))
    losses = [Trainer(CaiT(**SMALL)).step(images, t) for t in (labels, soft_targets(labels, 10))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tensors_are_as_good_as_arrays():
    images, labels = next(iter(loaders()[0]))
    losses = {Trainer(CaiT(**SMALL)).step(x, y) for x, y in ((images, labels), (Tensor(images), Tensor(labels)))}
    assert len(losses) == 1
    with pytest.raises(IndexError, match=r"class indices must be in \[0, 9\], got -1 to"):
        Trainer(CaiT(**SMALL), Recipe(label_smoothing=0.1)).step(images, labels - labels.min() - 1)
    with pytest.raises(TypeError, match=r"train_loader must be a minicait\.data\.Loader"):
        Trainer(CaiT(**SMALL)).fit([(images, labels)], [(images, labels)])


def test_accumulated_batches_are_one_large_batch():
    images, labels = next(iter(loaders(16)[0]))
    whole, parts = Trainer(CaiT(**SMALL)), Trainer(CaiT(**SMALL), Recipe(accumulate=2))
    whole.step(images, labels)
    parts.step(images[:8], labels[:8])
    assert_same(parts.model.state_dict(), CaiT(**SMALL).state_dict())  # not yet
    parts.step(images[8:], labels[8:])
    for name, value in parts.model.state_dict().items():
        if not name.endswith(("proj_l.bias", "attn.k.bias")):  # whose gradient is rounding, which Adam blows up
            np.testing.assert_allclose(value, whole.model.state_dict()[name], atol=2e-4, err_msg=name)
    assert parts.optimiser.steps == 1 and parts.batches == 2


def test_it_learns_a_batch_by_heart():
    trainer = Trainer(CaiT(**SMALL), Recipe(lr=3e-3))
    images, labels = next(iter(loaders()[0]))
    losses = [trainer.step(images, labels) for _ in range(150)]
    assert losses[-1] < 0.1 < losses[0]
    assert (predict(trainer.model, images).argmax(1) == labels).all()
    assert trainer.model.training


def test_the_same_bits_for_any_number_of_threads():
    results = []
    for threads in (1, 2, 5):
        trainer = Trainer(CaiT(**SMALL, drop_path_rate=0.2), FULL, threads=threads, micro_batch=2)
        epochs = trainer.fit(*loaders())
        results.append((state(trainer), [e.loss for e in epochs], [e.scores for e in epochs]))
    for other in results[1:]:
        assert_same(other[0], results[0][0])
        assert other[1:] == results[0][1:]


def test_fit_reports_and_schedules():
    rates, trainer = [], Trainer(CaiT(**SMALL), FULL)
    epochs = trainer.fit(*loaders(), after_batch=lambda loss: rates.append(trainer.optimiser.lr))
    assert [e.number for e in epochs] == [1, 2, 3] and trainer.batches == 15 and trainer.optimiser.steps == 7
    assert epochs[-1].ema_scores is not None and 0 <= epochs[-1].scores.top1 <= epochs[-1].scores.top5 <= 1
    assert max(rates) <= 1e-3 and rates[-1] < rates[6]


@pytest.mark.parametrize("stop_after", [1, 5, 7, 10, 14])
def test_a_checkpoint_goes_on_to_the_bit(tmp_path, stop_after):
    whole = Trainer(CaiT(**SMALL, drop_path_rate=0.2), FULL)
    want = whole.fit(*loaders())

    class EnoughError(Exception): ...

    first, count = Trainer(CaiT(**SMALL, drop_path_rate=0.2), FULL), []

    def stop(loss):
        count.append(1)
        if len(count) == stop_after:
            save_checkpoint(first, tmp_path / "c.safetensors", {"note": "é"})
            raise EnoughError

    with pytest.raises(EnoughError) as error:
        first.fit(*loaders(), after_batch=stop)
    assert error.tb is not None  # which holds the frames, and they must not hold the loader's threads
    assert not [t for t in threading.enumerate() if t.name.startswith("minicait")]
    assert first.workers is None  # nor keep processes
    second = Trainer(CaiT(**SMALL, drop_path_rate=0.2, seed=9), FULL)
    assert load_checkpoint(second, tmp_path / "c.safetensors") == {"note": "é"}
    got = second.fit(*loaders())
    assert_same(state(second), state(whole))
    assert got == want[-len(got) :]


def test_checkpoints_that_do_not_fit_are_refused_and_change_nothing(tmp_path):
    path = tmp_path / "c.safetensors"
    trainer = Trainer(CaiT(**SMALL), FULL)
    trainer.step(*next(iter(loaders()[0])))
    save_checkpoint(trainer, path)
    before = state(trainer)
    with pytest.raises(ValueError, match="is of another run: its config differs in depth"):
        load_checkpoint(Trainer(CaiT(**{**SMALL, "depth": 1}), FULL), path)
    with pytest.raises(ValueError, match="is of another run: its recipe differs in epochs, lr"):
        load_checkpoint(Trainer(CaiT(**SMALL), FULL.changed(lr=1.0, epochs=9)), path)
    content = path.read_bytes()
    for broken, message in [
        (content[:-100], "is damaged"),
        (content[:-100] + bytes(100), "was altered or damaged"),
        (content.replace(b'\\"batches\\": 1', b'\\"batches\\": 7'), "was altered or damaged"),
        (content.replace(HEAD, HEAD.replace(b"F32", b"I32")), "was altered or damaged"),
        (content.replace(b'"shape":[10,12]', b'"shape":[12,10]'), "was altered or damaged"),
        (b"nonsense", "is damaged"),
    ]:
        assert broken != content
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=message):
            load_checkpoint(trainer, path)
    assert_same(state(trainer), before)
    minicait.save_weights(trainer.model, path)
    with pytest.raises(ValueError, match="is no checkpoint"):
        read_checkpoint(path)
    with pytest.raises(ValueError, match="there is no checkpoint"):
        read_checkpoint(Path(tmp_path / "none.safetensors"))


def test_what_is_not_finite_is_named():
    images, labels = next(iter(loaders()[0]))
    trainer = Trainer(CaiT(**SMALL))
    trainer.step(images, labels)
    before = state(trainer)
    broken = images.copy()
    broken[3, 0, 0, 0] = np.nan
    with pytest.raises(NotFiniteError, match="stopped at batch 2: an image is not finite"):
        trainer.step(broken, labels)
    assert_same(state(trainer), before)
    assert trainer.batches == 1
    for name in ("patch_embed.proj.weight", "blocks.1.mlp.fc1.weight"):
        trainer = Trainer(CaiT(**SMALL))
        dict(trainer.model.named_parameters())[name].data.flat[0] = np.nan
        with pytest.raises(NotFiniteError, match=f"the weights of {name} are not finite"):
            trainer.step(images, labels)
    trainer = Trainer(CaiT(**SMALL))
    trainer.model.head.weight.data[...] = 3e38
    named = r"(linear|cross_entropy|layer_norm): (forward|backward) made"
    with pytest.raises(NotFiniteError, match=named), np.errstate(all="ignore"):
        trainer.step(images, labels)


def by_hand(model, images, targets, lr, clip=None):
    """One step of AdamW, written here again."""
    optimiser = AdamW(model, lr, 0.05)
    loss, gradients = value_and_grad(model, ops.cross_entropy, images, targets)
    if clip is not None:
        length = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
        gradients = {name: g * np.float32(min(1, clip / (length + 1e-6))) for name, g in gradients.items()}
    optimiser.step(gradients)
    return loss


def test_every_part_of_a_recipe_does_its_work():
    """Smoothing, clipping, mixing and the average of the weights, each against a step that is written out."""
    train, val = loaders()
    images, labels = next(iter(train.epoch(0)))
    smooth = soft_targets(labels, 10, 0.3)
    mixed = mix(images, smooth, 0.8, 1.0, Stream(0, "mix", 0))
    for how, expected, clip in [
        (Recipe(label_smoothing=0.3), (images, smooth), None),
        (Recipe(label_smoothing=0.3, clip_norm=0.01), (images, smooth), 0.01),
        (Recipe(label_smoothing=0.3, mixup=0.8, cutmix=1.0), mixed, None),
    ]:
        trainer, other = Trainer(CaiT(**SMALL), how.changed(batch_size=8)), CaiT(**SMALL)
        losses = []

        class OneBatchError(Exception): ...

        def first(loss, losses=losses):
            losses.append(loss)
            raise OneBatchError

        with pytest.raises(OneBatchError):
            trainer.fit(train, val, after_batch=first)
        assert losses == [by_hand(other, *expected, 5e-4, clip)]
        for name, value in trainer.model.state_dict().items():
            if not name.endswith(("proj_l.bias", "attn.k.bias")):
                np.testing.assert_allclose(value, other.state_dict()[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_average_of_the_weights_is_what_is_evaluated():
    trainer = Trainer(CaiT(**SMALL), Recipe(epochs=1, batch_size=8, lr=1e-2, ema_decay=0.9))
    train, val = loaders()
    averages = {name: p.data.copy() for name, p in trainer.model.named_parameters()}
    count = []

    def follow(loss):
        count.append(1)
        decay = min(0.9, (1 + len(count)) / (10 + len(count)))
        for name, p in trainer.model.named_parameters():
            averages[name] = decay * averages[name] + (1 - decay) * p.data

    (epoch,) = trainer.fit(train, val, after_batch=follow)
    averaged = CaiT(**SMALL)
    averaged.load_state_dict(averages)
    want = evaluate(averaged, val)
    assert epoch.ema_scores.loss == pytest.approx(want.loss, rel=1e-4) and epoch.ema_scores.loss != epoch.scores.loss
    assert epoch.scores == evaluate(trainer.model, val)


def test_the_rate_of_every_step():
    rates, trainer = [], Trainer(CaiT(**SMALL), FULL.changed(accumulate=1))
    trainer.fit(*loaders(), after_batch=lambda loss: rates.append(trainer.optimiser.lr))
    assert rates == [
        learning_rate(step, 15, 2, 1e-3, 1e-6, 1e-5) for step in range(15)
    ]  # half an epoch is 2 of 5 steps
    short = Trainer(CaiT(**SMALL), FULL.changed(epochs=1, warmup_epochs=1, accumulate=1))
    short.fit(*loaders())
    assert short.optimiser.lr < 1e-3  # warming up took a fifth of the run, not all of it


def test_distillation():
    rng = np.random.default_rng(0)
    logits, teacher = rng.standard_normal((4, 10)), rng.standard_normal((4, 10))
    labels = soft_targets(np.array([1, 2, 3, 4]), 10).astype(np.float64)
    hard = ops.cross_entropy(logits, hard_distillation(labels, teacher, 0.3)).item()
    want = 0.7 * ops.cross_entropy(logits, labels).item() + 0.3 * ops.cross_entropy(logits, teacher.argmax(1)).item()
    assert hard == pytest.approx(want)

    def softmax(x):
        e = np.exp(x)
        return e / e.sum(-1, keepdims=True)

    p, q = softmax(teacher / 2), softmax(logits / 2)
    want = 0.6 * ops.cross_entropy(logits, labels).item() + 0.4 * 4 * (p * np.log(p / q)).sum(-1).mean()
    soft = SoftDistillation(0.4, 2.0)(ops.astype(logits, "float64"), np.concatenate([labels, teacher], axis=1))
    assert soft.item() == pytest.approx(want)

    teacher_model = CaiT(**SMALL, seed=5).eval()
    images, labels = next(iter(loaders()[0]))
    for kind in ("hard", "soft"):
        student = Trainer(
            CaiT(**SMALL), Recipe(distillation=kind, lr=3e-3, distillation_weight=1.0), teacher=teacher_model
        )
        losses = [student.step(images, labels) for _ in range(30)]
        assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="needs both a recipe that asks for it and a teacher"):
        Trainer(CaiT(**SMALL), Recipe(distillation="hard"))


def test_recipes():
    assert RECIPES["cait"].peak_lr == pytest.approx(1e-3) and RECIPES["cait"].epochs == 400
    assert RECIPES["finetune"].constant_lr and RECIPES["finetune"].lr == 5e-6
    assert recipe("small").changed(lr=None, epochs=3) == Recipe(**{**vars(RECIPES["small"]), "epochs": 3})
    assert Recipe.from_json(json.loads(json.dumps(asdict(RECIPES["imagenette"])))) == RECIPES["imagenette"]
    with pytest.raises(ValueError, match="unknown recipe 'smal': did you mean small"):
        recipe("smal")
    wrongs = [{"epochs": 0}, {"batch_size": 0}, {"distillation": "medium"}, {"lr": float("nan")}, {"lr": float("inf")},
              {"label_smoothing": 7}, {"mixup": -1}, {"ema_decay": 2}, {"clip_norm": -1}, {"seed": "a"}]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="recipe: "):
            Recipe(**wrong)


def test_evaluation_counts():
    model = CaiT(**SMALL)
    _, val = loaders()
    logits = predict(model, np.concatenate([b.images for b in val]), threads=3)
    labels = np.concatenate([b.labels for b in val])
    scores = evaluate(model, val)
    assert scores.top1 == (logits.argmax(1) == labels).mean()
    top5 = np.mean([label in np.argsort(-row)[:5] for row, label in zip(logits, labels, strict=True)])
    assert scores.top5 == top5
    assert scores.loss == pytest.approx(ops.cross_entropy(logits, labels).item(), rel=1e-6)


def test_attention_inside_of_a_model_that_looks_everywhere_alike():
    model, shapes = CaiT(**SMALL), Shapes(30, 16)
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

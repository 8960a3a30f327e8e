"""CaiT trained by the real CuPy: the same losses, scores and checkpoints as on the CPU."""

import json

import numpy as np
import pytest

from autograd import Tensor, ops
from minicait.bench import Job
from minicait.bench.worker import bench_step, timed
from minicait.cli import main
from minicait.data import Augmentation, Shapes, evaluation, training
from minicait.data.loader import Loader
from minicait.models.cait import CaiT
from minicait.nn.record import record
from minicait.optim import AdamW, Lamb
from minicait.train import NotFiniteError, Recipe, Trainer, evaluate, predict, value_and_grad
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from tests import hostcuda
from tests.hostcuda import runtime

pytestmark = pytest.mark.hostcuda
SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}
FULL = Recipe(
    epochs=1, batch_size=8, lr=1e-3, constant_lr=False, warmup_epochs=0.5, clip_norm=1.0, label_smoothing=0.1,
    mixup=0.8, cutmix=1.0, ema_decay=0.99, accumulate=2,
)  # fmt: skip


def loaders():
    return Loader(Shapes(24, 16), 8, training=True, threads=2), Loader(Shapes(8, 16, seed=1), 8, threads=2)


@pytest.fixture(scope="module")
def batch():
    return next(iter(loaders()[0]))


@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-5), ("tf32", 1e-5), ("fp16", 3e-3)])
def test_losses_are_those_of_the_cpu(batch, precision, tolerance):
    """For float16 the CPU is asked for it, too, and for float32."""

    def losses(device, precision=precision):
        recipe = Recipe(lr=3e-3, clip_norm=1.0, ema_decay=0.9, precision=precision)
        trainer = Trainer(CaiT(**SMALL, drop_path_rate=0.2), recipe, device)
        return [trainer.step(*batch) for _ in range(4)], trainer

    (here, cpu), (there, gpu), (exact, _) = losses("cpu"), losses("cuda"), losses("cpu", "fp32")
    np.testing.assert_allclose(there, here, rtol=tolerance)
    np.testing.assert_allclose(there, exact, rtol=tolerance)
    assert gpu.scaler.skipped == cpu.scaler.skipped == 0
    assert here[-1] < here[0] and gpu.device == "cuda:0" and cpu.device == "cpu"
    averages = [{k: np.asarray(Tensor(v).numpy()) for k, v in t.ema.average.items()} for t in (cpu, gpu)]
    # Adam takes full steps along gradients that are mere rounding: all of proj_l.bias, and in float16 a value or two
    apart = {name: np.abs(averages[1][name] - value) for name, value in averages[0].items()
             if not name.endswith("proj_l.bias")}  # fmt: skip
    close, steps = max(1e-4, tolerance), 4 * 3e-3
    assert sum(np.sum(a > close) for a in apart.values()) <= (2 if precision == "fp16" else 0)
    assert all(a.max() < steps for a in apart.values())


def test_gradients_are_those_of_the_cpu(batch):
    model = CaiT(**SMALL)
    loss, want = value_and_grad(model, ops.cross_entropy, *batch)
    there, got = value_and_grad(model.to("cuda"), ops.cross_entropy, *batch)
    assert there == pytest.approx(loss, rel=1e-6) and got.keys() == want.keys()
    for name, g in want.items():
        np.testing.assert_allclose(got[name].get(), g, rtol=1e-4, atol=1e-6 * max(1, np.abs(g).max()), err_msg=name)


def test_float16_is_close(batch):
    """Weights and all in float16, which is more than mixed precision will ask for."""
    model = CaiT(**SMALL)
    want, _ = value_and_grad(model, ops.cross_entropy, *batch)
    loss, gradients = value_and_grad(model.astype("float16").to("cuda"), ops.cross_entropy, *batch)
    assert loss == pytest.approx(want, rel=2e-3)
    assert all(g.dtype == np.float16 and np.isfinite(g.get()).all() for g in gradients.values())


@pytest.mark.parametrize("precision, optimiser", [("fp32", "adamw"), ("fp16", "adamw"), ("fp32", "lamb")])
def test_fit_evaluates_there_and_a_checkpoint_goes_on_to_the_bit(tmp_path, precision, optimiser):
    recipe = FULL.changed(optimiser=optimiser)

    def trainer(seed=0):
        return Trainer(CaiT(**SMALL, drop_path_rate=0.2, seed=seed), recipe, "cuda", precision=precision)

    class EnoughError(Exception): ...

    def stop(loss):
        save_checkpoint(first, tmp_path / "c.safetensors")
        raise EnoughError

    whole, first, second = trainer(), trainer(), trainer(seed=9)
    (want,) = whole.fit(*loaders())
    assert want.scores.top5 > 0 and want.ema_scores is not None
    with pytest.raises(EnoughError):
        first.fit(*loaders(), after_batch=stop)
    load_checkpoint(second, tmp_path / "c.safetensors")
    (got,) = second.fit(*loaders())
    assert got == want
    for name, value in whole.model.state_dict().items():
        np.testing.assert_array_equal(second.model.state_dict()[name], value, err_msg=name)


def test_a_model_moves_and_looks_the_same(batch, cp):
    images, labels = batch
    model, other = CaiT(**SMALL), CaiT(**SMALL, seed=1).to("cuda")
    want = predict(model, images)
    state = {name: value.copy() for name, value in model.state_dict().items()}
    other.load_state_dict(state)
    assert all(isinstance(value, np.ndarray) for value in other.state_dict().values())
    np.testing.assert_allclose(predict(other, images), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(other.eval()(cp.asarray(images)).numpy(), want, rtol=1e-4, atol=1e-6)
    scores = [evaluate(m, [(images, labels)]) for m in (model, other)]
    assert scores[0][:2] == scores[1][:2] and scores[0].loss == pytest.approx(scores[1].loss, rel=1e-5)
    with record(model) as here, record(other) as there:
        model(images), other(images)
    for name, maps in here.attention.items():
        np.testing.assert_allclose(there.attention[name].after, maps.after, rtol=1e-4, atol=1e-6)
    for name, value in other.to("cpu").state_dict().items():
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_an_optimiser_by_hand(batch, kind):
    """Along every .grad, each an array by itself."""
    images, labels = batch
    results = []
    for device in ("cpu", "cuda"):
        model = CaiT(**SMALL).to(device)
        optimiser = kind(model, 1e-3)
        for _ in range(2):
            optimiser.zero_grad()
            ops.cross_entropy(model(images), labels).backward()
            optimiser.step()
        results.append(model.eval()(images).numpy())
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision, drop, launches, kinds", [
    ("fp32", 0.0, 39, {("float32", "float32", "32F")}),
    ("fp32", 0.4, 47, {("float32", "float32", "32F")}),
    ("tf32", 0.0, 39, {("float32", "float32", "32F_FAST_TF32")}),
    ("fp16", 0.0, 41, {("float16", "float16", "32F"), ("float16", "float32", "32F")}),
])  # fmt: skip
def test_what_a_step_asks_of_the_gpu(batch, precision, drop, launches, kinds):
    """Budgets, so that a step that grows or synchronises more often does not go unseen. Change them, and the figures in
    the README and the docs, when it asks for less.
    """

    def step_of(depth):
        recipe = Recipe(clip_norm=1.0, ema_decay=0.9, precision=precision)
        trainer = Trainer(CaiT(**SMALL | {"depth": depth}, drop_path_rate=drop), recipe, "cuda", graph=False)
        trainer.step(*batch)
        with hostcuda.counting() as count:
            trainer.step(*batch)
        return count

    one, two = step_of(1), step_of(2)
    products = len(two.gemms) - len(one.gemms)
    print(f"\n{precision}, stochastic depth {drop}: a block takes {two.launches - one.launches} launches and")
    print(f"{products} calls of cuBLAS, forward and backward; a step takes", end=" ")
    print(f"{two.copies_to_device} copies to the GPU and {two.copies_to_host} to the host, which synchronise")
    assert two.bytes_to_device[:2] == [batch[0].nbytes, batch[1].nbytes]
    # and where the gradients are, for `gather`; the samples that all blocks keep
    assert two.copies_to_device == (3 if drop == 0 else 4)
    assert two.copies_to_host == 1 and two.bytes_to_host[0] <= 8 * 257  # the norm in parts, and the loss
    assert two.synchronisations == 1  # to read them
    last = [name.split("__")[0] for name in two.kernels[two.kernels.index("squares") :]]
    assert last[0] == "squares" and last[-3:] == ["cupy_multiply", "adamw", "move_average"]
    before = two.kernels[two.kernels.index("squares") - 1]
    assert precision != "fp16" or before.startswith("cupy_multiply")  # the loss scale
    assert two.launches - one.launches == launches  # of a block, forward and backward
    # three for each of the four linear layers, and 2 of all heads in forward and 5 in backward
    assert products == 3 * 4 + 7
    assert {g.function for g in two.gemms} == {"gemmEx", "gemmStridedBatchedEx"}
    assert {(g.inputs, g.output, g.compute) for g in two.gemms} == kinds


def test_losses_by_lamb_are_those_of_the_cpu(batch):
    """And a step launches two kernels for it, and synchronises once."""
    runs = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(CaiT(**SMALL), Recipe(optimiser="lamb", lr=1e-2, clip_norm=1.0, ema_decay=0.9), device)
        losses = [trainer.step(*batch) for _ in range(3)]
        with hostcuda.counting() as count:
            losses.append(trainer.step(*batch))
        runs.append(losses)
    np.testing.assert_allclose(*runs, rtol=1e-5)
    assert runs[0][-1] < runs[0][0]
    last = count.kernels[count.kernels.index("squares") :]
    assert last[0] == "squares" and [name.split("__")[0] for name in last[-3:]] == [
        "lamb_direction",
        "lamb_move",
        "move_average",
    ]
    assert (count.copies_to_device, count.copies_to_host, count.synchronisations) == (3, 1, 1)
    assert "cupy_multiply" not in last  # no pass to clip


@pytest.mark.parametrize("how, micro_batch", [
    (FULL, None), (FULL.changed(precision="fp16", accumulate=1), None), (FULL.changed(accumulate=1), 4),
], ids=["accumulating", "fp16", "in pieces"])  # fmt: skip
def test_what_fit_asks_of_the_gpu(how, micro_batch):
    trainer, counts = Trainer(CaiT(**SMALL), how, "cuda", micro_batch=micro_batch), []
    trainer.step(*trainer.targets.mixed(next(iter(loaders()[0])), 0))  # looks for coupled samples, or makes the graph
    trainer.batches, trainer.accumulated = 0, None

    class Counted(type(trainer)):
        def step(self, *batch):
            with hostcuda.counting() as count:
                loss = super().step(*batch)
            counts.append(count)
            return loss

    trainer.__class__ = Counted
    losses, pieces = [], 1 if micro_batch is None else 2
    with hostcuda.counting() as whole:
        (epoch,) = trainer.fit(*loaders(), after_batch=losses.append)
    sent = [call[3] for call in whole.calls if call[0] == "memcpyAsync" and call[4] == runtime.HOST_TO_DEVICE]
    images = 8 * (16 * 16 * 3 + 16)  # a byte for each value, and a box for each image
    assert sent.count(images) == 3 + 2  # three batches for training, and one that is evaluated twice
    assert all(isinstance(loss, float) for loss in losses) and epoch.loss == pytest.approx(np.mean(losses))
    assert [count.copies_to_host for count in counts] == [1] * 3  # the loss and the norm
    assert [count.synchronisations for count in counts] == [1] * 3  # to read them
    assert [count.copies_to_device for count in counts] == [1 + pieces] * 3  # targets, where gradients are
    ours = ("squares", "adamw", "move_average")
    launched = [[name for name in count.kernels if name.startswith(ours)] for count in counts]
    assert launched == ([list(ours)] * 3 if how.accumulate == 1 else [["squares"], list(ours), ["squares"]])


@pytest.mark.parametrize("mixed", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
def test_fit_with_worker_processes_has_the_losses_of_the_cpu(mixed):
    """In the middle of an epoch, too, where a checkpoint may leave off."""
    recipe = Recipe(epochs=2, batch_size=8, lr=1e-3, ema_decay=0.9, **mixed)
    augmented = training(Augmentation("padded", flip=0.5, rand_augment=9), 16)

    class EnoughError(Exception): ...

    def fit(device):
        losses, trainer = [], Trainer(CaiT(**SMALL), recipe, device)
        loaders = (
            Loader(Shapes(40, 16), 8, True, 0, augmented, threads=2),
            Loader(Shapes(20, 16, seed=1), 8, transform=evaluation(16), threads=2),
        )

        def after(loss):
            losses.append(loss)
            if len(losses) == 3:
                raise EnoughError

        with pytest.raises(EnoughError):
            trainer.fit(*loaders, after_batch=after)
        return trainer.fit(*loaders, after_batch=losses.append), losses

    (here, want), (there, got) = fit("cpu"), fit("cuda")
    assert len(got) == 10
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose([e.scores.loss for e in there], [e.scores.loss for e in here], rtol=1e-4)
    np.testing.assert_allclose([e.ema_scores.loss for e in there], [e.ema_scores.loss for e in here], rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_is_not_finite_moves_nothing_there(precision, batch):
    """Without float16 it is an error that names the batch; with it, the step is skipped."""
    recipe = Recipe(epochs=1, batch_size=8, lr=1e-3, clip_norm=1.0, ema_decay=0.9, precision=precision)
    trainer, other = (Trainer(CaiT(**SMALL), recipe, "cuda") for _ in range(2))
    images, labels = batch
    for t in (trainer, other):
        t.step(images, labels)
    broken = images * np.float32("nan")
    if precision == "fp32":
        with pytest.raises(NotFiniteError, match="training stopped at batch 2: an image is not finite"):
            trainer.step(broken, labels)
        assert trainer.batches == 1 and trainer.optimiser.steps == 1
    else:
        assert np.isnan(trainer.step(broken, labels))
        assert (trainer.optimiser.steps, trainer.scaler.skipped, trainer.scaler.scale) == (1, 1, 2.0**15)
        other.scaler.scale = 2.0**15
    assert trainer.step(images, labels) == other.step(images, labels)
    for kept in ("mean", "square"):
        np.testing.assert_array_equal(*(getattr(t.optimiser, kept).array.get() for t in (trainer, other)))
    np.testing.assert_array_equal(*(t.ema.average.array.get() for t in (trainer, other)))
    for name, value in other.model.state_dict().items():
        np.testing.assert_array_equal(trainer.model.state_dict()[name], value, err_msg=name)


def test_a_class_that_there_is_not_is_noticed(batch, cp):
    images, labels = batch
    wrong = labels.copy()
    wrong[3] = 10
    trainer = Trainer(CaiT(**SMALL), Recipe(), "cuda")
    with pytest.raises(IndexError, match=r"class indices must be in \[0, 9\], got \d to 10"):
        trainer.step(images, wrong)
    with pytest.raises(NotFiniteError, match="training stopped at batch 1"):  # where nobody looks at them before
        trainer.step(images, cp.asarray(wrong))


def test_float16_learns_where_layer_scale_is_small(batch):
    """At 1e-5, gradients inside the branches are nothing to float16 at first. LayerScale's own are not: it grows."""
    small = SMALL | {"layer_scale": 1e-5}
    runs = {}
    for precision in ("fp32", "fp16"):
        trainer = Trainer(CaiT(**small), Recipe(lr=3e-3, precision=precision), "cuda")
        runs[precision] = [trainer.step(*batch) for _ in range(12)], trainer
    (exact, _), (rounded, trainer) = runs["fp32"], runs["fp16"]
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
    assert exact[-1] < 0.9 * exact[0] and trainer.scaler.skipped == 0
    start = CaiT(**small).state_dict()
    for name in ("blocks.0.gamma_1", "blocks.0.attn.qkv.weight", "blocks.1.mlp.fc1.weight"):
        assert not np.array_equal(trainer.model.state_dict()[name], start[name]), name


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_teacher_there_needs_no_further_synchronisation(batch, kind):
    losses = []
    for device in ("cpu", "cuda"):
        teacher = CaiT(**SMALL, seed=5).eval().to(device)
        trainer = Trainer(CaiT(**SMALL), Recipe(distillation=kind), device, teacher=teacher)
        losses.append(trainer.step(*batch))  # makes the graph
        with hostcuda.counting() as count:
            trainer.step(*batch)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and count.copies_to_host == 1  # the loss and the norm


def test_the_command_line_trains_evaluates_and_predicts_there(tmp_path, capsys):
    data = ["--img-size", "16", "--val-images", "8"]
    small = ["--patch-size", "8", "--train-images", "16", "--epochs", "1", "--batch-size", "8"]
    assert main(["train", "--device", "cuda", "--precision", "fp16", "--out", str(tmp_path), *data, *small]) == 0
    text = capsys.readouterr().out
    assert "device: CuPy on cuda; the GPU works" in text and "precision: fp16, matrix products in float16" in text
    (run,) = tmp_path.iterdir()
    weights = ["--weights", str(run / "weights" / "best.safetensors"), "--device"]

    def said(command, *rest):
        assert main([command, *rest]) == 0
        return capsys.readouterr().out

    there, here = (json.loads(said("eval", *weights, device, *data, "--json")) for device in ("cuda", "cpu"))
    assert there["top1"] == here["top1"] and there["loss"] == pytest.approx(here["loss"], rel=1e-5)
    there, here = (said("predict", *weights, device, str(run / "example.png")) for device in ("cuda", "cpu"))
    assert there == here


@pytest.mark.parametrize("work", ["train", "predict"])
def test_what_is_measured_waits_for_the_gpu(work):
    """Several steps on the clock: after the last there is a synchronisation, and no image comes from the host."""
    step = bench_step(CaiT(**SMALL | {"depth": 1}).to("cuda"), 2, work, threads=1)
    step()
    with hostcuda.counting() as one:
        step()
    with hostcuda.counting() as three:
        assert timed(step, "minicait", Job("cait_tiny_32", 2, work, 1, device="cuda", steps=3)) > 0
    assert three.synchronisations == 3 * one.synchronisations + 1 and three.launches == 3 * one.launches
    assert all(size < 3 * 16 * 16 * 4 for size in three.bytes_to_device)

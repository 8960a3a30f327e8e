"""CUDA graphs: a captured step computes what the step computes, and whatever a graph cannot hold is refused."""

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, modes, ops, random
from autograd.backend import to_device
from autograd.graph import Graph
from autograd.modes import CaptureError
from minicait.models.cait import CaiT
from minicait.models.deit import DeiT
from minicait.models.lvvit import LVViT
from minicait.models.patchconvnet import PatchConvNet
from minicait.models.resmlp import ResMLP
from minicait.optim.parameters import flat_parameters
from minicait.train import Recipe, Trainer
from tests import hostcuda
from tests.hostcuda.test_training import SMALL

pytestmark = pytest.mark.hostcuda
RNG = np.random.default_rng(0)
MODELS = {
    "CaiT": lambda rate: CaiT(**SMALL, drop_path_rate=rate),
    "DeiT": lambda rate: DeiT(num_classes=5, img_size=16, patch_size=8, dim=16, depth=2, heads=2, drop_path_rate=rate),
    "ResMLP": lambda rate: ResMLP(num_classes=5, img_size=16, patch_size=8, dim=16, depth=2, drop_path_rate=rate),
}  # fmt: skip


def batches(count, size=4, side=None):
    side = side or SMALL["img_size"]
    return [(RNG.standard_normal((size, 3, side, side)).astype("float32"), RNG.integers(0, 3, size))
            for _ in range(count)]  # fmt: skip


def trained(model, data, precision="fp32", graph=True, **recipe):
    """Weights and losses after training on the GPU."""
    trainer = Trainer(model, Recipe(precision=precision, lr=1e-2, **recipe), "cuda", graph=graph)
    losses = [trainer.step(*batch) for batch in data]
    return flat_parameters(model).array.get(), losses, trainer


def test_a_graph_computes_anew_and_costs_one_launch(cp):
    x, w = cp.ones((3, 4), "float32"), Tensor(cp.full((4, 4), 2.0, "float32"), requires_grad=True)

    def work():
        y = (ops.gelu(x @ w) * to_device(np.arange(4, dtype="float32"), "cuda")).sum()
        (gradient,) = ag.grad(y, w)
        return y.data, gradient.data

    graph = Graph(work, "cuda")
    for value in (1.0, 3.0, -2.0):
        x[...] = value
        with hostcuda.counting() as count:
            graph.launch()
        assert (count.graph_launches, count.launches, len(count.gemms), count.allocations) == (1, 0, 0, [])
        for got, want in zip(graph.result, work(), strict=True):
            np.testing.assert_array_equal(got.get(), want.get())


@pytest.mark.parametrize("wrong, message", [
    (lambda x: random.Stream().uniform((2,)), "random numbers that the host draws"),
    (lambda x: random.Stream().generator(), "random numbers that the host draws"),
    (lambda x: Tensor(x).numpy(), "a copy to the host"),
    (lambda x: x.sum().item(), "D2H transfers are disallowed"),  # in the words of CuPy
    (lambda x: x @ x, "cuBLAS API during stream capture"),  # CuPy's own product
])  # fmt: skip
def test_what_a_graph_cannot_hold(cp, wrong, message):
    x = cp.ones((2, 2), "float32")
    with pytest.raises((CaptureError, NotImplementedError, RuntimeError), match=message):
        Graph(lambda: wrong(x), "cuda")
    assert float(x.sum()) == 4 and modes.current().capture is None  # the stream is back


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_by_a_graph_has_the_same_bits(name, precision):
    (weights, losses, trainer), (own, want, _) = (
        trained(MODELS[name](0.0), DATA, precision, graph) for graph in (True, False)
    )
    assert trainer.gradients.graph.launches == len(DATA) and not trainer.gradients.graph.refused
    np.testing.assert_array_equal(weights, own)
    assert losses == want


DATA = batches(4)


@pytest.mark.parametrize("name", MODELS)
def test_stochastic_depth_drops_the_same_samples(name):
    (weights, losses, trainer), (own, want, _) = (
        trained(MODELS[name](0.1), batches_of(24), "fp32", graph) for graph in (True, False)
    )
    assert trainer.gradients.graph.launches == 3
    np.testing.assert_allclose(weights, own, atol=2e-3)  # AdamW divides by the root of tiny squares
    np.testing.assert_allclose(losses, want, rtol=1e-5)


def batches_of(size):
    return [(np.tile(images, (size // 4, 1, 1, 1)), np.tile(labels, size // 4)) for images, labels in DATA[:3]]


def test_a_step_with_a_graph_asks_for_little(cp):
    data = batches(3)
    _, _, trainer = trained(CaiT(**SMALL, drop_path_rate=0.05), data[:2], "fp16", clip_norm=1.0, ema_decay=0.9)
    with hostcuda.counting() as count:
        trainer.step(*data[2])
    assert count.graph_launches == 1 and count.launches <= 15 and not count.gemms, count.by_kernel()
    assert count.copies_to_host == 1


def test_another_size_makes_another_graph_and_too_many_are_refused(recwarn):
    model = CaiT(**SMALL)
    sizes = [4, 4, 3, 3, 4, 2, 5, 2]
    data = [batches(1, size)[0] for size in sizes]
    weights, _, trainer = trained(model, data)
    graph = trainer.gradients.graph
    assert graph.made == 3 and graph.refused and graph.graph is None
    assert [str(w.message) for w in recwarn].count(
        "training without a CUDA graph, which is slower: batches or the model change too often") == 1  # fmt: skip
    own, *_ = trained(CaiT(**SMALL), data, graph=False)
    np.testing.assert_array_equal(weights, own)


def test_new_weights_and_settings_are_seen(cp):
    data = batches(3)
    (weights, *_), (own, *_) = (changing(data, graph) for graph in (True, False))
    np.testing.assert_array_equal(weights, own)


def changing(data, graph):
    model = CaiT(**SMALL)
    trainer = Trainer(model, Recipe(lr=1e-2), "cuda", graph=graph)
    trainer.step(*data[0])
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    trainer.step(*data[1])
    for block in model.blocks:
        block.norm1.eps = 0.1
    trainer.step(*data[2])
    return flat_parameters(model).array.get(), trainer


def test_high_rates_and_micro_batches_go_without():
    for rate, micro_batch in ((0.3, None), (0.0, 2)):
        trainer = Trainer(CaiT(**SMALL, drop_path_rate=rate), Recipe(), "cuda", micro_batch=micro_batch)
        trainer.step(*DATA[0])
        assert trainer.gradients.graph.made == 0


def test_what_cannot_be_captured_says_so_once_and_trains_on(recwarn):
    def objective(outputs, targets):
        assert np.isfinite(outputs.logits.numpy()).all()  # looks at values
        return ops.cross_entropy(outputs.logits, targets["labels"])

    trainer = Trainer(CaiT(**SMALL), Recipe(), "cuda", objective=objective, graph=True)
    for batch in DATA[:2]:
        assert np.isfinite(trainer.step(*batch))
    said = [str(w.message) for w in recwarn if "CUDA graph" in str(w.message)]
    assert said == ["training without a CUDA graph, which is slower: a CUDA graph cannot hold a copy to the host"]


@pytest.mark.parametrize("family", [PatchConvNet, LVViT])
def test_batch_statistics_move_once_a_step(family):
    """Making a graph runs forward more than once."""
    (_, want, _), (_, got, trainer) = runs = [
        trained(small(family), [(i.repeat(2, 2).repeat(2, 3), t) for i, t in DATA[:2]], graph=g) for g in (False, True)
    ]
    assert trainer.gradients.graph.launches == 2 and got == want
    states = [run[2].model.state_dict() for run in runs]
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, err_msg=name)


def small(family):
    if family is LVViT:
        return LVViT(num_classes=5, img_size=32, patch_size=16, dim=16, depth=2, heads=2, stem_channels=8)
    return PatchConvNet(num_classes=5, img_size=32, patch_size=16, dim=16, depth=1)

"""When a batch is computed by a graph: what it depends on, what is refused, and what is told and kept of it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autograd import modes, ops
from autograd.random import Stream
from minicait import nn
from minicait.models.cait import CaiT
from minicait.train import Recipe, Trainer
from minicait.train.checkpoint import numerics_of
from tests.hostcuda.test_training import SMALL

pytestmark = pytest.mark.hostcuda
TINY = SMALL | {"depth": 1, "patch_size": 8}
ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.standard_normal((4, 3, 16, 16)).astype("float32"), RNG.integers(0, 3, 4)


class Weighted:
    """Cross entropy by a weight that changes from step to step."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, outputs, targets):
        weight = self._weight[0] if self.kind is tuple else self._weight
        return ops.cross_entropy(outputs.logits, targets["labels"]) * float(weight)

    def losses(self, graph):
        trainer = Trainer(CaiT(**TINY), Recipe(), "cuda", objective=self, graph=graph)
        losses = []
        for number in (1, 2, 3):
            self._weight = (1 / number,) if self.kind is tuple else self.kind(1 / number)
            losses.append(trainer.step(IMAGES, LABELS))
        return losses, trainer.gradients.graph


@pytest.mark.parametrize("kind", [float, np.float32, tuple])
def test_an_objective_of_the_users_own_is_captured_only_on_request_and_seen_to_change(kind):
    want, _ = Weighted(kind).losses(False)
    assert want[0] > 1.9 * want[1] > 2.7 * want[2]
    losses, graph = Weighted(kind).losses(None)
    assert losses == want and graph is None
    losses, graph = Weighted(kind).losses(True)
    assert losses == want and graph.made == graph.launches == 3


class Scaled(nn.Module):
    def __init__(self):
        self.factor = 1.0
        self.head = nn.Linear(3 * 16 * 16, 3, stream=Stream(0))

    def forward(self, x):
        return self.head(x.reshape((len(x), -1))) * float(np.ravel(self.factor)[0])


@pytest.mark.parametrize("factor", [np.float32(9), (9, "nine")])
def test_a_number_of_a_module_is_seen_to_change(factor):
    losses = {}
    for graph in (False, None):
        trainer = Trainer(model := Scaled(), Recipe(), "cuda", graph=graph)
        losses[graph] = [trainer.step(IMAGES, LABELS)]
        model.factor = factor
        losses[graph].append(trainer.step(IMAGES, LABELS))
    assert losses[None] == losses[False] and trainer.gradients.graph.made == 2


def noisy(outputs, targets):
    """Cross entropy by a factor that NumPy draws; a graph would keep the first."""
    return ops.cross_entropy(outputs.logits, targets["labels"]) * NOISE.random()


def bare(outputs, targets):
    """Fails while a graph is made, without a word."""
    if modes.current().capture is not None:
        raise AssertionError
    return ops.cross_entropy(outputs.logits, targets["labels"])


NOISE = np.random.default_rng(1)


@pytest.mark.parametrize("objective, reason", [
    (noisy, "its gradients differ from those without it"), (bare, "AssertionError"),
])  # fmt: skip
def test_a_graph_that_is_refused_leaves_nothing_behind(objective, reason):
    trainer = Trainer(Scaled(), Recipe(), "cuda", objective=objective, graph=True)
    assert trainer.gradients.graph_line() is None and "CUDA graph" not in numerics_of(trainer)  # nobody knows yet
    with pytest.warns(UserWarning, match=reason):
        trainer.step(IMAGES, LABELS)
    assert trainer.gradients.graph_line() == f"without a CUDA graph: {reason}"
    assert numerics_of(trainer)["CUDA graph"] == "off"
    graph = trainer.gradients.graph
    assert graph.graph is graph._images is graph._targets is None and graph._fixed == []


def test_a_checkpoint_tells_what_the_last_batch_was():
    trainer = Trainer(CaiT(**TINY), Recipe(), "cuda")
    graph, gradients = trainer.gradients.graph, trainer.gradients

    def launched():
        trainer.step(IMAGES, LABELS)
        return numerics_of(trainer)["CUDA graph"], gradients.graph_line()

    assert launched() == ("on", "as a CUDA graph")
    gradients.micro_batch = 2
    assert launched() == ("off", "without a CUDA graph: the batch is cut")
    gradients.micro_batch = None
    assert launched() == ("on", "as a CUDA graph") and graph.made == 1
    next(m for _, m in trainer.model.named_modules() if isinstance(m, nn.DropPath)).rate = 0.3
    how, line = launched()
    assert how == "off" and line.startswith("without a CUDA graph: at a drop rate above 0.1")
    assert graph.graph is None and graph._fixed == []
    assert numerics_of(Trainer(trainer.model, Recipe(), "cuda", graph=False))["CUDA graph"] == "off"


AT_THE_END = """
from tests import hostcuda
hostcuda.install()
import cupy
from autograd.graph import Graph
x = cupy.ones(3, "float32")
kept = [Graph(lambda: x + x, "cuda")]
kept.append(kept)  # a cycle, which lives longest
"""


def test_a_graph_that_lives_until_the_end_says_nothing():
    result = subprocess.run([sys.executable, "-c", AT_THE_END], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")

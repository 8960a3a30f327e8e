"""Small models side by side: what is measured in them is what it says, and the experiments run."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import ops
from minicait.data import Shapes
from minicait.experiments.compare import (
    as_batch,
    gradient_flow,
    in_processes,
    like_width,
    mean_and_spread,
    residual_ratios,
    save,
    train,
)
from minicait.models.cait import CaiT
from minicait.models.variants import Variant

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"img_size": 8, "patch_size": 4, "dim": 12, "heads": 3, "depth": 3, "num_classes": 10, "layer_scale": 0.5}
SOME = as_batch(Shapes(40, 8, difficulty="easy"))


def test_first_weights_as_of_a_wider_model():
    model, wide = CaiT(**SMALL), CaiT(**SMALL)
    like_width(wide, 48)
    state = model.state_dict()
    changed = {name for name, value in wide.state_dict().items() if not np.array_equal(value, state[name])}
    assert all(np.allclose(wide.state_dict()[name], 2 * state[name]) for name in changed)
    layers = ("attn.qkv", "attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert {name.split(".", 2)[2] for name in changed} == {f"{layer}.weight" for layer in layers}
    assert all(name.startswith("blocks") for name in changed)


def test_gradient_flow_is_that_of_the_main_path():
    model = Variant("rezero_norm", pooling="average", **SMALL)  # which is the identity at first
    flow = gradient_flow(model, *SOME)
    assert len(flow) == 4 and np.allclose(flow, flow[0]) and flow[0] > 0
    model = Variant("plain", pooling="average", **SMALL)
    like_width(model, 384)
    flow = gradient_flow(model, *SOME)
    model.blocks[0].forward = lambda x, forward=model.blocks[0].forward: forward(seen.setdefault("x", x))
    seen = {}
    loss = ops.cross_entropy(model(SOME.images), SOME.labels)
    (gradient,) = ag.grad(loss, seen["x"])
    assert flow[0] == pytest.approx(np.linalg.norm(gradient.numpy()), rel=1e-4)
    assert "forward" not in vars(model.blocks[1])  # it left no trace
    flow = gradient_flow(CaiT(**SMALL), *SOME)
    assert flow == gradient_flow(Variant(**SMALL), *SOME) and len(flow) == 4 and min(flow) > 0


def test_residual_ratios_are_those_of_the_record():
    model = CaiT(**SMALL)
    ratios = residual_ratios(model, SOME.images)
    with minicait.record(model) as inside:
        model(SOME.images)
    assert ratios["mlp"][2] == pytest.approx(inside.residual["blocks.2.mlp"].ratio, rel=1e-4)
    assert ratios["attn"][0] == pytest.approx(inside.residual["blocks.0.attn"].ratio, rel=1e-4)


def learn(seed):
    model = Variant("plain", pooling="average", **{**SMALL, "depth": 1}, seed=seed)
    return train(model, SOME, SOME, steps=60, lr=1e-2, batch_size=20, seed=seed)


def test_training_learns_and_is_the_same_in_other_processes():
    here, there = dict(in_processes(learn, [0, 1], 1)), dict(in_processes(learn, [0, 1], 2))
    assert here == there and here[0] != here[1]
    assert np.mean(here[0].losses[-5:]) < here[0].losses[0] - 0.1 and here[0].accuracy > 0.15


def test_mean_and_spread():
    assert mean_and_spread([0.5, 0.75, 1.0]) == (0.75, 0.5)


def test_what_is_saved_can_be_read(tmp_path):
    save(tmp_path / "new/x.json", "python x.py", "a machine", {"steps": 3}, [{"a": [1 / 3], "b": {"c": 2}}, {"a": []}])
    assert json.loads((tmp_path / "new/x.json").read_text()) == {
        "command": "python x.py", "machine": "a machine", "settings": {"steps": 3},
        "results": [{"a": [0.3333], "b": {"c": 2}}, {"a": []}],
    }  # fmt: skip


def test_a_step_of_the_depth_experiment():
    module = runpy.run_path(str(EXAMPLES / "depth_experiment.py"))
    assert [module["epsilon"](depth) for depth in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]
    module["run"].__globals__["UNSEEN"] = 30
    result = module["run"](module["Job"]("layer_scale", 3, 0, 2, 1e-3, 4, 20))
    assert len(result["gradient_at_first"]) == 4 and len(result["ratio"]["mlp"]) == 3 and len(result["loss"]) == 2
    assert 0 <= result["accuracy"] <= 1


def test_a_step_of_the_class_attention_experiment():
    module = runpy.run_path(str(EXAMPLES / "class_attention_experiment.py"))
    module["run"].__globals__["UNSEEN"] = 30
    layers = {"6 + 0, token from 4": 2, "6 + 0, average": 0, "4 + 2": 2}
    for row, count in layers.items():
        result = module["run"](module["Job"](row, 0, 1, 1e-3, 4, 20))
        assert len(result["inside"]) == count and all(0 < share < 1 for share in result["inside"].values())


def test_attention_on_the_object_is_measured_as_by_the_trainer():
    module = runpy.run_path(str(EXAMPLES / "class_attention_experiment.py"))
    shapes, model = Shapes(30, 24, difficulty="easy"), module["make"]("4 + 2", 0)
    ours = module["shares"](model, shapes, as_batch(shapes).images)
    assert next(iter(ours.values())) == pytest.approx(minicait.train.attention_inside(model, shapes, 30), rel=1e-4)

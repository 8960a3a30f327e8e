"""Small models side by side: what is measured in them is what it says, and the experiments run."""

import json
import runpy
from pathlib import Path
from typing import NamedTuple

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
from minicait.experiments.results import Results, read
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


class Job(NamedTuple):
    name: str
    lr: float
    seed: int


def measure(job):
    return {"accuracy": job.lr * 100, "parameters": 3, "steps": [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 0.25}]}


def test_results_are_added_to_files_and_not_measured_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["examples/it.py", "--seeds", "2"])
    path, jobs = tmp_path / "new/it.csv", [Job("a, b", 0.004, seed) for seed in (0, 1)]
    for some in (jobs[:1], jobs):
        results = Results(path)
        results.run(measure, some, 1)
        results.note("a machine", {"dim": 32}, 90)
    assert "1 runs are missing" in capsys.readouterr().out.split("\n", 2)[2]
    assert read(path) == results.rows == [
        {"run": i, "name": "a, b", "lr": 0.004, "seed": i, "accuracy": 0.4, "parameters": 3} for i in (0, 1)
    ]  # fmt: skip
    assert results.of(seed=1) == results.rows[1:]
    assert [tuple(row.values()) for row in read(tmp_path / "new/it_steps.csv")] == [
        (0, 1, 0.333333), (0, 2, 0.25), (1, 1, 0.333333), (1, 2, 0.25),
    ]  # fmt: skip
    note = json.loads((tmp_path / "new/it.json").read_text())
    command = {"command": "python examples/it.py --seeds 2", "machine": "a machine", "minutes": 1.5}
    assert note == {"settings": {"dim": 32}, "commands": [command] * 2}


def test_training_that_overflows_is_reported():
    model = Variant("rezero", pooling="average", **SMALL)
    losses, accuracy, curve = train(model, SOME, SOME, steps=60, lr=10.0, batch_size=20, seed=0, every=1)
    assert np.isnan(accuracy) and 0 < len(losses) == len(curve) < 60


def example(name, **smaller):
    module = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    module["run"].__globals__.update(smaller)
    return module


def test_a_step_of_the_depth_experiment():
    module = example("depth_experiment", BATCH=4, IMAGES=20, UNSEEN=30, EVERY=2)
    assert [module["epsilon"](depth) for depth in (12, 18, 24, 36)] == [0.1, 0.1, 1e-5, 1e-6]
    job = module["Job"]("layer_scale", 3, 1e-3, 0.1, 0.5, 3, 0)
    for residual in ("layer_scale", "fixed"):
        result = module["run"](job._replace(residual=residual))
        assert [row["step"] for row in result["steps"]] == [2, 3] and len(result["blocks"]) == 3
        assert 0 <= result["accuracy"] <= 1 and result["overflow_at"] is None
    model, before = (module["make"]("layer_scale", 3, 0) for _ in range(2))
    module["fix_scales"](model, job)
    assert not any("gamma" in name for name, _ in model.named_parameters())
    assert all(np.any(block.gamma_1.numpy() != 0.5) for block in model.blocks)
    np.testing.assert_array_equal(model.head.weight.numpy(), before.head.weight.numpy())


def test_a_step_of_the_class_attention_experiment():
    module = example("class_attention_experiment", BATCH=4, IMAGES=20, UNSEEN=30)
    layers = {"6 + 0, token from 4": 2, "6 + 0, token from 4, masked": 2, "6 + 0, average": 0, "4 + 2": 2}
    for row, count in layers.items():
        result = module["run"](module["Job"]("shapes", row, 1e-3, 1, 0))
        assert len(result["layers"]) == count and all(0 < layer["on_object"] < 1 for layer in result["layers"])


def test_the_class_attention_experiment_compares_at_equal_parameters():
    make = example("class_attention_experiment")["make"]
    count = {
        row: make(row, 0).parameter_count() for row in ("6 + 0, token from 0", "4 + 2", "8 + 0, token from 0", "6 + 2")
    }
    assert count["4 + 2"] == count["6 + 0, token from 0"] < count["6 + 2"] == count["8 + 0, token from 0"]


def test_attention_on_the_object_is_measured_as_by_the_trainer():
    module = runpy.run_path(str(EXAMPLES / "class_attention_experiment.py"))
    shapes, model = Shapes(30, 24, difficulty="easy"), module["make"]("4 + 2", 0)
    ours = module["shares"](model, shapes, as_batch(shapes).images)
    assert next(iter(ours.values())) == pytest.approx(minicait.train.attention_inside(model, shapes, 30), rel=1e-4)

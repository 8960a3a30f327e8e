"""residual: the fused way, plain arithmetic and the formula are the same, whatever parts a block has."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import Tensor, ops, random
from autograd.backend import to_device
from autograd.random import Stream
from minicait import nn
from minicait.nn import drop
from tests import stand_in_cupy

SAMPLES, TOKENS, DIM, HIDDEN = 5, 3, 6, 8
STREAM = Stream(seed=3)  # which drops some samples of each branch, and not all
SCALES = {"none": 0, "one number": 1, "channels": DIM}
every_form = pytest.mark.parametrize(
    ("norm", "scale", "dropping", "reading"),
    list(itertools.product((False, True), SCALES, (False, True), (False, True))),
)


class Unfused(nn.Module):
    """The same branch as a module that cannot be taken apart."""

    def __init__(self, branch):
        self.branch = branch

    def forward(self, x):
        return self.branch(x)


class Block(nn.Module):
    """x + drop_path(scale branch(norm(z))), where z is x, or some other tokens."""

    def __init__(self, norm, scale, dropping, fused=True):
        rng = np.random.default_rng(0)
        self.norm = nn.LayerNorm(DIM) if norm else None
        self.scale = nn.LayerScale(SCALES[scale], 1.0) if SCALES[scale] else None
        mlp = nn.Mlp(DIM, HIDDEN)
        self.branch = mlp if fused else Unfused(mlp)
        for p in self.parameters():
            p.data = rng.normal(0.3, 0.7, p.shape)
        self.drop_path = nn.DropPath(0.5, "test") if dropping else None

    def forward(self, x, z=None):
        return nn.residual(x, self.branch, self.norm, self.scale, self.drop_path, z)


def tokens(seed=0):
    return np.random.default_rng(seed).standard_normal((SAMPLES, TOKENS, DIM))


def parameters(block):
    """Both blocks have the same names."""
    return {name.replace("branch.branch", "branch"): p for name, p in block.named_parameters()}


def by_formula(block, x, z, kept):
    """In NumPy, from the weights of a block."""
    p = {name: value.numpy() for name, value in parameters(block).items()}
    if block.norm is not None:
        centred = z - z.mean(-1, keepdims=True)
        z = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["norm.weight"] + p["norm.bias"]
    inner = ops.gelu(z @ p["branch.fc1.weight"].T + p["branch.fc1.bias"]).numpy()
    y = inner @ p["branch.fc2.weight"].T + p["branch.fc2.bias"]
    factor = np.ones(SAMPLES) if kept is None else np.isin(np.arange(SAMPLES), kept) / (1 - block.drop_path.rate)
    return x + factor[:, None, None] * p.get("scale", 1.0) * y


def run(block, *args):
    with random.using(STREAM):
        return block(*args)


@every_form
def test_fused_plain_and_written_out(norm, scale, dropping, reading):
    fused, plain = (Block(norm, scale, dropping, fused) for fused in (True, False))
    x, z = (Tensor(tokens(seed), requires_grad=True) for seed in (0, 1))
    reads = [z] if reading else []
    kept = None
    if dropping:
        with random.using(STREAM):
            kept = fused.drop_path.kept(SAMPLES)
        assert 0 < len(kept) < SAMPLES
    outputs = [run(block, x, *reads) for block in (fused, plain)]
    want = by_formula(fused, x.numpy(), (z if reading else x).numpy(), kept)
    for output in outputs:
        np.testing.assert_allclose(output.numpy(), want, rtol=1e-12, atol=1e-12)
    last = "affine" if scale == "channels" and not dropping else "add"
    assert [output.node.function.name for output in outputs] == ["linear_residual", last]
    v = tokens(2)
    gradients = [
        ag.grad(output, [x, *reads, *parameters(block).values()], v)
        for output, block in zip(outputs, (fused, plain), strict=True)
    ]
    assert list(parameters(fused)) == list(parameters(plain))
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)


@every_form
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_gradients(norm, scale, dropping, reading, fused):
    block = Block(norm, scale, dropping, fused)
    owners = [
        (module, name, value.numpy())
        for _, module in block.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, nn.Parameter)
    ]

    def call(*values):
        for (module, name, _), value in zip(owners, values, strict=False):
            setattr(module, name, value)
        return run(block, *values[len(owners) :])

    arrays = [array for _, _, array in owners] + [tokens(seed) for seed in range(1 + reading)]
    ag.check_grads(call, arrays, directions=1, float32_tolerance=None)


def test_samples_that_are_dropped_are_not_computed(monkeypatch):
    block, seen = Block(True, "channels", True), []
    real = nn.Mlp.inner
    monkeypatch.setattr(nn.Mlp, "inner", lambda self, x: seen.append(len(x)) or real(self, x))
    with random.using(STREAM):
        kept = block.drop_path.kept(SAMPLES)
    x = Tensor(tokens())
    dropped = np.setdiff1d(np.arange(SAMPLES), kept)
    np.testing.assert_array_equal(run(block, x).numpy()[dropped], x.numpy()[dropped])
    assert seen == [len(kept)]
    monkeypatch.setattr(nn.DropPath, "kept", lambda self, samples: np.arange(0))
    assert run(block, x) is x and seen == [len(kept)]


class BatchNorm(nn.Module):
    couples_samples = True

    def forward(self, x):
        return x - x.mean((0, 1))


def test_batch_statistics_are_those_of_all_samples():
    """Also of the samples whose branch is dropped."""
    fused, plain = (Block(False, "channels", True, fused) for fused in (True, False))
    fused.norm = plain.norm = BatchNorm()
    x = Tensor(tokens())
    np.testing.assert_allclose(run(fused, x).numpy(), run(plain, x).numpy(), rtol=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_a_branch_without_a_bias_is_plain_arithmetic(scale):
    block = Block(True, scale, True)
    block.branch.fc2.bias = None
    got = run(block, Tensor(tokens()))
    block.branch.fc2.bias = nn.Parameter(np.zeros(DIM))
    np.testing.assert_allclose(got.numpy(), run(block, Tensor(tokens())).numpy(), rtol=1e-12)
    assert got.node.function.name == "add"


@every_form
def test_record_sees_both_sides(norm, scale, dropping, reading):
    x, z = tokens(0), tokens(1)
    for fused in (True, False):
        block = Block(norm, scale, dropping, fused).eval()  # nothing is dropped
        with minicait.record(block) as seen:
            out = block(Tensor(x), *([Tensor(z)] if reading else [])).numpy()
        (recorded,) = seen.residual.values()
        assert list(seen.residual) == ["branch"]
        np.testing.assert_array_equal(recorded.main, x)
        np.testing.assert_allclose(recorded.main + recorded.branch, out, rtol=1e-12)
        if block.scale is None:
            assert recorded.scale is None
        else:
            np.testing.assert_array_equal(recorded.scale, block.scale.numpy())
        ratio = np.linalg.norm(recorded.branch, axis=-1) / np.linalg.norm(x, axis=-1)
        assert recorded.ratio == pytest.approx(ratio.mean())


def test_recording_changes_no_gradient():
    block = Block(True, "channels", False)
    plain = ag.grad(block(Tensor(tokens())).sum(), block.parameters())
    with minicait.record(block):
        recorded = ag.grad(block(Tensor(tokens())).sum(), block.parameters())
    for a, b in zip(plain, recorded, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---- stochastic depth of a whole model, drawn at once


class Stack(nn.Module):
    def __init__(self, drawn_at_once=True):
        self.blocks = [Block(True, "channels", True) for _ in range(4)]
        for i, rate in enumerate((0.5, 0.0, 0.999, 0.3)):  # of which one keeps all, and one none
            self.blocks[i].drop_path = nn.DropPath(rate, f"{i}")
        self.drawn_at_once = drawn_at_once

    def forward(self, x):
        with nn.drop_paths_drawn(self, x) if self.drawn_at_once else nullcontext():
            for block in self.blocks:
                x = block(x)
        return x


def test_samples_are_drawn_the_same_way_on_any_device(monkeypatch):
    rows, copies = [], []
    real = ops.linear_residual

    def remember(*args):
        rows[-1].append(None if args[-1] is None else to_device(args[-1], "cpu").tolist())
        return real(*args)

    with random.using(STREAM):
        wanted = [block.drop_path.kept(SAMPLES) for block in Stack().blocks]
    wanted = [None if kept is None else kept.tolist() for kept in wanted if kept is None or len(kept)]
    assert len(wanted) == 3 and wanted[1] is None  # one is left out altogether

    monkeypatch.setattr(ops, "linear_residual", remember)
    with stand_in_cupy.installed(monkeypatch):
        monkeypatch.setattr(drop, "to_device", lambda x, device: copies.append(device) or to_device(x, device))
        outputs = []
        for device, at_once in (("cpu", True), ("cpu", False), ("cuda", True), ("cuda", False)):
            rows.append([])
            stack = Stack(at_once).to(device)
            outputs.append(run(stack, ops.to_device(tokens(), device)).numpy())
    assert rows == [wanted] * 4 and copies == ["cuda:0"]  # all of them in one copy
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], rtol=1e-12)


def test_what_was_drawn_is_forgotten(monkeypatch):
    """After the block, and after an error in it, every branch draws by itself again."""
    with stand_in_cupy.installed(monkeypatch):
        stack = Stack().to("cuda")
        x = ops.to_device(tokens(), "cuda")
        with random.using(Stream(seed=5)), nn.drop_paths_drawn(stack, x):
            first = run(stack.blocks[0], x).numpy()
        with pytest.raises(ZeroDivisionError), random.using(Stream(seed=5)), nn.drop_paths_drawn(stack, x):
            raise ZeroDivisionError
        after = run(stack.blocks[0], x).numpy()
        np.testing.assert_array_equal(after, run(Stack(False).to("cuda").blocks[0], x).numpy())
        assert not np.array_equal(first, after)
        with nn.drop_paths_drawn(stack.eval(), x):
            assert stack.blocks[0](x).shape == x.shape

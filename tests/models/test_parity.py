"""Beside the reference implementation itself, where PyTorch and timm are installed: pip install -e '.[compare]'."""

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import ops
from minicait.files.hub import export_model
from minicait.files.pretrained import shipped_weights
from minicait.files.weights import Info
from minicait.models import family_of, find_model, find_published, published_models
from minicait.models.cait import CaiT
from minicait.models.positions import resize_positions
from tests.golden.recipe import FOLDER, MODELS, batch, random_weights

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")


@pytest.fixture(scope="module", autouse=True)
def timm():
    library = None
    try:  # a torchvision without its compiled part lacks two operators that timm's imports expect to be declared
        torch.ops.torchvision.nms  # noqa: B018
    except (AttributeError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield pytest.importorskip("timm", reason="timm is not installed: pip install -e '.[compare]'")
    del library


def official(model, tensors):
    """timm's tensors under official names, with official shapes."""
    pairs = {model.official(name, tuple(x.shape)): x for name, x in tensors.items()}
    return {name: x.reshape(shape) for (name, shape), x in pairs.items()}


def gradient_error(model, gradients, reference):
    """The largest error of a gradient, relative to its largest value, or to 1e-4 of the model's where it is tiny."""
    wanted = official(model, {name: p.grad.numpy() for name, p in reference.named_parameters()})
    largest = max(np.abs(g).max() for g in wanted.values())
    return max(
        np.abs(g.numpy() - wanted[name]).max() / max(np.abs(wanted[name]).max(), 1e-4 * largest)
        for (name, _), g in zip(model.named_parameters(), gradients, strict=True)
    )


def compare(model, reference, images, labels):
    theirs = reference(torch.from_numpy(images))
    torch.nn.functional.cross_entropy(theirs, torch.from_numpy(labels)).backward()
    ours = model(images)
    gradients = ag.grad(ops.cross_entropy(ours, labels), model.parameters())
    theirs = theirs.detach().numpy()
    return np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max(), gradient_error(model, gradients, reference)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("cait_xxs24_224", "safetensors"), ("deit_tiny_patch16_224", "safetensors"),
     ("deit_tiny_distilled_patch16_224", "pth"), ("deit3_small_patch16_224", "safetensors"), ("resmlp_12_224", "pth")],
)  # fmt: skip
def test_weights_of_timm_in_float32(name, suffix, timm, tmp_path):
    """A file that timm's model wrote, read by load_model: all logits, and the gradients of every parameter."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    reference, path = timm.create_model(name).eval(), tmp_path / f"w.{suffix}"
    for p in reference.parameters():
        p.data += 0.05 * torch.randn(p.shape)
    save_file(reference.state_dict(), path) if suffix == "safetensors" else torch.save(reference.state_dict(), path)
    model, info = minicait.load_model(path)
    hidden = {"layer_scale": "its first value is not in the weights"}
    assert info.config.to_json() | hidden == find_model(name)[1].to_json() | hidden
    images = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    logits, gradients = compare(model, reference, images, np.array([1, 2]))
    print(f"\n{name}, float32: logits {logits:.1e}, gradients {gradients:.1e}")
    assert logits < 1e-4 and gradients < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_small_models_in_float64(name, timm):
    from tests.golden.make import reference

    model = CaiT(**MODELS[name], layer_scale=1.0).astype(np.float64)
    model.load_state_dict(random_weights({key: p.shape for key, p in model.named_parameters()}))
    logits, gradients = compare(model, reference(MODELS[name]), *batch(MODELS[name]))
    print(f"\n{name}, float64: logits {logits:.1e}, gradients {gradients:.1e}")
    assert logits < 1e-9 and gradients < 1e-9


ON_THE_HUB = [name for name in published_models() if find_published(name)[2].hub]


@pytest.mark.parametrize("name", sorted({name.partition(".")[0] for name in ON_THE_HUB}))
def test_names_and_shapes_of_published_models(name, timm):
    with torch.device("meta"):
        reference = timm.create_model(name)
    family, config = find_model(name)
    theirs = [family.model.official(key, tuple(p.shape)) for key, p in reference.named_parameters()]
    ours = family.model.shapes_of(config)
    assert ours == dict(theirs) and len(theirs) == len(ours)
    assert family.name != "cait" or list(ours.items()) == theirs  # and their order


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_addresses_are_those_of_timm(name, timm):
    published = find_published(name)[2]
    config = timm.models.get_pretrained_cfg(published.hub.removeprefix("timm/"))
    assert config.hf_hub_id == published.hub and published.hub.startswith(f"timm/{name.partition('.')[0]}.")
    assert config.url == f"https://dl.fbaipublicfiles.com/deit/{published.official}"


def test_our_weights_load_into_timm(timm, tmp_path):
    from safetensors.torch import load_file

    from tests.golden.make import reference

    model = CaiT(**MODELS["square"], layer_scale=1.0)
    model.load_state_dict(random_weights({key: p.shape for key, p in model.named_parameters()}))
    minicait.save_weights(model, tmp_path / "ours.safetensors")
    theirs = reference(MODELS["square"]).float()
    theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"))
    images, _ = batch(MODELS["square"])
    want = theirs(torch.from_numpy(images).float()).detach().numpy()
    np.testing.assert_allclose(model(images).numpy(), want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(("old", "new"), [((14, 14), (24, 24)), ((24, 24), (14, 14)), ((4, 4), (6, 9))])
def test_positions_are_resized_as_by_pytorch(old, new):
    positions = np.random.default_rng(0).standard_normal((1, old[0] * old[1], 5)).astype(np.float32)
    grid = torch.from_numpy(positions).reshape(1, *old, 5).permute(0, 3, 1, 2)
    want = torch.nn.functional.interpolate(grid, size=new, mode="bicubic", align_corners=False)
    got = resize_positions(positions, old, new).reshape(1, *new, 5)
    np.testing.assert_allclose(got, want.permute(0, 2, 3, 1).numpy(), atol=1e-5)


def test_pytorch_reads_the_golden_checkpoint_the_same_way():
    theirs = torch.load(FOLDER / "deep.pth", weights_only=False)["model"]
    ours = minicait.files.weights.open_weights(FOLDER / "deep.pth")
    assert {f"module.{name}" for name in ours.shapes} == set(theirs)
    for name in ours.shapes:
        np.testing.assert_array_equal(ours.read(name), theirs[f"module.{name}"].numpy())


def test_layers_with_gradients_against_pytorch():
    """Softmax, layer norm, GELU and the losses beside PyTorch's, values and gradients."""
    f = torch.nn.functional
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((6, 9)), rng.standard_normal(9), rng.standard_normal(9)
    soft = rng.uniform(0, 1, (6, 9))
    labels = np.arange(6)
    t = torch.from_numpy
    for ours, theirs in [
        (lambda v: ops.softmax(v), lambda v: f.softmax(v, -1)),
        (lambda v: ops.log_softmax(v), lambda v: f.log_softmax(v, -1)),
        (lambda v: ops.gelu(v), f.gelu),
        (lambda v: ops.layer_norm(v, w, b), lambda v: f.layer_norm(v, (9,), t(w), t(b), 1e-6)),
        (lambda v: ops.cross_entropy(v, labels, 0.1), lambda v: f.cross_entropy(v, t(labels), label_smoothing=0.1)),
        (lambda v: ops.cross_entropy(v, soft, 0.1), lambda v: f.cross_entropy(v, t(soft), label_smoothing=0.1)),
        (lambda v: ops.bce_with_logits(v, soft), lambda v: f.binary_cross_entropy_with_logits(v, t(soft))),
        (lambda v: ops.kl_div(v, soft), lambda v: f.kl_div(v, t(soft), reduction="batchmean")),
    ]:
        mine, other = ag.Tensor(x, requires_grad=True), torch.from_numpy(x.copy()).requires_grad_()
        y, z = ours(mine), theirs(other)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-9, atol=1e-12)
        cotangent = rng.standard_normal(y.shape)
        z.backward(torch.from_numpy(np.asarray(cotangent)))
        np.testing.assert_allclose(ag.grad(y, mine, cotangent)[0].numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_eight_steps_of_adamw_beside_pytorch(timm):
    """From the same weights, on the same batches, with the same groups: the same losses."""
    from timm.optim import param_groups_weight_decay

    from minicait.optim import AdamW
    from minicait.optim.parameters import is_decayed
    from tests.golden.make import reference

    config = MODELS["square"]
    theirs = reference(config).float()
    model = CaiT(**config, layer_scale=1.0)
    model.load_state_dict({name: p.detach().numpy() for name, p in theirs.named_parameters()})
    groups = param_groups_weight_decay(theirs, 0.05, no_weight_decay_list=theirs.no_weight_decay())
    decayed = {id(p) for p in groups[1]["params"]}
    assert [is_decayed(name, tuple(p.shape), model.no_decay) for name, p in theirs.named_parameters()] == [
        id(p) in decayed for _, p in theirs.named_parameters()
    ]
    ours, other = AdamW(model, lr=1e-3, weight_decay=0.05), torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999))
    images, labels = batch(config)
    images = images.astype(np.float32)
    for _ in range(8):
        loss, gradients = minicait.train.value_and_grad(model, ops.cross_entropy, images, labels)
        ours.step(gradients)
        other.zero_grad()
        their_loss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(images)), torch.from_numpy(labels))
        their_loss.backward()
        other.step()
        assert abs(loss - their_loss.item()) < 5e-4


def test_eight_steps_of_lamb_beside_timm(timm):
    """The same losses and weights, in float64, with gradients of which some are clipped."""
    from timm.optim import Lamb, param_groups_weight_decay

    from minicait import optim
    from tests.golden.make import reference

    config = MODELS["square"]
    theirs = reference(config)
    model = CaiT(**config, layer_scale=1.0).astype(np.float64)
    model.load_state_dict({name: p.detach().numpy() for name, p in theirs.named_parameters()})
    groups = param_groups_weight_decay(theirs, 0.05, no_weight_decay_list=theirs.no_weight_decay())
    ours, other = optim.Lamb(model, lr=1e-2, weight_decay=0.05), Lamb(groups, lr=1e-2, eps=1e-8, max_grad_norm=1.0)
    (images, labels), norms = batch(config), []
    for _ in range(8):
        loss, gradients = minicait.train.value_and_grad(model, ops.cross_entropy, images, labels)
        norms.append(optim.global_norm(gradients))
        ours.step(gradients)
        other.zero_grad()
        their_loss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(images)), torch.from_numpy(labels))
        their_loss.backward()
        other.step()
        assert loss == pytest.approx(their_loss.item(), rel=1e-9)
    assert min(norms) < 1 < max(norms)
    apart = {name: np.abs(p.detach().numpy() - model.state_dict()[name]).max() for name, p in theirs.named_parameters()}
    rounding = ("proj_l.bias", "attn.k.bias")  # gradients that are rounding error, which Adam amplifies
    worst = max(value for name, value in apart.items() if not name.endswith(rounding))
    print(f"\nweights after eight steps of LAMB: {worst:.1e} apart")
    assert worst < 1e-9


def test_the_learning_rate_of_every_step_beside_timm(timm):
    from timm.scheduler import CosineLRScheduler

    from minicait.optim import learning_rate

    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = CosineLRScheduler(
        optimiser, t_initial=60, lr_min=1e-5, warmup_t=7, warmup_lr_init=1e-6, t_in_epochs=False
    )
    for step in range(60):
        schedule.step_update(step)
        assert learning_rate(step, 60, 7, 1e-3) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)


def test_mixing_beside_timm(timm):
    from timm.data.mixup import mixup_target, rand_bbox

    from autograd.ops.loss import soft_targets
    from minicait.data.mixing import box_around, mixup, one_hot

    labels = np.array([0, 3, 1, 2])
    images = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    _, mixed = mixup(images, one_hot(labels, 5), 0.3)
    targets = soft_targets(mixed, ag.Tensor(np.zeros((4, 5), np.float32)), 0.1)  # smoothed by the loss
    want = mixup_target(torch.from_numpy(labels), 5, 0.3, 0.1)
    np.testing.assert_allclose(targets, want.numpy(), rtol=1e-6)
    for seed in range(20):
        np.random.seed(seed)
        keep = np.random.beta(1, 1)
        state = np.random.get_state()
        box = rand_bbox((3, 20, 30), keep)
        np.random.set_state(state)
        centre = np.random.randint(0, 20, size=None), np.random.randint(0, 30, size=None)
        assert box_around(centre, (20, 30), keep) == tuple(int(end) for end in box)


def test_stochastic_depth_with_the_same_masks(timm, monkeypatch):
    """In training: our masks, put into timm's drop path, give timm's logits."""
    from timm.layers import DropPath

    from autograd import random
    from autograd.random import Stream
    from tests.golden.make import reference

    config = MODELS["deep"]
    model = CaiT(**config, layer_scale=1.0, drop_path_rate=0.4).astype(np.float64)
    model.load_state_dict(random_weights({key: p.shape for key, p in model.named_parameters()}))
    masks, kept = [], minicait.nn.DropPath.kept

    def remember(self, samples):
        rows = kept(self, samples)
        whole = np.arange(samples)
        masks.append(np.isin(whole, whole if rows is None else rows)[:, None, None] * self.factor)
        return rows

    monkeypatch.setattr(minicait.nn.DropPath, "kept", remember)
    images, _ = batch(config)
    with random.using(Stream(0, "parity")):
        ours = model(images).numpy()
    theirs = reference(config).train()
    for block in theirs.blocks:
        block.drop_path = DropPath(0.4)
    given = iter(masks)
    monkeypatch.setattr(DropPath, "forward", lambda self, x: x * torch.from_numpy(next(given)))
    want = theirs(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(ours, want, rtol=1e-9, atol=1e-12)
    assert next(given, None) is None and len(masks) == 2 * config["depth"]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("cait_tiny_64", {}), ("deit_mini_32", {}), ("deit_mini_distilled_32", {}), ("deit3_mini_32", {}),
     ("resmlp_12_224", {"img_size": 64})],
)  # fmt: skip
def test_timm_loads_an_exported_folder(name, sizes, half, timm, tmp_path):
    """Architecture, weights, class names and preprocessing, in evaluation mode; ours reads the folder as well."""
    model = minicait.create_model(name, 3, **sizes, drop_path_rate=0.0, seed=1).eval()
    for i, (_, p) in enumerate(model.named_parameters()):  # LayerScale and biases, too, or they would not show
        p.data += 0.05 * np.random.default_rng(i).standard_normal(p.shape, dtype=np.float32)
    info = Info(family_of(model).name, model.config, ["a", "b", "c"], (0.4, 0.5, 0.6), (0.2, 0.3, 0.25), 0.9)
    export_model(model, info, tmp_path / "hub", "card", half)
    if half:
        model, _ = minicait.load_model(tmp_path / "hub")  # what float16 leaves of the weights
    reference = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    side = model.img_size[0]
    data = timm.data.resolve_model_data_config(reference)
    assert tuple(data["input_size"]) == (3, side, side) and tuple(data["mean"]) == (0.4, 0.5, 0.6)
    assert tuple(data["std"]) == (0.2, 0.3, 0.25) and (data["crop_pct"], data["interpolation"]) == (0.9, "bicubic")
    assert reference.pretrained_cfg["label_names"] == ["a", "b", "c"]
    images = np.random.default_rng(0).standard_normal((2, 3, side, side), dtype=np.float32)
    with torch.no_grad():
        wanted = reference(torch.from_numpy(images)).numpy()
    assert np.abs(model(images).numpy() - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_timm_loads_the_weights_that_come_with_the_package(timm):
    model, info = minicait.load_model("imagenette")
    reference = timm.create_model(f"local-dir:{shipped_weights().parent}", pretrained=True).eval()
    assert reference.pretrained_cfg["label_names"] == info.class_names
    images = np.random.default_rng(0).standard_normal((2, 3, *model.img_size), dtype=np.float32)
    with torch.no_grad():
        wanted = reference(torch.from_numpy(images)).numpy()
    assert np.abs(model(images).numpy() - wanted).max() < 2e-5 * np.abs(wanted).max()

"""minicait bench: what it measures is there, and adds up; beside timm where that is installed."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

from autograd import kernels
from autograd.ops.nn import Gelu
from minicait import create_model
from minicait.bench import Job, torch_side
from minicait.bench.gemm import gemm_rate
from minicait.bench.profile import profiled
from minicait.bench.worker import bench_step
from minicait.cli import main
from minicait.nn import DropPath
from minicait.train.objectives import CrossEntropy
from tests.models.small_models import SMALL_MODELS

TINY = ["bench", "--model", "cait_tiny_32", "--batch", "4", "--rounds", "2", "--threads", "1"]


@pytest.mark.parametrize("work", ["train", "predict"])
def test_json(work, capsys):
    assert main([*TINY, "--work", work, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (side,) = result["sides"]
    assert side["name"] == "minicait" and len(side["seconds"]) == 2 and min(side["seconds"]) > 0
    assert 40 < side["megabytes"] < 1000 and 0 < result["reached"] < 1.5
    assert result["floor"] == pytest.approx(Job("cait_tiny_32", 4, work, 1).gigaflop(made=True) / result["gemm_gflops"])


def test_what_is_counted():
    train, predict = (Job("cait_xxs24_224", 8, work, 2).gigaflop() for work in ("train", "predict"))
    images = 2 * 8 * 3 * 224**2 * 192 / 1e9  # need no gradient
    assert train == pytest.approx(3 * predict - images)
    made = Job("cait_xxs24_224", 8, "predict", 2).gigaflop(made=True)
    assert made < predict
    assert predict - made == pytest.approx(2 * 8 * create_model("cait_xxs24_224").cost().left_out / 1e9)
    assert predict / 8 == pytest.approx(5.0, rel=0.02)  # the paper's 2.5 G multiply-adds
    assert gemm_rate(1) > 0.5


@pytest.mark.parametrize(("name", "rate"), [("cait_small_32", 0.05), ("deit_tiny_patch16_224", 0.1 / 2)])
def test_dropped_branches_are_not_counted(name, rate):
    whole, kept = (Job(name, 1, "train", 1, stochastic_depth=depth).gigaflop() for depth in (False, True))
    blocks = create_model(name).cost().multiply_adds - create_model(name).config.changed(depth=0).cost().multiply_adds
    assert whole - kept == pytest.approx(3 * 2 * rate * blocks / 1e9)


def test_stochastic_depth_is_the_presets(capsys):
    assert main([*TINY[:1], *TINY[3:], "--model", "cait_small_32", "--stochastic-depth"]) == 0
    assert "cait_small_32, batch 4, training step with stochastic depth, 1 thread," in capsys.readouterr().out


def test_the_table(capsys):
    assert main(TINY) == 0
    text = capsys.readouterr().out
    assert "cait_tiny_32, batch 4, training step, 1 thread," in text and "images/s" in text and "% reached" in text


def test_the_profile(capsys):
    assert main([*TINY, "--profile"]) == 0
    text = capsys.readouterr().out
    assert "talking_heads_attention       6" in text and "linear                       18" in text
    assert main([*TINY, "--profile", "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["operations"]
    kept = costs["talking_heads_attention"]["kept"] / 2 / 6 / 4  # rounds, layers, images
    assert kept == pytest.approx(4 * (64 * 3 * 96 + 2 * 64 * 64), rel=0.01)  # qkv and the maps, in float32


def test_profiling_leaves_no_trace():
    before = Gelu.__dict__["forward"], Gelu.__dict__["backward"]
    with profiled(create_model("cait_tiny_32")) as costs:
        assert Gelu.__dict__["forward"] is not before[0]
    assert (Gelu.__dict__["forward"], Gelu.__dict__["backward"]) == before and not costs


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["--model", "cait_huge"], "unknown model 'cait_huge'"), (["--batch", "0"], "--batch must be at least 1, got 0"),
     (["--rounds", "-1"], "--rounds must be at least 1, got -1"),
     (["--device", "gpu"], "unknown device 'gpu'"),
     (["--device", "cpu", "--precision", "fp16"], "--precision fp16 is for GPUs; a CPU is fastest with fp32"),
     (["--device", "cuda", "--profile"], "--profile needs the CPU"),
     (["--work", "folder", "--profile"], "--profile times operations of the model; choose --work train"),
     (["--profile", "--threads", "2"], "--profile runs on one thread; leave out --threads"),
     (["--work", "predict", "--stochastic-depth"], "stochastic depth is for training"),
     (["--model", "cait_tiny_32", "--stochastic-depth"], "cait_tiny_32 is trained without stochastic depth"),
     (["--table", "--batch", "4"], "--table has rows of its own; leave out --batch"),
     (["--table", "--device", "cuda"], "--table has rows of its own; leave out --device"),
     (["--table", "--profile"], "--table has rows of its own; leave out --profile"),
     (["--table", "--against", "torch"], "--table is measured against timm or timm-bf16, not torch")],
)  # fmt: skip
def test_bad_input(options, sentence, capsys):
    assert main(["bench", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parity
def test_beside_timm(capsys):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install -e '.[compare]'")
    assert main([*TINY, "--against", "timm", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [side["name"] for side in result["sides"]] == ["minicait", "timm"]
    ours, theirs = result["sides"]
    assert result["memory_ratio"] == ours["megabytes"] / theirs["megabytes"] < 1
    assert 0.1 < result["times_as_fast"] < 20


@pytest.mark.parity
@pytest.mark.parametrize("name", ["cait", "deit", "deit-distilled", "deit3", "resmlp", "patchconvnet", "lvvit"])
def test_both_sides_compute_the_same(name):
    """The models of PyTorch that are measured against have our layers: with our weights, they give our logits."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    model = SMALL_MODELS[name](img_size=32, patch_size=16, dim=24)
    family = name.partition("-")[0]
    net = (torch_side.TIMM | torch_side.PLAIN)[family](model.config)
    state = {key: torch.from_numpy(value.copy()) for key, value in model.state_dict().items()}
    for key, value in list(state.items()):
        if family == "resmlp":
            other = key.replace("patch_embed", "stem").replace("attn", "linear_tokens").replace("mlp.", "mlp_channels.")
            other = other.replace("gamma_", "ls")
            state[other] = value[None, None] if other.endswith(("alpha", "beta")) else value
        elif family == "deit3":
            state[key.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")] = value
    net.load_state_dict({key: state[key] for key in net.state_dict()})
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    want = net.eval()(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(model.eval()(images).numpy(), want, atol=1e-5 * np.abs(want).max())
    labels = np.array([1, 7])
    theirs = torch_side.torch_loss(net.train()(torch.from_numpy(images)), torch.from_numpy(labels)).item()
    ours = CrossEntropy()(model.train().outputs(images), {"labels": labels}).item()
    assert ours == pytest.approx(theirs, rel=1e-5)  # and it is trained for the same


@pytest.mark.parity
@pytest.mark.parametrize("name", ["cait", "deit", "deit-distilled", "deit3", "resmlp", "patchconvnet", "lvvit"])
def test_both_sides_drop_branches_at_the_same_rates(name):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    model = SMALL_MODELS[name](img_size=32, patch_size=16, dim=24, depth=3, drop_path_rate=0.2)
    net = (torch_side.TIMM | torch_side.PLAIN)[name.partition("-")[0]](model.config)
    ours = {(key.split(".")[1], round(m.rate, 6)) for key, m in model.named_modules() if isinstance(m, DropPath)}
    found = [(key, m) for key, m in net.named_modules() if type(m).__name__ == "DropPath"]
    theirs = {(key.split(".")[1], round(m.drop_prob, 6)) for key, m in found}
    assert theirs | {("0", 0.0)} == ours | {("0", 0.0)}  # timm has no layer where the rate is 0
    assert len(ours) == 3 and max(rate for _, rate in ours) == 0.2
    assert all(key.startswith("blocks.") for key, _ in found)


def cpu_with(flags, path):
    path.write_text(f"model name\t: some CPU\nflags\t\t: fpu {flags} sse\n")
    return path


def test_bfloat16_needs_instructions_for_it(tmp_path, monkeypatch):
    for flags in ("avx512_bf16", "amx_bf16 amx_tile"):
        monkeypatch.setattr(torch_side, "CPUINFO", cpu_with(flags, tmp_path / "cpuinfo"))
        torch_side.check_bfloat16("cpu")
        with pytest.raises(ValueError, match="it is for CPUs"):
            torch_side.check_bfloat16("cuda")
    for path in (cpu_with("avx512f", tmp_path / "cpuinfo"), tmp_path / "missing"):
        monkeypatch.setattr(torch_side, "CPUINFO", path)
        with pytest.raises(ValueError, match="this CPU has no instructions for bfloat16"):
            torch_side.check_bfloat16("cpu")


def test_a_cpu_without_bfloat16_gets_one_sentence(tmp_path, capsys, monkeypatch):
    import minicait.bench as bench

    real, path = bench.subprocess.Popen, cpu_with("avx2", tmp_path / "cpuinfo")

    def on_it(command, **kwargs):
        code = ("import pathlib, sys; from minicait.bench import torch_side, worker; sys.argv = sys.argv[2:]\n"
                f"torch_side.CPUINFO = pathlib.Path({str(path)!r}); worker.main()")  # fmt: skip
        return real([command[0], "-c", code, *command[1:]], **kwargs)

    monkeypatch.setattr(bench.subprocess, "Popen", on_it)
    assert main([*TINY, "--against", "timm-bf16"]) == 2
    because = "this CPU has no instructions for bfloat16 (AVX512-BF16 or AMX)"
    assert capsys.readouterr().err == f"minicait: timm-bf16 cannot be measured: {because}\n"


@pytest.mark.parity
@pytest.mark.parametrize("work", ["train", "predict"])
def test_beside_bfloat16(work, capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    try:
        torch_side.check_bfloat16("cpu")
    except ValueError as error:
        pytest.skip(str(error))
    small = ["bench", "--model", "cait_tiny_32", "--batch", "4", "--rounds", "1", "--threads", "1", "--work", work]
    assert main([*small, "--against", "timm-bf16", "--json"]) == 0
    assert [side["name"] for side in json.loads(capsys.readouterr().out)["sides"]] == ["minicait", "timm-bf16"]


@pytest.mark.parity
@pytest.mark.parametrize("name", ["patchconvnet_mini_32", "patchconvnet_s60_multi_224"])
def test_a_form_that_pytorch_lacks(name, capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    assert main(["bench", "--model", name, "--batch", "2", "--rounds", "1", "--against", "torch"]) == 2
    assert "the PatchConvNet to compare with has one class token" in capsys.readouterr().err


@pytest.mark.parity
def test_a_family_that_timm_lacks(capsys):
    if find_spec("timm") is None:  # importing it here would fail where torchvision lacks its compiled part
        pytest.skip("timm is not installed: pip install -e '.[compare]'")
    small = ["bench", "--model", "lvvit_mini_32", "--batch", "2", "--rounds", "1", "--threads", "1"]
    assert main([*small, "--against", "timm"]) == 2
    assert "timm cannot be measured: there is no lvvit to compare with, only cait, deit" in capsys.readouterr().err
    assert main([*small, "--against", "torch", "--json"]) == 0
    assert [side["name"] for side in json.loads(capsys.readouterr().out)["sides"]] == ["minicait", "torch"]


@pytest.mark.parametrize("work", ["train", "predict"])
@pytest.mark.parametrize("precision, dtype", [("fp32", "float32"), ("fp16", "float16")])
def test_precision_is_that_of_products(work, precision, dtype, monkeypatch):
    seen = set()
    real = kernels.product
    monkeypatch.setattr(kernels, "product", lambda a, *rest, **o: seen.add(a.dtype.name) or real(a, *rest, **o))
    net = create_model("cait_tiny_32", 10)
    bench_step(net, 2, work, 1, processes=False, precision=precision)()
    assert dtype in seen


def test_any_error_of_a_side_is_told(capsys, monkeypatch):
    import minicait.bench as bench

    real = bench.subprocess.Popen

    def broken(command, **kwargs):
        code = ("import sys; from minicait.bench import worker; sys.argv = sys.argv[2:]\n"
                "def fail(job): raise RuntimeError('no kernel image\\nand more')\n"
                "worker.SIDES['minicait'] = fail; worker.main()")  # fmt: skip
        return real([command[0], "-c", code, *command[1:]], **kwargs)

    monkeypatch.setattr(bench.subprocess, "Popen", broken)
    assert main(TINY) == 2
    assert "minicait cannot be measured: RuntimeError: no kernel image\n" in capsys.readouterr().err


def test_without_timm_it_says_so(capsys, monkeypatch):
    import minicait.bench as bench

    real = bench.subprocess.Popen

    def without(command, **kwargs):
        hidden = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[2:]; "
        run = "runpy.run_module('minicait.bench.worker', run_name='__main__')"
        return real([command[0], "-c", hidden + run, *command[1:]], **kwargs)

    monkeypatch.setattr(bench.subprocess, "Popen", without)
    assert main([*TINY, "--against", "timm"]) == 2
    assert "timm cannot be measured: " in capsys.readouterr().err

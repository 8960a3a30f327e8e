"""The package around the code: its names, its metadata, its examples."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import autograd
import minicait

ROOT = Path(__file__).parent.parent


def python(*args, cwd, **env):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True)


def test_this_is_the_autograd_of_this_repository():
    assert Path(autograd.__file__).parent == ROOT / "autograd"


def test_another_autograd_is_recognised(tmp_path):
    """The package of the same name from PyPI, or anything else that comes first on the path."""
    (tmp_path / "autograd").mkdir()
    (tmp_path / "autograd/__init__.py").write_text("grad = None\n")
    (tmp_path / "minicait.py").write_text((ROOT / "minicait/__init__.py").read_text())
    result = python("-c", "import minicait", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: minicait needs the `autograd` package that it ships with")
    assert str(tmp_path / "autograd/__init__.py") in last and "pip uninstall -y autograd" in last


def test_no_module_is_named_like_one_of_the_other_autograd():
    others = {"core", "tracer", "util", "extend", "builtins", "test_util", "wrap_util", "differential_operators",
              "numpy", "scipy", "misc"}  # fmt: skip
    ours = {path.stem for path in (ROOT / "autograd").iterdir()}
    assert not ours & others


def test_importing_needs_nothing_but_numpy():
    code = "import sys, autograd; print(*{'cupy', 'torch', 'PIL', 'scipy', 'matplotlib'} & set(sys.modules))"
    assert python("-c", code, cwd=ROOT).stdout.strip() == ""


@pytest.mark.parametrize("name", ["function", "engine", "ops", "ops.nn", "kernels", "gradcheck", "checkpoint"])
def test_any_module_can_be_imported_first(name):
    result = python("-c", f"import autograd.{name}", cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_cupy_is_imported_in_one_file_only():
    importing = [p.name for p in (ROOT / "autograd").rglob("*.py") if re.search(r"(import|from) cupy", p.read_text())]
    assert importing == ["cuda.py"]


def test_versions_agree():
    assert f"version: {minicait.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {minicait.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_two_spirals(tmp_path):
    result = python(str(ROOT / "examples/two_spirals.py"), "--steps", "150", "--out", "picture.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    accuracy = float(re.search(r"new points: ([\d.]+)%", result.stdout).group(1))
    assert accuracy > 90
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.size == (4 * 260 + 3 * 8, 260)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--hidden", "many"], "invalid int value: 'many'"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--out", "nowhere/picture.png"], "there is no folder nowhere"),
        (["--out", "picture"], "does not end like a picture"),
    ],
)
def test_two_spirals_with_wrong_input(options, sentence, tmp_path):
    result = python(str(ROOT / "examples/two_spirals.py"), *options, cwd=tmp_path)
    assert result.returncode == 2 and sentence in result.stderr and "Traceback" not in result.stderr


def test_measure_engine(tmp_path):
    result = python(str(ROOT / "examples/measure_engine.py"), "--rounds", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "autograd x + y, recorded" in result.stdout and "after backward, the loss still alive" in result.stdout


def test_measure_kernels(tmp_path):
    sizes = ["--images", "1", "--tokens", "4", "--dim", "8", "--heads", "2", "--rounds", "1"]
    result = python(str(ROOT / "examples/measure_kernels.py"), *sizes, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "talking_heads_attention" in result.stdout and "reference" in result.stdout


def test_measure_loader(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (40, 30), (40 * i, 0, 0)).save(tmp_path / name / f"{i}.jpg")
    options = [str(tmp_path), "--side", "16", "--seconds", "0.1"]
    result = python(str(ROOT / "examples/measure_loader.py"), *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "of bare Pillow" in result.stdout and "of the time waiting for images" in result.stdout

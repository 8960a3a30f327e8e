"""What is shipped has no answers in it, and needs NumPy alone."""

import ast
import copy
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import minicait.learn
from minicait.learn.learner import opened
from minicait.learn.starters_folder import starters
from tests.learn.folders import ANSWERS, functions, places, write

SHIPPED = [p for p in Path(minicait.learn.__file__).parent.rglob("*") if p.suffix in (".py", ".md")]
GIVES_AWAY = 12  # parts of a statement: shorter ones, such as `return a + b`, are in many programs
PLACES = places()


def statements(node):
    """The simple statements of a function, without its docstring."""
    for child in ast.walk(node):
        docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr) and not docstring:
            yield child


def normalised(node):
    """The code of a statement with its names replaced by their order: the same for renamed variables."""
    node, known = copy.deepcopy(node), {}
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            child.id = known.setdefault(child.id, f"n{len(known)}")
        if hasattr(child, "annotation"):
            child.annotation = ast.Name("t")
    return ast.unparse(node)


def weight(node):
    return sum(isinstance(child, ast.expr) for child in ast.walk(node))


def shipped_statements():
    """Statements of all shipped code, and of code inside strings: hints, docstrings, tables."""
    found = set()
    for path in SHIPPED:
        text = path.read_text()
        trees = [ast.parse(text)] if path.suffix == ".py" else []
        strings = [c.value for tree in trees for c in ast.walk(tree) if isinstance(c, ast.Constant)]
        for line in [line for s in [*strings, text] if isinstance(s, str) for line in s.splitlines()]:
            for code in (line, *re.findall("`([^`]+)`", line)):
                try:
                    trees.append(ast.parse(code.strip()))
                except (SyntaxError, ValueError):
                    continue
        for tree in trees:
            found |= {normalised(s) for s in statements(tree)}
            found |= {f"return {normalised(s.value)}" for s in ast.walk(tree) if isinstance(s, ast.Expr)}
    return found


def answer(place):
    return functions(ast.parse(ANSWERS[place.file]))[place.name]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.file}-{place.name}")
def test_a_starter_is_a_docstring_and_a_raise(place):
    assert len(place.starter.body) == 2
    assert ast.get_docstring(place.starter).startswith(f"{place.number}  ")


def test_no_answer_is_shipped():
    shipped = shipped_statements()
    compared = 0
    for place in PLACES:
        for statement in statements(answer(place)):
            if weight(statement) >= GIVES_AWAY:
                compared += 1
                assert normalised(statement) not in shipped, f"{place.name}: {ast.unparse(statement)}"
    assert compared > 50


def test_an_answer_in_a_hint_would_be_found(monkeypatch, tmp_path):
    leak = tmp_path / "hints.py"
    leak.write_text('HINT = "Return `prob * (h - (h * prob).sum(axis=-1, keepdims=True))`."\n')
    monkeypatch.setattr(sys.modules[__name__], "SHIPPED", [leak])
    place = next(place for place in PLACES if place.name == "Softmax.backward")
    shipped = shipped_statements()
    assert any(normalised(s) in shipped for s in statements(answer(place)) if weight(s) >= GIVES_AWAY)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The starters with all answers, to import from."""
    with opened(write(tmp_path_factory.mktemp("solved"))) as learner:
        yield learner


def test_numbers_in_docstrings_are_right(engine):
    by_hand, tensor, layers, mixing, optim = map(engine.module, ("by_hand", "tensor", "layers", "mixing", "optim"))
    neuron = by_hand.neuron_gradient(x=2, w=0.5, b=-0.6, t=1)
    ctx = tensor.Context(None, ())
    ctx.save(np.array([0.25, 0.75]))
    dx = layers.Softmax.backward(ctx, np.array([1.0, 0.0]))
    y = layers.Gelu.forward(ctx, np.array([-1.0, 0.0, 1.0]))
    share = mixing.cutmix(np.zeros((2, 3, 32, 32)), np.eye(2), (0, 8, 0, 16))[1][0, 0]
    for file, said in (
        ("by_hand.py", f"({', '.join(f'{g:.4f}' for g in neuron)}), rounded to four digits"),
        ("layers.py", f"dx is ({dx[0]:g}, {dx[1]:g})"),
        ("layers.py", f"gives ({y[0]:.4f}, {y[1]:g}, {y[2]:.4f})"),
        ("mixing.py", f"so mu is {share}"),
        ("optim.py", f"is {optim.learning_rate(50, total=100, warmup=0, peak=1.0, final=0.0)}"),
    ):
        assert said in starters()[file]


def test_numbers_and_arrays_on_either_side_of_a_tensor(engine):
    tensor = engine.module("tensor")
    x = tensor.Tensor(np.array([1.0, 2.0], np.float32), requires_grad=True)
    two = np.array([2.0, 2.0])
    for y, want in ((two * x, [2, 4]), (two + x, [3, 4]), (two - x, [1, 0]), (x - two, [-1, 0]), (x / 2, [0.5, 1])):
        assert isinstance(y, tensor.Tensor) and y.data.dtype == np.float32
        np.testing.assert_array_equal(y.data, want)
    with pytest.raises(TypeError):
        np.exp(x)


def test_starters_are_small_and_need_only_numpy():
    texts = starters()
    assert sum(text.count("\n") for text in texts.values()) < 950
    for name in texts.keys() - {"README.md", "test_my_engine.py"}:
        for node in ast.walk(ast.parse(texts[name])):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert all(m == "numpy" or m.partition(".")[0] in sys.stdlib_module_names for m in modules)

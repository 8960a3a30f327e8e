"""Whatever is wrong in the learner's code, the answer is one sentence that names the place."""

import pytest

from minicait.learn import grade
from tests.learn.folders import solved, write

DERIVATIVE = "    return (f(x + delta) - f(x - delta)) / (2 * delta)\n"
assert DERIVATIVE in solved("by_hand.py")
LINE = solved("by_hand.py").split(DERIVATIVE)[0].count("\n") + 1
HERE = f"by_hand.py, line {LINE}"
ENDLESS = "is there an endless loop, or far more work than needed?"


def by_hand(folder, body):
    """What is said of 1.1, if this is its answer."""
    return grade(write(folder, {"by_hand.py": (DERIVATIVE, f"    {body}\n")}), "1.1", seconds=1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise NotImplementedError('1.1')", "1.1 is not written yet: numerical_derivative in by_hand.py"),
        ("pass", "1.1: the derivative is None: is there a `return`? (case: f = sin, x = -2)"),
        ("return 1 / 0", f"1.1: ZeroDivisionError in {HERE}: division by zero (case: f = sin, x = -2)"),
        ("return f(x, delta)", f"1.1: TypeError in {HERE}: math.sin() takes exactly one argument (2 given)"),
        ("while True: pass", f"1.1: no result after 1 s, stopped in {HERE}: {ENDLESS} (case: f = sin, x = -2)"),
        ("return )", f"1.1: {HERE} is not valid Python: unmatched ')'"),
        ("raise SyntaxError('x', (5, 6, 7, 8))", f"1.1: SyntaxError in {HERE}: x"),
        ("raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})", f"1.1: E in {HERE}: its message cannot be"),
        ("raise type('E', (BaseException,), {})", f"1.1: E in {HERE}: without a message"),
        ("raise SystemExit(3)", f"1.1: SystemExit in {HERE}: 3 (case: f = sin, x = -2)"),
        ("raise NotImplementedError", f"1.1: NotImplementedError in {HERE}: without a message"),
        ("return numerical_derivative(f, x)", f"1.1: RecursionError in {HERE}: maximum recursion depth exceeded"),
        ("return 'x'", "1.1: the derivative is a str, expected a number"),
        ("return [1.0]", "1.1: the derivative is a list, expected a number"),
        ("return float('nan')", "1.1: the derivative is wrong: yours nan, expected -0.416"),
        ("raise ValueError('a\\n\\x1b[31mb')", f"1.1: ValueError in {HERE}: a \\x1b[31mb"),
        ("raise ValueError('x' * 9999)", f"1.1: ValueError in {HERE}: {'x' * 300}..."),
    ],
)
def test_sentences(body, sentence, tmp_path):
    result = by_hand(tmp_path, body)
    assert result.message.startswith(sentence)
    assert "\n" not in result.message and not result.passed


def test_a_loop_that_catches_every_exception_is_stopped(tmp_path):
    body = "while True:\n        try:\n            f(x)\n        except Exception:\n            pass"
    assert f"{ENDLESS} (case: f = sin, x = -2)" in by_hand(tmp_path, body).message


def test_a_syntax_error_matters_only_where_the_file_is_needed(tmp_path):
    folder = write(tmp_path, {"attention.py": ("    maps /= maps", "    maps /= = maps")})
    assert grade(folder, "5.2").passed
    assert grade(folder, "6.1").verdict == "syntax error"
    line = solved("attention.py").split("    maps /= maps")[0].count("\n") + 1
    for number in ("6.2", "8.2"):
        assert f"attention.py, line {line} is not valid Python: invalid syntax" in grade(folder, "6.1").message
        message = f"{number} builds on 6.1, which does not pass: {grade(folder, '6.1').message}"
        assert grade(folder, number).message == message


def test_a_name_that_is_gone(tmp_path):
    folder = write(tmp_path, {"by_hand.py": ("def neuron_gradient", "def gradient")})
    expected = "1.2: by_hand.py has no `neuron_gradient` any more: its name and arguments have to stay"
    assert grade(folder, "1.2").message == expected
    (folder / "mixing.py").unlink()
    copy = "`minicait learn init fresh` makes a new folder, to copy the file from"
    assert grade(folder, "10.2").message.startswith(f"10.2: there is no mixing.py in {folder}: {copy}")
    (folder / "by_hand.py").unlink()
    with pytest.raises(ValueError, match=f"^there is no by_hand.py in {folder}: {copy}$"):
        grade(folder, "2.1")
    write(folder)
    changed = write(folder, {"tensor.py": ("import numpy", "import json.nothing\nimport numpy")})
    assert grade(changed, "2.1").message.startswith("2.1: ModuleNotFoundError in tensor.py, line ")


def test_the_exercise_that_is_missing_is_named(tmp_path):
    for number, without, sentence in (
        ("8.2", "6.3", "8.2 builds on 6.3, which is not written yet"),
        ("2.3", "2.2", "2.3 builds on 2.2, which is not written yet"),
        ("5.2", "2.1", "5.2 builds on 2.1, which is not written yet"),
        ("7.2", "2.3", "7.2 builds on 2.3, which is not written yet"),
        ("12.1", "9.2", "12.1 builds on 9.2, which is not written yet"),
    ):
        (folder := tmp_path / number).mkdir()
        exercises = {"2.1", "2.2", "2.3", "3.1", "3.2", "4.2", "4.3", "4.4", "5.1", "5.2", "6.1", "6.2", "6.3", "7.1"}
        written = exercises | {"8.1", "8.2", "9.1", "9.2", "10.1", "11.1", "12.1"}
        result = grade(write(folder, only=(written | {number}) - {without}), number)
        assert (result.verdict, result.message) == ("blocked", sentence)


def test_all_that_is_missing_is_named(tmp_path):
    message = grade(write(tmp_path, only={"5.1", "5.2", "2.1", "3.2"}), "5.2").message
    assert message == "5.2 builds on 2.2, 2.3 and 3.1, which are not written yet"


def test_a_raise_left_over(tmp_path):
    """Below an answer it does no harm; where it runs, the line is named."""
    left = '    raise NotImplementedError("1.1")\n'
    assert grade(write(tmp_path, {"by_hand.py": (DERIVATIVE, DERIVATIVE + left)}), "1.1").passed
    result = grade(write(tmp_path, {"by_hand.py": (DERIVATIVE, f"    x = x * 1\n{left}{DERIVATIVE}")}), "1.1")
    line = f"by_hand.py, line {LINE + 1} still raises NotImplementedError; delete that line"
    assert (result.verdict, result.message) == ("not written", f"1.1: {line} when your answer is complete")


HELPERS = """    def inner(step):
        return 1 / 0

    return helper(inner)


def helper(f):
    return f(1)  # here

"""


def test_the_line_of_the_exercise_is_named_beside_that_of_a_helper(tmp_path):
    """Also if the exercise is decorated, and if its helpers are functions inside it."""

    def message(*change):
        text = "import functools\n" + solved("by_hand.py").split("import annotations\n")[1]
        text = text.replace("def numerical", "@functools.cache\ndef numerical").replace(DERIVATIVE, HELPERS)
        (folder / "by_hand.py").write_text(text := text.replace(*change))
        lines = [
            f"by_hand.py, line {text.split(mark)[0].count(chr(10)) + 1}"
            for mark in ("1 / 0", "# here", "return helper")
        ]
        return grade(folder, "1.1").message, *lines

    folder = write(tmp_path)
    said, inner, *_ = message("", "")
    assert said.startswith(f"1.1: ZeroDivisionError in {inner}: division by zero")
    said, _, helper, call = message("return f(1)", "return f()")
    assert said.startswith(f"1.1: TypeError in {helper} (called in {call}): ")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "import autograd.ops as ops",
            "imports autograd.ops: write it yourself; NumPy and Python's own modules are there",
        ),
        ("from minicait.nn import Module", "imports minicait.nn: write it yourself"),
        ("import numpy, scipy", "imports scipy: write it yourself"),
        ("import patches", "imports patches: a file of this folder needs a dot, `from .patches import ...`"),
    ],
)
def test_imports(line, sentence, tmp_path):
    folder = write(tmp_path, {"by_hand.py": (DERIVATIVE, f"    {line}\n{DERIVATIVE}")})
    assert grade(folder, "1.1").message.startswith(f"1.1: {HERE} {sentence}")
    (folder / "helpers.py").write_text(f"import os.path, math\nfrom numpy import linalg\n{line}\n")
    write(folder, {"by_hand.py": (DERIVATIVE, f"    from . import helpers\n{DERIVATIVE}")})
    assert grade(folder, "1.1").message.startswith(f"1.1: helpers.py, line 3 {sentence}")


def test_a_wrong_exercise_is_named_by_all_that_build_on_it(tmp_path):
    folder = write(tmp_path, {"layers.py": ("return y * (g - (g * y)", "return y * (g + (g * y)")})
    assert grade(folder, "4.2").message.startswith("4.2: the gradient of x is wrong at [0]: yours ")
    for number in ("6.3", "7.1", "8.2"):
        message = f"{number} builds on 4.2, which does not pass: {grade(folder, '4.2').message}"
        assert grade(folder, number).message == message
    assert grade(folder, "8.1").passed  # Attention has a softmax of its own


def test_what_changes_within_a_second_is_seen(tmp_path):
    """Also if Python has a compiled file of the same size and time."""
    folder = write(tmp_path)
    path = folder / "by_hand.py"
    for sign in "+-" * 3:
        path.write_text(solved("by_hand.py").replace("f(x - delta)", f"f(x {sign} delta)"))
        assert grade(folder, "1.1").passed == (sign == "-")


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="it does not exist; `minicait learn init` makes one"):
        grade(tmp_path / "nothing", "1.1")
    with pytest.raises(ValueError, match=r"it has no by_hand.py and __init__.py"):
        grade(tmp_path, "1.1")


@pytest.mark.parametrize(
    ("number", "hint"),
    [("6.9", "chapter 6 has 6.1, 6.2, 6.3"), ("99", "there are 1.1 to 1.2, 2.1 to 2.3"), ("", "there are 1.1")],
)
def test_numbers_that_do_not_exist(number, hint, tmp_path):
    with pytest.raises(ValueError, match=f"there is no exercise {number!r}; {hint}"):
        grade(write(tmp_path), number)

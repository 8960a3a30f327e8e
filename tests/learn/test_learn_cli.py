"""minicait learn, as a learner and as a teacher call it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from minicait.cli import main
from minicait.learn import EXERCISES, HINTS, lay_out
from tests.learn.folders import SOLUTIONS, write, write_only


def run(capsys, *arguments):
    """Exit code, output and errors."""
    code = main(["learn", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init(here, capsys):
    code, out, _ = run(capsys, "init")
    assert code == 0 and "my_engine: 14 files, 27 exercises" in out and "minicait learn check 1.1\n" in out
    assert {"README.md", "__init__.py", "tensor.py", "test_my_engine.py"} <= {p.name for p in here.glob("my_engine/*")}
    code, out, _ = run(capsys, "init", "other/one")
    assert code == 0 and "minicait learn check 1.1 --folder other/one\n" in out


def test_init_overwrites_nothing(here, capsys):
    folder = here / "my_engine"
    folder.mkdir()
    (folder / "tensor.py").write_text("mine")
    assert run(capsys, "init")[::2] == (
        2, "minicait: my_engine is not empty, and nothing in it is overwritten; name a new folder\n"
    )  # fmt: skip
    assert [p.name for p in folder.iterdir()] == ["tensor.py"] and (folder / "tensor.py").read_text() == "mine"
    (here / "file").write_text("")
    assert run(capsys, "init", "file")[::2] == (2, "minicait: file is a file; name a new folder\n")
    (here / "empty").mkdir()
    assert run(capsys, "init", "empty")[0] == 0


def test_a_learner_begins(here, capsys):
    run(capsys, "init")
    assert run(capsys, "check")[:2] == (1, "1.1 is not written yet: numerical_derivative in by_hand.py\n")
    shutil.copy(SOLUTIONS / "by_hand.py", here / "my_engine")
    assert run(capsys, "check")[:2] == (0, "1.1 passed. Next: 1.2, a neuron's gradient by hand, in by_hand.py\n")
    assert run(capsys, "check")[1].startswith("1.2 passed. Next: 2.1, record a graph, in tensor.py")
    assert run(capsys, "check")[1].startswith("2.1 is not written yet: Function.apply, Add.forward, ")
    os.chdir("my_engine")
    assert run(capsys, "check", "1.1")[0] == 0
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["passed", "passed", "not"]
    assert "2 of 27 exercises, 15 of about" in out and "next: 2.1, record a graph, in tensor.py" in out


def test_status_follows_the_files(here, capsys):
    folder = write_only(here / "my_engine", {"1.1", "1.2", "2.1", "2.2", "2.3", "3.1", "12.1"})

    def states():
        return {row["exercise"]: row["state"] for row in json.loads(run(capsys, "status", "--json")[1])}

    first = states()
    assert first["2.3"] == first["3.1"] == "passed" and first["3.2"] == "not written"
    assert first["6.3"] == "not written" and first["12.1"] == "not checked"
    assert states() == first  # now from what is remembered
    text = (folder / "tensor.py").read_text()
    (folder / "tensor.py").write_text(text.replace("gradients[x] + dx if", "dx if"))
    assert (states()["2.3"], states()["5.2"]) == ("wrong", "not written")
    (folder / ".progress.json").write_text('{"results": {"2.3": 7}, "hints": []}')
    assert states()["2.3"] == "wrong"
    (folder / ".progress.json").write_bytes(b"\xff[" * 100)
    assert states()["2.3"] == "wrong"


def test_what_the_file_says_is_no_grade(here, capsys):
    folder = lay_out(here / "my_engine")[0].parent
    claimed = {e.number: {"verdict": "passed", "message": "", "code": "0"} for e in EXERCISES}
    (folder / ".progress.json").write_text(json.dumps({"results": claimed, "hints": {}}))
    code, out, _ = run(capsys, "check", "all", "--json")
    assert code == 1 and json.loads(out)["passed"] == 0


def test_hints(here, capsys):
    run(capsys, "init")
    for number in ("6.2", "9.2"):
        hints = HINTS[number]
        shown = [" ".join(run(capsys, "check", number, "--hint")[1].split()) for _ in range(len(hints) + 1)]
        last = ", the last one"
        wanted = [f"{number}, hint {i + 1} of {len(hints)}{last * (i + 1 == len(hints))}: {h}"
                  for i, h in enumerate(hints)]  # fmt: skip
        assert shown == [*wanted, wanted[-1]]
    assert run(capsys, "check", "--hint")[1].startswith("1.1, hint 1 of 2: ")
    assert run(capsys, "check", "all", "--hint")[::2] == (
        2, "minicait: --hint is for one exercise: name its number\n"
    )  # fmt: skip


def test_milestones_and_the_end(here, capsys):
    write(here / "my_engine")
    code, out, _ = run(capsys, "check", "8.2")
    assert code == 0 and "Milestone: your engine and your CaiT compute what the project's do" in out
    assert run(capsys, "check", "22.1")[1] == "22.1 passed. That was the last one.\n"
    claimed = {e.number: {"verdict": "passed"} for e in EXERCISES}
    (here / "my_engine/.progress.json").write_text(json.dumps({"results": claimed, "hints": {}}))
    assert run(capsys, "check")[1].startswith("all 27 exercises have passed")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "99"], "there is no exercise '99'; there are 1.1 to 1.2, 2.1 to 2.3, 3.1 to 3.2, 4.1 to 4.4"),
        (["check", "6.4"], "there is no exercise '6.4'; chapter 6 has 6.1, 6.2, 6.3"),
        (["check", "\x1b[31m"], "there is no exercise '\\x1b[31m'; there are"),
        (["check", "1.1", "--folder", "none"], "there is no folder none; `minicait learn init none` makes one"),
        (["status", "--folder", "."], "it has no by_hand.py and __init__.py; `minicait learn init` makes one"),
    ],
)
def test_bad_input_is_one_sentence(here, capsys, arguments, sentence):
    run(capsys, "init")
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and sentence in err and err.startswith("minicait: ") and err.count("\n") == 1


def test_a_class_is_graded(here, capsys):
    write_only(here / "ada", {"1.1", "1.2"})
    text = (here / "ada/by_hand.py").read_text()
    (here / "ada/by_hand.py").write_text(
        text.replace("import math", 'print("hello")\nimport math').replace("return dz * x", "return dz")
    )
    code, out, err = run(capsys, "check", "all", "--folder", "ada", "--json")
    report = json.loads(out)
    assert code == 1 and "hello" in err
    assert (report["folder"], report["passed"], report["of"]) == ("ada", 1, 27)
    rows = {row["exercise"]: row for row in report["results"]}
    assert [rows[n]["verdict"] for n in ("1.1", "1.2", "2.1", "2.3")] == ["passed", "wrong", *["not written"] * 2]
    assert rows["1.2"]["message"].startswith("1.2: dL/dw is wrong: yours ") and rows["1.1"]["message"] == ""
    code, out, _ = run(capsys, "check", "1.1", "--folder", "ada", "--json")
    assert code == 0 and json.loads(out)["results"][0]["exercise"] == "1.1"
    assert "1 of 27 exercises pass" in run(capsys, "check", "all", "--folder", "ada")[1]


def test_a_folder_that_is_read_only(here, capsys, monkeypatch):
    write_only(here / "my_engine", {"1.1"})

    def refuse(*_):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("minicait.learn.progress.write_text", refuse)
    assert run(capsys, "check", "1.1")[0] == 0


def test_pytest_in_the_folder(here, capsys):
    run(capsys, "init")
    shutil.copy(SOLUTIONS / "by_hand.py", here / "my_engine")
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my_engine/test_my_engine.py",
                 "--tb=line", "-k", "1.1 or 1.2 or 2.1"]  # fmt: skip
    result = subprocess.run(arguments, cwd=here, capture_output=True, text=True)
    assert "failed, 2 passed" in result.stdout
    assert "2.1 is not written yet: Function.apply, Add.forward, Add.backward" in result.stdout

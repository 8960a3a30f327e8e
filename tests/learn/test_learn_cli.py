"""minicait learn, as a learner and as a teacher call it."""

import json
import os
import subprocess
import sys
from datetime import date

import pytest

import minicait
from minicait.cli import main
from minicait.learn import EXERCISES, HINTS, lay_out
from minicait.learn.progress import code_of
from tests.learn.folders import solved, write


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
    (here / "my_engine" / "by_hand.py").write_text(solved("by_hand.py"))
    assert run(capsys, "check")[:2] == (0, "1.1 passed.\nNext: 1.2, a neuron's gradient by hand, in by_hand.py\n")
    assert run(capsys, "check")[1] == "1.2 passed.\nNext: 2.1, record a graph, in tensor.py\n"
    assert run(capsys, "check")[1].startswith("2.1 is not written yet: Function.apply, Add.forward, ")
    os.chdir("my_engine")
    assert run(capsys, "check", "1.1")[0] == 0
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["passed", "passed", "not"]
    assert "2 of 27 exercises, 15 of about" in out and "next: 2.1, record a graph, in tensor.py" in out


def test_status_follows_the_files(here, capsys):
    folder = write(here / "my_engine", only={"1.1", "1.2", "2.1", "2.2", "2.3", "3.1", "11.1", "12.1"})

    def states():
        return {row["exercise"]: row["state"] for row in json.loads(run(capsys, "status", "--json")[1])}

    first = states()
    assert first["2.3"] == first["3.1"] == "passed" and first["3.2"] == "not written"
    assert first["6.3"] == "not written" and first["12.1"] == "needs 3.2"
    assert first["11.1"] == "needs 3.2"
    text = (folder / "tensor.py").read_text()
    (folder / "tensor.py").write_text(text.replace("gradients[x] + dx if", "dx if"))
    assert (states()["2.3"], states()["5.2"]) == ("wrong", "not written")
    (folder / "tensor.py").write_text("x = = 1\n")
    assert [states()[n] for n in ("1.1", "2.1", "2.2", "2.3")] == ["passed", *["syntax error"] * 2, "needs 2.2"]


@pytest.mark.parametrize(
    "content",
    [b"\xff[" * 100, b"[" * 50_000, b'{"passed": {"2.3": 7}, "hints": []}', b'{"passed": 1, "hints": {"1.1": []}}'],
)
def test_a_damaged_progress_file(content, here, capsys):
    folder = write(here / "my_engine", only={"1.1"})
    (folder / ".progress.json").write_bytes(content)
    assert run(capsys, "check")[1].startswith("1.1 passed")
    (folder / ".progress.json").write_bytes(content)
    assert "1 of 27 exercises" in run(capsys, "status")[1]


def claim(folder, *left_out, day="2026-01-02"):
    """Write a progress file in which exercises have passed, with the right digest."""
    claimed = {e.number: {"day": day, "code": code_of(folder)} for e in EXERCISES if e.number not in left_out}
    (folder / ".progress.json").write_text(json.dumps({"passed": claimed, "hints": {}}))


def test_what_the_file_says_is_no_grade(here, capsys):
    folder = lay_out(here / "my_engine")[0].parent
    claim(folder)
    code, out, _ = run(capsys, "check", "all", "--json")
    assert code == 1 and json.loads(out)["passed"] == 0
    claim(folder)
    assert "0 of 27 exercises, 0 of about" in run(capsys, "status")[1]
    claim(folder)
    code, out, _ = run(capsys, "check")  # runs all
    assert code == 1 and out.endswith("0 of 27 exercises pass\n")


def test_only_the_table_for_the_learner_remembers_training(here, capsys):
    folder = write(here / "my_engine")
    assert run(capsys, "status")[1].count(" not checked ") == 1
    claim(folder)
    out = run(capsys, "status")[1]
    assert "12.1  passed on 2026-01-02       20  your CaiT learns shapes (builds on 8.2, 9.1, 9.2, 10.1, 11.1)\n" in out
    assert "27 of 27 exercises" in out
    states = {row["exercise"]: row["state"] for row in json.loads(run(capsys, "status", "--json")[1])}
    assert states.pop("12.1") == "not checked" and {*states.values()} == {"passed"}
    claim(folder, day="\x1b[31m")
    assert "12.1  not checked " in run(capsys, "status")[1]
    claim(folder)
    (folder / "loss.py").write_text((folder / "loss.py").read_text() + "# changed\n")
    assert "12.1  not checked " in run(capsys, "status")[1]


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
    assert "\nStill open: 26. Next: 1.1, numerical derivative, in by_hand.py\n" in out


def test_next_is_the_first_that_is_open(here, capsys):
    folder = write(here / "my_engine")
    claim(folder, "3.1", "3.2", "22.1")
    assert run(capsys, "check", "22.1")[1] == "22.1 passed.\nStill open: 2. Next: 3.1, unbroadcast, in tensor.py\n"
    assert run(capsys, "check")[1] == "3.1 passed.\nNext: 3.2, matmul and its gradient, in tensor.py\n"
    assert run(capsys, "check")[1] == "3.2 passed.\nAll 27 exercises have passed.\n"
    (folder / "tensor.py").write_text((folder / "tensor.py").read_text().replace("def unbroadcast", "def other"))
    assert run(capsys, "check", "3.1")[0] == 1
    assert run(capsys, "check", "1.2")[1] == "1.2 passed.\nNext: 3.1, unbroadcast, in tensor.py\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "99"], "there is no exercise '99'; there are 1.1 to 1.2, 2.1 to 2.3, 3.1 to 3.2, 4.1 to 4.4"),
        (["check", "6.4"], "there is no exercise '6.4'; chapter 6 has 6.1, 6.2, 6.3"),
        (["check", "\x1b[31m"], "there is no exercise '\\x1b[31m'; there are"),
        (
            ["check", "1.1", "--folder", "none"],
            "there is no folder none here; go to the folder that contains it, or name it "
            "with --folder (`minicait learn init none` makes a new one)",
        ),
        (["check", "1.1,,2.1"], "there is no exercise ''; there are 1.1"),
        (["check", "all", "1.1"], "there is no exercise 'all'"),
        (["check", "1.1", "1.2", "--hint"], "--hint is for one exercise: name its number"),
        (["check", "1.1", "--hint", "--json"], "--hint prints text: leave out --json"),
        (["check", "9.9", "--json"], "there is no exercise '9.9'; chapter 9 has 9.1, 9.2"),
        (["check", "1.1", "--json", "--folder", "none"], "there is no folder none"),
        (["check", "--json", "--folder", "."], "it has no by_hand.py and __init__.py"),
        (["status", "--json", "--folder", "none"], "there is no folder none"),
        (["status", "--json", "--folder", "."], "it has no by_hand.py and __init__.py"),
        (["init", "my_engine/again"], "my_engine is a folder of exercises already; name a new folder outside it"),
        (["status", "--folder", "."], "it has no by_hand.py and __init__.py; `minicait learn init` makes one"),
    ],
)
def test_bad_input_is_one_sentence(here, capsys, arguments, sentence):
    run(capsys, "init")
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and sentence in err and err.startswith("minicait: ") and err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "x"])
def test_bad_limits(here, capsys, seconds):
    with pytest.raises(SystemExit) as stop:
        run(capsys, "check", "1.1", "--timeout", seconds)
    assert stop.value.code == 2 and f"--timeout: seconds above 0, got {seconds!r}" in capsys.readouterr().err


def test_init_inside_a_folder_of_exercises(here, capsys):
    run(capsys, "init")
    os.chdir("my_engine")
    code, _, err = run(capsys, "init")
    assert (
        code == 2
        and err == f"minicait: {here}/my_engine is a folder of exercises already; name a new folder outside it\n"
    )
    assert not (here / "my_engine/my_engine").exists()


def test_several_exercises_with_a_limit(here, capsys):
    folder = write(here / "my_engine", {"by_hand.py": ("    y = math", "    while True: pass\n    y = math")})
    code, out, _ = run(capsys, "check", "1.1", "1.2", "2.1", "1.1", "--timeout", "2")
    lines = out.splitlines()
    assert code == 1 and [lines[0], *lines[2:]] == ["1.1 passed.", "2.1 passed.", "2 of 3 exercises pass"]
    assert lines[1].startswith("1.2: no result after 2 s, stopped in by_hand.py, line ")
    assert (
        run(capsys, "check", "1.1,2.1")[1]
        == run(capsys, "check", "1.1,", "2.1")[1]
        == ("1.1 passed.\n2.1 passed.\n2 of 2 exercises pass\n")
    )
    code, out, _ = run(capsys, "check", "1.1", "2.1", "--json", "--folder", str(folder))
    assert code == 0 and [row["exercise"] for row in json.loads(out)["results"]] == ["1.1", "2.1"]


def test_a_class_is_graded(here, capsys):
    write(here / "ada", only={"1.1", "1.2"})
    text = (here / "ada/by_hand.py").read_text()
    (here / "ada/by_hand.py").write_text(
        text.replace("import math", 'print("hello")\nimport math').replace("return dz * x", "return dz")
    )
    code, out, err = run(capsys, "check", "all", "--folder", "ada", "--json")
    report = json.loads(out)
    assert code == 1 and "hello" in err
    assert (report["folder"], report["passed"], report["of"]) == ("ada", 1, 27)
    assert report["minicait"] == minicait.__version__ and date.fromisoformat(report["date"])
    rows = {row["exercise"]: row for row in report["results"]}
    assert [rows[n]["verdict"] for n in ("1.1", "1.2", "2.1", "2.3")] == ["passed", "wrong", *["not written"] * 2]
    assert rows["1.2"]["message"].startswith("1.2: dL/dw is wrong: yours ") and rows["1.1"]["message"] == ""
    assert rows["1.1"]["minutes"] == 5 and rows["1.1"]["seconds"] >= 0
    code, out, _ = run(capsys, "check", "1.1", "--folder", "ada", "--json")
    assert code == 0 and json.loads(out)["results"][0]["exercise"] == "1.1"
    out = run(capsys, "check", "all", "--folder", "ada")[1]
    assert out.startswith("hello\n1.1 passed.\nhello\n1.2: ") and "1 of 27 exercises pass" in out
    assert "hello" not in "".join(map(str, run(capsys, "status", "--folder", "ada")))


def test_a_folder_that_is_read_only(here, capsys, monkeypatch):
    write(here / "my_engine", only={"1.1"})

    def refuse(*_):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("minicait.learn.progress.write_text", refuse)
    assert run(capsys, "check", "1.1")[0] == 0


def test_pytest_in_the_folder(here, capsys):
    run(capsys, "init")
    (here / "my_engine" / "by_hand.py").write_text(solved("by_hand.py"))
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my_engine/test_my_engine.py",
                 "--tb=line", "-k", "1.1 or 1.2 or 2.1"]  # fmt: skip
    result = subprocess.run(arguments, cwd=here, capture_output=True, text=True)
    assert "failed, 2 passed" in result.stdout
    assert "2.1 is not written yet: Function.apply, Add.forward, Add.backward" in result.stdout

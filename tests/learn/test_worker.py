"""Nothing that a learner's code does ends, stops or forges the grading of the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from minicait.cli import main
from minicait.learn import find, worker
from minicait.learn.grade import Grader
from minicait.learn.worker import Printed, Worker
from tests.learn.folders import write
from tests.learn.test_grading import DERIVATIVE, ENDLESS, HERE

SWALLOWS = """while True:  # twice: the exception of the timer may come between two rounds of the inner loop
        try:
            while True:
                try:
                    f(x)
                except:
                    pass
        except:
            pass"""


@pytest.fixture(scope="module")
def running():
    """A worker, and what it showed."""
    shown = []
    with Worker(shown.append) as worker:
        yield worker, shown


def answer(folder, body):
    return write(folder, {"by_hand.py": (DERIVATIVE, f"    {body}\n")})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("import os; os._exit(0)", "1.1: your code ended Python, with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "1.1: your code ended Python, by SIGKILL"),
        ("raise KeyboardInterrupt", f"1.1: KeyboardInterrupt in {HERE}: without a message (case: f = sin, x = -2)"),
        ("import sys; sys.exit(0)", f"1.1: SystemExit in {HERE}: 0 (case: f = sin, x = -2)"),
        ("while True: pass", f"1.1: no result after 1 s, stopped in {HERE}: {ENDLESS} (case: f = sin, x = -2)"),
        (SWALLOWS, "1.1: no result after 1 s, and no exception stops it: " + ENDLESS),
        ("return input()", f"1.1: EOFError in {HERE}: EOF when reading a line (case: f = sin, x = -2)"),
    ],
)
def test_what_ends_or_stops_a_check(body, sentence, running, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "GRACE", 1.0)
    result = Grader(answer(tmp_path, body), running[0].run, seconds=1).grade(find("1.1"))
    assert result.message == sentence and not result.passed
    after = Grader(tmp_path, running[0].run)
    assert after.grade(find("1.2")).passed and after.grade(find("3.1")).passed


def test_what_is_printed_is_shown_as_it_comes(running, tmp_path):
    worker, shown = running
    shown.clear()
    body = "print('hello'); import sys; print('x', file=sys.stderr, end='')\n    return 1.0"
    Grader(answer(tmp_path, body), worker.run).grade(find("1.1"))
    assert "".join(shown) == "hello\nx\n"


def test_a_flood_of_output_is_cut():
    shown = []
    printed = Printed(shown.append)
    for line in range(1000):
        print("line", line, file=printed)
    printed.finish()
    assert "".join(shown).splitlines() == [
        *(f"line {i}" for i in range(10)), "... 970 lines ...", *(f"line {i}" for i in range(980, 1000))
    ]  # fmt: skip
    shown.clear()
    printed = Printed(shown.append)
    printed.write("y" * 5000)
    printed.finish()
    assert "".join(shown) == "y" * 300 + "...\n"


def test_what_the_failing_case_printed_is_shown(running, tmp_path):
    worker, shown = running
    shown.clear()
    body = "print('x =', x)\n    return (f(x + delta) - f(x - delta)) / (2 * delta) + (x == 3)"
    for _ in range(40):
        body = "print('more')\n    " + body
    Grader(answer(tmp_path, body), worker.run).grade(find("1.1"))
    assert shown[-1] == "x = 3.0\n"


def test_only_the_prints_of_what_was_asked_for_are_shown(tmp_path):
    shown = []
    folder = write(
        tmp_path,
        {
            "layers.py": (
                "        (y,) = ctx.saved\n",
                "        (y,) = ctx.saved\n        print(y.shape)\n        g = 2 * g\n",
            )
        },
    )
    with Worker(shown.append, asked=[find("7.1")]) as worker:
        assert Grader(folder, worker.run).grade(find("7.1")).message.startswith("7.1 builds on 4.2")
        asked = [*shown]
        assert not Grader(folder, worker.run).grade(find("4.2")).passed
    assert asked == shown == ["(2, 2, 4, 4)\n"]


def test_what_is_printed_is_no_result_and_no_escape(tmp_path, capfd):
    """Neither through Python nor through a subprocess."""
    forged = json.dumps({"passed": 1, "of": 1})
    body = f"import os; print('''{forged}'''); print('\\x1b[31mred\\ta'); os.system('echo {{}}')\n    return 7.0"
    folder = answer(tmp_path, body)
    assert main(["learn", "check", "1.1", "--folder", str(folder), "--json"]) == 1
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert (report["passed"], report["results"][0]["verdict"]) == (0, "wrong")
    assert {*err.splitlines()} == {forged, "\\x1b[31mred" + " " * 8 + "a", "{}"}


def endless(folder):
    """A command whose check has begun, and swallows every exception."""
    answer(folder, "print('begun', flush=True)\n    " + SWALLOWS)
    command = [sys.executable, "-m", "minicait", "learn", "check", "1.1", "--folder", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "begun\n"
    return process


def test_ctrl_c_ends_the_command(tmp_path):
    process = endless(tmp_path)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "minicait: stopped\n")
    assert time.monotonic() - start < 10  # the limit is 20 s
    with pytest.raises(ProcessLookupError):  # nothing is left behind
        _wait_for_group(process.pid)


def test_a_check_ends_with_its_parent(tmp_path):
    process = endless(tmp_path)
    process.kill()
    process.communicate()
    with pytest.raises(ProcessLookupError):
        _wait_for_group(process.pid)


def _wait_for_group(group):
    """Raise ProcessLookupError as soon as no process of a group is left."""
    for _ in range(100):
        os.killpg(group, 0)
        time.sleep(0.1)

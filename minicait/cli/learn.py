"""minicait learn: write an engine and a small CaiT yourself, graded exercise by exercise."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Container, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from .. import __version__
from ..learn import EXERCISES, HINTS, Exercise, Result, find, lay_out
from ..learn.exercise import BLOCKED, PASSED
from ..learn.exercises import direct_needs
from ..learn.grade import Grader
from ..learn.progress import Progress
from ..learn.worker import Worker
from ..text import printable
from .options import add_command

FOLDER = Path("my_engine")
ABOUT = """Build it yourself: an autograd engine and a small CaiT, from files with signatures and docstrings only. Each
exercise is checked by running your code and comparing its values and gradients with the project's.
"""
EXAMPLES = """examples:
  minicait learn init              my_engine/, with everything to begin
  minicait learn check 1.1         grade an exercise
  minicait learn check             the first that has not passed yet
  minicait learn check 6.2 --hint  a hint; once more, the next one
  minicait learn status            how far you are
"""
CHECK = """examples:
  minicait learn check 6.2
  minicait learn check 6.1 6.2 6.3 --timeout 60
  minicait learn check all --folder students/ada --json

exit codes:
  0  passed
  1  a wrong answer, or one that is not written yet
  2  bad input, such as a number that does not exist
"""


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "learn",
        _needs_an_action,
        "build an engine and a CaiT yourself, checked step by step",
        EXAMPLES,
        ABOUT,
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    init = add_command(actions, "init", _init, "lay out the files to begin with")
    init.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="a new folder (default: %(default)s)")
    check = add_command(actions, "check", _check, "grade an exercise, or give a hint", CHECK)
    check.add_argument(
        "numbers", nargs="*", metavar="number", help="such as 6.2, or all (default: the first that has not passed yet)"
    )
    check.add_argument("--hint", action="store_true", help="do not grade: print a hint; once more, the next one")
    status = add_command(actions, "status", _status, "show which exercises pass")
    for action in (check, status):
        action.add_argument("--folder", type=Path, help=f"of your files (default: {FOLDER}, or this one)")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.add_argument("--timeout", type=_seconds, metavar="SECONDS",
                            help="for each check (default: 20, and 900 for 12.1)")  # fmt: skip


def _needs_an_action(_: argparse.Namespace) -> int:
    return 2  # argparse has said so already


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) and seconds > 0:
            return seconds
    raise argparse.ArgumentTypeError(f"seconds above 0, got {text!r}")


def _init(args: argparse.Namespace) -> int:
    written = lay_out(args.folder)
    print(printable(f"{args.folder}: {len(written)} files, {len(EXERCISES)} exercises; README.md says how to go on"))
    option = "" if args.folder == FOLDER else f" --folder {args.folder}"
    print(printable(f"begin in {args.folder / EXERCISES[0].file}, then: minicait learn check 1.1{option}"))
    return 0


def _folder(args: argparse.Namespace) -> Path:
    if args.folder is not None:
        folder: Path = args.folder
    else:
        folder = Path() if not FOLDER.exists() and Path("by_hand.py").is_file() else FOLDER
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder} here; go to the folder that contains it, or name it with --folder "
            f"(`minicait learn init {folder}` makes a new one)"
        )
    return folder


def _check(args: argparse.Namespace) -> int:
    folder = _folder(args)
    progress = Progress(folder)
    named = [number for text in args.numbers for number in text.strip(",").split(",")]
    numbers = named or [exercise.number for exercise in progress.still_open()[:1]] or ["all"]
    exercises = [*EXERCISES] if numbers == ["all"] else [find(number) for number in dict.fromkeys(numbers)]
    if args.hint and len(exercises) > 1:
        raise ValueError("--hint is for one exercise: name its number")
    if args.hint and args.json:
        raise ValueError("--hint prints text: leave out --json")
    if args.hint:
        return _hint(exercises[0], progress)
    results = []
    with _grader(folder, args, exercises) as grader:
        for exercise in exercises:
            results.append(grader.grade(exercise))
            progress.remember(results[-1])
            if not args.json:
                print(_sentence(results[-1]), flush=True)
    progress.write()
    passed = sum(result.passed for result in results)
    if args.json:
        print(json.dumps(_report(folder, results), indent=1))
    elif len(exercises) > 1:
        print(f"{passed} of {len(results)} exercises pass")
    elif passed:
        print(_what_next(exercises[0], progress))
    return int(passed < len(results))


@contextlib.contextmanager
def _grader(folder: Path, args: argparse.Namespace, asked: Container[Exercise]) -> Iterator[Grader]:
    """Grades in another process, and shows what the code prints there for these exercises."""
    with Worker(_on_stderr if args.json else _on_stdout, asked) as worker:
        yield Grader(folder, worker.run, args.timeout)


def _on_stdout(text: str) -> None:
    lines = (printable(line) for line in text.expandtabs().split("\n"))
    print("\n".join(lines), end="", flush=True)


def _on_stderr(text: str) -> None:
    """Standard output is for JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        _on_stdout(text)


def _hint(exercise: Exercise, progress: Progress) -> int:
    hints = HINTS[exercise.number]
    index = progress.next_hint(exercise.number, len(hints))
    progress.write()
    last = ", the last one" if index + 1 == len(hints) else ""
    text = f"{exercise.number}, hint {index + 1} of {len(hints)}{last}: {hints[index]}"
    print(textwrap.fill(text, shutil.get_terminal_size((80, 24)).columns))
    return 0


def _sentence(result: Result) -> str:
    if not result.passed:
        return result.message
    return f"{result.number} passed{f': {result.message}' if result.message else ''}."


def _what_next(exercise: Exercise, progress: Progress) -> str:
    milestone = f"Milestone: {exercise.milestone}.\n" if exercise.milestone else ""
    if not (still_open := progress.still_open()):
        return f"{milestone}All {len(EXERCISES)} exercises have passed."
    earlier = EXERCISES.index(still_open[0]) < EXERCISES.index(exercise)
    count = f"Still open: {len(still_open)}. " if earlier else ""
    return f"{milestone}{count}Next: {still_open[0]}, in {still_open[0].file}"


def _report(folder: Path, results: list[Result]) -> dict[str, Any]:
    rows = [
        {"exercise": r.number, "title": find(r.number).title, "minutes": find(r.number).minutes,
         "verdict": r.verdict, "message": r.message, "seconds": round(r.seconds, 2)}
        for r in results
    ]  # fmt: skip
    return {
        "minicait": __version__, "date": date.today().isoformat(), "folder": str(folder),
        "passed": sum(result.passed for result in results), "of": len(results), "results": rows,
    }  # fmt: skip


def _status(args: argparse.Namespace) -> int:
    folder = _folder(args)
    progress = Progress(folder)
    with _grader(folder, args, asked=()) as grader:
        states = {exercise: _state(exercise, grader, progress) for exercise in EXERCISES}
    progress.write()
    if args.json:
        rows = [
            {"exercise": e.number, "chapter": e.chapter, "minutes": e.minutes, "needs": e.needs, "state": state}
            for e, state in states.items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    for exercise in EXERCISES:
        if states[exercise] == NOT_RUN and (day := progress.passed_on(exercise)):
            states[exercise] = f"passed on {day}"
    width = max(map(len, states.values()))
    print(f"{'':5} {'state':{width}}  minutes  exercise")
    for e, state in states.items():
        needs = f" (builds on {', '.join(direct_needs(e))})" if e.needs else ""
        print(f"{e.number:5} {state:{width}}  {e.minutes:7}  {e.title}{needs}")
    done = [exercise for exercise, state in states.items() if state.startswith(PASSED)]
    minutes, of = (sum(e.minutes for e in exercises) for exercises in (done, EXERCISES))
    following = next((e for e in EXERCISES if e not in done), None)
    print(f"\n{len(done)} of {len(EXERCISES)} exercises, {minutes} of about {of} minutes"
          + (f"; next: {following}, in {following.file}" if following else ""))  # fmt: skip
    return 0


NOT_RUN = "not checked"


def _state(exercise: Exercise, grader: Grader, progress: Progress) -> str:
    """The verdict for the files as they are. Training takes too long for a table."""
    result = grader.without_running(exercise) if exercise.slow else grader.grade(exercise)
    if result is None:
        return NOT_RUN
    progress.remember(result)
    return result.verdict if result.verdict != BLOCKED else f"needs {result.needs[0]}"

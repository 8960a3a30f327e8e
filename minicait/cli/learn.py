"""minicait learn: write an engine and a small CaiT yourself, graded exercise by exercise."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..learn import EXERCISES, HINTS, Exercise, Result, find, grade, grade_all, lay_out
from ..learn.exercise import BLOCKED, NOT_WRITTEN
from ..learn.exercises import after
from ..learn.grade import unwritten
from ..learn.progress import Progress
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
  minicait learn check all --folder students/ada --json

exit codes:
  0  passed
  1  a wrong answer, or one that is not written yet
  2  bad input, such as a number that does not exist
"""


def add_to(commands: Any) -> None:
    parser = add_command(
        commands, "learn", _nothing, "build an engine and a CaiT yourself, checked step by step", EXAMPLES, ABOUT
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    init = add_command(actions, "init", _init, "lay out the files to begin with")
    init.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="a new folder (default: %(default)s)")
    check = add_command(actions, "check", _check, "grade an exercise, or give a hint", CHECK)
    check.add_argument("number", nargs="?", help="such as 6.2, or all (default: the first that has not passed yet)")
    check.add_argument("--hint", action="store_true", help="do not grade: print a hint; once more, the next one")
    status = add_command(actions, "status", _status, "show which exercises pass")
    for action in (check, status):
        action.add_argument("--folder", type=Path, help=f"of your files (default: {FOLDER}, or this one)")
        action.add_argument("--json", action="store_true", help="print JSON")


def _nothing(_: argparse.Namespace) -> int:
    return 2


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
        raise ValueError(f"there is no folder {folder}; `minicait learn init {folder}` makes one")
    return folder


def _check(args: argparse.Namespace) -> int:
    folder = _folder(args)
    progress = Progress(folder)
    if args.number == "all":
        if args.hint:
            raise ValueError("--hint is for one exercise: name its number")
        with _prints_elsewhere(args.json):
            results = list(_reported(grade_all(folder), progress, quiet=args.json))
        return _summary(folder, results, args.json)
    exercise = progress.first_open() if args.number is None else find(args.number)
    if exercise is None:
        print(f"all {len(EXERCISES)} exercises have passed; `minicait learn check all` runs them again")
        return 0
    if args.hint:
        return _hint(exercise, progress)
    with _prints_elsewhere(args.json):
        result = grade(folder, exercise.number)
    progress.remember(result)
    progress.write()
    if args.json:
        return _summary(folder, [result], True)
    print(_sentence(exercise, result))
    return int(not result.passed)


def _hint(exercise: Exercise, progress: Progress) -> int:
    hints = HINTS[exercise.number]
    index = progress.next_hint(exercise.number, len(hints))
    progress.write()
    last = ", the last one" if index + 1 == len(hints) else ""
    text = f"{exercise.number}, hint {index + 1} of {len(hints)}{last}: {hints[index]}"
    print(textwrap.fill(text, shutil.get_terminal_size((80, 24)).columns))
    return 0


def _sentence(exercise: Exercise, result: Result) -> str:
    if not result.passed:
        return result.message
    lines = f"{exercise.number} passed{f': {result.message}' if result.message else ''}."
    if exercise.milestone:
        lines += f"\nMilestone: {exercise.milestone}."
    following = after(exercise)
    return lines + (f" Next: {following}, in {following.file}" if following else " That was the last one.")


def _reported(results: Iterator[Result], progress: Progress, quiet: bool) -> Iterator[Result]:
    for result in results:
        progress.remember(result)
        if not quiet:
            passed = f"{result.number} passed{f': {result.message}' if result.message else ''}"
            print(passed if result.passed else result.message, flush=True)
        yield result
    progress.write()


def _summary(folder: Path, results: list[Result], as_json: bool) -> int:
    passed = sum(result.passed for result in results)
    if as_json:
        rows = [
            {"exercise": r.number, "title": find(r.number).title, "verdict": r.verdict, "message": r.message,
             "seconds": round(r.seconds, 2)}
            for r in results
        ]  # fmt: skip
        print(json.dumps({"folder": str(folder), "passed": passed, "of": len(results), "results": rows}, indent=1))
    else:
        print(f"{passed} of {len(results)} exercises pass")
    return int(passed < len(results))


@contextlib.contextmanager
def _prints_elsewhere(elsewhere: bool) -> Iterator[None]:
    """What the learner's code prints goes to standard error, if standard output is for JSON."""
    with contextlib.redirect_stdout(sys.stderr) if elsewhere else contextlib.nullcontext():
        yield


def _status(args: argparse.Namespace) -> int:
    folder = _folder(args)
    progress = Progress(folder)
    with _prints_elsewhere(args.json):
        known: dict[str, Result] = {}
        states = {exercise: _state(folder, exercise, progress, known) for exercise in EXERCISES}
    progress.write()
    if args.json:
        rows = [
            {"exercise": e.number, "chapter": e.chapter, "minutes": e.minutes, "state": s} for e, s in states.items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'':5} {'state':12} chapter  minutes  exercise")
    for e, state in states.items():
        print(f"{e.number:5} {state:12} {e.chapter:7}  {e.minutes:7}  {e.title}")
    done = [exercise for exercise, state in states.items() if state == "passed"]
    minutes, of = (sum(e.minutes for e in exercises) for exercises in (done, EXERCISES))
    following = next((e for e, state in states.items() if state != "passed"), None)
    print(f"\n{len(done)} of {len(EXERCISES)} exercises, {minutes} of about {of} minutes"
          + (f"; next: {following}, in {following.file}" if following else ""))  # fmt: skip
    return 0


def _state(folder: Path, exercise: Exercise, progress: Progress, known: dict[str, Result]) -> str:
    """The verdict for the files as they are. Training is not run for it."""
    result = progress.known(exercise)
    if result is None and exercise.slow:
        return NOT_WRITTEN if unwritten(folder, exercise) else "not checked"
    if result is None:
        result = grade(folder, exercise.number, known=known)
        progress.remember(result)
    known[exercise.number] = result
    return result.verdict if result.verdict != BLOCKED else f"needs {result.needs}"

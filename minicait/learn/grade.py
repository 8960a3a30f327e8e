"""Grading: run the check of an exercise on a learner's folder, and say in one sentence what it found."""

from __future__ import annotations

import ast
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..text import printable
from .checks import CHECKS
from .exercise import BLOCKED, NOT_WRITTEN, PASSED, WRONG, Exercise, Result, Wrong
from .exercises import EXERCISES, find
from .learner import Learner, opened
from .limit import TooLong, time_limit

LONGEST = 300  # characters of somebody's error message


def grade(folder: Path, number: str, seconds: float | None = None, known: dict[str, Result] | None = None) -> Result:
    """Check one exercise.

    seconds  time limit, instead of that of the exercise
    known    results of other exercises for the same files, which need not run again

    If it fails although it is written, the exercises it builds on are checked, too: the first of them that fails is
    the reason.
    """
    return _grade(folder, find(number), {} if known is None else known, seconds)


def grade_all(folder: Path) -> Iterator[Result]:
    """Check all exercises, in order."""
    known: dict[str, Result] = {}
    for exercise in EXERCISES:
        known[exercise.number] = _grade(folder, exercise, known)
        yield known[exercise.number]


def _grade(folder: Path, exercise: Exercise, known: dict[str, Result], seconds: float | None = None) -> Result:
    start = time.perf_counter()
    needs = next(_failing(folder, exercise, known), "") if exercise.slow and not unwritten(folder, exercise) else ""
    verdict, message = (BLOCKED, needs) if needs else _run(folder, exercise, seconds or exercise.seconds)
    if verdict == BLOCKED:
        needs = message
    elif verdict == WRONG and not exercise.slow:
        needs = next(_failing(folder, exercise, known), "")
    if needs:
        verdict, message = BLOCKED, f"{exercise.number} builds on {needs}, which {_state(needs, known)}"
    return Result(exercise.number, verdict, message, time.perf_counter() - start, needs)


def _failing(folder: Path, exercise: Exercise, known: dict[str, Result]) -> Iterator[str]:
    """Earlier exercises that do not pass; for one that is blocked, what blocks it."""
    for earlier in (e for e in EXERCISES if e.number in exercise.needs):
        if earlier.number not in known:
            known[earlier.number] = _grade(folder, earlier, known)
        if not known[earlier.number].passed:
            yield known[earlier.number].needs or earlier.number


def _state(number: str, known: dict[str, Result]) -> str:
    verdict = known[number].verdict if number in known else NOT_WRITTEN
    return "is not written yet" if verdict == NOT_WRITTEN else "does not pass yet"


def _run(folder: Path, exercise: Exercise, seconds: float) -> tuple[str, str]:
    """Verdict and message of a check, whatever the learner's code does; if BLOCKED, the number of what is missing."""
    number = exercise.number
    with opened(folder) as me:
        if names := unwritten(folder, exercise):
            return NOT_WRITTEN, f"{number} is not written yet: {', '.join(names)} in {exercise.file}"
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"), time_limit(seconds):
                warnings.simplefilter("ignore")
                return PASSED, CHECKS[number](me) or ""
        except Wrong as wrong:
            return WRONG, f"{number}: {_shortened(wrong)}{_case(me)}"
        except TooLong as error:
            where = me.where(error)
            return (
                WRONG,
                f"{number}: no result after {seconds:g} s, stopped in {where or 'NumPy'}: is there an endless loop?",
            )
        except NotImplementedError as error:
            if (missing := _raised_by_starter(error)) is not None and missing != number:
                return BLOCKED, missing
            return WRONG, _raised(exercise, me, error)
        except SyntaxError as error:
            return WRONG, f"{number}: {me.where(error) or exercise.file} is not valid Python: {printable(error.msg)}"
        except (Exception, SystemExit) as error:
            return WRONG, _raised(exercise, me, error)


def _raised(exercise: Exercise, me: Learner, error: BaseException) -> str:
    where = me.where(error, exercise)
    at = f"{type(error).__name__} in {where}" if where else type(error).__name__
    return f"{exercise.number}: {at}: {_shortened(error) or 'without a message'}{_case(me)}"


def _shortened(error: BaseException) -> str:
    text = printable(" ".join(str(error).split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _case(me: Learner) -> str:
    return f" (case: {me.case})" if me.case else ""


def _raised_by_starter(error: NotImplementedError) -> str | None:
    """The exercise whose starter raised this."""
    return next((e.number for e in EXERCISES if error.args == (e.number,)), None)


def unwritten(folder: Path, exercise: Exercise) -> list[str]:
    """Functions of an exercise that are still as in the starters: they end by raising its number."""
    try:
        tree = ast.parse((folder / exercise.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # running it says more
    parents: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    parents += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    starter = ast.unparse(ast.parse(f'raise NotImplementedError("{exercise.number}")'))
    return [
        prefix + node.name
        for prefix, parent in parents
        for node in parent.body
        if isinstance(node, ast.FunctionDef) and ast.unparse(node.body[-1]) == starter
    ]

"""Grading: the results of exercises, and which earlier exercise is to blame if one fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .exercise import BLOCKED, NOT_WRITTEN, SYNTAX_ERROR, WRONG, Exercise, Result
from .exercises import EXERCISES, find
from .learner import require_exercises
from .source import unwritten
from .verdict import run_check


class Grader:
    """Grades the exercises of one folder, each of them once.

    run      runs the check of an exercise, by default in this process
    seconds  time limit of each check, instead of its own
    known    results for the same files, which need not run again
    """

    def __init__(
        self, folder: Path, run: Callable[[Path, Exercise, float], Result] = run_check,
        seconds: float | None = None, known: dict[str, Result] | None = None,
    ) -> None:  # fmt: skip
        require_exercises(folder)
        self.folder, self.run, self.seconds = folder, run, seconds
        self.known = {} if known is None else known

    def grade(self, exercise: Exercise) -> Result:
        if exercise.number not in self.known:
            start = time.perf_counter()
            result = self._grade(exercise)
            self.known[exercise.number] = replace(result, seconds=time.perf_counter() - start)
        return self.known[exercise.number]

    def _grade(self, exercise: Exercise) -> Result:
        if result := self.without_running(exercise) if exercise.slow else self.not_written(exercise):
            return result
        result = self.run(self.folder, exercise, self.seconds or exercise.seconds)
        return (self.blocked(exercise, result.needs) if result.verdict in (SYNTAX_ERROR, WRONG) else None) or result

    def without_running(self, exercise: Exercise) -> Result | None:
        """The result, if it is known before the check runs."""
        return self.not_written(exercise) or self.blocked(exercise)

    def not_written(self, exercise: Exercise) -> Result | None:
        names = unwritten(self.folder, exercise)
        sentence = f"{exercise.number} is not written yet: {', '.join(names)} in {exercise.file}"
        return Result(exercise.number, NOT_WRITTEN, sentence) if names else None

    def blocked(self, exercise: Exercise, stopped_by: tuple[str, ...] = ()) -> Result | None:
        """The result, if exercises that this one builds on are not written, or else one of them does not pass."""
        needed = [e for e in EXERCISES if e.number in exercise.needs]
        missing = [e.number for e in EXERCISES if e.number in stopped_by or (e in needed and self.not_written(e))]
        if missing:
            which = "is" if len(missing) == 1 else "are"
            return _blocked(exercise, missing, f"{_listed(missing)}, which {which} not written yet")
        failed = next((found for found in map(self.grade, needed) if not found.passed), None)
        if failed is None:
            return None
        return _blocked(exercise, [failed.number], f"{failed.number}, which does not pass: {failed.message}")


def _blocked(exercise: Exercise, needs: list[str], reason: str) -> Result:
    return Result(exercise.number, BLOCKED, f"{exercise.number} builds on {reason}", needs=tuple(needs))


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def grade(folder: Path, number: str, seconds: float | None = None, known: dict[str, Result] | None = None) -> Result:
    """Check one exercise in this process. `known` are results of others for the same files."""
    others = {other: result for other, result in (known or {}).items() if other != number}
    return Grader(folder, seconds=seconds, known=others).grade(find(number))

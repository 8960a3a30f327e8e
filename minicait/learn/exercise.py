"""An exercise, and the result of its check."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, NOT_WRITTEN, BLOCKED, SYNTAX_ERROR, WRONG = "passed", "not written", "blocked", "syntax error", "wrong"


class Wrong(Exception):  # noqa: N818  (a verdict, not an error)
    """An answer is wrong. The message says what and where, without the number of the exercise."""


@dataclass(frozen=True)
class Exercise:
    number: str  # "6.2": the second of chapter 6
    title: str
    file: str  # of the starters, where it is written
    names: tuple[str, ...]  # what the learner writes
    minutes: int  # for a learner who has just read the chapter
    needs: tuple[str, ...] = ()  # exercises that its check runs, too
    seconds: float = 20.0  # after which its check is stopped
    milestone: str = ""  # what has been reached with it

    @property
    def slow(self) -> bool:
        """Too slow to run just for a table of results."""
        return self.seconds > 60

    @property
    def chapter(self) -> int:
        return int(self.number.partition(".")[0])

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of its functions begin, each with a dot at its end."""
        return tuple(f"{name}." for name in self.names)

    def __str__(self) -> str:
        return f"{self.number}, {self.title}"


@dataclass(frozen=True)
class Result:
    number: str
    verdict: str  # PASSED, NOT_WRITTEN, BLOCKED by an earlier exercise, SYNTAX_ERROR or WRONG
    message: str = ""  # one sentence, with the number of the exercise; of one that passed, what else there is to say
    seconds: float = 0.0
    needs: tuple[str, ...] = ()  # the earlier exercises to write or mend first, of one that is BLOCKED

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

"""One check, run in this process: the verdict, and one sentence about what it found."""

from __future__ import annotations

import signal
import time
import warnings
from pathlib import Path

import numpy as np

from ..text import printable
from .checks import CHECKS
from .exercise import NOT_WRITTEN, PASSED, SYNTAX_ERROR, WRONG, Exercise, Result, Wrong
from .exercises import EXERCISES
from .learner import Learner, opened
from .limit import TooLong, time_limit

LONGEST = 300  # characters of somebody's error message


def run_check(folder: Path, exercise: Exercise, seconds: float) -> Result:
    """Run the check of an exercise that is written, whatever the learner's code does.

    `needs` of the result names an exercise whose starter stopped the check.
    """
    start = time.perf_counter()
    with opened(folder) as me:
        verdict, message, needs = _run(me, exercise, seconds)
    return Result(exercise.number, verdict, message, time.perf_counter() - start, needs)


def _run(me: Learner, exercise: Exercise, seconds: float) -> tuple[str, str, tuple[str, ...]]:
    number = exercise.number
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), time_limit(seconds):
            warnings.simplefilter("ignore")
            return PASSED, CHECKS[number](me) or "", ()
    except Wrong as wrong:
        return WRONG, f"{number}: {_shortened(wrong)}{_case(me)}", ()
    except TooLong as error:
        where = me.where(error) or "NumPy"
        return WRONG, f"{too_long(exercise, seconds)}, stopped in {where}: {ENDLESS}{_case(me)}", ()
    except SyntaxError as error:
        if place := me.place(error):
            return SYNTAX_ERROR, f"{number}: {place} is not valid Python: {printable(error.msg)}", ()
        return WRONG, _raised(exercise, me, error), ()
    except NotImplementedError as error:
        of = next((e.number for e in EXERCISES if error.args == (e.number,)), None)
        if of == number:
            left = f"{me.where(error)} still raises NotImplementedError; delete that line when your answer is complete"
            return NOT_WRITTEN, f"{number}: {left}", ()
        return WRONG, _raised(exercise, me, error), () if of is None else (of,)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            raise  # Ctrl-C; where that is ignored, the learner's code raised it
        return WRONG, _raised(exercise, me, error), ()


ENDLESS = "is there an endless loop, or far more work than needed?"


def too_long(exercise: Exercise, seconds: float) -> str:
    return f"{exercise.number}: no result after {seconds:g} s"


def _raised(exercise: Exercise, me: Learner, error: BaseException) -> str:
    where = me.where(error, exercise)
    at = f"{type(error).__name__} in {where}" if where else type(error).__name__
    return f"{exercise.number}: {at}: {_shortened(error) or 'without a message'}{_case(me)}"


def _shortened(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        return "its message cannot be shown"
    return printable(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def _case(me: Learner) -> str:
    return f" (case: {me.case})" if me.case else ""

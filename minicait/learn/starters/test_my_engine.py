"""The checks of `minicait learn`, one test for each exercise. Run: pytest my_engine/test_my_engine.py"""

from pathlib import Path

import pytest

from minicait.learn import EXERCISES, grade


@pytest.mark.parametrize("number", [exercise.number for exercise in EXERCISES])
def test_exercise(number: str) -> None:
    result = grade(Path(__file__).parent, number)
    assert result.passed, result.message

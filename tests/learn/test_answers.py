"""The answers pass, and every check needs no more than it says."""

import pytest

from minicait.learn import EXERCISES, HINTS, find, grade, lay_out
from minicait.learn.checks import CHECKS
from minicait.learn.grade import Grader
from tests.learn.folders import ANSWERS, places, write

FAST = [exercise.number for exercise in EXERCISES if exercise.number != "12.1"]
SECONDS = 5  # for a check; on an idle core the slowest takes a second
ALSO_USED = {"2.1": {"3.1"}}  # the final Add and Multiply undo broadcasting


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    return write(tmp_path_factory.mktemp("solved"))


@pytest.mark.parametrize("number", FAST)
def test_an_answer_passes(number, solved):
    result = grade(solved, number)
    assert result.passed, result.message
    assert result.seconds < SECONDS


@pytest.mark.parametrize("number", FAST)
def test_a_check_needs_only_what_it_names(number, tmp_path):
    exercise = find(number)
    result = grade(write(tmp_path, only={number, *exercise.needs, *ALSO_USED.get(number, ())}), number)
    assert result.passed, result.message


@pytest.mark.slow
def test_the_answers_learn_shapes(solved):
    result = grade(solved, "12.1")
    assert result.passed, result.message


@pytest.mark.parametrize("number", ["2.1", "4.1", "6.3", "7.2", "10.2"])
def test_grading_is_deterministic(number, solved):
    assert grade(solved, number).message == grade(solved, number).message


def test_starters_are_not_written(tmp_path):
    lay_out(tmp_path)
    for result in map(Grader(tmp_path).grade, EXERCISES):
        assert result.verdict == "not written", result.message
        names = " ".join(find(result.number).names)
        assert result.message.startswith(f"{result.number} is not written yet: {names.split()[0].rstrip(',')}")


def test_every_exercise_is_complete():
    numbers = [exercise.number for exercise in EXERCISES]
    assert len(numbers) == len({*numbers}) == 27
    assert [*CHECKS] == numbers == [*HINTS]
    assert sorted({place.number for place in places()}, key=numbers.index) == numbers
    for place in places():
        exercise = find(place.number)
        assert place.file == exercise.file
        assert any(place.name == name or place.name.startswith(f"{name}.") for name in exercise.names)
    for exercise in EXERCISES:
        assert exercise.file in ANSWERS
        assert all(numbers.index(n) < numbers.index(exercise.number) for n in exercise.needs)
        assert 2 <= len(HINTS[exercise.number]) <= 3

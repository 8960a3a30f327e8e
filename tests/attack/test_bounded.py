"""The harness itself sees crashes, hangs, memory and tracebacks: a reader that misbehaves does not pass."""

import pytest

from tests.attack.bounded import refused, run


def test_it_reports_code_output_memory_and_time():
    result = run("models", "cait_tiny*")
    assert result.code == 0 and "cait_tiny_32" in result.out and result.err == ""
    assert 20 < result.megabytes < 250 and result.seconds < 5


def test_refused_wants_one_sentence(tmp_path):
    refused("weights", "info", tmp_path / "none.pth", because="there is no weights file")
    with pytest.raises(AssertionError):
        refused("weights", "info", tmp_path / "none.pth", because="another reason")
    with pytest.raises(AssertionError):
        refused("models", because="")

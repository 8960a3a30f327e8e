"""hypothesis profiles: `ci` is the default and always draws the same; HYPOTHESIS_PROFILE=dev|thorough draws anew."""

import os
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from tests.attack import TALLY

if "PYTEST_XDIST_WORKER" in os.environ:  # every CPU has a process: threads of matrix products would wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported, here and in processes of tests

for stop, handler in ((signal.SIGINT, signal.default_int_handler), (getattr(signal, "SIGHUP", None), signal.SIG_DFL)):
    if stop is not None and signal.getsignal(stop) is signal.SIG_IGN:  # by nohup, or & in a script
        signal.signal(stop, handler)  # processes that tests start inherit what is ignored

QUIET = [HealthCheck.too_slow]
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=150, suppress_health_check=QUIET)
settings.register_profile("dev", deadline=None, max_examples=100, suppress_health_check=QUIET)
settings.register_profile("thorough", deadline=None, max_examples=2000, suppress_health_check=QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """Files of tests need not survive a power failure: os.fsync only looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


LEFT_OUT = {
    "hostcuda": "of the GPU's path: pip install -e '.[hostcuda]', then pytest -m hostcuda (no GPU needed)",
    "browser": "of pages in Chromium: pip install -e '.[docs,browser]', then pytest -m browser",
    "fuzz": "of readers with mutated files, for FUZZ_SECONDS: pytest -m fuzz -s",
    "mpi": "of several ranks: pip install -e '.[mpi]' mpich, then pytest -m mpi",
    "slow": "that take minutes: pytest -m slow",
}
_left_out: Counter[str] = Counter()


def pytest_deselected(items):
    _left_out.update(name for item in items for name in LEFT_OUT if item.get_closest_marker(name))


def pytest_terminal_summary(terminalreporter):
    """Say what the markers leave out, and how to run it; and what hostile input took."""
    for name, count in _left_out.items():
        terminalreporter.write_line(f"left out: {count} tests {LEFT_OUT[name]}")
    if TALLY:
        tried = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(entry[0] for entry in TALLY).items()))
        _, megabytes, seconds = map(max, zip(*TALLY, strict=True))
        terminalreporter.write_line(f"commands on hostile input: {tried}; at most {megabytes:.0f} MB, {seconds:.1f} s")


# ---- with pytest -n, tests run in other processes, and only this one has a terminal


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput.update(left_out=dict(_left_out), tally=TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    output = getattr(node, "workeroutput", {})
    _left_out.clear()  # each of the processes has all of them
    _left_out.update(output.get("left_out", {}))
    TALLY.extend(map(tuple, output.get("tally", [])))

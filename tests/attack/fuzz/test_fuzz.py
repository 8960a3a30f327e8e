"""Every reader on all seeds and some mutations of them by default, and for FUZZ_SECONDS with `pytest -m fuzz -s`."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.attack.bounded import ROOT

from .readers import READERS, SEEDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bounds are those of Linux")
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # no threads, so it can fork


def run(module, *options, **more):
    command = [sys.executable, "-m", f"tests.attack.{module}", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, **more)


@cache
def outcomes(module, *options):
    """Outcome of each reader, by its name; the process is started once for all tests."""
    ended = run(module, *options, capture_output=True, text=True)
    assert ended.stderr == ""
    return {outcome["reader"]: outcome for outcome in map(json.loads, ended.stdout.splitlines())}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_returns_a_result_or_its_own_error(name):
    outcome = outcomes("fuzz", "--json", "--examples", 20)[name]
    assert outcome["findings"] == []
    assert outcome["executions"] >= 20 + len(READERS[name].seeds())
    assert outcome["accepted"] >= sum(seed.startswith("valid") for seed in READERS[name].seeds()) > 0
    assert outcome["refused"] > 0 and outcome["accepted"] + outcome["refused"] == outcome["executions"]


MISBEHAVING = {
    "crash": "ended with SIGSEGV",
    "hang": "takes more than 0.1 seconds",
    "hang_where_no_signal_reaches": "ended with SIGKILL",
    "take_memory": "takes more than 100 megabytes",
    "raise_another_error": "KeyError in misbehaving.py:raise_another_error: 'x'",
    "recurse": "RecursionError in misbehaving.py:recurse",
    "fail_on_mutations": "IndexError in misbehaving.py:fail_on_mutations: only the seed is fine",
    "refuse_everything": "the valid seed valid.txt is not accepted",
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_the_harness_sees_a_reader_that_misbehaves(name):
    findings = outcomes("fuzz.misbehaving")[name]["findings"]
    assert any(MISBEHAVING[name] in finding for finding in findings), findings


def test_the_harness_finds_nothing_in_a_reader_that_behaves():
    outcome = outcomes("fuzz.misbehaving")["behave"]
    assert outcome["findings"] == [] and outcome["refused"] > 10 and outcome["accepted"] >= 1


def test_the_seeds_are_small():
    assert sum(path.stat().st_size for path in SEEDS.rglob("*") if path.is_file()) < 200_000


@pytest.mark.fuzz
def test_fuzzing_finds_nothing():
    """The same mutations each time, as many as there is time for; FUZZ_SEED draws others."""
    seconds, seed = os.environ.get("FUZZ_SECONDS", "120"), os.environ.get("FUZZ_SEED", "0")
    print(f"\nFUZZ_SECONDS={seconds} FUZZ_SEED={seed}", flush=True)
    assert run("fuzz", "--seconds", seconds, "--seed", seed).returncode == 0

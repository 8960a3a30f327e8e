"""Run the command line in a process of its own, and measure what it took.

Starting Python and importing minicait takes longer than most commands, so a server does it once, and forks for every
command. It is this file, run as a module.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.attack import TALLY, faults

ROOT = Path(__file__).parents[2]
ADDRESS_SPACE = 8 << 30  # bytes: a reader without bounds ends here, not at the memory of this machine


class Result(NamedTuple):
    """How a command ended; a negative code is the number of the signal that ended it."""

    code: int
    out: str
    err: str
    megabytes: float  # peak of resident memory, some 35 of them for Python and the libraries
    seconds: float


def run(
    *arguments: object,
    seconds: float = 30,
    environment: Mapping[str, str | None] | None = None,
    cwd: object = ROOT,
    fault: tuple[str, int] | None = None,
    address_space: int = ADDRESS_SPACE,
) -> Result:
    """`minicait` with these arguments, killed after so many seconds.

    environment    variables to set; those that are None are removed
    fault          a function of tests.attack.faults that is called before the command, and its argument
    address_space  bytes
    """
    request = {
        "arguments": [os.fsencode(str(a)).hex() for a in arguments], "seconds": seconds, "cwd": str(cwd),
        "environment": dict(environment or {}), "fault": fault, "address_space": address_space,
    }  # fmt: skip
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return Result(**json.loads(server.stdout.readline()))


def refused(*arguments: object, because: str, megabytes: float = 250, seconds: float = 10, **options) -> Result:
    """Check that a command ends with exit code 2 and one sentence that has `because` in it, within these bounds."""
    result = run(*arguments, seconds=2 * seconds, **options)
    count("refused", result)
    lines = result.err.strip().splitlines()
    assert result.code == 2, result
    assert len(lines) == 1 and lines[0].startswith("minicait: ") and because in lines[0], result.err
    assert len(lines[0]) < 600 and lines[0].isprintable(), f"{len(lines[0])} characters: {lines[0][:1000]!r}"
    assert "out of memory" not in lines[0] and "Traceback" not in result.out + result.err, result.err
    assert result.megabytes < megabytes and result.seconds < seconds, result
    return result


def count(kind: str, result: Result) -> None:
    TALLY.append((kind, result.megabytes, result.seconds))


@cache
def _server() -> subprocess.Popen:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # no threads, so it can fork
    command = [sys.executable, "-m", "tests.attack.bounded"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)


def _serve() -> None:
    import minicait.cli

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            before, pid = time.perf_counter(), os.fork()
            if pid == 0:
                _in_child(minicait.cli.main, request, out.fileno(), err.fileno())
            status, usage = _wait(pid, before + request["seconds"])
            seconds = time.perf_counter() - before
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        answer = Result(os.waitstatus_to_exitcode(status), *texts, usage.ru_maxrss / 1024, seconds)
        print(json.dumps(answer._asdict()), flush=True)


def _wait(pid: int, deadline: float):
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, usage
        if time.perf_counter() > deadline:
            os.kill(pid, signal.SIGKILL)
            return os.wait4(pid, 0)[1:]
        time.sleep(0.002)


def _in_child(main, request, out: int, err: int) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (request["address_space"], request["address_space"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["cwd"])
        for name, value in request["environment"].items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if request["fault"] is not None:
            name, argument = request["fault"]
            getattr(faults, name)(argument)
        code = main([os.fsdecode(bytes.fromhex(a)) for a in request["arguments"]])
    except SystemExit as end:  # argparse
        code = end.code
    finally:
        if sys.exc_info()[0] not in (None, SystemExit):
            sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()

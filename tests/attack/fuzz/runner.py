"""A reader in a process of its own, with bounds on memory and time, and its findings.

What the process is reading lies in shared memory, so that it is known even if the interpreter crashes.
"""

import contextlib
import hashlib
import mmap
import os
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from .mutations import MAX_LENGTH, mutated, programs
from .readers import Reader

FINDINGS = Path(__file__).parent / "findings"
ROUND = 500  # examples of one seed of hypothesis
MOST_FINDINGS = 20  # of one reader; after them, nothing more is learned
HEAD = struct.Struct("<5Q")  # executions, accepted, refused, findings, length of the input


class TooSlowError(BaseException):
    pass


@dataclass
class Outcome:
    reader: str
    executions: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0
    findings: list[str] = field(default_factory=list)  # each a path and what happened

    def __str__(self) -> str:
        rate = self.executions / max(self.seconds, 1e-9)
        return (
            f"{self.reader:12s} {self.executions:8,d} executions, {rate:6,.0f} per second: "
            f"{self.accepted:7,d} accepted, {self.refused:8,d} refused, {len(self.findings)} findings"
        )


def fuzz(reader: Reader, first_seed: int, examples: int, seconds: float, findings: Path = FINDINGS) -> Outcome:
    """Read all seeds, then at least `examples` mutated ones, and more until `seconds` have passed."""
    start, number, state = time.monotonic(), first_seed, _State(findings)
    inputs = reader.seeds()
    while True:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            child = _Child(reader, state, Path(folder) / reader.file_name)
            ended = child.start(number, examples, start + seconds - time.monotonic(), inputs)
        if ended:
            child.report(ended)
        if not ended or state.counts[3] >= MOST_FINDINGS:
            break
        number, inputs = number + 100_000, {}  # go on with others than those that led here
    return Outcome(reader.name, *state.counts[:3], time.monotonic() - start, state.findings())


class _State:
    """State that the process and its parent share: counts, the bytes being read, and a list of findings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = mmap.mmap(-1, HEAD.size + MAX_LENGTH)
        self.counts = memoryview(self.memory)[: HEAD.size].cast("Q")
        self.list = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this object

    def now_reading(self, data: bytes) -> None:
        self.memory[HEAD.size : HEAD.size + len(data)] = data
        self.counts[4] = len(data)
        self.counts[0] += 1

    def finding(self, reader: Reader, what: str) -> None:
        """Keep the bytes that are being read as a file."""
        data = self.memory[HEAD.size : HEAD.size + self.counts[4]]
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{reader.name}-{hashlib.sha256(data).hexdigest()[:12]}.{reader.suffix.lstrip('.')}"
        path.write_bytes(data)
        self.counts[3] += 1
        self.list.write(f"{path}\t{what}\n".encode(errors="backslashreplace"))
        self.list.flush()

    def findings(self) -> list[str]:
        self.list.seek(0)
        return self.list.read().decode().splitlines()


class _Child:
    def __init__(self, reader: Reader, state: _State, path: Path) -> None:
        self.reader, self.state, self.path = reader, state, path

    def start(self, number: int, examples: int, seconds: float, inputs: dict[str, bytes]) -> str:
        """Run in a process; return "" if it ended well, otherwise what happened to it."""
        pid = os.fork()
        if pid == 0:
            code, errors = 1, os.dup(2)
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff writes there
                self.run(number, examples, seconds, inputs)
                code = 0
            except BaseException:
                os.dup2(errors, 2)
                traceback.print_exc()
            finally:
                os._exit(code)
        before, since = -1, time.monotonic()
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if self.state.counts[0] != before:
                before, since = self.state.counts[0], time.monotonic()
            elif time.monotonic() - since > 2 * self.reader.seconds + 1:  # even the alarm does not reach it
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(status)
        return "" if code == 0 else f"the process ended with {signal.Signals(-code).name if code < 0 else code}"

    def run(self, number: int, examples: int, seconds: float, inputs: dict[str, bytes]) -> None:
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGALRM, _raise_too_slow)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (self.reader.megabytes << 20),) * 2)
        for name, data in inputs.items():
            accepted = self.state.counts[1]
            self.execute(data)
            if name.startswith("valid") and self.state.counts[1] == accepted:
                self.report(f"the valid seed {name} is not accepted")
        seeds = list(self.reader.seeds().values())
        end, done = time.monotonic() + seconds, 0

        def example(program: bytes) -> None:
            nonlocal done
            if (done < examples or time.monotonic() < end) and self.state.counts[3] < MOST_FINDINGS:
                done += 1
                self.execute(mutated(program, seeds, self.reader.wrapping, self.reader.tokens))

        while (done < examples or time.monotonic() < end) and self.state.counts[3] < MOST_FINDINGS:
            options = settings(database=None, deadline=None, phases=[Phase.generate], derandomize=False,
                               max_examples=min(ROUND, max(examples - done, 1)) if seconds <= 0 else ROUND,
                               suppress_health_check=list(HealthCheck))  # fmt: skip
            seed(number)(options(given(programs())(example)))()
            number += 1

    def execute(self, data: bytes) -> None:
        self.state.now_reading(data)
        self.path.write_bytes(data)
        try:
            with _alarm(self.reader.seconds):
                self.reader.read(self.path)
            self.state.counts[1] += 1
        except self.reader.errors as error:
            self.state.counts[2] += 1
            if isinstance(error.__cause__ or error.__context__, MemoryError):  # a reader may take it for damage
                self.report(f"it takes more than {self.reader.megabytes} megabytes")
        except TooSlowError:
            self.report(f"it takes more than {self.reader.seconds} seconds")
        except MemoryError:
            self.report(f"it takes more than {self.reader.megabytes} megabytes")
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "/minicait/" in f.filename][-1:]
            places = ", ".join(f"{Path(f.filename).name}:{f.name}" for f in [*ours, last])
            self.report(f"{type(error).__name__} in {places}", str(error)[:200])

    def report(self, what: str, more: str = "") -> None:
        """Keep the first file of each kind of finding."""
        if not any(found.partition("\t")[2].startswith(what) for found in self.state.findings()):
            self.state.finding(self.reader, f"{what}: {' '.join(more.split())}" if more else what)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise_too_slow(*_: object) -> None:
    raise TooSlowError

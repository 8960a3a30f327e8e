"""Parts of a self-test, the table of what they found, and the file with everything that was found."""

from __future__ import annotations

import getpass
import re
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..files.atomic import write_text

OK, DIFFERS, FAILED, NOT_RUN = "ok", "differs", "failed", "not run"
NAME, WIDTH = 20, 100  # of the first column, and of the table in the file
HOMES = re.compile(r"(?:[a-z]:)?[/\\]+(?:home|users)[/\\]+[^/\\\s'\"]+", re.IGNORECASE)  # on Linux, Windows and macOS


class Finding(NamedTuple):
    verdict: str
    result: str  # for the table
    lines: Iterable[str] = ()  # everything, for the file


def not_run(reason: str) -> Finding:
    return Finding(NOT_RUN, reason)


@dataclass
class Part:
    """Something to try, and, once it has run, what was found."""

    name: str
    what: str
    work: Callable[[], Finding]
    finding: Finding = field(default=Finding(NOT_RUN, ""), init=False)
    seconds: float = field(default=0.0, init=False)
    has_run: bool = field(default=False, init=False)

    def run(self) -> None:
        """An error in it is something found, too."""
        before = time.perf_counter()
        try:
            finding = self.work()
            self.finding = finding._replace(lines=list(finding.lines))  # which are written more than once
        except Exception as error:
            first = (str(error) or "no message").splitlines()[0]
            self.finding = Finding(FAILED, f"{type(error).__name__}: {first}", traceback.format_exc().splitlines())
        self.seconds, self.has_run = time.perf_counter() - before, True

    @property
    def is_wrong(self) -> bool:
        return self.finding.verdict in (DIFFERS, FAILED)

    @property
    def found(self) -> str:
        """For people: the verdict, and what it rests on."""
        return f"{self.finding.verdict}: {self.finding.result}" if self.finding.result else self.finding.verdict


def table(parts: Iterable[Part], width: int = WIDTH) -> str:
    what = (width - NAME - 2) * 6 // 13  # what was done takes somewhat less room than the result
    widths = NAME, what, width - NAME - 2 - what
    rows = [_row(widths, "part", "what was done", "result"), "-" * width]
    return "\n".join([*rows, *(_row(widths, part.name, part.what, part.found) for part in parts)])


def _row(widths: tuple[int, ...], *cells: str) -> str:
    """Cells that are too long go on below."""
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for i in range(max(map(len, columns))):
        texts = [column[i] if i < len(column) else "" for column in columns]
        lines.append(" ".join(f"{text:{width}s}" for text, width in zip(texts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def in_full(parts: list[Part], title: str) -> str:
    """The table, and then each part with all of its lines."""
    sections = [f"{title}\n\n{table(parts)}"]
    for part in parts:
        lines = "\n".join(f"  {line}" for line in part.finding.lines)
        sections.append(f"{part.name}: {part.what} ({part.seconds:.1f} s)\n  {part.found}\n{lines}".rstrip())
    return without_names("\n\n".join(sections) + "\n")


def without_names(text: str) -> str:
    """Paths that lead through a home, or a folder named like the user, do not tell whose they are."""
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, KeyError, OSError, ImportError):  # no such user, in some containers
        return HOMES.sub("~", text)
    if len(Path(home).parts) > 1:
        text = text.replace(home, "~")
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\])", "USER", HOMES.sub("~", text))


def check_out(path: Path) -> None:
    """What is wrong with the name of a file is told before any work is done."""
    if str(path) == "-":
        raise ValueError("the table is printed anyway: give the name of a file instead of -")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")


def is_stream(path: Path) -> bool:
    """A device or a pipe, which takes a text once, and is not to be replaced by a file."""
    return path.exists() and not path.is_file()


def write(path: Path, text: str) -> None:
    """Under a temporary name until all is written, so that a crash leaves what was there; where a link leads to."""
    try:
        if is_stream(path):
            with path.open("w", encoding="utf-8") as file:
                file.write(text)
            return
        write_text(path, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error

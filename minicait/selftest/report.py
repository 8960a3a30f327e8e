"""Parts of a self-test, the table of their findings, and the file with all details."""

from __future__ import annotations

import getpass
import re
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ..files.atomic import write_text

OK, DIFFERS, FAILED, NOT_RUN = "ok", "differs", "failed", "not run"
NAME, WIDTH = 20, 100  # characters: the first column, and the table in the file
HOMES = re.compile(r"(?:[a-z]:)?[/\\]+(?:home|users)[/\\]+[^/\\\s'\"]+", re.IGNORECASE)  # Linux, Windows, macOS


class Finding(NamedTuple):
    verdict: str
    result: str  # for the table
    lines: Iterable[str] = ()  # details, for the file


@dataclass
class Part:
    """A check, and its finding once it has run."""

    name: str
    what: str
    work: Callable[[], Finding]
    finding: Finding = field(default=Finding(NOT_RUN, ""), init=False)
    seconds: float = field(default=0.0, init=False)
    has_run: bool = field(default=False, init=False)

    def run(self) -> None:
        """Run the check; an exception is a finding, too."""
        started = time.perf_counter()
        try:
            finding = self.work()
            self.finding = finding._replace(lines=list(finding.lines))  # written more than once
        except Exception as error:
            first = (str(error) or "no message").splitlines()[0]
            self.finding = Finding(FAILED, f"{type(error).__name__}: {first}", traceback.format_exc().splitlines())
        self.seconds, self.has_run = time.perf_counter() - started, True

    @property
    def is_wrong(self) -> bool:
        return self.finding.verdict in (DIFFERS, FAILED)

    @property
    def outcome(self) -> str:
        return f"{self.finding.verdict}: {self.finding.result}" if self.finding.result else self.finding.verdict


def table(parts: Iterable[Part], width: int = WIDTH) -> str:
    what = (width - NAME - 2) * 6 // 13  # narrower than the result
    widths = NAME, what, width - NAME - 2 - what
    rows = [_row(widths, "part", "what was done", "result"), "-" * width]
    return "\n".join([*rows, *(_row(widths, part.name, part.what, part.outcome) for part in parts)])


def _row(widths: tuple[int, ...], *cells: str) -> str:
    """Format a row; long cells are wrapped."""
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    lines = zip_longest(*columns, fillvalue="")
    return "\n".join(" ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def in_full(parts: list[Part], title: str) -> str:
    """Return the table, and each part with all of its lines."""
    sections = [f"{title}\n\n{table(parts)}"]
    for part in parts:
        lines = "\n".join(f"  {line}" for line in part.finding.lines)
        sections.append(f"{part.name}: {part.what} ({part.seconds:.1f} s)\n  {part.outcome}\n{lines}".rstrip())
    return anonymise("\n\n".join(sections) + "\n")


def anonymise(text: str) -> str:
    """Remove the user from paths: home folders become ~, and folders with the user's name USER."""
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, KeyError, OSError, ImportError):  # no such user, in some containers
        return HOMES.sub("~", text)
    if len(Path(home).parts) > 1:
        text = text.replace(home, "~")
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\])", "USER", HOMES.sub("~", text))


def is_stream(path: Path) -> bool:
    """True for a device or a pipe, to which the report is written only once, and not atomically."""
    return path.exists() and not path.is_file()


def write(path: Path, text: str) -> None:
    if is_stream(path):
        path.write_text(text, encoding="utf-8")
    else:
        write_text(path, text)

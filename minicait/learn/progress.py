"""Progress: which exercises have passed, and which hints were shown, in a small file in the learner's folder.

It only says what to do next. Grading never reads it, and nor does JSON output: anybody can edit it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import __version__
from ..files.atomic import write_text
from .exercise import Exercise, Result
from .exercises import EXERCISES

FILE = ".progress.json"
MOST = 100_000  # bytes


class Progress:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passed: dict[str, dict[str, str]] = {}  # the day, and a digest of the files
        self.hints: dict[str, int] = {}
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            path = folder / FILE
            if path.stat().st_size <= MOST:
                self._read(json.loads(path.read_text(encoding="utf-8")))

    def _read(self, content: Any) -> None:
        """Take what has the right form: the file may be damaged, or written by hand."""
        passed, hints = (content[key] if isinstance(content[key], dict) else {} for key in ("passed", "hints"))
        for number in (exercise.number for exercise in EXERCISES):
            with suppress(ValueError, KeyError, TypeError):
                day, code = passed[number]["day"], passed[number]["code"]
                self.passed[number] = {"day": date.fromisoformat(day).isoformat(), "code": str(code)}
            if isinstance(shown := hints.get(number), int):
                self.hints[number] = shown

    def write(self) -> None:
        """Nothing depends on the file, so a folder that is read-only is no error."""
        with suppress(OSError):
            write_text(self.folder / FILE, json.dumps({"passed": self.passed, "hints": self.hints}, indent=1))

    def remember(self, result: Result) -> None:
        self.passed.pop(result.number, None)
        if result.passed:
            self.passed[result.number] = {"day": date.today().isoformat(), "code": code_of(self.folder)}

    def passed_on(self, exercise: Exercise) -> str | None:
        """The day on which the files as they are now passed."""
        found = self.passed.get(exercise.number, {})
        return found["day"] if found.get("code") == code_of(self.folder) else None

    def still_open(self) -> list[Exercise]:
        """The exercises that have not passed yet."""
        return [exercise for exercise in EXERCISES if exercise.number not in self.passed]

    def next_hint(self, number: str, count: int) -> int:
        """Index of the hint to show: the next one each time, and after the last one that again."""
        index = min(max(self.hints.get(number, 0), 0), count - 1)
        self.hints[number] = index + 1
        return index


def code_of(folder: Path) -> str:
    """A digest of the learner's files and of the version that checks them."""
    digest = sha256(__version__.encode())
    for path in sorted(folder.glob("*.py")):
        with suppress(OSError):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]

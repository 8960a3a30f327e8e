"""Progress: results and hints shown, remembered in a small file in the learner's folder.

A result is valid until a file changes. Grading never reads this file: `check` always runs the code.
"""

from __future__ import annotations

import json
from contextlib import suppress
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
        self.results: dict[str, dict[str, Any]] = {}
        self.hints: dict[str, int] = {}
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            path = folder / FILE
            if path.stat().st_size <= MOST:
                self._read(json.loads(path.read_text(encoding="utf-8")))

    def _read(self, content: Any) -> None:
        """Take what has the right form: the file may be damaged, or written by hand."""
        results, hints = (content[key] if isinstance(content[key], dict) else {} for key in ("results", "hints"))
        for number in (exercise.number for exercise in EXERCISES):
            if isinstance(result := results.get(number), dict):
                self.results[number] = result
            if isinstance(shown := hints.get(number), int):
                self.hints[number] = shown

    def write(self) -> None:
        """Nothing depends on the file, so a folder that is read-only is no error."""
        with suppress(OSError):
            write_text(self.folder / FILE, json.dumps({"results": self.results, "hints": self.hints}, indent=1))

    def remember(self, result: Result) -> None:
        self.results[result.number] = {
            "verdict": result.verdict, "message": result.message, "needs": result.needs,
            "code": code_of(self.folder),
        }  # fmt: skip

    def known(self, exercise: Exercise) -> Result | None:
        """What the last check found, if the learner's files are still the same."""
        found = self.results.get(exercise.number, {})
        if found.get("code") != code_of(self.folder):
            return None
        verdict, message, needs = (str(found.get(key, "")) for key in ("verdict", "message", "needs"))
        return Result(exercise.number, verdict, message, needs=needs)

    def first_open(self) -> Exercise | None:
        """The first exercise that has not passed yet."""
        return next((e for e in EXERCISES if self.results.get(e.number, {}).get("verdict") != "passed"), None)

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

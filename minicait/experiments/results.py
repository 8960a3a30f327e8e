"""Results of training runs as CSV files, to which later commands add."""

from __future__ import annotations

import csv
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.atomic import write_bytes
from .compare import in_processes


class Results:
    """Files of one experiment. A job is a NamedTuple of the settings of one training run.

    NAME.csv       one row per run: its number, the fields of its job, what was measured
    NAME_PART.csv  one row per step or per block, with the number of the run, if `measure` returns a list called PART
    NAME.json      the commands that made the runs, the machine, and the settings that all runs share

    path  NAME.csv; None keeps the results in memory
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = [] if path is None else read(path)

    def run(self, measure: Callable[[Any], dict[str, Any]], jobs: Sequence[Any], processes: int) -> None:
        """Call `measure` for every job that has no row yet, print a line and add its results to the files."""
        jobs = [job for job in jobs if not self.of(**job._asdict())]
        print(f"{len(jobs)} runs are missing, {processes} at a time", flush=True)
        start = time.perf_counter()
        for done, (i, result) in enumerate(in_processes(measure, jobs, processes), 1):
            self._add(jobs[i]._asdict(), result)
            settings = " ".join(f"{value}" for value in jobs[i])
            print(f"{done:3d}/{len(jobs)} {time.perf_counter() - start:5.0f} s  {settings}: {result['accuracy']:.1%}",
                  flush=True)  # fmt: skip

    def of(self, **values: Any) -> list[dict[str, Any]]:
        """Return the rows with these values."""
        return [row for row in self.rows if all(row[key] == value for key, value in values.items())]

    def note(self, machine: str, settings: Mapping[str, Any], seconds: float) -> None:
        """Add this command to NAME.json."""
        if self.path is None:
            return
        path = self.path.with_suffix(".json")
        commands = json.loads(path.read_text())["commands"] if path.exists() else []
        command = shlex.join(["python", *sys.argv])
        commands.append({"command": command, "machine": machine, "minutes": round(seconds / 60, 1)})
        write_bytes(path, (json.dumps({"settings": dict(settings), "commands": commands}, indent=1) + "\n").encode())

    def _add(self, job: dict[str, Any], result: dict[str, Any]) -> None:
        number = {"run": len(self.rows)}
        measured = {key: value for key, value in result.items() if not isinstance(value, list)}
        self.rows.append(number | job | measured)
        if self.path is None:
            return
        for key in result.keys() - measured.keys():
            _append(self.path.with_stem(f"{self.path.stem}_{key}"), [number | row for row in result[key]])
        _append(self.path, self.rows[-1:])  # last: a run with a row is complete


class Table(list[Sequence[object]]):
    """Rows of cells, the first of them the head. A notebook shows them as HTML, so cells may contain HTML."""

    def _repr_html_(self) -> str:
        lines = ("".join(f"<{'td' if i else 'th'}>{cell}</{'td' if i else 'th'}>" for cell in row)
                 for i, row in enumerate(self))  # fmt: skip
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return f'<div class="table-wrapper"><table class="docutils">{rows}</table></div>'  # scrolls where it is narrow


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, numbers as numbers and empty cells as None; no rows if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def _value(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text or None

"""The folder of a run: a new one for each run, and its plan in args.json."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path

from .. import __version__
from ..files.atomic import write_text
from ..schema import from_json
from .plan import Plan

MAX_PLAN = 1_000_000  # bytes; they have some 1,500


def new_folder(parent: Path, name: str) -> Path:
    """Create name-1 in `parent`, or the first of name-2, name-3, ... that does not exist."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / f"{name}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def make_weights_folder(folder: Path) -> None:
    """Make weights/ in a run's folder, unless it is there; a link in its place might lead anywhere."""
    weights = folder / "weights"
    if weights.is_symlink():
        raise ValueError(f"{weights} is a symbolic link, but a run writes only into its own folder")
    weights.mkdir(parents=True, exist_ok=True)


def write_plan(folder: Path, plan: Plan) -> None:
    write_text(folder / "args.json", json.dumps({**asdict(plan), "version": __version__}, indent=1))


def read_plan(folder: Path) -> Plan:
    path = folder / "args.json"
    if not path.is_file():
        raise ValueError(f"there is no run in {folder}: it has no args.json")
    if path.stat().st_size > MAX_PLAN:
        raise ValueError(f"{path} is damaged: a plan has at most {MAX_PLAN:,} bytes, it has {path.stat().st_size:,}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            content.pop("version", None)
        return from_json(Plan, content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error

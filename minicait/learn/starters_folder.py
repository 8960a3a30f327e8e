"""Laying out the starters: a new folder with the files a learner begins with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ..files.atomic import write_text

STARTERS = files("minicait.learn").joinpath("starters")


def starters() -> dict[str, str]:
    """The text of every starter, by the name of its file."""
    found = (file for file in STARTERS.iterdir() if file.name.endswith((".py", ".md")))
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(found, key=lambda file: file.name)}


def lay_out(folder: Path) -> list[Path]:
    """Write the starters into a folder that does not exist yet, or is empty."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and nothing in it is overwritten; name a new folder")
    if (above := folder.absolute().parent).joinpath("by_hand.py").is_file():
        raise ValueError(f"{above} is a folder of exercises already; name a new folder outside it")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in starters().items():
        write_text(folder / name, text)
        written.append(folder / name)
    return written

"""Learners' folders for tests: the answers, whole or in part, and with a mistake put in."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from minicait.learn.starters_folder import starters

SOLUTIONS = Path(__file__).parent / "solutions"
NAMES = sorted(path.name for path in SOLUTIONS.glob("*.py"))


class Place(NamedTuple):
    """A function that the learner writes."""

    file: str
    name: str  # Class.method or function
    number: str
    starter: ast.FunctionDef


def functions(tree: ast.AST, prefix: str = "") -> dict[str, ast.FunctionDef]:
    """Functions and methods by their qualified names."""
    found = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            found[prefix + node.name] = node
    return found


def _number(node: ast.FunctionDef) -> str | None:
    """Number of the exercise, if the function only raises it."""
    last = node.body[-1]
    call = last.exc if isinstance(last, ast.Raise) else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "NotImplementedError":
        return ast.literal_eval(call.args[0])
    return None


def places() -> list[Place]:
    """Everything that a learner writes, in all files."""
    return [
        Place(file, name, number, node)
        for file, text in starters().items()
        if file.endswith(".py")
        for name, node in functions(ast.parse(text)).items()
        if (number := _number(node)) is not None
    ]


def write(folder: Path, changes: dict[str, tuple[str, str]] | None = None) -> Path:
    """All answers, with text replaced in some files: {file: (old, new)}."""
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        text = (SOLUTIONS / name).read_text()
        if changes and name in changes:
            old, new = changes[name]
            assert text.count(old) == 1, f"{text.count(old)} times in {name}: {old}"
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder


def write_only(folder: Path, numbers: set[str]) -> Path:
    """The answers to some exercises; the others are as in the starters."""
    write(folder)
    for file in NAMES:
        text = (folder / file).read_text()
        lines = text.split("\n")
        answers = functions(ast.parse(text))
        open_ones = [p for p in places() if p.file == file and p.number not in numbers]
        for place in sorted(open_ones, key=lambda p: -answers[p.name].body[0].lineno):
            first, last = answers[place.name].body[0].lineno, answers[place.name].end_lineno
            indent = " " * answers[place.name].body[0].col_offset
            lines[first - 1 : last] = [f'{indent}raise NotImplementedError("{place.number}")']
        (folder / file).write_text("\n".join(lines))
    return folder

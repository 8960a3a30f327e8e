"""Learners' folders for tests: the starters with answers to all exercises or to some, and with a mistake put in."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from minicait.learn import EXERCISES
from minicait.learn.starters_folder import starters

ANSWERS = {path.name: path.read_text() for path in sorted(Path(__file__).with_name("answers").glob("*.py"))}
ALL = frozenset(exercise.number for exercise in EXERCISES)


class Place(NamedTuple):
    """A function that the learner writes."""

    file: str
    name: str  # Class.method or function
    number: str
    starter: ast.FunctionDef


def functions(tree: ast.AST, prefix: str = "") -> dict[str, ast.FunctionDef]:
    """Functions and methods by their qualified names, from top to bottom."""
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


@functools.cache
def places() -> list[Place]:
    """Everything that a learner writes, in all files."""
    return [
        Place(file, name, number, node)
        for file, text in starters().items()
        if file.endswith(".py")
        for name, node in functions(ast.parse(text)).items()
        if (number := _number(node)) is not None
    ]


def with_bodies(text: str, bodies: dict[str, str]) -> str:
    """A file with the bodies of some functions replaced; their docstrings stay."""
    lines = text.split("\n")
    for name, node in reversed(functions(ast.parse(text)).items()):
        if name in bodies:
            first = node.body[1]  # behind the docstring
            body = textwrap.dedent(bodies[name]).strip("\n")
            lines[first.lineno - 1 : node.end_lineno] = [textwrap.indent(body, " " * first.col_offset)]
    return "\n".join(lines)


@functools.cache
def solved(file: str, only: frozenset[str] = ALL) -> str:
    """A starter with the answers to some exercises in it. What else the answers define is at its end."""
    lines = ANSWERS[file].split("\n")
    written = {place.name: place.number for place in places() if place.file == file}
    bodies, helpers = {}, ""
    for name, node in functions(ast.parse(ANSWERS[file])).items():
        if name not in written:
            helpers += "\n".join(["", "", *lines[node.lineno - 1 : node.end_lineno], ""])
        elif written[name] in only:
            bodies[name] = "\n".join(lines[node.body[0].lineno - 1 : node.end_lineno])
    return with_bodies(starters()[file], bodies) + helpers


def write(folder: Path, changes: dict[str, tuple[str, str]] | None = None, only: Iterable[str] = ALL) -> Path:
    """Answers to all exercises or to some, with text replaced in some files: {file: (old, new)}."""
    folder.mkdir(exist_ok=True)
    for name, text in starters().items():
        if name in ANSWERS:
            text = solved(name, frozenset(only))
        if changes and name in changes:
            old, new = changes[name]
            assert text.count(old) == 1, f"{text.count(old)} times in {name}: {old}"
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder

"""A learner's files as text: functions not written yet, and imports that are not allowed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from .exercise import Exercise, Wrong

ALLOWED = {"numpy", *sys.stdlib_module_names}


def unwritten(folder: Path, exercise: Exercise) -> list[str]:
    """Functions of an exercise that are still as in the starters: all they do is to raise its number."""
    try:
        tree = ast.parse((folder / exercise.file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # running it says more
    parents: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    parents += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    starter = ast.unparse(ast.parse(f'raise NotImplementedError("{exercise.number}")'))
    return [
        prefix + node.name
        for prefix, parent in parents
        for node in parent.body
        if isinstance(node, ast.FunctionDef) and [ast.unparse(s) for s in _without_docstring(node)] == [starter]
    ]


def _without_docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def check_imports(path: Path, tree: ast.Module) -> None:
    """Raise Wrong if a file imports more than NumPy, Python's own modules and its own folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            if root in ALLOWED:
                continue
            line = f"{path.name}, line {node.lineno} imports {name}"
            if (path.parent / f"{root}.py").is_file():
                raise Wrong(f"{line}: a file of this folder needs a dot, `from .{root} import ...`")
            raise Wrong(f"{line}: write it yourself; NumPy and Python's own modules are there")

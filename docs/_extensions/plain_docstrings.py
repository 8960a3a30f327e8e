"""Docstrings of this project are plain text. This makes reST of them that says the same, for autodoc.

Paragraphs are escaped, `names` in backticks become literals. A paragraph whose lines are aligned in two columns becomes
a list of definitions; one that is indented, or has gaps in its lines, is a formula or a table and stays as it is.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROW = re.compile(r"(\S+(?: \S+)*)  +(\S.*)")  # two columns with a gap between them


def restructured(text: str) -> str:
    """A plain docstring, already without its indentation, as reST."""
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(_paragraph(p) for p in paragraphs) + "\n"


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if rows := _rows(lines):
        return "\n".join(f"{_escaped(name, code=True)}\n    {_escaped(what)}" for name, what in rows)
    if lines[0].startswith("- "):
        items = re.split(r"\n(?=- )", text)
        return "\n".join(f"- {_escaped(' '.join(item[2:].split()))}" for item in items)
    if text.startswith(">>> "):
        return text  # reST has examples, too
    if any(line.startswith(" ") or re.search(r"\S  +\S", line) for line in lines):
        return ".. code-block:: text\n\n" + textwrap.indent(textwrap.dedent(text), "    ")
    return _escaped(" ".join(lines))


def _rows(lines: list[str]) -> list[tuple[str, str]]:
    """The two columns of a paragraph that has such, with what goes on in the next line joined; else nothing."""
    rows: list[tuple[str, str]] = []
    column = 0
    for line in lines:
        match = ROW.fullmatch(line)
        name, what = line[:column].strip(), line[column:]
        if match and " = " not in match[1] and (not rows or match.end(1) >= column):
            column = column or match.start(2)  # which a long name may overrun
            rows.append((match[1], match[2]))
        elif rows and name and line[column - 1] == " " and not what.startswith(" "):
            rows.append((name, what))
        elif rows and not name:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {what.strip()}")
        else:
            return []
    return rows


def _escaped(text: str, code: bool = False) -> str:
    """One line of reST. Whatever stands in backticks, or all of it if it is code, is shown letter by letter."""
    if code:
        return f"``{text.strip('`')}``"
    parts = re.split(r"`+([^`]+)`+", text)
    parts[::2] = [re.sub(r"([^\w\s.,;:])|(?<=\w)_(?!\w)|(?<!\w)_(?=\w)", r"\\\g<0>", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"\\\*(\w+)\\\*", r"*\1*", part) for part in parts[::2]]  # emphasis is the same in both
    parts[1::2] = [f"\\ ``{part}``\\ " for part in parts[1::2]]
    return re.sub(r"^(\w+)\.(?= )", r"\1\\.", "".join(parts).removeprefix("\\ "))


def formula(function: Any) -> str:
    """Docstring of the class behind a function of autograd.ops: its value and its gradients."""
    classes = vars(sys.modules[function.__module__]).values()
    return next((inspect.getdoc(c) or "" for c in classes if getattr(c, "name", None) == function.__name__), "")


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = "\n".join(lines)
    if name.startswith("autograd.ops.") and what == "function":
        text = f"{formula(obj)}\n\n{text}".strip()
    if text.startswith("Alias for field number"):  # what Python says of a NamedTuple's
        text = ""
    lines[:] = restructured(text).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

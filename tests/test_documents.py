"""The code in README.md and docs/ runs, and prints what the page says it prints.

Cells tagged `slow` take more than two seconds and run only when the site is built, as do all cells after them that need
what they made: those are tagged so, too.
"""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser
from sybil.parsers.myst.lexers import DirectiveLexer
from sybil.region import Region

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(example):
    """A ```python block: all blocks of a page share one namespace."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = compile(example.parsed, f"{example.path}, line {example.line}", "exec")
        exec(code, example.namespace)
    example.namespace["_printed"] = printed.getvalue()


def compare(example):
    """A ```text block: what the python block before it printed."""
    want = textwrap.dedent(example.parsed)
    assert example.namespace.pop("_printed") == want, f"{example.path}, line {example.line}"


def cells(document):
    """```{code-cell} blocks, as the site runs them; without what only a notebook shows."""
    for lexed in DirectiveLexer("code-cell")(document):
        if "slow" not in lexed.lexemes["options"].get("tags", ""):
            yield Region(lexed.start, lexed.end, lexed.lexemes["source"], run)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parsers = [CodeBlockParser("python", run), CodeBlockParser("text", compare), cells]
    document = Sybil(parsers, path=str(ROOT), patterns=["**/*.md"]).parse(path)
    examples = list(document.examples())
    assert not re.search("@[A-Z0-9]+@", path.read_text(encoding="utf-8")), "a figure that was never filled in"
    for example in examples:
        example.evaluate()

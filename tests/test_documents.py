"""The code in README.md and docs/ runs, and prints what the page says it prints.

Cells tagged `slow` take more than two seconds and run only when the site is built, as do all cells after them that need
what they made: those are tagged so, too.
"""

import contextlib
import io
import re
import runpy
import textwrap
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser
from sybil.parsers.myst.lexers import DirectiveLexer
from sybil.region import Region

ROOT = Path(__file__).parent.parent
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
DOCUMENTS = [ROOT / "README.md", *PAGES]


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
    outside = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not re.search(r"^ *%", outside, re.M), "MyST drops a line that begins with %, as a comment"
    for example in examples:
        example.evaluate()


def test_what_the_map_of_the_house_names_is_there():
    picture = (ROOT / "docs/_static/house.svg").read_text(encoding="utf-8")
    paths = re.findall(r'class="path"[^>]*>([^<]+)<', picture)
    assert len(paths) > 20 and picture.count('class="path"') == len(paths)
    for path in paths:
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
    packages = [p.parent for name in ("autograd", "minicait") for p in (ROOT / name).glob("*/__init__.py")]
    missing = {f"{p.relative_to(ROOT)}/" for p in packages if not any(f"{p.relative_to(ROOT)}/" in x for x in paths)}
    assert not missing, "folders that are not on the map"


PLAIN = """Wraps *one* array_ and `names` it, 2 * 3.

x             an array
the_long_name a bool
longer_names  a number, or `None`,
              and so on

    A = softmax(Q K^T)         (8)

y = x  + s f(x)
"""
RESTRUCTURED = r"""Wraps *one* array\_ and \ ``names``\  it, 2 \* 3.

``x``
    an array
``the_long_name``
    a bool
``longer_names``
    a number, or \ ``None``\ , and so on

.. code-block:: text

    A = softmax(Q K^T)         (8)

.. code-block:: text

    y = x  + s f(x)
"""


def test_plain_docstrings_become_rest_that_says_the_same():
    restructured = runpy.run_path(str(ROOT / "docs/_extensions/plain_docstrings.py"))["restructured"]
    assert restructured(PLAIN) == RESTRUCTURED

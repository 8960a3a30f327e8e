"""docs/equations.md tells where the papers' equations are: every file, name and test in its tables is there."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from minicait.models import FAMILIES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/equations.md").read_text(encoding="utf-8")
WHERE = re.compile(r"`([\w/]+\.py)`: \{py:\w+\}`([\w.]+) <([\w.]+)>`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(text):
    """The cells of all lines of tables, without those at their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0].strip("| ") not in ("what it says", "---")]


def find(name):
    """The object of a dotted name, from the longest part of it that is a module."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def check(row):
    """Raises unless what a row names is there."""
    _, where, test = row
    file, shown, name = WHERE.fullmatch(where).groups()
    assert name.endswith(f".{shown}")
    found = find(name)
    found = found.fget if isinstance(found, property) else found
    assert Path(inspect.getsourcefile(found)) == ROOT / file, f"{name} is in {inspect.getsourcefile(found)}"
    path, function = TEST.fullmatch(test).groups()
    assert re.search(rf"^def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), test


@pytest.mark.parametrize("row", rows(PAGE), ids=lambda row: row[0].split(":")[0][:60])
def test_row(row):
    check(row)


def said():
    """What the rows say, and the list of what is left out."""
    return " ".join(row[0] for row in rows(PAGE)) + PAGE[PAGE.index("## What is not covered") :]


def test_every_equation_is_there():
    assert len(rows(PAGE)) >= 70
    for wanted in ("eq. 1", "eq. 2", "eq. 3", "eq. 4", "eqs. 5 to 7", "eq. 8", "eq. 9", "eq. A.1", "Fig. 1", "Fig. 2",
                   "Fig. 3", "Fig. 4", "Figs. 5 and D.2", "Fig. D.1", "Tables 1, 2, 4, 5", "Table 3"):  # fmt: skip
        assert wanted in said(), wanted


@pytest.mark.parametrize(
    "wanted",
    ["eq. 2.1", "eq. 2.2", "eq. 2.3", "eq. 2.4", "eq. 2.5", "eq. 2.6", "Fig. 2.2",
     "eq. 3.1", "eq. 3.2", "eq. 3.3", "eq. 3.5", "Fig. 3.1", "Table 3.1", "Table 3.3", "Table 3.9", "eq. 4.1",
     "eqs. 4.2 and 4.3", "Fig. 4.1", "Tables 4.1 and 4.3", "Fig. 5.1", "Fig. 5.6", "Tables 5.1 and 5.2", "Table 5.8",
     "Tables 6.7 and 6.14"],
)  # fmt: skip
def test_every_equation_of_the_thesis_is_there(wanted):
    assert wanted in said()


def test_the_equations_of_cait_have_their_numbers_in_the_thesis():
    for numbers in ("eqs. 3.4 to 3.7 are eqs. 1 to 4", "3.8 to 3.12 are 5 to 9", "3.13 is A.1"):
        assert numbers in " ".join(PAGE.split())


@pytest.mark.parametrize(
    "wanted", ["eqs. 1 and 2", "eq. 3", "eqs. 4 and 5", "eqs. 6 and 7", "eq. 8", "eqs. 9 and 10", "Table 4", "Table 8"]
)
def test_every_equation_of_token_labeling_is_there(wanted):
    of_paper = [row[0] for row in rows(PAGE) if row[0].startswith("token labeling, ")]
    assert any(re.search(rf"{wanted}\b", what) for what in of_paper)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_has_rows_and_a_chapter(family):
    assert sum(f"`minicait/models/{family.name}.py`" in where for _, where, _ in rows(PAGE)) >= 3
    file = f"../../minicait/models/{family.name}.py"
    assert any(file in path.read_text(encoding="utf-8") for path in (ROOT / "docs/chapters").glob("*.md"))


@pytest.mark.parametrize(
    "change",
    [
        ("CaiT <minicait.models.cait.CaiT>", "CaiT <minicait.models.CaiT.gone>"),
        ("minicait/models/cait.py", "minicait/nn/layers.py"),
        ("::test_initialisation", "::test_that_is_gone"),
        ("tests/models/test_cait.py", "tests/models/test_gone.py"),
    ],
)
def test_what_has_moved_is_noticed(change):
    (row,) = (row for row in rows(PAGE) if row[2].endswith("::test_initialisation`"))
    check(row)
    moved = [cell.replace(*change) for cell in row]
    assert moved != row
    with pytest.raises((AssertionError, AttributeError, FileNotFoundError)):
        check(moved)

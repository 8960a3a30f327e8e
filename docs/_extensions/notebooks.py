"""Every chapter as a Jupyter notebook to download: `notebooks/` of the site, and all of them as `notebooks.zip`.

A chapter is MyST Markdown. In its notebook, code cells stay as they are; in the text, code that the site includes from
the project's files is copied, glossary terms become plain words, and links lead to the other notebooks.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.directives.code import LiteralIncludeReader

FENCE = re.compile(r"^```\{(?P<kind>[\w-]+)\} ?(?P<argument>.*)\n(?P<body>(?:.*\n)*?)^```\n", re.M)
OPTION = re.compile(r"^:([\w-]+): ?(.*)\n", re.M)
FOLDED = "folded"  # instead of a language: the code of an answer
START = """\
To run this notebook, install minicait in its environment. In a clone of the repository:

    pip install -e . ipykernel
"""


def notebook(path: Path, config: Config) -> dict[str, Any]:
    """The chapter in a file as a notebook, in nbformat 4.5."""
    text = path.read_text(encoding="utf-8").split("---\n", 2)[2]
    title, _, text = text.lstrip().partition("\n")
    text = re.sub(r"<details>.*?</details>\n", _folded, text, flags=re.S)
    cells = [_cell("markdown", f"{title}\n\n{START}", 0)]
    end = 0
    for fence in FENCE.finditer(text):
        if fence["kind"] == "code-cell":
            cells.append(_cell("markdown", _prose(text[end : fence.start()], path.parent, config), len(cells)))
            cells.append(_cell("code", OPTION.sub("", fence["body"]), len(cells)))
            if fence["argument"] == FOLDED:
                cells[-1]["metadata"] = {"jupyter": {"source_hidden": True}}
            end = fence.end()
    cells.append(_cell("markdown", _prose(text[end:], path.parent, config), len(cells)))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell for cell in cells if cell["source"]]
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _folded(answer: re.Match[str]) -> str:
    """An answer. One that is only text stays hidden; one with code needs cells of its own, which are folded instead."""
    if "{code-cell}" not in answer[0]:
        return answer[0]
    text = answer[0].replace("<summary>Answer</summary>", "*Answer.*")
    return re.sub(r"</?details>", "", text).replace("{code-cell} ipython3", f"{{code-cell}} {FOLDED}")


def _cell(kind: str, source: str, number: int) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.strip("\n")}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _prose(text: str, folder: Path, config: Config) -> str:
    """Markdown that Jupyter understands, of MyST's."""

    def directive(fence: re.Match[str]) -> str:
        if fence["kind"] == "literalinclude":
            return _included(folder / fence["argument"], dict(OPTION.findall(fence["body"])), config)
        if fence["kind"] == "raw":
            return "(A figure that is on the page of this chapter.)\n"
        if fence["kind"] == "figure":
            return f"![]({_picture(folder / fence['argument'])})\n\n{OPTION.sub('', fence['body']).strip()}\n"
        raise ValueError(f"{folder}: no notebook can show the directive {fence['kind']}")

    text = FENCE.sub(directive, text)
    text = re.sub(r"\{term\}`([^`<]+?)(?:\s*<[^`]*>)?`", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\((\d\d_\w+)\.md(?:#[\w-]*)?\)", r"[\1](\2.ipynb)", text)
    text = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|\d\d_)[^)\s]*\)", r"\1", text)
    return text


def _picture(path: Path) -> str:
    """An SVG file as an address that needs no file."""
    return f"data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"


def _included(path: Path, options: dict[str, str], config: Config) -> str:
    """Code from a file, as Sphinx's literalinclude reads it."""
    given: dict[str, Any] = {name: value.strip("'") for name, value in options.items()}
    if "dedent" in given:
        given["dedent"] = int(given["dedent"] or 0) or None
    text, _ = LiteralIncludeReader(str(path), given, config).read()
    return f"```{given.get('language', 'python')}\n{text.rstrip()}\n```\n"


def link(app: Sphinx, name: str, source: list[str]) -> None:
    """Put a link to its notebook under the title of a chapter."""
    if name.startswith("chapters/"):
        address = f"../notebooks/{name.removeprefix('chapters/')}.ipynb"
        line = f'<p class="notebook"><a href="{address}" download>Download this chapter as a Jupyter notebook</a></p>'
        source[0] = re.sub(r"^(# .*\n)", rf"\1\n{line}\n", source[0], count=1, flags=re.M)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all notebooks into the site."""
    if error is not None or app.builder.format != "html":
        return
    folder, archive = Path(app.outdir, "notebooks"), io.BytesIO()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(Path(app.srcdir, "chapters").glob("*.md")):
            text = json.dumps(notebook(path, app.config), indent=1, ensure_ascii=False)
            (folder / f"{path.stem}.ipynb").write_text(text + "\n", encoding="utf-8")
            packed.writestr(f"minicait/{path.stem}.ipynb", text + "\n")
    Path(app.outdir, "notebooks.zip").write_bytes(archive.getvalue())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Mathematics by the KaTeX in _static/katex (0.19.1, MIT license), in the reader's browser and from no other host."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def inline(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<span class="math" data-display="false">{escape(node.astext())}</span>')
    raise nodes.SkipNode


def block(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<div class="math" data-display="true">{escape(node.astext())}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("katex", (inline, None), (block, None))
    app.add_css_file("katex/katex.min.css")
    app.add_js_file("katex/katex.min.js", loading_method="defer")
    app.add_js_file("math.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}

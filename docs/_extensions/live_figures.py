"""Interactive figures: a page that has an element data-figure="NAME" loads figures/NAME.js."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

FIGURE = re.compile(r'data-figure="(\w+)"')


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if names := sorted(set(FIGURE.findall(context.get("body", "")))):
        app.add_css_file("figures/figures.css")
        for name in ("live", *names):
            app.add_js_file(f"figures/{name}.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The site: Sphinx with MyST-NB, which runs the code of every page. Build it with

    sphinx-build -W --keep-going docs docs/_build/html

Everything it needs is in this folder; a reader's browser asks no other host for anything.
"""

import sys
from hashlib import sha256
from pathlib import Path

from jupyter_cache import get_cache

from minicait import __version__ as release

HERE = Path(__file__).parent
sys.path.append(str(HERE / "_extensions"))

project, author = "minicait", "the minicait authors"
version = release
language = "en"
exclude_patterns = ["_build", "jupyter_execute"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "notebooks", "live_figures",
              "offline_math", "plain_docstrings"]  # fmt: skip

patterns = ("autograd/**/*.py", "minicait/**/*.py", "minicait/weights/**/*", "examples/*.py", "docs/results/**/*.csv",
            "docs/results/*.json")  # fmt: skip
sources = sorted(path for pattern in patterns for path in HERE.parent.glob(pattern) if path.is_file())
code = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
nb_execution_mode = "cache"  # a page runs again when its code, the project's or a result has changed
nb_execution_cache_path = str(HERE / "_build" / f"cache-{code}")
get_cache(nb_execution_cache_path).list_cache_records()  # made here, before several processes would make it at once
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True  # what a cell prints is one block
nitpicky = True  # a name that leads nowhere is an error
nitpick_ignore_regex = [
    ("py:class", r"(numpy|np|collections|contextlib|pathlib|PIL)\b.*"),  # others' types, in signatures
    ("py:class", r".*\.(changed|Dataset|Batch|Sample|Images|Info|Shown|Svg|T|TensorFile|inside\.Branch)"),  # ours
]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_math_renderer = "katex"
html_theme = "furo"
html_title = "minicait"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("names.js", {"defer": "defer"})]
html_copy_source = False
copybutton_selector = "div:not(.output) > div.highlight > pre"  # on code, not on what it prints
html_show_copyright = False
html_show_search_summary = False  # which a browser may not read from disk

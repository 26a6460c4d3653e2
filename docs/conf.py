"""The site: these pages, the docstrings, and what the registry of strategies says.

``make docs`` builds it and runs its notebooks. With ``NOTEBOOKS=off``, as in the tests, the notebooks are shown without
their output.
"""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import site_pages

project = "flower-fedclust"
author = "The flower-fedclust developers"
copyright = f"2026 {author}"
version = release = version_of("flower-fedclust")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "jupyter_execute"]

highlight_language = "none"  # blocks without a language are text or commands
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "flower-fedclust"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False  # a copy would not show the blocks that are inserted below
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f6f5e", "color-brand-content": "#22618f"},
    "dark_css_variables": {"color-brand-primary": "#7cc7b2", "color-brand-content": "#8cc2ea"},
}

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "attrs_inline"]
nb_execution_mode = "off" if os.environ.get("NOTEBOOKS") == "off" else "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # the longest cell runs a deployment on one machine
nb_merge_streams = True
napoleon_google_docstring = False
napoleon_use_ivar = True  # attributes are listed with their class
autodoc_typehints = "none"  # the docstrings state types, shapes and units
autodoc_member_order = "bysource"
add_module_names = False
maximum_signature_line_length = 72
suppress_warnings = [
    "ref.python",  # a shape such as (n_clusters, n_columns) is not a reference
    "myst-nb.lexer",  # without a run, a notebook does not know its language
]


def fill_in(_app: object, page: str, source: list[str]) -> None:
    """Insert what comes from the registry."""
    source[0] = site_pages.filled_in(source[0])
    if page.startswith("papers/"):
        source[0] = site_pages.with_reproduced_tables(source[0], page.removeprefix("papers/"))
    if page.startswith("reference/"):
        source[0] = site_pages.with_list_of_classes(source[0])


def setup(app: object) -> None:
    """Register what runs before the pages are read, and for each page."""
    app.connect("builder-inited", lambda app: site_pages.write_class_pages())  # type: ignore[attr-defined]
    app.connect("builder-inited", lambda app: site_pages.copy_reproduced_tables())  # type: ignore[attr-defined]
    # These depend on the registry, which Sphinx does not watch.
    app.connect(  # type: ignore[attr-defined]
        "env-get-outdated",
        lambda app, env, *changes: [
            page for page in env.found_docs if page.startswith(("reference/", "choosing"))
        ],
    )
    app.connect("source-read", fill_in)  # type: ignore[attr-defined]

"""The site: these pages and the docstrings. ``sphinx-build -W docs docs/_build`` builds it."""

from importlib.metadata import version as version_of

from flower_fedclust.registry import strategies

project = "flower-fedclust"
version = release = version_of("flower-fedclust")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "flower-fedclust"
html_copy_source = False  # the pages hold what is generated below, which a copy would not show

myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_ivar = True  # attributes are listed with their class, and have no entries of their own
autodoc_typehints = "none"  # the docstrings say types, shapes and units
autodoc_member_order = "bysource"
suppress_warnings = ["ref.python"]  # a shape such as (n_clusters, n_columns) is no reference


def strategy_table() -> str:
    """Return a table of all strategies, from what they declare."""
    lines = ["| strategy | what it does | source | reveals | guarantee |", "|---|---|---|---|---|"]
    for name, entry in strategies().items():
        guarantee = " or ".join(entry.units) or "none"
        summary = entry.summary.replace("|", "\\|")
        lines.append(f"| `{name}` | {summary} | {entry.source} | {', '.join(entry.reveals)} | {guarantee} |")
    return "\n".join(lines)


def strategy_classes() -> str:
    """Return the reference of all strategies' classes."""
    classes = dict.fromkeys(entry.strategy for entry in strategies().values())
    blocks = [f"```{{eval-rst}}\n.. autoclass:: {found.__module__}.{found.__name__}\n```" for found in classes]
    return "\n\n".join(blocks)


def fill_in(app: object, page: str, source: list[str]) -> None:  # noqa: ARG001
    """Put in place what follows from the registry."""
    for name, text in (("strategies", strategy_table), ("strategy_classes", strategy_classes)):
        if f"{{{{ {name} }}}}" in source[0]:
            source[0] = source[0].replace(f"{{{{ {name} }}}}", text())


def setup(app: object) -> None:
    """Register what is done to every page before it is read."""
    app.connect("source-read", fill_in)  # type: ignore[attr-defined]

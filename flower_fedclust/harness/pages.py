"""The pages of a comparison and of a map: templates, in which every text is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def page(template: str, **content: Any) -> str:
    """Return a page, complete in itself.

    Parameters
    ----------
    template : str
        Its path among the templates.
    **content
        What the template names.
    """
    return _environment().get_template(template).render(content)


def plural(count: int, noun: str) -> str:
    """Return "1 seed", "3 seeds"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def budget_text(epsilon: float | None) -> str:
    """Return "epsilon 1", or "no epsilon"."""
    return "no epsilon" if epsilon is None else f"epsilon {epsilon:g}"


@cache
def _environment() -> Environment:
    """Return the templates; a name that does not exist is an error."""
    environment = Environment(
        loader=PackageLoader("flower_fedclust.harness"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plural": plural, "budget": budget_text, "short": "{:g}".format, "tenth": "{:.1f}".format}
    return environment

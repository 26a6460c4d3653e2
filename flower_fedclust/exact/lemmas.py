"""Which lemma of docs/exact.md bounds what a function adds.

A function that states a bound names the lemma that proves it. A test reads these names: it checks that the page has
every lemma that a function names, that a function needs every lemma of the page, and that no function of this package
makes a term without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def proven(*lemmas: str) -> Callable[[F], F]:
    """Name the lemmas of docs/exact.md, such as "2a", on which the decorated function's bound rests."""

    def name_lemmas(function: F) -> F:
        vars(function)["lemmas"] = lemmas
        return function

    return name_lemmas

"""Which lemma of docs/exact.md bounds what a function adds.

A function that states a bound names the lemma that proves it. A test checks these names: every named lemma is on the
page, every lemma of the page is named by a function, and every function of this package that makes a term names one.
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

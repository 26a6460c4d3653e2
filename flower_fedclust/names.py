"""Look up names that a user has typed, and write names and counts into sentences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value")


#: Other names that people use for a parameter -> its name in this package.
ALSO_CALLED = {
    "k": "n_clusters",
    "n_components": "n_clusters",
    "eps": "epsilon",
    "seed": "random_state",
}

#: Texts of fewer letters than this are only looked for at the beginning of a name, and not within it.
LEAST_WITHIN = 3


def look_up(name: str, table: Mapping[str, Value], kind: str) -> Value:
    """Return ``table[name]``; if there is no such name, raise a ValueError that suggests the nearest name.

    A name is near if it begins with what was typed, contains it, or is spelled similarly. Other common names of a
    parameter (``eps`` for ``epsilon``) are known as well. If no name is near, the error lists all names.

    Parameters
    ----------
    name : str
    table : mapping
    kind : str
        What the table's entries are, in the singular: "strategy", "data set".
    """
    if name in table:
        return table[name]
    by_spelling = {known.casefold(): known for known in table}
    typed = name.casefold()
    begun = [spelling for spelling in by_spelling if typed and spelling.startswith(typed)]
    within = [
        spelling
        for spelling in by_spelling
        if len(typed) >= LEAST_WITHIN and typed in spelling.replace("-", "")
    ]
    called = [other for other in (ALSO_CALLED.get(typed),) if other in by_spelling]
    close = called or begun or within or difflib.get_close_matches(typed, list(by_spelling), n=1)
    nearest = [by_spelling[spelling] for spelling in close[:1]]
    advice = (
        f"did you mean '{nearest[0]}'?" if nearest else f"there are: {', '.join(sorted(table))}."
    )
    raise ValueError(f"There is no {kind} '{name}': {advice}")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 seed", "3 seeds"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def some(names: Sequence[str], most: int = 10, between: str = ", ") -> str:
    """Join the first ``most`` names, and say how many more there are."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")

"""Codes and words that stand for missing values, such as 999, -99 and "unknown".

People who key data write a code where an answer is missing. Read as a number, it would move every
mean. These functions only suggest codes to the person who drafts a schema; nothing is treated as
missing unless the schema lists it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.cells import LABELS

Floats = NDArray[np.float64]

#: Words that stand for a missing value, in lower case.
MISSING_WORDS = frozenset(
    (
        *(
            ".",
            "-",
            "--",
            "?",
            "*",
            "x",
            "unknown",
            "unk",
            "missing",
            "miss",
            "refused",
            "declined",
            "not available",
        ),
        *(
            "not applicable",
            "not known",
            "not done",
            "not recorded",
            "no answer",
            "no response",
            "none",
            "nil",
            "nd",
        ),
        *(
            "don't know",
            "dont know",
            "dk",
            "n.a.",
            "na",
            "n/a",
            "nan",
            "null",
            "unbekannt",
            "keine angabe",
            "k.a.",
        ),
        *("inconnu", "desconocido", "sconosciuto", "onbekend"),
    )
)

#: Labels of Stata and SPSS that say that an answer is missing.
_LABEL_OF_MISSING = re.compile(
    r"(?i)refus|declin|don.?t know|do not know|\bdk\b|\bn\W?a\W?$|not (answered|asked|available|known|stated)"
    r"|not applicable|missing|unknown|no answer|no response|no opinion|inap|invalid|weiß nicht|weiss nicht|keine angabe"
    r"|trifft nicht zu|unbekannt|ne sait pas|no sabe|no contesta"
)

#: The usual codes: numbers that people choose to stand for a missing value. CHOSEN adds the same numbers below 0, and
#: -1, -7, -8 and -9.
_POSITIVE = (
    77,
    88,
    96,
    97,
    98,
    99,
    777,
    888,
    996,
    997,
    998,
    999,
    7777,
    8888,
    9996,
    9997,
    9998,
    9999,
)
_LONG = (99.9, 99.99, 999.9, 999.99, 9999.9, 99999, 999999, 9999999, 99999999)
CHOSEN = np.array([*_POSITIVE, *_LONG, -1, -7, -8, -9, *(-code for code in (*_POSITIVE, *_LONG))])

#: A usual code is suggested as unsure if it occurs at least OFTEN times, and if its distance from the other values is
#: more than STEPS times the largest gap between these.
OFTEN, STEPS = 5, 5.0


@dataclass(frozen=True)
class Codes:
    """Codes that may stand for a missing value in a column of numbers, with the reason for suspecting them."""

    sure: list[float] = field(default_factory=list)
    why: str = ""
    unsure: list[float] = field(default_factory=list)
    why_unsure: str = ""


def find_codes(numbers: Floats, labels: Mapping[float, str]) -> Codes:
    """Return the codes for missing values among the numbers of a column.

    A code is sure in three cases: its label says that the value is missing; or it is a usual code
    below 0, and no other number is below 0; or it is a usual code whose distance from all other
    numbers exceeds their range. A usual code that is less far away, but beyond all other numbers
    and frequent, is unsure.

    Parameters
    ----------
    numbers : ndarray of shape (n_rows,)
    labels : mapping of float to str
        Codes whose labels say that a value is missing; see :func:`labeled_codes`.
    """
    values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    labeled = [value for value in values if value in labels]
    is_chosen = np.isin(values, CHOSEN) & ~np.isin(values, labeled)
    others = values[~is_chosen & ~np.isin(values, labeled)]
    sure, unsure = list(map(float, labeled)), []
    if len(others) > 2:
        low, high = others[0], others[-1]
        step = np.diff(others).max()
        for value, count in zip(values[is_chosen], counts[is_chosen], strict=True):
            away = max(low - value, value - high)
            if away > high - low or (value < 0 <= low and away > 0):
                sure.append(float(value))
            elif away > STEPS * step and count >= OFTEN:
                unsure.append(float(value))
    named = [f"{value:g} has the label '{labels[value]}'" for value in labeled]
    far = ["far from all other values"] if len(sure) > len(labeled) else []
    return Codes(
        _whole(sure),
        ", ".join(named + far),
        _whole(unsure),
        "apart from the other values, and frequent",
    )


def labeled_codes(table: Any) -> dict[str, dict[float, str]]:
    """Return, for each column, the codes whose labels say that a value is missing.

    Files of Stata and SPSS have labels for the values of a column.
    """
    labels: Mapping[str, Mapping[float, str]] = table.attrs.get(LABELS, {})
    labeled = {
        name: {code: label for code, label in of_column.items() if _LABEL_OF_MISSING.search(label)}
        for name, of_column in labels.items()
    }
    return {name: codes for name, codes in labeled.items() if codes}


def _whole(numbers: list[float]) -> list[float]:
    """Return whole numbers as integers, so that they are written as in the file."""
    return [int(number) if number == int(number) else number for number in numbers]

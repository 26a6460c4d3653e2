"""Numbers and words as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flower_fedclust.harness.report.data import Spread

#: What is shown if there is no value.
NOTHING = "–"
#: The names of the measures.
NAMES = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI", "cost_per_row": "cost per row", "silhouette": "silhouette"}


def number_text(value: float | None, significant: int = 4) -> str:
    """Return a number with so many significant digits; a large one as a whole number, with commas."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, significant - 1 - math.floor(math.log10(abs(value))))}f}"


def share_text(value: float) -> str:
    """Return a figure between 0 and 1, such as an accuracy."""
    return f"{value + 0.0 if abs(value) >= 0.0005 else 0.0:.3f}"  # never "-0.000"


def measure_text(measure: str, value: float) -> str:
    """Return a value of a measure."""
    return number_text(value) if measure == "cost_per_row" else share_text(value)


def bytes_text(value: float, digits: str = ",.1f") -> str:
    """Return a count of bytes in the unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:{digits}} {unit}"
    return f"{value:,.0f} B"


def count_text(value: float) -> str:
    """Return a count, or a mean of counts."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def deviation_text(spread: Spread, text: str) -> str:
    """Return the deviation with as many decimals as ``text``, the mean as it is shown; "" if there is no deviation."""
    if spread.deviation is None:
        return ""
    if "e" in text:
        return f"± {spread.deviation:.1e}"
    if spread.deviation <= 1e-9 * abs(spread.mean):
        return "± 0"  # what is left is rounding
    decimals = len(text.partition(".")[2])
    least = 10.0**-decimals
    if 0 < spread.deviation < least / 2:
        return f"± <{least:.{decimals}f}"
    return f"± {spread.deviation:,.{decimals}f}"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return names with commas and "and"; of many the first, and how many more there are."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))

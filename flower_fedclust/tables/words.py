"""The numbers of a description as text, with their uncertainty.

Two rules hold for every function here. A number has no more digits than its error allows, and
rounding never makes an interval shorter than it is. If noise leaves a number open, a limit is
printed ("at most 3%") instead of a value that looks exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.tables.schema import EPOCH, Column

Floats = NDArray[np.float64]


def round_edges(edges: Floats, *, whole: bool, ends: bool) -> Floats:
    """Return ascending edges that can be written in few digits.

    Each edge is rounded to a multiple of a power of ten that is small compared with the gaps beside
    it (at least 1 if ``whole``). If ``ends``, the first and the last edge are rounded outwards;
    otherwise they are not changed.
    """
    gaps = np.diff(edges)
    least = np.minimum(np.append(gaps, np.inf), np.append(np.inf, gaps))
    least = np.where(least > 0, least, np.inf)
    least[[0, -1]] = (edges[-1] - edges[0]) / 20
    units = 10.0 ** np.floor(
        np.log10(np.where(np.isfinite(least), least / 4, edges[-1] - edges[0]))
    )
    if whole:
        units = np.maximum(units, 1.0)
    rounded = np.round(edges / units) * units
    rounded[0], rounded[-1] = edges[0], edges[-1]
    if ends:
        rounded[0], rounded[-1] = (
            np.floor(edges[0] / units[0]) * units[0],
            np.ceil(edges[-1] / units[-1]) * units[-1],
        )
    inner = rounded[(rounded > rounded[0]) & (rounded < rounded[-1])]
    return np.unique(np.concatenate([rounded[:1], inner, rounded[-1:]]))


def plain(value: float, decimals: int | None = None) -> str:
    """Format a number without an exponent, with commas from 10,000 on (so that years have none)."""
    if decimals is None:
        if not value or not 1e-5 <= abs(value) < 1e15:
            return f"{value:.3g}"
        decimals = max(2 - math.floor(math.log10(abs(value))), 0)
        text = plain(value, decimals)
        return text.rstrip("0").rstrip(".") if "." in text else text
    value = round(value, decimals) + 0.0  # never "-0.00"
    text = f"{value:,.{max(decimals, 0)}f}"
    return text if abs(value) >= 1e4 else text.replace(",", "")


def with_error(value: float, error: float) -> str:
    """Format "value ± error" with as many digits as the error leaves.

    The error is increased by as much as rounding has moved the value, and then rounded up. So the
    printed interval contains the exact one.
    """
    if not error > 0:
        return plain(value)
    rounded, up, decimals = _as_printed(value, error)
    if decimals > 15:
        return f"{rounded:.3g} ± {up:.2g}"
    return f"{plain(rounded, decimals)} ± {plain(up, decimals)}"


def _as_printed(value: float, error: float) -> tuple[float, float, int]:
    """Return a value and its error as they are printed, and the number of decimals; the error must be above 0."""
    decimals = -math.floor(math.log10(error))
    if error * 10**decimals < 3:  # rounding to 1 or 2 would be coarse
        decimals += 1
    if decimals > 15:
        return value, error, decimals
    rounded = round(value, decimals)
    up = math.ceil((error + abs(rounded - value)) * 10**decimals - 1e-6) / 10**decimals
    return rounded, up, decimals


def shows_a_difference(difference: float, error: float) -> bool:
    """Tell whether a difference still exceeds its error after both are rounded for print.

    Returns True if the error is 0 or unknown (NaN).
    """
    if not error > 0:
        return True
    rounded, up, _ = _as_printed(abs(difference), error)
    return rounded > up


def percent(share: float, error: float) -> str:
    """Format a share and its error in percent, or as a limit if noise leaves open whether the share is 0 or 100%."""
    if share <= error and share + error >= 1:
        return "0 to 100%"
    if error > 0 and share - error <= 0:
        return f"at most {_limit(share + error)}%"
    if error > 0 and share + error >= 1:
        return f"at least {plain(100 - float(_limit(1 - share + error)))}%"
    return f"{with_error(100 * share, 100 * error)}%"


def fewer(fewer_than: float, high: float, unit: str = "") -> str:
    """Describe a number of rows, or a share, that the floor hides.

    Parameters
    ----------
    fewer_than : float
        The number of rows below which the count is known to lie; infinite if the sums do not count
        rows.
    high : float
        The limit of the share, 0 to 1.
    unit : str
        What is counted, such as "rows".
    """
    if math.isinf(fewer_than):
        return f"at most {_limit(high)}%"
    return f"fewer than {math.ceil(fewer_than):,}{f' {unit}' if unit else ''} ({_limit(high)}%)"


def size(value: float, error: float, fewer_than: float, high: float, counted: str) -> str:
    """Describe the share of a cluster; ``counted`` is "rows" or "persons"."""
    if math.isnan(fewer_than):
        return f"{percent(value, error)} of the {counted}"
    said = fewer(fewer_than, high, counted)
    return said if math.isfinite(fewer_than) else f"{said} of the {counted}"


def _limit(share: float) -> str:
    """Format a share as a limit in percent, rounded up."""
    percent = min(100 * share, 100.0)
    return _rounded(percent, percent, up=True)


def _rounded(value: float, error: float, *, up: bool) -> str:
    """Format a limit, rounded outwards to two digits of its error."""
    if not error > 0:
        return plain(value)
    decimals = 1 - math.floor(math.log10(error))
    way = math.ceil if up else math.floor
    text = plain(way(value * 10.0**decimals + (-1e-9 if up else 1e-9)) / 10.0**decimals, decimals)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _day(value: float) -> str:
    """Format days since 1970 as a date."""
    return str(np.datetime64(EPOCH) + round(value))


def _edge(value: float, column: Column) -> str:
    """Format an edge with all of its digits, which are few; see :func:`round_edges`."""
    text = _day(value) if column.kind == "date" else f"{value:,.12g}"
    return text if abs(value) >= 1e4 else text.replace(",", "")


def between(low: float, high: float, column: Column) -> str:
    """Format the interval of a quantile: "3 to 5", "at most 5", or "unknown"."""
    if not math.isfinite(low) and not math.isfinite(high):
        return "unknown"
    if math.isinf(low) or math.isinf(high):
        return (
            f"at least {_edge(low, column)}"
            if math.isinf(high)
            else f"at most {_edge(high, column)}"
        )
    first, last = _edge(low, column), _edge(high, column)
    return first if first == last else f"{first} to {last}"


def difference(
    column: Column,
    row: Mapping[str, Any],
    median: Mapping[str, Any],
    deviations: float,
    ends: Sequence[float],
    counted: str,
) -> str:
    """Return a sentence about how a cluster differs from the rest in one number.

    Parameters
    ----------
    column : Column
    row, median : mapping
        The number's row of the description, and the row of the median of the same column.
    deviations : float
        How many standard deviations "±" stands for.
    ends : sequence of float
        The bounds of a measured column.
    counted : "rows" or "persons"
    """
    name, error, rest_error = (
        row["column"],
        deviations * row["error"],
        deviations * row["rest_error"],
    )
    if row["what"] != "mean":
        number = "is missing" if row["what"] == "missing" else f"is {row['what']}"
        of_cluster, rest = (
            _share(row, "value", "", error, counted),
            _share(row, "rest", "rest_", rest_error, counted),
        )
        return f"{name} {number}: {of_cluster}, in the rest {rest}"
    of_cluster = mean(column, row["value"], error, row["low"], row["high"], ends)
    if math.isnan(row["difference"]):
        rest = mean(column, row["rest"], rest_error, row["rest_low"], row["rest_high"], ends)
        medians = [
            between(median[f"{side}low"], median[f"{side}high"], column) for side in ("", "rest_")
        ]
        return f"{name}: {of_cluster}, median {medians[0]}; in the rest {rest}, median {medians[1]}"
    apart = with_error(abs(row["difference"]), deviations * row["difference_error"])
    more, less = ("days later", "days earlier") if column.kind == "date" else ("more", "less")
    return f"{name}: {of_cluster}, {apart} {more if row['difference'] > 0 else less} than the rest"


def _share(row: Mapping[str, Any], value: str, side: str, error: float, counted: str) -> str:
    """Format a share of a cluster, or (with side "rest_") of the rest."""
    limit = row.get(f"{side}fewer_than", math.nan)
    if math.isnan(limit):
        return percent(row[value], error)
    return fewer(limit, row[f"{side}high"], counted)


def mean(
    column: Column,
    value: float,
    error: float,
    low: float,
    high: float,
    ends: Sequence[float],
    *,
    with_unit: bool = True,
) -> str:
    """Describe a mean: a limit if one bound clips, and "within the bounds" if both do.

    No printed interval reaches beyond a bound. ``with_unit=False`` leaves the unit out, if a
    heading has it.
    """
    unit, within = f" {column.unit}" if column.unit and with_unit else "", ""
    if math.isinf(low) and math.isinf(high):
        within = " within the bounds"
    is_limit = math.isinf(low) != math.isinf(high)
    if not is_limit and error > 0:
        _, up, _ = (
            (value, math.ceil(error), 0) if column.kind == "date" else _as_printed(value, error)
        )
        # A limit that is at a bound says nothing new, and is left out.
        low = -math.inf if value - up <= ends[0] else value - error
        high = math.inf if value + up >= ends[1] else value + error
        if math.isinf(low) and math.isinf(high):
            return "anywhere within the bounds"
        is_limit = math.isinf(low) or math.isinf(high)
    if not is_limit:
        around = f" ± {math.ceil(error)} days" if error > 0 else ""
        said = (
            f"{_day(value)}{around}"
            if column.kind == "date"
            else f"{with_error(value, error)}{unit}"
        )
        return f"{said}{within}"
    limit, words = (low, "at least") if math.isinf(high) else (high, "at most")
    said = (
        _day(limit) if column.kind == "date" else _rounded(limit, error, up=math.isinf(low)) + unit
    )
    return f"{words} {said}{within}"


def spread(value: float, error: float, low: float, high: float) -> str:
    """Format a standard deviation: as a lower limit if values are clipped, as an upper limit if it may be 0."""
    if math.isinf(high):
        return f"at least {_rounded(low, error, up=False)}" if low > 0 else "unknown"
    if error > 0 and value - error <= 0:
        return f"at most {_rounded(value + error, error, up=True)}"
    return with_error(value, error)


def bounds(name: str, column: Column, ends: Floats, limits: Sequence[Sequence[float]]) -> str:
    """Describe the bounds of a column, and the largest shares of rows below and above them, by cluster."""
    unit = f" {column.unit}" if column.unit else ""
    known = "" if column.interval is not None else ", found"
    low, high = _edge(ends[0], column), _edge(ends[-1], column)
    # Each share has its own sign: "below 8, 18%" would read as if 8 were a bound.
    below, above = (
        ", ".join(f"{_limit(1.0 if math.isnan(share) else share)}%" for share in side)
        for side in limits
    )
    return f"{name}: {low} to {high}{unit}{known}; below {low}: {below}; above {high}: {above}"

"""The values of one column as numbers: as they are, days since 1970, or places in a list; NaN where one is missing."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flower_fedclust.tables.schema import Column

Floats = NDArray[np.float64]

EPOCH = datetime.date(1970, 1, 1)


class MisfitError(Exception):
    """Why a column does not fit its schema: part of a sentence, which names rows and no value."""


def text_of(value: object) -> str:
    """Return what a category is called: 1, 1.0 and "1" are one category; so are True and "true"."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and value == np.trunc(value):
        return str(int(value))
    return str(value)


def days_of(bound: float | datetime.date) -> float:
    """Return a bound as a number; of a date, its days since 1970."""
    if isinstance(bound, datetime.datetime):
        naive = bound.astimezone(datetime.UTC).replace(tzinfo=None) if bound.tzinfo else bound
        return (naive - datetime.datetime.combine(EPOCH, datetime.time())) / datetime.timedelta(days=1)
    return float((bound - EPOCH).days) if isinstance(bound, datetime.date) else float(bound)


def read_column(series: Any, column: Column, *, first_row: int = 0) -> Floats:
    """Return the values of a column as its kind has them, each from its own entry alone.

    Parameters
    ----------
    series : pandas.Series
    column : Column
        Not ignored.
    first_row : int, default=0
        The number of the series' first row, for messages.

    Returns
    -------
    ndarray of shape (n_rows,)
        Numbers; days since 1970; or the place of each category in its list, where a gap has the place after the last
        if it is a category of its own. NaN for other gaps. Not copied where the series holds floats.

    Raises
    ------
    MisfitError
        If a value is not what the schema says, or missing where gaps are refused.
    """
    if column.categories is not None:
        values = _codes(series, column.categories, first_row)
    elif column.kind == "date":
        values = _days(series, first_row)
    else:
        values = _numbers(series, first_row)
        if column.kind == "integer":
            _refuse(values != np.trunc(values), ~np.isnan(values), first_row, "is no whole number; mend it")
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if np.isfinite(total):  # one sum is not, if any value is not
        return values
    _refuse(np.isinf(values), True, first_row, "is infinite; mend it")
    gaps = np.isnan(values)
    if column.gaps == "refuse":
        _refuse(gaps, True, first_row, 'is missing; fill it in, or let the schema say gaps = "mean" or "category"')
    elif column.is_one_hot and column.gaps == "category":
        values[gaps] = len(column.categories or ())
    return values


def _numbers(series: Any, first_row: int) -> Floats:
    import pandas as pd

    kind = getattr(series.dtype, "kind", "O")
    if kind in "mM" or isinstance(series.dtype, pd.PeriodDtype):
        raise MisfitError("it holds dates or times where the schema says numbers; change the kind")
    if kind == "c":
        raise MisfitError("it holds complex numbers; give real ones")
    if not pd.api.types.is_numeric_dtype(series.dtype):
        numbers = pd.to_numeric(series, errors="coerce")
        _refuse(numbers.isna().to_numpy(), series.notna().to_numpy(), first_row, "is no number; mend it")
        series = numbers
    found: Floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _days(series: Any, first_row: int) -> Floats:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series.dtype):
        raise MisfitError("it holds numbers where the schema says dates; change the kind")
    dates = series if series.dtype.kind == "M" else pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)
    _refuse(dates.isna().to_numpy(), series.notna().to_numpy(), first_row, "is no date; write it as YYYY-MM-DD")
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    gaps = dates.isna().to_numpy()
    days: Floats = dates.to_numpy(dtype="datetime64[us]").astype(np.int64) / 86_400e6
    days[gaps] = np.nan
    return days


def _codes(series: Any, categories: tuple[str, ...], first_row: int) -> Floats:
    import pandas as pd

    try:
        codes, found = pd.factorize(series)
    except TypeError:
        raise MisfitError("it holds what is no category, such as lists; leave it out") from None
    places = {name: float(place) for place, name in enumerate(categories)}
    place_of = np.array([*(places.get(text_of(value), -1.0) for value in found), np.nan])
    values: Floats = place_of[codes]  # a gap has the code -1
    remedy = "is a category that the schema does not list; mend it, or have the schema list it"
    _refuse(values == -1.0, True, first_row, remedy)
    return values


def _refuse(is_bad: NDArray[np.bool_], counts: NDArray[np.bool_] | bool, first_row: int, why: str) -> None:
    """Raise a MisfitError that names the first row that is bad and counts, if there is one."""
    bad = is_bad & counts
    if bad.any():
        raise MisfitError(f"row {first_row + int(bad.argmax())} {why}")

"""One column: what is public of it, what was found of it, and its values as numbers."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Floats = NDArray[np.float64]
Kind: TypeAlias = Literal["number", "integer", "category", "ordinal", "binary", "date", "ignored"]
Gaps: TypeAlias = Literal["refuse", "mean", "category"]
Scale: TypeAlias = Literal["bounds", "standard", "robust", "rank"]
Bound: TypeAlias = float | datetime.date | datetime.datetime

#: Kinds that are measured on a scale, and kinds whose values are listed.
MEASURED, LISTED = ("number", "integer", "date"), ("category", "ordinal", "binary")

#: What pandas reads from a file as a missing value.
READ_AS_MISSING = frozenset(("NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "<NA>", "#N/A"))

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


class Column(BaseModel):
    """What is public of one column. All of it is sent to every site: none of it may be taken from rows.

    Parameters
    ----------
    kind : "number", "integer", "category", "ordinal", "binary", "date" or "ignored"
        Numbers, integers and dates are measured; the values of a category, of an ordinal column (in their order) and of
        a binary one (two) are listed; an ignored column may be there and is not used.
    unit : str, default=""
        For people.
    bounds : tuple of two numbers or dates, optional
        Of a measured column: what lies beyond is cut off. Without them they are found privately.
    categories : sequence, optional
        The values of a column whose values are listed.
    weight : float, default=1
        How much the column counts: 2 makes it count as if its scale were twice as long.
    gaps : "refuse", "mean" or "category", default="refuse"
        What is done where a value is missing: the site's table is refused; the mean over all sites is taken, or the
        most frequent category; or a missing value is a category of its own.
    scale : "bounds", "standard", "robust" or "rank", default="bounds"
        How a measured column is scaled: its bounds become -1 and 1; its mean becomes 0 and its standard deviation 1;
        its median 0 and the distance between its quartiles 1; or its ranks become -1 to 1.
    logarithm : bool, default=False
        Whether log(1 + x) is taken first; what lies below 0 counts as 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Kind
    unit: str = ""
    bounds: tuple[Bound, Bound] | None = None
    categories: tuple[str, ...] | None = None
    weight: float = Field(default=1.0, gt=0, lt=1e100)
    gaps: Gaps = "refuse"
    scale: Scale = "bounds"
    logarithm: bool = False

    @field_validator("categories", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        return tuple(map(text_of, value)) if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind in LISTED:
            self._check_listed()
        elif self.categories is not None:
            raise ValueError(f"categories are listed, and the kind {self.kind} has none")
        if self.kind not in MEASURED:
            for name, default in (("bounds", None), ("scale", "bounds"), ("logarithm", False)):
                if getattr(self, name) != default:
                    raise ValueError(f"{name} is given, and suits the kinds {', '.join(MEASURED)} alone")
        if self.logarithm and self.kind == "date":
            raise ValueError("logarithm is given, and a date has none")
        if self.bounds is not None:
            self._check_bounds(self.bounds)
        return self

    def _check_listed(self) -> None:
        if self.categories is None:
            raise ValueError("categories are missing; list them, as they are known without looking at rows")
        repeated = [name for name in dict.fromkeys(self.categories) if self.categories.count(name) > 1]
        if repeated:
            raise ValueError(f"categories has '{repeated[0]}' twice")
        if self.gaps == "category" and "missing" in self.categories:
            raise ValueError("categories has 'missing', which gaps = \"category\" adds; call yours something else")
        wanted = 2 if self.kind == "binary" else None
        if len(self.categories) < 2 or len(self.categories) != (wanted or len(self.categories)):
            raise ValueError(f"categories has {len(self.categories)}; give {'2' if wanted else '2 or more'}")

    def _check_bounds(self, bounds: tuple[Bound, Bound]) -> None:
        are_dates = [isinstance(bound, datetime.date) for bound in bounds]
        if (self.kind == "date") != all(are_dates) or (self.kind != "date" and any(are_dates)):
            raise ValueError(f"bounds must be two {'dates' if self.kind == 'date' else 'numbers'}")
        low, high = map(days_of, bounds)
        if not low < high:
            raise ValueError("bounds are the wrong way round, or equal; give the lower one first")
        if self.logarithm and low < 0:
            raise ValueError("bounds begin below 0, where there is no logarithm")
        if not 1e-100 < high - low < 1e100 or (self.logarithm and not math.log(1 + high) - math.log(1 + low) > 1e-12):
            raise ValueError("bounds are nearer to each other, or further apart, than can be computed with")

    @property
    def values(self) -> tuple[str, ...]:
        """The values that become columns of their own: those listed, and "missing" where a gap is a category."""
        listed = self.categories or ()
        return (*listed, "missing") if self.gaps == "category" else listed

    @property
    def interval(self) -> tuple[float, float] | None:
        """The public bounds as numbers; of dates, days since 1970; before the logarithm."""
        return None if self.bounds is None else (days_of(self.bounds[0]), days_of(self.bounds[1]))

    @property
    def is_one_hot(self) -> bool:
        """Whether there is a prepared column for each of its values."""
        return self.kind == "category" or (self.kind == "binary" and self.gaps == "category")

    @property
    def needs_mean(self) -> bool:
        """Whether the mean of a measured column has to be found."""
        return self.kind in MEASURED and (self.gaps != "refuse" or self.scale == "standard")

    @property
    def needs_histogram(self) -> bool:
        """Whether a histogram has to be found for what is not public: bounds, a mean, quantiles or frequencies."""
        if self.kind in MEASURED:
            return self.bounds is None or self.needs_mean or self.scale in ("robust", "rank")
        return self.gaps == "mean" or (self.gaps == "category" and not self.is_one_hot)


@dataclass(frozen=True)
class Figures:
    """What is known of one column when it is prepared: public, or found with noise.

    All numbers are after the logarithm, where one is taken; dates are days since 1970.

    Parameters
    ----------
    low, high : float
        What lies beyond is cut off. Of an ordinal column, its first and last place.
    fill : float, default=0
        What stands where a value is missing; of listed values, a place in the list.
    center, spread : float
        What is subtracted, and what is then divided by.
    quantiles : tuple of float
        Of ranks: values that ascend, the first and last of them low and high.
    ranks : tuple of float
        The parts of all rows, 0 to 1, that lie below these values.
    counts : tuple of float
        With noise, of listed values: how often each was found. Empty where it was not asked.
    is_crowded : bool
        Whether most values seem to lie in a small part of the bounds that were found, and not about 0: the noise has
        hidden where, and they hardly differ once they are prepared.
    """

    low: float = 0.0
    high: float = 1.0
    fill: float = 0.0
    center: float = 0.0
    spread: float = 1.0
    quantiles: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    is_crowded: bool = False


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


def is_unlisted(series: Any, column: Column) -> NDArray[np.bool_]:
    """Return which entries have a value that the column does not list; none where they cannot be read."""
    try:
        return np.asarray(_places(series, column.categories or (), 0) == -1.0)
    except MisfitError:
        return np.zeros(len(series), dtype=bool)


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
    values = _places(series, categories, first_row)
    remedy = "is a category that the schema does not list; mend it, or have the schema list it"
    _refuse(values == -1.0, True, first_row, remedy)
    return values


def _places(series: Any, categories: tuple[str, ...], first_row: int) -> Floats:
    """Return the place of each category in its list, -1 where it has none, and NaN for gaps."""
    import pandas as pd

    try:
        codes, found = pd.factorize(series)
    except TypeError:
        raise MisfitError("it holds what is no category, such as lists; leave it out") from None
    # 01067 is read from a file as 1067, which then stands for it unless there is another such category.
    read = [str(int(name)) if name.isdecimal() else name for name in categories]
    how_many = Counter(read)
    places = {name: float(place) for place, name in enumerate(read) if how_many[name] == 1}
    places |= {name: float(place) for place, name in enumerate(categories)}
    texts = [text_of(value) for value in found]
    for name in READ_AS_MISSING.intersection(categories).difference(texts):
        why = f"is missing, as whatever a file calls '{name}' is when it is read; rename that category there and here"
        _refuse(codes == -1, True, first_row, why)
    place_of = np.array([*(places.get(text, -1.0) for text in texts), np.nan])
    values: Floats = place_of[codes]  # a gap has the code -1
    return values


def _refuse(is_bad: NDArray[np.bool_], counts: NDArray[np.bool_] | bool, first_row: int, why: str) -> None:
    """Raise a MisfitError that names the first row that is bad and counts, if there is one."""
    bad = is_bad & counts
    if bad.any():
        raise MisfitError(f"row {first_row + int(bad.argmax())} {why}")

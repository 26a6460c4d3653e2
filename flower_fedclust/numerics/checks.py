"""Checks of rows and parameters before anything is computed from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Between these bounds, squares and their sums neither overflow nor lose digits.
LARGEST, SMALLEST = 1e150, 1e-150

#: Between these bounds, eighth powers neither overflow nor lose digits. Noise has the norm of a row; its effect on a
#: variance is a fourth power, and weights of variances are squares of these.
LARGEST_NORM, SMALLEST_NORM = 1e30, 1e-30


class DataError(ValueError):
    """Rows cannot be used. The message names a row and a column, and never a value.

    A client sends this message to the server. Of any other error it only sends the type.
    """


class MissingFileError(DataError, FileNotFoundError):
    """A file or folder of rows that does not exist."""


#: The most columns that a message names, because a table can have thousands of wrong ones.
_NAMED_COLUMNS = 10


def refuse_columns(
    owner: str, not_numeric: Sequence[str], not_finite: Sequence[str], advice: str = ""
) -> NoReturn:
    """Raise a DataError that names every unusable column, and the remedy."""
    named = [*not_numeric, *not_finite][:_NAMED_COLUMNS]
    if more := len(not_numeric) + len(not_finite) - len(named):
        named.append(f"{more} other column{'s' if more > 1 else ''}")
    them = "it" if len(named) == 1 else "them"
    if not not_finite:
        remedy = f"encode {them} as numbers or leave {them} out"
    elif not not_numeric:
        remedy = f"fill {them} in or drop the row{'' if len(named) == 1 else 's'}"
    else:
        remedy = "encode or fill them in, or leave them out"
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    raise DataError(f"{owner}: {listed}; {remedy}{advice}.")


def checked_rows(
    rows: ArrayLike, *, owner: str, columns: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """Return the rows as a two-dimensional array of finite floats, or raise a DataError."""

    def column_name(index: int) -> str:
        return f"column '{columns[index]}'" if columns is not None else f"column {index}"

    if isinstance(rows, np.ma.MaskedArray) and np.ma.is_masked(rows):
        rows = np.ma.filled(rows.astype(object), np.nan)  # under the mask may be any number
    rows = plain_array(rows)
    if hasattr(rows, "toarray"):
        raise DataError(
            f"{owner}: the rows are a sparse matrix; give a dense one, as its toarray() does."
        )
    try:
        array = np.asarray(rows)
    except ValueError:
        raise DataError(
            f"{owner}: the rows are not of one length; give every row the same columns."
        ) from None
    if array.dtype.kind in "cmM":
        raise DataError(f"{owner}: the rows are complex numbers or dates; give real numbers.")
    if array.ndim != 2:
        raise DataError(
            f"{owner}: the rows have shape {array.shape}; give two dimensions, one row a sample."
        )
    for what, length in zip(("rows", "columns"), array.shape, strict=True):
        if length == 0:
            raise DataError(f"{owner} has no {what}; give at least one.")
    not_numeric: list[str] = []
    if array.dtype.kind not in "fiub":
        given, array = array, np.zeros(array.shape)
        for index in range(given.shape[1]):
            try:
                array[:, index] = given[:, index].astype(np.float64)
            except (TypeError, ValueError, OverflowError):
                not_numeric.append(f"{column_name(index)} is not numeric")
    floats = np.ascontiguousarray(array, dtype=np.float64)
    not_finite = first_not_finite(floats, column_name)
    if not_numeric or not_finite:
        refuse_columns(owner, not_numeric, not_finite)
    return floats


def plain_array(given: Any) -> Any:
    """Return a tensor of PyTorch as an array of NumPy, without its gradient; anything else as it is."""
    if not (hasattr(given, "detach") and hasattr(given, "numpy")):
        return given
    tensor = given.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # for example bfloat16, which NumPy does not have
        return tensor.double().numpy()


def checked_point(name: str, given: ArrayLike) -> NDArray[np.float64]:
    """Return a point with one finite number for each column; raise a ValueError otherwise."""
    try:
        point = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        point = np.empty((0, 0))
    if point.ndim != 1 or not np.isfinite(point).all():
        raise ValueError(f"{name} must be a point: one finite number for each column.")
    return point


def first_not_finite(
    rows: NDArray[np.float64], column_name: Callable[[int], str], first_row: int = 0
) -> list[str]:
    """Describe the first NaN or infinite entry of each column; rows are counted from ``first_row``."""
    # One sum is NaN or infinite if any entry is; only then is it worth looking for the entry.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(rows)):
            return []
    finite = np.isfinite(rows)
    columns = np.flatnonzero(~finite.all(axis=0))
    places = finite[:, columns].argmin(axis=0)
    return [
        f"row {first_row + row}, {column_name(int(column))} is {'NaN' if np.isnan(rows[row, column]) else 'infinite'}"
        for row, column in zip(places, columns, strict=True)
    ]


def out_of_scale(
    rows: NDArray[np.float64] | None,
    column_name: Callable[[int], str],
    *,
    largest: float = LARGEST,
    smallest: float = SMALLEST,
) -> str:
    """Describe an entry that is too large, or say that all are too small, to compute with; "" if none are."""
    size = 0.0 if rows is None or not rows.size else max(rows.max(), -rows.min())
    if rows is not None and size > largest:
        row, column = divmod(int((np.abs(rows) > largest).argmax()), rows.shape[1])
        return f"row {row}, {column_name(column)} is beyond {largest:g}; look for a wrong value, or scale the column."
    return (
        f"all entries are within {smallest:g} of 0; scale the columns."
        if 0 < size < smallest
        else ""
    )


def check_scale(rows: NDArray[np.float64], owner: str) -> None:
    """Raise a DataError if public rows are too large or too small for the norm of all rows to come from them."""
    where = out_of_scale(
        rows, lambda index: f"column {index}", largest=LARGEST_NORM, smallest=SMALLEST_NORM
    )
    if where:
        raise DataError(f"{owner}: {where}")


def check_integer(name: str, value: object, *, at_least: int, at_most: float = np.inf) -> int:
    """Return an integer parameter; raise a ValueError that says what it must be."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not at_least <= value <= at_most
    ):
        allowed = (
            f"{at_least} or more" if at_most == np.inf else f"from {at_least} to {at_most:.0f}"
        )
        raise ValueError(f"{name} is {value!r}; it must be an integer, {allowed}.")
    return int(value)


def check_real(
    name: str,
    value: object,
    *,
    above: float = -np.inf,
    at_least: float = -np.inf,
    below: float = np.inf,
    at_most: float = np.inf,
) -> float:
    """Return a real parameter; raise a ValueError that says what it must be."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    if is_number and above < value < below and at_least <= value <= at_most:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    limits = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    bounds = [f"{relation} {limit:g}" for relation, limit in limits.items() if np.isfinite(limit)]
    raise ValueError(
        f"{name} is {value!r}; it must be a finite number {' and '.join(bounds)}".rstrip() + "."
    )


def check_max_l1_norm(max_l1_norm: float | None, epsilon: float | None) -> None:
    """Raise a ValueError if max_l1_norm is too small or too large, or is missing although there is an epsilon."""
    if max_l1_norm is not None:
        check_real("max_l1_norm", max_l1_norm, at_least=SMALLEST_NORM, at_most=LARGEST_NORM)
    elif epsilon is not None:
        raise ValueError(
            "max_l1_norm is missing; noise for an epsilon needs an L1 norm to which rows are clipped."
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of: {', '.join(choices)}.")


def warn_of_empty_clusters(who: str, counts: ArrayLike) -> None:
    """Warn if some clusters have no rows: the rows may be too alike, or too far apart for the bandwidth."""
    found = int(np.count_nonzero(np.asarray(counts) > 0))
    if found < np.size(counts):
        warnings.warn(
            f"{who} found {found} clusters where n_clusters is {np.size(counts)}: the rows are too alike for more, "
            "or too far apart for the bandwidth. The others are empty.",
            RuntimeWarning,
            stacklevel=2,
        )

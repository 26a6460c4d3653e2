"""What rows must be before anything is computed from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class DataError(ValueError):
    """What is wrong with rows, in a sentence that names a row and a column and never a value.

    A client passes the sentence on to the server; of any other error it tells only the kind.
    """


class MissingFileError(DataError, FileNotFoundError):
    """A file or folder of rows that is not there."""


def checked_rows(rows: ArrayLike, *, owner: str, columns: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Return the rows as a two-dimensional array of finite floats, or say what is wrong with them and where.

    The message names the owner, the row and the column, and never a value: it may reach the server.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
        Numeric rows; samples are rows.
    owner : str
        Whose rows these are ("client 3", "server_data"), for the message.
    columns : sequence of str, optional
        The names of the columns, for the message.

    Returns
    -------
    ndarray of shape (n_rows, n_columns), float64, C-contiguous
        Not copied where the input already is that.

    Raises
    ------
    DataError
        If the rows are not numeric, not two-dimensional, empty, or hold NaN or infinity.
    """

    def column_name(index: int) -> str:
        return f"column '{columns[index]}'" if columns is not None else f"column {index}"

    try:
        array = np.asarray(rows)
    except ValueError:
        raise DataError(f"{owner}: the rows are not of one length; give every row the same columns.") from None
    if array.dtype.kind in "cmM":
        raise DataError(f"{owner}: the rows are complex numbers or dates; give real numbers.")
    if array.ndim != 2:
        raise DataError(f"{owner}: the rows have shape {array.shape}; give two dimensions, one row a sample.")
    if array.shape[0] == 0:
        raise DataError(f"{owner} has no rows; give at least one.")
    if array.shape[1] == 0:
        raise DataError(f"{owner} has no columns; give at least one.")
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            for index in range(array.shape[1]):
                try:
                    array[:, index].astype(np.float64)
                except (TypeError, ValueError, OverflowError):
                    raise DataError(
                        f"{owner}: {column_name(index)} is not numeric; encode it as numbers or leave it out."
                    ) from None
            raise
    floats = np.ascontiguousarray(array, dtype=np.float64)
    # One sum is NaN or infinite if any entry is; only then is it worth looking for the entry.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(floats)
    if not np.isfinite(total) and not (finite := np.isfinite(floats)).all():
        row, column = np.argwhere(~finite)[0]
        kind = "NaN" if np.isnan(floats[row, column]) else "infinite"
        raise DataError(f"{owner}: row {row}, {column_name(int(column))} is {kind}; fill it in or drop the row.")
    return floats


def check_integer(name: str, value: object, *, at_least: int) -> int:
    """Return an integer parameter, or say what it must be.

    Raises
    ------
    ValueError
        If the value is not an integer, or below ``at_least``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise ValueError(f"{name} is {value!r}; it must be an integer, {at_least} or more.")
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
    """Return a real parameter, or say what it must be.

    Raises
    ------
    ValueError
        If the value is not a finite number, or outside of the bounds.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if is_number and above < value < below and at_least <= value <= at_most:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    bounds = [
        f"{relation} {bound:g}"
        for relation, bound in (
            ("above", above),
            ("at least", at_least),
            ("below", below),
            ("at most", at_most),
        )
        if np.isfinite(bound)
    ]
    raise ValueError(f"{name} is {value!r}; it must be a finite number {' and '.join(bounds)}".rstrip() + ".")


def check_max_l1_norm(max_l1_norm: float | None, epsilon: float | None) -> None:
    """Raise a ValueError unless the L1 norm to which rows are clipped is positive, and given where there is epsilon."""
    if max_l1_norm is not None:
        check_real("max_l1_norm", max_l1_norm, above=0)
    elif epsilon is not None:
        raise ValueError("max_l1_norm is missing; noise for an epsilon needs an L1 norm to which rows are clipped.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of: {', '.join(choices)}.")


def warn_of_empty_clusters(who: str, counts: ArrayLike) -> None:
    """Warn where a cluster has no row: rows can be too alike for so many clusters, or have no similarity left.

    Parameters
    ----------
    who : str
        What clustered them, for the message.
    counts : array-like of shape (n_clusters,)
        Rows in each cluster; with noise, about.
    """
    found = int(np.count_nonzero(np.asarray(counts) > 0))
    if found < np.size(counts):
        warnings.warn(
            f"{who} found {found} clusters where n_clusters is {np.size(counts)}: the rows are too alike for more, "
            "or too far apart for the bandwidth. The others are empty.",
            RuntimeWarning,
            stacklevel=2,
        )

"""Cells of files that have no types, such as .csv files: they stay text until the role of their column is known."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Texts that stand for a missing value, unless a list of categories contains them, or the column holds names or ids.
READ_AS_MISSING = frozenset(
    (
        "",
        "NA",
        "N/A",
        "n/a",
        "NULL",
        "null",
        "NaN",
        "nan",
        "-nan",
        "None",
        "<NA>",
        "#N/A",
        "#NA",
        "#N/A N/A",
    )
)

#: The key in a DataFrame's ``attrs`` for the labels of codes, in columns of Stata and SPSS where only some codes have
#: labels.
LABELS = "labels of codes"

#: The key in a DataFrame's ``attrs`` for the columns in which 1.234 may be 1234 or 1.234, because other numbers of the
#: table have decimal commas. The cells stay as they are, because they may be categories.
UNCLEAR_POINTS = "columns with unclear points"

#: What is wrong with such a column, and the remedy.
_LIKE_1234 = "numbers like 1.234 in a table with decimal commas"
_AS_MEANT = "write 1234 or 1,234, as it is meant"
WHY_UNCLEAR = f"has {_LIKE_1234}; {_AS_MEANT}"

#: A number whose points may separate thousands.
_WITH_POINTS = r"\s*[<>≤≥]?=?\s*[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:[eE][+-]?\d+)?\s*"

_NUMBER = r"^[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))$"


def cells_of(table: Any) -> Any:
    """Return a PyArrow table of texts as a pandas DataFrame whose type marks them as cells without a type."""
    import pandas as pd
    import pyarrow as pa

    return table.to_pandas(types_mapper={pa.string(): pd.ArrowDtype(pa.string())}.get)


def as_cells(values: Any) -> Any:
    """Return texts as a pandas Series of cells."""
    import pandas as pd
    import pyarrow as pa

    return pd.Series(values, dtype=pd.ArrowDtype(pa.string()))


def are_cells(series: Any) -> bool:
    """Tell whether a column has text only because its file has no types."""
    import pandas as pd
    import pyarrow as pa

    return isinstance(series.dtype, pd.ArrowDtype) and series.dtype.pyarrow_dtype == pa.string()


def has_unclear_points(series: Any) -> bool:
    """Tell whether 1.234 may be 1234 or 1.234 in a column; see UNCLEAR_POINTS."""
    return series.name in series.attrs.get(UNCLEAR_POINTS, ())


def why_unclear(first_row: int, verb: str = "has") -> str:
    """Return what is wrong with columns with unclear points, and the remedy; ``first_row`` has the first such point."""
    return f"{verb} {_LIKE_1234}, first in row {first_row}; {_AS_MEANT}"


def unclear_points(series: Any) -> Mask:
    """Tell for each entry whether it may be 1234 or 1.234, because its column is one of UNCLEAR_POINTS."""
    if not (has_unclear_points(series) and are_cells(series)):
        return np.zeros(len(series), dtype=bool)
    mask: Mask = series.str.fullmatch(_WITH_POINTS).to_numpy(dtype=bool, na_value=False)
    return mask


def are_missing(series: Any, listed: Collection[str] = ()) -> Mask:
    """Tell for each entry whether it is missing, or a text such as "NA" that is not in the list of categories."""
    import pandas as pd

    missing: Mask = series.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(series.dtype) or series.dtype.kind in "mM":
        return missing
    words = READ_AS_MISSING.difference(listed)
    says_so: Mask = series.isin(list(words)).to_numpy(dtype=bool, na_value=False)
    return missing | says_so


def numbers_in(series: Any) -> tuple[Floats, Mask]:
    """Return cells as numbers, and which cells are neither numbers nor missing; True is 1, False 0, missing NaN."""
    import pyarrow as pa
    from pyarrow import compute

    cells = pa.array(series)
    no = np.zeros(len(series), dtype=bool)
    try:
        floats = _as_floats(compute.cast(cells, pa.float64()))
        # PyArrow also reads +nan, and nan(1).
        if not (np.isnan(floats) & ~are_missing(series)).any():
            return floats, no
    except pa.ArrowInvalid:
        pass
    trimmed = compute.utf8_trim_whitespace(cells)
    words = compute.utf8_lower(trimmed)
    texts = compute.if_else(compute.match_substring_regex(trimmed, _NUMBER), trimmed, None)
    texts = compute.if_else(compute.equal(words, "true"), "1", texts)
    texts = compute.if_else(compute.equal(words, "false"), "0", texts)
    floats = _as_floats(compute.cast(texts, pa.float64()))
    return floats, np.isnan(floats) & ~are_missing(series)


def _as_floats(array: Any) -> Floats:
    """Return a PyArrow array as floats that may be written to."""
    floats: Floats = array.to_pandas().to_numpy(dtype=np.float64, na_value=np.nan)
    return floats if floats.flags.writeable else floats.copy()


def typed(frame: Any) -> Any:
    """Return a DataFrame in which each column of untyped cells gets the type that all of its cells have.

    This is only for drafts and previews, because the role of a column may require another type. Numbers that are
    written like codes, such as 01067, stay text.
    """
    return frame.assign(
        **{name: _typed(values) for name, values in frame.items() if are_cells(values)}
    )


def _typed(series: Any) -> Any:
    """Return a column of untyped cells with the type that all of its cells have, or as text if their types differ."""
    import pandas as pd

    floats, is_bad = numbers_in(series)
    missing = are_missing(series)
    text = series.astype("str").where(~missing)
    present = series[~missing]
    if (
        is_bad.any()
        or missing.all()
        or present.str.match(r"\s*[+-]?0\d").any()
        or (np.abs(floats) >= 2.0**53).any()
    ):
        return text
    words = present.str.lower()
    are_truths = words.isin(["true", "false"])
    if not are_truths.all() and words.str.strip().isin(["true", "false"]).any():
        return text  # with other values in the column, True and 1 must stay different categories
    if are_truths.all():
        return pd.Series(floats == 1, index=series.index).astype("boolean").where(~missing)
    numbers = pd.Series(floats, index=series.index)
    is_whole = not missing.any() and present.str.fullmatch(r"\s*[+-]?\d+\s*").all()
    return numbers.astype(np.int64) if is_whole else numbers

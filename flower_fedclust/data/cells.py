"""Cells of files without types, such as .csv: they stay text until the role of their column says what they mean."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Texts that stand for a missing value, except in a list of categories that has them, and in names and ids.
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

#: The key in a DataFrame's ``attrs`` for labels of codes, in columns of Stata and SPSS that also have other values.
LABELS = "labels of codes"

_NUMBER = r"^[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf|infinity))$"


def cells_of(table: Any) -> Any:
    """Return a PyArrow table of texts as a pandas DataFrame, marked as cells without a type."""
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


def are_missing(series: Any, listed: Collection[str] = ()) -> Mask:
    """Tell for each entry whether it is missing, or a text such as "NA" that is not a listed category."""
    import pandas as pd

    missing: Mask = series.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(series.dtype) or series.dtype.kind in "mM":
        return missing
    words = READ_AS_MISSING.difference(listed)
    says_so: Mask = series.isin(list(words)).to_numpy(dtype=bool, na_value=False)
    return missing | says_so


def numbers_in(series: Any) -> tuple[Floats, Mask]:
    """Return cells as numbers, with NaN for gaps, and which cells are neither; True counts as 1, and False as 0."""
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
    """Return a frame in which columns of cells have the type that all of their cells have.

    For drafts and previews only: the role of a column may say otherwise. Numbers that are written
    as codes are, such as 01067, stay text.
    """
    return frame.assign(
        **{name: _typed(values) for name, values in frame.items() if are_cells(values)}
    )


def _typed(series: Any) -> Any:
    """Return a column of cells with the type that all of its cells have; text if they differ."""
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
        return text  # True is another category than 1
    if are_truths.all():
        return pd.Series(floats == 1, index=series.index).astype("boolean").where(~missing)
    numbers = pd.Series(floats, index=series.index)
    is_whole = not missing.any() and present.str.fullmatch(r"\s*[+-]?\d+\s*").all()
    return numbers.astype(np.int64) if is_whole else numbers

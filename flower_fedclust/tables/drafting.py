"""Draft a schema from a table, for a person to check; and make up tables from a schema."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import tomli_w

from flower_fedclust.tables.schema import EPOCH, Column, Schema, text_of

#: A text column with more different values is not drafted as a category: it may hold names, or free text.
MOST_CATEGORIES = 50

HEADER = """\
# A draft, made from {source}. Everything in this file goes to the server and to every site.
# Whatever is marked FROM YOUR ROWS was read from the table. Keep it only if it is known without those rows.
#
# The draft has no bounds. Without bounds, a column's range is found privately, which costs part of the privacy budget.
# Bounds that are public knowledge cost nothing: bounds = [0, 120].
#
# Look for codes among the integers: postcodes, diagnoses, numbers of sites. Their mean is meaningless: make each a
# category, or ignore it.
"""


def draft(table: Any, *, source: str) -> str:
    """Return a draft of a schema for a pandas DataFrame, as TOML that marks what was read from rows."""
    parts = [HEADER.format(source=source)]
    for name in table.columns:
        fields, remarks = _drafted(table[name])
        text = tomli_w.dumps({"columns": {str(name): fields}}).removeprefix("[columns]\n\n")
        lines = []
        for line in text.splitlines():
            remark = remarks.get(line.split(" = ")[0].strip())
            lines += [f"# {remark}", line] if remark else [line]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _drafted(series: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a column, and remarks to put above them."""
    import pandas as pd

    present = series.dropna()
    gaps = len(present) < len(series)
    remarks = {"gaps": "FROM YOUR ROWS: values are missing."} if gaps else {}
    try:
        n_values = present.nunique()
    except TypeError:
        return {"kind": "ignored"}, {"kind": "It holds values such as lists."}
    if n_values < 2:
        return {"kind": "ignored"}, {
            "kind": f"FROM YOUR ROWS: the column has {'only one' if n_values else 'no'} value."
        }
    is_number = pd.api.types.is_numeric_dtype(present.dtype) and not pd.api.types.is_bool_dtype(present.dtype)
    if is_number or pd.api.types.is_datetime64_any_dtype(present.dtype):
        kind = "date" if not is_number else "integer" if (present % 1 == 0).all() else "number"
        if kind == "integer" and n_values == len(present) > MOST_CATEGORIES:
            remark = "FROM YOUR ROWS: no value occurs twice; these numbers may stand for people."
            return {"kind": "ignored"}, {"kind": remark}
        return {"kind": kind} | ({"gaps": "mean"} if gaps else {}), remarks
    if _are_dates(present):
        return {"kind": "date"} | ({"gaps": "mean"} if gaps else {}), remarks
    if n_values > MOST_CATEGORIES:
        remark = f"FROM YOUR ROWS: more than {MOST_CATEGORIES} different texts, which may be names or free text."
        return {"kind": "ignored"}, {"kind": remark}
    categories = sorted(set(map(text_of, present.unique())))
    fields: dict[str, Any] = {"kind": "category" if len(categories) > 2 or gaps else "binary", "categories": categories}
    remarks["categories"] = (
        "FROM YOUR ROWS: list every value that may occur at any site, and none that identifies somebody."
    )
    return fields | ({"gaps": "category"} if gaps else {}), remarks


def _are_dates(present: Any) -> bool:
    """Tell whether texts are dates as ISO 8601 writes them."""
    import pandas as pd

    texts = present.iloc[:1000].astype(str)
    return bool(texts.str.match(r"\d{4}-\d{2}-\d{2}").all()) and bool(
        pd.to_datetime(present, errors="coerce", format="ISO8601", utc=True).notna().all()
    )


def made_up_table(schema: Schema, n_rows: int, rng: np.random.Generator) -> Any:
    """Return a DataFrame that fits a schema, for rehearsals before anything runs on real rows."""
    import pandas as pd

    return pd.DataFrame({name: _made_up(column, n_rows, rng) for name, column in schema.used.items()})


def _made_up(column: Column, n_rows: int, rng: np.random.Generator) -> Any:
    if column.categories is not None:
        return np.array(column.categories, dtype=object)[rng.integers(len(column.categories), size=n_rows)]
    low, high = column.interval or (0.0, 100.0)
    values = low + (high - low) * rng.random(n_rows)
    if column.kind == "date":
        return [EPOCH + datetime.timedelta(days=float(day)) for day in np.trunc(values)]
    return np.trunc(values) if column.kind == "integer" else values

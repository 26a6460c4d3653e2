"""A preparation as scikit-learn's own transformers, whose fitted attributes are what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from flower_fedclust.data.frames import as_frame
from flower_fedclust.tables.columns import MEASURED, Column, Figures, Floats
from flower_fedclust.tables.schema import Schema


def transformer_of(schema: Schema, figures: Mapping[str, Figures]) -> Any:
    """Return a scikit-learn Pipeline that prepares tables, to look at it or to use it elsewhere.

    It gives what :meth:`Preparation.transform` gives, but for rounding in the last digits.

    Parameters
    ----------
    schema : Schema
    figures : mapping of str to Figures
        Of the columns that are used.

    Returns
    -------
    sklearn.pipeline.Pipeline
        Of a step "read", which gives a DataFrame of floats and texts, and a ColumnTransformer "columns", which has a
        transformer for each column of the table, under its name.
    """
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    entries, weights = [], {}
    for name, column in schema.used.items():
        for key, transformer, weight in _transformers(name, column, figures[name]):
            entries.append((key, transformer, [name]))
            weights[key] = weight
    columns = ColumnTransformer(entries, transformer_weights=weights)
    # Fitted to the ends of each column; what is not an end is then put in its place.
    columns.fit(pd.DataFrame({name: _ends(one, figures[name]) for name, one in schema.used.items()}))
    for name, column in schema.used.items():
        _set_attributes(columns.named_transformers_[name], column, figures[name])
    read = FunctionTransformer(partial(read_frame, schema=schema)).fit(None)
    return Pipeline([("read", read), ("columns", columns)])


def read_frame(table: Any, *, schema: Schema) -> Any:
    """Return the used columns of a table: numbers and days since 1970 as floats, listed values as texts."""
    import pandas as pd

    frame, found = as_frame(table, "the table"), {}
    for name, column, values in schema.values(frame, owner="the table"):
        if column.categories is None:
            found[name] = values
        else:
            places = np.where(np.isnan(values), len(column.values), values).astype(int)
            found[name] = np.array([*column.values, np.nan], dtype=object)[places]
    return pd.DataFrame(found)


def _transformers(name: str, column: Column, found: Figures) -> list[tuple[str, Any, float]]:
    """Return what a column's prepared columns are made by: a name, a transformer and a weight for each."""
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        MinMaxScaler,
        OneHotEncoder,
        OrdinalEncoder,
        QuantileTransformer,
        RobustScaler,
        StandardScaler,
    )

    half = MinMaxScaler(feature_range=(-0.5, 0.5))
    whole = MinMaxScaler(feature_range=(-1.0, 1.0))
    steps: list[tuple[str, Any]] = []
    weight = column.weight
    if column.kind in MEASURED:
        if column.logarithm:
            steps.append(("logarithm", FunctionTransformer(_logarithm)))
        steps.append(("fill", SimpleImputer(keep_empty_features=True)))
        steps.append(("clip", FunctionTransformer(np.clip, kw_args={"a_min": found.low, "a_max": found.high})))
        scalers = {"bounds": whole, "standard": StandardScaler(), "robust": RobustScaler(), "rank": whole}
        if column.scale == "rank":
            steps.append(("rank", QuantileTransformer(n_quantiles=2)))
        steps.append(("scale", scalers[column.scale]))
    elif column.kind == "ordinal":
        listed = [list(column.categories or ())]
        steps = [
            ("places", OrdinalEncoder(categories=listed, handle_unknown="use_encoded_value", unknown_value=np.nan)),
            ("fill", SimpleImputer(keep_empty_features=True)),
            ("scale", whole),
        ]
    else:
        if column.gaps == "mean":
            steps.append(("fill", SimpleImputer(strategy="most_frequent")))
        elif column.gaps == "category":
            steps.append(("fill", SimpleImputer(strategy="constant", fill_value="missing")))
        drop = None if column.is_one_hot else "if_binary"
        steps.append(("values", OneHotEncoder(categories=[list(column.values)], drop=drop, sparse_output=False)))
        if column.is_one_hot:
            weight *= math.sqrt(0.5)
        else:
            steps.append(("scale", half))
    entries = [(name, Pipeline(steps), weight)]
    if column.gaps == "category" and not column.is_one_hot:
        indicator = Pipeline([("missing", MissingIndicator(features="all", error_on_new=False)), ("scale", half)])
        entries.append((f"{name} is missing", indicator, column.weight))
    return entries


def _ends(column: Column, found: Figures) -> Any:
    """Return a value at either end of a column, and a missing one where there may be any."""
    refuses = column.gaps == "refuse"
    if column.categories is not None:
        first, last = column.categories[0], column.categories[-1]
        return np.array([first, last, last if refuses else np.nan], dtype=object)
    ends = np.array([found.low, found.high, found.high if refuses else np.nan])
    return np.expm1(ends) if column.logarithm else ends


def _set_attributes(fitted: Any, column: Column, found: Figures) -> None:
    """Put what was found into a column's fitted transformers."""
    steps = fitted.named_steps
    if "fill" in steps and not (column.is_one_hot and column.gaps == "category"):
        fill: Any = found.fill
        if column.categories is not None and column.kind != "ordinal":
            fill = column.categories[int(found.fill)]
        steps["fill"].statistics_ = np.array([fill], dtype=steps["fill"].statistics_.dtype)
    if column.kind == "ordinal" or column.scale == "bounds":
        if column.kind in (*MEASURED, "ordinal"):
            _set_range(steps["scale"], found.low, found.high)
        return
    if column.scale == "rank":
        steps["rank"].quantiles_ = np.array(found.quantiles)[:, None]
        steps["rank"].references_ = np.array(found.ranks)
        steps["rank"].n_quantiles_ = len(found.ranks)
        _set_range(steps["scale"], 0.0, 1.0)
        return
    scaler, spread = steps["scale"], np.array([found.spread])
    scaler.scale_ = spread
    if column.scale == "standard":
        scaler.mean_, scaler.var_ = np.array([found.center]), spread**2
    else:
        scaler.center_ = np.array([found.center])


def _set_range(scaler: Any, low: float, high: float) -> None:
    """Fit a MinMaxScaler to the ends of a range."""
    scaler.fit(np.array([[low], [high]]))


def _logarithm(values: Floats) -> Floats:
    return np.log1p(np.maximum(values, 0.0))

"""A preparation that is accepted prepares every table that fits its schema; any other is refused before that."""

import json
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flower_fedclust as fc
from flower_fedclust.tables.cluster_sums import cluster_sums
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures

EXTREMES = [0.0, -0.0, 1.0, 5e-324, 1e-320, 1e-120, 1e120, 1e308, 1.7976931348623157e308]
NUMBERS = st.one_of(
    st.sampled_from(EXTREMES + [-x for x in EXTREMES]),
    st.floats(allow_nan=False, allow_infinity=False),
)
COLUMNS = {
    "bounded": {"kind": "number", "bounds": [-3, 5], "gaps": "mean"},
    "free": {"kind": "number", "gaps": "category", "weight": 1e99},
    "standard": {"kind": "number", "scale": "standard", "weight": 1e-300},
    "robust": {"kind": "number", "scale": "robust"},
    "rank": {"kind": "number", "scale": "rank"},
    "log": {"kind": "number", "logarithm": True},
    "job": {"kind": "category", "categories": ["a", "b", "c"], "gaps": "mean"},
    "rating": {"kind": "ordinal", "categories": ["low", "high"], "gaps": "category"},
    "sex": {"kind": "binary", "categories": ["f", "m"], "gaps": "mean"},
}
SCHEMA = fc.Schema.of({"columns": COLUMNS})
GOOD = {
    "bounded": {"low": -3.0, "high": 5.0},
    "free": {"low": -1.0, "high": 1.0},
    "standard": {"low": -1.0, "high": 1.0, "center": 0.3, "spread": 0.2},
    "robust": {"low": -1.0, "high": 1.0, "center": 0.3, "spread": 0.2},
    "rank": {
        "low": 0.0,
        "high": 2.0,
        "quantiles": [0.0, 1.0, 1.0, 2.0],
        "ranks": [0.0, 0.2, 0.6, 1.0],
    },
    "log": {"low": 0.0, "high": 700.0},
    "job": {"high": 2.0, "fill": 1.0},
    "rating": {"fill": 0.4},
    "sex": {"fill": 1.0},
}


def written(**changes):
    figures = {name: found | changes.get(name, {}) for name, found in GOOD.items()}
    return {"version": 1, "schema": json.loads(SCHEMA.to_json()), "figures": figures}


def as_sent(content):
    return json.loads(json.dumps(content))


@st.composite
def figures(draw, name):
    """Figures as a hostile server has them: often nearly right."""
    found = dict(GOOD[name])
    for key in draw(
        st.sets(st.sampled_from(["low", "high", "fill", "center", "spread"]), max_size=3)
    ):
        found[key] = draw(NUMBERS)
    if name == "rank" and draw(st.booleans()):
        n = draw(st.integers(2, 5))
        quantiles = sorted(draw(st.lists(NUMBERS, min_size=n, max_size=n)))
        ranks = sorted(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
        found |= {
            "quantiles": quantiles,
            "ranks": ranks,
            "low": quantiles[0],
            "high": quantiles[-1],
        }
    return found


@st.composite
def tables(draw):
    n_rows = draw(st.integers(1, 4))

    def column(of):
        return draw(st.lists(of, min_size=n_rows, max_size=n_rows))

    def with_gaps(of):
        return st.one_of(of, st.none())

    return pd.DataFrame(
        {
            "bounded": np.array(column(with_gaps(NUMBERS)), dtype=float),
            "free": np.array(column(with_gaps(NUMBERS)), dtype=float),
            **{name: column(NUMBERS) for name in ("standard", "robust", "rank", "log")},
            "job": column(with_gaps(st.sampled_from(["a", "b", "c"]))),
            "rating": column(with_gaps(st.sampled_from(["low", "high"]))),
            "sex": column(with_gaps(st.sampled_from(["f", "m"]))),
        }
    ).astype({"job": object, "rating": object, "sex": object})


@settings(max_examples=20, deadline=None, derandomize=True)
@given(found=st.fixed_dictionaries({name: figures(name) for name in COLUMNS}), table=tables())
@pytest.mark.filterwarnings("error")
def test_an_accepted_preparation_prepares_every_table_that_fits(found, table):
    for name, given_figures in found.items():
        try:  # column by column, so that more than one in a thousand is accepted
            preparation = Preparation.from_dict(written(**{name: given_figures}))
        except ValueError:
            continue
        rows = preparation.transform(table)
        assert np.isfinite(rows).all()
        assert np.isfinite([preparation.radius, preparation.l1_radius]).all()
        reach = np.linalg.norm(rows / max(preparation.radius, 5e-324), axis=1)
        assert reach.max() <= 1.0 + 1e-9
        labels = np.zeros(len(table), dtype=np.intp)
        cluster_sums(SCHEMA.values(table, owner=""), preparation, labels, 1)


def test_what_the_server_itself_finds_is_accepted():
    rng = np.random.default_rng(0)
    columns = {
        f"{scale} {log}": {"kind": "number", "scale": scale, "logarithm": log}
        for scale in ("bounds", "standard", "robust", "rank")
        for log in (False, True)
    }
    for factor in (0.0, 1e-9, 1.0, 1e12):
        table = pd.DataFrame({name: factor * rng.lognormal(sigma=3.0, size=60) for name in columns})
        for epsilon in (None, 0.5, 100.0):
            strategy = fc.PrivateKMeans(2, epsilon=epsilon, max_norm=None)
            # Too few rows for bounds; figures that are refused are another error.
            with suppress(fc.DataError):
                fc.simulate(fc.with_schema(strategy, {"columns": columns}), [table] * 2, seed=0)


BAD = {
    "of another column": {"other": {}},
    "not a number": {"bounded": {"fill": float("nan")}},
    "infinite": {"free": {"high": float("inf")}},
    "a huge whole number": {"free": {"high": 10**400}},
    "a text": {"free": {"high": "1"}},
    "a truth value": {"free": {"high": True}},
    "a list": {"free": {"high": [1.0]}},
    "another key": {"free": {"lower": 1.0}},
    "high below low": {"free": {"high": -2.0}},
    "high at low": {"free": {"high": -1.0}},
    "a denormal range": {"free": {"low": 0.0, "high": 5e-324}},
    "other bounds than in the schema": {"bounded": {"high": 4.0}},
    "a spread of 0": {"standard": {"spread": 0.0}},
    "a negative spread": {"standard": {"spread": -1.0}},
    "a denormal spread": {"standard": {"spread": 5e-324}},
    "a tiny spread": {"robust": {"spread": 1e-9}},
    "a center far away": {"robust": {"center": 1e100}},
    "unordered quantiles": {"rank": {"quantiles": [0.0, 1.5, 1.0, 2.0]}},
    "quantiles nearer than a division bears": {"rank": {"quantiles": [0.0, 5e-324, 1.0, 2.0]}},
    "quantiles elsewhere": {"rank": {"quantiles": [0.5, 1.0, 1.0, 2.0]}},
    "fewer quantiles than ranks": {"rank": {"quantiles": [0.0, 2.0]}},
    "no quantiles": {"rank": {"quantiles": [], "ranks": []}},
    "unordered ranks": {"rank": {"ranks": [0.0, 0.6, 0.2, 1.0]}},
    "ranks above 1": {"rank": {"ranks": [0.0, 0.2, 0.6, 1.5]}},
    "parts that do not ascend": {"bounded": {"parts": [0.0, 2.0, 1.0]}},
    "a single edge of parts": {"bounded": {"parts": [0.0]}},
    "parts nearer than a division bears": {"bounded": {"parts": [0.0, 5e-324]}},
    "too many parts": {"bounded": {"parts": list(range(200))}},
    "parts that are not finite": {"bounded": {"parts": [0.0, float("inf")]}},
    "a place that is no category": {"job": {"fill": 3.0}},
    "half a category": {"job": {"fill": 0.5}},
    "counts of other categories": {"job": {"counts": [1.0]}},
    "more places than categories": {"rating": {"high": 2.0}},
}


@pytest.mark.parametrize("what", list(BAD))
def test_figures_with_which_a_row_could_not_be_prepared_are_refused(what):
    (name,) = BAD[what]
    content = written(**BAD[what])
    if name not in COLUMNS:
        content["figures"][name] = {}
    with pytest.raises(ValueError, match=name if name in COLUMNS else "other columns"):
        Preparation.from_dict(as_sent(content))


@pytest.mark.parametrize(
    "content",
    [
        [],
        "x",
        None,
        {},
        {"version": 1},
        written() | {"figures": []},
        written() | {"figures": {}},
        written() | {"schema": {}},
        written() | {"schema": []},
    ],
)
def test_what_is_no_preparation_is_a_value_error(content):
    with pytest.raises(ValueError, match=r"\w"):
        Preparation.from_dict(as_sent(content))


def test_figures_that_are_right_are_accepted():
    assert Preparation.from_dict(as_sent(written())).figures["rating"] == Figures(fill=0.4)

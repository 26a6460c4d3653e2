"""How a table becomes rows of numbers: as pandas and scikit-learn have it, and each row by itself."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

import flower_fedclust as fc
from flower_fedclust.engine.parts import Part
from flower_fedclust.exact.terms import powers
from flower_fedclust.strategies.common.tables import TablePreparation, whole_of
from flower_fedclust.tables import Column, Figures, Preparation
from flower_fedclust.tables.histograms import (
    N_EXPONENT_BINS,
    bins_of,
    exponent_bins,
    figures_of,
    histogram_edges,
    occupied,
    range_of,
)

N = 4000


def measures(seed, n_rows=N):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "height": rng.normal(170, 10, n_rows),
            "income": rng.lognormal(3, 1, n_rows),
            "depth": rng.normal(-7, 2, n_rows),
            "rank": rng.integers(0, 50, n_rows),
            "visit": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 700, n_rows), unit="D"),
            "stage": np.array(["I", "II", "III"])[rng.integers(0, 3, n_rows)],
            "sex": np.array(["f", "m"])[rng.integers(0, 2, n_rows)],
            "blood": np.array(["A", "B", "0"])[rng.integers(0, 3, n_rows)],
        }
    )
    for name in ("height", "depth", "stage", "sex", "blood"):
        table.loc[rng.random(n_rows) < 0.1, name] = None
    return table


SCHEMA = fc.Schema.of(
    {
        "columns": {
            "height": {"kind": "number", "scale": "standard", "gaps": "mean"},
            "income": {"kind": "number", "logarithm": True, "scale": "robust", "weight": 2.0},
            "depth": {"kind": "number", "gaps": "category"},
            "rank": {"kind": "integer", "bounds": [0, 50], "scale": "rank"},
            "visit": {"kind": "date"},
            "stage": {"kind": "ordinal", "categories": ["I", "II", "III"], "gaps": "mean"},
            "sex": {"kind": "binary", "categories": ["f", "m"], "gaps": "mean", "weight": 3.0},
            "blood": {"kind": "category", "categories": ["A", "B", "0"], "gaps": "category"},
        }
    }
)


@pytest.fixture(scope="module")
def tables():
    return [measures(0), measures(1, 100), measures(2, 1)]


@pytest.fixture(scope="module")
def preparation(tables):
    """What the protocol finds without noise; a site with a single row takes part as any other."""
    return fc.simulate(fc.FederatedKMeans(2), tables, schema=SCHEMA, seed=0).model.preparation


def test_without_noise_the_figures_are_those_of_pandas(tables, preparation):
    pooled, found = pd.concat(tables), preparation.figures
    height = pooled["height"].astype(float)
    assert found["height"].center == pytest.approx(height.mean(), abs=1e-3)
    assert found["height"].spread == pytest.approx(height.std(ddof=0), rel=1e-3)
    assert found["height"].fill == found["height"].center
    income = np.log1p(pooled["income"])
    width = (found["income"].high - found["income"].low) / 100
    assert found["income"].center == pytest.approx(income.median(), abs=width)
    assert found["income"].spread == pytest.approx(
        income.quantile(0.75) - income.quantile(0.25), abs=2 * width
    )
    depth = pooled["depth"].astype(float)
    for name, values in (
        ("depth", depth),
        ("visit", (pooled["visit"] - pd.Timestamp("1970-01-01")).dt.days),
    ):
        assert found[name].low == pytest.approx(values.quantile(0.005), abs=0.05 * values.std())
        assert found[name].high == pytest.approx(values.quantile(0.995), abs=0.05 * values.std())
    stages = pooled["stage"].map({"I": 0, "II": 1, "III": 2})
    assert found["stage"].fill == pytest.approx(stages.mean())
    assert found["stage"].counts == tuple(stages.value_counts().sort_index())
    assert SCHEMA.columns["sex"].categories[int(found["sex"].fill)] == pooled["sex"].mode()[0]


def test_each_column_is_prepared_as_scikit_learn_would(tables, preparation):
    table, figures = tables[0], preparation.figures
    rows = pd.DataFrame(
        preparation.transform(FunctionTransformer().transform(table)), columns=preparation.names
    )

    height = table["height"].astype(float).fillna(figures["height"].center)
    height = height.clip(figures["height"].low, figures["height"].high)
    scaler = StandardScaler().fit(
        np.array([[-1.0], [1.0]]) * figures["height"].spread + figures["height"].center
    )
    np.testing.assert_allclose(
        rows["height"], scaler.transform(height.to_numpy()[:, None])[:, 0], atol=1e-9
    )

    income = np.log1p(table["income"]).clip(figures["income"].low, figures["income"].high)
    expected = 2.0 * (income - figures["income"].center) / figures["income"].spread
    np.testing.assert_allclose(rows["income"], expected, atol=1e-9)

    ranks = QuantileTransformer(n_quantiles=2).fit(np.array([[0.0], [1.0]]))
    ranks.quantiles_, ranks.references_ = (
        np.array(figures["rank"].quantiles)[:, None],
        np.array(figures["rank"].ranks),
    )
    expected = 2.0 * ranks.transform(table["rank"].to_numpy(dtype=float)[:, None])[:, 0] - 1.0
    np.testing.assert_allclose(rows["rank"], expected, atol=1e-9)

    blood = pd.get_dummies(
        table["blood"].fillna("missing"), prefix="blood", prefix_sep="=", dtype=float
    )
    np.testing.assert_allclose(rows[blood.columns], blood * np.sqrt(0.5), atol=1e-9)

    stage = (
        table["stage"].map({"I": -1.0, "II": 0.0, "III": 1.0}).fillna(figures["stage"].fill - 1.0)
    )
    np.testing.assert_allclose(rows["stage"], stage, atol=1e-9)

    sex = table["sex"].map({"f": -1.5, "m": 1.5}).fillna(3.0 * figures["sex"].fill - 1.5)
    np.testing.assert_allclose(rows["sex=m"], sex, atol=1e-9)

    np.testing.assert_allclose(rows["depth is missing"], table["depth"].isna() - 0.5, atol=1e-9)


def test_a_row_does_not_depend_on_the_rows_beside_it(tables, preparation):
    table = tables[0]
    rows = preparation.transform(table)
    order = np.random.default_rng(0).permutation(len(table))
    np.testing.assert_array_equal(preparation.transform(table.iloc[order[:333]]), rows[order[:333]])


def test_prepared_rows_are_in_the_ball(preparation):
    extremes = pd.concat([measures(0, 50)] * 2)
    extremes["height"], extremes["income"], extremes["depth"] = (
        [1e9, 0.0] * 50,
        [0.0, 1e300] * 50,
        [-1e9, None] * 50,
    )
    rows = preparation.transform(extremes)
    assert np.linalg.norm(rows, axis=1).max() <= preparation.radius
    assert np.abs(rows).sum(axis=1).max() <= preparation.l1_radius


def test_it_survives_json_and_another_version_is_refused(tables, preparation):
    again = Preparation.from_dict(preparation.to_dict())
    np.testing.assert_array_equal(again.transform(tables[1]), preparation.transform(tables[1]))
    with pytest.raises(ValueError, match="version 2"):
        Preparation.from_dict(preparation.to_dict() | {"version": 2})


def test_two_categories_are_as_far_apart_as_half_of_the_range_of_a_number():
    schema = fc.Schema.of(
        {
            "columns": {
                "a": {"kind": "number", "bounds": [0, 8], "weight": 2},
                "b": {"kind": "category", "categories": ["x", "y", "z"], "weight": 2},
                "c": {"kind": "binary", "categories": [0, 1], "weight": 2},
            }
        }
    )
    rows = Preparation(schema, {"a": Figures(0, 8), "b": Figures(0, 2), "c": Figures()}).transform(
        pd.DataFrame({"a": [0, 4, 0, 0], "b": ["x", "x", "y", "x"], "c": [0, 0, 0, 1]})
    )
    np.testing.assert_allclose(np.linalg.norm(rows[1:] - rows[0], axis=1), 2.0)


# Histograms.


def test_histograms_count_every_entry_once():
    values = np.array([0.0, -3.0, 1e-300, 5e300, -5e300, 2.0, 4.0, np.nan])
    assert (exponent_bins(values) >= 0).tolist() == [True] * 7 + [False]
    assert bins_of(values, np.linspace(-4.0, 4.0, 9)).tolist() == [4, 1, 4, 7, 0, 6, 7, 8]


def test_the_range_holds_all_values_without_noise_and_what_stands_out_with_it():
    values = np.array([-3.0] * 500 + [0.0] * 500 + [17.0] * 500 + [90.0] * 500)
    counts = np.bincount(exponent_bins(values), minlength=N_EXPONENT_BINS).astype(float)
    assert range_of(counts, 0.0) == (-4.0, 128.0, 2000.0)
    noisy = counts + np.random.default_rng(0).normal(0, 40, len(counts))
    assert range_of(noisy, 40.0)[:2] == (-4.0, 128.0)
    assert range_of(noisy - counts, 40.0) is None


def test_noise_makes_a_range_in_one_of_twenty_runs_at_most_whatever_the_number_of_columns():
    numbers = np.random.default_rng(0)
    for n_columns, n_runs in (1, 400), (20, 40), (400, 10):
        noise = numbers.normal(0, 7.0, (n_runs, n_columns, N_EXPONENT_BINS))
        found = [any(range_of(one, 7.0, n_columns) for one in run) for run in noise]
        assert sum(found) <= 0.05 * n_runs + 3 * (0.05 * n_runs) ** 0.5


def test_bins_halve_towards_a_bound_of_0_so_that_skewed_columns_have_quantiles():
    edges = histogram_edges(0.0, 1024.0, 64)
    assert len(edges) == 65
    assert (edges[0], edges[-1]) == (0.0, 1024.0)
    assert (np.diff(edges) > 0).all()
    assert edges[1] < 0.02
    np.testing.assert_allclose(histogram_edges(-1024.0, 0.0, 64), -edges[::-1])
    np.testing.assert_allclose(np.diff(histogram_edges(512.0, 1024.0, 64)), 8.0)


def test_bounds_are_where_entries_stand_out_and_not_where_noise_adds_up():
    counts = np.zeros(64)
    counts[60:63] = 700.0  # years among the powers of two
    column, known = Column(kind="number"), Figures(1024.0, 2048.0)
    edges = histogram_edges(1024.0, 2048.0, 64)
    noisy = [counts + np.random.default_rng(seed).normal(0, 40, 64) for seed in range(100)]
    assert sum(occupied(one, 40.0) == (60, 63) for one in noisy) >= 95
    assert sum(occupied(one - counts, 40.0) is None for one in noisy) >= 95
    found = figures_of(column, known, noisy[1], None, 40.0)
    assert edges[60] <= found.low < found.high <= edges[63]
    assert (found.quantiles[0], found.quantiles[-1]) == (edges[60], edges[63])


def test_no_two_numbers_and_their_squares_are_farther_apart_than_declared():
    values = np.array([*np.linspace(-1, 1, 201), -1 + 2.0**-20, 1e300, -1e300, np.inf, np.nan])
    terms = [powers(np.array([value])) for value in values]
    points = np.vstack([term.array.values for term in terms])
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(terms[0].bound.l2, rel=1e-15)
    assert distances.max() == terms[0].bound.apart == 2.0


def test_only_what_is_not_public_costs_budget():
    public = {
        "columns": {
            "a": {"kind": "number", "bounds": [0, 1]},
            "b": {"kind": "binary", "categories": [0, 1]},
        }
    }
    assert TablePreparation(fc.Schema.of(public)).parts(fc.PrivateKMeans(2)) == {}
    of_clients = fc.PrivateKMeans(2, privacy_unit="client")
    share = TablePreparation(SCHEMA).parts(of_clients)["preparation"]
    others = whole_of(of_clients.parts().values())
    assert share.fraction / (share.fraction + others) == pytest.approx(0.12)


@pytest.mark.parametrize("strategy", [fc.PrivateKMeans, fc.PrivateMixture, fc.PrivateDensity])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_tables_cost_every_private_strategy_about_the_same(strategy, unit):
    strategy = strategy(2, epsilon=1.0, privacy_unit=unit)
    prepared = fc.with_schema(strategy, SCHEMA, describe=True)
    multipliers = prepared.noise_multipliers()
    costs = {
        part: share.count / multipliers[part] ** 2 for part, share in prepared.shares().items()
    }
    assert 0.065 < costs["preparation"] / sum(costs.values()) < 0.1
    assert 0.12 < costs["description"] / sum(costs.values()) < 0.19


def test_gaussian_releases_beyond_ten_do_not_make_a_budget_larger():
    answer = fc.PrivateKMeans.client_type.cells

    def equal(n_parts, n_releases, mechanism="gaussian"):
        fraction = 1.0 if mechanism == "laplace" else math.sqrt(n_releases)
        return [
            Part(answer, fraction / math.sqrt(n_parts), n_releases, mechanism)
            for _ in range(n_parts)
        ]

    assert whole_of(equal(1, 1)) == pytest.approx(1.0)
    assert whole_of(equal(4, 1)) == pytest.approx(2.0)
    assert whole_of(equal(10, 1)) == pytest.approx(math.sqrt(10))
    assert whole_of(equal(10, 4)) == whole_of(equal(20, 2)) == pytest.approx(math.sqrt(10))
    assert whole_of([*equal(1, 100), *equal(1, 7, "laplace")]) == pytest.approx(math.sqrt(10) + 1.0)


def test_counts_that_noise_makes_negative_in_all_leave_the_range_alone():
    known = Figures(0.0, 8.0)
    counts = np.array([400.0, -300.0, -300.0, 100.0])
    found = figures_of(
        Column(kind="number", bounds=(0.0, 8.0)), known, counts, np.array([30.0, 50.0]), 40.0
    )
    assert (found.low, found.high, found.fill, found.center, found.spread) == (
        0.0,
        8.0,
        4.0,
        4.0,
        2.0,
    )

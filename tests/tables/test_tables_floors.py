"""Small numbers of rows: what people read has none below the floor, and none can be computed from the others."""

import re
from itertools import product

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.results.pictures import shares_and_errors
from flower_fedclust.tables.cluster_sums import cluster_sums, with_parts
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.estimates import ABOVE, BELOW, MEAN, QUANTILES, SPREAD, spread_of
from flower_fedclust.tables.floors import FLOOR, Floor
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema

SCHEMA = Schema.of(
    {
        "columns": {
            "age": {"kind": "number", "bounds": (0, 100), "gaps": "mean", "weight": 20},
            "job": {
                "kind": "category",
                "categories": ["clerk", "cook", "nurse", "pilot"],
                "gaps": "category",
            },
            "sex": {"kind": "binary", "categories": ["f", "m"]},
        }
    }
)
FIGURES = {"age": Figures(0, 100, fill=50), "job": Figures(0, 3), "sex": Figures(0, 1)}
PREPARATION = with_parts(Preparation(SCHEMA, FIGURES), 16)
NO_SHARES = ("", "rows", "share of rows", MEAN, SPREAD, *QUANTILES)


def small_table(seed, n_clusters):
    """Return a table with many small clusters and rare values, and the cluster of each row."""
    numbers = np.random.default_rng(seed)
    sizes = numbers.integers(0, 45, n_clusters)
    labels, n_rows = np.repeat(np.arange(n_clusters), sizes), sizes.sum()
    rare = numbers.dirichlet([0.4] * 5, n_clusters)
    jobs = np.array(["clerk", "cook", "nurse", "pilot", None], dtype=object)
    table = pd.DataFrame(
        {
            "age": np.where(numbers.random(n_rows) < 0.2, np.nan, numbers.normal(60, 25, n_rows)),
            "job": [jobs[numbers.choice(5, p=rare[label])] for label in labels],
            "sex": np.where(
                numbers.random(n_rows) < numbers.beta(0.3, 0.3, n_clusters)[labels], "f", "m"
            ),
        }
    )
    return table, labels


def described(table, labels, n_clusters, noise=0.0, seed=0, floor=FLOOR):
    sums = cluster_sums(
        SCHEMA.values(table, owner=""), PREPARATION, labels, n_clusters
    ).array.values
    sums = sums + noise * np.random.default_rng(seed).standard_normal(sums.shape)
    return Clusters(PREPARATION, sums, noise, floor=floor)


def counts_below(frame, counts, floor):
    """Return the numbers of rows in a frame that are below a floor."""
    shares = frame[~frame["what"].isin(NO_SHARES)]
    of_own = (shares["value"] * shares["cluster"].map(counts)).dropna()
    of_rest = (shares["rest"] * (sum(counts.values()) - shares["cluster"].map(counts))).dropna()
    rows = frame[frame["what"] == "rows"]["value"].dropna()
    return [one for one in (*of_own, *of_rest, *rows) if one < floor - 1e-6]


@pytest.mark.parametrize("seed", range(8))
def test_no_number_of_rows_below_the_floor_is_in_a_description_without_noise(seed):
    table, labels = small_table(seed, 12)
    clusters = described(table, labels, 12)
    counts = {
        cluster: n for cluster, n in enumerate(np.bincount(labels, minlength=12)) if n >= FLOOR
    }
    frame = clusters.frame
    assert counts_below(frame[frame["cluster"].isin(counts)], counts, FLOOR) == []
    assert (
        frame[~frame["cluster"].isin(counts)][["value", "rest", "effect", "smd"]].isna().all().all()
    )
    limits = frame[["fewer_than", "rest_fewer_than"]].stack().dropna()
    assert limits.min() >= FLOOR
    assert "fewer than 10" in str(clusters.table_one())
    exact = described(table, labels, 12, floor=0).frame
    assert len(counts_below(exact, dict(enumerate(np.bincount(labels, minlength=12))), FLOOR)) > 20


def test_other_rows_with_the_same_printed_counts_give_the_same_description():
    """What is printed does not change where rows move between the counts that it hides, so it cannot tell them."""
    shown = []
    for n_cooks, n_pilots in ((3, 8), (9, 0), (0, 9)):
        jobs = np.repeat(
            ["clerk", "cook", "nurse", "pilot"], [211 - n_cooks - n_pilots, n_cooks, 40, n_pilots]
        )
        first = pd.DataFrame({"age": np.arange(251) % 90 + 3.0, "job": jobs, "sex": "m"})
        second = pd.DataFrame(
            {"age": 50.0, "job": np.repeat(["clerk", "cook"], [60, 70]), "sex": ["f", "m"] * 65}
        )
        # Nor does the number of rows of a small cluster.
        tables = [first, second, first[: 4 + n_pilots // 2]]
        clusters = described(
            pd.concat(tables), np.repeat([0, 1, 2], [len(one) for one in tables]), 3
        )
        shown.append(f"{clusters}{clusters.table_one()}{clusters.frame.to_csv()}")
    assert shown[0] == shown[1] == shown[2]
    assert "at least" in shown[0]


def test_an_effect_without_noise_has_two_digits_and_rests_on_counts_that_may_be_known():
    table, labels = small_table(0, 6)
    rounded, exact = (
        described(table, labels, 6, floor=floor).frame["effect"].dropna() for floor in (10, 0)
    )
    assert len(rounded) > 5
    assert (rounded == rounded.round(2)).all()
    assert not (exact == exact.round(2)).all()
    spreads = []
    for n_old in (2, 7):  # in a part of the range with fewer rows than the floor
        ages = np.repeat([20.0, 30.0, 99.0], [100, 100, n_old])
        whole = described(
            pd.DataFrame({"age": ages, "job": "cook", "sex": "m"}), np.zeros(len(ages), int), 1
        )
        spreads.append(spread_of(whole.groups.whole, "age", SCHEMA.columns["age"]))
    assert spreads[0] == spreads[1]


def test_a_total_less_the_other_counts_leaves_every_hidden_count_open():
    floor = Floor(10)
    for counts in product((0, 3, 9, 10, 25, 400), repeat=4):
        known = floor.known_of(np.array([counts], dtype=float), add_up=True)
        low, high = (known.middle + known.half)[0], (known.middle - known.half)[0]
        low, high = np.minimum(low, high), np.maximum(low, high)
        assert ((low <= counts) & (counts <= high)).all()
        is_small = np.array(counts) < 10
        if not is_small.any():
            assert (low == high).all()
            continue
        # Whoever knows the total and all ranges can still believe any count below the floor in each hidden place.
        total = sum(counts)
        for place in np.flatnonzero(is_small):
            others_low, others_high = (np.delete(one, place).sum() for one in (low, high))
            assert max(total - others_high, low[place]) <= 0
            assert min(total - others_low, high[place]) >= min(9, total)


def test_how_many_values_are_missing_follows_from_no_limit_and_no_mean():
    schema = Schema.of(
        {"columns": {"age": {"kind": "integer", "bounds": (0, 100), "gaps": "mean"}}}
    )
    preparation = with_parts(Preparation(schema, {"age": Figures(0, 100, fill=50)}), 16)
    ages, labels = (
        np.random.default_rng(0).integers(20, 90, 400).astype(float),
        np.repeat([0, 1], 200),
    )

    def frame(n_missing):
        table = pd.DataFrame({"age": np.where(np.arange(400) < n_missing, np.nan, ages)})
        sums = cluster_sums(schema.values(table, owner=""), preparation, labels, 2).array.values
        return Clusters(preparation, sums).frame.query("cluster == 0").set_index("what")

    found = [frame(n_missing) for n_missing in range(10)]
    for what in (BELOW, ABOVE):
        assert len({(one.loc[what, "high"], one.loc[what, "rest_high"]) for one in found}) == 1
    for one in found:
        for mean in (one.loc[MEAN, "value"], one.loc[MEAN, "rest"]):
            # So many may be there, and each has a total that gives the mean.
            values = np.arange(191, 201)
            np.testing.assert_allclose(
                np.round(np.round(mean * values) / values, 1), mean, rtol=1e-12
            )
        assert round(one.loc[SPREAD, "value"], 1) == pytest.approx(
            one.loc[SPREAD, "value"], abs=1e-9
        )


@pytest.mark.parametrize("noise", [1.0, 12.0])
def test_with_noise_no_estimate_is_printed_below_the_floor_or_three_deviations(noise):
    table, labels = small_table(1, 12)
    for seed in range(5):
        clusters = described(table, labels, 12, noise, seed)
        frame = clusters.frame
        counts = dict(enumerate(clusters.groups.cluster.n_rows))
        shares = frame[~frame["what"].isin((*NO_SHARES, BELOW, ABOVE))]
        printed = (shares["value"] * shares["cluster"].map(counts)).dropna()
        deviations = (shares["error"] * shares["cluster"].map(counts))[printed.index]
        assert (printed >= np.maximum(FLOOR, 3 * deviations) - 1e-6).all()
        assert (
            frame[["fewer_than", "rest_fewer_than"]].stack().dropna().min()
            >= FLOOR + 2 * 0.5 * noise
        )


FOR_PEOPLE = (
    "clusters.csv",
    "clusters.txt",
    "clusters.html",
    "table-one.csv",
    "table-one.md",
    "table-one.tex",
)
#: Groups that every start finds, and two of them are small.
SIZES = (61, 44, 8, 35, 52, 6)


def groups():
    """Return a table of the groups, each with one value that few rows have, and a row of each."""
    labels = np.repeat(np.arange(6), SIZES)
    table = pd.DataFrame(
        {"age": 15.0 * labels, "job": "clerk", "sex": np.where(np.arange(206) % 13 < 1, "f", "m")}
    )
    return table, table.drop_duplicates("age")


def test_every_file_for_people_obeys_the_floor(tmp_path):
    table, first = groups()
    parts = [table.iloc[site::3] for site in range(3)]
    result = fc.simulate(
        fc.FederatedKMeans(6, init=first), parts, schema=SCHEMA, describe=True, seed=0
    )
    sizes = np.bincount(np.concatenate(result.labels_of_clients), minlength=6)
    assert sorted(sizes) == sorted(SIZES)
    folder = result.save(tmp_path / "run")
    result.page(folder / "clusters.html")
    total = sizes[sizes >= FLOOR].sum()
    for name in FOR_PEOPLE:
        text = (folder / name).read_text(encoding="utf-8")
        assert text
        assert all(int(found) >= FLOOR for found in re.findall(r"fewer than (\d+)", text))
        for found in re.findall(r">(\d[\d.]*)% of the rows<", text):
            assert float(found) / 100 * total >= FLOOR - 0.5
    page = (folder / "clusters.html").read_text(encoding="utf-8")
    assert f"of {sizes.sum()} rows" not in page
    assert "fewer than 10 rows" in page
    whole = pd.read_csv(folder / "table-one.csv", index_col=0)
    told = [cell for cell in whole.loc["n"] if not cell.startswith("fewer")]
    assert all(int(cell) >= FLOOR for cell in told)
    assert int(whole.loc["n", "all rows"]) == total


@pytest.mark.parametrize("is_described", [True, False])
def test_pages_and_pictures_show_a_small_cluster_up_to_its_limit(tmp_path, is_described):
    table, first = groups()
    parts = [table.iloc[site::3] for site in range(3)]
    options = {"schema": SCHEMA, "describe": is_described, "seed": 0}
    result = fc.simulate(fc.FederatedKMeans(6, init=first), parts, **options)
    counts = np.bincount(np.concatenate(result.labels_of_clients), minlength=6)
    is_small, total = counts < FLOOR, counts[counts >= FLOOR].sum()
    shares, errors = shares_and_errors(result, 6)
    np.testing.assert_allclose((shares - 2 * errors)[is_small], 0, atol=1e-12)
    np.testing.assert_allclose((shares + 2 * errors)[is_small], FLOOR / total)
    np.testing.assert_allclose(shares[~is_small], counts[~is_small] / total)
    assert not errors[~is_small].any()
    page = result.page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("fewer than 10 rows") >= 2
    assert f"of {counts.sum()} rows" not in page
    assert ("<td>fewer than 10</td>" in page) == is_described


def test_files_of_a_run_with_noise_obey_the_floor(tmp_path):
    table, _ = groups()
    table = pd.concat([table] * 20, ignore_index=True)
    parts = [table.iloc[site::3] for site in range(3)]
    result = fc.simulate(
        fc.PrivateKMeans(6, epsilon=8.0), parts, schema=SCHEMA, describe=True, seed=0
    )
    folder = result.save(tmp_path / "run")
    result.page(folder / "clusters.html")
    n_limits = 0
    for name in FOR_PEOPLE:
        limits = re.findall(r"fewer than ([\d,]+)", (folder / name).read_text(encoding="utf-8"))
        assert all(int(found.replace(",", "")) > FLOOR for found in limits)
        n_limits += len(limits)
    assert n_limits > 10
    cells = pd.read_csv(folder / "table-one.csv", index_col=0).loc["n"]
    assert all(
        float(cell.split(" ")[0].replace(",", "")) >= FLOOR
        for cell in cells
        if not cell.startswith("fewer")
    )


def test_a_floor_of_0_prints_all_and_is_kept_with_the_result(tmp_path):
    table, first = groups()
    parts = [table.iloc[site::3] for site in range(3)]
    options = {"schema": SCHEMA, "describe": True, "seed": 0, "floor": 0}
    result = fc.simulate(fc.FederatedKMeans(6, init=first), parts, **options)
    assert "fewer than" not in f"{result.clusters}{result.clusters.table_one()}"
    again = fc.load(result.save(tmp_path / "run"))
    assert (again.floor, again.clusters.floor) == (0, 0)
    with pytest.raises(ValueError, match="floor"):
        fc.simulate("federated-kmeans", parts, n_clusters=2, floor=-1)
    assert sorted(again.clusters.table_one().lines[0][2:], key=int) == [
        str(size) for size in sorted(SIZES)
    ]

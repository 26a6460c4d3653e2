"""What clusters are described as, how far a row moves it, and what noise leaves of it."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from rich.console import Console

import flower_fedclust as fc
from flower_fedclust.engine import ClientData, ProtocolClient, by_row
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.exact.grid import rows_onto_grid
from flower_fedclust.exact.rows import Frame
from flower_fedclust.harness.run import cluster_lines
from flower_fedclust.models import KMeansModel, PrototypeModel, SpectralModel
from flower_fedclust.tables import words
from flower_fedclust.tables.cluster_sums import cluster_sums, edges_of, places_of, with_parts
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.estimates import ABOVE, BELOW, QUANTILES, SPREAD, on_simplex
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema
from flower_fedclust.tables.table_one import TableOne

SCHEMA = Schema.of(
    {
        "columns": {
            "age": {"kind": "number", "bounds": (0, 100), "unit": "years", "gaps": "mean"},
            "born": {"kind": "date", "bounds": ("1900-01-01", "2020-01-01")},
            "job": {"kind": "category", "categories": ["clerk", "cook"], "gaps": "category"},
            "sex": {"kind": "binary", "categories": ["f", "m"]},
        }
    }
)
FIGURES = {
    "age": Figures(0, 100, fill=50),
    "born": Figures(-25567, 18262),
    "job": Figures(0, 1),
    "sex": Figures(0, 1),
}
PREPARATION = with_parts(Preparation(SCHEMA, FIGURES), 16)


def people(n_rows, seed, **values):
    numbers = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": numbers.normal(40, 10, n_rows),
            "born": np.datetime64("1980-01-01") + numbers.integers(0, 5000, n_rows),
            "job": numbers.choice(["clerk", "cook", None], n_rows, p=[0.6, 0.3, 0.1]),
            "sex": numbers.choice(["f", "m"], n_rows),
        }
    )
    return table.assign(**values)


TABLE = pd.concat(
    [
        people(3000, 0),
        people(2000, 1, age=70.0 + np.arange(2000) % 9, sex="m"),
        people(40, 2, age=np.nan),
    ]
)
LABELS = np.repeat([0, 1, 0], [3000, 2000, 40])
ZERO = np.zeros(1, dtype=np.intp)


def described(table=TABLE, labels=LABELS, noise=0.0, seed=0, preparation=PREPARATION, floor=10):
    n_clusters = max(2, labels.max() + 1)
    sums = cluster_sums(
        SCHEMA.values(table, owner=""), preparation, labels, n_clusters
    ).array.values
    sums = sums + noise * np.random.default_rng(seed).standard_normal(sums.shape)
    return Clusters(preparation, sums, noise, floor=floor)


def number(frame, cluster, column, what):
    (row,) = frame[
        (frame.cluster == cluster) & (frame.column == column) & (frame.what == what)
    ].to_dict("records")
    return row


def test_without_noise_the_numbers_are_those_of_the_table():
    frame, first = described(floor=0).frame, TABLE[LABELS == 0]
    age = number(frame, 0, "age", "mean")
    assert age["value"] == pytest.approx(first["age"].mean(), abs=1e-3)
    assert age["rest"] == pytest.approx(TABLE["age"][LABELS == 1].mean(), abs=1e-3)
    for what, part in QUANTILES.items():
        told = number(frame, 0, "age", what)
        assert told["low"] <= first["age"].quantile(part) <= told["high"]
        assert {told["low"], told["high"]} <= set(
            edges_of(PREPARATION, "age", SCHEMA.columns["age"])
        )
    assert number(frame, 0, "age", "missing")["value"] == pytest.approx(first["age"].isna().mean())
    assert number(frame, 0, "job", "cook")["value"] == pytest.approx(
        (first["job"] == "cook").mean()
    )
    assert number(frame, 0, "", "share of rows")["value"] == pytest.approx(3040 / 5040)
    days = (first["born"] - pd.Timestamp("1970-01-01")).dt.days.mean()
    assert number(frame, 0, "born", "mean")["value"] == pytest.approx(days, abs=0.1)


def test_numbers_with_noise_lie_within_two_deviations_as_often_as_they_should():
    true, within = described().frame, []
    means = ~true["what"].isin([*QUANTILES, BELOW, ABOVE])
    for seed in range(20):
        frame = described(noise=12.0, seed=seed).frame
        shown = frame["value"].notna() & true["value"].notna() & means
        within += (
            (frame["low"] <= true["value"] + 1e-9) & (true["value"] <= frame["high"] + 1e-9)
        )[shown].tolist()
    assert len(within) > 300
    assert 0.93 < np.mean(within) < 0.99


def test_quantiles_lie_in_their_intervals_and_tails_below_their_limits():
    first, within, limited = TABLE[LABELS == 0]["age"].dropna(), [], []
    fine = with_parts(PREPARATION, 128)
    for seed in range(20):
        frame = described(noise=40.0, seed=seed, preparation=fine).frame
        for what, part in QUANTILES.items():
            told = number(frame, 0, "age", what)
            within.append(told["low"] <= first.quantile(part) <= told["high"])
        limited.append(
            number(clipped(0.0, 50, 12.0, seed).frame, 1, "paid", ABOVE)["high"] >= 50 / 1050
        )
    assert np.mean(within) > 0.95
    assert np.mean(limited) > 0.9


def test_a_value_at_a_bound_is_not_beyond_it():
    frame = described(
        people(200, 0, age=np.repeat([0.0, 100.0], 100)), np.zeros(200, dtype=int), floor=0
    ).frame
    assert number(frame, 0, "age", BELOW)["high"] == number(frame, 0, "age", ABOVE)["high"] == 0.0
    assert number(frame, 0, "age", "third quartile")["high"] == 100.0


def test_shares_of_one_column_add_up_to_one():
    for seed in range(5):
        frame = described(noise=12.0, seed=seed).frame
        np.testing.assert_allclose(
            frame[frame["column"] == "job"].groupby("cluster")["value"].sum(), 1.0
        )
    np.testing.assert_allclose(
        on_simplex(np.array([[0.5, 0.7, -0.2], [0.2, 0.3, 0.5]])), [[0.4, 0.6, 0], [0.2, 0.3, 0.5]]
    )


#: A column of amounts whose bounds were found, and clip a twentieth of the second cluster's values.
AMOUNTS = Schema.of(
    {"columns": {"paid": {"kind": "number"}, "sex": {"kind": "binary", "categories": ["f", "m"]}}}
)
FOUND = Figures(0, 10, quantiles=(0.0, 1.0, 2.0, 10.0), ranks=(0.0, 0.4, 0.8, 1.0))


def clipped(low, most_beyond, noise=0.0, seed=0):
    figures = {
        "paid": replace(FOUND, low=low, quantiles=(low, *FOUND.quantiles[1:])),
        "sex": Figures(0, 1),
    }
    preparation = with_parts(Preparation(AMOUNTS, figures), 16)
    paid = np.concatenate(
        [np.linspace(0.6, 9, 1000), np.linspace(0.6, 9, 1000), np.full(most_beyond, 40.0)]
    )
    table = pd.DataFrame({"paid": paid, "sex": "f"})
    labels = np.repeat([0, 1], [1000, 1000 + most_beyond])
    sums = cluster_sums(AMOUNTS.values(table, owner=""), preparation, labels, 2).array.values
    sums = sums + noise * np.random.default_rng(seed).standard_normal(sums.shape)
    return Clusters(preparation, sums, noise, floor=0)


def test_a_mean_whose_column_is_clipped_is_only_a_limit():
    frame = clipped(0.0, 50).frame
    whole, cut = (number(frame, cluster, "paid", "mean") for cluster in (0, 1))
    assert whole["low"] == pytest.approx(4.8)
    assert (cut["high"], cut["rest_high"]) == (math.inf, pytest.approx(4.8, abs=1e-3))
    assert cut["low"] == pytest.approx((4.8 * 1000 + 500) / 1050, abs=1e-3)
    assert math.isnan(cut["difference"])
    assert number(frame, 1, "paid", ABOVE)["high"] == pytest.approx(50 / 1050)
    told = str(clipped(0.0, 200))
    assert "paid: at least 5.67, median" in told
    assert words.bounds(
        "paid", AMOUNTS.columns["paid"], [1996.125, 12345.5], [[0.0123], [0.5]]
    ).startswith("paid: 1996.125 to 12,345.5, found; below 1996.125: 1.3%; above 12,345.5: 50%")
    assert "; in the rest 4.8, median" in told
    assert "paid: 0 to 10, found; below 0: 0%, 0%; above 10: 0%, 17%" in told
    # At 0 nothing can be clipped unless counts say so; any other bound may clip if noise allows.
    assert number(clipped(0.0, 0, 3.0).frame, 1, "paid", "mean")["low"] > 4
    assert number(clipped(0.5, 0, 3.0).frame, 1, "paid", "mean")["low"] == -math.inf
    assert "within the bounds" in str(clipped(0.5, 200, 3.0))


@pytest.mark.parametrize(
    ("value", "said"),
    [(4.0, "age: at most 14,"), (50.0, "age: 50 ± 10,"), (96.0, "age: at least 86,")],
)
def test_noise_that_reaches_a_public_bound_leaves_a_limit(value, said):
    row = {
        "column": "age",
        "what": "mean",
        "value": value,
        "error": 5.0,
        "rest": 30.0,
        "rest_error": 1.0,
    }
    row |= {
        "low": max(value - 10, 0),
        "high": min(value + 10, 100),
        "difference": value - 30.0,
        "difference_error": 5.0,
    }
    age = fc.Schema.of({"columns": {"age": {"kind": "number", "bounds": [0, 100]}}}).columns["age"]
    assert words.difference(age, row, {}, 2.0, [0.0, 100.0], "rows").startswith(said)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1030.0, "pay: at least 820 within the bounds"),
        (150.0, "pay: at most 360 within the bounds"),
        (600.0, "pay: 600 ± 210 within the bounds"),
    ],
)
def test_no_interval_in_print_reaches_beyond_bounds_that_were_found(value, said):
    row = {
        "column": "pay",
        "what": "mean",
        "value": value,
        "error": 105.0,
        "low": -math.inf,
        "high": math.inf,
    }
    row |= {
        "rest": 600.0,
        "rest_error": 400.0,
        "rest_low": -math.inf,
        "rest_high": math.inf,
        "difference": math.nan,
    }
    medians = {"low": 400.0, "high": 500.0, "rest_low": 400.0, "rest_high": 500.0}
    pay = fc.Schema.of({"columns": {"pay": {"kind": "number"}}}).columns["pay"]
    sentence = words.difference(pay, row, medians, 2.0, [0.0, 1100.0], "rows")
    assert sentence.startswith(f"{said}, median")
    assert "in the rest anywhere within the bounds, median" in sentence


def test_differences_in_print_exceed_their_errors():
    first, second = people(3000, 0), people(2000, 1)
    table, labels = (
        pd.concat([first, second.assign(age=second["age"] + 2)]),
        np.repeat([0, 1], [3000, 2000]),
    )
    found = []
    for noise in np.linspace(10, 60, 6):
        for seed in range(6):
            told = str(described(table, labels, noise, seed))
            found += re.findall(r", ([\d.,]+) ± ([\d.,]+) (?:more|less|days)", told)
    assert len(found) > 12
    assert all(
        float(apart.replace(",", "")) > float(error.replace(",", "")) for apart, error in found
    )


def test_without_noise_a_share_of_no_rows_is_exactly_zero():
    listed = {f"c{width}": list("abcdefghi"[:width]) for width in range(3, 10)}
    schema = fc.Schema.of(
        {"columns": {name: {"kind": "category", "categories": listed[name]} for name in listed}}
    )
    preparation = Preparation(schema, {name: Figures(0, len(listed[name]) - 1) for name in listed})
    firsts = [0, *(place.start for place in places_of(preparation).values())]
    sums = np.zeros((1, 1 + sum(map(len, listed.values()))))
    for n_rows in range(10, 100):  # rounding would leave something of a few of them
        sums[:, firsts] = n_rows
        frame = Clusters(preparation, sums, floor=0).frame
        assert (frame.value[frame.what == "b"] == 0).all()


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (1996.41, 0.82, "1996.4 ± 0.9"),
        (3420.0, 0.0, "3420"),
        (12345.6, 0.0, "12,346"),
        (834612.0, 9411.0, "835,000 ± 10,000"),
        (2.5, 0.149, "2.50 ± 0.15"),
        (0.00012, 0.00003, "0.00012 ± 0.00003"),
        (-7.0, 0.31, "-7.0 ± 0.4"),
        (0.0, 0.0, "0"),
        (-0.001, 0.13, "0.00 ± 0.14"),
    ],
)
def test_numbers_are_printed_as_people_write_them(value, error, said):
    assert words.with_error(value, error) == said


@pytest.mark.parametrize(
    ("share", "error", "said"),
    [
        (0.694, 0.006, "69.4 ± 0.6%"),
        (0.004, 0.012, "at most 1.6%"),
        (0.999, 0.02, "at least 97.9%"),
        (0.4, 1e300, "0 to 100%"),
        (0.0, 0.0, "0%"),
    ],
)
def test_shares_are_printed_as_limits_where_noise_reaches_an_end(share, error, said):
    assert words.percent(share, error) == said


def test_a_description_without_any_row_says_so():
    nothing = Clusters(PREPARATION, np.full_like(described().sums, -1.0), 1.0)
    assert "Cluster 1: fewer than 11 rows (100%)\n  nothing stands out of the noise" in str(nothing)


def test_rounding_never_shortens_an_interval():
    for value, error in np.random.default_rng(0).lognormal(0, 4, (300, 2)):
        told, apart = (
            float(one.replace(",", "")) for one in words.with_error(value, error).split(" ± ")
        )
        assert told - apart <= value - error * (1 - 1e-6)
        assert told + apart >= value + error * (1 - 1e-6)
        assert apart <= 2 * error


def test_what_noise_drowns_is_marked():
    loud = described(noise=700.0).frame
    assert number(loud, 1, "age", "first quartile")["note"] == "noise"
    assert loud["effect"][loud["note"] == "noise"].isna().all()
    # Even without noise a handful of rows is not told.
    few = described(people(5, 3), np.zeros(5, dtype=int)).frame
    assert set(few["note"][few["column"] != ""]) == {"few"}
    assert few["value"][few["column"] != ""].isna().all()


def test_sentences_tell_what_sets_a_cluster_apart_in_the_units_of_the_table():
    told = str(described(noise=5.0))
    assert "Cluster 1: 39.7" in told
    assert "% of the rows" in told
    assert "age: 74." in told
    assert "years, 34." in told
    assert "sex is m: at least 99" in told
    assert "job is cook" not in told  # 30% in both
    assert "± is 2 standard deviations of the noise" in told
    assert "age: 0 to 100 years; below" in told


def test_table_one_has_the_numbers_that_papers_print():
    clusters, first, second = described(floor=0), TABLE[LABELS == 0], TABLE[LABELS == 1]
    table = clusters.table_one()
    assert table.heading == ("", "all rows", "cluster 0", "cluster 1")
    lines = {label: cells for label, *cells in table.lines}
    assert lines["n"] == ["5040", "3040", "2000"]
    mean, spread = (TABLE["age"].agg(one) for one in ("mean", "std"))
    assert lines["age, years: mean (sd)"][0] == f"{mean:.1f} ({spread:.1f})"
    assert lines["job: cook"][1] == f"{100 * (first['job'] == 'cook').mean():.1f}%"
    for cluster, rows in enumerate((first, second)):
        told = number(clusters.frame, cluster, "age", SPREAD)
        assert told["value"] == pytest.approx(rows["age"].std(ddof=0), rel=1e-4)
    apart, pooled = (
        first["age"].mean() - second["age"].mean(),
        np.hypot(first["age"].std(), second["age"].std()),
    )
    assert number(clusters.frame, 0, "age", "mean")["smd"] == pytest.approx(
        apart / pooled * math.sqrt(2), rel=1e-3
    )
    shares = [(rows["job"] == "cook").mean() for rows in (first, second)]
    pooled = math.sqrt(sum(share * (1 - share) for share in shares) / 2)
    assert number(clusters.frame, 0, "job", "cook")["smd"] == pytest.approx(
        (shares[0] - shares[1]) / pooled
    )


def test_standard_deviations_and_differences_lie_within_two_deviations_of_their_noise():
    true, within = described(floor=0).frame, {SPREAD: [], "smd": []}
    spread, told = true["what"] == SPREAD, true["smd"].notna()
    for seed in range(40):
        frame = described(noise=12.0, seed=seed, floor=0).frame
        within[SPREAD] += ((frame["low"] <= true["value"]) & (true["value"] <= frame["high"]))[
            spread
        ].tolist()
        is_told = told & frame["smd"].notna()
        within["smd"] += ((frame["smd"] - true["smd"]).abs() <= 2 * frame["smd_error"] + 1e-9)[
            is_told
        ].tolist()
    assert len(within[SPREAD]) == 160
    assert all(np.mean(one) > 0.9 for one in within.values())


def test_table_one_is_written_in_three_forms_in_which_no_name_means_anything_else(tmp_path):
    table = TableOne(
        ("", "all rows"),
        (("=1|2 & a_b: mean (sd)", "1 ± 2%"), ("  SMD to the rest", "-1")),
        ("± is 2.",),
    )
    as_csv, as_markdown, as_latex = (
        file.read_text(encoding="utf-8") for file in table.save(tmp_path / "new")
    )
    assert as_csv.splitlines()[1] == "'=1|2 & a_b: mean (sd),1 ± 2%"
    assert as_markdown.splitlines()[2] == r"| =1\|2 & a_b: mean (sd) | 1 ± 2% |"
    assert r"=1|2 \& a\_b: mean (sd) & 1 $\pm$ 2\% \\" in as_latex
    assert as_latex.startswith(r"\begin{tabular}{lr}")
    assert str(table).splitlines()[0].endswith("all rows")


def test_a_description_survives_a_file(tmp_path):
    clusters = described(noise=5.0)
    again = Clusters.from_dict(json.loads(json.dumps(clusters.to_dict())))
    pd.testing.assert_frame_equal(again.frame, clusters.frame)
    assert len(pd.read_csv(clusters.to_csv(tmp_path / "clusters.csv"))) == len(clusters.frame)


def added(table, labels):
    return cluster_sums(SCHEMA.values(table, owner=""), PREPARATION, labels, 2)


def test_no_row_changes_the_sums_by_more_than_the_term_says_and_the_worst_does():
    worst = people(1, 0, age=100.0, born=np.datetime64("2020-01-01"), job="cook", sex="m")
    opposite = worst.assign(age=0.0, born=np.datetime64("1900-01-01"), job="clerk", sex="f")
    one, there, other = (
        added(*row) for row in ((worst, ZERO), (opposite, ZERO), (opposite, ZERO + 1))
    )
    assert (
        np.linalg.norm(one.array.values)
        == pytest.approx(one.bound.l2)
        == math.sqrt(1 + 2.25 * 2 + 2)
    )
    for row in (there, other):
        assert np.linalg.norm(one.array.values - row.array.values) == pytest.approx(
            one.bound.apart, rel=0.15
        )
        assert np.linalg.norm(one.array.values - row.array.values) <= one.bound.apart
    for seed in range(20):
        row = people(1, seed, age=np.nan if seed % 4 == 0 else 1e9 * (-1) ** seed)
        assert np.linalg.norm(added(row, ZERO).array.values) <= one.bound.l2


def test_rows_in_no_cluster_count_nowhere():
    labels = np.resize([0, -1, 1, 2], len(TABLE))
    kept = (labels >= 0) & (labels < 2)
    assert np.array_equal(added(TABLE, labels).integers, added(TABLE[kept], labels[kept]).integers)


def test_a_preparation_of_another_schema_is_refused():
    fewer = {name: column for name, column in SCHEMA.columns.items() if name != "sex"}
    other = Preparation(Schema(columns=fewer), {name: FIGURES[name] for name in fewer})
    client = ProtocolClient(
        ClientData(TABLE, raw=True), name="a", context=Context(0, 0, {}, RecordDict(), {})
    )
    for begun in ([], [as_bytes(SCHEMA.to_json())]):
        if begun:
            client.remember("schema", begun)
        with pytest.raises(fc.DataError, match="schema"):
            client.prepare(preparation_as_bytes(other))


@pytest.fixture(scope="module")
def client():
    made = ProtocolClient(
        ClientData(TABLE, raw=True), name="a", context=Context(0, 0, {}, RecordDict(), {})
    )
    made.remember("schema", [as_bytes(SCHEMA.to_json())])
    made.prepare(preparation_as_bytes(PREPARATION))
    return made


CENTERS = np.random.default_rng(0).normal(size=(3, PREPARATION.n_columns)) / 3
QUESTIONS = {
    "exponents": ProtocolClient.exponents.asked(
        SCHEMA.of_columns(lambda column: column.kind in ("number", "date"))
    ),
    "histograms": ProtocolClient.histograms.asked(
        SCHEMA.of_columns(lambda column: column.needs_histogram),
        np.linspace(0.0, 100.0, 65)[None, :],
    ),
    "description": ProtocolClient.description.asked(
        PREPARATION,
        CENTERS,
        model="k-means",
        frame=Frame(np.zeros(PREPARATION.n_columns), 2 * PREPARATION.radius),
    ),
}


@pytest.mark.parametrize("task", QUESTIONS)
def test_an_answer_about_a_table_is_the_sum_over_its_rows_in_any_batches(client, task, monkeypatch):
    question = QUESTIONS[task]
    (whole,) = question.asks.reply_of(client, question)
    monkeypatch.setattr(
        by_row, "BATCH_ENTRIES", 31 * (PREPARATION.n_columns if task == "description" else 1)
    )
    (in_batches,) = question.asks.reply_of(client, question)
    assert whole.exponent == in_batches.exponent
    assert np.array_equal(whole.integers, in_batches.integers)
    (of_client,) = question.mean().asks.reply_of(client, question.mean())
    (bound,) = question.mean().moved()
    np.testing.assert_allclose(of_client.values, whole.values / len(TABLE), atol=2.0**-20)
    assert np.linalg.norm(of_client.values) <= bound.of_client == question.moved()[0].l2


@pytest.mark.parametrize("task", QUESTIONS)
def test_a_message_about_other_columns_than_the_schemas_is_refused(client, task):
    other = Schema.of(
        {"columns": {name: {"kind": "number", "bounds": (0, 1)} for name in ("age", "born")}}
    )
    described = (
        Preparation(other, dict.fromkeys(other.used, Figures(0, 1)))
        if task == "description"
        else other
    )
    asked = replace(
        QUESTIONS[task],
        arrays=(QUESTIONS[task].asks.asked(described).arrays[0], *QUESTIONS[task].arrays[1:]),
    )
    with pytest.raises(fc.DataError, match="schema"):
        asked.asks.reply_of(client, asked)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_one_epsilon_covers_the_description_too(unit, tmp_path):
    tables = {f"site {index}": TABLE.iloc[index::8] for index in range(8)}
    strategy = fc.PrivateKMeans(
        2, epsilon=8.0, privacy_unit=unit, rows_per_client=630, budget={"description": 0.2}
    )
    result = fc.simulate(strategy, tables, schema=SCHEMA, describe=True, seed=0)
    assert result.privacy.covers_everything
    assert result.privacy.epsilon <= 8.0
    (message,) = [
        one for one in result.privacy.messages if one.release and one.release.share == "description"
    ]
    assert message.release.sensitivity >= 2.6
    assert result.clusters.of_clients == (unit == "client")
    assert result.clusters.deviation > 0
    saved = result.save(tmp_path / "run")
    assert (saved / "clusters.csv").is_file()
    assert "Cluster 1" in (saved / "clusters.txt").read_text(encoding="utf-8")
    table, width = str(result.clusters.table_one()), result.clusters.table_one().width
    for is_terminal, columns, fits in (
        (True, width, True),
        (True, width - 1, False),
        (False, 9, True),
    ):
        printed = cluster_lines(result, Console(force_terminal=is_terminal, width=columns))
        assert (table in printed) == fits
        assert ("Table One is in table-one.md" in printed) != fits


NUMBERS = np.random.default_rng(0)
POINTS = NUMBERS.normal(size=(6, 3))


@pytest.mark.parametrize(
    "model",
    [
        KMeansModel(POINTS),
        PrototypeModel(POINTS, [0, 1, 2, 0, 1, 2], 3),
        SpectralModel(POINTS, 1.0, NUMBERS.normal(size=(6, 2)), 0.9 * np.eye(4, 2) - 0.3),
    ],
    ids=lambda model: model.name,
)
def test_the_exact_cluster_of_a_row_is_the_models_and_depends_on_no_other_row(model):
    rows = np.random.default_rng(1).normal(size=(3000, 3))
    on_grid, exponent = rows_onto_grid(rows, np.zeros(3), 8.0)
    found = model.exact_clusters(on_grid, exponent)
    assert np.mean(found == model.predict(rows)) > 0.999
    assert len(set(found)) > 2
    parts = np.split(on_grid, [1, 500, 502])
    assert np.array_equal(
        np.concatenate([model.exact_clusters(part, exponent) for part in parts]), found
    )
    assert np.array_equal(model.exact_points, getattr(model, "means_", POINTS))


PAIR = pd.concat([people(200, 0), people(150, 1, age=70.0 + np.arange(150) % 9, sex="m")])
PAIR = [PAIR.iloc[site::2] for site in range(2)]


@pytest.mark.parametrize(("strategy", "epsilon"), [(fc.SPPFGCSums, None), (fc.FedSCSums, 30.0)])
def test_clusters_of_any_form_are_described(strategy, epsilon):
    result = fc.simulate(strategy(2, epsilon=epsilon), PAIR, schema=SCHEMA, describe=True, seed=0)
    assert result.privacy.covers_everything == (epsilon is not None)
    sizes = result.clusters.frame.query("what == 'share of rows'")
    counted = np.bincount(np.concatenate(result.labels_of_clients), minlength=2) / 350
    assert np.all(np.abs(sizes["value"] - counted) <= 4 * sizes["error"] + 1e-9)


def test_where_no_exact_choice_gives_a_cluster_it_is_described_without_noise_alone_and_that_is_said():
    noisy, exact = (
        fc.simulate(
            fc.DPFedC(2, epsilon=epsilon, n_rounds=2), PAIR, schema=SCHEMA, describe=True, seed=0
        )
        for epsilon in (10.0, None)
    )
    assert noisy.clusters is None
    assert [doubt.code for doubt in noisy.doubts][-1] == "not-described"
    assert not [message for message in noisy.privacy.messages if "description" in message.task]
    assert "not-described" not in [doubt.code for doubt in exact.doubts]
    assert exact.clusters.sums[:, 0].sum() == 350


def test_clusters_are_described_only_where_that_was_asked_and_there_is_a_schema():
    assert fc.simulate(fc.PrivateKMeans(2, epsilon=None), PAIR, schema=SCHEMA).clusters is None
    with pytest.raises(ValueError, match="describe"):
        fc.with_schema(fc.PrivateKMeans(2), SCHEMA, describe=0.95)
    with pytest.raises(ValueError, match="describe is given and schema is not"):
        fc.simulate(fc.PrivateKMeans(2, max_norm=1.0), [np.eye(3)] * 2, describe=True)

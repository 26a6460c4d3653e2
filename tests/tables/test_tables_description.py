"""What clusters are described as, how far a row moves it, and what noise leaves of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict

import flower_fedclust as fc
from flower_fedclust.engine import ClientData, ProtocolClient, by_row
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.exact.grid import rows_onto_grid
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel, PrototypeModel, SpectralModel
from flower_fedclust.tables.description import (
    N_PARTS,
    QUANTILES,
    Clusters,
    cluster_sums,
)
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema

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
FIGURES = {"age": Figures(0, 100, fill=50), "born": Figures(-25567, 18262), "job": Figures(0, 1), "sex": Figures(0, 1)}
PREPARATION = Preparation(SCHEMA, FIGURES)


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
    [people(3000, 0), people(2000, 1, age=70.0 + np.arange(2000) % 9, sex="m"), people(40, 2, age=np.nan)]
)
LABELS = np.repeat([0, 1, 0], [3000, 2000, 40])
ZERO = np.zeros(1, dtype=np.intp)


def described(table=TABLE, labels=LABELS, noise=0.0, seed=0):
    sums = cluster_sums(SCHEMA.values(table, owner=""), PREPARATION, labels, 2).array.values
    return Clusters(PREPARATION, sums + noise * np.random.default_rng(seed).standard_normal(sums.shape), noise)


def number(frame, cluster, column, what):
    (row,) = frame[(frame.cluster == cluster) & (frame.column == column) & (frame.what == what)].to_dict("records")
    return row


def test_without_noise_the_numbers_are_those_of_the_table():
    frame, first = described().frame, TABLE[LABELS == 0]
    age = number(frame, 0, "age", "mean")
    assert age["value"] == pytest.approx(first["age"].mean(), abs=1e-3)
    assert age["rest"] == pytest.approx(TABLE["age"][LABELS == 1].mean(), abs=1e-3)
    assert number(frame, 0, "age", "standard deviation")["value"] == pytest.approx(first["age"].std(ddof=0), abs=1e-2)
    for what, part in QUANTILES.items():
        told = number(frame, 0, "age", what)
        assert told["value"] == pytest.approx(first["age"].quantile(part), abs=told["width"] / 4)
    assert told["width"] == 100 / N_PARTS
    assert number(frame, 0, "age", "missing")["value"] == pytest.approx(first["age"].isna().mean())
    assert number(frame, 0, "job", "cook")["value"] == pytest.approx((first["job"] == "cook").mean())
    assert number(frame, 0, "", "share of rows")["value"] == pytest.approx(3040 / 5040)
    days = (first["born"] - pd.Timestamp("1970-01-01")).dt.days.mean()
    assert number(frame, 0, "born", "mean")["value"] == pytest.approx(days, abs=0.1)


def test_numbers_with_noise_lie_within_two_standard_errors_as_often_as_they_should():
    true, within = described().frame, []
    for seed in range(20):
        frame = described(noise=12.0, seed=seed).frame
        shown = frame["value"].notna() & true["value"].notna()
        within += ((frame["value"] - true["value"]).abs() <= 2 * frame["error"])[shown].tolist()
    assert len(within) > 500
    assert 0.93 < np.mean(within) < 0.98


def test_what_noise_drowns_is_left_out_and_marked():
    frame = described(noise=30.0).frame
    assert number(frame, 0, "age", "missing")["note"] == "few"  # 40 rows, of which noise makes up to 90
    assert math.isnan(number(frame, 0, "age", "missing")["value"])
    loud = described(noise=250.0).frame
    assert number(loud, 1, "age", "standard deviation")["note"] == "noise"
    assert number(loud, 1, "age", "first quartile")["note"] == "noise"
    # Even without noise a handful of rows is not told.
    few = described(people(5, 3), np.zeros(5, dtype=int)).frame
    assert set(few["note"][few["column"] != ""]) == {"few"}


def test_sentences_tell_what_sets_a_cluster_apart_in_the_units_of_the_table():
    told = str(described(noise=5.0))
    assert "Cluster 1: 39.7 ± 0.1% of the rows" in told
    assert "age: 74.1 ± 0.3 years, 34.5 ± 0.3 more than the rest" in told
    assert "sex is m: 100.0 ± 0.7%, in the rest" in told
    assert "job is cook" not in told  # 30% in both


def test_a_description_survives_a_file(tmp_path):
    clusters = described(noise=5.0)
    again = Clusters.from_dict(json.loads(clusters.to_json()))
    pd.testing.assert_frame_equal(again.frame, clusters.frame)
    assert len(pd.read_csv(clusters.to_csv(tmp_path / "clusters.csv"))) == len(clusters.frame)


def added(table, labels):
    return cluster_sums(SCHEMA.values(table, owner=""), PREPARATION, labels, 2)


def test_no_row_changes_the_sums_by_more_than_the_term_says_and_the_worst_does():
    worst = people(1, 0, age=100.0, born=np.datetime64("2020-01-01"), job="cook", sex="m")
    opposite = worst.assign(age=0.0, born=np.datetime64("1900-01-01"), job="clerk", sex="f")
    one, there, other = (added(*row) for row in ((worst, ZERO), (opposite, ZERO), (opposite, ZERO + 1)))
    assert np.linalg.norm(one.array.values) == pytest.approx(one.bound.l2) == math.sqrt(1 + 3 * 2 + 2)
    for row in (there, other):
        assert np.linalg.norm(one.array.values - row.array.values) == pytest.approx(one.bound.apart, rel=0.1)
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
    client = ProtocolClient(ClientData(TABLE, raw=True), name="a", context=Context(0, 0, {}, RecordDict(), {}))
    for begun in ([], [as_bytes(SCHEMA.to_json())]):
        if begun:
            client.remember("schema", begun)
        with pytest.raises(fc.DataError, match="schema"):
            client.prepare(preparation_as_bytes(other))


@pytest.fixture(scope="module")
def client():
    made = ProtocolClient(ClientData(TABLE, raw=True), name="a", context=Context(0, 0, {}, RecordDict(), {}))
    made.remember("schema", [as_bytes(SCHEMA.to_json())])
    made.prepare(preparation_as_bytes(PREPARATION))
    return made


CENTERS = np.random.default_rng(0).normal(size=(3, PREPARATION.n_columns)) / 3
QUESTIONS = {
    "exponents": ProtocolClient.exponents.asked(SCHEMA.of_columns(lambda column: column.kind in ("number", "date"))),
    "histograms": ProtocolClient.histograms.asked(
        SCHEMA.of_columns(lambda column: column.needs_histogram), np.array([[0.0, 100.0]]), n_bins=64
    ),
    "description": ProtocolClient.description.asked(
        PREPARATION, CENTERS, model="k-means", frame=Frame(np.zeros(PREPARATION.n_columns), 2 * PREPARATION.radius)
    ),
}


@pytest.mark.parametrize("task", QUESTIONS)
def test_an_answer_about_a_table_is_the_sum_over_its_rows_in_any_batches(client, task, monkeypatch):
    question = QUESTIONS[task]
    (whole,) = question.asks.reply_of(client, question)
    monkeypatch.setattr(by_row, "BATCH_ENTRIES", 31 * (PREPARATION.n_columns if task == "description" else 1))
    (in_batches,) = question.asks.reply_of(client, question)
    assert whole.exponent == in_batches.exponent
    assert np.array_equal(whole.integers, in_batches.integers)
    (of_client,) = question.mean().asks.reply_of(client, question.mean())
    (bound,) = question.mean().moved()
    np.testing.assert_allclose(of_client.values, whole.values / len(TABLE), atol=2.0**-20)
    assert np.linalg.norm(of_client.values) <= bound.of_client == question.moved()[0].l2


@pytest.mark.parametrize("task", QUESTIONS)
def test_a_message_about_other_columns_than_the_schemas_is_refused(client, task):
    other = Schema.of({"columns": {name: {"kind": "number", "bounds": (0, 1)} for name in ("age", "born")}})
    described = Preparation(other, dict.fromkeys(other.used, Figures(0, 1))) if task == "description" else other
    asked = replace(
        QUESTIONS[task], arrays=(QUESTIONS[task].asks.asked(described).arrays[0], *QUESTIONS[task].arrays[1:])
    )
    with pytest.raises(fc.DataError, match="schema"):
        asked.asks.reply_of(client, asked)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_one_epsilon_covers_the_description_too(unit, tmp_path):
    tables = {f"site {index}": TABLE.iloc[index::8] for index in range(8)}
    strategy = fc.PrivateKMeans(2, epsilon=8.0, privacy_unit=unit, rows_per_client=630, budget={"description": 0.2})
    result = fc.simulate(strategy, tables, schema=SCHEMA, describe=True, seed=0)
    assert result.privacy.covers_everything
    assert result.privacy.epsilon <= 8.0
    (message,) = [one for one in result.privacy.messages if one.release and one.release.share == "description"]
    assert message.release.sensitivity >= 3.0
    assert result.clusters.of_clients == (unit == "client")
    assert result.clusters.deviation > 0
    saved = result.save(tmp_path / "run")
    assert (saved / "clusters.csv").is_file()
    assert "Cluster 1" in (saved / "clusters.txt").read_text(encoding="utf-8")


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
    assert np.array_equal(np.concatenate([model.exact_clusters(part, exponent) for part in parts]), found)
    assert np.array_equal(model.exact_points, getattr(model, "means_", POINTS))


PAIR = pd.concat([people(200, 0), people(150, 1, age=70.0 + np.arange(150) % 9, sex="m")])
PAIR = [PAIR.iloc[site::2] for site in range(2)]


@pytest.mark.parametrize(("strategy", "epsilon"), [(fc.SPPFGCSums, None), (fc.FedSCSums, 30.0)])
def test_clusters_of_any_form_are_described(strategy, epsilon):
    result = fc.simulate(strategy(2, epsilon=epsilon), PAIR, schema=SCHEMA, describe=True, seed=0)
    assert result.privacy.covers_everything == (epsilon is not None)
    sizes = result.clusters.frame.query("what == 'share of rows'")
    counted = np.bincount(np.concatenate(result.labels), minlength=2) / 350
    assert np.all(np.abs(sizes["value"] - counted) <= 4 * sizes["error"] + 1e-9)


def test_where_no_exact_choice_gives_a_cluster_it_is_described_without_noise_alone_and_that_is_said():
    noisy, exact = (
        fc.simulate(fc.DPFedC(2, epsilon=epsilon, n_rounds=2), PAIR, schema=SCHEMA, describe=True, seed=0)
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

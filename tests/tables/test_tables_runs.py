"""Runs on tables as people have them: whatever the strategy, the same preparation, within one budget."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict

import flower_fedclust as fc
from flower_fedclust import authoring, models
from flower_fedclust.data import read_batches
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.models import Model
from flower_fedclust.results.doubts import doubts_about_numbers
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans
from flower_fedclust.tables.histograms import FoundRange
from flower_fedclust.tables.schema import columns_with_unclear_commas

SCHEMA = """
[columns.age]
kind = "number"
gaps = "mean"

[columns.gain]
kind = "number"
logarithm = true
scale = "standard"

[columns.job]
kind = "category"
categories = ["clerk", "cook", "pilot"]
gaps = "category"

[columns.sex]
kind = "binary"
categories = ["f", "m"]

[columns.note]
kind = "ignored"
"""


def people(n_rows, seed):
    """Return people of three kinds, with gaps: a small table like a census."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, n_rows)
    table = pd.DataFrame(
        {
            "age": 25 + 20 * kinds + rng.normal(0, 3, n_rows),
            "gain": np.where(kinds == 2, rng.lognormal(8, 1, n_rows), 0.0),
            "job": np.array(["clerk", "cook", "pilot"])[kinds],
            "sex": np.array(["f", "m"])[rng.integers(0, 2, n_rows)],
            "note": "free text",
        }
    )
    table.loc[rng.random(n_rows) < 0.05, "job"] = None
    table.loc[rng.random(n_rows) < 0.05, "age"] = np.nan
    return table


@pytest.fixture(scope="module")
def tables():
    first, second = people(1500, 0), people(1000, 1)
    return [first, second[second.columns[::-1]]]


@pytest.fixture(scope="module")
def result(tables):
    return fc.simulate(fc.PrivateKMeans(3, epsilon=2.0), tables, schema=SCHEMA, seed=0)


def test_one_epsilon_covers_preparation_and_clustering(result):
    report = result.privacy
    assert not report.unprotected
    assert report.composed_epsilon == pytest.approx(2.0, rel=1e-3)
    assert {"preparation", "cells"} <= {
        message.release.share for message in report.messages if message.release
    }


def test_the_model_takes_raw_tables_with_columns_in_any_order(tables, result):
    np.testing.assert_array_equal(result.model.predict(tables[1]), result.labels_of_clients[1])
    np.testing.assert_array_equal(
        result.model.predict(tables[1][tables[0].columns]), result.labels_of_clients[1]
    )
    again = Model.named(result.model.name).from_arrays(result.model.to_arrays())
    np.testing.assert_array_equal(again.predict(tables[0]), result.labels_of_clients[0])
    with pytest.raises(fc.DataError, match="column 'sex'"):
        result.model.predict(tables[0].drop(columns="sex"))


def test_sites_whose_tables_do_not_fit_for_one_reason_are_named_together(tables):
    without = [table.drop(columns="sex") for table in tables]
    strategy = fc.PrivateKMeans(3, epsilon=2.0)
    with pytest.raises(
        fc.DataError, match=r"^client 0, client 1.*: the table does not fit the schema"
    ) as error:
        fc.simulate(strategy, without, schema=SCHEMA)
    assert str(error.value).count("column 'sex'") == 1


def test_the_kinds_of_people_are_found(tables, result):
    kinds = np.clip(((np.concatenate([t["age"].to_numpy() for t in tables]) - 15) // 20), 0, 2)
    labels = np.concatenate(result.labels_of_clients)
    known = ~np.isnan(kinds)
    table = pd.crosstab(kinds[known], labels[known]).to_numpy()
    assert table.max(axis=1).sum() / table.sum() > 0.9


def test_prepared_rows_lie_in_the_ball_to_which_rows_are_clipped(tables, result):
    preparation = result.model.preparation
    rows = preparation.transform(tables[0])
    assert np.linalg.norm(rows, axis=1).max() <= preparation.radius
    assert np.abs(rows).sum(axis=1).max() <= preparation.l1_radius
    assert preparation.names == [
        "age",
        "gain",
        "job=clerk",
        "job=cook",
        "job=pilot",
        "job=missing",
        "sex=m",
    ]


@pytest.mark.parametrize(
    "strategy",
    [
        fc.FedDPKMeans(3, epsilon=50.0, server_data=people(60, 9)),
        fc.SPPFGCSums(3, epsilon=50.0),
        fc.KFED(3),
        fc.PrivateKMeans(3, epsilon=50.0, server_data=people(60, 9)),
    ],
    ids=lambda strategy: strategy.name,
)
def test_strategies_of_all_kinds_take_tables(tables, strategy):
    strategy = fc.with_schema(strategy, SCHEMA)
    small = {"north": tables[0][:200], "south": tables[1][:200], "one": tables[0][200:201]}
    result = fc.simulate(strategy, small, seed=0)
    assert not result.failures
    assert [len(labels) for labels in result.labels_of_clients] == [200, 200, 1]
    assert max(row.round for row in result.traffic) <= strategy.num_rounds
    assert isinstance(result.model, models.TableModel)


def test_first_centers_in_a_table_are_prepared_as_rows_are_and_an_origin_is_refused(tables):
    init = tables[0].dropna()[:3]
    rows = fc.simulate(fc.KFED(3), tables, schema=SCHEMA, seed=0).model.preparation.transform(init)
    ends = [
        fc.simulate(
            FederatedKMeans(3, init=given), tables, schema=SCHEMA, seed=0
        ).model.model.cluster_centers_
        for given in (rows, init, init[init.columns[::-1]])
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])
    with pytest.raises(ValueError, match="origin"):
        fc.with_schema(fc.PrivateKMeans(3, max_norm=1.0, origin=[0.0]), SCHEMA)


def test_a_column_whose_values_are_hidden_in_far_wider_bounds_is_named():
    seconds = np.random.default_rng(0).normal(1.6e9, 1e5, 2000)
    tables = [
        pd.DataFrame(
            {
                "seen": seconds,
                "gain": np.where(seconds > 1.6001e9, 500.0, 0.0),
                "z": np.sin(seconds),
            }
        )
    ] * 2
    columns = {name: {"kind": "number"} for name in ("seen", "gain", "z")}
    (doubt,) = fc.simulate(
        fc.PrivateKMeans(2, epsilon=3.0), tables, schema={"columns": columns}, seed=0
    ).doubts
    assert (doubt.code, doubt.numbers, doubt.basis) == (
        "crowded-column",
        {"columns": ["seen"]},
        "released",
    )
    columns["seen"]["bounds"] = [1.599e9, 1.601e9]
    assert (
        fc.simulate(
            fc.PrivateKMeans(2, epsilon=3.0), tables, schema={"columns": columns}, seed=0
        ).doubts
        == ()
    )


@pytest.mark.parametrize(("n_rows", "fewest_found"), [(1000, 60), (2000, 100)])
def test_bounds_that_are_found_hold_most_values(n_rows, fewest_found):
    table = pd.DataFrame(
        np.random.default_rng(0).uniform(0, 10, (n_rows, 100)),
        columns=[f"c{i}" for i in range(100)],
    )
    schema = {"columns": {name: {"kind": "number"} for name in table}}
    found = fc.simulate(
        fc.PrivateKMeans(2, epsilon=3.0), [table[::2], table[1::2]], schema=schema, seed=0
    )
    figures = found.model.preparation.figures
    held = [table[name].between(one.low, one.high).mean() for name, one in figures.items()]
    assert len(held) >= fewest_found
    assert np.mean(np.array(held) < 0.5) < 0.08  # noise hides much of 1,000 rows in 100 columns


def test_bounds_that_are_noise_are_called_noise(monkeypatch, tables):
    schema = {
        "columns": {
            "age": {"kind": "number", "gaps": "mean"},
            "sex": {"kind": "binary", "categories": ["f", "m"]},
        }
    }
    noise = FoundRange(2.0**20, 2.0**21, 1e9)
    monkeypatch.setattr("flower_fedclust.strategies.common.tables.range_of", lambda *_: noise)
    given = [table[["age", "sex"]] for table in tables]
    found = fc.simulate(
        fc.PrivateKMeans(2, epsilon=10.0), given, schema=schema, describe=True, seed=0
    ).doubts
    (doubt,) = [one for one in found if one.code in ("noisy-bounds", "clipped-column")]
    assert doubt.code == "noisy-bounds"
    assert "for 'age' are noise" in doubt.sentence


def test_a_comma_that_may_be_a_decimal_comma_is_a_doubt():
    schema = {"columns": {"dose": {"kind": "number"}, "day": {"kind": "integer"}}}

    def doubts(other):
        table = pd.DataFrame({"dose": ["1,234", "5,750", "7", other] * 5, "day": [1, 2, 3, 4] * 5})
        tables = {"north": table, "south": table.assign(dose=2.5)}
        found = fc.simulate(FederatedKMeans(2), tables, schema=schema, seed=0).doubts
        return [(one.numbers, one.basis) for one in found if one.code == "unclear-comma"]

    assert doubts("8,125") == [({"columns": ["dose"], "clients": ["client north"]}, "rows")]
    assert doubts("8,125.5") == doubts("1,008,125") == doubts("0.5") == []


@pytest.mark.parametrize("last", ["8,125", "8,12", "0.5"])
def test_an_unclear_comma_is_a_doubt_in_batches_too_unless_a_later_row_makes_it_clear(
    last, tmp_path
):
    lines = [f'"{1 + index % 9},234",{index % 4}' for index in range(40_000)]
    for name in ("north", "south"):
        path = tmp_path / f"{name}.csv"
        path.write_text(
            "\n".join(["dose,day", *lines, f'"{last}",1' if name == "north" else lines[0]]) + "\n"
        )
    schema = fc.Schema.of({"columns": {"dose": {"kind": "number"}, "day": {"kind": "integer"}}})
    clients = [
        ClientData(read_batches(tmp_path / f"{name}.csv").rows, owner=name)
        for name in ("north", "south")
    ]
    (doubt,) = doubts_about_numbers(clients, schema)
    assert doubt.numbers == {
        "columns": ["dose"],
        "clients": ["north", "south"] if last == "8,125" else ["south"],
    }


@pytest.mark.parametrize(("later", "unclear"), [("5,678", ["dose"]), ("5,67", []), ("7", ["dose"])])
def test_a_number_of_a_later_part_makes_an_unclear_comma_clear(later, unclear):
    schema = fc.Schema.of({"columns": {"dose": {"kind": "number"}}})
    parts = [pd.DataFrame({"dose": ["1,234", "7"]}), pd.DataFrame({"dose": [later, "8"]})]
    assert columns_with_unclear_commas(iter(parts), schema) == unclear


def test_skewed_and_clipped_columns_are_named_and_logarithms_suggested():
    numbers = np.random.default_rng(0)
    kind = numbers.integers(2, size=4000)
    table = pd.DataFrame(
        {
            "paid": numbers.lognormal(2 * kind, 1.5),
            "age": 30 + 20 * kind + numbers.normal(0, 3, 4000),
        }
    )

    def doubts(epsilon, **paid):
        columns = {
            "paid": {"kind": "number", **paid},
            "age": {"kind": "number", "bounds": [0, 100]},
        }
        strategy = fc.PrivateKMeans(2, epsilon=epsilon)
        found = fc.simulate(
            strategy, [table[::2], table[1::2]], schema={"columns": columns}, describe=True, seed=0
        )
        return {doubt.code: doubt for doubt in found.doubts}

    found = doubts(2.0)
    assert (
        found["skewed-column"].numbers == found["clipped-column"].numbers == {"columns": ["paid"]}
    )
    assert all(
        "logarithm = true" in found[code].sentence for code in ("skewed-column", "clipped-column")
    )
    spread = doubts(2.0, logarithm=True)
    assert "skewed-column" not in spread
    assert "logarithm" not in spread["clipped-column"].sentence
    # The imitation of other runs, which is another matter, may call clusters of such a column unstable.
    assert set(doubts(4.0, bounds=[0, 5000])) <= {"unstable"}
    assert set(doubts(4.0, bounds=[0, 50])) - {"unstable"} == {"clipped-column"}
    assert "nothing-described" in doubts(0.05, bounds=[0, 5000])


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_a_column_that_lies_beyond_its_bounds_is_named_first_and_noise_is_not_blamed(epsilon):
    """Pressures in hectopascal had bounds in bar, and with an epsilon all doubts spoke of noise."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"pressure": rng.normal(1013, 8, 4000), "heat": rng.normal(15, 8, 4000)})
    columns = {"pressure": {"kind": "number", "bounds": [0.9, 1.1]}}

    def doubts(columns):
        own = [table.loc[part::2, list(columns)] for part in range(2)]
        strategy = (
            fc.FederatedKMeans(3) if epsilon is None else fc.PrivateKMeans(3, epsilon=epsilon)
        )
        return fc.simulate(strategy, own, schema={"columns": columns}, describe=True, seed=0).doubts

    first, *others = doubts(columns)
    assert (first.code, first.numbers["columns"]) == ("clipped-column", ["pressure"])
    assert "check the unit of the column, and the bounds" in first.sentence
    assert not [doubt for doubt in others if "larger epsilon" in doubt.sentence]
    assert "clipped-column" not in [doubt.code for doubt in others]
    (first, *_) = doubts({**columns, "heat": {"kind": "number", "bounds": [-30, 60]}})
    assert (first.code, "reason" in first.numbers) == ("clipped-column", False)
    assert not [
        doubt
        for doubt in doubts({"pressure": {"kind": "number", "bounds": [900, 1100]}})
        if doubt.code == "clipped-column"
    ]


def test_a_code_for_missing_values_is_named_as_a_reason_for_a_skewed_column():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(4000) < 0.05, 999.0, rng.normal(1.0, 0.2, 4000))
    table = pd.DataFrame({"creatinine": values, "age": rng.normal(60, 10, 4000)})
    columns = {"creatinine": {"kind": "number"}, "age": {"kind": "number", "bounds": [0, 120]}}
    found = fc.simulate(
        fc.PrivateKMeans(3, epsilon=5.0),
        [table[::2], table[1::2]],
        schema={"columns": columns},
        seed=0,
    )
    (doubt,) = (doubt for doubt in found.doubts if doubt.code == "skewed-column")
    assert "codes for missing values, list them under missing" in doubt.sentence


def test_a_mixture_in_doubt_names_the_columns_of_few_values():
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=6000)
    table = pd.DataFrame(
        {
            "dose": 10.0 * kinds + rng.normal(0, 2, 6000),
            "sex": np.where(rng.random(6000) < 0.5, "f", "m"),
            "stage": rng.integers(4, size=6000),
        }
    )
    columns = {
        "dose": {"kind": "number", "bounds": [-10, 30]},
        "sex": {"kind": "binary", "categories": ["f", "m"]},
        "stage": {"kind": "integer", "bounds": [0, 3]},
    }
    found = fc.simulate(
        fc.PrivateMixture(3, epsilon=1.0),
        [table[::2], table[1::2]],
        schema={"columns": columns},
        seed=0,
    )
    (doubt,) = (doubt for doubt in found.doubts if doubt.code == "one-gaussian")
    assert doubt.numbers["few_valued"] == ["sex", "stage"]
    assert "a larger epsilon does not help" in doubt.sentence


def test_a_model_of_tables_is_evaluated_where_the_tables_are(tables):
    strategy = fc.PrivateKMeans(3, epsilon=2.0, federated_evaluation=True)
    labels = [table["sex"].to_numpy(dtype=str) for table in tables]
    result = fc.simulate(strategy, tables, labels=labels, schema=SCHEMA, seed=0)
    assert not result.failures
    assert "evaluate" in {row.task for row in result.traffic}


def test_a_file_that_changes_between_rounds_ends_what_the_site_answers(tables, tmp_path):
    path = tmp_path / "people.parquet"
    tables[0].to_parquet(path)
    context = Context(0, 0, {}, RecordDict(), {})
    schema = fc.Schema.of(SCHEMA)

    def message(task, *arrays, **config):
        data = lambda: fc.ClientData(pd.read_parquet(path), raw=True)  # noqa: E731
        return authoring.ProtocolClient(data, name="north", context=context).fit(
            list(arrays), {"task": task, "round": 1, **config}
        )[2]

    age = as_bytes(schema.of_columns(lambda column: column.gaps == "mean").to_json())
    assert "failure" not in message("enrol", schema=schema.to_json())
    assert "failure" not in message("exponents", age)
    changed = tables[0].assign(age=tables[0]["age"] + 1)
    changed.to_parquet(path)
    assert message("exponents", age)["failure"].startswith(
        "client north: the data has changed since the run began (column 'age')"
    )
    changed[:-1].to_parquet(path)
    assert "its number of rows or its columns" in message("exponents", age)["failure"]


def test_a_table_is_the_same_before_and_after_its_rows_are_made(tables):
    data = fc.ClientData(tables[0][["age"]].fillna(0.0), raw=True)
    before = data.fingerprint()
    assert data.rows.shape == (1500, 1)
    np.testing.assert_array_equal(data.fingerprint(), before)
    lists = [
        fc.ClientData(pd.DataFrame({"ignored": [[1], [end]]}), raw=True).fingerprint()
        for end in (2, 3, 2)
    ]
    assert lists[0].tolist() == lists[2].tolist() != lists[1].tolist()


def test_a_site_with_a_schema_of_its_own_refuses_another(tables):
    def enrolled(agreed, said):
        data = fc.ClientData(tables[0], raw=True, schema=fc.Schema.of(agreed))
        config = {} if said is None else {"schema": fc.Schema.of(said).to_json()}
        client = authoring.ProtocolClient(
            data, name="north", context=Context(0, 0, {}, RecordDict(), {})
        )
        return client.fit([], {"task": "enrol", **config})[2]

    assert enrolled(SCHEMA, SCHEMA)["columns"] == '["age", "gain", "job", "sex"]'
    assert "differs in 'gain'" in enrolled(SCHEMA, SCHEMA.replace("true", "false"))["failure"]
    assert "no schema" in enrolled(SCHEMA, None)["failure"]

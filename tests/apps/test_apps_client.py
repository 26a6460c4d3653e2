"""What a site with rows of its own lets the run config decide, and what not."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

sys.path.insert(0, str(Path(__file__).parents[2]))

from apps import client_app, config
from flower_fedclust import DataError
from flower_fedclust.authoring import ProtocolClient
from flower_fedclust.format import FORMAT
from flower_fedclust.inputs import make_strategies
from flower_fedclust.registry import find
from flower_fedclust.strategies.baselines.pooled import PooledRowsClient
from flower_fedclust.strategies.common.first_centers import LocalCentersClient

RUN_CONFIG = {
    "strategy": "feddp-kmeans",
    "dataset": "iris",
    "partition": "iid",
    "data-seed": 0,
    "n-clusters": 3,
}
SERVER_ROWS = np.random.default_rng(0).normal(size=(60, 4))


def context(node: dict, **run: object) -> Context:
    return Context(1, 7, UserConfig(node), RecordDict(), UserConfig(RUN_CONFIG | run))


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own.csv"
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "kind": ["x", "y", "x"]}).to_csv(
        path, index=False
    )
    return path


def test_a_site_asks_its_database_and_does_not_say_which(own_file):
    pytest.importorskip("duckdb")
    node = {
        "data": "duckdb://",
        "query": f"SELECT b, a FROM '{own_file}' WHERE a > 1",
        "name": "north",
    }
    data = client_app.load(context(node))
    np.testing.assert_array_equal(data.rows, [[5, 2], [6, 3]])
    assert client_app.consent(context(node)).kinds == {"sums"}
    url = f"sqlite:///{own_file.parent}/secret.db"
    pd.DataFrame({"a": ["x"]}).to_sql("visits", url, index=False)
    with pytest.raises(DataError, match="column 'a' is not numeric") as caught:
        _ = client_app.load(
            context({"data": url, "query": "SELECT a FROM visits", "name": "north"})
        ).rows
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="query"):
        client_app.load(context({"data": url}))


def test_a_site_reads_the_file_of_its_node_config(own_file):
    data = client_app.load(context({"data": str(own_file), "label-column": "kind"}))
    np.testing.assert_array_equal(data.rows, [[1, 4], [2, 5], [3, 6]])
    assert list(data.labels) == ["x", "y", "x"]
    assert list(data.columns) == ["a", "b"]


def test_a_site_says_whose_its_rows_are_and_does_not_cluster_by_it(own_file):
    data = client_app.load(context({"data": str(own_file), "subject-column": "kind"}))
    np.testing.assert_array_equal(data.rows_each, [2, 1, 2])
    assert list(data.columns) == ["a", "b"]


def test_a_site_keeps_its_table_as_it_is_and_holds_the_server_to_its_own_schema(own_file, tmp_path):
    agreed = '[columns.a]\nkind = "number"\n[columns.b]\nkind = "ignored"\n[columns.kind]\nkind = "binary"\n'
    agreed += 'categories = ["x", "y"]\n'
    (tmp_path / "columns.toml").write_text(agreed)
    node = {"data": str(own_file), "schema": str(tmp_path / "columns.toml")}
    for said, is_agreed in (
        (agreed, True),
        (agreed.replace("ignored", "number"), False),
        ("", False),
    ):
        site = context(node, schema=said)
        schema = config.schema(site.run_config)
        message = {"task": "enrol"} | ({} if schema is None else {"schema": schema.to_json()})
        client = ProtocolClient(lambda site=site: client_app.load(site), name="north", context=site)
        assert ("failure" not in client.fit([], message)[2]) == is_agreed
    assert config.schema({"schema": node["schema"]}) == config.schema({"schema": agreed})


def test_a_seed_in_the_run_config_never_reaches_the_noise_of_a_site_with_rows_of_its_own(own_file):
    assert client_app.noise_seed(context({"data": str(own_file)}, **{"noise-seed": 3})) is None
    simulated = context({"partition-id": 0, "num-partitions": 3}, **{"noise-seed": 3})
    assert isinstance(client_app.noise_seed(simulated), int)


def answer(node, strategy, method, *arrays, **arguments):
    """What the client of this node config answers when a strategy asks for a method."""
    question = method.asked(*arrays, **arguments)
    config_of_round = {
        "format": FORMAT,
        "client": find(strategy).strategy.client_type.key(),
        "task": question.answer.task,
        "round": 2,
        "arguments": json.dumps(dict(question.arguments)),
    }
    made = client_app.make_client(context(node, strategy=strategy)).numpy_client
    arrays, _, facts = made.fit(list(question.arrays), config_of_round)
    return [] if facts.get("empty") else arrays, facts.get("failure")


@pytest.mark.parametrize("consent", [None, "sums", "sums,centers"])
def test_a_site_with_rows_of_its_own_sends_them_only_if_its_operator_consents(own_file, consent):
    node = {"data": str(own_file), "columns": "a,b"} | (
        {} if consent is None else {"consent": consent}
    )
    arrays, failure = answer(node, "pooled-kmeans", PooledRowsClient.all_rows)
    assert arrays == []
    assert failure.endswith("its operator would have to consent to 'rows'.")
    arrays, failure = answer(node | {"consent": "rows"}, "pooled-kmeans", PooledRowsClient.all_rows)
    assert failure is None
    np.testing.assert_array_equal(arrays[0], [[1, 4], [2, 5], [3, 6]])


def test_a_site_sends_centers_of_its_own_clusters_only_if_its_operator_consents(own_file):
    node = {"data": str(own_file), "columns": "a,b"}
    asked = {"n_clusters": 2, "random_state": 0}
    _, failure = answer(node, "k-fed", LocalCentersClient.local_centers, **asked)
    assert "does not send centers" in failure
    _, failure = answer(
        node | {"consent": "centers"}, "k-fed", LocalCentersClient.local_centers, **asked
    )
    assert failure is None


def test_a_site_answers_for_the_strategy_of_the_run_and_for_no_other(own_file):
    node = {"data": str(own_file), "columns": "a,b", "consent": "rows"}
    made = client_app.make_client(context(node, strategy="federated-kmeans")).numpy_client
    pooled = {"format": FORMAT, "client": PooledRowsClient.key(), "task": "all_rows", "round": 2}
    _, _, facts = made.fit([], pooled)
    assert facts["empty"]
    assert "does not answer for" in facts["failure"]


def test_a_site_takes_part_in_the_strategies_of_its_node_config_alone(own_file):
    node = {"data": str(own_file), "strategies": "feddp-kmeans"}
    assert client_app.make_client(context(node, strategy="feddp-kmeans"))
    spaced = {"data": str(own_file), "strategies": "feddp-kmeans, k-fed"}
    assert client_app.make_client(context(spaced, strategy="feddp-kmeans, k-fed"))
    with pytest.raises(ValueError, match="does not take part in k-fed"):
        client_app.make_client(context(node, strategy="feddp-kmeans,k-fed"))


def test_columns_and_label_column_are_never_the_servers_choice(own_file):
    asked = {"label-column": "kind", "columns": "b"}
    data = client_app.load(context({"data": str(own_file), "columns": "a"}, **asked))
    np.testing.assert_array_equal(data.rows, [[1], [2], [3]])
    assert data.labels is None
    with pytest.raises(DataError, match="'kind'"):
        _ = client_app.load(context({"data": str(own_file)}, **asked)).rows


@pytest.mark.parametrize("allowed", [None, "false", "true"])
def test_a_site_evaluates_models_only_if_its_operator_allows_it(own_file, allowed):
    node = {"data": str(own_file), "columns": "a,b", "label-column": "kind"}
    made = client_app.make_client(
        context(
            node if allowed is None else node | {"evaluation": allowed}, strategy="feddp-kmeans"
        )
    ).numpy_client
    client = find("feddp-kmeans").strategy.client_type.key()
    asked = {"format": FORMAT, "client": client, "model": "k-means"}
    _, n_rows, facts = made.evaluate([np.array([[1.0, 4.0], [3.0, 6.0]])], asked)
    assert (n_rows == 3) == ("table" in facts) == (allowed == "true")
    assert (facts.get("failure") is None) == (allowed == "true")


def test_simulated_clients_have_every_row_once_and_the_servers_rows_are_not_among_them():
    rows = config.simulated_rows(RUN_CONFIG, 4)
    # A range has rows for the most of them.
    up_to_three = config.simulated_rows(RUN_CONFIG | {"n-clusters": "2-3"}, 4)
    np.testing.assert_array_equal(up_to_three.clients[3], rows.clients[3])
    parts = [
        client_app.load(context({"partition-id": index, "num-partitions": 4})) for index in range(4)
    ]
    for part, expected in zip(parts, rows.clients, strict=True):
        np.testing.assert_array_equal(part.rows, expected)
    assert sum(len(part.rows) for part in parts) + len(rows.server_rows) == 150


def test_parameters_are_toml_and_what_has_a_key_of_its_own_stands_there():
    given = {
        "n-clusters": 3,
        "epsilon": "none",
        "parameters": "center_rows = false\nn-rounds = 2\nbudget = {weights = 0.3}",
    }
    assert config.parameters(given) == {
        "n_clusters": 3,
        "epsilon": None,
        "center_rows": False,
        "n_rounds": 2,
        "budget": {"weights": 0.3},
    }
    with pytest.raises(ValueError, match="epsilon"):
        config.parameters({"n-clusters": 3, "parameters": "epsilon = 1.0"})
    with pytest.raises(ValueError, match="TOML"):
        config.parameters({"n-clusters": 3, "parameters": "center_rows: false"})


def strategy_of(name, epsilon, **more):
    """The strategy that the ServerApp would make of this run config."""
    run_config = RUN_CONFIG | {"strategy": name, "epsilon": epsilon} | more
    (strategy,) = make_strategies([name], config.parameters(run_config), SERVER_ROWS, "made up")
    return strategy


@pytest.mark.parametrize(("name", "own"), [("feddp-kmeans", 1.0), ("fedsc-sums", None)], ids=str)
def test_empty_epsilon_is_the_strategys_own_and_none_is_no_noise(name, own):
    assert strategy_of(name, "").epsilon == own
    for written in ("none", "None", "NONE"):
        assert strategy_of(name, written).epsilon is None
    more = "max_norm = 4.0" if name == "fedsc-sums" else ""
    for written in ("2.5", 2.5):
        assert strategy_of(name, written, parameters=more).epsilon == 2.5


def test_epsilon_that_is_no_number_or_zero_is_refused():
    for make in (
        lambda: config.parameters({"n-clusters": 3, "epsilon": "lots"}),
        lambda: strategy_of("feddp-kmeans", 0.0),
    ):
        with pytest.raises(ValueError, match="epsilon"):
            make()


def test_run_config_of_the_project_leaves_everything_to_the_strategies():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert config.parameters(project["tool"]["flwr"]["app"]["config"]) == {"n_clusters": 10}

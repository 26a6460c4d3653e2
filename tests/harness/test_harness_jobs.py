"""Jobs: rows and strategies from what a user typed."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.inputs import RowsChoice, make_strategies, needs_server_rows, parse_epsilon, parse_value

PUBLIC = np.random.default_rng(0).normal(size=(40, 4))


def test_each_strategy_takes_the_parameters_that_it_knows():
    private, plain = make_strategies(["feddp-kmeans", "k-fed"], {"n_clusters": 3, "epsilon": 2.0}, PUBLIC, "Made up.")
    assert (private.n_clusters, private.epsilon) == (3, 2.0)
    assert plain.n_clusters == 3
    assert plain.epsilon is None
    assert private.server_data_origin == "Made up."


def test_a_parameter_that_no_strategy_knows_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=re.escape("did you mean 'n_clusters'?")):
        make_strategies(["feddp-kmeans", "k-fed"], {"n_cluster": 3}, PUBLIC)


def test_missing_server_rows_are_named():
    assert needs_server_rows(["k-fed", "feddp-kmeans"])
    assert not needs_server_rows(["k-fed", "pooled-kmeans"])
    with pytest.raises(ValueError, match="feddp-kmeans needs public rows at the server"):
        make_strategies(["feddp-kmeans"], {"n_clusters": 3}, None)


def test_server_rows_are_drawn_only_where_they_are_needed_and_not_given(tmp_path):
    choice = RowsChoice(dataset="iris", n_clients=3)
    assert choice.load(3, needs_server_rows=False).server_rows is None
    drawn = choice.load(3, needs_server_rows=True)
    assert len(drawn.server_rows) == 60
    assert sum(map(len, drawn.clients)) == 90
    pd.DataFrame(PUBLIC, columns=drawn.columns).to_csv(tmp_path / "public.csv", index=False)
    given = RowsChoice(dataset="iris", n_clients=3, server_data=tmp_path / "public.csv").load(3, needs_server_rows=True)
    np.testing.assert_allclose(given.server_rows, PUBLIC)
    assert sum(map(len, given.clients)) == 150


def test_a_strategy_that_can_do_without_gets_only_server_rows_that_the_user_gave():
    parameters = {"n_clusters": 3, "max_norm": 9.0}
    names = ["private-kmeans", "feddp-kmeans"]
    without, with_rows = make_strategies(names, parameters, PUBLIC, were_given=False)
    assert without.server_data is None
    assert with_rows.server_data is PUBLIC
    assert make_strategies(names, parameters, PUBLIC)[0].server_data is PUBLIC
    assert not needs_server_rows(["private-kmeans"])
    assert needs_server_rows(["private-kmeans"], n_server_rows=30)
    assert RowsChoice(n_server_rows=30).gives_server_rows


@pytest.mark.parametrize("choice", [RowsChoice(), RowsChoice(dataset="iris", data="rows.csv")])
def test_one_source_of_rows_is_needed_and_not_two(choice):
    with pytest.raises(ValueError, match="give either a data set or a file of your own"):
        choice.load(3, needs_server_rows=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("True", True), ("0.2,0.8", (0.2, 0.8)), ("iid", "iid"), ("none", None)],
)
def test_what_a_user_typed_becomes_a_value(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_epsilon_is_a_number_or_none():
    assert parse_epsilon("0.5") == 0.5
    assert parse_epsilon("None") is None
    with pytest.raises(ValueError, match="epsilon is 'much'"):
        parse_epsilon("much")

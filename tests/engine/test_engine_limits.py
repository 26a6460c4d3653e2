"""Tables on both sides of each limit at which the code takes another way: the bits of a run are the same."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc

N_ROWS = 20
RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(size=(N_ROWS, 3)) + 5 * np.eye(3)[index % 3] for index in range(5)]
TABLES = [pd.DataFrame(rows, columns=["a", "b", "c"]) for rows in CLIENTS]
SCHEMA = {"columns": {name: {"kind": "number", "bounds": [-9, 9]} for name in "abc"}}


def rows(strategy):
    return fc.simulate(strategy, CLIENTS, seed=0)


def tables(strategy):
    return fc.simulate(strategy, TABLES, schema=SCHEMA, seed=0)


#: What has a limit, and how much of it these tables have: a row, a number, a client.
LIMITS = {
    "rows of a client that is stacked with others": (
        "engine.shards.MOST_ROWS_OF_ONE",
        N_ROWS,
        rows,
    ),
    "numbers of clients that are stacked": ("engine.shards.BATCH_ENTRIES", 4 * 3 * N_ROWS, rows),
    "rows that are added up together": ("exact.sums.BLOCK_ROWS", N_ROWS, rows),
    "rows that are prepared together": ("tables.preparation.BLOCK_ROWS", N_ROWS, tables),
    "rows whose moments are computed together": (
        "strategies.private_mixture.BLOCK_ROWS",
        N_ROWS,
        rows,
    ),
}
STRATEGIES = {
    "k-means": lambda: fc.PrivateFederatedKMeans(3, epsilon=50.0, max_norm=9.0, n_rounds=2),
    "mixture": lambda: fc.PrivateMixture(3, epsilon=50.0, max_norm=9.0, covariance_type="diag"),
}


@pytest.fixture(scope="module")
def without_limits():
    return cache(lambda name, run: bits(run(STRATEGIES[name]())))


def bits(result):
    return (
        [np.asarray(array).tobytes() for array in result.model.to_arrays()],
        str(result.privacy),
        result.bytes_up,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        pytest.param("mixture", what, marks=pytest.mark.long)
        if "moments" in what
        else ("k-means", what)
        for what in LIMITS
    ],
)
def test_a_table_on_either_side_of_a_limit_gives_the_same_bits(
    name, what, without_limits, monkeypatch
):
    limit, size, run = LIMITS[what]
    expected = without_limits(name, run)
    for beyond in (-1, 0, 1):
        monkeypatch.setattr(f"flower_fedclust.{limit}", size + beyond)
        assert bits(run(STRATEGIES[name]())) == expected

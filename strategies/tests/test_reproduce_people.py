"""FedDP-KMeans on people: the substitutes for the paper's census and texts, and what is measured on them."""

import numpy as np
import pytest

from flower_fedclust.data import Table
from reproduce import feddp_kmeans
from reproduce.feddp_kmeans import ANSWERS, N_SERVER_ROWS, cost_over_pooled, texts, voters
from reproduce.measures import DATA
from reproduce.tables import Experiment


@pytest.fixture
def groups(monkeypatch):
    """Ten groups of rows, spread over twelve owners."""
    rng = np.random.default_rng(0)
    labels = np.arange(1_500) % 10
    rows = 5.0 * rng.standard_normal((10, 4))[labels] + 0.1 * rng.standard_normal((1_500, 4))
    table = Table(rows, owners=rng.integers(0, 12, 1_500))
    monkeypatch.setitem(DATA, "groups", lambda: table)
    return table


def test_the_server_has_rows_that_no_client_has(groups):
    public, clients, pooled = feddp_kmeans._held_back("groups", 3)
    assert len(public) == N_SERVER_ROWS
    assert len(clients) == 12
    together = {row.tobytes() for row in [*public, *np.concatenate(clients)]}
    assert together == {row.tobytes() for row in groups.rows}
    assert 0 < pooled < 0.1 * len(groups.rows)


def test_costs_are_over_those_of_pooled_rows(groups):
    columns = ("epsilon 100", "no privacy")
    private = Experiment(
        "", columns, "feddp-kmeans", "groups", parameters={"delta": 1e-6, "privacy_unit": "record"}
    )
    (column, found), *others = cost_over_pooled(private, 0).items()
    assert (column, others) == ("epsilon 100", [])
    assert 0.9 < found < 1.5
    assert cost_over_pooled(Experiment("", columns, "k-fed", "groups"), 0).keys() == {"no privacy"}


@pytest.mark.long
def test_every_answer_of_a_voter_is_one_column():
    table = voters()
    assert table.rows.shape == (64_600, 102)
    assert len(np.unique(table.owners)) == 51
    answered = table.rows > 0
    assert (answered.sum(axis=1) == len(ANSWERS)).all()
    np.testing.assert_allclose(table.rows[answered], np.sqrt(0.5))


@pytest.mark.long
def test_texts_have_norm_1_and_modules_as_owners():
    pytest.importorskip("torch")
    table = texts()
    assert len(np.unique(table.owners)) > 1_000
    assert table.rows.shape[1] == feddp_kmeans.N_DIRECTIONS
    lengths = np.linalg.norm(table.rows, axis=1)
    assert ((np.abs(lengths - 1.0) < 1e-9) | (lengths == 0)).all()
    assert np.bincount(table.owners).min() >= feddp_kmeans.FEWEST_TEXTS

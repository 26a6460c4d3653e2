import tracemalloc

import numpy as np
import pytest

from flower_fedclust.numerics.spectral import unit_rows
from flower_fedclust_papers.subspace_model import SubspaceModel


def test_the_cost_is_in_units_of_the_rows_and_residuals_have_none():
    model = SubspaceModel([np.eye(3)[:1], np.eye(3)[1:]])
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, -7.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        model.residuals(rows), [[0.64, 0.36], [1.0, 0.0], [0.0, 0.0]], atol=1e-12
    )
    assert model.predict(rows).tolist() == [1, 1, 0]
    assert model.cost(rows) == pytest.approx(9.0)
    assert model.cost(10 * rows) == pytest.approx(900.0)


def test_a_cluster_without_a_basis_gets_no_row():
    model = SubspaceModel([np.empty((0, 3)), np.eye(3)[:1]])
    assert model.predict(np.eye(3)).tolist() == [1, 1, 1]
    assert model.predict(np.zeros((1, 3))).tolist() == [1]


def test_no_array_of_all_rows_and_clusters_is_made(monkeypatch):
    monkeypatch.setattr("flower_fedclust.models.base.CLUSTERED_ENTRIES", 100_000)
    rng = np.random.default_rng(4)
    model, rows = (
        SubspaceModel(unit_rows(rng.normal(size=(400, 3)))[:, None]),
        rng.normal(size=(20_000, 3)),
    )
    tracemalloc.start()
    model.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 * 400 * 8 / 8

"""Rows in the few directions in which they are spread most."""

import numpy as np
import pytest

from flower_fedclust import ClientData, PrivateStrategy, simulate
from flower_fedclust.engine import Sum, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.models import KMeansModel
from flower_fedclust.models.base import Clustered
from flower_fedclust.strategies.common.clusters import ClusterClient, ClusterStatistic
from flower_fedclust.strategies.maps.map_sums import ReducedRowsClient, widest_directions

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(200, 6)) * [5.0, 0.1, 3.0, 0.2, 0.3, 0.1] @ np.linalg.qr(RNG.normal(size=(6, 6)))[0] + 2.0
CLIENTS = np.split(ROWS, [40, 90])
FRAME = Frame(np.full(6, 2.0), 6.0)


def entered(rows):
    """Moved by the origin and clipped to the radius, row by row."""
    moved = rows - 2.0
    return np.array([row * min(1.0, 6.0 / np.linalg.norm(row)) for row in moved])


class ReducedClient(ReducedRowsClient, ClusterClient):
    pass


class Reducing(PrivateStrategy):
    """Reduces rows, then asks for their sum."""

    client_type = ReducedClient
    n_protocol_rounds = 2
    n_directions: int = parameter(2, at_least=1)

    def parts(self):
        return {"directions": Part(ReducedRowsClient.frame_products, 1.0)}

    def protocol(self):
        directions = yield from widest_directions(FRAME, self.n_directions, "directions")
        view = ReducedRowsClient.reduced.asked(directions, frame=FRAME)
        sums, counts = yield ClusterStatistic().asked(np.zeros((1, directions.shape[1])), None, view=view)
        model = KMeansModel(sums / counts[:, None])
        model.directions = directions
        return model


@pytest.fixture(scope="module", autouse=True)
def without_metrics():
    """The model predicts rows in few columns, and the result would have it predict those of the clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            KMeansModel, "cluster", lambda self, rows, places: Clustered(np.zeros(len(rows), dtype=np.intp), 0.0)
        )
        yield


@pytest.mark.parametrize("n_directions", [1, 2, 5])
def test_directions_are_those_in_which_the_clipped_rows_are_spread_most(n_directions):
    directions = simulate(Reducing(2, n_directions=n_directions), CLIENTS).model.directions
    np.testing.assert_allclose(directions.T @ directions, np.eye(n_directions), atol=1e-7)
    assert np.array_equal(directions, np.trunc(directions * 2.0**27) * 2.0**-27)
    _, vectors = np.linalg.eigh(entered(ROWS).T @ entered(ROWS))
    best = vectors[:, -n_directions:]
    # The second moment is that of rows of 16 bits.
    np.testing.assert_allclose(directions @ directions.T, best @ best.T, atol=5e-4)


def test_later_round_is_on_the_rows_in_these_directions():
    model = simulate(Reducing(2), CLIENTS).model
    expected = entered(ROWS).mean(axis=0) @ model.directions
    np.testing.assert_allclose(model.cluster_centers_, expected[None], atol=2e-6)


def test_reduced_rows_are_clipped_and_on_the_grid_of_the_frame():
    directions = directions_onto_grid(np.linalg.qr(RNG.normal(size=(6, 2)))[0])
    reduced = ReducedRowsClient.reduced.function(FRAME.rows(ROWS), directions)
    np.testing.assert_allclose(reduced.values, entered(ROWS) @ directions, atol=2e-6)
    assert np.linalg.norm(reduced.values, axis=1).max() <= 6.0
    # On the grid of the server's centers, which so lose nothing more.
    assert np.array_equal(reduced.values, Frame(np.zeros(2), 6.0).enter(reduced.values))


@pytest.mark.parametrize("n_directions", [6, 9])
def test_as_many_directions_as_columns_are_the_columns_and_cost_no_round(n_directions):
    with pytest.raises(StopIteration) as stop:
        next(widest_directions(FRAME, n_directions, "directions"))
    assert np.array_equal(stop.value.value, np.eye(6))


def test_fewer_directions_cost_one_sum_that_a_part_of_the_budget_pays_for():
    steps = widest_directions(FRAME, 2, "directions")
    products = next(steps)
    assert isinstance(products, Sum)
    assert products.parts == ("directions",)
    assert products.question.frame is FRAME
    with pytest.raises(StopIteration) as stop:
        steps.send([np.arange(21.0)])
    assert np.array_equal(stop.value.value, np.trunc(stop.value.value * 2.0**27) * 2.0**-27)


def test_one_row_moves_the_products_by_the_radius_squared_at_most_and_by_no_less():
    def products(rows):
        client = ReducedRowsClient(ClientData(rows), name="0")
        return triangle_to_symmetric(client.frame_products(frame=FRAME)[0].values)

    rng, farthest = np.random.default_rng(0), 0.0
    for scale in np.repeat([1e-3, 1.0, 10.0, 1e8, 1e200], 20):
        rows = np.vstack([rng.normal(size=(1, 6)) * scale, ROWS[:4]])
        farthest = max(farthest, np.linalg.norm(products(rows) - products(rows[1:])))
    assert 0.999 * 36.0 <= farthest <= 36.0
    np.testing.assert_allclose(products(ROWS), entered(ROWS).T @ entered(ROWS), rtol=1e-3, atol=0.1)


def test_noise_of_the_release_reaches_the_directions_and_is_covered():
    exact = simulate(Reducing(2), CLIENTS)
    noisy = simulate(Reducing(2, epsilon=0.1), CLIENTS, seed=1)
    assert not np.allclose(np.abs(noisy.model.directions), np.abs(exact.model.directions), atol=1e-3)
    np.testing.assert_allclose(noisy.model.directions.T @ noisy.model.directions, np.eye(2), atol=1e-7)
    assert {message.task for message in noisy.privacy.releases} == {"frame_products"}
    assert {message.task for message in noisy.privacy.unprotected} == {"cluster_sums"}

"""Rows in few columns, which the clients keep."""

import numpy as np
import pytest

from flower_fedclust import ClientData, PrivateStrategy, simulate
from flower_fedclust.models import KMeansModel
from flower_fedclust.models.base import Clustered
from flower_fedclust.numerics.exact import triangle_to_symmetric
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol import Sum, parameter
from flower_fedclust.steps.clusters import ClusterClient, ClusterStatistic
from flower_fedclust.steps.frame import Frame
from flower_fedclust.strategies.maps.reduced_rows import REDUCED_ROWS, ReducedRowsClient, reduce_rows

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(200, 6)) * [5.0, 0.1, 3.0, 0.2, 0.3, 0.1] @ np.linalg.qr(RNG.normal(size=(6, 6)))[0] + 2.0
CLIENTS = np.split(ROWS, [40, 90])
FRAME = Frame(np.full(6, 2.0), 6.0)


def entered(rows):
    """Moved by the origin and clipped to the radius, row by row."""
    moved = rows - 2.0
    return np.array([row * min(1.0, 6.0 / np.linalg.norm(row)) for row in moved])


class WatchedClient(ReducedRowsClient, ClusterClient):
    log: list  # set by reduced

    def fit(self, parameters, config):
        sent, n_examples, facts = super().fit(parameters, config)
        kept = self.recall(REDUCED_ROWS)
        self.log.append((config["task"], self.name, sent, None if kept is None else kept[0]))
        return sent, n_examples, facts


class Reducing(PrivateStrategy):
    """Reduces rows, then asks for their sum."""

    client_type = WatchedClient
    n_protocol_rounds = 3
    n_directions: int = parameter(2, at_least=1)

    def shares(self):
        return {"directions": Share("gaussian", 1.0)}

    def protocol(self):
        release = None if self.epsilon is None else self.release("directions", 36.0, "the radius")
        directions = yield from reduce_rows(FRAME, self.n_directions, release)
        center = np.zeros((1, self.n_directions))
        sums, counts = yield ClusterStatistic().asked(center, Frame(center[0], FRAME.radius), rows=REDUCED_ROWS)
        model = KMeansModel(sums / counts[:, None])
        model.directions = directions
        return model


class Keyed(WatchedClient):
    @property
    def data(self):
        if self.recall(REDUCED_ROWS) is not None:
            return ClientData(np.full_like(self._given_data.rows, 1e9))  # nothing that anybody should use
        return self._given_data


class OnKept(Reducing):
    client_type = Keyed


def reduced(strategy, clients=CLIENTS, **options):
    WatchedClient.log = []
    # What the result itself looks at is not the protocol.
    return simulate(strategy, clients, **options), WatchedClient.log


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
    result, _ = reduced(Reducing(2, n_directions=n_directions))
    directions = result.model.directions
    np.testing.assert_allclose(directions.T @ directions, np.eye(n_directions), atol=1e-7)
    assert np.array_equal(directions, np.trunc(directions * 2.0**27) * 2.0**-27)
    _, vectors = np.linalg.eigh(entered(ROWS).T @ entered(ROWS))
    best = vectors[:, -n_directions:]
    # The second moment is that of rows of 16 bits.
    np.testing.assert_allclose(directions @ directions.T, best @ best.T, atol=5e-4)


def test_clients_keep_their_rows_in_these_directions_and_send_nothing():
    result, log = reduced(Reducing(2))
    directions = result.model.directions
    seen = []
    for task, name, sent, kept in log:
        if task == "reduce_rows":
            assert sent == []
            seen.append(name)
            assert kept.shape == (len(CLIENTS[int(name)]), 2)
            np.testing.assert_allclose(kept, entered(CLIENTS[int(name)]) @ directions, atol=2e-6)
            assert np.linalg.norm(kept, axis=1).max() <= 6.0
            # On the grid of later rounds, which so lose nothing more.
            assert np.array_equal(kept, Frame(np.zeros(2), 6.0).enter(kept))
        elif task == "frame_products":
            assert [array.shape for array in sent] == [(21,)]
    assert sorted(seen) == ["0", "1", "2"]
    assert "reduce_rows" not in {message.task for message in result.privacy.messages}


def test_later_round_is_on_the_kept_rows_alone():
    result, log = reduced(OnKept(2))
    assert result.failures == []
    expected = np.concatenate([kept for task, _, _, kept in log if task == "reduce_rows"]).mean(axis=0)
    np.testing.assert_allclose(result.model.cluster_centers_, expected[None], atol=1e-10)


@pytest.mark.parametrize("n_directions", [6, 9])
def test_as_many_directions_as_columns_are_the_columns_and_cost_no_round(n_directions):
    steps = reduce_rows(FRAME, n_directions, None)
    round_ = next(steps)
    assert round_.task == "reduce_rows"
    assert np.array_equal(round_.question.arrays[0], np.eye(6))
    with pytest.raises(StopIteration) as stop:
        steps.send([])
    assert np.array_equal(stop.value.value, np.eye(6))


def test_the_first_round_is_a_sum_with_a_release_and_the_second_carries_none():
    release = Release("gaussian", 36.0, 3.5, "the radius")
    steps = reduce_rows(FRAME, 2, release)
    products = next(steps)
    assert isinstance(products, Sum)
    assert list(products.releases) == [release]
    kept = steps.send([np.arange(21.0)])
    directions = kept.question.arrays[0]
    assert np.array_equal(directions, np.trunc(directions * 2.0**27) * 2.0**-27)
    assert kept.task == "reduce_rows"
    assert not any(kept.releases)
    for arrays in (kept.question.arrays[1:], products.question.arrays):
        assert all(np.array_equal(one, other) for one, other in zip(arrays, FRAME.arrays, strict=True))


def test_one_row_moves_the_products_by_the_radius_squared_at_most_and_by_no_less():
    def products(rows):
        client = ReducedRowsClient(ClientData(rows), name="0")
        return triangle_to_symmetric(client.frame_products(*FRAME.arrays).values)

    rng, farthest = np.random.default_rng(0), 0.0
    for scale in np.repeat([1e-3, 1.0, 10.0, 1e8, 1e200], 20):
        rows = np.vstack([rng.normal(size=(1, 6)) * scale, ROWS[:4]])
        farthest = max(farthest, np.linalg.norm(products(rows) - products(rows[1:])))
    assert 0.999 * 36.0 <= farthest <= 36.0
    np.testing.assert_allclose(products(ROWS), entered(ROWS).T @ entered(ROWS), rtol=1e-3, atol=0.1)


def test_noise_of_the_release_reaches_the_directions_and_is_covered():
    exact, _ = reduced(Reducing(2))
    noisy, _ = reduced(Reducing(2, epsilon=0.1), seed=1)
    assert not np.allclose(np.abs(noisy.model.directions), np.abs(exact.model.directions), atol=1e-3)
    np.testing.assert_allclose(noisy.model.directions.T @ noisy.model.directions, np.eye(2), atol=1e-7)
    assert {message.task for message in noisy.privacy.releases} == {"frame_products"}
    assert {message.task for message in noisy.privacy.unprotected} == {"cluster_sums"}


def test_client_that_missed_the_round_is_left_out_later_and_its_own_rows_are_never_used():
    class Absent(WatchedClient):
        def fit(self, parameters, config):
            if self.name == "1" and config["task"] == "reduce_rows":
                config = config | {"task": "nothing"}
            return super().fit(parameters, config)

    class Left(Reducing):
        client_type = Absent

    result, log = reduced(Left(2))
    assert any("client 1 has not kept its reduced rows" in failure.reason for failure in result.failures)
    expected = np.concatenate([kept for task, _, _, kept in log if task == "reduce_rows" and kept is not None])
    assert len(expected) == 150
    np.testing.assert_allclose(result.model.cluster_centers_, expected.mean(axis=0)[None], atol=1e-10)

import math

import numpy as np
import pytest

from flower_fedclust.engine import ClientData, PrivateStrategy, parameter
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.common.moments import (
    Moments,
    MomentsClient,
    checked_bandwidth,
    column_moments,
    moment_parts,
    noisy_column_moments,
)

RNG = np.random.default_rng(2)
SCALES = np.array([0.01, 1.0, 300.0])
CLIENTS = [RNG.normal(size=(n, 3)) * SCALES + RNG.normal(size=3) for n in (20, 5, 60)]
#: Rows of these clients reach less than 1,024 from their mean: the unit of their grid.
UNIT = 1024 * 2.0**-25
RELATIONS = ("add-or-remove", "replace")


class Steps(PrivateStrategy):
    """Takes moments, with noise of a multiplier if one is given, and keeps them in the model."""

    client_type = MomentsClient
    n_protocol_rounds = 4

    n_clusters: int = parameter(2)
    max_norm: float | None = parameter(None)
    multiplier: float = parameter(0.0)
    relation: Relation = parameter("add-or-remove")

    def parts(self):
        return moment_parts(1.0, replaced=self.relation == "replace")

    def noise_multipliers(self, shares=None):
        return dict.fromkeys(shares, self.multiplier)

    def noisy_moments(self):
        return noisy_column_moments(self.max_norm, 3, replaced=self.relation == "replace")

    def protocol(self):
        if self.max_norm is None:
            found, _ = yield from column_moments()
        else:
            found = yield from self.noisy_moments()
        model = KMeansModel(np.zeros((1, 3)))
        model.found = found
        return model


def releases_of(max_norm, multiplier, relation):
    strategy = Steps(epsilon=1.0, max_norm=max_norm, multiplier=multiplier, relation=relation)
    return strategy.with_noise(next(strategy.noisy_moments())).releases


def moments_of(clients, **options):
    return simulate(Steps(**options), clients).model.found


def slow_distance(rows):
    exact = rows.astype(np.longdouble)
    return float(np.mean([np.sqrt(((x - y) ** 2).sum()) for x in exact for y in exact]))


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_moments_are_those_of_all_rows_together(offset):
    clients = [rows + offset for rows in CLIENTS]
    pooled = np.concatenate(clients).astype(np.longdouble)
    moments = moments_of(clients)
    assert moments.n_rows == 85.0
    mean = pooled.mean(axis=0)
    np.testing.assert_allclose(moments.mean, mean.astype(float), rtol=0, atol=UNIT)
    deviation = np.sqrt(((pooled - mean) ** 2).mean(axis=0))
    np.testing.assert_allclose(moments.deviation, deviation.astype(float), rtol=0, atol=2 * UNIT)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_distance_is_the_mean_over_clients_of_the_mean_over_all_pairs_of_rows(offset):
    clients = [rows + offset for rows in CLIENTS]
    expected = np.mean([slow_distance(rows) for rows in clients])
    assert moments_of(clients).distance == pytest.approx(expected, rel=1e-6)


def test_client_with_one_row_is_left_out_of_the_mean_distance_and_counted_in_all_else():
    clients = [CLIENTS[0], CLIENTS[1][:1], CLIENTS[2], CLIENTS[1][1:2]]
    moments = moments_of(clients)
    assert moments.distance == pytest.approx(
        np.mean([slow_distance(CLIENTS[0]), slow_distance(CLIENTS[2])]), rel=1e-6
    )
    assert moments.n_rows == 82.0
    np.testing.assert_allclose(
        moments.mean, np.concatenate(clients).mean(axis=0), rtol=0, atol=UNIT
    )
    np.testing.assert_allclose(
        moments.deviation, np.concatenate(clients).std(axis=0), rtol=0, atol=2 * UNIT
    )


def test_client_whose_rows_are_equal_counts_with_distance_0():
    equal = np.repeat(CLIENTS[1][:1], 7, axis=0)
    assert moments_of([CLIENTS[0], equal]).distance == pytest.approx(
        slow_distance(CLIENTS[0]) / 2, rel=1e-6
    )


def test_distance_is_0_where_every_client_has_one_row_only():
    moments = moments_of([CLIENTS[0][:1], CLIENTS[0][1:2]])
    assert moments.distance == 0.0
    np.testing.assert_allclose(moments.deviation, CLIENTS[0][:2].std(axis=0), rtol=1e-6, atol=UNIT)


class Deserting(MomentsClient):
    """Client 2 answers all rounds but the last."""

    def fit(self, parameters, config):
        if self.name == "2" and config["task"] == "column_spread":
            config = config | {"task": "nothing"}
        return super().fit(parameters, config)


def test_moments_are_those_of_the_clients_that_are_left_where_one_is_gone_in_the_last_round():
    same = [CLIENTS[2][:20], CLIENTS[2][20:40], CLIENTS[2][40:]]

    class Left(Steps):
        client_type = Deserting

    moments = simulate(Left(), same).model.found
    left = np.concatenate(same[:2])
    assert moments.n_rows == 40
    np.testing.assert_allclose(moments.mean, left.mean(axis=0), rtol=0, atol=UNIT)
    np.testing.assert_allclose(moments.deviation, left.std(axis=0), rtol=0, atol=2 * UNIT)


# With noise.


def clipped(rows, max_norm):
    return np.array([row * min(1.0, max_norm / np.sqrt((row**2).sum())) for row in rows])


@pytest.mark.parametrize("max_norm", [0.5, 20.0, 1e9])
def test_noise_off_gives_the_moments_of_the_clipped_rows_in_one_round(max_norm):
    pooled = clipped(np.concatenate(CLIENTS), max_norm)
    moments = moments_of(CLIENTS, max_norm=max_norm)
    assert moments.n_rows == 85.0
    unit = max_norm * 2.0**-24
    np.testing.assert_allclose(moments.mean, pooled.mean(axis=0), rtol=0, atol=unit)
    if max_norm == 1e9:
        # Of which the rows are a millionth: their spread is below what 40 bits say of a square.
        return
    np.testing.assert_allclose(moments.deviation, pooled.std(axis=0), rtol=0, atol=2 * unit)
    assert moments.distance == pytest.approx(np.sqrt(2 * pooled.var(axis=0).sum()), rel=1e-6)
    # The root mean square distance over all ordered pairs of rows.
    squares = [((x - y) ** 2).sum() for x in pooled for y in pooled]
    assert moments.distance == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-6)


def answered(total, squares, count, max_norm=2.0):
    steps = noisy_column_moments(max_norm, 2)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send([np.array(total), np.array(squares), np.array(count)])
    return stop.value.value


FULL = 2.0 / math.sqrt(2.0)


@pytest.mark.parametrize(
    ("total", "squares", "count", "mean", "deviation", "distance"),
    [
        # Noise hides the spread of every column: rows all over the ball are assumed.
        ([4.0, 2.0], [-5.0, -1e9], 4.0, [1.0, 0.5], [FULL, FULL], 2.0),
        ([4.0, 2.0], [3.9, 0.9], 4.0, [1.0, 0.5], [FULL, FULL], 2.0),
        # Of one column only.
        ([4.0, 2.0], [8.0, -3.0], 4.0, [1.0, 0.5], [1.0, 0.0], math.sqrt(2.0)),
        # Mean and deviation stay within the ball.
        ([300.0, -400.0], [1e9, 0.0], 10.0, [1.2, -1.6], [2.0, 0.0], math.sqrt(8.0)),
        # There is at least one row.
        ([0.5, 0.0], [1.25, 0.0], -7.0, [0.5, 0.0], [1.0, 0.0], math.sqrt(2.0)),
    ],
)
def test_moments_of_noisy_sums_are_possible_moments_of_clipped_rows(
    total, squares, count, mean, deviation, distance
):
    moments = answered(total, squares, count)
    np.testing.assert_allclose(moments.mean, mean)
    np.testing.assert_allclose(moments.deviation, deviation)
    assert moments.distance == pytest.approx(distance)
    assert moments.n_rows == max(count, 1.0)


def random_neighbors(relation, max_norm, rng):
    """Yield two tables, and the two farthest that there can be."""
    rows, other = (rng.normal(size=(n, 3)) * rng.choice([0.1, 1.0, 10.0]) for n in (4, 1))
    longest = np.zeros((1, 3))
    longest[0, rng.integers(3)] = 5.0 * max_norm
    if relation == "add-or-remove":
        yield rows[1:], rows
        yield rows[:2], np.concatenate([rows[:2], longest])
    else:
        for one, two in (
            (rows[:1], other),
            (longest, -longest),
            (longest, np.roll(longest, 1, axis=1)),
        ):
            yield np.concatenate([rows[1:], one]), np.concatenate([rows[1:], two])


@pytest.mark.parametrize("max_norm", [0.3, 4.0])
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_two_neighbors_are_farther_apart_than_the_sensitivities(relation, max_norm):
    rng = np.random.default_rng(0)
    farthest = np.zeros(3)
    for _ in range(100):
        for one, other in random_neighbors(relation, max_norm, rng):
            clients = [MomentsClient(ClientData(rows), name="0") for rows in (one, other)]
            sent = [
                client.clipped_column_sums(frame=Frame(np.zeros(3), max_norm)) for client in clients
            ]
            moved = [
                np.linalg.norm(first.values - second.values)
                for first, second in zip(*sent, strict=True)
            ]
            farthest = np.maximum(farthest, moved)
    releases = releases_of(max_norm, 3.0, relation)
    bounds = [0.0 if release is None else release.sensitivity for release in releases]
    assert (farthest <= bounds).all()
    # And the bounds are reached.
    np.testing.assert_allclose(farthest, bounds, rtol=1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_releases_are_gaussian_of_the_multiplier_and_the_relation(relation):
    sums, squares, count = releases_of(3.0, 0.7, relation)
    # Two vectors without a negative entry are never farther apart than the square root of 2 times the longer one.
    expected = (6.0, math.sqrt(2.0) * 9.0) if relation == "replace" else (3.0, 9.0)
    assert (sums.sensitivity, squares.sensitivity) == pytest.approx(expected)
    given = [release for release in (sums, squares, count) if release is not None]
    assert {
        (release.mechanism, release.noise_multiplier, release.relation) for release in given
    } == {("gaussian", 0.7, relation)}
    assert (count is None) == (relation == "replace")
    assert all(("one is replaced" in release.bound) == (relation == "replace") for release in given)


@pytest.mark.parametrize("relation", RELATIONS)
def test_parts_of_the_moments_divide_the_budget_equally(relation):
    parts = moment_parts(0.3, replaced=relation == "replace")
    assert sum(part.fraction for part in parts.values()) == pytest.approx(0.3)
    assert len({part.fraction for part in parts.values()}) == 1
    assert ("row_count" in parts) == (relation == "add-or-remove")


def test_noise_of_the_releases_is_in_the_moments():
    many = [RNG.normal(size=(500, 3)) for _ in range(4)]
    exact = moments_of(many, max_norm=3.0)
    noisy = Steps(max_norm=3.0, multiplier=5.0, epsilon=5.0)
    drawn = [simulate(noisy, many, seed=i).model.found for i in range(60)]
    assert np.std([moments.n_rows for moments in drawn]) == pytest.approx(5.0, rel=0.4)
    means = np.array([moments.mean for moments in drawn]) - exact.mean
    assert np.std(means) == pytest.approx(15.0 / 2000, rel=0.4)


# The bandwidth.


@pytest.mark.parametrize(
    ("given", "distance", "expected"), [(None, 3.0, 3.0), (0.5, 3.0, 0.5), (0.5, 0.0, 0.5)]
)
def test_bandwidth_is_the_given_one_or_the_mean_distance(given, distance, expected):
    assert checked_bandwidth(given, Moments(10.0, np.zeros(2), np.ones(2), distance)) == expected


def test_distance_0_asks_for_a_bandwidth():
    with pytest.raises(DataError, match="bandwidth"):
        checked_bandwidth(None, Moments(10.0, np.zeros(2), np.ones(2), 0.0))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6 / 3, 1e-300])
@pytest.mark.parametrize("given", [None, 2.0])
def test_rows_that_are_all_equal_cannot_be_clustered_whatever_the_bandwidth(given, value):
    with pytest.raises(DataError, match="rows are equal"):
        checked_bandwidth(given, moments_of([np.full((n, 3), value) for n in (100, 33, 1)]))


@pytest.mark.parametrize(
    ("value", "columns", "difference"), [(0.1, [2], 1e-9), (1e6, [0, 1, 2], 1e-8)]
)
def test_rows_that_differ_by_very_little_are_not_all_equal(value, columns, difference):
    rows = np.full((7, 3), value)
    rows[0, columns] += difference
    moments = moments_of([rows, rows])
    assert checked_bandwidth(None, moments) == moments.distance > 0

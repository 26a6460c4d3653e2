"""The privacy of the maps: what a row can change, what the report says, what the server can read."""

import math
from fractions import Fraction

import numpy as np
import pytest
from sklearn.datasets import load_digits
from watching import watched

from flower_fedclust import ClientData, simulate
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.strategies.common.clusters import ClusterStatistic
from flower_fedclust.strategies.maps import map_sums
from flower_fedclust.strategies.maps.map_sums import (
    FederatedMapSumsClient,
    FedTSNESums,
    ReducedRowsClient,
    spread_centers,
)
from flower_fedclust.strategies.maps.maps import FedTSNE

ALLOWANCE = 1 + 1e-9
MAX_NORM = 9.0
RNG = np.random.default_rng(0)
MEANS = np.eye(3, 25) * 7.0
CLASSES = np.arange(160) % 3
ROWS = MEANS[CLASSES] + RNG.normal(size=(160, 25)) * 0.4
CLIENTS = np.split(ROWS, [31, 62, 109])
PLACES = ("server", "clients", "local")


def rounds_of(strategy_type=FedTSNE, clients=CLIENTS, **options):
    """Return the rounds, the result and the messages of a run."""
    strategy, rounds, messages = watched(strategy_type)
    fast = {"n_landmarks": 30} | ({"n_rounds": 2} if issubclass(strategy_type, FedTSNE) else {})
    return rounds, simulate(strategy(3, **(fast | options)), clients, seed=0), messages


def of_sums(epsilon=8.0, **options):
    return rounds_of(FedTSNESums, epsilon=epsilon, max_norm=MAX_NORM, **options)


def reply_to(round_, rows, client_type=FederatedMapSumsClient):
    """What a client with these rows would answer."""
    reply = round_.asks.reply_of(client_type(ClientData(rows), name="0"), round_.question)
    return reply if isinstance(reply, list) else [reply]


def share_of(one, two, release):
    """How far two replies are apart over the sensitivity, or the square of that: exactly."""
    difference = (one.integers - two.integers).ravel()
    weights = np.ones(difference.size, dtype=np.int64)
    if release.triangle:
        weights += is_off_diagonal((math.isqrt(8 * difference.size + 1) - 1) // 2)
    power = 1 if release.norm == "L1" else 2
    total = sum(
        weight * abs(entry) ** power
        for weight, entry in zip(weights.tolist(), difference.tolist(), strict=True)
    )
    return total / (Fraction(release.sensitivity) / Fraction(2) ** one.exponent) ** power


def released(rounds):
    return [release for round_ in rounds for release in round_.releases if release is not None]


def odd_rows(n, seed):
    """Rows of all lengths, the first as likely huge as tiny."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 25)) * rng.choice([0.1, 1.0, 10.0], size=(n, 1))
    rows[0] *= 10.0 ** rng.choice([-3, 0, 1, 3, 8, 150])
    return rows


# Sums


def test_releases_of_sums_have_the_sensitivities_of_a_row_that_is_added():
    rounds, _, _ = of_sums()
    declared = {
        round_.task: [release.sensitivity for release in round_.releases if release]
        for round_ in rounds
    }
    assert declared["clipped_column_sums"] == pytest.approx([MAX_NORM, MAX_NORM**2, 1.0])
    radius = next(
        round_ for round_ in rounds if round_.task == "frame_products"
    ).question.frame.radius
    assert declared["frame_products"] == [pytest.approx(radius**2)]
    assert declared["cluster_sums"] == pytest.approx([radius, 1.0])
    assert all(
        release.triangle
        for round_ in rounds
        if round_.task == "frame_products"
        for release in round_.releases
    )
    views = {round_.question.view.asks for round_ in rounds if round_.task == "cluster_sums"}
    assert views == {ReducedRowsClient.reduced}
    mechanisms = {
        round_.task: [release.mechanism for release in round_.releases if release]
        for round_ in rounds
    }
    assert mechanisms["cluster_sums"] == ["gaussian", "laplace"]
    assert mechanisms["clipped_column_sums"] == ["gaussian"] * 3


def test_what_directions_would_cost_goes_to_the_centers_where_rows_have_few_columns():
    rounds, result, _ = of_sums(2.0, clients=[rows[:, :6] for rows in CLIENTS], n_landmarks=30)
    assert "frame_products" not in {round_.task for round_ in rounds}
    assert result.privacy.covers_everything
    assert 0.8 * 2.0 <= result.privacy.composed_epsilon <= result.privacy.epsilon == 2.0
    # Before a run nobody knows how many columns there are.
    assert "directions" in FedTSNESums(3).shares()


@pytest.mark.parametrize("noise", PLACES)
def test_centers_reckon_with_the_noise_that_reaches_the_sums(monkeypatch, noise):
    seen, next_centers = {}, ClusterStatistic.next_centers

    def spy(*arguments, **options):
        seen.update(options)
        return (yield from spread_centers(*arguments, **options))

    def spy_on_step(self, reply, centers):
        seen["noise"] = reply.noise
        return next_centers(self, reply, centers)

    monkeypatch.setattr(map_sums, "spread_centers", spy)
    monkeypatch.setattr(ClusterStatistic, "next_centers", spy_on_step)
    rounds, _, _ = of_sums(noise=noise)
    sums, counts = next(round_.releases for round_ in rounds if round_.task == "cluster_sums")
    # Each of the four clients adds all the noise, or a share of it.
    times = 2.0 if noise == "local" else 1.0
    assert seen["statistic"].shrink
    assert seen["noise"] == pytest.approx([times * sums.scale, times * counts.scale * math.sqrt(2)])
    assert seen["smallest"] == pytest.approx(seen["noise"][1])


def test_plain_run_says_that_the_server_can_read_the_rows():
    report = rounds_of()[1].privacy
    assert any("The server can read the rows" in note for note in report.notes)
    assert not report.covers_everything
    (distances,) = (
        message for message in report.unprotected if message.task == "landmark_distances"
    )
    assert distances.detail == "one per row"


# What the server can compute

DIGITS = load_digits().data[:160] / 16.0
DIGITS = DIGITS - DIGITS.mean(axis=0)
DIGIT_CLIENTS = np.array_split(DIGITS, 4)
WIDE = {"clients": DIGIT_CLIENTS, "n_landmarks": 100, "n_rounds": 3}


def attacked(log):
    """The errors of all rows, recovered from what the server sent and received."""
    attacks = pytest.importorskip(
        "reproduce.attacks", reason="the attacks are in flower-fedclust-papers"
    )
    errors = [
        attacks.relative_errors(
            attacks.rows_from_distances(parameters[0], sent[0]), DIGIT_CLIENTS[int(name)]
        )
        for task, name, parameters, sent, *_ in log
        if task in ("landmark_distances", "clipped_distances")
    ]
    assert len(errors) == 4
    return np.concatenate(errors)


def test_rows_are_recovered_from_what_the_server_receives():
    assert attacked(rounds_of(**WIDE)[2]).max() < 1e-6

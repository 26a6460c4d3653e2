"""The privacy of the maps: what a row can change, what the report says, what the server can read."""

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from sklearn.datasets import load_digits
from watching import watched

from flower_fedclust import ClientData, simulate
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.numerics.landmarks import longest_attraction
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.strategies.common.clusters import ClusterStatistic
from flower_fedclust.strategies.common.perturbed_rows import NOISY_ROWS
from flower_fedclust.strategies.maps import map_sums
from flower_fedclust.strategies.maps.map_sums import (
    FederatedMapSumsClient,
    FedTSNESums,
    ReducedRowsClient,
    spread_centers,
)
from flower_fedclust.strategies.maps.maps import FederatedMapClient, FedTSNE

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
    fast = {"n_landmarks": 30} | ({"n_rounds": 2} if strategy_type is FedTSNE else {})
    return rounds, simulate(strategy(3, **(fast | options)), clients, seed=0), messages


def of_sums(epsilon=8.0, **options):
    return rounds_of(FedTSNESums, epsilon=epsilon, max_norm=MAX_NORM, **options)


def local(perturb, epsilon=5.0, **options):
    return rounds_of(perturb=perturb, epsilon=epsilon, max_norm=MAX_NORM, **options)


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
        weight * abs(entry) ** power for weight, entry in zip(weights.tolist(), difference.tolist(), strict=True)
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
    declared = {round_.task: [release.sensitivity for release in round_.releases if release] for round_ in rounds}
    assert declared["clipped_column_sums"] == pytest.approx([MAX_NORM, MAX_NORM**2, 1.0])
    radius = next(round_ for round_ in rounds if round_.task == "frame_products").question.frame.radius
    assert declared["frame_products"] == [pytest.approx(radius**2)]
    assert declared["cluster_sums"] == pytest.approx([radius, 1.0])
    assert all(release.triangle for round_ in rounds if round_.task == "frame_products" for release in round_.releases)
    views = {round_.question.view.asks for round_ in rounds if round_.task == "cluster_sums"}
    assert views == {ReducedRowsClient.reduced}
    mechanisms = {round_.task: [release.mechanism for release in round_.releases if release] for round_ in rounds}
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


# Perturbed data


def test_perturbed_data_cover_everything_with_one_release():
    rounds, result, _ = local("data", 3.0, delta=1e-5)
    report = result.privacy
    (message,) = report.releases
    release = message.release
    assert (message.task, message.content, message.detail) == (
        "perturb_rows",
        "the rows",
        "one per row, kept by the client",
    )
    assert (release.mechanism, release.relation) == ("gaussian", "replace")
    assert release.sensitivity == pytest.approx(2 * MAX_NORM)
    assert release.noise_multiplier == pytest.approx(dp_accounting.get_sigma_gaussian(3.0, 1e-5), rel=2e-3)
    assert report.covers_everything
    assert 0.99 * 3.0 <= report.composed_epsilon <= 3.0 * ALLOWANCE
    assert [round_.task for round_ in rounds] == [
        "perturb_rows", "entry_exponent", "column_sums", "reach", "column_spread", "landmark_steps", "landmark_steps",
        "landmark_distances", "keep_places",
    ]  # fmt: skip
    assert all(round_.rows == NOISY_ROWS for round_ in rounds[1:-1])
    derived = {message.task for message in report.messages if message.post_processing}
    assert derived >= {"landmark_steps", "landmark_distances"}
    assert not any("The server can read the rows" in note for note in report.notes)


# Perturbed distances


def test_sensitivities_of_perturbed_distances_are_those_of_a_row_that_is_replaced():
    rounds, _, _ = local("distances")
    moments, attraction, _, distances, _ = rounds
    assert [release and release.relation for release in moments.releases] == ["replace", "replace", None]
    assert attraction.releases[0].sensitivity == pytest.approx(
        2 * longest_attraction(attraction.question.arguments["gamma"], 30)
    )
    assert distances.releases[0].sensitivity == pytest.approx(2 * MAX_NORM * math.sqrt(30))
    farthest = {}
    for seed in range(30):
        rows = odd_rows(5, seed)
        replaced = np.vstack([odd_rows(1, seed + 1000), rows[1:]])
        for round_ in (moments, attraction, distances):
            replies = [reply_to(round_, side, FederatedMapClient) for side in (rows, replaced)]
            for one, two, release in zip(*replies, round_.releases, strict=True):
                if release is None:
                    assert np.array_equal(one.integers, two.integers)  # a number of rows
                    continue
                share = share_of(one, two, release)
                assert share <= 1
                farthest[round_.task] = max(farthest.get(round_.task, 0.0), share)
    # Landmarks on one line, beyond all rows, see a row that is turned round at its full length, and no more than that.
    frame = distances.question.arrays[1:]
    for far in (2.0 * MAX_NORM, 1e6):
        for axis in (np.eye(25)[:1], np.full((1, 25), 0.2), np.eye(25)[:1] + np.linspace(0.0, 0.1, 25)):
            clients = [FederatedMapClient(ClientData(sign * axis * 1e9), name="0") for sign in (1.0, -1.0)]
            landmarks = np.tile(axis * far, (30, 1))
            one, two = (each.clipped_distances(landmarks, *frame, max_norm=MAX_NORM) for each in clients)
            assert 1 - 1e-6 < share_of(one, two, distances.releases[0]) <= 1
    assert farthest["clipped_column_sums"] > 0.25


def test_what_takes_noise_of_a_row_is_the_same_bits_whatever_rows_stand_beside_it():
    rounds, _, _ = local("distances")
    attraction, distances = rounds[1], rounds[-2]
    Y = distances.question.arrays[0]
    extreme = [np.full(25, value) for value in (5e-324, -1e-310, 1e-300, 1.7e308, -1e300)]
    rows = np.vstack([odd_rows(40, 0), *extreme, 0.5 * (Y[0] + Y[1]), Y[0]])
    together = reply_to(distances, rows, FederatedMapClient)[0]
    alone = [reply_to(distances, row[None], FederatedMapClient)[0].integers for row in rows]
    assert np.array_equal(together.integers, np.concatenate(alone))
    within = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True) / MAX_NORM, 1.0)  # whose norms do not overflow
    clipped = within * np.minimum(1.0, MAX_NORM / np.linalg.norm(within, axis=1, keepdims=True).clip(1e-300))
    np.testing.assert_allclose(together.values, np.linalg.norm(clipped[:, None] - Y[None], axis=2), atol=1e-4)
    total = reply_to(attraction, rows, FederatedMapClient)[0].integers
    assert np.array_equal(total, sum(reply_to(attraction, row[None], FederatedMapClient)[0].integers for row in rows))


# Noise that protects nothing


@pytest.mark.parametrize("perturb", ["gradients", "landmarks"])
def test_noise_on_the_landmarks_gives_the_run_no_guarantee_and_a_note_says_why(perturb):
    rounds, result, _ = local(perturb)
    report = result.privacy
    assert {message.task for message in report.releases} == {"clipped_column_sums", "landmark_attraction"}
    assert report.composed_epsilon == pytest.approx(composed_epsilon(released(rounds), 1e-6), rel=1e-3)
    assert not report.covers_everything
    assert {message.task for message in report.unprotected} == {"landmark_distances"}
    assert "The run as a whole has NO such guarantee" in report.guarantee()
    (note,) = (note for note in report.notes if "The server can read the rows" in note)
    assert "Noise on the landmarks changes nothing of that" in note


def test_relative_noise_is_on_what_it_is_said_to_be_on():
    def sent_of(**options):
        rounds, _, log = rounds_of(n_rounds=1, **options)
        sent_by = {(task, name): sent[0] for task, name, _, sent, *_ in log if sent}
        for task, name, got, sent, *_ in log:
            if task == "landmark_steps":
                # The landmarks, of whose deviation the noise is, less where they were: in units of the radius.
                sent_by[task, name] = got[0] + got[1] / got[2][0] + sent[0]
        return rounds, sent_by

    _, exact = sent_of()
    for perturb, task in (("landmarks", "landmark_steps"), ("distances", "landmark_distances")):
        _, noisy = sent_of(perturb=perturb, relative_noise=0.5)
        for name in "0123":
            moved = noisy[task, name] - exact[task, name]
            assert moved.std() == pytest.approx(0.5 * exact[task, name].std(), rel=0.15)
        if perturb == "distances":
            assert np.array_equal(noisy["landmark_steps", "0"], exact["landmark_steps", "0"])
    # Gradients take noise in their own form, whatever averaging says.
    rounds, _ = sent_of(perturb="gradients", relative_noise=0.5)
    (step,) = (round_.question.arguments for round_ in rounds if round_.task == "landmark_steps")
    assert (step["averaging"], step["relative_noise"]) == ("gradients", 0.5)


def test_plain_run_says_that_the_server_can_read_the_rows():
    report = rounds_of()[1].privacy
    assert any("The server can read the rows" in note for note in report.notes)
    assert not report.covers_everything
    (distances,) = (message for message in report.unprotected if message.task == "landmark_distances")
    assert distances.detail == "one per row"


# What the server can compute

DIGITS = load_digits().data[:160] / 16.0
DIGITS = DIGITS - DIGITS.mean(axis=0)
DIGIT_CLIENTS = np.array_split(DIGITS, 4)
WIDE = {"clients": DIGIT_CLIENTS, "n_landmarks": 100, "n_rounds": 3}


def attacked(log):
    """The errors of all rows, recovered from what the server sent and received."""
    attacks = pytest.importorskip("reproduce.attacks", reason="the attacks are in flower-fedclust-papers")
    errors = [
        attacks.relative_errors(attacks.rows_from_distances(parameters[0], sent[0]), DIGIT_CLIENTS[int(name)])
        for task, name, parameters, sent, *_ in log
        if task in ("landmark_distances", "clipped_distances")
    ]
    assert len(errors) == 4
    return np.concatenate(errors)


@pytest.mark.parametrize(
    "options",
    [{}, {"perturb": "gradients", "epsilon": 5.0, "max_norm": 4.0}, {"perturb": "landmarks", "relative_noise": 1.0}],
    ids=["plain", "gradients with epsilon", "landmarks with noise"],
)
def test_rows_are_recovered_from_what_the_server_receives(options):
    assert attacked(rounds_of(**WIDE, **options)[2]).max() < 1e-6


@pytest.mark.parametrize("perturb", ["data", "distances"])
def test_rows_are_not_recovered_from_a_run_with_epsilon_that_covers_them(perturb):
    attacks = pytest.importorskip("reproduce.attacks", reason="the attacks are in flower-fedclust-papers")
    _, _, log = rounds_of(**WIDE, perturb=perturb, epsilon=5.0, max_norm=4.0)
    assert np.median(attacked(log)) > 1.0
    for task, _, parameters, sent, kept, _ in log:
        if perturb == "data" and task == "landmark_distances":
            # The attack finds the noisy rows, and no more.
            assert (
                attacks.relative_errors(attacks.rows_from_distances(parameters[0], sent[0]), kept[NOISY_ROWS]).max()
                < 1e-6
            )

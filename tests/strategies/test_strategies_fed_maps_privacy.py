"""The privacy of Fed-tSNE and Fed-UMAP: what a row can change, what the report says, what the server can read."""

import math
from functools import partial

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from sklearn.datasets import load_digits

from flower_fedclust import ClientData, FedTSNE, simulate
from flower_fedclust.models import maps as models
from flower_fedclust.numerics.landmarks import longest_row_gradient
from flower_fedclust.privacy.attacks import relative_errors, rows_from_distances
from flower_fedclust.protocol import Gather, Sum
from flower_fedclust.steps.perturbed_rows import NOISY_ROWS
from flower_fedclust.steps.reduced_rows import REDUCED_ROWS
from flower_fedclust.steps.spread_centers import spread_centers
from flower_fedclust.strategies import fed_maps
from flower_fedclust.strategies.fed_maps import FederatedMapClient

ALLOWANCE = 1 + 1e-9
MAX_NORM = 9.0
RNG = np.random.default_rng(0)
MEANS = np.eye(3, 25) * 7.0
CLASSES = np.arange(160) % 3
ROWS = MEANS[CLASSES] + RNG.normal(size=(160, 25)) * 0.4
CLIENTS = np.split(ROWS, [31, 62, 109])
FAST = {"n_landmarks": 30, "n_rounds": 2}
PLACES = ("server", "clients", "local")


@pytest.fixture(autouse=True, scope="module")
def few_iterations():
    """How good the maps are is not the question here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fed_maps, "tsne_map", partial(fed_maps.tsne_map, n_iter=10))
        patch.setattr(models, "place_tsne", partial(models.place_tsne, n_iter=10))
        yield


class WatchedClient(FederatedMapClient):
    """Leaves behind every message, and the noisy rows that it keeps."""

    log: list  # set by rounds_of

    def fit(self, parameters, config):
        sent, n_examples, facts = super().fit(parameters, config)
        noisy = self.recall(NOISY_ROWS)
        self.log.append((config["task"], self.name, parameters, sent, None if noisy is None else noisy[0]))
        return sent, n_examples, facts


class Recorded(FedTSNE):
    """Notes the rounds it yields."""

    client_type = WatchedClient
    yielded: list  # set by rounds_of

    def protocol(self):
        generator = super().protocol()
        brought = None
        while True:
            try:
                round_ = generator.send(brought)
            except StopIteration as stop:
                return stop.value
            self.yielded.append(round_)
            brought = yield round_


def rounds_of(clients=CLIENTS, seed=0, strategy_type=Recorded, **options):
    strategy = strategy_type(3, **(FAST | options))
    strategy.yielded, WatchedClient.log = [], []
    return strategy.yielded, simulate(strategy, clients, seed=seed)


def stay(epsilon=8.0, **options):
    return rounds_of(rows="stay", epsilon=epsilon, max_norm=MAX_NORM, **options)


def local(perturb, epsilon=5.0, **options):
    return rounds_of(perturb=perturb, epsilon=epsilon, max_norm=MAX_NORM, noise="local", **options)


def reply_to(round_, rows):
    """What a client with these rows would answer."""
    client = FederatedMapClient(ClientData(rows), name="0")
    method, answer = FederatedMapClient._methods(round_.task)
    reply = getattr(client, method)(*round_.arrays, **round_.arguments)
    reply = list(reply) if isinstance(reply, tuple) else [reply]
    assert len(reply) == len(answer.sends) == len(round_.releases)
    return reply


def length(array, release):
    return np.linalg.norm(array) if release.norm == "L2" else np.abs(array).sum()


def epsilon_composed(releases, delta):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    for release in releases:
        multiplier = release.noise_multiplier
        gaussian = release.mechanism == "gaussian"
        accountant.compose(
            dp_accounting.GaussianDpEvent(multiplier) if gaussian else dp_accounting.LaplaceDpEvent(multiplier)
        )
    return accountant.get_epsilon(delta)


def odd_rows(n, seed):
    """Rows of all lengths, the first as likely huge as tiny."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 25)) * rng.choice([0.1, 1.0, 10.0], size=(n, 1))
    rows[0] *= 10.0 ** rng.choice([-3, 0, 1, 3, 8, 150])
    return rows


# Rows that stay


@pytest.mark.parametrize("noise", PLACES)
def test_run_where_rows_stay_is_covered_and_costs_what_its_releases_compose_to(noise):
    clients = [np.tile(rows, (40, 1)) for rows in CLIENTS]
    rounds, result = stay(1.5, delta=1e-5, noise=noise, clients=clients)
    report = result.privacy
    released = [release for round_ in rounds for release in round_.releases if release is not None]
    assert [message.release for message in report.releases] == released
    assert all(release.noise_multiplier > 0 for release in released)
    assert report.covers_everything
    assert report.unprotected == []
    assert "  nothing that depends on the rows" in str(report)
    assert report.epsilon == pytest.approx(epsilon_composed(released, 1e-5), rel=1e-3)
    assert 0.98 * 1.5 <= report.epsilon <= 1.5 * ALLOWANCE
    assert (report.noise, report.unit, report.requested_epsilon, report.delta) == (noise, "record", 1.5, 1e-5)
    assert report.neighbours.startswith("one row of one client, added or removed")
    assert not any("The server can read the rows" in note for note in report.notes)


@pytest.mark.parametrize("options", [{"n_landmarks": 300}, {"n_landmarks": 4}, {"n_landmarks": 7}], ids=str)
def test_fewer_rounds_than_were_reckoned_with_cost_less(options):
    rounds, result = stay(4.0, **options)
    released = [release for round_ in rounds for release in round_.releases]
    assert result.privacy.epsilon == pytest.approx(epsilon_composed(filter(None, released), 1e-6), rel=1e-3)
    assert result.privacy.epsilon <= 4.0 * ALLOWANCE
    assert result.privacy.covers_everything


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_every_round_is_a_sum_where_rows_stay_and_no_message_has_an_entry_for_each_row(epsilon):
    private = {} if epsilon is None else {"epsilon": epsilon, "max_norm": MAX_NORM}
    rounds, result = rounds_of(rows="stay", **private)
    assert all(isinstance(round_, Sum) for round_ in rounds)
    messages = [message for message in result.privacy.messages if message.task != "enrol"]
    assert {message.detail for message in messages} == {"sum over the clients"}
    assert {"place_rows", "reduce_rows"}.isdisjoint(message.task for message in messages)
    sizes = {str(index): len(rows) for index, rows in enumerate(CLIENTS)}
    for task, name, _, sent, _ in WatchedClient.log:
        assert sizes[name] not in {side for array in sent for side in array.shape}
        assert (sent == []) == (task in ("enrol", "place_rows", "reduce_rows"))


def test_without_epsilon_everything_is_listed_as_unprotected():
    report = rounds_of(rows="stay")[1].privacy
    assert report.releases == []
    assert not report.covers_everything
    assert report.guarantee().startswith("None.")
    assert {message.task for message in report.unprotected} == {
        "column_sums", "column_spread", "cluster_sums_and_costs",
    }  # fmt: skip
    assert len(report.unprotected) == len([message for message in report.messages if message.task != "enrol"])


def test_releases_where_rows_stay_have_the_sensitivities_of_a_row_that_is_added():
    rounds, _ = stay()
    declared = {round_.task: [release.sensitivity for release in round_.releases if release] for round_ in rounds}
    assert declared["clipped_column_sums"] == [MAX_NORM, MAX_NORM**2, 1.0]
    radius = next(round_ for round_ in rounds if round_.task == "frame_products").arguments["radius"]
    assert declared["frame_products"] == [pytest.approx(radius**2)]
    assert declared["cluster_sums"] == [pytest.approx(radius), 1.0]
    assert {round_.arguments["radius"] for round_ in rounds if "radius" in round_.arguments} == {radius}
    assert {round_.rows for round_ in rounds if round_.task == "cluster_sums"} == {REDUCED_ROWS}
    mechanisms = {round_.task: [release.mechanism for release in round_.releases if release] for round_ in rounds}
    assert mechanisms["cluster_sums"] == ["gaussian", "laplace"]
    assert mechanisms["clipped_column_sums"] == ["gaussian"] * 3


def test_one_row_moves_no_sum_by_more_than_its_sensitivity_and_the_bounds_are_reached():
    rounds, _ = stay()
    reducing = next(round_ for round_ in rounds if round_.task == "reduce_rows")
    farthest = {}
    for seed in range(60):
        rows = odd_rows(6, seed)
        for round_ in rounds:
            if not any(round_.releases):
                continue
            sides = [rows, rows[1:]]
            if round_.task == "cluster_sums":
                sides = [
                    FederatedMapClient(ClientData(side), name="0").reduce_rows(*reducing.arrays, **reducing.arguments)
                    for side in sides
                ]
            replies = [reply_to(round_, side) for side in sides]
            for index, (one, two, release) in enumerate(zip(*replies, round_.releases, strict=True)):
                share = length(one - two, release) / release.sensitivity
                assert share <= ALLOWANCE
                farthest[round_.task, index] = max(farthest.get((round_.task, index), 0.0), share)
    reached = {
        key: value for key, value in farthest.items() if key not in (("cluster_sums", 0), ("clipped_column_sums", 1))
    }
    assert min(reached.values()) > 0.99
    # A row in the direction of a column has all its square in one entry; one in the plane keeps its length.
    moments = next(round_ for round_ in rounds if round_.task == "clipped_column_sums")
    assert np.linalg.norm(reply_to(moments, np.eye(25)[:1] * 1e9)[1]) == pytest.approx(MAX_NORM**2)
    cells = next(round_ for round_ in rounds if round_.task == "cluster_sums")
    in_plane = reducing.arrays[1] + 1e6 * reducing.arrays[0][:, :1].T
    kept = FederatedMapClient(ClientData(in_plane), name="0").reduce_rows(*reducing.arrays, **reducing.arguments)
    assert np.linalg.norm(reply_to(cells, kept)[0]) == pytest.approx(cells.releases[0].sensitivity)


def test_few_columns_are_not_reduced_and_their_part_of_the_budget_is_left():
    clients = [rows[:, :4] for rows in CLIENTS]
    rounds, result = stay(clients=clients, n_landmarks=30)
    assert "frame_products" not in {round_.task for round_ in rounds}
    assert result.privacy.covers_everything
    assert result.privacy.epsilon < 8.0


def test_parts_of_the_budget_change_the_noise_where_rows_stay():
    for index, task in enumerate(["clipped_column_sums", "frame_products", "cluster_sums"]):
        split = tuple(20 if part == index else 1 for part in range(3))
        rounds, _ = stay(budget_split=split)
        in_shares = {}
        for round_ in rounds:
            if any(round_.releases):
                n_rounds = sum(other.task == round_.task for other in rounds)
                times = 3 if round_.task == "clipped_column_sums" else n_rounds
                in_shares[round_.task] = round_.releases[0].noise_multiplier / times
        assert min(in_shares, key=in_shares.get) == task


@pytest.mark.parametrize("noise", PLACES)
def test_noise_is_really_added_where_rows_stay(noise):
    one, other = (stay(noise=noise, random_state=0, seed=seed)[1].model.landmarks_ for seed in (0, 1))
    assert one.shape != other.shape or not np.allclose(one, other)


@pytest.mark.parametrize("noise", PLACES)
def test_centers_reckon_with_the_noise_that_reaches_the_sums(monkeypatch, noise):
    seen = {}

    def spy(n_centers, frame, statistic, *arguments, **options):
        seen.update(statistic=statistic, smallest=options["smallest"])
        return (yield from spread_centers(n_centers, frame, statistic, *arguments, **options))

    monkeypatch.setattr(fed_maps, "spread_centers", spy)
    stay(noise=noise)
    sums, counts = seen["statistic"].releases
    # Each of the four clients adds all the noise, or a share of it.
    times = 2.0 if noise == "local" else 1.0
    assert seen["statistic"].noise_deviation == pytest.approx(times * sums.scale)
    assert seen["smallest"] == pytest.approx(times * counts.scale * math.sqrt(2))


def test_rounds_that_cost_epsilon_are_fewer_by_default():
    private = {"epsilon": 1.0, "max_norm": 1.0, "noise": "local"}
    assert FedTSNE(3).num_rounds == 1 + 2 + 50 + 2
    assert FedTSNE(3, perturb="data", **private).num_rounds == 1 + 1 + 2 + 50 + 2
    for perturb in ("gradients", "landmarks", "distances"):
        assert FedTSNE(3, perturb=perturb, **private).num_rounds == 1 + 1 + 10 + 2
        assert FedTSNE(3, perturb=perturb, relative_noise=0.1).num_rounds == 1 + 2 + 50 + 2


# Perturbed data


def test_perturbed_data_cover_everything_with_one_release():
    rounds, result = local("data", 3.0, delta=1e-5)
    report = result.privacy
    (message,) = report.releases
    release = message.release
    assert (message.task, message.content, message.detail) == (
        "perturb_rows",
        "the rows",
        "one per row, kept by the client",
    )
    assert (release.mechanism, release.sensitivity, release.relation) == ("gaussian", 2 * MAX_NORM, "replace")
    assert release.noise_multiplier == pytest.approx(dp_accounting.get_sigma_gaussian(3.0, 1e-5), rel=2e-3)
    assert report.covers_everything
    assert 0.99 * 3.0 <= report.epsilon <= 3.0 * ALLOWANCE
    assert [round_.task for round_ in rounds] == [
        "perturb_rows", "column_sums", "column_spread", "landmark_steps", "landmark_steps", "landmark_distances",
        "keep_places",
    ]  # fmt: skip
    assert all(round_.rows == NOISY_ROWS for round_ in rounds[1:-1])
    derived = {message.task for message in report.messages if message.post_processing}
    assert derived >= {"landmark_steps", "landmark_distances"}
    assert not any("The server can read the rows" in note for note in report.notes)


@pytest.mark.parametrize(
    "noise", [{"epsilon": 5.0, "max_norm": MAX_NORM, "noise": "local"}, {"relative_noise": 0.2}], ids=str
)
def test_run_on_noisy_rows_is_the_plain_run_on_the_rows_that_the_clients_kept(noise):
    class Forgetful(WatchedClient):
        """Loses its rows with the noisy ones made."""

        @property
        def data(self):
            if self.recall(NOISY_ROWS) is not None:
                raise AssertionError("the rows themselves were looked at")
            return self._given_data

    class Strategy(Recorded):
        client_type = Forgetful

    _, result = rounds_of(strategy_type=Strategy, perturb="data", **noise)
    assert result.failures == []
    kept = {name: noisy for task, name, _, _, noisy in WatchedClient.log if task == "perturb_rows"}
    assert all(sent == [] for task, _, _, sent, _ in WatchedClient.log if task == "perturb_rows")
    assert not any(np.allclose(kept[str(index)], rows) for index, rows in enumerate(CLIENTS))
    _, plain = rounds_of(clients=[kept[str(index)] for index in range(4)])
    for one, other in zip(result.model.to_arrays(), plain.model.to_arrays(), strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(result.labels, plain.labels, strict=True):
        assert np.array_equal(one, other)


def test_noisy_rows_are_the_clipped_rows_with_noise_of_the_calibrated_deviation():
    clients = [np.random.default_rng(seed).normal(size=(300, 25)) * 3.0 for seed in range(2)]  # all are longer
    _, result = local("data", clients=clients)
    (message,) = result.privacy.releases
    for index in range(2):
        kept = next(noisy for _, name, _, _, noisy in WatchedClient.log if name == str(index) and noisy is not None)
        norms = np.linalg.norm(clients[index], axis=1, keepdims=True)
        noise = kept - clients[index] * np.minimum(1.0, MAX_NORM / norms)
        assert np.std(noise) == pytest.approx(message.release.scale, rel=0.04)


# Perturbed distances


def test_perturbed_distances_cover_everything():
    clients = [np.tile(rows, (2, 1)) for rows in CLIENTS]
    rounds, result = local("distances", delta=1e-5, clients=clients)
    report = result.privacy
    released = [release for round_ in rounds for release in round_.releases if release is not None]
    assert [message.release for message in report.releases] == released
    assert [round_.task for round_ in rounds] == [
        "clipped_column_sums", "landmark_attraction", "landmark_attraction", "landmark_distances", "keep_places",
    ]  # fmt: skip
    assert isinstance(rounds[-2], Gather)
    assert report.covers_everything
    assert report.unprotected == []
    assert report.epsilon == pytest.approx(epsilon_composed(released, 1e-5), rel=1e-3)
    assert 0.98 * 5.0 <= report.epsilon <= 5.0 * ALLOWANCE
    assert report.neighbours.startswith("one row of one client, replaced by any other")
    assert not any("The server can read the rows" in note for note in report.notes)


def test_sensitivities_of_perturbed_distances_are_those_of_a_row_that_is_replaced():
    rounds, _ = local("distances")
    moments, attraction, _, distances, _ = rounds
    assert [release and release.relation for release in moments.releases] == ["replace", "replace", None]
    assert attraction.releases[0].sensitivity == pytest.approx(
        2 * longest_row_gradient(attraction.arguments["gamma"], 30)
    )
    assert distances.releases[0].sensitivity == pytest.approx(2 * MAX_NORM * math.sqrt(30))
    farthest = {}
    for seed in range(60):
        rows = odd_rows(5, seed)
        replaced = np.vstack([odd_rows(1, seed + 1000), rows[1:]])
        for round_ in (moments, attraction, distances):
            replies = [reply_to(round_, side) for side in (rows, replaced)]
            for one, two, release in zip(*replies, round_.releases, strict=True):
                if release is None:
                    assert np.array_equal(one, two)  # a number of rows
                    continue
                share = length(one - two, release) / release.sensitivity
                assert share <= ALLOWANCE
                farthest[round_.task] = max(farthest.get(round_.task, 0.0), share)
    # Far landmarks on one line see a row that is turned round at its full length.
    far = [np.tile(np.eye(25)[:1] * 1e6, (30, 1))]
    client = [FederatedMapClient(ClientData(sign * np.eye(25)[:1] * 1e9), name="0") for sign in (1.0, -1.0)]
    one, two = (each.landmark_distances(*far, relative_noise=0.0, max_norm=MAX_NORM) for each in client)
    assert np.linalg.norm(one - two) == pytest.approx(distances.releases[0].sensitivity)
    assert farthest["clipped_column_sums"] > 0.5


def test_distances_get_the_noise_of_their_release():
    _, result = local("distances", n_landmarks=60)
    (release,) = (message.release for message in result.privacy.releases if message.task == "landmark_distances")
    noise = []
    for task, name, parameters, sent, _ in WatchedClient.log:
        if task == "landmark_distances":
            rows = CLIENTS[int(name)]
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            clipped = rows * np.minimum(1.0, MAX_NORM / norms)
            noise.append(sent[0] - np.linalg.norm(clipped[:, None] - parameters[0][None], axis=2))
    assert np.std(np.concatenate(noise)) == pytest.approx(release.scale, rel=0.04)


def test_parts_of_the_budget_change_the_noise_of_perturbed_distances():
    for index, task in enumerate(["clipped_column_sums", "landmark_attraction", "landmark_distances"]):
        split = tuple(20 if part == index else 1 for part in range(3))
        rounds, _ = local("distances", budget_split=split)
        shares = {round_.task: round_.releases[0].noise_multiplier for round_ in rounds if any(round_.releases)}
        for repeated in ("clipped_column_sums", "landmark_attraction"):
            shares[repeated] /= 2
        assert min(shares, key=shares.get) == task


def test_perturbed_distances_without_a_round_of_landmarks_are_covered_too():
    report = local("distances", n_rounds=0)[1].privacy
    assert report.covers_everything
    assert 0.98 * 5.0 <= report.epsilon <= 5.0 * ALLOWANCE


# Noise that protects nothing


@pytest.mark.parametrize("perturb", ["gradients", "landmarks"])
def test_noise_on_the_landmarks_gives_the_run_no_guarantee_and_a_note_says_why(perturb):
    rounds, result = local(perturb)
    report = result.privacy
    released = [release for round_ in rounds for release in round_.releases if release is not None]
    assert {message.task for message in report.releases} == {"clipped_column_sums", "landmark_attraction"}
    assert report.epsilon == pytest.approx(epsilon_composed(released, 1e-6), rel=1e-3)
    assert not report.covers_everything
    assert {message.task for message in report.unprotected} == {"landmark_distances"}
    assert "The run as a whole has NO such guarantee" in report.guarantee()
    (note,) = (note for note in report.notes if "The server can read the rows" in note)
    assert "Noise on the landmarks changes nothing of that" in note


@pytest.mark.parametrize("perturb", ["data", "gradients", "landmarks", "distances"])
def test_relative_noise_has_no_epsilon(perturb):
    report = rounds_of(perturb=perturb, relative_noise=0.2)[1].privacy
    assert report.epsilon == float("inf")
    assert report.releases == []
    assert not report.covers_everything
    assert report.guarantee().startswith("None.")
    assert report.to_dict()["epsilon"] is None
    assert any("The noise is relative to the spread" in note and "no epsilon" in note for note in report.notes)
    assert {"landmark_distances", "landmark_steps"} <= {message.task for message in report.unprotected}


def test_relative_noise_is_on_what_it_is_said_to_be_on():
    rounds_of(n_rounds=1)
    exact = {(task, name): sent for task, name, _, sent, _ in WatchedClient.log}
    for perturb, task in (("landmarks", "landmark_steps"), ("distances", "landmark_distances")):
        rounds_of(n_rounds=1, perturb=perturb, relative_noise=0.5)
        noisy = {(task, name): sent for task, name, _, sent, _ in WatchedClient.log}
        for name in "0123":
            moved = noisy[task, name][0] - exact[task, name][0]
            assert moved.std() == pytest.approx(0.5 * exact[task, name][0].std(), rel=0.15)
        if perturb == "distances":
            assert np.array_equal(noisy["landmark_steps", "0"][0], exact["landmark_steps", "0"][0])
    # Gradients take noise in their own form, whatever averaging says.
    rounds, _ = rounds_of(n_rounds=1, perturb="gradients", relative_noise=0.5)
    (step,) = (round_ for round_ in rounds if round_.task == "landmark_steps")
    assert (step.arguments["averaging"], step.arguments["relative_noise"]) == ("gradients", 0.5)


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


def attacked():
    """The errors of all rows, recovered from what the server sent and received."""
    errors = []
    for task, name, parameters, sent, _ in WatchedClient.log:
        if task == "landmark_distances":
            found = rows_from_distances(parameters[0], sent[0])
            errors.append(relative_errors(found, DIGIT_CLIENTS[int(name)]))
    assert len(errors) == 4
    return np.concatenate(errors)


@pytest.mark.parametrize(
    "options",
    [{}, {"perturb": "gradients", "epsilon": 5.0, "max_norm": 4.0, "noise": "local"},
     {"perturb": "landmarks", "relative_noise": 1.0}],
    ids=["plain", "gradients with epsilon", "landmarks with noise"],
)  # fmt: skip
def test_rows_are_recovered_from_what_the_server_receives(options):
    rounds_of(**WIDE, **options)
    assert attacked().max() < 1e-6


@pytest.mark.parametrize("perturb", ["data", "distances"])
def test_rows_are_not_recovered_from_a_run_with_epsilon_that_covers_them(perturb):
    rounds_of(**WIDE, perturb=perturb, epsilon=5.0, max_norm=4.0, noise="local")
    assert np.median(attacked()) > 1.0


def test_attack_on_perturbed_data_finds_the_noisy_rows_and_no_more():
    rounds_of(**WIDE, perturb="data", epsilon=5.0, max_norm=4.0, noise="local")
    for task, _, parameters, sent, noisy in WatchedClient.log:
        if task == "landmark_distances":
            assert relative_errors(rows_from_distances(parameters[0], sent[0]), noisy).max() < 1e-6


def test_there_is_nothing_to_attack_where_rows_stay():
    rounds_of(**WIDE, rows="stay")
    sizes = {str(index): len(rows) for index, rows in enumerate(DIGIT_CLIENTS)}
    assert "landmark_distances" not in {task for task, *_ in WatchedClient.log}
    for _, name, _, sent, _ in WatchedClient.log:
        assert sizes[name] not in {side for array in sent for side in array.shape}


def test_what_directions_would_cost_goes_to_the_centers_where_rows_have_few_columns():
    narrow = [rows[:, :6] for rows in CLIENTS]
    result = simulate(FedTSNE(3, rows="stay", epsilon=2.0, max_norm=MAX_NORM, **FAST), narrow, seed=0)
    assert not any("outer products" in message.content for message in result.privacy.messages)
    assert 0.8 * 2.0 <= result.privacy.epsilon <= 2.0

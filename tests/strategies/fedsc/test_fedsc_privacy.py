"""The privacy of FedSC and FedSCSums: what a row can change, what the report says, what the server knows."""

import dataclasses

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from watching import watched

from flower_fedclust.engine import ClientData
from flower_fedclust.engine.replies import values_of
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import triangle_to_symmetric
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.fedsc import FedSC, FedSCSums, FedSCSumsClient

ALLOWANCE = 1 + 1e-9
MAX_NORM = 8.0
MEANS = np.array([[6.0, 0, 0], [-3, 5.2, 0], [-3, -5.2, 0]])
CLASSES = np.arange(160) % 3
ROWS = MEANS[CLASSES] + np.random.default_rng(0).normal(size=(160, 3)) * 0.5
CLIENTS = np.split(ROWS, [31, 62, 109])


def run_of(strategy_type=FedSC, clients=CLIENTS, n_clusters=3, **options):
    """Return the rounds, the result and the messages of a run."""
    strategy, rounds, messages = watched(strategy_type)
    return rounds, simulate(strategy(n_clusters, **options), clients, seed=0), messages


def rounds_of(strategy_type, **options):
    return run_of(strategy_type, **options)[:2]


def reply_to(client_type, round_, rows, **replaced):
    """What a client with these rows would answer, or 0 if it had none."""
    if len(rows) == 0:
        return [
            0.0 * array
            for array in reply_to(client_type, round_, np.zeros((1, rows.shape[1])), **replaced)
        ]
    question = round_.question_for(None)
    question = dataclasses.replace(question, arguments=dict(question.arguments) | replaced)
    reply = round_.asks.reply_of(client_type(ClientData(rows), name="0"), question)
    reply = [reply] if isinstance(reply, GridArray) else list(reply)
    assert len(reply) == len(round_.answer.sends) == len(round_.releases)
    return values_of(reply)


def length(array, release):
    if release.triangle:  # entries off the diagonal count twice
        array = triangle_to_symmetric(array)
    return np.linalg.norm(array) if release.norm == "L2" else np.abs(array).sum()


def epsilon_composed(releases, delta):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    for release in releases:
        multiplier = release.noise_multiplier
        gaussian = release.mechanism == "gaussian"
        accountant.compose(
            dp_accounting.GaussianDpEvent(multiplier)
            if gaussian
            else dp_accounting.LaplaceDpEvent(multiplier)
        )
    return accountant.get_epsilon(delta)


def sigma_of(epsilon, delta):
    """The noise multiplier of one Gaussian mechanism, from its privacy curve."""
    return dp_accounting.get_sigma_gaussian(epsilon, delta)


# Perturbed data


def test_plain_run_says_that_the_server_can_read_the_rows():
    report = rounds_of(FedSC, n_rounds=1)[1].privacy
    assert any(
        "The server can read the rows" in note and "Nothing is hidden" in note
        for note in report.notes
    )
    assert not report.covers_everything
    (codes,) = (message for message in report.unprotected if message.task == "codes")
    assert codes.detail == "one per row"
    # Where nothing is promised, a number of rows is one more thing that is not protected.
    assert "number of rows" in {message.content for message in report.unprotected}


# FedSCSums

SUMS = {
    "plain": {},
    "rounds": {"n_rounds": 2, "n_lloyd_rounds": 2},
    "floor": {"degree_floor": 0.05},
}


@pytest.fixture(scope="module")
def sum_rounds():
    made = {}

    def get(option):
        if option not in made:
            made[option] = rounds_of(FedSCSums, epsilon=4.0, max_norm=MAX_NORM, **SUMS[option])
        return made[option]

    return get


def test_releases_of_sums_have_the_sensitivities_of_a_row_that_is_added(sum_rounds):
    for option in SUMS:
        rounds, _ = sum_rounds(option)
        declared = {
            round_.task: [release.sensitivity for release in round_.releases] for round_ in rounds
        }
        assert declared["clipped_column_sums"] == pytest.approx([MAX_NORM, MAX_NORM**2, 1.0])
        assert declared["factor_sum"] == pytest.approx([1.0])
        moment = next(round_ for round_ in rounds if round_.task == "normalized_moment")
        assert declared["normalized_moment"] == [
            pytest.approx(1 / moment.question.arguments["floor"])
        ]
        assert declared["cluster_sums"] == pytest.approx([1.0, 1.0])
        for step in rounds:
            if step.task == "clipped_gradient":
                assert step.releases[0].sensitivity == pytest.approx(
                    step.question.arguments["bound"]
                )


def test_sensitivities_of_sums_are_no_larger_than_they_have_to_be(sum_rounds):
    rounds, _ = sum_rounds("plain")
    by_task = {round_.task: round_ for round_ in rounds}
    moments = by_task["clipped_column_sums"]
    for array, release in zip(
        reply_to(FedSCSumsClient, moments, np.eye(3)[:1] * 1e9), moments.releases, strict=True
    ):
        assert length(array, release) == pytest.approx(release.sensitivity)
    total = by_task["factor_sum"]
    atom = total.question.arrays[0][:1]
    (found,) = reply_to(FedSCSumsClient, total, atom)
    assert length(found, total.releases[0]) > 0.9 * total.releases[0].sensitivity
    moment = by_task["normalized_moment"]
    Z, to_factors, total = moment.question.arrays
    low = dataclasses.replace(moment.question, arrays=(Z, to_factors, -total))
    (found,) = reply_to(FedSCSumsClient, dataclasses.replace(moment, question=low), atom)
    assert length(found, moment.releases[0]) > 0.85 * moment.releases[0].sensitivity
    cells = by_task["cluster_sums"]
    for array, release in zip(
        reply_to(FedSCSumsClient, cells, ROWS[:1]), cells.releases, strict=True
    ):
        assert length(array, release) == pytest.approx(release.sensitivity)

"""The maps and Fed-SpeClust with the paper's noise: what a row can change, and what the report says."""

import math

import dp_accounting
import numpy as np
import pytest
from test_maps_privacy import (
    ALLOWANCE,
    MAX_NORM,
    WIDE,
    attacked,
    odd_rows,
    released,
    reply_to,
    rounds_of,
    share_of,
)
from test_maps_speclust import CLIENTS as SPECLUST_CLIENTS
from test_maps_speclust import SMALL

from flower_fedclust import ClientData, simulate
from flower_fedclust.numerics.landmarks import longest_attraction
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.strategies.maps.maps import FedTSNE
from flower_fedclust_papers.maps_perturbed import (
    FedSpeClustPerturbed,
    FedTSNEPerturbed,
    FedUMAPPerturbed,
    PerturbedMapClient,
    kernel_values_apart,
)
from flower_fedclust_papers.perturbed_rows import NOISY_ROWS
from reproduce import attacks

NOISE = {"epsilon": 1.0, "max_norm": 1.0}
RELATIVE = {"relative_noise": 0.1}


def local(perturb, epsilon=5.0, **options):
    return rounds_of(
        FedTSNEPerturbed, perturb=perturb, epsilon=epsilon, max_norm=MAX_NORM, **options
    )


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
    assert release.noise_multiplier == pytest.approx(
        dp_accounting.get_sigma_gaussian(3.0, 1e-5), rel=2e-3
    )
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
    assert [release and release.relation for release in moments.releases] == [
        "replace",
        "replace",
        None,
    ]
    assert attraction.releases[0].sensitivity == pytest.approx(
        2 * longest_attraction(attraction.question.arguments["gamma"], 30)
    )
    assert distances.releases[0].sensitivity == pytest.approx(2 * MAX_NORM * math.sqrt(30))
    farthest = {}
    for seed in range(30):
        rows = odd_rows(5, seed)
        replaced = np.vstack([odd_rows(1, seed + 1000), rows[1:]])
        for round_ in (moments, attraction, distances):
            replies = [reply_to(round_, side, PerturbedMapClient) for side in (rows, replaced)]
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
        for axis in (
            np.eye(25)[:1],
            np.full((1, 25), 0.2),
            np.eye(25)[:1] + np.linspace(0.0, 0.1, 25),
        ):
            clients = [
                PerturbedMapClient(ClientData(sign * axis * 1e9), name="0") for sign in (1.0, -1.0)
            ]
            landmarks = np.tile(axis * far, (30, 1))
            one, two = (
                each.clipped_distances(landmarks, *frame, max_norm=MAX_NORM) for each in clients
            )
            assert 1 - 1e-6 < share_of(one, two, distances.releases[0]) <= 1
    assert farthest["clipped_column_sums"] > 0.25


def test_what_takes_noise_of_a_row_is_the_same_bits_whatever_rows_stand_beside_it():
    rounds, _, _ = local("distances")
    attraction, distances = rounds[1], rounds[-2]
    Y = distances.question.arrays[0]
    extreme = [np.full(25, value) for value in (5e-324, -1e-310, 1e-300, 1.7e308, -1e300)]
    rows = np.vstack([odd_rows(40, 0), *extreme, 0.5 * (Y[0] + Y[1]), Y[0]])
    together = reply_to(distances, rows, PerturbedMapClient)[0]
    alone = [reply_to(distances, row[None], PerturbedMapClient)[0].integers for row in rows]
    assert np.array_equal(together.integers, np.concatenate(alone))
    # Whose norms do not overflow.
    within = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True) / MAX_NORM, 1.0)
    clipped = within * np.minimum(
        1.0, MAX_NORM / np.linalg.norm(within, axis=1, keepdims=True).clip(1e-300)
    )
    np.testing.assert_allclose(
        together.values, np.linalg.norm(clipped[:, None] - Y[None], axis=2), atol=1e-4
    )
    total = reply_to(attraction, rows, PerturbedMapClient)[0].integers
    assert np.array_equal(
        total, sum(reply_to(attraction, row[None], PerturbedMapClient)[0].integers for row in rows)
    )


# Noise that protects nothing


@pytest.mark.parametrize("perturb", ["gradients", "landmarks"])
def test_noise_on_the_landmarks_gives_the_run_no_guarantee_and_a_note_says_why(perturb):
    rounds, result, _ = local(perturb)
    report = result.privacy
    assert {message.task for message in report.releases} == {
        "clipped_column_sums",
        "landmark_attraction",
    }
    assert report.composed_epsilon == pytest.approx(
        composed_epsilon(released(rounds), 1e-6), rel=1e-3
    )
    assert not report.covers_everything
    assert {message.task for message in report.unprotected} == {"landmark_distances"}
    assert "The run as a whole has NO such guarantee" in report.guarantee()
    (note,) = (note for note in report.notes if "The server can read the rows" in note)
    assert "Noise on the landmarks changes nothing of that" in note


def test_relative_noise_is_on_what_it_is_said_to_be_on():
    def sent_of(kind=FedTSNEPerturbed, **options):
        rounds, _, log = rounds_of(kind, n_rounds=1, **options)
        sent_by = {(task, name): sent[0] for task, name, _, sent, *_ in log if sent}
        for task, name, got, sent, *_ in log:
            if task == "landmark_steps":
                # The landmarks, of whose deviation the noise is, less where they were: in units of the radius.
                sent_by[task, name] = got[0] + got[1] / got[2][0] + sent[0]
        return rounds, sent_by

    _, exact = sent_of(FedTSNE)
    exact |= {("noisy_distances", name): exact["landmark_distances", name] for name in "0123"}
    for perturb, task in (("landmarks", "landmark_steps"), ("distances", "noisy_distances")):
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


@pytest.mark.parametrize(
    "options",
    [
        {"perturb": "gradients", "epsilon": 5.0, "max_norm": 4.0},
        {"perturb": "landmarks", "relative_noise": 1.0},
    ],
    ids=["gradients with epsilon", "landmarks with noise"],
)
def test_rows_are_recovered_from_what_the_server_receives(options):
    assert attacked(rounds_of(FedTSNEPerturbed, **WIDE, **options)[2]).max() < 1e-6


@pytest.mark.parametrize("perturb", ["data", "distances"])
def test_rows_are_not_recovered_from_a_run_with_epsilon_that_covers_them(perturb):
    _, _, log = rounds_of(FedTSNEPerturbed, **WIDE, perturb=perturb, epsilon=5.0, max_norm=4.0)
    assert np.median(attacked(log)) > 1.0
    for task, _, parameters, sent, kept, _ in log:
        if perturb == "data" and task == "landmark_distances":
            # The attack finds the noisy rows, and no more.
            assert (
                attacks.relative_errors(
                    attacks.rows_from_distances(parameters[0], sent[0]), kept[NOISY_ROWS]
                ).max()
                < 1e-6
            )


# Fed-SpeClust


def test_noise_on_kernel_values_covers_the_run_and_on_gradients_it_does_not():
    budget = {"epsilon": 5.0, "max_norm": 8.0}
    protected = simulate(
        FedSpeClustPerturbed(3, perturb="kernel", **budget, **SMALL), SPECLUST_CLIENTS
    ).privacy
    assert protected.covers_everything
    assert protected.relation == "replace"
    partly = simulate(
        FedSpeClustPerturbed(3, perturb="gradients", **budget, **SMALL), SPECLUST_CLIENTS
    ).privacy
    assert not partly.covers_everything
    assert "NO such guarantee" in partly.guarantee()


def test_kernel_values_of_two_rows_on_landmarks_far_apart_are_no_farther_apart_than_is_declared():
    W = np.eye(4)  # a row on a landmark has the kernel values of a row of W
    assert kernel_values_apart(W) == pytest.approx(np.linalg.norm(W[0] - W[1]), rel=1e-6)


def test_a_model_of_noisy_rows_puts_the_rows_of_its_run_elsewhere_and_a_doubt_says_so():
    strategy = FedSpeClustPerturbed(3, epsilon=1.0, max_norm=9.0, n_rounds=2)
    rows = [np.random.default_rng(seed).normal(size=(40, 3)) for seed in range(2)]
    assert [doubt.code for doubt in simulate(strategy, rows, seed=0).doubts] == [
        "predicts-otherwise"
    ]


# Parameters

BAD = [
    (FedSpeClustPerturbed, {"perturb": "distances"} | NOISE, "perturb"),
    (FedSpeClustPerturbed, {}, "noise level"),
    *(
        (FedTSNEPerturbed, {"perturb": perturb}, "perturb")
        for perturb in ("data", "landmarks", "gradients", "distances")
    ),
    (FedTSNEPerturbed, {"perturb": "kernel"} | NOISE, "perturb"),
    (FedTSNEPerturbed, {"perturb": "landmarks", "averaging": "gradients"} | RELATIVE, "averaging"),
    (FedTSNEPerturbed, {"perturb": "landmarks", "averaging": "gradients"} | NOISE, "averaging"),
    (FedTSNEPerturbed, {"perturb": "landmarks", "n_rounds": 0} | RELATIVE, "n_rounds"),
    (FedTSNEPerturbed, {"perturb": "gradients", "n_rounds": 0} | NOISE, "n_rounds"),
    (FedUMAPPerturbed, RELATIVE | NOISE, "relative_noise"),
    (FedTSNEPerturbed, {"epsilon": 1.0}, "max_norm"),
]


@pytest.mark.parametrize(
    ("kind", "options", "name"), BAD, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_wrong_parameter_is_named(kind, options, name):
    with pytest.raises(ValueError, match=name):
        kind(3, **options).check_complete()

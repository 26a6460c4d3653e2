"""The privacy of DP-FedC: what a row can change, what the report says, what noise is added, which rows are drawn."""

import json
import math
from collections import Counter
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.checking import watched_run
from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.wire import received_arrays
from flower_fedclust.exact.factorization import Penalties, membership_step_divisor
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.dp_fedc import DPFedC, DPFedCClient

ALLOWANCE = 1 + 1e-9
MAX_NORM = 10.0
MEANS = np.array([[9.0, 0, 1, 0], [0, 9, 0, 1], [0, 0, 6, 6]])
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(3, size=150)
ROWS = np.abs(MEANS[CLASSES] + RNG.normal(size=(150, 4)))
CUTS = [20, 55, 90, 130]
CLIENTS = np.split(ROWS, CUTS)
PRIVATE = {"epsilon": 8.0, "max_norm": MAX_NORM}


def run_of(strategy, clients=CLIENTS, seed=0):
    """A run of which every message is kept, and its rounds after those that ask for numbers of rows."""
    run = watched_run(
        strategy, {str(index): ClientData(rows) for index, rows in enumerate(clients)}, seed=seed
    )
    rounds = [
        (round_, run.received[number])
        for number, round_ in run.rounds.items()
        if round_.task != "row_count"
    ]
    return rounds, run.result


def rounds_of(clients=CLIENTS, seed=0, **options):
    return run_of(DPFedC(3, **(PRIVATE | options)), clients, seed)


def reply_to(task, rows, W, local, kind=DPFedCClient):
    """What a client with these rows answers, before any noise."""
    client = kind(
        ClientData(rows), name="0", context=Context(0, 0, {}, RecordDict(), {}), noise_seed=7
    )
    divisor = (
        membership_step_divisor(W, Penalties(local["rho"], local["mu_h"]))
        if "gradient" in task
        else 0.0
    )
    arguments = json.dumps(local | {"divisor": divisor})
    sent, _, facts = client.fit([W], {"task": task, "round": 2, "arguments": arguments})
    assert "failure" not in facts, facts
    return received_arrays(sent, facts)


def told(**options):
    """What a client is told in a round for the sum of its clipped gradients."""
    return {
        "rho": 0.0, "mu_h": 0.0, "mu_w": 0.0, "n_membership_steps": 10, "random_state": 5, "max_norm": MAX_NORM,
        "max_gradient_norm": MAX_NORM / 2,
    } | options  # fmt: skip


def gaussians_composed(multipliers, delta, step=1e-4):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, step)
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    return accountant.get_epsilon(delta)


# What a row can change


def moved_by_replacing(task, rows, other, W, local, kind=DPFedCClient):
    """The squares of the norms of the differences, as fractions: exactly."""
    replaced = np.vstack([other, rows[1:]])
    return [
        squared_norm(one, two)
        for one, two in zip(
            reply_to(task, rows, W, local, kind),
            reply_to(task, replaced, W, local, kind),
            strict=True,
        )
    ]


def squared_norm(one, two):
    """The square of the norm of a difference; of a vector that is a triangle, that of the matrix."""
    difference = np.asarray(one.integers - two.integers, dtype=object).ravel()
    weights = (
        1
        if one.integers.ndim == 2
        else 1 + is_off_diagonal(math.isqrt(2 * len(difference))).astype(object)
    )
    return Fraction(4) ** one.exponent * int((weights * difference**2).sum())


@st.composite
def attacks(draw):
    """Rows, the row that takes the place of the first, centers, and what the client is told of the round."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, k = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    rows = rng.normal(size=(n, 3)) * 10.0 ** draw(st.integers(-2, 4))
    other = rng.normal(size=(1, 3)) * 10.0 ** draw(st.integers(-2, 12))
    W = rng.normal(size=(k, 3)) * 10.0 ** draw(st.integers(-2, 3))
    if draw(st.booleans()):
        rows, other, W = np.abs(rows), np.abs(other), np.abs(W)
    unit = float(np.mean(np.sum(W**2, axis=1)))
    local = told(
        rho=unit * draw(st.sampled_from([0.0, 0.4, 3.0])),
        mu_h=unit * draw(st.sampled_from([0.0, 1e-3, 1.0])),
        n_membership_steps=draw(st.sampled_from([1, 10, 100])),
        max_gradient_norm=10.0 ** draw(st.integers(-2, 1)),
    )
    return rows, other, W, local


@settings(deadline=None, max_examples=60)
@given(attacks())
def test_a_row_that_is_replaced_moves_the_two_sums_by_their_sensitivities_at_most(case):
    rows, other, W, local = case
    of_gradients, of_products = moved_by_replacing("clipped_gradient", rows, other, W, local)
    assert of_gradients <= 4 * Fraction(local["max_gradient_norm"]) ** 2
    assert of_products <= 2


def worst_row(task, W, local, candidates, kind=DPFedCClient):
    """The farthest that one row in another's place moves each array, from any of some first memberships."""
    distances = []
    for random_state in range(10):
        replies = [
            reply_to(task, row[None], W, local | {"random_state": random_state}, kind)
            for row in candidates
        ]
        distances += [
            [math.sqrt(squared_norm(a, b)) for a, b in zip(one, two, strict=True)]
            for one in replies
            for two in replies
        ]
    return np.max(distances, axis=0)


def test_the_worst_row_comes_near_the_sensitivities():
    # Centers that lie along the axes, one axis with many, so that a step on H is short and memberships stay.
    axes = np.eye(3)
    candidates = [sign * MAX_NORM * axis for axis in axes for sign in (1.0, -1.0)]
    many = np.vstack([axes[:1], np.repeat(axes[1:2], 9, axis=0)]) * MAX_NORM
    local = told(n_membership_steps=1, max_gradient_norm=MAX_NORM / 2)
    of_gradients, _ = worst_row("clipped_gradient", many, local, candidates)
    assert 0.8 * MAX_NORM <= of_gradients <= MAX_NORM * ALLOWANCE
    _, of_products = worst_row(
        "clipped_gradient", axes * MAX_NORM, told(n_membership_steps=50), candidates
    )
    assert 0.8 * math.sqrt(2) <= of_products <= math.sqrt(2) * ALLOWANCE


def test_rows_are_clipped_before_anything_else():
    rows = ROWS * 3.0
    one, two = (
        reply_to("clipped_gradient", each, MEANS, told())
        for each in (rows, clip_rows(rows, MAX_NORM))
    )
    for first, second in zip(one, two, strict=True):
        np.testing.assert_allclose(first.values, second.values, rtol=1e-6, atol=1e-6)


def test_declared_sensitivities_are_those_of_what_the_clients_are_told():
    for options, bound in (({}, MAX_NORM / 2), ({"max_gradient_norm": 0.7}, 0.7)):
        ((round_, _),), _ = rounds_of(n_rounds=1, **options)
        gradients, products = round_.releases
        assert round_.question.arguments["max_gradient_norm"] == bound
        assert round_.question.arguments["max_norm"] == MAX_NORM
        assert gradients.sensitivity == pytest.approx(2 * bound)
        assert products.sensitivity == pytest.approx(math.sqrt(2))
        assert {gradients.mechanism, products.mechanism} == {"gaussian"}
        assert {gradients.relation, products.relation} == {"replace"}


def test_no_rows_are_counted_as_the_noise_does_not_depend_on_how_many_there_are():
    _, result = rounds_of(n_rounds=2)
    assert not any(message.counts_rows for message in result.privacy.messages)
    assert {message.task for message in result.privacy.messages} == {"enrol", "clipped_gradient"}


# The report


@pytest.mark.parametrize(
    ("epsilon", "delta", "options", "most"),
    [
        (1.0, 1e-6, {"n_rounds": 7, "fraction_fit": 0.4}, 3),
        (6.0, 1e-4, {"n_rounds": 5, "fraction_fit": 0.6, "budget": {"products": 0.5}}, 3),
        (4.0, 1e-6, {"n_rounds": 4, "fraction_fit": 1.0}, 4),
    ],
)
def test_epsilon_is_composed_over_the_rounds_for_which_a_client_is_drawn(
    epsilon, delta, options, most
):
    seen, result = rounds_of(epsilon=epsilon, delta=delta, **options)
    drawn = Counter(row.client for row in result.traffic if row.task == "clipped_gradient")
    assert max(drawn.values()) == most
    gradients, products = seen[0][0].releases
    assert all(tuple(round_.releases) == (gradients, products) for round_, _ in seen)
    own = gaussians_composed([gradients.noise_multiplier, products.noise_multiplier] * most, delta)
    report = result.privacy
    assert report.composed_epsilon == pytest.approx(own, rel=2e-3)
    assert 0.99 * epsilon <= report.composed_epsilon <= epsilon * ALLOWANCE
    assert (report.requested_epsilon, report.delta, report.unit) == (epsilon, delta, "record")
    assert report.relation == "replace"
    assert report.covers_everything
    assert report.unprotected == []


def test_a_strategy_that_knows_no_clients_yet_expects_one_to_be_drawn_in_every_round():
    shares = DPFedC(3, n_rounds=7, **PRIVATE).shares()
    assert {name: (share.count, share.fraction) for name, share in shares.items()} == {
        "gradients": (7, 0.9),
        "products": (7, 0.1),
    }


# The noise


def test_centers_stay_as_short_as_rows_whatever_the_noise():
    seen, _ = rounds_of(n_rounds=6, epsilon=0.01)
    for round_, _ in seen:
        assert (np.linalg.norm(round_.question.arrays[0], axis=1) <= MAX_NORM * ALLOWANCE).all()


def test_first_centers_are_as_long_as_rows_may_be():
    seen, _ = rounds_of(n_rounds=1)
    W = seen[0][0].question.arrays[0]
    np.testing.assert_allclose(np.linalg.norm(W, axis=1), MAX_NORM)
    assert (W > 0).all()


def test_step_of_the_server_is_the_gradient_over_the_eigenvalue_of_the_products():
    seen, result = rounds_of(n_rounds=1, epsilon=50.0, step_scale=3.0)
    ((round_, (gradient, products)),) = seen
    matrix = np.zeros((3, 3))
    matrix[np.triu_indices(3)] = products
    matrix = matrix + np.triu(matrix, 1).T
    eta = 3.0 * np.linalg.eigvalsh(matrix)[-1]
    W = round_.question.arrays[0]
    expected = clip_rows(W - gradient / eta, MAX_NORM)
    np.testing.assert_allclose(result.model.components_, expected, rtol=1e-10)


# How good the clusters are


def test_digits_are_clustered_far_better_than_by_chance_at_epsilon_20():
    # Ten classes.
    table = load_dataset("digits")
    rows = partition(table, "iid", n_clients=10, random_state=0)
    strategy = DPFedC(10, n_rounds=15, epsilon=20.0, max_norm=4.0)
    result = simulate(strategy, rows.clients, labels=rows.labels, seed=0)
    assert result.metrics["accuracy"] >= 0.35

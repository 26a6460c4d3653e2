"""Stage I of FedSC against Algorithm 1 written out, and what its noisy form releases."""

import math
from typing import Any

import numpy as np
import pytest

from flower_fedclust.engine import ClientData, DataError, Outcome, Total, parameter
from flower_fedclust.exact.exponents import exponent_indicator
from flower_fedclust.models import KMeansModel
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.fedsc import (
    DictionaryClient,
    DictionaryStrategy,
    n_atoms_of,
    n_large_eigenvalues,
)

RNG = np.random.default_rng(8)
CLIENTS = [
    RNG.normal(size=(n, 2)) + center
    for n, center in ((12, 0.0), (5, 3.0), (20, [0, 4.0]), (9, -2.0))
]
OPTIONS = {
    "n_clusters": 2,
    "n_atoms": 4,
    "regularization": 0.05,
    "n_rounds": 3,
    "n_local_steps": 3,
    "tol": 0.0,
}
RELATIONS = ("add-or-remove", "replace")


class Learning(DictionaryStrategy):
    """Learns a dictionary and keeps it in the model."""

    client_type = DictionaryClient
    n_protocol_rounds = 200

    relative_noise: float = parameter(0.0)
    relation: str = parameter("")  # with noise
    multipliers: Any = parameter((0.0, 0.0))  # of the moments, and of the steps

    @property
    def has_noisy_dictionary(self):
        return self.relation != ""

    def parts(self):
        return self.dictionary_parts(1.0, 1.0, replaced=self.relation == "replace")

    def noise_multipliers(self, shares=None):
        return {name: self.multipliers[name == "dictionary_steps"] for name in shares}

    def protocol(self):
        model = KMeansModel(np.zeros((1, 2)))
        model.found, _, model.objectives = yield from self.learn_dictionary(
            relative_noise=self.relative_noise
        )
        return Outcome(model)


def learning(**options):
    return Learning(**({"random_state": 7} | OPTIONS | options))


def learned(clients=CLIENTS, **options):
    return simulate(learning(**options), clients).model


def stepped(seed, **options):
    """A strategy outside of any run."""

    class Stepped(Learning):
        rng = np.random.default_rng(seed)
        n_columns = 2

    return Stepped(**(OPTIONS | options))


# Algorithm 1 written out.


def kernel(X, Y, r):
    return np.array([[math.exp(-((x - y) ** 2).sum() / (2 * r**2)) for y in Y] for x in X])


def slow_codes(X, Z, r, regularization):
    return kernel(X, Z, r) @ np.linalg.inv(kernel(Z, Z, r) + regularization * np.eye(len(Z)))


def slow_objective(X, Z, C, r, regularization):
    """Half of ||phi(x) - phi(Z) c||^2 + lambda ||c||^2, summed over the rows."""
    Kxz, Kzz = kernel(X, Z, r), kernel(Z, Z, r)
    return sum(
        0.5 * (1 - 2 * c @ k + c @ Kzz @ c) + 0.5 * regularization * c @ c
        for c, k in zip(C, Kxz, strict=True)
    )


def slow_gradient(X, Z, C, r):
    """The derivative of the objective by each atom, term by term."""
    found = np.zeros_like(Z)
    for x, c in zip(X, C, strict=True):
        for j, z in enumerate(Z):
            found[j] -= c[j] * math.exp(-((x - z) ** 2).sum() / (2 * r**2)) * (x - z) / r**2
            for k, other in enumerate(Z):
                found[j] += (
                    c[j]
                    * c[k]
                    * math.exp(-((z - other) ** 2).sum() / (2 * r**2))
                    * (other - z)
                    / r**2
                )
    return found


def slow_curvature(X, Z, C, r):
    steepest = 2 * math.exp(-1.5)
    Kxz, Kzz, gram = kernel(X, Z, r), kernel(Z, Z, r), C.T @ C
    found = np.zeros(len(Z))
    for j in range(len(Z)):
        for i in range(len(X)):
            found[j] += C[i, j] * Kxz[i, j] if C[i, j] > 0 else steepest * -C[i, j]
        for k in range(len(Z)):
            if k != j:
                found[j] += 2 * (
                    -gram[j, k] * Kzz[j, k] if gram[j, k] < 0 else steepest * gram[j, k]
                )
    return found / r**2


def slow_client(X, Z, r, options):
    C = slow_codes(X, Z, r, options.regularization)
    value = slow_objective(X, Z, C, r, options.regularization)
    for _ in range(options.n_local_steps):
        Z = Z - slow_gradient(X, Z, C, r) / slow_curvature(X, Z, C, r)[:, None]
    return Z, value


def algorithm_1(options, clients, seed, answering=lambda number, drawn: drawn):
    rng = np.random.default_rng(seed)
    pooled = np.concatenate(clients)
    r = options.bandwidth
    if r is None:
        r = np.mean([np.mean([np.linalg.norm(x - y) for x in X for y in X]) for X in clients])
    Z = pooled.mean(axis=0) + pooled.std(axis=0) * rng.standard_normal(
        (options.n_atoms, pooled.shape[1])
    )
    objectives = []
    for number in range(options.n_rounds):
        drawn = list(range(len(clients)))
        if options.fraction_fit < 1:
            size = max(2, round(options.fraction_fit * len(clients)))
            drawn = sorted(rng.choice(len(clients), size=size, replace=False).tolist())
        drawn = answering(number, drawn)
        found = [slow_client(clients[index], Z, r, options) for index in drawn]
        former, Z = Z, np.mean([own for own, _ in found], axis=0)
        objectives.append(
            sum(value for _, value in found) / sum(len(clients[index]) for index in drawn)
        )
        if max(np.linalg.norm(Z - former, axis=1)) <= options.tol * r:
            break
    return Z, r, objectives


def assert_same(found, expected):
    Z, r, objectives = expected
    np.testing.assert_allclose(found.found.atoms, Z, rtol=1e-6, atol=1e-5)
    assert found.found.bandwidth == pytest.approx(r, rel=1e-6)
    np.testing.assert_allclose(found.objectives, objectives, rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_local_steps": 1},
        {"bandwidth": 1.5},
        {"fraction_fit": 0.5, "n_rounds": 6},
        {"fraction_fit": 0.75, "n_rounds": 4},
        {"fraction_fit": 0.01},
        {"tol": 0.05, "n_rounds": 60},
        {"n_rounds": 0},
        {"n_atoms": 1},
        {"regularization": 1.0},
    ],
    ids=str,
)
def test_dictionary_is_that_of_algorithm_1(changes):
    assert_same(learned(**changes), algorithm_1(learning(**changes), CLIENTS, 7))


def test_rows_that_differ_between_clients_only_ask_for_a_bandwidth():
    constant = [np.ones((3, 2)), np.zeros((4, 2))]
    with pytest.raises(DataError, match="bandwidth"):
        learned(constant)
    assert_same(learned(constant, bandwidth=1.5), algorithm_1(learning(bandwidth=1.5), constant, 7))


def test_every_round_is_on_the_rows_that_are_named():
    steps = stepped(0).learn_dictionary(rows="noisy rows")
    rounds = [next(steps)]
    for brought in (
        [exponent_indicator(2)],
        [np.array([4.0, 4.0]), np.array(8.0)],
        [exponent_indicator(1)],
        [np.zeros(2), np.array([8.0, 8.0]), np.array(2.0), np.array(2.0), np.array(8.0)],
        [np.full((4, 2), 6.0), np.array(24.0), np.array(8.0)],
    ):
        rounds.append(steps.send(Total(brought, 2)))
    tasks = [
        "entry_exponent",
        "column_sums",
        "reach",
        "column_spread",
        "dictionary_steps",
        "dictionary_steps",
    ]
    assert [round_.task for round_ in rounds] == tasks
    assert {round_.rows for round_ in rounds} == {"noisy rows"}
    assert rounds[4].question.arguments == {
        "bandwidth": 1.0,
        "regularization": 0.05,
        "n_steps": 3,
        "relative_noise": 0.0,
    }
    assert np.array_equal(rounds[5].question.arrays[0], np.full((4, 2), 3.0))


# The number of atoms.


@pytest.mark.parametrize(
    ("given", "n_clusters", "n_rows", "n_columns", "expected"),
    [
        (None, 3, 1000, 100, 50),  # at most 50 by the spectrum
        (None, 3, 1000, 1, 30),  # ten for each cluster
        (None, 10, 1000, 100, 100),  # more than 50 only for more clusters
        (None, 10, 150, 100, 75),  # half of the rows
        (None, 10, -300.0, 100, 10),  # one for each cluster
        (7, 3, 1000, 100, 7),  # the given number
        (2000, 3, 1000.9, 100, 1000),  # at most the number of rows
        (20, 10, -5.0, 100, 10),
    ],
)
def test_number_of_atoms(given, n_clusters, n_rows, n_columns, expected):
    # The mean distance of rows in so many columns is one bandwidth.
    deviation = np.full(n_columns, 1.0 / np.sqrt(2.0 * n_columns))
    assert n_atoms_of(given, n_clusters, n_rows, deviation) == expected


def test_number_of_large_eigenvalues_is_that_of_a_slow_sum():
    deviation = np.array([0.5, 0.4, 0.3])
    rows = deviation * np.random.default_rng(0).standard_normal((512, 3))
    kernel = np.array([[np.exp(-0.5 * np.sum((a - b) ** 2)) for a in rows] for b in rows])
    values = sorted(np.linalg.eigvalsh(kernel), reverse=True)
    n = next(n for n in range(1, 513) if sum(values[:n]) >= 0.99 * sum(values))
    assert n_large_eigenvalues(deviation) == n
    assert n_large_eigenvalues(np.zeros(3)) == 1


# With noise.


def noisy(relation="replace", max_norm=6.0, of_moments=0.0, of_steps=0.0):
    return {"relation": relation, "max_norm": max_norm, "multipliers": (of_moments, of_steps)}


def clipped(rows, max_norm):
    return np.array([row * min(1.0, max_norm / np.sqrt((row**2).sum())) for row in rows])


def slow_noisy(options, clients, seed, max_norm):
    """Without noise: a step along the sum of clipped gradients, by a length that made-up rows give."""
    rng = np.random.default_rng(seed)
    pooled = clipped(np.concatenate(clients), max_norm)
    mean, deviation = pooled.mean(axis=0), pooled.std(axis=0)
    r = np.sqrt(2 * pooled.var(axis=0).sum())
    Z = mean + deviation * rng.standard_normal((options.n_atoms, 2))
    for _ in range(options.n_rounds):
        made_up = clipped(mean + deviation * rng.standard_normal((512, 2)), max_norm)
        C = slow_codes(made_up, Z, r, options.regularization)
        gradients = [slow_gradient(x[None], Z, c[None], r) for x, c in zip(made_up, C, strict=True)]
        bound = np.median([np.linalg.norm(one) for one in gradients])
        L = slow_curvature(made_up, Z, C, r) * len(pooled) / 512
        codes = slow_codes(pooled, Z, r, options.regularization)
        step = np.zeros_like(Z)
        for x, c in zip(pooled, codes, strict=True):
            own = slow_gradient(x[None], Z, c[None], r)
            step += own * min(1.0, bound / np.linalg.norm(own))
        Z = Z - step / np.maximum(L, L.mean())[:, None]
    return Z, r


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("max_norm", [2.0, 6.0])
def test_noise_off_gives_steps_along_the_sum_of_clipped_gradients(max_norm, relation):
    options = {"n_rounds": 2} | noisy(relation, max_norm)
    model = learned(**options)
    Z, r = slow_noisy(learning(**options), CLIENTS, 7, max_norm)
    np.testing.assert_allclose(model.found.atoms, Z, rtol=1e-6, atol=1e-5)
    assert model.found.bandwidth == pytest.approx(r, rel=1e-5)
    assert model.objectives == []
    assert model.found.n_rows == 46.0


def test_how_rows_lie_is_known_to_the_server_by_the_moments_alone():
    # The bound and the length of a step come from made-up rows: the same moments, the same round.
    sent = [[np.array([2.0, 4.0]), np.array([30.0, 20.0]), np.array(20.0)] for _ in range(2)]
    rounds = []
    for reply in sent:
        steps = stepped(3, n_local_steps=9, **noisy(of_steps=1.0)).learn_dictionary()
        next(steps)
        rounds.append(steps.send(reply))
    assert rounds[0].question.arguments == rounds[1].question.arguments


@pytest.mark.parametrize("relation", RELATIONS)
def test_sensitivity_is_the_bound_and_twice_that_where_a_row_is_replaced(relation):
    strategy = stepped(3, **noisy(relation, of_moments=2.0, of_steps=3.0), epsilon=100.0)
    steps = strategy.learn_dictionary()
    moments = strategy.with_noise(next(steps))
    assert {release.noise_multiplier for release in moments.releases if release is not None} == {
        2.0
    }
    assert {release.relation for release in moments.releases if release is not None} == {relation}
    round_ = strategy.with_noise(
        steps.send([np.array([2.0, 4.0]), np.array([30.0, 20.0]), np.array(20.0)])
    )
    (release,) = round_.releases
    arguments = round_.question.arguments
    bound, max_norm = arguments["bound"], arguments["max_norm"]
    assert (release.mechanism, release.noise_multiplier, release.relation) == (
        "gaussian",
        3.0,
        relation,
    )
    assert release.sensitivity == pytest.approx(2 * bound if relation == "replace" else bound)
    assert ("one is replaced" in release.bound) == (relation == "replace")

    def sent(rows):
        (reply,) = round_.asks.reply_of(
            DictionaryClient(ClientData(rows), name="0"), round_.question
        )
        return reply.values

    rng, farthest = np.random.default_rng(0), 0.0
    for _ in range(300):
        rows = rng.normal(size=(3, 2)) * rng.choice([0.5, 3.0, 100.0])
        others = rows[1:] if relation == "add-or-remove" else np.concatenate([rows[1:], -rows[:1]])
        farthest = max(farthest, np.linalg.norm(sent(rows) - sent(others)))
    assert 0.5 * bound < farthest <= release.sensitivity
    # A row is clipped before anything is computed from it.
    assert max_norm == 6.0
    np.testing.assert_allclose(
        sent([[600.0, 800.0]]), sent([[3.6, 4.8]]), rtol=1e-5, atol=1e-6 * bound
    )


def test_no_step_is_asked_for_where_no_row_would_move_an_atom():
    # With so narrow a kernel no row is like any atom.
    steps = stepped(3, bandwidth=1e-9, **noisy()).learn_dictionary()
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send([np.array([20.0, 40.0]), np.array([60.0, 160.0]), np.array(20.0)])
    assert stop.value.value[0].bandwidth == 1e-9

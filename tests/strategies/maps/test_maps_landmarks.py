"""FedDL against Algorithm 1 written out, without noise and with it."""

import json
import math
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from flower_fedclust import ClientData, simulate
from flower_fedclust.engine import Total, parameter
from flower_fedclust.engine.wire import received_arrays
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.strategies.maps.landmarks import LandmarksClient, LandmarkStrategy

RNG = np.random.default_rng(8)
CLIENTS = [
    RNG.normal(size=(n, 2)) + center
    for n, center in ((12, 0.0), (5, 3.0), (20, [0, 4.0]), (9, -2.0))
]
OPTIONS = {
    "n_landmarks": 5,
    "gamma": None,
    "n_rounds": 4,
    "n_local_steps": 3,
    "averaging": "landmarks",
    "tol": 0.0,
    "fraction_fit": 1.0,
}
FORMS = ("landmarks", "gradients")
RELATIONS = ("add-or-remove", "replace")


class Learning(LandmarkStrategy):
    """Learns landmarks and keeps them in the model; with noise, if at all, of the multipliers that a test sets."""

    client_type = LandmarksClient
    relation = "replace"
    averaging: str = parameter("landmarks")
    relative_noise = 0.0
    multipliers = None

    @property
    def n_protocol_rounds(self):
        return self.n_landmark_rounds

    def parts(self):
        return self.landmark_parts(0.5, 0.5, replaced=self.relation == "replace")

    def noise_multipliers(self, shares=None):
        if self.multipliers is None:
            return super().noise_multipliers(shares)
        return {name: self.multipliers.get(name, 0.0) for name in shares}

    def protocol(self):
        found = yield from self.learn_landmarks(
            averaging=self.averaging, relative_noise=self.relative_noise
        )
        model = KMeansModel(np.zeros((2, 2)))
        model.found = found
        return model


def learner(strategy_type=Learning, relative_noise=0.0, **changes):
    strategy = strategy_type(2, **({"random_state": 7} | OPTIONS | changes))
    strategy.relative_noise = relative_noise
    return strategy


def noisy(relation="replace", max_norm=6.0, of_landmarks=0.0, **changes):
    strategy = learner(epsilon=100.0, max_norm=max_norm, **changes)
    strategy.relation, strategy.multipliers = relation, {"landmarks": of_landmarks}
    return strategy


def learned(strategy=None, clients=CLIENTS, **changes):
    return simulate(strategy or learner(**changes), clients).model.found


# Algorithm 1 written out.


def kernel(x, y, gamma):
    return math.exp(-gamma * ((x - y) ** 2).sum())


def pairs(points, gamma):
    n = len(points)
    if n < 2:
        return 0.0
    return sum(
        kernel(points[i], points[j], gamma) for i in range(n) for j in range(n) if i != j
    ) / (n * (n - 1))


def slow_mmd(X, Y, gamma):
    return (
        pairs(X, gamma)
        - 2 * np.mean([[kernel(x, y, gamma) for y in Y] for x in X])
        + pairs(Y, gamma)
    )


def attraction(X, Y, gamma):
    """The sum over the rows of the first term of the gradient."""
    return np.array(
        [sum(-4 * gamma / len(Y) * kernel(x, y, gamma) * (x - y) for x in X) for y in Y]
    )


def slow_gradient(X, Y, gamma):
    n_y = len(Y)
    between = [sum(kernel(other, y, gamma) * (other - y) for other in Y) for y in Y]
    return attraction(X, Y, gamma) / len(X) + 4 * gamma / (n_y * (n_y - 1)) * np.array(between)


def slow_gamma(rows):
    return 0.5 / np.mean([((x - y) ** 2).sum() for x in rows for y in rows])


def slow_client(X, Y, gamma, options):
    options = SimpleNamespace(**options)
    size, moved = options.n_landmarks / (4 * gamma), Y
    for _ in range(options.n_local_steps - (options.averaging == "gradients")):
        moved = moved - size * slow_gradient(X, moved, gamma)
    return moved if options.averaging == "landmarks" else slow_gradient(X, moved, gamma)


def algorithm_1(given, clients, seed, answering=lambda number, drawn: drawn):
    options = SimpleNamespace(**given)
    rng = np.random.default_rng(seed)
    pooled = np.concatenate(clients)
    gamma = slow_gamma(pooled) if options.gamma is None else options.gamma
    Y = pooled.mean(axis=0) + pooled.std(axis=0) * rng.standard_normal(
        (options.n_landmarks, pooled.shape[1])
    )
    mmds = []
    for number in range(options.n_rounds):
        drawn = list(range(len(clients)))
        if options.fraction_fit < 1:
            size = max(2, round(options.fraction_fit * len(clients)))
            drawn = sorted(rng.choice(len(clients), size=size, replace=False).tolist())
        drawn = answering(number, drawn)
        mmds.append(np.mean([slow_mmd(clients[index], Y, gamma) for index in drawn]))
        mean = np.mean([slow_client(clients[index], Y, gamma, given) for index in drawn], axis=0)
        former, Y = (
            Y,
            mean
            if options.averaging == "landmarks"
            else Y - options.n_landmarks / (4 * gamma) * mean,
        )
        if max(np.linalg.norm(Y - former, axis=1)) <= options.tol / math.sqrt(2 * gamma):
            break
    return Y, gamma, mmds


def assert_same(found, expected):
    Y, gamma, mmds = expected
    np.testing.assert_allclose(found.points, Y, rtol=1e-5, atol=1e-5)
    # The deviations are those of rows of 20 bits.
    assert found.gamma == pytest.approx(gamma, rel=2e-5)
    np.testing.assert_allclose(found.mmds, mmds, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("averaging", FORMS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_local_steps": 1},
        {"gamma": 0.3},
        {"fraction_fit": 0.5, "n_rounds": 6},
        {"fraction_fit": 0.75},
        {"fraction_fit": 0.01},
        {"tol": 0.2, "n_rounds": 40},
        {"n_rounds": 0},
        {"n_landmarks": 2},
    ],
    ids=str,
)
def test_landmarks_are_those_of_algorithm_1(changes, averaging):
    options = OPTIONS | {"averaging": averaging} | changes
    assert_same(learned(**options), algorithm_1(options, CLIENTS, 7))


@pytest.mark.parametrize("averaging", FORMS)
def test_one_local_step_is_the_same_in_both_forms_and_never_raises_the_mean_objective(averaging):
    options = {"n_local_steps": 1, "n_rounds": 25, "n_landmarks": 12}
    found = learned(**options, averaging=averaging)
    np.testing.assert_allclose(found.points, learned(**options).points, rtol=1e-9, atol=1e-10)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(found.mmds))
    assert found.mmds[-1] < found.mmds[0] - 1e-3


def test_a_second_run_with_another_gamma_does_not_take_the_term_of_the_first():
    from flwr.app import Context, RecordDict

    context = Context(run_id=0, node_id=1, node_config={}, state=RecordDict(), run_config={})
    client = LandmarksClient(ClientData(CLIENTS[0]), name="0", context=context)
    config = {"task": "landmark_steps", "round": 4, "n_shares": 1}
    asked = {"n_steps": 1, "averaging": "landmarks", "relative_noise": 0.0, "exponent": -30}
    for gamma in (0.1, 1.0):
        client.fit([], {"task": "enrol", "round": 1})
        given = [CLIENTS[1] / 4.0, *Frame(np.zeros(2), 4.0).arrays]
        sent, _, facts = client.fit(
            given, config | {"arguments": json.dumps(asked | {"gamma": 16.0 * gamma})}
        )
        assert "failure" not in facts
        _, discrepancy = received_arrays(sent, facts)
        assert float(discrepancy.values) == pytest.approx(slow_mmd(CLIENTS[0], CLIENTS[1], gamma))


@pytest.mark.parametrize("gamma", [1e-300, 1e-9, 1e9, 1e200])
def test_a_kernel_that_is_0_or_1_everywhere_gives_finite_landmarks(gamma):
    found = learned(gamma=gamma)
    assert np.isfinite(found.points).all()
    assert np.isfinite(found.mmds).all()


# With noise.


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("max_norm", [2.0, 6.0])
@pytest.mark.parametrize("gamma", [None, 0.2])
def test_noise_off_gives_gradient_steps_on_all_rows_pooled(gamma, max_norm, relation):
    pooled = np.concatenate(CLIENTS)
    clipped = np.array([row * min(1.0, max_norm / np.linalg.norm(row)) for row in pooled])
    expected_gamma = slow_gamma(clipped) if gamma is None else gamma
    rng = np.random.default_rng(7)
    Y = clipped.mean(axis=0) + clipped.std(axis=0) * rng.standard_normal((5, 2))
    for _ in range(4):
        Y = Y - 5 / (4 * expected_gamma) * slow_gradient(pooled, Y, expected_gamma)
    found = learned(noisy(relation, max_norm, gamma=gamma))
    # Kernel values have 18 bits, and rows and landmarks 22 of four times max_norm.
    np.testing.assert_allclose(found.points, Y, rtol=1e-4, atol=1e-4)
    assert found.gamma == pytest.approx(expected_gamma, rel=1e-4)
    assert found.mmds == ()
    assert found.n_rows == 46.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_sensitivity_is_the_longest_gradient_of_a_row_and_twice_that_where_a_row_is_replaced(
    relation,
):
    strategy = noisy(relation, of_landmarks=3.0)
    strategy._run = SimpleNamespace(
        rng=np.random.default_rng(3), n_columns=2, clients=(), spending=None, announced=None
    )
    steps = strategy.learn_landmarks()
    moments = strategy.with_noise(next(steps))
    assert {release.relation for release in moments.releases if release is not None} == {relation}
    round_ = strategy.with_noise(
        steps.send(Total([np.array([2.0, 4.0]), np.array([30.0, 20.0]), np.array(20.0)], 4))
    )
    (release,) = round_.releases
    gamma = round_.question.arguments["gamma"]
    assert round_.task == "landmark_attraction"
    assert (release.mechanism, release.noise_multiplier, release.relation) == (
        "gaussian",
        3.0,
        relation,
    )
    times = 2 if relation == "replace" else 1
    # The released sum has no factor 4 gamma / n_y.
    assert release.sensitivity * 4 * gamma / 5 == pytest.approx(
        times * math.sqrt(8 * gamma / (math.e * 5))
    )
    assert ("one is replaced" in release.bound) == (relation == "replace")
    (first,), frame = round_.question.arrays, round_.question.frame
    assert np.array_equal(first, frame.enter(first))

    def sent(rows, Y=first):
        return LandmarksClient(ClientData(rows), name="0").landmark_attraction(
            Y, frame=frame, gamma=gamma
        )[0]

    expected = attraction(CLIENTS[0], first, gamma) * -5 / (4 * gamma)
    np.testing.assert_allclose(sent(CLIENTS[0]).values, expected, atol=1e-4)
    rng = np.random.default_rng(0)
    for scale in np.repeat([0.0, 5e-324, 1e-3, 0.5, 3.0, 100.0, 1e8, 1e150, 1e307], 30):
        rows = np.vstack([rng.normal(size=(1, 2)) * scale, rng.normal(size=(2, 2))])
        others = (
            rows[1:]
            if relation == "add-or-remove"
            else np.vstack([rng.normal(size=(1, 2)) * scale, rows[1:]])
        )
        one, two = sent(rows), sent(others)
        unit = Fraction(2) ** one.exponent
        squared = sum(int(difference) ** 2 for difference in (one.integers - two.integers).ravel())
        assert squared * unit**2 <= Fraction(release.sensitivity) ** 2  # exactly
    # Landmarks that are all one are all at one distance from a row, and there the bound is reached.
    at_once = np.zeros((5, 2))
    row = np.array([[1 / math.sqrt(2 * gamma), 0.0]])
    moved = sent(row, at_once).values - (
        sent(-row, at_once).values if relation == "replace" else 0.0
    )
    assert np.linalg.norm(moved) == pytest.approx(release.sensitivity, rel=1e-5)


@pytest.mark.parametrize("gamma", [1e-300, 1e-9, 1e-3])
def test_sensitivity_is_no_longer_than_rows_and_landmarks_in_the_frame_are_apart(gamma):
    strategy = noisy("add-or-remove", of_landmarks=3.0, gamma=gamma)
    strategy._run = SimpleNamespace(
        rng=np.random.default_rng(3), n_columns=2, clients=(), spending=None, announced=None
    )
    steps = strategy.learn_landmarks()
    next(steps)
    round_ = strategy.with_noise(
        steps.send(Total([np.array([2.0, 4.0]), np.array([30.0, 20.0]), np.array(20.0)], 4))
    )
    (release,) = round_.releases
    assert release.sensitivity <= 4 * 24.0 * math.sqrt(5) * (1 + 1e-9)
    # Far beyond the frame, at its other end: the distance is twice the radius.
    for row, Y in (([1e9, 0.0], [-24.0, 0.0]), ([-1e300, 3e299], [24.0, 0.0])):
        client = LandmarksClient(ClientData(np.array([row])), name="0")
        (reply,) = client.landmark_attraction(
            np.tile(Y, (5, 1)), frame=round_.question.frame, gamma=gamma
        )
        assert np.linalg.norm(reply.values) <= release.sensitivity

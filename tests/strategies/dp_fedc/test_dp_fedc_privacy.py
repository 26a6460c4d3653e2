"""The privacy of DP-FedC: what a row can change, what the report says, what noise is added, which rows are drawn."""

import json
import math
from collections import Counter
from fractions import Fraction
from itertools import chain

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting import pld, rdp
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedclust.checking import watched_run
from flower_fedclust.data.datasets import load_dataset
from flower_fedclust.data.partition import partition
from flower_fedclust.engine import ClientData, DataError
from flower_fedclust.engine.wire import received_arrays
from flower_fedclust.exact.factorisation import Penalties, membership_step_divisor
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import MOST_SHARES, Plan
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies import dp_fedc
from flower_fedclust.strategies.dp_fedc import (
    DPFedC,
    DPFedCTheorem2,
    DPFedCTheorem2Client,
    noise_multiplier,
    sensitivity,
    total_epsilon,
)
from flower_fedclust.tables import Schema

ALLOWANCE = 1 + 1e-9
MAX_NORM = 10.0
MEANS = np.array([[9.0, 0, 1, 0], [0, 9, 0, 1], [0, 0, 6, 6]])
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(3, size=150)
ROWS = np.abs(MEANS[CLASSES] + RNG.normal(size=(150, 4)))
CUTS = [20, 55, 90, 130]
CLIENTS = np.split(ROWS, CUTS)
PRIVATE = {"epsilon": 8.0, "max_norm": MAX_NORM, "batch_size": 999}


def run_of(strategy, clients=CLIENTS, seed=0):
    """A run of which every message is kept, and its rounds after those that ask for numbers of rows."""
    run = watched_run(strategy, {str(index): ClientData(rows) for index, rows in enumerate(clients)}, seed=seed)
    rounds = [(round_, run.received[number]) for number, round_ in run.rounds.items() if round_.task != "row_count"]
    return rounds, run.result


def rounds_of(clients=CLIENTS, seed=0, **options):
    return run_of(DPFedC(3, **(PRIVATE | options)), clients, seed)


def reply_to(task, rows, W, local, noise_seed=7):
    """What a client with these rows answers, before any noise."""
    client = DPFedCTheorem2Client(
        ClientData(rows), name="0", context=Context(0, 0, {}, RecordDict(), {}), noise_seed=noise_seed
    )
    divisor = membership_step_divisor(W, Penalties(local["rho"], local["mu_h"])) if task == "clipped_gradient" else 0.0
    arguments = json.dumps(local | {"divisor": divisor})
    sent, _, facts = client.fit([W], {"task": task, "round": 2, "arguments": arguments})
    assert "failure" not in facts, facts
    return received_arrays(sent, facts)


def told(**options):
    """What a client is told in a round for the sum of its clipped gradients."""
    return {
        "rho": 0.0, "mu_h": 0.0, "n_membership_steps": 10, "random_state": 5, "max_norm": MAX_NORM,
        "batch_size": 999, "max_gradient_norm": MAX_NORM / 2,
    } | options  # fmt: skip


def told_for_centers(n_center_steps=1, eta=3.0, mu_w=0.0, **options):
    """What a client is told in a round for its centers by Theorem 2."""
    return told(**options) | {"n_center_steps": n_center_steps, "eta": eta, "mu_w": mu_w}


def gaussians_composed(multipliers, delta, step=1e-4):
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, step)
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    return accountant.get_epsilon(delta)


# What a row can change


def moved_by_replacing(task, rows, other, W, local):
    """The squares of the norms of the differences, as fractions: exactly."""
    replaced = np.vstack([other, rows[1:]])
    return [
        squared_norm(one, two)
        for one, two in zip(reply_to(task, rows, W, local), reply_to(task, replaced, W, local), strict=True)
    ]


def squared_norm(one, two):
    """The square of the norm of a difference; of a vector that is a triangle, that of the matrix."""
    difference = np.asarray(one.integers - two.integers, dtype=object).ravel()
    weights = 1 if one.integers.ndim == 2 else 1 + is_off_diagonal(math.isqrt(2 * len(difference))).astype(object)
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
        batch_size=draw(st.sampled_from([1, 2, 999])),
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


@settings(deadline=None, max_examples=60)
@given(attacks(), st.integers(1, 6), st.sampled_from([0.0, 2.0]))
def test_a_row_that_is_replaced_moves_the_centers_of_theorem_2_by_its_sensitivity_at_most(case, n_steps, mu_w):
    rows, other, W, local = case
    local = told_for_centers(n_steps, 3.0, mu_w, **local)
    (moved,) = moved_by_replacing("factorise_clipped", rows, other, W, local)
    assert moved <= Fraction(sensitivity(local["max_gradient_norm"], n_steps, 3.0)) ** 2


def worst_row(task, W, local, candidates):
    """The farthest that one row in another's place moves each array, from any of some first memberships."""
    distances = []
    for random_state in range(10):
        replies = [reply_to(task, row[None], W, local | {"random_state": random_state}) for row in candidates]
        distances += [
            [math.sqrt(squared_norm(a, b)) for a, b in zip(one, two, strict=True)] for one in replies for two in replies
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
    _, of_products = worst_row("clipped_gradient", axes * MAX_NORM, told(n_membership_steps=50), candidates)
    assert 0.8 * math.sqrt(2) <= of_products <= math.sqrt(2) * ALLOWANCE
    theorem = told_for_centers(3, 100.0, **local | {"max_gradient_norm": 0.01})
    (moved,) = worst_row("factorise_clipped", many, theorem, candidates)
    assert 0.8 * 2 * 0.01 * 3 / 100 <= moved <= 2 * 0.01 * 3 / 100 * ALLOWANCE


def test_rows_are_clipped_before_anything_else():
    rows = ROWS * 3.0
    for task, local in (("clipped_gradient", told()), ("factorise_clipped", told_for_centers())):
        one, two = (reply_to(task, each, MEANS, local) for each in (rows, clip_rows(rows, MAX_NORM)))
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


# The report


@pytest.mark.parametrize(
    ("epsilon", "delta", "options", "most"),
    [
        (1.0, 1e-6, {"n_rounds": 7, "fraction_fit": 0.4}, 3),
        (6.0, 1e-4, {"n_rounds": 5, "fraction_fit": 0.6, "budget": {"products": 0.5}}, 3),
        (4.0, 1e-6, {"n_rounds": 4, "fraction_fit": 1.0}, 4),
    ],
)
def test_epsilon_is_composed_over_the_rounds_for_which_a_client_is_drawn(epsilon, delta, options, most):
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
    seen, result = rounds_of(n_rounds=1, epsilon=50.0, mu_w=0.3, step_scale=3.0)
    ((round_, (gradient, products)),) = seen
    matrix = np.zeros((3, 3))
    matrix[np.triu_indices(3)] = products
    matrix = matrix + np.triu(matrix, 1).T
    n_drawn = 2
    eta = 3.0 * (np.linalg.eigvalsh(matrix)[-1] + n_drawn * 0.3 / 2)
    W = round_.question.arrays[0]
    expected = clip_rows(W - (gradient + n_drawn * 0.3 * W) / eta, MAX_NORM)
    np.testing.assert_allclose(result.model.components_, expected, rtol=1e-10)


# Rows that are drawn


@pytest.fixture
def drawn(monkeypatch):
    """The rows of every clipped gradient, by the number that is their first entry."""
    taken = []
    true_gradient = dp_fedc.clipped_center_gradient

    def watched(rows, H, W, exponent, bound):
        taken.append(sorted(np.rint(rows[:, 0] * 2.0**exponent * 1000).astype(int).tolist()))
        return true_gradient(rows, H, W, exponent, bound)

    monkeypatch.setattr(dp_fedc, "clipped_center_gradient", watched)
    monkeypatch.setattr(DPFedC, "noise_multipliers", lambda self: dict.fromkeys(self.shares(), 20.0))
    return taken


NUMBERED = [np.column_stack([np.arange(60) / 1000, np.ones(60)])] * 2


def run_numbered(drawn, seed, n_rounds=2):
    drawn.clear()
    simulate(DPFedC(2, n_rounds=n_rounds, random_state=0, **(PRIVATE | {"batch_size": 6})), NUMBERED, seed=seed)
    return [list(each) for each in drawn]


def test_rows_that_are_drawn_are_nobodys_to_foresee(drawn):
    seeded = [run_numbered(drawn, seed) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    one, other = (run_numbered(drawn, None) for _ in range(2))
    assert len({tuple(batch) for batch in one + other}) == 8
    assert all(len(set(batch)) == 6 for batch in one + other)


def test_every_row_is_drawn_with_the_same_probability_in_every_round(drawn):
    counts = Counter(chain.from_iterable(run_numbered(drawn, 3, n_rounds=100)))
    # 200 draws of 6 of 60 rows.
    assert len(counts) == 60
    assert all(abs(count - 20) < 5 * math.sqrt(200 * 0.1 * 0.9) for count in counts.values())


def sampled_composed(gradients, products, n_rounds, delta):
    """Both sums of a round are of the same drawn rows: one mechanism on one sample."""
    both = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(each.noise_multiplier) for each in (gradients, products)]
    )
    n_drawn, n_rows = gradients.sample
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(n_rows, n_drawn, both), n_rounds)
    return accountant.get_epsilon(delta)


@pytest.fixture(scope="module")
def sampled():
    """A run whose clients draw 10 of 120 rows or more, at a split for which it matters that both sums are of these."""
    rows = np.concatenate([ROWS] * 3)
    return rounds_of(
        [rows[:120], rows[:200], rows[:150]], n_rounds=4, batch_size=10, epsilon=12.0, fraction_fit=1.0,
        budget={"products": 0.5},
    )  # fmt: skip


def test_rows_of_a_small_batch_are_a_sample_and_cost_less_noise(sampled):
    gradients, products = sampled[0][0][0].releases
    assert gradients.sample == products.sample == (10, 120)
    whole = rounds_of(n_rounds=4, epsilon=12.0, fraction_fit=1.0, budget={"products": 0.5})[0][0][0].releases
    assert [release.sample for release in whole] == [None, None]
    for release, without in zip((gradients, products), whole, strict=True):
        assert release.noise_multiplier < 0.7 * without.noise_multiplier


@pytest.mark.parametrize("asked", [0, -1, -5, 999])
def test_a_batch_of_no_row_or_fewer_is_one_of_all_rows(asked):
    client = DPFedCTheorem2Client(ClientData(np.ones((7, 2))), name="0")
    assert {moved.sample for moved in dp_fedc._gradient_moved(7, asked, 1.0)} == {(7, 7)}
    assert sorted(next(client._secret_minibatches(1, asked))) == list(range(7))


def test_noise_on_a_sample_is_enough_for_two_sums_of_the_same_drawn_rows(sampled):
    gradients, products = sampled[0][0][0].releases
    own = sampled_composed(gradients, products, 4, 1e-6)
    assert 0.97 * 12.0 <= own <= 12.0 * 1.002


def test_report_on_a_sample_says_at_least_what_the_two_sums_spend(sampled):
    report = sampled[1].privacy
    own = sampled_composed(*sampled[0][0][0].releases, 4, 1e-6)
    assert own * 0.998 <= report.composed_epsilon <= 12.0 * 1.002
    assert "on 10 rows drawn from at least 120" in str(report)


def test_client_that_does_not_say_how_many_rows_it_has_is_not_drawn():
    class Shy(DPFedCTheorem2Client):
        def fit(self, parameters, config):
            self.task = config["task"]
            return super().fit(parameters, config)

        @property
        def rows(self):
            if self.name == "0" and self.task == "row_count":
                raise DataError("client 0 does not say.")
            return super().rows

    for made in (DPFedC, DPFedCTheorem2):
        options = {"epsilon": 8.0} if made is DPFedC else {}
        strategy = type("Strategy", (made,), {"client_type": Shy})(
            3, n_rounds=4, fraction_fit=1.0, max_norm=MAX_NORM, **options
        )
        _, result = run_of(strategy)
        uploads = {row.client for row in result.traffic if row.task in ("clipped_gradient", "factorise_clipped")}
        assert uploads == {"1", "2", "3", "4"}
        assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]


# Theorem 2


def theorem_2(**options):
    return DPFedCTheorem2(3, **({"max_norm": MAX_NORM} | options))


def test_noise_of_theorem_2_is_equation_29_in_every_round():
    options = {"n_rounds": 4, "round_epsilon": 0.8, "delta": 1e-4, "batch_size": 7, "max_gradient_norm": 0.3}
    seen, _ = run_of(theorem_2(**options))
    assert len(seen) == 4
    for t, (round_, _) in enumerate(seen, start=1):
        (release,) = round_.releases
        Q_2 = 10 // t + 1
        # The smallest client has 20 rows; eta is 5 times the largest eigenvalue that memberships of b rows can have.
        q, eta = Q_2 * 7 / 20, 5.0 * 7
        variance = 32 * 0.3**2 * Q_2**2 * q**2 * math.log(1.25 * q / 1e-4) / (eta**2 * 0.8**2)
        assert release.scale**2 == pytest.approx(variance, rel=1e-10)
        assert release.sensitivity == pytest.approx(2 * 0.3 * Q_2 / eta)
        arguments = round_.question.arguments
        assert (arguments["eta"], arguments["n_center_steps"]) == (eta, Q_2)
        assert (arguments["max_norm"], arguments["max_gradient_norm"]) == (MAX_NORM, 0.3)


def test_report_of_theorem_2_says_what_its_rounds_compose_to():
    seen, result = run_of(theorem_2(n_rounds=10, fraction_fit=1.0, n_center_steps=0, batch_size=2))
    report = result.privacy
    multipliers = [round_.releases[0].noise_multiplier for round_, _ in seen]
    assert multipliers == pytest.approx([noise_multiplier(0.1, 1.0, 1e-6)] * 10)
    assert report.composed_epsilon == pytest.approx(gaussians_composed(multipliers, 1e-6, step=1e-3), rel=2e-3)
    assert report.composed_epsilon > 10.0
    assert report.requested_epsilon is None
    assert (report.delta, report.unit, report.noise, report.relation) == (1e-6, "record", "server", "replace")
    assert report.covers_everything
    assert any("Theorem 2 for epsilon 1 in every single round" in note for note in report.notes)


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_of_theorem_2_has_its_declared_deviation_wherever_it_is_drawn(noise):
    # Rows and first centers of zeros, and no membership of anything: the centers move by the noise alone.
    options = {"n_center_steps": 0, "n_membership_steps": 200, "mu_h": 1e6, "rho": 0.0, "init": np.zeros((3, 4))}
    strategy = theorem_2(n_rounds=12, fraction_fit=0.6, noise=noise, **options)
    seen, _ = run_of(strategy, [np.zeros((9, 4))] * 5)
    sums = np.concatenate([moved.ravel() for _, (moved,) in seen])
    deviation = seen[0][0].releases[0].standard_deviation * (math.sqrt(3) if noise == "local" else 1.0)
    assert np.std(sums) == pytest.approx(deviation, rel=4 / math.sqrt(2 * len(sums)))


def test_theorem_2_has_no_budget_of_the_run_and_needs_a_bound_on_the_rows():
    assert {"epsilon", "budget"}.isdisjoint(DPFedCTheorem2.parameter_names())
    assert DPFedCTheorem2.required_parameters() == ("n_clusters", "max_norm")
    with pytest.raises(ValueError, match="rho"):
        theorem_2(rho="paper")


def test_a_plan_of_theorem_2_that_clients_would_refuse_is_refused_at_construction():
    for noise in ("clients", "local"):
        with pytest.raises(ValueError, match="n_center_steps"):
            theorem_2(n_center_steps=400, noise=noise)
    theorem_2(n_center_steps=400)
    strategy = theorem_2(n_center_steps=250, n_rounds=100, noise="clients", fraction_fit=1.0, batch_size=1)
    steps = [strategy._n_center_steps(t) for t in range(1, 101)]
    assert 20 < len(set(steps)) <= MOST_SHARES
    strategy._smallest_client[:] = [10]
    assert Plan.from_dict(json.loads(strategy.frozen_plan.to_json())) == strategy.frozen_plan


@pytest.mark.parametrize(("q", "delta"), [(1e-7, 1e-6), (0.08, 0.1), (0.4, 0.5)])
def test_noise_that_equation_29_does_not_give_is_refused(q, delta):
    with pytest.raises(ValueError, match="delta"):
        noise_multiplier(q, 1.0, delta)


def test_total_is_equation_32_and_no_number_where_all_rows_are_used():
    assert total_epsilon(0.7, 0.1, 1.0, 7, 2.5) == pytest.approx(2.5 * 0.1**2 * 0.7 * math.sqrt(7 / 0.9), rel=1e-12)
    assert math.isnan(total_epsilon(1.0, 1.0, 0.3, 100, 1.0))


# How good the clusters are


def test_digits_are_clustered_far_better_than_by_chance_at_epsilon_20():
    # Ten classes.
    table = load_dataset("digits")
    rows = partition(table, "iid", n_clients=10, random_state=0)
    strategy = DPFedC(10, n_rounds=15, epsilon=20.0, max_norm=4.0)
    result = simulate(strategy, rows.clients, labels=rows.labels, seed=0)
    assert result.metrics["accuracy"] >= 0.35


@pytest.mark.parametrize(
    "strategy",
    [DPFedCTheorem2(2, max_norm=1.0, n_rounds=2), DPFedC(2, epsilon=8.0, delta=1e-5, batch_size=5, n_rounds=2)],
    ids=["theorem-2", "sampled"],
)
def test_the_noise_of_a_run_on_tables_follows_from_the_rows_that_were_counted(strategy):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    schema = Schema.of({"columns": {name: {"kind": "number", "bounds": [-4, 4]} for name in "abc"}})
    result = simulate(strategy, [table[:20], table[20:]], schema=schema, progress=False)
    assert any("row_count" in message.task for message in result.privacy.messages)
    assert result.privacy.releases
    assert 0 < result.privacy.epsilon < np.inf

"""The noise of DP-FedC as printed: on rows that are drawn, and that of Theorem 2."""

import json
import math
from collections import Counter
from fractions import Fraction
from itertools import chain

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dp_fedc_privacy import (
    ALLOWANCE,
    CLIENTS,
    MAX_NORM,
    MEANS,
    PRIVATE,
    ROWS,
    attacks,
    gaussians_composed,
    moved_by_replacing,
    reply_to,
    run_of,
    told,
    worst_row,
)

from flower_fedclust.engine import ClientData, DataError
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import MOST_SHARES, Plan
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies import dp_fedc
from flower_fedclust.tables import Schema
from flower_fedclust_papers.dp_fedc_printed import (
    DPFedCPrinted,
    DPFedCPrintedClient,
    DPFedCTheorem2,
    DPFedCTheorem2Client,
    moved_by_a_drawn_row,
    noise_multiplier,
    sensitivity,
    total_epsilon,
)


def printed_rounds(clients=CLIENTS, seed=0, **options):
    return run_of(
        DPFedCPrinted(3, **(PRIVATE | {"batch_size": 999, "step_scale": 2.0} | options)),
        clients,
        seed,
    )


def told_for_centers(n_center_steps=1, eta=3.0, **options):
    """What a client is told in a round for its centers by Theorem 2."""
    return {"batch_size": 999} | told(**options) | {"n_center_steps": n_center_steps, "eta": eta}


# What a row can change


@settings(deadline=None, max_examples=60)
@given(attacks(), st.sampled_from([1, 2, 999]))
def test_a_row_that_is_replaced_moves_the_sums_of_drawn_rows_by_their_sensitivities_at_most(
    case, batch_size
):
    rows, other, W, local = case
    given = local | {"batch_size": batch_size}
    of_gradients, of_products = moved_by_replacing(
        "drawn_gradient", rows, other, W, given, DPFedCPrintedClient
    )
    assert of_gradients <= 4 * Fraction(local["max_gradient_norm"]) ** 2
    assert of_products <= 2


@settings(deadline=None, max_examples=60)
@given(attacks(), st.integers(1, 6), st.sampled_from([0.0, 2.0]), st.sampled_from([1, 2, 999]))
def test_a_row_that_is_replaced_moves_the_centers_of_theorem_2_by_its_sensitivity_at_most(
    case, n_steps, mu_w, batch_size
):
    rows, other, W, local = case
    local = told_for_centers(n_steps, 3.0, **local | {"mu_w": mu_w, "batch_size": batch_size})
    (moved,) = moved_by_replacing("factorise_clipped", rows, other, W, local, DPFedCTheorem2Client)
    assert moved <= Fraction(sensitivity(local["max_gradient_norm"], n_steps, 3.0)) ** 2


def test_the_worst_row_comes_near_the_sensitivity_of_theorem_2():
    axes = np.eye(3)
    candidates = [sign * MAX_NORM * axis for axis in axes for sign in (1.0, -1.0)]
    many = np.vstack([axes[:1], np.repeat(axes[1:2], 9, axis=0)]) * MAX_NORM
    local = told_for_centers(3, 100.0, n_membership_steps=1, max_gradient_norm=0.01)
    (moved,) = worst_row("factorise_clipped", many, local, candidates, DPFedCTheorem2Client)
    assert 0.8 * 2 * 0.01 * 3 / 100 <= moved <= 2 * 0.01 * 3 / 100 * ALLOWANCE


@pytest.mark.parametrize(
    ("task", "kind", "local"),
    [
        ("drawn_gradient", DPFedCPrintedClient, told(batch_size=999)),
        ("factorise_clipped", DPFedCTheorem2Client, told_for_centers()),
    ],
)
def test_rows_are_clipped_before_anything_else(task, kind, local):
    one, two = (
        reply_to(task, each, MEANS, local, kind)
        for each in (3.0 * ROWS, clip_rows(3.0 * ROWS, MAX_NORM))
    )
    for first, second in zip(one, two, strict=True):
        np.testing.assert_allclose(first.values, second.values, rtol=1e-6, atol=1e-6)


def test_step_of_the_server_with_a_penalty_on_centers_is_the_gradient_over_the_eigenvalue_of_the_products():
    seen, result = printed_rounds(n_rounds=1, epsilon=50.0, mu_w=0.3, step_scale=3.0)
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
    monkeypatch.setattr(
        DPFedCPrinted, "noise_multipliers", lambda self, shares: dict.fromkeys(shares, 20.0)
    )
    return taken


NUMBERED = [np.column_stack([np.arange(60) / 1000, np.ones(60)])] * 2


def run_numbered(drawn, seed, n_rounds=2):
    drawn.clear()
    simulate(
        DPFedCPrinted(2, n_rounds=n_rounds, random_state=0, **(PRIVATE | {"batch_size": 6})),
        NUMBERED,
        seed=seed,
    )
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
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(n_rows, n_drawn, both), n_rounds
    )
    return accountant.get_epsilon(delta)


@pytest.fixture(scope="module")
def sampled():
    """A run whose clients draw 10 of 120 rows or more, at a split for which it matters that both sums are of these."""
    rows = np.concatenate([ROWS] * 3)
    return printed_rounds(
        [rows[:120], rows[:200], rows[:150]], n_rounds=4, batch_size=10, epsilon=12.0, fraction_fit=1.0,
        budget={"products": 0.5},
    )  # fmt: skip


def test_rows_of_a_small_batch_are_a_sample_and_cost_less_noise(sampled):
    gradients, products = sampled[0][0][0].releases
    assert gradients.sample == products.sample == (10, 120)
    whole = printed_rounds(n_rounds=4, epsilon=12.0, fraction_fit=1.0, budget={"products": 0.5})[0][
        0
    ][0].releases
    assert [release.sample for release in whole] == [None, None]
    for release, without in zip((gradients, products), whole, strict=True):
        assert release.noise_multiplier < 0.7 * without.noise_multiplier


@pytest.mark.parametrize("asked", [0, -1, -5, 999])
def test_a_batch_of_no_row_or_fewer_is_one_of_all_rows(asked):
    client = DPFedCTheorem2Client(ClientData(np.ones((7, 2))), name="0")
    assert {moved.sample for moved in moved_by_a_drawn_row(7, asked, 1.0)} == {(7, 7)}
    assert sorted(next(client.secret_minibatches(1, asked))) == list(range(7))


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

    for made in (DPFedCPrinted, DPFedCTheorem2):
        options = {"epsilon": 8.0, "batch_size": 5} if made is DPFedCPrinted else {}
        strategy = type("Strategy", (made,), {"client_type": Shy})(
            3, n_rounds=4, fraction_fit=1.0, max_norm=MAX_NORM, **options
        )
        _, result = run_of(strategy)
        uploads = {
            row.client
            for row in result.traffic
            if row.task in ("drawn_gradient", "factorise_clipped")
        }
        assert uploads == {"1", "2", "3", "4"}
        assert [len(labels) for labels in result.labels] == [len(rows) for rows in CLIENTS]


# Theorem 2


def theorem_2(**options):
    return DPFedCTheorem2(3, **({"max_norm": MAX_NORM} | options))


def test_noise_of_theorem_2_is_equation_29_in_every_round():
    options = {
        "n_rounds": 4,
        "round_epsilon": 0.8,
        "delta": 1e-4,
        "batch_size": 7,
        "max_gradient_norm": 0.3,
    }
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


def test_row_that_no_float_can_square_is_clipped_by_theorem_2():
    """A failure would tell something about the row that no noise covers."""
    clients = [rows.copy() for rows in CLIENTS]
    clients[0][3] = 1e200
    result = simulate(theorem_2(n_rounds=2, fraction_fit=1.0), clients, seed=0)
    assert not result.failures
    assert np.isfinite(result.model.components_).all()


def test_report_of_theorem_2_says_what_its_rounds_compose_to():
    seen, result = run_of(theorem_2(n_rounds=10, fraction_fit=1.0, n_center_steps=0, batch_size=2))
    report = result.privacy
    multipliers = [round_.releases[0].noise_multiplier for round_, _ in seen]
    assert multipliers == pytest.approx([noise_multiplier(0.1, 1.0, 1e-6)] * 10)
    assert report.composed_epsilon == pytest.approx(
        gaussians_composed(multipliers, 1e-6, step=1e-3), rel=2e-3
    )
    assert report.composed_epsilon > 10.0
    assert report.requested_epsilon is None
    assert (report.delta, report.unit, report.noise, report.relation) == (
        1e-6,
        "record",
        "server",
        "replace",
    )
    assert report.covers_everything
    assert any("Theorem 2 for epsilon 1 in every single round" in note for note in report.notes)


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_of_theorem_2_has_its_declared_deviation_wherever_it_is_drawn(noise):
    # Rows and first centers of zeros, and no membership of anything: the centers move by the noise alone.
    options = {
        "n_center_steps": 0,
        "n_membership_steps": 200,
        "mu_h": 1e6,
        "rho": 0.0,
        "init": np.zeros((3, 4)),
    }
    strategy = theorem_2(n_rounds=12, fraction_fit=0.6, noise=noise, **options)
    seen, _ = run_of(strategy, [np.zeros((9, 4))] * 5)
    sums = np.concatenate([moved.ravel() for _, (moved,) in seen])
    deviation = seen[0][0].releases[0].standard_deviation * (
        math.sqrt(3) if noise == "local" else 1.0
    )
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
    strategy = theorem_2(
        n_center_steps=250, n_rounds=100, noise="clients", fraction_fit=1.0, batch_size=1
    )
    steps = [strategy._n_center_steps(t) for t in range(1, 101)]
    assert 20 < len(set(steps)) <= MOST_SHARES
    strategy._smallest_client[:] = [10]
    assert Plan.from_dict(json.loads(strategy.frozen_plan.to_json())) == strategy.frozen_plan


@pytest.mark.parametrize(("q", "delta"), [(1e-7, 1e-6), (0.08, 0.1), (0.4, 0.5)])
def test_noise_that_equation_29_does_not_give_is_refused(q, delta):
    with pytest.raises(ValueError, match="delta"):
        noise_multiplier(q, 1.0, delta)


def test_total_is_equation_32_and_no_number_where_all_rows_are_used():
    assert total_epsilon(0.7, 0.1, 1.0, 7, 2.5) == pytest.approx(
        2.5 * 0.1**2 * 0.7 * math.sqrt(7 / 0.9), rel=1e-12
    )
    assert math.isnan(total_epsilon(1.0, 1.0, 0.3, 100, 1.0))


@pytest.mark.parametrize(
    "strategy",
    [
        DPFedCTheorem2(2, max_norm=1.0, n_rounds=2),
        DPFedCPrinted(2, epsilon=8.0, delta=1e-5, batch_size=5, n_rounds=2),
    ],
    ids=["theorem-2", "sampled"],
)
def test_the_noise_of_a_run_on_tables_follows_from_the_rows_that_were_counted(strategy):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    schema = Schema.of({"columns": {name: {"kind": "number", "bounds": [-4, 4]} for name in "abc"}})
    result = simulate(strategy, [table[:20], table[20:]], schema=schema, progress=False)
    assert any("row_count" in message.task for message in result.privacy.messages)
    assert result.privacy.releases
    assert 0 < result.privacy.epsilon < np.inf

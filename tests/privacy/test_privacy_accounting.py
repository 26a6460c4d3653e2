"""The accountant against dp-accounting alone and against closed forms: composition, calibration, samples, plans."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from flower_fedclust.privacy import accounting
from flower_fedclust.privacy.accounting import (
    LONGEST_NAME,
    LONGEST_PLAN,
    MOST_RELEASES,
    MOST_SHARES,
    Plan,
    Share,
    composed_epsilon,
    delta_of_composition,
    delta_of_sampling,
    divided,
    releases_of,
)
from flower_fedclust.privacy.accounting import calibrate as calibrate_by_name
from flower_fedclust.privacy.releases import Release, on_the_same_rows

DELTA = 1e-5
SAMPLE = (5, 1000)


def calibrate(shares, epsilon, delta):
    return tuple(calibrate_by_name(dict(enumerate(shares)), epsilon, delta).values())


def gaussian(multiplier=1.5, sample=SAMPLE, **options):
    return Release("gaussian", 1.0, multiplier, "", "replace", sample, **options)


def share(fraction, count=1, sample=None, mechanism="gaussian"):
    return Share(mechanism, fraction, count, "replace", sample)


def made(shares, multipliers):
    return [
        Release(one.mechanism, 1.0, multiplier, "")
        for one, multiplier in zip(shares, multipliers, strict=True)
        for _ in range(one.count)
    ]


def without_samples(releases):
    return [replace(one, sample=None) for one in releases]


def by_distributions(releases, delta, interval=1e-4):
    """Compose releases one by one, with dp-accounting alone."""
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    events = {"gaussian": dp_accounting.GaussianDpEvent, "laplace": dp_accounting.LaplaceDpEvent}
    for release in releases:
        accountant.compose(events[release.mechanism](release.scale / release.sensitivity))
    return accountant.get_epsilon(delta)


def by_divergences(replies, delta=DELTA, orders=None):
    """Compose replies, each a list of releases on the same rows, with dp-accounting alone."""
    accountant = rdp.RdpAccountant(
        orders or accounting.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for index, reply in enumerate(replies):
        if reply in replies[:index]:
            continue
        event = dp_accounting.ComposedDpEvent(
            [dp_accounting.GaussianDpEvent(one.scale / one.sensitivity) for one in reply]
        )
        if reply[0].sample is not None:
            size, n_rows = reply[0].sample
            event = dp_accounting.SampledWithoutReplacementDpEvent(n_rows, size, event)
        accountant.compose(event, replies.count(reply))
    return accountant.get_epsilon(delta)


# Composition.


@pytest.mark.parametrize("delta", [1e-8, 1e-2])
def test_composed_epsilon_is_what_dp_accounting_composes(delta):
    releases = [
        Release("gaussian", 3.0, 2.5, ""),
        Release("laplace", 0.1, 4.0, ""),
        Release("gaussian", 7.0, 2.5, ""),
    ]
    releases += [Release("laplace", 0.1, 4.0, ""), Release("laplace", 2.0, 11.0, "")]
    expected = by_distributions(releases, delta)
    for near in (None, 1.0):
        assert composed_epsilon(releases, delta, near=near) == pytest.approx(expected, rel=1e-3)
    assert composed_epsilon(iter(releases[::-1]), delta, near=1.0) == composed_epsilon(
        releases, delta, near=1.0
    )


@pytest.mark.parametrize(("scale", "delta"), [(0.5, 1e-6), (2.0, 1e-2), (10.0, 1e-2)])
def test_one_laplace_release_has_its_closed_form(scale, delta):
    expected = 1 / scale + 2 * math.log1p(-delta)
    assert composed_epsilon([Release("laplace", 9.0, scale, "")], delta) == pytest.approx(
        expected, rel=1e-3
    )


def test_two_gaussian_releases_are_one_with_noise_smaller_by_the_root_of_two():
    two = composed_epsilon([Release("gaussian", 1.0, 2.0, "")] * 2, 1e-6)
    one = composed_epsilon([Release("gaussian", 1.0, math.sqrt(2.0), "")], 1e-6)
    assert two == pytest.approx(one, rel=1e-3)


@settings(max_examples=5, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["gaussian", "laplace"]), st.floats(0.5, 20.0)),
        min_size=2,
        max_size=4,
    ),
    st.floats(1e-9, 1e-3),
)
def test_one_release_more_never_lowers_epsilon_and_a_smaller_delta_never_does(drawn, delta):
    releases = [Release(mechanism, 1.0, multiplier, "") for mechanism, multiplier in drawn]
    epsilons = [
        composed_epsilon(releases[:count], delta, near=1.0) for count in range(len(releases) + 1)
    ]
    assert epsilons[0] == 0.0
    assert all(more >= fewer - 1e-9 for fewer, more in pairwise(epsilons))
    assert composed_epsilon(releases, delta / 10, near=1.0) >= epsilons[-1] - 1e-9


@pytest.mark.parametrize(
    "bare", [Release("gaussian", 1.0, 0.0, ""), Release("laplace", 1.0, 0.0, ""), gaussian(0.0)]
)
@pytest.mark.parametrize("covered", [None, "gaussian", "laplace"])
def test_a_release_without_noise_spends_an_infinite_epsilon(bare, covered):
    others = [Release(covered, 1.0, 5.0, "", bare.relation)] if covered else []
    assert (
        composed_epsilon([bare, *others], 1e-6)
        == composed_epsilon([bare, *others], 1e-6, near=1.0)
        == math.inf
    )


def test_epsilon_depends_on_the_multiplier_alone_and_never_mixes_relations():
    added, replaced = Release("laplace", 1e-3, 4.0, ""), Release("laplace", 1e3, 4.0, "", "replace")
    assert composed_epsilon([added] * 3, DELTA, near=1.0) == composed_epsilon(
        [replaced] * 3, DELTA, near=1.0
    )
    for bare in (added, replace(added, noise_multiplier=0.0)):
        with pytest.raises(ValueError, match="do not compose"):
            composed_epsilon([bare, replaced, replaced], DELTA)


# Samples of rows.


@pytest.mark.parametrize(
    ("multiplier", "count", "sample"),
    [(1.5, 20, (5, 1000)), (0.8, 1, (20, 500)), (4.0, 50, (1, 30))],
)
def test_a_small_sample_costs_less_and_what_dp_accounting_says(multiplier, count, sample):
    releases = [gaussian(multiplier, sample)] * count
    epsilon = composed_epsilon(releases, DELTA)
    assert epsilon == pytest.approx(by_divergences([[one] for one in releases]), rel=1e-9)
    assert epsilon < 0.8 * composed_epsilon(without_samples(releases), DELTA)


def test_more_orders_would_hardly_lower_epsilon():
    fine = by_divergences([[gaussian()]] * 20, orders=[*range(2, 65), 96, 128])
    assert fine * (1 - 1e-9) <= composed_epsilon([gaussian()] * 20, DELTA) <= 1.02 * fine


@pytest.mark.parametrize(("multiplier", "fraction"), [(0.6, 0.01), (1.0, 0.05), (2.0, 0.3)])
def test_epsilon_is_not_below_what_one_release_exactly_spends(multiplier, fraction):
    # A row of value 0 is replaced by one of value 1, among rows of value 0.
    def excess(epsilon):
        """Delta of the mixture of N(0) and N(1) against N(0): the ratio exceeds exp(epsilon) beyond a threshold."""
        threshold = multiplier**2 * math.log1p(math.expm1(epsilon) / fraction) + 0.5
        above = norm.sf(threshold, scale=multiplier)
        return (
            (1 - fraction) * above
            + fraction * norm.sf(threshold - 1, scale=multiplier)
            - math.exp(epsilon) * above
        )

    exact = brentq(lambda epsilon: excess(epsilon) - DELTA, 0.0, 50.0)
    assert composed_epsilon([gaussian(multiplier, (round(1000 * fraction), 1000))], DELTA) >= exact


@pytest.mark.parametrize("sample", [(5, 10), (6, 11), (1, 1), (1, 2)])
def test_a_sample_of_half_of_the_rows_or_more_counts_as_all(sample):
    assert gaussian(sample=sample).event(sampled=True) == dp_accounting.GaussianDpEvent(1.5)
    assert gaussian(sample=(5, 11)).event(sampled=True) != dp_accounting.GaussianDpEvent(1.5)
    releases = [gaussian(sample=sample)] * 3
    assert composed_epsilon(releases, DELTA, near=2.0) == composed_epsilon(
        without_samples(releases), DELTA, near=2.0
    )


def test_sampled_and_other_releases_compose_to_the_smaller_of_two_bounds():
    sampled, others = [gaussian(1.0)] * 10, [gaussian(4.0, None), gaussian(6.0, None)]
    epsilon = composed_epsilon(sampled + others, DELTA, near=2.0)
    assert epsilon == pytest.approx(by_divergences([[one] for one in sampled + others]), rel=1e-9)
    assert epsilon < composed_epsilon(without_samples(sampled + others), DELTA, near=2.0)
    costly = [gaussian(20.0), gaussian(1.0, None)]
    without = composed_epsilon(without_samples(costly), DELTA, near=4.0)
    assert (
        by_divergences([[one] for one in costly])
        > without
        == composed_epsilon(costly, DELTA, near=4.0)
    )
    laplace = Release("laplace", 1.0, 5.0, "", "replace")
    mixed = [gaussian(1.0), laplace]
    assert composed_epsilon([laplace], DELTA) < composed_epsilon(mixed, DELTA)
    assert composed_epsilon(mixed, DELTA) < composed_epsilon(
        [*without_samples(mixed[:1]), laplace], DELTA
    )


def test_arrays_on_the_same_rows_are_one_release_that_costs_more_than_separate_samples():
    for multipliers in ((1.5, 3.0), (2.0, 2.0, 2.0)):
        reply = [gaussian(multiplier) for multiplier in multipliers]
        (together,) = on_the_same_rows(reply)
        assert together.noise_multiplier == pytest.approx(sum(m**-2 for m in multipliers) ** -0.5)
        epsilon = composed_epsilon([together] * 5, DELTA, near=2.0)
        assert epsilon == pytest.approx(by_divergences([reply] * 5), rel=1e-6)
    reply = [gaussian(1.0)] * 2
    assert composed_epsilon(on_the_same_rows(reply) * 5, DELTA) > 1.2 * composed_epsilon(
        reply * 5, DELTA
    )
    assert [one.noise_multiplier for one in on_the_same_rows([gaussian(2.0), gaussian(0.0)])] == [
        0.0
    ]


@pytest.mark.parametrize(
    "reply",
    [
        [gaussian(2.0, None), gaussian(3.0, None), Release("laplace", 1.0, 5.0, "", "replace")],
        [gaussian(0.1), gaussian(0.3, (9, 100)), gaussian(0.7, None)],
    ],
)
def test_arrays_without_a_sample_or_on_different_samples_stay_apart(reply):
    assert on_the_same_rows(reply) == reply
    assert on_the_same_rows([replace(one, sensitivity=7.0, bound="x") for one in reply]) == reply


# Calibration.

SHARES = st.lists(
    st.builds(
        Share,
        mechanism=st.sampled_from(["gaussian", "laplace"]),
        fraction=st.floats(0.02, 1.0),
        count=st.integers(1, 5),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(SHARES, st.floats(math.log(0.05), math.log(20)).map(math.exp), st.floats(1e-9, 1e-3))
@example((Share("gaussian", 1.0, 5), Share("laplace", 0.02, 5)), 0.05, 1e-3)
@example((Share("laplace", 1.0, 5), Share("laplace", 0.02, 3)), 20.0, 1e-9)
@example((Share("gaussian", 1.0),), 20.0, 1e-9)
@example((Share("gaussian", 1.0, 200),), 0.05, 1e-3)
def test_calibrated_noise_spends_what_was_asked_and_hardly_less(shares, epsilon, delta):
    multipliers = calibrate(shares, epsilon, delta)
    assert len(multipliers) == len(shares)
    assert (
        0.99 * epsilon
        <= composed_epsilon(made(shares, multipliers), delta, near=epsilon)
        <= epsilon
    )


def test_calibrated_noise_spends_what_was_asked_by_dp_accounting_alone():
    shares = (Share("gaussian", 0.5, 3), Share("laplace", 0.25, 2), Share("gaussian", 0.25))
    for epsilon, delta in ((0.3, 1e-6), (2.0, 1e-4)):
        spent = by_distributions(made(shares, calibrate(shares, epsilon, delta)), delta)
        assert 0.99 * epsilon <= spent <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.05, 1e-9), (0.5, 1e-3), (1.0, 1e-6), (20.0, 1e-6)]
)
def test_one_release_has_the_noise_of_its_closed_form(epsilon, delta):
    (multiplier,) = calibrate((Share("gaussian", 0.3),), epsilon, delta)
    assert multiplier == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=0.01)
    # Laplace noise of scale b has delta = 1 - exp((epsilon - 1/b) / 2), so slightly less than 1/epsilon suffices.
    (multiplier,) = calibrate((Share("laplace", 2.0),), epsilon, delta)
    assert multiplier <= 1 / epsilon * (1 + 1e-9)
    assert multiplier == pytest.approx(1 / (epsilon - 2 * math.log1p(-delta)), rel=1e-3)


def test_the_epsilons_of_the_shares_stand_in_the_proportion_of_the_fractions():
    shares = (Share("laplace", 0.1), Share("gaussian", 0.4, 2), Share("gaussian", 0.6))
    laplace, small, large = calibrate(shares, 2.0, 1e-6)
    unit = 1 / laplace / 0.1  # four releases, each with a quarter of delta
    assert small == pytest.approx(dp_accounting.get_sigma_gaussian(0.2 * unit, 1e-6 / 4), rel=1e-6)
    assert large == pytest.approx(dp_accounting.get_sigma_gaussian(0.6 * unit, 1e-6 / 4), rel=1e-6)
    tenfold = calibrate([replace(one, fraction=10 * one.fraction) for one in shares], 2.0, 1e-6)
    assert tenfold == pytest.approx((laplace, small, large), rel=1e-6)
    assert calibrate(shares[::-1], 2.0, 1e-6)[::-1] == pytest.approx(
        (laplace, small, large), rel=1e-6
    )


def test_composition_is_cheaper_than_adding_up_and_counts_are_repetitions():
    (multiplier,) = calibrate((Share("gaussian", 1.0, 20),), 1.0, 1e-6)
    assert multiplier < dp_accounting.get_sigma_gaussian(1.0 / 20, 1e-6) / 2
    counted = calibrate((Share("gaussian", 0.3, 3), Share("laplace", 0.1)), 1.0, 1e-6)
    written = calibrate((*(Share("gaussian", 0.1),) * 3, Share("laplace", 0.1)), 1.0, 1e-6)
    assert (counted[0], counted[0], counted[0], counted[1]) == pytest.approx(written, rel=1e-4)


def test_no_epsilon_is_no_noise_and_no_share_no_multiplier():
    assert calibrate((share(1.0, 10, SAMPLE),), None, DELTA) == (0.0,)
    assert calibrate((Share("gaussian", 0.5, 4), Share("laplace", 0.5)), None, 1e-6) == (0.0, 0.0)
    assert calibrate((), 1.0, 1e-6) == ()


@pytest.mark.parametrize(
    "wrong",
    [Share("laplace", 0.0), Share("laplace", -0.5), Share("laplace", math.nan), share(1.0)]
    + [share(1.0, sample=sample) for sample in [(5, 3), (0, 3), (-3, -3)]],
)
@pytest.mark.parametrize("epsilon", [1.0, None])
def test_shares_that_cannot_be_calibrated_are_refused(wrong, epsilon):
    with pytest.raises(ValueError, match=r"budget|compose|sample"):
        calibrate((Share("gaussian", 1.0), wrong), epsilon, 1e-6)


SAMPLED = (share(0.7, 6, SAMPLE), share(0.2, 6, SAMPLE), share(0.1, 3))


def test_calibration_for_samples_spends_what_was_asked_with_less_noise():
    multipliers = calibrate(SAMPLED, 1.0, DELTA)
    first, second, other = (
        gaussian(found, one.sample) for found, one in zip(multipliers, SAMPLED, strict=True)
    )
    spent = composed_epsilon(
        [*on_the_same_rows([first, second]) * 6, *[other] * 3], DELTA, near=1.0
    )
    assert 0.99 <= spent <= 1.0
    assert by_divergences([[first, second]] * 6 + [[other]] * 3) == pytest.approx(spent, rel=1e-6)
    without = calibrate([replace(one, sample=None) for one in SAMPLED], 1.0, DELTA)
    assert all(found < 0.9 * other for found, other in zip(multipliers, without, strict=True))


@pytest.mark.long
def test_shares_of_unequal_counts_are_on_the_same_rows_as_long_as_both_last():
    shares = (share(0.3, 1, SAMPLE), share(0.7, 3, SAMPLE))
    first, second = (gaussian(multiplier) for multiplier in calibrate(shares, 1.0, DELTA))
    assert 0.99 <= by_divergences([[first, second], [second], [second]]) <= 1.0


@pytest.mark.parametrize(("sample", "epsilon"), [(SAMPLE, 4.0), ((500, 1000), 1.0)])
def test_a_sample_that_gains_nothing_changes_no_noise(sample, epsilon):
    shares = (share(0.99), share(0.01, 1, sample))
    assert calibrate(shares, epsilon, DELTA) == calibrate(
        (shares[0], replace(shares[1], sample=None)), epsilon, DELTA
    )


def test_an_epsilon_beyond_the_divergences_is_met_without_the_sample():
    assert calibrate((share(1.0, 10, SAMPLE),), 0.05, 1e-9) == calibrate(
        (share(1.0, 10),), 0.05, 1e-9
    )


# A budget by name, and the part of delta for the sampler.

PARTS = {
    "moment": Share("gaussian", 0.2),
    "weights": Share("laplace", 0.3, 4),
    "sums": Share("gaussian", 0.3),
}


@pytest.mark.parametrize(
    ("budget", "fractions"),
    [
        (None, {"moment": 0.2, "weights": 0.3, "sums": 0.3}),
        ({"weights": 0.5}, {"moment": 0.2, "weights": 0.5, "sums": 0.3}),
        ({"moment": 0.1, "sums": 0.2}, {"moment": 0.1, "weights": 0.7, "sums": 0.2}),
        (
            {"moment": 0.1, "sums": 0.2, "weights": 0.7},
            {"moment": 0.1, "weights": 0.7, "sums": 0.2},
        ),
    ],
)
def test_parts_that_a_budget_does_not_name_divide_the_rest(budget, fractions):
    found = divided(PARTS, budget)
    assert {name: one.fraction for name, one in found.items()} == pytest.approx(fractions)
    assert found["weights"].count == 4


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        ({"weigths": 0.5}, "weigths.*weights"),
        ({"weights": 0.0}, "budget of weights"),
        ({"weights": 1.5}, "budget of weights"),
        ({"weights": 1.0}, "moment, sums"),
        ({"weights": 0.7, "sums": 0.7}, "moment"),
        ({"weights": 0.2, "sums": 0.2, "moment": 0.2}, "budget"),
    ],
)
def test_a_budget_that_does_not_add_up_is_refused(budget, names):
    with pytest.raises(ValueError, match=names):
        divided(PARTS, budget)


def test_what_the_samplers_distance_adds_to_delta():
    assert delta_of_sampling(1.0, 1e-9) == pytest.approx((1 + math.e) * 1e-9)
    assert delta_of_sampling(1000.0, 1e-9) == 1.0
    assert delta_of_sampling(5.0, 0.0) == 0.0


# Plans.

PLANNED = {"sums": share(0.7, 3, (10, 1000)), "counts": share(0.3, 2, mechanism="laplace")}


def plan(shares=PLANNED, *, epsilon=1.0, factor=1.0, unit="record", **changed):
    multipliers = calibrate_by_name(shares, epsilon, delta_of_composition(1e-6))
    multipliers = {name: factor * multiplier for name, multiplier in multipliers.items()} | changed
    return Plan(epsilon, 1e-6, "local", unit, shares, multipliers)


MULTIPLIERS = {"sums": 3.0, "counts": 20.0}
WRITTEN = json.loads(Plan(1.0, 1e-6, "local", "record", PLANNED, MULTIPLIERS).to_json())


def changed(**fields):
    """Return a plan whose first share has other fields."""
    return WRITTEN | {"shares": WRITTEN["shares"] | {"sums": WRITTEN["shares"]["sums"] | fields}}


def test_a_plan_is_read_as_it_was_written():
    assert Plan.from_dict(json.loads(plan().to_json())) == plan()
    assert len(plan().to_json()) < LONGEST_PLAN


def test_a_plan_composes_to_what_was_asked_for_or_is_refused():
    plan(epsilon=8.0).check()
    with pytest.raises(ValueError, match="epsilon"):
        plan(factor=0.999).check()
    plan(sums=0.0).check()  # a share without noise protects nothing, and costs nothing
    Plan(None, 1e-6, "local", "record", PLANNED, dict.fromkeys(PLANNED, 0.0)).check()


def test_a_row_costs_a_site_the_whole_plan_and_twice_the_distance_for_clients():
    assert plan().epsilon_of_row(1e-6) == pytest.approx(1.0, rel=1e-3)
    assert plan(factor=2.0, unit="client").epsilon_of_row(1e-6) == pytest.approx(1.0, rel=1e-3)
    honest = plan().epsilon_of_row(1e-6)
    assert replace(plan(), epsilon=1e-9, delta=0.5).epsilon_of_row(1e-6) == pytest.approx(
        honest, rel=0.01
    )


def test_releases_compose_to_the_same_in_any_order():
    shares = {str(index): Share("laplace", 1.0 + index, 1 + index % 3) for index in range(6)}
    releases = list(releases_of(shares, calibrate_by_name(shares, 1.0, 1e-6)).elements())
    spent = [
        composed_epsilon(some, 1e-6, near=1.0)
        for some in (releases, releases[::-1], releases[5:] + releases[:5])
    ]
    assert spent[0] == spent[1] == spent[2] <= 1.0


COUNTS = WRITTEN["shares"]["counts"]


@pytest.mark.parametrize(
    "found",
    [
        *(None, 7, "shares", [], {}, {"shares": {}}),
        *(WRITTEN | {"epsilon": value} for value in (0.0, math.inf, True, "1", 10**400)),
        *(WRITTEN | {"delta": value} for value in (1, -1e-6)),
        *(
            WRITTEN | {"shares": value}
            for value in ([], {"sums": None}, {"s" * (LONGEST_NAME + 1): COUNTS})
        ),
        WRITTEN | {"shares": {str(index): COUNTS for index in range(MOST_SHARES + 1)}},
        WRITTEN | {"noise": "nobody"},
        WRITTEN | {"unit": ["record"]},
        *(changed(multiplier=value) for value in (0.0, True, math.nan, 1e-9, 1e-300)),
        *(changed(count=value) for value in (0, 2.0, True, MOST_RELEASES + 1)),
        *(changed(sample=value) for value in ([10], [10, 5], [1.5, 5], [True, 5], "ab")),
        *(changed(mechanism=value) for value in ("exponential", [], "laplace")),
        *(changed(relation=value) for value in ("add-or-remove", None)),
        changed(fraction=math.inf),
    ],
    ids=lambda found: str(found)[:60],
)
def test_anything_but_a_plan_is_refused(found):
    with pytest.raises(ValueError, match=r"plan|noise|unit|mechanism|relation|sample"):
        Plan.from_dict(found)


numbers = st.one_of(
    st.floats(1e-3, 1e6), st.floats(), st.integers(-5, 5), st.integers(), st.booleans(), st.text()
)
any_share = st.fixed_dictionaries(
    {
        "mechanism": st.sampled_from(["gaussian", "laplace"]),
        "fraction": st.just(1.0),
        "count": st.one_of(st.integers(1, MOST_RELEASES), st.integers()),
        "relation": st.just("replace"),
        "sample": st.one_of(
            st.none(), st.lists(st.integers(0, 2**60), max_size=3), st.just((1, 2**53 - 1))
        ),
        "multiplier": st.one_of(st.floats(1e-3, 1e6), numbers),
    }
)
any_plan = st.fixed_dictionaries(
    {
        "epsilon": st.one_of(st.floats(1e-300, 1e300), numbers),
        "delta": st.one_of(st.floats(1e-12, 0.5), numbers),
        "noise": st.sampled_from(["local", "server"]),
        "unit": st.sampled_from(["record", "client"]),
        "shares": st.dictionaries(st.text(max_size=5), any_share, max_size=4),
    }
)
any_json = st.recursive(
    st.one_of(st.none(), numbers),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(any_plan, any_json))
def test_any_plan_is_read_or_refused_and_composes_to_something(found):
    try:
        read = Plan.from_dict(found)
    except ValueError:
        return
    assert read.epsilon_of_row(1e-6) >= 0


def test_only_losses_that_are_composed_as_numbers_load_signal_processing():
    code = (
        "import sys\n"
        "from flower_fedclust.privacy.accounting import Share, calibrate\n"
        "loaded = lambda: 'scipy.signal._signaltools' in sys.modules\n"
        "gaussian = {'sums': Share('gaussian', 0.5, 3, 'add-or-remove')}\n"
        "first = calibrate(gaussian, 1.0, 1e-6), loaded()\n"
        "both = calibrate(gaussian | {'counts': Share('laplace', 0.5, 1, 'add-or-remove')}, 1.0, 1e-6), loaded()\n"
        "print(first[1], both[1])\n"
        "import scipy.signal\n"
        "print(scipy.signal.fftconvolve([1.0], [2.0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "[2.]"]

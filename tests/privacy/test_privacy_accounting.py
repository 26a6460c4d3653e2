import math
from itertools import pairwise

import dp_accounting
import pytest
from dp_accounting import pld
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flower_fedclust.privacy.accounting import Share, composed_epsilon, divided
from flower_fedclust.privacy.accounting import calibrate as calibrate_by_name
from flower_fedclust.privacy.releases import Release

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
EPSILON = st.floats(math.log(0.05), math.log(20)).map(math.exp)
DELTA = st.floats(math.log(1e-9), math.log(1e-3)).map(math.exp)


def calibrate(shares, epsilon, delta):
    """The multipliers of shares whose names do not matter, in their order."""
    return tuple(calibrate_by_name({f"share {i}": share for i, share in enumerate(shares)}, epsilon, delta).values())


def releases_of(shares, multipliers, sensitivity=1.0):
    return [
        Release(share.mechanism, sensitivity, multiplier, "test")
        for share, multiplier in zip(shares, multipliers, strict=True)
        for _ in range(share.count)
    ]


def independent_epsilon(releases, delta, interval=1e-4):
    """Compose the releases one by one, with dp-accounting alone."""
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    for release in releases:
        multiplier = release.scale / release.sensitivity
        if release.mechanism == "gaussian":
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        else:
            accountant.compose(dp_accounting.LaplaceDpEvent(multiplier))
    return accountant.get_epsilon(delta)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(shares=SHARES, epsilon=EPSILON, delta=DELTA)
@example(shares=(Share("gaussian", 1.0, 5), Share("laplace", 0.02, 5)), epsilon=0.05, delta=1e-3)
@example(shares=(Share("laplace", 1.0, 5), Share("laplace", 0.02, 3)), epsilon=20.0, delta=1e-9)
@example(shares=(Share("gaussian", 1.0),), epsilon=20.0, delta=1e-9)
def test_calibrated_noise_spends_what_was_asked_and_hardly_less(shares, epsilon, delta):
    multipliers = calibrate(shares, epsilon, delta)
    assert len(multipliers) == len(shares)
    spent = composed_epsilon(releases_of(shares, multipliers), delta, near=epsilon)
    assert 0.99 * epsilon <= spent <= epsilon


def test_calibrated_noise_spends_what_was_asked_by_an_accountant_of_its_own():
    shares = (Share("gaussian", 0.5, 3), Share("laplace", 0.25, 2), Share("gaussian", 0.25))
    for epsilon, delta in ((0.3, 1e-6), (2.0, 1e-4)):
        spent = independent_epsilon(releases_of(shares, calibrate(shares, epsilon, delta)), delta)
        assert 0.99 * epsilon <= spent <= epsilon * (1 + 1e-3)


def test_composed_epsilon_is_that_of_an_accountant_of_its_own():
    releases = [
        Release("gaussian", 3.0, 2.5, ""),
        Release("laplace", 0.1, 4.0, ""),
        Release("gaussian", 7.0, 2.5, ""),
        Release("laplace", 0.1, 4.0, ""),
        Release("laplace", 2.0, 11.0, ""),
    ]
    for delta in (1e-8, 1e-2):
        expected = independent_epsilon(releases, delta)
        assert composed_epsilon(releases, delta) == pytest.approx(expected, rel=1e-3)
        assert composed_epsilon(releases, delta, near=1.0) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-9), (0.5, 1e-3), (1.0, 1e-6), (5.0, 1e-5), (20.0, 1e-6)])
def test_one_gaussian_release_has_the_noise_of_the_analytic_formula(epsilon, delta):
    (multiplier,) = calibrate((Share("gaussian", 0.3),), epsilon, delta)
    assert multiplier == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-9), (0.5, 1e-6), (1.0, 1e-3), (20.0, 1e-6)])
def test_one_laplace_release_has_the_noise_that_its_closed_form_wants(epsilon, delta):
    # Laplace noise of scale b is (epsilon, delta)-private for delta = 1 - exp((epsilon - 1/b) / 2); less noise
    # than 1/epsilon suffices because delta is not 0.
    (multiplier,) = calibrate((Share("laplace", 2.0),), epsilon, delta)
    assert multiplier <= 1 / epsilon * (1 + 1e-9)
    assert multiplier == pytest.approx(1 / (epsilon - 2 * math.log1p(-delta)), rel=1e-3)


def test_the_epsilon_of_one_laplace_release_is_its_closed_form():
    for scale, delta in ((0.5, 1e-6), (2.0, 1e-2), (10.0, 1e-2)):
        expected = 1 / scale + 2 * math.log1p(-delta)
        assert composed_epsilon([Release("laplace", 9.0, scale, "")], delta) == pytest.approx(expected, rel=1e-3)


def test_epsilon_does_not_depend_on_the_units_of_the_array():
    shares = (Share("gaussian", 0.5), Share("laplace", 0.5))
    small, large = (composed_epsilon(releases_of(shares, (2.0, 3.0), unit), 1e-6) for unit in (1e-3, 1e3))
    assert small == large


def test_epsilon_does_not_depend_on_the_order_of_the_releases():
    releases = releases_of((Share("gaussian", 1, 2), Share("laplace", 1, 3)), (2.0, 3.0))
    assert composed_epsilon(releases[::-1], 1e-6) == pytest.approx(composed_epsilon(releases, 1e-6), rel=1e-9)


@settings(max_examples=5, deadline=None, derandomize=True, database=None)
@given(
    releases=st.lists(
        st.builds(
            Release,
            mechanism=st.sampled_from(["gaussian", "laplace"]),
            sensitivity=st.just(1.0),
            noise_multiplier=st.floats(0.5, 20.0),
            bound=st.just(""),
        ),
        min_size=2,
        max_size=4,
    ),
    delta=DELTA,
)
def test_one_release_more_never_lowers_epsilon(releases, delta):
    epsilons = [composed_epsilon(releases[:count], delta, near=1.0) for count in range(len(releases) + 1)]
    assert epsilons[0] == 0.0
    for fewer, more in pairwise(epsilons):
        assert more >= fewer - 1e-9


def test_a_second_release_costs_something():
    one = composed_epsilon([Release("gaussian", 1.0, 2.0, "")], 1e-6)
    two = composed_epsilon([Release("gaussian", 1.0, 2.0, "")] * 2, 1e-6)
    # Two Gaussian releases are one of noise smaller by the square root of 2.
    assert two > 1.3 * one
    assert two == pytest.approx(composed_epsilon([Release("gaussian", 1.0, math.sqrt(2.0), "")], 1e-6), rel=1e-3)


def test_a_smaller_delta_costs_epsilon():
    releases = [Release("gaussian", 1.0, 2.0, "")]
    epsilons = [composed_epsilon(releases, delta) for delta in (1e-2, 1e-4, 1e-8)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[2]


def test_no_release_spends_nothing():
    assert composed_epsilon([], 1e-6) == 0.0


@pytest.mark.parametrize("bare", ["gaussian", "laplace"])
@pytest.mark.parametrize("covered", [None, "gaussian", "laplace"])
def test_a_release_without_noise_spends_an_infinite_epsilon(bare, covered):
    releases = [Release(bare, 1.0, 0.0, "")]
    if covered:
        releases.append(Release(covered, 1.0, 5.0, ""))
    assert composed_epsilon(releases, 1e-6) == math.inf
    assert composed_epsilon(releases, 1e-6, near=1.0) == math.inf


def test_epsilon_none_is_no_noise():
    assert calibrate((Share("gaussian", 0.5, 4), Share("laplace", 0.5)), None, 1e-6) == (0.0, 0.0)


def test_no_share_has_no_multiplier():
    assert calibrate((), 1.0, 1e-6) == ()


def test_multipliers_have_the_names_of_their_shares_whatever_the_order():
    shares = {"sums": Share("gaussian", 0.75), "counts": Share("laplace", 0.25)}
    found = calibrate_by_name(shares, 1.0, 1e-6)
    assert list(found) == ["sums", "counts"]
    turned = calibrate_by_name({name: shares[name] for name in ("counts", "sums")}, 1.0, 1e-6)
    assert turned == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("fraction", [0.0, -0.5, math.nan])
@pytest.mark.parametrize("epsilon", [1.0, None])
def test_a_part_of_the_budget_that_is_not_positive_is_refused(fraction, epsilon):
    sentence = f"^a part of the privacy budget is {fraction} for 1 releases; every part must be"
    with pytest.raises(ValueError, match=sentence):
        calibrate((Share("gaussian", 1.0), Share("laplace", fraction)), epsilon, 1e-6)


def test_only_the_proportion_of_the_fractions_matters():
    first, second = (
        calibrate((Share("gaussian", 0.3 * factor, 2), Share("laplace", 0.1 * factor)), 1.0, 1e-6)
        for factor in (1.0, 10.0)
    )
    assert first == pytest.approx(second, rel=1e-6)


def test_the_epsilons_of_the_shares_stand_in_the_proportion_of_the_fractions():
    delta = 1e-6
    laplace, small, large = calibrate(
        (Share("laplace", 0.1), Share("gaussian", 0.4, 2), Share("gaussian", 0.6)), 2.0, delta
    )
    # Four releases, each with a quarter of delta.
    unit = 1 / laplace / 0.1
    assert small == pytest.approx(dp_accounting.get_sigma_gaussian(0.2 * unit, delta / 4), rel=1e-6)
    assert large == pytest.approx(dp_accounting.get_sigma_gaussian(0.6 * unit, delta / 4), rel=1e-6)


def test_composition_is_cheaper_than_adding_up_the_epsilons():
    shares = (Share("gaussian", 1.0, 20),)
    (multiplier,) = calibrate(shares, 1.0, 1e-6)
    assert multiplier < dp_accounting.get_sigma_gaussian(1.0 / 20, 1e-6) / 2


def test_very_many_releases_at_a_large_delta_can_be_calibrated():
    shares = (Share("gaussian", 1.0, 200),)
    spent = composed_epsilon(releases_of(shares, calibrate(shares, 0.05, 1e-3)), 1e-3, near=0.05)
    assert 0.99 * 0.05 <= spent <= 0.05


def test_the_count_of_a_share_is_the_same_as_writing_it_so_many_times():
    counted = calibrate((Share("gaussian", 0.3, 3), Share("laplace", 0.1)), 1.0, 1e-6)
    written = calibrate((*(Share("gaussian", 0.1),) * 3, Share("laplace", 0.1)), 1.0, 1e-6)
    assert (counted[0], counted[0], counted[0], counted[1]) == pytest.approx(written, rel=1e-4)


# A budget by name.

PARTS = {"moment": Share("gaussian", 0.2), "weights": Share("laplace", 0.3, 4), "sums": Share("gaussian", 0.3)}


def fractions(budget):
    return {name: share.fraction for name, share in divided(PARTS, budget).items()}


def test_without_a_budget_the_shares_stay_as_they_are():
    assert divided(PARTS, None) == PARTS


def test_what_a_budget_does_not_name_divides_the_rest_as_it_would_divide_the_whole():
    assert fractions({"weights": 0.5}) == pytest.approx({"moment": 0.2, "weights": 0.5, "sums": 0.3})
    assert fractions({"moment": 0.1, "sums": 0.2}) == pytest.approx({"moment": 0.1, "weights": 0.7, "sums": 0.2})
    assert fractions({"moment": 0.1, "sums": 0.2, "weights": 0.7})["weights"] == 0.7
    assert divided(PARTS, {"weights": 0.5})["weights"].count == 4


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({"weigths": 0.5}, "There is no part of the budget called 'weigths'.*'weights'"),
        ({"weights": 0.0}, "the budget of weights is 0.0; it must be a finite number above 0 and at most 1"),
        ({"weights": 1.5}, "the budget of weights is 1.5"),
        ({"weights": 1.0}, "budget adds up to 1; leave some for: moment, sums"),
        ({"weights": 0.7, "sums": 0.7}, "budget adds up to 1.4; leave some for: moment"),
        ({"weights": 0.2, "sums": 0.2, "moment": 0.2}, "budget adds up to 0.6"),
    ],
)
def test_a_budget_that_does_not_add_up_is_refused_in_a_sentence(budget, sentence):
    with pytest.raises(ValueError, match=sentence):
        divided(PARTS, budget)

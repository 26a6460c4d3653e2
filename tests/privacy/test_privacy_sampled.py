"""Releases that depend on rows drawn without replacement: what they compose to, and how much noise they get."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import dp_accounting
import pytest
from dp_accounting import rdp
from scipy.optimize import brentq
from scipy.stats import norm

from flower_fedclust.privacy import accounting
from flower_fedclust.privacy.accounting import Share, composed_epsilon, delta_of_composition
from flower_fedclust.privacy.accounting import calibrate as calibrate_by_name
from flower_fedclust.privacy.releases import Release, on_the_same_rows
from flower_fedclust.privacy.report import Message, PrivacyReport

DELTA = 1e-5
SAMPLE = (5, 1000)
ORDERS = accounting.ORDERS


def use_orders(patch, orders):
    """The work for an order grows with its square; what is known of releases at other orders is forgotten."""
    patch.setattr(accounting, "ORDERS", orders)
    accounting._sampled_epsilon.cache_clear()
    accounting._calibrated.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def few_orders():
    """Of high orders most tests learn nothing that they do not learn of low ones."""
    with pytest.MonkeyPatch.context() as patch:
        use_orders(patch, tuple(order for order in ORDERS if order <= 32))
        yield
    accounting._sampled_epsilon.cache_clear()
    accounting._calibrated.cache_clear()


@pytest.fixture
def all_orders():
    with pytest.MonkeyPatch.context() as patch:
        use_orders(patch, ORDERS)
        yield
    accounting._sampled_epsilon.cache_clear()
    accounting._calibrated.cache_clear()


def release(multiplier=1.5, sample=SAMPLE, **options):
    return Release("gaussian", 1.0, multiplier, "", "replace", sample, **options)


def share(fraction, count=1, sample=None, mechanism="gaussian"):
    return Share(mechanism, fraction, count, "replace", sample)


def calibrate(shares, epsilon, delta):
    """The multipliers of shares whose names do not matter, in their order."""
    return tuple(calibrate_by_name({f"share {i}": share for i, share in enumerate(shares)}, epsilon, delta).values())


def plain(releases):
    return [replace(one, sample=None) for one in releases]


def divergences_epsilon(replies, delta=DELTA, orders=None):
    """Compose replies, each a list of releases on the same rows, with dp-accounting alone."""
    accountant = rdp.RdpAccountant(orders or accounting.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
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


# What a release says.


@pytest.mark.parametrize("sample", [(5, 3), (0, 3), (-1, 3), (0, 0), (-3, -3)])
def test_a_sample_that_is_none_is_refused(sample):
    with pytest.raises(ValueError, match="sample"):
        release(sample=sample)
    with pytest.raises(ValueError, match="sample"):
        calibrate((share(1.0), share(1.0, 1, sample)), None, DELTA)


@pytest.mark.parametrize(
    ("mechanism", "relation"), [("laplace", "replace"), ("gaussian", "add-or-remove"), ("laplace", "add-or-remove")]
)
def test_a_sample_protects_only_with_gaussian_noise_where_a_row_is_replaced(mechanism, relation):
    with pytest.raises(ValueError, match="sample"):
        Release(mechanism, 1.0, 1.0, "", relation, SAMPLE)


def test_noise_for_a_sample_is_not_looked_for_with_laplace():
    with pytest.raises(ValueError, match="sample"):
        calibrate((share(1.0, 1, SAMPLE, "laplace"),), 1.0, DELTA)


@pytest.mark.parametrize("sample", [None, (1, 1), (5, 1000)])
def test_a_sample_goes_through_json(sample):
    one = release(sample=sample)
    back = Release.from_dict(json.loads(json.dumps(one.to_dict())))
    assert back == one
    assert hash(back) == hash(one)
    assert back.sample is None or isinstance(back.sample, tuple)


def test_what_comes_from_json_without_a_sample_has_none_and_a_wrong_one_is_refused():
    fields = release().to_dict()
    del fields["sample"]
    assert Release.from_dict(fields) == release(sample=None)
    with pytest.raises(ValueError, match="sample"):
        Release.from_dict(fields | {"sample": [5, 3]})


def test_the_event_says_of_the_sample_only_where_it_is_asked_to():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    assert release().event() == gaussian
    assert release().event(sampled=True) == dp_accounting.SampledWithoutReplacementDpEvent(1000, 5, gaussian)
    assert release(sample=None).event(sampled=True) == gaussian


@pytest.mark.parametrize("sample", [(5, 10), (6, 11), (10, 10), (1, 1), (1, 2)])
def test_a_sample_of_half_of_the_rows_or_more_is_none(sample):
    assert release(sample=sample).event(sampled=True) == dp_accounting.GaussianDpEvent(1.5)
    releases = [release(sample=sample)] * 3
    assert composed_epsilon(releases, DELTA, near=2.0) == composed_epsilon(plain(releases), DELTA, near=2.0)


def test_a_sample_of_less_than_half_is_one():
    assert release(sample=(5, 11)).event(sampled=True) != dp_accounting.GaussianDpEvent(1.5)


# Composition.


@pytest.mark.parametrize(
    ("multiplier", "count", "sample"), [(1.5, 20, (5, 1000)), (0.8, 1, (20, 500)), (4.0, 50, (1, 30))]
)
def test_a_small_sample_costs_less_and_what_dp_accounting_says(multiplier, count, sample, all_orders):
    releases = [release(multiplier, sample)] * count
    epsilon = composed_epsilon(releases, DELTA)
    assert epsilon == pytest.approx(divergences_epsilon([[one] for one in releases]), rel=1e-9)
    assert epsilon < 0.8 * composed_epsilon(plain(releases), DELTA)


@pytest.mark.parametrize(("multiplier", "count"), [(1.5, 20), (0.7, 5)])
def test_more_orders_would_hardly_lower_epsilon(multiplier, count, all_orders):
    releases = [release(multiplier)] * count
    fine = divergences_epsilon([[one] for one in releases], orders=[*range(2, 65), 96, 128])
    assert fine * (1 - 1e-9) <= composed_epsilon(releases, DELTA) <= 1.02 * fine


def test_where_other_releases_cost_most_epsilon_is_what_it_is_without_the_sample():
    releases = [release(20.0), release(1.0, None)]
    without = composed_epsilon(plain(releases), DELTA, near=4.0)
    assert divergences_epsilon([[one] for one in releases]) > without
    assert composed_epsilon(releases, DELTA, near=4.0) == without


def test_a_larger_sample_never_costs_less():
    epsilons = [composed_epsilon([release(1.5, (size, 1000))] * 10, DELTA, near=2.0) for size in (1, 100, 1000)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < 0.5 * epsilons[-1]


def test_one_sampled_release_more_never_lowers_epsilon():
    releases = [release(1.5), release(0.9, (20, 1000)), release(3.0, None), release(1.5)]
    epsilons = [composed_epsilon(releases[:count], DELTA, near=2.0) for count in range(5)]
    assert epsilons[0] == 0.0
    for fewer, more in pairwise(epsilons):
        assert more >= fewer


@pytest.mark.parametrize(("multiplier", "fraction"), [(0.6, 0.01), (1.0, 0.05), (2.0, 0.3)])
def test_epsilon_is_not_below_what_one_release_exactly_spends(multiplier, fraction, all_orders):
    # A row of value 0 is replaced by one of value 1, among rows of value 0.
    def excess(epsilon):
        """Delta of the mixture of N(0) and N(1) against N(0): the ratio exceeds exp(epsilon) beyond a threshold."""
        threshold = multiplier**2 * math.log1p(math.expm1(epsilon) / fraction) + 0.5
        above = norm.sf(threshold, scale=multiplier)
        return (1 - fraction) * above + fraction * norm.sf(threshold - 1, scale=multiplier) - math.exp(epsilon) * above

    exact = brentq(lambda epsilon: excess(epsilon) - DELTA, 0.0, 50.0)
    assert composed_epsilon([release(multiplier, (round(1000 * fraction), 1000))], DELTA) >= exact


def test_sampled_and_other_releases_compose():
    sampled, others = [release(1.0)] * 10, [release(4.0, None), release(6.0, None)]
    epsilon = composed_epsilon(sampled + others, DELTA, near=2.0)
    assert epsilon == pytest.approx(divergences_epsilon([[one] for one in sampled + others]), rel=1e-9)
    assert max(composed_epsilon(part, DELTA, near=2.0) for part in (sampled, others)) < epsilon
    assert epsilon < composed_epsilon(plain(sampled + others), DELTA, near=2.0)


def test_sampled_releases_compose_with_laplace():
    laplace = Release("laplace", 1.0, 5.0, "", "replace")
    epsilon = composed_epsilon([release(1.0), laplace], DELTA)
    assert composed_epsilon([laplace], DELTA) < epsilon < composed_epsilon([*plain([release(1.0)]), laplace], DELTA)


def test_order_of_the_releases_does_not_matter():
    releases = [release(1.0), release(4.0, None), release(2.0, (9, 100)), release(1.0)]
    assert composed_epsilon(releases[::-1], DELTA) == pytest.approx(composed_epsilon(releases, DELTA), rel=1e-9)


@pytest.mark.parametrize("others", [[], [release(2.0)], [release(2.0, None)]])
def test_a_sampled_release_without_noise_spends_an_infinite_epsilon(others):
    assert composed_epsilon([release(0.0), *others], DELTA) == math.inf


# Several arrays on the same rows.


def test_arrays_on_the_same_rows_are_one_release_of_what_dp_accounting_composes_them_to():
    for multipliers in ((1.5, 3.0), (2.0, 2.0, 2.0)):
        reply = [release(multiplier) for multiplier in multipliers]
        (together,) = on_the_same_rows(reply)
        assert together.noise_multiplier == pytest.approx(sum(m**-2 for m in multipliers) ** -0.5)
        epsilon = composed_epsilon([together] * 5, DELTA, near=2.0)
        assert epsilon == pytest.approx(divergences_epsilon([reply] * 5), rel=1e-6)


def test_arrays_on_the_same_rows_cost_more_than_on_rows_that_are_drawn_anew():
    reply = [release(1.0)] * 2
    assert composed_epsilon(on_the_same_rows(reply) * 5, DELTA) > 1.2 * composed_epsilon(reply * 5, DELTA)


def test_without_a_sample_it_makes_no_difference_whether_arrays_are_on_the_same_rows():
    reply = [release(2.0, None), release(3.0, None), Release("laplace", 1.0, 5.0, "", "replace")]
    assert on_the_same_rows(reply) == reply


def test_a_sampled_array_alone_and_arrays_of_different_samples_stay_as_they_are():
    reply = [release(0.1), release(0.3, (9, 100)), release(0.7, None)]
    assert on_the_same_rows(reply) == reply


def test_releases_of_one_reply_are_free_of_units():
    reply = [Release("gaussian", 7.0, 0.3, "clipped", "replace"), Release("gaussian", 0.1, 0.3, "short", "replace")]
    assert on_the_same_rows(reply) == [release(0.3, None)] * 2


def test_an_array_without_noise_on_the_same_rows_takes_the_protection_of_the_others():
    assert [one.noise_multiplier for one in on_the_same_rows([release(2.0), release(0.0)])] == [0.0]


def report(*messages):
    return PrivacyReport("dp-fedc", messages, 2.0, DELTA, "record", "server")


def message(round_, multiplier, content="gradients", **options):
    return Message(round_, "step", content, "sum over the clients", release(multiplier, **options))


def test_the_report_composes_the_arrays_of_a_round_as_ones_on_the_same_rows():
    same = report(message(2, 1.5), message(2, 1.5, "products"), message(3, 1.5))
    assert same.composed_epsilon == pytest.approx(
        divergences_epsilon([[release()] * 2, [release()]], delta_of_composition(DELTA)), rel=1e-6
    )
    anew = report(message(2, 1.5), message(3, 1.5, "products"), message(4, 1.5))
    assert anew.composed_epsilon == pytest.approx(
        divergences_epsilon([[release()]] * 3, delta_of_composition(DELTA)), rel=1e-9
    )
    assert anew.composed_epsilon < same.composed_epsilon


def test_the_text_says_how_many_rows_are_drawn_of_how_many():
    assert ", noise scale 1.5, on 5 rows drawn from at least 1000\n" in str(report(message(2, 1.5)))
    assert "drawn from" not in str(report(message(2, 1.5, sample=None)))


def test_the_dictionary_of_a_report_with_samples_is_json():
    fields = json.loads(json.dumps(report(message(2, 1.5)).to_dict(), allow_nan=False))
    assert Release.from_dict(fields["messages"][0]["release"]) == release(1.5)


# Calibration: few of these, as each takes half a second.

SHARES = (share(0.7, 6, SAMPLE), share(0.2, 6, SAMPLE), share(0.1, 3))
EPSILON = 1.0


@pytest.fixture(scope="module")
def multipliers():
    return calibrate(SHARES, EPSILON, DELTA)


def test_calibrated_noise_spends_what_was_asked_and_hardly_less(multipliers):
    first, second, other = (release(found, share.sample) for found, share in zip(multipliers, SHARES, strict=True))
    spent = composed_epsilon([*on_the_same_rows([first, second]) * 6, *[other] * 3], DELTA, near=EPSILON)
    assert 0.99 * EPSILON <= spent <= EPSILON
    assert divergences_epsilon([[first, second]] * 6 + [[other]] * 3) == pytest.approx(spent, rel=1e-6)


def test_calibrated_noise_is_smaller_than_without_the_sample(multipliers):
    without = calibrate(tuple(replace(share, sample=None) for share in SHARES), EPSILON, DELTA)
    assert all(found < 0.9 * other for found, other in zip(multipliers, without, strict=True))


def test_order_of_the_shares_does_not_matter(multipliers):
    assert calibrate(SHARES[::-1], EPSILON, DELTA)[::-1] == pytest.approx(multipliers, rel=1e-3)


def test_the_report_of_a_calibrated_run_says_what_was_asked(multipliers):
    first, second, other = (release(found, share.sample) for found, share in zip(multipliers, SHARES, strict=True))
    messages = [
        Message(number, "step", content, "sum over the clients", one)
        for number in range(2, 8)
        for content, one in (("gradients", first), ("products", second))
    ]
    messages += [Message(number, "sums", "sums", "sum over the clients", other) for number in (8, 9, 10)]
    # The report leaves a part of delta to the sampler, which these multipliers were not calibrated for.
    assert 0.99 * EPSILON <= report(*messages).composed_epsilon <= 1.0001 * EPSILON


def test_shares_of_unequal_counts_are_on_the_same_rows_as_long_as_both_are_there():
    shares = (share(0.3, 1, SAMPLE), share(0.7, 3, SAMPLE))
    first, second = (release(multiplier) for multiplier in calibrate(shares, 1.0, DELTA))
    spent = divergences_epsilon([[first, second], [second], [second]])
    assert 0.99 <= spent <= 1.0


@pytest.mark.parametrize(("sample", "epsilon"), [(SAMPLE, 4.0), ((500, 1000), 1.0)])
def test_a_sample_that_gains_nothing_changes_no_noise(sample, epsilon):
    shares = (share(0.99), share(0.01, 1, sample))
    assert calibrate(shares, epsilon, DELTA) == calibrate((shares[0], replace(shares[1], sample=None)), epsilon, DELTA)


def test_an_epsilon_of_which_the_divergences_know_nothing_is_met_without_the_sample(all_orders):
    assert calibrate((share(1.0, 10, SAMPLE),), 0.05, 1e-9) == (calibrate((share(1.0, 10),), 0.05, 1e-9))


def test_epsilon_none_is_no_noise_for_samples_too():
    assert calibrate((share(1.0, 10, SAMPLE),), None, DELTA) == (0.0,)

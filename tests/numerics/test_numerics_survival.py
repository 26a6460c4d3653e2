"""Life tables: beside an obvious formula and lifelines, and what noise and chance move."""

from fractions import Fraction

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from flower_fedclust.numerics.survival import LifeTables, _never_rising, merged_ends, n_time_bins


def counts_of(table):
    """Return one of five small tables, made of whole numbers."""
    n_groups, n_bins = table + 2, 3 * table + 4
    group, place = np.arange(n_groups)[:, None], np.arange(n_bins)
    events = (5 * place**2 + 11 * group + 7 * table) % 23
    return LifeTables(
        np.cumsum(1.0 + place % 3),
        events.astype(float),
        ((3 * place + 5 * group) % 11).astype(float),
        (9.0 + (13 * group[:, 0]) % 37),
    )


#: What lifelines 0.30.3 says of rows with these counts: the last values of the curves, the restricted means, and the
#: statistic and p-value of the log-rank test. Events lie in the middle of a bin, half of the censored rows before them.
LIFELINES = [
    (
        [0.241656837577187, 0.36776371405048],
        [5.71935058627628, 4.63765453562819],
        0.41594980102635,
        0.518964964789311,
    ),
    (
        [0.219481856702583, 0.284656196524019, 0.430208637941526],
        [8.45788683944424, 8.60544094567067, 9.57301313052245],
        *(8.01762441147944, 0.0181549467764464),
    ),
    (
        [0.181779723099796, 0.250607392840045, 0.380233896828066, 0.143793370214043],
        [11.0908219308742, 13.0898497705857, 12.4425751379421, 13.2278735111863],
        *(9.08394477380549, 0.0281953663147208),
    ),
    (
        [
            0.0985998552916654,
            0.237542923585517,
            0.273432856271885,
            0.136722247253855,
            0.233683374423189,
        ],
        [13.8568613803655, 16.4565523797875, 15.6047368610835, 16.0425793457234, 15.1288322212184],
        *(17.048712197987, 0.00189127555368421),
    ),
    (
        [
            *(0.0893790139573195, 0.204163367704931, 0.227698371398453),
            *(0.11070284831139, 0.211694178747321, 0.244708401833264),
        ],
        [
            *(20.0718795955261, 18.5224647041576, 21.6707210624143),
            *(18.9902760390616, 20.9870924312298, 20.3987183927454),
        ],
        *(15.4709796208065, 0.00852853771819008),
    ),
]


@pytest.mark.parametrize("table", range(5))
def test_without_noise_curves_means_and_test_are_those_of_lifelines(table):
    found = counts_of(table)
    curves, means, statistic, p_value = LIFELINES[table]
    np.testing.assert_allclose(found.survival[:, -1], curves, rtol=1e-12)
    np.testing.assert_allclose([one.value for one in found.restricted_means()], means, rtol=1e-12)
    np.testing.assert_allclose(found.log_rank().statistic, statistic, rtol=1e-11)
    np.testing.assert_allclose(found.log_rank().p_value, p_value, rtol=1e-11)
    assert found.log_rank().n_degrees == found.n_groups - 1


@pytest.mark.parametrize("table", range(5))
def test_a_curve_is_the_product_of_the_shares_that_pass_each_bin(table):
    found = counts_of(table)
    for group in range(found.n_groups):
        left, curve = (
            sum(found.events[group]) + sum(found.censored[group]) + found.beyond[group],
            Fraction(1),
        )
        for place in range(found.n_bins):
            assert found.starting[group, place] == left
            events, censored = (
                Fraction(int(one[group, place])) for one in (found.events, found.censored)
            )
            curve *= 1 - events / (Fraction(int(left)) - censored / 2)
            assert found.survival[group, place] == pytest.approx(float(curve), abs=1e-14)
            left -= int(events + censored)


def test_without_noise_the_error_of_a_curve_is_greenwoods():
    found = LifeTables(
        np.arange(1.0, 4.0),
        np.array([[5.0, 8.0, 3.0]]),
        np.array([[2.0, 4.0, 6.0]]),
        np.array([40.0]),
    )
    at_risk = found.at_risk[0]
    greenwood = np.cumsum(found.events[0] / (at_risk * (at_risk - found.events[0])))
    # Censored rows count for a half, of which Greenwood's formula takes no notice.
    np.testing.assert_allclose(found.error[0], found.survival[0] * np.sqrt(greenwood), rtol=0.01)


def _moved(found, change):
    """Return the same counts after a change of one of them."""
    parts = [found.events.copy(), found.censored.copy(), found.beyond.copy()]
    part, place = change
    parts[part][place] += 1e-4
    return LifeTables(found.ends, *parts, found.deviation)


def _changes(found):
    for part, shape in enumerate((found.events.shape, found.censored.shape, found.beyond.shape)):
        yield from ((part, place) for place in np.ndindex(shape))


def test_the_error_contains_the_noise_of_every_count_to_first_order():
    exact = counts_of(1)
    noisy = LifeTables(exact.ends, exact.events, exact.censored, exact.beyond, deviation=1.0)
    curves = [(_moved(exact, change)._raw - exact._raw) / 1e-4 for change in _changes(exact)]
    variances = np.sum(np.square(curves), axis=0)
    of_noise = np.diagonal(noisy.covariance - exact.covariance, axis1=1, axis2=2)
    np.testing.assert_allclose(of_noise, variances, rtol=1e-3)


def test_the_variance_of_the_test_contains_the_noise_of_every_count_to_first_order():
    exact, deviation = counts_of(0), 3.0

    def difference(found):
        shares = found.at_risk / found.at_risk.sum(axis=0)
        return (found.events - shares * found.events.sum(axis=0)).sum(axis=1)

    moves = [
        (difference(_moved(exact, one)) - difference(exact))[0] / 1e-4 for one in _changes(exact)
    ]
    (before, after) = (
        LifeTables(exact.ends, exact.events, exact.censored, exact.beyond, noise)
        .log_rank()
        .statistic
        for noise in (0.0, deviation)
    )
    whole = difference(exact)[0] ** 2
    assert whole / after - whole / before == pytest.approx(
        deviation**2 * np.sum(np.square(moves)), rel=1e-3
    )


def test_curves_with_noise_are_the_nearest_that_never_rise():
    for seed in range(5):
        values = np.random.default_rng(seed).normal(size=20) - np.linspace(0, 2, 20)
        nearest = IsotonicRegression(increasing=False).fit_transform(np.arange(20), values)
        np.testing.assert_allclose(_never_rising(values), nearest, atol=1e-12)


def test_a_median_is_an_interval_of_bins_open_where_the_curve_does_not_tell():
    ends = np.array([10.0, 20.0, 30.0, 40.0])
    events = np.array(
        [[50.0, 400.0, 300.0, 100.0], [20.0, 20.0, 20.0, 20.0], [100.0, 150.0, 160.0, 90.0]]
    )
    found = LifeTables(ends, events, np.zeros((3, 4)), np.array([150.0, 920.0, 500.0]))
    early, late, open_ = found.medians
    assert (early.low, early.high) == (20, 30)
    assert early.low < early.value < early.high
    assert (late.low, late.high, late.value) == (40, np.inf, np.inf)
    assert (open_.low, open_.high) == (30, np.inf)


def test_limits_never_rise_and_a_curve_ends_where_noise_hides_who_is_at_risk():
    found = counts_of(4)
    noisy = LifeTables(
        found.ends, 10 * found.events, 10 * found.censored, found.beyond, deviation=30.0
    )
    lower, upper = noisy.simultaneous
    assert not noisy.is_known[:, -1].all()
    assert noisy.is_known[:, 0].all()
    for group in range(noisy.n_groups):
        known = noisy.is_known[group]
        assert (np.diff(lower[group][known]) <= 0).all()
        assert (np.diff(upper[group][known]) <= 0).all()
        assert (lower[group][known] <= upper[group][known]).all()
        assert np.isnan(noisy.survival[group][~known]).all()


def test_simultaneous_bands_hold_whole_curves_and_the_test_keeps_its_level():
    rng, n_rows, ends = np.random.default_rng(0), 1250, np.arange(1.0, 13.0)
    true, held, rejected = np.exp(-0.08 * ends), [], []
    for _ in range(60):
        times, censored_at = (
            rng.exponential(1 / 0.08, (3, n_rows)),
            rng.exponential(1 / 0.04, (3, n_rows)),
        )
        bins = np.searchsorted(ends, np.minimum(times, censored_at))
        is_event = times <= censored_at
        events, censored = (
            np.array(
                [
                    np.bincount(one[which], minlength=13)
                    for one, which in zip(bins, chosen, strict=True)
                ],
                float,
            )
            for chosen in (is_event, ~is_event)
        )
        parts = [events[:, :12], censored[:, :12], events[:, 12] + censored[:, 12]]
        found = LifeTables(
            ends, *(one + rng.normal(scale=9.4, size=one.shape) for one in parts), deviation=9.4
        )
        lower, upper = found.simultaneous
        held += ((lower <= true) & (true <= upper) | ~found.is_known).all(axis=1).tolist()
        rejected.append(found.log_rank().p_value < 0.05)
    assert np.mean(held) > 0.88  # 180 curves; the benchmark has many more
    assert np.mean(rejected) < 0.2


def test_more_noise_asks_for_fewer_bins_which_are_whole_bins_of_the_schema():
    asked = [n_time_bins(1250, noise, 24) for noise in (0.0, 5.0, 9.4, 20.0, 100.0)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 24
    assert asked[-1] == 4
    assert n_time_bins(0.0, 9.4, 3) == 3
    ends = np.arange(1.0, 25.0)
    for n_bins in range(1, 25):
        merged = merged_ends(ends, n_bins)
        assert len(merged) == n_bins
        assert merged[-1] == 24
        assert np.isin(merged, ends).all()
        assert (np.diff(merged) > 0).all()

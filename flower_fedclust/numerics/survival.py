"""Life tables of groups from counts in bins of time: curves, bands, medians, restricted means and a log-rank test.

A row is censored if its time ends without an event. A life table (actuarial estimate) assumes that a row was at risk
for half of the bin in which it is censored. If n rows reach a bin, and d of them have the event in it and w are
censored, the share that passes the bin is ``1 - d / (n - w / 2)``. The curve is the product of these shares. It is the
Kaplan-Meier estimate for rows whose events lie in the middle of their bins, if half of the censored rows leave before
the events and half after.

Counts may have noise of a known standard deviation. Every error here then has two sources: sampling, by which a count
varies as a Poisson variable does, and noise. Both are propagated by the derivatives of the curve, or of the test, with
respect to each count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: The share of true curves that should lie inside their simultaneous band.
LEVEL = 0.95
#: The share for which bands are computed. It is a little larger because standard deviations are estimated: bands
#: computed for .95 contained 92 to 95% of the curves.
DRAWN_LEVEL = 0.965
#: The interval of a single number reaches this many standard deviations to either side.
DEVIATIONS = 2.0
#: The number of random curves, always the same, from which the reach of a simultaneous band is found.
N_CURVES = 4096
#: A curve ends where the rows at risk are fewer than LEAST_AT_RISK standard deviations of their noise. The log-rank
#: test ends where the rows at risk in all groups together are fewer than LEAST_IN_TEST standard deviations.
LEAST_AT_RISK, LEAST_IN_TEST = 3.0, 6.0
#: How far the noise of counts may move a curve, as a standard deviation, before neighboring bins are merged.
MOST_MOVED = 0.025
#: Bins are never merged to fewer than this.
FEWEST_BINS = 4


class Interval(NamedTuple):
    """A number and the limits of its interval. An unknown number is NaN, and a missing limit is infinite."""

    value: float
    low: float
    high: float


class LogRank(NamedTuple):
    """The result of a log-rank test of whether all groups have the same curve."""

    statistic: float
    n_degrees: int  #: Degrees of freedom.
    p_value: float


@dataclass(frozen=True)
class LifeTables:
    """The life tables of several groups.

    Parameters
    ----------
    ends : ndarray of shape (n_bins,)
        Ascending upper ends of the bins. The first bin begins at 0, and a bin holds its upper end.
    events, censored : ndarray of shape (n_groups, n_bins)
        Rows whose time ends in a bin, with and without an event.
    beyond : ndarray of shape (n_groups,)
        Rows whose time ends after the last bin.
    deviation : float, default=0
        The standard deviation of the noise in each count.
    fewest : float, default=0
        A curve ends where fewer rows than this are at risk.
    """

    ends: Floats
    events: Floats
    censored: Floats
    beyond: Floats
    deviation: float = 0.0
    fewest: float = 0.0

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.events)

    @property
    def n_bins(self) -> int:
        """The number of bins."""
        return len(self.ends)

    @cached_property
    def starting(self) -> Floats:
        """The rows that reach the start of each bin and, last, the end of the last bin: (n_groups, n_bins + 1)."""
        leaving = np.concatenate([self.events + self.censored, self.beyond[:, None]], axis=1)
        return np.asarray(np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1])

    @cached_property
    def starting_deviation(self) -> Floats:
        """The standard deviation of the noise in :attr:`starting`, of shape (n_bins + 1,)."""
        return np.asarray(self.deviation * np.sqrt(2.0 * np.arange(self.n_bins, -1, -1) + 1.0))

    @cached_property
    def at_risk(self) -> Floats:
        """The rows at risk in each bin: the rows that reach it, less half of the rows that are censored in it."""
        return np.asarray(self.starting[:, :-1] - self.censored / 2.0)

    @cached_property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether the curve of each group reaches each bin: it ends with the first bin with too few rows at risk."""
        fewest = np.maximum(LEAST_AT_RISK * self.starting_deviation[:-1], max(self.fewest, 1e-9))
        return np.logical_and.accumulate(self.at_risk >= fewest, axis=1)

    @cached_property
    def _dying(self) -> Floats:
        """The noisy share of the rows at risk that have the event in each bin; 0 where a curve has ended."""
        found: Floats = np.zeros(self.events.shape)
        np.divide(self.events, self.at_risk, out=found, where=self.is_known)
        return found

    @cached_property
    def _raw(self) -> Floats:
        """The product of the shares that pass the bins; because of noise, it may exceed 1 or rise."""
        return np.asarray(np.cumprod(1.0 - np.minimum(self._dying, 1.0), axis=1))

    @cached_property
    def survival(self) -> Floats:
        """The curve at the end of each bin, between 0 and 1 and never rising; NaN where it has ended."""
        found = self._raw
        if self.deviation > 0:
            found = np.array([_never_rising(one) for one in np.where(self.is_known, found, 0.0)])
        return np.where(self.is_known, np.clip(found, 0.0, 1.0), np.nan)

    @cached_property
    def covariance(self) -> Floats:
        """The covariance of each curve's errors, by noise and sampling, at bins' ends: (n_groups, n_bins, n_bins)."""
        variances = self.deviation**2 + np.maximum(
            np.concatenate([self.events, self.censored], axis=1), 1.0
        )
        of_beyond = self.deviation**2 + np.maximum(self.beyond, 1.0)
        at_risk = np.where(self.is_known, np.maximum(self.at_risk, 1.0), 1.0)
        passing = np.maximum(1.0 - self._dying, 1.0 / at_risk)
        curves = np.cumprod(passing, axis=1)
        # Derivatives of the curve's logarithm by the events, and by the rows at risk, of a bin.
        by_event = -1.0 / (at_risk * passing)
        by_risk = -by_event * self._dying
        until = np.tri(self.n_bins)  # the curve at the end of a bin depends on the bins up to it
        found = []
        for group in range(self.n_groups):
            # A row that leaves in a bin is at risk in all earlier bins, and in this bin for the whole or half of it.
            moved = until * by_risk[group]
            earlier = np.cumsum(moved, axis=1)
            by_events = until * by_event[group] + earlier
            by_censored = earlier - moved / 2.0
            jacobian = np.concatenate([by_events, by_censored, earlier[:, -1:]], axis=1)
            jacobian *= curves[group][:, None]
            weights = np.append(variances[group], of_beyond[group])
            found.append((jacobian * weights) @ jacobian.T)
        return np.array(found)

    @cached_property
    def error(self) -> Floats:
        """The standard deviation of each curve's error, by noise and sampling, at bins' ends; NaN after its end."""
        variances = np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0.0)
        return np.where(self.is_known, np.sqrt(variances), np.nan)

    def band(self, deviations: Floats | float) -> tuple[Floats, Floats]:
        """Return limits of each curve at this many standard deviations; like a true curve, no limit ever rises."""
        each_group = np.asarray(deviations, dtype=np.float64).reshape(-1, 1)
        reach = each_group * self.error
        lower = np.clip(self._raw - reach, 0.0, 1.0)
        upper = np.clip(self._raw + reach, 0.0, 1.0)
        # After its end, a curve sets no limits to its other values.
        lower = np.where(self.is_known, lower, 0.0)
        upper = np.where(self.is_known, upper, 1.0)
        # A true curve never rises: if it is above a limit at the end of one bin, it was above it at all earlier ends.
        backwards = np.maximum.accumulate(lower[:, ::-1], axis=1)
        lower = backwards[:, ::-1]
        upper = np.minimum.accumulate(upper, axis=1)
        lower = np.minimum(lower, upper)
        lower = np.where(self.is_known, lower, np.nan)
        upper = np.where(self.is_known, upper, np.nan)
        return lower, upper

    @cached_property
    def simultaneous(self) -> tuple[Floats, Floats]:
        """The limits between which a whole true curve lies with the probability :data:`LEVEL`."""
        return self.band(np.array([self._reach(group) for group in range(self.n_groups)]))

    def _reach(self, group: int) -> float:
        """Return how many standard deviations a band must reach to hold the whole curve as often as DRAWN_LEVEL."""
        known = self.is_known[group] & (self.error[group] > 0)
        if not known.any():
            return DEVIATIONS
        scale = 1.0 / self.error[group][known]
        correlation = self.covariance[group][np.ix_(known, known)] * np.outer(scale, scale)
        values, vectors = np.linalg.eigh(correlation)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = np.random.default_rng(0).standard_normal((N_CURVES, len(scale))) @ root.T
        return float(np.quantile(np.abs(drawn).max(axis=1), DRAWN_LEVEL))

    @cached_property
    def medians(self) -> list[Interval]:
        """The time by which half of each group has had the event.

        Both limits are ends of bins. At the lower limit more than half of the group is left without an event, and at
        the upper limit half or less, each with :data:`DEVIATIONS` standard deviations to spare. If there is no such
        end, the upper limit is infinite. If the curve stays above one half, the value is infinite, too.
        """
        lower, upper = self.band(DEVIATIONS)
        return [self._median(*limits) for limits in zip(self.survival, lower, upper, strict=True)]

    def _median(self, curve: Floats, lower: Floats, upper: Floats) -> Interval:
        n_known = int(np.count_nonzero(~np.isnan(curve)))
        if n_known == 0:
            return Interval(np.nan, 0.0, np.inf)
        times = np.append(0.0, self.ends[:n_known])
        with_start = np.append(1.0, curve[:n_known])
        n_above = int(np.count_nonzero(lower[:n_known] > 0.5))
        low = float(times[n_above])
        is_half = upper[:n_known] <= 0.5
        high = float(self.ends[is_half.argmax()]) if is_half.any() else np.inf
        value = np.inf
        if with_start[-1] <= 0.5:
            after = int((with_start <= 0.5).argmax())
            step = with_start[after - 1] - with_start[after]
            part = (with_start[after - 1] - 0.5) / step if step > 0 else 1.0
            value = float(times[after - 1] + part * (times[after] - times[after - 1]))
        return Interval(min(max(value, low), high), low, high)

    def restricted_means(self, until: float | None = None) -> list[Interval]:
        """Return the mean time without an event, up to a time that the curves of all groups reach.

        By default it is the last such time. A curve is assumed to fall evenly within a bin.
        """
        n_shared = int(
            np.count_nonzero(self.ends <= (self.shared_time if until is None else until))
        )
        if n_shared == 0:
            return [Interval(np.nan, 0.0, np.inf)] * self.n_groups
        widths = np.diff(self.ends[:n_shared], prepend=0.0)
        weights = (widths + np.append(widths[1:], 0.0)) / 2.0
        curves = self.survival[:, :n_shared]
        values = widths[0] / 2.0 + curves @ weights
        variances = np.einsum(
            "i,gij,j->g", weights, self.covariance[:, :n_shared, :n_shared], weights
        )
        reach = DEVIATIONS * np.sqrt(np.maximum(variances, 0.0))
        longest = float(self.ends[n_shared - 1])
        return [
            Interval(float(value), max(float(value - far), 0.0), min(float(value + far), longest))
            for value, far in zip(values, reach, strict=True)
        ]

    @property
    def shared_time(self) -> float:
        """The end of the last bin that the curves of all groups reach; 0 if there is none."""
        n_shared = int(self.is_known.all(axis=0).sum())
        return float(self.ends[n_shared - 1]) if n_shared else 0.0

    def log_rank(self) -> LogRank | None:
        """Test whether all groups have the same curve, with the noise in the variance; None for too few at risk."""
        from scipy.special import chdtrc

        in_all = self.at_risk.sum(axis=0)
        noise = np.sqrt(self.n_groups) * self.starting_deviation[:-1]
        used = np.logical_and.accumulate(in_all >= np.maximum(LEAST_IN_TEST * noise, 1.0 + 1e-9))
        if self.n_groups < 2 or not used.any():
            return None
        at_risk, in_all, events = self.at_risk[:, used], in_all[used], self.events[:, used]
        of_all = events.sum(axis=0)
        shares, rates = at_risk / in_all, of_all / in_all
        difference = (events - shares * of_all).sum(axis=1)
        variance = _hypergeometric(shares, of_all, in_all) + self.deviation**2 * _moved_by_noise(
            shares, rates
        )
        # The differences add up to 0, so the last one follows from the others.
        difference, variance = difference[:-1], variance[:-1, :-1]
        inverse = np.linalg.pinv(variance, rcond=1e-10, hermitian=True)
        n_degrees = int(np.linalg.matrix_rank(variance, hermitian=True))
        if n_degrees == 0:
            return None
        statistic = max(float(difference @ inverse @ difference), 0.0)
        return LogRank(statistic, n_degrees, float(chdtrc(n_degrees, statistic)))


def _hypergeometric(shares: Floats, events: Floats, at_risk: Floats) -> Floats:
    """Return the covariances of the groups' events in all bins, given the rows at risk and all events."""
    shares = np.clip(shares, 0.0, 1.0)
    events = np.clip(events, 0.0, at_risk)
    each = events * (at_risk - events) / (at_risk - 1.0)
    return np.asarray(np.diag(shares @ each) - (shares * each) @ shares.T)


def _moved_by_noise(shares: Floats, rates: Floats) -> Floats:
    """Return the covariances that noise of variance 1 in every count adds to the log-rank differences."""
    n_groups = len(shares)
    # Derivatives of one group's difference by the events of each group, its own included, in a bin.
    direct = np.eye(n_groups)[:, :, None] - shares[:, None, :]
    by_risk = direct * rates
    earlier = np.cumsum(by_risk, axis=2)
    by_events = direct - earlier
    by_censored = earlier - by_risk / 2.0
    by_beyond = earlier[:, :, -1:]
    moved = np.concatenate([by_events, by_censored, by_beyond], axis=2).reshape(n_groups, -1)
    return np.asarray(moved @ moved.T)


def _never_rising(values: Floats) -> Floats:
    """Return the nearest values that never rise, by the min-max formula of isotonic regression."""
    n_values = len(values)
    sums = np.append(0.0, np.cumsum(values))
    starts, stops = np.arange(n_values)[:, None], np.arange(n_values)[None, :]
    means = (sums[None, 1:] - sums[:-1, None]) / np.maximum(stops - starts + 1, 1)
    means = np.where(stops >= starts, means, -np.inf)
    # For each start, the greatest mean over all stops from a position on.
    greatest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    greatest = np.where(stops >= starts, greatest, np.inf)
    return np.asarray(
        np.minimum.accumulate(greatest, axis=0)[np.arange(n_values), np.arange(n_values)]
    )


def n_time_bins(n_rows: float, deviation: float, most: int) -> int:
    """Return how many bins to use, at most ``most``, for a group of about ``n_rows`` rows.

    The noise of the events of k bins moves a curve by about ``deviation * sqrt(k) / n_rows``. The number of bins is
    chosen so that this stays below :data:`MOST_MOVED`: noise then hides less than coarser bins would.
    """
    if deviation == 0:
        return most
    n_bins = (MOST_MOVED * max(n_rows, 0.0) / deviation) ** 2
    return int(min(max(n_bins, FEWEST_BINS), most))


def merged_ends(ends: Floats, n_bins: int) -> Floats:
    """Return the upper ends of ``n_bins`` bins, each joined from about equally many given bins; the last end stays."""
    places = np.round(np.linspace(0, len(ends), min(n_bins, len(ends)) + 1)[1:]).astype(np.intp) - 1
    return np.asarray(ends[places])

"""What drawn noise says: whether it has its declared law, and how well two neighbours can be told apart through it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, gamma, kstest, laplace, norm

from flower_fedclust.checking.draws import Cell
from flower_fedclust.privacy.releases import Mechanism

Floats = NDArray[np.float64]

#: How often a sound strategy may be called broken, over all tests of an audit together.
FALSE_ALARM = 1e-3

#: The parts of that: laws of noise, where noise comes from, rows that are drawn, bounds on epsilon and on delta.
OF_NOISE, OF_SOURCES, OF_SAMPLES, OF_EPSILON, OF_DELTA = 0.4, 0.1, 0.1, 0.2, 0.2

#: Of so many numbers the law is tested, and of so many the lowest bits.
MOST_TESTED = 20_000

#: Which of the largest numbers are compared with their law, to see whether noise is cut off.
RANKS_OF_TAILS = (1, 10, 100)

#: The lowest bits of noise that is at least eight times wider than these are as good as uniform.
RESIDUES, LEAST_A_CLASS = 16, 50


@dataclass(frozen=True)
class NoiseTest:
    """The noise of one release, over all rounds, beside what is declared.

    Parameters
    ----------
    n_numbers : int
    factor : float
        How wide the noise is, over how wide it is declared to be.
    p_values : dict of str to float
        By what would be wrong: how likely it is that sound noise looks as wrong as this.
    """

    n_numbers: int
    factor: float
    p_values: Mapping[str, float]

    def smallest_factor(self, level: float, mechanism: str) -> float:
        """Return how narrow the noise may be and be called sound at least in one case of two."""
        if self.n_numbers == 0:
            return 0.0
        law = chi2(self.n_numbers) if mechanism == "gaussian" else gamma(self.n_numbers)
        share = float(law.ppf(level)) / float(law.ppf(0.5))
        return math.sqrt(share) if mechanism == "gaussian" else share


def test_noise(cells: Sequence[Cell]) -> NoiseTest:
    """Test the noise of one release, in all of its rounds, against its declared law."""
    of_cells = [drawn for cell in cells for drawn in cell.standardised.values()]
    parts = [part for drawn in of_cells for part in drawn]
    z = np.concatenate(parts) if parts else np.empty(0)
    if not z.size:
        return NoiseTest(0, math.nan, {})
    release, is_whole = cells[0].release, all(cell.is_whole for cell in cells)
    gaussian = release.mechanism == "gaussian"
    factor = math.sqrt(float(np.mean(z**2)) / (1.0 if gaussian else 2.0))
    law = chi2(z.size) if gaussian else gamma(z.size)
    size = float(np.sum(z**2)) if gaussian else float(np.sum(np.abs(z)))
    p_values = {"narrower than declared": float(law.cdf(size))}
    p_values["cut off"] = cut_off(z, release.mechanism)
    if any(len(drawn) > 1 and drawn[0].size > 1 for drawn in of_cells):
        p_values["narrower than declared in one of its entries"] = _narrowest_entry(of_cells, gaussian=gaussian)
    if is_whole:
        p_values["wider than declared"] = float(law.sf(size))
        few = z[:: max(1, z.size // MOST_TESTED)]
        p_values["of another law than declared"] = float(kstest(few, norm.cdf if gaussian else laplace.cdf).pvalue)
    residues = np.concatenate([_residues(cell) for cell in cells])[:MOST_TESTED]
    # The law of chi^2 is one of many numbers a class: of ten each it has half of the true tail where it matters.
    n_classes = RESIDUES if residues.size >= LEAST_A_CLASS * RESIDUES else RESIDUES // 4
    if residues.size >= LEAST_A_CLASS * n_classes:
        counts = np.bincount(residues % n_classes, minlength=n_classes)
        wanted = residues.size / n_classes
        p_values["with holes"] = float(chi2(n_classes - 1).sf(float(np.sum((counts - wanted) ** 2)) / wanted))
    return NoiseTest(int(z.size), factor, p_values)


def cut_off(z: Floats, mechanism: Mechanism) -> float:
    """Return how likely it is that the largest of standardised numbers are as small as these.

    The k-th largest has a tail that is the k-th smallest of so many uniform numbers. Noise that is wider than declared
    has larger ones.
    """
    tails = 2 * norm.sf(np.abs(z)) if mechanism == "gaussian" else np.exp(-np.abs(z))
    smallest = np.sort(tails)[: RANKS_OF_TAILS[-1]]
    likely = [float(beta.sf(smallest[k - 1], k, z.size - k + 1)) for k in RANKS_OF_TAILS if k <= z.size]
    return min(1.0, len(RANKS_OF_TAILS) * min(likely, default=1.0))


def reach_of_tails(n_numbers: int, level: float, mechanism: Mechanism) -> float:
    """Return the largest number of deviations at which so many numbers cannot be cut off without a finding."""
    tail = min(1.0, math.log(len(RANKS_OF_TAILS) / level) / max(n_numbers, 1))
    return float(norm.isf(tail / 2)) if mechanism == "gaussian" else -math.log(tail) / math.sqrt(2.0) + 0.0


def _narrowest_entry(of_cells: Sequence[Sequence[Floats]], *, gaussian: bool) -> float:
    """Return how likely it is that the noise of any entry is as narrow as that of the narrowest, at most."""
    smallest, n_entries = 1.0, 0
    for drawn in of_cells:
        z = np.array(drawn)
        sizes = np.sum(z**2 if gaussian else np.abs(z), axis=0)
        law = chi2(len(z)) if gaussian else gamma(len(z))
        smallest, n_entries = min(smallest, float(law.cdf(sizes.min(initial=np.inf)))), n_entries + sizes.size
    return min(1.0, smallest * n_entries)


test_noise.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's


def _residues(cell: Cell) -> NDArray[np.intp]:
    """Return the lowest bits of the noise as integers; nothing where it is too narrow, or was rounded."""
    if math.ldexp(cell.release.scale, -cell.exponent) < 8 * RESIDUES:
        return np.empty(0, dtype=np.intp)
    parts = [part for drawn in cell.noise.values() for part in drawn[:MOST_TESTED]]
    whole = np.ldexp(np.concatenate(parts)[:MOST_TESTED], -cell.exponent)
    if not np.array_equal(whole, np.rint(whole)) or np.abs(whole).max() > 2.0**52:
        return np.empty(0, dtype=np.intp)
    return (whole.astype(np.int64) % RESIDUES).astype(np.intp)


# The privacy loss.


@dataclass(frozen=True)
class Loss:
    """The privacy loss of runs on one of two neighbouring tables.

    Parameters
    ----------
    epsilon, delta : float
        What is promised.
    of_one, of_other : ndarray of shape (n_runs,)
        The logarithm of how much likelier what was seen is for the one table than for the other, in runs on the one
        and in runs on the other.
    sees_noise : bool
        Whether the auditor sees the noise that is drawn; otherwise what was seen is all that the loss is computed from.
    pair : str
        Which neighbours.
    expected : float
        What epsilon the declared noise gives at that delta, for these two neighbours.
    false_alarm : float, default=0.001
        How often a sound strategy may be called broken, over all tests of an audit together.
    """

    epsilon: float
    delta: float
    of_one: Floats
    of_other: Floats
    sees_noise: bool
    pair: str
    expected: float = math.nan
    false_alarm: float = FALSE_ALARM

    @property
    def n_runs(self) -> int:
        """How many runs."""
        return len(self.of_one)

    @property
    def largest(self) -> float:
        """The largest loss."""
        return max(float(self.of_one.max()), float(-self.of_other.min()))

    @property
    def delta_seen(self) -> float:
        """Delta at the promised epsilon, by Monte Carlo."""
        return max(
            float(np.mean(-np.expm1(np.minimum(self.epsilon - losses, 0.0))))
            for losses in (self.of_one, -self.of_other)
        )

    @property
    def delta_at_most(self) -> float:
        """An upper bound on delta at the promised epsilon from these runs."""
        beyond = max(int(np.sum(losses > self.epsilon)) for losses in (self.of_one, -self.of_other))
        return upper(beyond, self.n_runs, self.false_alarm)

    @cached_property
    def delta_at_least(self) -> float:
        """A lower bound on delta at the promised epsilon: a threshold of one half of the runs, counts of the other."""
        level = self.false_alarm * OF_DELTA / 2
        bounds = []
        for losses in (self.of_one, -self.of_other):
            first, second = losses[::2], losses[1::2]
            margins = np.linspace(0.1, 5.0, 50)
            gains = [np.mean(first > self.epsilon + margin) * -math.expm1(-margin) for margin in margins]
            margin = float(margins[int(np.argmax(gains))])
            beyond = int(np.sum(second > self.epsilon + margin))
            bounds.append(lower(beyond, len(second), level) * -math.expm1(-margin))
        return max(bounds)

    @cached_property
    def epsilon_at_least(self) -> float:
        """A lower bound on epsilon, by Clopper and Pearson: a threshold of one half of runs, counts of the other."""
        level = self.false_alarm * OF_EPSILON / 2
        best, chosen = -math.inf, (0.0, False)
        pooled = np.concatenate([self.of_one[::2], self.of_other[::2]])
        for threshold in np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, 101))):
            for is_other in (False, True):
                found = self._bound(float(threshold), is_other, 0, level)
                if found > best:
                    best, chosen = found, (float(threshold), is_other)
        return max(0.0, self._bound(*chosen, 1, level))

    def _bound(self, threshold: float, is_other: bool, half: int, level: float) -> float:
        one, other = self.of_one[half::2], self.of_other[half::2]
        if is_other:
            one, other, threshold = -other, -one, -threshold
        hits, false = int(np.sum(one > threshold)), int(np.sum(other > threshold))
        share = lower(hits, len(one), level) - self.delta
        return math.log(share / upper(false, len(other), level)) if share > 0 else -math.inf

    @property
    def most_that_can_be_shown(self) -> float:
        """The largest lower bound on epsilon that so many runs can give."""
        n = self.n_runs // 2
        level = self.false_alarm * OF_EPSILON / 2
        share = lower(n, n, level) - self.delta
        return max(0.0, math.log(share / upper(0, n, level))) if n and share > 0 else 0.0


def lower(hits: int, n: int, level: float) -> float:
    """Return Clopper and Pearson's lower bound on a probability; it is above it with probability ``level`` at most."""
    return 0.0 if hits == 0 else float(beta.ppf(level, hits, n - hits + 1))


def upper(hits: int, n: int, level: float) -> float:
    """Return Clopper and Pearson's upper bound on a probability; it is below it with probability ``level`` at most."""
    return 1.0 if hits >= n else float(beta.isf(level, hits + 1, n - hits))


def losses(
    cells: Sequence[Cell], moves: Mapping[tuple[int, int], Floats], target: str, rng: np.random.Generator
) -> tuple[Floats, Floats, bool] | None:
    """Return the losses of runs on the one table, of runs on the other, and whether they are from noise that is seen.

    Parameters
    ----------
    cells : sequence of Cell
    moves : mapping of (int, int) to ndarray
        By round and array: the one table's less the other's.
    target : str
        The client whose tables they are.
    rng : numpy.random.Generator
        For whether a row that may be drawn is drawn.
    """
    sees_noise = not any(cell.seen[0] for cell in cells)
    rounds: dict[int, tuple[Floats, Floats, float]] = {}
    coins: dict[int, NDArray[np.bool_]] = {}
    for cell in cells:
        moved = moves.get((cell.round, cell.index))
        if moved is None or not np.any(moved):
            continue
        who = "" if "" in cell.noise else target
        if sees_noise:
            one = other = np.array(cell.noise.get(who, []))
        else:
            one, other = (np.array([part for _, part in sorted(seen.items())]) for seen in cell.seen)
        if not len(one) or not len(other):
            continue
        under_one, under_other = _ratios(cell, moved, one), _ratios(cell, moved, other - moved if sees_noise else other)
        sample = cell.release.sample
        if sample is not None:
            absent = _ratios(cell, moved, other if sees_noise else other + moved)
            share = sample[0] / sample[1]
            coin = coins.setdefault(cell.round, rng.uniform(size=len(under_other)) < share)
            under_other = np.where(coin, under_other, absent)
        else:
            share = 1.0
        before = rounds.get(cell.round, (np.zeros(len(one)), np.zeros(len(other)), share))
        rounds[cell.round] = (before[0] + under_one, before[1] + under_other, before[2])
    if not rounds:
        return None
    parts = [[_mixed(losses, q) for losses in both] for *both, q in rounds.values()]
    n = min(len(one) for one, _ in parts), min(len(other) for _, other in parts)
    return (
        np.sum([one[: n[0]] for one, _ in parts], axis=0),
        np.sum([other[: n[1]] for _, other in parts], axis=0),
        sees_noise,
    )


def _mixed(losses: Floats, q: float) -> Floats:
    """Return the loss where the second table's row counts with probability q alone, and otherwise is as the first's."""
    if q >= 1.0:
        return losses
    return -np.logaddexp(math.log1p(-q), math.log(q) - losses)


def _ratios(cell: Cell, moved: Floats, seen: Floats) -> Floats:
    present = np.flatnonzero(moved)
    shift, x = moved[present], seen[:, present]
    if cell.release.mechanism == "laplace":
        of_laplace: Floats = np.sum(np.abs(x + shift) - np.abs(x), axis=1) / cell.release.scale
        return of_laplace
    widths = (cell.widths(moved.size) / cell.release.scale)[present]
    shift, x = shift * widths, x * widths
    found: Floats = x @ shift + 0.5 * float(shift @ shift)
    return found

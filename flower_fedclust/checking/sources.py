"""Where noise comes from: whether it has tails, repeats, or depends on other noise, over all releases together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from flower_fedclust.checking.draws import FIRST, Cell
from flower_fedclust.checking.statistics import OF_SOURCES, cut_off, reach_of_tails
from flower_fedclust.privacy.releases import Mechanism

Floats = NDArray[np.float64]

#: Two series of fewer numbers are not compared, and of more no further ones.
FEWEST, MOST = 64, 400

#: A source is noticed in 999 cases of 1,000 if so many repetitions are expected.
NOTICED_PAIRS = math.log(1000.0)

#: The lowest bits of noise that is at least eight times wider than they are fair coins: so many are looked at.
BITS = 8


@dataclass(frozen=True)
class Sources:
    """What all noise together says of where it comes from."""

    findings: tuple[str, ...]  #: What is broken, a clause each.
    bits: float  #: A source of so few bits would have been noticed.
    reach: Mapping[Mechanism, float]  #: Noise cut off at so many deviations would have been noticed.


def examine_sources(cells: Sequence[Cell], seeded: Sequence[Cell], false_alarm: float) -> Sources:
    """Examine the noise of all releases of a run; the second cells have noise that was drawn with seeds."""
    level = false_alarm * OF_SOURCES / 4
    found, bits = _collisions(cells, level)
    found += [*_constant(cells), *_dependent(cells, level), *_dependent(seeded, level)]
    reach: dict[Mechanism, float] = {}
    for mechanism in dict.fromkeys(cell.release.mechanism for cell in cells):
        z = np.concatenate([*map(_standardised, (cell for cell in cells if cell.release.mechanism == mechanism))])
        reach[mechanism] = reach_of_tails(z.size, level / 2, mechanism)
        if cut_off(z, mechanism) < level / 2:
            largest = float(np.abs(z).max()) / (1.0 if mechanism == "gaussian" else math.sqrt(2.0))
            found.append(
                f"all {mechanism} noise together is cut off ({z.size} numbers within {largest:.3g} deviations)"
            )
    return Sources(tuple(dict.fromkeys(found)), bits, reach)


def _standardised(cell: Cell) -> Floats:
    """Return all noise of a release as it is drawn: shares of Gaussian noise have its law, and of Laplace noise not."""
    if not cell.is_summed or cell.release.mechanism == "laplace":
        return np.concatenate([np.empty(0), *(part for parts in cell.standardised.values() for part in parts)])
    scale = math.ldexp(cell.release.scale / math.sqrt(cell.n_shares), -cell.exponent)
    widths = cell.widths(next((parts[0].size for parts in cell.noise.values()), 0))[:FIRST] / scale
    drawn = [part * widths for parts in cell.drawn.values() for part in parts]
    return np.concatenate([np.empty(0), *drawn])


def _constant(cells: Sequence[Cell]) -> list[str]:
    """Return which noise is the same in every draw, in one of its entries or in all."""
    return [
        f"the noise of '{cell.content}' in round {cell.round} is the same in every run"
        for cell in cells
        for drawn in cell.noise.values()
        if len(drawn) >= 20 and (np.array(drawn[:200]) == drawn[0]).all(axis=0).any()
    ]


def _collisions(cells: Sequence[Cell], level: float) -> tuple[list[str], float]:
    """Return which noise was drawn twice, of as many entries as chance never repeats; and how few bits would show.

    A source of b bits repeats itself in one of 2^b pairs of draws. All noise of one law counts together.
    """
    alike: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault((cell.content, cell.exponent, cell.release), []).append(cell)
    found, n_pairs = [], 0
    for first, *others in alike.values():
        drawn = [part for cell in (first, *others) for parts in cell.drawn.values() for part in parts]
        here, likely = math.comb(len(drawn), 2), math.log(_chance_of_a_repeat(first))
        # Of wide noise one or two entries are enough, and of narrow noise more; of no entry at all nothing is.
        n_entries = math.ceil(math.log(level / max(here * len(alike), 1)) / likely) if likely < 0 else FIRST + 1
        drawn = [part[:n_entries] for part in drawn if part.size >= n_entries]
        n_pairs += math.comb(len(drawn), 2)
        if (n_different := len({part.tobytes() for part in drawn})) < len(drawn):
            found.append(f"the noise of '{first.content}' repeats: of {len(drawn)} draws {n_different} differ")
    return found, math.log2(n_pairs / NOTICED_PAIRS) if n_pairs else 0.0


def _chance_of_a_repeat(cell: Cell) -> float:
    """Return how likely two draws of one entry are the same integer, at most.

    It is the integral of the square of the characteristic function, which is that of the whole noise to the power 1/n
    for each of n shares.
    """
    scale = math.ldexp(cell.release.scale, -cell.exponent) * (math.sqrt(0.5) if cell.release.triangle else 1.0)
    n_shares = cell.n_shares if cell.is_summed else 1
    if cell.release.mechanism == "gaussian":
        return min(1.0, math.sqrt(n_shares) / (2.0 * math.sqrt(math.pi) * scale))
    steps = np.geomspace(1e-3 / scale, math.pi, 4000)
    squared = (1.0 + (2.0 / math.pi * scale * steps) ** 2) ** (-2.0 / n_shares)
    return min(1.0, (float(np.trapezoid(squared, steps)) + float(steps[0])) / math.pi)


def _dependent(cells: Sequence[Cell], level: float) -> list[str]:
    """Return which noise follows from other noise: of another entry, array, round or client.

    Between all pairs of entries ranks are correlated, those of the numbers and of their sizes: noise of two mechanisms,
    or of arrays of two lengths, that was made of the same random words has like sizes at least. The lowest bits of an
    array's first entry count as numbers, too, as samplers may take a word for each.
    """
    drawn = [
        (f"'{cell.content}' in round {cell.round}" + (f" of client {who}" if who else ""), cell, parts)
        for cell in cells
        for who, parts in cell.drawn.items()
    ]
    lengths = sorted({min(len(parts), MOST) for _, _, parts in drawn})
    found = []
    for n_draws in {length for length in lengths if length >= FEWEST}:
        series = [
            one
            for place, cell, parts in drawn
            if len(parts) >= n_draws
            for one in _series(place, cell, parts[:n_draws])
        ]
        found += _correlated(series, level / len(lengths))
    return found


def _series(place: str, cell: Cell, parts: Sequence[Floats]) -> list[tuple[str, Floats]]:
    """Return series of numbers that are the same in law and independent, as ranks, and the entry of each."""
    units = np.array(parts)
    found = []
    for entry in range(units.shape[1]):
        # Shares of many clients are mostly zero; ranks of rare events are not near to normal.
        if np.unique(units[:, entry], return_counts=True)[1].max() > len(units) / 2:
            continue
        name = place + (f", entry {entry}" if units.shape[1] > 1 else "")
        found += [(name, units[:, entry]), (name, np.abs(units[:, entry]))]
    width = math.ldexp(cell.release.scale, -cell.exponent) / math.sqrt(cell.n_shares if cell.is_summed else 1)
    if len(units) >= 2 * FEWEST and not cell.is_summed and found:
        whole = np.abs(units[:, 0]).astype(np.int64) - 1
        bits = range(min(BITS, int(math.log2(max(width, 1.0))) - 3))
        found += [(found[0][0], (whole >> bit & 1).astype(np.float64)) for bit in bits]
    return found


def _correlated(series: Sequence[tuple[str, Floats]], level: float) -> list[str]:
    """Return which series are correlated beyond what chance makes of so many pairs."""
    if len(series) < 2:
        return []
    ranks = rankdata(np.array([numbers for _, numbers in series]), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    ranks /= np.maximum(np.linalg.norm(ranks, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    alike = np.triu(ranks @ ranks.T, 1)
    names = [name for name, _ in series]
    n_draws, n_pairs = ranks.shape[1], math.comb(len(series), 2)
    least = float(norm.isf(level / (2 * n_pairs))) / math.sqrt(n_draws - 1)
    found = {
        f"the noise of {names[one]} is not independent of that of {names[other]} (correlation {alike[one, other]:.2f})"
        for one, other in zip(*np.nonzero(np.abs(alike) > least), strict=True)
        if names[one] != names[other]
    }
    return sorted(found)[:3]

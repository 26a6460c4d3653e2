"""Tests of the noise on large arrays with large entries, such as small tables never produce.

A sampler may work in blocks, or be less exact for large numbers; with three small tables nobody
would notice. So stand-ins (large made-up arrays) replace the arrays that a client sends, and the
code that adds noise in a run adds it to them. The noise is drawn twice from the same random words:
for zeros, and for entries from one unit to 2^24 standard deviations. Both draws must be equal,
because noise that depends on the entries does not hide them. The noise of the large array is also
drawn with the operating system's randomness. It must follow its law in every section of the array,
and no section may repeat another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, gamma, norm, rankdata

from flower_fedclust.checking.noise import (
    Drawer,
    DrawnNoise,
    chance_of_a_repeat,
    compare_with_law,
)
from flower_fedclust.checking.runs import Floats, WatchedRun
from flower_fedclust.engine.replies import largest_in_sum
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.privacy.releases import Release

#: The number of entries of a stand-in: more than one block of each sampler.
N_ENTRIES = 20_000

#: The largest entry is 2^LARGEST_BITS standard deviations, but a noisy entry has at most FLOAT_BITS bits.
LARGEST_BITS, FLOAT_BITS = 24, 50

#: The width of the noise is tested in each section of so many entries.
PART = 256

#: The most successive entries that are compared to find a repetition.
LONGEST_WINDOW = 64

#: The number of the draw with seeds, from which its seeds follow.
SEEDED = 77


@dataclass(frozen=True)
class _Law:
    """The law of one release's noise, taken from the last round that makes it."""

    number: int
    index: int
    drawn: DrawnNoise

    @property
    def of(self) -> str:
        """The beginning of a sentence about this noise."""
        return f"the noise of '{self.drawn.content}', drawn for an array of {N_ENTRIES} entries or more,"


def findings_of_stand_ins(
    run: WatchedRun, drawer: Drawer, false_alarm: float, deadline: float = math.inf
) -> tuple[list[str], list[str]]:
    """Name what is wrong with the noise of large arrays and of large entries.

    Returns the findings, and what could not be examined.
    """
    laws = list(_laws(run, drawer))
    rounds = dict.fromkeys(law.number for law in laws)
    findings, left = list[str](), list[str]()
    for number in rounds:
        laws_of_round = [law for law in laws if law.number == number]
        task = run.rounds[number].task
        if time.perf_counter() > deadline:
            left.append(f"the noise of '{task}' for large arrays")
            continue
        large = {law.index: _stand_in(drawer, law) for law in laws_of_round}
        zeros = {
            index: GridArray(np.zeros_like(array.integers), array.exponent)
            for index, array in large.items()
        }
        drawn = drawer.of_stand_ins(number, 0, large, seeded=False)
        first, second = (
            drawer.of_stand_ins(number, SEEDED, arrays, seeded=True) for arrays in (zeros, large)
        )
        if not (drawn and first and second):
            left.append(f"the noise of '{task}' for large arrays, as no such reply is taken")
            continue
        for law in laws_of_round:
            of_zeros, other = first[law.index], second[law.index]
            if any(not np.array_equal(of_zeros[who], other[who]) for who in of_zeros):
                findings.append(f"{law.of} depends on the entries that it is added to")
            findings += _findings_of_law(law, drawn[law.index], false_alarm / len(laws))
    return list(dict.fromkeys(findings)), left


def _laws(run: WatchedRun, drawer: Drawer) -> Iterator[_Law]:
    """Yield each release (task, array and mechanism) once, in the last round that makes it."""
    last: dict[tuple[str, int, str], _Law] = {}
    for (number, index), drawn in drawer.drawn.items():
        last[run.rounds[number].task, index, drawn.release.mechanism] = _Law(number, index, drawn)
    yield from last.values()


def _stand_in(drawer: Drawer, law: _Law) -> GridArray:
    """Return a stand-in with many entries of all sizes and both signs, in the unit of the client's array."""
    (*own_shape,), exponent = drawer.forms[law.number, law.index]
    if law.drawn.release.triangle:
        n_columns = math.ceil((math.sqrt(8 * N_ENTRIES + 1) - 1) / 2)
        shape = [n_columns * (n_columns + 1) // 2]
    else:
        shape = [-(-N_ENTRIES // max(math.prod(own_shape), 1)), *own_shape]
    entries = _entries(math.prod(shape), law.drawn.release, exponent, law.drawn.exponent)
    return GridArray(entries.reshape(shape), exponent)


def _entries(size: int, release: Release, exponent: int, noise_exponent: int) -> NDArray[np.int64]:
    """Return shuffled integers of both signs, from one unit up to the largest that is allowed.

    The largest noisy value must be exact in a float64, and a sum of eight such arrays must not
    overflow.
    """
    deviation = math.ldexp(release.scale, -exponent)
    bits = min(math.log2(deviation) + LARGEST_BITS, FLOAT_BITS - (exponent - noise_exponent))
    most = min(2.0 ** max(bits, 1.0), largest_in_sum(8, exponent, release) / 2)
    rng = np.random.default_rng(0)
    sizes = np.trunc(np.exp2(rng.uniform(0.0, math.log2(max(most, 2.0)), size=size))).astype(
        np.int64
    )
    signs: NDArray[np.int64] = rng.choice([-1, 0, 1], p=[0.45, 0.1, 0.45], size=size).astype(
        np.int64
    )
    return signs * sizes


def _findings_of_law(law: _Law, noise: dict[str, Floats], false_alarm: float) -> Iterator[str]:
    """Yield a sentence about each fault of the noise of one large array.

    The tests ask whether sections of the noise repeat, whether entries at some distance depend on
    each other, and whether the noise breaks its law, as a whole or in some section.
    """
    drawn = law.drawn
    whole = DrawnNoise(
        law.number,
        law.index,
        drawn.content,
        drawn.release,
        drawn.exponent,
        drawn.is_whole,
        drawn.n_shares,
        drawn.is_summed,
    )
    whole.add(noise)
    test = compare_with_law([whole])
    z = np.concatenate([part for parts in whole.standardized for part in parts])
    p_values = {
        **test.p_values,
        "narrower than declared in one of its parts": _narrowest_part(z, drawn.release),
    }
    for who, draws in noise.items():
        units = np.ldexp(np.ravel(draws), -drawn.exponent)
        level = false_alarm / (4 * len(noise))
        where = f" of client {who}" if who else ""
        if _has_repeated_parts(units, whole, level):
            yield f"{law.of} repeats itself{where}"
        elif (lag := _lag(units, level)) is not None:
            yield f"{law.of} depends on itself {lag} entries earlier{where}"
    level = false_alarm / (2 * len(p_values))
    yield from (
        f"{law.of} is {how} ({test.factor:.3g} times as wide)"
        for how, p in p_values.items()
        if p < level
    )


def _narrowest_part(z: Floats, release: Release) -> float:
    """Return a bound on the probability that, in sound noise, some section is as narrow as the narrowest here."""
    n_parts = z.size // PART
    parts = z[: n_parts * PART].reshape(-1, PART)
    is_gaussian = release.mechanism == "gaussian"
    sizes = np.sum(parts**2 if is_gaussian else np.abs(parts), axis=1)
    law = chi2(PART) if is_gaussian else gamma(PART)
    p_value = float(law.cdf(sizes.min(initial=np.inf)))
    return min(1.0, p_value * n_parts)


def _has_repeated_parts(units: Floats, drawn: DrawnNoise, level: float) -> bool:
    """Tell whether a sequence of entries occurs twice, long enough that chance would not repeat it."""
    likely = math.log(chance_of_a_repeat(drawn))
    n_pairs = math.comb(units.size, 2)
    length = math.ceil(math.log(level / n_pairs) / likely) if likely < 0 else LONGEST_WINDOW + 1
    if length > LONGEST_WINDOW:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(units, max(length, 2))
    return len(np.unique(windows, axis=0)) < len(windows)


def _lag(units: Floats, level: float) -> int | None:
    """Return the distance at which entries, or their magnitudes, are correlated; None if they are not.

    The autocorrelation of the ranks is computed for all distances at once by a Fourier transform.
    """
    if np.unique(units, return_counts=True)[1].max() > units.size / 2:
        return None  # if most entries are equal, the correlation of ranks is far from normal
    least = float(norm.isf(level / (2 * units.size))) * math.sqrt(units.size)
    for series in (units, np.abs(units)):
        ranks = rankdata(series)
        ranks = (ranks - ranks.mean()) / ranks.std()
        spectrum = np.abs(np.fft.rfft(ranks)) ** 2
        alike = np.abs(np.fft.irfft(spectrum, units.size))[1 : units.size // 2]
        if alike.max() > least:
            return int(alike.argmax()) + 1
    return None

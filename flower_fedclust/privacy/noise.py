"""Noise for integers in a public unit: how fine the unit has to be, and what is added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.releases import Mechanism, Release
from flower_fedclust.privacy.sampling import NoiseSource, sample_gaussian, sample_laplace
from flower_fedclust.privacy.shares import sample_gaussian_share, sample_laplace_share, total_variation

Floats = NDArray[np.float64]

#: What a client may send: integers in a unit; or numbers as they are, which are neither summed nor given noise.
Sendable: TypeAlias = GridArray | NDArray[Any]

#: Noise is so many units wide at least, times the root of the number of shares, where the unit can be made so fine.
SCALE_BITS = 10

#: The unit is made finer by so many bits at most: integers of 2^43 still fit into an int64.
MOST_REFINED = 20


def noise_exponent(release: Release, n_shares: int, exponent: int) -> int:
    """Return the exponent of the unit in which noise is drawn: that of the array, or a finer one for narrow noise.

    Parameters
    ----------
    release : Release
        With noise.
    n_shares : int
        Among how many clients the noise is divided.
    exponent : int
        Of the array's unit.
    """
    wanted = math.frexp(release.scale)[1] - 1 - SCALE_BITS - math.ceil(math.log2(n_shares) / 2)
    return min(exponent, max(wanted, exponent - MOST_REFINED))


def add_noise(
    arrays: Sequence[Sendable],
    releases: Sequence[Release | None],
    source: NoiseSource,
    *,
    n_shares: int = 1,
) -> list[Sendable]:
    """Return the arrays with the noise, or a share of the noise, of their releases.

    Parameters
    ----------
    arrays : sequence of GridArray or ndarray
        On a grid, where noise is added.
    releases : sequence of (Release or None)
        One an array; None adds nothing.
    source : NoiseSource
    n_shares : int, default=1
        How many clients add a share each.

    Raises
    ------
    TypeError
        If a release with noise is for an array that is not on a grid: noise on floats has holes, and what was rounded
        before it depends on the machine.
    """
    return [
        array if release is None or release.scale == 0 else _with_noise(array, release, source, n_shares)
        for array, release in zip(arrays, releases, strict=True)
    ]


def on_grid(array: Sendable) -> GridArray:
    """Return an array that is on a grid; whole numbers and truth values are on that of 1.

    Raises
    ------
    TypeError
        If the array is one of floats.
    """
    if isinstance(array, GridArray):
        return array
    if array.dtype.kind not in "iub":
        raise TypeError("an array of floats is to be summed or given noise; the client's method must return GridArray.")
    return GridArray(array)


def _with_noise(array: Sendable, release: Release, source: NoiseSource, n_shares: int) -> GridArray:
    array = on_grid(array)
    fine = array.refined(noise_exponent(release, n_shares, array.exponent))
    # Never narrower than declared: the product that is the scale may have been rounded down.
    scale = math.ldexp(math.nextafter(release.scale, math.inf), -fine.exponent)
    noise = np.zeros(fine.integers.size, dtype=np.int64)
    if release.triangle:
        off = is_off_diagonal((math.isqrt(8 * noise.size + 1) - 1) // 2)
        narrow = math.nextafter(scale * math.sqrt(0.5), math.inf)
        noise[~off] = sample_gaussian_share(scale, n_shares, int((~off).sum()), source)
        noise[off] = sample_gaussian_share(narrow, n_shares, int(off.sum()), source)
    else:
        draw = sample_gaussian_share if release.mechanism == "gaussian" else sample_laplace_share
        noise = draw(scale, n_shares, noise.size, source)
    return GridArray(fine.integers + noise.reshape(fine.integers.shape), fine.exponent)


def variation_of_noise(release: Release, n_entries: int, n_shares: int, exponent: int) -> float:
    """Return how far, in total variation, the noise of an array may be from what its guarantee is proved for.

    Parameters
    ----------
    release : Release
    n_entries : int
        Of the array.
    n_shares : int
    exponent : int
        Of the unit in which the noise was drawn.
    """
    if release.scale == 0:
        return 0.0
    scale = math.ldexp(release.scale, -exponent) * (math.sqrt(0.5) if release.triangle else 1.0)
    return n_entries * total_variation(release.mechanism, scale, n_shares)


def add_relative_noise(array: Floats, relative_noise: float, source: NoiseSource) -> Floats:
    """Return an array with Gaussian noise in proportion to the standard deviation of its own entries.

    For experiments as papers describe them: the scale depends on the array, and nothing bounds its entries, so that
    nothing is promised.

    Parameters
    ----------
    array : ndarray
    relative_noise : float
        Standard deviation of the noise over that of all the entries; 0 adds nothing.
    source : NoiseSource
    """
    scale = relative_noise * float(array.std())
    return array + noise_in_floats("gaussian", scale, array.shape, source) if scale > 0 else array


def noise_in_floats(mechanism: Mechanism, scale: float, shape: tuple[int, ...], source: NoiseSource) -> Floats:
    """Return noise as floats, 40 bits finer than its scale: for experiments that promise nothing.

    Parameters
    ----------
    mechanism : "gaussian" or "laplace"
    scale : float
        The standard deviation, or the Laplace parameter.
    shape : tuple of int
    source : NoiseSource
    """
    draw = sample_gaussian if mechanism == "gaussian" else sample_laplace
    noise: Floats = draw(2.0**40, math.prod(shape), source).reshape(shape) * np.float64(scale * 2.0**-40)
    return noise

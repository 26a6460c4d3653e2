"""Private k-means of a curator who holds all rows: what others publish, to compare with.

Here every client sends its rows, so that nothing is private: the noise is what a trusted curator would add. What each
method promises of its result, and to whom, is said in its class.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Protocol, ProtocolStrategy, parameter
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share, calibrate
from flower_fedclust.strategies.common.pooled_rows import PooledRowsClient

Floats = NDArray[np.float64]

#: Least and most steps, and the size of entries on which their number is based; Su et al., and both codes.
FEWEST_STEPS, MOST_STEPS, RHO = 2, 7, 0.225
#: Draws for a center of the first ones before the distance between them is halved.
PACKING_ATTEMPTS = 100
#: FastLloyd: the radius, as a part of the one in which so many balls fill the box.
ALPHA = 0.8


class CentralPrivateKMeans(ProtocolStrategy):
    """Base of methods for a curator: entries are clipped to a bound, and divided by it.

    Parameters
    ----------
    max_entry : float, default=1.0
        To which every entry is clipped, above and below 0. A public bound.
    central_epsilon : float, default=1.0
        The budget of the curator. It is not a guarantee of this run, in which clients send their rows.
    """

    client_type = PooledRowsClient

    max_entry: float = parameter(1.0, above=0)
    central_epsilon: float = parameter(1.0, above=0, at_most=1000)

    @property
    def n_protocol_rounds(self) -> int:
        """One."""
        return 1

    def protocol(self) -> Protocol:
        """Gather all rows and cluster them with noise."""
        replies = yield Gather(PooledRowsClient.all_rows.asked())
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        scaled = np.clip(rows / self.max_entry, -1.0, 1.0)
        return KMeansModel(self.noisy_centers(scaled, self.rng) * self.max_entry)

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Return the centers of rows whose entries are at most 1."""
        raise NotImplementedError

    def privacy_notes(self) -> list[str]:
        """Say that the noise protects nobody here."""
        note = "The curator's noise is in the centers alone: here the clients send their rows, and nothing is private."
        return [*super().privacy_notes(), note]


class CentralDPLloyd(CentralPrivateKMeans):
    """DPLloyd of Su et al. as diffprivlib 0.6.6 has it, for a curator who holds all rows.

    Its relation: a row is added or removed, and the number of rows is public, since the number of steps follows from
    it. Three things in that code are at odds with the epsilon it states, and are kept here, as what is compared is what
    it gives. The parts of the budget for a count and for a column are exchanged, so that with d columns and
    ``c = (4 d 0.225^2)^(1/3)`` a step that was to cost 1 costs ``(1 + d c) / (d + c)``, 1.4 with 16 columns and 2.9
    with 128, where a row moves a sum by the sensitivity it is calibrated for, upper less lower bound; where it moves it
    by half of this, as one that is added between symmetric bounds does, 0.7 and 1.5. An empty cluster gets no noise, so
    that whether one is empty is known for certain, at any epsilon. And the noise is of floats.

    References
    ----------
    Su, Cao, Li, Bertino and Jin, "Differentially private k-means clustering", CODASPY 2016; diffprivlib 0.6.6,
    ``models.KMeans`` and its mechanisms ``GeometricFolded`` and ``LaplaceBoundedDomain``.
    """

    entries = (
        Entry(
            "central-dp-lloyd",
            "DPLloyd as diffprivlib has it: central, pooled rows, noise in the centers alone",
            "diffprivlib 0.6.6",
            example={"max_entry": 3.0},
        ),
    )

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Move packed centers by noisy counts and sums."""
        (n_rows, n_columns), k, epsilon = rows.shape, self.n_clusters, self.central_epsilon
        part = float(np.cbrt(4 * n_columns * RHO**2))
        least = math.sqrt(500 * k**3 / n_rows**2 * (n_columns + part) ** 3)
        n_steps = int(max(min(epsilon / least, MOST_STEPS), FEWEST_STEPS))
        unit = epsilon / n_steps / (n_columns + part)
        of_count, of_column = unit, part * unit  # exchanged, as there
        centers = packed_centers(k, n_columns, rng)
        for _ in range(n_steps):
            labels = nearest_center(rows, centers)
            sums, counts = _sums(rows, labels, k)
            for index in np.flatnonzero(counts):
                count = counts[index] + _two_sided_geometric(of_count, rng)
                count = count if count >= 1 else 1 - count  # folded at a half
                centers[index] = _bounded_laplace(sums[index], of_column, 2.0, float(count), rng) / count
        return centers


class CentralFastLloyd(CentralPrivateKMeans):
    """FastLloyd's centers: Lloyd's steps on offsets of the rows within a radius, for a curator who holds all rows.

    Its relation: a row is added or removed, and the number of rows is public: the steps' number and delta,
    ``1 / (n log n)``, follow from it. Within this it meets the epsilon it states, but for noise of floats. (The
    authors' code draws the noise of sums and of counts from generators with one seed, which is 0 in the first step;
    here it is drawn anew.)

    References
    ----------
    Diaa, Humphries and Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and Tunable k-Means Clustering with
    Differential Privacy", USENIX Security 2025; the code's defaults: a radius of half the diagonal in the first step,
    then 0.8 of the one that follows from k; centers are folded into the box.
    """

    entries = (
        Entry(
            "central-fastlloyd",
            "FastLloyd's centers: central, pooled rows, noise in the centers alone",
            "FastLloyd 2025",
            example={"max_entry": 3.0},
        ),
    )

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Move packed centers by noisy counts and sums of offsets."""
        (n_rows, n_columns), k = rows.shape, self.n_clusters
        diagonal = 2 * math.sqrt(n_columns)
        usual = diagonal * ALPHA / (2 * k ** (1 / n_columns))
        delta = 1 / (n_rows * math.log(max(n_rows, 3)))
        multiplier = calibrate({"all": Share("gaussian", 1, 1)}, self.central_epsilon, delta)["all"]
        root = math.sqrt(4 * n_columns)
        wanted = 0.016 * n_rows**2 / (k**3 * usual**2 * (1 + root) ** 2 * multiplier**2)
        n_steps = int(max(min(wanted, MOST_STEPS), FEWEST_STEPS))
        of_counts = multiplier * math.sqrt(n_steps * (1 + root))
        centers = packed_centers(k, n_columns, rng)
        for step in range(n_steps):
            radius = min(diagonal / 2 if step == 0 else usual, diagonal)
            labels = nearest_center(rows, centers)
            offsets = rows - centers[labels]
            within = np.einsum("ij,ij->i", offsets, offsets) <= radius**2
            sums, counts = _sums(offsets[within], labels[within], k)
            noisy = np.maximum(counts, 1) + np.round(of_counts * rng.standard_normal(k))
            sums = sums + of_counts * radius / math.sqrt(root) * rng.standard_normal(sums.shape)
            moved = clip_rows(sums / (noisy + 1e-9)[:, None], radius)
            centers = folded(centers + moved)
        return centers


def packed_centers(n_clusters: int, n_columns: int, rng: np.random.Generator) -> Floats:
    """Draw centers in the box from -1 to 1, apart from each other and from its faces.

    The distance is halved until there is room: diffprivlib's first centers, and FastLloyd's.
    """
    distance = 1.0
    while True:
        centers = np.zeros((0, n_columns))
        failed = 0
        while len(centers) < n_clusters and failed < PACKING_ATTEMPTS:
            drawn = (2 * rng.random(n_columns) - 1) * (1 - distance)
            if len(centers) and ((centers - drawn) ** 2).sum(axis=1).min() < 4 * distance**2:
                failed += 1
            else:
                centers, failed = np.vstack([centers, drawn]), 0
        if len(centers) == n_clusters:
            return centers
        distance /= 2


def folded(values: Floats) -> Floats:
    """Reflect values at -1 and 1 until they are between."""
    place = np.mod(values + 1, 4.0)
    return np.asarray(np.where(place > 2, 4 - place, place) - 1)


def _sums(rows: Floats, labels: NDArray[np.intp], k: int) -> tuple[Floats, NDArray[np.intp]]:
    sums = np.zeros((k, rows.shape[1]))
    np.add.at(sums, labels, rows)
    return sums, np.bincount(labels, minlength=k)


def _two_sided_geometric(epsilon: float, rng: np.random.Generator) -> int:
    first, second = rng.geometric(-math.expm1(-epsilon), size=2)
    return int(first - second)


def _bounded_laplace(
    values: Floats, epsilon: float, sensitivity: float, bound: float, rng: np.random.Generator
) -> Floats:
    """Draw from Laplace's law about each value, given that it lies within a bound.

    The scale is the least fixed point from below of Holohan, Antonatos, Braghin and Mac Aonghusa, "The bounded Laplace
    mechanism in differential privacy" (2020), which pays for the normalisation.
    """
    width = 2 * bound
    reach = min(sensitivity, width)

    def enough(scale: float) -> float:
        lost = 2 - math.exp(-reach / scale) - math.exp(-(width - reach) / scale)
        return reach / max(epsilon - math.log(lost / -math.expm1(-width / scale)), 1e-12)

    low, high = reach / epsilon, enough(reach / epsilon)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) >= middle else (low, middle)
    values = np.clip(values, -bound, bound)
    # The inverse of the distribution function, between its values at the two ends.
    below = 0.5 * np.exp((-bound - values) / high)
    above = 1 - 0.5 * np.exp((values - bound) / high)
    place = below + rng.random(values.shape) * (above - below)
    drawn = values - high * np.sign(place - 0.5) * np.log1p(-2 * np.abs(place - 0.5))
    return np.asarray(np.clip(drawn, -bound, bound))

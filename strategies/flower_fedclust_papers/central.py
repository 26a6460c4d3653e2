"""Private k-means by a trusted curator who holds all rows: published methods to compare with.

Every client sends its rows here, so nothing is private in such a run. The noise is what a curator would add.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from flower_fedclust.engine import Entry, Gather, Protocol, ProtocolStrategy, parameter
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.accounting import Share, calibrate, composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust.strategies.baselines.pooled import PooledRowsClient

Floats = NDArray[np.float64]

#: The fewest and the most Lloyd steps; and the typical size of an entry, from which their number follows (Su et al.,
#: and the programs of DPLloyd and of FastLloyd).
FEWEST_STEPS, MOST_STEPS, RHO = 2, 7, 0.225
#: Attempts to draw a first center before the distance between centers is halved.
PACKING_ATTEMPTS = 100
#: FastLloyd: the radius within which a step uses rows, relative to the radius at which k balls fill the box.
ALPHA = 0.8

#: CentralLSH: the most levels below the root. A row is counted once in each level, and in the root.
MOST_DEPTH = 20
#: The scale of the noise in a count over the standard deviation of the noise in a sum.
COUNT_OVER_SUM = 20.0
#: A leaf needs so many rows that noise moves its mean by at most about a tenth of the radius; but half the rows of an
#: average cluster are enough.
ROWS_OVER_NOISE = 10.0
#: A node is divided if it has this many times as many rows as a leaf needs.
BRANCHING = 3


class CentralPrivateKMeans(ProtocolStrategy):
    """Base of the curator's methods. The entries of rows are clipped to a bound and divided by it.

    Parameters
    ----------
    max_entry : float, default=1.0
        A public bound: entries are clipped to between ``-max_entry`` and ``max_entry``.
    central_epsilon : float, default=1.0
        The curator's budget. It is not a guarantee of this run, in which clients send their rows.
    """

    client_type = PooledRowsClient
    n_protocol_rounds = 1

    max_entry: float = parameter(1.0, above=0)
    central_epsilon: float = parameter(1.0, above=0, at_most=1000)

    def protocol(self) -> Protocol:
        """Gather all rows and cluster them with noise."""
        replies = yield Gather(PooledRowsClient.all_rows.asked())
        rows = np.concatenate([reply.arrays[0] for reply in replies])
        scaled = np.clip(rows / self.max_entry, -1.0, 1.0)
        return KMeansModel(self.noisy_centers(scaled, self.rng) * self.max_entry)

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Return noisy centers of rows whose entries are between -1 and 1."""
        raise NotImplementedError

    def privacy_notes(self) -> list[str]:
        """Say that the noise protects nobody here."""
        note = "Only the centers have the curator's noise: the clients send their rows, so nothing is private."
        return [*super().privacy_notes(), note]


class CentralDPLloyd(CentralPrivateKMeans):
    """DPLloyd of Su et al. as implemented in diffprivlib 0.6.6, for a curator who holds all rows.

    Neighboring tables differ by an added or removed row. The number of rows is public because it determines the number
    of steps. Three properties of diffprivlib contradict the epsilon it states. This class has them, too, because it
    reproduces what diffprivlib returns. First, the budget parts for a count and for a column are exchanged. With d
    columns and ``c = (4 d 0.225^2)^(1/3)``, a step that should cost 1 costs ``(1 + d c) / (d + c)``: 1.4 with 16
    columns and 2.9 with 128. This holds if a row moves a sum by the full sensitivity that diffprivlib calibrates for:
    the upper minus the lower bound. With symmetric bounds, an added row moves a sum by half of that, and the step costs
    0.7 and 1.5. Second, an empty cluster gets no noise, so anyone can see that it is empty, at any epsilon. Third,
    noise is drawn in floats.

    References
    ----------
    Su, Cao, Li, Bertino and Jin, "Differentially private k-means clustering", CODASPY 2016; diffprivlib 0.6.6,
    ``models.KMeans`` and its mechanisms ``GeometricFolded`` and ``LaplaceBoundedDomain``.
    """

    entries = (
        Entry(
            "central-dp-lloyd",
            "DPLloyd as in diffprivlib: central, pooled rows, noise only in the centers",
            "diffprivlib 0.6.6",
            example={"max_entry": 3.0},
        ),
    )

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Draw centers apart from each other, and move them by noisy counts and sums."""
        (n_rows, n_columns), k, epsilon = rows.shape, self.n_clusters, self.central_epsilon
        part = float(np.cbrt(4 * n_columns * RHO**2))
        least = math.sqrt(500 * k**3 / n_rows**2 * (n_columns + part) ** 3)
        n_steps = int(max(min(epsilon / least, MOST_STEPS), FEWEST_STEPS))
        unit = epsilon / n_steps / (n_columns + part)
        of_count, of_column = unit, part * unit  # exchanged, as in diffprivlib
        centers = packed_centers(k, n_columns, rng)
        for _ in range(n_steps):
            labels = nearest_center(rows, centers)
            sums, counts = _sums_and_counts(rows, labels, k)
            for index in np.flatnonzero(counts):
                count = counts[index] + _two_sided_geometric(of_count, rng)
                count = count if count >= 1 else 1 - count  # reflected at a half
                centers[index] = (
                    bounded_laplace(sums[index], of_column, 2.0, float(count), rng) / count
                )
        return centers


class CentralFastLloyd(CentralPrivateKMeans):
    """FastLloyd's centers: Lloyd steps on the rows' offsets within a radius, for a curator who holds all rows.

    Neighboring tables differ by an added or removed row. The number of rows is public because it determines the number
    of steps and delta, ``1 / (n log n)``. Apart from noise drawn in floats, the method meets its stated epsilon. (The
    authors' program draws the noise of sums and of counts from generators with the same seed, 0 in the first step.
    Here both are drawn independently.)

    References
    ----------
    Diaa, Humphries and Kerschbaum, "FastLloyd: Federated, Accurate, Secure, and Tunable k-Means Clustering with
    Differential Privacy", USENIX Security 2025. The defaults are the program's: the radius is half the diagonal of the
    box in the first step, and 0.8 of the radius at which k balls fill the box in later steps. Centers outside the box
    are reflected into it.
    """

    entries = (
        Entry(
            "central-fastlloyd",
            "FastLloyd's centers: central, pooled rows, noise only in the centers",
            "FastLloyd 2025",
            example={"max_entry": 3.0},
        ),
    )

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Draw centers apart from each other, and move them by noisy counts and sums of offsets."""
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
            sums, counts = _sums_and_counts(offsets[within], labels[within], k)
            noisy = np.maximum(counts, 1) + np.round(of_counts * rng.standard_normal(k))
            sums = sums + of_counts * radius / math.sqrt(root) * rng.standard_normal(sums.shape)
            moved = clip_rows(sums / (noisy + 1e-9)[:, None], radius)
            centers = folded(centers + moved)
        return centers


class CentralLSH(CentralPrivateKMeans):
    """k-means of noisy means: a random tree divides the rows, and the means of its leaves are clustered (Google).

    In each level of the tree, every node with enough rows is divided in two by the sign of the rows' products with a
    random vector. The counts of all nodes get Laplace noise and the sums of the leaves get Gaussian noise, calibrated
    together. The means of the leaves, weighted by the noisy counts, are clustered.

    Neighboring tables differ by an added or removed row; the budget also pays for the number of rows. Like Google's
    library, this class accounts for discrete Laplace noise as if it were continuous, which understates delta, and draws
    noise in floats.

    Parameters
    ----------
    max_entry : float, default=1.0
        A public bound: the radius of the ball around 0 to which rows are clipped.
    central_delta : float, default=1e-6
        The curator's delta; like ``central_epsilon``, it is not a guarantee of this run.

    References
    ----------
    Chang, Ghazi, Kumar and Manurangsi, "Locally private k-means in one round", ICML 2021, in the central model; the
    defaults are from ``learning/clustering`` in google/differential-privacy.
    """

    entries = (
        Entry(
            "central-lsh",
            "Google's LSH clustering: central, pooled rows, noise only in the centers",
            "Chang, Ghazi, Kumar and Manurangsi 2021",
            example={"max_entry": 3.0},
        ),
    )

    central_delta: float = parameter(1e-6, above=0, below=1)

    def noisy_centers(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Cluster the leaves of a tree."""
        from sklearn.cluster import KMeans

        deviation = noise_of_sums(self.central_epsilon, self.central_delta)
        means, weights = noisy_leaves(clip_rows(rows, 1.0), self.n_clusters, deviation, rng)
        n_centers = min(self.n_clusters, len(np.unique(means, axis=0)))
        estimator = KMeans(n_centers, n_init=1, random_state=int(rng.integers(2**31))).fit(
            means, sample_weight=weights
        )
        # With fewer leaves than clusters, the last center is repeated.
        return np.asarray(
            estimator.cluster_centers_[np.minimum(np.arange(self.n_clusters), n_centers - 1)]
        )


@lru_cache(maxsize=64)
def noise_of_sums(epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise in sums of rows of norm 1 if sums and counts use up the budget."""

    def excess(deviation: float) -> float:
        count = Release("laplace", 1.0, COUNT_OVER_SUM * deviation, "")
        releases = [Release("gaussian", 1.0, deviation, ""), *[count] * (MOST_DEPTH + 1)]
        return composed_epsilon(releases, delta, near=epsilon) - epsilon

    alone = calibrate({"sums": Share("gaussian", 1.0)}, epsilon, delta)["sums"]
    return float(brentq(excess, 0.99 * alone, 4.0 * alone, rtol=1e-3))


def noisy_leaves(
    rows: Floats, n_clusters: int, deviation: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Return noisy means (of norm at most 1) and noisy counts (at least 1) of the leaves of a tree of random halves."""
    n_columns = rows.shape[1]
    of_count = 1.0 / (COUNT_OVER_SUM * deviation)

    def noisy_count(part: Floats) -> int:
        return len(part) + _two_sided_geometric(of_count, rng)

    count = noisy_count(rows)
    fewest = max(
        1, min(int(ROWS_OVER_NOISE * np.sqrt(n_columns) * deviation), count // (2 * n_clusters))
    )
    level, leaves = [(rows, max(count, 1))], list[tuple[Floats, int]]()
    for vector in rng.normal(size=(MOST_DEPTH, n_columns)):
        children = list[tuple[Floats, int]]()
        for part, count in level:
            halves = []
            if count >= BRANCHING * fewest:
                side = part @ vector >= 0
                halves = [(half, noisy_count(half)) for half in (part[side], part[~side])]
            kept = [half for half in halves if half[1] >= fewest]
            children += kept
            if not kept:
                leaves.append((part, count))
        level = children
    leaves += level
    sums = np.array([part.sum(axis=0) for part, _ in leaves]) + deviation * rng.normal(
        size=(len(leaves), n_columns)
    )
    counts = np.array([count for _, count in leaves], dtype=np.int64)
    return clip_rows(sums / counts[:, None], 1.0), counts


def packed_centers(n_clusters: int, n_columns: int, rng: np.random.Generator) -> Floats:
    """Draw centers in the box from -1 to 1, apart from each other and from its faces.

    The distance is halved until there is room. The programs of DPLloyd and FastLloyd do the same.
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
    """Reflect values at -1 and 1 until they lie between -1 and 1."""
    place = np.mod(values + 1, 4.0)
    return np.asarray(np.where(place > 2, 4 - place, place) - 1)


def _sums_and_counts(
    rows: Floats, labels: NDArray[np.intp], k: int
) -> tuple[Floats, NDArray[np.intp]]:
    sums = np.zeros((k, rows.shape[1]))
    np.add.at(sums, labels, rows)
    return sums, np.bincount(labels, minlength=k)


def _two_sided_geometric(epsilon: float, rng: np.random.Generator) -> int:
    first, second = rng.geometric(-np.expm1(-epsilon), size=2)
    return int(first - second)


def bounded_laplace(
    values: Floats, epsilon: float, sensitivity: float, bound: float, rng: np.random.Generator
) -> Floats:
    """Draw from a Laplace distribution around each value, truncated to ``[-bound, bound]``.

    Truncation changes the density by a factor that depends on the value. The scale is larger to make up for this: it is
    the least fixed point of Holohan, Antonatos, Braghin and Mac Aonghusa, "The bounded Laplace mechanism in
    differential privacy" (2020).
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
    # Invert the distribution function between its values at both ends.
    below = 0.5 * np.exp((-bound - values) / high)
    above = 1 - 0.5 * np.exp((values - bound) / high)
    place = below + rng.random(values.shape) * (above - below)
    drawn = values - high * np.sign(place - 0.5) * np.log1p(-2 * np.abs(place - 0.5))
    return np.asarray(np.clip(drawn, -bound, bound))

"""Measures of how good clusters are, from sums over rows and without true classes; and the choice of their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.kmeans import nearest_two, squared_distances, sums_of_each

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The smallest number of clusters is chosen whose silhouette is below the largest by at most this.
TOLERANCE = 0.005
#: Clusters are clear if their silhouette exceeds the silhouette that k-means has in one Gaussian by at least this.
CLEAR = 0.1
#: Two clusterings are alike if their adjusted Rand index is at least this, and two clusters if their Jaccard index is.
ALIKE = 0.7
#: Another run would find a cluster again if its mean Jaccard index with simulated reruns is at least FOUND_AGAIN, and
#: all clusters if the mean adjusted Rand index is at least ALL_FOUND_AGAIN. The latter is smaller because four clusters
#: with a Jaccard index of 0.8 each have an adjusted Rand index of 0.73. It is also the limit for a stable number of
#: clusters.
FOUND_AGAIN, ALL_FOUND_AGAIN = 0.8, 0.74
#: Numbers of clusters tried for n_clusters="auto".
AUTO = (2, 16)


def numbers_of(n_clusters: Any) -> tuple[int, int]:
    """Return the least and the largest number of clusters that a user asked for."""
    if n_clusters == "auto":
        return AUTO
    if isinstance(n_clusters, (tuple, list)) and len(n_clusters) == 2:
        fewest, most = (check_integer("n_clusters", number, at_least=2) for number in n_clusters)
        if fewest < most:
            return fewest, most
    elif not isinstance(n_clusters, (str, tuple, list)):
        number = check_integer("n_clusters", n_clusters, at_least=2)
        return number, number
    raise ValueError(
        f"n_clusters is {n_clusters!r}; it must be a number, 'auto', or a range such as (2, 12)."
    )


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the rows of each cluster, from which the measures follow; sums of clients can be added."""

    # All of shape (n_clusters,).
    counts: Floats  #: The number of rows.
    distances: Floats  #: The sum of the distances of rows to their nearest center.
    squares: Floats  #: The sum of the squares of these distances.
    silhouettes: Floats  #: The sum of the rows' simplified silhouettes.

    @classmethod
    def of_rows(
        cls, rows: Floats, centers: Floats, weights: Floats | None = None, *, scatter: float = 0.0
    ) -> Self:
        """Return the sums of rows that belong to the nearest center; ``scatter`` is added to each squared distance."""
        return cls.with_labels(rows, centers, weights, scatter=scatter)[0]

    @classmethod
    def with_labels(
        cls,
        rows: Floats,
        centers: Floats,
        weights: Floats | None = None,
        *,
        scatter: float = 0.0,
        nearest: Callable[[Floats, Floats], tuple[Labels, Floats, Floats]] = nearest_two,
    ) -> tuple[Self, Labels]:
        """Return the sums, and the index of the nearest center of each row, which ``nearest`` finds."""
        labels, first, second = nearest(rows, centers)
        first, second = np.sqrt(first + scatter), np.sqrt(second + scatter)
        # Hruschka's silhouette, by distances to centers: (b - a) / max(a, b) = 1 - a / b, because a <= b.
        has_second = (second > 0) & np.isfinite(second)
        silhouettes = 1.0 - np.divide(first, second, out=np.ones_like(first), where=has_second)
        weights = np.ones(len(rows)) if weights is None else weights
        of_rows = np.stack([np.ones(len(rows)), first, first**2, silhouettes])
        sums, _ = sums_of_each(of_rows.T, labels[None], weights, len(centers))
        return cls(*sums[0].T), labels

    def __add__(self, other: ClusterSums) -> ClusterSums:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return ClusterSums(*(one + two for one, two in pairs))

    def measures(self, centers: Floats) -> dict[str, float]:
        """Return "silhouette", "davies_bouldin" and "calinski_harabasz"; {} for fewer than two clusters with rows.

        More is better for the simplified silhouette (Hruschka et al. 2006; 0 to 1) and for the index of Calinski and
        Harabasz (1974); less is better for the index of Davies and Bouldin (1979). Empty clusters do not count.
        """
        kept = self.counts > 0
        n_clusters, n_rows = int(np.count_nonzero(kept)), float(self.counts.sum())
        if n_clusters < 2:
            return {}
        counts, points = self.counts[kept], centers[kept]
        scatter = self.distances[kept] / counts
        apart = np.sqrt(squared_distances(points, points))
        np.fill_diagonal(apart, np.inf)
        found = {"silhouette": float(self.silhouettes.sum() / n_rows)}
        if apart.min() > 0:
            found["davies_bouldin"] = float(
                ((scatter[:, None] + scatter) / apart).max(axis=1).mean()
            )
        between = float(counts @ ((points - counts @ points / n_rows) ** 2).sum(axis=1))
        within = float(self.squares.sum())
        if within > 0 and n_rows > n_clusters:
            found["calinski_harabasz"] = (
                between / (n_clusters - 1) / (within / (n_rows - n_clusters))
            )
        return found


def weighted_rand_index(one: Labels, other: Labels, weights: Floats, n_clusters: int) -> float:
    """Return the adjusted Rand index of two clusterings of points that stand for many rows each."""
    table = np.zeros((n_clusters, n_clusters))
    np.add.at(table, (one, other), weights)
    first, second = (float((table.sum(axis=axis) ** 2).sum()) for axis in (0, 1))
    n_pairs = max(float(weights.sum()) ** 2, np.finfo(float).tiny)
    by_chance = first * second / n_pairs
    mean = (first + second) / 2
    if not mean > by_chance:
        return 1.0
    return float(((table**2).sum() - by_chance) / (mean - by_chance))


def as_below(agreement: float) -> str:
    """Return an agreement that is below ALL_FOUND_AGAIN with two digits, which are below it, too: 0.739 as 0.73."""
    return f"{min(agreement, ALL_FOUND_AGAIN - 0.01):.2f}"


class Repeated(NamedTuple):
    """How well other runs would find the same clusters, estimated by simulated reruns of this run."""

    #: The mean adjusted Rand index between these clusters and the clusters of a rerun.
    agreement: float
    #: For each cluster, the mean Jaccard index with the most similar cluster of a rerun.
    each: Floats
    without_noise: float  #: The mean adjusted Rand index between reruns without noise.
    #: By what fraction these clusters cost more than the best ones without noise, on rows drawn from the cells.
    excess: float
    #: Some other way to divide the rows costs at most this fraction more; infinite if no other way was compared.
    equal_within: float


@dataclass(frozen=True)
class ClusterNumber:
    """An estimate of the number of clusters, from measures of each number that was tried."""

    #: The numbers that were tried; the other fields have one value for each.
    numbers: Sequence[int]
    silhouette: Sequence[float]
    davies_bouldin: Sequence[float]
    calinski_harabasz: Sequence[float]
    #: The silhouette that k-means would have in one Gaussian of this spread.
    of_one_gaussian: Sequence[float]
    stability: Sequence[float]  #: The agreement with simulated reruns; see :class:`Repeated`.
    #: The number with which the run went on; its stability has been judged again after the run.
    ran_with: int | None = None
    has_noise: bool = True  #: Whether the measures come from noisy sums.

    def after_run(self, agreement: float) -> Self:
        """Return the estimate after a run with the chosen number of clusters.

        Its stability becomes the agreement with simulated reruns that the run's later releases show. This is the figure
        that the doubt "unstable" judges, so the two never contradict each other. But clusters that nothing shows do
        not become stable: reruns that find nothing agree with each other.
        """
        shows_clusters = self.silhouette[self._index_of_chosen] > 0
        if agreement >= ALL_FOUND_AGAIN and not shows_clusters:
            return replace(self, ran_with=self.chosen)
        stability = [
            agreement if number == self.chosen else before
            for number, before in zip(self.numbers, self.stability, strict=True)
        ]
        return replace(self, stability=stability, ran_with=self.chosen)

    @property
    def chosen(self) -> int:
        """The smallest stable number whose silhouette is nearly the largest among stable numbers.

        If no number is clear, it is the smallest stable number, or the smallest that was tried if none is stable. After
        a run it is the number of the run.
        """
        if self.ran_with is not None:
            return self.ran_with
        index = self._best_of(self._is_stable) if self.is_clear else int(np.argmax(self._is_stable))
        return int(self.numbers[index])

    @property
    def is_clear(self) -> bool:
        """Whether another run would find the clusters again, and k-means in one Gaussian would separate them less."""
        everywhere, among_stable = (
            self._gain(self._best_of(among)) for among in (None, self._is_stable)
        )
        is_stable = self._is_stable.any() and not self._is_lost
        return bool(is_stable and min(everywhere, among_stable) >= CLEAR)

    @property
    def sentence(self) -> str:
        """The advice in words, and how certain it is."""
        fewest, most = self.numbers[0], self.numbers[-1]
        if not max(self.silhouette) and not self.has_noise:
            return (
                "No clear number: the rows have too few different values to compare numbers of clusters; choose by "
                f"what the clusters are for. {self.chosen} is the smallest."
            )
        if not max(self.silhouette):
            return (
                "No clear number: noise hides too many of the small clusters that would show it; take a larger "
                f"epsilon, more rows, or a smaller range. {self.chosen} is the smallest."
            )
        if self._is_lost:
            return self._sentence_of_lost()
        if not self._is_stable.any():
            return (
                f"No clear number: with any number from {fewest} to {most}, another run would find other clusters "
                f"(stability {as_below(max(self.stability))} at most, below {ALL_FOUND_AGAIN:g}); take a larger "
                f"epsilon or more rows. {self.chosen} is the smallest."
            )
        if not self.is_clear:
            index, which = self._best_of(None), "none"
            if self._gain(index) >= CLEAR:
                index = self._best_of(self._is_stable)
                which = "none that another run would find again"
            return (
                f"No clear number: with {fewest} to {most} clusters, {which} is farther from the others than in one "
                f"Gaussian of this spread (silhouette {self.silhouette[index]:.2f} with {self.numbers[index]}, and "
                f"{self.of_one_gaussian[index]:.2f}); choose by what the clusters are for. {self.chosen} is the "
                "smallest number whose clusters another run would find again."
            )
        index = self._best_of(self._is_stable)
        here, of_one = self.silhouette[index], self.of_one_gaussian[index]
        said = (
            f"{self.chosen} clusters: their silhouette is {here:.2f}, and {of_one:.2f} in one Gaussian of this spread; "
            f"another run would find them again (stability {self.stability[index]:.2f})."
        )
        if index == len(self.numbers) - 1 and index > 0:
            return f"{said} That is the largest number that was tried; there may be more."
        others = [
            one
            for one in range(len(self.numbers))
            if one != index and self._is_stable[one] and self.silhouette[one] > here - 4 * TOLERANCE
        ]
        if others:
            nearly = " and ".join(
                f"{self.numbers[other]} ({self.silhouette[other]:.2f})" for other in others[:2]
            )
            return f"{said} Nearly as good: {nearly}."
        return said

    @property
    def table(self) -> str:
        """The measures in a line for each number."""
        header = (
            "clusters  silhouette  of one Gaussian  stability  Davies-Bouldin  Calinski-Harabasz"
        )
        columns = (
            self.silhouette,
            self.of_one_gaussian,
            self.stability,
            self.davies_bouldin,
            self.calinski_harabasz,
        )
        lines = [
            f"{n:8d}  {own:10.3f}  {one:15.3f}  {stable:9.2f}  {db:14.3f}  {ch:17.1f}"
            for n, own, one, stable, db, ch in zip(self.numbers, *columns, strict=True)
        ]
        return "\n".join([header, *lines])

    def __str__(self) -> str:
        return f"{self.table}\n\n{self.sentence}"

    __repr__ = __str__  # what a notebook shows

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the number and the advice, ready for JSON."""
        fields = asdict(self)
        for name in (
            "silhouette",
            "davies_bouldin",
            "calinski_harabasz",
            "of_one_gaussian",
            "stability",
        ):
            fields[name] = [float(value) if np.isfinite(value) else None for value in fields[name]]
        fields["numbers"] = list(self.numbers)
        return {
            **fields,
            "chosen": self.chosen,
            "is_clear": self.is_clear,
            "sentence": self.sentence,
        }

    @property
    def _is_stable(self) -> NDArray[np.bool_]:
        """Tell for which numbers another run would find nearly the same clusters."""
        return np.asarray(self.stability) >= ALL_FOUND_AGAIN

    @property
    def _is_lost(self) -> bool:
        """Tell whether the run went on with a number whose clusters another run would not find, as it turned out."""
        return self.ran_with is not None and not self._is_stable[self._index_of_chosen]

    @property
    def _index_of_chosen(self) -> int:
        return list(self.numbers).index(self.chosen)

    def _sentence_of_lost(self) -> str:
        """Say that the clusters of the run are not stable, and which numbers may be better."""
        stability = self.stability[self._index_of_chosen]
        others = [str(self.numbers[index]) for index in np.flatnonzero(self._is_stable).tolist()]
        advice = "take a larger epsilon or more rows"
        if others:
            advice = f"try {' or '.join(others[:3])} clusters, which it would probably find again"
        return (
            f"No clear number: another run would find other clusters than these {self.chosen} (stability "
            f"{as_below(stability)}, below {ALL_FOUND_AGAIN:g}); {advice}."
        )

    def _best_of(self, among: NDArray[np.bool_] | None) -> int:
        """Return the first index with nearly the largest silhouette among some numbers; if there are none, of all."""
        silhouette = np.asarray(self.silhouette)
        if among is not None and among.any():
            silhouette = np.where(among, silhouette, -np.inf)
        return int(np.argmax(silhouette >= silhouette.max() - TOLERANCE))

    def _gain(self, index: int) -> float:
        """Return by how much the silhouette exceeds the silhouette that k-means has in one Gaussian."""
        return float(self.silhouette[index] - self.of_one_gaussian[index])

    @property
    def curves(self) -> dict[str, Sequence[float]]:
        """The curves of a picture: a value for each number."""
        return {
            "silhouette": self.silhouette,
            "of one Gaussian": self.of_one_gaussian,
            "stability": self.stability,
        }


#: A peak stands out if it rises CLEAR_PEAK standard deviations above the cell where it meets a higher peak. A number of
#: peaks is clear if the last of them rises CLEAR_RATIO times as far as the next peak, or as LEAST_RISE if that is more.
CLEAR_PEAK, CLEAR_RATIO, LEAST_RISE = 3.0, 1.75, 2.0


@dataclass(frozen=True)
class PeakNumber:
    """An estimate of the number of clusters from the peaks of a density."""

    numbers: Sequence[int]  #: The numbers that are compared.
    #: For each number n, how far the n-th highest peak rises, in standard deviations; and one more for the next peak.
    rises: Sequence[float]

    @classmethod
    def of(cls, rises: Floats, numbers: tuple[int, int]) -> Self:
        """Return the estimate from the rises of all peaks in descending order."""
        padded = np.concatenate([rises, np.zeros(numbers[1] + 1)])
        return cls(
            list(range(numbers[0], numbers[1] + 1)),
            [float(one) for one in padded[numbers[0] - 1 : numbers[1] + 1]],
        )

    @property
    def ratios(self) -> Floats:
        """For each number n, the rise of the n-th peak over the rise of the next; 0 if the n-th does not stand out."""
        rises = np.array(self.rises)
        return np.where(
            rises[:-1] >= CLEAR_PEAK, rises[:-1] / np.maximum(rises[1:], LEAST_RISE), 0.0
        )

    @property
    def chosen(self) -> int:
        """The number with the largest ratio; the smallest number if no peak stands out."""
        return int(self.numbers[int(self.ratios.argmax())])

    @property
    def is_clear(self) -> bool:
        """Whether the peaks stand out from the noise and from further peaks."""
        return bool(self.ratios.max() >= CLEAR_RATIO)

    @property
    def sentence(self) -> str:
        """The advice in words, and how certain it is."""
        index = int(self.ratios.argmax())
        here, following = self.rises[index], self.rises[index + 1]
        if not self.ratios.max():
            return (
                f"No clear number: no {self.numbers[0]} peaks of the density stand out (the last rises {here:.1f} "
                f"standard deviations, below {CLEAR_PEAK:g}); take more rows or, if there is noise, a larger epsilon. "
                f"{self.chosen} is the smallest number."
            )
        said = f"the last of {self.chosen} peaks rises {here:.1f} standard deviations, and the next one {following:.1f}"
        if not self.is_clear:
            return f"No clear number: {said}; choose by what the clusters are for."
        return f"{self.chosen} clusters: {said}."

    @property
    def curves(self) -> dict[str, Sequence[float]]:
        """The curve of a picture: for each number n, the rise of the n-th peak as a fraction of the largest rise."""
        largest = max(*self.rises, 1e-12)
        return {
            "rise of the last peak, over the largest": [rise / largest for rise in self.rises[:-1]]
        }

    @property
    def table(self) -> str:
        """The measures in a line for each number."""
        lines = [f"{n:8d}  {rise:21.1f}" for n, rise in zip(self.numbers, self.rises, strict=False)]
        return "\n".join(["clusters  rise of the last peak", *lines])

    def __str__(self) -> str:
        return f"{self.table}\n\n{self.sentence}"

    __repr__ = __str__  # what a notebook shows

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the number and the advice, ready for JSON."""
        fields = {"numbers": list(self.numbers), "rises": list(self.rises)}
        return {
            **fields,
            "chosen": self.chosen,
            "is_clear": self.is_clear,
            "sentence": self.sentence,
        }

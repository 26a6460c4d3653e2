"""PrivateKMeans: private k-means where the server has no public rows.

Votes for candidates, as in "PE-means: Improved Differentially Private k-means Clustering through Private Evolution"
(arXiv 2606.00342, 2026), in the subspace that FedDP-KMeans (ICML 2025) finds; candidates from the noisy second moment
instead of the ball; then Lloyd steps on offsets that are clipped to the clusters' own size, first of more clusters than
are sought.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import ClippedStrategy, Entry, Protocol, Sum, parameter
from flower_fedclust.engine.by_row import by_row, finishes
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Outcome, Round, Sent, Total
from flower_fedclust.exact.grid import ball_in_units, integer_norms
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid, triangle_to_symmetric
from flower_fedclust.exact.terms import Term, at, count, one_class, products, total
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_scale, checked_point, checked_rows
from flower_fedclust.numerics.kmeans import centers_of, cluster_sums, nearest_center, squared_distances
from flower_fedclust.numerics.validity import ClusterNumber, ClusterSums, numbers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.privacy.releases import PRIVACY_UNITS, PrivacyUnit
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS, FrameClient, frame_of_rows

Floats = NDArray[np.float64]

#: Parts of what all releases together may cost, in the sense in which Gaussian releases add up: their inverse squared
#: noise multipliers. The constants here were chosen on generated mixtures, wine, breast cancer and digits.
COSTS: Mapping[str, float] = {
    "row_sum": 0.03,
    "row_count": 0.01,
    "distances": 0.03,
    "second_moment": 0.20,
    "votes": 0.30,
    "fine_sums": 0.20,
    "fine_counts": 0.02,
    "sums": 0.20,
    "counts": 0.02,
}

#: One candidate for so many standard deviations of the noise in votes.
DEVIATIONS_A_CANDIDATE = 0.8

#: Candidates for each cluster that is sought: at least and at most.
FEWEST_CANDIDATES, MOST_CANDIDATES = 4, 40

#: The part of the candidates that is drawn afresh in each generation.
PART_FRESH = 0.1

#: How many clusters of candidates there are for each cluster that is sought.
FINER = 2

#: Offsets are clipped to so many root mean square distances of a row from its center.
OFFSET_REACH = 1.3

#: At client level, how much room the bound of the mean offset has.
CLIENT_MARGIN = 1.5

#: Restarts of the k-means of candidates: in a generation, and in the last one.
N_INIT, N_INIT_LAST = 3, 10

#: A small cluster is one if its rows are more than so many standard deviations of noise.
DEVIATIONS = 2.0

#: Where noise leaves fewer of them, those of one Gaussian look as if they were apart.
FEWEST = 8

#: How often one Gaussian is drawn, and how many rows of it at most.
N_REFERENCES, REFERENCE_ROWS = 3, 20_000

#: The part of the rows that may lie outside of the ball in which the second moment is taken.
PART_OUTSIDE = 0.1

#: Attempts for each point of a packing, and halvings of the distance.
PACKING_ATTEMPTS, PACKING_STEPS = 100, 8

#: Classes of distances: a class reaches sqrt(1/2) times as far as the one before it.
N_CLASSES = 16


@dataclass(frozen=True)
class _Space:
    """Where the rows lie, as far as noise lets see.

    ``total`` is the mean squared norm of a row; ``directions`` are all the eigenvectors of the second moment, of which
    the first ``n_inside`` stand above the noise, with the standard deviations ``spread``.
    """

    frame: Frame
    n_rows: float
    directions: Floats
    n_inside: int
    spread: Floats
    total: float

    @property
    def inside(self) -> Floats:
        return directions_onto_grid(self.directions[:, : self.n_inside])


class PrivateKMeans(ClippedStrategy):
    """Private k-means without public rows: votes on candidates, then Lloyd steps on clipped offsets.

    Each generation the server sends candidates, every row votes for the nearest, and the server gets the noisy sums of
    the votes; the next candidates stand where the votes are. Rows, distances and centers of a client never leave it.

    Parameters
    ----------
    n_clusters : int, "auto", or two int
        How many clusters are sought; or the least and the largest number, and the run chooses by how far apart the
        clusters are, from the votes, at no further cost. "auto" is (2, 16).
    max_norm : float, optional
        The Euclidean distance from ``origin`` to which every client clips its rows; needed with an epsilon, unless
        there is ``server_data`` or a schema. It is public, and not taken from data. It may be generous: how far the
        rows really reach is found privately.
    epsilon : float or None, default=1.0
        The privacy budget of the whole run. None is no noise and no guarantee.
    privacy_unit : "record" or "client", default="record"
        Whether the guarantee is for a row or for all that one client contributes. For a client an epsilon of 0.5 or
        less, or a few hundred clients, can be too little: clusters merge.
    rows_per_client : int, default=50
        At client level: about how many rows a client has, as is known publicly. It sets the bounds to which clients
        clip; a wrong value costs accuracy, not privacy.
    origin : array-like of shape (n_columns,), optional
        A public point about which rows are clipped; 0 by default. A Series is matched to the columns by its index.
    center_rows : bool, default=True
        Whether the noisy mean of the rows is found first, and everything else is measured from there. Without it the
        origin should be about in the middle of the rows.
    n_rows : int, optional
        The number of all rows, where it is public; otherwise a noisy count is paid for.
    server_data : array-like of shape (n_server_rows, n_columns), optional
        Public rows, which become candidates. Nothing protects them. Their mean is the origin and their radius is
        max_norm, unless these are given.
    n_rounds : int, default=4
        Generations of votes.
    n_lloyd_rounds : int, default=1
        Lloyd steps at the end, in all columns.
    shrink_centers : bool, default=True
        Whether noisy offsets of centers are shrunk by what noise can have added, which costs no privacy.

    References
    ----------
    "PE-means: Improved Differentially Private k-means Clustering through Private Evolution", arXiv 2606.00342;
    "Differentially private federated k-means with server-side data", ICML 2025, Algorithm 1, steps 1 and 3.
    """

    entries = (
        Entry(
            "private-kmeans",
            "private k-means without public rows, by votes on candidates and clipped Lloyd steps",
            "after PE-means 2026 and FedDP-KMeans 2025",
            example={"max_norm": 3.0},
            finds="round",
        ),
    )
    promises = PRIVACY_UNITS

    n_clusters: Any = parameter(kw_only=False)
    epsilon: float | None = parameter(1.0, above=0, at_most=1000)
    privacy_unit: PrivacyUnit = parameter("record")
    rows_per_client: int = parameter(50, at_least=1)
    origin: ArrayLike | None = parameter(None)
    center_rows: bool = parameter(True)
    n_rows: int | None = parameter(None, at_least=1)
    server_data: ArrayLike | None = parameter(None)
    n_rounds: int = parameter(4, at_least=1)
    n_lloyd_rounds: int = parameter(1, at_least=0)
    shrink_centers: bool = parameter(True)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        numbers_of(self.n_clusters)
        super().check_parameters()
        if not is_table(self.server_data):
            self._check_server_data()
        if self.origin is not None:
            origin = checked_point("origin", self.origin)
            if self.server_data is not None and len(origin) != np.asarray(self.server_data).shape[1]:
                raise ValueError("origin and server_data have different numbers of columns.")

    def check_complete(self) -> None:
        """Raise a ValueError unless something says how far rows can be from the origin, where there is noise."""
        if self.server_data is None and self.epsilon is not None and self.max_norm is None:
            raise ValueError(
                "max_norm is missing. With an epsilon, clients clip rows to it: say how far rows can be from the "
                "origin, as is known without looking at them (--set max_norm=30 on the command line), give a schema "
                "of your table, or give public rows as server_data."
            )

        self._check_server_data()

    def _check_server_data(self) -> None:
        if self.server_data is not None:
            rows = checked_rows(self.server_data, owner="server_data")
            check_scale(rows, "server_data")
            if self.max_norm is None and (rows == rows[0]).all():
                raise ValueError("server_data: all rows are equal, so that their radius is 0; give rows that differ.")

    # The server half.

    def protocol(self) -> Protocol:
        """Find where the rows lie, let them vote, and move the centers."""
        frame, n_rows = yield from self._frame()
        space = yield from self._space(frame, n_rows)
        centers, weights = yield from self._votes(space)
        # Of more clusters than are sought, as k-means merges or splits what lies near together: the noisy means of
        # these, and not the candidates, are what the centers are then found from.
        fine, counts, noise = yield from self._lloyd_step(
            space, centers, weights, ("fine_sums", "fine_counts"), inside=True
        )
        number = self._chosen_number(space, fine, counts, noise)
        weights = np.maximum(counts, 0.01 * space.n_rows / len(fine))
        n_clusters = self.most_clusters if number is None else number.chosen
        inside = clustered(fine, weights, n_clusters, self.rng, n_init=N_INIT_LAST)
        weights = weight_of(fine, weights, inside)
        centers = inside @ space.inside.T
        for _ in range(self.n_lloyd_rounds):
            centers, weights, _ = yield from self._lloyd_step(space, centers, weights, ("sums", "counts"), inside=False)
        return Outcome(KMeansModel(space.frame.leave(centers)), number=number)

    def _chosen_number(
        self, space: _Space, fine: Floats, counts: Floats, noise: tuple[float, float]
    ) -> ClusterNumber | None:
        """Return how many clusters there are, where that was asked."""
        numbers = numbers_of(self.n_clusters)
        if numbers[0] == numbers[1]:
            return None
        return chosen_number(
            Fine(fine, counts, float((space.spread**2).sum()), *noise),
            lambda rows, n_centers: clustered(rows, np.ones(len(rows)), n_centers, self.rng, n_init=1),
            lambda n_drawn: self.rng.standard_normal((n_drawn, space.n_inside)) * space.spread,
            numbers,
            self.rng,
        )

    def _frame(self) -> Generator[Round, Total, tuple[Frame, float]]:
        """Return a frame about the middle of the rows, and how many rows there are."""
        radius = self._radius
        if radius is None:
            return (yield from frame_of_rows())
        frame = Frame(self._origin, radius)
        n_rows = yield from self._n_rows()
        if not self.center_rows:
            return frame, n_rows
        (total,) = received = yield self.summed(PrivateKMeansClient.row_sum.asked(frame=frame), "row_sum")
        mean = clip_rows((total / self._n_units(received, n_rows))[None, :], radius)[0]
        return Frame(frame.origin + mean, radius + float(np.linalg.norm(mean))), n_rows

    def _n_rows(self) -> Generator[Round, Total, float]:
        if self.n_rows is not None:
            return float(self.n_rows)
        if self.privacy_unit == "client":
            return float(self.rows_per_client * len(self.client_names))
        (count,) = yield Sum(PrivateKMeansClient.row_count.asked(), parts=["row_count"])
        return max(float(count), float(self.most_clusters))

    def _space(self, frame: Frame, n_rows: float) -> Generator[Round, Total, _Space]:
        """Return the subspace of the directions in which the rows spread more than noise does."""
        of_clients = self.privacy_unit == "client"
        asked = PrivateKMeansClient.moment_size if of_clients else PrivateKMeansClient.distances
        (classes,) = received = yield Sum(asked.asked(frame=frame), parts=["distances"])
        n_units = self._n_units(received, n_rows)
        reach = frame.radius * class_reach(class_of_most(classes, n_units, received.noise[0]))
        question = PrivateKMeansClient.second_moment.asked(frame=frame if of_clients else Frame(frame.origin, reach))
        (triangle,) = received = yield self.summed(question, "second_moment", at_most=(reach**2,))
        values, directions = np.linalg.eigh(triangle_to_symmetric(triangle) / n_units)
        values, directions = values[::-1], directions[:, ::-1]
        # Beyond this no eigenvalue of the noise alone lies, as the semicircle law has it.
        edge = received.noise[0] / n_units * math.sqrt(2 * len(values))
        n_inside = min(max(int(np.count_nonzero(values > edge)), 1), self.most_clusters)
        spread = np.sqrt(np.maximum(values[:n_inside], edge / 4))
        total = max(float(values.sum()), edge / 4, 1e-12 * frame.radius**2)
        return _Space(frame, n_rows, np.ascontiguousarray(directions), n_inside, spread, total)

    def _votes(self, space: _Space) -> Generator[Round, Total, tuple[Floats, Floats]]:
        """Return the centers of the last generations' candidates in the subspace, and the votes for each."""
        k, of_clients = self.most_clusters, self.privacy_unit == "client"
        scale, bound = (self.rows_per_client, _norm_of_parts(self.rows_per_client, k)) if of_clients else (1, 1.0)
        deviation = self.noise_of("votes", bound) * scale
        fewest, most = max(FEWEST_CANDIDATES * k, 8), MOST_CANDIDATES * k
        wanted = space.n_rows / (DEVIATIONS_A_CANDIDATE * deviation) if deviation > 0 else math.inf
        n_candidates = int(min(max(wanted, fewest), most))
        candidates = self._drawn(space, n_candidates)
        former: tuple[Floats, Floats] | None = None
        for generation in range(self.n_rounds):
            question = PrivateKMeansClient.votes.asked(candidates, space.inside, frame=space.frame)
            (votes,) = yield self.summed(question, "votes", at_most=(bound,))
            weights = kept_votes(votes * scale, space.n_rows)
            # The last two generations together: each counted all of the rows, and the noise is another.
            points, both = candidates, weights
            if former is not None:
                points, both = np.concatenate([former[0], points]), np.concatenate([former[1], both])
            former = candidates, weights
            is_last = generation == self.n_rounds - 1
            n_centers = max(min(FINER * k, int(np.count_nonzero(both)) // 2, n_candidates // 2), k)
            centers = clustered(points, both, n_centers, self.rng, n_init=N_INIT_LAST if is_last else N_INIT)
            if is_last:
                break
            width = spread_of(points, both, centers)
            n_fresh = int(PART_FRESH * n_candidates)
            n_moved = n_candidates - n_fresh - n_centers
            parents = centers[np.resize(self.rng.permutation(n_centers), n_moved)]
            moved = parents + width * self.rng.standard_normal(parents.shape)
            candidates = np.concatenate([centers, moved, self._drawn(space, n_fresh)])
        return centers, weight_of(points, both, centers)

    def _drawn(self, space: _Space, n_points: int) -> Floats:
        """Return candidates: public rows, as far as there are any, and points of the Gaussian of the second moment."""
        points = self.rng.standard_normal((n_points, space.n_inside)) * space.spread
        if self.server_data is not None:
            public = space.frame.enter(np.asarray(self.server_data, dtype=np.float64)) @ space.inside
            chosen = public[self.rng.permutation(len(public))[:n_points]]
            points[: len(chosen)] = chosen
        return points

    def _lloyd_step(
        self, space: _Space, centers: Floats, weights: Floats, parts: tuple[str, str], *, inside: bool
    ) -> Generator[Round, Total, tuple[Floats, Floats, tuple[float, float]]]:
        """Move the centers by the noisy means of the clipped offsets of their rows.

        Return them, their weights, and the standard deviations of the noise in sums and weights, in rows.
        """
        frame, n_rows, n_centers = space.frame, space.n_rows, len(centers)
        weights = weights * (n_rows / max(float(weights.sum()), 1.0))
        total = float((space.spread**2).sum()) if inside else space.total
        within = max(total - float(weights @ (centers**2).sum(axis=1)) / n_rows, 0.02 * total)
        bound = min(OFFSET_REACH * math.sqrt(max(within, 1e-18 * frame.radius**2)), 2 * frame.radius)
        directions = space.inside if inside else np.zeros((0, 0))
        m = self.rows_per_client
        of_means = (CLIENT_MARGIN * bound / math.sqrt(m), _norm_of_parts(m, n_centers))
        question = PrivateKMeansClient.offset_sums.asked(centers, directions, frame=frame, bound=bound)
        received = yield self.summed(question, *parts, at_most=of_means)
        scale = n_rows / len(self.client_names) if self.privacy_unit == "client" else 1.0
        sums, counts = (total * scale for total in received)
        deviation, of_count = (noise * scale for noise in received.noise)
        # A count within its noise divides nothing: such a center moves little.
        divisor = np.maximum(counts, max(0.3 * of_count, n_rows / n_centers / 20, 1.0))
        offsets = sums / divisor[:, None]
        if self.shrink_centers:
            turned = np.eye(space.n_inside) if inside else space.directions
            offsets = shrunk_offsets(offsets, (deviation / divisor) ** 2, turned, space.n_inside)
        return clip_rows(centers + offsets, frame.radius), np.maximum(counts, 0.0), (deviation, of_count)

    def _n_units(self, received: Total, n_rows: float) -> float:
        """Return over how many rows a sum is; where the guarantee is for clients, over how many clients."""
        return received.n_clients if self.privacy_unit == "client" else n_rows

    # Parameters and budget.

    @property
    def most_clusters(self) -> int:
        """The number of clusters, or the largest that is tried."""
        return numbers_of(self.n_clusters)[1]

    @property
    def n_protocol_rounds(self) -> int:
        """Those that find the frame, two for the space, the generations, and the Lloyd steps."""
        first = FRAME_ROUNDS if self._radius is None else int(self.center_rows) + self._pays_for_count
        return first + 2 + self.n_rounds + 1 + self.n_lloyd_rounds

    @property
    def expected_columns(self) -> int | None:
        """The width of the server's rows or of the origin, where one of them was given."""
        if self.server_data is not None:
            return int(np.asarray(self.server_data).shape[1])
        return None if self.origin is None else len(np.asarray(self.origin))

    @property
    def _pays_for_count(self) -> bool:
        return self.n_rows is None and self.privacy_unit == "record"

    @property
    def _radius(self) -> float | None:
        if self.max_norm is not None or self.server_data is None:
            return self.max_norm
        rows = np.asarray(self.server_data, dtype=np.float64)
        return float(np.linalg.norm(rows - self._origin, axis=1).max())

    @property
    def _origin(self) -> Floats:
        if self.origin is not None:
            return np.asarray(self.origin, dtype=np.float64)
        if self.server_data is not None:
            return np.asarray(np.asarray(self.server_data, dtype=np.float64).mean(axis=0))
        return np.zeros(self.n_columns)

    def parts(self) -> Mapping[str, Part]:
        """Return a part for each round; of those for sums a small part goes to the counts beside them."""
        client, steps = PrivateKMeansClient, self.n_lloyd_rounds
        answers: dict[str, tuple[Any, int]] = {
            "row_sum": (client.row_sum, int(self.center_rows)),
            "row_count": (client.row_count, int(self._pays_for_count)),
            "distances": ((client.distances, client.moment_size), 1),
            "second_moment": (client.second_moment, 1),
            "votes": (client.votes, self.n_rounds),
            "fine_sums": (client.offset_sums, 1),
            "fine_counts": (client.offset_sums, 1),
            "sums": (client.offset_sums, steps),
            "counts": (client.offset_sums, steps),
        }
        return {name: gaussian_part(answer, COSTS[name], at_most) for name, (answer, at_most) in answers.items()}

    def privacy_notes(self) -> list[str]:
        """Add what is taken to be public."""
        notes = super().privacy_notes()
        if self.privacy_unit == "client":
            notes.append("How many clients there are is taken to be public.")
        if self.n_rows is not None:
            notes.append(f"The number of all rows, {self.n_rows}, is taken to be public, and no guarantee covers it.")
        if self.server_data is not None:
            n_rows = len(np.asarray(self.server_data))
            note = f"The {n_rows} server rows are taken to be public, and no guarantee covers them."
            notes.append(f"{note} {self.server_data_origin}".rstrip())
        return notes


def gaussian_part(answers: Any, cost: float, at_most: int) -> Part:
    """Return a part by what its releases may cost together, as Gaussian releases add up.

    c releases of noise multiplier s cost ``w = c / s^2``; the epsilon of one is about proportional to 1 / s, so that
    all c have the part ``c / s = sqrt(w c)`` of the sum of epsilons, in which a part is measured.
    """
    return Part(answers, math.sqrt(cost * at_most), at_most)


def _norm_of_parts(n_rows: int, n_parts: int) -> float:
    """Return the root mean square norm of the parts of so many rows that fall into so many classes at random."""
    return math.sqrt(1 / n_rows + 1 / n_parts)


# What the server makes of noisy votes. Nothing here sees a row.


def class_of_most(classes: Floats, n_units: float, deviation: float) -> int:
    """Return the nearest class outside of which there is but a small part of all, or nothing but noise."""
    outside = np.cumsum(classes)
    for index in range(len(classes) - 1):
        noise = 2 * deviation * math.sqrt(index + 1)
        if outside[index] > max(PART_OUTSIDE * n_units, noise) or outside[index] >= n_units / 2:
            return index
    return len(classes) - 1


def kept_votes(votes: Floats, total: float) -> Floats:
    """Keep the largest votes until they add up to a total; the rest is taken for noise, and is 0.

    PE-means, where the total is the number of rows.

    Parameters
    ----------
    votes : ndarray of shape (n_candidates,)
        Noise may have made them negative.
    total : float

    Returns
    -------
    ndarray of shape (n_candidates,)
        Not negative.
    """
    order = np.argsort(-votes, kind="stable")
    added_up = np.cumsum(np.maximum(votes[order], 0.0))
    n_kept = int(np.searchsorted(added_up, total)) + 1
    kept = np.zeros(len(votes))
    kept[order[:n_kept]] = np.maximum(votes[order[:n_kept]], 0.0)
    return kept


def clustered(points: Floats, weights: Floats, n_clusters: int, rng: np.random.Generator, *, n_init: int) -> Floats:
    """Return centers of points by weighted k-means; points without weight count only where too few have any.

    Parameters
    ----------
    points : ndarray of shape (n_points, n_columns)
    weights : ndarray of shape (n_points,)
        Not negative.
    n_clusters : int
    rng : numpy.random.Generator
    n_init : int
        Restarts.

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
        If there are not so many points, some of them come twice.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    heaviest = np.argsort(-weights, kind="stable")[: max(n_clusters, int(np.count_nonzero(weights)))]
    points, weights = points[heaviest], weights[heaviest]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, points.shape[1]))
    if np.count_nonzero(weights) < n_clusters:
        weights = np.maximum(weights, max(float(weights.max()), 1.0) * 1e-6)
    estimator = KMeans(n_clusters, n_init=n_init, max_iter=50, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that coincide: centers coincide then, too
        return np.asarray(estimator.fit(points, sample_weight=weights).cluster_centers_)


def spread_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return the standard deviation of weighted points about their nearest centers, by column."""
    difference = points - centers[nearest_center(points, centers)]
    return np.asarray(np.sqrt(weights @ difference**2 / max(float(weights.sum()), np.finfo(float).tiny)))


def weight_of(points: Floats, weights: Floats, centers: Floats) -> Floats:
    """Return how much weight is nearest to each center."""
    added_up = np.bincount(nearest_center(points, centers), weights=weights, minlength=len(centers))
    return added_up.astype(np.float64, copy=False)


def shrunk_offsets(offsets: Floats, variance: Floats, directions: Floats, n_inside: int) -> Floats:
    """Shrink noisy offsets of centers by what noise can have added, in the data subspace and outside of it apart.

    Of an offset z with noise of variance v, ``s / (s + v)`` is kept, where s is what the signal's variance seems to be:
    the mean of what the cluster's other entries, and the other clusters' entries in that direction, have above v.

    Parameters
    ----------
    offsets : ndarray of shape (n_clusters, n_columns)
    variance : ndarray of shape (n_clusters,)
        v, of each entry of a cluster's offset.
    directions : ndarray of shape (n_columns, n_columns)
        Orthonormal columns; the first ``n_inside`` span the subspace.
    n_inside : int

    Returns
    -------
    ndarray of shape (n_clusters, n_columns)
    """
    turned = offsets @ directions
    noise = variance[:, None]
    for part in (slice(0, n_inside), slice(n_inside, None)):
        entries = turned[:, part]
        if entries.size == 0:
            continue
        of_direction = np.maximum((entries**2 - noise).mean(axis=0), 0.0)[None, :]
        of_cluster = np.maximum((entries**2).mean(axis=1, keepdims=True) - noise, 0.0)
        signal = (of_direction + of_cluster) / 2
        both = signal + noise
        turned[:, part] = entries * np.divide(signal, both, out=np.zeros_like(both), where=both > 0)
    return np.asarray(turned @ directions.T)


def in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Draw points uniformly from the ball."""
    points = rng.standard_normal((n_points, n_columns))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(radius * points * rng.random((n_points, 1)) ** (1 / n_columns))


def packed_in_ball(n_points: int, n_columns: int, radius: float, rng: np.random.Generator) -> Floats:
    """Spread points over a ball: each at least some distance from those before it, which is searched by bisection.

    Returns
    -------
    ndarray of shape (n_points, n_columns)
    """

    def packed(distance: float) -> Floats | None:
        points = np.empty((n_points, n_columns))
        for index in range(n_points):
            attempts = in_ball(PACKING_ATTEMPTS, n_columns, radius, rng)
            before = points[:index]
            squares = np.einsum("ij,ij->i", before, before) - 2 * attempts @ before.T
            nearest = squares.min(axis=1, initial=np.inf) + np.einsum("ij,ij->i", attempts, attempts)
            if nearest.max() < distance**2:
                return None
            points[index] = attempts[int((nearest >= distance**2).argmax())]
        return points

    low, high = 0.0, 2 * radius
    best = in_ball(n_points, n_columns, radius, rng)
    for _ in range(PACKING_STEPS):
        middle = (low + high) / 2
        if (points := packed(middle)) is None:
            high = middle
        else:
            low, best = middle, points
    return best


def levy_steps(shape: tuple[int, ...], beta: float, rng: np.random.Generator) -> Floats:
    """Draw steps with heavy tails, about as Levy's stable law of index beta has them (Mantegna 1994)."""
    from scipy.special import gamma

    scale = (gamma(1 + beta) * np.sin(np.pi * beta / 2) / (gamma((1 + beta) / 2) * beta * 2 ** ((beta - 1) / 2))) ** (
        1 / beta
    )
    return np.asarray(scale * rng.standard_normal(shape) / np.abs(rng.standard_normal(shape)) ** (1 / beta))


def mutants(centers: Floats, n_each: int, step: float, beta: float, radius: float, rng: np.random.Generator) -> Floats:
    """Return centers moved by steps with heavy tails, some of each, within the ball."""
    repeated = np.repeat(centers, n_each, axis=0)
    return clip_rows(repeated + step * levy_steps(repeated.shape, beta, rng), radius)


# How many clusters there are.


class Fine(NamedTuple):
    """More clusters than are sought, as noise lets see them.

    ``total`` is the mean squared norm of a row; then come the standard deviations of the noise in an entry of the sum
    of a cluster's rows, and in their number.
    """

    means: Floats
    counts: Floats
    total: float
    of_sums: float
    of_counts: float


def chosen_number(
    fine: Fine,
    like_fine: Callable[[Floats, int], Floats],
    rows: Callable[[int], Floats],
    numbers: tuple[int, int],
    rng: np.random.Generator,
) -> ClusterNumber:
    """Return how many clusters there are.

    Parameters
    ----------
    fine : Fine
        Of the clients' rows.
    like_fine : callable
        Takes made-up rows and a number, returns so many centers of them: as many as noise left of the clients'.
    rows : callable
        Draws so many rows of one Gaussian.
    numbers : tuple of two int
        The least and the largest number of clusters.
    rng : numpy.random.Generator
    """
    n_kept = int(np.count_nonzero(fine.counts > DEVIATIONS * fine.of_counts))
    tried = range(numbers[0], max(min(numbers[1], n_kept - 1), numbers[0]) + 1)
    own, of_one = _measures(fine, tried), []
    n_rows = max(float(fine.counts.sum()), 100.0)
    n_drawn = int(min(n_rows, REFERENCE_ROWS))
    for _ in range(N_REFERENCES):
        drawn = rows(n_drawn)
        centers = like_fine(drawn, max(n_kept, 1))
        sums, counts = cluster_sums(drawn, nearest_center(drawn, centers), len(centers))
        sums *= n_rows / n_drawn
        noisy = counts * (n_rows / n_drawn) + fine.of_counts * rng.standard_normal(len(counts))
        means = centers_of(sums + fine.of_sums * rng.standard_normal(sums.shape), noisy, fallback=centers)
        # A few rows of a Gaussian have a second moment of their own, of which their means leave so much.
        reference = fine._replace(means=means, counts=noisy, total=float((drawn**2).sum() / n_drawn))
        of_one.append([one["silhouette"] for one in _measures(reference, tried)])
    return ClusterNumber(
        list(tried),
        silhouette=[one["silhouette"] for one in own],
        davies_bouldin=[one.get("davies_bouldin", np.nan) for one in own],
        calinski_harabasz=[one.get("calinski_harabasz", np.nan) for one in own],
        of_one_gaussian=np.mean(of_one, axis=0).tolist(),
    )


def _measures(fine: Fine, numbers: Sequence[int]) -> list[dict[str, float]]:
    from sklearn.cluster import KMeans

    kept = fine.counts > DEVIATIONS * fine.of_counts
    means, counts = fine.means[kept], fine.counts[kept]
    if len(means) <= numbers[0] or (fine.of_counts > 0 and len(means) < FEWEST):
        return [{"silhouette": 0.0} for _ in numbers]
    # How far rows lie from these means: what the means leave of the second moment.
    scatter = max(fine.total - float(counts @ (means**2).sum(axis=1)) / float(counts.sum()), 0.02 * fine.total)
    found: list[dict[str, float]] = []
    for number, start in zip(reversed(numbers), _merged(means, counts, numbers), strict=True):
        centers = start
        if number < len(means):
            centers = (
                KMeans(number, init=start, n_init=1, max_iter=50).fit(means, sample_weight=counts).cluster_centers_
            )
        measures = ClusterSums.of_rows(means, centers, counts, scatter=scatter).measures(centers)
        found.append({"silhouette": 0.0} | measures)
    return found[::-1]


def _merged(means: Floats, counts: Floats, numbers: Sequence[int]) -> list[Floats]:
    """Return centers of so many clusters, the largest number first: each time the two merge that raise the cost least.

    Ward's criterion. A k-means that starts from these misses no cluster that k-means++ would miss by chance.
    """
    points, weights = means.copy(), counts.copy()
    found: list[Floats] = []
    while len(found) < len(numbers):
        if len(points) <= numbers[-1 - len(found)]:
            found.append(points.copy())
            continue
        apart = squared_distances(points, points) * (weights[:, None] * weights / (weights[:, None] + weights))
        apart[np.tril_indices(len(points))] = np.inf
        first, second = np.unravel_index(apart.argmin(), apart.shape)
        both = weights[first] + weights[second]
        points[first] += (points[second] - points[first]) * (weights[second] / both)
        weights[first] = both
        points, weights = np.delete(points, second, axis=0), np.delete(weights, second)
    return found


# The client half.


def class_reach(index: int) -> float:
    """Return how far a class of distances reaches, as a part of the radius."""
    return float(2.0 ** (-index / 2))


class VotesClient(FrameClient):
    """The answers that PE-means needs, and all that follow it."""

    @by_row(row_count=Sent("number of rows", counts_rows=True))
    def row_count(rows: Rows) -> Term:
        """Count the rows."""
        return count(rows)

    @by_row(votes=Sent("number of rows nearest to each candidate", counts="every row"))
    def votes(rows: Rows, candidates: Floats, directions: Floats) -> Term:
        """Return the votes of the rows, in public directions; an empty array of directions is the whole space."""
        return at(rows.projected(directions).nearest(candidates), len(candidates))

    @by_row(
        sums="sum of the rows' offsets from their nearest centers, clipped",
        counts=Sent("number of rows nearest to each center", counts="every row", sizes=True),
    )
    def offset_sums(rows: Rows, centers: Floats, directions: Floats, *, bound: float) -> tuple[Term, Term]:
        """Return the offsets, in public directions, and the counts."""
        rows = rows.projected(directions)
        nearest = rows.nearest(centers)
        return at(nearest, len(centers), rows.offsets(centers, nearest, bound)), at(nearest, len(centers))


class PrivateKMeansClient(VotesClient):
    """The client half of :class:`~flower_fedclust.strategies.private_kmeans.PrivateKMeans`."""

    @by_row(row_sum=Sent("sum of the rows, clipped", has_columns=True))
    def row_sum(rows: Rows) -> Term:
        """Return the sum of the rows in the frame."""
        return total(rows)

    @by_row(distances=Sent("number of rows by distance from the origin, in classes", counts="every row"))
    def distances(rows: Rows) -> Term:
        """Return how many rows are in each class, from the farthest to the nearest."""
        bound, _ = ball_in_units(rows.radius, 2, rows.exponent)
        limits = np.floor(bound**2 * np.ldexp(1.0, -np.arange(N_CLASSES - 1, 0, -1)))
        # Integers are compared, so that the class of a row is the same everywhere. The nearest class is the last.
        inside = np.searchsorted(limits, integer_norms(rows.integers, 2), side="left")
        return at(N_CLASSES - 1 - inside, N_CLASSES)

    @by_row(second_moment="sum of the outer products of the rows (upper triangle)")
    def second_moment(rows: Rows) -> Term:
        """Return the second moment of the rows in the frame."""
        return products(rows)

    @finishes(
        second_moment, distances=Sent("size of the client's second moment, as one of many classes", counts="once")
    )
    def moment_size(totals: tuple[Term, ...], n_rows: int) -> Term:
        """Return the class of the root of the Frobenius norm of the client's mean outer product."""
        (moment,) = totals
        matrix = triangle_to_symmetric(moment.array.values) / max(n_rows, 1)
        # Of 20 bits, so that the sum of squares is exact on every machine, and so is the comparison with powers of 4.
        entries = np.trunc(matrix * (2.0**20 / moment.bound.l2))
        square = int(np.vdot(entries, entries))
        # The class is the number of times that the norm can be doubled without exceeding the square of the radius.
        index = N_CLASSES - 1 if square == 0 else next(c for c in range(64) if square * 4 ** (c + 1) > 4**20)
        return one_class(min(max(index, 0), N_CLASSES - 1), N_CLASSES)


PrivateKMeans.client_type = PrivateKMeansClient

"""PrivateMixture: Gaussian mixtures by EM on sums, private or not.

With noise it starts from the noisy cells of :mod:`.common.private_search`, and takes at most two EM steps. The server
does not believe the noisy sums as they are: it looks for the mixture that explains all of them
(:mod:`.common.mixture_fit`).

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Protocol, Sum, parameter
from flower_fedclust.engine.by_row import by_row
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import DensityGain, Outcome, Question, Round, Total
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.mixtures import (
    Structure,
    in_two_parts,
    log_densities,
    log_density,
    moments,
    responsibilities,
    structure_named,
    whitened,
)
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.exact.terms import Term, vectors
from flower_fedclust.models import MixtureModel
from flower_fedclust.numerics.kmeans import centers_of, nearest_center, squared_distances
from flower_fedclust.numerics.prototypes import FULL_COLUMNS
from flower_fedclust.numerics.spectrum import mean_if_positive
from flower_fedclust.numerics.validity import numbers_of, weighted_rand_index
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.clusters import ClusterClient
from flower_fedclust.strategies.common.many_starts import ALL_ROWS_ROUNDS, StartsClient, kmeans_of_all_rows, spectrum_of
from flower_fedclust.strategies.common.mixture_fit import (
    Mixture,
    Seen,
    averaged,
    fitted,
    normals_for,
    others_as_probable,
    tied_mixture,
)
from flower_fedclust.strategies.common.private_search import (
    CELL_ROUNDS,
    CLIENT_MARGIN,
    SearchClient,
    SearchStrategy,
    Space,
    first_rounds,
    frame_of_most,
    gaussian_part,
    parts_of_cells,
    rough_clusters,
)
from flower_fedclust.strategies.common.small_clusters import (
    DEVIATIONS,
    agreement_of_another_run,
    clustered,
    weight_of,
)

Floats = NDArray[np.float64]
R = TypeVar("R")

#: What the EM steps cost, and the comparison with one Gaussian, beside the COSTS of the search.
COST, COST_OF_GAIN = 0.4, 0.06
#: A row's gain over one Gaussian is clipped to this many nats; and to a third of it if the mixture is better.
MOST_GAIN = 4.5
#: This part of the rows may lie where the mixture does not expect them, one deviation of all rows away.
PART_ELSEWHERE = 0.01
#: How many other runs are imitated.
N_OTHER_RUNS = 10
#: Components with less than this part of an average share vanish, unless noise is less than that.
LEAST_SHARE = 0.1
#: EM steps with noise.
N_STEPS = 2
#: The structures that covariance_type="auto" compares, and the order in which the sums for them are considered.
AUTO: tuple[Structure, ...] = ("full", "diag", "tied")
#: Products of columns are asked for if the noise in a component's covariance is smaller than this.
LARGEST_NOISE = 0.5
#: With noise, a mixture lies in so many directions at most; or in as many as there are components, if these are more.
MOST_COLUMNS = 12
#: A mixture has so many numbers at most: more components have fewer directions. "auto" has no "full" beyond the second.
MOST_NUMBERS, MOST_OF_AUTO = 1200, 600
#: The fit uses the sums of EM and what was released before them, the last first, until these are so many numbers.
MOST_VALUES = 300
#: Rows that the server draws from a mixture: where mixtures are compared, and for the last one.
N_DRAWN_FIRST, N_DRAWN = 1_000, 2_000
#: Where mixtures are compared, at least so many rows for each component.
DRAWN_FOR_EACH = 130
#: A fit computes the sums of so many mixtures at most: where mixtures are compared, and else.
N_FITS, MOST_FITTED = 5, 10
#: Starts are the same if their centers are nearer to each other than this, in deviations of the components.
SAME_START = 0.2
#: The part of the rows whose vectors are not clipped, if they are as the mixture says.
NOT_CLIPPED = 0.45
#: How much the covariances of components differ from each other, by the priors that are tried.
DIFFERENCES = (0.45, 0.15)
#: In the reference, the smallest variance as a part of the mean variance.
LEAST_OF_MEAN = 0.3
#: Covariances have at least this part of the mean variance of the rows in every direction, without and with noise.
FLOOR, NOISY_FLOOR = 1e-6, 1e-3
#: Without noise: the most EM steps, and the largest change, in a component's deviations, that ends them.
N_EM_ROUNDS, TOLERANCE = 500, 1e-9
#: Cells are used by groups, so many for each component.
GROUPS = 6
#: How many other starts are compared.
N_OTHER_STARTS = 4
#: Rows whose vectors are computed at a time.
BLOCK_ROWS = 2**10


class PrivateMixture(SearchStrategy):
    """Private Gaussian mixtures without public rows, by EM on sums.

    The run finds noisy cells as :class:`PrivateKMeans` does, and spends the rest of its budget on EM steps: every
    client adds up what its rows add to the components' sizes, means and covariances, each row's vector clipped. The
    server then looks for the mixture that explains best all noisy sums of the run. Without an epsilon, EM goes on until
    it converges.

    Parameters
    ----------
    covariance_type : "auto", "full", "diag", "spherical" or "tied", default="auto"
        As in scikit-learn. "auto" chooses what the noisy sums make most probable: simpler covariances where the noise
        hides their differences. Without noise it is "full", and "diag" for more than 64 columns.

    Notes
    -----
    With noise and more than twelve columns (or components, if these are more), the components differ only in the
    directions in which the rows spread most; elsewhere all rows have one variance. Where that would still take more
    than 1,200 numbers, "auto" leaves "full" out, and there are fewer directions. A component that vanishes in the noise
    is dropped, and the result says so in a doubt. Without noise, EM ends when nothing changes, or after 500 steps.

    References
    ----------
    "DP-EM: Differentially private expectation maximization", Park et al., AISTATS 2017, perturbs the sums of EM.
    """

    entries = (
        Entry(
            "private-mixture",
            "private Gaussian mixtures without public rows, by EM on clipped sums",
            "EM on noisy sums, after Park et al. 2017",
            example={"max_norm": 3.0},
            finds="round",
        ),
    )

    covariance_type: Literal["auto", "full", "diag", "spherical", "tied"] = parameter("auto")

    # The server half.

    def protocol(self) -> Protocol:
        """Find cells, ask for the sums of EM, and fit the mixture to all that was released."""
        if self.epsilon is None:
            return (yield from self._em())
        notes: list[tuple[Round, Total]] = []
        frame, n_rows = yield from frame_of_most(self)
        space, fine, number, centers, _ = yield from _noted(rough_clusters(self, frame, n_rows), notes)
        search = Search(space, len(centers), self._structures, self.rng)
        for asked, received in reversed(notes):
            if sum(len(one.values) for one in search.seen) < MOST_VALUES:
                search.note(asked, received, space.units.number)
        # A cell that noise hides may have about as many rows as the noise.
        counts = np.array([mean_if_positive(float(one), fine.of_counts) for one in fine.counts])
        starts = [(centers, weight_of(fine.means, counts, centers))]
        for _ in range(N_OTHER_STARTS):
            others = clustered(fine.means, np.maximum(fine.counts, 1.0), len(centers), self.rng, n_init=1)
            starts.append((others, weight_of(fine.means, counts, others)))
        mixture = search.begin(starts)
        deviation = 0.0
        for step in range(N_STEPS):
            question, scale = self._expectation(search, mixture)
            received = yield question
            n_units = space.units.number
            search.note(question, received, n_units)
            mixture = search.best(search.references[:1]) if step < N_STEPS - 1 else search.final()
            deviation = received.noise[0] / n_units / scale
        kept = mixture.without(mixture.weights <= min(DEVIATIONS * deviation, LEAST_SHARE / len(mixture.weights)))
        gain = yield from self._gain(search, kept)
        agreement = min(search.agreement, agreement_of_another_run(fine, space.spread, centers, self.rng))
        return Outcome(search.model(kept), number=number, agreement=agreement, gain=gain)

    def _gain(self, search: Search, mixture: Mixture) -> Generator[Round, Total, DensityGain]:
        """Ask how much better than one Gaussian the mixture describes the rows."""
        one = search.one_gaussian(mixture)
        question = PrivateMixtureClient.gain.asked(
            *mixture.arrays, *one.arrays, search.directions, frame=search.space.frame, bound=MOST_GAIN
        )
        (total,) = received = yield self.summed(question, "gain", at_most=(MOST_GAIN,))
        n_units = search.space.units.number
        return DensityGain(float(total[0]) / n_units, received.noise[0] / n_units, search.hidden(mixture, one))

    @property
    def _structures(self) -> tuple[Structure, ...]:
        return AUTO if self.covariance_type == "auto" else (self.covariance_type,)

    def _expectation(self, search: Search, mixture: Mixture) -> tuple[Round, float]:
        """Return the round of an EM step, and the scale of memberships; products only if noise leaves something."""
        of_clients = self.privacy_unit == "client"
        n_units = len(self.client_names) if of_clients else search.space.n_rows
        scale = math.sqrt(max(mixture.means.shape[1] / 2, 1.0))
        for structure in search.structures[:2]:
            asked = mixture.as_structure(structure)
            bound, of_means = search.norms(asked, scale, self.rows_per_client if of_clients else 0)
            noise = self.noise_of("moments", of_means if of_clients else bound)
            if noise * len(mixture.means) / n_units < LARGEST_NOISE:
                break
        question = PrivateMixtureClient.expectation.asked(
            *asked.arrays, search.directions, frame=search.space.frame, structure=structure, scale=scale, bound=bound
        )
        return self.summed(question, "moments", at_most=(of_means,)), scale

    # Without noise.

    def _em(self) -> Protocol:
        """Take EM steps from the clusters of k-means and their common covariance, until they converge."""
        notes: list[tuple[Round, Total]] = []
        _, _, number = yield from _noted(kmeans_of_all_rows(numbers_of(self.n_clusters), self.rng), notes)
        last = notes[-1][0].question_for(None)
        sums, counts = notes[-1][1]
        assert last.frame is not None
        frame, d = last.frame, sums.shape[1]
        sums_of = next(one for one in notes if one[0].asks is StartsClient.second_moment)
        sketch = {name: int(value) for name, value in sums_of[0].question_for(None).arguments.items()}
        values, vectors, _, _, total = spectrum_of(sums_of[1][0], sketch, counts.sum(), 0.0)
        # What a sketch does not show is taken to be alike in all columns.
        moment = (vectors * values) @ vectors.T + max(total - float(values.sum()), 0.0) / d * np.eye(d)
        least = max(FLOOR * float(np.trace(moment)) / d, 1e-300)
        means = centers_of(sums, counts, fallback=last.arrays[0])
        structure = self._structures[0] if self.covariance_type != "auto" or d <= FULL_COLUMNS else "diag"
        mixture = tied_mixture(counts, means, moment, 0.0, least).as_structure(structure)
        change = math.inf
        for _ in range(N_EM_ROUNDS):
            question = PrivateMixtureClient.exact_expectation.asked(*mixture.arrays, frame=frame, structure=structure)
            moments, rest = yield Sum(question)
            former, mixture = mixture, mixture.maximized(moments + rest, least)
            before, change = change, float(np.abs(mixture.since(former)).max())
            # Clients use the nearest points of their grid, so changes of less than a unit need not end.
            unit = math.ldexp(float(np.abs(former.arrays[1]).max()), unit_exponent(frame.radius))
            if change < TOLERANCE or before <= change < unit:
                break
        else:
            warnings.warn(
                f"EM had not converged after {N_EM_ROUNDS} steps: components overlap. Use fewer, or a simpler "
                "covariance_type.",
                RuntimeWarning,
                stacklevel=2,
            )
        model = MixtureModel(mixture.weights, frame.leave(mixture.means), mixture.covariances, structure)
        return Outcome(model, number=number)

    # Parameters and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The rounds for cells, the EM steps, and the comparison with one Gaussian; k-means and EM without noise."""
        if self.epsilon is None:
            return ALL_ROWS_ROUNDS + N_EM_ROUNDS
        first = first_rounds(center_rows=True, counts_rows=self.privacy_unit == "record")
        return first + CELL_ROUNDS + N_STEPS + 1

    def parts(self) -> Mapping[str, Part]:
        """Return the parts for cells, for the EM steps, and for the last comparison."""
        return {
            **parts_of_cells(PrivateMixtureClient, counts_rows=self.privacy_unit == "record"),
            "moments": gaussian_part(PrivateMixtureClient.expectation, COST, N_STEPS),
            "gain": gaussian_part(PrivateMixtureClient.gain, COST_OF_GAIN, 1),
        }


def _noted(rounds: Generator[Round, Total, R], notes: list[tuple[Round, Total]]) -> Generator[Round, Total, R]:
    """Run a part of a protocol, and keep what it asks and receives."""
    try:
        asked = next(rounds)
        while True:
            received = yield asked
            notes.append((asked, received))
            asked = rounds.send(received)
    except StopIteration as end:
        found: R = end.value
        return found


class Search:
    """What a run has released, and the mixtures that explain it.

    It takes place in the columns, or in the directions in which rows spread most if there are many columns.
    """

    def __init__(
        self, space: Space, n_components: int, structures: Sequence[Structure], rng: np.random.Generator
    ) -> None:
        self.space, self.rng = space, rng
        self.seen: list[Seen] = []
        d = len(space.directions)
        n_directions = (
            d if d <= MOST_COLUMNS else min(max(space.n_above, space.n_inside), max(MOST_COLUMNS, space.n_inside))
        )
        if len(structures) > 1 and n_numbers(structures[0], n_components, n_directions) > MOST_OF_AUTO:
            structures = structures[1:]
        while n_directions > 1 and n_numbers(structures[0], n_components, n_directions) > MOST_NUMBERS:
            n_directions -= 1
        self.structures = structures
        #: The directions of the mixture; without an entry: all columns.
        self.directions = np.zeros((0, 0))
        if n_directions < d:
            self.directions = directions_onto_grid(space.directions[:, :n_directions])
        #: The smallest variance, and the variance of the rows in every other direction.
        self.least = NOISY_FLOOR * space.total / d
        likely = [mean_if_positive(float(one), space.noise) for one in space.values[:n_directions]]
        self.values = np.maximum(likely, self.least)
        n_others = max(d - n_directions, 1)
        rest = (space.total - float(space.values[:n_directions].sum())) / n_others
        self.elsewhere = max(mean_if_positive(rest, space.noise / math.sqrt(n_others)), self.least)
        self.n_components = n_components
        n_drawn = max(N_DRAWN_FIRST, DRAWN_FOR_EACH * n_components)
        self.normals = normals_for(n_components, n_directions, n_drawn, rng)

    def begin(self, starts: Sequence[tuple[Floats, Floats]]) -> Mixture:
        """Return the mixture from the most probable of some centers with weights; the first structure comes first."""
        found: list[tuple[Mixture, float, Floats, Mixture]] = []
        for centers, weights in starts:
            moment, means = np.diag(self.values), np.zeros((len(centers), len(self.values)))
            n_known = min(self.space.n_inside, len(self.values))
            means[:, :n_known] = centers[:, :n_known]
            if not self.directions.size:
                basis = self.space.directions
                moment, means = basis @ moment @ basis.T, means @ basis.T
            first = tied_mixture(weights, means, moment, LEAST_OF_MEAN, self.least).as_structure(self.structures[0])
            if not any(is_near(first, one[3]) for one in found):
                found.append((*self._fitted(first, first, DIFFERENCES[0], N_FITS), first))
        self.mixture, _, _, first = max(found, key=lambda one: one[1])
        self.starts = [(one[0], one[1]) for one in found]
        #: The means of the priors, and how much covariances differ by them.
        self.references = [(first.as_structure(structure), DIFFERENCES[0]) for structure in self.structures]
        return self.mixture

    def note(self, asked: Round, received: Total, n_units: float) -> None:
        """Keep a sum, if it says something about the mixture."""
        question = asked.question_for(None)
        if question.asks is PrivateMixtureClient.cells:
            self.seen.append(self._grouped(question, received[0] / n_units, received.noise[0] / n_units))
        elif (of_rows := _of_rows(question)) is not None:
            noise = [np.full(one.size, sd / n_units) for one, sd in zip(received, received.noise, strict=True)]
            values = np.concatenate([one.ravel() for one in received]) / n_units
            self.seen.append(Seen(values, np.concatenate(noise), of_rows))

    def _grouped(self, question: Question, sums: Floats, noise: float) -> Seen:
        """Return the sums of groups of neighboring cells: single ones have little more rows than noise.

        A group's offsets are taken from the mean of its points, so that their noise has nothing to do with the noise of
        its number of rows.
        """
        points, directions = question.arrays
        weight, bound = float(question.arguments["weight"]), float(question.arguments["bound"])
        n_groups = min(GROUPS * self.n_components, len(points))
        middles = clustered(points, np.ones(len(points)), n_groups, self.rng, n_init=1)
        groups = nearest_center(points, middles)
        members = np.asarray(groups[:, None] == np.arange(n_groups), dtype=np.float64)
        sizes = np.maximum(members.sum(axis=0), 1.0)
        middles = members.T @ points / sizes[:, None]
        moved = (points - middles[groups]) / weight
        values = np.hstack([members.T @ (sums[:, :-1] + sums[:, -1:] * moved), members.T @ sums[:, -1:]])
        of_offsets = np.sqrt(sizes[:, None] + members.T @ moved**2)
        deviations = noise * np.hstack([of_offsets, np.sqrt(sizes)[:, None]])

        def of_rows(rows: Rows) -> Floats:
            rows = rows.projected(directions)
            nearest = rows.nearest(points)
            offsets = rows.offsets(points, nearest, bound).values
            both = np.hstack([offsets + weight * moved[nearest], np.full((len(nearest), 1), weight)])
            return np.asarray((members[nearest][:, :, None] * both[:, None]).reshape(len(nearest), -1))

        return Seen(values.ravel(), deviations.ravel(), of_rows)

    def best(self, references: Sequence[tuple[Mixture, float]]) -> Mixture:
        """Return the most probable mixture with the most probable of these priors."""
        starts = [self.mixture.as_structure(one.structure) for one, _ in references]
        n_steps = MOST_FITTED if len(references) == 1 else N_FITS
        found = [self._fitted(start, *prior, n_steps) for start, prior in zip(starts, references, strict=True)]
        self.mixture, self.evidence, _ = found[best := int(np.argmax([one[1] for one in found]))]
        self.reference = references[best]
        return self.mixture

    def final(self) -> Mixture:
        """Return the most probable mixture with the most probable prior, from many rows, with its uncertainty."""
        self.best(self.references)
        if self.reference[0].structure != "tied":
            alike = self.reference[0], DIFFERENCES[1]
            mixture, evidence, _ = self._fitted(self.mixture, *alike, N_FITS)
            if evidence > self.evidence:
                self.mixture, self.reference = mixture, alike
        n_drawn = max(N_DRAWN, DRAWN_FOR_EACH * self.n_components)
        self.normals = normals_for(self.n_components, len(self.values), n_drawn, self.rng)
        found, _, curvature = self._fitted(self.mixture, *self.reference)
        mixture = averaged(found, curvature, self.rng)
        self.agreement = self._agreement(mixture, others_as_probable(found, curvature, N_OTHER_RUNS, self.rng))
        return mixture

    def _agreement(self, mixture: Mixture, others: Sequence[Mixture]) -> float:
        """Estimate the adjusted Rand index between this run's clusters and another's.

        Another run has other noise, which the posterior shows. It may also begin elsewhere: at a start that is less
        probable by ``l`` nats with the probability that a Gaussian of mean l and variance 2 l, as the logarithm of a
        ratio of likelihoods has, falls below 0.
        """
        from scipy.special import ndtr

        drawn, weights = mixture.drawn(self.normals)
        labels = mixture.labels(drawn)
        indices = [weighted_rand_index(labels, one.labels(drawn), weights, self.n_components) for one in others]
        best, elsewhere = max(evidence for _, evidence in self.starts), [1.0]
        for start, evidence in self.starts:
            index = weighted_rand_index(labels, start.labels(drawn), weights, self.n_components)
            if evidence < best:
                elsewhere.append(1.0 - float(ndtr(-math.sqrt((best - evidence) / 2))) * (1.0 - index))
        return float(np.mean(indices)) * min(elsewhere)

    def one_gaussian(self, mixture: Mixture) -> Mixture:
        """Return one Gaussian for all rows, with the second moment that the run has found."""
        moment = np.diag(self.values)
        if not self.directions.size:
            moment = self.space.directions @ moment @ self.space.directions.T
        return tied_mixture(np.ones(1), mixture.weights[None] @ mixture.means, moment, 0.0, self.least)

    def hidden(self, mixture: Mixture, one: Mixture) -> float:
        """About how many nats a row noise may hide by which one Gaussian is better than the mixture.

        A Gaussian of the exact second moment M gains ``tr((M^-1 E)^2) / 4`` nats over one of the noisy moment, for
        small errors E; this is doubled, because errors are not small where noise hides M. And where the mixture is
        narrower than one Gaussian, a few rows elsewhere lose more than the clipped gains show.
        """
        n_others = len(self.space.directions) - len(self.values)
        precisions = 1.0 / np.append(self.values, np.full(n_others, self.elsewhere))
        of_moment = self.space.noise**2 / 4 * float(precisions.sum() ** 2 + (precisions**2).sum())
        return of_moment + PART_ELSEWHERE / 2 * mixture.narrowest(one)

    def _fitted(
        self, start: Mixture, reference: Mixture, difference: float, n_steps: int = MOST_FITTED
    ) -> tuple[Mixture, float, Floats]:
        where = self.space.frame.radius, self.directions
        return fitted(self.seen, start, reference, difference, self.space.n_rows, self.normals, *where, n_steps)

    def norms(self, mixture: Mixture, scale: float, rows_per_client: int) -> tuple[float, float]:
        """Return the norm to which clients clip the vectors of rows, and the norm for the means of their vectors.

        If the guarantee is for rows, rows_per_client is 0: the first norm is then smaller.
        """
        drawn, weights = mixture.drawn(self.normals)
        values = mixture.moments(Frame(np.zeros(drawn.shape[1]), self.space.frame.radius).rows(drawn), scale)
        norms, mean = np.sqrt((values**2).sum(axis=1)), weights @ values
        if rows_per_client:
            square = float(mean @ mean) + float(weights @ norms**2) / rows_per_client
            return float(norms.max()), CLIENT_MARGIN * math.sqrt(square)
        order = np.argsort(norms)
        place = int(np.searchsorted(np.cumsum(weights[order]), NOT_CLIPPED))
        return float(norms[order[min(place, len(order) - 1)]]), 0.0

    def model(self, mixture: Mixture) -> MixtureModel:
        """Return the model in the columns of the data."""
        means, covariances = mixture.means, mixture.covariances
        if self.directions.size:
            basis = self.directions
            if covariances.ndim == 2:
                covariances = covariances[:, :, None] * np.eye(covariances.shape[1])
            outside = self.elsewhere * (np.eye(len(basis)) - basis @ basis.T)
            means, covariances = means @ basis.T, basis @ covariances @ basis.T + outside
        return MixtureModel(mixture.weights, self.space.frame.leave(means), covariances, mixture.structure)


def is_near(one: Mixture, other: Mixture) -> bool:
    """Tell whether two mixtures of the same covariances have about the same means, in any order."""
    (_, whitening, _), points = one.arrays, np.concatenate([one.means, other.means])
    turned = points * whitening[0] if whitening.ndim == 2 else points @ whitening[0]
    apart = squared_distances(turned[: len(one.means)], turned[len(one.means) :])
    return bool(max(apart.min(axis=0).max(), apart.min(axis=1).max()) < SAME_START**2)


def n_numbers(structure: Structure, k: int, d: int) -> int:
    """Return how many numbers a mixture of k components in d directions has."""
    whole, of_all = d * (d + 1) // 2, k * (1 + d)
    return of_all + {"full": k * whole, "diag": k * d, "spherical": k, "tied": whole}[structure]


def _of_rows(question: Question) -> Callable[[Rows], Floats] | None:
    """Return what a question asks of each row; None if the answer says little about the mixture."""
    client, asked, bound = PrivateMixtureClient, question.asks, float(question.arguments.get("bound", math.inf))
    if asked is client.expectation:
        structure, scale = str(question.arguments["structure"]), float(question.arguments["scale"])
        return lambda rows: clip_rows(row_moments(rows, *question.arrays, structure=structure, scale=scale), bound)
    return None


# The client half.


def row_densities(rows: Rows, means: Floats, whitening: Floats, constants: Floats, directions: Floats) -> Floats:
    """Return the logarithm of the density at each row, but for a constant, in public directions."""
    integers, parts = rows.projected(directions).integers, []
    for start in range(0, max(len(integers), 1), BLOCK_ROWS):
        offsets = whitened(integers[start : start + BLOCK_ROWS], means, whitening, rows.exponent)
        parts.append(log_density(log_densities(offsets, constants)))
    return np.concatenate(parts)


def row_moments(
    rows: Rows,
    means: Floats,
    whitening: Floats,
    constants: Floats,
    directions: Floats,
    *,
    structure: str,
    scale: float,
) -> Floats:
    """Return each row's memberships and the moments of its whitened offsets, in public directions."""
    named, integers, parts = structure_named(structure), rows.projected(directions).integers, []
    for start in range(0, max(len(integers), 1), BLOCK_ROWS):  # a few rows at a time, as several arrays are this long
        offsets = whitened(integers[start : start + BLOCK_ROWS], means, whitening, rows.exponent)
        parts.append(moments(offsets, responsibilities(log_densities(offsets, constants)), named, scale))
    return np.concatenate(parts)


class PrivateMixtureClient(SearchClient, ClusterClient):
    """The client half of :class:`PrivateMixture`."""

    @by_row(moments="memberships and moments of the rows' whitened offsets, each row's vector clipped")
    def expectation(
        rows: Rows,
        means: Floats,
        whitening: Floats,
        constants: Floats,
        directions: Floats,
        *,
        structure: str,
        scale: float,
        bound: float,
    ) -> Term:
        """Return what EM adds up, with a bound on each row's vector."""
        message = means, whitening, constants, directions
        return vectors(row_moments(rows, *message, structure=structure, scale=scale), bound)

    @by_row(gain="logarithms of the rows' densities less those of one Gaussian, clipped")
    def gain(
        rows: Rows,
        means: Floats,
        whitening: Floats,
        constants: Floats,
        mean: Floats,
        whitening_of_one: Floats,
        constant: Floats,
        directions: Floats,
        *,
        bound: float,
    ) -> Term:
        """Return the gain in log-density; a gain counts up to a third of the bound, a loss up to the bound."""
        of_mixture = row_densities(rows, means, whitening, constants, directions)
        of_one = row_densities(rows, mean, whitening_of_one, constant, directions)
        return vectors(np.minimum(of_mixture - of_one, bound / 3)[:, None], bound)

    @by_row(moments="memberships and moments of the rows' whitened offsets", rest="what 40 bits of them cut off")
    def exact_expectation(
        rows: Rows, means: Floats, whitening: Floats, constants: Floats, *, structure: str
    ) -> tuple[Term, Term]:
        """Return the same without a bound."""
        message = means, whitening, constants, np.zeros((0, 0))
        d = means.shape[1]
        # No row of the frame has a longer vector.
        most = (2 * rows.radius * d * float(np.abs(whitening).max()) + d + 2) ** 2
        return in_two_parts(row_moments(rows, *message, structure=structure, scale=1.0), most)


PrivateMixture.client_type = PrivateMixtureClient

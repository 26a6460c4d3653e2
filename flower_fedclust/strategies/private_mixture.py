"""PrivateMixture: Gaussian mixtures by EM on sums, private or not.

With noise it starts from the clusters of private k-means (:mod:`.common.private_search`), and takes
two EM steps. The server does not use the noisy sums as they are. It looks for the mixture that best
explains all sums of the run together (:mod:`.common.mixture_search`).

docs/shape.md shows how a ``yield`` here becomes a round of Flower.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping
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
from flower_fedclust.exact.rows import Rows
from flower_fedclust.exact.terms import Term, vectors
from flower_fedclust.models import MixtureModel
from flower_fedclust.numerics.kmeans import centers_of
from flower_fedclust.numerics.prototypes import FULL_COLUMNS
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.numerics.vectors import clip_rows
from flower_fedclust.strategies.common.clusters import ClusterClient
from flower_fedclust.strategies.common.many_starts import (
    ALL_ROWS_ROUNDS,
    MOST_COLUMNS,
    StartsClient,
    kmeans_of_all_rows,
    spectrum_of,
)
from flower_fedclust.strategies.common.mixture_fit import Mixture, Seen, tied_mixture
from flower_fedclust.strategies.common.mixture_search import MixtureSearch
from flower_fedclust.strategies.common.noisy_cells import repeated
from flower_fedclust.strategies.common.private_search import (
    CELL_ROUNDS,
    COSTS,
    SOLUTION_ROUNDS,
    SearchClient,
    SearchStrategy,
    best_of_many,
    cells_of_rows,
    first_rounds,
    frame_of_most,
    gaussian_part,
    more_steps,
    parts_of_cells,
    parts_of_solutions,
    space_of_rows,
)
from flower_fedclust.strategies.common.small_clusters import (
    DEVIATIONS,
    number_if_asked,
    small_clusters,
    weight_of,
)

Floats = NDArray[np.float64]
R = TypeVar("R")

#: The privacy costs of the EM steps (inverse squared noise multipliers), in the unit in which the COSTS of
#: :mod:`.common.private_search` add up to 1.
COSTS_OF_STEPS = {"first_moments": 0.08, "moments": 0.25}
#: The privacy cost of the comparison with one Gaussian, in the same unit.
COST_OF_GAIN = 0.05
#: A row's gain over one Gaussian is the logarithm of the mixture's density over the Gaussian's. It is clipped to this
#: many nats if it is negative, and to a third of that if it is positive.
MOST_GAIN = 4.5
#: A component is dropped if its share is less than this fraction of the average share, or less than what noise can
#: produce if that is smaller still.
LEAST_SHARE = 0.1
#: The structures that covariance_type="auto" compares, and the order in which the sums for them are considered.
AUTO: tuple[Structure, ...] = ("full", "diag", "tied")
#: "auto" takes round components if the noise in all variances of a component together has a larger norm than this.
NOISE_OF_ROUND = 0.2
#: EM steps ask for products of columns only if the noise in an entry of a component's covariance is smaller than this.
LARGEST_NOISE = 0.5
#: The fit uses the sums of EM and earlier releases, from the latest on, up to this many numbers.
MOST_VALUES = 300
#: Without noise: in each direction, the variance of a component is at least this fraction of the rows' mean variance.
FLOOR = 1e-6
#: Without noise: the most EM steps.
N_EM_ROUNDS = 500
#: Without noise: EM ends earlier if the components change by less than this, in units of their standard deviations.
TOLERANCE = 1e-9
#: The number of rows whose vectors of moments are computed at a time.
BLOCK_ROWS = 2**10


class PrivateMixture(SearchStrategy):
    """Private Gaussian mixtures without public rows, by EM on sums.

    The run finds clusters as :class:`PrivateKMeans` does, and spends the rest of its budget on EM
    steps. In an EM step each row has a vector: what it adds to the components' sizes, means and
    covariances. Every client clips the vectors of its rows and sends their sum. The server then
    looks for the mixture that best explains all noisy sums of the run. Without an epsilon, EM goes
    on until it converges.

    Parameters
    ----------
    covariance_type : "auto", "full", "diag", "spherical" or "tied", default="auto"
        As in scikit-learn. "auto" chooses among full, diagonal and tied covariances those that the
        noisy sums make most probable. If noise would hide covariances, it gives all components
        equal shares and one variance, so that a row belongs to the nearest mean, as in k-means.
        Without noise "auto" is "full", and "diag" for more than 64 columns.

    Notes
    -----
    With noise and more than twelve columns, the components differ only in some directions: all in
    which the centers of k-means differ, and those in which the rows spread most, up to twelve in
    total. In all other directions the rows are taken to have one variance. If the mixture would
    still have more than 1,200 parameters, it gets fewer directions; "auto" does not try full
    covariances if they would take more than 600 parameters. A component that noise hides is
    dropped, and the doubts of the result say so. Without noise, EM ends when nothing changes, or
    after 500 steps.

    References
    ----------
    "DP-EM: Differentially private expectation maximization", Park et al., AISTATS 2017, perturbs
    the sums of EM.
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
        """Find the clusters of k-means, and the mixture that explains all that was released.

        The code has the numbered steps. If noise would hide covariances, components are round, and
        the last steps improve the centers instead.
        """
        if self.epsilon is None:
            return (yield from self._em())
        notes: list[tuple[Round, Total]] = []
        # 1. Where the rows are, and in which directions they spread.
        frame, n_rows = yield from frame_of_most(self)
        space = yield from space_of_rows(self, frame, n_rows)
        # 2. Cells, and from these the number of components, if the user asked for it.
        space, cells = yield from _noted(cells_of_rows(self, space), notes)
        fine = small_clusters(cells, space.total_inside, self.most_clusters, self.rng)
        numbers = numbers_of(self.n_clusters)
        number = number_if_asked(fine, space.spread, n_rows, numbers, self.rng)
        k = self.most_clusters if number is None else number.chosen
        # 3. The clusters of k-means.
        start = yield from _noted(best_of_many(self, space, cells, k, last=()), notes)
        compared = start.compared
        sizes = weight_of(cells.means, cells.counts, start.centers @ space.inside)
        search = MixtureSearch(space, start.centers, sizes, self._structures, self.rng)
        # 4. If noise would hide covariances: round components, so that a row belongs to the nearest mean.
        if self.covariance_type == "auto" and self._noise_of_variances(search) > NOISE_OF_ROUND:
            start = yield from more_steps(self, space, cells, start, list(COSTS_OF_STEPS))
            search = MixtureSearch(space, start.centers, sizes, self._structures, self.rng)
            mixture, agreement = search.round(), 1.0
        # 5. Otherwise: EM steps, and the mixture that explains all noisy sums.
        else:
            for asked, received in reversed(notes):
                if sum(len(values.values) for values in search.seen) < MOST_VALUES:
                    _keep(search, asked, received)
            mixture, agreement = yield from self._em_steps(search)
        gain = yield from self._gain(search, mixture)
        # 6. An estimate of how well another run would agree, from the start and from the mixture.
        errors, inside = start.errors[:, :2], space.inside
        again = repeated(cells, start.centers, errors, inside, space.elsewhere, compared, self.rng)
        agreement = min(agreement, again.agreement)
        number = None if number is None else number.after_run(agreement)
        return Outcome(search.model(mixture), number=number, agreement=agreement, gain=gain)

    def _em_steps(self, search: MixtureSearch) -> Generator[Round, Total, tuple[Mixture, float]]:
        """Take EM steps; return the mixture, without components that noise hides, and another run's agreement."""
        mixture = search.first()
        for index, part in enumerate(COSTS_OF_STEPS):
            mixture = search.better(mixture) if index else mixture
            question, scale = self._expectation(search, mixture, part)
            received = yield question
            _keep(search, question, received)
        mixture, agreement = search.best(mixture)
        noise = DEVIATIONS * received.noise[0] / search.space.units.number / scale
        return mixture.without(
            mixture.weights <= min(noise, LEAST_SHARE / len(mixture.weights))
        ), agreement

    def _gain(
        self, search: MixtureSearch, mixture: Mixture
    ) -> Generator[Round, Total, DensityGain]:
        """Ask how much better than one Gaussian the mixture describes the rows."""
        single = search.one_gaussian(mixture)
        question = PrivateMixtureClient.gain.asked(
            *mixture.arrays,
            *single.arrays,
            search.directions,
            frame=search.space.frame,
            bound=MOST_GAIN,
        )
        (total,) = received = yield self.summed(question, "gain", at_most=(MOST_GAIN,))
        n_units = search.space.units.number
        return DensityGain(
            float(total[0]) / n_units, received.noise[0] / n_units, search.hidden(mixture, single)
        )

    @property
    def _structures(self) -> tuple[Structure, ...]:
        """The structures of covariances among which the run chooses."""
        return AUTO if self.covariance_type == "auto" else (self.covariance_type,)

    def _noise_of_variances(self, search: MixtureSearch) -> float:
        """Return the norm of the noise in all variances of a component, if sums are asked for the first structure."""
        return self._bounds(search, search.references[0], "moments")[3] * math.sqrt(
            len(search.moment)
        )

    def _bounds(
        self, search: MixtureSearch, mixture: Mixture, part: str
    ) -> tuple[float, float, float, float]:
        """Return the scale of memberships, two norms of an EM step, and the noise in an entry of a covariance.

        The norms are the bounds of a row's vector and of a client's mean vector.
        """
        units, scale = search.space.units, math.sqrt(max(mixture.means.shape[1] / 2, 1.0))
        bound, of_means = search.norms(
            mixture, scale, self.rows_per_client if units.are_clients else 0
        )
        noise = self.noise_of(part, of_means if units.are_clients else bound)
        return scale, bound, of_means, noise * len(mixture.means) / units.number

    def _expectation(
        self, search: MixtureSearch, mixture: Mixture, part: str
    ) -> tuple[Round, float]:
        """Return the round of an EM step, and the scale of memberships.

        Products of columns are asked for only if noise does not hide them; otherwise variances.
        """
        for structure in search.structures[:2]:
            asked = mixture.as_structure(structure)
            scale, bound, of_means, noise = self._bounds(search, asked, part)
            if noise < LARGEST_NOISE:
                break
        question = PrivateMixtureClient.expectation.asked(
            *asked.arrays,
            search.directions,
            frame=search.space.frame,
            structure=structure,
            scale=scale,
            bound=bound,
        )
        return self.summed(question, part, at_most=(of_means,)), scale

    # Without noise.

    def _em(self) -> Protocol:
        """Take EM steps from the clusters of k-means and their common covariance, until they converge.

        This is the form without noise. It ends when no component changes by more than
        :data:`TOLERANCE` of its standard deviations, when only the rounding on the clients' grid
        changes, or, with a warning, after :data:`N_EM_ROUNDS` steps.
        """
        notes: list[tuple[Round, Total]] = []
        _, _, number = yield from _noted(
            kmeans_of_all_rows(numbers_of(self.n_clusters), self.rng), notes
        )
        last = notes[-1][0].question_for(None)
        sums, counts = notes[-1][1]
        assert last.frame is not None
        frame, d = last.frame, sums.shape[1]
        sums_of = next(note for note in notes if note[0].asks is StartsClient.second_moment)
        sketch = {
            name: int(value) for name, value in sums_of[0].question_for(None).arguments.items()
        }
        values, vectors, _, _, total = spectrum_of(sums_of[1][0], sketch, counts.sum(), 0.0)
        # With many columns, clients send a sketch of the second moment. Variance outside its directions is taken to be
        # equal in all columns.
        moment = (vectors * values) @ vectors.T + max(
            total - float(values.sum()), 0.0
        ) / d * np.eye(d)
        least = max(FLOOR * float(np.trace(moment)) / d, 1e-300)
        means = centers_of(sums, counts, fallback=last.arrays[0])
        structure = (
            self._structures[0] if self.covariance_type != "auto" or d <= FULL_COLUMNS else "diag"
        )
        mixture = tied_mixture(counts, means, moment, 0.0, least).as_structure(structure)
        change = math.inf
        for _ in range(N_EM_ROUNDS):
            question = PrivateMixtureClient.exact_expectation.asked(
                *mixture.arrays, frame=frame, structure=structure
            )
            moments, rest = yield Sum(question)
            former, mixture = mixture, mixture.maximized(moments + rest, least)
            before, change = change, float(np.abs(mixture.since(former)).max())
            # Clients round the centers to their grid, so changes of less than a unit may never end.
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
        model = MixtureModel(
            mixture.weights, frame.leave(mixture.means), mixture.covariances, structure
        )
        return Outcome(model, number=number)

    # Parameters and budget.

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for k-means and EM steps, and with noise for the comparison with one Gaussian."""
        if self.epsilon is None:
            return ALL_ROWS_ROUNDS + N_EM_ROUNDS
        first = first_rounds(center_rows=True, counts_rows=self.privacy_unit != "client")
        return first + CELL_ROUNDS + SOLUTION_ROUNDS - 1 + len(COSTS_OF_STEPS) + 1

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of k-means (without its last step), of EM, and of the comparison with one Gaussian."""
        client = PrivateMixtureClient
        return {
            **parts_of_cells(client, counts_rows=self.privacy_unit != "client", costs=COSTS),
            **parts_of_solutions(client, has_last=False),
            **{
                part: gaussian_part((client.expectation, client.steps), cost, 1)
                for part, cost in COSTS_OF_STEPS.items()
            },
            "gain": gaussian_part(client.gain, COST_OF_GAIN, 1),
        }


def _noted(
    rounds: Generator[Round, Total, R], notes: list[tuple[Round, Total]]
) -> Generator[Round, Total, R]:
    """Run some rounds of a protocol, and append each round and its result to ``notes``."""
    try:
        asked = next(rounds)
        while True:
            received = yield asked
            notes.append((asked, received))
            asked = rounds.send(received)
    except StopIteration as end:
        result: R = end.value
        return result


def _keep(search: MixtureSearch, asked: Round, received: Total) -> None:
    """Add a released sum to the search, if it says something about the mixture.

    With very many columns, sums of offsets in all columns are replaced by their parts in the directions of the mixture:
    the covariance of a thousand numbers for each center would not fit into memory, and noise in orthonormal directions
    is as in columns.
    """
    question = asked.question_for(None)
    is_wide = question.asks is PrivateMixtureClient.steps and search.space.n_columns > MOST_COLUMNS
    basis = search.directions if is_wide else np.zeros((0, 0))
    if (of_rows := _of_rows(question, basis)) is not None:
        n_units = search.space.units.number
        arrays = [_turned(array, basis) for array in received] if basis.size else list(received)
        noise = [
            np.full(array.size, sd / n_units)
            for array, sd in zip(arrays, received.noise, strict=True)
        ]
        values = np.concatenate([array.ravel() for array in arrays]) / n_units
        search.seen.append(Seen(values, np.concatenate(noise), of_rows))


def _turned(offsets: Floats, basis: Floats) -> Floats:
    """Return offsets in the directions of a basis; the last column, which counts rows, stays as it is."""
    return np.concatenate([offsets[..., :-1] @ basis, offsets[..., -1:]], axis=-1)


def _of_rows(question: Question, basis: Floats) -> Callable[[Rows], Floats] | None:
    """Return the function of a row that a question adds up; None if its sum says little about the mixture.

    Offsets in all columns are turned into a ``basis`` that has an entry.

    With this function, the search computes the sums that it expects under any mixture. Clients
    compute the same function of each row, on a grid.
    """
    client, asked, bound = (
        PrivateMixtureClient,
        question.asks,
        float(question.arguments.get("bound", math.inf)),
    )
    if asked is client.expectation:
        structure, scale = str(question.arguments["structure"]), float(question.arguments["scale"])
        return lambda rows: clip_rows(
            row_moments(rows, *question.arrays, structure=structure, scale=scale), bound
        )
    if asked is client.cells:
        points, directions = question.arrays
    elif asked is client.steps and len(question.arrays[0]) == 1:
        points, directions = question.arrays[0][0], np.zeros((0, 0))
    else:
        return None
    weight = float(question.arguments["weight"])

    def of_rows(rows: Rows) -> Floats:
        rows = rows.projected(directions)
        nearest = rows.nearest(points)
        is_nearest = (nearest[:, None] == np.arange(len(points))).astype(np.float64)
        offsets = rows.offsets(points, nearest, bound).with_constant(weight).values
        if basis.size:
            offsets = _turned(offsets, basis)
        # Each row has its offset at its nearest point, and zeros at all other points.
        at_points = is_nearest[:, :, None] * offsets[:, None]
        return np.asarray(at_points.reshape(len(is_nearest), -1))

    return of_rows


# The client half.


def row_densities(
    rows: Rows, means: Floats, whitening: Floats, constants: Floats, directions: Floats
) -> Floats:
    """Return the logarithm of the density at each row, up to a constant, in public directions."""
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
    # A few rows at a time, as several arrays are this long.
    for start in range(0, max(len(integers), 1), BLOCK_ROWS):
        offsets = whitened(integers[start : start + BLOCK_ROWS], means, whitening, rows.exponent)
        parts.append(
            moments(offsets, responsibilities(log_densities(offsets, constants)), named, scale)
        )
    return np.concatenate(parts)


class PrivateMixtureClient(SearchClient, ClusterClient):
    """The client half of :class:`PrivateMixture`."""

    @by_row(
        moments="memberships and moments of the rows' whitened offsets, each row's vector clipped"
    )
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
        """Return the sum over the rows of their memberships and moments; see :func:`row_moments`.

        Each row's vector is clipped to the norm ``bound``.
        """
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
        """Return the sum of the rows' gains in log-density.

        A gain is clipped to a third of ``bound``, and a loss to ``bound``.
        """
        of_mixture = row_densities(rows, means, whitening, constants, directions)
        of_one = row_densities(rows, mean, whitening_of_one, constant, directions)
        return vectors(np.minimum(of_mixture - of_one, bound / 3)[:, None], bound)

    @by_row(
        moments="memberships and moments of the rows' whitened offsets",
        rest="what 40 bits of them cut off",
    )
    def exact_expectation(
        rows: Rows, means: Floats, whitening: Floats, constants: Floats, *, structure: str
    ) -> tuple[Term, Term]:
        """Return the sum over the rows of their memberships and moments, not clipped; see :func:`row_moments`.

        It is returned as two sums, which together lose no digits.
        """
        all_columns = np.zeros((0, 0))
        vectors_of_rows = row_moments(
            rows, means, whitening, constants, all_columns, structure=structure, scale=1.0
        )
        d = means.shape[1]
        # No row of the frame has a longer vector.
        longest_offset = 2 * rows.radius * d * float(np.abs(whitening).max())
        most = (longest_offset + d + 2) ** 2
        return in_two_parts(vectors_of_rows, most)


PrivateMixture.client_type = PrivateMixtureClient

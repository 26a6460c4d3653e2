"""The search for the mixture that explains what a run has released; nothing here sees a row.

With few columns the mixture has all of them. With many columns it has only some directions: those in
which the centers of the components differ, and those in which the rows spread most. Along all other
directions the rows are taken to have one variance. Nothing here costs privacy, so the search tries
several structures of covariances and several priors, and takes the most probable ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.mixtures import Structure
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.sums import directions_onto_grid
from flower_fedclust.models import MixtureModel
from flower_fedclust.numerics.spectrum import mean_if_positive
from flower_fedclust.numerics.validity import weighted_rand_index
from flower_fedclust.strategies.common.mixture_fit import (
    Mixture,
    Seen,
    averaged,
    fitted,
    normals_for,
    others_as_probable,
    tied_mixture,
)
from flower_fedclust.strategies.common.private_search import CLIENT_MARGIN, Space

Floats = NDArray[np.float64]

#: The most directions of a mixture, unless its centers differ in more directions.
MOST_COLUMNS = 12
#: The most parameters of a mixture; it gets fewer directions if it would have more. If there is a choice of structures,
#: the first structure is left out if it would have more parameters than the second number.
MOST_NUMBERS, MOST_OF_CHOICE = 1200, 600
#: How many rows the server draws from a mixture: first for comparing mixtures, then for the last fit.
N_DRAWN_FIRST, N_DRAWN = 1_000, 2_000
#: The fewest rows drawn for each component.
DRAWN_FOR_EACH = 130
#: The most mixtures whose expected sums a fit computes: first if it only compares mixtures, then for other fits.
N_FITS, MOST_FITTED = 5, 10
#: Bounds are chosen so that this fraction of the rows' vectors is not clipped if the rows follow the mixture.
NOT_CLIPPED = 0.45
#: How much the covariances of components differ from each other under the priors that are tried (standard deviations of
#: logarithms); the default comes first.
DIFFERENCES = (0.45, 0.15, 1.0)
#: The smallest variance in the mixture at which priors are centered (the reference), over the mean variance.
LEAST_OF_MEAN = 0.3
#: With round components, the mean squared distance of a row from its center is at least this fraction of the rows' mean
#: squared norm.
LEAST_OF_ROUND = 0.2
#: The least variance of a component in any direction, as a fraction of the rows' mean variance.
NOISY_FLOOR = 1e-3
#: The fraction of the rows that may lie where the mixture does not expect them: farther away, by one standard deviation
#: of all rows.
PART_ELSEWHERE = 0.01
#: The number of other runs that are simulated, to estimate how well they would agree.
N_OTHER_RUNS = 10


class MixtureSearch:
    """Searches for mixtures that explain the sums released by a run.

    Parameters
    ----------
    space : Space
        Where the rows lie.
    centers : ndarray of shape (n_components, n_columns)
        The centers found by k-means, in the frame.
    sizes : ndarray of shape (n_components,)
        The approximate number of rows nearest to each center.
    structures : sequence of str
        The structures of covariances among which the run chooses; the structure with the most
        parameters comes first.
    rng : numpy.random.Generator
    """

    def __init__(
        self,
        space: Space,
        centers: Floats,
        sizes: Floats,
        structures: Sequence[Structure],
        rng: np.random.Generator,
    ) -> None:
        self.space, self.rng, self.sizes = space, rng, sizes
        self.seen: list[Seen] = []
        d, k = space.n_columns, len(centers)
        known = _directions(space, centers)
        n_directions = d if d <= MOST_COLUMNS else min(max(MOST_COLUMNS, k - 1), known.shape[1])
        if len(structures) > 1 and n_numbers(structures[0], k, n_directions) > MOST_OF_CHOICE:
            structures = structures[1:]
        while n_directions > 1 and n_numbers(structures[0], k, n_directions) > MOST_NUMBERS:
            n_directions -= 1
        self.structures = structures
        #: The smallest variance of a component in any direction.
        self.least = NOISY_FLOOR * space.total / d
        #: The directions of the mixture; an empty array means that the mixture lies in all columns.
        self.directions = np.zeros((0, 0))
        basis = (
            np.eye(d)
            if n_directions == d
            else directions_onto_grid(np.ascontiguousarray(known[:, :n_directions]))
        )
        if n_directions < d:
            self.directions = basis
        #: The second moment of the rows in the directions of the mixture. ``elsewhere``, below, is their variance in
        #: each other direction.
        self.moment = _moment(space, basis, self.least)
        n_others = max(d - n_directions, 1)
        rest = (space.total - float(np.trace(self.moment))) / n_others
        self.elsewhere = max(mean_if_positive(rest, space.noise / math.sqrt(n_others)), self.least)
        self.centers = centers @ basis
        self.normals = normals_for(k, n_directions, max(N_DRAWN_FIRST, DRAWN_FOR_EACH * k), rng)
        tied = tied_mixture(sizes, self.centers, self.moment, LEAST_OF_MEAN, self.least)
        #: The mixtures at which priors are centered, one for each structure.
        self.references = [tied.as_structure(structure) for structure in structures]

    def round(self) -> Mixture:
        """Return the mixture with equal shares and one variance, so that a row belongs to its nearest center."""
        means = self.centers
        all_rows, between = (
            float(np.trace(self.moment)),
            float(self.sizes @ (means**2).sum(axis=1) / self.sizes.sum()),
        )
        (k, d), within = (
            means.shape,
            max(all_rows - between, LEAST_OF_ROUND * max(all_rows, between)),
        )
        return Mixture(
            "spherical",
            np.full(k, 1 / k),
            means,
            np.full((k, d), math.sqrt(max(within / d, self.least))),
        )

    def first(self) -> Mixture:
        """Return the most probable mixture of the first structure; the fit starts from the centers of k-means."""
        return self._fitted(self.references[0], self.references[0], DIFFERENCES[0], N_FITS)[0]

    def better(self, mixture: Mixture) -> Mixture:
        """Fit the first structure again, from ``mixture`` on, after more sums have been released."""
        return self._fitted(
            mixture.as_structure(self.structures[0]), self.references[0], DIFFERENCES[0]
        )[0]

    def best(self, mixture: Mixture) -> tuple[Mixture, float]:
        """Return the mixture of the most probable structure and prior, averaged over its posterior.

        Also returns how well mixtures drawn from the posterior agree with it, as a mean adjusted
        Rand index.
        """
        priors = [(reference, DIFFERENCES[0]) for reference in self.references]
        fits = [
            self._fitted(mixture.as_structure(prior.structure), prior, wide, N_FITS)
            for prior, wide in priors
        ]
        best = int(np.argmax([evidence for _, evidence, _ in fits]))
        (mixture, evidence, _), prior = fits[best], priors[best]
        if mixture.structure != "tied":
            for difference in DIFFERENCES[1:]:
                other, of_other, _ = self._fitted(
                    fits[best][0], priors[best][0], difference, N_FITS
                )
                if of_other > evidence:
                    mixture, evidence, prior = other, of_other, (priors[best][0], difference)
        k, d = mixture.means.shape
        self.normals = normals_for(k, d, max(N_DRAWN, DRAWN_FOR_EACH * k), self.rng)
        likely, _, curvature = self._fitted(mixture, *prior)
        mixture = averaged(likely, curvature, self.rng)
        others = others_as_probable(likely, curvature, N_OTHER_RUNS, self.rng)
        drawn, weights = mixture.drawn(self.normals)
        labels = mixture.labels(drawn)
        return mixture, float(
            np.mean(
                [
                    weighted_rand_index(labels, mixture.labels(drawn), weights, k)
                    for mixture in others
                ]
            )
        )

    def one_gaussian(self, mixture: Mixture) -> Mixture:
        """Return one Gaussian for all rows, with the second moment that the run has found."""
        return tied_mixture(
            np.ones(1), mixture.weights[None] @ mixture.means, self.moment, 0.0, self.least
        )

    def hidden(self, mixture: Mixture, single: Mixture) -> float:
        """Estimate by how much the measured gain of the mixture over one Gaussian may be too large, in nats per row.

        There are three reasons. The single Gaussian has the noisy second moment. With the exact
        moment M it would be better by ``tr((M^-1 E)^2) / 4`` nats if the error E is small; this is
        doubled here because E may be large. Gains are clipped: if the mixture is narrower than the
        Gaussian, a few rows far from it lose more than the clipped gains show. The moment is
        clipped: if the mixture spreads further than the moment, a Gaussian as wide as the mixture
        may be better.
        """
        n_others = self.space.n_columns - len(self.moment)
        precisions = 1.0 / np.append(
            np.linalg.eigvalsh(self.moment), np.full(n_others, self.elsewhere)
        )
        of_moment = self.space.noise**2 / 4 * float(precisions.sum() ** 2 + (precisions**2).sum())
        wider = np.maximum(
            np.linalg.eigvals(np.linalg.solve(self.moment, mixture.moment)).real, 1.0
        )
        of_clipping = 0.5 * float((wider - 1.0 - np.log(wider)).sum())
        return of_moment + of_clipping + PART_ELSEWHERE / 2 * mixture.narrowest(single)

    def _fitted(
        self, start: Mixture, reference: Mixture, difference: float, n_steps: int = MOST_FITTED
    ) -> tuple[Mixture, float, Floats]:
        """Fit a mixture, with a prior around ``reference``; return it, the log evidence and the curvature."""
        where = self.space.frame.radius, self.directions
        return fitted(
            self.seen,
            start,
            reference,
            difference,
            self.space.n_rows,
            self.normals,
            *where,
            n_steps,
        )

    def norms(self, mixture: Mixture, scale: float, rows_per_client: int) -> tuple[float, float]:
        """Return two norms: the bound of a row's vector, and the bound of a client's mean vector.

        If the guarantee covers rows, ``rows_per_client`` is 0; then the first norm is smaller, and
        the second is 0.
        """
        drawn, weights = mixture.drawn(self.normals)
        values = mixture.moments(
            Frame(np.zeros(drawn.shape[1]), self.space.frame.radius).rows(drawn), scale
        )
        norms, mean = np.sqrt((values**2).sum(axis=1)), weights @ values
        if rows_per_client:
            square = float(mean @ mean) + float(weights @ norms**2) / rows_per_client
            return float(norms.max()), CLIENT_MARGIN * math.sqrt(square)
        order = np.argsort(norms)
        place = int(np.searchsorted(np.cumsum(weights[order]), NOT_CLIPPED))
        return float(norms[order[min(place, len(order) - 1)]]), 0.0

    def model(self, mixture: Mixture) -> MixtureModel:
        """Return the mixture as a model of rows in the columns of the data."""
        means, covariances = mixture.means, mixture.covariances
        if self.directions.size:
            basis = self.directions
            if covariances.ndim == 2:
                covariances = covariances[:, :, None] * np.eye(covariances.shape[1])
            outside = self.elsewhere * (np.eye(len(basis)) - basis @ basis.T)
            means, covariances = means @ basis.T, basis @ covariances @ basis.T + outside
        return MixtureModel(
            mixture.weights, self.space.frame.leave(means), covariances, mixture.structure
        )


def _moment(space: Space, basis: Floats, least: float) -> Floats:
    """Return the second moment of the rows in a basis; where noise hides variances, their estimates replace them."""
    likely = np.array([mean_if_positive(float(value), space.noise) for value in space.values])
    turned = basis.T @ space.directions
    moment = (turned * np.maximum(likely, least)) @ turned.T
    n_unknown = space.n_columns - len(space.values)
    if n_unknown:
        rest = max((space.total - float(likely.sum())) / n_unknown, least)
        moment += rest * (np.eye(len(moment)) - turned @ turned.T)
    return np.asarray(moment)


def _directions(space: Space, centers: Floats) -> Floats:
    """Return orthonormal directions: first those in which centers differ, then those in which rows spread most.

    With many columns there are only a few, because a sketch of the second moment shows none that noise hides.
    """
    offsets = centers - centers.mean(axis=0)
    _, sizes, between = np.linalg.svd(offsets, full_matrices=False)
    # k centers differ in at most k - 1 directions; singular values below ``least`` come from rounding.
    least = 1e-6 * max(float(sizes[0]), np.finfo(float).tiny)
    between = between[sizes > least][: len(centers) - 1]
    both = np.concatenate([between.T, space.directions], axis=1)
    return np.asarray(np.linalg.qr(both)[0])


def n_numbers(structure: Structure, k: int, d: int) -> int:
    """Return how many numbers a mixture of k components in d directions has."""
    whole, of_all = d * (d + 1) // 2, k * (1 + d)
    return of_all + {"full": k * whole, "diag": k * d, "spherical": k, "tied": whole}[structure]

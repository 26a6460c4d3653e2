"""Fits the Gaussian mixture that explains noisy sums best.

Every sum that a run releases adds up a public function of each row. For any mixture, the server can
draw rows and compute the sums that it expects. It looks for the most probable mixture under a
Gaussian prior. The expected sums of this mixture differ from the released sums by no more than noise
and chance explain, and it stays near a reference mixture unless the sums contradict this. Because
expected sums are clipped like the released ones, and use the same earlier memberships, the fit needs
no correction for either.

A step from one mixture to another is a vector of changes: of the logarithms of the weights, of the
means (in the component's own deviations), and of the covariances (as matrix logarithms).
:meth:`Mixture.moved` takes a step, and :meth:`Mixture.since` finds the step between two mixtures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.mixtures import (
    Structure,
    log_densities,
    moments,
    responsibilities,
    whitened,
    whitening_of,
)
from flower_fedclust.exact.rows import Frame, Rows

Floats = NDArray[np.float64]

#: The prior's standard deviation of the logarithms of the weights.
OF_WEIGHTS = 0.5
#: The prior's standard deviation of the means, in units of the reference component's standard deviation.
OF_MEANS = 0.6
#: The prior's standard deviation of a change of all covariances together.
OF_ALL = 0.5
#: No step changes a component by more than this, in units of its own standard deviations.
LONGEST_STEP = 0.5
#: The most mixtures whose sums a fit computes.
N_STEPS = 10
#: A fit ends earlier if its gain is below this, in twice the log-probability.
SMALL_GAIN = 0.5
#: A fit ends with more Levenberg-Marquardt damping than this, because a step then changes almost nothing.
MOST_DAMPING = 10.0
#: The number of draws from the posterior that are averaged.
N_AVERAGED = 100


@dataclass(frozen=True)
class Mixture:
    """A Gaussian mixture, whose covariances are stored as factors.

    If columns are independent within a component, its factor is the vector of their standard
    deviations. Otherwise it is a lower triangle F, and the covariance is ``F F'``.
    """

    structure: Structure
    weights: Floats
    means: Floats
    #: Lower triangles, of shape (k, d, d), or deviations by column, of shape (k, d), if columns are independent.
    factors: Floats

    @property
    def covariances(self) -> Floats:
        """The covariances (variances by column, if columns are independent), in the shape of the factors."""
        return (
            self.factors**2
            if self.factors.ndim == 2
            else self.factors @ self.factors.transpose(0, 2, 1)
        )

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """The means, whitening matrices and constants from which a row's memberships are computed."""
        return self.means, *whitening_of(self.weights, self.factors)

    @property
    def moment(self) -> Floats:
        """The second moment of all rows, about 0."""
        roots = _square(self.factors)
        within = np.average(roots @ roots.transpose(0, 2, 1), axis=0, weights=self.weights)
        return np.asarray(within + (self.means.T * self.weights) @ self.means)

    def as_structure(self, structure: Structure) -> Mixture:
        """Return the nearest mixture of another structure, with the same means."""
        covariances = _square(self.factors) @ _square(self.factors).transpose(0, 2, 1)
        variances = np.einsum("jaa->ja", covariances)
        if structure == "spherical":
            variances = np.repeat(variances.mean(axis=1, keepdims=True), variances.shape[1], axis=1)
        elif structure == "tied":
            covariances = np.broadcast_to(
                np.average(covariances, axis=0, weights=self.weights), covariances.shape
            )
        whole = structure in ("full", "tied")
        factors = np.linalg.cholesky(covariances) if whole else np.sqrt(variances)
        return Mixture(structure, self.weights, self.means, np.asarray(factors, dtype=np.float64))

    def maximized(self, totals: Floats, least: float) -> Mixture:
        """Return the mixture after EM's M step.

        ``totals`` are the sums of :func:`~flower_fedclust.exact.mixtures.moments` over all rows. No
        variance is below ``least``.
        """
        k, d = self.means.shape
        counts = np.maximum(totals[:k], 1e-10 * totals[:k].sum())
        offsets = totals[k : k + k * d].reshape(k, d) / counts[:, None]
        rest = totals[k + k * d :]
        means = self.means + np.einsum("jab,jb->ja", _square(self.factors), offsets)
        if self.factors.ndim == 2:
            per = counts[:, None] * (1.0 if self.structure == "diag" else math.sqrt(d))
            squares = (
                offsets**2 if self.structure == "diag" else (offsets**2).mean(axis=1, keepdims=True)
            )
            factors = np.sqrt(
                np.maximum(self.factors**2 * (rest.reshape(k, -1) / per + 1.0 - squares), least)
            )
        else:
            outer = offsets[:, :, None] * offsets[:, None]
            if self.structure == "tied":
                outer, counts_of = np.average(outer, axis=0, weights=counts), counts.sum()
            else:
                counts_of = counts[:, None, None]
            inner = to_symmetric(rest, k, d) / counts_of + np.eye(d) - outer
            factors = roots_of(self.factors @ inner @ self.factors.transpose(0, 2, 1), least)
        return replace(self, weights=counts / counts.sum(), means=means, factors=factors)

    def moments(self, rows: Rows, scale: float = 1.0) -> Floats:
        """Return each row's vector of moments for EM; see :func:`~flower_fedclust.exact.mixtures.moments`."""
        means, whitening, constants = self.arrays
        offsets = whitened(rows.integers, means, whitening, rows.exponent)
        weights = responsibilities(log_densities(offsets, constants))
        return moments(offsets, weights, self.structure, scale)

    def labels(self, points: Floats) -> NDArray[np.intp]:
        """Return the most probable component of each point."""
        means, whitening, constants = self.arrays
        offsets = points[None] - means[:, None]
        are_diagonal = whitening.ndim == 2
        turned = offsets * whitening[:, None] if are_diagonal else offsets @ whitening
        distances = (turned**2).sum(axis=2)
        densities = constants[:, None] - 0.5 * distances
        return np.asarray(densities.argmax(axis=0))

    def narrowest(self, other: Mixture) -> float:
        """Return how much wider the single Gaussian ``other`` is: its largest ratio of variances to a component's.

        The ratio is the largest over all components and directions.
        """
        roots = np.linalg.solve(_square(self.factors), _square(other.factors))
        return float(np.linalg.norm(roots, 2, axis=(1, 2)).max() ** 2)

    def without(self, dropped: NDArray[np.bool_]) -> Mixture:
        """Return the mixture without the dropped components, with weights that add up to 1.

        ``dropped`` is of shape (n_components,). The heaviest component always stays.
        """
        kept = ~dropped | (self.weights == self.weights.max())
        weights = self.weights[kept] / self.weights[kept].sum()
        return Mixture(self.structure, weights, self.means[kept], self.factors[kept])

    def drawn(self, normals: Floats) -> tuple[Floats, Floats]:
        """Make rows of each component from standard normal variables; return the rows and their weights.

        ``normals`` is of shape (n_components, n_drawn_of_each, n_columns).
        """
        k, n, d = normals.shape
        turned = (
            normals * self.factors[:, None]
            if self.factors.ndim == 2
            else normals @ self.factors.transpose(0, 2, 1)
        )
        return (turned + self.means[:, None]).reshape(k * n, d), np.repeat(self.weights / n, n)

    def moved(self, step: Floats) -> Mixture:
        """Return the mixture after a step, which is a vector of changes; see the module's docstring.

        No component moves by more than :data:`LONGEST_STEP`.
        """
        k, d = self.means.shape
        logarithms = np.log(self.weights) + np.clip(step[:k], -LONGEST_STEP, LONGEST_STEP)
        weights = np.exp(logarithms - logarithms.max())
        offsets, of_covariances = step[k : k + k * d].reshape(k, d), step[k + k * d :]
        long = np.maximum(np.linalg.norm(offsets, axis=1, keepdims=True) / LONGEST_STEP, 1.0)
        means = self.means + np.einsum("jab,jb->ja", _square(self.factors), offsets / long)
        if self.factors.ndim == 2:
            by_column = of_covariances.reshape(k, -1) / (
                1.0 if self.structure == "diag" else math.sqrt(d)
            )
            factors = self.factors * np.exp(0.5 * np.clip(by_column, -LONGEST_STEP, LONGEST_STEP))
        else:
            values, vectors = np.linalg.eigh(to_symmetric(of_covariances, k, d))
            powers = np.exp(0.5 * np.clip(values, -LONGEST_STEP, LONGEST_STEP))
            roots = self.factors @ (vectors * powers[:, None, :])
            factors = np.linalg.cholesky(roots @ roots.transpose(0, 2, 1))
        return replace(self, weights=weights / weights.sum(), means=means, factors=factors)

    def since(self, reference: Mixture) -> Floats:
        """Return the step that leads from a reference to this mixture.

        The vector has three groups of entries: logarithms of the ratios of weights; offsets of the
        means, in standard deviations of the reference's components; and matrix logarithms of the
        covariances relative to the reference's. Off-diagonal entries are multiplied by the square
        root of 2, so that a matrix and its entries have the same norm. A tied covariance occurs
        once, and a round component has a single number.
        """
        d = self.means.shape[1]
        logarithms = np.log(self.weights / reference.weights)
        offsets = np.linalg.solve(
            _square(reference.factors), (self.means - reference.means)[..., None]
        )[..., 0]
        if self.factors.ndim == 2:
            changes = 2.0 * np.log(self.factors / reference.factors)
            of_covariances = (
                changes if self.structure == "diag" else changes.sum(axis=1) / math.sqrt(d)
            )
        else:
            roots = np.linalg.solve(reference.factors, self.factors)
            values, vectors = np.linalg.eigh(roots @ roots.transpose(0, 2, 1))
            logarithm_of_ratio = (
                vectors * np.log(np.maximum(values, 1e-300))[:, None, :]
            ) @ vectors.transpose(0, 2, 1)
            first, second = np.triu_indices(d)
            of_covariances = logarithm_of_ratio[:, first, second] * np.where(
                first == second, 1.0, math.sqrt(2.0)
            )
            of_covariances = of_covariances[:1] if self.structure == "tied" else of_covariances
        return np.concatenate([logarithms, offsets.ravel(), of_covariances.ravel()])


def tied_mixture(
    weights: Floats, means: Floats, moment: Floats, part: float, least: float
) -> Mixture:
    """Return a mixture with one shared covariance.

    The covariance is the second moment of all rows minus the second moment of the means. Its
    eigenvalues are at least ``least``, and at least the fraction ``part`` of the mean variance.
    """
    weights = np.maximum(weights, 0.01 * weights.sum() / len(weights))
    weights = weights / weights.sum()
    within = moment - (means * weights[:, None]).T @ means
    least = max(part * float(np.trace(within)) / len(within), least)
    return Mixture(
        "tied", weights, means, np.repeat(roots_of(within[None], least), len(means), axis=0)
    )


def roots_of(covariances: Floats, least: float) -> Floats:
    """Return the Cholesky factors of symmetric matrices, after raising their eigenvalues to at least ``least``."""
    values, vectors = np.linalg.eigh(covariances)
    if values.min() < least:
        covariances = (vectors * np.maximum(values, least)[:, None]) @ vectors.transpose(0, 2, 1)
    return np.asarray(np.linalg.cholesky(covariances), dtype=np.float64)


def _square(factors: Floats) -> Floats:
    """Return factors as square matrices, of shape (n_components, n_columns, n_columns)."""
    return factors[:, :, None] * np.eye(factors.shape[1]) if factors.ndim == 2 else factors


def to_symmetric(triangles: Floats, k: int, d: int) -> Floats:
    """Undo :func:`~flower_fedclust.exact.mixtures.second_moments`: return symmetric matrices of shape (k, d, d)."""
    first, second = np.triu_indices(d)
    matrices = np.empty((k, d, d))
    entries = triangles.reshape(-1, len(first)) * np.where(first == second, 1.0, math.sqrt(0.5))
    matrices[:, first, second] = matrices[:, second, first] = entries
    return matrices


@dataclass(frozen=True)
class Seen:
    """The noisy mean over all rows of a public function of a row, with the function."""

    values: Floats
    deviations: Floats  #: The standard deviation of the noise in each entry.
    #: The function; returns an array of shape (n_rows, n_values).
    of_rows: Callable[[Rows], Floats]


def prior_precision(mixture: Mixture, difference: float) -> Floats:
    """Return the inverse covariance of the prior over steps.

    Under the prior, the logarithms of the components' covariances differ from each other with the
    standard deviation ``difference``, and the logarithms of their sizes with twice this deviation.
    What all covariances have in common differs from the reference with the deviation :data:`OF_ALL`.
    """
    k, d = mixture.means.shape
    of_weights, of_means = np.full(k, OF_WEIGHTS**-2), np.full(k * d, OF_MEANS**-2)
    diagonal = np.concatenate([of_weights, of_means])
    if mixture.structure in ("full", "tied"):
        trace = np.equal(*np.triu_indices(d)) / math.sqrt(d)
    else:
        trace = np.full(d, 1 / math.sqrt(d)) if mixture.structure == "diag" else np.ones(1)
    unit, size = np.eye(len(trace)), np.outer(trace, trace)
    of_size = max(2 * difference, 0.4)
    single = (unit - size) / difference**2 + size / of_size**2
    common = np.linalg.inv((unit - size) * difference**2 + size * of_size**2 + k * OF_ALL**2 * unit)
    mean = np.full((k, k), 1.0 / k)
    block = np.kron(np.eye(k) - mean, single) + np.kron(mean, common)
    if mixture.structure == "tied":
        block = unit / OF_ALL**2
    precision = np.zeros((len(diagonal) + len(block),) * 2)
    n_before = len(diagonal)
    precision[:n_before, :n_before] = np.diag(diagonal)
    precision[n_before:, n_before:] = block
    return precision


def normals_for(k: int, d: int, n_drawn: int, rng: np.random.Generator) -> Floats:
    """Return about n_drawn normal vectors in all: for each component, with mean exactly 0 and covariance exactly I."""
    n_each = max(n_drawn // k, 4 * d)
    normals = rng.standard_normal((k, n_each, d))
    normals -= normals.mean(axis=1, keepdims=True)
    turned = normals.transpose(0, 2, 1)
    roots = np.linalg.cholesky(turned @ normals / n_each)
    whitened_normals = np.linalg.solve(roots, turned)
    return np.asarray(whitened_normals.transpose(0, 2, 1))


def fitted(
    seen: Sequence[Seen],
    start: Mixture,
    reference: Mixture,
    difference: float,
    n_rows: float,
    normals: Floats,
    radius: float,
    directions: Floats,
    n_steps: int = N_STEPS,
) -> tuple[Mixture, float, Floats]:
    """Return the most probable mixture, the log evidence for its structure (Laplace's method), and the curvature.

    The curvature is the second derivative of the negative log posterior at this mixture. The fit
    takes Gauss-Newton steps with Levenberg-Marquardt damping. The covariance of the sums is computed
    once, at the start. The derivative of an expected sum is its covariance with the score (the
    derivative of the log-density), so it exists even if the sum's function makes discrete choices,
    such as the nearest center.

    Parameters
    ----------
    seen : sequence of Seen
        The released sums, each with its noise and its function of a row.
    start : Mixture
        Where the fit begins.
    reference : Mixture
        The mean of the prior.
    difference : float
        The width of the prior; see :func:`prior_precision`.
    n_rows : float
    normals : ndarray of shape (n_components, n_drawn_of_each, n_columns)
        Standard normal variables, from which the rows of every mixture are drawn.
    radius : float
        The radius to which rows are clipped.
    directions : ndarray of shape (n_columns_of_the_rows, n_columns), or without an entry
        The public directions in which the mixture lies; without an entry, all columns.
    n_steps : int
        The most mixtures whose sums are computed.
    """
    from scipy.linalg import cho_factor, cho_solve

    observed = np.concatenate([sums.values for sums in seen])
    noise = np.concatenate([sums.deviations for sums in seen]) ** 2
    precision = prior_precision(reference, difference)

    def expected(mixture: Mixture) -> tuple[Rows, Floats, Floats, Floats]:
        drawn, weights = mixture.drawn(normals)
        drawn = drawn @ directions.T if directions.size else drawn
        rows = Frame(np.zeros(drawn.shape[1]), radius).rows(drawn)
        values, roots = (
            np.concatenate([sums.of_rows(rows) for sums in seen], axis=1),
            np.sqrt(weights)[:, None],
        )
        mean = weights @ values
        values -= mean
        values *= roots
        return rows, roots, values, mean

    mixture, damping, best = start, 1e-3, math.inf
    rows, roots, values, mean = expected(mixture)
    spread = values.T @ values * (1.0 / n_rows + 1.0 / len(values))
    spread[np.diag_indices_from(spread)] += noise
    factor = cho_factor(spread, overwrite_a=True)
    for left in reversed(range(n_steps)):
        rest, away = observed - mean, mixture.since(reference)
        loss = float(rest @ cho_solve(factor, rest) + away @ precision @ away)
        if loss < best:
            gain, best, kept, damping = best - loss, loss, mixture, damping / 10
            slope = values.T @ (_score(mixture, rows.projected(directions)) * roots)
            weighted = cho_solve(factor, slope)
            curvature = slope.T @ weighted + precision
            gradient = rest @ weighted - precision @ away
        else:
            gain, damping = math.inf, max(30 * damping, 0.03)
        if gain < SMALL_GAIN or damping > MOST_DAMPING or not left:
            break
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
        mixture = kept.moved(np.asarray(step, dtype=np.float64))
        rows, roots, values, mean = expected(mixture)
    of_prior, of_fit = (np.linalg.slogdet(sums)[1] for sums in (precision, curvature))
    of_noise = 2.0 * float(np.log(np.diag(factor[0])).sum())
    return kept, 0.5 * float(of_prior - of_noise - of_fit - best), curvature


def averaged(mixture: Mixture, curvature: Floats, rng: np.random.Generator) -> Mixture:
    """Return the mixture whose moments are averages over the posterior, which makes uncertain components wider."""
    others = others_as_probable(mixture, curvature, N_AVERAGED, rng)
    means = np.mean([other.means for other in others], axis=0)
    # With the offset of a drawn mean as one more column, a factor becomes a root of the second moment about the mean.
    roots = [np.dstack([_square(other.factors), other.means - means]) for other in others]
    covariances = np.mean([root @ root.transpose(0, 2, 1) for root in roots], axis=0)
    weights = np.mean([other.weights for other in others], axis=0)
    return Mixture("full", weights, means, np.linalg.cholesky(covariances)).as_structure(
        mixture.structure
    )


def others_as_probable(
    mixture: Mixture, curvature: Floats, n_drawn: int, rng: np.random.Generator
) -> list[Mixture]:
    """Draw mixtures from the posterior, in pairs that lie on opposite sides of the most probable mixture."""
    values, vectors = np.linalg.eigh(curvature)
    normals = rng.standard_normal((len(curvature), n_drawn // 2))
    in_pairs = np.hstack([normals, -normals])
    root_of_covariance = vectors / np.sqrt(np.maximum(values, 1.0))
    steps = root_of_covariance @ in_pairs
    return [mixture.moved(step) for step in steps.T]


def _score(mixture: Mixture, rows: Rows) -> Floats:
    """Return the derivative of each row's log-density with respect to a step."""
    k, d = mixture.means.shape
    score = mixture.moments(rows)
    score[:, :k] -= mixture.weights
    score[:, k + k * d :] *= 0.5
    return score

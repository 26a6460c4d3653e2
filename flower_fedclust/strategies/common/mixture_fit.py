"""The Gaussian mixture that explains noisy sums best.

Every sum that a run releases is the sum of a public function of a row. For any mixture the server can compute what such
a sum would be, from rows that it draws itself. So it looks for the mixture whose expected sums come nearest to the
noisy ones, as far as noise and chance allow, and which is not far from the reference unless the sums say so: the most
probable mixture under a Gaussian prior. That undoes what clipping and other memberships than the final ones did to the
sums, and uses all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.mixtures import Structure, log_densities, moments, responsibilities, whitened, whitening_of
from flower_fedclust.exact.rows import Frame, Rows

Floats = NDArray[np.float64]

#: Prior deviations: of logarithms of weights, of means and, for all components, of covariances, in deviations of the
#: reference.
OF_WEIGHTS, OF_MEANS, OF_ALL = 0.5, 0.6, 0.5
#: No step moves a component by more than this, in its own deviations.
LONGEST_STEP = 0.5
#: The most mixtures of which a fit computes the sums. It ends if one is hardly more probable (in nats, doubled).
N_STEPS, SMALL_GAIN = 10, 0.5
#: With more damping a step changes next to nothing.
MOST_DAMPING = 10.0
#: Draws from the posterior that are averaged.
N_AVERAGED = 100


@dataclass(frozen=True)
class Mixture:
    """A Gaussian mixture, with covariances as factors: ``F F'``, or squares of deviations by column."""

    structure: Structure
    weights: Floats
    means: Floats
    factors: Floats  #: Of shape (k, d, d), lower triangles; or (k, d) where columns are independent.

    @property
    def covariances(self) -> Floats:
        """Of the shape of the factors."""
        return self.factors**2 if self.factors.ndim == 2 else self.factors @ self.factors.transpose(0, 2, 1)

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """Means, whitening and constants, from which memberships follow."""
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
            covariances = np.broadcast_to(np.average(covariances, axis=0, weights=self.weights), covariances.shape)
        whole = structure in ("full", "tied")
        factors = np.linalg.cholesky(covariances) if whole else np.sqrt(variances)
        return Mixture(structure, self.weights, self.means, np.asarray(factors, dtype=np.float64))

    def maximized(self, totals: Floats, least: float) -> Mixture:
        """Return the mixture of the M step, from sums of :func:`moments`; variances are no smaller than the least."""
        k, d = self.means.shape
        counts = np.maximum(totals[:k], 1e-10 * totals[:k].sum())
        offsets = totals[k : k + k * d].reshape(k, d) / counts[:, None]
        rest = totals[k + k * d :]
        means = self.means + np.einsum("jab,jb->ja", _square(self.factors), offsets)
        if self.factors.ndim == 2:
            per = counts[:, None] * (1.0 if self.structure == "diag" else math.sqrt(d))
            squares = offsets**2 if self.structure == "diag" else (offsets**2).mean(axis=1, keepdims=True)
            factors = np.sqrt(np.maximum(self.factors**2 * (rest.reshape(k, -1) / per + 1.0 - squares), least))
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
        """Return the vectors of rows for EM."""
        means, whitening, constants = self.arrays
        offsets = whitened(rows.integers, means, whitening, rows.exponent)
        weights = responsibilities(log_densities(offsets, constants))
        return moments(offsets, weights, self.structure, scale)

    def labels(self, points: Floats) -> NDArray[np.intp]:
        """Return the most probable component of each point."""
        means, whitening, constants = self.arrays
        offsets = points[None] - means[:, None]
        turned = offsets * whitening[:, None] if whitening.ndim == 2 else offsets @ whitening
        return np.asarray((constants[:, None] - 0.5 * (turned**2).sum(axis=2)).argmax(axis=0))

    def narrowest(self, one: Mixture) -> float:
        """Return the largest ratio of one Gaussian's variance to a component's, in any direction."""
        roots = np.linalg.solve(_square(self.factors), _square(one.factors))
        return float(np.linalg.norm(roots, 2, axis=(1, 2)).max() ** 2)

    def without(self, dropped: NDArray[np.bool_]) -> Mixture:
        """Return the mixture without some components; the heaviest stays."""
        kept = ~dropped | (self.weights == self.weights.max())
        weights = self.weights[kept] / self.weights[kept].sum()
        return Mixture(self.structure, weights, self.means[kept], self.factors[kept])

    def drawn(self, normals: Floats) -> tuple[Floats, Floats]:
        """Return rows made of the same normal variables for each component, and their weights."""
        k, n, d = normals.shape
        turned = (
            normals * self.factors[:, None] if self.factors.ndim == 2 else normals @ self.factors.transpose(0, 2, 1)
        )
        return (turned + self.means[:, None]).reshape(k * n, d), np.repeat(self.weights / n, n)

    def moved(self, step: Floats) -> Mixture:
        """Return the mixture that differs by a step, in the layout of :func:`moments`."""
        k, d = self.means.shape
        logarithms = np.log(self.weights) + np.clip(step[:k], -LONGEST_STEP, LONGEST_STEP)
        weights = np.exp(logarithms - logarithms.max())
        offsets, of_covariances = step[k : k + k * d].reshape(k, d), step[k + k * d :]
        long = np.maximum(np.linalg.norm(offsets, axis=1, keepdims=True) / LONGEST_STEP, 1.0)
        means = self.means + np.einsum("jab,jb->ja", _square(self.factors), offsets / long)
        if self.factors.ndim == 2:
            by_column = of_covariances.reshape(k, -1) / (1.0 if self.structure == "diag" else math.sqrt(d))
            factors = self.factors * np.exp(0.5 * np.clip(by_column, -LONGEST_STEP, LONGEST_STEP))
        else:
            values, vectors = np.linalg.eigh(to_symmetric(of_covariances, k, d))
            powers = np.exp(0.5 * np.clip(values, -LONGEST_STEP, LONGEST_STEP))
            roots = self.factors @ (vectors * powers[:, None, :])
            factors = np.linalg.cholesky(roots @ roots.transpose(0, 2, 1))
        return replace(self, weights=weights / weights.sum(), means=means, factors=factors)

    def since(self, reference: Mixture) -> Floats:
        """Return the step from a reference to this mixture."""
        d = self.means.shape[1]
        logarithms = np.log(self.weights / reference.weights)
        offsets = np.linalg.solve(_square(reference.factors), (self.means - reference.means)[..., None])[..., 0]
        if self.factors.ndim == 2:
            changes = 2.0 * np.log(self.factors / reference.factors)
            of_covariances = changes if self.structure == "diag" else changes.sum(axis=1) / math.sqrt(d)
        else:
            roots = np.linalg.solve(reference.factors, self.factors)
            values, vectors = np.linalg.eigh(roots @ roots.transpose(0, 2, 1))
            found = (vectors * np.log(np.maximum(values, 1e-300))[:, None, :]) @ vectors.transpose(0, 2, 1)
            first, second = np.triu_indices(d)
            of_covariances = found[:, first, second] * np.where(first == second, 1.0, math.sqrt(2.0))
            of_covariances = of_covariances[:1] if self.structure == "tied" else of_covariances
        return np.concatenate([logarithms, offsets.ravel(), of_covariances.ravel()])


def tied_mixture(weights: Floats, means: Floats, moment: Floats, part: float, least: float) -> Mixture:
    """Return the mixture whose components share what the means leave of the second moment of all rows.

    No variance is below a part of their mean, nor below the least.
    """
    weights = np.maximum(weights, 0.01 * weights.sum() / len(weights))
    weights = weights / weights.sum()
    within = moment - (means * weights[:, None]).T @ means
    least = max(part * float(np.trace(within)) / len(within), least)
    return Mixture("tied", weights, means, np.repeat(roots_of(within[None], least), len(means), axis=0))


def roots_of(covariances: Floats, least: float) -> Floats:
    """Return the Cholesky factors of symmetric matrices, without eigenvalues below the least."""
    values, vectors = np.linalg.eigh(covariances)
    if values.min() < least:
        covariances = (vectors * np.maximum(values, least)[:, None]) @ vectors.transpose(0, 2, 1)
    return np.asarray(np.linalg.cholesky(covariances), dtype=np.float64)


def _square(factors: Floats) -> Floats:
    return factors[:, :, None] * np.eye(factors.shape[1]) if factors.ndim == 2 else factors


def to_symmetric(triangles: Floats, k: int, d: int) -> Floats:
    """Return the matrices of a basis of :func:`~flower_fedclust.exact.mixtures.second_moments`, of shape (k, d, d)."""
    first, second = np.triu_indices(d)
    found = np.empty((k, d, d))
    entries = triangles.reshape(-1, len(first)) * np.where(first == second, 1.0, math.sqrt(0.5))
    found[:, first, second] = found[:, second, first] = entries
    return found


@dataclass(frozen=True)
class Seen:
    """A noisy mean over the rows of a public function of a row."""

    values: Floats
    deviations: Floats  #: Of the noise in each entry.
    of_rows: Callable[[Rows], Floats]  #: Of shape (n_rows, n_values).


def prior_precision(mixture: Mixture, of_one: float) -> Floats:
    """Return the inverse covariance of the prior: covariances differ from each other by ``of_one``.

    Their sizes differ by twice as much, and all of them together from the reference by ``OF_ALL``.
    """
    k, d = mixture.means.shape
    diagonal = np.concatenate([np.full(k, OF_WEIGHTS**-2), np.full(k * d, OF_MEANS**-2)])
    if mixture.structure in ("full", "tied"):
        trace = np.equal(*np.triu_indices(d)) / math.sqrt(d)
    else:
        trace = np.full(d, 1 / math.sqrt(d)) if mixture.structure == "diag" else np.ones(1)
    unit, size = np.eye(len(trace)), np.outer(trace, trace)
    of_size = max(2 * of_one, 0.4)
    single = (unit - size) / of_one**2 + size / of_size**2
    common = np.linalg.inv((unit - size) * of_one**2 + size * of_size**2 + k * OF_ALL**2 * unit)
    mean = np.full((k, k), 1.0 / k)
    block = np.kron(np.eye(k) - mean, single) + np.kron(mean, common)
    if mixture.structure == "tied":
        block = unit / OF_ALL**2
    found = np.zeros((len(diagonal) + len(block),) * 2)
    found[np.arange(len(diagonal)), np.arange(len(diagonal))] = diagonal
    found[len(diagonal) :, len(diagonal) :] = block
    return found


def normals_for(k: int, d: int, n_drawn: int, rng: np.random.Generator) -> Floats:
    """Return so many standard normal variables for k components together, whose means are 0 and covariances 1."""
    found = rng.standard_normal((k, max(n_drawn // k, 4 * d), d))
    found -= found.mean(axis=1, keepdims=True)
    roots = np.linalg.cholesky(found.transpose(0, 2, 1) @ found / found.shape[1])
    return np.asarray(np.linalg.solve(roots, found.transpose(0, 2, 1)).transpose(0, 2, 1))


def fitted(
    seen: Sequence[Seen],
    start: Mixture,
    reference: Mixture,
    of_one: float,
    n_rows: float,
    normals: Floats,
    radius: float,
    directions: Floats,
    n_steps: int = N_STEPS,
) -> tuple[Mixture, float, Floats]:
    """Return the most probable mixture, the logarithm of the evidence for its structure (Laplace), and the curvature.

    The reference is the mean of the prior, and covariances differ from each other by ``of_one``; the mixture lies in
    public directions, or in all columns. The steps are those of Gauss and Newton, damped as by Levenberg and Marquardt;
    the covariance of the sums is that at the start. The derivative of an expectation is the covariance with the score,
    so choices such as nearest centers have one too.
    """
    from scipy.linalg import cho_factor, cho_solve

    observed = np.concatenate([one.values for one in seen])
    noise = np.concatenate([one.deviations for one in seen]) ** 2
    precision = prior_precision(reference, of_one)

    def expected(mixture: Mixture) -> tuple[Rows, Floats, Floats, Floats]:
        drawn, weights = mixture.drawn(normals)
        drawn = drawn @ directions.T if directions.size else drawn
        rows = Frame(np.zeros(drawn.shape[1]), radius).rows(drawn)
        values, roots = np.concatenate([one.of_rows(rows) for one in seen], axis=1), np.sqrt(weights)[:, None]
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
    of_prior, of_fit = (np.linalg.slogdet(one)[1] for one in (precision, curvature))
    of_noise = 2.0 * float(np.log(np.diag(factor[0])).sum())
    return kept, 0.5 * float(of_prior - of_noise - of_fit - best), curvature


def averaged(mixture: Mixture, curvature: Floats, rng: np.random.Generator) -> Mixture:
    """Return the mixture of the mean moments over the posterior: uncertain components become wider."""
    others = others_as_probable(mixture, curvature, N_AVERAGED, rng)
    means = np.mean([one.means for one in others], axis=0)
    roots = [np.dstack([_square(one.factors), one.means - means]) for one in others]
    covariances = np.mean([one @ one.transpose(0, 2, 1) for one in roots], axis=0)
    weights = np.mean([one.weights for one in others], axis=0)
    return Mixture("full", weights, means, np.linalg.cholesky(covariances)).as_structure(mixture.structure)


def others_as_probable(mixture: Mixture, curvature: Floats, n_drawn: int, rng: np.random.Generator) -> list[Mixture]:
    """Draw mixtures from the posterior, in pairs on both sides of the most probable one."""
    values, vectors = np.linalg.eigh(curvature)
    normals = rng.standard_normal((len(curvature), n_drawn // 2))
    steps = vectors / np.sqrt(np.maximum(values, 1.0)) @ np.hstack([normals, -normals])
    return [mixture.moved(step) for step in steps.T]


def _score(mixture: Mixture, rows: Rows) -> Floats:
    """Return the derivative of each row's log-density by a step."""
    k, d = mixture.means.shape
    found = mixture.moments(rows)
    found[:, :k] -= mixture.weights
    found[:, k + k * d :] *= 0.5
    return found

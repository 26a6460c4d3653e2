"""Clip vectors to a norm, and find the directions of a matrix with the largest eigenvalues."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def clip_rows(rows: Floats, radius: float, *, norm: int = 2) -> Floats:
    """Scale every row whose norm exceeds the radius down to the radius."""
    if 2.0**500 <= radius < math.inf:  # its square may overflow
        power = math.frexp(radius)[1]
        return np.asarray(
            np.ldexp(
                clip_rows(np.ldexp(rows, -power), math.ldexp(radius, -power), norm=norm), power
            )
        )
    if norm == 1:
        lengths = np.abs(rows).sum(axis=1)
    else:
        squared_norms = np.einsum("ij,ij->i", rows, rows)
        # Usually every row is within the radius: one comparison is enough.
        if squared_norms.max(initial=0.0) <= radius**2:
            return rows
        lengths = np.sqrt(squared_norms)
    if lengths.max(initial=0.0) <= radius:
        return rows
    scale = np.divide(radius, lengths, out=np.ones_like(lengths), where=lengths > radius)
    clipped: Floats = rows * scale[:, None]
    return clipped


def clip_norm(array: Floats, bound: float) -> Floats:
    """Scale an array of any shape down so that its Euclidean (Frobenius) norm is at most the bound.

    This is the clipping of FedDP-KMeans, appendix G.5.
    """
    norm = float(np.linalg.norm(array))
    return array if norm <= bound else array * (bound / norm)


def top_eigenvectors(matrix: Floats, n_vectors: int) -> Floats:
    """Return the eigenvectors of a symmetric matrix with the largest eigenvalues, as columns."""
    _, vectors = np.linalg.eigh(matrix)
    top = vectors[:, ::-1][:, :n_vectors]
    largest = top[np.abs(top).argmax(axis=0), np.arange(top.shape[1])]
    return np.ascontiguousarray(top * np.sign(largest))


def n_axes_that_hold(share: float, matrix: Floats) -> int:
    """Return how many of the largest eigenvalues together make up a share of the sum of all: at least 1."""
    values = np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0.0)
    held = np.cumsum(values)
    return int(np.count_nonzero(held < share * held[-1])) + 1

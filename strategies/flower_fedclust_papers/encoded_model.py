"""Clusters by the nearest center among the codes of a neural encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models.centers import CenterModel
from flower_fedclust.numerics.checks import DataError, checked_rows
from flower_fedclust_papers.networks.layers import ACTIVATIONS, checked_layers, outputs

Floats = NDArray[np.float64]


class EncodedModel(CenterModel, name="encoded"):
    """Clusters by the nearest center among codes, the outputs of an encoder: a network of dense layers.

    The origin is subtracted from a row, and the difference is divided by the scale, column by column. Then it goes
    through the layers: each hidden layer ends with the activation, the last one is linear. Predicting needs only NumPy,
    however the encoder was trained. The cost is in squared units of the codes.

    Parameters
    ----------
    layers : sequence of array-like
        ``[W_1, b_1, W_2, b_2, ...]``, W of shape (n_in, n_out) and b of shape (n_out,).
    cluster_centers : array-like of shape (n_clusters, n_latent)
        Among the codes.
    origin : array-like of shape (n_columns,), optional
        0 by default.
    scale : array-like of shape (n_columns,), optional
        Above 0; 1 by default.
    activation : "relu" or "tanh", default="relu"

    Attributes
    ----------
    layers_ : list of ndarray
    latent_centers_ : ndarray of shape (n_clusters, n_latent)
    origin_ : ndarray of shape (n_columns,)
    scale_ : ndarray of shape (n_columns,)

    Raises
    ------
    ValueError
        If the layers do not fit each other, the rows' columns or the centers.
    """

    space = "codes"
    columns_from = "the encoder takes"

    def __init__(
        self,
        layers: Sequence[ArrayLike],
        cluster_centers: ArrayLike,
        *,
        origin: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        activation: str = "relu",
    ) -> None:
        self.layers_ = checked_layers(layers, activation)
        self.activation = activation
        self.cluster_points = self.latent_centers_ = checked_rows(
            np.array(cluster_centers), owner="cluster_centers"
        )
        self.n_columns, n_latent = len(self.layers_[0]), len(self.layers_[-1])
        if self.latent_centers_.shape[1] != n_latent:
            raise DataError(
                f"cluster_centers: {self.latent_centers_.shape[1]} columns where the encoder gives {n_latent}."
            )
        self.origin_ = self._checked_vector(
            "origin", np.zeros(self.n_columns) if origin is None else origin
        )
        self.scale_ = self._checked_vector(
            "scale", np.ones(self.n_columns) if scale is None else scale
        )
        if not (self.scale_ > 0).all():
            raise DataError(f"scale: column {int((self.scale_ <= 0).argmax())} is not above 0.")

    def _checked_vector(self, name: str, values: ArrayLike) -> Floats:
        vector = np.array(values, dtype=np.float64)
        if vector.shape != (self.n_columns,) or not np.isfinite(vector).all():
            raise DataError(
                f"{name}: give a finite number for each of the {self.n_columns} columns."
            )
        return vector

    def __repr__(self) -> str:
        widths = [self.n_columns, *(len(biases) for biases in self.layers_[1::2])]
        return f"EncodedModel({self.n_clusters} clusters, {self.activation} encoder {'-'.join(map(str, widths))})"

    def encode(self, rows: ArrayLike) -> Floats:
        """Return the codes of rows, of shape (n_rows, n_latent); each depends on its own row only."""
        return self.place(self._checked(rows))

    def place(self, rows: Floats) -> Floats:
        """Return the codes of rows that have already been checked."""
        return outputs((rows - self.origin_) / self.scale_, self.layers_, self.activation)

    def to_arrays(self) -> list[Floats]:
        """Return activation, origin, scale, centers and layers."""
        activation = np.array([float(ACTIVATIONS.index(self.activation))])
        return [activation, self.origin_, self.scale_, self.latent_centers_, *self.layers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""
        activation, origin, scale, cluster_centers, *layers = arrays
        name = ACTIVATIONS[int(activation[0])]
        return cls(layers, cluster_centers, origin=origin, scale=scale, activation=name)

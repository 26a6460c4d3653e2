"""A model that clusters by the nearest center after a neural encoder, in NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models.base import Model
from flower_fedclust.networks.layers import ACTIVATIONS, checked_layers, outputs
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError, checked_rows
from flower_fedclust.numerics.kmeans import kmeans_cost, nearest_center


class EncodedModel(Model, name="encoded"):
    """Clusters by the nearest center among codes: what an encoder, a network of dense layers, makes of rows.

    A row is moved by the origin, divided by the scale, column by column, and goes through the layers; each hidden layer
    ends with the activation, the last is linear. However the encoder was trained, labels need nothing but NumPy.

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
        self.latent_centers_ = checked_rows(np.array(cluster_centers), owner="cluster_centers")
        n_columns, n_latent = len(self.layers_[0]), len(self.layers_[-1])
        if self.latent_centers_.shape[1] != n_latent:
            raise DataError(
                f"cluster_centers: {self.latent_centers_.shape[1]} columns where the encoder gives {n_latent}."
            )
        self.origin_ = _checked_vector("origin", np.zeros(n_columns) if origin is None else origin, n_columns)
        self.scale_ = _checked_vector("scale", np.ones(n_columns) if scale is None else scale, n_columns)
        if not (self.scale_ > 0).all():
            raise DataError(f"scale: column {int((self.scale_ <= 0).argmax())} is not above 0.")

    def __repr__(self) -> str:
        widths = [len(self.layers_[0]), *(len(biases) for biases in self.layers_[1::2])]
        return f"EncodedModel({self.n_clusters} clusters, {self.activation} encoder {'-'.join(map(str, widths))})"

    @property
    def cluster_points(self) -> NDArray[np.float64]:
        """The centers, among the codes."""
        return self.latent_centers_

    def encode(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Return the codes of rows, of shape (n_rows, n_latent): each row's depends on no other row."""
        checked = self.checked_rows(rows, len(self.origin_), "the encoder takes")
        codes = np.empty((len(checked), self.latent_centers_.shape[1]))
        for block in blocks(len(checked), len(self.origin_)):
            codes[block] = outputs((checked[block] - self.origin_) / self.scale_, self.layers_, self.activation)
        return codes

    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, of shape (n_rows,): that of the center nearest to its code."""
        return nearest_center(self.encode(rows), self.latent_centers_)

    def cost(self, rows: ArrayLike) -> float:
        """Return the k-means objective of the codes, in their squared units, which are not those of the rows."""
        return kmeans_cost(self.encode(rows), self.latent_centers_)

    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return activation, origin, scale, centers and layers."""
        activation = np.array([float(ACTIVATIONS.index(self.activation))])
        return [activation, self.origin_, self.scale_, self.latent_centers_, *self.layers_]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""
        activation, origin, scale, cluster_centers, *layers = arrays
        name = ACTIVATIONS[int(activation[0])]
        return cls(layers, cluster_centers, origin=origin, scale=scale, activation=name)


def _checked_vector(name: str, values: ArrayLike, n_columns: int) -> NDArray[np.float64]:
    vector = np.array(values, dtype=np.float64)
    if vector.shape != (n_columns,):
        raise DataError(f"{name} has shape {vector.shape}; give ({n_columns},), one for each column of the encoder.")
    if not np.isfinite(vector).all():
        raise DataError(f"{name}: column {int((~np.isfinite(vector)).argmax())} is not finite.")
    return vector

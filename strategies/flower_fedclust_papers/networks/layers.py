"""Networks of dense layers in NumPy: ``[W_1, b_1, W_2, b_2, ...]``, W of shape (n_in, n_out), b of shape (n_out,)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.exact.exponents import SUM_BITS
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError, check_choice

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Activations of hidden layers. The last layer is linear.
ACTIVATIONS = ("relu", "tanh")

#: The largest absolute weight or bias after training is taken to be at most this many times the largest before.
GROWTH = 256.0


def outputs(rows: Floats, layers: Sequence[Floats], activation: str = "relu") -> Floats:
    """Return ``f(f(X W_1 + b_1) W_2 + b_2) ... W_m + b_m``, of shape (n_rows, n_out)."""
    *hidden, weights, biases = layers
    outputs_of_rows = np.empty((len(rows), len(biases)))
    widest = max(len(layer) for layer in layers[1::2])
    for block in blocks(len(rows), widest):
        values = rows[block]
        for hidden_weights, hidden_biases in zip(hidden[::2], hidden[1::2], strict=True):
            values = values @ hidden_weights
            values += hidden_biases
            values = (
                np.maximum(values, 0.0, out=values)
                if activation == "relu"
                else np.tanh(values, out=values)
            )
        np.matmul(values, weights, out=outputs_of_rows[block])
        outputs_of_rows[block] += biases
    return outputs_of_rows


def layers_exponent(layers: Sequence[Floats]) -> int:
    """Return the exponent of a unit for layers that will be trained; not all of their entries may be 0."""
    return unit_exponent(
        GROWTH * max(float(np.abs(layer).max()) for layer in layers), bits=SUM_BITS
    )


def layers_onto_grid(layers: Sequence[Floats], exponent: int) -> list[Integers]:
    """Truncate layers to integers of 38 bits, in the unit of :func:`layers_exponent`. Larger entries are clipped."""
    if not all(np.isfinite(layer).all() for layer in layers):
        raise DataError(
            "the network has weights that are not finite after training; look for outliers in the rows."
        )
    most = 2.0**SUM_BITS
    with np.errstate(over="ignore"):
        return [
            np.clip(np.trunc(np.ldexp(layer, -exponent)), -most, most).astype(np.int64)
            for layer in layers
        ]


def checked_layers(layers: Sequence[ArrayLike], activation: str) -> list[Floats]:
    """Return weights and biases as float64; raise a ValueError that names the first layer that does not fit."""
    check_choice("activation", activation, ACTIVATIONS)
    arrays = [np.array(layer, dtype=np.float64) for layer in layers]
    if not arrays or len(arrays) % 2:
        raise DataError(
            f"layers: {len(arrays)} arrays; give weights and biases for each layer, in turn."
        )
    n_columns = arrays[0].shape[0] if arrays[0].ndim else 0
    for index, (weights, biases) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        if weights.ndim != 2 or biases.shape != weights.shape[1:] or len(weights) != n_columns:
            raise DataError(
                f"layers: layer {index} has weights of shape {weights.shape} and biases of shape {biases.shape}; give "
                f"({n_columns}, n_out) and (n_out,)."
            )
        if not weights.size or not (np.isfinite(weights).all() and np.isfinite(biases).all()):
            raise DataError(
                f"layers: layer {index} has weights or biases that are not finite, or none."
            )
        n_columns = weights.shape[1]
    return arrays

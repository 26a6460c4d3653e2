"""Deep embedded clustering: an autoencoder's codes, moved until they lie close to one of a few centers each.

The steps are those of the paper: :func:`pretrained_autoencoder`, k-means of the codes, :func:`refined_clusters`. Layers
go in and come out as NumPy arrays, ``[W_1, b_1, W_2, b_2, ...]``; codes are what
:func:`~flower_fedclust.networks.perceptron.outputs` makes of rows with the encoder's.

Xie, Girshick and Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.networks.perceptron import outputs
from flower_fedclust.networks.torch_module import (
    Tensor,
    arrays_of,
    batches,
    epochs_of,
    forward,
    new_layers,
    one_torch_thread,
    require_torch,
    step,
    torch_generator,
)
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.kmeans import nearest_center

Floats = NDArray[np.float64]

#: Steps of the autoencoder where no number of epochs is given.
N_STEPS = 1000

#: Rows a step, and Adam's learning rates for the autoencoder and for the clusters.
BATCH_SIZE, LEARNING_RATE, CLUSTERING_RATE = 256, 1e-3, 2e-4

#: The penalty on the autoencoder's squared weights, over 2. Without it, rows that are alike get codes far apart.
WEIGHT_DECAY = 1e-3

#: Steps towards a target before the next is computed.
STEPS_PER_TARGET = 50

#: The clusters are final when this part of the rows, or fewer, has gone to another since the last target (section 4.3).
TOLERANCE = 0.001


@dataclass(frozen=True)
class Autoencoder:
    """An autoencoder, trained."""

    encoder: list[Floats]  #: Layers with ReLU between them.
    decoder: list[Floats]  #: The same.
    losses: list[float]  #: The mean squared error of an entry in each epoch.


@dataclass(frozen=True)
class Clusters:
    """Clusters of codes, with the encoder that makes these."""

    encoder: list[Floats]
    centers: Floats  #: Of shape (n_clusters, n_latent).
    losses: list[float]  #: KL(P || Q) of a row, its mean on the way to each target.


def common_scale(rows: Floats) -> tuple[Floats, float]:
    """Return an origin, and one scale for all columns with which the mean square of an entry is 1 (section 4.3).

    One, so that what is far apart stays so: a column's unit says how much the column counts.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)

    Returns
    -------
    tuple of (ndarray of shape (n_columns,), float)
        The means, and the scale; 1 where all rows are the same.

    Raises
    ------
    DataError
        If rows are so far apart that their differences are infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        origin = rows[0] + (rows - rows[0]).mean(axis=0)
        offsets = rows - origin
    # In units of the largest, since squares of huge numbers are infinite and those of tiny ones 0.
    largest = float(np.abs(offsets).max())
    if not math.isfinite(largest):
        raise DataError("the rows are too far apart to be subtracted from each other; give them in larger units.")
    return origin, largest * float(np.sqrt(np.mean((offsets / largest) ** 2))) if largest > 0 else 1.0


def pretrained_autoencoder(
    rows: Floats, n_latent: int, *, random_state: int, n_epochs: int | None = None, n_hidden: int = 128
) -> Autoencoder:
    """Train an autoencoder to give rows back, through few numbers each.

    The encoder has two hidden layers, and the decoder is its mirror image. All layers are trained at once by Adam; the
    paper trains them one after the other before. It also hides a fifth of the entries of its inputs; with few columns
    that would hide the cluster of a row, and a small penalty on the weights takes its place here.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Of about mean 0 and scale 1; see :func:`common_scale`.
    n_latent : int
        Numbers of a code.
    random_state : int
        The same seed gives the same layers, bit by bit.
    n_epochs : int, optional
        How often to go through the rows; as often as 1,000 steps of at most 256 rows take, by default.
    n_hidden : int, default=128
        Units of each hidden layer.
    """
    torch = require_torch("An autoencoder")
    n_rows, n_columns = rows.shape
    n_epochs = epochs_of(N_STEPS, n_rows, BATCH_SIZE) if n_epochs is None else n_epochs
    with one_torch_thread():
        generator = torch_generator(random_state)
        given = torch.from_numpy(np.ascontiguousarray(rows))
        encoder = new_layers([n_columns, n_hidden, n_hidden, n_latent], generator, last=0.1)
        decoder = new_layers([n_latent, n_hidden, n_hidden, n_columns], generator, last=0.1)
        layers = encoder + decoder
        optimizer = torch.optim.Adam(layers, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        losses = []
        for _ in range(n_epochs):
            total = 0.0
            for batch in batches(n_rows, BATCH_SIZE, generator):
                true = given[batch]
                loss = (forward(forward(true, encoder), decoder) - true).square().mean()
                total += len(batch) * step(loss, layers, optimizer)
            losses.append(total / n_rows)
        return Autoencoder(arrays_of(encoder), arrays_of(decoder), losses)


def refined_clusters(
    rows: Floats,
    encoder: Sequence[Floats],
    centers: Floats,
    *,
    random_state: int,
    n_targets: int = 30,
    tol: float = TOLERANCE,
) -> Clusters:
    """Move codes and centers so that each code comes nearer to one of the centers, and farther from the others.

    In turns, the target P of all rows (equation 3) is computed from their soft assignments Q (equation 1), and Q is
    brought nearer to it: the encoder and the centers descend KL(P || Q) (equation 2), once through the rows or for 50
    steps, whichever is more. The decoder is not used any more. It ends when hardly a row has changed its cluster.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        As the autoencoder was trained on.
    encoder : sequence of ndarray
    centers : ndarray of shape (n_clusters, n_latent)
        First centers, by k-means of the codes.
    random_state : int
        The same seed gives the same clusters, bit by bit.
    n_targets : int, default=30
        At most; 0 leaves all as it is.
    tol : float, default=0.001
        It ends when at most this part of the rows has another nearest center than at the last target; below 0, never.
    """
    torch = require_torch("Deep clustering")
    n_rows = len(rows)
    with one_torch_thread():
        generator = torch_generator(random_state)
        given = torch.from_numpy(np.ascontiguousarray(rows))
        layers = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in encoder]
        mu = torch.tensor(centers, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([*layers, mu], lr=CLUSTERING_RATE)
        losses: list[float] = []
        former = None
        n_passes = epochs_of(STEPS_PER_TARGET, n_rows, BATCH_SIZE)
        for _ in range(n_targets):
            codes = outputs(rows, arrays_of(layers))
            found = mu.detach().numpy().copy()
            labels = nearest_center(codes, found)
            if former is not None and np.mean(labels != former) <= tol:
                break
            former = labels
            P = torch.from_numpy(target_distribution(soft_assignment(codes, found)))
            total = 0.0
            for _ in range(n_passes):
                for batch in batches(n_rows, BATCH_SIZE, generator):
                    Q = soft_assignment(forward(given[batch], layers), mu)
                    loss = mean_divergence(P[batch], Q)
                    total += len(batch) * step(loss, [*layers, mu], optimizer)
            losses.append(total / (n_rows * n_passes))
        return Clusters(arrays_of(layers), mu.detach().numpy().copy(), losses)


def soft_assignment(codes: Any, centers: Any) -> Any:
    """Return how much each code belongs to each center, by Student's t kernel: q in equation (1).

    ``q_ij = (1 + ||z_i - mu_j||^2)^-1``, divided by its sum over j.

    Parameters
    ----------
    codes : ndarray or Tensor of shape (n_rows, n_latent)
        z.
    centers : ndarray or Tensor of shape (n_clusters, n_latent)
        mu; of the same kind.

    Returns
    -------
    ndarray or Tensor of shape (n_rows, n_clusters)
        Above 0; a row adds up to 1.
    """
    kernel = 1.0 / (1.0 + ((codes[:, None] - centers) ** 2).sum(-1))
    return kernel / kernel.sum(-1)[:, None]


def target_distribution(Q: Floats) -> Floats:
    """Return the assignments that Q is to come nearer to: surer, and not all of one cluster. p in equation (3).

    ``p_ij = q_ij^2 / f_j`` with ``f_j = sum_i q_ij``, divided by its sum over j.

    Parameters
    ----------
    Q : ndarray of shape (n_rows, n_clusters)

    Returns
    -------
    ndarray of shape (n_rows, n_clusters)
    """
    weights = Q**2 / Q.sum(axis=0)
    target: Floats = weights / weights.sum(axis=1, keepdims=True)
    return target


def mean_divergence(P: Tensor, Q: Tensor) -> Tensor:
    """Return KL(P || Q) of a row (equation 2), its mean over the rows."""
    # xlogy, as 0 log 0 is 0.
    return (require_torch("DEC").xlogy(P, P) - P * Q.log()).sum(dim=1).mean()

"""Deep embedded clustering (DEC): an autoencoder's codes, moved until each lies close to one of a few centers.

The paper's steps are :func:`pretrained_autoencoder`, k-means of the codes, and :func:`refined_clusters`. Sections and
equations refer to the paper:

Xie, Girshick and Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.kmeans import nearest_center
from flower_fedclust_papers.networks.layers import outputs
from flower_fedclust_papers.networks.training import (
    Tensor,
    batches,
    descend,
    layers_of,
    n_epochs_for,
    network_of,
    new_layers,
    repeatable,
    require_torch,
)

Floats = NDArray[np.float64]

#: Default number of steps of the autoencoder.
N_STEPS = 1000

#: Rows in a step, and Adam's learning rates for the autoencoder and for the clusters.
BATCH_SIZE, LEARNING_RATE, CLUSTERING_RATE = 256, 1e-3, 2e-4

#: Twice the penalty on the autoencoder's squared weights. Without the penalty, similar rows get codes far apart.
WEIGHT_DECAY = 1e-3

#: The number of training steps towards a target P before the next target is computed.
STEPS_PER_TARGET = 50

#: The clusters are final when at most this fraction of the rows has changed its cluster since the last target
#: (section 4.3).
TOLERANCE = 0.001


@dataclass(frozen=True)
class Autoencoder:
    """A trained autoencoder."""

    encoder: list[Floats]  #: Layers with ReLU between them.
    decoder: list[Floats]  #: Layers with ReLU between them.
    losses: list[float]  #: For each epoch, the mean squared error of an entry.


@dataclass(frozen=True)
class RefinedClusters:
    """Clusters of codes, and the encoder that makes the codes."""

    encoder: list[Floats]
    centers: Floats  #: The centers of the codes, of shape (n_clusters, n_latent).
    losses: list[float]  #: For each target P, the mean over rows and steps of KL(P || Q).


def common_scale(rows: Floats) -> tuple[Floats, float]:
    """Return the columns' means, and one scale for all columns, by which the mean square of an entry becomes 1.

    See section 4.3. Because there is one scale, a column with larger values counts more. If all rows are equal, the
    scale is 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        origin = rows[0] + (rows - rows[0]).mean(axis=0)
        offsets = rows - origin
    # In units of the largest offset, because squares of huge numbers are infinite and squares of tiny ones are 0.
    largest = float(np.abs(offsets).max())
    if not math.isfinite(largest):
        raise DataError(
            "the rows are too far apart to be subtracted from each other; give them in larger units."
        )
    return origin, largest * float(
        np.sqrt(np.mean((offsets / largest) ** 2))
    ) if largest > 0 else 1.0


def pretrained_autoencoder(
    rows: Floats,
    n_latent: int,
    *,
    random_state: int,
    n_epochs: int | None = None,
    n_hidden: int = 128,
) -> Autoencoder:
    """Train an autoencoder to reproduce rows, scaled by :func:`common_scale`, from codes of ``n_latent`` numbers.

    The encoder has two hidden layers, and the decoder is its mirror image. Adam trains all layers at once, where the
    paper first trains them one after the other. The paper also hides a fifth of the inputs' entries; in few columns
    that would hide the cluster of a row, so a small penalty on the weights replaces it here.
    """
    n_rows, n_columns = rows.shape
    n_epochs = n_epochs_for(N_STEPS, n_rows, BATCH_SIZE) if n_epochs is None else n_epochs
    with repeatable("An autoencoder", random_state) as (torch, generator):
        tensor = torch.from_numpy(np.ascontiguousarray(rows))
        encoder = network_of(
            new_layers([n_columns, n_hidden, n_hidden, n_latent], generator, last=0.1)
        )
        decoder = network_of(
            new_layers([n_latent, n_hidden, n_hidden, n_columns], generator, last=0.1)
        )
        parameters = [*encoder.parameters(), *decoder.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        losses = []
        for _ in range(n_epochs):
            total = 0.0
            for batch in batches(n_rows, BATCH_SIZE, generator):
                true = tensor[batch]
                total += len(batch) * descend(
                    (decoder(encoder(true)) - true).square().mean(), optimizer
                )
            losses.append(total / n_rows)
        return Autoencoder(layers_of(encoder), layers_of(decoder), losses)


def refined_clusters(
    rows: Floats,
    encoder: Sequence[Floats],
    centers: Floats,
    *,
    random_state: int,
    n_targets: int = 30,
    tol: float = TOLERANCE,
) -> RefinedClusters:
    """Move codes and centers so that each code comes nearer to one of the centers and farther from the others.

    ``centers`` come from a k-means of the codes. Two steps alternate. First the target P of all rows (equation 3) is
    computed from their soft assignments Q (equation 1). Then the encoder and the centers are trained to lower
    KL(P || Q) (equation 2), for one epoch or 50 steps, whichever is more. It ends after ``n_targets`` targets, or when
    at most a fraction ``tol`` of the rows has changed its cluster.
    """
    n_rows = len(rows)
    with repeatable("Deep clustering", random_state) as (torch, generator):
        tensor = torch.from_numpy(np.ascontiguousarray(rows))
        network = network_of(encoder)
        mu = torch.tensor(centers, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([*network.parameters(), mu], lr=CLUSTERING_RATE)
        losses: list[float] = []
        former = None
        n_passes = n_epochs_for(STEPS_PER_TARGET, n_rows, BATCH_SIZE)
        for _ in range(n_targets):
            codes = outputs(rows, layers_of(network))
            final_centers = mu.detach().numpy().copy()
            labels = nearest_center(codes, final_centers)
            if former is not None and np.mean(labels != former) <= tol:
                break
            former = labels
            P = torch.from_numpy(target_distribution(soft_assignment(codes, final_centers)))
            total = 0.0
            for _ in range(n_passes):
                for batch in batches(n_rows, BATCH_SIZE, generator):
                    loss = mean_divergence(P[batch], soft_assignment(network(tensor[batch]), mu))
                    total += len(batch) * descend(loss, optimizer)
            losses.append(total / (n_rows * n_passes))
        return RefinedClusters(layers_of(network), mu.detach().numpy().copy(), losses)


def soft_assignment(codes: Any, centers: Any) -> Any:
    """Return the soft assignments q of equation (1), by Student's t kernel, of shape (n_rows, n_clusters).

    Takes and returns NumPy arrays or tensors.

    ``q_ij = (1 + ||z_i - mu_j||^2)^-1``, divided by its sum over j.
    """
    kernel = 1.0 / (1.0 + ((codes[:, None] - centers) ** 2).sum(-1))
    return kernel / kernel.sum(-1)[:, None]


def target_distribution(Q: Floats) -> Floats:
    """Return the target p of equation (3): more certain than Q, but without all rows in one cluster.

    ``p_ij = q_ij^2 / f_j`` with ``f_j = sum_i q_ij``, divided by its sum over j.
    """
    weights = Q**2 / Q.sum(axis=0)
    target: Floats = weights / weights.sum(axis=1, keepdims=True)
    return target


def mean_divergence(P: Tensor, Q: Tensor) -> Tensor:
    """Return the mean over rows of KL(P || Q) (equation 2)."""
    return require_torch("DEC").nn.functional.kl_div(Q.log(), P, reduction="batchmean")

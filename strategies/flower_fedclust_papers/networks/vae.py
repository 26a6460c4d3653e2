"""A variational autoencoder (VAE) whose codes are drawn to centers that all clients share, as in SPP-FGC+.

Its layers are the encoder's, then the decoder's, two each. The encoder's outputs are the mean and the logarithm of the
variance of a row's code, side by side; the mean is used as the code. The loss that draws codes to centers comes from
deep embedded clustering (DEC).

He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation framework",
equation (14) and Algorithm 2. Kingma and Welling, "Auto-encoding variational Bayes", ICLR 2014. Xie, Girshick and
Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust_papers.networks.deep_clustering import mean_divergence, soft_assignment
from flower_fedclust_papers.networks.layers import outputs
from flower_fedclust_papers.networks.training import (
    batches,
    descend,
    layers_of,
    n_epochs_for,
    network_of,
    new_layers,
    repeatable,
    require_torch,
    torch_generator,
)

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Rows in a step, and Adam's learning rate.
BATCH_SIZE, LEARNING_RATE = 128, 1e-3

#: Weight of a code's divergence from a standard normal, relative to the mean squared error of an entry.
DIVERGENCE_WEIGHT = 0.0015

#: The target P gives this probability to the row's own cluster, and divides the rest equally among all clusters.
SURE = 0.9

#: For a network that begins linear: the size of its nonlinear part, and the log-variance of its codes.
NONLINEAR, FIRST_LOG_VARIANCE = 0.05, -4.0

#: The first log-variance of codes if they have as many entries as rows: almost no noise, as there is no bottleneck.
NO_BOTTLENECK = -20.0


@dataclass(frozen=True)
class Trained:
    """Layers after training, and the losses on the way."""

    layers: list[Floats]
    #: L_vae for each epoch: the mean over rows of the squared error of an entry plus the divergence of the code.
    reconstruction: list[float]
    #: L_dec for each epoch: the mean over rows of KL(P || Q). Empty without centers.
    clustering: list[float]


def new_vae(
    n_columns: int,
    n_latent: int,
    n_hidden: int,
    random_state: int,
    directions: Floats | None = None,
) -> list[Floats]:
    """Return untrained layers, the same for everybody who has the seed; each half has ``n_hidden`` hidden units.

    With orthonormal ``directions``, of shape (n_columns, n_latent), the code of a row is at first its coordinates along
    them, and the decoder returns the row's projection. For each coordinate two hidden units carry its positive and its
    negative part. If the directions are principal axes, training begins with the principal components, which other
    networks have to find first. With fewer than 2 n_latent hidden units, only the first directions are used.
    """
    require_torch("SPP-FGC+")
    generator = torch_generator(random_state)
    last = 0.5 if directions is None else NONLINEAR
    encoder = new_layers([n_columns, n_hidden, 2 * n_latent], generator, last=last)
    decoder = new_layers([n_latent, n_hidden, n_columns], generator, last=last)
    if directions is not None:
        n_carried = min(n_latent, n_hidden // 2)
        positive, negative = slice(n_carried), slice(n_carried, 2 * n_carried)
        coordinates, eye = directions[:, :n_carried], np.eye(n_latent)[:, :n_carried]
        encoder[2][: 2 * n_carried] = 0.0
        encoder[3][n_latent:] = FIRST_LOG_VARIANCE if n_latent < n_columns else NO_BOTTLENECK
        for units, sign in ((positive, 1.0), (negative, -1.0)):
            encoder[0][:, units] = sign * coordinates
            encoder[2][units, :n_latent] = sign * eye.T
            decoder[0][:, units] = sign * eye
            decoder[2][units] = sign * coordinates.T
    return encoder + decoder


def encoder_of(layers: Sequence[Floats]) -> list[Floats]:
    """Return the layers that make codes of rows: the encoder's, without the outputs for the variances."""
    first, first_biases, last, last_biases = layers[:4]
    n_latent = last.shape[1] // 2
    return [first, first_biases, last[:, :n_latent], last_biases[:n_latent]]


def codes_of(rows: Floats, layers: Sequence[Floats]) -> Floats:
    """Return Z, the codes of rows, of shape (n_rows, n_latent). Needs no PyTorch."""
    return outputs(rows, encoder_of(layers))


def trained_vae(
    rows: Floats,
    layers: Sequence[Floats],
    *,
    n_steps: int,
    random_state: int,
    centers: Floats | None = None,
    labels: Labels | None = None,
    weight: float = 0.0,
) -> Trained:
    """Train a VAE further, by at least ``n_steps`` and one epoch: L_vae + lambda L_dec(P) (equation 14).

    L_dec is KL(P || Q), where Q is the soft assignment of a code to the fixed ``centers`` P_g that all clients share.
    In deep embedded clustering the target P is a sharper Q. This draws a row to the nearest center and, with a large
    ``weight`` lambda, cuts clusters that are not round. Here P favors the row's cluster in ``labels``, which come from
    a graph. If codes have as many entries as rows, their divergence from a standard normal is ignored. Rows should have
    about mean 0 and scale 1.
    """
    n_rows = len(rows)
    with repeatable("SPP-FGC+", random_state) as (torch, generator):
        tensor = torch.tensor(rows, dtype=torch.float64)
        encoder, decoder = network_of(layers[:4]), network_of(layers[4:])
        n_latent = layers[2].shape[1] // 2
        divergence_weight = DIVERGENCE_WEIGHT if n_latent < rows.shape[1] else 0.0
        mu = target = None
        if centers is not None:
            if labels is None:
                raise ValueError("labels are missing; give the cluster of each row.")
            mu = torch.tensor(centers, dtype=torch.float64)
            target = torch.from_numpy(
                SURE * np.eye(len(centers))[labels] + (1.0 - SURE) / len(centers)
            )
        optimizer = torch.optim.Adam(
            [*encoder.parameters(), *decoder.parameters()], lr=LEARNING_RATE
        )
        reconstruction: list[float] = []
        clustering: list[float] = []
        for _ in range(n_epochs_for(n_steps, n_rows, BATCH_SIZE)):
            of_vae = of_dec = 0.0
            for batch in batches(n_rows, BATCH_SIZE, generator):
                true = tensor[batch]
                means, log_variances = encoder(true).split(n_latent, dim=1)
                noise = torch.randn(means.shape, generator=generator, dtype=torch.float64)
                decoded = decoder(means + noise * (0.5 * log_variances).exp())
                divergence = (
                    0.5
                    * (means.square() + log_variances.exp() - 1.0 - log_variances).sum(dim=1).mean()
                )
                loss = loss_vae = (decoded - true).square().mean() + divergence_weight * divergence
                if mu is not None and target is not None:
                    loss_dec = mean_divergence(target[batch], soft_assignment(means, mu))
                    loss = loss_vae + weight * loss_dec
                    of_dec += len(batch) * float(loss_dec.detach())
                of_vae += len(batch) * float(loss_vae.detach())
                descend(loss, optimizer)
            reconstruction.append(of_vae / n_rows)
            if mu is not None:
                clustering.append(of_dec / n_rows)
        return Trained(layers_of(encoder) + layers_of(decoder), reconstruction, clustering)

"""A variational autoencoder whose codes are drawn to common centers: SPP-FGC+'s VAE with the loss of DEC.

Layers go in and come out as NumPy arrays, ``[W_1, b_1, W_2, b_2, ...]``, first the encoder's, then the decoder's. The
encoder gives the mean and the logarithm of the variance of a row's code, side by side; the mean is the code.

He, Wang, Tang, Wang, Wang and Nie, "Towards federated clustering: a client-wise private graph aggregation framework",
equation (14) and Algorithm 2. Kingma and Welling, "Auto-encoding variational Bayes", ICLR 2014. Xie, Girshick and
Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.networks.clustering_autoencoder import mean_divergence, soft_assignment
from flower_fedclust.networks.perceptron import outputs
from flower_fedclust.networks.torch_module import (
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

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: Rows a step, and Adam's learning rate.
BATCH_SIZE, LEARNING_RATE = 128, 1e-3

#: What the divergence of a code from a standard normal counts beside the mean squared error of an entry of its row.
DIVERGENCE_WEIGHT = 0.0015

#: The target P of a row: so much for the cluster that it is in, and the rest for all clusters alike.
SURE = 0.9

#: Of a network that begins linear: how large what is not linear is, and the logarithm of the variances of codes, ...
NONLINEAR, FIRST_LOG_VARIANCE = 0.05, -4.0

#: ... which is for no noise to speak of where a code is as wide as its row: there is no bottleneck.
NO_BOTTLENECK = -20.0


@dataclass(frozen=True)
class Trained:
    """Layers after training, and what the losses were on the way."""

    layers: list[Floats]
    #: L_vae by epoch, the mean over rows: mean squared error of an entry and the divergence of the row's code.
    reconstruction: list[float]
    clustering: list[float]  #: L_dec by epoch, the mean over rows: KL(P || Q). Empty where there are no centers.


def new_vae(
    n_columns: int, n_latent: int, n_hidden: int, random_state: int, directions: Floats | None = None
) -> list[Floats]:
    """Return the layers of a network that is not trained: the same for everybody who has the seed.

    With directions the code of a row begins as its coordinates along them, and the decoder gives back the row's
    projection: two hidden units a direction carry the coordinate's positive and its negative part. So training begins
    with what principal components tell, where a network that begins anywhere has first to find as much.

    Parameters
    ----------
    n_columns, n_latent, n_hidden : int
        Encoder and decoder have two layers each, with n_hidden units between them ("a four-layer VAE").
    random_state : int
    directions : ndarray of shape (n_columns, n_latent), optional
        Orthonormal columns. With fewer than 2 n_latent hidden units, only the first of them have a part.
    """
    require_torch("SPP-FGC+")
    generator = torch_generator(random_state)
    last = 0.5 if directions is None else NONLINEAR
    encoder = arrays_of(new_layers([n_columns, n_hidden, 2 * n_latent], generator, last=last))
    decoder = arrays_of(new_layers([n_latent, n_hidden, n_columns], generator, last=last))
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
    """Return the layers that make codes of rows: the encoder's, without the columns of the variances."""
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
    """Train a VAE further: L_vae + lambda L_dec(P) (equation 14).

    L_dec is KL(P || Q), Q the soft assignment of a code to the centers, which stay where they are: it is the codes that
    move. In deep embedded clustering the target P is Q made sharper, which draws a row to the nearest center, and with
    a large weight cuts clusters that are not round. Here P is for the cluster that the row is in, by whatever graph.
    Where a code is as wide as its row, the divergence of codes from a standard normal counts nothing.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
        Of about mean 0 and scale 1.
    layers : sequence of ndarray
        To begin with.
    n_steps : int
        Of up to 128 rows each; at least as many as it takes to go through the rows once.
    random_state : int
        The same seed gives the same layers, bit by bit.
    centers : ndarray of shape (n_clusters, n_latent), optional
        P_g, the prototypes that all clients share. Without, only L_vae counts.
    labels : ndarray of shape (n_rows,), intp, optional
        With centers: in which cluster each row is.
    weight : float, default=0
        lambda.
    """
    torch = require_torch("SPP-FGC+")
    n_rows = len(rows)
    with one_torch_thread():
        generator = torch_generator(random_state)
        given = torch.tensor(rows, dtype=torch.float64)
        trained = [torch.tensor(layer, dtype=torch.float64, requires_grad=True) for layer in layers]
        encoder, decoder = trained[:4], trained[4:]
        n_latent = layers[2].shape[1] // 2
        divergence_weight = DIVERGENCE_WEIGHT if n_latent < rows.shape[1] else 0.0
        mu = target = None
        if centers is not None:
            if labels is None:
                raise ValueError("labels are missing; say in which of the centers' clusters each row is.")
            mu = torch.tensor(centers, dtype=torch.float64)
            target = torch.from_numpy(SURE * np.eye(len(centers))[labels] + (1.0 - SURE) / len(centers))
        optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
        reconstruction: list[float] = []
        clustering: list[float] = []
        for _ in range(epochs_of(n_steps, n_rows, BATCH_SIZE)):
            of_vae = of_dec = 0.0
            for batch in batches(n_rows, BATCH_SIZE, generator):
                true = given[batch]
                encoded = forward(true, encoder)
                means, log_variances = encoded[:, :n_latent], encoded[:, n_latent:]
                noise = torch.randn(means.shape, generator=generator, dtype=torch.float64)
                decoded = forward(means + noise * (0.5 * log_variances).exp(), decoder)
                divergence = 0.5 * (means.square() + log_variances.exp() - 1.0 - log_variances).sum(dim=1).mean()
                loss_vae = (decoded - true).square().mean() + divergence_weight * divergence
                loss = loss_vae
                if mu is not None and target is not None:
                    P, Q = target[batch], soft_assignment(means, mu)
                    loss_dec = mean_divergence(P, Q)
                    loss = loss_vae + weight * loss_dec
                    of_dec += len(batch) * float(loss_dec.detach())
                of_vae += len(batch) * float(loss_vae.detach())
                step(loss, trained, optimizer)
            reconstruction.append(of_vae / n_rows)
            if mu is not None:
                clustering.append(of_dec / n_rows)
        return Trained(arrays_of(trained), reconstruction, clustering)

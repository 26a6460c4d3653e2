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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.deep.clustering_autoencoder import mean_divergence, soft_assignment, target_distribution
from flower_fedclust.deep.perceptron import outputs
from flower_fedclust.deep.torch_module import (
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

#: Rows a step, and Adam's learning rate.
BATCH_SIZE, LEARNING_RATE = 128, 1e-3

#: What the divergence of the codes from a standard normal counts beside the squared error of a row.
DIVERGENCE_WEIGHT = 0.1


@dataclass(frozen=True)
class Trained:
    """Layers after training, and what the losses were on the way.

    Parameters
    ----------
    layers : list of ndarray
    reconstruction : list of float
        L_vae by epoch, the mean over rows: squared error of a row and the divergence of its code.
    clustering : list of float
        L_dec by epoch, the mean over rows: KL(P || Q). Empty where there are no centers.
    """

    layers: list[Floats]
    reconstruction: list[float]
    clustering: list[float]


def new_vae(n_columns: int, n_latent: int, n_hidden: int, random_state: int) -> list[Floats]:
    """Return the layers of a network that has seen nothing: the same for everybody who has the seed.

    Parameters
    ----------
    n_columns, n_latent, n_hidden : int
        Encoder and decoder have two layers each, with n_hidden units between them ("a four-layer VAE").
    random_state : int
    """
    require_torch("SPP-FGC+")
    generator = torch_generator(random_state)
    encoder = new_layers([n_columns, n_hidden, 2 * n_latent], generator, last=0.5)
    decoder = new_layers([n_latent, n_hidden, n_columns], generator, last=0.5)
    return arrays_of(encoder + decoder)


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
    weight: float = 0.0,
) -> Trained:
    """Train a VAE further: L_vae + lambda L_dec(P) (equation 14).

    Before each epoch the target P of all rows is computed from their soft assignments Q to the centers, which stay
    where they are: it is the codes that move.

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
        mu = None if centers is None else torch.tensor(centers, dtype=torch.float64)
        optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
        reconstruction: list[float] = []
        clustering: list[float] = []
        for _ in range(epochs_of(n_steps, n_rows, BATCH_SIZE)):
            target: Any = None
            if centers is not None:
                codes = forward(given, encoder)[:, :n_latent].detach().numpy()
                target = torch.from_numpy(target_distribution(soft_assignment(codes, centers)))
            of_vae = of_dec = 0.0
            for batch in batches(n_rows, BATCH_SIZE, generator):
                true = given[batch]
                encoded = forward(true, encoder)
                means, log_variances = encoded[:, :n_latent], encoded[:, n_latent:]
                noise = torch.randn(means.shape, generator=generator, dtype=torch.float64)
                decoded = forward(means + noise * (0.5 * log_variances).exp(), decoder)
                divergence = 0.5 * (means.square() + log_variances.exp() - 1.0 - log_variances).sum(dim=1).mean()
                loss_vae = (decoded - true).square().sum(dim=1).mean() + DIVERGENCE_WEIGHT * divergence
                loss = loss_vae
                if mu is not None:
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

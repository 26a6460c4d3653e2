"""A small generative adversarial network for rows of numbers: rows that are like a client's, and are not its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.networks.torch_module import (
    Tensor,
    batches,
    epochs_of,
    forward,
    new_layers,
    one_torch_thread,
    require_torch,
    step,
    torch_generator,
)
from flower_fedclust.numerics.checks import DataError, checked_rows

Floats = NDArray[np.float64]

#: Units of each hidden layer, and normal random numbers from which the generator makes a row.
N_HIDDEN, N_NOISE = 64, 16

#: Steps of both networks where no number of epochs is given.
N_STEPS = 1500

#: Rows a step, and Adam's learning rate and decay rates.
BATCH_SIZE, LEARNING_RATE, BETAS = 64, 2e-3, (0.5, 0.99)

#: What the discriminator's squared gradient at real rows costs: gamma / 2 a row.
GAMMA = 0.1

#: How much of the mean of the generator's weights stays at each step. The mean moves less than the generator.
MEMORY = 0.99


def synthetic_rows(
    rows: NDArray[np.float64],
    n_synthetic: int,
    *,
    random_state: int,
    n_epochs: int | None = None,
    owner: str = "the client",
) -> Floats:
    """Train a GAN on rows, and return rows that its generator makes.

    Both networks have two hidden layers. The columns are brought to mean 0 and standard deviation 1 for training, and
    the synthetic rows back to the units of the true ones. A column that is constant is so in the synthetic rows.

    The loss is the non-saturating one, with a penalty on the discriminator's gradient at the true rows, ``gamma / 2
    E ||grad D(x)||^2``: with it, training settles where it would otherwise go in circles (Mescheder et al. 2018). The
    rows are made by the running mean of the generator's weights.

    A GAN that is trained long on few rows can repeat them: its rows are not private.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    n_synthetic : int
        How many rows to make.
    random_state : int
        The same seed gives the same rows, bit by bit.
    n_epochs : int, optional
        How often to go through the rows; as often as 1,500 steps of at most 64 rows take, by default.
    owner : str, default="the client"
        Whose rows these are, for messages.

    Returns
    -------
    ndarray of shape (n_synthetic, n_columns)

    Raises
    ------
    DataError
        If PyTorch is not installed, or if all rows are the same, or there is but one.

    References
    ----------
    Goodfellow et al., "Generative adversarial nets", NIPS 2014. Mescheder, Geiger and Nowozin, "Which training methods
    for GANs do actually converge?", ICML 2018.
    """
    torch = require_torch("A GAN")
    rows = checked_rows(rows, owner=owner)
    origin, scale = column_moments(rows)
    if not scale.any():
        raise DataError(f"{owner} has fewer than 2 different rows; a GAN could only repeat them.")
    n_epochs = epochs_of(N_STEPS, len(rows), BATCH_SIZE) if n_epochs is None else n_epochs
    with one_torch_thread():
        generator = torch_generator(random_state)
        standardised = np.divide(rows - origin, scale, out=np.zeros_like(rows), where=scale > 0)
        maker = _trained_generator(torch.from_numpy(standardised), n_epochs, generator)
        noise = torch.randn(n_synthetic, N_NOISE, generator=generator, dtype=torch.float64)
        made: Floats = forward(noise, maker).numpy()
    return origin + scale * made


def column_moments(rows: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column; 0 exactly is the deviation of a constant one.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)

    Returns
    -------
    tuple of (ndarray of shape (n_columns,), ndarray of shape (n_columns,))
    """
    # From one of the rows: the mean of equal numbers need not be that number.
    offsets = rows - rows[0]
    # In units of the largest, since squares of huge numbers are infinite and those of tiny ones 0.
    largest = np.abs(offsets).max(axis=0)
    relative = np.divide(offsets, largest, out=np.zeros_like(offsets), where=largest > 0)
    return rows[0] + largest * relative.mean(axis=0), largest * relative.std(axis=0)


def _trained_generator(real: Tensor, n_epochs: int, generator: Any) -> list[Tensor]:
    """Return the generator's layers: their mean over the steps."""
    torch = require_torch("A GAN")
    softplus = torch.nn.functional.softplus
    n_rows, n_columns = real.shape
    G = new_layers([N_NOISE, N_HIDDEN, N_HIDDEN, n_columns], generator)
    D = new_layers([n_columns, N_HIDDEN, N_HIDDEN, 1], generator)
    optimizer_of_G, optimizer_of_D = (torch.optim.Adam(one, lr=LEARNING_RATE, betas=BETAS) for one in (G, D))
    mean = [weights.detach().clone() for weights in G]

    def made(n: int) -> Tensor:
        return forward(torch.randn(n, N_NOISE, generator=generator, dtype=torch.float64), G)

    for _ in range(n_epochs):
        for batch in batches(n_rows, BATCH_SIZE, generator):
            true = real[batch].requires_grad_()
            of_true = forward(true, D, "leaky_relu")
            (slopes,) = torch.autograd.grad(of_true.sum(), true, create_graph=True)
            loss = softplus(-of_true).mean() + softplus(forward(made(len(batch)).detach(), D, "leaky_relu")).mean()
            step(loss + GAMMA / 2 * slopes.square().sum(dim=1).mean(), D, optimizer_of_D)
            step(softplus(-forward(made(len(batch)), D, "leaky_relu")).mean(), G, optimizer_of_G)
            with torch.no_grad():
                for average, weights in zip(mean, G, strict=True):
                    average.lerp_(weights, 1 - MEMORY)
    return mean

"""A small generative adversarial network (GAN), which makes rows that resemble a client's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError, checked_rows
from flower_fedclust_papers.networks.training import (
    Network,
    Tensor,
    batches,
    descend,
    n_epochs_for,
    network_of,
    new_layers,
    repeatable,
    require_torch,
)

Floats = NDArray[np.float64]

#: Units of each hidden layer, and the number of normal random numbers from which the generator makes a row.
N_HIDDEN, N_NOISE = 64, 16

#: Default number of steps of both networks.
N_STEPS = 1500

#: Rows in a step, and Adam's learning rate and decay rates.
BATCH_SIZE, LEARNING_RATE, BETAS = 64, 2e-3, (0.5, 0.99)

#: The penalty on the discriminator's squared gradient at true rows is gamma / 2.
GAMMA = 0.1

#: The decay of the running mean of the generator's weights. The mean varies less from step to step than the generator.
DECAY = 0.99


def synthetic_rows(
    rows: Floats,
    n_synthetic: int,
    *,
    random_state: int,
    n_epochs: int | None = None,
    owner: str = "the client",
) -> Floats:
    """Train a GAN on rows, and return rows that its generator makes.

    Both networks have two hidden layers. Columns are standardized for training, and synthetic rows are brought back to
    the units of the true ones. A constant column stays constant.

    The loss is the non-saturating one, with a penalty on the discriminator's gradient at the true rows, ``gamma / 2
    E ||grad D(x)||^2``, without which training would go in circles (Mescheder et al. 2018). The rows are made by the
    running mean of the generator's weights.

    The rows are not private: a GAN that is trained long on few rows can repeat them.

    Goodfellow et al., "Generative adversarial nets", NIPS 2014. Mescheder, Geiger and Nowozin, "Which training methods
    for GANs do actually converge?", ICML 2018.
    """
    rows = checked_rows(rows, owner=owner)
    origin, scale = column_moments(rows)
    if not scale.any():
        raise DataError(f"{owner} has fewer than 2 distinct rows; a GAN could only repeat them.")
    n_epochs = n_epochs_for(N_STEPS, len(rows), BATCH_SIZE) if n_epochs is None else n_epochs
    with repeatable("A GAN", random_state) as (torch, generator), torch.no_grad():
        standardized = np.divide(rows - origin, scale, out=np.zeros_like(rows), where=scale > 0)
        maker = _trained_generator(torch.from_numpy(standardized), n_epochs, generator)
        noise = torch.randn(n_synthetic, N_NOISE, generator=generator, dtype=torch.float64)
        synthetic: Floats = maker(noise).numpy()
    return origin + scale * synthetic


def column_moments(rows: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column; the deviation of a constant column is exactly 0."""
    # Measured from the first row, because the mean of equal numbers need not equal them.
    offsets = rows - rows[0]
    # In units of the largest offset, because squares of huge numbers are infinite and squares of tiny ones are 0.
    largest = np.abs(offsets).max(axis=0)
    relative = np.divide(offsets, largest, out=np.zeros_like(offsets), where=largest > 0)
    return rows[0] + largest * relative.mean(axis=0), largest * relative.std(axis=0)


def _trained_generator(real: Tensor, n_epochs: int, generator: Any) -> Network:
    """Return the generator whose weights are the running mean over the steps."""
    torch = require_torch("A GAN")
    softplus = torch.nn.functional.softplus
    n_rows, n_columns = real.shape
    G = network_of(new_layers([N_NOISE, N_HIDDEN, N_HIDDEN, n_columns], generator))
    D = network_of(
        new_layers([n_columns, N_HIDDEN, N_HIDDEN, 1], generator), torch.nn.LeakyReLU(0.2)
    )
    optimizer_of_G, optimizer_of_D = (
        torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, betas=BETAS) for network in (G, D)
    )
    swa = torch.optim.swa_utils
    mean = swa.AveragedModel(G, multi_avg_fn=swa.get_ema_multi_avg_fn(DECAY))
    mean.update_parameters(G)  # the first call copies: the mean begins with the first weights

    def made(n: int) -> Tensor:
        return G(torch.randn(n, N_NOISE, generator=generator, dtype=torch.float64))

    for _ in range(n_epochs):
        for batch in batches(n_rows, BATCH_SIZE, generator):
            with torch.enable_grad():
                true = real[batch].requires_grad_()
                of_true = D(true)
                (slopes,) = torch.autograd.grad(of_true.sum(), true, create_graph=True)
                loss = softplus(-of_true).mean() + softplus(D(made(len(batch)).detach())).mean()
                descend(loss + GAMMA / 2 * slopes.square().sum(dim=1).mean(), optimizer_of_D)
                descend(softplus(-D(made(len(batch)))).mean(), optimizer_of_G)
            mean.update_parameters(G)
    return mean

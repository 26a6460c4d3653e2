"""An upper limit for a private SPP-FGC+ on 5,000 digits of MNIST: DP-SGD for the network, SPPFGCSums on its codes.

    python benchmarks/private_codes.py

This is no private run: principal axes, clipping norm and the bound on the codes are taken from the rows at no cost. The
total epsilon is the sum of both parts. One row is replaced; delta is 1e-6.
"""

from __future__ import annotations

import numpy as np
from common import header

import flower_fedclust as fc
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.privacy.accounting import Share, calibrate
from flower_fedclust_papers.networks.vae import codes_of, new_vae

N_LATENT, N_HIDDEN, N_STEPS, BATCH_SIZE, RATE, N_DRAWS = 10, 128, 120, 250, 1e-3, 3
OF_TRAINING = {"no training": None, "without noise": np.inf, "100": 100.0, "10": 10.0, "1": 1.0}
OF_SUMS = (100.0, 10.0, 1.0)


def trained(rows: np.ndarray, layers: list[np.ndarray], epsilon: float) -> list[np.ndarray]:
    """Return the layers of an autoencoder trained by DP-SGD: Adam on clipped, noisy gradients of drawn rows."""
    share = Share("gaussian", 1.0, N_STEPS, "replace", (BATCH_SIZE, len(rows)))
    multiplier = (
        calibrate({"steps": share}, epsilon, 1e-6)["steps"] if np.isfinite(epsilon) else 0.0
    )
    numbers, clip = np.random.default_rng(0), 0.0
    # Only means: no variance of a code is learned.
    layers = [layers[0], layers[1], layers[2][:, :N_LATENT], layers[3][:N_LATENT], *layers[4:]]
    first, second = [np.zeros_like(one) for one in layers], [np.zeros_like(one) for one in layers]
    for step in range(1, N_STEPS + 1):
        drawn = rows[numbers.choice(len(rows), BATCH_SIZE, replace=False)]
        hidden = np.maximum(drawn @ layers[0] + layers[1], 0.0)
        codes = hidden @ layers[2] + layers[3]
        back = np.maximum(codes @ layers[4] + layers[5], 0.0)
        inputs = [drawn, hidden, codes, back]
        errors = [2.0 / rows.shape[1] * (back @ layers[6] + layers[7] - drawn)]
        for weights, active in ((layers[6], back > 0), (layers[4], 1.0), (layers[2], hidden > 0)):
            errors.insert(0, errors[0] @ weights.T * active)
        pairs = list(zip(inputs, errors, strict=True))
        norms = np.sqrt(sum((np.sum(a**2, axis=1) + 1.0) * np.sum(e**2, axis=1) for a, e in pairs))
        clip = clip or float(np.median(norms))
        factors = np.minimum(1.0, clip / norms)[:, None]
        gradients = [
            part for a, e in pairs for part in (a.T @ (factors * e), np.sum(factors * e, axis=0))
        ]
        for index, gradient in enumerate(gradients):
            noisy = (
                gradient + 2.0 * clip * multiplier * numbers.normal(size=gradient.shape)
            ) / BATCH_SIZE
            first[index] = 0.9 * first[index] + 0.1 * noisy
            second[index] = 0.999 * second[index] + 0.001 * noisy**2
            move = (
                first[index] / (1 - 0.9**step) / (np.sqrt(second[index] / (1 - 0.999**step)) + 1e-8)
            )
            layers[index] = layers[index] - RATE * move
    return [layers[0], layers[1], np.tile(layers[2], 2), np.tile(layers[3], 2), *layers[4:]]


def nmi(codes: np.ndarray, labels: np.ndarray, epsilon: float) -> float:
    """Return the NMI of SPPFGCSums on codes at four clients, the mean of some draws."""
    bound = float(np.quantile(np.abs(codes).sum(axis=1), 0.9))
    found = []
    for seed in range(N_DRAWS):
        parts = partition(Table(codes, labels), "iid", n_clients=4, random_state=seed)
        strategy = fc.SPPFGCSums(10, epsilon=epsilon, max_l1_norm=bound)
        found.append(
            fc.simulate(
                strategy, parts.clients, labels=parts.labels, seed=seed, progress=False
            ).metrics
        )
    return float(np.mean([metrics["nmi"] for metrics in found]))


def main() -> None:
    print(header())
    table = load_dataset("mnist-5k")
    assert table.labels is not None
    rows = table.rows - table.rows.mean(axis=0)
    rows /= np.sqrt(np.mean(rows**2))
    axes = np.linalg.eigh(rows.T @ rows)[1][:, : -N_LATENT - 1 : -1]
    layers = new_vae(rows.shape[1], N_LATENT, N_HIDDEN, 0, axes)
    print(f"| epsilon of the training | of the sums: {' | '.join(f'{one:g}' for one in OF_SUMS)} |")
    print("|---" * (1 + len(OF_SUMS)) + "|")
    for name, epsilon in OF_TRAINING.items():
        codes = codes_of(rows, layers if epsilon is None else trained(rows, layers, epsilon))
        figures = [f"{nmi(codes, table.labels, one):.3f}" for one in OF_SUMS]
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()

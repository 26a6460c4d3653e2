"""DP-FedC: first centers without rows, and the epsilon of Theorem 2's noise."""

from __future__ import annotations

import resource
import time

import numpy as np

from flower_fedclust.data import Table
from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust_papers.dp_fedc_printed import noise_multiplier, total_epsilon
from reproduce.measures import agreement_scores, data, load, measure, run
from reproduce.tables import Experiment

N_CLUSTERS, DELTA, MAX_NORM = 10, 1e-4, 10.0


@measure("agreement and epsilon")
def agreement_and_epsilon(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement and the epsilon by composition."""
    own = {}
    if experiment.parameters.get("init") == "random":
        # With noise, a first center may depend on no row: random non-negative directions, as long as a row.
        centers = np.abs(
            np.random.default_rng(seed).standard_normal(
                (N_CLUSTERS, load(experiment.data).rows.shape[1])
            )
        )
        own["init"] = MAX_NORM * centers / np.linalg.norm(centers, axis=1, keepdims=True)
    result, _ = run(experiment, seed, **own)
    spent = {"epsilon by composition": result.privacy.epsilon} if result.privacy.releases else {}
    return agreement_scores(result) | spent


@data("shape of TCGA")
def shape_of_tcga() -> Table:
    """Return 5,314 rows of 5,000 columns and 20 classes, like logarithms of gene expression."""
    rng = np.random.default_rng(0)
    labels = np.arange(5_314) % 20
    raised = 1.5 * (rng.random((20, 5_000)) < 0.05)
    rows = rng.normal(3.0, 1.0, 5_000) + raised[labels] + rng.standard_normal((len(labels), 5_000))
    return Table(np.maximum(rows, 0.0), labels)


@measure("agreement, time and memory")
def agreement_time_and_memory(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement, the seconds of a processor, and how much memory the run adds at its peak."""
    load(experiment.data)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    result, _ = run(experiment, seed)
    seconds, after = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return agreement_scores(result) | {
        "seconds": seconds,
        "GB above the rows": (after - before) / 2**20,
    }


@measure("theorem 2")
def theorem_2(experiment: Experiment, _: int) -> dict[str, float]:
    """Return the total epsilon by Theorem 3 and by composition, for the noise of Theorem 2 in each round.

    The settings are the paper's: 100 clients of 100 rows, K = 30, b = 50, Q_2 = floor(10 / t) + 1, R = 100.
    """
    epsilon = experiment.parameters["epsilon"]
    n_rows, batch, n_rounds, share = 100, 50, 100, 0.3
    steps = [10 // t + 1 for t in range(1, n_rounds + 1)]
    multipliers = [noise_multiplier(one * batch / n_rows, epsilon, DELTA) for one in steps]
    releases = [
        Release("gaussian", 1.0, multiplier, "Lemma 2", "replace") for multiplier in multipliers
    ]
    # A client that is drawn evenly over the rounds.
    drawn = [
        releases[index]
        for index in np.linspace(1, n_rounds - 1, round(share * n_rounds)).astype(int)
    ]
    return {
        "Theorem 3, c0 = 1": total_epsilon(epsilon, batch / n_rows, share, n_rounds, c0=1.0),
        "drawn 30 times": composed_epsilon(drawn, DELTA),
        "drawn 100 times": composed_epsilon(releases, DELTA),
    }

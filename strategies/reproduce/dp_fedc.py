"""DP-FedC: first centers without rows, and the epsilon of Theorem 2's noise."""

from __future__ import annotations

import numpy as np

from flower_fedclust.privacy.accounting import composed_epsilon
from flower_fedclust.privacy.releases import Release
from flower_fedclust_papers.dp_fedc_printed import noise_multiplier, total_epsilon
from reproduce.measures import agreement_scores, load, measure, run
from reproduce.tables import Experiment

N_CLUSTERS, DELTA, MAX_NORM = 10, 1e-4, 10.0


@measure("agreement and epsilon")
def agreement_and_epsilon(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the agreement and the epsilon by composition."""
    own = {}
    if experiment.parameters.get("init") == "random":
        # With noise, a first center may depend on no row: random non-negative directions, as long as a row.
        centers = np.abs(np.random.default_rng(seed).standard_normal((N_CLUSTERS, load(experiment.data).rows.shape[1])))
        own["init"] = MAX_NORM * centers / np.linalg.norm(centers, axis=1, keepdims=True)
    result, _ = run(experiment, seed, **own)
    spent = {"epsilon by composition": result.privacy.epsilon} if result.privacy.releases else {}
    return agreement_scores(result) | spent


@measure("theorem 2")
def theorem_2(experiment: Experiment, _: int) -> dict[str, float]:
    """Return the total epsilon by Theorem 3 and by composition, for the noise of Theorem 2 in each round.

    The settings are the paper's: 100 clients of 100 rows, K = 30, b = 50, Q_2 = floor(10 / t) + 1, R = 100.
    """
    epsilon = experiment.parameters["epsilon"]
    n_rows, batch, n_rounds, share = 100, 50, 100, 0.3
    steps = [10 // t + 1 for t in range(1, n_rounds + 1)]
    multipliers = [noise_multiplier(one * batch / n_rows, epsilon, DELTA) for one in steps]
    releases = [Release("gaussian", 1.0, multiplier, "Lemma 2", "replace") for multiplier in multipliers]
    # A client that is drawn evenly over the rounds.
    drawn = [releases[index] for index in np.linspace(1, n_rounds - 1, round(share * n_rounds)).astype(int)]
    return {
        "Theorem 3, c0 = 1": total_epsilon(epsilon, batch / n_rows, share, n_rounds, c0=1.0),
        "drawn 30 times": composed_epsilon(drawn, DELTA),
        "drawn 100 times": composed_epsilon(releases, DELTA),
    }

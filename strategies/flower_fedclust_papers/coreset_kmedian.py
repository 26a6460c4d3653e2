"""Distributed k-median: each client sends a few weighted rows that stand for all its rows; the server clusters them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine import Entry, Gather, Outcome, Protocol, Sent, answers, parameter
from flower_fedclust.engine.rounds import MissedRoundError
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import DataError
from flower_fedclust_papers.kmedian import (
    allotted,
    draw_coreset,
    kmedian_cost,
    weighted_kmedian,
    without_negative_weights,
)
from flower_fedclust_papers.perturbed_rows import PerturbedRowsClient, PerturbedRowsStrategy

Floats = NDArray[np.float64]

#: The default size of the coreset: the first number of samples for each cluster, but at least the second in total.
SAMPLES_PER_CLUSTER, FEWEST_SAMPLES = 20, 500

#: The name under which a client keeps the medians of its own rows.
OWN_MEDIANS = "own medians"


class CoresetKMedian(PerturbedRowsStrategy):
    """k-median by a distributed coreset: rows drawn by their distance from the client's own medians.

    Each client clusters its own rows and reports their cost: the sum of the rows' distances from the nearest of the
    client's medians. The server divides ``coreset_size`` samples in proportion to the costs, so a client whose rows are
    far from its medians sends more of them. The coreset consists of these samples and the clients' medians, with
    weights. For any centers, it has about the same cost as all rows. The server solves k-median on it. This takes two
    rounds.

    The drawn rows leave the clients unchanged. With an epsilon, each client first replaces its rows by noisy ones and
    uses only these. Each record is then differentially private, against the server too, but few clusters survive the
    noise unless epsilon is large.

    The objective is a sum of distances, not of their squares, so a few outliers pull the centers less than in k-means.
    As for all strategies, the metrics hold the k-means cost. ``history["coreset_cost"]`` holds the k-median
    cost of the result, as estimated by the coreset.

    Parameters
    ----------
    n_clusters : int
        The number of clusters, also in each client's own clustering; a client with fewer distinct rows sends all of its
        distinct rows.
    coreset_size : int, optional
        The number of samples that all clients draw together, with replacement; t in the paper. Defaults to 20 for each
        cluster, but at least 500. A row that is drawn more than once is sent once, so no client sends more samples than
        it has rows.

    References
    ----------
    Balcan, Ehrlich and Liang, "Distributed k-means and k-median clustering on general topologies", NeurIPS 2013.
    """

    entries = (
        Entry(
            "coreset-k-median",
            "k-median on a few weighted rows of each client; these are sent",
            "Balcan, Ehrlich and Liang 2013",
        ),
    )

    coreset_size: int | None = parameter(None, at_least=1)

    @property
    def n_protocol_rounds(self) -> int:
        """The number of rounds: for the noise on the rows, the costs, and the coreset."""
        return 2 + (self.epsilon is not None)

    def protocol(self) -> Protocol:
        """Divide the samples by cost (Algorithm 1), gather the coreset, and solve k-median on it."""
        rows = yield from self.rows_to_work_on()
        t = self.coreset_size or max(SAMPLES_PER_CLUSTER * self.n_clusters, FEWEST_SAMPLES)
        # Round 1.
        question = CoresetKMedianClient.own_cost.asked(
            n_clusters=self.n_clusters, random_state=self._seed()
        )
        replies = yield Gather(question, rows=rows)
        costs = np.array([float(reply.arrays[0]) for reply in replies])
        n_samples = allotted(costs, t, self.rng)
        # Round 2.
        cost_per_sample, seed = float(costs.sum()) / t, self._seed()
        questions = {
            reply.client: CoresetKMedianClient.coreset.asked(
                n_samples=t_i, cost_per_sample=cost_per_sample, random_state=seed
            )
            for reply, t_i in zip(replies, n_samples.tolist(), strict=True)
        }
        replies = yield Gather(questions, rows=rows)
        points: list[Floats] = []
        weights: list[Floats] = []
        not_negative: list[Floats] = []
        for reply in replies:
            samples, sample_weights, medians, median_weights = reply.arrays
            points += [samples, medians]
            weights += [sample_weights, median_weights]
            not_negative += without_negative_weights(
                samples, sample_weights, medians, median_weights
            )
        coreset = np.concatenate(points)
        centers = weighted_kmedian(coreset, np.concatenate(not_negative), self.n_clusters, self.rng)
        if len(centers) < self.n_clusters:
            raise DataError(
                f"n_clusters={self.n_clusters} is too large: the coreset has {len(centers)} distinct rows; set it "
                "lower, or coreset_size higher."
            )
        centers = self.within_norm(centers)  # where the medians of clipped rows must lie
        # Only the original weights, some of them negative, give an unbiased estimate of the cost.
        cost = kmedian_cost(coreset, centers, np.concatenate(weights))
        return Outcome(KMeansModel(centers), history={"coreset_cost": [cost]})


class CoresetKMedianClient(PerturbedRowsClient):
    """Clusters its own rows and draws from them by their cost."""

    @answers("sum of the distances of the rows from the client's own medians")
    def own_cost(self, *, n_clusters: int, random_state: int) -> Floats:
        """Return the cost of the client's rows P_i with its medians B_i, and keep B_i.

        One start of k-median is enough, because the cost of B_i may exceed the least cost by a constant factor.
        """
        rng = self.generator(random_state)
        medians = weighted_kmedian(
            self.rows, None, n_clusters, rng, n_restarts=1, max_iter=100, tol=1e-4
        )
        self.remember(OWN_MEDIANS, [medians])
        return np.array(kmedian_cost(self.rows, medians))

    @answers(
        Sent("the rows that were drawn", "rows", per="row", counts="some rows", has_columns=True),
        Sent("weight of every row that was drawn", "codes", per="row", counts="some rows"),
        Sent("medians of the client's own clusters", "centers", has_columns=True),
        Sent("weights of the client's own medians", "centers"),
        needs=[OWN_MEDIANS],
    )
    def coreset(
        self, *, n_samples: int, cost_per_sample: float, random_state: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the samples S_i and the medians B_i, with their weights."""
        kept = self.recall(OWN_MEDIANS)
        if kept is None:
            raise MissedRoundError(
                f"client {self.name} has no medians of its own; it missed the round before."
            )
        (medians,) = kept
        rng = self.generator(random_state)
        samples, sample_weights, weights = draw_coreset(
            self.rows, medians, n_samples, cost_per_sample, rng
        )
        return samples, sample_weights, medians, weights


CoresetKMedian.client_type = CoresetKMedianClient

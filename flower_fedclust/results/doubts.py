"""Whether a result means anything: what speaks against it, one sentence each.

From what the run has released, which costs no privacy; and, where the rows are at hand, from labels and cost, which are
as exact as the metrics of a result and as little covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.models import KMeansModel, Model, TableModel
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.engine.replies import LARGEST_PART, of_largest
from flower_fedclust.engine.rounds import DEVIATIONS
from flower_fedclust.strategies.common.tables import why_not

Code = Literal[
    "one-cluster",
    "no-better-than-one",
    "empty",
    "drowned",
    "noisy-center",
    "on-the-bound",
    "no-clear-number",
    "not-described",
    "seeds-differ",
    "out-of-scale",
    "crowded-column",
    "predicts-otherwise",
    "one-client",
]

#: As small a part of the rows outside of the largest cluster is none.
ABOUT_NOTHING = 0.01
#: Two runs whose labels agree less, by the adjusted Rand index, have ended elsewhere.
ALIKE = 0.7


@dataclass(frozen=True)
class Doubt:
    """One thing that speaks against a result.

    Parameters
    ----------
    code : str
        What it is, for machines: "one-cluster", "no-better-than-one", "empty", "drowned", "noisy-center",
        "on-the-bound", "no-clear-number", "not-described", "seeds-differ", "out-of-scale",
        "crowded-column", "predicts-otherwise" or "one-client".
    sentence : str
        The same for people, with what may help.
    numbers : mapping of str to anything
        What the sentence rests on, ready for JSON.
    basis : "released" or "rows"
        Whether it follows from what the run has released, or from rows at hand, whose labels no guarantee covers.
    """

    code: Code
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    basis: Literal["released", "rows"] = "released"

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)


def collapse_of(
    n_clusters: float | None, largest: float | None, cost: float | None, cost_of_one: float | None
) -> tuple[Code, str] | None:
    """Return how a run came to nothing, as a code and in words; None if it did not.

    Parameters
    ----------
    n_clusters : float or None
        How many were sought.
    largest : float or None
        The part of the rows in the largest cluster.
    cost, cost_of_one : float or None
        Of the clusters, and of one cluster for all rows, in the same space.
    """
    if n_clusters != 1 and largest is not None and largest > 1 - ABOUT_NOTHING:
        return "one-cluster", "all rows in one cluster" if largest == 1 else "nearly all rows in one cluster"
    if cost is not None and cost_of_one is not None and cost >= cost_of_one:
        return "no-better-than-one", "no better than one cluster for all"
    return None


def doubts_about(
    strategy: ProtocolStrategy, model: Model, labels: Sequence[NDArray[np.intp]], metrics: Mapping[str, float]
) -> tuple[Doubt, ...]:
    """Return what speaks against the result of a strategy that has run.

    Parameters
    ----------
    strategy : ProtocolStrategy
    model : Model
    labels : sequence of ndarray
        Of the rows at hand; empty where there are none.
    metrics : mapping of str to float
        Of the rows at hand.

    Returns
    -------
    tuple of Doubt
        The worst first.
    """
    found = [*_of_rows(model.n_clusters, labels, metrics), *_of_sizes(strategy, model, bool(labels))]
    found += _of_clients(strategy, labels)
    number = strategy.outcome.number
    if number is not None and not number.is_clear:
        found.append(Doubt("no-clear-number", number.sentence, {"chosen": number.chosen}))
    found += _of_bounds(strategy, model)
    if isinstance(strategy.outcome.model, TableModel):
        found += _of_columns(strategy.outcome.model)
    if getattr(strategy.tables, "description", 0) and strategy.outcome.clusters is None:
        sentence = f"The clusters are not described, and no budget was spent on it: {why_not(strategy, model)}."
        found.append(Doubt("not-described", sentence))
    return tuple(found)


def doubts_about_scale(clients: Sequence[ClientData]) -> tuple[Doubt, ...]:
    """Return the first client whose rows cannot be squared: distances between them are infinite, or 0."""
    for client in clients:
        if where := client.out_of_scale:
            return (Doubt("out-of-scale", f"{client.owner}: {where}", {"client": client.owner}, "rows"),)
    return ()


def doubts_about_labels(labels: Sequence[NDArray[np.intp]], predicted: Sequence[NDArray[np.intp]]) -> tuple[Doubt, ...]:
    """Return whether the model finds other clusters for the rows of the run than the run itself."""
    from sklearn.metrics import adjusted_rand_score

    pairs = [pair for pair in zip(labels, predicted, strict=True) if len(pair[0]) == len(pair[1])]
    if not pairs:
        return ()
    found, by_model = (np.concatenate(one) for one in zip(*pairs, strict=True))
    alike = float(adjusted_rand_score(found, by_model))
    if alike >= ALIKE:
        return ()
    sentence = (
        f"The model puts the rows of the run into other clusters than the run did (adjusted Rand index {alike:.2f}): "
        "do not believe what it predicts. The clusters may be noise."
    )
    return (Doubt("predicts-otherwise", sentence, {"ari": alike}, "rows"),)


def doubts_over_runs(labels: Sequence[NDArray[Any]]) -> tuple[Doubt, ...]:
    """Return whether several runs of one strategy on the same rows ended in different clusters.

    Parameters
    ----------
    labels : sequence of ndarray of shape (n_rows,)
        Of one run each.
    """
    from sklearn.metrics import adjusted_rand_score

    if len(labels) < 2:
        return ()
    alike = np.eye(len(labels))
    for first, second in combinations(range(len(labels)), 2):
        alike[first, second] = alike[second, first] = adjusted_rand_score(labels[first], labels[second])
    # Around the run that most others agree with.
    elsewhere = int((alike < ALIKE).sum(axis=1).min())
    if 2 * elsewhere < len(labels):
        return ()
    mean = float((alike.sum() - len(labels)) / (len(labels) * (len(labels) - 1)))
    sentence = (
        f"{elsewhere} of {len(labels)} runs end in other clusters than the rest (adjusted Rand index of two runs: "
        f"{mean:.2f} on average): believe what all of them find, or take fewer clusters or a larger n_init."
    )
    return (Doubt("seeds-differ", sentence, {"runs": len(labels), "elsewhere": elsewhere, "ari": mean}, "rows"),)


def _of_rows(n_clusters: int, labels: Sequence[NDArray[np.intp]], metrics: Mapping[str, float]) -> list[Doubt]:
    largest, cost, of_one = (metrics.get(name) for name in ("largest_cluster", "cost_per_row", "cost_of_one_cluster"))
    numbers = {"largest_cluster": largest, "cost_per_row": cost, "cost_of_one_cluster": of_one}
    if (collapse := collapse_of(n_clusters, largest, cost, of_one)) is not None:
        code, words = collapse
        what = "This run found nothing" if code == "one-cluster" else "These clusters explain nothing"
        return [_doubt(code, f"{what}: {words}.", numbers, "rows")]
    counts = np.bincount(np.concatenate(labels), minlength=n_clusters) if labels else np.empty(0)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return []
    verb = "has" if len(empty) == 1 else "have"
    sentence = f"{_some(empty, n_clusters)} {verb} no row: ask for fewer."
    return [_doubt("empty", sentence, {"clusters": empty}, "rows")]


def _of_clients(strategy: ProtocolStrategy, labels: Sequence[NDArray[np.intp]]) -> list[Doubt]:
    """Return whether one client has nearly all rows: nobody can tell whether they are its own or invented."""
    basis: Literal["released", "rows"] = "released"
    largest = strategy.largest_client
    if largest is None and len(labels) == len(strategy.client_names) >= 3:
        sizes, basis = dict(zip(strategy.client_names, map(len, labels), strict=True)), "rows"
        name = max(sizes, key=sizes.__getitem__)
        largest = name, sizes[name] / max(sum(sizes.values()), 1)
    if largest is None or largest[1] <= LARGEST_PART:
        return []
    sentence = f"{of_largest(*largest)} Ask how many it has, or run without it and compare."
    return [_doubt("one-client", sentence, {"client": largest[0], "part": largest[1]}, basis)]


def _of_sizes(strategy: ProtocolStrategy, model: Model, has_labels: bool) -> list[Doubt]:
    sizes, n_clusters = strategy.released_sizes, model.n_clusters
    if sizes is None or len(sizes.counts) != n_clusters:
        return []
    counts, deviation = np.maximum(sizes.counts, 0.0), sizes.deviation
    shares = counts / max(float(counts.sum()), np.finfo(float).tiny)
    numbers = {"shares": [round(float(share), 4) for share in shares]}
    small = np.flatnonzero(sizes.counts <= DEVIATIONS * deviation).tolist()
    found = []
    if not has_labels and (collapse := collapse_of(n_clusters, float(shares.max()), None, None)) is not None:
        found.append(_doubt("one-cluster", f"This run found nothing: {collapse[1]}.", numbers, "released"))
    verb = "has" if len(small) == 1 else "have"
    if small and deviation > 0:
        part = min(100 * DEVIATIONS * deviation / max(float(counts.sum()), deviation), 100.0)
        sentence = (
            f"{_some(small, n_clusters)} cannot be told from noise, which makes up to {part:.3g}% of all rows out of "
            "none: take a larger epsilon, more rows or fewer clusters."
        )
        found.append(_doubt("drowned", sentence, {**numbers, "clusters": small, "percent": part}, "released"))
    elif small and not has_labels:
        found.append(
            _doubt(
                "empty", f"{_some(small, n_clusters)} {verb} no row: ask for fewer.", {"clusters": small}, "released"
            )
        )
    return [*found, *_of_positions(sizes.counts, sizes.sum_deviation, set(small), model)]


def _of_positions(counts: NDArray[np.float64], sum_deviation: float, drowned: set[int], model: Model) -> list[Doubt]:
    """Return which centers noise may have moved halfway to another, by the noise in the direction of that."""
    if not isinstance(model, KMeansModel) or sum_deviation == 0.0 or model.n_clusters < 2:
        return []
    centers = model.cluster_centers_
    apart = squared_distances(centers, centers)
    np.fill_diagonal(apart, np.inf)
    moved = np.divide(DEVIATIONS * sum_deviation, counts, out=np.full(len(counts), np.inf), where=counts > 0)
    reached = [one for one in np.flatnonzero(2 * moved >= np.sqrt(apart.min(axis=1))).tolist() if one not in drowned]
    if not reached:
        return []
    sentence = (
        f"Noise may have moved the center of {_some(reached, model.n_clusters)} half of the way to the next: take a "
        "larger epsilon, more rows or fewer clusters."
    )
    return [
        _doubt(
            "noisy-center", sentence, {"clusters": reached, "moved": [float(moved[one]) for one in reached]}, "released"
        )
    ]


def _of_bounds(strategy: ProtocolStrategy, model: Model) -> list[Doubt]:
    """Return which centers lie where no row can: on the ball to which rows are clipped, or outside of it."""
    bound = getattr(strategy, "max_norm", None)
    if bound is None or not isinstance(model, KMeansModel):
        return []
    given: ArrayLike | None = getattr(strategy, "origin", None)
    origin = np.zeros(model.cluster_centers_.shape[1]) if given is None else np.asarray(given, dtype=np.float64)
    norms = np.linalg.norm(model.cluster_centers_ - origin, axis=1)
    outside = np.flatnonzero(norms >= 0.999 * bound).tolist()
    if not outside:
        return []
    sentence = (
        f"The center of {_some(outside, model.n_clusters)} lies at the bound max_norm={bound:g} or beyond: noise has "
        "thrown it there, or max_norm cuts its rows off."
    )
    return [_doubt("on-the-bound", sentence, {"clusters": outside, "max_norm": float(bound)}, "released")]


def _of_columns(model: TableModel) -> list[Doubt]:
    """Return which columns hardly count, as noise has hidden how near to each other their values are."""
    crowded = [name for name, figures in model.preparation.figures.items() if figures.is_crowded]
    if not crowded:
        return []
    named = ", ".join(f"'{name}'" for name in crowded)
    sentence = (
        f"Most values of {named} lie in a small part of the bounds that were found, so that they hardly count: give "
        "public bounds in the schema, more rows or a larger epsilon."
    )
    return [_doubt("crowded-column", sentence, {"columns": crowded}, "released")]


def _some(clusters: Sequence[int], n_clusters: int) -> str:
    named = ", ".join(map(str, clusters[:8])) + (", ..." if len(clusters) > 8 else "")
    return f"cluster {named}" if len(clusters) == 1 else f"{len(clusters)} of {n_clusters} clusters ({named})"


def _doubt(code: Code, sentence: str, numbers: Mapping[str, Any], basis: Literal["released", "rows"]) -> Doubt:
    return Doubt(code, sentence[:1].upper() + sentence[1:], numbers, basis)

"""Reasons to doubt a result, in one sentence each.

Clusters can always be computed, but they need not mean anything. Each function here looks for one
reason to doubt them: noise as large as a cluster, a search that would end elsewhere next time,
bounds that clip, columns that hardly count. A doubt says what is in doubt, why, and what may help.

Some doubts follow from what the run has released; these cost no privacy. Others follow from the
labels and costs of the rows, where the rows are at hand; no guarantee covers these. ``basis`` says
which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.engine.replies import LARGEST_PART, of_largest
from flower_fedclust.engine.rounds import DEVIATIONS, SURE_OF_GAIN, DensityGain
from flower_fedclust.models import KMeansModel, Model, TableModel
from flower_fedclust.names import some
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.metrics import cluster_sizes
from flower_fedclust.numerics.validity import (
    ALIKE,
    ALL_FOUND_AGAIN,
    FOUND_AGAIN,
    ClusterNumber,
    PeakNumber,
    Repeated,
    as_below,
)
from flower_fedclust.strategies.common.noisy_cells import EQUALLY_GOOD
from flower_fedclust.strategies.common.tables import SURVIVAL, left_out, why_not
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.estimates import ABOVE, BELOW, MOST_BEYOND
from flower_fedclust.tables.histograms import LEAST_HELD, why_it_hardly_counts
from flower_fedclust.tables.preparation import Preparation, scaled
from flower_fedclust.tables.schema import MEASURED, Schema, columns_with_unclear_commas, quoted
from flower_fedclust.tables.survival import Survival

Basis = Literal["released", "rows"]

#: If at most this fraction of the rows is outside of the largest cluster, the run has found one cluster.
ABOUT_NOTHING = 0.01
#: The share of values beyond a bound is clear if it exceeds its noise by this many standard deviations. So many are
#: needed because every column has two such shares in every cluster.
CLEARLY = 4.0
#: A server imitates other runs, with and without noise, on rows that it draws from this run's released numbers.
#: Clusters are bad if they cost more than the best clusters without noise by more than this fraction.
BOTH_BAD = 0.1
#: Where a bound clips most rows, it is the reason for other doubts, too: ``numbers["reason"]`` of the doubt.
CLIPPING = "clipping"
#: A center or a mean is on a bound if its norm is at least this fraction of the bound.
ON_BOUND = 0.999
#: Noise is not the reason why centers are on a bound if it moves their mean by at most this fraction of the bound.
MOVED_LITTLE = 0.5
#: The mean of a column is on a public bound, up to noise, if it lies within this fraction of half the range from it.
#: More noise than LITTLE_NOISE, in halves of the range, may have moved it there.
NEAR_BOUND, LITTLE_NOISE = 0.02, 0.15
#: A column has few values if its bounds hold at most this many integers. A Gaussian describes such a column badly.
FEW_VALUES = 20
#: Nearly all rows are followed beyond the last bin of time if at most this fraction of the outcomes lies before it.
FEW_IN_BINS = 0.05
#: A result is doubted if sites explain more than MOST_BY_SITE of the clusters' entropy, and chance would explain that
#: much with a probability below BY_CHANCE. In 20 runs of spp-fgc on ten tables whose rows were divided among the
#: clients by the values of a column, sites explained at least .12 of the entropy in every run whose ARI fell by more
#: than .05.
MOST_BY_SITE, BY_CHANCE = 0.1, 1e-4


@dataclass(frozen=True)
class Doubt:
    """One reason to doubt a result.

    Parameters
    ----------
    code : str
        The kind of doubt: "one-cluster", "no-better-than-one", "empty", "dropped", "drowned",
        "noisy-center", "on-the-bound", "no-clear-number", "unstable", "not-described",
        "no-survival", "beyond-the-bins", "nothing-described", "column-left-out", "noisy-bounds", "clipped-column",
        "skewed-column", "crowded-column", "predicts-otherwise", "seeds-differ", "out-of-scale",
        "one-client", "one-gaussian", "clusters-are-sites", "unclear-comma" or "empty-file".
    sentence : str
        The reason, and what may help.
    numbers : mapping of str to anything
        The numbers behind the sentence, ready for JSON.
    basis : "released" or "rows"
        What the doubt follows from: numbers that the run has released, or the rows themselves,
        which no guarantee covers.
    """

    code: str
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    basis: Basis = "released"

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)


def collapse_of(
    n_clusters: float | None, largest: float | None, cost: float | None, cost_of_one: float | None
) -> tuple[str, str] | None:
    """Return the code and the words of the doubt about a run that found nothing; None if it found something.

    ``largest`` is the fraction of the rows in the largest cluster; ``cost_of_one`` is the cost of a
    single cluster for all rows.
    """
    if n_clusters != 1 and largest is not None and largest > 1 - ABOUT_NOTHING:
        return (
            "one-cluster",
            "all rows in one cluster" if largest == 1 else "nearly all rows in one cluster",
        )
    if cost is not None and cost_of_one is not None and cost >= cost_of_one:
        return "no-better-than-one", "no better than one cluster for all"
    return None


def doubts_about(
    strategy: ProtocolStrategy,
    model: Model,
    labels: Sequence[NDArray[np.intp]],
    metrics: Mapping[str, float],
) -> tuple[Doubt, ...]:
    """Return the doubts about a strategy that has run, the worst first.

    Parameters
    ----------
    strategy : ProtocolStrategy
    model : Model
    labels : sequence of ndarray
        The labels of each client; empty if no rows are at hand.
    metrics : mapping of str to float
    """
    outcome, clusters = strategy.outcome, strategy.outcome.clusters
    of_bounds = _of_bounds(strategy, model)
    # A description counts the values beyond bounds; without one, only the centers can lie on bounds.
    of_columns = (
        _of_centers_on_bounds(strategy, model) if clusters is None else _of_columns_beyond(clusters)
    )
    # Where bounds clip most rows, they are the reason for all that follows, so no advice against noise would help.
    is_clipped = clipping_of([*of_bounds, *of_columns]) is not None
    doubts = [*of_bounds, *of_columns] if is_clipped else of_columns
    doubts += [
        *_of_rows(model.n_clusters, labels, metrics),
        *_of_sizes(strategy, model, bool(labels), is_clipped=is_clipped),
    ]
    doubts += [*_of_clients(strategy, labels), *_of_sites(strategy, labels)]
    number = outcome.number
    if number is not None and not number.is_clear and not is_clipped:
        doubts.append(Doubt("no-clear-number", number.sentence, {"chosen": number.chosen}))
    sought = strategy.n_clusters if number is None else number.chosen
    if isinstance(sought, int) and model.n_clusters < sought:
        doubts.append(
            _dropped(
                model.n_clusters, sought, has_noise=strategy.epsilon is not None and not is_clipped
            )
        )
    doubts += _of_other_runs(outcome.agreement, outcome.again, is_clipped=is_clipped)
    doubts += _of_density(outcome.gain, _few_valued(strategy), is_clipped=is_clipped)
    doubts += [] if is_clipped else of_bounds
    if isinstance(outcome.model, TableModel):
        doubts += _of_columns(strategy, outcome.model.preparation)
    if clusters is not None:
        doubts += _of_description(clusters, is_clipped=is_clipped)
    elif getattr(strategy.tables, "description", 0):
        sentence = (
            f"The clusters are not described, and this used no budget: {why_not(strategy, model)}."
        )
        doubts.append(Doubt("not-described", sentence))
    if (
        strategy.tables is not None
        and strategy.outcome.survival is None
        and strategy.tables.schema.of_outcome
    ):
        why = why_not(strategy, model, SURVIVAL)
        why = why or 'a sum of the clients\' means has no numbers of rows; choose the unit "record"'
        doubts.append(
            Doubt("no-survival", f"There are no survival curves, and this used no budget: {why}.")
        )
    doubts += _of_survival(outcome.survival)
    return tuple(doubts)


def clipping_of(doubts: Sequence[Doubt]) -> Doubt | None:
    """Return the doubt that says that a bound clips most rows; None if there is none.

    Then nothing that was measured of the clusters shows how many there are.
    """
    return next((doubt for doubt in doubts if doubt.numbers.get("reason") == CLIPPING), None)


def advice_on_number(number: ClusterNumber | PeakNumber, doubts: Sequence[Doubt]) -> str:
    """Return the advice on the number of clusters in words: none if a bound clips most rows."""
    if clipping_of(doubts) is not None:
        return (
            "No clear number: a bound clips most rows, so what is left of them does not show how many clusters there "
            "are; correct the bound first."
        )
    return number.sentence


def doubts_about_scale(clients: Sequence[ClientData]) -> tuple[Doubt, ...]:
    """Return a doubt about the first client whose numbers are too large or too small to square, if there is one."""
    for client in clients:
        if where := client.out_of_scale:
            return (
                Doubt("out-of-scale", f"{client.owner}: {where}", {"client": client.owner}, "rows"),
            )
    return ()


def doubts_about_numbers(clients: Sequence[ClientData], schema: Schema) -> tuple[Doubt, ...]:
    """Return a doubt about columns in which a text such as 1,234 was read as 1234, but may mean 1.234."""
    unclear = {
        client.owner: columns_with_unclear_commas((part.table for part in client.batches()), schema)
        for client in clients
    }
    unclear = {owner: columns for owner, columns in unclear.items() if columns}
    if not unclear:
        return ()
    columns = list(dict.fromkeys(name for names in unclear.values() for name in names))
    sentence = (
        f"Numbers written like 1,234 count as 1234 in {quoted(columns)} ({some(list(unclear))}), and none shows what "
        "the comma is: if it is a decimal comma, write 1.234."
    )
    return (
        Doubt("unclear-comma", sentence, {"columns": columns, "clients": list(unclear)}, "rows"),
    )


def doubts_about_files(empty: Sequence[str]) -> tuple[Doubt, ...]:
    """Return a doubt if some files of a folder had no rows, so that their clients took no part."""
    if not empty:
        return ()
    sentence = f"The run went on without {quoted(empty)}: without rows, a client has no say. Complete or drop the file."
    return (Doubt("empty-file", sentence, {"files": list(empty)}, "rows"),)


def doubts_about_labels(
    labels: Sequence[NDArray[np.intp]], predicted: Sequence[NDArray[np.intp]]
) -> tuple[Doubt, ...]:
    """Return a doubt if the model assigns the rows of the run to other clusters than the run did."""
    from sklearn.metrics import adjusted_rand_score

    pairs = [pair for pair in zip(labels, predicted, strict=True) if len(pair[0]) == len(pair[1])]
    if not pairs:
        return ()
    released, by_model = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    ari = float(adjusted_rand_score(released, by_model))
    if ari >= ALIKE:
        return ()
    sentence = (
        f"The model assigns the rows of the run to other clusters than the run did (adjusted Rand index {ari:.2f}): do "
        "not trust its predictions. The clusters may be noise."
    )
    return (Doubt("predicts-otherwise", sentence, {"ari": ari}, "rows"),)


def doubts_over_runs(labels: Sequence[NDArray[Any]]) -> tuple[Doubt, ...]:
    """Return a doubt if several runs of one strategy on the same rows found different clusters.

    ``labels`` has the labels of each run.
    """
    from sklearn.metrics import adjusted_rand_score

    if len(labels) < 2:
        return ()
    ari = np.eye(len(labels))
    for first, second in combinations(range(len(labels)), 2):
        ari[first, second] = ari[second, first] = adjusted_rand_score(labels[first], labels[second])
    # How many runs differ from the run with which most others agree.
    different = int((ari < ALIKE).sum(axis=1).min())
    if 2 * different < len(labels):
        return ()
    mean = float((ari.sum() - len(labels)) / (len(labels) * (len(labels) - 1)))
    sentence = (
        f"{different} of {len(labels)} runs found other clusters than the rest (mean adjusted Rand index of two runs: "
        f"{mean:.2f}): trust what all of them find, or use fewer clusters or a larger n_init."
    )
    return (
        Doubt(
            "seeds-differ",
            sentence,
            {"runs": len(labels), "elsewhere": different, "ari": mean},
            "rows",
        ),
    )


def _of_rows(
    n_clusters: int, labels: Sequence[NDArray[np.intp]], metrics: Mapping[str, float]
) -> list[Doubt]:
    """Return doubts that follow from labels and costs: a collapse, or empty clusters."""
    largest, cost, of_one = (
        metrics.get(name) for name in ("largest_cluster", "cost_per_row", "cost_of_one_cluster")
    )
    numbers = {"largest_cluster": largest, "cost_per_row": cost, "cost_of_one_cluster": of_one}
    if (collapse := collapse_of(n_clusters, largest, cost, of_one)) is not None:
        code, words = collapse
        topic = (
            "This run found nothing" if code == "one-cluster" else "These clusters explain nothing"
        )
        return [Doubt(code, f"{topic}: {words}.", numbers, "rows")]
    counts = cluster_sizes(labels, n_clusters) if labels else np.empty(0)
    empty = np.flatnonzero(counts == 0).tolist()
    return [_empty(empty, n_clusters, "rows")] if empty else []


def _of_clients(strategy: ProtocolStrategy, labels: Sequence[NDArray[np.intp]]) -> list[Doubt]:
    """Return a doubt if one client has nearly all rows, because nobody can check whether its rows are real."""
    basis: Basis = "released"
    largest = strategy.largest_client
    if largest is None and len(labels) == len(strategy.client_names) >= 3:
        sizes, basis = dict(zip(strategy.client_names, map(len, labels), strict=True)), "rows"
        name = max(sizes, key=sizes.__getitem__)
        largest = name, sizes[name] / max(sum(sizes.values()), 1)
    if largest is None or largest[1] <= LARGEST_PART:
        return []
    sentence = f"{of_largest(*largest)} Ask how many it has, or run without it and compare."
    return [Doubt("one-client", sentence, {"client": largest[0], "part": largest[1]}, basis)]


def _of_sites(strategy: ProtocolStrategy, labels: Sequence[NDArray[np.intp]]) -> list[Doubt]:
    """Return a doubt if the clusters follow the sites, and each site has clustered its rows by itself."""
    sees_sites = any(
        message.reveals == "centers" and message.detail.startswith("one per")
        for message in strategy.report.messages
    )
    if not sees_sites or len(labels) < 2 or (told := told_by_sites(labels)) <= MOST_BY_SITE:
        return []
    sentence = (
        f"The clusters follow the sites: the site of a row says {100 * told:.0f}% of what there is to know about its "
        f"cluster. Either the sites have different rows, or {strategy.name}, which joins what each site found by "
        "itself, takes sites for clusters. Compare with a strategy that needs only sums, such as federated-kmeans or "
        "spp-fgc-sums."
    )
    return [Doubt("clusters-are-sites", sentence, {"part": told}, "rows")]


def told_by_sites(labels: Sequence[NDArray[np.intp]]) -> float:
    """Return the share of the clusters' entropy, 0 to 1, that the sites explain beyond chance.

    ``labels`` has the labels of each site. Chance is the mutual information to expect if rows were
    assigned to sites at random. If the mutual information does not clearly exceed it (a G-test at
    the level 1e-4), the result is 0.
    """
    from scipy.stats import chi2
    from sklearn.metrics import mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

    clusters = np.unique(np.concatenate(labels), return_inverse=True)[1]
    sites = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    shares = np.bincount(clusters) / max(len(clusters), 1)
    entropy = -float(np.sum(shares * np.log(shares)))
    freedom = (len(shares) - 1) * (len(np.unique(sites)) - 1)
    if entropy <= 0 or freedom <= 0:
        return 0.0
    table = contingency_matrix(sites, clusters, sparse=True)
    by_chance = float(expected_mutual_information(table, len(clusters)))
    beyond = mutual_info_score(None, None, contingency=table) - by_chance
    if chi2.sf(2.0 * len(clusters) * beyond + freedom, freedom) > BY_CHANCE:
        return 0.0
    return float(np.clip(beyond / entropy, 0.0, 1.0))


def _of_sizes(
    strategy: ProtocolStrategy, model: Model, has_labels: bool, *, is_clipped: bool
) -> list[Doubt]:
    """Return doubts that follow from released sizes: a single cluster, clusters that could be noise, empty ones.

    ``has_labels`` says whether the labels of the rows are at hand. Then :func:`_of_rows` already
    reports a single cluster and empty clusters, so these are left out here. Where a bound clips
    most rows (``is_clipped``), there is no advice against noise.
    """
    sizes, n_clusters = strategy.released_sizes, model.n_clusters
    if sizes is None or len(sizes.counts) != n_clusters:
        return []
    counts, deviation = np.maximum(sizes.counts, 0.0), sizes.deviation
    shares = counts / max(float(counts.sum()), np.finfo(float).tiny)
    numbers = {"shares": [round(float(share), 4) for share in shares]}
    small = np.flatnonzero(sizes.counts <= DEVIATIONS * deviation).tolist()
    doubts = []
    if (
        not has_labels
        and (collapse := collapse_of(n_clusters, float(shares.max()), None, None)) is not None
    ):
        doubts.append(Doubt("one-cluster", f"This run found nothing: {collapse[1]}.", numbers))
    if small and deviation > 0:
        percent = min(100 * DEVIATIONS * deviation / max(float(counts.sum()), deviation), 100.0)
        sentence = _with_advice(
            f"{_listed(small, n_clusters, 'is', 'are')} smaller than what noise alone can produce (up to "
            f"{percent:.3g}% of all rows)",
            "" if is_clipped else "use a larger epsilon, more rows or fewer clusters",
        )
        doubts.append(
            Doubt("drowned", sentence, {**numbers, "clusters": small, "percent": percent})
        )
    elif small and not has_labels:
        doubts.append(_empty(small, n_clusters, "released"))
    of_positions = _of_positions(
        sizes.counts, sizes.sum_deviation, set(small), model, is_clipped=is_clipped
    )
    return [*doubts, *of_positions]


def _with_advice(fact: str, advice: str) -> str:
    """Return a sentence of a fact and, unless it is empty, an advice."""
    return f"{fact}: {advice}." if advice else f"{fact}."


def _dropped(kept: int, sought: int, *, has_noise: bool) -> Doubt:
    """Return the doubt about a result with fewer clusters than were sought."""
    sentence = f"The strategy returned {kept} of {sought} clusters."
    if has_noise:
        sentence = (
            f"Only {kept} of {sought} clusters stand out of the noise, and the others were dropped: use fewer "
            "clusters, more rows or a larger epsilon."
        )
    return Doubt("dropped", sentence, {"kept": kept, "sought": sought})


def _of_positions(
    counts: NDArray[np.float64],
    sum_deviation: float,
    drowned: set[int],
    model: Model,
    *,
    is_clipped: bool,
) -> list[Doubt]:
    """Return a doubt about centers that noise may have moved halfway to the nearest other center.

    ``drowned`` holds clusters that another doubt already names.
    """
    if not isinstance(model, KMeansModel) or sum_deviation == 0.0 or model.n_clusters < 2:
        return []
    centers = model.cluster_centers_
    apart = squared_distances(centers, centers)
    np.fill_diagonal(apart, np.inf)
    moved = np.divide(
        DEVIATIONS * sum_deviation, counts, out=np.full(len(counts), np.inf), where=counts > 0
    )
    reached = [
        cluster
        for cluster in np.flatnonzero(2 * moved >= np.sqrt(apart.min(axis=1))).tolist()
        if cluster not in drowned
    ]
    if not reached:
        return []
    sentence = _with_advice(
        f"Noise may have moved the center of {_listed(reached, model.n_clusters).lower()} halfway to the nearest "
        "other",
        "" if is_clipped else "use a larger epsilon, more rows or fewer clusters",
    )
    return [
        Doubt(
            "noisy-center",
            sentence,
            {"clusters": reached, "moved": [float(moved[cluster]) for cluster in reached]},
        )
    ]


def _few_valued(strategy: ProtocolStrategy) -> list[str]:
    """Return the columns that have few values, as the schema says: categories, and integers within narrow bounds."""
    model = strategy.outcome.model
    if not isinstance(model, TableModel):
        return []
    names = []
    for name, column in model.preparation.schema.used.items():
        interval = column.interval if column.kind == "integer" else None
        is_narrow = interval is not None and interval[1] - interval[0] < FEW_VALUES
        if column.kind not in MEASURED or is_narrow:
            names.append(name)
    return names


def _of_density(
    gain: DensityGain | None, few_valued: Sequence[str] = (), *, is_clipped: bool = False
) -> list[Doubt]:
    """Return a doubt about a mixture that may describe the rows no better than one Gaussian does.

    ``few_valued`` are the columns with few values. No epsilon is large enough for these. So noise is
    only named together with them if it hides the gain itself.
    """
    if gain is None or gain.is_clear:
        return []
    figures = (
        f"{gain.mean:.2g} ± {SURE_OF_GAIN * gain.deviation:.2g} nats a row (noise), while noise may hide "
        f"{gain.hidden:.2g} nats in the covariance of all rows"
    )
    advice = "do not rely on densities"
    have, them = ("have", "them") if len(few_valued) > 1 else ("has", "it")
    columns = f"{quoted(few_valued)}, which {have} few values, so that no Gaussian describes {them}"
    if few_valued and not is_clipped and gain.mean <= SURE_OF_GAIN * gain.deviation:
        advice += f". The reason may be noise, or {columns}: use more rows or a larger epsilon, or leave {them} out"
    elif few_valued and not is_clipped:
        advice += f". The reason may be {columns}: a larger epsilon does not help, but a run without {them} may"
    elif not is_clipped:
        advice += "; use fewer clusters, more rows or a larger epsilon"
    sentence = _with_advice(
        f"One Gaussian may describe the rows better than this mixture, which gains {figures}",
        advice,
    )
    return [Doubt("one-gaussian", sentence, {**asdict(gain), "few_valued": list(few_valued)})]


def _of_bounds(strategy: ProtocolStrategy, model: Model) -> list[Doubt]:
    """Return a doubt about centers on or beyond the surface of the ball to which rows are clipped.

    No mean of rows within the ball lies there. The reason is clipping if noise is too small to have
    moved these centers there, and if they are at least half of all clusters, or have at least half
    of the rows.
    """
    bound, points = getattr(strategy, "max_norm", None), model.mean_points
    if bound is None or points is None:
        return []
    declared_origin: ArrayLike | None = getattr(strategy, "origin", None)
    origin = (
        np.zeros(points.shape[1])
        if declared_origin is None
        else np.asarray(declared_origin, dtype=np.float64)
    )
    is_outside = np.linalg.norm(points - origin, axis=1) >= ON_BOUND * bound
    if not is_outside.any():
        return []
    outside = np.flatnonzero(is_outside).tolist()
    where = f"The center of {_listed(outside, len(points)).lower()} lies"
    if len(points) != model.n_clusters or model.space != "rows":
        where = "The mean of the points that stand for the rows lies"
    where += f" on or beyond the bound max_norm={bound:g}"
    noise, shares = _noise_and_sizes(strategy, len(points), float(bound))
    held = float(shares[is_outside].sum())
    # The noise of their sums adds up, and is in every column.
    moved = DEVIATIONS * noise * np.sqrt(is_outside.sum() * points.shape[1])
    numbers: dict[str, Any] = {"clusters": outside, "max_norm": float(bound)}
    if moved <= MOVED_LITTLE * held and 2 * held >= shares.sum():
        sentence = (
            f"{where}, and noise did not move it there: unless all rows have just this norm, max_norm clips the rows, "
            "and what is left of them need not have clusters. Give a larger max_norm that nearly all rows are within "
            "(check the unit of the columns), or a schema, which scales the columns."
        )
        return [Doubt("on-the-bound", sentence, {**numbers, "reason": CLIPPING})]
    sentence = f"{where}: noise moved it there, or max_norm clips its rows."
    return [Doubt("on-the-bound", sentence, numbers)]


def _noise_and_sizes(
    strategy: ProtocolStrategy, n_points: int, bound: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the noise in the sum of a cluster's rows, over the bound, and the number of rows of each cluster.

    Both follow from what was released: the sizes of the clusters, or the number of all rows, which
    is then divided equally. With an epsilon and neither of these, the noise may be infinite.
    """
    if strategy.epsilon is None:
        return 0.0, np.ones(n_points)
    sizes, rows = strategy.released_sizes, strategy.released_rows
    if sizes is not None and len(sizes.counts) == n_points and sizes.deviation > 0:
        # In the sum of a cluster's rows, a row counts up to the bound.
        return max(sizes.deviation, sizes.sum_deviation / bound), np.maximum(sizes.counts, 0.0)
    if rows is not None and rows.deviation > 0:
        n_rows = max(float(rows.counts.sum()), 0.0)
        return rows.deviation, np.full(n_points, n_rows / n_points)
    return np.inf, np.ones(n_points)


def _of_columns(strategy: ProtocolStrategy, preparation: Preparation) -> list[Doubt]:
    """Return doubts about columns that were left out, or that hardly count.

    A column hardly counts for the clusters if nearly all of its values lie close together within
    its bounds.
    """
    doubts, schema = [], getattr(strategy.tables, "schema", preparation.schema)
    lost = [name for name in schema.used if name not in preparation.schema.used]
    if lost:
        sentence = f"The run went on without {left_out(lost, strategy.epsilon)}"
        doubts.append(Doubt("column-left-out", sentence, {"columns": lost}))
    used = preparation.schema.used
    why = {
        name: why_it_hardly_counts(used[name], figures)
        for name, figures in preparation.figures.items()
    }
    if skewed := [name for name in why if why[name] == "skewed"]:
        sentence = (
            f"Half of the values of {quoted(skewed)} lie below a tenth of the upper bound that the run found, so they "
            "hardly count: if these are amounts, set logarithm = true in the schema; or, if large values are codes "
            "for missing values, list them under missing."
        )
        doubts.append(Doubt("skewed-column", sentence, {"columns": skewed}))
    if crowded := [name for name in why if why[name] == "crowded"]:
        sentence = (
            f"Most values of {quoted(crowded)} lie in a small part of the bounds that the run found, so they hardly "
            "count: set public bounds in the schema, or use more rows or a larger epsilon."
        )
        doubts.append(Doubt("crowded-column", sentence, {"columns": crowded}))
    return doubts


def _of_columns_beyond(clusters: Clusters) -> list[Doubt]:
    """Return a doubt about columns that have most of their values beyond their public bounds."""
    used = clusters.preparation.schema.used
    measured = [name for name in used if used[name].kind in MEASURED]
    names = [
        name
        for name in measured
        if used[name].interval is not None and _is_mostly_beyond(clusters, name)
    ]
    if not names:
        return []
    numbers: dict[str, Any] = {"columns": names}
    if len(names) == len(used):
        numbers["reason"] = CLIPPING
    sentence = (
        f"Most values of {quoted(names)} lie beyond the bounds in the schema and count as the bound, so they hardly "
        "tell rows apart: check the unit of the column, and the bounds."
    )
    return [Doubt("clipped-column", sentence, numbers)]


def _of_centers_on_bounds(strategy: ProtocolStrategy, model: Model) -> list[Doubt]:
    """Return a doubt if the mean of every column lies on one of its public bounds, and noise did not move it there.

    The mean is the mean of the centers, weighted by their released sizes. Values beyond a bound count
    as the bound, so nearly all values lie on it or beyond. Many values may just be 0, so bounds that
    are 0 are not named.
    """
    tables, points = strategy.outcome.model, model.mean_points
    if not isinstance(tables, TableModel) or points is None:
        return []
    preparation = tables.preparation
    noise, shares = _noise_and_sizes(strategy, len(points), preparation.radius)
    if not 0 < shares.sum() < np.inf or points.shape[1] != preparation.n_columns:
        return []
    mean = shares @ points / shares.sum()
    # The noise of the sums of all clusters adds up.
    moved = DEVIATIONS * noise * preparation.radius * np.sqrt(len(points)) / shares.sum()
    bounds = [
        _bound_at(preparation, name, float(mean[place.start]), float(moved))
        for name, place in preparation.places.items()
    ]
    if None in bounds:
        return []
    names = [name for name, bound in zip(preparation.places, bounds, strict=True) if bound != 0]
    if not names:
        return []
    sentence = (
        f"The centers lie on the bounds of {quoted(names)} in the schema, and noise did not move them there: unless "
        "nearly all values equal a bound, the bounds clip them, and what is left hardly tells rows apart. Check the "
        f"unit of the column{'s' if len(names) > 1 else ''}, and the bounds."
    )
    return [Doubt("clipped-column", sentence, {"columns": names, "reason": CLIPPING})]


def _bound_at(preparation: Preparation, name: str, mean: float, moved: float) -> float | None:
    """Return the public bound of a column on which its prepared mean lies; None if it lies on neither.

    ``moved`` is how far noise may have moved the mean.
    """
    column, figures = preparation.schema.used[name], preparation.figures[name]
    if column.kind not in MEASURED or column.interval is None or column.scale == "rank":
        return None
    ends = np.array([figures.low, figures.high])
    low, high = scaled(ends, column, figures) * column.weight
    half = (high - low) / 2
    if moved > LITTLE_NOISE * half:
        return None
    slack = (1 - ON_BOUND) * half + min(moved, NEAR_BOUND * half)
    if mean >= high - slack:
        return column.interval[1]
    return column.interval[0] if mean <= low + slack else None


def _of_description(clusters: Clusters, *, is_clipped: bool) -> list[Doubt]:
    """Return doubts about a description that noise has hidden, and about columns that are clearly clipped.

    If the run found the bounds of a column, and most values lie beyond them, then these bounds are
    mere noise. If only some values lie beyond its bounds, its means are wrong, and its quantiles
    are right. :func:`_of_columns_beyond` names columns with most values beyond public bounds.
    """
    frame, used = clusters.frame, clusters.preparation.schema.used
    is_clear = frame["value"] - CLEARLY * frame["error"] > MOST_BEYOND
    beyond = frame[frame["what"].isin((BELOW, ABOVE)) & is_clear]
    names = list(dict.fromkeys(beyond["column"]))
    mostly = [name for name in names if _is_mostly_beyond(clusters, name)]
    noise = [name for name in mostly if used[name].interval is None]
    doubts = []
    if _says_nothing(clusters):
        sentence = "The description says nothing about the clusters but their sizes"
        advice = (
            "no difference stands out of the noise. Use more rows, a larger epsilon, or a larger part of the budget "
            "(describe=0.3)"
        )
        doubts.append(
            Doubt("nothing-described", _with_advice(sentence, "" if is_clipped else advice))
        )
    if noise:
        sentence = (
            f"The bounds that the run found for {quoted(noise)} are noise: most values lie beyond them. Give public "
            "bounds in the schema, or ignore the column."
        )
        doubts.append(Doubt("noisy-bounds", sentence, {"columns": noise}))
    names = [name for name in names if name not in mostly]
    if not names:
        return doubts
    beyond = beyond[beyond["column"].isin(names)]
    most = beyond.loc[beyond["value"].idxmax()]
    may_be_amounts = any(used[name].kind != "date" and not used[name].logarithm for name in names)
    sentence = (
        f"Values of {quoted(names)} lie beyond the bounds and count as the bound (about {100 * most['value']:.0f}% of "
        f"'{most['column']}' in cluster {most['cluster']}): trust the quantiles, not the means. Wider public bounds in "
        f"the schema help{', and logarithm = true if these are amounts' if may_be_amounts else ''}."
    )
    return [*doubts, Doubt("clipped-column", sentence, {"columns": names})]


def _says_nothing(clusters: Clusters) -> bool:
    """Tell whether noise hides every difference between the clusters."""
    if clusters.deviation == 0:
        return False
    return all(len(clusters.sentences(cluster)) == 1 for cluster in range(clusters.n_clusters))


def _of_survival(survival: Survival | None) -> list[Doubt]:
    """Return a doubt about bins of time that end before nearly all rows had the event or were last seen.

    There is none if the curves say something all the same: events may be rare, and everybody else
    followed for longer than the bins.
    """
    if survival is None:
        return []
    n_bins = len(survival.ends)
    within, beyond = survival.sums[:, : 2 * n_bins], survival.sums[:, 2 * n_bins]
    total = float(within.sum() + beyond.sum())
    # Fewer rows than the floor are not told from none, so a table of few rows has no such doubt.
    most = max(FEW_IN_BINS * total, survival.floor - 1.0)
    noise = DEVIATIONS * survival.deviation * np.sqrt(within.size)
    if most > total / 5 or float(within.sum()) + noise > most:
        return []
    if survival.is_informative:
        return []
    unit = f" {survival.unit}" if survival.unit else ""
    sentence = (
        f"Nearly all {survival.counted} are followed beyond the last bin of time, which ends at "
        f"{survival.ends[-1]:,.6g}{unit}, so the curves say little: check the unit of the times, or give later bins."
    )
    return [Doubt("beyond-the-bins", sentence, {"last": float(survival.ends[-1])})]


def _is_mostly_beyond(clusters: Clusters, name: str) -> bool:
    """Tell whether most of a column's values lie beyond its bounds, so clearly that noise cannot be the reason."""
    part, deviation = clusters.part_beyond(name)
    return part - DEVIATIONS * deviation > 1 - LEAST_HELD


def _empty(clusters: Sequence[int], n_clusters: int, basis: Basis) -> Doubt:
    """Return the doubt about clusters without rows."""
    sentence = f"{_listed(clusters, n_clusters, 'has', 'have')} no rows: use fewer clusters."
    return Doubt("empty", sentence, {"clusters": list(clusters)}, basis)


def _listed(clusters: Sequence[int], n_clusters: int, singular: str = "", plural: str = "") -> str:
    """Return "Cluster 2 is" or "2 of 5 clusters (1, 2) are"."""
    if len(clusters) == 1:
        return f"Cluster {clusters[0]} {singular}".rstrip()
    named = ", ".join(map(str, clusters[:8])) + (", ..." if len(clusters) > 8 else "")
    return f"{len(clusters)} of {n_clusters} clusters ({named}) {plural}".rstrip()


def _of_other_runs(
    agreement: float | None, again: Repeated | None, *, is_clipped: bool = False
) -> list[Doubt]:
    """Return a doubt if another run would probably find other clusters.

    It names the clusters that would be found again, and says whether noise, the table or the search
    is the reason. Where a bound clips most rows (``is_clipped``), that is the reason, and no other is named.
    """
    if agreement is None or agreement >= ALL_FOUND_AGAIN:
        return []
    numbers: dict[str, Any] = {"ari": agreement}
    reason_text, advice = "", _ADVICE["noise"]
    if again is not None:
        kept = np.flatnonzero(again.each >= FOUND_AGAIN).tolist()
        lost = np.flatnonzero(again.each < FOUND_AGAIN).tolist()
        reason = reason_of(again)
        numbers |= {"clusters": lost, "jaccard": again.each.round(3).tolist(), "reason": reason}
        if reason == "table":
            numbers["equal_within"] = again.equal_within
        advice = _ADVICE[reason].format(equal_within=again.equal_within)
        if kept and lost:
            reason_text = f" It would find {_named(kept)} again, but not {_named(lost)}."
    if is_clipped:
        advice, numbers["reason"] = "", "bounds"
    fact = (
        "Another run would probably find other clusters (imitated runs have an adjusted Rand index of "
        f"{as_below(agreement)} with these, below {ALL_FOUND_AGAIN:g})"
    )
    sentence = f"{_with_advice(fact, advice)}{reason_text}"
    return [Doubt("unstable", sentence, numbers)]


#: Why another run would find other clusters -> what may help.
_ADVICE = {
    "noise": "noise is the reason, so use fewer clusters, more rows or a larger epsilon",
    "table": (
        "the table is the reason, because at least two ways to divide it cost the same up to {equal_within:.1%}; try "
        "another number of clusters. A larger epsilon can lower the cost by no more than that"
    ),
    "search": (
        "the search is the reason, because even without noise it ends elsewhere; try another number of clusters. A "
        "larger epsilon does not help"
    ),
}


def reason_of(again: Repeated) -> str:
    """Return why clusters would not be found again: "noise", "table" or "search".

    The table is the reason if another way to divide the rows costs nearly the same, as far as the
    noise lets one tell, and neither way is bad. Otherwise noise is the reason if the clusters cost
    clearly more because of it, or if runs without noise would agree with each other. In all other
    cases the search is the reason.
    """
    if again.equal_within <= EQUALLY_GOOD and again.excess <= BOTH_BAD:
        return "table"
    return "noise" if again.excess > EQUALLY_GOOD or again.without_noise >= ALIKE else "search"


def _named(clusters: list[int]) -> str:
    """Return "cluster 2" or "clusters 0, 2 and 5"."""
    if len(clusters) == 1:
        return f"cluster {clusters[0]}"
    return f"clusters {', '.join(map(str, clusters[:-1]))} and {clusters[-1]}"

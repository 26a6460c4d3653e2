"""The result of a run: from a strategy that has run, or from the folder of one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import ROW
from flower_fedclust.results.doubts import doubts_about, doubts_about_labels, doubts_about_scale
from flower_fedclust.results.findings import Findings
from flower_fedclust.models import KMeansModel, Model, TableModel
from flower_fedclust.numerics.kmeans import kmeans_cost
from flower_fedclust.numerics.metrics import add_tables, agreement, count_table
from flower_fedclust.numerics.validity import ClusterSums
from flower_fedclust.results.pictures.clusters import cluster_figure
from flower_fedclust.results.pictures.figures import saved_figure
from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.results.saving import read_findings, save_findings
from flower_fedclust.results.text import as_html, as_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result(Findings):
    """What a run leaves behind.

    Parameters
    ----------
    strategy : str
    model : Model
        ``model.predict(rows)`` labels rows that were not in the run.
    labels : list of ndarray of shape (n_i,)
        The cluster of each row, in the order of the clients given. Empty where the rows stayed elsewhere.
    names : list of str
        The clients, in the same order.
    privacy : PrivacyReport
    traffic : list of Traffic
        Bytes by round and by client.
    failures : list of Failure
        Clients that did not answer, with the reason.
    metrics : dict of str to float
        "cost", "cost_per_row", unless they are beyond the largest float; and, where true classes were given,
        "accuracy", "nmi" and "ari"; and what they are worth: "cost_of_one_cluster", the cost per row if all rows were
        in one cluster, "largest_cluster", the part of the rows in the largest, and "silhouette", "davies_bouldin" and
        "calinski_harabasz" of models with centers among the rows.
    seconds : float
        Wall-clock time of the run, evaluation apart.
    embedding : list of ndarray of shape (n_i, 2)
        For strategies that make a map.
    history : dict of str to list of float
        What the strategy watched over its rounds (an objective, say), by name.
    doubts : tuple of Doubt
        What speaks against the result, the worst first; empty if nothing does.
    number : ClusterNumber, optional
        How many clusters there are, where the strategy chose.
    sizes : ReleasedSizes, optional
        How many rows each cluster has, as the run last released it.
    clusters : Clusters, optional
        What the clusters are, in the table's own units, where the run described them (``describe=True``).
    row_ids : list of ndarray of shape (n_i,)
        What tells the rows of each client apart: their ids, or their numbers in the table that they came from. Also of
        those that have no label.
    id_column : str
        What these ids are called.
    server_row_ids : ndarray of shape (n_server_rows,), optional
        Those of the rows that were taken out of the clients' table for the server.
    """

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the clusters: where their centers lie, how large they are, what sets each apart, and what is noise.

        From what the run has released; only where it released no sizes, from the labels.

        Parameters
        ----------
        path : str or Path, optional
            A PNG to write.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If matplotlib is not installed.
        """
        figure = cluster_figure(self)
        if path is not None:
            saved_figure(figure, path)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder of its own.

        ``model.json`` and ``model.npz`` (what the model is, and its arrays), ``centers.csv`` (k-means-like models),
        ``labels/CLIENT.csv``, ``embedding/CLIENT.csv`` (maps), ``metrics.json``, ``privacy.json``, ``privacy.txt``,
        ``traffic.csv``, ``result.json``; ``clusters.csv`` and ``clusters.txt`` where the clusters were described.
        Nobody but its owner may look into the folder. A file of labels has a line for every row of the client, also
        where it has no cluster, and why; rows that were made public for the server stand in ``left-out.csv``.
        :func:`flower_fedclust.load` reads all of it.

        Parameters
        ----------
        folder : str or Path
            Made if need be; it must not hold another result.

        Returns
        -------
        Path
            The absolute path of the folder.

        Raises
        ------
        FileExistsError
            If the folder already holds files.
        """
        return save_findings(self, folder)


def load(folder: str | Path) -> Result:
    """Return the result that :meth:`Result.save` wrote into a folder.

    Parameters
    ----------
    folder : str or Path
        That of one strategy: of a folder that ``fedclust run`` wrote, the one inside.

    Returns
    -------
    Result
        With the model, which predicts as it did, the labels, the privacy report and everything else.

    Raises
    ------
    FileNotFoundError
        If the folder holds no result.
    ValueError
        If a file cannot be read, or was written by a version whose files this one does not read.
    """
    return Result(**read_findings(folder))


def result_of(strategy: ProtocolStrategy, data: Mapping[str, ClientData], seconds: float) -> Result:
    """Gather the result of a strategy that has run.

    Parameters
    ----------
    strategy : ProtocolStrategy
    data : mapping of str to ClientData
        The clients whose rows are at hand, by name, in the order wanted; labels and metrics are computed here,
        outside of the protocol. Empty in a deployment: then the metrics are those of the federated evaluation.
    seconds : float

    Returns
    -------
    Result
    """
    outcome = strategy.outcome
    model, clients = outcome.model, list(data.values())
    none = np.empty((0, 2))  # of a client that did not take part
    places = [None if outcome.embedding is None else outcome.embedding.get(name, none) for name in data]
    inner = model
    if isinstance(model, TableModel):
        inner, clients = model.model, [client.prepared(model.preparation) for client in clients]
    found = [inner.cluster(client.rows, own) for client, own in zip(clients, places, strict=True)]
    labels = [one.labels for one in found]
    of_data = doubts_about_scale(clients)
    if outcome.labels is not None:
        predicted, labels = labels, [outcome.labels.get(name, np.empty(0, dtype=np.intp)) for name in data]
        of_data = (*doubts_about_labels(labels, predicted), *of_data)
    if data:
        metrics = _metrics(inner, sum(one.cost for one in found), clients, labels)
    else:
        metrics = dict(strategy.evaluation or {})
    return Result(
        strategy=strategy.name,
        model=model,
        labels=labels,
        names=list(data) or strategy.client_names,
        privacy=strategy.report,
        traffic=strategy.traffic,
        failures=strategy.failures,
        metrics=metrics,
        seconds=seconds,
        embedding=[one.places for one in found if one.places is not None],
        history={name: [float(value) for value in values] for name, values in outcome.history.items()},
        doubts=(*doubts_about(strategy, inner, labels, metrics), *of_data),
        number=outcome.number,
        sizes=strategy.released_sizes,
        clusters=outcome.clusters,
        row_ids=[client.ids for client in clients],
        id_column=next((client.id_column for client in clients), ROW),
    )


def _metrics(
    model: Model, cost: float, data: Sequence[ClientData], labels: Sequence[NDArray[np.intp]]
) -> dict[str, float]:
    n_rows = sum(client.n_rows for client in data)
    # A cost beyond the largest float says nothing: it is left out, as is the cost of a model without one.
    metrics = {"cost": cost, "cost_per_row": cost / n_rows} if math.isfinite(cost) else {}
    if metrics and isinstance(model, KMeansModel):  # others have a cost in a space of their own
        center = sum(client.rows.sum(axis=0) for client in data) / n_rows
        of_one = sum(kmeans_cost(client.rows, center[None, :]) for client in data) / n_rows
        if math.isfinite(of_one):
            metrics["cost_of_one_cluster"] = of_one
            if model.n_clusters > 1:
                centers = model.cluster_centers_
                sums = [ClusterSums.of_rows(client.rows, centers) for client in data]
                metrics |= reduce(ClusterSums.__add__, sums).measures(centers)
    sizes = np.bincount(np.concatenate(labels), minlength=1)
    metrics |= {"largest_cluster": float(sizes.max() / sizes.sum())} if sizes.any() else {}
    tables = [
        count_table(client.labels, clusters, model.n_clusters)
        for client, clusters in zip(data, labels, strict=True)
        if client.labels is not None and len(client.labels) == len(clusters)
    ]
    return metrics | agreement(add_tables(tables)) if tables else metrics

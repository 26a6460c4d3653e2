"""The result of a run, from a strategy that has run or from a folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import ROW
from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.engine.client_data import EVALUATED_ENTRIES
from flower_fedclust.exact.device import current_device
from flower_fedclust.models import KMeansModel, Model, TableModel
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.kmeans import kmeans_cost
from flower_fedclust.numerics.metrics import add_tables, agreement, cluster_sizes, count_table
from flower_fedclust.numerics.threads import mapped, one_thread, threads_for
from flower_fedclust.numerics.validity import ClusterSums
from flower_fedclust.results.doubts import (
    Doubt,
    doubts_about,
    doubts_about_labels,
    doubts_about_numbers,
    doubts_about_scale,
)
from flower_fedclust.results.files import read_result, save_result
from flower_fedclust.results.page import result_page
from flower_fedclust.results.pictures import cluster_figure, made_folder_of, saved_figure
from flower_fedclust.results.result_data import ResultData
from flower_fedclust.tables.floors import FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Clients with at most FEW_ROWS rows are evaluated together, at most MANY_CLIENTS at a time.
FEW_ROWS, MANY_CLIENTS = 256, 64


@dataclass(frozen=True, repr=False)
class Result(ResultData):
    """The result of a run.

    Parameters
    ----------
    strategy : str
    model : Model
        ``model.predict(rows)`` labels rows that were not in the run.
    labels_of_clients : list of ndarray of shape (n_i,)
        The cluster of each row, in the order of the clients given. Empty if the rows are not in this process.
        :attr:`labels` has them in the form in which the clients were given.
    names : list of str
        The clients, in the same order.
    privacy : PrivacyReport
    traffic : list of Traffic
        Bytes by round and by client.
    failures : list of Failure
        Clients that did not answer, with the reason.
    metrics : dict of str to float
        "cost" and "cost_per_row", unless they overflow; "accuracy", "nmi" and "ari" if true classes
        were given; "cost_of_one_cluster", the cost per row if all rows were in one cluster;
        "largest_cluster", the fraction of the rows in the largest cluster; and, for models with
        centers among the rows, "silhouette", "davies_bouldin" and "calinski_harabasz".
    seconds : float
        Wall-clock time of the run without the evaluation.
    embedding : list of ndarray of shape (n_i, 2)
        Places of the rows, for strategies that make a map.
    history : dict of str to list of float
        What the strategy recorded over its rounds (such as an objective), by name.
    doubts : tuple of Doubt
        Reasons to doubt the result, the worst first.
    number : ClusterNumber or PeakNumber, optional
        The number of clusters, if the strategy chose it.
    sizes : ReleasedSizes, optional
        The number of rows in each cluster, as the run last released it.
    clusters : Clusters, optional
        A description of the clusters in the table's own units, if the run made one
        (``describe=True``).
    survival : Survival, optional
        How many rows of each cluster had an event, and when, if the schema has a time to an event.
    row_ids : list of ndarray of shape (n_i,)
        The ids of each client's rows, or their numbers in the original table. Rows without a label
        are included.
    id_column : str
        The name of the row ids.
    server_row_ids : ndarray of shape (n_server_rows,), optional
        Ids of the rows that were taken out of the clients' table for the server.
    form : "list", "dict" or "table", default="list"
        The form in which the clients were given.
    floor : int, default=10
        The smallest number of rows that pages and pictures show (docs/floors.md).
    """

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw where the clusters lie, how large they are, what distinguishes each, and what could be noise.

        The picture shows what the run has released. Sizes that it has not released are counted from
        the labels.

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

    def page(self, path: str | Path, *, subject: str = "") -> Path:
        """Write one HTML page to hand to somebody: picture, words, doubts, and what was protected and what was not.

        The page needs no network and prints well. It shows what the run has released. It may also
        show sizes that were counted from labels, or doubts that rest on labels, and then says so.

        Parameters
        ----------
        path : str or Path
            A new HTML file, or one to replace.
        subject : str, optional
            What the page is about, such as the name of a study; it stands above the title.

        Returns
        -------
        Path
            The absolute path of the page.
        """
        file = made_folder_of(path)
        file.write_text(result_page(self, subject), encoding="utf-8")
        return file

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder of its own, which only its owner can open.

        ``model.json`` and ``model.npz`` (a description of the model, and its arrays), ``centers.csv`` (k-means-like
        models), ``labels/CLIENT.csv``, ``embedding/CLIENT.csv`` (maps), ``metrics.json``, ``privacy.json``,
        ``privacy.txt``, ``traffic.csv``, ``result.json``; if the clusters were described, ``clusters.csv``,
        ``clusters.txt`` and ``table-one`` as ``.csv``, ``.md`` and ``.tex``; and if the schema has a time to an event,
        ``survival.csv`` and ``survival.txt``. A file of labels has a line for every row of the client, and the reason
        if a row has no cluster. Rows that were made public for the server are in ``left-out.csv``.
        :func:`flower_fedclust.load` reads all of it.

        Parameters
        ----------
        folder : str or Path
            Created if it does not exist; it must be empty.

        Returns
        -------
        Path
            The absolute path of the folder.

        Raises
        ------
        FileExistsError
            If the folder holds anything.
        """
        return save_result(self, folder)


def load(folder: str | Path) -> Result:
    """Return the result that :meth:`Result.save` wrote into a folder.

    Parameters
    ----------
    folder : str or Path
        The folder of one strategy. ``fedclust run`` writes such a folder inside its folder of
        results.

    Returns
    -------
    Result
        The whole result: the model predicts as before, and labels, privacy report and all other
        fields are there.

    Raises
    ------
    FileNotFoundError
        If the folder holds no result.
    ValueError
        If a file is damaged, or another version wrote it in another format.
    """
    return Result(**read_result(folder))


def result_of(strategy: ProtocolStrategy, data: Mapping[str, ClientData], seconds: float) -> Result:
    """Return the result of a strategy that has run, with the clients in the order of ``data``.

    Labels and metrics are computed here from the rows in ``data``, outside of the protocol. In a
    deployment ``data`` is empty, and the metrics come from the federated evaluation.

    Parameters
    ----------
    strategy : ProtocolStrategy
    data : mapping of str to ClientData
    seconds : float
        How long the run took.
    """
    with one_thread():  # the last bits of a product depend on the number of its threads
        evaluated = _evaluated(strategy, data)
    outcome = strategy.outcome
    clients = list(data.values())
    return Result(
        strategy=strategy.name,
        model=outcome.model,
        labels_of_clients=evaluated.labels,
        names=list(data) or strategy.client_names,
        privacy=strategy.report,
        traffic=strategy.traffic,
        failures=strategy.failures,
        metrics=evaluated.metrics,
        seconds=seconds,
        embedding=evaluated.places,
        history={
            name: [float(value) for value in values] for name, values in outcome.history.items()
        },
        doubts=evaluated.doubts,
        number=outcome.number,
        sizes=strategy.released_sizes,
        clusters=outcome.clusters,
        survival=outcome.survival,
        row_ids=[client.ids for client in clients],
        id_column=next((client.id_column for client in clients), ROW),
        floor=getattr(strategy.tables, "floor", FLOOR),
    )


class Evaluated(NamedTuple):
    """What the server's machine computes from the model and, in a simulation, from the clients' rows."""

    labels: list[NDArray[np.intp]]  #: The labels of each client's rows.
    places: list[
        NDArray[np.float64]
    ]  #: The places of each client's rows on a map, if there is one.
    metrics: dict[str, float]
    doubts: tuple[Doubt, ...]


def _evaluated(strategy: ProtocolStrategy, data: Mapping[str, ClientData]) -> Evaluated:
    """Return the labels, the metrics and the doubts of a strategy that has run."""
    outcome = strategy.outcome
    model, clients = outcome.model, list(data.values())
    none = np.empty((0, 2))  # the client took no part
    places = [
        None if outcome.embedding is None else outcome.embedding.get(name, none) for name in data
    ]
    inner = model
    of_data: tuple[Doubt, ...] = ()
    if isinstance(model, TableModel):
        of_data = tuple(doubts_about_numbers(clients, model.preparation.schema))
        inner, clients = model.model, [client.prepared(model.preparation) for client in clients]

    if isinstance(inner, KMeansModel):
        labels, cost, sums = _clusters_of(inner, clients)
        shown = list[NDArray[np.float64]]()
    else:
        sums = None
        answers = [
            client.cluster(inner, client_places)
            for client, client_places in zip(clients, places, strict=True)
        ]
        labels, cost = [answer.labels for answer in answers], sum(answer.cost for answer in answers)
        shown = [answer.places for answer in answers if answer.places is not None]
    of_data = (*of_data, *doubts_about_scale(clients))

    if outcome.labels is not None:
        predicted = labels
        labels = [outcome.labels.get(name, np.empty(0, dtype=np.intp)) for name in data]
        of_data = (*doubts_about_labels(labels, predicted), *of_data)
    metrics = (
        _metrics(inner, cost, sums, clients, labels) if data else dict(strategy.evaluation or {})
    )
    doubts = (*doubts_about(strategy, inner, labels, metrics), *of_data)
    return Evaluated(labels, shown, metrics, doubts)


def _groups(clients: Sequence[ClientData]) -> Iterator[list[ClientData]]:
    """Yield lists of clients: those with few rows together, and every other one by itself."""
    for is_small, alike in groupby(
        clients, lambda client: client.is_in_memory and client.n_rows <= FEW_ROWS
    ):
        some = list(alike)
        step = MANY_CLIENTS if is_small else 1
        yield from (some[start : start + step] for start in range(0, len(some), step))


def _pieces(clients: Sequence[ClientData]) -> Iterator[NDArray[np.float64]]:
    """Yield the rows of all clients, in order, in pieces that fit into memory and that threads can share."""
    for group in _groups(clients):
        if len(group) > 1:
            yield np.concatenate([client.rows for client in group])
        elif group[0].is_in_memory:
            rows = group[0].rows
            for block in blocks(*rows.shape, block_entries=EVALUATED_ENTRIES):
                yield rows[block]
        else:
            yield from group[0].pieces()


def _clusters_of(
    model: KMeansModel, clients: Sequence[ClientData]
) -> tuple[list[NDArray[np.intp]], float, ClusterSums | None]:
    """Return the labels of each client's rows, the cost of all rows together, and sums that measure the clusters.

    Rows are compared with the centers once for all three. Without clients there are no sums.
    """
    centers, nearest = model.cluster_centers_, current_device().nearest_two

    def compare(
        rows: NDArray[np.float64],
    ) -> tuple[NDArray[np.intp], float, ClusterSums]:
        sums, labels = ClusterSums.with_labels(rows, centers, nearest=nearest)
        return labels, kmeans_cost(rows, centers, labels), sums

    n_rows = [client.n_rows for client in clients]
    labels, cost, sums = list[NDArray[np.intp]](), 0.0, None
    threads = threads_for(sum(n_rows) * centers.size)
    for piece_labels, piece_cost, piece_sums in mapped(compare, _pieces(clients), threads):
        labels.append(piece_labels)
        cost += piece_cost
        sums = piece_sums if sums is None else sums + piece_sums
    of_clients = np.split(np.concatenate(labels), np.cumsum(n_rows)[:-1]) if labels else []
    return of_clients, cost, sums


def _metrics(
    model: Model,
    cost: float,
    sums: ClusterSums | None,
    data: Sequence[ClientData],
    labels: Sequence[NDArray[np.intp]],
) -> dict[str, float]:
    """Return the metrics of a result; ``sums`` are of the clusters of a model with centers among the rows.

    These are the cost and the share of the largest cluster. If the model has centers among the
    rows, there are measures of how well the clusters are separated, and if true classes are known,
    the agreement with them.
    """
    n_rows = sum(client.n_rows for client in data)
    # A cost that overflows, or that the model does not have, is left out.
    metrics = {"cost": cost, "cost_per_row": cost / n_rows} if math.isfinite(cost) else {}
    if metrics and isinstance(model, KMeansModel):  # other models measure cost in another space
        threads = threads_for(n_rows * model.n_columns)
        center = sum(mapped(partial(np.sum, axis=0), _pieces(data), threads)) / n_rows
        around = partial(kmeans_cost, centers=center[None, :])
        of_one = sum(mapped(around, _pieces(data), threads)) / n_rows
        if math.isfinite(of_one):
            metrics["cost_of_one_cluster"] = of_one
            if sums is not None:
                metrics |= sums.measures(model.cluster_centers_)
    sizes = cluster_sizes(labels, 1)
    metrics |= {"largest_cluster": float(sizes.max() / sizes.sum())} if sizes.any() else {}
    tables = [
        count_table(client.labels, clusters, model.n_clusters)
        for client, clusters in zip(data, labels, strict=True)
        if client.labels is not None and len(client.labels) == len(clusters)
    ]
    return metrics | agreement(add_tables(tables)) if tables else metrics

"""Fed-tSNE, Fed-UMAP and Fed-SpeClust: how good their maps are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import Table, load_dataset
from flower_fedclust.numerics.map_quality import map_quality
from flower_fedclust.numerics.threads import one_thread
from reproduce.measures import data, load, measure, run
from reproduce.tables import Experiment

#: Columns by our names of the measures.
NAMES = {
    **{f"ca_{k}": f"CA {k}-NN" for k in (1, 10, 50)},
    **{f"npa_{k}": f"NPA {k}-NN" for k in (1, 10, 50)},
    **{"nmi": "NMI", "silhouette": "SC", "trustworthiness": "trustworthiness"},
}


@data("shifted digits")
def shifted_digits() -> Table:
    """Return 45,000 rows: 5,000 digits of MNIST, and each of them moved by one pixel in eight directions."""
    table = load_dataset("mnist-5k")
    pictures = table.rows.reshape(-1, 28, 28)
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    rows = [np.roll(pictures, move, axis=(1, 2)).reshape(len(pictures), -1) for move in moves]
    return Table(np.concatenate(rows), np.tile(np.asarray(table.labels), len(moves)))


@data("MNIST, rows of norm 1")
def unit_digits() -> Table:
    """Return 5,000 digits whose L2 norm is 1, as the authors' notebook has them."""
    table = load_dataset("mnist-5k")
    return replace(table, rows=table.rows / np.linalg.norm(table.rows, axis=1, keepdims=True))


@data("fashion-mnist of 40,000")
def many_images() -> Table:
    """Return 40,000 images of Fashion-MNIST, drawn at random."""
    return load_dataset("fashion-mnist", n_rows=40_000)


@data("mixture of 40,000 rows")
def mixture() -> Table:
    """Return FedDP-KMeans' mixture without its public rows."""
    return replace(load_dataset("gaussian-mixture", n_rows=40_000), server_rows=None)


def pooled_map(method: str, rows: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the map of all rows that openTSNE ("tsne") or umap-learn ("umap") itself makes."""
    with one_thread():
        if method == "tsne":
            from openTSNE import TSNE

            return np.asarray(TSNE(n_jobs=1, random_state=seed).fit(rows))
        from umap import UMAP

        return np.asarray(UMAP(random_state=seed, n_jobs=1).fit_transform(rows))


def _scores(rows: NDArray[Any], places: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    with one_thread():
        found = map_quality(rows, places, labels, n_clusters=len(np.unique(labels)))
    return {column: found[name] for name, column in NAMES.items() if name in found}


@measure("map quality")
def federated(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the map of a federated run."""
    result, clients = run(experiment, seed)
    return _scores(
        np.concatenate(clients.clients),
        np.concatenate(result.embedding),
        np.concatenate(clients.labels),
    )


@measure("pooled map")
def pooled(experiment: Experiment, seed: int) -> dict[str, float]:
    """Measure the map of all rows that openTSNE or umap-learn itself makes."""
    table = load(experiment.data)
    places = pooled_map(experiment.parameters["method"], table.rows, seed)
    return _scores(table.rows, places, np.asarray(table.labels))

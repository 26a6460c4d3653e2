"""Measures of a map: whether near rows stay near, and whether classes and clusters stand out.

The measures are trustworthiness and all measures in section 6 and appendix A.2 of Qiao, Ma and Fan, "Federated t-SNE
and UMAP for Distributed Data Visualization", AAAI 2025.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.manifold import trustworthiness
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from flower_fedclust.numerics.checks import checked_rows

#: The numbers of neighbors for which Qiao, Ma and Fan (2025) measure maps.
PAPER_NEIGHBORS = (1, 10, 50)
#: Silhouette and trustworthiness use a sample of at most this many rows, because their time grows with its square.
SAMPLE_ROWS = 3000

_TRUSTWORTHINESS_NEIGHBORS = 10
_TRAIN_TENTHS = 7


def map_quality(
    rows: ArrayLike,
    embedding: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    n_clusters: int | None = None,
    random_state: int = 0,
) -> dict[str, float]:
    """Score a map by everything that the paper of Fed-tSNE and Fed-UMAP measures, and by its trustworthiness.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
        The rows that the map shows.
    embedding : array-like of shape (n_rows, n_dimensions)
        The places of the rows on the map.
    labels : array-like of shape (n_rows,), optional
        True classes, of any one type that NumPy can sort.
    n_clusters : int, optional
        How many clusters k-means (10 starts) looks for on the map; by default, the number of classes.
    random_state : int, default=0
        For the split of the rows, k-means and the sample.

    Returns
    -------
    dict of str to float
        ``npa_1``, ``npa_10``, ``npa_50`` (`neighbor_preservation`) and ``trustworthiness`` (10 neighbors);
        with labels also ``ca_1``, ``ca_10``, ``ca_50`` (`classification_accuracy`), ``nmi`` and ``ari`` (k-means'
        clusters against the classes); with labels or ``n_clusters`` also ``silhouette`` (k-means' clusters on the
        map). Silhouette and trustworthiness use ``SAMPLE_ROWS`` random rows if there are more. Scores that need more
        rows than there are (50 neighbors among 40 rows) are left out.

    Raises
    ------
    ValueError
        If the rows, the map and the labels differ in length, an entry is not a finite number, or a label is missing.
    """
    points, places = _checked_pair(rows, embedding)
    n_rows = len(places)
    scores: dict[str, float] = {}
    if labels is not None:
        classes = _checked_labels(labels, n_rows)
        n_clusters = int(classes.max()) + 1 if n_clusters is None else n_clusters
        for k in PAPER_NEIGHBORS:
            if k <= _TRAIN_TENTHS * n_rows // 10:
                scores[f"ca_{k}"] = classification_accuracy(
                    places, classes, k, random_state=random_state
                )
    if possible := [k for k in PAPER_NEIGHBORS if k < n_rows]:
        scores |= {
            f"npa_{k}": value
            for k, value in neighbor_preservation(points, places, possible).items()
        }

    sample = np.arange(n_rows)
    if n_rows > SAMPLE_ROWS:
        sample = np.random.default_rng(random_state).choice(n_rows, SAMPLE_ROWS, replace=False)
    if n_clusters is not None:
        clusters = KMeans(n_clusters, n_init=10, random_state=random_state).fit_predict(places)
        if labels is not None:
            scores["nmi"] = float(normalized_mutual_info_score(classes, clusters))
            scores["ari"] = float(adjusted_rand_score(classes, clusters))
        if 1 < len(np.unique(clusters[sample])) < len(sample):
            scores["silhouette"] = float(silhouette_score(places[sample], clusters[sample]))
    if len(sample) > 2 * _TRUSTWORTHINESS_NEIGHBORS:
        scores["trustworthiness"] = float(
            trustworthiness(points[sample], places[sample], n_neighbors=_TRUSTWORTHINESS_NEIGHBORS)
        )
    return scores


def classification_accuracy(
    embedding: ArrayLike, labels: ArrayLike, n_neighbors: int, *, random_state: int = 0
) -> float:
    """Return how often the nearest neighbors on the map predict the class of a row (CA).

    Parameters
    ----------
    embedding : array-like of shape (n_rows, n_dimensions)
    labels : array-like of shape (n_rows,)
        True classes, of any one type that NumPy can sort.
    n_neighbors : int
        The nearest rows of the training split, 70% of the rows, that vote on each of the others.
    random_state : int, default=0
        For the split.

    Returns
    -------
    float
        From 0 to 1.
    """
    places = checked_rows(embedding, owner="embedding")
    classes = _checked_labels(labels, len(places))
    n_train = _TRAIN_TENTHS * len(places) // 10
    if n_neighbors > n_train:
        raise ValueError(
            f"n_neighbors={n_neighbors} is too large: the training split has only {n_train} rows."
        )
    train, test = train_test_split(
        np.arange(len(places)), train_size=n_train, random_state=random_state
    )
    return float(
        KNeighborsClassifier(n_neighbors)
        .fit(places[train], classes[train])
        .score(places[test], classes[test])
    )


def neighbor_preservation(
    rows: ArrayLike, embedding: ArrayLike, n_neighbors: Sequence[int]
) -> dict[int, float]:
    """Return the share of each row's nearest other rows that are also its nearest on the map (NPA).

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
    embedding : array-like of shape (n_rows, n_dimensions)
    n_neighbors : sequence of int
        Numbers of neighbors k, each below n_rows.

    Returns
    -------
    dict of int to float
        For each k the mean over rows of ``|nearest k in rows ∩ nearest k on the map| / k``, from 0 to 1. Chance gives
        k / (n_rows - 1).
    """
    near, near_on_map = (
        # The mean is subtracted because far from the origin, distances from a matrix product would lose their digits.
        NearestNeighbors(n_neighbors=max(n_neighbors))
        .fit(array - array.mean(axis=0))
        .kneighbors()[1]
        for array in _checked_pair(rows, embedding)
    )
    shares = {}
    for k in n_neighbors:
        both = np.sort(np.hstack([near[:, :k], near_on_map[:, :k]]), axis=1)
        shares[int(k)] = float(np.count_nonzero(both[:, 1:] == both[:, :-1]) / near[:, :k].size)
    return shares


def _checked_pair(
    rows: ArrayLike, embedding: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, places = checked_rows(rows, owner="rows"), checked_rows(embedding, owner="embedding")
    if len(points) != len(places):
        raise ValueError(
            f"embedding has {len(places)} places for {len(points)} rows; give one for each row."
        )
    return points, places


def _checked_labels(labels: ArrayLike, n_rows: int) -> NDArray[np.intp]:
    """Return the classes as numbers from 0."""
    array = np.asarray(labels)
    if array.shape != (n_rows,):
        raise ValueError(
            f"labels have shape {array.shape}; give one for each of the {n_rows} rows of the map."
        )
    # NaN, of whatever type, does not equal itself.
    missing = [row for row, label in enumerate(array.tolist()) if label is None or label != label]
    if missing:
        raise ValueError(f"labels: row {missing[0]} has none; fill it in or drop the row.")
    return np.unique(array, return_inverse=True)[1].reshape(-1)

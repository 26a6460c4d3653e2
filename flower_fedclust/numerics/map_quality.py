"""How well a map of rows keeps who is near whom, and how well classes and clusters stand out in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.manifold import trustworthiness
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import check_integer, checked_rows

#: The numbers of neighbors of the paper.
PAPER_NEIGHBORS = (1, 10, 50)
#: Where there are more rows, silhouette and trustworthiness, whose time grows with their square, are of a sample.
SAMPLE_ROWS = 3000

_TRUSTWORTHINESS_NEIGHBORS = 10
_TEST_SHARE = 0.3
# Neighbors searched beyond those asked for, so that ties at the edge are seen.
_SPARE_NEIGHBORS = 8
_NOT_A_NEIGHBOR = np.iinfo(np.int64).max
_ROW_BITS = 32


def map_quality(
    rows: ArrayLike,
    embedding: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    n_clusters: int | None = None,
    random_state: int = 0,
) -> dict[str, float]:
    """Score a map by all that the paper of Fed-tSNE and Fed-UMAP measures, and by its trustworthiness.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
        The rows that the map shows.
    embedding : array-like of shape (n_rows, n_dimensions)
        Their places in the map.
    labels : array-like of shape (n_rows,), optional
        True classes, of any one type that NumPy can sort.
    n_clusters : int, optional
        How many clusters k-means (10 starts) looks for in the map; by default as many as there are classes.
    random_state : int, default=0
        For the split of the rows, k-means and the sample.

    Returns
    -------
    dict of str to float
        ``npa_1``, ``npa_10``, ``npa_50`` (`neighbor_preservation`) and ``trustworthiness`` (10 neighbors);
        with labels also ``ca_1``, ``ca_10``, ``ca_50`` (`classification_accuracy`), ``nmi`` and ``ari`` (k-means'
        clusters against the classes); with labels or ``n_clusters`` also ``silhouette`` (k-means' clusters in the
        map). Silhouette and trustworthiness are those of ``SAMPLE_ROWS`` random rows where there are more; all else
        is of all rows. A score that so few rows do not have (50 neighbors among 40 rows, the silhouette of
        one cluster) is left out.

    Raises
    ------
    ValueError
        If the rows, the map and the labels differ in length or are no numbers, a label is missing, or ``n_clusters``
        is more than there are rows.

    Notes
    -----
    Time grows with n_rows² n_columns, for the neighbors of the rows; no array of n_rows x n_rows is made.

    References
    ----------
    "Federated t-SNE and UMAP for Distributed Data Visualization", section 6 and appendix A.2.
    """
    points, places = _checked_pair(rows, embedding)
    classes = None if labels is None else _checked_labels(labels, len(places))
    if n_clusters is None and classes is not None:
        n_clusters = int(classes.max()) + 1
    if n_clusters is not None and check_integer("n_clusters", n_clusters, at_least=1) > len(places):
        raise ValueError(f"n_clusters is {n_clusters}, but the map has {len(places)} rows; give no more than that.")

    scores: dict[str, float] = {}
    if classes is not None:
        n_train = len(classes) - _n_test(len(classes))
        for k in PAPER_NEIGHBORS:
            if k <= n_train:
                scores[f"ca_{k}"] = classification_accuracy(places, classes, k, random_state=random_state)
    possible = [k for k in PAPER_NEIGHBORS if k < len(places)]
    if possible:
        scores |= {f"npa_{k}": value for k, value in neighbor_preservation(points, places, possible).items()}

    sample = np.arange(len(places))
    if len(sample) > SAMPLE_ROWS:
        sample = np.random.default_rng(random_state).choice(len(places), SAMPLE_ROWS, replace=False)
    if n_clusters is not None:
        clusters = KMeans(n_clusters, n_init=10, random_state=random_state).fit_predict(places)
        if classes is not None:
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
    """Return how often the nearest neighbors in the map tell the class of a row (CA).

    The rows are split at random, 7 : 3; the ``n_neighbors`` nearest of the seven parts vote on each row of the three.

    Parameters
    ----------
    embedding : array-like of shape (n_rows, n_dimensions)
    labels : array-like of shape (n_rows,)
        True classes, of any one type that NumPy can sort.
    n_neighbors : int
    random_state : int, default=0
        For the split.

    Returns
    -------
    float
        The share of the three parts whose class is told, from 0 to 1.

    Raises
    ------
    ValueError
        If the lengths differ, an entry is not a finite number, a label is missing, or seven tenths of the rows are
        fewer than ``n_neighbors``.

    References
    ----------
    "Federated t-SNE and UMAP for Distributed Data Visualization", appendix A.2.
    """
    places = checked_rows(embedding, owner="embedding")
    classes = _checked_labels(labels, len(places))
    n_train = len(places) - _n_test(len(places))
    if check_integer("n_neighbors", n_neighbors, at_least=1) > n_train:
        raise ValueError(
            f"n_neighbors is {n_neighbors}, but seven tenths of the {len(places)} rows are {n_train}; "
            "give no more than that."
        )
    train, test = train_test_split(np.arange(len(places)), train_size=n_train, random_state=random_state)
    classifier = KNeighborsClassifier(n_neighbors).fit(places[train], classes[train])
    return float(np.mean(classifier.predict(places[test]) == classes[test]))


def neighbor_preservation(rows: ArrayLike, embedding: ArrayLike, n_neighbors: Sequence[int]) -> dict[int, float]:
    """Return the share of each row's nearest other rows that are its nearest in the map too (NPA).

    A row is not a neighbor of its own, but a copy of it is. Of rows that are equally far (to single precision) the one
    with the lower number is the nearer, in both spaces: so a perfect map has 1 whatever ties there are, and a map
    that puts all rows in one place has what chance gives.

    Parameters
    ----------
    rows : array-like of shape (n_rows, n_columns)
    embedding : array-like of shape (n_rows, n_dimensions)
    n_neighbors : sequence of int
        Numbers of neighbors k, each below n_rows. One search serves them all.

    Returns
    -------
    dict of int to float
        For each k the mean over the rows of ``|nearest k in rows ∩ nearest k in the map| / k``, from 0 to 1. Chance
        gives k / (n_rows - 1).

    Raises
    ------
    ValueError
        If the lengths differ, an entry is not a finite number, or some k is not from 1 to n_rows - 1.

    References
    ----------
    "Federated t-SNE and UMAP for Distributed Data Visualization", appendix A.2.
    """
    points, places = _checked_pair(rows, embedding)
    if not n_neighbors:
        raise ValueError("n_neighbors is empty; give at least one number of neighbors.")
    for k in n_neighbors:
        if check_integer("n_neighbors", k, at_least=1) >= len(points):
            raise ValueError(f"n_neighbors is {k}, but a row has {len(points) - 1} others; give no more than that.")
    near, near_in_map = (nearest_rows(array, max(n_neighbors)) for array in (points, places))
    shares = {}
    for k in n_neighbors:
        both = np.sort(np.hstack([near[:, :k], near_in_map[:, :k]]), axis=1)
        shares[int(k)] = float(np.count_nonzero(both[:, 1:] == both[:, :-1]) / near[:, :k].size)
    return shares


def nearest_rows(rows: NDArray[np.float64], n_neighbors: int) -> NDArray[np.int64]:
    """Return the numbers of each row's nearest other rows, the nearest first.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_columns)
    n_neighbors : int
        From 1 to n_rows - 1.

    Returns
    -------
    ndarray of shape (n_rows, n_neighbors)
        Of rows that are equally far, to single precision, the one with the lower number comes first.
    """
    n_rows, n_columns = rows.shape
    # Single precision must hold every distance, and products that are large beside their differences would lose digits.
    points = rows - rows.mean(axis=0)
    points /= np.abs(points).max() or 1.0
    n_candidates = min(n_neighbors + 1 + _SPARE_NEIGHBORS, n_rows)
    candidates = NearestNeighbors(n_neighbors=n_candidates).fit(points).kneighbors(points, return_distance=False)

    nearest = np.empty((n_rows, n_neighbors), dtype=np.int64)
    is_cut = np.zeros(n_rows, dtype=bool)
    for part in blocks(n_rows, n_candidates * n_columns):
        # The search multiplies matrices, which gives copies of a row distances that differ a little.
        differences = points[candidates[part]] - points[part, None]
        keys = _keys(np.sqrt(np.einsum("ijk,ijk->ij", differences, differences)), candidates[part])
        keys[candidates[part] == np.arange(n_rows)[part, None]] = _NOT_A_NEIGHBOR
        keys.sort(axis=1)
        nearest[part] = _row_numbers(keys[:, :n_neighbors])
        farthest = np.where(keys[:, -1] == _NOT_A_NEIGHBOR, keys[:, -2], keys[:, -1])
        is_cut[part] = keys[:, n_neighbors - 1] >> _ROW_BITS == farthest >> _ROW_BITS
    if n_candidates < n_rows and is_cut.any():
        nearest[is_cut] = _nearest_among_ties(points, np.flatnonzero(is_cut), n_neighbors)
    return nearest


def _nearest_among_ties(points: NDArray[np.float64], of: NDArray[np.intp], n_neighbors: int) -> NDArray[np.int64]:
    """Return the nearest of rows that have more ties than were searched; copies of a row are searched once."""
    distinct, which = np.unique(points[of], axis=0, return_inverse=True)
    everyone = np.arange(len(points))
    nearest = np.empty((len(distinct), n_neighbors + 1), dtype=np.int64)
    for part in blocks(len(distinct), len(points)):
        keys = _keys(cdist(distinct[part], points), everyone)
        nearest[part] = _row_numbers(np.sort(np.partition(keys, n_neighbors, axis=1)[:, : n_neighbors + 1], axis=1))
    nearest = nearest[which.reshape(-1)]
    # A row leaves its own list; where it is not in the list, the last one does.
    leaves = nearest == of[:, None]
    leaves[~leaves.any(axis=1), -1] = True
    others: NDArray[np.int64] = nearest[~leaves].reshape(len(of), n_neighbors)
    return others


def _keys(distances: NDArray[np.float64], numbers: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return integers that sort by the distance, in single precision, and then by the number of the row."""
    # The bits of a float that is not negative, read as an integer, are in the order of the floats.
    bits: NDArray[np.int64] = distances.astype(np.float32).view(np.int32).astype(np.int64)
    return (bits << _ROW_BITS) | numbers


def _row_numbers(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys & ((1 << _ROW_BITS) - 1)


def _n_test(n_rows: int) -> int:
    return int(np.ceil(_TEST_SHARE * n_rows))


def _checked_pair(rows: ArrayLike, embedding: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, places = checked_rows(rows, owner="rows"), checked_rows(embedding, owner="embedding")
    if len(points) != len(places):
        raise ValueError(f"There are {len(points)} rows and {len(places)} places in the map; give one for each row.")
    return points, places


def _checked_labels(labels: ArrayLike, n_rows: int) -> NDArray[np.intp]:
    """Return the classes as numbers from 0."""
    array = np.asarray(labels)
    if array.shape != (n_rows,):
        raise ValueError(f"labels have shape {array.shape}; give one for each of the {n_rows} rows of the map.")
    if array.dtype.kind in "fO":
        # NaN, of whatever type, does not equal itself.
        missing = [row for row, label in enumerate(array.tolist()) if label is None or label != label]
        if missing:
            raise ValueError(f"The label of row {missing[0]} is missing; fill it in or drop the row.")
    try:
        classes: NDArray[np.intp] = np.unique(array, return_inverse=True)[1].reshape(-1)
    except TypeError:
        raise ValueError("labels are of several types that cannot be sorted; give them all one type.") from None
    return classes

"""What a server that keeps to the protocol could still find out about the rows.

To judge a noise level: run the protocol on rows that may be known, run the attacks on what left the clients, and
compare. An attack that fails proves nothing, since a better one may succeed; only differential privacy bounds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]


def rows_from_codes(dictionary: Floats, codes: Floats, *, bandwidth: float, regularization: float) -> Floats:
    """Recover the rows of the clients from the dictionary and the codes that they upload.

    A code without noise solves ``(K_zz + λ I) c = k(Z, x)``, so that a product gives back the kernel values of its row;
    their logarithms are the squared distances ``‖x - z_j‖² = -2 r² ln k(z_j, x)`` to the atoms, and the difference of
    two of these is linear in x. One least squares problem answers for all rows.

    Parameters
    ----------
    dictionary : ndarray of shape (n_atoms, n_columns)
        Z. More atoms than columns, as a point in n_columns dimensions is found from n_columns + 1 distances.
    codes : ndarray of shape (n_rows, n_atoms)
        C, from this dictionary.
    bandwidth : float
        r of the Gaussian kernel, in the unit of the columns.
    regularization : float
        λ.

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
        Always finite, whatever noise the codes carry; exact up to rounding if the codes carry none. Where the atoms
        do not span a direction, it has their mean.

    Raises
    ------
    ValueError
        If there are too few atoms, the shapes do not fit, or bandwidth or regularization is out of range.

    Notes
    -----
    Source: FedSC, equation (14) read backwards. Appendix D.4 says that an attacker will find it very difficult to
    recover X from Z and C, because the optimisation is nonlinear; the last step of it, which gives C, is linear in the
    kernel values.
    """
    from sklearn.metrics.pairwise import rbf_kernel

    n_atoms = _checked_number(dictionary, "atoms")
    if codes.ndim != 2 or codes.shape[1] != n_atoms:
        raise ValueError(f"codes has shape {codes.shape}; the dictionary asks for (n_rows, {n_atoms}).")
    if not 0 < bandwidth < np.inf:
        raise ValueError(f"bandwidth is {bandwidth}; it must be positive and finite.")
    if not 0 <= regularization < np.inf:
        raise ValueError(f"regularization is {regularization}; it must be finite and not negative.")

    # Distances do not change when everything is moved, and near the origin fewer digits of them are lost.
    gram = rbf_kernel(dictionary - dictionary.mean(axis=0), gamma=1.0 / (2.0 * bandwidth**2))
    gram[np.diag_indices_from(gram)] += regularization
    return rows_from_kernel(dictionary, codes @ gram, gamma=1.0 / (2.0 * bandwidth**2))


def rows_from_kernel(landmarks: Floats, kernel: Floats, *, gamma: float) -> Floats:
    """Recover rows from their Gaussian kernel values with known points: what Fed-SpeClust uploads.

    Parameters
    ----------
    landmarks : ndarray of shape (n_landmarks, n_columns)
        More of them than columns.
    kernel : ndarray of shape (n_rows, n_landmarks)
        ``exp(-gamma ||x - y||^2)``.
    gamma : float
        In one over the squared units of the columns.

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
        Always finite; exact up to rounding if the values carry no noise.

    Raises
    ------
    ValueError
        If there are too few landmarks, or the shapes do not fit.
    """
    n_landmarks = _checked_number(landmarks, "landmarks")
    if kernel.ndim != 2 or kernel.shape[1] != n_landmarks:
        raise ValueError(f"kernel has shape {kernel.shape}; the landmarks ask for (n_rows, {n_landmarks}).")
    if not 0 < gamma < np.inf:
        raise ValueError(f"gamma is {gamma}; it must be positive and finite.")
    # Noise leads out of (0, 1]. A value below the rounding error of a product says no more than "far away".
    return _located(landmarks, -np.log(np.clip(kernel, np.finfo(np.float64).eps, 1.0)) / gamma)


def rows_from_distances(landmarks: Floats, distances: Floats) -> Floats:
    """Recover rows from their distances to known points: what Fed-tSNE and Fed-UMAP upload (Algorithm 2, step 2).

    Parameters
    ----------
    landmarks : ndarray of shape (n_landmarks, n_columns)
        Y; more of them than columns.
    distances : ndarray of shape (n_rows, n_landmarks)
        In the units of the columns, not squared.

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
        Exact up to rounding if the distances carry no noise.

    Raises
    ------
    ValueError
        If there are too few landmarks, or the shapes do not fit.
    """
    n_landmarks = _checked_number(landmarks, "landmarks")
    if distances.ndim != 2 or distances.shape[1] != n_landmarks:
        raise ValueError(f"distances has shape {distances.shape}; the landmarks ask for (n_rows, {n_landmarks}).")
    return _located(landmarks, distances**2)


def _checked_number(points: Floats, what: str) -> int:
    n_points, n_columns = int(points.shape[0]), int(points.shape[1])
    if n_points < n_columns + 1:
        raise ValueError(
            f"There are {n_points} {what} for {n_columns} columns; rows can be recovered from {n_columns + 1} {what} "
            "or more."
        )
    return n_points


def _located(points: Floats, squared_distances: Floats) -> Floats:
    """Return the rows that are best at these distances from the points, by linear least squares."""
    center = points.mean(axis=0)
    moved = points - center
    # ||z_j||^2 - ||x - z_j||^2 = 2 z_j x - ||x||^2. The last is the same for all points, and their mean is 0: least
    # squares leaves it in the residual.
    squared_norms = np.einsum("ij,ij->i", moved, moved)
    offsets: Floats = np.linalg.lstsq(2.0 * moved, (squared_norms - squared_distances).T, rcond=None)[0].T
    offsets += center
    return offsets


def clusters_from_codes(codes: Floats, n_clusters: int, *, random_state: int = 0) -> Labels:
    """Cluster the rows of the clients by k-means on their codes, without any spectral step.

    Parameters
    ----------
    codes : ndarray of shape (n_rows, n_atoms)
        C, as the clients upload it.
    n_clusters : int
        At most n_rows.
    random_state : int, default=0
        Seed of k-means.

    Returns
    -------
    ndarray of shape (n_rows,), intp

    Raises
    ------
    ValueError
        If n_clusters is not between 1 and n_rows.

    Notes
    -----
    Source: FedSC, appendix D.4, "Malicious attack on C" and table 6.
    """
    from sklearn.cluster import KMeans

    if not 1 <= n_clusters <= len(codes):
        raise ValueError(f"n_clusters is {n_clusters}; {len(codes)} rows allow 1 to {len(codes)}.")
    found = KMeans(n_clusters, n_init=10, random_state=random_state).fit(codes)
    return np.asarray(found.labels_, dtype=np.intp)


def clusters_from_graph(
    neighbors: NDArray[np.intp], weights: Floats, n_clusters: int, *, random_state: int = 0
) -> Labels:
    """Cluster the rows of a client by the graph of their nearest neighbors that it sends.

    Parameters
    ----------
    neighbors : ndarray of shape (n_rows, n_neighbors)
        The indices of the nearest rows of each row.
    weights : ndarray of shape (n_rows, n_neighbors)
        Not negative.
    n_clusters : int
    random_state : int, default=0
        Seed of the eigenvectors and of k-means.

    Returns
    -------
    ndarray of shape (n_rows,), intp
    """
    from scipy.sparse import csr_array
    from sklearn.cluster import SpectralClustering

    n_rows, n_neighbors = neighbors.shape
    start = np.arange(0, n_rows * n_neighbors + 1, n_neighbors, dtype=np.int32)
    graph = csr_array((weights.ravel(), neighbors.ravel().astype(np.int32), start), shape=(n_rows, n_rows))
    found = SpectralClustering(n_clusters, affinity="precomputed", random_state=random_state)
    return np.asarray(found.fit_predict(0.5 * (graph + graph.T)), dtype=np.intp)


def relative_errors(recovered: Floats, rows: Floats) -> Floats:
    """Return how far each recovered row is from the true one, in proportion to how far that is from the mean row.

    ``‖x̂ - x‖ / ‖x - x̄‖``, where x̄ is the mean of the true rows. An attacker who knows nothing but the mean row, and
    answers with it, has an error of 1 everywhere; what is well below 1 has been recovered. Neither the unit of the
    columns nor the place of their origin changes the errors.

    Parameters
    ----------
    recovered : ndarray of shape (n_rows, n_columns)
    rows : ndarray of shape (n_rows, n_columns)
        The true rows, in the same order.

    Returns
    -------
    ndarray of shape (n_rows,)
        For a row that is the mean row: 0 if it was recovered exactly, infinite otherwise.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if recovered.shape != rows.shape:
        raise ValueError(f"recovered has shape {recovered.shape} and rows {rows.shape}; they must be the same.")
    errors = np.linalg.norm(recovered - rows, axis=1)
    sizes = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    worst = np.where(errors > 0, np.inf, 0.0)
    relative: Floats = np.divide(errors, sizes, out=worst, where=sizes > 0)
    return relative


def row_from_sums(
    sums: Floats, counts: NDArray[np.intp], sums_before: Floats, counts_before: NDArray[np.intp]
) -> Floats:
    """Compute the rows that came to a client between two runs from its exact sums: one row, if one came.

    Two runs without noise on tables that differ in one row give that row away, whoever else took part in both.

    Parameters
    ----------
    sums : ndarray of shape (n_clusters, n_columns)
        Of the rows in each cluster, for the same centers as those before.
    counts : ndarray of shape (n_clusters,)
    sums_before : ndarray of shape (n_clusters, n_columns)
    counts_before : ndarray of shape (n_clusters,)

    Returns
    -------
    ndarray of shape (n_changed, n_columns)
        For each cluster whose count has changed, the mean of the rows that came or went.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    if sums.shape != sums_before.shape or counts.shape != counts_before.shape or len(sums) != len(counts):
        raise ValueError("the sums and counts of two runs must be of the same clusters and columns.")
    change = np.asarray(counts, dtype=np.int64) - np.asarray(counts_before, dtype=np.int64)
    changed = np.flatnonzero(change)
    rows: Floats = (sums - sums_before)[changed] / change[changed, None]
    return rows


def membership_from_centers(centers: Floats, rows: Floats) -> Floats:
    """Score how likely rows are among those of a client that has sent centers of its clusters: higher is likelier.

    A center is drawn to the rows that it is a mean of, and is a row where its cluster has but one.

    Parameters
    ----------
    centers : ndarray of shape (n_centers, n_columns)
    rows : ndarray of shape (n_rows, n_columns)
        Of which it is asked whether they are the client's.

    Returns
    -------
    ndarray of shape (n_rows,)
        Minus the squared distance to the nearest center; 0 is a row that was sent as it is.
    """
    squared = np.sum((rows[:, None, :] - centers[None, :, :]) ** 2, axis=2)
    scores: Floats = -squared.min(axis=1)
    return scores


def advantage(scores_of_members: Floats, scores_of_others: Floats) -> float:
    """Return how often an attack ranks a member above another row, from 0.5 (a coin) to 1 (always)."""
    above = scores_of_members[:, None] > scores_of_others[None, :]
    equal = scores_of_members[:, None] == scores_of_others[None, :]
    return float(np.mean(above + 0.5 * equal))


def row_by_replay(observed: Sequence[Floats], answers: Sequence[Sequence[Floats]]) -> Floats:
    """Score rows by how near the message that a client would have sent with each is to the one that it has sent.

    This works on every message that has no noise, by whoever knows the client's other rows, or has its message of a run
    before: the message is computed for each row that may have come.

    Parameters
    ----------
    observed : sequence of ndarray
        What the client has sent.
    answers : sequence of sequence of ndarray
        For each row that is asked about: what the client would have sent if it had that row.

    Returns
    -------
    ndarray of shape (n_answers,)
        Minus the distance between the two, 0 where they are the same; minus infinity where even the shapes differ.
    """

    def distance(answer: Sequence[Floats]) -> float:
        if [np.shape(one) for one in answer] != [np.shape(one) for one in observed]:
            return np.inf
        pairs = zip(observed, answer, strict=True)
        return float(np.sqrt(sum(np.sum((np.asarray(one) - np.asarray(other)) ** 2.0) for one, other in pairs)))

    return np.array([-distance(answer) for answer in answers])


def sums_by_evaluations(cost: Callable[[Floats], float], n_rows: int, n_columns: int, *, reach: float) -> Floats:
    """Compute the sum of a client's rows from the costs that it reports of models which the server makes up.

    A model of one center c costs ``sum ||x||^2 - 2 c'S + n ||c||^2``, so that one model for each column, and one at 0,
    give S. Two centers far apart give the sums of the rows that are nearer to one of them.

    Parameters
    ----------
    cost : callable
        Of centers, of shape (n_centers, n_columns): the sum of the squared distances, as the federated evaluation says.
    n_rows : int
        As it says, too.
    n_columns : int
    reach : float
        How far from 0 the centers are; best as far as the rows.

    Returns
    -------
    ndarray of shape (n_columns,)
        The sum of the rows: of two evaluations between which a row came, the difference is that row.
    """
    at_zero = cost(np.zeros((1, n_columns)))
    costs = np.array([cost(reach * axis[None]) for axis in np.eye(n_columns)])
    sums: Floats = (at_zero + n_rows * reach**2 - costs) / (2.0 * reach)
    return sums


def images_from_prototypes(means: Floats, shape: tuple[int, int]) -> Floats:
    """Return the prototypes of images as images, from 0 (the darkest entry) to 1: what their server can look at.

    Parameters
    ----------
    means : ndarray of shape (n_prototypes, n_columns)
        As clients send them.
    shape : (int, int)
        Of an image; n_columns entries.

    Returns
    -------
    ndarray of shape (n_prototypes, height, width)
    """
    least, most = float(means.min()), float(means.max())
    images: Floats = ((means - least) / max(most - least, np.finfo(np.float64).tiny)).reshape(len(means), *shape)
    return images


#: By kind of message, and by a word in what it holds: the function that attacks it, and what that gives.
_GALLERY: tuple[tuple[str, str, str, str], ...] = (
    ("codes", "kernel values", "rows_from_kernel", "compute every row"),
    ("codes", "distances", "rows_from_distances", "compute every row"),
    ("codes", "code of", "rows_from_codes", "compute every row"),
    ("codes", "synthetic rows", "membership_from_centers", "tell who is among the rows"),
    ("codes", "that was drawn", "row_by_replay", "tell which of some rows it is"),
    ("codes", "nearest rows of every row", "clusters_from_graph", "cluster the rows without asking"),
    ("codes", "prototype of", "row_by_replay", "tell which of some rows it is"),
    ("codes", "", "clusters_from_codes", "cluster the rows without asking"),
    ("centers", "means of the client's prototypes", "images_from_prototypes", "look at them, where rows are images"),
    ("centers", "of the client's codes", "row_by_replay", "tell which of some rows a client has"),
    ("centers", "means of", "membership_from_centers", "tell who is among the rows"),
    ("centers", "medians of the", "membership_from_centers", "tell who is among the rows"),
    ("centers", "centers of", "membership_from_centers", "tell who is among the rows"),
    ("sums", "sum of the rows in each cluster", "row_from_sums", "compute a row that came between two runs"),
    ("sums", "sum of the rows, less", "row_from_sums", "compute a row that came between two runs"),
    ("sums", "k-means cost of the rows", "sums_by_evaluations", "compute the sum of the rows, and so a row that came"),
    ("", "", "row_by_replay", "tell which of some rows a client has, if its others are known"),
)


def attack_by_name(content: str, reveals: str) -> str:
    """Return the name of the function here that attacks an unprotected message; "" where the message is the rows.

    Parameters
    ----------
    content : str
        What the message holds, as the privacy report says.
    reveals : "sums", "centers", "codes" or "rows"
    """
    return "" if reveals == "rows" else _found(content, reveals)[0]


def attack_on(content: str, reveals: str) -> str:
    """Return what whoever sees an unprotected message can do with it, and which function here does it.

    Parameters
    ----------
    content : str
        What the message holds, as the privacy report says.
    reveals : "sums", "centers", "codes" or "rows"
    """
    if reveals == "rows":
        return "there is nothing to attack: these are the rows"
    function, gives = _found(content, reveals)
    return f"{gives}: {function}"


def _found(content: str, reveals: str) -> tuple[str, str]:
    if content == "sum of the rows":
        content = "sum of the rows in each cluster"  # of one
    return next((function, gives) for kind, word, function, gives in _GALLERY if kind in reveals and word in content)

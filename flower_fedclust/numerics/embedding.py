"""t-SNE and UMAP maps of rows whose nearest neighbors are known, and the places of new rows on such a map.

Only the indices and distances of neighbors are needed, not the rows. The place of a new row depends only on its
neighbors among the mapped rows, their distances and the map's coordinates. It is the same in every process, whatever
other rows are placed at the same time.

``neighbors``, (n_rows, n_neighbors), are the nearest other rows of each row, and ``distances`` their distances, sorted.
There must be at least as many as :func:`tsne_n_neighbors` or :func:`umap_n_neighbors` return. ``coordinates``, (n_rows,
2), are a map.

openTSNE and umap-learn are an optional extra and imported on use; a DataError says what to install.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError

if TYPE_CHECKING:
    from scipy.sparse import coo_matrix, csr_matrix

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

#: t-SNE gives nearly all weight to this many neighbors, times the perplexity.
NEIGHBORS_PER_PERPLEXITY = 3

#: The fewest rows that a map can have, by t-SNE or UMAP.
N_ROWS_OF_A_MAP = 4

#: From this many rows on, openTSNE itself interpolates the repulsion between points on a grid, with cells of one unit.
_N_ROWS_FOR_GRID = 10_000

#: From this many rows up to _N_ROWS_FOR_GRID, a grid is used too, with cells three units wide. A map of 5,000 rows then
#: takes 4.2 s instead of 14.0 s with a tree of points, and its trustworthiness is the same (0.947 and 0.945; 0.983 and
#: 0.983 for the digits).
_N_ROWS_FOR_WIDE_GRID = 1_500
_WIDE_GRID = {"negative_gradient_method": "fft", "ints_in_interval": 3, "min_num_intervals": 30}

#: The largest range of the starting points of t-SNE; openTSNE scales their first axis to a standard deviation of 1e-4.
_LONGEST_START = 1.0


def check_installed(method: str) -> None:
    """Raise a DataError if the package for a map is missing, before anything is computed for the map."""
    _opentsne() if method == "tsne" else _umap()


def tsne_n_neighbors(n_rows: int, perplexity: float) -> int:
    """Return how many neighbors of each row :func:`tsne_map` needs: three times the perplexity, or all others."""
    return max(1, min(n_rows - 1, int(NEIGHBORS_PER_PERPLEXITY * perplexity)))


def umap_n_neighbors(n_rows: int, n_neighbors: int) -> int:
    """Return how many neighbors of each row :func:`umap_map` needs: n_neighbors - 1, or all others.

    umap-learn counts the row itself as the first.
    """
    return min(n_rows - 1, n_neighbors - 1)


def tsne_map(
    neighbors: Integers,
    distances: Floats,
    *,
    perplexity: float = 30.0,
    n_iter: int = 500,
    random_state: int = 0,
) -> Floats:
    """Return a t-SNE map of rows whose nearest neighbors are known (openTSNE), of shape (n_rows, 2)."""
    opentsne = _opentsne()
    n_rows = len(neighbors)
    n_needed = tsne_n_neighbors(n_rows, perplexity)
    _check(neighbors, n_needed, n_rows)
    neighbors, distances = neighbors[:, :n_needed], _over_mean(distances[:, :n_needed])
    index = opentsne.nearest_neighbors.PrecomputedNeighbors(neighbors, distances)
    affinities = opentsne.affinity.PerplexityBasedNN(
        knn_index=index, perplexity=min(perplexity, n_needed / NEIGHBORS_PER_PERPLEXITY), n_jobs=1
    )
    start = _spectral_start(opentsne, affinities.P, random_state)
    repulsion: dict[str, Any] = (
        _WIDE_GRID if _N_ROWS_FOR_WIDE_GRID <= n_rows < _N_ROWS_FOR_GRID else {}
    )
    tsne = opentsne.TSNE(
        initialization=start, n_iter=n_iter, n_jobs=1, random_state=random_state, **repulsion
    )
    return np.array(tsne.fit(affinities=affinities), dtype=np.float64)


def place_tsne(
    neighbors: Integers,
    distances: Floats,
    coordinates: Floats,
    *,
    perplexity: float = 5.0,
    n_iter: int = 250,
) -> Floats:
    """Return where other rows lie on a t-SNE map, of shape (n_new_rows, 2).

    As in openTSNE (Policar, Strazar and Zupan 2021), a row starts at the median of its neighbors' coordinates. Gradient
    descent with a fixed map then moves it to where the map matches its similarities to its neighbors best.
    """
    opentsne = _opentsne()
    n_rows = len(coordinates)
    n_needed = tsne_n_neighbors(n_rows + 1, perplexity)
    _check(neighbors, n_needed)
    neighbors, distances = neighbors[:, :n_needed], _over_mean(distances[:, :n_needed], by_row=True)
    P = opentsne.affinity.joint_probabilities_nn(
        neighbors,
        distances,
        [min(perplexity, n_needed / NEIGHBORS_PER_PERPLEXITY)],
        symmetrize=False,
        normalization="point-wise",
        n_reference_samples=n_rows,
    )
    # openTSNE would center the map in place, so it gets a copy that is already centered.
    middle = 0.5 * (coordinates.max(axis=0) + coordinates.min(axis=0))
    # By default openTSNE chooses the method by the number of new rows, but a row's place must not depend on other rows.
    method = "bh" if n_rows < _N_ROWS_FOR_GRID else "fft"
    as_many = SimpleNamespace(P=np.empty((n_rows, 0)))  # openTSNE only reads its number of rows
    fixed = opentsne.tsne.TSNEEmbedding(
        coordinates - middle, as_many, negative_gradient_method=method
    )
    placed = opentsne.tsne.PartialTSNEEmbedding(
        np.median(fixed.view(np.ndarray)[neighbors], axis=1),
        fixed,
        P,
        negative_gradient_method=method,
        n_jobs=1,
    )
    placed.optimize(
        n_iter,
        inplace=True,
        learning_rate=0.1,
        exaggeration=1.5,
        momentum=0.8,
        max_grad_norm=0.25,
        max_step_norm=None,
    )
    shifted: Floats = np.array(placed, dtype=np.float64) + middle
    return shifted


def umap_map(
    neighbors: Integers,
    distances: Floats,
    *,
    n_neighbors: int = 15,
    min_dist: float = 0.1,
    n_epochs: int | None = None,
    random_state: int = 0,
) -> Floats:
    """Return a UMAP map of rows whose nearest neighbors are known (umap-learn), of shape (n_rows, 2).

    umap-learn's class accepts ``precomputed_knn`` only together with rows. The two functions that it calls, for the
    graph and for the map, need no rows.
    """
    umap_ = _umap()
    n_rows = len(neighbors)
    n_needed = umap_n_neighbors(n_rows, n_neighbors)
    _check(neighbors, n_needed, n_rows)
    random = np.random.RandomState(random_state)
    itself = np.arange(n_rows)[:, None]
    graph, _, _ = umap_.fuzzy_simplicial_set(
        np.empty((n_rows, 1)),  # umap-learn only uses their number
        n_needed + 1,
        random,
        "euclidean",
        knn_indices=np.hstack([itself, neighbors[:, :n_needed]]),
        knn_dists=np.hstack([np.zeros((n_rows, 1)), _over_mean(distances[:, :n_needed])]),
    )
    a, b = umap_.find_ab_params(1.0, min_dist)
    coordinates, _ = umap_.simplicial_set_embedding(
        _places_of_components(graph, random),
        graph,
        2,
        initial_alpha=1.0,
        a=a,
        b=b,
        gamma=1.0,
        negative_sample_rate=5,
        n_epochs=n_epochs,
        init="spectral"
        if n_rows > N_ROWS_OF_A_MAP
        else random.uniform(-10.0, 10.0, size=(n_rows, 2)),
        random_state=random,
        metric="euclidean",
        metric_kwds={},
        densmap=False,
        densmap_kwds={},
        output_dens=False,
        parallel=False,
        tqdm_kwds={"disable": True},
    )
    return np.array(coordinates, dtype=np.float64)


def place_umap(
    neighbors: Integers,
    distances: Floats,
    coordinates: Floats,
    *,
    n_neighbors: int = 5,
    min_dist: float = 0.1,
    n_epochs: int = 100,
) -> Floats:
    """Return where other rows lie on a UMAP map, of shape (n_new_rows, 2).

    As in umap-learn's ``transform``, which needs the rows of the map, a row starts at the mean of its neighbors'
    coordinates, weighted by membership strengths. The map's stochastic gradient descent then moves it, with a fixed
    map. Unlike umap-learn, strengths are relative to the row's own largest, not to the largest of all new rows, so that
    its place does not depend on other rows.
    """
    umap_ = _umap()
    n_needed = min(n_neighbors, len(coordinates))
    _check(neighbors, n_needed)
    neighbors = neighbors[:, :n_needed]
    # umap-learn bounds a row's bandwidth from below by the mean distance over all rows; here each row has the same mean
    # distance.
    relative = _over_mean(distances[:, :n_needed], by_row=True).astype(np.float32)
    bandwidths, _ = umap_.smooth_knn_dist(relative, float(n_needed), local_connectivity=0.0)
    # Without local connectivity, no nearest distance is subtracted. umap-learn multiplies it by 0 instead. If all
    # distances are 0, it reads beyond the end of an empty array, so the product may be NaN.
    nearest = np.zeros(len(relative), dtype=np.float32)
    _, _, strengths, _ = umap_.compute_membership_strengths(
        neighbors.astype(np.int32), relative, bandwidths, nearest, bipartite=True
    )
    strengths = strengths.reshape(neighbors.shape).astype(np.float64)
    strengths /= strengths.max(axis=1, keepdims=True)
    weights = strengths / strengths.sum(axis=1, keepdims=True)
    placed: Floats = np.einsum("ij,ijk->ik", weights, coordinates[neighbors])
    if n_epochs == 0:
        return placed
    # Edges that would be drawn less than once are left out, as umap-learn does.
    row, column = np.nonzero(strengths >= 1.0 / n_epochs)
    random = np.random.RandomState(0)  # a constant seed, so that a row always gets the same place
    a, b = umap_.find_ab_params(1.0, min_dist)
    moved = umap_.optimize_layout_euclidean(
        placed.astype(np.float32, order="C"),
        coordinates.astype(np.float32, order="C"),
        row.astype(np.int32),
        neighbors[row, column].astype(np.int32),
        n_epochs,
        len(coordinates),
        1.0 / strengths[row, column],
        a,
        b,
        random.randint(np.iinfo(np.int32).min + 1, np.iinfo(np.int32).max - 1, 3).astype(np.int64),
        gamma=1.0,
        initial_alpha=0.25,
        negative_sample_rate=5,
        parallel=False,
        tqdm_kwds={"disable": True},
        move_other=False,
    )
    return np.array(moved, dtype=np.float64)


def _opentsne() -> Any:
    """Import openTSNE with the modules used here."""
    for module in ("affinity", "initialization", "nearest_neighbors", "tsne"):
        _imported(f"openTSNE.{module}", "A t-SNE map needs openTSNE")
    return import_module("openTSNE")


def _umap() -> Any:
    """Import umap-learn's functions."""
    umap_ = _imported("umap.umap_", "A UMAP map needs umap-learn")
    _keep_compiled()
    return umap_


@lru_cache(maxsize=1)
def _keep_compiled() -> None:
    """Make Numba cache three functions of umap-learn on disk: compiling them takes five seconds in each process."""
    for module, name in (
        ("umap.umap_", "smooth_knn_dist"),
        ("umap.umap_", "compute_membership_strengths"),
        ("umap.layouts", "_nb_optimize_layout_euclidean_single_epoch"),
    ):
        function: Any = getattr(import_module(module), name, None)
        # Another version may lack the function, and NUMBA_DISABLE_JIT leaves it uncompiled; maps are then only slower.
        if hasattr(function, "enable_caching"):
            function.enable_caching()


def _imported(module: str, need: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise DataError(f'{need}; install it with: pip install "flower-fedclust[maps]".') from None


def _check(neighbors: Integers, n_needed: int, n_rows: int = N_ROWS_OF_A_MAP) -> None:
    if n_rows < N_ROWS_OF_A_MAP:
        raise DataError(f"{n_rows} rows are too few for a map; give at least {N_ROWS_OF_A_MAP}.")
    if neighbors.shape[1] < n_needed:
        raise ValueError(
            f"neighbors: there are {neighbors.shape[1]} for each row; give at least {n_needed}."
        )


def _over_mean(distances: Floats, *, by_row: bool = False) -> Floats:
    """Return distances in units of their mean, so that no map depends on the unit of the rows.

    In theory neither t-SNE nor UMAP depends on the unit. But openTSNE starts its search for bandwidths at 1, and
    umap-learn stores distances in single precision, so in extreme units all rows would look near, or all far.
    """
    # Divide by the largest first: a sum of huge distances would overflow.
    largest = distances.max(axis=1 if by_row else None, keepdims=True, initial=0.0)
    relative: Floats = np.divide(
        distances, largest, out=np.zeros_like(distances), where=largest > 0
    )
    means = relative.mean(axis=1 if by_row else None, keepdims=True)
    np.divide(relative, means, out=relative, where=means > 0)
    return relative


def _spectral_start(opentsne: Any, P: csr_matrix, random_state: int) -> Floats:
    """Return the graph's spectral embedding as the start of t-SNE, or random places if it cannot be used."""
    from scipy.sparse.linalg import ArpackError

    initializations = opentsne.initialization
    n_rows = P.shape[0]
    if n_rows > N_ROWS_OF_A_MAP:  # Lanczos' method cannot give all eigenvectors of a matrix
        try:
            with np.errstate(all="ignore"):
                start = np.asarray(initializations.spectral(P, 2, random_state=random_state))
        except ArpackError:
            start = np.full((n_rows, 2), np.nan)
        # openTSNE scales the embedding by its first axis. If many rows are alike, this axis can be constant and the
        # second so long that points coincide after rounding, and openTSNE's tree of points would never be finished.
        if np.isfinite(start).all() and np.ptp(start) <= _LONGEST_START:
            return start
    return np.asarray(initializations.random(n_rows, 2, random_state=random_state))


def _places_of_components(graph: coo_matrix, random: np.random.RandomState) -> Floats:
    """Return for each row the random place of its component of the graph.

    umap-learn places components by the means of their rows. Without rows, it would draw places from the process's
    global random generator, which our seed does not set.
    """
    from scipy.sparse.csgraph import connected_components

    n_parts, part = connected_components(graph, directed=False)
    of_rows: Floats = random.uniform(0.0, 1.0, size=(n_parts, 2))[part]
    return of_rows

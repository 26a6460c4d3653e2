import os
import subprocess
import sys
from functools import cache
from importlib import import_module

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import KNeighborsClassifier

from flower_fedclust.numerics import embedding
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.dictionary import matched_dictionary
from flower_fedclust.numerics.embedding import (
    place_tsne,
    place_umap,
    tsne_map,
    tsne_n_neighbors,
    umap_map,
)
from flower_fedclust.numerics.landmarks import landmark_gamma, local_steps
from flower_fedclust.numerics.nystrom import (
    distances_between,
    landmark_distances,
    nearest_landmarks,
    nearest_others,
    nystrom_neighbors,
    nystrom_neighbors_of_new,
)
from flower_fedclust.numerics.threads import one_thread

openTSNE = pytest.importorskip("openTSNE")
pytest.importorskip("umap")

N_MAPPED = 1200
PERPLEXITY = 20.0


@pytest.fixture(autouse=True)
def on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one."""
    with one_thread():
        yield


@cache
def digits():
    """Mapped and held-out digits, and their labels."""
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, labels = rows[order] / 16, labels[order]
    return rows[:N_MAPPED], rows[N_MAPPED:], labels[:N_MAPPED], labels[N_MAPPED:]


@cache
def neighbors_of_digits(kind):
    """Exact ones, or those by 150 landmarks of 15 rounds of 3 steps over 5 clients; of mapped and held-out digits."""
    rows, new, _, _ = digits()
    n_neighbors = tsne_n_neighbors(len(rows), PERPLEXITY)
    if kind == "exact":
        return *nearest_others(rows, n_neighbors), *nearest_landmarks(new, rows, n_neighbors)
    gamma = landmark_gamma(rows.var(axis=0))
    Y = matched_dictionary(rows.mean(axis=0), rows.std(axis=0), 150, np.random.default_rng(0))
    for _ in range(15):
        clients = np.array_split(rows, 5)
        moves = [local_steps(client, Y, gamma, 3, own=0.0).moves for client in clients]
        Y = Y + np.mean(moves, axis=0)
    B, B_new, W = landmark_distances(rows, Y), landmark_distances(new, Y), distances_between(Y)
    return *nystrom_neighbors(B, W, n_neighbors, squared=False), *nystrom_neighbors_of_new(
        B_new, B, W, n_neighbors, squared=False
    )


@cache
def tsne_of_digits(kind):
    neighbors, distances, _, _ = neighbors_of_digits(kind)
    return tsne_map(neighbors, distances, perplexity=PERPLEXITY, n_iter=300)


@cache
def umap_of_digits():
    neighbors, distances, _, _ = neighbors_of_digits("exact")
    return umap_map(neighbors, distances, n_epochs=200)


@cache
def landmarks_of_digits():
    """The centers of Lloyd's algorithm, which need only sums over clients."""
    return KMeans(300, n_init=1, max_iter=20, random_state=0).fit(digits()[0]).cluster_centers_


def accuracy(coordinates, labels):
    """Of the 10 nearest neighbors on the map: two thirds of the rows predict the others."""
    third = np.random.default_rng(0).permutation(len(labels)) % 3 == 0
    classifier = KNeighborsClassifier(10).fit(coordinates[~third], labels[~third])
    return classifier.score(coordinates[third], labels[third])


def nmi(coordinates, labels):
    found = KMeans(10, n_init=5, random_state=0).fit_predict(coordinates)
    return normalized_mutual_info_score(labels, found)


def blobs(seed=0, n_rows=60, n_columns=5, n_blobs=3):
    rng = np.random.default_rng(seed)
    labels = np.arange(n_rows) % n_blobs
    return 20 * np.eye(n_blobs, n_columns)[labels] + rng.normal(size=(n_rows, n_columns)), labels


# How good maps are


@pytest.mark.long
def test_a_tsne_map_of_exact_neighbors_is_as_good_as_opentsnes_map_of_the_rows():
    rows, _, labels, _ = digits()
    theirs = openTSNE.TSNE(
        perplexity=PERPLEXITY, n_iter=300, neighbors="exact", random_state=0
    ).fit(rows)
    ours = tsne_of_digits("exact")
    assert ours.shape == (len(rows), 2)
    assert accuracy(ours, labels) > 0.965
    assert abs(accuracy(ours, labels) - accuracy(np.array(theirs), labels)) < 0.015
    assert abs(nmi(ours, labels) - nmi(np.array(theirs), labels)) < 0.06


@pytest.mark.long
def test_a_tsne_map_of_nystrom_neighbors_is_nearly_as_good():
    _, _, labels, _ = digits()
    assert (
        accuracy(tsne_of_digits("nystrom"), labels)
        > accuracy(tsne_of_digits("exact"), labels) - 0.02
    )
    assert nmi(tsne_of_digits("nystrom"), labels) > nmi(tsne_of_digits("exact"), labels) - 0.06


# The unit of the rows


@cache
def neighbors_of_blobs():
    rows, _ = blobs(n_rows=90)
    return *nearest_others(rows[:60], 30), *nearest_landmarks(rows[60:], rows[:60], 30)


def map_and_places(method, unit, unit_of_one_row=1.0):
    """A map of blobs and the places of others, with all distances in another unit; those of one new row in its own."""
    neighbors, distances, new_neighbors, new_distances = neighbors_of_blobs()
    new_distances = new_distances * unit
    new_distances[3] *= unit_of_one_row
    if method == "tsne":
        coordinates = tsne_map(neighbors, distances * unit, perplexity=10.0, n_iter=50)
        return coordinates, place_tsne(new_neighbors, new_distances, coordinates, n_iter=50)
    coordinates = umap_map(neighbors, distances * unit, n_epochs=50)
    return coordinates, place_umap(new_neighbors, new_distances, coordinates, n_epochs=50)


@pytest.mark.parametrize("method", ["tsne", "umap"])
@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**-66, 2.0**66, 2.0**1000])
def test_a_unit_that_is_a_power_of_two_changes_no_bit(method, unit):
    for one, other in zip(map_and_places(method, 1.0), map_and_places(method, unit), strict=True):
        assert np.array_equal(one, other)


# A unit that is no power of two rounds, and maps are chaotic: another last digit is another map, and another CPU has
# other last digits. What must agree are the distances that a map is made of; and every map has to show the blobs.


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("unit", [1e-300, 1e-20, 1e20, 1e300])
def test_any_unit_gives_the_same_distances_over_their_mean(unit, by_row):
    _, distances, _, _ = neighbors_of_blobs()
    expected = distances / distances.mean(axis=1 if by_row else None, keepdims=True)
    np.testing.assert_allclose(
        embedding._over_mean(distances * unit, by_row=by_row), expected, rtol=1e-13
    )


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_distances_of_0_have_a_map(method):
    neighbors, distances, new_neighbors, _ = neighbors_of_blobs()
    make, place = (tsne_map, place_tsne) if method == "tsne" else (umap_map, place_umap)
    coordinates = make(
        neighbors, np.zeros_like(distances), **{"perplexity": 10.0} if method == "tsne" else {}
    )
    assert np.isfinite(coordinates).all()
    assert np.isfinite(place(new_neighbors, np.zeros_like(distances[:30]), coordinates)).all()


def test_a_row_that_equals_its_neighbors_has_a_place_whatever_umap_reads_beyond_their_distances(
    monkeypatch,
):
    neighbors, distances, new_neighbors, _ = neighbors_of_blobs()
    coordinates = umap_map(neighbors, distances)
    zeros = np.zeros_like(distances[:30])
    expected = place_umap(new_neighbors, zeros, coordinates)
    umap_ = import_module("umap.umap_")
    bandwidths = umap_.smooth_knn_dist

    def with_nan(relative, *arguments, **options):
        found, _ = bandwidths(relative, *arguments, **options)
        return found, np.full(len(relative), np.nan, dtype=np.float32)

    monkeypatch.setattr(umap_, "smooth_knn_dist", with_nan)
    assert np.array_equal(place_umap(new_neighbors, zeros, coordinates), expected)


# Rows that are placed on a map


@pytest.mark.long
@pytest.mark.parametrize("kind", ["exact", "nystrom"])
def test_new_rows_on_a_tsne_map_are_classified_as_well(kind):
    _, _, labels, new_labels = digits()
    coordinates = tsne_of_digits(kind)
    _, _, neighbors, distances = neighbors_of_digits(kind)
    placed = place_tsne(neighbors, distances, coordinates)
    assert KNeighborsClassifier(10).fit(coordinates, labels).score(placed, new_labels) >= 0.95


def test_all_rows_find_their_place_on_a_tsne_map_of_300_centers():
    rows, _, labels, _ = digits()
    Y = landmarks_of_digits()
    coordinates = tsne_map(*nearest_others(Y, 30), perplexity=10)
    placed = place_tsne(*nearest_landmarks(rows, Y, 15), coordinates, perplexity=3)
    assert accuracy(placed, labels) >= 0.95
    assert nmi(placed, labels) >= 0.84
    # Gradient descent is worth its time: the median of a row's neighbors is not where it belongs.
    start = place_tsne(*nearest_landmarks(rows, Y, 15), coordinates, perplexity=3, n_iter=0)
    assert accuracy(placed, labels) > accuracy(start, labels) + 0.005


def test_all_rows_find_their_place_on_a_umap_map_of_300_centers():
    rows, _, labels, _ = digits()
    Y = landmarks_of_digits()
    coordinates = umap_map(*nearest_others(Y, 14), n_neighbors=10)
    placed = place_umap(*nearest_landmarks(rows, Y, 15), coordinates)
    assert accuracy(placed, labels) >= 0.95
    assert nmi(placed, labels) >= 0.84


@pytest.mark.parametrize("place", [place_tsne, place_umap])
def test_a_place_depends_on_nothing_but_the_row_and_the_map(place):
    _, _, neighbors, distances = neighbors_of_digits("exact")
    coordinates = umap_of_digits()
    before = coordinates.copy()
    whole = place(neighbors[:100], distances[:100], coordinates)
    np.testing.assert_array_equal(coordinates, before)
    np.testing.assert_array_equal(place(neighbors[:100], distances[:100], coordinates), whole)
    for some in (slice(0, 1), slice(40, 47), slice(None, None, -3)):
        np.testing.assert_array_equal(
            place(neighbors[:100][some], distances[:100][some], coordinates), whole[some]
        )
    # Rows of quite other distances beside it do not move it either.
    mixed = np.vstack([distances[:100], 1e6 * distances[:100]])
    np.testing.assert_array_equal(
        place(np.vstack([neighbors[:100]] * 2), mixed, coordinates)[:100], whole
    )


@pytest.mark.long
def test_another_process_places_rows_at_the_same_points(tmp_path):
    rows, labels = blobs()
    neighbors, distances = nearest_others(rows, 59)
    new_neighbors, new_distances = nearest_landmarks(rows + 0.1, rows, 20)
    arrays, expected = {"neighbors": new_neighbors, "distances": new_distances}, {}
    for name, make, place in (("tsne", tsne_map, place_tsne), ("umap", umap_map, place_umap)):
        arrays[name] = make(neighbors, distances)
        expected[name] = place(new_neighbors, new_distances, arrays[name])
    np.savez(tmp_path / "arrays.npz", **arrays)
    program = (
        "import functools, numba, sys, numpy as np\n"
        "numba.njit = functools.partial(numba.njit, cache=True)\n"
        "from flower_fedclust.numerics.embedding import place_tsne, place_umap\n"
        "a = np.load(sys.argv[1])\n"
        "t = place_tsne(a['neighbors'], a['distances'], a['tsne'])\n"
        "u = place_umap(a['neighbors'], a['distances'], a['umap'])\n"
        "np.savez(sys.argv[2], tsne=t, umap=u)\n"
    )
    command = [
        sys.executable,
        "-c",
        program,
        str(tmp_path / "arrays.npz"),
        str(tmp_path / "placed.npz"),
    ]
    # Of umap-learn's functions some use as many threads as there are: here one, there two.
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    subprocess.run(command, check=True, env=environment)
    found = np.load(tmp_path / "placed.npz")
    for name, placed in expected.items():
        np.testing.assert_array_equal(found[name], placed)
        classifier = KNeighborsClassifier(3).fit(arrays[name], labels)
        assert classifier.score(placed, labels) > 0.95


def test_on_a_large_map_tsne_places_rows_by_the_grid_in_the_maps_own_coordinates():
    rng = np.random.default_rng(0)
    coordinates = rng.uniform(-1, 1, (10_500, 2)) * 50 + np.array([200.0, -100.0])
    new = rng.uniform(-1, 1, (40, 2)) * 45 + np.array([200.0, -100.0])
    placed = place_tsne(*nearest_landmarks(new, coordinates, 15), coordinates, n_iter=50)
    assert np.median(np.linalg.norm(placed - new, axis=1)) < 2.0


# Seeds and starts


@pytest.mark.parametrize("make", [tsne_map, umap_map])
def test_the_same_seed_gives_the_same_map_and_another_seed_another(make):
    rows, labels = blobs()
    neighbors, distances = nearest_others(rows, 59)
    one, same, other = (make(neighbors, distances, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert KNeighborsClassifier(5).fit(one, labels).score(one, labels) == 1.0


def test_a_graph_that_falls_apart_into_many_parts_has_one_map_for_a_seed():
    rows, labels = blobs(n_rows=60, n_columns=6, n_blobs=6)
    neighbors, distances = nearest_others(rows, 5)
    one, same = (umap_map(neighbors, distances, n_neighbors=5) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert np.isfinite(one).all()
    assert KNeighborsClassifier(3).fit(one, labels).score(one, labels) == 1.0


# Few rows, many neighbors


@pytest.mark.filterwarnings("ignore:Spectral initialisation failed")
@pytest.mark.parametrize("n_rows", [4, 5, 6, 9])
@pytest.mark.parametrize("kind", ["different", "equal", "in pairs"])
def test_a_few_rows_have_maps(n_rows, kind):
    rows = np.random.default_rng(0).normal(size=(n_rows, 3))
    rows = {
        "different": rows,
        "equal": np.ones((n_rows, 3)),
        "in pairs": rows[np.arange(n_rows) // 2],
    }[kind]
    neighbors, distances = nearest_others(rows, n_rows - 1)
    for make in (tsne_map, umap_map):
        found = make(neighbors, distances)
        assert found.shape == (n_rows, 2)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("make", [tsne_map, umap_map])
def test_fewer_rows_have_none(make):
    with pytest.raises(DataError, match="3 rows are too few"):
        make(*nearest_others(np.eye(3), 2))


@pytest.mark.parametrize(
    ("function", "n_needed"), [(tsne_map, 59), (umap_map, 14), (place_tsne, 15), (place_umap, 5)]
)
def test_too_few_neighbors_are_an_error(function, n_needed):
    rows, _ = blobs()
    map_ = () if function in (tsne_map, umap_map) else (rows[:, :2],)
    with pytest.raises(ValueError, match=f"neighbors.* at least {n_needed}"):
        function(*nearest_others(rows, 2), *map_)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("openTSNE.tsne", tsne_map),
        ("openTSNE.tsne", place_tsne),
        ("umap.umap_", umap_map),
        ("umap.umap_", place_umap),
    ],
)
def test_an_error_says_how_to_install_a_missing_package(monkeypatch, module, function):
    monkeypatch.setitem(sys.modules, module, None)
    map_ = () if function in (tsne_map, umap_map) else (np.zeros((60, 2)),)
    with pytest.raises(DataError, match=r'pip install "flower-fedclust\[maps\]"'):
        function(*nearest_others(blobs()[0], 59), *map_)


def test_a_map_needs_no_function_of_umap_that_can_be_kept_on_the_disk(monkeypatch):
    umap_ = pytest.importorskip("umap.umap_")
    layouts = pytest.importorskip("umap.layouts")
    monkeypatch.setattr(umap_, "smooth_knn_dist", lambda: None)  # as with NUMBA_DISABLE_JIT
    monkeypatch.delattr(layouts, "_nb_optimize_layout_euclidean_single_epoch")
    embedding._keep_compiled.cache_clear()
    embedding._keep_compiled()
    embedding._keep_compiled.cache_clear()

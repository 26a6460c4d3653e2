import numpy as np
import pytest

from flower_fedclust.models import MapModel
from flower_fedclust.numerics.embedding import place_tsne, place_umap
from flower_fedclust.numerics.nystrom import (
    distances_between,
    landmark_distances,
    nystrom_neighbors_of_new,
)

RNG = np.random.default_rng(4)
LANDMARKS = RNG.normal(size=(20, 3)) * 2
PLACES = RNG.normal(size=(20, 2)) * 10
CENTERS = np.array([[-8.0, 0.0], [6.0, 6.0], [5.0, -9.0]])
ROWS = RNG.normal(size=(12, 3)) * 2
MAPPED = RNG.normal(size=(30, 3)) * 2
PLACES_OF_MAPPED = RNG.normal(size=(30, 2)) * 10
DISTANCES = np.linalg.norm(MAPPED[:, None] - LANDMARKS[None], axis=2)
ORIGIN = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
DIRECTIONS = np.linalg.qr(RNG.normal(size=(5, 3)))[0]


def made(kind="landmarks", method="tsne", n_neighbors=3.0):
    options = {"n_neighbors": n_neighbors, "min_dist": 0.2}
    if kind == "rows":
        return MapModel(
            method, LANDMARKS, PLACES_OF_MAPPED, CENTERS, distances=DISTANCES, **options
        )
    if kind == "reduced":
        return MapModel(
            method, LANDMARKS, PLACES, CENTERS, origin=ORIGIN, directions=DIRECTIONS, **options
        )
    return MapModel(method, LANDMARKS, PLACES, CENTERS, **options)


def rows_of(kind):
    return RNG.normal(size=(12, 5)) * 2 if kind == "reduced" else ROWS


def nearest(rows, n_neighbors):
    distances = np.linalg.norm(rows[:, None] - LANDMARKS[None], axis=2)
    order = np.argsort(distances, axis=1)[:, :n_neighbors]
    return order, np.take_along_axis(distances, order, axis=1)


KINDS = ("landmarks", "rows", "reduced")


def test_row_is_placed_by_its_nearest_landmarks():
    expected = place_tsne(*nearest(ROWS, 9), PLACES, perplexity=3.0)
    np.testing.assert_allclose(made().transform(ROWS), expected, atol=1e-9)


def test_row_is_placed_by_umap_where_the_map_is_of_umap():
    expected = place_umap(*nearest(ROWS, 3), PLACES, n_neighbors=3, min_dist=0.2)
    np.testing.assert_allclose(made(method="umap").transform(ROWS), expected, atol=1e-4)
    # The distance that UMAP keeps is its own parameter.
    other = MapModel("umap", LANDMARKS, PLACES, CENTERS, n_neighbors=3.0, min_dist=0.9).transform(
        ROWS
    )
    assert not np.allclose(other, expected, atol=1e-3)


def test_row_is_placed_by_the_nystrom_distances_from_the_rows_of_the_map_where_these_are_known():
    B = landmark_distances(ROWS, LANDMARKS)
    found = nystrom_neighbors_of_new(B, DISTANCES, distances_between(LANDMARKS), 9, squared=True)
    expected = place_tsne(*found, PLACES_OF_MAPPED, perplexity=3.0)
    placed = made("rows").transform(ROWS)
    np.testing.assert_allclose(placed, expected, atol=1e-9)
    assert not np.allclose(placed, made().transform(ROWS), atol=1.0)


def test_row_is_moved_and_projected_where_the_map_is_of_reduced_rows():
    wide = rows_of("reduced")
    projected = np.array([(row - ORIGIN) @ DIRECTIONS for row in wide])
    np.testing.assert_allclose(
        made("reduced").transform(wide), made().transform(projected), atol=1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
def test_cluster_is_that_of_the_nearest_center_on_the_map(kind):
    rows, model = rows_of(kind), made(kind)
    places = model.transform(rows)
    assert places.shape == (12, 2)
    expected = [
        int(np.argmin([((place - center) ** 2).sum() for center in CENTERS])) for place in places
    ]
    predicted = model.predict(rows)
    assert predicted.dtype == np.intp
    assert predicted.tolist() == expected
    cost = model.cost(rows)
    assert type(cost) is float
    assert cost == pytest.approx(
        sum(
            ((place - CENTERS[label]) ** 2).sum()
            for place, label in zip(places, expected, strict=True)
        )
    )


def test_the_cost_of_a_map_is_that_of_known_places_where_they_are_given():
    places = CENTERS[[0, 1, 1]] + [[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]
    clustered = made().cluster(ROWS[:3], places)
    assert clustered.cost == pytest.approx(3.0**2 + 4.0**2)
    np.testing.assert_array_equal(clustered.labels, [0, 1, 1])


@pytest.mark.parametrize("method", ["tsne", "umap"])
@pytest.mark.parametrize("kind", KINDS)
def test_place_of_a_row_does_not_depend_on_the_other_rows(kind, method):
    rows, model = rows_of(kind)[:5], made(kind, method)
    together = model.transform(rows)
    np.testing.assert_allclose(
        np.vstack([model.transform(row[None]) for row in rows]), together, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("method", ["tsne", "umap"])
@pytest.mark.parametrize("n_neighbors", [2.0, 1000.0])
def test_more_neighbors_than_points_are_all_points(n_neighbors, method):
    model = MapModel(method, LANDMARKS[:4], PLACES[:4], CENTERS, n_neighbors=n_neighbors)
    places = model.transform(ROWS)
    assert places.shape == (12, 2)
    assert np.isfinite(places).all()


@pytest.mark.parametrize("method", ["tsne", "umap"])
@pytest.mark.parametrize("kind", KINDS)
def test_row_that_is_a_point_of_the_map_and_rows_that_are_far_from_all_have_finite_places(
    kind, method
):
    rows = np.vstack(
        [
            LANDMARKS[:1],
            MAPPED[:1],
            *(np.full((1, 3), far) for far in (1e6, 1e200, np.finfo(float).max)),
        ]
    )
    rows = np.hstack([rows, rows[:, :2]]) if kind == "reduced" else rows
    assert np.isfinite(made(kind, method).transform(rows)).all()


def test_row_that_is_a_landmark_lies_near_it_on_the_map():
    # A landmark of a well separated group of four, all of which have nearly one place.
    group = np.repeat(np.eye(3) * 100, 4, axis=0) + RNG.normal(size=(12, 3))
    places = np.repeat(CENTERS, 4, axis=0) + RNG.normal(size=(12, 2)) * 0.1
    model = MapModel("tsne", group, places, CENTERS, n_neighbors=1.0)
    assert model.predict(group).tolist() == np.repeat([0, 1, 2], 4).tolist()

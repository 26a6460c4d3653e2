"""Cells from noisy sums: what clients answer, how the server reads it, and what Lloyd steps make of it."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from flower_fedclust import ClientData, DataError
from flower_fedclust.numerics.kmeans import cluster_sums, nearest_center
from flower_fedclust.privacy.releases import Release
from flower_fedclust.steps.cells import (
    FULL_COLUMNS,
    N_DISTANCES,
    CellNoise,
    Cells,
    CellsClient,
    ask_votes,
    distance_edges,
    find_cells,
    moment_of,
    n_cells_for,
    products_of,
    radius_of,
    refine,
    smallest_count,
    sums_and_counts_releases,
    two_nearest,
)
from flower_fedclust.steps.frame import Frame

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0]])
CLASSES = RNG.integers(3, size=90)
ROWS = MEANS[CLASSES] + RNG.normal(size=(90, 3))
NOISE = CellNoise(origin=0.5, radius=0.6, directions=0.7, centers=0.8, last=0.9, max_l1_norm=30.0)


def client_of(rows):
    return CellsClient(ClientData(rows), name="0")


def reply_to(round_, rows):
    method = CellsClient._methods(round_.task)[0]
    reply = getattr(client_of(rows), method)(*round_.arrays, **round_.arguments)
    return list(reply) if isinstance(reply, tuple) else [reply]


def driven(generator, rows=ROWS, change=lambda number, reply: reply):
    """Answer the rounds of a step with the rows' own sums, which may be changed: the rounds and what comes out."""
    rounds, reply = [], None
    while True:
        try:
            round_ = generator.send(reply)
        except StopIteration as stop:
            return rounds, stop.value
        rounds.append(round_)
        reply = change(len(rounds), reply_to(round_, rows))


def cells_of(rows=ROWS, n_clusters=3, n_cells=None, noise=None, *, steps=3, epsilon=None, seed=0, change=None):
    generator = find_cells(
        n_clusters,
        n_cells,
        rows.shape[1],
        noise or CellNoise(),
        np.random.default_rng(seed),
        epsilon=epsilon,
        n_lloyd_rounds=steps,
    )
    return driven(generator, rows, change or (lambda number, reply: reply))


# What a client answers


@pytest.mark.parametrize("bound", [2.0, 7.5, 100.0])
def test_distances_are_counted_by_rings_whose_ends_are_powers_of_the_root_of_2(bound):
    origin = np.array([0.31, -0.2, 0.17])
    found = client_of(ROWS).distance_counts(origin, max_l1_norm=bound)
    slow = np.zeros(N_DISTANCES)
    edges = [2 * bound * 2 ** (-i / 2) for i in reversed(range(N_DISTANCES))]
    for row in ROWS:
        row = row * min(1.0, bound / np.abs(row).sum())
        slow[next(i for i, edge in enumerate(edges) if np.abs(row - origin).sum() <= edge)] += 1
    np.testing.assert_allclose(distance_edges(bound), edges)
    assert np.array_equal(found, slow)
    assert found.sum() == len(ROWS)


def test_row_at_the_origin_is_in_the_first_ring_and_one_beyond_the_diameter_in_the_last():
    near, far = np.zeros((1, 2)), np.array([[1e9, 0.0]])
    assert client_of(near).distance_counts(np.zeros(2), max_l1_norm=1.0)[0] == 1
    assert client_of(far).distance_counts(np.array([-1.0, 0.0]), max_l1_norm=1.0)[-1] == 1
    assert client_of(far).distance_counts(np.array([-9.0, 0.0]), max_l1_norm=1.0)[-1] == 1


@pytest.mark.parametrize("n_columns", [1, 2, FULL_COLUMNS, FULL_COLUMNS + 1])
def test_entry_products_are_those_of_the_clipped_rows_in_the_frame_and_of_wide_rows_its_diagonal(n_columns):
    rows = np.random.default_rng(1).normal(size=(20, n_columns)) * 3
    origin = np.linspace(-1, 1, n_columns)
    radius = float(np.median(np.abs(rows - origin).sum(axis=1)))
    found = client_of(rows).entry_products(origin, radius=radius, norm=1)
    moment = np.zeros((n_columns, n_columns))
    for row in rows - origin:
        row = row * min(1.0, radius / np.abs(row).sum())
        moment += np.outer(row, row)
    expected = np.diag(moment) if n_columns > FULL_COLUMNS else moment[np.triu_indices(n_columns)]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_upper_triangle_says_all_of_a_symmetric_matrix():
    for size in (1, 2, 5):
        moment = RNG.normal(size=(size, size))
        moment += moment.T
        assert products_of(moment).shape == (size * (size + 1) // 2,)
        assert np.array_equal(moment_of(products_of(moment)), moment)


def test_each_row_votes_for_its_two_nearest_centers():
    centers = RNG.normal(size=(6, 3)) * 4
    origin = np.array([1.0, 2.0, 3.0])
    found = client_of(ROWS).votes(centers, origin, radius=math.inf, norm=1)
    slow = {}
    for row in ROWS - origin:
        first, second = sorted(np.argsort(((centers - row) ** 2).sum(axis=1))[:2])
        slow[first, second] = slow.get((first, second), 0) + 1
    pairs = zip(*np.triu_indices(6, 1), strict=True)
    assert found.tolist() == [slow.get(pair, 0) for pair in pairs]
    assert found.sum() == len(ROWS)


def test_two_nearest_are_two_even_where_centers_are_equal():
    nearest, second = two_nearest(np.zeros((4, 2)), np.ones((3, 2)))
    assert (nearest != second).all()


# How the server reads it


def test_radius_is_the_end_of_the_ring_within_which_nine_rows_of_ten_are():
    edges = distance_edges(8.0)
    counts = np.zeros(N_DISTANCES)
    counts[[3, 7, 12]] = [50, 41, 9]
    assert radius_of(counts, 8.0, 0.0) == edges[7]
    counts[[3, 7, 12]] = [50, 39, 11]
    assert radius_of(counts, 8.0, 0.0) == edges[12]


def test_what_noise_may_have_put_into_a_ring_is_taken_for_none():
    counts = np.zeros(N_DISTANCES)
    counts[[3, 12]] = [100, 19.9]
    assert radius_of(counts, 8.0, 10.0) == distance_edges(8.0)[3]
    assert radius_of(counts, 8.0, 9.9) == distance_edges(8.0)[12]
    assert radius_of(-counts, 8.0, 1.0) == 16.0
    assert radius_of(counts, 8.0, 1000.0) == 16.0


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "n_columns", "epsilon", "expected"),
    [
        (300, 2, 2, None, 16),
        (1000, 2, 2, None, 40),
        (1e5, 2, 2, None, 200),
        (160, 2, 2, None, 10),
        (119, 3, 2, None, 3),
        (128, 3, 2, None, 8),
        (160, 2, 2, 1000.0, 10),
        (1000, 2, 2, 10.0, 16),
        (1000, 2, 2, 1.0, 5),
        (1000, 3, 2, 1.0, 3),
        (150, 3, 4, 10.0, 3),
        (1e6, 3, 30, 0.01, 3),
    ],
)
def test_there_are_several_cells_a_cluster_where_noise_leaves_something_in_each_and_one_elsewhere(
    n_rows, n_clusters, n_columns, epsilon, expected
):
    assert n_cells_for(n_rows, n_clusters, n_columns, epsilon) == expected


@pytest.mark.parametrize("multiplier", [0.2, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3, 0.05])
def test_sums_and_counts_compose_to_no_more_than_one_laplace_release(multiplier, delta):
    def epsilon(releases):
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
        for release in releases:
            accountant.compose(dp_accounting.LaplaceDpEvent(release.noise_multiplier))
        return accountant.get_epsilon(delta)

    sums, counts = sums_and_counts_releases(multiplier, 5.0)
    together, one = epsilon([sums, counts]), epsilon([Release("laplace", 1.0, multiplier, "")])
    assert together <= one + 3e-4  # privacy loss is stored in steps of 1e-4, and rounded up
    if delta == 1e-12:
        assert together == pytest.approx(1 / multiplier, abs=3e-4)
    assert (sums.sensitivity, counts.sensitivity) == (5.0, 1.0)
    assert 1 / sums.noise_multiplier + 1 / counts.noise_multiplier == pytest.approx(1 / multiplier)


def test_without_noise_there_is_no_release():
    assert sums_and_counts_releases(0.0, math.inf) == (None, None)
    assert CellNoise().is_off
    assert not NOISE.is_off
    rounds, _ = cells_of()
    assert not any(release for round_ in rounds for release in round_.releases)


def test_cell_with_hardly_a_row_has_two_scales_of_the_noise_of_its_count():
    assert smallest_count(0.0) == 0.5
    assert smallest_count(3.0) == pytest.approx(2 * sums_and_counts_releases(3.0, 1.0)[1].scale)


def test_shares_are_those_of_the_releases():
    shares = CellNoise.shares((0.1, 0.2, 0.3, 0.4, 0.5), 4)
    assert [share.fraction * share.count for share in shares] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [share.count for share in shares] == [1, 1, 1, 4, 1]
    noise = CellNoise.of([1.0, 2.0, 3.0, 4.0, 5.0], 6.0, lambda release: 7 * release.standard_deviation)
    assert (noise.origin, noise.radius, noise.directions, noise.centers, noise.last) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert (noise.max_l1_norm, noise.in_sum) == (6.0, pytest.approx(7.0))


# Finding cells


def test_rounds_ask_for_the_frame_and_directions_and_then_take_lloyd_steps():
    rounds, cells = cells_of(n_cells=7, steps=4)
    assert [round_.task for round_ in rounds] == ["cluster_sums", "entry_products"] + 4 * ["cluster_sums"]
    np.testing.assert_allclose(cells.frame.origin, ROWS.mean(axis=0), rtol=0, atol=1e-12)
    assert cells.frame.radius == math.inf
    assert cells.n_rows == cells.counts.sum() == len(ROWS)
    rounds, _ = cells_of(n_cells=7, steps=4, noise=NOISE, epsilon=1.0)
    assert [round_.task for round_ in rounds] == [
        "cluster_sums", "distance_counts", "entry_products", *4 * ["cluster_sums"],
    ]  # fmt: skip


def test_releases_are_those_of_the_multipliers_and_of_the_frame():
    rounds, cells = cells_of(n_cells=7, steps=2, noise=NOISE, epsilon=1.0)
    radius = cells.frame.radius
    assert 0 < radius < 30.0
    declared = [(release.sensitivity, release.noise_multiplier) for round_ in rounds for release in round_.releases]
    lloyd = [(radius, 0.8 / 0.8), (1.0, 0.8 / 0.2)]
    first = [(30.0, 0.5 / 0.8), (1.0, 0.5 / 0.2), (1.0, 0.6), (radius**2, 0.7)]
    np.testing.assert_allclose(declared, first + lloyd + lloyd)
    assert all(release.mechanism == "laplace" for round_ in rounds for release in round_.releases)
    for round_ in rounds[2:]:
        assert round_.arguments == {"radius": radius, "norm": 1}


def test_what_comes_out_is_a_lloyd_step_of_the_last_centers():
    rounds, cells = cells_of(n_cells=7, steps=3)
    rows = ROWS - cells.frame.origin
    last = rounds[-1].arrays[0]
    sums, counts = cluster_sums(rows, nearest_center(rows, last), 7)
    kept = counts > 0.5
    np.testing.assert_allclose(cells.centers, (sums[kept].T / counts[kept]).T, atol=1e-12)
    assert np.array_equal(cells.counts, counts[kept])


def test_first_centers_are_spread_as_the_rows_are():
    rows = RNG.normal(size=(500, 3)) @ np.array([[5.0, 5, 0], [0, 1, 0], [0, 0, 0.2]]) + 40
    rounds, _ = cells_of(rows, n_cells=60, steps=1)
    first = rounds[-1].arrays[0]
    np.testing.assert_allclose(np.corrcoef(first.T)[0, 1], np.corrcoef(rows.T)[0, 1], atol=0.03)
    assert first[:, 0].std() == pytest.approx(rows[:, 0].std(), rel=0.5)
    assert first[:, 2].std() < 0.05 * first[:, 0].std()
    wide = RNG.normal(size=(500, FULL_COLUMNS + 1)) * np.linspace(0.1, 5, FULL_COLUMNS + 1)
    rounds, _ = cells_of(wide, n_cells=40, steps=1)
    deviations = rounds[-1].arrays[0].std(axis=0)  # of centers: means of points
    assert np.corrcoef(deviations, wide.std(axis=0))[0, 1] > 0.85


def test_center_that_has_lost_its_rows_is_set_down_beside_the_largest_cell():
    def change(number, reply):
        if number == 3:
            return [means * counts[:, None], counts]
        return reply

    counts = np.array([10.0, 40.0, 0.0, 20.0, 20.0])
    means = RNG.normal(size=(5, 3)) * 10
    rounds, _ = cells_of(n_cells=5, steps=2, change=change)
    after = rounds[3].arrays[0]
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(after[others], means[others])
    distances = np.linalg.norm(after[others] - after[2], axis=1)
    assert others[distances.argmin()] == 1
    assert distances.min() > 0
    # In the last step there is nobody left to ask which rows a new center would have: the cell is dropped.
    _, cells = cells_of(n_cells=5, steps=1, change=change)
    assert len(cells) == 4
    rounds, cells = cells_of(n_clusters=5, n_cells=5, steps=1, change=change)
    np.testing.assert_allclose(cells.centers[2], rounds[2].arrays[0][2])


def test_cells_with_hardly_a_row_are_dropped_but_for_as_many_as_clusters():
    def change(number, reply):
        return [reply[0], np.array([0.0, 40.0, 0.2, 0.0, 50.0])] if number == 3 else reply

    _, cells = cells_of(n_clusters=2, n_cells=5, steps=1, change=change)
    assert cells.counts.tolist() == [40.0, 50.0]
    _, cells = cells_of(n_clusters=3, n_cells=5, steps=1, change=change)
    assert cells.counts.tolist() == [40.0, 1.0, 50.0]  # at least one row, for what divides by it


def test_more_noise_in_the_sum_raises_what_is_taken_for_noise():
    def change(number, reply):
        return [reply[0], np.array([1.0, 40.0, 3.0, 0.0, 50.0])] if number == 4 else reply

    little = CellNoise(0.01, 0.01, 0.01, 0.05, 0.1, 30.0)
    large = CellNoise(0.01, 0.01, 0.01, 0.05, 0.1, 30.0, in_sum=4.0)
    assert cells_of(n_clusters=2, n_cells=5, steps=1, noise=little, change=change)[1].counts.size == 4
    assert cells_of(n_clusters=2, n_cells=5, steps=1, noise=large, change=change)[1].counts.size == 3
    rows = np.repeat(ROWS, 30, axis=0)
    assert len(cells_of(rows, noise=little, epsilon=1.0, steps=1)[0][-1].arrays[0]) == 9
    assert len(cells_of(rows, noise=large, epsilon=1.0, steps=1)[0][-1].arrays[0]) == 3


def test_fewer_rows_than_clusters_are_refused_in_a_sentence_where_there_is_no_noise():
    with pytest.raises(DataError, match="the clients have 4 rows together and n_clusters is 5; ask for fewer"):
        cells_of(ROWS[:4], n_clusters=5)
    _, cells = cells_of(ROWS[:4], n_clusters=5, noise=NOISE, epsilon=1.0)
    assert len(cells) == 5


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e9])
@pytest.mark.parametrize("n_columns", [1, 3, FULL_COLUMNS + 5])
def test_centers_lie_in_the_frame_whatever_the_noise(scale, n_columns):
    rng = np.random.default_rng(0)

    def change(number, reply):
        return [array + rng.laplace(scale=scale, size=array.shape) for array in reply]

    rows = RNG.normal(size=(50, n_columns))
    for seed in range(5):
        rounds, cells = cells_of(rows, noise=NOISE, epsilon=1.0, steps=2, seed=seed, change=change)
        assert cells.frame.radius <= 60.0
        assert np.abs(cells.frame.origin).sum() <= 30.0 * (1 + 1e-9)
        for centers in [*(round_.arrays[0] for round_ in rounds[3:]), cells.centers]:
            assert np.isfinite(centers).all()
            assert np.abs(centers).sum(axis=1).max() <= cells.frame.radius * (1 + 1e-9)
        assert cells.counts.min() >= 1
        assert len(cells) >= 3


# What is asked of cells


CELLS = Cells(Frame(np.array([1.0, 1.0, 1.0]), 20.0, norm=1), MEANS[:2] + 0.5, np.array([3.0, 4.0]), 90.0)


def test_refining_is_a_lloyd_step_for_which_the_last_release_is_spent():
    rounds, cells = driven(refine(CELLS, NOISE))
    assert [round_.task for round_ in rounds] == ["cluster_sums"]
    assert tuple(rounds[0].releases) == sums_and_counts_releases(0.9, 20.0)
    rows = CELLS.frame.enter(ROWS)
    sums, counts = cluster_sums(rows, nearest_center(rows, CELLS.centers), 2)
    np.testing.assert_allclose(cells.centers, sums / counts[:, None])
    assert np.array_equal(cells.counts, counts)
    few = {"few": lambda number, reply: [reply[0], np.array([8.9, 60.0])]}["few"]
    assert np.array_equal(driven(refine(CELLS, NOISE), change=few)[1].centers[0], CELLS.centers[0])
    without, _ = driven(refine(CELLS, CellNoise()))
    assert without[0].releases == (None, None)


def test_votes_carry_the_last_release_where_there_is_noise():
    assert ask_votes(CELLS, CellNoise()).releases == [None]
    (release,) = ask_votes(CELLS, NOISE).releases
    assert (release.mechanism, release.sensitivity, release.noise_multiplier) == ("laplace", 1.0, 0.9)
    assert ask_votes(CELLS, NOISE).arguments == {"radius": 20.0, "norm": 1}

"""Cells from noisy sums: what clients answer, how the server reads it, and what Lloyd steps make of it."""

import numpy as np
import pytest

from flower_fedclust.engine import ClientData, DataError, Total
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.kmeans import cluster_sums, nearest_center
from flower_fedclust.numerics.prototypes import FULL_COLUMNS
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.strategies.common.frame import FRAME_ROUNDS
from flower_fedclust.strategies.spp_fgc.spp_fgc_sums import (
    N_DISTANCES,
    Cells,
    CellsClient,
    SPPFGCSums,
    distance_edges,
    n_cells_for,
    radius_of,
    smallest_count,
    two_nearest,
    weight_onto_grid,
)

RNG = np.random.default_rng(0)
MEANS = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0]])
CLASSES = RNG.integers(3, size=90)
ROWS = MEANS[CLASSES] + RNG.normal(size=(90, 3))
# The number of the first Lloyd step without noise: after frame and directions.
FIRST_STEP = FRAME_ROUNDS + 2
MULTIPLIERS = {
    "origin_sums": 0.625, "origin_counts": 2.5, "distances": 0.6, "second_moment": 0.7, "lloyd_sums": 1.0,
    "lloyd_counts": 4.0, "votes": 0.9,
}  # fmt: skip


class Driven(SPPFGCSums):
    """A strategy outside of a run: its steps are driven by hand, with noise multipliers that are given."""

    n_columns = 3
    rng = None
    multipliers = MULTIPLIERS
    in_sum = 1.0  # how large the noise in a sum is, over that of one release

    def noise_multipliers(self, shares=None):
        return self.multipliers

    def noise_of_sum(self, release):
        return self.in_sum * release.standard_deviation


def client_of(rows):
    return CellsClient(ClientData(rows), name="0")


def reply_to(round_, rows):
    reply = round_.asks.reply_of(client_of(rows), round_.question)
    return [sent.values for sent in (reply if isinstance(reply, (list, tuple)) else [reply])]


def driven(strategy, generator, rows=ROWS, change=lambda number, reply: reply):
    """Answer the rounds of a step with the rows' own sums, which may be changed: the rounds and what comes out."""
    rounds, reply = [], None
    with one_thread():  # as in a run
        while True:
            try:
                round_ = strategy.with_noise(generator.send(reply))
            except StopIteration as stop:
                return rounds, stop.value
            rounds.append(round_)
            noise = [
                0.0 if release is None else strategy.noise_of_sum(release)
                for release in round_.releases
            ]
            reply = Total(change(len(rounds), reply_to(round_, rows)), 1, noise)


def strategy_of(
    n_clusters=3, n_cells=None, *, epsilon=None, max_l1_norm=None, multipliers=MULTIPLIERS, in_sum=1.0, n_columns=3,
    seed=0,
):  # fmt: skip
    strategy = Driven(
        n_clusters, epsilon=epsilon, max_l1_norm=max_l1_norm if epsilon is None else 30.0
    )
    strategy.n_prototypes = n_cells
    strategy.n_columns, strategy.multipliers, strategy.in_sum = n_columns, multipliers, in_sum
    strategy.rng = np.random.default_rng(seed)
    return strategy


def cells_of(rows=ROWS, *, steps=3, change=lambda number, reply: reply, **options):
    strategy = strategy_of(n_columns=rows.shape[1], **options)
    return driven(strategy, strategy.find_cells(steps), rows, change)


def ball(radius, n_columns=3):
    """A frame about 0."""
    return Frame(np.zeros(n_columns), radius, norm=1)


def points_of(round_):
    """The centers that a round asks about."""
    return round_.question.arrays[0]


# What a client answers


@pytest.mark.parametrize("bound", [2.0, 7.5, 100.0])
def test_distances_are_counted_by_rings_whose_ends_are_powers_of_the_root_of_2(bound):
    origin = np.array([0.31, -0.2, 0.17])
    (found,) = client_of(ROWS).distance_counts(origin, frame=ball(bound))
    slow = np.zeros(N_DISTANCES)
    edges = [2 * bound * 2 ** (-i / 2) for i in reversed(range(N_DISTANCES))]
    for row in ROWS:
        row = row * min(1.0, bound / np.abs(row).sum())
        slow[next(i for i, edge in enumerate(edges) if np.abs(row - origin).sum() <= edge)] += 1
    np.testing.assert_allclose(distance_edges(bound), edges)
    assert np.array_equal(found.values, slow)
    assert found.values.sum() == len(ROWS)


@pytest.mark.parametrize("n_columns", [1, 2, FULL_COLUMNS, FULL_COLUMNS + 1])
def test_entry_products_and_squares_are_those_of_the_clipped_rows_in_the_frame(n_columns):
    rows = np.random.default_rng(1).normal(size=(20, n_columns)) * 3
    origin = np.linspace(-1, 1, n_columns)
    radius = float(np.median(np.abs(rows - origin).sum(axis=1)))
    client, frame = client_of(rows), Frame(origin, radius, norm=1)
    ((products,), (squares,)) = (
        client.entry_products(frame=frame),
        client.entry_squares(frame=frame),
    )
    moment = np.zeros((n_columns, n_columns))
    for row in rows - origin:
        row = row * min(1.0, radius / np.abs(row).sum())
        moment += np.outer(row, row)
    # Entries are truncated to 16 bits of the radius.
    error = len(rows) * 2 * radius**2 * 2.0**-15
    np.testing.assert_allclose(
        products.values, moment[np.triu_indices(n_columns)], rtol=0, atol=error
    )
    np.testing.assert_allclose(squares.values, np.diag(moment), rtol=0, atol=error)


def test_each_row_votes_for_its_two_nearest_centers():
    centers = RNG.normal(size=(6, 3)) * 4
    origin = np.array([1.0, 2.0, 3.0])
    (found,) = client_of(ROWS).votes(centers, frame=Frame(origin, 32.0))
    slow = {}
    for row in ROWS - origin:
        first, second = sorted(np.argsort(((centers - row) ** 2).sum(axis=1))[:2])
        slow[first, second] = slow.get((first, second), 0) + 1
    pairs = zip(*np.triu_indices(6, 1), strict=True)
    assert found.values.tolist() == [slow.get(pair, 0) for pair in pairs]
    assert found.values.sum() == len(ROWS)


def test_two_nearest_are_two_even_where_centers_are_equal():
    nearest, second = two_nearest(np.zeros((4, 2)), np.ones((3, 2)))
    assert nearest.tolist() == [0] * 4
    assert second.tolist() == [1] * 4


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
        (150, 2, 2, None, 15),
        (1000, 2, 2, None, 50),
        (1e5, 2, 2, None, 300),
        (1e5, 64, 2, None, 512),
        (1e5, 256, 2, None, 1024),
        (1e5, 900, 2, None, 2250),
        (74, 3, 2, None, 3),
        (119, 3, 2, 1000.0, 3),
        (160, 2, 2, 1000.0, 10),
        (1000, 2, 2, 1.0, 5),
        (150, 3, 4, 10.0, 3),
    ],
)
def test_number_of_cells(n_rows, n_clusters, n_columns, epsilon, expected):
    assert n_cells_for(n_rows, n_clusters, n_columns, epsilon) == expected


def test_cell_with_hardly_a_row_has_two_scales_of_the_noise_of_its_count():
    assert smallest_count(0.0) == 0.5
    assert smallest_count(3.0) == 6.0
    strategy = strategy_of(epsilon=1.0, in_sum=2.0)
    assert strategy.noise_scale("lloyd_counts") == pytest.approx(2.0 * 4.0)


# Finding cells


def test_releases_are_those_of_the_multipliers_and_of_the_frame():
    rounds, cells = cells_of(n_cells=7, steps=2, epsilon=1.0)
    radius = cells.frame.radius
    assert 0 < radius < 30.0
    declared = [
        (release.sensitivity, release.noise_multiplier)
        for round_ in rounds
        for release in round_.releases
    ]
    first = [(30.0, 0.625), (1.0, 2.5), (1.0, 0.6), (radius**2, 0.7)]
    np.testing.assert_allclose(declared, first + 2 * [(radius, 1.0), (1.0, 4.0)])
    assert all(release.mechanism == "laplace" for round_ in rounds for release in round_.releases)
    for round_ in rounds[2:]:
        assert (round_.question.frame.radius, round_.question.frame.norm) == (radius, 1)


def test_what_comes_out_is_a_lloyd_step_of_the_last_centers():
    rounds, cells = cells_of(n_cells=7, steps=3)
    rows = ROWS - cells.frame.origin
    last = points_of(rounds[-1])
    sums, counts = cluster_sums(rows, nearest_center(rows, last), 7)
    kept = counts > 0.5
    np.testing.assert_allclose(cells.centers, (sums[kept].T / counts[kept]).T, atol=1e-6)
    assert np.array_equal(cells.counts, counts[kept])


def test_first_centers_are_spread_as_the_rows_are():
    rows = RNG.normal(size=(500, 3)) @ np.array([[5.0, 5, 0], [0, 1, 0], [0, 0, 0.2]]) + 40
    rounds, _ = cells_of(rows, n_cells=60, steps=1)
    first = points_of(rounds[-1])
    np.testing.assert_allclose(np.corrcoef(first.T)[0, 1], np.corrcoef(rows.T)[0, 1], atol=0.03)
    assert first[:, 0].std() == pytest.approx(rows[:, 0].std(), rel=0.5)
    assert first[:, 2].std() < 0.05 * first[:, 0].std()
    wide = RNG.normal(size=(500, FULL_COLUMNS + 1)) * np.linspace(0.1, 5, FULL_COLUMNS + 1)
    rounds, _ = cells_of(wide, n_cells=40, steps=1)
    deviations = points_of(rounds[-1]).std(axis=0)  # of centers: means of points
    assert np.corrcoef(deviations, wide.std(axis=0))[0, 1] > 0.85


def test_center_that_has_lost_its_rows_is_set_down_beside_the_largest_cell():
    def change(number, reply):
        if number == FIRST_STEP:
            return [means * counts[:, None], counts]
        return reply

    counts = np.array([10.0, 40.0, 0.0, 20.0, 20.0])
    means = RNG.normal(size=(5, 3)) * 4
    rounds, _ = cells_of(n_cells=5, steps=2, change=change)
    after = points_of(rounds[FIRST_STEP])
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(after[others], means[others])
    distances = np.linalg.norm(after[others] - after[2], axis=1)
    assert others[distances.argmin()] == 1
    assert distances.min() > 0
    # In the last step there is nobody left to ask which rows a new center would have: the cell is dropped.
    _, cells = cells_of(n_cells=5, steps=1, change=change)
    assert len(cells) == 4
    rounds, cells = cells_of(n_clusters=5, n_cells=5, steps=1, change=change)
    np.testing.assert_allclose(cells.centers[2], points_of(rounds[FIRST_STEP - 1])[2])


def test_cells_with_hardly_a_row_are_dropped_but_for_as_many_as_clusters():
    def change(number, reply):
        return [reply[0], np.array([0.0, 40.0, 0.2, 0.0, 50.0])] if number == FIRST_STEP else reply

    _, cells = cells_of(n_clusters=2, n_cells=5, steps=1, change=change)
    assert cells.counts.tolist() == [40.0, 50.0]
    _, cells = cells_of(n_clusters=3, n_cells=5, steps=1, change=change)
    assert cells.counts.tolist() == [40.0, 1.0, 50.0]  # at least one row, for what divides by it


def test_fewer_rows_than_clusters_are_refused_in_a_sentence_where_there_is_no_noise():
    with pytest.raises(DataError, match="n_clusters"):
        cells_of(ROWS[:4], n_clusters=5)
    _, cells = cells_of(ROWS[:4], n_clusters=5, epsilon=1.0)
    assert len(cells) == 5


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e9])
@pytest.mark.parametrize("n_columns", [1, 3, FULL_COLUMNS + 5])
def test_centers_lie_in_the_frame_whatever_the_noise(scale, n_columns):
    rng = np.random.default_rng(0)

    def change(number, reply):
        return [array + rng.laplace(scale=scale, size=array.shape) for array in reply]

    rows = RNG.normal(size=(50, n_columns))
    for seed in range(5):
        rounds, cells = cells_of(rows, epsilon=1.0, steps=2, seed=seed, change=change)
        assert cells.frame.radius <= 60.0
        assert np.abs(cells.frame.origin).sum() <= 30.0 * (1 + 1e-9)
        for centers in [*map(points_of, rounds[3:]), cells.centers]:
            assert np.isfinite(centers).all()
            assert np.abs(centers).sum(axis=1).max() <= cells.frame.radius * (1 + 1e-9)
        assert cells.counts.min() >= 1
        assert len(cells) >= 3


# The step that takes the place of the votes


CELLS = Cells(
    Frame(np.array([1.0, 1.0, 1.0]), 20.0, norm=1), MEANS[:2] + 0.5, np.array([3.0, 4.0]), 90.0
)


def last_step(epsilon, **options):
    strategy = strategy_of(2, epsilon=epsilon)
    return driven(strategy, strategy._last_step(CELLS), **options)


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_last_step_is_a_lloyd_step(epsilon):
    rounds, cells = last_step(epsilon)
    assert [round_.task for round_ in rounds] == ["weighted_cell_sums"]
    rows = CELLS.frame.enter(ROWS)
    sums, counts = cluster_sums(rows, nearest_center(rows, CELLS.centers), 2)
    np.testing.assert_allclose(cells.centers, sums / counts[:, None])
    assert np.array_equal(cells.counts, counts)


def test_last_step_costs_what_the_votes_do_and_has_the_noise_of_sums_and_counts():
    rounds, _ = last_step(1.0)
    (release,), weight = rounds[0].releases, rounds[0].question.arguments["weight"]
    assert weight == weight_onto_grid(weight, 20.0)
    assert weight == pytest.approx(5.0, abs=2.0 ** unit_exponent(20.0))
    assert (release.share, release.noise_multiplier) == ("votes", 0.9)
    # As the Lloyd steps before it: 0.8 of epsilon for the sums, the rest for the counts.
    assert release.scale == pytest.approx(20.0 * 0.9 / 0.8)
    assert release.scale / weight == pytest.approx(1.0 * 0.9 / 0.2, rel=1e-6)

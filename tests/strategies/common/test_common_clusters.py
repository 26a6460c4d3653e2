import numpy as np
import pytest

from flower_fedclust.engine import ClientData, Total
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.stacks import Stack, stacked
from flower_fedclust.exact.terms import as_stack, at
from flower_fedclust.strategies.common.clusters import (
    MEANS_MARGIN,
    ClientBounds,
    ClusterClient,
    ClusterStatistic,
    lloyd_step,
    lloyd_steps,
    offsets_and_presence,
)

RNG = np.random.default_rng(1)
ROWS = RNG.normal(size=(60, 3)) * 2
# The last is the first once more: a tie, which goes to the lowest index, so that the last has no row.
CENTERS = np.array([[2.0, 0, 0], [-2, 0, 0], [0, 3, 0], [2.0, 0, 0]])
ORIGIN = np.array([0.5, 0.0, -0.5])


def client(rows):
    return ClusterClient(ClientData(rows), name="0")


def slow(rows, radius):
    clusters = [[] for _ in CENTERS]
    for row in rows - ORIGIN:
        row = row * min(1.0, radius / np.sqrt((row**2).sum()))
        clusters[int(np.argmin([((row - center) ** 2).sum() for center in CENTERS]))].append(row)
    return clusters


@pytest.mark.parametrize("radius", [3.5, 8.0, 1e4])
def test_sums_and_counts_equal_those_of_a_slow_loop(radius):
    sums, counts = client(ROWS).cluster_sums(CENTERS, frame=Frame(ORIGIN, radius))
    clusters = slow(ROWS, radius)
    assert counts.values.tolist() == [len(members) for members in clusters]
    expected = [np.sum(members, axis=0) if members else np.zeros(3) for members in clusters]
    np.testing.assert_allclose(sums.values, expected, atol=60 * radius * 2.0**-24)
    assert counts.integers[3] == 0


@pytest.mark.parametrize("bound", [0.5, 1e9])
def test_means_and_presence_equal_those_of_a_slow_loop(bound):
    offsets, presence = client(ROWS).cluster_means(
        CENTERS, frame=Frame(ORIGIN, 3.5), means_bound=bound
    )
    clusters = slow(ROWS, 3.5)
    expected = np.array(
        [
            np.mean(own, axis=0) - center if own else np.zeros(3)
            for own, center in zip(clusters, CENTERS, strict=True)
        ]
    )
    norm = np.sqrt((expected**2).sum())
    np.testing.assert_allclose(
        offsets.values, expected * min(1.0, bound / norm), atol=1e-5 if bound < 1e9 else 100
    )
    assert presence.integers.tolist() == [1, 1, 1, 0]
    # What the client enforces, exactly.
    assert (offsets.integers.astype(object) ** 2).sum() <= (bound / 2.0**offsets.exponent) ** 2


def test_offsets_of_a_client_without_a_row_are_zero():
    nobody = Frame(np.zeros(3), 32.0).rows(np.zeros((0, 3)))
    places = np.zeros(0, dtype=int)
    totals = at(places, 4, nobody), at(places, 4)
    with stacked(Stack([0])):
        offsets, presence = offsets_and_presence(tuple(map(as_stack, totals)), CENTERS, 1.0)
    assert not offsets.integers.any()
    assert not presence.integers.any()


def run(reply, centers=CENTERS[:3], radius=1e4, **options):
    step = lloyd_step(centers, Frame(np.zeros(3), radius), ClusterStatistic(**options))
    round_ = next(step)
    with pytest.raises(StopIteration) as stop:
        step.send(reply)
    return round_, stop.value.value


@pytest.mark.parametrize("count", [0.0, 0.99, -5.0])
def test_each_center_moves_to_the_mean_and_one_with_hardly_a_row_stays(count):
    round_, centers = run([np.full((3, 3), 7.0), np.array([1.0, count, 7.0])])
    assert round_.task == "cluster_sums"
    np.testing.assert_allclose(centers, [[7.0] * 3, CENTERS[1], [1.0] * 3])


def test_each_center_moves_by_the_mean_offset_and_one_with_hardly_a_client_stays():
    round_, centers = run([np.full((3, 3), 7.0), np.array([1.0, 0.2, 7.0])], means_bound=9.0)
    assert round_.task == "cluster_means"
    assert round_.question.arguments["means_bound"] == 9.0
    np.testing.assert_allclose(centers, [CENTERS[0] + 7.0, CENTERS[1], CENTERS[2] + 1.0])


def test_center_that_noise_threw_out_of_the_ball_comes_back_to_it():
    _, centers = run([np.full((3, 3), 1e6), np.ones(3)], radius=2.0)
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 2.0)


def test_bounds_from_server_rows_are_the_root_mean_square_over_random_clients():
    server_rows = np.concatenate(
        [RNG.normal(size=(40, 3)) + mean for mean in ([8, 0, 0], [0, 8, 0], [0, 0, 8])]
    )
    bounds = ClientBounds.from_server_rows(server_rows, 3, 12)
    matrices, counts = [], []
    for _ in range(4000):
        drawn = RNG.integers(len(server_rows), size=12)
        rows = server_rows[drawn]
        matrix = rows.T @ rows
        matrices.append(np.linalg.norm(matrix - np.trace(matrix) / 3 * np.eye(3)) ** 2)
        counts.append((np.bincount(drawn) ** 2).sum())
    assert bounds.second_moment == pytest.approx(np.sqrt(np.mean(matrices)), rel=0.02)
    assert bounds.weights == pytest.approx(np.sqrt(np.mean(counts)), rel=0.02)
    # Four rows a cluster: three means, each off by a quarter of the variance of 3 columns; and the margin.
    assert bounds.means == pytest.approx(MEANS_MARGIN * np.sqrt(3 * 3 / 4), rel=0.15)


def test_lloyd_steps_go_on_while_one_center_moves_though_it_moves_along_one_column():
    steps = lloyd_steps(np.array([[0.0, 0.0], [5.0, 5.0]]), Frame(np.zeros(2), 16.0), 3, 1e-6)
    next(steps)
    moved = Total([np.array([[1.0, 0.0], [5.0, 5.0]]), np.array([1.0, 1.0])], 2)
    steps.send(moved)
    with pytest.raises(StopIteration) as stopped:
        steps.send(moved)
    assert np.array_equal(stopped.value.value, moved[0])

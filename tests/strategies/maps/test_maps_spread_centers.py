"""Centers that are spread as the rows are, from sums alone."""

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs

from flower_fedclust import ClientData, simulate
from flower_fedclust.authoring import ProtocolStrategy
from flower_fedclust.engine import Total, parameter
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import kmeans_cost
from flower_fedclust.strategies.common.clusters import ClusterStatistic
from flower_fedclust.strategies.maps.map_sums import (
    LOWER_BITS,
    ReducedRowsClient,
    SpreadCentersClient,
    n_splits,
    spread_centers,
    widest_directions,
)

RNG = np.random.default_rng(3)
# Ten clumps of very different sizes and widths, and a few rows between them.
CLUMPY = np.concatenate(
    [
        RNG.uniform(-20, 20, size=2) + RNG.normal(size=(n, 2)) * width
        for n, width in zip(
            [400, 200, 100, 50, 25, 12, 300, 80, 40, 20],
            [0.1, 1, 0.5, 2, 0.2, 1, 3, 0.05, 1, 0.1],
            strict=True,
        )
    ]
    + [RNG.uniform(-20, 20, size=(30, 2))]
)


class Spreading(ProtocolStrategy):
    """Spreads centers and keeps them in the model."""

    client_type = SpreadCentersClient
    n_protocol_rounds = 100
    frame: Frame = parameter()
    deviation: np.ndarray = parameter()
    n_centers: int = parameter(at_least=1)
    n_steps: tuple = parameter((2, 10))

    def protocol(self):
        centers, sizes = yield from spread_centers(
            self.n_centers, self.frame, self.deviation, self.rng, steps=self.n_steps
        )
        model = KMeansModel(self.frame.leave(centers))
        model.sizes = sizes
        return model


def radius_of(rows):
    """A power of two that no row is beyond."""
    return 2.0 ** math.ceil(math.log2(np.linalg.norm(rows, axis=1).max()))


def frame_of(rows):
    return Frame(rows.mean(axis=0), radius_of(rows - rows.mean(axis=0)))


def spread(rows, n_centers, n_clients=5, random_state=0, frame=None, **options):
    frame, deviation = frame or frame_of(rows), np.sort(rows, axis=0).std(axis=0)
    strategy = Spreading(
        2,
        frame=frame,
        deviation=deviation,
        n_centers=n_centers,
        random_state=random_state,
        **options,
    )
    return simulate(strategy, np.array_split(rows, n_clients))


def itself(frame):
    """A view that leaves rows as they are."""
    return ReducedRowsClient.reduced.asked(np.empty((0, 0)), frame=frame)


def driven(
    rows,
    n_centers,
    *,
    steps=(2, 3),
    smallest=0.0,
    change=lambda number, reply: reply,
    statistic=None,
    noisy=True,
    noise=(),
    seed=0,
    radius=None,
):
    """Run the server half alone, with a reply that may be changed: the rounds and what comes out."""
    rounds = []
    if noisy and statistic is None:
        statistic = ClusterStatistic()
    everywhere = Frame(np.zeros(rows.shape[1]), radius or radius_of(rows))
    generator = spread_centers(
        n_centers,
        everywhere,
        rows.std(axis=0),
        np.random.default_rng(seed),
        steps=steps,
        statistic=statistic,
        smallest=smallest,
        view=itself(everywhere),
    )
    reply = None
    while True:
        try:
            round_ = generator.send(reply)
        except StopIteration as stop:
            return rounds, *stop.value
        rounds.append(round_)
        sent = round_.asks.reply(round_.question, rows)
        reply = Total(change(len(rounds), [array.values for array in sent]), 1, noise)


def test_one_center_is_doubled_until_there_are_as_many():
    assert [n_splits(n) for n in (1, 2, 3, 4, 5, 64, 65, 300)] == [0, 1, 2, 2, 3, 6, 7, 9]


@pytest.mark.parametrize(
    ("name", "n_centers", "allowed"),
    [
        ("digits", 20, 1.06),
        ("digits", 150, 1.09),
        ("clumps", 20, 1.07),
        ("clumps", 37, 1.07),
        ("uneven clumps", 20, 1.1),
        ("uneven clumps", 100, 1.15),
        ("two scales", 100, 1.2),
    ],
)
def test_cost_is_near_that_of_k_means_with_as_many_centers(name, n_centers, allowed):
    if name == "digits":
        rows = load_digits().data[:900] / 16.0
    elif name == "clumps":
        rows = make_blobs(1200, centers=12, cluster_std=0.6, center_box=(-15, 15), random_state=1)[
            0
        ]
    elif name == "two scales":
        rng = np.random.default_rng(0)
        rows = np.concatenate(
            [rng.normal(size=(900, 2)) * 0.01, [30.0, 0.0] + rng.normal(size=(300, 2)) * 5.0]
        )
    else:
        rows = CLUMPY
    found = [spread(rows, n_centers, random_state=seed).model.cluster_centers_ for seed in range(3)]
    assert found[0].shape == (n_centers, rows.shape[1])
    best = KMeans(n_centers, n_init=3, random_state=0).fit(rows).inertia_
    assert np.mean([kmeans_cost(rows, centers) for centers in found]) <= allowed * best


def test_one_center_is_the_mean_of_the_rows():
    result = spread(CLUMPY, 1)
    np.testing.assert_allclose(result.model.cluster_centers_, CLUMPY.mean(axis=0)[None], atol=1e-6)
    assert result.model.sizes.tolist() == [len(CLUMPY)]


def test_no_more_centers_than_distinct_rows_have_rows():
    rows = np.repeat([[0.0, 0], [1, 0], [0, 5]], 4, axis=0)
    result = spread(rows, 8)
    assert np.isfinite(result.model.cluster_centers_).all()
    assert kmeans_cost(rows, result.model.cluster_centers_) == pytest.approx(0.0, abs=1e-10)
    assert np.count_nonzero(result.model.sizes) == 3


#: Many rows near 0, and two clumps of a few far from them, which are far from each other.
FAR = np.concatenate(
    [RNG.normal(size=(100, 2)) * 0.1, [60.0, 0.0] + RNG.normal(size=(10, 2)) * 0.1]
)
FAR = np.concatenate([FAR, [60.0, 20.0] + RNG.normal(size=(10, 2)) * 0.1])


@pytest.mark.parametrize(("noisy", "x_split"), [(False, 60.0), (True, 0.0)])
def test_without_noise_the_cell_of_the_largest_cost_is_split_and_with_noise_that_of_the_most_rows(
    noisy, x_split
):
    rounds, _, _ = driven(FAR, 3, steps=(3, 1), noisy=noisy)
    before, after = rounds[2].question.arrays[0], rounds[3].question.arrays[0]
    assert sorted(np.round(before[:, 0], -1)) == [0.0, 60.0]
    assert np.abs(after[2, 0] - x_split) < 10
    assert {round_.task for round_ in rounds} == {
        "cluster_sums" if noisy else "cluster_sums_and_costs"
    }
    assert not any(round_.parts for round_ in rounds)


def test_a_cell_of_a_large_cost_is_split_into_several():
    # Without noise the sixteen rows on their own take centers, and the many that are alike do not.
    far = np.array([[100.0 + 9.0 * (index // 4), 9.0 * (index % 4)] for index in range(16)])
    rows = np.concatenate([0.1 * np.random.default_rng(0).normal(size=(1000, 2)), far])
    rounds, centers, _ = driven(rows, 16, steps=(2, 10), noisy=False)
    assert np.count_nonzero(centers[:, 0] > 50) >= 14
    assert np.count_nonzero(rounds[4].question.arrays[0][:, 0] > 50) > 4


def in_two_parts(costs, radius):
    """Costs as clients send them, in squared units of the grid of a frame of this radius."""
    costs = costs * (2.0**25 / radius) ** 2
    return np.array([costs // 2**LOWER_BITS, costs % 2**LOWER_BITS])


def test_cost_by_which_cells_are_split_is_that_about_the_new_centers():
    # A cell whose center has just come from afar has sent a large cost, and has nothing left to be split for.
    def change(at, reply):
        if at != 2:
            return reply
        sent = rounds_before[1].question.arrays[0]
        means = np.array([[1000.0, 0.0], [2.0, 0.0]])
        counts = np.array([50.0, 5.0])
        about_means = np.array([1.0, 10.0])
        costs = about_means + counts * ((sent - means) ** 2).sum(axis=1)
        return [means * counts[:, None], counts, in_two_parts(costs, 2048.0)]

    rounds_before, _, _ = driven(CLUMPY, 3, steps=(2, 1), noisy=False, radius=2048.0)
    rounds, _, _ = driven(CLUMPY, 3, steps=(2, 1), change=change, noisy=False, radius=2048.0)
    assert np.round(rounds[2].question.arrays[0][:2]).tolist() == [[1000.0, 0.0], [2.0, 0.0]]
    assert rounds[2].question.arrays[0][2, 0] < 500


def test_costs_of_the_clients_are_the_squared_distances_from_the_centers_that_they_were_sent():
    centers = CLUMPY[:7]
    client = SpreadCentersClient(ClientData(CLUMPY + 3.0), name="0")
    sums, counts, costs = client.cluster_sums_and_costs(centers, frame=Frame(np.full(2, 3.0), 64.0))
    squared = ((CLUMPY[:, None] - centers[None]) ** 2).sum(axis=2)
    nearest = squared.argmin(axis=1)
    unit = 64.0 * 2.0**-25
    found = (2.0**LOWER_BITS * costs.values[0] + costs.values[1]) * unit**2
    np.testing.assert_allclose(found, np.bincount(nearest, squared.min(axis=1), 7), rtol=2e-5)
    assert np.array_equal(counts.values, np.bincount(nearest, minlength=7))
    assert found.sum() == pytest.approx(kmeans_cost(CLUMPY, centers))
    np.testing.assert_allclose(sums.values[3], CLUMPY[nearest == 3].sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize("exponent", [-1060, -700, 0, 900, 998])
def test_costs_are_exact_integers_whatever_the_unit_of_the_rows(exponent):
    integers = np.array([[2**24, -3], [2**24 - 1, 0], [5, 2**23 + 1], [-(2**24), 7]])
    points = integers[[0, 2]] + [[-(2**20), 1], [3, 0]]
    client = SpreadCentersClient(ClientData(np.ldexp(integers.astype(float), exponent)), name="0")
    frame = Frame(np.zeros(2), math.ldexp(1.0, exponent + 25))
    costs = client.cluster_sums_and_costs(np.ldexp(points.astype(float), exponent), frame=frame)[2]
    higher, lower = costs.integers.tolist()
    squared = ((integers[:, None] - points) ** 2).sum(axis=2)
    expected = [squared[squared.argmin(axis=1) == cell, cell].sum() for cell in range(2)]
    assert [high * 2**LOWER_BITS + low for high, low in zip(higher, lower, strict=True)] == expected


@pytest.mark.parametrize("lost", [0, 3, 7])
@pytest.mark.parametrize("number", [5, 6, 7, 8])
def test_center_without_rows_is_given_to_the_largest_cell(number, lost):
    seen = {}

    def change(at, reply):
        if at == number:
            reply[0][lost], reply[1][lost] = 0.0, 0.0
            seen["centers"] = reply[0] / np.maximum(reply[1], 1.0)[:, None]
            seen["counts"] = reply[1].copy()
        return reply

    rounds, _, _ = driven(CLUMPY, 8, steps=(2, 4), change=change)
    after = rounds[number].question.arrays[0]
    kept = np.delete(seen["centers"], lost, axis=0)
    assert np.allclose(after[:7], kept, atol=2e-6)
    largest = seen["centers"][seen["counts"].argmax()]
    apart = np.abs(after[7] - largest) / (0.05 * CLUMPY.std(axis=0))
    assert 0 < apart.max() < 5
    assert not any(np.array_equal(after[7], center) for center in kept)


def test_cell_that_is_no_larger_than_the_smallest_counts_as_empty():
    counts = np.array([2.0, 2.5, 30.0, -4.0])

    def change(at, reply):
        return (
            [np.arange(4.0)[:, None] * [10.0, 0.0] * counts[:, None], counts] if at == 3 else reply
        )

    rounds, _, sizes = driven(CLUMPY, 4, steps=(1, 2), smallest=2.0, change=change)
    fourth = rounds[3].question.arrays[0]
    assert fourth.shape == (4, 2)
    # Two are kept, and each is doubled, the larger first.
    np.testing.assert_allclose(fourth[:2], [[10.0, 0.0], [20.0, 0.0]], atol=2e-6)
    assert np.round(fourth[2:, 0] / 10).tolist() == [2.0, 1.0]
    assert sizes.min() >= 0
    _, _, sizes = driven(CLUMPY, 4, steps=(1, 1), smallest=2.0, change=change)
    assert sizes.tolist() == [0.0, 2.5, 30.0, 0.0]


@pytest.mark.parametrize("count", [0.0, -3.0])
def test_where_noise_has_emptied_every_cell_there_are_centers_all_the_same(count):
    def change(at, reply):
        return [reply[0], np.full(len(reply[1]), count)]

    rounds, centers, sizes = driven(CLUMPY, 5, smallest=1.0, change=change)
    assert all(np.isfinite(round_.question.arrays[0]).all() for round_ in rounds)
    assert [len(round_.question.arrays[0]) for round_ in rounds] == [2, 2, 4, 4, 5, 5, 5, 5, 5]
    assert np.isfinite(centers).all()
    assert not sizes.any()


def test_directions_are_those_in_which_the_clipped_rows_are_spread_most():
    rows = (
        RNG.normal(size=(200, 6))
        * [5.0, 0.1, 3.0, 0.2, 0.3, 0.1]
        @ np.linalg.qr(RNG.normal(size=(6, 6)))[0]
    )
    frame = Frame(np.zeros(6), 6.0)
    generator = widest_directions(frame, 2, "directions")
    round_ = next(generator)
    (sent,) = round_.asks.reply(round_.question, rows)
    with pytest.raises(StopIteration) as stop:
        generator.send([sent.values])
    clipped = rows * np.minimum(1.0, 6.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    best = np.linalg.eigh(clipped.T @ clipped)[1][:, -2:]
    np.testing.assert_allclose(stop.value.value @ stop.value.value.T, best @ best.T, atol=5e-4)
    with pytest.raises(StopIteration) as stop:  # as many directions as columns cost no round
        next(widest_directions(frame, 9, "directions"))
    assert np.array_equal(stop.value.value, np.eye(6))

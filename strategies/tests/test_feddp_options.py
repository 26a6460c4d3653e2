"""SimplifyServerData (Algorithm 4) and the reduction of the diameter (Lemma 16)."""

import math

import numpy as np
import pytest

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData
from flower_fedclust.exact.rows import Frame
from flower_fedclust_papers.feddp_proofs import FedDPKMeansProofs, Regions

K, D = 3, 5


def recorded(clients, server_rows, seed=None, **options):
    """The result of a run, and its rounds, each with what it brought."""
    off = {"margin": 1.0, "simplify_server_data": False, "reduce_diameter": False}
    given = {"epsilon": None, "random_state": 2} | off | options
    strategy = FedDPKMeansProofs(K, server_data=server_rows, **given)
    run = watched_run(
        strategy, {str(index): ClientData(rows) for index, rows in enumerate(clients)}, seed=seed
    )
    return run.result, [(round_, run.received[number]) for number, round_ in run.rounds.items()]


@pytest.fixture(scope="module")
def heavy():
    """Three clusters of 200 rows; 5 server rows in each, and 30 far from every row."""
    rng = np.random.default_rng(4)
    means = np.eye(K, D) * 20
    rows = means[rng.integers(K, size=600)] + rng.normal(size=(600, D))
    near = means.repeat(5, axis=0) + rng.normal(size=(5 * K, D))
    far = rng.uniform(100, 140, size=(30, D)) * rng.choice([-1, 1], size=(30, 1))
    return np.split(rows, 3), np.concatenate([near, far]), means


def test_simplify_keeps_server_rows_in_heavy_clusters_and_drops_those_far_from_every_row(heavy):
    clients, server_rows, _ = heavy
    _, yielded = recorded(clients, server_rows, simplify_server_data=True)
    weights = [round_ for round_, _ in yielded if round_.task == "weights"]
    all_rows, Pi = weights[0].question.arrays[:2]
    kept = weights[-1].question.arrays[0]
    origin = server_rows.mean(axis=0)
    np.testing.assert_allclose(all_rows, (server_rows - origin) @ Pi, atol=320 * 2.0**-22)
    index = [int(np.argmin(((all_rows - row) ** 2).sum(axis=1))) for row in kept]
    assert np.array_equal(all_rows[index], kept)
    assert max(index) < 5 * K
    assert {position // 5 for position in index} == {0, 1, 2}


def test_simplify_keeps_all_server_rows_where_fewer_than_k_are_heavy(heavy):
    _, server_rows, means = heavy
    clients = [np.repeat(means[:1], 5, axis=0), np.repeat(means[:1], 5, axis=0)]
    _, yielded = recorded(clients, server_rows, simplify_server_data=True)
    weights = [round_ for round_, _ in yielded if round_.task == "weights"]
    assert len(weights[-1].question.arrays[0]) == len(server_rows)


def test_simplify_follows_algorithm_4_with_the_noisy_weights_that_it_was_sent(heavy):
    clients, server_rows, _ = heavy
    result, yielded = recorded(
        clients, server_rows, seed=1, epsilon=50.0, simplify_server_data=True
    )
    weights = [(round_, brought) for round_, brought in yielded if round_.task == "weights"]
    *simplifying, (last, _) = weights
    all_rows = simplifying[0][0].question.arrays[0]
    T = max(
        1,
        math.ceil(
            10 * math.log(4 * math.log(len(server_rows)) / (50.0 * 0.2 / 1.0 * (1 / (2 * K))))
        ),
    )
    assert 1 <= len(simplifying) <= T

    def positions(rows):
        return {int(np.flatnonzero((all_rows == row).all(axis=1))[0]) for row in rows}

    F, Q = set(), set(range(len(all_rows)))
    for t, (round_, (noisy,)) in enumerate(simplifying):
        C = sorted(F | Q)
        assert positions(round_.question.arrays[0]) == set(C)
        scale = round_.releases[0].scale  # T / epsilon
        # Lemma 25.
        L = {q for q, w in zip(C, noisy, strict=True) if w <= scale * math.log(T * len(all_rows))}
        F |= Q - L
        if t + 1 < len(simplifying):
            Q = positions(simplifying[t + 1][0].question.arrays[0]) - F
            assert Q <= L
    assert positions(last.question.arrays[0]) == (F if len(F) >= K else set(range(len(all_rows))))
    assert result.privacy.epsilon <= 50.0


def test_simplify_thins_out_the_light_server_rows_by_half(heavy):
    _, _, means = heavy
    rng = np.random.default_rng(0)
    crowd = np.concatenate([means, rng.uniform(100, 200, size=(400, D))])
    clients = [np.repeat(means, 50, axis=0)] * 2
    _, yielded = recorded(clients, crowd, simplify_server_data=True)
    sizes = [len(round_.question.arrays[0]) for round_, _ in yielded if round_.task == "weights"]
    assert sizes[0] == 403
    assert 160 < sizes[1] - 3 < 240
    assert 70 < sizes[2] - 3 < 130
    assert sizes[-1] == 3


def two_far_groups(far):
    """Three clusters: two in one group and one in another, with server rows that surround the rows."""
    rng = np.random.default_rng(6)
    means = np.zeros((K, D))
    means[1, 1] = 6.0
    means[2, 0] = far
    rows = np.concatenate([mean + rng.uniform(-0.5, 0.5, size=(80, D)) for mean in means])
    corners = np.array(
        [[s if i == j else 0.0 for i in range(D)] for j in range(D) for s in (-3.0, 3.0)]
    )
    server_rows = np.concatenate(
        [mean + part for mean in means for part in (corners, rng.uniform(-1, 1, (10, D)))]
    )
    rng.shuffle(rows)
    return np.split(rows, [50, 130]), server_rows


def radii(yielded):
    """Of the balls to which the rounds clip."""
    return [
        round_.question.frame.radius
        if round_.question.view is None
        else round_.question.view.arguments["radius"]
        for round_, _ in yielded
    ]


def test_far_groups_are_moved_together_and_the_centers_come_back():
    clients, server_rows = two_far_groups(1e6)
    plain, _ = recorded(clients, server_rows, n_rounds=1)
    reduced, yielded = recorded(clients, server_rows, n_rounds=1, reduce_diameter=True)
    before, *after = radii(yielded)
    assert before > 4e5
    assert max(after) < 1e4
    order = [reduced.model.predict([center])[0] for center in plain.model.cluster_centers_]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(
        reduced.model.cluster_centers_[order],
        plain.model.cluster_centers_,
        rtol=0,
        atol=1e6 * 2.0**-24,
    )


def test_compact_group_is_left_as_it_is():
    clients, server_rows = two_far_groups(8.0)
    plain, _ = recorded(clients, server_rows)
    reduced, yielded = recorded(clients, server_rows, reduce_diameter=True)
    assert len(set(radii(yielded))) == 1
    assert np.array_equal(reduced.model.cluster_centers_, plain.model.cluster_centers_)


def test_noise_shrinks_with_the_diameter():
    clients, server_rows = two_far_groups(1e7)
    scales = []
    for reduce_diameter in (False, True):
        _, yielded = recorded(
            clients, server_rows, seed=0, epsilon=4.0, reduce_diameter=reduce_diameter
        )
        scales.append(yielded[-1][0].releases[0].scale)
    assert scales[1] < scales[0] / 100


def test_spread_and_smallest_cluster_are_used():
    clients, server_rows = two_far_groups(1e6)
    # With a spread as large as the gap everything is one region, and nothing is moved.
    _, yielded = recorded(clients, server_rows, reduce_diameter=True, spread=1e6)
    assert len(set(radii(yielded))) == 1
    # The last cluster is a third of the rows: asked for nine tenths, no region is heavy enough.
    _, yielded = recorded(clients, server_rows, reduce_diameter=True, smallest_cluster=300.0)
    assert len(set(radii(yielded))) == 1


def test_regions_are_left_where_they_were_entered():
    rng = np.random.default_rng(0)
    anchors = np.array([[0.0, 0.0, 0.0], [1e4, 0.0, 0.0]])
    regions = Regions(anchors, np.array([[0.0, 0.0, 0.0], [-1e4 + 50.0, 3.0, 0.0]]), 60.0)
    frame = Frame(np.zeros(3), 2e4)
    near = rng.uniform(-8, 8, size=(30, 3))
    rows = np.concatenate([near, near + np.array([1e4, 0.0, 0.0])])
    entered = regions.enter(frame.rows(rows)).values
    assert np.linalg.norm(entered, axis=1).max() < regions.radius - 1
    unit = frame.radius * 2.0**-24
    np.testing.assert_allclose(
        entered[30:], entered[:30] + np.array([50.0, 3.0, 0.0]), atol=2 * unit
    )
    np.testing.assert_allclose(regions.leave(entered), rows, rtol=0, atol=2 * unit)

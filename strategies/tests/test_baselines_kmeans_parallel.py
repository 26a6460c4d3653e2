import numpy as np
import pytest
from flwr.server import SimpleClientManager
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import make_blobs

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData, DataError, Reply, Sum
from flower_fedclust.exact.exponents import exponent_indicator
from flower_fedclust.exact.grid import unit_exponent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.kmeans_parallel import KMeansParallel, KMeansParallelClient
from flower_fedclust_papers.perturbed_rows import NOISY_ROWS

K = 6
ROWS, _ = make_blobs(900, n_features=4, centers=K, random_state=2)
CLIENTS = np.split(ROWS, [200, 201, 450, 700])


def cost_of(rows, centers):
    return (cdist(rows, centers) ** 2).min(axis=1).sum()


def client_of(rows, name="0"):
    return KMeansParallelClient(ClientData(rows), name=name)


def far_rows(client, candidates, *, cost, **options):
    """What a client draws in a frame that has room for all, where the cost is given in the units of the data."""
    frame = Frame(np.zeros(candidates.shape[1]), 128.0)
    cost = cost * 4.0 ** -unit_exponent(frame.radius)
    return client.far_rows(candidates, *frame.arrays, cost=cost, **options)


def recorded(clients=CLIENTS, seed=0, n_clusters=K, **options):
    """The rounds of a run, each with what it brought, and its result."""
    data = {str(index): ClientData(rows) for index, rows in enumerate(clients)}
    run = watched_run(KMeansParallel(n_clusters, **options), data, seed=seed)
    return [(round_, run.received[number]) for number, round_ in run.rounds.items()], run.result


# The draws


def test_each_row_is_drawn_with_the_papers_probability():
    rows, candidates = ROWS[:50], ROWS[[1, 60, 300]]
    squared = (cdist(rows, candidates) ** 2).min(axis=1)
    chances = np.minimum(4.0 * squared / squared.sum(), 1.0)
    client = client_of(rows)
    n_runs = 3000
    times = np.zeros(50)
    for seed in range(n_runs):
        drawn = far_rows(
            client, candidates, oversampling=4.0, cost=squared.sum(), random_state=seed
        )
        times += (rows[:, None] == drawn).all(axis=2).any(axis=1)
    assert times[1] == 0  # a candidate
    np.testing.assert_allclose(times / n_runs, chances, atol=4.5 * 0.5 / np.sqrt(n_runs))
    assert times.sum() == pytest.approx(
        n_runs * chances.sum(), abs=4.5 * np.sqrt(n_runs * chances.sum())
    )


def test_clients_draw_independently_of_one_another():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    options = {"oversampling": 100.0, "cost": cost_of(rows, rows[:1]), "random_state": 7}
    drawn = [
        {tuple(row) for row in far_rows(client_of(rows, name), rows[:1], **options)}
        for name in ("0", "1")
    ]
    assert drawn[0] != drawn[1]
    assert len(drawn[0] & drawn[1]) < 0.75 * min(map(len, drawn))


def test_first_candidate_is_any_row_with_the_same_probability():
    parts = [np.array([[0.0]]), np.array([[1.0], [2.0], [3.0]]), np.arange(4.0, 10.0)[:, None]]
    found = []
    for seed in range(1000):
        strategy = KMeansParallel(2, random_state=seed)
        strategy.initialize_parameters(SimpleClientManager())
        protocol = strategy.protocol()
        origin, radius = np.full(1, 4.5), 8.0
        next(protocol)
        for found_so_far in ([exponent_indicator(4)], [45.0, 10.0], [exponent_indicator(3)]):
            asked = protocol.send([np.asarray(array, dtype=float) for array in found_so_far])
        answers = [
            client_of(part, str(index)).uniform_row(**asked.question.arguments)
            for index, part in enumerate(parts)
        ]
        asked = protocol.send(
            [Reply(str(index), list(answer)) for index, answer in enumerate(answers)]
        )
        (candidates,), frame = asked.question.arrays, asked.question.frame
        assert (frame.origin, frame.radius) == (origin, radius)
        found.append(int(candidates[0, 0] + origin[0]))
    np.testing.assert_allclose(np.bincount(found, minlength=10), 100, atol=4.5 * np.sqrt(100 * 0.9))


@pytest.mark.parametrize("oversampling", [6.0, None, 40.0])
def test_a_round_draws_about_as_many_rows_as_oversampling_says(oversampling):
    n_drawn = []
    for seed in range(8):
        log, _ = recorded(seed=seed, oversampling=oversampling, n_rounds=0)
        for round_, brought in log:
            if round_.task == "far_rows":
                n_drawn.append(sum(len(reply.arrays[0]) for reply in brought))
    wanted = 2 * K if oversampling is None else oversampling
    # Binomial, with a probability of at most 1 for every row: the mean may be a little less.
    assert np.mean(n_drawn) < wanted + 4 * np.sqrt(wanted / len(n_drawn))
    assert np.mean(n_drawn) > 0.85 * wanted - 4 * np.sqrt(wanted / len(n_drawn))


def test_candidates_are_rows_and_all_are_different_and_the_weights_are_those_of_the_pooled_rows():
    repeated = [rows.repeat(2, axis=0) for rows in CLIENTS]
    log, _ = recorded(repeated, oversampling=60.0)
    (round_, brought) = next(entry for entry in log if entry[0].task == "candidate_weights")
    (candidates,), origin = round_.question.arrays, round_.question.frame.origin
    candidates = candidates + origin
    assert len(np.unique(candidates, axis=0)) == len(candidates)
    assert {tuple(row) for row in candidates} <= {tuple(row - origin + origin) for row in ROWS}
    nearest = cdist(np.concatenate(repeated), candidates).argmin(axis=1)
    np.testing.assert_array_equal(brought[0], np.bincount(nearest, minlength=len(candidates)))
    assert brought[0].min() >= 1


def test_centers_before_lloyd_are_the_means_of_the_candidates_by_weight():
    log, result = recorded(n_rounds=0, oversampling=40.0)
    (round_, brought) = log[-1]
    (weights,), centers = brought, result.model.cluster_centers_
    candidates = round_.question.arrays[0] + round_.question.frame.origin
    nearest = cdist(candidates, centers).argmin(axis=1)
    for index, center in enumerate(centers):
        own = nearest == index
        np.testing.assert_allclose(
            center, np.average(candidates[own], axis=0, weights=weights[own]), rtol=1e-9
        )


def test_costs_in_the_history_are_those_of_the_candidates_and_fall():
    log, result = recorded()
    asked = [
        round_.question.arrays[0] + round_.question.frame.origin
        for round_, _ in log
        if round_.task == "candidate_cost"
    ]
    np.testing.assert_allclose(
        result.history["candidate_cost"],
        [cost_of(ROWS, candidates) for candidates in asked],
        rtol=1e-6,
    )
    assert (np.diff(result.history["candidate_cost"]) < 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_clustered_candidates_are_as_good_as_pooled_kmeans_plusplus(seed):
    result = simulate(KMeansParallel(K, n_rounds=0), CLIENTS, seed=seed)
    seeds, _ = kmeans_plusplus(ROWS, K, random_state=seed)
    optimum = KMeans(K, n_init=10, random_state=0).fit(ROWS).inertia_
    assert result.metrics["cost"] < 1.2 * cost_of(ROWS, seeds)
    assert result.metrics["cost"] < 1.5 * optimum


# Lloyd's steps


def test_last_rounds_are_pooled_lloyd_steps():
    clients = [rows + np.random.default_rng(1).normal(size=rows.shape) * 3 for rows in CLIENTS]
    start = simulate(KMeansParallel(K, n_rounds=0), clients, seed=4).model.cluster_centers_
    result = simulate(KMeansParallel(K, n_rounds=3, tol=0.0), clients, seed=4)
    rows, centers = np.concatenate(clients), start
    for _ in range(3):
        nearest = cdist(rows, centers).argmin(axis=1)
        centers = np.array([rows[nearest == index].mean(axis=0) for index in range(K)])
    assert not np.allclose(centers, start, atol=1e-3)
    np.testing.assert_allclose(result.model.cluster_centers_, centers, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_only_the_scale_of_the_result_depends_on_the_scale_of_the_rows(scale):
    plain = simulate(KMeansParallel(K, n_rounds=0), CLIENTS, seed=1).model.cluster_centers_
    scaled = simulate(KMeansParallel(K, n_rounds=0), [rows * scale for rows in CLIENTS], seed=1)
    order = cdist(plain, scaled.model.cluster_centers_ / scale).argmin(axis=1)
    np.testing.assert_allclose(scaled.model.cluster_centers_[order] / scale, plain, rtol=1e-6)


# Edges


def test_all_rows_on_candidates_end_the_draws_early():
    rows = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 7.0]])
    clients = [rows[[0, 0, 1]], rows[[1, 2]], rows[[2, 0, 2, 1]]]
    result = simulate(KMeansParallel(3, n_sampling_rounds=40, oversampling=50.0), clients, seed=0)
    assert result.history["candidate_cost"][-1] == 0
    assert len(result.history["candidate_cost"]) < 40
    found = result.model.cluster_centers_
    np.testing.assert_allclose(
        found[np.lexsort(found.round(3).T[::-1])], rows[np.lexsort(rows.T[::-1])], atol=1e-6
    )


def test_too_few_distinct_rows_or_draws_are_refused():
    clients = [np.array([[1.0, 2.0]] * 9), np.array([[3.0, 4.0]] * 9)]
    with pytest.raises(DataError, match="n_clusters"):
        simulate(KMeansParallel(3), clients, seed=0)
    with pytest.raises(DataError, match="oversampling"):
        simulate(KMeansParallel(K, oversampling=1e-9), CLIENTS, seed=0)


# What leaves a client


def test_with_epsilon_nothing_is_computed_from_the_rows_themselves():
    log, _ = recorded(epsilon=5.0, max_norm=20.0)
    (first, *others) = [round_ for round_, _ in log]
    assert (first.task, first.rows) == ("perturb_rows", "")
    assert isinstance(first, Sum)
    assert others
    assert all(round_.rows == NOISY_ROWS for round_ in others)
    true = {tuple(row) for row in ROWS}
    drawn = [
        reply.arrays[0] for round_, brought in log if round_.task == "far_rows" for reply in brought
    ]
    assert not true & {tuple(row) for row in np.concatenate(drawn)}


def test_centers_of_noisy_rows_lie_where_those_of_clipped_rows_must():
    result = simulate(KMeansParallel(K, epsilon=1.0, max_norm=5.0), CLIENTS, seed=0)
    (release,) = [message.release for message in result.privacy.releases]
    assert (release.sensitivity, release.relation) == (pytest.approx(10.0), "replace")
    assert result.privacy.covers_everything
    assert np.linalg.norm(result.model.cluster_centers_, axis=1).max() <= 5.0 * (1 + 1e-12)

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import make_blobs

from flower_fedclust.checking import watched_run
from flower_fedclust.engine import ClientData
from flower_fedclust.simulation import simulate
from flower_fedclust_papers.coreset_kmedian import CoresetKMedian
from flower_fedclust_papers.kmedian import (
    alternate,
    kmedian_cost,
    weighted_kmedian,
    without_negative_weights,
)

K = 6
ROWS, _ = make_blobs(900, n_features=4, centers=K, random_state=2)
CLIENTS = np.split(ROWS, [200, 201, 450, 700])
POOLED = kmedian_cost(ROWS, weighted_kmedian(ROWS, None, K, np.random.default_rng(0)))


def recorded(clients=CLIENTS, seed=0, n_clusters=K, **options):
    """The rounds of a run, each with what it brought, and its result."""
    data = {str(index): ClientData(rows) for index, rows in enumerate(clients)}
    run = watched_run(CoresetKMedian(n_clusters, **options), data, seed=seed)
    return [(round_, run.received[number]) for number, round_ in run.rounds.items()], run.result


def k_median_cost(result, rows=ROWS):
    return cdist(rows, result.model.cluster_centers_).min(axis=1).sum()


# The coreset


@pytest.mark.parametrize("coreset_size", [1, 30, 2000])
def test_weights_of_a_client_add_up_to_the_number_of_its_rows(coreset_size):
    log, _ = recorded(coreset_size=coreset_size)
    _, replies = log[-1]
    totals = [reply.arrays[1].sum() + reply.arrays[3].sum() for reply in replies]
    np.testing.assert_allclose(totals, [len(rows) for rows in CLIENTS], rtol=1e-10)


def test_samples_are_divided_in_proportion_to_the_costs():
    log, _ = recorded(coreset_size=100)
    (_, costs), (round_, replies) = log
    costs = np.array([float(reply.arrays[0]) for reply in costs])
    n_samples = np.array([round_.question[str(index)].arguments["n_samples"] for index in range(5)])
    assert n_samples.sum() == 100
    assert (np.abs(n_samples - 100 * costs / costs.sum()) < 1).all()
    assert (n_samples[1], costs[1]) == (0, 0.0)  # of a client with one row
    assert round_.question["0"].arguments["cost_per_sample"] == pytest.approx(costs.sum() / 100)
    for reply, own in zip(replies, n_samples, strict=True):
        assert len(reply.arrays[0]) <= own


def test_samples_are_the_clients_own_rows_and_the_cost_is_that_of_its_medians():
    log, _ = recorded(coreset_size=400)
    (_, costs), (_, replies) = log
    for rows, cost, reply in zip(CLIENTS, costs, replies, strict=True):
        samples, _, medians, _ = reply.arrays
        assert {tuple(row) for row in samples} <= {tuple(row) for row in rows}
        assert float(cost.arrays[0]) == pytest.approx(kmedian_cost(rows, medians), rel=1e-12)


def test_size_by_default_is_20_a_cluster_and_at_least_500():
    for n_clusters, size in ((3, 500), (40, 800)):
        log, _ = recorded(n_clusters=n_clusters)
        assert sum(asked.arguments["n_samples"] for asked in log[-1][0].question.values()) == size


def test_centers_solve_k_median_on_the_coreset_without_negative_weights():
    log, result = recorded(coreset_size=100)
    replies = [reply.arrays for reply in log[-1][1]]
    coreset = np.concatenate([arrays[at] for arrays in replies for at in (0, 2)])
    weights = np.concatenate(
        [own for arrays in replies for own in without_negative_weights(*arrays)]
    )
    centers = result.model.cluster_centers_
    _, costs = alternate(coreset, weights, centers, tol=0.0)
    assert costs[0] < costs[-1] * (1 + 1e-4)
    _, costs = alternate(coreset, np.ones(len(coreset)), centers, tol=0.0)
    assert costs[0] > costs[-1] * (1 + 1e-3)


def test_history_has_the_cost_that_the_coreset_gives_and_it_is_about_that_of_the_rows():
    log, result = recorded(coreset_size=1000)
    (cost,) = result.history["coreset_cost"]
    parts = [reply.arrays[at : at + 2] for reply in log[-1][1] for at in (0, 2)]
    raw = sum(
        kmedian_cost(points, result.model.cluster_centers_, weights) for points, weights in parts
    )
    assert cost == pytest.approx(raw, rel=1e-9)
    assert cost == pytest.approx(k_median_cost(result), rel=0.05)


# How good it is


@pytest.mark.parametrize(("coreset_size", "factor"), [(None, 1.03), (20_000, 1.005)])
def test_blobs_are_found_about_as_well_as_by_pooled_k_median(coreset_size, factor):
    for seed in range(2):
        result = simulate(CoresetKMedian(K, coreset_size=coreset_size), CLIENTS, seed=seed)
        assert k_median_cost(result) < factor * POOLED


def test_centers_are_medians_which_rows_far_out_hardly_move():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(400, 2)), rng.normal([30.0, 0.0], 1.0, size=(400, 2))])
    rows[::20] += [0.0, 25.0]
    centers = simulate(
        CoresetKMedian(2, coreset_size=2000), np.split(rows, 4), seed=0
    ).model.cluster_centers_
    np.testing.assert_allclose(
        centers[centers[:, 0].argsort()], [[0.0, 0.0], [30.0, 0.0]], atol=0.4
    )


# Edges


def test_client_with_fewer_different_rows_than_clusters_sends_these_with_their_numbers():
    few = np.array([[1.0, 2.0, 3.0, 4.0]] * 3 + [[0.0, 0.0, 0.0, 0.0]] * 2)
    log, _ = recorded([CLIENTS[0], few, CLIENTS[3]])
    samples, weights, medians, median_weights = log[-1][1][1].arrays
    assert (len(samples), len(weights)) == (0, 0)
    np.testing.assert_array_equal(medians, few[[3, 0]])
    np.testing.assert_array_equal(median_weights, [2.0, 3.0])


# What leaves a client

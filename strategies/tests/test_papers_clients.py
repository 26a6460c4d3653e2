"""What clients of the second distribution reveal, and what one client or a few can do to the others' run."""

import pytest
from test_engine_hostile_clients import BAD, run, score, times_10_000, with_arrays
from test_results_doubts import CLIENTS, codes

import flower_fedclust as fc
from flower_fedclust.inputs import make_strategies
from flower_fedclust_papers.coreset_kmedian import CoresetKMedianClient
from flower_fedclust_papers.dsc import DSCClient, LocalClustersClient
from flower_fedclust_papers.fed_ssc import FedSubspaceClusteringClient
from flower_fedclust_papers.ffcm import FuzzyClient
from flower_fedclust_papers.kmeans_parallel import KMeansParallelClient
from flower_fedclust_papers.ppfc_gan import PPFCGANClient


@pytest.mark.parametrize(
    ("answer", "reveals"),
    [
        (DSCClient.spectral_clusters, ["centers", "centers"]),
        (LocalClustersClient.merged_labels, ["codes"]),
        (FedSubspaceClusteringClient.subspace_points, ["centers"]),
        (CoresetKMedianClient.own_cost, ["sums"]),
        (CoresetKMedianClient.coreset, ["rows", "codes", "centers", "centers"]),
        (KMeansParallelClient.uniform_row, ["rows", "sums"]),
        (KMeansParallelClient.far_rows, ["rows"]),
        (FuzzyClient.fuzzy_sums, ["sums", "sums"]),
        (FuzzyClient.own_fuzzy_sums, ["centers", "centers"]),
        (PPFCGANClient.synthetic_rows, ["codes"]),
    ],
    ids=lambda value: getattr(value, "task", ""),
)
def test_a_message_declares_what_it_reveals(answer, reveals):
    assert [sent.reveals for sent in answer.answer.sends] == reveals


def test_a_client_that_overstates_its_costs_does_not_keep_all_from_drawing(data):
    def attack(task, res):
        return with_arrays(res, lambda array: array * 30) if task == "candidate_cost" else res

    assert score(run("k-means-parallel", data, attack, n_sampling_rounds=1), data) > 0.5


def test_a_client_that_sends_rows_beyond_all_is_left_out_by_name(data):
    def attack(task, res):
        return times_10_000(task, res) if task == "far_rows" else res

    strategy = run("k-means-parallel", data, attack)
    assert {(failure.task, failure.client) for failure in strategy.failures} == {("far_rows", BAD)}


@pytest.mark.parametrize("name", ["ffcm-private", "k-means-parallel", "coreset-k-median"])
def test_every_strategy_that_collapses_there_says_so(name):
    (strategy,) = make_strategies([name], {"n_clusters": 6, "epsilon": 1.0, "max_norm": 60.0}, None)
    result = fc.simulate(strategy, CLIENTS, seed=0)
    assert codes(result)[0] in ("one-cluster", "no-better-than-one")

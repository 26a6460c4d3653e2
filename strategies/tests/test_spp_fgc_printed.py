"""SPP-FGC as its paper prints it: what it finds, its parts, its noise, and what the report says of it."""

import math

import numpy as np
import pytest
from test_spp_fgc import CLIENTS, accuracies, assert_complete, seen_by_the_server
from test_spp_fgc_privacy import assert_nothing_is_covered, ran
from test_spp_fgc_uploads import ARGUMENTS, CLASSES, CLUMPS, ROWS, gathered

from flower_fedclust.engine import ClientData, DataError, Reply
from flower_fedclust.numerics.prototypes import kullback_leibler, prototypes_of
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.noise import SeededNoise
from flower_fedclust.simulation import simulate
from flower_fedclust_papers import spp_fgc_printed
from flower_fedclust_papers.rank_constraint import constrained_client_graph
from flower_fedclust_papers.spp_fgc_printed import (
    SPPFGCPrinted,
    SPPFGCPrintedClient,
    mixture_labels,
    noisy_as_in_the_paper,
    printed_affinity,
)

OURS = {"solver": "spectral", "prototypes": "atoms", "affinity": "distances"}


def graph_reply(rows, name="0", **options):
    client = SPPFGCPrintedClient(ClientData(rows), name=name, noise_seed=0)
    printed = {
        "rank_constraint": False,
        "mixture": False,
        "epsilon": math.inf,
        "max_l1_norm": math.inf,
    }
    with one_thread():  # as in a run
        return Reply(name, list(client.printed_graph(**(ARGUMENTS | printed | options))))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "at_most"), [("iris", 0.88), ("breast-cancer", 0.75), ("moons", 0.75)]
)
def test_recipe_as_it_is_printed_finds_far_less(name, at_most):
    printed = np.mean(accuracies(name, "iid", range(2), kind=SPPFGCPrinted))
    assert printed <= at_most
    assert printed <= np.mean(accuracies(name, "iid", range(2))) - 0.08


def test_printed_affinity_is_equation_10():
    divergences, client = np.random.default_rng(0).exponential(size=(9, 9)), np.arange(9) // 3
    expected = [
        [np.exp(-divergences[a, b]) * (client[a] != client[b]) for b in range(9)] for a in range(9)
    ]
    np.testing.assert_allclose(printed_affinity(divergences, client), expected, rtol=1e-15)


def test_affinity_as_printed_is_the_exponential_of_kl():
    seen = seen_by_the_server("kl")
    divergences = kullback_leibler(seen["prototypes"])
    owner = seen["found"].client
    expected = np.where(owner[:, None] != owner, np.exp(-divergences), 0.0)
    np.testing.assert_allclose(seen["graph"].affinity, 0.5 * (expected + expected.T))


def test_rank_constraint_is_refused_for_more_rows_than_fit(monkeypatch):
    monkeypatch.setattr(spp_fgc_printed, "MOST_ROWS_OF_S", 119)
    with pytest.raises(DataError, match="120 different rows"):
        simulate(SPPFGCPrinted(3), CLIENTS, seed=0)
    assert_complete(simulate(SPPFGCPrinted(3, solver="spectral"), CLIENTS, seed=0), CLIENTS)


def test_graph_with_more_neighbors_than_asked_for_arrives_too():
    # Under the rank constraint a client takes more until it has no more components than clusters.
    graph = constrained_client_graph(CLUMPS, 2, 3)
    assert graph.neighbors.shape[1] > 3
    options = {"rank_constraint": True, "n_clusters": 2, "n_neighbors": 3}
    found = gathered([graph_reply(CLUMPS, **options), graph_reply(ROWS, "1", **options)])
    np.testing.assert_allclose(found.blocks[0].toarray(), graph.symmetric.toarray(), atol=1e-7)


@pytest.mark.parametrize("scale", [1e-100, 1e-3, 1.0, 1e6, 1e100])
@pytest.mark.parametrize("columns", [[0, 1, 2], [0, 1, 1, 0], [0]], ids=["own", "singular", "one"])
def test_mixture_is_the_same_in_any_unit_of_the_rows(scale, columns):
    rows = ROWS[:, columns]
    expected = mixture_labels(rows, 3, np.random.default_rng(0))
    found = mixture_labels(scale * (rows + 5), 3, np.random.default_rng(0))
    assert np.array_equal(found, expected)
    if len(columns) > 1:
        assert all(len(set(CLASSES[found == cluster])) == 1 for cluster in range(3))


# The noise of the paper


@pytest.mark.parametrize("diagonal", [False, True])
def test_noise_of_the_paper_has_the_scales_of_appendix_c(diagonal):
    found = prototypes_of(ROWS, CLASSES, diagonal=diagonal)
    bound, epsilon, smallest = 10.0, 1e6, np.bincount(CLASSES).min()
    draws = [
        noisy_as_in_the_paper(found, epsilon, bound, SeededNoise([seed])) for seed in range(400)
    ]
    means = np.array([draw.means - found.means for draw in draws])
    covariances = np.array([draw.covariances - found.covariances for draw in draws])
    assert np.abs(means).mean() == pytest.approx(2 * bound / (smallest * epsilon), rel=0.1)
    scale = (2 * math.sqrt(2) + 4) * bound**2 / (smallest * epsilon)
    assert np.abs(covariances).mean() == pytest.approx(scale, rel=0.1)
    assert np.array_equal(draws[0].counts, found.counts)
    if not diagonal:
        assert np.array_equal(draws[0].covariances, draws[0].covariances.transpose(0, 2, 1))


def test_client_adds_the_noise_of_the_paper_where_there_is_an_epsilon():
    exact = graph_reply(ROWS).arrays
    noisy = graph_reply(ROWS, epsilon=1.0, max_l1_norm=100.0).arrays
    for position in (0, 1, 2, 5):
        assert np.array_equal(exact[position], noisy[position])
    assert not np.allclose(exact[3], noisy[3])
    assert not np.allclose(exact[4], noisy[4])
    clipped = graph_reply(ROWS, max_l1_norm=0.1).arrays
    assert np.abs(clipped[3]).sum(axis=1).max() <= 0.1 * (1 + 1e-9)


@pytest.mark.parametrize("options", [OURS, {}], ids=["ours", "printed"])
def test_noise_of_the_paper_is_no_release_and_the_report_says_so(options):
    seen, result = ran(SPPFGCPrinted, **options)
    assert not any(release for round_ in seen for release in round_.releases)
    assert_nothing_is_covered(result.privacy)
    assert (
        sum("as the paper scales it, which proves nothing" in note for note in result.privacy.notes)
        == 1
    )


def test_noise_without_a_norm_is_refused():
    with pytest.raises(ValueError, match="max_l1_norm"):
        SPPFGCPrinted(3, epsilon=1.0).check_complete()

"""What a result says against itself."""

import json

import numpy as np
import pytest
from unequal import unequal_classes

import flower_fedclust as fc
from flower_fedclust.data import Table, partition
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.rounds import DensityGain
from flower_fedclust.harness.run import doubt_lines
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.validity import ALL_FOUND_AGAIN, Repeated
from flower_fedclust.results.doubts import (
    _of_other_runs,
    collapse_of,
    doubts_about_labels,
    doubts_over_runs,
    reason_of,
    told_by_sites,
)
from flower_fedclust.results.result import result_of
from flower_fedclust.strategies.common.noisy_cells import (
    EQUALLY_GOOD,
    Compared,
    NoisyCells,
    repeated,
    weights_by_costs,
)

TABLE = [part for _, part in unequal_classes().groupby("site")]
CLIENTS = [part[["first", "second", "third"]].to_numpy() for part in TABLE]
LABELS = [part["kind"].to_numpy() for part in TABLE]


@pytest.fixture(scope="module")
def collapsed():
    strategy = fc.PrivateFederatedKMeans(6, epsilon=1.0, max_norm=60.0)
    return fc.simulate(strategy, CLIENTS, labels=LABELS, seed=0)


def codes(result):
    return [doubt.code for doubt in result.doubts]


def test_the_run_that_accuracy_praises_is_called_what_it_is(collapsed, tmp_path):
    assert collapsed.metrics["accuracy"] > 0.74
    assert collapsed.doubts[0].sentence == "This run found nothing: all rows in one cluster."
    assert codes(collapsed) == ["one-cluster", "drowned", "on-the-bound"]
    assert [doubt.basis for doubt in collapsed.doubts] == ["rows", "released", "released"]
    assert "All rows in one cluster".lower() in doubt_lines(collapsed)
    saved = json.loads((collapsed.save(tmp_path / "run") / "metrics.json").read_text())
    assert [one["code"] for one in saved["doubts"]] == codes(collapsed)


def test_a_run_that_found_the_groups_leaves_no_doubt():
    result = fc.simulate(fc.PrivateKMeans(6, epsilon=1.0, max_norm=60.0), CLIENTS, seed=0)
    assert result.metrics["cost_per_row"] < 0.2
    assert result.doubts == ()


def test_without_rows_at_hand_what_was_released_tells_of_the_collapse():
    strategy = fc.FederatedKMeans(2, init=np.array([[0.0, 0.0, 0.0], [2.5, 2.5, 2.5]]), n_rounds=1)
    rows = [np.full((50, 3), 0.1) * np.arange(1, 51)[:, None] / 50 for _ in range(2)]
    run_inline(strategy, {"a": ClientData(rows[0]), "b": ClientData(rows[1])}, [None, None])
    result = result_of(strategy, {}, 0.0)
    assert result.labels == []
    assert [(doubt.code, doubt.basis) for doubt in result.doubts] == [
        ("one-cluster", "released"),
        ("empty", "released"),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_clusters_that_another_run_would_not_find_are_a_doubt(seed, tmp_path):
    rows = np.array_split(np.random.default_rng(0).standard_normal((3000, 4)), 3)
    result = fc.simulate(fc.PrivateKMeans(3, epsilon=1.0, max_norm=8.0), rows, seed=seed)
    (doubt,) = (doubt for doubt in result.doubts if doubt.code == "unstable")
    assert doubt.numbers["ari"] < 0.9
    assert f"{doubt.numbers['reason']} is the reason" in doubt.sentence
    assert f"{doubt.numbers['ari']:.2f}" in doubt.sentence
    assert doubt.basis == "released"
    assert doubt in fc.load(result.save(tmp_path / "run")).doubts


@pytest.mark.parametrize(
    ("without_noise", "excess", "equal_within", "reason"),
    [
        (0.97, 0.005, np.inf, "noise"),
        (0.5, 0.04, 0.02, "noise"),
        (0.5, 0.3, 0.002, "noise"),
        (0.97, 0.02, 0.002, "table"),
        (0.6, 0.005, 0.02, "search"),
    ],
)
def test_an_unstable_result_names_its_clusters_and_its_reason_and_advises_what_changes_it(
    without_noise, excess, equal_within, reason
):
    again = Repeated(0.7, np.array([0.99, 0.5, 0.6]), without_noise, excess, equal_within)
    (doubt,) = _of_other_runs(again.agreement, again)
    assert doubt.numbers["reason"] == reason
    assert doubt.numbers["clusters"] == [1, 2]
    assert doubt.sentence.endswith("It would find cluster 0 again, but not clusters 1 and 2.")
    assert ("or a larger epsilon" in doubt.sentence) == (reason == "noise")
    assert ("at least two ways to divide it cost the same up to 0.2%" in doubt.sentence) == (
        reason == "table"
    )
    assert _of_other_runs(0.97, again) == []
    # Four clusters that all would be found again have an index of 0.73: the limits of runs and of clusters differ.
    assert _of_other_runs(ALL_FOUND_AGAIN, again) == []
    assert _of_other_runs(ALL_FOUND_AGAIN, None) == []  # of a mixture or a density
    assert _of_other_runs(0.73, None)


def test_a_gain_over_one_gaussian_is_clear_only_beyond_four_deviations_of_its_noise():
    assert DensityGain(mean=1.0, deviation=0.2, hidden=0.1).is_clear
    assert not DensityGain(mean=1.0, deviation=0.3, hidden=0.1).is_clear


CORNERS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
#: Two ways to make pairs of the corners of a square: one is left and right, the other above and below.
TWO_WAYS = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])


def again_at_corners(costs, deviation):
    """Imitate other runs where four equal corners are divided in the first way, and these costs were released."""
    numbers = np.random.default_rng(0)
    points = np.repeat(CORNERS, 5, axis=0) + 0.01 * numbers.standard_normal((20, 2))
    cells = NoisyCells(points, np.full(20, 500.0), np.full(2, 0.01), 1.0, 1.0)
    compared = [Compared(TWO_WAYS, np.array(costs), deviation)]
    return repeated(cells, TWO_WAYS[0], np.zeros((2, 2)), np.eye(2), 0.0, compared, numbers)


def test_a_table_that_can_be_divided_in_two_ways_is_told_from_one_that_cannot_by_released_costs():
    """All cells look the same: only the comparison of costs knows that one way is better, or that it cannot say."""
    equal, worse, unknown = (
        again_at_corners(*of) for of in (([0.5, 0.5], 1e-4), ([0.5, 0.6], 1e-4), ([0.5, 0.5], 0.1))
    )
    assert equal.equal_within < EQUALLY_GOOD < 0.05 < worse.equal_within
    assert unknown.equal_within > 0.1


def test_an_imitated_run_knows_what_the_comparison_of_costs_has_ruled_out():
    """The cells prefer neither way; where the run found that the other one costs more, other runs find that, too."""
    undecided, decided = again_at_corners([0.5, 0.5], 1e-4), again_at_corners([0.5, 0.7], 1e-4)
    assert decided.agreement > 0.95
    assert undecided.agreement < 0.8


def test_without_noise_drawn_rows_have_the_released_means_and_costs():
    rows = np.random.default_rng(0).standard_normal((2000, 2))
    costs = np.stack([squared_distances(rows, one).min(axis=1) for one in TWO_WAYS])
    released = np.array([-0.05, 0.05])
    weights = weights_by_costs(rows, [Compared(TWO_WAYS, released, 0.0)])
    assert np.allclose(np.diff(costs @ weights / weights.sum()), 0.1, rtol=0.02)
    assert weights_by_costs(rows, []).tolist() == [1.0] * 2000
    # Beyond what noise hides, nothing is changed.
    assert np.ptp(weights_by_costs(rows, [Compared(TWO_WAYS, released, 100.0)])) < 1e-3


def other_runs(points, centers):
    """Imitate other runs on 24 cells on a line."""
    points = np.stack([points, np.zeros(24)], axis=1)
    cells = NoisyCells(points, np.full(24, 500.0), np.full(2, 0.003), 5.0, 5.0)
    return repeated(
        cells,
        np.array(centers),
        np.full((2, 2), 0.01),
        np.eye(2),
        0.0,
        [],
        np.random.default_rng(0),
    )


def test_clusters_with_rows_between_them_are_found_less_often_than_clusters_with_none():
    """Both tables have the same centers; only the cells between these differ."""
    centers = [[-0.5, 0.0], [0.5, 0.0]]
    apart = np.repeat([-0.5, 0.5], 12) + np.tile(np.linspace(-0.03, 0.03, 12), 2)
    touching, separate = (
        other_runs(points, centers).each.mean() for points in (np.linspace(-1, 1, 24), apart)
    )
    assert touching < separate - 0.05


def test_clusters_that_noise_has_moved_far_are_doubted_for_their_noise():
    apart = np.repeat([-0.5, 0.5], 12) + np.tile(np.linspace(-0.03, 0.03, 12), 2)
    moved, found = (other_runs(apart, [[-0.5, place], [0.5, -place]]) for place in (0.15, 0.0))
    assert moved.excess > 1.0
    assert found.excess < 0.05
    assert reason_of(moved) == "noise"


def test_noise_that_moves_a_center_halfway_to_the_next_is_told_from_noise_that_does_not():
    near, far = (
        fc.simulate(
            fc.PrivateFederatedKMeans(
                2,
                epsilon=epsilon,
                max_norm=3.0,
                n_rounds=1,
                init=np.array([[1.0, 0, 0], [-1, 0, 0]]),
            ),
            CLIENTS,
            seed=0,
        )
        for epsilon in (0.02, 10.0)
    )
    assert "noisy-center" in codes(near)
    assert "noisy-center" not in codes(far)


def test_what_a_collapse_is_stands_in_one_place():
    assert collapse_of(1, 1.0, None, None) is None
    assert collapse_of(3, 0.995, None, None) == ("one-cluster", "nearly all rows in one cluster")
    assert collapse_of(3, 0.5, 2.0, 2.0) == (
        "no-better-than-one",
        "no better than one cluster for all",
    )


def test_half_of_the_runs_that_end_elsewhere_are_a_doubt_and_fewer_are_none():
    first, second = np.arange(60) % 3, np.arange(60) // 20
    (doubt,) = doubts_over_runs([first, first, second, second])
    assert doubt.code == "seeds-differ"
    assert doubt.numbers["elsewhere"] == 2
    assert doubts_over_runs([first, first, (first + 1) % 3, second]) == ()
    assert doubts_over_runs([first]) == ()


def test_a_model_that_puts_the_rows_of_its_run_elsewhere_is_a_doubt():
    first, second = np.arange(60) % 3, np.arange(60) // 20
    none = np.empty(0, dtype=int)  # of a client that took no part
    assert doubts_about_labels([first, none], [(first + 1) % 3, second]) == ()
    (doubt,) = doubts_about_labels([first, none], [second, second])
    assert (doubt.code, doubt.basis) == ("predicts-otherwise", "rows")


# Clusters and sites


def dealt(n_clients):
    """Two wide clusters in 20 columns, dealt by a column that says little of them; and the same rows at random."""
    rng = np.random.default_rng(0)
    classes = rng.integers(2, size=1200)
    rows = rng.normal(size=(1200, 20)) + np.where(classes, 0.5, -0.5)[:, None]
    by_column = partition(Table(rows, classes), "sorted:0", n_clients=n_clients)
    return by_column, partition(Table(rows, classes), "iid", n_clients=n_clients)


def test_clusters_that_follow_the_sites_are_a_doubt_where_each_site_clusters_its_own_rows():
    by_column, at_random = dealt(8)
    found = fc.simulate("spp-fgc", by_column, n_clusters=2, seed=0)
    (doubt,) = [one for one in found.doubts if one.code == "clusters-are-sites"]
    assert doubt.basis == "rows"
    assert 0.1 < doubt.numbers["part"] <= 1.0
    assert f"says {100 * doubt.numbers['part']:.0f}% of what there is to know" in doubt.sentence
    assert "clusters-are-sites" not in codes(
        fc.simulate("spp-fgc", at_random, n_clusters=2, seed=0)
    )
    # Sums cannot follow the sites.
    assert "clusters-are-sites" not in codes(
        fc.simulate("federated-kmeans", by_column, n_clusters=2, seed=0)
    )


def test_what_sites_tell_of_clusters_is_a_part_of_the_entropy_beyond_chance():
    rng = np.random.default_rng(0)
    assert told_by_sites([np.zeros(50, dtype=int), np.ones(50, dtype=int)]) == pytest.approx(
        1.0, abs=0.02
    )
    # Half of the rows at sites of their own cluster, the others at random: entropy 1 bit, of which 1 - h(1/4) is told.
    mixed = [np.repeat([0, 1], [7500, 2500]), np.repeat([0, 1], [2500, 7500])]
    assert told_by_sites(mixed) == pytest.approx(
        1 + 0.25 * np.log2(0.25) + 0.75 * np.log2(0.75), abs=1e-3
    )
    for n_sites, n_rows in [(2, 20), (10, 100), (100, 100), (50, 5000)]:
        assert told_by_sites(np.array_split(rng.integers(4, size=n_rows), n_sites)) == 0
    assert told_by_sites([np.zeros(30, dtype=int), np.zeros(20, dtype=int)]) == 0
    assert told_by_sites([np.array([], dtype=int), np.arange(4)]) == 0

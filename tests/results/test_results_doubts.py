"""What a result says against itself."""

import json

import numpy as np
import pandas as pd
import pytest
from unequal import unequal_classes

import flower_fedclust as fc
from flower_fedclust.data import Table, partition
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.rounds import DensityGain
from flower_fedclust.harness.run import doubt_lines, number_lines
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.kmeans import squared_distances
from flower_fedclust.numerics.validity import ALL_FOUND_AGAIN, Repeated
from flower_fedclust.results.doubts import (
    _of_density,
    _of_other_runs,
    _of_survival,
    advice_on_number,
    clipping_of,
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
from flower_fedclust.tables.survival import Survival

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


# Bounds that clip


def weather(n_rows=20_000):
    """Rows of temperature, dew point, humidity and pressure, of norm about 1,000, at five clients."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=n_rows)
    temperature = np.array([5, 15, 25])[kinds] + rng.normal(0, 4, n_rows)
    dew_point = temperature - np.array([3, 8, 5])[kinds] + rng.normal(0, 3, n_rows)
    humidity = np.array([85, 60, 65])[kinds] + rng.normal(0, 10, n_rows)
    pressure = 1013 + np.array([8, 0, -6])[kinds] + rng.normal(0, 6, n_rows)
    return np.array_split(np.stack([temperature, dew_point, humidity, pressure], axis=1), 5)


#: Words of an advice that helps against noise only.
AGAINST_NOISE = ("larger epsilon", "more rows", "noise is the reason")


@pytest.mark.parametrize(
    "name",
    [
        "private-kmeans",
        "private-mixture",
        "private-density",
        "federated-kmeans-private",
        "fedsc-sums",
        "fed-speclust-sums",
        "fed-umap-sums",
    ],
)
def test_clipping_is_named_first_and_no_advice_against_noise_contradicts_it(name):
    """Every strategy that clips all rows says so, wherever its clusters lie."""
    result = fc.simulate(name, weather(), n_clusters=3, epsilon=2.0, max_norm=30.0, seed=0)
    first, *others = result.doubts
    assert (first.code, first.basis) == ("on-the-bound", "released")
    assert "max_norm clips the rows" in first.sentence
    assert clipping_of(result.doubts) is first
    assert not [one.sentence for one in others if any(word in str(one) for word in AGAINST_NOISE)]


@pytest.mark.parametrize("name", ["private-kmeans", "private-mixture", "fedsc-sums"])
def test_no_clipping_is_named_where_rows_are_within_the_bound(name):
    result = fc.simulate(
        name, weather(5000), n_clusters=3, epsilon=2.0, max_norm=1200.0, seed=0, random_state=0
    )
    assert clipping_of(result.doubts) is None


def test_noise_that_moves_centers_beyond_the_bound_is_not_called_clipping(collapsed):
    assert clipping_of(collapsed.doubts) is None
    (doubt,) = (doubt for doubt in collapsed.doubts if doubt.code == "on-the-bound")
    assert doubt.sentence.endswith("noise moved it there, or max_norm clips its rows.")
    rows = [part[:40] / 100 for part in CLIENTS]
    loud = fc.simulate("private-mixture", rows, n_clusters=3, epsilon=0.02, max_norm=1.0, seed=0)
    assert clipping_of(loud.doubts) is None


@pytest.mark.parametrize("n_rows", [300, 1000])
@pytest.mark.parametrize("n_columns", [2, 20])
@pytest.mark.parametrize("name", ["private-kmeans", "federated-kmeans-private"])
def test_no_noise_is_called_clipping_where_rows_fill_the_ball(name, n_columns, n_rows):
    rows = np.random.default_rng(1).normal(size=(n_rows, n_columns))
    rows = np.array_split(rows / np.linalg.norm(rows, axis=1).max(), 4)
    for epsilon in (0.1, 2.0):
        result = fc.simulate(name, rows, n_clusters=3, epsilon=epsilon, max_norm=1.0, seed=0)
        assert clipping_of(result.doubts) is None


def test_a_run_whose_rows_are_clipped_advises_no_number_of_clusters():
    result = fc.simulate("private-kmeans", weather(), n_clusters=(2, 5), max_norm=30.0, seed=0)
    assert "no-clear-number" not in codes(result)
    advice = advice_on_number(result.number, result.doubts)
    assert advice.startswith("No clear number: a bound clips most rows")
    assert advice in number_lines(result)
    assert advice_on_number(result.number, ()) == result.number.sentence


def table_of(low, high, n_rows=4000):
    """Two columns with three groups between these values, at four clients."""
    rng = np.random.default_rng(0)
    groups = rng.integers(3, size=n_rows)
    parts = np.array([[0.1, 0.7], [0.5, 0.2], [0.9, 0.9]])[groups] + rng.normal(
        0, 0.04, (n_rows, 2)
    )
    rows = low + (high - low) * parts.clip(0, 1)
    return [pd.DataFrame(part, columns=["a", "b"]) for part in np.array_split(rows, 4)]


def within(*bounds, **more):
    """A schema of the columns a and b with these bounds."""
    return {"columns": {name: {"kind": "number", "bounds": bounds} | more for name in "ab"}}


@pytest.mark.parametrize("name", ["private-kmeans", "private-mixture", "private-density"])
@pytest.mark.parametrize("n_clusters", [3, (2, 5)])
def test_bounds_of_a_schema_that_clip_all_values_are_the_first_doubt_without_a_description(
    name, n_clusters
):
    result = fc.simulate(
        name, table_of(20, 150), n_clusters=n_clusters, epsilon=1.0, schema=within(0, 1), seed=0
    )
    first, *others = result.doubts
    assert (first.code, first.basis) == ("clipped-column", "released")
    assert "lie on the bounds of 'a', 'b' in the schema" in first.sentence
    assert clipping_of(result.doubts) is first
    assert not [one.sentence for one in others if any(word in str(one) for word in AGAINST_NOISE)]


@pytest.mark.parametrize(
    ("low", "high", "schema"),
    [
        (20, 30, within(50, 100)),  # at the lower bound
        (20, 150, within(0, 1, weight=3.0)),
        (20, 150, within(0, 1, logarithm=True)),
        (20, 150, within(0, 1, scale="standard")),
    ],
)
def test_clipping_is_seen_on_every_scale_and_at_both_bounds(low, high, schema):
    for strategy in (fc.PrivateKMeans(3, epsilon=10.0), fc.FederatedKMeans(3)):
        result = fc.simulate(strategy, table_of(low, high), schema=schema, seed=0)
        assert result.doubts[0].code == "clipped-column"


def with_b(clients, values, column):
    """The clients and the schema, with other values and another kind of the column b."""
    clients = [part.assign(b=values[: len(part)]) for part in clients]
    return clients, {"columns": {**within(0, 1)["columns"], "b": column}}


def test_centers_on_bounds_are_no_doubt_where_values_may_be_there_or_noise_may_be_large():
    rare = np.arange(4000) % 500 == 0
    yes_no = {"kind": "binary", "categories": ["no", "yes"]}
    clipped = table_of(20, 150)
    cases = {
        "within": (table_of(20, 150), within(0, 200)),
        "near the bound": (table_of(92, 100), within(0, 100)),
        "mostly zero": ([part * 0 for part in clipped], within(0, 100)),
        "few rows": (table_of(20, 150, 200), within(0, 1)),
        "a category": with_b(clipped, np.where(rare, "x", "y"), {"kind": "category", "categories": ["x", "y"]}),
        "yes or no": with_b(clipped, np.where(rare, "no", "yes"), yes_no),
        "bounds not public": with_b(clipped, 7.0 + rare, {"kind": "number"}),
    }  # fmt: skip
    for case, (clients, schema) in cases.items():
        for seed in range(3):
            found = fc.simulate(
                "private-kmeans", clients, n_clusters=3, epsilon=1.0, schema=schema, seed=seed
            )
            assert clipping_of(found.doubts) is None, case
    # The column with the bound 0 is not named, but tells rows apart no better than the other.
    clients, schema = with_b(clipped, 0.0 * rare, {"kind": "number", "bounds": [0, 9]})
    (first, *_) = fc.simulate(
        "private-kmeans", clients, n_clusters=3, epsilon=1.0, schema=schema, seed=0
    ).doubts
    assert first.numbers["columns"] == ["a"]


# Without noise


class Fewer(fc.FederatedKMeans):
    """A strategy without noise that returns one cluster."""

    entries = ()

    def protocol(self):
        outcome = yield from super().protocol()
        model = getattr(outcome, "model", outcome)
        return KMeansModel(model.cluster_centers_[:1])


def test_without_noise_a_lost_cluster_is_not_blamed_on_noise():
    result = fc.simulate(Fewer(3), CLIENTS, seed=0)
    (doubt,) = (doubt for doubt in result.doubts if doubt.code == "dropped")
    assert doubt.sentence == "The strategy returned 1 of 3 clusters."


def test_without_noise_no_larger_epsilon_is_advised_for_a_number():
    rows = np.array_split(np.random.default_rng(0).normal(size=(300, 2)), 3)
    result = fc.simulate(fc.PrivateDensity((2, 8), epsilon=None, max_norm=9.0), rows, seed=0)
    (doubt,) = (doubt for doubt in result.doubts if doubt.code == "no-clear-number")
    assert "take more rows or, if there is noise, a larger epsilon" in doubt.sentence


# Densities


def test_a_density_in_doubt_names_columns_of_few_values_instead_of_epsilon():
    gain = DensityGain(mean=1.5, deviation=0.01, hidden=29.0)
    (plain,), (named,) = _of_density(gain), _of_density(gain, ["sex"])
    assert "a larger epsilon." in plain.sentence
    assert "The reason may be 'sex', which has few values" in named.sentence
    assert "a larger epsilon does not help" in named.sentence
    assert named.numbers["few_valued"] == ["sex"]


def test_a_density_that_noise_hides_names_noise_beside_columns_of_few_values():
    """A run without the column has the same doubt."""
    gain = DensityGain(mean=-3.7, deviation=2.35, hidden=3.0)
    (one,), (two,) = _of_density(gain, ["sex"]), _of_density(gain, ["sex", "stage"])
    assert one.sentence.endswith(
        "The reason may be noise, or 'sex', which has few values, so that no Gaussian describes it: use more rows or a "
        "larger epsilon, or leave it out."
    )
    assert "'sex', 'stage', which have few values, so that no Gaussian describes them" in str(two)
    (clipped,) = _of_density(gain, ["sex"], is_clipped=True)
    assert clipped.sentence.endswith("do not rely on densities.")


# Survival


def survival(within, beyond, deviation=0.0):
    """Counts of one cluster: rows in two bins with and without the event, and rows beyond the last bin."""
    sums = np.array([[within / 2, 0.0, 0.0, within / 2, beyond, 3.0]])
    return Survival(np.array([7.0, 14.0]), sums, deviation, unit="days")


def test_rows_followed_beyond_the_last_bin_are_a_doubt():
    (doubt,) = _of_survival(survival(18, 980))
    assert doubt.code == "beyond-the-bins"
    assert "beyond the last bin of time, which ends at 14 days" in doubt.sentence
    assert "check the unit" in doubt.sentence
    assert _of_survival(survival(200, 800)) == []
    assert _of_survival(survival(18, 980, deviation=30.0)) == []  # noise may hide rows in the bins
    assert _of_survival(None) == []


def test_rare_events_among_rows_followed_for_longer_are_no_doubt():
    """Nearly all rows are beyond the bins, and the curves say how many died, or that the clusters differ."""

    def of(events, beyond, deviation):
        within = np.array(events)[:, None] / 2 * [1.0, 1.0, 0.0, 0.0]
        sums = np.column_stack([within, beyond, np.zeros(len(events))])
        return Survival(np.array([18.0, 36.0]), sums, deviation, unit="months")

    for deviation in (0.0, 15.0):
        assert _of_survival(of([125, 700], [24_875, 4_300], deviation)) == []
        assert _of_survival(of([400], [24_600], deviation)) == []
        # Noise, or the floor, hides these.
        assert len(_of_survival(of([4, 4], [15_000, 15_000], deviation))) == 1


def test_the_doubt_about_bins_of_time_tells_no_count_below_the_floor():
    """Any count below the floor gives the same doubt."""
    assert [len(_of_survival(survival(count, 100))) for count in (0, 4, 8, 9, 10)] == [
        1,
        1,
        1,
        1,
        0,
    ]
    assert _of_survival(survival(9, 15)) == []


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

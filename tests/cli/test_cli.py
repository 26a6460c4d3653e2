"""The command, as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from flower_fedclust import cli
from flower_fedclust.registry import strategies


def fedclust(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedclust", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def site_file(tmp_path):
    rows, labels = load_iris(return_X_y=True, as_frame=True)
    sites = np.array(["north", "south", "west"])[np.arange(150) % 3]
    path = tmp_path / "rows.parquet"
    rows.assign(kind=labels, site=sites).to_parquet(path)
    return path


def test_list_names_every_strategy(capsys, monkeypatch):
    code, out, _ = fedclust(capsys, monkeypatch, "list", "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)] == list(strategies())


def test_a_file_beside_the_user_is_no_library(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pandas.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "rows.csv").write_text("site,age\nnorth,41\nsouth,57\n")
    command = ["schema", "init", "rows.csv", "--client-column", "site"]
    code = f"import sys; sys.argv[1:] = {command}; from flower_fedclust import cli; cli.main()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "it ran" in done.stderr, "age" in done.stdout) == (0, False, True)


def test_datasets_are_listed(capsys, monkeypatch):
    _, out, _ = fedclust(capsys, monkeypatch, "datasets", "--json")
    assert {"iris", "digits", "gaussian-mixture", "mnist-5k"} <= {entry["name"] for entry in json.loads(out)}


def test_explain_prints_every_release_before_anything_runs(capsys, monkeypatch):
    code, out, _ = fedclust(capsys, monkeypatch, "explain", "feddp-kmeans", "--epsilon", "0.5", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["covers_everything"]
    assert 0.49 < report["epsilon"] <= 0.5
    assert [message["task"] for message in report["messages"]] == [
        "enrol",
        "second_moment",
        "weights",
        "cluster_sums",
        "cluster_sums",
    ]
    assert "rehearsal" in report["notes"][-1]
    assert report["summary"] == strategies()["feddp-kmeans"].summary
    assert report["source"] == strategies()["feddp-kmeans"].source
    assert report["description"].startswith(strategies()["feddp-kmeans"].strategy.__doc__.splitlines()[0])


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("strategy", list(strategies()))
def test_every_strategy_can_be_explained(capsys, monkeypatch, strategy):
    entry = strategies()[strategy]
    few = ("--n-rounds", "2") if "n_rounds" in entry.strategy.parameter_names() else ()
    code, out, _ = fedclust(capsys, monkeypatch, "explain", strategy, "--n-clusters", "3", *few)
    assert code == 0
    assert f"Privacy report of {strategy}" in out
    assert not re.search(r":\w+:`", out)  # roles of the site's generator
    epsilon = entry.example.get("epsilon", getattr(entry.strategy, "epsilon", None))
    covered = "The whole run is covered by" in out
    assert covered if entry.units and epsilon else entry.units or not covered


def test_run_on_a_users_file_saves_labels_centers_metrics_and_the_report(capsys, monkeypatch, site_file, tmp_path):
    out_folder = tmp_path / "out"
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *("run", "feddp-kmeans", "--data", str(site_file), "--client-column", "site", "--label-column", "kind"),
        *("--n-clusters", "3", "--epsilon", "1", "--out", str(out_folder)),
    )
    assert code == 0
    assert str(out_folder) in out
    assert "Guarantee: The whole run is covered by" in out
    assert "60 rows of rows.parquet" in out  # 20 a cluster, made public: the report says so
    saved = out_folder / "feddp-kmeans"
    assert sorted(path.stem for path in (saved / "labels").iterdir()) == ["north", "south", "west"]
    assert sum(len(pd.read_csv(path)) for path in (saved / "labels").iterdir()) == 90
    assert np.loadtxt(saved / "centers.csv", delimiter=",").shape == (3, 4)
    (summary,) = json.loads((out_folder / "metrics.json").read_text())
    assert {"cost_per_row", "cost_of_one_cluster", "accuracy", "nmi", "ari"} < set(summary["metrics"])


def test_run_without_a_strategy_is_private_kmeans_of_all_rows(capsys, monkeypatch, tmp_path):
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *("run", "--dataset", "iris", "--n-clusters", "3", "--set", "max_norm=12", "--out", str(tmp_path / "out")),
    )
    assert code == 0
    assert "Guarantee: The whole run is covered by" in out
    assert "are taken to be public" not in out  # none of the rows were made public
    labels = (tmp_path / "out" / "private-kmeans" / "labels").iterdir()
    assert sum(len(pd.read_csv(path)) for path in labels) == 150


def test_a_seed_repeats_the_run_and_the_report_says_that_it_protects_nobody(capsys, monkeypatch, tmp_path):
    centers = []
    for name in ("a", "b"):
        _, out, _ = fedclust(
            capsys,
            monkeypatch,
            *("run", "feddp-kmeans", "--dataset", "iris", "--n-clusters", "3", "--n-clients", "3", "--seed", "5"),
            *("--out", str(tmp_path / name)),
        )
        assert "protects nobody" in out
        centers.append(np.loadtxt(tmp_path / name / "feddp-kmeans" / "centers.csv", delimiter=","))
    np.testing.assert_array_equal(*centers)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "feddp-kmean", "--dataset", "iris"],
            "There is no strategy 'feddp-kmean': did you mean 'feddp-kmeans'?",
        ),
        (["explain", "kfed"], "There is no strategy 'kfed': did you mean 'k-fed'?"),
        (["run", "k-fed", "--dataset", "irris"], "There is no data set 'irris': did you mean 'iris'?"),
        (
            ["run", "--dataset", "iris"],
            "clients clip rows to it: say how far rows can be from the origin, as is known without",
        ),
        (["run", "k-fed"], "give either a data set or a file of your own"),
        (["run", "k-fed", "--data", "nowhere.csv"], "nowhere.csv"),
        (["run", "feddp-kmeans", "--dataset", "iris", "--epsilon", "lots"], "epsilon is 'lots'; it must be a number"),
        (
            ["run", "feddp-kmeans", "--dataset", "iris", "--n-clusters", "3", "--epsilon", "0"],
            "epsilon is 0.0; it must be",
        ),
        (["run", "feddp-kmeans", "--dataset", "iris", "--n-clusters", "3", "--delta", "1"], "delta is 1.0; it must be"),
        (["run", "feddp-kmeans", "--dataset", "iris", "--n-clusters", "1"], "n_clusters is 1; it must be"),
        (
            ["run", "feddp-kmeans", "--dataset", "iris", "--n-clusters", "3", "--set", "marginn=0.3"],
            "did you mean 'margin'?",
        ),
        (["run", "feddp-kmeans", "--dataset", "iris", "--set", "margin"], "--set margin has no value"),
        (["run", "feddp-kmeans", "--dataset", "iris", "--n-clients", "1", "--n-clusters", "3"], "min_clients is 2"),
        (["run", "k-fed", "--dataset", "iris", "--engine", "spark"], "engine is 'spark'"),
        (["run", "k-fed,k-fed", "--dataset", "iris"], "k-fed is named twice; name it once."),
        (["run", "k-fed", "--dataset", "iris", "--seed", "-1"], "seed is -1; it must be an integer, 0 or more."),
        (["explain", "k-fed", "--n-columns", "-1"], "n_columns is -1; it must be an integer, 1 or more."),
        (["compare", "--datasets", "iris", "--out", "new"], "strategies is missing; name some, or all."),
        (["compare", "--strategies", "kfed", "--datasets", "iris", "--out", "new"], "did you mean 'k-fed'?"),
        (["compare", "nowhere.toml", "--out", "new"], "nowhere.toml."),
        (
            ["compare", "--strategies", "k-fed", "--datasets", "iris", "--set", "marginn=1", "--out", "new"],
            "There is no parameter of k-fed called 'marginn'",
        ),
        (["report", "nowhere"], "nowhere is not a folder"),
        (["site", "nowhere.toml"], "nowhere.toml."),
    ],
)
def test_bad_input_is_one_sentence_and_no_traceback(capsys, monkeypatch, tmp_path, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedclust(capsys, monkeypatch, *arguments)
    assert code == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_a_misspelt_client_column_names_the_nearest(capsys, monkeypatch, site_file):
    code, _, err = fedclust(
        capsys, monkeypatch, "run", "k-fed", "--data", str(site_file), "--client-column", "sites", "--n-clusters", "3"
    )
    assert code == 2
    assert "did you mean 'site'?" in err


def test_server_rows_with_other_columns_than_the_clients_are_refused(capsys, monkeypatch, site_file, tmp_path):
    table = pd.read_parquet(site_file).drop(columns=["site", "kind"])
    table.iloc[:40, ::-1].to_csv(tmp_path / "public.csv", index=False)
    code, _, err = fedclust(
        capsys,
        monkeypatch,
        *("run", "feddp-kmeans", "--data", str(site_file), "--client-column", "site", "--n-clusters", "3"),
        *("--columns", ",".join(table.columns), "--server-data", str(tmp_path / "public.csv")),
        *("--out", str(tmp_path / "out")),
    )
    assert code == 0, "--columns puts both in one order"
    site_file.rename(tmp_path / "kept.parquet")
    pd.read_parquet(tmp_path / "kept.parquet").drop(columns="kind").rename(
        columns={table.columns[0]: "other"}
    ).to_parquet(site_file)
    code, _, err = fedclust(
        capsys,
        monkeypatch,
        *("run", "feddp-kmeans", "--data", str(site_file), "--client-column", "site", "--n-clusters", "3"),
        *("--server-data", str(tmp_path / "public.csv")),
    )
    assert code == 2
    assert "public.csv has other columns than the clients" in err


def test_a_folder_that_holds_something_is_not_written_into(capsys, monkeypatch, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    code, _, err = fedclust(
        capsys, monkeypatch, "run", "k-fed", "--dataset", "iris", "--n-clusters", "3", "--out", str(tmp_path)
    )
    assert code == 2
    assert "already holds something" in err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_compare_takes_options_before_a_toml_and_prints_means(capsys, monkeypatch, site_file, tmp_path):
    settings = tmp_path / "comparison.toml"
    settings.write_text(
        """
        strategies = "k-fed,pooled-kmeans"
        data = "rows.parquet"
        client-column = "site"
        label-column = "kind"
        seeds = 5
        """
    )
    arguments = ("compare", str(settings), "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "out"))
    code, out, _ = fedclust(capsys, monkeypatch, *arguments)
    assert code == 0
    assert len(pd.read_parquet(tmp_path / "out" / "results.parquet")) == 4
    assert "k-fed" in out
    assert "±" in out
    assert f"Saved in {tmp_path / 'out'}" in out
    page = tmp_path / "out" / "report.html"
    page.unlink()
    code, out, _ = fedclust(capsys, monkeypatch, "report", str(tmp_path / "out"))
    assert code == 0
    assert page.exists()
    assert str(page) in out


def test_compare_ends_with_1_and_the_sentences_where_runs_failed(capsys, monkeypatch, tmp_path):
    code, out, err = fedclust(
        capsys,
        monkeypatch,
        *("compare", "--strategies", "k-fed,fedsc-sums", "--datasets", "iris", "--n-clients", "3", "--seeds", "1"),
        *("--epsilons", "1", "--jobs", "1", "--out", str(tmp_path / "out")),
    )
    assert code == 1
    assert "1 of 2 runs failed (--retry-failed runs them again):" in out
    assert "1 of fedsc-sums: give max_norm (--set max_norm=...)" in out
    assert err.startswith("1 of 2 runs are not possible and are left out:")
    assert "Traceback" not in out + err


TOY = """
from flower_fedclust.strategies.baselines.kfed import KFED
from flower_fedclust.engine import Entry

class Toy(KFED):
    \"\"\"A toy.\"\"\"
    entries = (Entry("toy", "a toy", "a test"),)
"""


def test_a_strategy_of_somebody_elses_is_explained_run_and_compared_by_module_and_class(capsys, monkeypatch, tmp_path):
    (tmp_path / "toy_of_another_package.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    name = "toy_of_another_package:Toy"
    assert "Privacy report of toy" in fedclust(capsys, monkeypatch, "explain", name, "--n-clusters", "3")[1]
    code, out, _ = fedclust(capsys, monkeypatch, "run", name, "--dataset", "iris", "--n-clusters", "3", "--out", "one")
    assert code == 0
    assert "toy" in out
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *("compare", "--strategies", name, "--datasets", "iris", "--n-clients", "3", "--seeds", "1"),
        *("--jobs", "2", "--out", "two"),
    )
    assert code == 0, out
    assert "toy" in out


def test_stopping_a_comparison_says_how_it_goes_on(capsys, monkeypatch, tmp_path):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("flower_fedclust.harness.runner.run_comparison", stopped)
    code, _, err = fedclust(
        capsys, monkeypatch, "compare", "--strategies", "k-fed", "--datasets", "iris", "--out", str(tmp_path)
    )
    assert code == 130
    assert "the same command continues from there" in err


@pytest.mark.parametrize("module", ["flower_fedclust", "flower_fedclust.cli"])
def test_neither_the_package_nor_the_help_of_the_command_imports_anything_heavy(module):
    heavy = ["flwr", "sklearn", "scipy", "pandas", "ray", "dp_accounting"]
    shown = "with contextlib.suppress(SystemExit):\n    flower_fedclust.cli.main()\n" if module.endswith("cli") else ""
    code = f"import contextlib, sys, {module}\nsys.argv = ['fedclust', '--help']\n{shown}"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "epsilon"),
    [
        (["feddp-kmeans"], 1.0),  # the strategy's own
        (["feddp-kmeans", "--epsilon", "none"], None),
        (["feddp-kmeans", "--epsilon", "2.5"], 2.5),
        (["fedsc-sums"], None),
        (["fedsc-sums", "--epsilon", "2.5", "--set", "max_norm=3"], 2.5),
        (["fedsc-perturbed-data"], 1.0),  # the example's
        (["fedsc-perturbed-data", "--epsilon", "2.5"], 2.5),
        (["k-fed"], None),
    ],
    ids=str,
)
def test_explain_takes_the_epsilon_that_is_said_or_the_strategys_or_the_examples(
    capsys, monkeypatch, arguments, epsilon
):
    code, out, _ = fedclust(capsys, monkeypatch, "explain", *arguments, "--n-clusters", "3", "--json")
    assert code == 0
    report = json.loads(out)
    assert report["requested_epsilon"] == epsilon
    assert report["covers_everything"] == (epsilon is not None)


def test_example_is_for_explaining_and_not_for_running(capsys, monkeypatch):
    code, _, err = fedclust(
        capsys, monkeypatch, "run", "fedsc-perturbed-data", "--dataset", "iris", "--n-clusters", "3"
    )
    assert code != 0
    assert "give epsilon and max_norm" in " ".join(err.split())


def test_epsilon_none_is_not_replaced_by_the_example(capsys, monkeypatch):
    arguments = ("explain", "fedsc-perturbed-data", "--n-clusters", "3", "--epsilon", "none")
    code, _, err = fedclust(capsys, monkeypatch, *arguments)
    assert code != 0
    assert "there is no noise level" in " ".join(err.split())


def test_choose_k_prints_the_curve_and_one_sentence(capsys, monkeypatch, tmp_path):
    asked = ["choose-k", "--dataset", "iris", "--n-clusters", "2-4", "--set", "max_norm=12", "--epsilon", "none"]
    code, out, _ = fedclust(capsys, monkeypatch, *asked, "--out", str(tmp_path / "k"))
    assert code == 0
    assert "clusters  silhouette  of one Gaussian" in out
    assert "2 clusters: their silhouette is" in out
    assert {path.name for path in (tmp_path / "k").iterdir()} == {"number.png", "number.json"}

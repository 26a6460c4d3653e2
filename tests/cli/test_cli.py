"""The command, as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main
from rich.console import Console
from sklearn.datasets import load_iris

from flower_fedclust import cli
from flower_fedclust.cli.catalog import CATALOG
from flower_fedclust.harness.run import print_lines
from flower_fedclust.registry import CLASSES, strategies


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


def test_strategies_and_data_sets_are_listed(capsys, monkeypatch):
    _, out, _ = fedclust(capsys, monkeypatch, "list", "--json")
    assert [entry["name"] for entry in json.loads(out)] == list(strategies())
    _, out, _ = fedclust(capsys, monkeypatch, "datasets", "--json")
    assert {"iris", "digits", "gaussian-mixture", "mnist-5k"} <= {
        entry["name"] for entry in json.loads(out)
    }


def test_a_file_beside_the_user_is_no_library(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pandas.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "rows.csv").write_text("site,age\nnorth,41\nsouth,57\n")
    command = ["schema", "init", "rows.csv", "--client-column", "site"]
    code = f"import sys; sys.argv[1:] = {command}; from flower_fedclust import cli; cli.main()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "it ran" in done.stderr, "age" in done.stdout) == (0, False, True)


def test_explain_prints_every_release_before_anything_runs(capsys, monkeypatch):
    code, out, _ = fedclust(
        capsys, monkeypatch, "explain", "feddp-kmeans", "--epsilon", "0.5", "--json"
    )
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
    assert report["description"].startswith(
        strategies()["feddp-kmeans"].strategy.__doc__.splitlines()[0]
    )


@pytest.mark.parametrize(
    "strategy",
    [
        # A rehearsal prints what the engine notes: a run with server rows, with maps, with neither, and without noise.
        pytest.param(
            name,
            marks=[]
            if name in ("feddp-kmeans", "fed-tsne-sums", "private-density", "k-fed")
            else [pytest.mark.long],
        )
        for name, entry in strategies().items()
    ],
)
def test_every_strategy_can_be_explained(capsys, monkeypatch, strategy):
    entry = strategies()[strategy]
    few = ("--n-rounds", "2") if "n_rounds" in entry.strategy.parameter_names() else ()
    code, out, _ = fedclust(capsys, monkeypatch, "explain", strategy, "--n-clusters", "3", *few)
    assert code == 0
    first, _, rest = out.partition(f"Privacy report of {strategy}")
    assert "Leaves each site" in first
    assert "Parameters" not in out
    assert rest
    assert not re.search(r":\w+:`", out)  # roles of the site's generator
    epsilon = entry.example.get("epsilon", getattr(entry.strategy, "epsilon", None))
    covered = "The whole run is covered by" in out
    assert covered if entry.units and epsilon else entry.units or not covered


def test_explain_prints_the_parameters_when_it_is_asked_to(capsys, monkeypatch):
    assert (
        "--parameters" in fedclust(capsys, monkeypatch, "explain", "k-fed", "--n-clusters", "3")[1]
    )
    out = fedclust(capsys, monkeypatch, "explain", "k-fed", "--n-clusters", "3", "--parameters")[1]
    assert re.search(r"\nParameters\n-+\n", out)
    assert "\nn_clusters : " in out


def test_run_on_a_users_file_saves_labels_centers_metrics_and_the_report(
    capsys, monkeypatch, site_file, tmp_path
):
    out_folder = tmp_path / "out"
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *(
            "run",
            "feddp-kmeans",
            "--data",
            str(site_file),
            "--client-column",
            "site",
            "--label-column",
            "kind",
        ),
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
    assert {"cost_per_row", "cost_of_one_cluster", "accuracy", "nmi", "ari"} < set(
        summary["metrics"]
    )


def test_run_without_a_strategy_is_private_kmeans_of_all_rows(capsys, monkeypatch, tmp_path):
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *(
            "run",
            "--dataset",
            "iris",
            "--n-clusters",
            "3",
            "--set",
            "max_norm=12",
            "--out",
            str(tmp_path / "out"),
        ),
    )
    assert code == 0
    assert "Guarantee: The whole run is covered by" in out
    assert "are taken to be public" not in out  # none of the rows were made public
    labels = (tmp_path / "out" / "private-kmeans" / "labels").iterdir()
    assert sum(len(pd.read_csv(path)) for path in labels) == 150


def test_a_seed_repeats_the_run_and_the_report_says_that_it_protects_nobody(
    capsys, monkeypatch, tmp_path
):
    centers = []
    for name in ("a", "b"):
        _, out, _ = fedclust(
            capsys,
            monkeypatch,
            *(
                "run",
                "feddp-kmeans",
                "--dataset",
                "iris",
                "--n-clusters",
                "3",
                "--n-clients",
                "3",
                "--seed",
                "5",
            ),
            *("--out", str(tmp_path / name)),
        )
        assert "protects nobody" in out
        centers.append(np.loadtxt(tmp_path / name / "feddp-kmeans" / "centers.csv", delimiter=","))
    np.testing.assert_array_equal(*centers)


IRIS = "--dataset iris --n-clusters 3"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("run feddp-kmean --dataset iris", "'feddp-kmeans'"),
        ("explain kfed", "'k-fed'"),
        ("run k-fed --dataset irris", "'iris'"),
        ("run --dataset iris", "max_norm"),
        ("run k-fed", "--dataset"),
        ("run k-fed --dataset iris --data rows.csv", "--dataset"),
        (f"run k-fed {IRIS} --epsilon 1", "--epsilon is given"),
        ("run k-fed --data nowhere.csv", "nowhere.csv"),
        ("run feddp-kmeans --dataset iris --epsilon lots", "epsilon"),
        (f"run feddp-kmeans {IRIS} --epsilon 0", "epsilon"),
        (f"run feddp-kmeans {IRIS} --delta 1", "delta"),
        ("run feddp-kmeans --dataset iris --n-clusters 1", "--n-clusters"),
        (f"run feddp-kmeans {IRIS} --set center_row=false", "'center_rows'"),
        ("run feddp-kmeans --dataset iris --set margin", "--set margin"),
        ("run --dataset iris --set max_norm 30", "write --set name=value"),
        (f"run k-fed {IRIS} --set n_clusters=4", "--n-clusters is also given by --set"),
        (f"run private-kmeans {IRIS} --epsilon 1 --set epsilon=2", "--epsilon is also given"),
        (f"run private-kmeans {IRIS} --set max_norm=1 --set max_norm=2", "max_norm is given twice"),
        (f"run private-kmeans {IRIS} --set max-norm=1 --set max_norm=2", "max_norm is given twice"),
        (f"run k-fed {IRIS} --n-clusters 4", "--n-clusters is given twice; leave one"),
        (f"run k-fed {IRIS} --seed 1 --seed=2", "--seed is given twice"),
        (f"run k-fed {IRIS} --secure --secure", "--secure is given twice"),
        ("explain k-fed --n-columns 1 --n-columns 2", "--n-columns is given twice"),
        (
            "schema check a.toml b.csv --client-column a --client-column b",
            "--client-column is given",
        ),
        ("run k-fed --dataset iris --n-clusters 2-5", "is 2-5, but k-fed takes one number"),
        (f"run feddp-kmeans {IRIS} --n-clients 1", "min_clients"),
        ("run k-fed --dataset iris --engine spark", "engine"),
        ("run k-fed,k-fed --dataset iris", "k-fed"),
        ("run k-fed --dataset iris --seed -1", "seed"),
        ("explain k-fed --n-columns -1", "--n-columns"),
        ("compare --datasets iris --out new", "strategies"),
        ("compare --strategies kfed --datasets iris --out new", "'k-fed'"),
        ("compare nowhere.toml --out new", "nowhere.toml"),
        ("compare --strategies k-fed --datasets iris --set marginn=1 --out new", "'marginn'"),
        ("report nowhere", "nowhere"),
        ("site nowhere.toml", "nowhere.toml"),
    ],
)
def test_bad_input_is_one_sentence_and_no_traceback(capsys, monkeypatch, tmp_path, command, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedclust(capsys, monkeypatch, *command.split())
    assert code == 2
    assert named in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """A table, the same rows in a folder, and two schemas: with and without its classes."""
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"site": list("ab") * 30, "kind": list("xxyy") * 15, "age": range(60)})
    table.to_csv("rows.csv", index=False)
    Path("sites").mkdir()
    for site, rows in table.groupby("site"):
        rows[["age"]].to_csv(f"sites/{site}.csv", index=False)
    age = '[columns.age]\nkind = "number"\nbounds = [0, 100]\n'
    kind = '[columns.kind]\nkind = "category"\ncategories = ["x", "y"]\n'
    Path("age.toml").write_text(age)
    Path("both.toml").write_text(age + kind)
    Path("wrong.toml").write_text(age.replace("[0, 100]", '"50-105"'))


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "run k-fed --n-clusters 2 --data sites --client-column X",
            "--client-column is given, but the files of sites are the clients",
        ),
        (
            "run k-fed --n-clusters 2 --data sites --n-clients 7",
            "--n-clients is given, but the files of sites are the clients",
        ),
        (
            "run k-fed --n-clusters 2 --data sites --partition iid",
            "--partition is given, but the files of sites are the clients",
        ),
        (
            "run k-fed --n-clusters 2 --data rows.csv --client-column site --n-clients 7",
            "--n-clients is given, but --client-column says whose row it is",
        ),
        (
            "compare --strategies k-fed --data sites --n-clients 7 --out new",
            "--n-clients is given, but the files of sites are the clients",
        ),
        (
            "compare --strategies k-fed --data sites --partitions iid --out new",
            "--partitions is given, but the files of sites are the clients",
        ),
        (
            "run --data rows.csv --client-column site --label-column kind --schema both.toml",
            "'kind' is the --label-column; remove it from the schema, or leave out --label-column",
        ),
        (
            "choose-k --data rows.csv --client-column site --label-column kind --schema both.toml",
            "'kind' is the --label-column; remove it from the schema, or leave out --label-column",
        ),
        (
            "schema check both.toml rows.csv --client-column site --label-column kind",
            "'kind' is the --label-column; remove it from the schema, or leave out --label-column",
        ),
        (
            "run --data rows.csv --label-column kind --schema age.toml",
            "If 'site' says whose row it is, name it as the --client-column.",
        ),
        (
            "schema check age.toml rows.csv --label-column kind",
            "If 'site' says whose row it is, name it as the --client-column.",
        ),
        ("schema check wrong.toml rows.csv", "bounds must be a list, such as [0, 100]"),
        ("schema init sites", "sites is a folder; name one file of it"),
    ],
)
def test_options_that_do_not_fit_the_rows_are_refused(
    capsys, monkeypatch, sites, command, sentence
):
    code, _, err = fedclust(capsys, monkeypatch, *command.split())
    assert (code, sentence in " ".join(err.split())) == (2, True), err


def test_a_number_of_clusters_by_set_takes_the_place_of_the_default(capsys, monkeypatch, tmp_path):
    command = ["run", "k-fed", "--dataset", "iris", "--set", "n_clusters=4"]
    code, out, _ = fedclust(capsys, monkeypatch, *command, "--out", str(tmp_path / "out"))
    assert (code, "4 clusters" in out, "10 clusters" in out) == (0, True, False)


def test_server_rows_and_client_columns_with_other_names_are_refused(
    capsys, monkeypatch, site_file, tmp_path
):
    table = pd.read_parquet(site_file).drop(columns=["site", "kind"])
    table.iloc[:40, ::-1].to_csv(tmp_path / "public.csv", index=False)
    command = ["run", "feddp-kmeans", "--data", str(site_file), "--n-clusters", "3"]
    command += ["--server-data", str(tmp_path / "public.csv"), "--out", str(tmp_path / "out")]
    columns = ["--columns", ",".join(table.columns)]
    code, _, _ = fedclust(capsys, monkeypatch, *command, "--client-column", "site", *columns)
    assert code == 0, "--columns puts both in one order"
    code, _, err = fedclust(capsys, monkeypatch, *command, "--client-column", "sites", *columns)
    assert (code, "'site'" in err) == (2, True)
    changed = (
        pd.read_parquet(site_file).drop(columns="kind").rename(columns={table.columns[0]: "other"})
    )
    site_file.unlink()
    changed.to_parquet(site_file)
    code, _, err = fedclust(capsys, monkeypatch, *command, "--client-column", "site")
    assert (code, "other columns than the clients" in err) == (2, True)


def test_compare_takes_options_before_a_toml_and_prints_means(
    capsys, monkeypatch, site_file, tmp_path
):
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
    arguments = (
        "compare",
        str(settings),
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "out"),
    )
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
        *(
            "compare",
            "--strategies",
            "k-fed,fedsc-sums",
            "--datasets",
            "iris",
            "--n-clients",
            "3",
            "--seeds",
            "1",
        ),
        *("--epsilons", "1", "--jobs", "1", "--out", str(tmp_path / "out")),
    )
    assert code == 1
    assert "1 of 2 runs were not possible and are left out:" in out
    assert "1 of fedsc-sums: give max_norm (--set max_norm=...)" in out
    assert "1 of fedsc-sums: give max_norm (--set max_norm=...)" in err  # before the first run
    assert err.startswith("1 of 2 runs are not possible and are left out:")
    assert "Traceback" not in out + err


TOY = """
from flower_fedclust.strategies.baselines.kfed import KFED
from flower_fedclust.engine import Entry

class Toy(KFED):
    \"\"\"A toy.\"\"\"
    entries = (Entry("toy", "a toy", "a test"),)
"""


def test_a_strategy_of_somebody_elses_is_explained_run_and_compared_by_module_and_class(
    capsys, monkeypatch, tmp_path
):
    (tmp_path / "toy_of_another_package.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    name = "toy_of_another_package:Toy"
    assert (
        "Privacy report of toy"
        in fedclust(capsys, monkeypatch, "explain", name, "--n-clusters", "3")[1]
    )
    code, out, _ = fedclust(
        capsys, monkeypatch, "run", name, "--dataset", "iris", "--n-clusters", "3", "--out", "one"
    )
    assert code == 0
    assert "toy" in out
    code, out, _ = fedclust(
        capsys,
        monkeypatch,
        *(
            "compare",
            "--strategies",
            name,
            "--datasets",
            "iris",
            "--n-clients",
            "3",
            "--seeds",
            "1",
        ),
        *("--jobs", "1", "--out", "two"),
    )
    assert code == 0, out
    assert "toy" in out


def test_stopping_a_comparison_says_how_it_goes_on(capsys, monkeypatch, tmp_path):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("flower_fedclust.harness.runner.run_comparison", stopped)
    code, _, err = fedclust(
        capsys,
        monkeypatch,
        "compare",
        "--strategies",
        "k-fed",
        "--datasets",
        "iris",
        "--out",
        str(tmp_path),
    )
    assert code == 130
    assert "the same command continues from there" in err


@pytest.mark.parametrize("module", ["flower_fedclust", "flower_fedclust.cli"])
def test_neither_the_package_nor_the_help_of_the_command_imports_anything_heavy(module):
    heavy = ["flwr", "sklearn", "scipy", "pandas", "ray", "dp_accounting"]
    shown = (
        "with contextlib.suppress(SystemExit):\n    flower_fedclust.cli.main()\n"
        if module.endswith("cli")
        else ""
    )
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
        (["k-fed"], None),
    ],
    ids=str,
)
def test_explain_takes_the_epsilon_that_is_said_or_the_strategys_or_the_examples(
    capsys, monkeypatch, arguments, epsilon
):
    code, out, _ = fedclust(
        capsys, monkeypatch, "explain", *arguments, "--n-clusters", "3", "--json"
    )
    assert code == 0
    report = json.loads(out)
    assert report["requested_epsilon"] == epsilon
    assert report["covers_everything"] == (epsilon is not None)


@pytest.mark.parametrize(("given", "bound"), [([], 1.0), (["--set", "max_norm=7"], 7.0)])
def test_explain_takes_the_bound_that_is_given_and_else_the_examples(
    capsys, monkeypatch, given, bound
):
    asked = [
        "explain",
        "federated-kmeans-private",
        "--epsilon",
        "2",
        "--n-clusters",
        "3",
        *given,
        "--json",
    ]
    code, out, _ = fedclust(capsys, monkeypatch, *asked)
    assert code == 0
    releases = [
        message["release"]
        for message in json.loads(out)["messages"]
        if message["release"] is not None
    ]
    assert max(release["sensitivity"] for release in releases) == pytest.approx(bound, rel=1e-9)


def test_choose_k_prints_the_curve_and_one_sentence(capsys, monkeypatch, tmp_path):
    asked = [
        "choose-k",
        "--dataset",
        "iris",
        "--n-clusters",
        "2-4",
        "--set",
        "max_norm=12",
        "--epsilon",
        "none",
    ]
    code, out, _ = fedclust(capsys, monkeypatch, *asked, "--out", str(tmp_path / "k"))
    assert code == 0
    assert "clusters  silhouette  of one Gaussian" in out
    assert "2 clusters: their silhouette is" in out
    assert {path.name for path in (tmp_path / "k").iterdir()} == {"number.png", "number.json"}


def test_choose_k_says_that_a_bound_clips_all_rows_and_advises_no_number(
    capsys, monkeypatch, tmp_path
):
    asked = ["choose-k", "--dataset", "iris", "--n-clusters", "2-4", "--set", "max_norm=0.1"]
    code, out, _ = fedclust(
        capsys, monkeypatch, *asked, "--epsilon", "20", "--seed", "0", "--out", str(tmp_path / "k")
    )
    assert code == 0
    assert "No clear number: a bound clips most rows" in out
    assert "lies on or beyond the bound max_norm=0.1, and noise did not move it there" in out
    written = json.loads((tmp_path / "k" / "number.json").read_text())
    assert (written["chosen"], written["is_clear"]) == (None, False)
    assert written["doubts"][0]["code"] == "on-the-bound"
    # The guarantee covers everything that is written.
    assert {doubt["basis"] for doubt in written["doubts"]} == {"released"}


def test_messages_are_printed_as_they_are(capsys, monkeypatch):
    code, _, said = fedclust(capsys, monkeypatch, "explain", "a:b:[red]c")
    # Not the picture that rich has for :b:.
    assert (code, "There is no strategy 'a:b:[red]c'" in said) == (2, True)
    print_lines(Console(), "client :bomb: [red]failed")
    assert capsys.readouterr().out == "client :bomb: [red]failed\n"


@pytest.mark.parametrize("command", ["audit", "choose-k", "plan"])
def test_advice_goes_into_a_new_folder(capsys, monkeypatch, tmp_path, command):
    """A second 'fedclust choose-k' with the same --out had replaced a number that an epsilon had paid for."""
    for name in ("audit.txt", "number.json", "plan.json"):
        (tmp_path / name).write_text("found before")
    for module in ("harness.plan", "harness.runner", "checking.suite", "estimator"):
        # Imported later, it would keep the function of this test.
        import_module(f"flower_fedclust.{module}")
    monkeypatch.setattr(
        "flower_fedclust.simulation.simulate", lambda *_, **__: pytest.fail("it ran")
    )
    code, _, said = fedclust(capsys, monkeypatch, command, "private-kmeans", "--out", str(tmp_path))
    assert (code, "already holds something; choose a new folder" in said) == (2, True)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"found before"}


def test_choose_k_and_plan_take_tables_as_they_come_with_a_schema(capsys, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=900)
    sizes = [
        f"{value:.3f}" if index % 50 else ""
        for index, value in enumerate(10 * kinds + rng.normal(size=900))
    ]
    table, schema = tmp_path / "table.csv", tmp_path / "table.toml"
    lines = [
        f"{size},{'abc'[kind]},{index % 4}"
        for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    table.write_text("\n".join(["size,kind,site", *lines]) + "\n")
    schema.write_text(
        '[columns.size]\nkind = "number"\nbounds = [-5, 25]\ngaps = "mean"\n'
        '[columns.kind]\nkind = "category"\ncategories = ["a", "b", "c"]\n'
    )
    asked = [
        "choose-k",
        "--data",
        str(table),
        "--client-column",
        "site",
        "--schema",
        str(schema),
        "--json",
    ]
    code, out, _ = fedclust(
        capsys, monkeypatch, *asked, "--n-clusters", "2-5", "--epsilon", "5", "--seed", "0"
    )
    assert (code, json.loads(out)["chosen"]) == (0, 3)
    monkeypatch.setattr("flower_fedclust.harness.plan.N_DRAWS", 1)
    asked = [
        "plan",
        "--like",
        str(table),
        "--n-rows",
        "900",
        "--n-clusters",
        "3",
        "--epsilons",
        "1",
    ]
    code, out, _ = fedclust(capsys, monkeypatch, *asked)
    assert code == 0
    assert "2 columns" in out
    assert "Left out of that table: kind; with --schema they would be used." in out
    code, out, _ = fedclust(capsys, monkeypatch, *asked, "--schema", str(schema), "--json")
    assert (code, json.loads(out)["facts"]["columns"], json.loads(out)["left_out"]) == (0, 4, [])
    code, _, error = fedclust(capsys, monkeypatch, *asked[:1], "--schema", str(schema))
    assert code == 2
    assert "--like" in error


def test_the_version_is_printed(capsys, monkeypatch):
    assert "flower-fedclust" in fedclust(capsys, monkeypatch, "--version")[1]


def every_command(command=None, words=()):
    """Yield the words that call each command and each group of commands, and what it is."""
    command = typer.main.get_command(cli.commands.app) if command is None else command
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*words, name))


COMMANDS = dict(every_command())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_says_what_was_written(capsys, monkeypatch, words):
    """What stands in square brackets is markup to rich: an error, or words that are missing."""
    monkeypatch.setenv("COLUMNS", "1000")
    code, out, _ = fedclust(capsys, monkeypatch, *words, "--help")
    assert code == 0
    command, shown = COMMANDS[words], " ".join(out.split())
    for written in (
        command.help,
        *(getattr(parameter, "help", None) for parameter in command.params),
    ):
        assert " ".join((written or "").split()) in shown


def test_each_of_our_strategies_has_one_line_in_the_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = fedclust(capsys, monkeypatch, "list", "--all")[1].splitlines()
    of_this_package = [name for _, *names in CLASSES.values() for name in names]
    lines = {line.name: (heading, line) for heading, lines in CATALOG.items() for line in lines}
    assert sorted(lines) == sorted(of_this_package)
    for name, (heading, line) in lines.items():
        entry = strategies()[name]
        assert line.units == entry.units
        assert (heading == "Maps") == (entry.finds == "map")
        (printed,) = [one for one in shown if one.split()[:1] == [name]]
        assert printed.rstrip().endswith(line.text)


def test_the_best_with_a_guarantee_come_first_in_the_list():
    for lines in CATALOG.values():
        has_guarantee = [bool(line.units) for line in lines]
        assert has_guarantee == sorted(has_guarantee, reverse=True)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_fits_into_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, fedclust(capsys, monkeypatch, "list")[1].splitlines())) <= columns


def test_the_list_imports_no_strategy(tmp_path):
    code = (
        "import sys; sys.argv[1:] = ['list']; from flower_fedclust import cli\n"
        "try:\n    cli.main()\nfinally:\n    print([name for name in sys.modules if '.strategies.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--privacy-unit", "patient"], "--privacy-unit is 'patient'"),
        (["--epsilon", "-1"], "--epsilon is"),
        (["--n-clusters", "0"], "--n-clusters is 0"),
        (["--epsilon", "1"], "--set max_norm=30"),
        (["--describe"], "--describe is given"),
    ],
)
def test_messages_name_options_as_they_are_typed(arguments, said, capsys, monkeypatch):
    assert said in fedclust(capsys, monkeypatch, "run", "--dataset", "digits", *arguments)[2]


def test_kmeans_suggests_the_private_one(capsys, monkeypatch):
    assert "'private-kmeans'" in fedclust(capsys, monkeypatch, "explain", "kmeans")[2]

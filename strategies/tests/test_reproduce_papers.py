"""The papers' tables: what they name exists, their printed figures are the papers', and the quick ones run."""

import csv
import importlib
import inspect
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.data.datasets import DATASETS
from flower_fedclust.registry import accepted_parameters, strategies
from flower_fedclust.simulation import simulate
from reproduce.measures import DATA, MEASURES, split_rows
from reproduce.spp_fgc import SPPFGCWithoutGraphs
from reproduce.tables import HERE, Experiment, find_paper, paper_names, run_table

PAPERS = {name: find_paper(name) for name in paper_names()}


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_names_what_exists(name):
    for table in PAPERS[name].tables:
        assert table.rows
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
        for row in table.rows:
            assert row.measure in MEASURES
            assert row.printed.keys() <= set(table.columns)
            if row.strategy:
                known = accepted_parameters(row.strategy)
                assert row.parameters.keys() <= known, row.name
                assert "n_clusters" in known
            if row.data and "pe_means" not in inspect.getmodule(MEASURES[row.measure]).__name__:
                assert row.data in DATA or row.data in DATASETS


@pytest.mark.parametrize("name", PAPERS)
def test_every_setting_of_a_table_reaches_one_of_its_rows(name):
    for table, text in tomllib.loads((HERE / f"{name}.toml").read_text())["tables"].items():
        (read,) = PAPERS[name].chosen([table])
        for setting in text.get("settings", {}):
            assert any(hasattr(row, setting) or setting in row.parameters for row in read.rows), (
                setting
            )


@pytest.mark.parametrize(
    ("paper", "n_figures", "sample"),
    [
        ("dp-fedc", 25, ("table-1", "DP-FedC, epsilon 20, noise on sums", "accuracy", 0.431)),
        ("feddp-kmeans", 10, ("radius", "mixture of Gaussians", "radius", 10.57)),
        ("fedsc", 219, ("iris", "FedSC", "NMI without class 0", 0.6708)),
        ("maps", 360, ("mnist", "Fed-UMAP+, one class a client", "NPA 50-NN", 0.186)),
        ("pe-means", 72, ("central", "blobs (20000, 128, 64)", "central-lsh", 0.9675)),
        ("spp-fgc", 226, ("tabular", "RING: SPP-FGC+", "NMI", 0.9642)),
    ],
)
def test_every_printed_figure_belongs_to_a_row(paper, n_figures, sample):
    with (HERE / f"{paper}.csv").open() as file:
        figures = [
            (one["table"], one["row"], one["column"], float(one["mean"]))
            for one in csv.DictReader(file)
        ]
    assert len(figures) == n_figures
    assert sample in figures
    shown = {
        (table.name, row.name, column, figure.mean)
        for table in PAPERS[paper].tables
        for row in table.rows
        for column, figure in row.printed.items()
    }
    assert shown == set(figures)


def test_a_paper_is_found_by_its_strategies():
    for name in (
        "feddp-kmeans",
        "fedsc",
        "fed-tsne",
        "fed-speclust",
        "dp-fedc",
        "spp-fgc-plus",
        "private-kmeans",
    ):
        assert name in strategies()
        assert find_paper(name).name in PAPERS


def run_rows(paper, table, *names, n_seeds=1):
    (chosen,) = PAPERS[paper].chosen([table])
    chosen = replace(
        chosen, rows=tuple(row for row in chosen.rows if row.name in names or not names)
    )
    found = {outcome.row.name: outcome for outcome in run_table(chosen, n_seeds)}
    assert len(found) == (len(names) or len(chosen.rows))
    assert not any(outcome.reason for outcome in found.values())
    return found


def test_iris_is_near_fedscs_paper():
    found = run_rows("fedsc", "iris", "FedSC", "k-means, pooled")
    assert abs(found["FedSC"].difference("accuracy")) < 0.03
    assert abs(found["k-means, pooled"].difference("accuracy")) < 0.001
    assert 0 < found["FedSC"].ours["relative kernel error"].mean < 0.05


def test_the_radius_of_the_mixture_is_near_the_paper():
    (outcome,) = run_rows("feddp-kmeans", "radius", n_seeds=40).values()
    assert abs(outcome.difference("radius")) < 2 * outcome.ours["radius"].deviation


def test_theorem_3_claims_less_than_composition():
    found = run_rows("dp-fedc", "theorem-2", "epsilon of a round 0.5")[
        "epsilon of a round 0.5"
    ].ours
    assert found["drawn 30 times"].mean < found["drawn 100 times"].mean


def test_spp_fgc_is_near_the_paper_on_iris_and_its_printed_recipe_is_not():
    names = ("Iris: SPP-FGC", "Iris: SPP-FGC as printed", "Iris: SPP-FGC, pooled")
    found = run_rows("spp-fgc", "tabular", *names, n_seeds=3)
    assert abs(found["Iris: SPP-FGC"].difference("accuracy")) < 0.02
    assert found["Iris: SPP-FGC as printed"].difference("accuracy") < -0.1
    assert found["Iris: SPP-FGC, pooled"].ours["accuracy"].mean > 0.95


def test_the_fed_sc_of_spp_fgcs_paper_is_fedsc_on_breast_cancer():
    name = "breast cancer, as it comes: FedSC"
    found = run_rows("spp-fgc", "tabular", name)[name]
    assert abs(found.difference("accuracy")) < 0.005
    assert abs(found.difference("NMI without class 0")) < 0.005
    assert found.ours["NMI"].mean < 0.45


@pytest.mark.long
@pytest.mark.parametrize(
    ("paper", "table", "names"),
    [
        ("fedsc", "noise", ()),
        ("fedsc", "one-client", ()),
        ("fedsc", "attack", ("Iris",)),
        ("spp-fgc", "noise", ("moons: SPPFGCSums, epsilon 100", "moons: SPP-FGC, without noise")),
        ("spp-fgc", "printed-ablation", ("Iris: as printed", "Iris: as printed, without both")),
        (
            "maps",
            "speclust-digits",
            ("Fed-SpeClust+, one class a client, dense graph", "Fed-SpeClust, sums only, IID"),
        ),
        ("pe-means", "private-kmeans-paid", ("iris (150, 4, 3)",)),
    ],
)
def test_small_tables_run(paper, table, names):
    for outcome in run_rows(paper, table, *names).values():
        assert outcome.ours


@pytest.mark.long
def test_cost_over_the_optimum_falls_with_epsilon():
    (table,) = PAPERS["feddp-kmeans"].chosen(["figure-1"])
    small = [replace(row, clients=10, rows_of_each=200) for row in (table.rows[0], table.rows[-1])]
    private, kfed = run_table(replace(table, rows=tuple(small)), 1)
    assert private.ours["epsilon 0.25"].mean > private.ours["epsilon 2"].mean > 0.99
    assert kfed.ours.keys() == {"no privacy"}


@pytest.mark.parametrize("n_clients", [5, 10])
def test_whole_classes_are_never_shared(n_clients):
    rows = split_rows(
        load_dataset("digits"), Experiment("", (), clients=n_clients, split="whole-classes"), seed=0
    )
    classes = [set(labels.tolist()) for labels in rows.labels]
    assert [len(own) for own in classes] == [10 // n_clients] * n_clients
    assert set.union(*classes) == set(range(10))


@pytest.mark.parametrize(
    ("level", "at_home", "elsewhere"), [(0.0, 50, 50), (0.6, 320, 20), (1.0, 500, 0)]
)
def test_a_part_of_each_class_gathers_with_one_client_and_the_rest_is_dealt_out(
    level, at_home, elsewhere
):
    table = Table(np.zeros((5000, 1)), np.repeat(np.arange(10), 500))
    rows = split_rows(table, Experiment("", (), gathered=level), seed=0)
    counts = np.array([np.bincount(labels, minlength=10) for labels in rows.labels])
    assert (counts == np.where(np.eye(10, dtype=bool), at_home, elsewhere)).all()


@pytest.mark.parametrize(
    "without",
    [
        {"private_graph": False},
        {"global_graph": False},
        {"private_graph": False, "global_graph": False},
    ],
)
def test_spp_fgc_runs_without_its_graphs(without):
    rows = partition(DATA["iris, rows of L1 norm 1"](), "iid", n_clients=4)
    whole, found = (
        simulate(SPPFGCWithoutGraphs(3, **options), rows.clients, labels=rows.labels, seed=0)
        for options in ({}, without)
    )
    assert found.metrics["accuracy"] > 0.5
    assert any((a != b).any() for a, b in zip(whole.labels, found.labels, strict=True))


def test_the_script_that_draws_the_papers_pictures_finds_what_it_imports(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "docs"))
    module = importlib.import_module("paper_pictures")
    assert callable(module.draw_curves)
    assert callable(module.draw_graphs)

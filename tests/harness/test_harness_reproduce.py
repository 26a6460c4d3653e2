"""Papers' tables: what is printed beside ours, what cannot be run, and what is saved."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.console import Console

from flower_fedclust import cli
from flower_fedclust.data import Table, load_dataset, partition
from flower_fedclust.harness.reproduce import (
    PAPERS,
    Figure,
    Paper,
    PaperTable,
    Row,
    draws,
    feddp_kmeans,
    figures,
    find_paper,
    run_table,
    tables,
)
from flower_fedclust.harness.reproduce.command import reproduce_paper
from flower_fedclust.harness.reproduce.maps import classes_apart
from flower_fedclust.harness.reproduce.show import ReproductionFolder, markdown
from flower_fedclust.harness.reproduce.spp_fgc import imbalanced
from flower_fedclust.registry import strategies

COLUMNS = ("accuracy", "NMI")


def broken(seed):
    raise ValueError("the rows are gone.")


TOY = PaperTable(
    "toy",
    "Table 1: a toy",
    COLUMNS,
    (
        Row("seeds as they are", lambda seed: {"accuracy": seed, "NMI": 0.5}, figures(COLUMNS, "0.4±0.1 -")),
        Row("broken", broken, figures(COLUMNS, "0.1 0.2")),
        Row("k-means|| on a line", lambda seed: {"accuracy": 0.25}),
    ),
    n_seeds=2,
    minutes=0,
    remark="Made up.",
)
PAPER = Paper("toys", "Nobody, A paper of toys, 2024", (TOY,), {"Table 2, CATS": "no cats are at hand."})


def fedclust(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedclust", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def shown(**options):
    console = Console(width=200, record=True, file=io.StringIO())
    return reproduce_paper(PAPER, console, **options), console.export_text()


def test_figures_are_read_as_they_are_printed():
    assert figures(COLUMNS, "0.9±0.01 -") == {"accuracy": Figure(0.9, 0.01)}
    assert str(Figure(0.9, 0.01)) == "0.9000 ± 0.0100"
    assert str(Figure(2e-14)) == "2.0e-14"
    with pytest.raises(ValueError, match="zip"):
        figures(COLUMNS, "0.9")


def test_rounding_errors_are_no_deviation():
    assert str(Figure(0.8, 8e-17)) == "0.8000 ± 0.0000"


def test_ours_is_the_mean_over_the_seeds_and_a_row_that_fails_stops_no_other():
    first, failed, last = run_table(TOY, 3)
    assert first.ours == {"accuracy": Figure(1.0, pytest.approx((2 / 3) ** 0.5)), "NMI": Figure(0.5, 0.0)}
    assert first.difference("accuracy") == pytest.approx(0.6)
    assert first.difference("NMI") is None
    assert failed.reason == "the rows are gone."
    assert not failed.ours
    assert last.ours == {"accuracy": Figure(0.25, 0.0)}


def test_the_table_has_ours_the_papers_and_the_difference_and_names_what_was_not_run():
    complete, text = shown()
    assert not complete
    line = next(line for line in text.splitlines() if "seeds as they are" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")][1:] == [
        "accuracy",
        "0.5000 ± 0.5000",
        "0.4000 ± 0.1000",
        "+0.1000",
    ]
    assert "toy, broken: the rows are gone." in text
    assert "Table 2, CATS: no cats are at hand." in text


def test_results_are_saved_with_the_command_the_versions_and_no_path(tmp_path):
    out = tmp_path / "out"
    shown(n_seeds=1, tables=["toy"], out=out)
    text = (out / "results.md").read_text()
    assert "`fedclust reproduce toys --table toy --seeds 1`" in text
    assert "flwr 1." in text
    assert str(tmp_path) not in text
    assert "| seeds as they are | accuracy | 0.0000 | 0.4000 ± 0.1000 | -0.4000 |" in text
    assert r"k-means\|\| on a line" in text
    assert "Table 2, CATS: no cats are at hand." in text
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["column"], row["ours"], row["printed"]) for row in rows] == [
        ("seeds as they are", "accuracy", "0.0", "0.4"),
        ("seeds as they are", "NMI", "0.5", ""),
        ("broken", "", "", ""),
        ("k-means|| on a line", "accuracy", "0.25", ""),
    ]
    assert rows[2]["reason"] == "the rows are gone."
    assert sorted(path.name for path in out.iterdir()) == ["draws.jsonl", "results.csv", "results.md"]


def test_what_is_done_is_saved_when_a_run_is_stopped_and_the_same_command_goes_on_from_there(tmp_path):
    asked = []

    def stopped(seed):
        asked.append(seed)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"accuracy": seed / 3}

    out = tmp_path / "out"
    paper = replace(PAPER, tables=(replace(TOY, rows=(TOY.rows[0], Row("stopped", stopped))),))
    with pytest.raises(KeyboardInterrupt):
        reproduce_paper(paper, Console(quiet=True), n_seeds=3, out=out)
    assert "seeds as they are" in (out / "results.md").read_text()
    with (out / "draws.jsonl").open("a") as file:
        file.write('{"table": "toy", "row')  # cut off
    assert reproduce_paper(paper, Console(quiet=True), n_seeds=3, out=out)
    assert asked == [0, 1, 1, 2]
    assert reproduce_paper(paper, Console(quiet=True), n_seeds=4, out=out)
    assert asked == [0, 1, 1, 2, 3]
    assert "| stopped | accuracy | 0.5000 ± 0.3727 |" in (out / "results.md").read_text()


def test_draws_of_other_versions_are_not_mixed(tmp_path, monkeypatch):
    ReproductionFolder(tmp_path, PAPER, "")
    monkeypatch.setattr(draws, "installed_versions", lambda: {"numpy": "0.1"})
    with pytest.raises(FileExistsError, match=r"holds draws of another kind \(numpy [\d.]+\); name a new folder"):
        ReproductionFolder(tmp_path, PAPER, "")


def test_a_folder_that_holds_something_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="already holds something"):
        ReproductionFolder(tmp_path, PAPER, "")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_table_whose_package_is_missing_says_what_to_install_and_the_others_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    needy = replace(TOY, name="needy", title="Table 3: maps", needs=("mlxtend", "openTSNE", "umap"))
    whole = replace(TOY, rows=TOY.rows[:1])
    console = Console(width=200, record=True)
    assert reproduce_paper(replace(PAPER, tables=(needy, whole)), console)
    text = console.export_text()
    assert (
        "Table 3: maps: it needs mlxtend and openTSNE and umap-learn; install the extra, "
        "pip install 'flower-fedclust[mnist,maps]'."
    ) in text
    assert "seeds as they are" in text
    assert not reproduce_paper(replace(PAPER, tables=(needy,)), Console(quiet=True))


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_is_complete(name):
    paper = find_paper(name)
    assert paper.name == name
    assert paper.not_reproduced
    names = [table.name for table in paper.tables]
    assert len(set(names)) == len(names)
    for table in paper.tables:
        assert bool(table.rows) != bool(table.draw)
        labels = [row.name for row in table.rows]
        assert len(set(labels)) == len(labels)
        for row in table.rows:
            assert row.printed.keys() <= {*table.columns, "NMI"}
    assert any(row.printed for table in paper.tables for row in table.rows)
    assert markdown(paper, [], {}, "")


@pytest.mark.parametrize(
    "strategy",
    [
        "feddp-kmeans", "fedsc", "fed-tsne", "fed-umap", "fed-speclust", "dp-fedc", "spp-fgc", "spp-fgc-plus",
        "pe-means", "private-kmeans",
    ],
)  # fmt: skip
def test_a_paper_is_found_by_its_strategy(strategy):
    assert strategy in strategies()
    assert find_paper(strategy).name in PAPERS


def test_every_row_names_a_strategy_and_parameters_that_exist(monkeypatch):
    class Made(Exception):
        pass

    def made(strategy, clients, **options):
        raise Made

    def few_rows(name, **options):
        return Table(np.random.default_rng(0).random((200, 5)), np.arange(200) % 10)

    @cache
    def split_evenly(**options):
        return partition(few_rows(""), "iid", **options)

    def split(table, scheme, **options):
        return split_evenly(**options) if scheme == "iid" else partition(table, scheme, **options)

    monkeypatch.setattr(tables, "partition", split)
    monkeypatch.setattr(tables, "simulate", made)
    monkeypatch.setattr(tables, "load_dataset", few_rows)
    tables.loaded.cache_clear()
    # Tables whose rows do not all run a strategy on a data set that is loaded.
    others = {"theorem-2", "private", "radius", "figure-1", "figure-2", "figure-5", "figure-6"}
    others |= {table.name for table in PAPERS["pe-means"].tables}
    try:
        for table in (table for paper in PAPERS.values() for table in paper.tables if table.name not in others):
            for row in (row for row in table.rows if row.name[:13] not in ("t-SNE, pooled", "UMAP, pooled ")):
                with pytest.raises(Made):
                    row.measure(0)
    finally:
        tables.loaded.cache_clear()


def test_a_picture_is_drawn_into_the_folder_and_not_without_one(tmp_path):
    drawn = replace(TOY, name="picture", title="Figure 1: a line", rows=(), draw=lambda folder: [f"in {folder.name}"])
    paper = replace(PAPER, tables=(drawn,))
    console = Console(width=200, record=True, file=io.StringIO())
    assert reproduce_paper(paper, console, out=tmp_path / "out")
    assert not reproduce_paper(paper, console)
    text = console.export_text()
    assert "Figure 1: a line:\n  in out" in text
    assert "Figure 1: a line: it is a picture; give a folder with --out." in text


def test_iris_is_near_the_paper():
    (table,) = find_paper("fedsc").chosen(["iris"])
    by_name = {outcome.row.name: outcome for outcome in run_table(table, 1)}
    assert abs(by_name["FedSC"].difference("accuracy")) < 0.03
    assert abs(by_name["k-means, pooled"].difference("accuracy")) < 0.001
    assert not any(outcome.reason for outcome in by_name.values())


@pytest.mark.long
@pytest.mark.parametrize("name", ["noise", "one-client", "attack"])
def test_the_small_tables_of_fedsc_run(name):
    (table,) = find_paper("fedsc").chosen([name])
    small = replace(table, rows=tuple(row for row in table.rows if "digits" not in row.name))
    for outcome in run_table(small, 1):
        assert not outcome.reason
        assert abs(outcome.difference(next(iter(outcome.ours)))) < 0.6


@pytest.mark.parametrize("n_clients", [5, 10])
def test_classes_apart_gives_each_client_whole_classes(n_clients):
    rows = partition(classes_apart(load_dataset("digits"), n_clients), "column")
    classes = [set(labels.tolist()) for labels in rows.labels]
    assert [len(own) for own in classes] == [10 // n_clients] * n_clients
    assert set.union(*classes) == set(range(10))


@pytest.mark.long
def test_cost_over_the_optimum_falls_with_epsilon():
    table = feddp_kmeans._costs("small", "", "record", (10, 200), {0.25: None, 4.0: None}, 0)
    table = replace(table, rows=(table.rows[0], table.rows[-1]))
    private, kfed = run_table(table, 1)
    assert private.ours["epsilon 0.25"].mean > private.ours["epsilon 4"].mean > 0.99
    assert kfed.ours.keys() == {"no privacy"}


def test_the_radius_of_the_mixture_is_near_the_paper():
    (table,) = find_paper("feddp-kmeans").chosen(["radius"])
    (outcome,) = run_table(table)
    assert abs(outcome.difference("radius")) < 2 * outcome.ours["radius"].deviation


def rows_of(name, table, *wanted):
    (chosen,) = find_paper(name).chosen([table])
    chosen = replace(chosen, rows=tuple(row for row in chosen.rows if row.name in wanted))
    assert len(chosen.rows) == len(wanted)
    return {outcome.row.name: outcome for outcome in run_table(chosen, 1)}


def test_spp_fgc_is_near_the_paper_on_iris_and_its_printed_recipe_is_not():
    found = rows_of("spp-fgc", "tabular", "Iris: SPP-FGC", "Iris: SPP-FGC as printed", "Iris: SPP-FGC, pooled")
    assert abs(found["Iris: SPP-FGC"].difference("accuracy")) < 0.02
    assert found["Iris: SPP-FGC as printed"].difference("accuracy") < -0.1
    assert found["Iris: SPP-FGC, pooled"].ours["accuracy"].mean > 0.95


def test_the_small_tables_of_spp_fgc_run():
    noisy = [f"moons: {name}, epsilon 100" for name in ("SPP-FGC, the paper's calibration", "SPPFGCSums")]
    found = rows_of("spp-fgc", "noise", *noisy, "moons: SPP-FGC, without noise")
    found |= rows_of("spp-fgc", "clients", "moons, 2 clients, IID", "moons: spectral clustering, pooled")
    assert not any(outcome.reason for outcome in found.values())
    assert min(outcome.ours["accuracy"].mean for outcome in found.values()) > 0.9


@pytest.mark.parametrize(("level", "at_home", "elsewhere"), [(0.0, 50, 50), (0.6, 320, 20), (1.0, 500, 0)])
def test_of_each_class_a_part_is_with_one_client_and_the_rest_is_dealt_out_evenly(level, at_home, elsewhere):
    classes = np.repeat(np.arange(10), 500)
    owners = imbalanced(Table(np.zeros((5000, 1)), classes), level, 10, seed=0).owners
    counts = np.zeros((10, 10), dtype=int)
    np.add.at(counts, (classes, owners), 1)
    assert (counts == np.where(np.eye(10, dtype=bool), at_home, elsewhere)).all()


def test_the_command_runs_a_table(capsys, monkeypatch, tmp_path):
    out_folder = tmp_path / "out"
    arguments = ("--table", "one-client", "--seeds", "1", "--out", str(out_folder))
    code, out, _ = fedclust(capsys, monkeypatch, "reproduce", "fedsc", *arguments)
    assert code == 0
    assert "0.8993 ± 0.0165" in out
    assert "USPS" in out
    assert (out_folder / "results.csv").exists()


def test_the_list_has_every_table_and_what_is_left_out(capsys, monkeypatch):
    code, out, _ = fedclust(capsys, monkeypatch, "reproduce", "--list")
    assert code == 0
    for name in PAPERS:
        paper = find_paper(name)
        assert all(what in out for what in paper.not_reproduced)
        assert all(table.title in out for table in paper.tables)


def test_the_list_says_which_extra_a_table_needs(capsys, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    _, out, _ = fedclust(capsys, monkeypatch, "reproduce", "maps", "--list")
    assert "pip install 'flower-fedclust[mnist" in "".join(out.split("│"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedcs"], "There is no paper called 'fedcs': did you mean 'fedsc'?"),
        (["fedsc", "--table", "irs"], "There is no table of fedsc called 'irs': did you mean 'iris'?"),
        (["fedsc", "--seeds", "0"], "seeds"),
        ([], "name a paper: dp-fedc, feddp-kmeans, fedsc, maps, pe-means, spp-fgc; --list says what each has."),
    ],
)
def test_a_wrong_name_is_one_sentence(capsys, monkeypatch, arguments, sentence):
    code, _, err = fedclust(capsys, monkeypatch, "reproduce", *arguments)
    assert code == 2
    assert sentence in err

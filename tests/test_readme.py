"""The README's code does what the README says."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.checking import LocalGrid
from flower_fedclust.registry import CLASSES, strategies

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
APPS = (ROOT / "docs" / "flower.md").read_text()
SCHEMA = """
[columns.age]
kind = "number"
bounds = [0, 110]
gaps = "mean"

[columns.job]
kind = "category"
categories = ["clerk", "cook"]
gaps = "category"
"""


def test_the_readme_counts_the_strategies_of_both_packages():
    ours = sum(len(names) for _, *names in CLASSES.values())
    project = tomllib.loads((ROOT / "strategies" / "pyproject.toml").read_text())["project"]
    others = len(project["entry-points"]["flower_fedclust.strategies"])
    assert f"with {ours} methods, called strategies" in README
    assert f"A second package has {others} more." in README


def snippet(beginning: str, page: str = README) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (found,) = [code for code in blocks if beginning in code]
    return found


def people(n_rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(4, size=n_rows)
    ages = 15 + 20 * kinds + rng.normal(size=n_rows)
    return pd.DataFrame({"age": ages, "job": np.array(["clerk", "cook"])[kinds % 2]}).mask(
        rng.random((n_rows, 2)) < 0.05
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's files: a table for each site, one with all rows, and one of numbers."""
    monkeypatch.chdir(tmp_path)
    tables = {"north": people(300, 0), "south": people(200, 1)}
    for site, table in tables.items():
        table.to_csv(f"{site}.csv", index=False)
    rows = pd.concat(table.assign(site=site) for site, table in tables.items())
    rows.to_csv("rows.csv", index=False)
    rows.assign(kind=rows.pop("job"), dose=rows["age"] / 10).dropna().to_csv(
        "numbers.csv", index=False
    )
    Path("columns.toml").write_text(SCHEMA)
    return tmp_path


def test_the_example_in_python_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(snippet("result.save("), {})
    assert (tmp_path / "results" / "first" / "privacy.txt").exists()
    assert "mean radius" in capsys.readouterr().out


def test_every_command_of_the_readme_runs(folder):
    from flower_fedclust.cli.commands import app

    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    blocks = [code for written_in, code in found if not written_in]
    lines = [
        line for block in blocks for line in block.splitlines() if line.startswith("fedclust ")
    ]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert {words[0] for words in commands} == {
        "schema",
        "run",
        "explain",
        "compare",
        "list",
        "new-app",
    }
    for words in commands:
        if words[0] == "compare":  # all strategies take too long here
            words[words.index("all")] = "k-fed,pooled-kmeans"
            words += ["--jobs", "1", "--seeds", "1"]
        if words[0] == "schema":  # columns.toml is the finished draft
            words[words.index("columns.toml")] = "draft.toml"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{words}: {result.output}"
    assert (folder / "results" / "second" / "private-kmeans" / "privacy.txt").exists()
    assert (folder / "results" / "compared" / "report.html").exists()
    assert (folder / "draft.toml").exists()


def test_both_apps_that_the_readme_leads_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("flower_fedclust.harness.run.RESULTS", tmp_path)
    rows = np.random.default_rng(0).normal(size=(200, 2))
    names = {
        "rows_of_this_site": rows,
        "names_of_the_columns": ["age", "dose"],
        "public_rows": rows[:60],
    }
    exec(snippet("ServerAppComponents", APPS), names)
    grid = LocalGrid(names["client"], 3)
    names["server"](grid, Context(1, 1, UserConfig(), RecordDict(), UserConfig()))
    assert "Privacy report of feddp-kmeans" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    exec(snippet("fc.run_app", APPS), names)
    names["main"](grid, None)
    assert "Privacy report of feddp-kmeans" in capsys.readouterr().out
    assert list(tmp_path.glob("*/feddp-kmeans/privacy.txt"))


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_five_papers_name_the_strategy_the_client_and_the_run_config_that_belong_together():
    table = README.split("## The five papers")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in table.splitlines()
        if row.startswith("| ")
    ]
    assert len(rows) == 1 + 5
    for paper, _, classes, clients, configs, page, departs in rows[1:]:
        assert paper
        assert re.fullmatch(r"\[page\]\(docs/papers/[\w-]+\.md\)", page)
        assert departs
        parts = zip(
            classes.split("<br>"), clients.split("<br>"), configs.split("<br>"), strict=True
        )
        for strategy, client, several in parts:
            files = re.findall(r"\(strategies/([\w-]+)\.toml\)", several)
            names = [
                tomllib.loads((ROOT / "strategies" / f"{file}.toml").read_text())["strategy"]
                for file in files
            ]
            if strategy.endswith(" \\*"):  # it counts as not installed
                points = tomllib.loads((ROOT / "strategies" / "pyproject.toml").read_text())[
                    "project"
                ]["entry-points"]
                found = {
                    points["flower_fedclust.strategies"][name]
                    for each in names
                    for name in each.split(",")
                }
                (where,) = found
                assert where.endswith(f":{strategy.split()[0].strip('`')}")
                path = ROOT / "strategies" / f"{where.partition(':')[0].replace('.', '/')}.py"
                assert f"class {client.strip('`')}(" in path.read_text()
                continue
            found = getattr(fc, strategy.strip("`"))
            assert found.client_type.__name__ == client.strip("`")
            assert {strategies()[name].strategy for each in names for name in each.split(",")} == {
                found
            }


def test_every_strategy_that_the_readme_names_exists():
    table = README.split("## Strategies")[1].split("## What is promised")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    assert len(named) >= 8
    assert named <= set(strategies())


def test_the_links_and_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#]+)\)", README.replace("\n", " ")) + re.findall(
        r'src="([^"]+)"', README
    ):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_the_schema_of_the_main_job_is_one():
    columns = fc.Schema.of(ROOT / "examples" / "pupils.toml").used
    assert {column.kind for column in columns.values()} == {"number", "integer", "binary"}
    assert tomllib.loads((ROOT / "examples" / "pupils.toml").read_text())


@pytest.mark.long
def test_the_main_job_ends_without_a_doubt():
    sys.path.insert(0, str(ROOT / "examples"))
    table = pytest.importorskip("pupils").pupils()
    strategy = fc.PrivateKMeans(4, epsilon=1.0)
    codes = []
    for _ in range(3):
        result = fc.simulate(
            strategy,
            table,
            client_column="school",
            schema=ROOT / "examples" / "pupils.toml",
            describe=True,
            progress=False,
        )
        codes.append([doubt.code for doubt in result.doubts])
    assert codes.count([]) >= 2


def test_the_readme_begins_with_a_picture_of_a_right_answer_and_the_import():
    places = [
        README.index(text)
        for text in ("docs/clusters.png", "import flower_fedclust as fc", "\nmake ")
    ]
    assert places == sorted(places)

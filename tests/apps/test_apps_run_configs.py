"""The run configs in strategies/: each runs, says what it is, and stands in the index; every algorithm has one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app.user_config import UserConfig

from apps import client_app, config, server_app
from flower_fedclust.checking import LocalGrid
from flower_fedclust.inputs import make_strategies
from flower_fedclust.registry import strategies

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "strategies"
PATHS = sorted(set(FOLDER.glob("*.toml")) - {FOLDER / "pyproject.toml"})
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SECOND = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The strategies of the second distribution, which count as not installed unless FEDCLUST_TESTED=papers.
OF_SECOND = set(SECOND["entry-points"]["flower_fedclust.strategies"])
#: The five papers as run configs cite them, and as the entries of strategies do.
FIVE_PAPERS = {
    "Scott, Lampert and Saulpic 2025": "Scott, Lampert and Saulpic 2025",
    "Qiao, Ding and Fan 2023": "Qiao, Ding and Fan 2023",
    "Li, Wang, Chi and Quek 2024": "Li, Wang, Chi and Quek 2024",
    "He, Wang, Tang, Wang, Wang and Nie": "Towards federated clustering: a client-wise private graph aggregation",
    "Qiao, Ma and Fan 2025": "Qiao, Ma and Fan 2025",
}
#: Where papers describe what they compare with.
EXPERIMENTS = ("appendix G.3", "section 5.3")


def run_config(path: Path) -> dict[str, object]:
    return PROJECT["tool"]["flwr"]["app"]["config"] | tomllib.loads(
        path.read_text(encoding="utf-8")
    )


def said(path: Path) -> dict[str, str]:
    """What the comment at the head of a run config says."""
    return dict(
        re.findall(
            r"^# (Paper|Algorithm|Form|Needs|Clients): (.+)$", path.read_text(), re.MULTILINE
        )
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_strategies_of_every_run_config_can_be_made_together(path):
    run = run_config(path)
    assert run.keys() == PROJECT["tool"]["flwr"]["app"]["config"].keys()
    names = config.strategy_names(run)
    assert ("./strategies" in said(path).get("Needs", "")) == bool(OF_SECOND & set(names))
    if not set(names) <= strategies().keys():
        pytest.skip("it needs the second distribution; `make papers` has it")
    made = make_strategies(
        names, config.parameters(run), np.random.default_rng(0).normal(size=(60, 64))
    )
    assert [strategy.name for strategy in made] == names


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_run_config_says_what_it_is_and_the_index_says_the_same(path):
    about, name = said(path), path.stem
    clients = int(about["Clients"])
    command = f'flwr run . --stream --federation-config "num-supernodes={clients}" --run-config strategies/{name}.toml'
    assert f"#   {command}\n" in path.read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", INDEX, re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines()].count(command) == 1
    ((algorithm, form, told, needs),) = re.findall(
        rf"^\| \[{name}\]\({name}\.toml\) \| ([^|]+) \| ([^|]+) \| (\d+) \| ([^|]*) \|",
        INDEX,
        re.MULTILINE,
    )
    assert about["Algorithm"].split(" (")[0] == algorithm.split(" (")[0]
    assert form == about["Form"] or (
        form == "corrected" and about["Form"].startswith("the paper's, corrected where ")
    )
    assert int(told) == clients
    assert about.get("Needs", "").removeprefix("pip install ") == needs.strip("` ")
    for folder, extra in re.findall(r"(\.(?:/strategies)?)\[(\w+)\]", needs):
        assert extra in (PROJECT["project"] if folder == "." else SECOND)["optional-dependencies"]


def test_the_index_has_no_other_run_config_and_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", INDEX)
    assert sorted(link for link in links if link.endswith(".toml")) == [path.name for path in PATHS]
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize(("paper", "source"), FIVE_PAPERS.items(), ids=str)
def test_every_algorithm_of_the_five_papers_has_a_run_config(paper, source):
    configs = [run_config(path) for path in PATHS if said(path).get("Paper") == paper]
    run = {name for one in configs for name in config.strategy_names(one)}
    of_paper = {
        name
        for name, entry in strategies().items()
        if source in entry.source and not entry.source.endswith(EXPERIMENTS)
    }
    assert of_paper
    assert run - (OF_SECOND - strategies().keys()) == of_paper


def test_a_run_config_runs_with_the_clients_that_it_is_meant_for(tmp_path, capsys):
    path = FOLDER / "feddp-kmeans.toml"
    run = run_config(path) | {"out": str(tmp_path / "out")}
    # What Flower tells the ServerApp and each simulated client.
    clients = int(said(path)["Clients"])
    grid = LocalGrid(client_app.app, clients)
    for context in grid.contexts.values():
        context.run_config = UserConfig(run)
    server_app.main(grid, SimpleNamespace(run_config=run))
    assert (tmp_path / "out" / "feddp-kmeans" / "result.json").is_file()
    assert f"{clients} clients, 10 clusters" in capsys.readouterr().out

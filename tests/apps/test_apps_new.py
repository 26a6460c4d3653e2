"""What `fedclust new-app` writes, and what Flower asks of an app: its format, its files, its names."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from apps_deployment import checkout
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from flower_fedclust.checking import LocalGrid
from flower_fedclust.cli.files import write_app

publish = importlib.import_module("flwr.cli.app_cmd.publish")


def n_lines_of_code(path: Path) -> int:
    return len([line for line in path.read_text().splitlines() if line.strip()])


@pytest.fixture(params=["message", "strategy"])
def app(request, tmp_path):
    return write_app(tmp_path / "first-app", request.param)


def test_a_new_app_is_short_and_uses_the_api_that_was_asked_for(app, request):
    assert n_lines_of_code(app / "app.py") < 40
    used = "MessageStrategy" in (app / "app.py").read_text()
    assert used == (request.node.callspec.params["app"] == "message")
    ast.parse((app / "app.py").read_text())


@pytest.mark.parametrize("ours", [True, False])
def test_apps_meet_the_format_of_flower_hub_and_hold_no_copy_of_the_package(ours, tmp_path, capsys):
    folder = checkout(tmp_path) if ours else write_app(tmp_path / "first-app")
    bundle, metadata = build_fab_from_files(collect_files(folder))
    (tmp_path / "one.fab").write_bytes(bundle)
    names = ZipFile(tmp_path / "one.fab").namelist()
    assert metadata.fab_format_version == 1
    own = {"apps/config.py"} if ours else {"app.py", "columns.toml"}
    assert {"LICENSE", "README.md", "pyproject.toml"} | own <= set(names)
    assert not [name for name in names if name.startswith(("flower_fedclust", "tests", "docs"))]
    publish._validate_files(publish._collect_file_paths(folder))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my_app", "Flower takes no app named 'my_app'"),
        ("a" * 33, "at most 32"),
        ("full", "already holds something"),
    ],
)
def test_an_app_that_cannot_be_is_refused_in_a_sentence_and_nothing_is_written(
    tmp_path, name, sentence
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises((ValueError, FileExistsError), match=sentence):
        write_app(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "notes.txt"]


@pytest.mark.long
def test_a_new_app_runs_and_saves_its_result(app, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(app)
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    context = SimpleNamespace(run_config=config | {"out": str(tmp_path / "out"), "epsilon": 8.0})
    try:
        made = importlib.import_module("app")
        made.main(LocalGrid(made.client, 3), context)
    finally:
        sys.modules.pop("app", None)
    saved = tmp_path / "out" / "private-kmeans"
    assert (saved / "centers.csv").is_file()
    assert "The whole run is covered by (8, 1e-06)" in (saved / "privacy.txt").read_text()

"""`flwr run` on a machine that has never seen this project, with the packages that Flower installs for each run.

Everywhere else, tests start their SuperLinks with --disable-runtime-dependency-installation.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from apps_deployment import ROOT, checkout
from filelock import FileLock
from newcomer import Newcomer

from flower_fedclust.cli.files import write_app

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def newcomer(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    somebody = Newcomer(home)
    # Flower's local SuperLink has one port, so two of these tests at a time would meet in one SuperLink.
    with FileLock(Path(tempfile.gettempdir()) / "flower-fedclust-newcomer.lock"):
        yield somebody
        somebody.stop()


def runs_to_its_result(newcomer: Newcomer, folder: Path, *options: str) -> Path:
    """Run the app in a folder, and return the folder of its only result: `flwr run` ends with 0 even if a run fails."""
    said = re.sub(
        r"\x1b\[[0-9;]*m", "", newcomer.says(["flwr", "run", ".", "--stream", *options], folder)
    )
    assert "Starting local SuperLink" in said, (
        "a SuperLink that this test has not started is running; stop it"
    )
    assert "Installing application dependencies" in said, said[-5000:]
    assert len(newcomer.results) == 1, said[-5000:]
    (saved,) = newcomer.results
    assert f"Saved in {saved.parent}" in said
    return saved


@pytest.mark.parametrize(("config", "is_covered"), [("feddp-kmeans", True), ("fedsc", False)])
def test_this_app_runs_from_a_checkout(newcomer, tmp_path, config, is_covered):
    saved = runs_to_its_result(
        newcomer, checkout(tmp_path), "--run-config", f"strategies/{config}.toml"
    )
    assert saved.name == config
    assert json.loads((saved / "privacy.json").read_text())["covers_everything"] == is_covered
    assert json.loads((saved / "metrics.json").read_text())["metrics"]["nmi"] > 0.3


@pytest.mark.parametrize("api", ["message", "strategy"])
def test_a_new_app_runs_as_it_is(newcomer, tmp_path, api):
    newcomer.says(["fedclust", "new-app", "first-app", "--api", api], tmp_path)
    saved = runs_to_its_result(newcomer, tmp_path / "first-app")
    assert "The whole run is covered by (5, 1e-06)" in (saved / "privacy.txt").read_text()


@pytest.mark.parametrize("ours", [True, False], ids=["this app", "a new app"])
def test_dependencies_and_every_extra_resolve_together_for_every_python(tmp_path, ours):
    """Flower asks this of uv before every run, although it installs no extra."""
    folder = ROOT if ours else write_app(tmp_path / "first-app")
    shutil.copy(folder / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "uv", "lock"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""The README's code does what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import flower_fedclust as fc
from flower_fedclust.protocol import Entry, Sent, Sum, answers
from flower_fedclust.registry import strategies

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippet(beginning: str) -> str:
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if beginning in code]
    return found


def test_the_example_in_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = {
        "public_rows": rng.normal(size=(40, 12)),
        "rows_of_site_1": rng.normal(size=(50, 12)),
        "rows_of_site_2": rng.normal(size=(60, 12)),
        "classes_1": rng.integers(3, size=50),
        "classes_2": rng.integers(3, size=60),
        "new_rows": rng.normal(size=(5, 12)),
    }
    exec(snippet("result.save("), names)
    assert (tmp_path / "results" / "first" / "privacy.txt").exists()


def test_the_strategy_of_the_readme_finds_the_mean_and_keeps_what_every_strategy_promises():
    names = {"fc": fc, "np": np, "Entry": Entry, "Sent": Sent, "Sum": Sum, "answers": answers, "__name__": "page"}
    exec(snippet("class FederatedMean"), names)
    rows = np.random.default_rng(0).normal(size=(30, 3))
    strategy = names["FederatedMean"](2)
    result = fc.simulate(strategy, [rows[:10], rows[10:]])
    np.testing.assert_allclose(result.model.cluster_centers_, rows.mean(axis=0, keepdims=True), atol=1e-12)
    assert not result.privacy.covers_everything


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 180


def test_every_strategy_that_the_readme_names_exists():
    table = README.split("## Strategies")[1].split("## What is promised")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    assert len(named) > 10
    assert named <= set(strategies())


def test_the_apps_of_the_readme_can_be_made():
    names = {
        "public_rows": np.random.default_rng(0).normal(size=(40, 3)),
        "rows_of_this_site": np.ones((5, 2)),
        "names_of_the_columns": ["age", "dose"],
    }
    exec(snippet("def server_fn"), names)
    components = names["server_fn"](None)
    assert components.config.num_rounds == components.strategy.num_rounds == 3
    assert names["load"](None).rows.shape == (5, 2)


def test_the_make_targets_of_the_readme_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

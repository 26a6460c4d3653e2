"""What a run promises when things go wrong, over a SuperLink and SuperNodes: docs/failures.md says it in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from apps_deployment import Deployment

import flower_fedclust as fc

pytestmark = [pytest.mark.long, pytest.mark.slow]

SCHEMA = """
[columns.age]
kind = "number"
bounds = [0, 100]
gaps = "mean"

[columns.dose]
kind = "number"
bounds = [0, 10]

[columns.sex]
kind = "category"
categories = ["f", "m"]
"""


@pytest.fixture
def tables(tmp_path):
    """Three sites with tables that have text and gaps."""
    rng, found = np.random.default_rng(0), {}
    for index, name in enumerate(("north", "south", "west")):
        groups = rng.integers(0, 3, 80 + index)
        table = pd.DataFrame(
            {
                "age": np.array([20.0, 50.0, 80.0])[groups] + rng.normal(0, 3, len(groups)),
                "dose": np.array([2.0, 8.0, 5.0])[groups] + rng.normal(0, 0.5, len(groups)),
                "sex": rng.choice(["f", "m"], len(groups)),
            }
        ).round(3)
        table.loc[index, "age"] = np.nan
        table.assign(kind=groups).to_csv(tmp_path / f"{name}.csv", index=False)
        found[name] = table
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return found


@pytest.fixture
def deployment(tmp_path):
    started = Deployment(tmp_path)
    yield started
    started.stop()


def config_of(deployment, name, n_rounds=3, **more):
    return {
        "strategy": "federated-kmeans",
        "dataset": "",
        "n-clusters": 3,
        "schema": str(deployment.folder / "schema.toml"),
        "parameters": f"n_rounds = {n_rounds}\nrandom_state = 0\ntol = 0.0",
        "wait-for-clients": 120.0,
        "out": str(deployment.folder / name),
    } | more


def with_numbers(tables, folder):
    """Leave text and gaps out of the tables: what a run with a schema leaves with a plain SuperNode is lost with it."""
    for name, table in tables.items():
        tables[name] = table[["age", "dose"]].fillna(50.0)
        tables[name].assign(kind=0).to_csv(folder / f"{name}.csv", index=False)
    return tables


def begin(deployment, *names):
    for name in names:
        deployment.supernode(name, deployment.folder / f"{name}.csv")
    deployment.wait_for_supernodes(*names)


def centers(deployment, name):
    with np.load(deployment.folder / name / "federated-kmeans" / "model.npz") as model:
        return [model[key] for key in model.files]


def inline(tables, seed=0, schema=SCHEMA):
    strategy = fc.FederatedKMeans(3, n_rounds=3, random_state=seed, tol=0.0)
    return fc.simulate(strategy, tables, schema=schema).model.to_arrays()


def test_the_server_is_killed_and_the_same_command_goes_on_with_the_same_bits(deployment, tables):
    tables = with_numbers(tables, deployment.folder)
    begin(deployment, *tables)
    config = config_of(deployment, "out", journal=str(deployment.folder / "journal"), schema="")
    first = deployment.submit("first", **config)
    deployment.wait_for_round("north", 5)
    deployment.kill_server_apps()
    first.wait(timeout=240)
    assert not (deployment.folder / "out" / "federated-kmeans" / "model.npz").exists()

    deployment.submit("again", **config).wait(timeout=540)
    said = deployment.said("again")
    assert (deployment.folder / "out" / "federated-kmeans" / "model.npz").exists(), said[-5000:]
    for one, other in zip(centers(deployment, "out"), inline(tables, schema=None), strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_runs_at_once_over_the_same_nodes_do_not_disturb_each_other(deployment, tables):
    begin(deployment, *tables)
    runs = {f"run-{seed}": seed for seed in range(2)}
    for name, seed in runs.items():
        parameters = f"n_rounds = 3\nrandom_state = {seed}\ntol = 0.0"
        deployment.submit(name, **config_of(deployment, name, parameters=parameters))
    for name in runs:
        deployment.processes[name].wait(timeout=540)
    for name, seed in runs.items():
        for one, other in zip(centers(deployment, name), inline(tables, seed=seed), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=deployment.said(name)[-5000:])


def test_a_late_site_is_sent_the_rounds_that_it_missed_and_then_takes_part(deployment, tables):
    begin(deployment, "north", "south")
    run = deployment.submit("run", **config_of(deployment, "out", n_rounds=20))
    deployment.wait_for_round("north", 4)  # round 3 has prepared the tables
    begin(deployment, "west")
    run.wait(timeout=540)

    saved = deployment.folder / "out" / "federated-kmeans"
    assert saved.is_dir(), deployment.said("run")[-5000:]
    traffic = pd.read_csv(saved / "traffic.csv")
    tasks = traffic[traffic["client"] == "west"]["task"].tolist()
    assert tasks[:2] == ["enrol", "prepare"]
    assert tasks[-1] == traffic["task"].iloc[-1]

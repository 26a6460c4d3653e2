"""What the ServerApp does before a run begins."""

from __future__ import annotations

import dataclasses

import pytest

from apps import config
from flower_fedclust import KFED
from flower_fedclust.authoring import ProtocolStrategy
from flower_fedclust.harness.run import settled_number_of_nodes
from flower_fedclust.inputs import RunSettings, read_inputs


class SlowGrid:
    """Knows one more node each time it is asked, as a simulation does that has only begun."""

    def __init__(self, n_nodes: int) -> None:
        self.n_nodes = n_nodes
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return list(range(min(self.asked - 1, self.n_nodes)))


def test_number_of_simulated_clients_is_not_taken_while_they_appear() -> None:
    assert settled_number_of_nodes(SlowGrid(7), quiet=0.3) == 7


def test_what_a_run_decides_has_the_names_and_the_defaults_of_the_strategy():
    own = {field.name: field.default for field in dataclasses.fields(ProtocolStrategy)}
    for setting in dataclasses.fields(RunSettings):
        assert own[setting.name] == setting.default, setting.name


def test_every_strategy_of_a_run_gets_what_the_run_config_decides():
    run = {
        "dataset": "iris",
        "wait-for-clients": 5,
        "share-model": True,
        "secure": False,
        "noise-seed": 3,
    }
    run |= {"partition": "iid", "data-seed": 0}
    choice = config.rows_choice(run, 4)
    given = read_inputs(
        ["k-fed", KFED], choice, {"n_clusters": 3}, settings=config.settings(run, 4), several=True
    )
    columns = given.rows.columns
    for strategy in given.strategies:
        assert (strategy.wait_for_clients, strategy.expected_clients, strategy.server_columns) == (
            5.0,
            4,
            columns,
        )
        assert (strategy.share_model, strategy.noise_seed, strategy.random_state) == (True, 3, 3)
    with pytest.raises(ValueError, match="noise-seed is for simulated rows"):
        config.settings(run | {"dataset": ""}, 4)

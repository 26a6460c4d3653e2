"""The run config of the Flower app, translated into parameters of the library."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flower_fedclust.data import FederatedRows
from flower_fedclust.inputs import (
    RowsChoice,
    RunSettings,
    needs_server_rows,
    number_of_clusters,
    parse_epsilon,
)
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.outside import parsing
from flower_fedclust.tables import Schema


def given(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, or None if it is empty; a text such as "3" or "0.5" becomes a number."""
    value = config.get(key, "")
    if value == "":
        return None
    if not isinstance(value, str):
        return value
    try:
        return float(value) if set(value) & set(".eE") else int(value)
    except ValueError:
        return value


def text(config: Mapping[str, Any], key: str) -> str | None:
    """Return the value of a key as it was written, or None if it is empty."""
    value = config.get(key, "")
    return None if value == "" else str(value)


def listed(value: str | None) -> tuple[str, ...] | None:
    """Return the parts of a text between commas."""
    return None if value is None else tuple(part.strip() for part in value.split(","))


def strategy_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the strategies to run."""
    return list(listed(str(config["strategy"])) or ())


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the strategies: ``n-clusters``, ``epsilon``, and the TOML under ``parameters``."""
    with parsing("parameters in the run config", "TOML", "correct it"):
        values = tomllib.loads(str(config.get("parameters", "")))
    values = {key.replace("-", "_"): value for key, value in values.items()}
    for key in ("n-clusters", "epsilon"):
        if key.replace("-", "_") in values:
            raise ValueError(
                f"{key} is given under parameters; it is a key of the run config itself."
            )
    values["n_clusters"] = number_of_clusters(str(config["n-clusters"]))
    epsilon = text(config, "epsilon")
    return values if epsilon is None else {**values, "epsilon": parse_epsilon(epsilon)}


def schema(config: Mapping[str, Any]) -> Schema | None:
    """Return the schema of the columns, from TOML, or from a TOML file on the server's machine."""
    given_schema = text(config, "schema")
    return None if given_schema is None else Schema.of(given_schema)


def settings(config: Mapping[str, Any], n_clients: int | None) -> RunSettings:
    """Return the settings that hold for every strategy of the run."""
    seed = given(config, "noise-seed")
    if seed is not None and text(config, "dataset") is None:
        raise ValueError(
            "noise-seed is for simulated rows: noise that protects somebody is never repeatable."
        )
    return RunSettings(
        wait_for_clients=float(config["wait-for-clients"]),
        expected_clients=n_clients,
        share_model=bool(config["share-model"]),
        secure=bool(config["secure"]),
        noise_seed=None if seed is None else int(seed),
    )


def rows_choice(config: Mapping[str, Any], n_clients: int | None) -> RowsChoice:
    """Return which rows a simulation reads; in a deployment, only the server's public rows."""
    if (dataset := text(config, "dataset")) is None:
        columns, label_column = listed(text(config, "columns")), text(config, "label-column")
        public = text(config, "server-data")
        return RowsChoice(
            None, label_column, columns=columns, server_data=public, schema=schema(config)
        )
    return RowsChoice(
        dataset,
        partition=str(config["partition"]),
        n_clients=n_clients or 1,
        server_data=text(config, "server-data"),
        n_server_rows=given(config, "n-server-rows"),
        seed=int(config["data-seed"]),
        schema=schema(config),
    )


def simulated_rows(config: Mapping[str, Any], n_clients: int) -> FederatedRows:
    """Return the rows of all simulated clients, the same in the server's process and in the clients' processes."""
    # The schema's file may exist only on the server's machine, and reading the rows does not need it.
    choice = replace(rows_choice(config, n_clients), schema=None)
    n_clusters = numbers_of(number_of_clusters(str(config["n-clusters"])))[1]
    return _simulated_rows(
        choice, n_clusters, needs_server_rows(strategy_names(config), choice.n_server_rows)
    )


@lru_cache(maxsize=1)
def _simulated_rows(choice: RowsChoice, n_clusters: int, with_server_rows: bool) -> FederatedRows:
    """Read the rows of a choice, once per process."""
    rows: FederatedRows = choice.load(n_clusters, needs_server_rows=with_server_rows)
    return rows

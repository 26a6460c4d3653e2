"""What the run config says, in the words of the library."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flower_fedclust.data import FederatedRows
from flower_fedclust.inputs import RowsChoice, needs_server_rows, number_of_clusters, parse_epsilon
from flower_fedclust.numerics.validity import numbers_of
from flower_fedclust.outside import parsing
from flower_fedclust.tables import Schema


def given(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, or None where it was left empty; a text that is a number becomes one."""
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
    """Return the value of a key as it was written, or None where it was left empty."""
    value = config.get(key, "")
    return None if value == "" else str(value)


def listed(value: str | None) -> tuple[str, ...] | None:
    """Return what stands between the commas of a text."""
    return None if value is None else tuple(part.strip() for part in value.split(","))


def strategy_names(config: Mapping[str, Any]) -> list[str]:
    """Return the strategies that were asked for."""
    return list(listed(str(config["strategy"])) or ())


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the strategies: ``n-clusters``, ``epsilon``, and the TOML under ``parameters``.

    Raises
    ------
    ValueError
        If the text under ``parameters`` is not TOML, or names what has a key of its own.
    """
    with parsing("parameters in the run config", "TOML", "correct it"):
        found = tomllib.loads(str(config.get("parameters", "")))
    found = {key.replace("-", "_"): value for key, value in found.items()}
    for key in ("n-clusters", "epsilon"):
        if key.replace("-", "_") in found:
            raise ValueError(f"{key} stands under parameters; it is a key of the run config itself.")
    found["n_clusters"] = number_of_clusters(str(config["n-clusters"]))
    epsilon = text(config, "epsilon")
    return found if epsilon is None else {**found, "epsilon": parse_epsilon(epsilon)}


def schema(config: Mapping[str, Any]) -> Schema | None:
    """Return what is public of the columns: TOML, or the name of a TOML file where the server runs."""
    given_schema = text(config, "schema")
    return None if given_schema is None else Schema.of(given_schema)


def simulated_rows(config: Mapping[str, Any], n_clients: int) -> FederatedRows:
    """Return the rows of all simulated clients; the server's and the clients' processes find the same ones."""
    return _simulated_rows(
        RowsChoice(
            dataset=str(config["dataset"]),
            partition=str(config["partition"]),
            n_clients=n_clients,
            server_data=text(config, "server-data"),
            n_server_rows=given(config, "n-server-rows"),
            seed=int(config["data-seed"]),
        ),
        numbers_of(number_of_clusters(str(config["n-clusters"])))[1],
        needs_server_rows(strategy_names(config), given(config, "n-server-rows")),
    )


@lru_cache(maxsize=1)
def _simulated_rows(choice: RowsChoice, n_clusters: int, with_server_rows: bool) -> FederatedRows:
    return choice.load(n_clusters, needs_server_rows=with_server_rows)

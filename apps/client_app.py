"""The ClientApp: rows of a simulated client, or a SuperNode's own file.

A SuperNode with rows of its own takes these keys from its node config, never from the run config:

- ``data``: the file of its rows; ``label-column`` and ``columns``: columns of that file
- ``subject-column``: the column that says which person a row is about, if a person may have several rows; by default
  the schema's
- ``query``: an SQL query for the rows; ``data`` is then the database, or "duckdb://" if the query names files
- ``schema``: a file that says what is public about the columns; runs with another schema are refused
- ``consent``: kinds of messages that may leave without noise, separated by commas: "sums" (the default), "centers",
  "codes", "rows"
- ``strategies``: the strategies that the SuperNode takes part in; by default all that its consent allows
- ``evaluation``: whether the SuperNode evaluates models on its rows (false by default)
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from apps.config import given, listed, simulated_rows, strategy_names, text
from flower_fedclust import ClientData, Consent, client_fn
from flower_fedclust.data.files import read_source
from flower_fedclust.engine.client import client_name
from flower_fedclust.registry import client_types
from flower_fedclust.tables import Schema


def load(context: Context) -> ClientData:
    """Return the rows of the file in the node config, or of this partition of the simulated data set."""
    site = context.node_config
    if "data" in site:
        query, columns, agreed = (
            text(site, "query"),
            listed(text(site, "columns")),
            text(site, "schema"),
        )
        schema, subject_column = (
            None if agreed is None else Schema.of(Path(agreed)),
            text(site, "subject-column"),
        )
        table = read_source(
            str(site["data"]),
            query,
            label_column=text(site, "label-column"),
            subject_column=subject_column if schema is None else schema.subjects_in(subject_column),
            columns=columns,
            raw=True,
        )
        return ClientData(
            table.rows,
            table.labels,
            owner=f"client {client_name(context)}",
            raw=True,
            subjects=table.subjects,
            schema=schema,
        )
    index = int(site["partition-id"])
    rows = simulated_rows(context.run_config, int(site["num-partitions"]))
    return ClientData(
        rows.clients[index],
        None if rows.labels is None else rows.labels[index],
        rows.columns,
        owner=f"client {index}",
        subjects=None if rows.subjects is None else rows.subjects[index],
    )


def consent(context: Context) -> Consent:
    """Return what the client answers: everything in a simulation; for a SuperNode's own rows, sums by default."""
    site = context.node_config
    if "data" not in site:
        return Consent()
    allowed = str(site.get("evaluation", "false")).lower() == "true"
    return Consent(listed(text(site, "consent")) or ("sums",), evaluation=allowed)


def noise_seed(context: Context) -> int | None:
    """Return the run's seed of the noise, if rows are simulated; noise for a SuperNode's own rows has no seed."""
    seed = given(context.run_config, "noise-seed")
    if seed is None or "data" in context.node_config:
        return None
    from flower_fedclust.simulation import noise_seed_of

    return noise_seed_of(int(seed), int(context.node_config["partition-id"]))


def make_client(context: Context) -> Client:
    """Return the client that answers the strategies of this run."""
    names = strategy_names(context.run_config)
    agreed = listed(text(context.node_config, "strategies"))
    if agreed is not None and (refused := [name for name in names if name not in agreed]):
        raise ValueError(
            f"this site does not take part in {', '.join(refused)}; its node config lists other strategies."
        )
    return client_fn(client_types(names), load, consent=consent(context), noise_seed=noise_seed)(
        context
    )


app = ClientApp(client_fn=make_client)

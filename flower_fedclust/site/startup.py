"""The rows that a site answers from; and what would keep it from answering, found all at once before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.registry import client_types, find, strategies
from flower_fedclust.site.policy import Policy, SiteSettings
from flower_fedclust.tables.schema import Schema


def load_rows(settings: SiteSettings) -> ClientData:
    """Return the rows that ``site.toml`` names.

    Raises
    ------
    DataError
        If they cannot be read, or if the label column has more values than classes have.
    """
    from flower_fedclust.data.files import read_source

    table = read_source(
        settings.data,
        settings.query,
        label_column=settings.label_column,
        id_column=settings.id_column,
        columns=settings.columns,
        raw=True,
    )
    if table.labels is not None and len(set(table.labels.tolist())) > settings.most_classes:
        raise DataError(
            f"the label column '{settings.label_column}' has more than {settings.most_classes} different values, which "
            "may be names; name another, or raise most_classes."
        )
    schema = None if settings.schema_file is None else Schema.of(Path(settings.schema_file))
    return ClientData(
        table.rows,
        table.labels,
        owner=f"site {settings.name}",
        row_ids=table.row_ids,
        id_column=settings.id_column,
        raw=True,
        schema=schema,
    )


def checked_rows(settings: SiteSettings) -> ClientData:
    """Return the rows of a site.

    Raises
    ------
    ValueError
        If no run can be answered from them, or with this policy; the message has a line for each reason.
    """
    reasons, data = list(_of_policy(settings.policy)), None
    with _noted(reasons):
        data = load_rows(settings)
    if data is not None:
        fewest, most = settings.policy.fewest_rows, settings.limits.most_rows
        if data.n_rows < fewest:
            reasons.append(f"{settings.data_set} has {data.n_rows} rows; fewest_rows in the policy is {fewest}.")
        if data.n_rows > most:
            reasons.append(f"{settings.data_set} has {data.n_rows} rows; most_rows in the limits is {most}.")
        with _noted(reasons):
            if data.schema is not None:
                data.schema.check(data.table, owner=data.owner)
            elif not data.rows.shape[1]:
                reasons.append(f"{settings.data_set} has no columns to cluster by.")
    if data is None or reasons:
        raise ValueError("\n".join(["the site cannot answer runs as site.toml has it:", *reasons]))
    return data


def _of_policy(policy: Policy) -> Iterator[str]:
    known = []
    for name in strategies() if policy.strategies is None else policy.strategies:
        try:
            find(name)
        except ValueError as error:
            yield f"strategies in the policy: {error}"
        else:
            known.append(name)
    tasks = {
        name: None
        for client in client_types(known)
        for name in dir(client)
        if isinstance(getattr(client, name), Askable)
    }
    for task in (policy.tasks or ()) if known else ():
        try:
            look_up(task, tasks, "task of these strategies called")
        except ValueError as error:
            yield f"tasks in the policy: {error}"
    for key in ("strategies", "tasks", "studies"):
        if getattr(policy, key) == ():
            yield f"{key} in the policy is empty; list some, or leave it out."
    for key in ("epsilon", "delta"):
        of_run, of_all = getattr(policy, f"{key}_per_run"), getattr(policy, key)
        if of_run > of_all:
            yield f"{key}_per_run in the policy is {of_run:g}, and {key}, which is for all runs, is {of_all:g}."


@contextmanager
def _noted(reasons: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of files, databases and tables, each of which has its own
        reasons.append(str(error))

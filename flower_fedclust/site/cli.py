"""The commands of a site: ``fedclust site``, and ``fedclust ledger show | check | export``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from flower_fedclust.engine.client_data import ClientData
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import Policy, SiteSettings

ledger_app = typer.Typer(help="Show and check what has left this site.", no_args_is_help=True)

SiteToml = Annotated[Path, typer.Argument(help="The site.toml of the site.")]

#: The columns of an export: of an answer, and of each of its arrays.
COLUMNS = (
    *("number", "time", "run", "round", "task", "study", "strategy", "app", "data_set"),
    *("epsilon", "delta", "is_claim"),
)
ARRAY_COLUMNS = ("content", "reveals", "per", "covered", "mechanism", "multiplier", "relation", "share", "shares")


def start_site(
    context: typer.Context,
    site_toml: SiteToml,
    init: Annotated[
        bool, typer.Option("--init", help="Create the ledger and end: once, before the first start.")
    ] = False,
) -> None:
    """Start this site's SuperNode: it runs this package's code and follows the policy in site.toml.

    All further options are passed to flower-supernode: --superlink HOST:PORT, --root-certificates,
    --auth-supernode-private-key, --trusted-entities, --port, ...
    """
    from flower_fedclust.site.supernode import check_flower, leave_working_directory_out, start

    leave_working_directory_out()
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.budget import spent
    from flower_fedclust.site.policy import SiteSettings

    check_flower()
    settings = SiteSettings.from_toml(site_toml)
    site = Site(settings)
    if init:
        site.create_ledger()
        typer.echo(f"Site {settings.name} has a ledger now. Its last line: {site.ledger.witness}")
        return
    _check(site)
    n_rows, n_columns = checked_rows(settings).table.shape
    policy, total = settings.policy, spent(site.ledger.read(), site.data_set)
    budget = f"epsilon {total.epsilon:.4g} of {policy.epsilon:g} is spent, at most {policy.epsilon_per_run:g} per run."
    typer.echo(f"Site {settings.name}: {n_rows} rows of {n_columns} columns; {budget}", err=True)
    start(site_toml, context.args)


def checked_rows(settings: SiteSettings) -> ClientData:
    """Return a site's rows; raise one ValueError with every reason why no run could be answered."""
    from flower_fedclust.site.app import load_rows

    reasons, data = list(_reasons_of_policy(settings.policy)), None
    with _collected(reasons):
        data = load_rows(settings)
    if data is not None:
        fewest, most = settings.policy.fewest_rows, settings.limits.most_rows
        if data.n_rows < fewest:
            reasons.append(f"{settings.data_set} has {data.n_rows} rows; fewest_rows in the policy is {fewest}.")
        if data.n_rows > most:
            reasons.append(f"{settings.data_set} has {data.n_rows} rows; most_rows in the limits is {most}.")
        with _collected(reasons):
            if data.schema is not None:
                data.schema.check(data.table, owner=data.owner)
            elif not data.rows.shape[1]:
                reasons.append(f"{settings.data_set} has no columns to cluster by.")
    if data is None or reasons:
        raise ValueError("\n".join(["with this site.toml the site cannot answer runs:", *reasons]))
    return data


def _reasons_of_policy(policy: Policy) -> Iterator[str]:
    from flower_fedclust.engine.rounds import Askable
    from flower_fedclust.names import look_up
    from flower_fedclust.registry import client_types, find, strategies

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
            yield f"{key}_per_run in the policy is {of_run:g}, but {key}, which is for all runs, is {of_all:g}."


@contextmanager
def _collected(reasons: list[str]) -> Iterator[None]:
    """Collect the reason if anything fails: files, databases and tables raise errors of their own."""
    try:
        yield
    except Exception as error:
        reasons.append(str(error))


@ledger_app.command()
def show(site_toml: SiteToml = Path("site.toml")) -> None:
    """Show what each run has cost, and each data set in all."""
    from flower_fedclust.site.budget import spent
    from flower_fedclust.site.policy import printable

    entries = _entries(site_toml)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    runs: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        runs.setdefault(entry["run"], []).append(entry)
    table = Table("run", "from", "study", "strategy", "data set", "answers", "epsilon", "without noise")
    for name, own in runs.items():
        epsilon = max(entry["epsilon"] for entry in own)
        is_claim = any(entry["is_claim"] for entry in own)
        sent = [entry for entry in own if entry.get("sent")]
        n_open = sum(array.get("covered") == "nothing" for entry in sent for array in entry["arrays"])
        table.add_row(
            Text(printable(name[:12])),  # as Text: a server's names must not act as markup
            own[0]["time"],
            Text(printable(own[0]["study"])),
            Text(printable(own[0]["strategy"])),
            Text(own[0]["data_set"]),
            str(len(sent)),
            (f"{epsilon:.4g}" + (" (the server's claim)" if is_claim else "")) if epsilon else "",
            f"{n_open} arrays" if n_open else "",
        )
    console.print(table)
    for data_set in dict.fromkeys(entry["data_set"] for entry in entries):
        total = spent(entries, data_set)
        claimed = f", of which {total.claimed:.4g} rest on what others claim" if total.claimed else ""
        evaluations = f"; {total.n_evaluations} models evaluated" if total.n_evaluations else ""
        typer.echo(f"{data_set}: epsilon {total.epsilon:.4g} at delta {total.delta:.3g} in all{claimed}{evaluations}.")


@ledger_app.command()
def check(
    site_toml: SiteToml = Path("site.toml"),
    head: Annotated[
        str | None, typer.Option(help="NUMBER:HASH of a line, as a check or a result has it: it must still be there.")
    ] = None,
) -> None:
    """Check ledger, head and kept answers against one another; print the number and the hash of the last line."""
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings

    site = Site(SiteSettings.from_toml(site_toml))
    _check(site)
    if head is not None and not site.ledger.has(head):
        raise ValueError(f"{site.ledger.path} has no line {head}; lines that were there are gone or were changed.")
    n_entries = len(site.ledger.entries)
    typer.echo(f"{n_entries} entries; each follows from those before it. The last line: {site.ledger.witness}")


@ledger_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="A new file, .csv or .json.")],
    site_toml: SiteToml = Path("site.toml"),
) -> None:
    """Write the ledger for other programs: a line for every array that has left."""
    entries = _entries(site_toml)
    if out.exists():
        raise ValueError(f"{out} exists; choose a new file, so that nothing is lost.")
    if out.suffix == ".json":
        out.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    elif out.suffix == ".csv":
        with out.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow([*COLUMNS, *ARRAY_COLUMNS])
            for entry in entries:
                for array in entry["arrays"] or [{}]:
                    cells = [entry[name] for name in COLUMNS] + [array.get(name, "") for name in ARRAY_COLUMNS]
                    table.writerow([_as_text(cell) for cell in cells])
    else:
        raise ValueError(f"{out} is given; choose a file that ends in .csv or .json.")
    typer.echo(f"Saved in {out.absolute()}")


def _as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: a server chooses the names of runs and studies."""
    from flower_fedclust.site.policy import printable

    return f"'{printable(cell)}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else printable(cell)


def _entries(site_toml: Path) -> list[dict[str, Any]]:
    from flower_fedclust.site.ledger import Ledger
    from flower_fedclust.site.policy import SiteSettings

    return Ledger(Path(SiteSettings.from_toml(site_toml).folder) / "ledger.jsonl").read()


def _check(site: Site) -> None:
    """Raise a ValueError if ledger, head and answers disagree."""
    with site.ledger.locked():
        site.check_kept(whole=True)

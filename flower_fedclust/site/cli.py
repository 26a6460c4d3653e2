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
    from flower_fedclust.site.app import Site

ledger_app = typer.Typer(help="Show and check what has left this site.", no_args_is_help=True)

SiteToml = Annotated[Path, typer.Argument(help="The site.toml of the site.")]

#: What stands in every line of an export; the rest is said of each array.
COLUMNS = (
    "number",
    "time",
    "run",
    "round",
    "task",
    "study",
    "strategy",
    "app",
    "data_set",
    "epsilon",
    "delta",
    "is_claim",
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

    Options that follow are those of flower-supernode: --superlink HOST:PORT, --root-certificates,
    --auth-supernode-private-key, --trusted-entities, --port, ...
    """
    from flower_fedclust.site.supernode import UnsupportedFlower, check_flower, leave_working_directory_out, start

    leave_working_directory_out()
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings
    from flower_fedclust.site.startup import checked_rows

    try:
        check_flower()
    except UnsupportedFlower as error:
        raise ValueError(f"{error}") from None
    settings = SiteSettings.from_toml(site_toml)
    site = Site(settings)
    if init:
        with _said():
            site.create_ledger()
        typer.echo(f"Site {settings.name} has a ledger now. Its last line: {site.ledger.witness}")
        return
    _check(site)
    n_rows, n_columns = checked_rows(settings).table.shape
    typer.echo(f"Site {settings.name}: {n_rows} rows of {n_columns} columns; {_said_of(site)}", err=True)
    start(site_toml, context.args)


@ledger_app.command()
def show(site_toml: SiteToml = Path("site.toml")) -> None:
    """Show what each run has cost, and each data set in all."""
    from flower_fedclust.site.budget import spent
    from flower_fedclust.site.limits import said

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
            Text(said(name[:12])),  # names are the server's, and no markup
            own[0]["time"],
            Text(said(own[0]["study"])),
            Text(said(own[0]["strategy"])),
            Text(own[0]["data_set"]),
            str(len(sent)),
            (f"{epsilon:.4g}" + (" (the server's claim)" if is_claim else "")) if epsilon else "",
            f"{n_open} arrays" if n_open else "",
        )
    console.print(table)
    for data_set in dict.fromkeys(entry["data_set"] for entry in entries):
        total = spent(entries, data_set)
        claimed = f", of which {total.claimed:.4g} are somebody's claim" if total.claimed else ""
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
    typer.echo(f"{n_entries} entries, each follows from those before it. The last line: {site.ledger.witness}")


@ledger_app.command()
def export(
    out: Annotated[Path, typer.Argument(help="A new file, .csv or .json.")],
    site_toml: SiteToml = Path("site.toml"),
) -> None:
    """Write the ledger for other programs: a line for every array that has left."""
    entries = _entries(site_toml)
    if out.exists():
        raise ValueError(f"{out} exists; name a new file, so that nothing is lost.")
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
        raise ValueError(f"{out} is given; name a file that ends in .csv or .json.")
    typer.echo(f"Saved in {out.absolute()}")


def _as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: names of runs and studies are the server's."""
    from flower_fedclust.site.limits import said

    return f"'{said(cell)}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else said(cell)


def _entries(site_toml: Path) -> list[dict[str, Any]]:
    from flower_fedclust.site.ledger import Ledger
    from flower_fedclust.site.policy import SiteSettings

    with _said():
        return Ledger(Path(SiteSettings.from_toml(site_toml).folder) / "ledger.jsonl").read()


def _check(site: Site) -> None:
    """Raise a ValueError if anything in ledger, head and answers does not agree."""
    with _said(), site.ledger.locked():
        site.check_kept(whole=True)


@contextmanager
def _said() -> Iterator[None]:
    from flower_fedclust.site.ledger import LedgerError

    try:
        yield
    except LedgerError as error:
        raise ValueError(f"{error}") from None


def _said_of(site: Any) -> str:
    from flower_fedclust.site.budget import spent

    policy, total = site.settings.policy, spent(site.ledger.read(), site.data_set)
    return f"epsilon {total.epsilon:.4g} of {policy.epsilon:g} is spent, at most {policy.epsilon_per_run:g} a run."

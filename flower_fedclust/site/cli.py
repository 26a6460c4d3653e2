"""The commands of a site: ``fedclust site`` and ``fedclust ledger``."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

if TYPE_CHECKING:
    from click import Context

    from flower_fedclust.site.app import Site


class StartsByDefault(TyperGroup):
    """A group of commands with a default: ``fedclust site site.toml`` means ``fedclust site start site.toml``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put the default command in front if the arguments name no command."""
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["start", *args]
        return super().parse_args(ctx, args)


site_app = typer.Typer(
    cls=StartsByDefault,
    help="Start and check this site, and decide about studies.",
    no_args_is_help=True,
)
ledger_app = typer.Typer(help="Show and check what has left this site.", no_args_is_help=True)

SiteToml = Annotated[Path, typer.Argument(help="The site.toml of the site.")]

#: The columns of an export: first those about an answer, then those about each of its arrays.
COLUMNS = (
    *("number", "time", "run", "round", "task", "study", "strategy", "app", "data_set"),
    *("epsilon", "delta", "unit", "is_claim"),
)
ARRAY_COLUMNS = (
    "content",
    "reveals",
    "per",
    "covered",
    "mechanism",
    "multiplier",
    "relation",
    "share",
    "shares",
)


@site_app.command(
    name="start", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def start_site(
    context: typer.Context,
    site_toml: SiteToml,
    init: Annotated[
        bool,
        typer.Option("--init", help="Create the ledger and end: once, before the first start."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="List all that is wrong with this setup, and end; nothing is written."
        ),
    ] = False,
) -> None:
    """Start this site's SuperNode (the default): it runs this package's code and follows the policy in site.toml.

    All further options are passed to flower-supernode: --superlink HOST:PORT, --root-certificates,
    --auth-supernode-private-key, --trusted-entities, --port, ...
    """
    from flower_fedclust.site.supernode import check_flower, leave_working_directory_out, start

    leave_working_directory_out()
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.budget import spent
    from flower_fedclust.site.check import checked_rows, findings
    from flower_fedclust.site.metrics import start_beside
    from flower_fedclust.site.policy import SiteSettings

    if check:
        problems = findings(site_toml, context.args)
        typer.echo(
            "\n".join(f"{number}. {problem}" for number, problem in enumerate(problems, 1))
            or "Nothing is wrong."
        )
        raise typer.Exit(1 if problems else 0)
    check_flower()
    settings = SiteSettings.from_toml(site_toml)
    site = Site(settings)
    if init:
        site.create_ledger()
        typer.echo(f"Site {settings.name} has a ledger now. Its last line: {site.ledger.witness}")
        typer.echo(f"The site's public key, for secure sums: {site.public_key}")
        return
    _check(site)
    data, reasons = checked_rows(settings)
    if data is None or reasons:
        raise ValueError("\n".join(["with this site.toml the site cannot answer runs:", *reasons]))
    # Reading ``data`` writes the outline of the table, which the site uses for messages before it may look at rows.
    _ = Site(settings, lambda: data).data
    policy, total = settings.policy, spent(site.ledger.read(), site.data_set)
    budget = f"epsilon {total.epsilon:.4g} of {policy.epsilon:g} is spent, at most {policy.epsilon_per_run:g} per run."
    typer.echo(
        f"Site {settings.name}: {data.n_rows} rows of {data.n_columns} columns; {budget}", err=True
    )
    if settings.metrics is not None:
        start_beside(site_toml)
    start(site_toml, context.args)


StudyId = Annotated[str, typer.Argument(help="The id of a study, or its beginning.")]


@site_app.command()
def approve(study: StudyId, site_toml: SiteToml = Path("site.toml")) -> None:
    """Let a study that waits for approval begin."""
    site = _site(site_toml)
    study_found = site.studies.approve(study)
    site.note("approved", run=study_found.run, study=study_found.id)
    typer.echo(
        f"Approved: {study_found}. Its run can be submitted again; the approval lasts seven days."
    )


@site_app.command()
def key(site_toml: SiteToml = Path("site.toml")) -> None:
    """Print this site's public key for secure sums, which other sites name under 'peers' in their site.toml."""
    typer.echo(_site(site_toml).public_key)


@site_app.command()
def stop(study: StudyId, site_toml: SiteToml = Path("site.toml")) -> None:
    """Refuse all further messages of a study, whether it waits or runs."""
    site = _site(site_toml)
    study_found = site.studies.stop(study)
    site.note("stopped", run=study_found.run, study=study_found.id)
    typer.echo(f"Stopped: {study_found}. What has left stays charged.")


@site_app.command()
def studies(site_toml: SiteToml = Path("site.toml")) -> None:
    """List the studies that wait, run or were stopped, the newest last."""
    all_studies = _site(site_toml).studies.read()
    for study in sorted(all_studies, key=lambda study: study.since):
        state = f"{study.state}, but too late" if study.is_over() else study.state
        typer.echo(
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(study.since))}  {state:9}  {study}"
        )
    typer.echo(
        f"{len(all_studies)} studies; 'fedclust site approve ID' and 'fedclust site stop ID' decide about one."
    )


@ledger_app.command()
def show(site_toml: SiteToml = Path("site.toml")) -> None:
    """Show what each run has cost, and each data set in all."""
    from flower_fedclust.site.budget import spent
    from flower_fedclust.site.policy import WHO, printable, unit_of

    entries = _entries(site_toml)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    runs: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        runs.setdefault(entry["run"], []).append(entry)
    table = Table(
        "run",
        "from",
        "study",
        "strategy",
        "data set",
        "answers",
        "epsilon",
        "for each",
        "without noise",
    )
    for name, run_entries in runs.items():
        epsilon = max(entry["epsilon"] for entry in run_entries)
        is_claim = any(entry["is_claim"] for entry in run_entries)
        sent = [entry for entry in run_entries if entry.get("sent")]
        n_open = sum(
            array.get("covered") == "nothing" for entry in sent for array in entry["arrays"]
        )
        table.add_row(
            # Printed as Text, because a name from a server must not act as markup.
            Text(printable(name[:12])),
            run_entries[0]["time"],
            Text(printable(run_entries[0]["study"])),
            Text(printable(run_entries[0]["strategy"])),
            Text(run_entries[0]["data_set"]),
            str(len(sent)),
            (f"{epsilon:.4g}" + (" (the server's claim)" if is_claim else "")) if epsilon else "",
            ", ".join(sorted({WHO[unit_of(entry)] for entry in run_entries if entry["epsilon"]})),
            f"{n_open} arrays" if n_open else "",
        )
    console.print(table)
    for data_set in dict.fromkeys(entry["data_set"] for entry in entries):
        total = spent(entries, data_set)
        claimed = (
            f", of which {total.claimed:.4g} rest on what others claim" if total.claimed else ""
        )
        evaluations = f"; {total.n_evaluations} models evaluated" if total.n_evaluations else ""
        typer.echo(
            f"{data_set}: epsilon {total.epsilon:.4g} at delta {total.delta:.3g} in all{claimed}{evaluations}."
        )


@ledger_app.command()
def check(
    site_toml: SiteToml = Path("site.toml"),
    head: Annotated[
        str | None,
        typer.Option(
            help="NUMBER:HASH of a line, as a check or a result has it: it must still be there."
        ),
    ] = None,
) -> None:
    """Check ledger, head and kept answers against one another; print the number and the hash of the last line."""
    site = _site(site_toml)
    _check(site)
    if head is not None and not site.ledger.has(head):
        raise ValueError(
            f"{site.ledger.path} has no line {head}; lines that were there are gone or were changed."
        )
    n_entries = len(site.ledger.entries)
    typer.echo(
        f"{n_entries} entries; each follows from those before it. The last line: {site.ledger.witness}"
    )


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
                    cells = [entry.get(name, "") for name in COLUMNS] + [
                        array.get(name, "") for name in ARRAY_COLUMNS
                    ]
                    table.writerow([_as_text(cell) for cell in cells])
    else:
        raise ValueError(f"{out} is given; choose a file that ends in .csv or .json.")
    typer.echo(f"Saved in {out.absolute()}")


def _as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; names of runs and studies come from the server."""
    from flower_fedclust.site.policy import printable

    return (
        f"'{printable(cell)}"
        if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r")
        else printable(cell)
    )


def _entries(site_toml: Path) -> list[dict[str, Any]]:
    """Return the entries of a site's ledger."""
    from flower_fedclust.site.ledger import Ledger
    from flower_fedclust.site.policy import SiteSettings

    return Ledger(Path(SiteSettings.from_toml(site_toml).folder) / "ledger.jsonl").read()


def _site(site_toml: Path) -> Site:
    """Return the site that a ``site.toml`` describes."""
    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings

    return Site(SiteSettings.from_toml(site_toml))


def _check(site: Site) -> None:
    """Raise a ValueError if the ledger, its head and the kept answers disagree."""
    with site.ledger.locked():
        site.check_kept(whole=True)

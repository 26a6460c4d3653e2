"""The command ``fedclust``: lists, runs, comparisons, and the commands of the other modules."""

from __future__ import annotations

import gc
import re
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import click
import typer
from rich.console import Console
from rich.table import Column, Table

from flower_fedclust.cli.advice import about, audit, choose_k, explain, plan, print_json
from flower_fedclust.cli.catalog import CATALOG, EVERY
from flower_fedclust.cli.files import describe_saved, new_app, predict, schema_app
from flower_fedclust.cli.options import (
    AsJson,
    ClientColumn,
    Columns,
    DatasetName,
    Delta,
    Epsilon,
    IdColumn,
    LabelColumn,
    NClients,
    NClusters,
    Noise,
    NServerRows,
    OptionsOnce,
    Parameters,
    Rounds,
    RowsFile,
    SchemaFile,
    Secure,
    Seed,
    ServerData,
    SubjectColumn,
    Unit,
    check_spread,
    columns_of,
    given_parameters,
    rows_source,
)
from flower_fedclust.registry import DEFAULT
from flower_fedclust.site.cli import ledger_app, site_app

DeviceName = Annotated[
    str | None,
    typer.Option("--device", help="cuda computes the clients' sums on a GPU, with the same bits."),
]
_ENGINES = (
    "inline (this process), shards (all cores, or a Ray cluster) or ray (Flower's own simulation)."
)

app = typer.Typer(
    cls=OptionsOnce,
    help="Federated clustering: run strategies, compare them, and see what leaves the clients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flower-fedclust {version('flower-fedclust')}")
        raise typer.Exit


@app.callback()
def options(
    print_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options of the command itself."""


def _units_in_words(units: tuple[str, ...]) -> str:
    return "any unit" if units == EVERY else ", ".join(units) or "-"


@app.command(name="list")
def list_strategies(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list the strategies of other packages.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the strategies by what they find, the best first."""
    from flower_fedclust.registry import names, strategies

    if as_json:
        print_json([about(name, entry) for name, entry in strategies().items()])
        return
    table = Table(
        Column("", no_wrap=True),
        "private for each",
        "",
        box=None,
        padding=(0, 2, 0, 0),
        show_edge=False,
    )
    for heading, lines in CATALOG.items():
        table.add_row(f"[bold]{heading}[/bold]")
        for name, units, text in lines:
            table.add_row(f"  {name}", _units_in_words(units), text)
    listed = {line.name for lines in CATALOG.values() for line in lines}
    others = [name for name in names() if name not in listed]
    if others and show_all:
        entries = strategies()
        table.add_row("[bold]From other packages[/bold]")
        for name in others:
            if name in entries:  # others cannot be loaded; a warning says so
                table.add_row(
                    f"  {name}", _units_in_words(entries[name].units), entries[name].summary
                )
    Console().print(table)
    if others and not show_all:
        print(f"\n'fedclust list --all' adds {len(others)} of other packages.")
    print("\nUnits: record (a row), subject (a person with all rows), client (a whole site).")
    print("\n'fedclust explain NAME' shows what leaves each site, and what protects it.")


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the data sets that come with the package."""
    from flower_fedclust.data import DATASETS

    if as_json:
        print_json(
            [{"name": name, "summary": entry.description} for name, entry in DATASETS.items()]
        )
        return
    table = Table("data set", "what it is")
    for name, entry in DATASETS.items():
        table.add_row(name, entry.description)
    Console().print(table)


@app.command()
def run(
    strategies: Annotated[
        str, typer.Argument(help="A strategy, or several separated by commas; see 'fedclust list'.")
    ] = DEFAULT,
    dataset: DatasetName = None,
    data: RowsFile = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    subject_column: SubjectColumn = None,
    columns: Columns = None,
    schema: SchemaFile = None,
    partition: Annotated[
        str,
        typer.Option(
            help="How rows are spread: iid, dirichlet:ALPHA, classes:N, k-means, sorted:COLUMN."
        ),
    ] = "iid",
    n_clients: NClients = 10,
    server_data: ServerData = None,
    n_server_rows: NServerRows = None,
    n_clusters: NClusters = "10",
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    engine: Annotated[str, typer.Option(help=_ENGINES)] = "inline",
    device: DeviceName = None,
    seed: Seed = None,
    describe: Annotated[
        bool,
        typer.Option(
            "--describe",
            help="With --schema: describe the clusters in words, for a part of the budget.",
        ),
    ] = False,
    floor: Annotated[
        int,
        typer.Option(
            min=0, help="The smallest number of rows that pages and descriptions show; 0 shows all."
        ),
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="A new folder for the results.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="A folder with which the same command continues an interrupted run."),
    ] = None,
    secure: Secure = False,
) -> None:
    """Run strategies on a data set or on your own rows, and save labels, centers, metrics and privacy reports."""
    from flower_fedclust.harness.run import run_and_save, show_all
    from flower_fedclust.inputs import RowsChoice, read_inputs
    from flower_fedclust.simulation import simulate
    from flower_fedclust.tables import Schema

    values = given_parameters(
        strategies, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters
    )
    check_spread(data, client_column)
    choice = RowsChoice(
        rows_source(dataset, data),
        client_column=client_column,
        label_column=label_column,
        id_column=id_column,
        subject_column=subject_column,
        columns=columns_of(columns),
        partition=partition,
        n_clients=n_clients,
        server_data=server_data,
        n_server_rows=n_server_rows,
        seed=0 if seed is None else seed,
        schema=None if schema is None else Schema.of(schema),
    )
    inputs = read_inputs(strategies, choice, values, describe=describe, floor=floor, several=True)
    rows: Any = inputs.rows
    run_one = partial(
        simulate,
        clients=rows,
        engine=engine,  # type: ignore[arg-type]
        device=device,
        seed=seed,
        secure=secure,
        floor=floor,
    )
    subject = dataset or (Path(data).name if data is not None else "")
    results, path, failed = run_and_save(
        inputs.strategies, run_one, out, labels=rows.labels, journal=journal, subject=subject
    )
    n_rows = sum(map(len, rows.clients))
    sought = values["n_clusters"] if isinstance(values["n_clusters"], int) else n_clusters
    title = f"{dataset or data}: {n_rows:,} rows, {len(rows.clients)} clients, {sought} clusters"
    show_all(results, title, path, Console(), failed)


@app.command()
def compare(
    out: Annotated[
        Path,
        typer.Option(help="A folder for the results: new, or that of a comparison to continue."),
    ],
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="A TOML file with these options as keys; the command line takes precedence."
        ),
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Strategies separated by commas, or 'all'.")
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, with commas; see 'fedclust datasets'. Or suite:BATTERY, or suite:BATTERY/SET."
        ),
    ] = None,
    data: RowsFile = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    subject_column: SubjectColumn = None,
    columns: Columns = None,
    schema: SchemaFile = None,
    partitions: Annotated[
        str | None,
        typer.Option(
            help="How rows are spread: iid, dirichlet:ALPHA, classes:N, k-means, sorted:COLUMN; one or more."
        ),
    ] = None,
    n_clients: Annotated[
        int | None, typer.Option(help="How many clients, if no column says; or 10.")
    ] = None,
    server_data: ServerData = None,
    n_server_rows: NServerRows = None,
    n_clusters: Annotated[
        str | None,
        typer.Option(help="How many clusters; 2,3,4 tries each. By default one for each class."),
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option(
            help="Privacy budgets separated by commas; 'none' is no noise. By default each strategy's own."
        ),
    ] = None,
    delta: Delta = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds (3 is 0,1,2), or a list.")
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any other parameter: name=value, or strategy.name=value; may be repeated.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Like --set, with several values: name=1,2,3 runs each of them."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help=f"{_ENGINES} Other engines than inline do one run at a time.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="How many runs at once; by default one per core.")
    ] = None,
    device: DeviceName = None,
    on: Annotated[
        str | None,
        typer.Option(help="Run on Ray: ray (started here), ray://HOST, auto, or HOST:PORT."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Repeat the runs that failed.")
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="A progress bar; by default in a terminal."),
    ] = None,
) -> None:
    """Compare strategies over data sets, partitions, budgets and seeds; repeat the command to continue."""
    options = locals()
    from flower_fedclust.harness.comparison import SETTINGS, comparison_from, settings_from_toml
    from flower_fedclust.harness.runner import run_comparison
    from flower_fedclust.inputs import parsed_parameters

    chosen = {} if settings is None else settings_from_toml(settings)
    names = SETTINGS.keys() - {"grid"}
    chosen |= {
        name: value for name, value in options.items() if name in names and value is not None
    }
    for name, values in (("set", parameters), ("grid", grid)):
        if values:
            chosen[name] = {**chosen.get(name, {}), **parsed_parameters(values)}
    if chosen.get("data") is not None and not chosen.get("datasets"):
        check_spread(Path(chosen["data"]), chosen.get("client_column"), ("n_clients", "partitions"))
    try:
        rows = run_comparison(
            comparison_from(chosen),
            out,
            jobs=jobs,
            device=device,
            on=on,
            retry_failed=retry_failed,
            progress=progress,
            announce=lambda lines: typer.echo("\n  ".join(lines), err=True),
        )
    except KeyboardInterrupt:
        _say_error(
            f"stopped; what is done is in {out.absolute()}, and the same command continues from there."
        )
        raise typer.Exit(130) from None
    if _show_comparison(rows, out):
        raise typer.Exit(1)


def _show_comparison(rows: list[dict[str, Any]], out: Path) -> bool:
    """Print the means, the verdicts and the runs without a result; write the page; tell if a run has no result."""
    from flower_fedclust.harness.compare import Results
    from flower_fedclust.harness.folder import LEFT_OUT
    from flower_fedclust.harness.run import print_lines
    from flower_fedclust.harness.runner import failure_lines

    console, results = _wide_console(), Results(out)
    console.print(results.table())
    for status, words in (
        ("failed", "failed (--retry-failed runs them again):"),
        (LEFT_OUT, "were not possible and are left out:"),
    ):
        if lines := failure_lines(rows, status):
            n_runs = sum(row["status"] == status for row in rows)
            print_lines(console, "\n  ".join([f"\n{n_runs} of {len(rows)} runs {words}", *lines]))
    print_lines(console, "", *results.sentences, f"\nSaved in {out.absolute()}")
    report(out)
    return any(row["status"] != "done" for row in rows)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that 'fedclust compare' wrote.")],
) -> None:
    """Write the page that shows a comparison, whether or not it has finished."""
    from flower_fedclust.harness.page import write_report

    print(f"The report: {write_report(folder)}")


app.add_typer(ledger_app, name="ledger")
app.add_typer(schema_app, name="schema")
app.add_typer(site_app, name="site")
app.command(name="choose-k")(choose_k)
for command in (explain, audit, plan, predict):
    app.command()(command)
app.command(name="describe")(describe_saved)
app.command(name="new-app")(new_app)


def _wide_console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # A log has no width; rich would assume 80 columns and cut the table.
    return console


def main() -> None:
    """Run the command, and report a user's mistake in one sentence, without a traceback."""
    # Nearly all objects are made by imports and stay. With Python's own threshold, the garbage collector looks through
    # them again and again, for a tenth of the time of a short run.
    gc.set_threshold(700, 100)
    # So that module:Class finds modules in the working directory. It comes last, so that no file there hides a
    # library.
    sys.path.append("")
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        is_of_file = isinstance(error, OSError) and error.filename
        _say_error(f"{error.filename}: {error.strerror}." if is_of_file else _as_typed(str(error)))  # type: ignore[union-attr]
        raise SystemExit(2) from None
    except RuntimeError as error:
        # Imported here, because the import takes a second.
        from flower_fedclust.engine import ProtocolError

        if not isinstance(error, ProtocolError):
            raise
        _say_error(_as_typed(str(error)))
        raise SystemExit(2) from None


def _as_typed(message: str) -> str:
    """Return a message in which each parameter has the name of the option that the user typed for it."""
    if ".toml" in message:
        return message  # in a file, parameters have their own names
    commands = cast(click.Group, typer.main.get_command(app)).commands.values()
    names = {
        param.name: param.opts[0]
        for command in commands
        for param in command.params
        if param.opts[0].startswith("--")
    }

    # A parameter is the first word before " is ", or a word with "_". "max_norm=3" is kept, because it is typed so
    # after --set.
    return re.sub(
        r"^\w+(?= is )|(?<![-\w'])\w+_\w+\b(?!=)",
        lambda item: names.get(item[0], item[0]),
        message,
    )


def _say_error(sentence: str) -> None:
    """Print an error in red, as it is."""
    # Rich would turn a name such as a:b:c into a picture.
    console = Console(stderr=True, emoji=False)
    console.print(
        f"fedclust: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True
    )


if __name__ == "__main__":
    main()

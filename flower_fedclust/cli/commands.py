"""The command ``fedclust``."""

from __future__ import annotations

import inspect
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from flower_fedclust.cli.advice import choose_k, plan
from flower_fedclust.cli.predict import predict
from flower_fedclust.cli.schema import app as schema_app
from flower_fedclust.harness.options import (
    AsJson,
    Delta,
    Epsilon,
    IdColumn,
    NClusters,
    Noise,
    Parameters,
    Rounds,
    SchemaFile,
    Unit,
    given_parameters,
    parsed_parameters,
)
from flower_fedclust.site.cli import ledger_app, start_site

app = typer.Typer(
    help="Federated clustering: run strategies, compare them, and see what leaves the clients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(ledger_app, name="ledger")
app.add_typer(schema_app, name="schema")
app.command(name="site", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(start_site)

#: What 'fedclust run' runs if it is not told what: it keeps rows private, and needs no public ones.
DEFAULT_STRATEGY = "private-kmeans"


@app.command(name="list")
def list_strategies(as_json: AsJson = False) -> None:
    """List the strategies."""
    from flower_fedclust.registry import strategies

    entries = strategies()
    if as_json:
        _print_json([_about(name, entry) for name, entry in entries.items()])
        return
    table = Table(Column("strategy", no_wrap=True), "what it does", "reveals", "guarantee")
    for name, entry in entries.items():
        table.add_row(name, entry.summary, ", ".join(entry.reveals), " or ".join(entry.units) or "none")
    Console().print(table)


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the data sets that come with the package."""
    from flower_fedclust.data import DATASETS

    if as_json:
        _print_json([{"name": name, "summary": entry.description} for name, entry in DATASETS.items()])
        return
    table = Table("data set", "what it is")
    for name, entry in DATASETS.items():
        table.add_row(name, entry.description)
    Console().print(table)


@app.command()
def explain(
    strategy: Annotated[str, typer.Argument(help="A strategy; see 'fedclust list'.")],
    n_clusters: NClusters = "10",
    n_columns: Annotated[int, typer.Option(help="How many columns the rows have.")] = 16,
    schema: SchemaFile = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    as_json: AsJson = False,
) -> None:
    """Show what leaves each client and what protects it, before anything runs on your rows."""
    from flower_fedclust.cli.rehearsal import rehearse
    from flower_fedclust.privacy.attacks import attack_on
    from flower_fedclust.registry import find

    given = given_parameters(strategy, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters)
    report = rehearse(strategy, given, n_columns, schema)
    entry = find(strategy)
    description = _as_plain_text(inspect.getdoc(entry.strategy) or "")
    if as_json:
        _print_json({**_about(strategy, entry), "description": description, **report.to_dict()})
        return
    print(f"{strategy}: {entry.summary}\nSource: {entry.source}\n")
    print(description)
    print(f"\n{report}")
    if report.unprotected:
        print("\nWhat somebody who sees an unprotected message can do (docs/attacks.md):")
        found = (
            f"  {message.content}: {attack_on(message.content, message.reveals)}" for message in report.unprotected
        )
        print("\n".join(dict.fromkeys(found)))


@app.command()
def audit(
    strategy: Annotated[str, typer.Argument(help="A strategy, or module:Class; see 'fedclust list'.")],
    runs: Annotated[int, typer.Option(help="How often to draw the noise of all rounds.")] = 1000,
    seconds: Annotated[float, typer.Option(help="How long to go on drawing and comparing.")] = 40.0,
    n_clusters: NClusters = "3",
    n_columns: Annotated[int, typer.Option(help="How many columns the rows have.")] = 4,
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    seed: Annotated[int | None, typer.Option(help="Seeds the auditor's choices, never the noise.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for audit.txt, audit.json and audit.png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure from outside whether a strategy keeps its privacy promises; exits with 1 if one is broken."""
    from flower_fedclust.cli.audit import audit_by_name, save_audit

    given = given_parameters(strategy, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters)
    result = audit_by_name(strategy, given, n_columns, runs=runs, seconds=seconds, seed=seed)
    if as_json:
        _print_json(result.to_dict())
    else:
        print(result)
    if out is not None:
        print(f"Saved in {save_audit(result, out)}", file=sys.stderr if as_json else sys.stdout)
    if result.verdict == "broken":
        raise typer.Exit(1)


@app.command()
def run(
    strategies: Annotated[
        str, typer.Argument(help="A strategy, or several separated by commas; see 'fedclust list'.")
    ] = DEFAULT_STRATEGY,
    dataset: Annotated[str | None, typer.Option(help="A data set; see 'fedclust datasets'.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your rows: a .csv, .parquet or .npy file, or a folder.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    label_column: Annotated[str | None, typer.Option(help="A column of known classes, for the metrics.")] = None,
    id_column: IdColumn = None,
    columns: Annotated[str | None, typer.Option(help="The columns to cluster by, separated by commas.")] = None,
    schema: SchemaFile = None,
    partition: Annotated[
        str, typer.Option(help="How rows are spread over clients: iid, dirichlet:ALPHA, classes:N, k-means.")
    ] = "iid",
    n_clients: Annotated[int, typer.Option(help="How many clients, if no column says.")] = 10,
    server_data: Annotated[Path | None, typer.Option(help="A file of public rows, for the server.")] = None,
    n_server_rows: Annotated[
        int | None, typer.Option(help="Without --server-data: how many rows to make public; by default 20 a cluster.")
    ] = None,
    n_clusters: NClusters = "10",
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    engine: Annotated[str, typer.Option(help="inline (this process) or ray (Flower's simulation).")] = "inline",
    seed: Annotated[
        int | None, typer.Option(help="Makes a run repeatable, even its noise: an experiment that protects nobody.")
    ] = None,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="With --schema: describe the clusters in words, for a part of the budget."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A new folder for the results.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="A folder with which the same command continues an interrupted run."),
    ] = None,
) -> None:
    """Run strategies on a data set or on your own rows, and save labels, centers, metrics and privacy reports."""
    from flower_fedclust.harness.show import run_and_save, show_all
    from flower_fedclust.inputs import RowsChoice, make_strategies, needs_server_rows
    from flower_fedclust.numerics.validity import numbers_of
    from flower_fedclust.simulation import simulate
    from flower_fedclust.tables import Schema

    names = [name.strip() for name in strategies.split(",")]
    given = given_parameters(strategies, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters)
    choice = RowsChoice(
        dataset=dataset,
        data=data,
        client_column=client_column,
        label_column=label_column,
        id_column=id_column,
        columns=None if columns is None else tuple(column.strip() for column in columns.split(",")),
        partition=partition,
        n_clients=n_clients,
        server_data=server_data,
        n_server_rows=n_server_rows,
        seed=0 if seed is None else seed,
        schema=None if schema is None else Schema.of(schema),
    )
    rows = choice.load(numbers_of(given["n_clusters"])[1], needs_server_rows=needs_server_rows(names, n_server_rows))
    run_one = partial(simulate, clients=rows, engine=engine, seed=seed)  # type: ignore[arg-type]
    made = make_strategies(
        names,
        given,
        rows.server_rows,
        rows.server_rows_origin,
        were_given=choice.gives_server_rows,
        schema=choice.schema,
        describe=describe,
    )
    results, path, failed = run_and_save(made, run_one, out, labels=rows.labels, journal=journal)
    n_rows = sum(map(len, rows.clients))
    title = f"{dataset or data}: {n_rows} rows, {len(rows.clients)} clients, {n_clusters} clusters"
    show_all(results, title, path, Console(), failed)


@app.command()
def compare(
    out: Annotated[Path, typer.Option(help="A folder for the results: new, or that of a comparison to continue.")],
    settings: Annotated[
        Path | None, typer.Argument(help="A TOML file with these options as keys; the command line takes precedence.")
    ] = None,
    strategies: Annotated[str | None, typer.Option(help="Strategies separated by commas, or 'all'.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Data sets, with commas; see 'fedclust datasets'.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your rows: a .csv, .parquet or .npy file, or a folder.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    label_column: Annotated[str | None, typer.Option(help="A column of known classes, for the metrics.")] = None,
    columns: Annotated[str | None, typer.Option(help="The columns to cluster by, separated by commas.")] = None,
    schema: SchemaFile = None,
    partitions: Annotated[
        str | None,
        typer.Option(help="How rows are spread over clients: iid, dirichlet:ALPHA, classes:N, k-means; one or more."),
    ] = None,
    n_clients: Annotated[int | None, typer.Option(help="How many clients, if no column says; or 10.")] = None,
    server_data: Annotated[Path | None, typer.Option(help="A file of public rows, for the server.")] = None,
    n_server_rows: Annotated[
        int | None, typer.Option(help="Without --server-data: how many rows to make public; by default 20 a cluster.")
    ] = None,
    n_clusters: Annotated[
        str | None, typer.Option(help="How many clusters; 2,3,4 tries each. By default one for each class.")
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option(help="Privacy budgets separated by commas; 'none' is no noise. By default each strategy's own."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of the budgets; by default 1e-6.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (3 is 0,1,2), or a list.")] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other parameter: name=value, or strategy.name=value; may be repeated."),
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="Like --set, with several values: name=1,2,3 runs each of them.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="inline (the default) or ray (Flower's simulation, one run at a time).")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs at once; by default one a core.")] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Run on Ray: ray (started here), ray://HOST, auto, or HOST:PORT."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat the runs that failed.")] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A progress bar; by default in a terminal.")
    ] = None,
) -> None:
    """Compare strategies over data sets, partitions, budgets and seeds; repeat the command to continue."""
    from flower_fedclust.harness.comparing import Results
    from flower_fedclust.harness.comparison import comparison_from, settings_from_toml
    from flower_fedclust.harness.runner import run_comparison
    from flower_fedclust.harness.summary import failure_lines, summary_table

    options = {
        "strategies": strategies,
        "datasets": datasets,
        "data": data,
        "client_column": client_column,
        "label_column": label_column,
        "columns": columns,
        "schema": schema,
        "partitions": partitions,
        "n_clients": n_clients,
        "server_data": server_data,
        "n_server_rows": n_server_rows,
        "n_clusters": n_clusters,
        "epsilons": epsilons,
        "delta": delta,
        "seeds": seeds,
        "engine": engine,
    }
    chosen = {} if settings is None else settings_from_toml(settings)
    chosen |= {name: value for name, value in options.items() if value is not None}
    for name, given in (("set", parameters), ("grid", grid)):
        if given:
            chosen[name] = {**chosen.get(name, {}), **parsed_parameters(given)}
    try:
        rows = run_comparison(
            comparison_from(chosen),
            out,
            jobs=jobs,
            on=on,
            retry_failed=retry_failed,
            progress=progress,
            announce=lambda lines: typer.echo("\n  ".join(lines), err=True),
        )
    except KeyboardInterrupt:
        _say_error(f"stopped; what is done is in {out.absolute()}, and the same command goes on from there.")
        raise typer.Exit(130) from None
    console = _wide_console()
    console.print(summary_table(rows))
    if failures := failure_lines(rows):
        n_failed = sum(row["status"] == "failed" for row in rows)
        lines = [f"{n_failed} of {len(rows)} runs failed (--retry-failed runs them again):", *failures]
        console.print("\n" + "\n  ".join(lines), markup=False, highlight=False, soft_wrap=True)
    if rows:
        console.print("\n" + "\n".join(Results(out).sentences), markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nSaved in {out.absolute()}", markup=False, highlight=False, soft_wrap=True)
    _write_report(out, console)
    if failures:
        raise typer.Exit(1)


@app.command()
def new_app(
    folder: Annotated[Path, typer.Argument(help="A new folder, after which the app is named.")],
    api: Annotated[str, typer.Option(help="Which of Flower's APIs to use: message or strategy.")] = "message",
) -> None:
    """Write a Flower app of your own, ready for 'flwr run'."""
    from flower_fedclust.cli.new_app import write_app

    path = write_app(folder, api)  # type: ignore[arg-type]
    print(f"Written: {path}\nNext:    flwr run {folder} --stream")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that 'fedclust compare' wrote.")],
) -> None:
    """Write the page that shows a comparison, whether or not it has finished."""
    _write_report(folder, _wide_console())


app.command(name="choose-k")(choose_k)
app.command()(predict)
app.command()(plan)


def _write_report(folder: Path, console: Console) -> None:
    from flower_fedclust.harness.report import write_report

    page = write_report(folder)
    console.print(f"The report: {page}", markup=False, highlight=False, soft_wrap=True)


def _wide_console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # A log has no width, and rich would take 80 columns and cut the table.
    return console


def _as_plain_text(docstring: str) -> str:
    """Return a docstring without the roles of the site's generator: ``name`` for ``:class:`~module.name```."""
    return re.sub(r":\w+:`~?([^`]+)`", r"``\1``", docstring)


def _about(name: str, entry: Any) -> dict[str, Any]:
    about = {"name": name, "summary": entry.summary, "source": entry.source}
    return {**about, "reveals": list(entry.reveals), "units": list(entry.units)}


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def main() -> None:
    """Run the command; what the user got wrong is one sentence, without a traceback."""
    sys.path.append("")  # module:Class names a module beside the user; a file called pandas.py there is no library
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        is_of_file = isinstance(error, OSError) and error.filename
        _say_error(f"{error.filename}: {error.strerror}." if is_of_file else str(error))  # type: ignore[union-attr]
        raise SystemExit(2) from None
    except RuntimeError as error:
        from flower_fedclust.engine import ProtocolError  # now at the latest: it takes a second to import

        if not isinstance(error, ProtocolError):
            raise
        _say_error(str(error))
        raise SystemExit(2) from None


def _say_error(sentence: str) -> None:
    Console(stderr=True).print(f"fedclust: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

"""The commands that help before a run: explain, audit, choose-k and plan."""

from __future__ import annotations

import inspect
import json
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_fedclust.cli.options import (
    AsJson,
    ClientColumn,
    Columns,
    DatasetName,
    Delta,
    Epsilon,
    LabelColumn,
    NClients,
    NClusters,
    Noise,
    Parameters,
    Rounds,
    RowsFile,
    SchemaFile,
    Secure,
    Seed,
    Unit,
    check_spread,
    columns_of,
    given_parameters,
    rows_source,
)
from flower_fedclust.registry import DEFAULT

if TYPE_CHECKING:
    from flower_fedclust.checking import AuditResult
    from flower_fedclust.engine import ProtocolStrategy
    from flower_fedclust.harness.run import NewFolder
    from flower_fedclust.numerics.validity import ClusterNumber, PeakNumber
    from flower_fedclust.privacy.report import PrivacyReport

#: The number of clients in a rehearsal (a run on made-up rows).
N_CLIENTS = 4
#: The bounds on made-up rows for strategies that need a bound if they have an epsilon, if the user gives none.
BOUNDS = {"max_norm": 1.0, "max_l1_norm": 2.0, "max_code_norm": 1.0}

NColumns = Annotated[int, typer.Option(help="How many columns the rows have.")]


def explain(
    strategy: Annotated[str, typer.Argument(help="A strategy; see 'fedclust list'.")],
    n_clusters: NClusters = "10",
    n_columns: NColumns = 16,
    schema: SchemaFile = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    secure: Secure = False,
    list_parameters: Annotated[
        bool,
        typer.Option("--parameters", help="Also print the strategy's parameters and references."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what leaves each site and what protects it, before anything runs on your rows."""
    from flower_fedclust.privacy.attacks import attack_on
    from flower_fedclust.registry import find

    values = given_parameters(
        strategy, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters
    )
    report = rehearse(strategy, values, n_columns, schema, secure=secure)
    entry = find(strategy)
    # In the terminal, :class:`~module.name` becomes ``name``.
    description = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", inspect.getdoc(entry.strategy) or "")
    if as_json:
        print_json({**about(strategy, entry), "description": description, **report.to_dict()})
        return
    how_it_works, headline, parameters_and_references = description.partition("\nParameters\n")
    print(f"{strategy}: {entry.summary}\nSource: {entry.source}\n")
    print(report.what_leaves())
    print(f"\nHow it works: {how_it_works.strip()}\n")
    print(report)
    if report.unprotected:
        print("\nWhat somebody who sees an unprotected message can do (docs/attacks.md):")
        lines = (
            f"  {message.content}: {attack_on(message.content, message.reveals)}"
            for message in report.unprotected
        )
        print("\n".join(dict.fromkeys(lines)))
    if list_parameters:
        print(f"\n{headline.strip()}\n{parameters_and_references.strip()}")
    elif headline:
        print(f"\n'fedclust explain {strategy} --parameters' adds the strategy's parameters.")


def rehearse(
    name: str,
    parameters: Mapping[str, Any],
    n_columns: int,
    schema: str | Path | None = None,
    *,
    secure: bool = False,
) -> PrivacyReport:
    """Run a strategy on made-up rows, and return its privacy report.

    Parameters
    ----------
    name : str
        The strategy.
    parameters : mapping
        The strategy's parameters. Required ones that are missing are taken from the strategy's
        example.
    n_columns : int
    schema : str or Path, optional
        If given, the rehearsal uses made-up tables that fit the schema.
    secure : bool, default=False
    """
    import numpy as np

    from flower_fedclust.engine import ClientData
    from flower_fedclust.inputs import make_strategies, needs_server_rows
    from flower_fedclust.numerics.checks import check_integer
    from flower_fedclust.numerics.validity import numbers_of
    from flower_fedclust.registry import find
    from flower_fedclust.simulation import simulate
    from flower_fedclust.tables.drafting import made_up_table
    from flower_fedclust.tables.schema import Schema

    check_integer("n_columns", n_columns, at_least=1)
    example = dict(find(name).example)
    if schema is not None:  # the schema's preparation bounds the rows
        example = {
            key: value for key, value in example.items() if key not in ("max_norm", "max_l1_norm")
        }
    parameters = {**example, **parameters}
    rng = np.random.default_rng(0)
    n_rows = 20 * numbers_of(parameters.get("n_clusters", 2))[1]
    known, rows = None, list[Any](rng.normal(size=(N_CLIENTS + 1, n_rows, n_columns)))
    if schema is not None:
        known = Schema.of(schema)
        rows = [made_up_table(known, 50 * n_rows, rng) for _ in range(N_CLIENTS + 1)]
    public = rows[0] if needs_server_rows([name]) else None
    (strategy,) = make_strategies([name], parameters, public, schema=known)
    if strategy.min_clients is not None:
        strategy.min_clients = min(strategy.min_clients, N_CLIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings that made-up rows have no clusters
        clients = rows[1:]
        if strategy.privacy_unit == "subject":  # each row is a person
            is_raw = known is not None
            clients = [
                ClientData(client_rows, raw=is_raw, subjects=np.arange(len(client_rows)))
                for client_rows in clients
            ]
        report = simulate(strategy, clients, progress=False, secure=secure).privacy
    made_up = "made-up tables" if known else f"made-up rows of {n_columns} columns and spread 1"
    note = (
        f"This is a rehearsal on {made_up} at {N_CLIENTS} clients. On your rows the noise multipliers are the same; "
        "sensitivities and noise scales depend on the radius of your server rows, or on max_norm, and on the results "
        "of earlier rounds."
    )
    return replace(report, notes=(*report.notes, note))


def audit(
    strategy: Annotated[
        str, typer.Argument(help="A strategy, or module:Class; see 'fedclust list'.")
    ],
    runs: Annotated[int, typer.Option(help="How often to draw the noise of all rounds.")] = 1000,
    seconds: Annotated[float, typer.Option(help="How long to go on drawing and comparing.")] = 40.0,
    n_clusters: NClusters = "3",
    n_columns: NColumns = 4,
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    n_rounds: Rounds = None,
    parameters: Parameters = None,
    seed: Annotated[
        int | None, typer.Option(help="Seeds the auditor's choices, never the noise.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for audit.txt, audit.json and audit.png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure from outside whether a strategy keeps its privacy promises; exits with 1 if one is broken."""
    folder = _new_folder(out)
    values = given_parameters(
        strategy, n_clusters, epsilon, delta, privacy_unit, noise, n_rounds, parameters
    )
    result = audit_by_name(strategy, values, n_columns, runs=runs, seconds=seconds, seed=seed)
    if as_json:
        print_json(result.to_dict())
    else:
        print(result)
    if folder is not None:
        print(f"Saved in {save_audit(result, folder)}", file=sys.stderr if as_json else sys.stdout)
    if result.verdict == "broken":
        raise typer.Exit(1)


def audit_by_name(
    name: str,
    parameters: Mapping[str, Any],
    n_columns: int,
    *,
    runs: int,
    seconds: float | None,
    seed: int | None = None,
    false_alarm: float = 1e-3,
    show: bool | None = None,
) -> AuditResult:
    """Audit a strategy, given by name, on made-up rows; missing required parameters are made up.

    The rows have ``n_columns`` columns. ``runs``, ``seconds`` and ``false_alarm`` limit the audit,
    as in :func:`flower_fedclust.checking.audit`. ``show`` says whether to show a progress bar; by
    default, only a terminal shows one.
    """
    from flower_fedclust.checking import audit, small_tables
    from flower_fedclust.engine.progress import bar

    strategy = made_up_strategy(name, parameters, n_columns)
    clients, _ = small_tables(
        strategy, n_columns=n_columns, **({} if seed is None else {"seed": seed})
    )
    with bar(name, 1.0, show) as progress:
        return audit(
            strategy,
            clients,
            runs=runs,
            seconds=seconds,
            seed=seed,
            false_alarm=false_alarm,
            progress=progress,
        )


def made_up_strategy(
    name: str, parameters: Mapping[str, Any], n_columns: int, *, n_public: int = 20
) -> ProtocolStrategy:
    """Return a strategy with these parameters; missing ones are taken from its example.

    If the strategy needs public rows, ``n_public`` are drawn from a normal distribution. If the
    strategy refuses the parameters although they have an epsilon, and a bound on the rows is
    missing, the bounds in :data:`BOUNDS` are added. In all other cases the ValueError of the
    strategy is raised.
    """
    import numpy as np

    from flower_fedclust.inputs import make_strategies, needs_server_rows
    from flower_fedclust.registry import accepted_parameters, find

    accepted = accepted_parameters(name)
    rows = (
        np.random.default_rng(0).normal(size=(n_public, n_columns))
        if needs_server_rows([name])
        else None
    )
    values = {**find(name).example, **parameters}
    strategy: ProtocolStrategy
    try:
        (strategy,) = make_strategies([name], values, rows)
    except ValueError:
        bounds = {
            key: value
            for key, value in BOUNDS.items()
            if key in accepted and values.get(key) is None
        }
        if not bounds or values.get("epsilon") is None:
            raise
        (strategy,) = make_strategies([name], values | bounds, rows)
    return strategy


def save_audit(result: AuditResult, folder: NewFolder) -> Path:
    """Write audit.txt, audit.json and, if a privacy loss was measured, audit.png; return their folder."""
    with folder:
        path = folder.claim()
        (path / "audit.txt").write_text(f"{result}\n", encoding="utf-8")
        _save(result.to_dict(), path / "audit.json")
        if result.loss is not None:
            result.figure(path / "audit.png")
    return path


def choose_k(
    strategy: Annotated[
        str, typer.Argument(help="A strategy that can choose its number of clusters.")
    ] = (DEFAULT),
    dataset: DatasetName = None,
    data: RowsFile = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    columns: Columns = None,
    schema: SchemaFile = None,
    n_clients: NClients = 10,
    n_clusters: Annotated[
        str, typer.Option(help="The numbers to try: a range such as 2-12, or auto (2-16).")
    ] = "auto",
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    parameters: Parameters = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for number.png and number.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest a number of clusters, from one private run: merging its clusters costs no further privacy."""
    from flower_fedclust.inputs import RowsChoice, read_inputs
    from flower_fedclust.results.doubts import advice_on_number, clipping_of
    from flower_fedclust.simulation import simulate
    from flower_fedclust.tables import Schema

    folder = _new_folder(out)
    values = given_parameters(
        strategy, n_clusters, epsilon, delta, privacy_unit, noise, None, parameters
    )
    check_spread(data, client_column)
    choice = RowsChoice(
        rows_source(dataset, data),
        label_column,
        client_column,
        columns_of(columns),
        n_clients=n_clients,
        schema=None if schema is None else Schema.of(schema),
    )
    inputs = read_inputs(strategy, choice, values)
    result = simulate(inputs.strategy, inputs.source, seed=seed)
    number = result.number
    if number is None:
        raise ValueError(
            f"n-clusters is {n_clusters}, which leaves {strategy} no choice; give a range such as 2-12."
        )
    # Doubts that follow from the rows themselves are not covered by the guarantee that is printed below.
    released = [doubt for doubt in result.doubts if doubt.basis == "released"]
    sentence, is_clipped = (
        advice_on_number(number, result.doubts),
        clipping_of(result.doubts) is not None,
    )
    written: dict[str, Any] = {
        **number.to_dict(),
        "is_clear": number.is_clear and not is_clipped,
        "sentence": sentence,
        "doubts": [doubt.to_dict() for doubt in released],
    }
    if is_clipped:
        written["chosen"] = None
    if as_json:
        print_json({**written, "privacy": result.privacy.to_dict()})
    else:
        others = [doubt for doubt in released if doubt.code != "no-clear-number"]
        print(f"{number.table}\n\n{sentence}")
        if others:
            print("\n".join(["\nDoubts:", *(f"  {doubt}" for doubt in others)]))
        print(f"\n{result.privacy.guarantee()}")
    if folder is not None:
        with folder:
            path = folder.claim()
            _save(written, path / "number.json")
            number_figure(number, path / "number.png", sentence, is_clear=written["is_clear"])
        typer.echo(f"Saved in {path}", err=as_json)


def number_figure(
    number: ClusterNumber | PeakNumber, path: str | Path, sentence: str, *, is_clear: bool
) -> Path:
    """Draw the measures against the number of clusters as a PNG, and return its path.

    The title is the advice in words. If the choice is clear, the chosen number is marked.
    """
    from flower_fedclust.results.pictures import TEN_COLORS, figure_of, saved_figure

    figure = figure_of(7.0, 4.2)
    axes = figure.subplots()
    curves = number.curves
    for (name, values), color in zip(
        curves.items(), (TEN_COLORS[0], "#888888", TEN_COLORS[1]), strict=False
    ):
        axes.plot(number.numbers, values, color=color, marker="o", markersize=4)
        axes.annotate(
            name,
            (number.numbers[-1], values[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    index = list(number.numbers).index(number.chosen)
    if is_clear:
        axes.plot(
            [number.chosen],
            [next(iter(curves.values()))[index]],
            color=TEN_COLORS[2],
            marker="o",
            markersize=9,
        )
    axes.set(
        xlabel="clusters",
        ylabel=" and ".join(list(curves)[::2]),
        ylim=(0, 1.05),
        xticks=list(number.numbers),
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.margins(x=0.2)
    axes.set_title(sentence, fontsize=9, loc="left", wrap=True, parse_math=False)
    return saved_figure(figure, path)


def plan(
    strategy: Annotated[
        str, typer.Argument(help="A strategy with an epsilon; see 'fedclust list'.")
    ] = (DEFAULT),
    n_rows: Annotated[
        int, typer.Option(help="Roughly how many rows all clients have together.")
    ] = 10_000,
    n_columns: Annotated[
        int, typer.Option(help="How many columns the rows have, without --like.")
    ] = 10,
    like: Annotated[
        Path | None,
        typer.Option(
            help="A table like yours; text, dates and gaps need --schema. Nothing of it is sent."
        ),
    ] = None,
    schema: SchemaFile = None,
    columns: Columns = None,
    n_clients: Annotated[int, typer.Option(help="How many clients.")] = 10,
    n_clusters: NClusters = "5",
    epsilon: Epsilon = None,
    epsilons: Annotated[
        str, typer.Option(help="The budgets of the curve, separated by commas.")
    ] = "0.1,0.3,1,3,10",
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    parameters: Parameters = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for plan.png and plan.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest an epsilon before anything is sent, by rehearsals on made-up rows, or on rows of a similar table."""
    from flower_fedclust.harness.plan import forecast_figure, rows_like
    from flower_fedclust.harness.plan import plan as make_plan

    folder = _new_folder(out)
    values = given_parameters(
        strategy, n_clusters, epsilon, delta, privacy_unit, noise, None, parameters
    )
    if like is None and (schema is not None or columns is not None):
        raise ValueError("--schema and --columns are for the table of --like; give it, too.")
    table, left_out = (None, []) if like is None else rows_like(like, schema, columns_of(columns))
    n_columns = n_columns if table is None else table.shape[1]
    strategy_object = made_up_strategy(strategy, values, n_columns, n_public=200)
    try:
        budgets = [float(budget) for budget in epsilons.split(",")]
    except ValueError:
        raise ValueError(
            f"epsilons is '{epsilons}'; it must be numbers separated by commas."
        ) from None
    planned = make_plan(
        strategy_object,
        n_rows=n_rows,
        n_columns=n_columns,
        like=table,
        n_clients=n_clients,
        epsilons=budgets,
    )
    planned = replace(planned, left_out=left_out)
    print(
        json.dumps(planned.to_dict(), indent=2) if as_json else planned.told("--like", "--schema")
    )
    if folder is not None:
        with folder:
            path = folder.claim()
            _save(planned.to_dict(), path / "plan.json")
            forecast_figure(planned, path / "plan.png")
        typer.echo(f"Saved in {path}", err=as_json)


def about(name: str, entry: Any) -> dict[str, Any]:
    """Return an entry of the registry, ready for JSON."""
    told = {"name": name, "summary": entry.summary, "source": entry.source}
    return {**told, "reveals": list(entry.reveals), "units": list(entry.units)}


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def _new_folder(out: Path | None) -> NewFolder | None:
    """Return the folder for a command's results; raise a FileExistsError if it already holds something."""
    from flower_fedclust.harness.run import NewFolder

    return None if out is None else NewFolder(out)


def _save(content: dict[str, Any], path: Path) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

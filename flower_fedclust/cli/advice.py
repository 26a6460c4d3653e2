"""The commands that give advice: how many clusters there are, and which epsilon is enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flower_fedclust.harness.options import AsJson, Delta, Epsilon, NClusters, Noise, Parameters, Unit, given_parameters

#: What chooses the number of clusters if the user does not say.
DEFAULT_STRATEGY = "private-kmeans"


def choose_k(
    strategy: Annotated[str, typer.Argument(help="A strategy that can choose its number of clusters.")] = (
        DEFAULT_STRATEGY
    ),
    dataset: Annotated[str | None, typer.Option(help="A data set; see 'fedclust datasets'.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your rows: a .csv, .parquet or .npy file, or a folder.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    label_column: Annotated[str | None, typer.Option(help="A column of known classes, to leave out.")] = None,
    columns: Annotated[str | None, typer.Option(help="The columns to cluster by, separated by commas.")] = None,
    n_clients: Annotated[int, typer.Option(help="How many clients, if no column says.")] = 10,
    n_clusters: Annotated[str, typer.Option(help="The numbers to try: a range such as 2-12, or auto (2-16).")] = "auto",
    epsilon: Epsilon = None,
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    parameters: Parameters = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes a run repeatable, even its noise: an experiment that protects nobody.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for number.png and number.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest a number of clusters, from one private run: merging its clusters costs no further privacy."""
    from flower_fedclust.inputs import RowsChoice, make_strategies
    from flower_fedclust.simulation import simulate

    given = given_parameters(strategy, n_clusters, epsilon, delta, privacy_unit, noise, None, parameters)
    chosen_columns = None if columns is None else tuple(column.strip() for column in columns.split(","))
    rows = RowsChoice(dataset, data, label_column, client_column, chosen_columns, n_clients=n_clients).load(
        2, needs_server_rows=False
    )
    (made,) = make_strategies([strategy], given, None)
    result = simulate(made, rows.clients, names=rows.names, columns=rows.columns, seed=seed)
    number = result.number
    if number is None:
        raise ValueError(f"{strategy} was told the number of clusters, {n_clusters}; give a range such as 2-12.")
    if as_json:
        print(json.dumps({**number.to_dict(), "privacy": result.privacy.to_dict()}, indent=2))
    else:
        print(number)
        print(f"\n{result.privacy.guarantee()}")
    if out is not None:
        from flower_fedclust.cli.advice_pictures import number_figure

        _save(number.to_dict(), out / "number.json")
        typer.echo(f"Saved in {number_figure(number, out / 'number.png').parent}", err=as_json)


def plan(
    strategy: Annotated[str, typer.Argument(help="A strategy with an epsilon; see 'fedclust list'.")] = (
        DEFAULT_STRATEGY
    ),
    n_rows: Annotated[int, typer.Option(help="Roughly how many rows all clients have together.")] = 10_000,
    n_columns: Annotated[int, typer.Option(help="How many columns the rows have, without --like.")] = 10,
    like: Annotated[
        Path | None,
        typer.Option(help="A table like the one to come: numbers, whose columns are brought to one scale. Not sent."),
    ] = None,
    n_clients: Annotated[int, typer.Option(help="How many clients.")] = 10,
    n_clusters: NClusters = "5",
    epsilon: Epsilon = None,
    epsilons: Annotated[str, typer.Option(help="The budgets of the curve, separated by commas.")] = "0.1,0.3,1,3,10",
    delta: Delta = None,
    privacy_unit: Unit = None,
    noise: Noise = None,
    parameters: Parameters = None,
    out: Annotated[Path | None, typer.Option(help="A folder for plan.png and plan.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Suggest an epsilon before anything is sent, by rehearsals on rows made up from public facts, or on rows alike."""
    import numpy as np
    from sklearn.preprocessing import scale

    from flower_fedclust.data import read_table
    from flower_fedclust.engine import PrivateStrategy
    from flower_fedclust.harness.plan import plan as make_plan
    from flower_fedclust.inputs import make_strategies, needs_server_rows
    from flower_fedclust.registry import accepted_parameters, find

    given = given_parameters(strategy, n_clusters, epsilon, delta, privacy_unit, noise, None, parameters)
    known = find(strategy).example
    given = {**{name: value for name, value in known.items() if name in accepted_parameters(strategy)}, **given}
    table = None if like is None else scale(read_table(like).rows)
    n_columns = n_columns if table is None else table.shape[1]
    public = np.random.default_rng(0).normal(size=(200, n_columns)) if needs_server_rows([strategy]) else None
    (made,) = make_strategies([strategy], given, public)
    if not isinstance(made, PrivateStrategy):
        raise ValueError(f"{strategy} has no epsilon; plan a strategy that takes one.")
    try:
        budgets = [float(one) for one in epsilons.split(",")]
    except ValueError:
        raise ValueError(f"epsilons is '{epsilons}'; it must be numbers with commas between.") from None
    found = make_plan(made, n_rows=n_rows, n_columns=n_columns, like=table, n_clients=n_clients, epsilons=budgets)
    print(json.dumps(found.to_dict(), indent=2) if as_json else found)
    if out is not None:
        from flower_fedclust.cli.advice_pictures import plan_figure

        _save(found.to_dict(), out / "plan.json")
        typer.echo(f"Saved in {plan_figure(found, out / 'plan.png').parent}", err=as_json)


def _save(found: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

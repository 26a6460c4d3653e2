"""Options that several commands share, and their translation to a strategy's parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
import typer
from click.core import ParameterSource
from typer.core import TyperGroup

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file that says what is public about the columns; 'fedclust schema init' drafts one."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NClusters = Annotated[
    str,
    typer.Option(
        help="How many clusters; a strategy that can choose also takes a range such as 2-12, or auto."
    ),
]
Epsilon = Annotated[
    str | None,
    typer.Option(
        help="The privacy budget of the whole run, or 'none' for no noise; by default the strategy's own."
    ),
]
Delta = Annotated[
    float | None, typer.Option(help="The delta of the privacy budget; by default 1e-6.")
]
Unit = Annotated[
    str | None,
    typer.Option(help="Whom the guarantee protects: record (the default), subject or client."),
]
Noise = Annotated[
    str | None,
    typer.Option(
        help="Who adds the noise: server, clients or local; by default the strategy decides."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="How many Lloyd steps, or rounds of learning; by default the strategy decides."
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        help="The column that identifies rows in files of labels; by default they are numbered."
    ),
]
Secure = Annotated[
    bool, typer.Option("--secure", help="Clients mask what they send: the server sees only sums.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other parameter, as name=value; may be repeated."),
]


DatasetName = Annotated[
    str | None, typer.Option("--dataset", help="A data set; see 'fedclust datasets'.")
]
RowsFile = Annotated[
    Path | None, typer.Option("--data", help="Your rows: a file (.csv, .xlsx or others) or folder.")
]
ClientColumn = Annotated[str | None, typer.Option(help="The column that says whose row it is.")]
SubjectColumn = Annotated[
    str | None,
    typer.Option(
        help="The column that says which person a row is about, for --privacy-unit subject."
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="A column of known classes, for the metrics.")
]
Columns = Annotated[
    str | None, typer.Option(help="The columns to cluster by, separated by commas.")
]
NClients = Annotated[int, typer.Option(help="How many clients, if no column says.")]
ServerData = Annotated[Path | None, typer.Option(help="A file of public rows, for the server.")]
NServerRows = Annotated[
    int | None,
    typer.Option(
        help="Without --server-data: how many rows to make public; by default 20 per cluster."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Makes a run repeatable, even its noise: an experiment that protects nobody."
    ),
]


class OptionsOnce(TyperGroup):
    """A group of commands that refuse an option that is given twice, because only the last one would count."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and raise a ValueError if one of its options is given twice."""
        name, command, others = super().resolve_command(ctx, args)
        if command is not None:
            _check_given_once(command, ctx, others)
        return name, command, others


def _check_given_once(command: click.Command, parent: click.Context, args: list[str]) -> None:
    """Raise a ValueError if an option of a command is given twice, unless it may be repeated."""
    context = command.context_class(command, parent=parent, **command.context_settings)
    try:
        _, _, given = command.make_parser(context).parse_args(list(args))
    except click.UsageError:
        return  # the command itself reports it
    for param, count in Counter(given).items():
        if count > 1 and isinstance(param, click.Option) and not param.multiple:
            raise ValueError(f"{param.opts[0]} is given twice; leave one of them out.")


def given_parameters(
    names: str,
    n_clusters: str,
    epsilon: str | None,
    delta: float | None,
    privacy_unit: str | None,
    noise: str | None,
    n_rounds: int | None,
    parameters: list[str] | None,
) -> dict[str, Any]:
    """Return the options that the user gave as parameters of strategies; all others keep their defaults.

    Raises a ValueError for an option that none of the strategies takes, and for one that is given twice.
    """
    from flower_fedclust.inputs import number_of_clusters, parse_epsilon, parsed_parameters
    from flower_fedclust.registry import accepted_parameters, find

    parsed = parsed_parameters(parameters or [])
    options = {"delta": delta, "privacy_unit": privacy_unit, "noise": noise, "n_rounds": n_rounds}
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    values["n_clusters"] = number_of_clusters(n_clusters)
    if epsilon is not None:
        values["epsilon"] = parse_epsilon(epsilon)
    strategies = [name.strip() for name in names.split(",")]
    if unknown := set(values) - set().union(*map(accepted_parameters, strategies)):
        option = sorted(unknown)[0]
        raise ValueError(f"--{option.replace('_', '-')} is given, but {names} does not take it.")
    for name in values.keys() & parsed.keys():
        if name != "n_clusters" or was_typed(name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is also given by --set; leave out one of them.")
    for name in strategies if not isinstance(values["n_clusters"], int) else ():
        if get_type_hints(find(name).strategy).get("n_clusters") is int:
            raise ValueError(f"n_clusters is {n_clusters}, but {name} takes one number, such as 4.")
    return values | parsed


def was_typed(option: str) -> bool:
    """Tell whether the user typed an option, which is named like its parameter, or whether it has its default."""
    context = click.get_current_context(silent=True)
    return context is None or context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def check_spread(
    data: Path | None,
    client_column: str | None,
    options: Sequence[str] = ("n_clients", "partition"),
) -> None:
    """Raise a ValueError if the user typed one of the options, and the rows themselves say whose they are."""
    if data is not None and data.is_dir():
        why = f"the files of {data} are the clients"
    elif client_column is not None:
        why = "client_column says whose row it is"
    else:
        return
    for option in options:
        if click.get_current_context(silent=True) is not None and was_typed(option):
            raise ValueError(
                f"{option} is given, but {why}; leave out --{option.replace('_', '-')}."
            )


def rows_source(dataset: str | None, data: Path | None) -> str | Path:
    """Return the data set or the file that the user named; raise a ValueError unless exactly one is named."""
    if (dataset is None) == (data is None):
        raise ValueError(
            "give either a data set or a file of your own: --dataset NAME or --data FILE."
        )
    return data if dataset is None else dataset  # type: ignore[return-value]


def columns_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a text, separated by commas; None for None."""
    return None if text is None else tuple(column.strip() for column in text.split(","))

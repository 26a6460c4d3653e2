"""Values from the texts that a user typed, in the command or in a run config."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

SchemaFile = Annotated[
    Path | None,
    typer.Option(help="A TOML file that says what is public about the columns; 'fedclust schema init' drafts one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NClusters = Annotated[
    str, typer.Option(help="How many clusters; a strategy that can choose also takes a range such as 2-12, or auto.")
]
Epsilon = Annotated[
    str | None,
    typer.Option(help="The privacy budget of the whole run, or 'none' for no noise; by default the strategy's own."),
]
Delta = Annotated[float | None, typer.Option(help="The delta of the privacy budget; by default 1e-6.")]
Unit = Annotated[str | None, typer.Option(help="Whom the guarantee protects: record (the default) or client.")]
Noise = Annotated[
    str | None, typer.Option(help="Who adds the noise: server, clients or local; by default the strategy decides.")
]
Rounds = Annotated[
    int | None, typer.Option(help="How many Lloyd steps, or rounds of learning; by default the strategy decides.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="The column that identifies rows in files of labels; by default they are numbered.")
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", help="Any other parameter, as name=value; may be repeated.")
]


def parse_epsilon(text: object) -> float | None:
    """Return epsilon as a number, or None for "none"; raise ValueError for any other text."""
    if str(text).lower() == "none":
        return None
    try:
        return float(str(text))
    except ValueError:
        raise ValueError(f"epsilon is '{text}'; it must be a number, or 'none' for no noise.") from None


def parse_value(text: str) -> Any:
    """Return the number, truth value, None or tuple of numbers that a text denotes, or else the text."""
    try:
        value = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return {"True": True, "False": False, "none": None, "None": None}.get(text, text)
    return value[0] if len(value) == 1 else tuple(value)


def number_of_clusters(text: str) -> Any:
    """Return a number of clusters, "auto", or the range that a text such as "2-12" denotes."""
    if text == "auto":
        return text
    fewest, dash, most = text.partition("-")
    try:
        return (int(fewest), int(most)) if dash else int(text)
    except ValueError:
        raise ValueError(f"n-clusters is '{text}'; it must be a number, a range such as 2-12, or 'auto'.") from None


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
    """Return the parameters as a strategy takes them; what was not given is left to the strategies."""
    from flower_fedclust.registry import accepted_parameters

    options = {"delta": delta, "privacy_unit": privacy_unit, "noise": noise, "n_rounds": n_rounds}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given["n_clusters"] = number_of_clusters(n_clusters)
    if epsilon is not None:
        given["epsilon"] = parse_epsilon(epsilon)
    if unknown := set(given) - set().union(*(accepted_parameters(name.strip()) for name in names.split(","))):
        option = sorted(unknown)[0]
        raise ValueError(f"--{option.replace('_', '-')} is given, but {names} does not take it.")
    parsed = parsed_parameters(parameters or [])
    return given | {name.replace("-", "_"): value for name, value in parsed.items()}


def parsed_parameters(parameters: Iterable[str]) -> dict[str, Any]:
    """Return what ``--set name=value`` says, by name."""
    parsed = {}
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if not equals:
            raise ValueError(f"--set {parameter} has no value; write --set name=value.")
        parsed[name] = parse_value(value)
    return parsed

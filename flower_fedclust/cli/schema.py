"""The commands ``fedclust schema init`` and ``fedclust schema check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Where a larger part of the values lies beyond the bounds, the site is told.
MOST_BEYOND = 0.05

app = typer.Typer(help="Draft and check schemas, which say what is public about columns.", no_args_is_help=True)

TableFile = Annotated[Path, typer.Argument(help="Your table: a .csv or .parquet file.")]
ClientColumn = Annotated[str | None, typer.Option(help="A column to leave out: whose row it is.")]
LabelColumn = Annotated[str | None, typer.Option(help="A column to leave out: true classes.")]


@app.command()
def init(
    file: TableFile,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    out: Annotated[Path | None, typer.Option(help="A new TOML file; without it the draft is printed.")] = None,
) -> None:
    """Draft a schema from a table, for you to check and correct; whatever comes from rows is marked."""
    from flower_fedclust.data import read_table
    from flower_fedclust.tables.drafting import draft

    table = read_table(file, client_column=client_column, label_column=label_column, raw=True)
    text = draft(table.rows, source=file.name)
    if out is None:
        print(text, end="")
        return
    with out.open("x", encoding="utf-8") as target:
        target.write(text)
    print(f"Written: {out}. Check it before you share it: whatever is marked comes from your rows.")


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="A TOML file.")],
    file: TableFile,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Check whether a table fits a schema, and say why each column that does not fit does not."""
    from flower_fedclust.data import read_table
    from flower_fedclust.tables.schema import Schema

    table = read_table(file, client_column=client_column, label_column=label_column, raw=True)
    known = Schema.of(schema)
    known.check(table.rows, owner=file.name)
    print(f"{file.name} fits {schema.name}.")
    for name, column, values in known.values(table.rows, owner=file.name):
        if column.interval is None:
            continue
        present = values[values == values]  # a gap is NaN
        n_beyond = int(((present < column.interval[0]) | (present > column.interval[1])).sum())
        if n_beyond > MOST_BEYOND * len(present):
            part = f"{100 * n_beyond / len(present):.0f}%"
            print(f"Column '{name}': {part} of the values lie beyond its bounds and count as these; is the unit right?")

"""The commands for files: draft and check a schema, find clusters of new rows, write a Flower app."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flower_fedclust.cli.options import IdColumn, OptionsOnce

#: If more than this share of a column's values lies beyond the bounds, it is reported.
MOST_BEYOND = 0.05

#: How many entries (rows times columns) are given their clusters at a time.
PREDICTED_ENTRIES = 2**20

schema_app = typer.Typer(
    cls=OptionsOnce,
    help="Draft and check schemas, which say what is public about columns.",
    no_args_is_help=True,
)

TableFile = Annotated[
    Path, typer.Argument(help="Your table: a .csv, .parquet, .xlsx, .dta or .sav file.")
]
ClientColumn = Annotated[
    str | None, typer.Option(help="The column that says whose row it is; it is left out.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="The column of true classes; it is left out.")
]


@schema_app.command()
def init(
    file: TableFile,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    out: Annotated[
        Path | None, typer.Option(help="A new TOML file; without it the draft is printed.")
    ] = None,
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
    options = [
        ("--data", str(file)),
        ("--client-column", client_column),
        ("--label-column", label_column),
    ]
    words = [part for name, value in options if value for part in (name, value)]
    following = [
        "fedclust",
        "run",
        *words,
        "--schema",
        str(out),
        "--describe",
        "--n-clusters",
        "4",
        "--epsilon",
        "1",
    ]
    if "# subject_column = " in text:
        print(
            "If you use the subject_column of the draft, add --privacy-unit subject to the command:"
        )
    print(f"Next:    {shlex.join(following)}")


@schema_app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="A TOML file.")],
    file: TableFile,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Check whether a table fits a schema; say what is wrong with each column that does not."""
    from flower_fedclust.data import read_table
    from flower_fedclust.data.files import with_rows_of_spreadsheet
    from flower_fedclust.numerics.checks import DataError
    from flower_fedclust.tables.missing_codes import find_codes
    from flower_fedclust.tables.schema import Schema, columns_with_unclear_commas

    known = Schema.of(schema)
    known.check_roles(label=label_column, client=client_column)
    table = read_table(file, client_column=client_column, label_column=label_column, raw=True)
    try:
        if client_column is None:
            known.check_has_no_clients(table.columns or (), owner=file.name)
        known.check(table.rows, owner=file.name)
    except DataError as error:
        raise DataError(with_rows_of_spreadsheet(str(error), file)) from None
    print(f"{file.name} fits {schema.name}.")
    for name in columns_with_unclear_commas([table.rows], known):
        print(
            f"Column '{name}': 1,234 counts as 1234; if the comma is a decimal comma, write 1.234."
        )
    for name, column, values in known.values(table.rows, owner=file.name):
        if column.kind in ("number", "integer") and (codes := find_codes(values, {})).sure:
            listed = ", ".join(map(str, codes.sure))
            print(
                f"Column '{name}': {listed} is {codes.why}; if it means a missing value, add missing = [{listed}]."
            )
        if column.interval is None:
            continue
        present = values[values == values]  # a gap is NaN
        n_beyond = int(((present < column.interval[0]) | (present > column.interval[1])).sum())
        if n_beyond > MOST_BEYOND * len(present):
            part = f"{100 * n_beyond / len(present):.0f}%"
            print(
                f"Column '{name}': {part} of the values are beyond its bounds and count as these; is the unit right?"
            )


def describe_saved(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a result that 'fedclust run' or result.save wrote."),
    ],
    page: Annotated[
        Path | None, typer.Option(help="A new HTML file: one page to hand to somebody.")
    ] = None,
) -> None:
    """Print a saved result: its clusters, its doubts, and its protection."""
    from rich.console import Console

    from flower_fedclust.harness.run import cluster_lines, doubt_lines, number_lines, print_lines
    from flower_fedclust.results.result import load

    result = load(folder)
    if page is not None and page.exists():
        raise FileExistsError(f"{page} exists already; name a new file, so that nothing is lost.")
    console = Console()
    lines = [
        repr(result),
        number_lines(result),
        cluster_lines(result, console),
        doubt_lines(result),
    ]
    print_lines(console, "\n\n".join(filter(None, lines)))
    if page is not None:
        print(f"\nWritten: {result.page(page)}")


def predict(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a result that 'fedclust run' or result.save wrote."),
    ],
    data: Annotated[Path, typer.Option(help="New rows: a file as for 'fedclust run --data'.")],
    out: Annotated[Path, typer.Option(help="A new CSV file for the clusters of the rows.")] = Path(
        "labels.csv"
    ),
    id_column: IdColumn = None,
) -> None:
    """Find the clusters of new rows with a saved model."""
    print(predict_file(folder, data, out, id_column=id_column))
    print(f"Written: {out.absolute()}")


@dataclass(frozen=True)
class Predicted:
    """How many rows of a file have a cluster, and why the others have none."""

    n_rows: int
    left_out: dict[str, int]  #: Reason -> how many rows it leaves without a cluster.
    unused: list[str]  #: The columns of the file that the model does not know.

    def __str__(self) -> str:
        n_without = sum(self.left_out.values())
        lines = [f"{self.n_rows - n_without:,} of {self.n_rows:,} rows have a cluster."]
        lines += [f"{count:,} have none: {why}." for why, count in self.left_out.items()]
        if self.unused:
            lines.append(
                f"Columns that the model does not know, and that were not used: {', '.join(self.unused)}."
            )
        return "\n".join(lines)


def predict_file(
    folder: str | Path, data: str | Path, out: str | Path, *, id_column: str | None = None
) -> Predicted:
    """Find the cluster of every row of a file with the model in a folder; write the clusters into a new CSV file.

    Each line has the number or id of the row, its cluster and, if it has none, the reason. Columns
    are found by name.
    """
    import numpy as np

    from flower_fedclust.data.files import read_rows
    from flower_fedclust.engine import ClientData
    from flower_fedclust.models import Model
    from flower_fedclust.names import look_up
    from flower_fedclust.results.files import each, find_folder, write_labels

    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists already; name a new file, so that nothing is lost.")
    model = Model.load(find_folder(folder, "model.json"))
    table = read_rows(data, id_column=id_column, raw=True)
    names = list(table.columns or ())
    wanted = names if model.columns_ is None else list(model.columns_)
    for name in wanted:
        look_up(name, dict.fromkeys(names), f"column of {table.name} called")
    rows = ClientData(table.rows, columns=wanted, owner=table.name, raw=True)
    clusters = np.empty(rows.n_rows, dtype=np.int32)  # -1 for none
    known, codes = [""], np.zeros(rows.n_rows, dtype=np.uint16)
    start = 0
    for batch in rows.batches(PREDICTED_ENTRIES):
        part = slice(start, start := start + len(batch))
        clusters[part], reasons = _clusters_of(batch, model, wanted)
        known += sorted(set(reasons.tolist()).difference(known))
        codes[part] = [known.index(reason) for reason in reasons.tolist()] if reasons.any() else 0
    ids = np.arange(rows.n_rows) if table.row_ids is None else table.row_ids
    why = (known[code] for code in each(codes)) if codes.any() else None
    labels = (None if label < 0 else label for label in each(clusters))
    write_labels(out, each(ids), labels, id_column=table.id_column, why=why)
    left_out = {
        known[code]: int(count) for code, count in enumerate(np.bincount(codes)) if code and count
    }
    return Predicted(rows.n_rows, left_out, [name for name in names if name not in wanted])


def _clusters_of(batch: Any, model: Any, columns: list[str]) -> tuple[Any, Any]:
    """Return the cluster of each row of a batch (-1 for none), and why it has none ("" if it has one)."""
    import numpy as np

    from flower_fedclust.data.frames import number_rows
    from flower_fedclust.models import TableModel

    frame, about = batch.table, {"owner": batch.owner, "first_row": batch.first_row}
    reasons = _why_left_out(frame, model, columns)
    placed = reasons == ""
    if not placed.any():
        return -1, reasons
    # Each unusable row is replaced by a usable one, so that all rows keep their numbers and errors name the right
    # row.
    full = frame.iloc[np.where(placed, np.arange(len(frame)), placed.argmax())]
    if isinstance(model, TableModel):
        places = model.model.predict(model.preparation.transform(full, **about))
    else:
        places = model.predict(number_rows(full, advice="", **about))
    return np.where(placed, places, -1), reasons


def _why_left_out(frame: Any, model: Any, columns: list[str]) -> Any:
    """Return for each row why it cannot have a cluster, by its first unusable column; "" if it can.

    ``columns`` are the columns that the model needs. A value is unusable if it is infinite, if it
    is missing although the schema does not accept gaps, or if it is a category that the schema does
    not list. The columns are read from last to first, so that the first column's reason replaces
    all others.
    """
    import numpy as np
    import pandas as pd

    from flower_fedclust.data.cells import are_cells, are_missing, numbers_in
    from flower_fedclust.models import TableModel
    from flower_fedclust.tables.schema import are_coded_missing, is_unlisted

    used = model.preparation.schema.used if isinstance(model, TableModel) else {}
    reasons = np.full(len(frame), "", dtype=object)
    for name in reversed(columns):
        values, column = frame[name], used.get(name)
        if column is not None and column.categories is not None:
            reasons[is_unlisted(values, column)] = (
                f"column '{name}' has a category that the schema does not list"
            )
        if column is not None and column.gaps != "refuse":
            continue
        listed = () if column is None else column.categories or ()
        missing = are_missing(values, listed)
        if column is not None:
            # pandas forbids changes to the arrays that it returns
            missing = missing | are_coded_missing(values, column)
        reasons[missing] = f"column '{name}' is missing"
        if are_cells(values) and not listed:
            values = pd.Series(numbers_in(values)[0])
        if values.dtype.kind == "f":
            reasons[np.isinf(values.to_numpy(dtype=np.float64, na_value=np.nan))] = (
                f"column '{name}' is infinite"
            )
    return reasons


#: Names that Flower accepts for an app.
_APP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")


def new_app(
    folder: Annotated[Path, typer.Argument(help="A new folder, after which the app is named.")],
    api: Annotated[
        str, typer.Option(help="Which of Flower's APIs to use: message or strategy.")
    ] = "message",
) -> None:
    """Write a Flower app of your own, ready for 'flwr run'."""
    print(f"Written: {write_app(folder, api)}\nNext:    flwr run {folder} --stream")


def write_app(folder: str | Path, api: str = "message") -> Path:
    """Write a Flower app that can run immediately into a new folder named like it; return its absolute path.

    ``api`` is "message" or "strategy", the API of Flower that the app uses. Raises a ValueError if
    Flower accepts no app of this name, and a FileExistsError if the folder holds something.
    """
    from importlib.metadata import distribution

    from flower_fedclust.numerics.checks import check_choice
    from flower_fedclust.results.files import empty_folder

    check_choice("api", api, ("message", "strategy"))
    path = empty_folder(folder)
    if not _APP_NAME.fullmatch(path.name):
        raise ValueError(
            f"Flower takes no app named '{path.name}'; a name begins with a letter, has only letters, digits and "
            "hyphens, and at most 32 of them."
        )
    path.mkdir(parents=True, exist_ok=True)
    for name in ("app.py", "columns.toml", "pyproject.toml", "README.md"):
        text = (
            (Path(__file__).parent / "app_template" / name)
            .read_text(encoding="utf-8")
            .replace("NAME", path.name)
        )
        if api == "strategy":
            text = text.replace("fc.MessageStrategy(strategy)", "strategy")
        (path / name).write_text(text, encoding="utf-8")
    # The license of the installed version.
    terms = distribution("flower-fedclust").read_text("licenses/LICENSE")
    (path / "LICENSE").write_text(terms or "Apache-2.0\n", encoding="utf-8")
    return path

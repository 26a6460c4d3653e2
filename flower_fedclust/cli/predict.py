"""The command that finds clusters of new rows; what it takes is imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedclust.harness.options import IdColumn


def predict(
    folder: Annotated[Path, typer.Argument(help="The folder of a result that 'fedclust run' or result.save wrote.")],
    data: Annotated[Path, typer.Option(help="New rows: a .csv, .parquet or .npy file.")],
    out: Annotated[Path, typer.Option(help="A new CSV file for the clusters of the rows.")] = Path("labels.csv"),
    id_column: IdColumn = None,
) -> None:
    """Find the clusters of new rows with a saved model."""
    from flower_fedclust.cli.predicting import predict_file

    print(predict_file(folder, data, out, id_column=id_column))
    print(f"Written: {out.absolute()}")

"""Labels of new rows from a model that was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import read_table
from flower_fedclust.data.frames import select
from flower_fedclust.models import Model, TableModel
from flower_fedclust.results.labels import write_labels
from flower_fedclust.results.saving import find_folder
from flower_fedclust.tables.columns import is_unlisted


@dataclass(frozen=True)
class Predicted:
    """What was done with a file of rows."""

    n_rows: int
    left_out: dict[str, int]  #: How many rows have no cluster, by why.
    unused: list[str]  #: The columns of the file that the model does not know.

    def __str__(self) -> str:
        n_without = sum(self.left_out.values())
        lines = [f"{self.n_rows - n_without:,} of {self.n_rows:,} rows have a cluster."]
        lines += [f"{count:,} have none: {why}." for why, count in self.left_out.items()]
        if self.unused:
            lines.append(f"Columns that the model does not know, and that were not used: {', '.join(self.unused)}.")
        return "\n".join(lines)


def predict_file(folder: str | Path, data: str | Path, out: str | Path, *, id_column: str | None = None) -> Predicted:
    """Write the cluster of every row of a file, by a model that a run has saved.

    Parameters
    ----------
    folder : str or Path
        That of a result, or one that holds ``model.json`` and ``model.npz`` alone.
    data : str or Path
        A file as :func:`flower_fedclust.data.read_table` reads it. Its columns are found by their names.
    out : str or Path
        A new CSV file, with a line for every row: its number, or its id; its cluster; and, where a row has none, why.
    id_column : str, optional
        The column that tells the rows apart.

    Raises
    ------
    FileExistsError
        If there is a file already.
    ValueError
        If the model or the file cannot be read, or if the file lacks a column or has text where numbers are wanted.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists already; name a new file, so that nothing is lost.")
    model = Model.load(find_folder(folder, "model.json"))
    table = read_table(data, id_column=id_column, raw=True)
    frame, names = table.rows, list(table.rows.columns)
    wanted = names if model.columns_ is None else list(model.columns_)
    frame = select(frame, wanted, table.name)
    reasons = _why_left_out(frame, model, wanted)
    placed = reasons == ""
    labels = np.full(len(frame), None, dtype=object)
    if placed.any():
        # In place of a row that has none stands one that has, so that errors name rows as the file numbers them.
        full = frame.iloc[np.where(placed, np.arange(len(frame)), placed.argmax())]
        labels[placed] = model.predict(full if model.columns_ is not None else full.to_numpy())[placed]
    ids = np.arange(len(frame)) if table.row_ids is None else table.row_ids
    write_labels(
        out,
        ids.tolist(),
        labels.tolist(),
        id_column=table.id_column,
        why=None if placed.all() else reasons.tolist(),
    )
    return Predicted(
        len(frame), dict(Counter(reasons[~placed].tolist())), [name for name in names if name not in wanted]
    )


def _why_left_out(frame: Any, model: Model, columns: Sequence[str]) -> NDArray[Any]:
    """Return why a row can have no cluster, an empty text where it can: the first of the columns that is wrong."""
    used = model.preparation.schema.used if isinstance(model, TableModel) else {}
    reasons = np.full(len(frame), "", dtype=object)
    for name in reversed(columns):
        values, column = frame[name], used.get(name)
        if column is not None and column.categories is not None:
            reasons[is_unlisted(values, column)] = f"column '{name}' has a category that the schema does not list"
        if column is not None and column.gaps != "refuse":
            continue
        reasons[values.isna().to_numpy()] = f"column '{name}' is missing"
        if values.dtype.kind == "f":
            reasons[np.isinf(values.to_numpy(dtype=np.float64, na_value=np.nan))] = f"column '{name}' is infinite"
    return reasons

"""A model of raw tables: a preparation that turns tables into rows of numbers, and a model of these rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.frames import as_new_rows, known_columns
from flower_fedclust.models.base import Clustered, Model
from flower_fedclust.outside import parse_json
from flower_fedclust.tables.preparation import Preparation

#: The most bytes of JSON for a preparation and the name of its model: enough for 1024 quantiles of 500 columns each.
LONGEST_PREPARATION = 2**25

#: Methods of some models that take rows; a TableModel prepares tables before it calls them.
_OF_ROWS = ("transform", "predict_proba", "score_samples")


class TableModel(Model, name="table"):
    """Clusters of the rows of raw tables, which may have text, dates and gaps.

    A table is first prepared: it becomes rows of numbers, for which ``model`` finds the clusters.

    Other attributes, such as ``cluster_centers_``, come from the model of the prepared rows.

    Parameters
    ----------
    preparation : Preparation
    model : Model
        The model of the prepared rows.

    Attributes
    ----------
    preparation : Preparation
    model : Model
    columns_ : list of str
        The columns that a table must have, in any order.
    """

    def __init__(self, preparation: Preparation, model: Model) -> None:
        self.preparation = preparation
        self.model = model
        self.columns_: Sequence[str] = preparation.columns_
        self.space, self.cluster_points = model.space, model.cluster_points

    def __repr__(self) -> str:
        return f"TableModel({len(self.columns_)} columns, {self.model!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "model" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        attribute = getattr(self.model, name)
        return (lambda table: attribute(self.prepare(table))) if name in _OF_ROWS else attribute

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return self.model.n_clusters

    def prepare(self, table: Any) -> NDArray[np.float64]:
        """Return the prepared rows of a table, of shape (n_rows, n_prepared_columns)."""
        frame = as_new_rows(table, "the table")
        if frame is None:
            return self.preparation.transform(table)
        schema = self.preparation.schema
        frame = known_columns(frame, schema.used, schema.columns, "the table", "the schema")
        return self.preparation.transform(frame)

    def predict(self, table: Any) -> NDArray[np.intp]:
        """Return the cluster of each row of a table, of shape (n_rows,).

        Raises
        ------
        DataError
            If the table does not fit the schema.
        """
        return self.model.predict(self.prepare(table))

    def cost(self, table: Any) -> float:
        """Return the sum over prepared rows of the squared distance to the nearest center."""
        return self.model.cost(self.prepare(table))

    def cluster(self, table: Any, places: NDArray[np.float64] | None = None) -> Clustered:
        """Return labels and cost of the rows of a table, and their places if the model has a map."""
        return self.model.cluster(self.prepare(table), places)

    def readable(self) -> dict[str, Any]:
        """Return the preparation, and the name of the model of prepared rows."""
        return {"preparation": self.preparation.to_dict(), "of_prepared_rows": self.model.name}

    def to_arrays(self) -> list[NDArray[Any]]:
        """Return the preparation and the name of the model as JSON, in bytes, and the arrays of the model."""
        fields = {"preparation": self.preparation.to_dict(), "model": self.model.name}
        return [np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8), *self.model.to_arrays()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]]) -> Self:
        """Undo :meth:`to_arrays`; the arrays may come from another party."""
        text, *others = arrays
        fields = parse_json(np.asarray(text, dtype=np.uint8).tobytes(), LONGEST_PREPARATION)
        return cls(
            Preparation.from_dict(fields["preparation"]),
            Model.named(fields["model"]).from_arrays(others),
        )

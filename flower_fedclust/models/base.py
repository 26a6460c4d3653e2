"""What every model can do."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.frames import as_frame, in_order, number_rows
from flower_fedclust.format import FORMAT
from flower_fedclust.models.files import read_description, version
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import checked_rows
from flower_fedclust.outside import parsing, read_arrays

_DESCRIPTION, _ARRAYS = "model.json", "model.npz"


@dataclass(frozen=True)
class Clustered:
    """What a model finds for some rows.

    Parameters
    ----------
    labels : ndarray of shape (n_rows,)
        The cluster of each row.
    cost : float
        The sum over rows of the squared distance to the nearest center, in the space of the centers.
    places : ndarray of shape (n_rows, n_dimensions), optional
        Where each row lies on the model's map, if it has one.
    """

    labels: NDArray[np.intp]
    cost: float
    places: NDArray[np.float64] | None = None


class Model(ABC):
    """What every clustering model can do.

    A subclass gives the name by which messages and files know it: ``class KMeansModel(Model, name="k-means")``.
    """

    #: The name by which messages and files know the model.
    name: ClassVar[str]
    #: The names of the columns that the model was made from, where they are known.
    columns_: Sequence[str] | None = None
    #: What :attr:`cluster_points` lie among.
    space: Literal["rows", "map", "embedding", "codes"] = "rows"
    _by_name: ClassVar[dict[str, type[Model]]] = {}

    def __init_subclass__(cls, *, name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = name
        Model._by_name[name] = cls

    @staticmethod
    def named(name: str) -> type[Model]:
        """Return the class of this name.

        Raises
        ------
        ValueError
            If there is none; the message gives the nearest.
        """
        return look_up(name, Model._by_name, "model")

    @property
    def cluster_points(self) -> NDArray[np.float64] | None:
        """A point for each cluster, of shape (n_clusters, n_dimensions); None where no point stands for a cluster."""
        return None

    @property
    def n_clusters(self) -> int:
        """How many clusters there are: as many as points, where points stand for them."""
        if self.cluster_points is None:
            raise NotImplementedError
        return len(self.cluster_points)

    @abstractmethod
    def predict(self, rows: ArrayLike) -> NDArray[np.intp]:
        """Return the cluster of each row, numbered from 0, of shape (n_rows,).

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table

        Raises
        ------
        ValueError
            If the rows are not finite numbers, or have other columns than the model was made from.
        """

    @abstractmethod
    def cost(self, rows: ArrayLike) -> float:
        """Return the sum over rows of the squared distance to the nearest center, in the space of the centers.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table
        """

    @abstractmethod
    def to_arrays(self) -> list[NDArray[np.float64]]:
        """Return all that the model knows, as arrays that can be sent."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float64]]) -> Self:
        """Make the model from what :meth:`to_arrays` returned."""

    @property
    def exact_points(self) -> NDArray[np.float64] | None:
        """Points among the rows from which the cluster of a row follows exactly; None where no such choice is made."""
        return None

    def exact_clusters(self, rows: NDArray[np.float64], exponent: int) -> NDArray[np.intp]:
        """Return the cluster of each row, from that row alone and the same on every machine.

        Only of models that have :attr:`exact_points`. Guarantees are about such clusters: those of :meth:`predict` are
        computed in floats, so that rows beside a row may decide where it lies on a tie.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_columns)
            On a grid: integers of norm at most 2^25.
        exponent : int
            Of their unit.
        """
        raise NotImplementedError

    @property
    def stays_with_server(self) -> bool:
        """Whether the model holds what single rows have sent, so that it goes to no client."""
        return False

    def cluster(self, rows: ArrayLike, places: NDArray[np.float64] | None = None) -> Clustered:
        """Return labels and cost of rows, and their places where the model has a map.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns)
        places : ndarray of shape (n_rows, n_dimensions), optional
            Where the rows lie on the map, if that is known already.
        """
        return Clustered(self.predict(rows), self.cost(rows), places)

    def checked_rows(self, rows: ArrayLike | Any, n_columns: int, who_has: str) -> NDArray[np.float64]:
        """Return rows that the model can place, checked; of a table, with its columns in the model's order.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table
        n_columns : int
        who_has : str
            What has so many columns ("the cluster centers have"), for the message.

        Raises
        ------
        ValueError
            If the rows are not finite numbers, or have another number of columns; if a table has columns of other
            names than the model was made from.
        """
        frame = as_frame(rows, "rows")
        if frame is not None:
            frame = frame if self.columns_ is None else in_order(frame, self.columns_, "the table", "the model")
            rows = number_rows(frame, "rows", advice="")
        checked = checked_rows(rows, owner="rows")
        if checked.shape[1] != n_columns:
            raise ValueError(
                f"rows: {checked.shape[1]} columns where {who_has} {n_columns}; give the columns the model was made "
                "from."
            )
        return checked

    # To files, and back.

    def save(self, folder: str | Path) -> None:
        """Write ``model.json``, which says what the model is, and ``model.npz``, its arrays: all that predicting needs.

        Parameters
        ----------
        folder : str or Path
            Made if need be.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        np.savez(path / _ARRAYS, *self.to_arrays())
        description = {
            "format": FORMAT,
            "version": version(),
            "model": self.name,
            "class": type(self).__name__,
            "n_clusters": self.n_clusters,
            "columns": None if self.columns_ is None else list(self.columns_),
            **self.for_people(),
        }
        (path / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def for_people(self) -> dict[str, Any]:
        """Return what else ``model.json`` says, which is in the arrays as well."""
        return {}

    @staticmethod
    def load(folder: str | Path) -> Model:
        """Return the model that :meth:`save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is none.
        ValueError
            If it cannot be read, or was written by a version whose files this one does not read.
        """
        path = Path(folder)
        description = read_description(path / _DESCRIPTION, instead=path / _ARRAYS)
        remedy = "save the model again"
        arrays = read_arrays(path / _ARRAYS, remedy)
        with parsing(str(path / _DESCRIPTION), "a model", remedy):
            made, columns = Model.named(str(description["model"])), description["columns"]
            if columns is not None and not (isinstance(columns, list) and all(isinstance(one, str) for one in columns)):
                raise TypeError("columns are texts")
        with parsing(str(path / _ARRAYS), "a model", remedy):
            model = made.from_arrays(arrays)
        if model.columns_ is None:
            model.columns_ = columns
        return model

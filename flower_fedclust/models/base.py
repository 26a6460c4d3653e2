"""The base class of models, which give rows their clusters, costs, and places on a map, and can be saved.

A model is the result of a run. It assigns rows, also new ones, to clusters, and does not need the rows from which it
was made. It is sent and saved as a list of arrays (:meth:`Model.to_arrays`), and never pickled.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust import plugins
from flower_fedclust.data.frames import as_new_rows, in_order, known_columns, number_rows
from flower_fedclust.format import read_stamped, stamp
from flower_fedclust.names import look_up
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError, checked_rows
from flower_fedclust.numerics.threads import mapped, threads_for
from flower_fedclust.outside import parsing, read_arrays

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: The entries of the largest array of a thread that clusters rows: 8 MB of float64.
CLUSTERED_ENTRIES = 2**20

_DESCRIPTION, _ARRAYS = "model.json", "model.npz"


@dataclass(frozen=True)
class Clustered:
    """The clusters of some rows, their cost, and their places on a map if there is one."""

    labels: Labels  #: The cluster of each row.
    #: The sum over rows of the squared distance to the nearest center (in the space of the centers: see Model.space).
    cost: float
    places: Floats | None = None  #: Where each row lies on the model's map, if it has one.


class Model(ABC):
    """Base class with the methods of every model.

    A subclass states the name by which messages and files know it: ``class KMeansModel(Model,
    name="k-means")``.

    Attributes
    ----------
    columns_ : sequence of str or None
        The names of the columns that the model was made from, if they are known.
    """

    #: The name by which messages and files know the model.
    name: ClassVar[str]
    columns_: Sequence[str] | None = None
    #: A point for each cluster, of shape (n_clusters, n_dimensions); None if clusters have no such points.
    cluster_points: Floats | None = None
    #: The space of :attr:`cluster_points`: the space of the rows, or another space to which the model maps rows.
    space: Literal["rows", "map", "embedding", "codes"] = "rows"
    #: Points in the space of the rows from which :meth:`exact_clusters` finds clusters; None if the model has none.
    exact_points: Floats | None = None
    #: Whether the model holds data about single rows, and therefore is not sent to clients.
    stays_with_server: bool = False
    _by_name: ClassVar[dict[str, type[Model]]] = {}

    def __init_subclass__(cls, *, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name:
            cls.name = name
            Model._by_name[name] = cls

    @staticmethod
    def named(name: str) -> type[Model]:
        """Return the class of models with this name.

        Raises a ValueError that suggests the nearest name if there is none.
        """
        if name not in Model._by_name:
            others = plugins.points(plugins.MODELS)
            if name in others:
                plugins.load(others[name])  # a subclass is registered when it is defined
            elif (sentence := plugins.where_to_find(name)) is not None:
                raise ValueError(f"{sentence}.")
        return look_up(name, Model._by_name, "model")

    @property
    def n_clusters(self) -> int:
        """The number of clusters of the model."""
        if self.cluster_points is None:
            raise NotImplementedError
        return len(self.cluster_points)

    @property
    def mean_points(self) -> Floats | None:
        """Means of rows, in the space of the rows: one for each cluster, or one for all; None if the model has none.

        Clusters in another space have no such means. Then the mean of :attr:`exact_points` stands for all rows.
        """
        if self.space == "rows":
            return self.cluster_points
        return None if self.exact_points is None else self.exact_points.mean(axis=0, keepdims=True)

    @abstractmethod
    def predict(self, rows: ArrayLike) -> Labels:
        """Return the cluster of each row, numbered from 0 (-1 for noise), of shape (n_rows,).

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
    def to_arrays(self) -> list[Floats]:
        """Return the whole model as arrays that can be sent."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Sequence[Floats]) -> Self:
        """Make the model from the arrays that :meth:`to_arrays` returned."""

    def exact_clusters(self, rows: Floats, exponent: int) -> Labels:
        """Return the cluster of each row, computed from that row alone and the same on every machine.

        Only models with :attr:`exact_points` have this method. Guarantees need these clusters: :meth:`predict` computes
        in floats, where a tie may be decided by the other rows in the batch.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_columns)
            Rows on a grid: integers of norm at most 2^25.
        exponent : int
            The exponent of the grid's unit.
        """
        raise NotImplementedError

    def cluster(self, rows: ArrayLike, places: Floats | None = None) -> Clustered:
        """Return labels and cost of rows, and their places if the model has a map.

        Parameters
        ----------
        rows : array-like of shape (n_rows, n_columns), or table
        places : ndarray of shape (n_rows, n_dimensions), optional
            Where the rows lie on the map, if that is known already.
        """
        return Clustered(self.predict(rows), self.cost(rows), places)

    def save(self, folder: str | Path) -> None:
        """Write ``model.json``, a description, and ``model.npz``, the arrays: everything that predicting needs.

        Parameters
        ----------
        folder : str or Path
            Created if it does not exist.

        Raises
        ------
        FileExistsError
            If the folder holds a model already.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name in (_ARRAYS, _DESCRIPTION):
            if (path / name).exists():
                raise FileExistsError(
                    f"{path} already holds a model; choose a new folder, so that nothing is lost."
                )
        # Mode "x": if two processes save at the same time, only one can create the file.
        with (path / _ARRAYS).open("xb") as arrays:
            np.savez(arrays, *self.to_arrays())
        description = {
            **stamp(),
            "model": self.name,
            "class": type(self).__name__,
            "n_clusters": self.n_clusters,
            "columns": None if self.columns_ is None else list(self.columns_),
            **self.readable(),
        }
        (path / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def readable(self) -> dict[str, Any]:
        """Return the parts of the model that ``model.json`` shows in readable form; by default none."""
        return {}

    @staticmethod
    def load(folder: str | Path) -> Model:
        """Return the model that :meth:`save` wrote.

        Raises
        ------
        FileNotFoundError
            If the folder holds no model.
        ValueError
            If a file is damaged, or another version wrote it in another format.
        """
        path = Path(folder)
        description = read_stamped(path / _DESCRIPTION, beside=path / _ARRAYS)
        remedy = "save the model again"
        arrays = read_arrays(path / _ARRAYS, remedy)
        with parsing(str(path / _DESCRIPTION), "a model", remedy):
            model_class, columns = Model.named(str(description["model"])), description["columns"]
            if columns is not None and not (
                isinstance(columns, list) and all(isinstance(column, str) for column in columns)
            ):
                raise TypeError("columns are texts")
        with parsing(str(path / _ARRAYS), "a model", remedy):
            model = model_class.from_arrays(arrays)
            if model.n_clusters != description["n_clusters"]:
                raise DataError(
                    f"it has {model.n_clusters} clusters, and {_DESCRIPTION} names another number; {remedy}."
                )
        if model.columns_ is None:
            model.columns_ = columns
        return model


class RowModel(Model):
    """Base of models that find the cluster of each row from that row alone, in blocks of rows.

    A subclass states how many columns its rows have, and implements :meth:`cluster_block`.
    """

    #: The beginning of a sentence that says which part of the model fixes the number of columns: "the means have".
    columns_from: ClassVar[str]
    #: The number of columns of the rows.
    n_columns: int

    @abstractmethod
    def cluster_block(self, rows: Floats) -> Clustered:
        """Return labels and cost of a block of rows that have been checked."""

    @property
    def _widest(self) -> int:
        """The entries per row of the largest array that :meth:`cluster_block` makes; it determines the block size."""
        return self.n_columns + self.n_clusters

    def predict(self, rows: ArrayLike) -> Labels:
        """Return the cluster of each row, of shape (n_rows,)."""
        return self.cluster(rows).labels

    def cost(self, rows: ArrayLike) -> float:
        """Return the sum over rows of the squared distance to the nearest center, in the space of the centers."""
        return self.cluster(rows).cost

    def cluster(self, rows: ArrayLike, places: Floats | None = None) -> Clustered:
        """Return labels and cost of rows, a block of rows at a time."""
        checked = self._checked(rows)
        labels, cost, start = np.empty(len(checked), dtype=np.intp), 0.0, 0
        pieces = blocks(len(checked), self._widest, block_entries=CLUSTERED_ENTRIES)
        parts = (checked[block] for block in pieces)
        threads = threads_for(checked.size * self.n_clusters)
        for answer in mapped(self.cluster_block, parts, threads):
            labels[start : start + len(answer.labels)] = answer.labels
            cost, start = cost + answer.cost, start + len(answer.labels)
        return Clustered(labels, cost, places)

    def _checked(self, rows: ArrayLike | Any) -> Floats:
        """Return rows as an array with the model's columns; the columns of a table are put into the model's order."""
        frame = as_new_rows(rows, "rows")
        if frame is not None:
            if self.columns_ is not None:
                frame = known_columns(frame, self.columns_, self.columns_, "the table", "the model")
                frame = in_order(frame, self.columns_, "the table", "the model")
            rows = number_rows(frame, "rows", advice="")
        checked = checked_rows(rows, owner="rows")
        if checked.shape[1] != self.n_columns:
            raise ValueError(
                f"rows: {checked.shape[1]} columns where {self.columns_from} {self.n_columns}; give the columns the "
                "model was made from."
            )
        return checked

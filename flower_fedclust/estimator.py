"""A strategy as a scikit-learn estimator, for existing pipelines, searches and scores."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from flower_fedclust.data.federation import FederatedRows
from flower_fedclust.data.frames import (
    as_frame,
    as_new_rows,
    check_same_order,
    in_order,
    known_columns,
    take,
)
from flower_fedclust.data.identities import identities
from flower_fedclust.data.subjects import subjects_of
from flower_fedclust.engine import ProtocolStrategy
from flower_fedclust.engine.parameters import check_is_strategy
from flower_fedclust.models import TableModel
from flower_fedclust.numerics.checks import check_choice, plain_array
from flower_fedclust.simulation import simulate
from flower_fedclust.tables.schema import Schema


def as_estimator(
    strategy: ProtocolStrategy,
    *,
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> FederatedClustering:
    """Return a scikit-learn estimator that runs a strategy on rows in this process.

    Parameters
    ----------
    strategy : ProtocolStrategy
        The strategy, which is not changed: each fit runs a copy. For scikit-learn its parameters are called
        ``strategy__n_clusters`` and so on.
    schema : Schema, mapping, TOML text, or the name of a TOML file, optional
        Public facts about the columns; needed if ``fit`` takes tables with text, dates or gaps.
    seed : int, optional
        Makes all randomness repeatable, including the noise, which then protects nobody. See
        :func:`flower_fedclust.simulate`.

    Returns
    -------
    FederatedClustering

    Examples
    --------
    >>> import numpy as np, flower_fedclust as fc
    >>> rows, site = np.array([[0.0], [1.0], [9.0], [8.0]]), ["a", "b", "a", "b"]
    >>> fc.as_estimator(fc.FederatedKMeans(2), seed=0).fit(rows, groups=site).labels_.shape
    (4,)
    """
    return FederatedClustering(strategy, schema=schema, seed=seed)


def _can_transform(estimator: FederatedClustering) -> bool:
    """Tell whether the model of a fitted estimator can transform rows."""
    model = getattr(estimator, "model_", None)
    return hasattr(model.model if isinstance(model, TableModel) else model, "transform")


class FederatedClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """A strategy with the methods of a scikit-learn clusterer; :func:`as_estimator` makes one.

    Parameters
    ----------
    strategy : ProtocolStrategy
    schema : Schema, mapping, TOML text, or the name of a TOML file, optional
    seed : int, optional

    Attributes
    ----------
    labels_ : ndarray of shape (n_rows,)
        The cluster of each row; -1 if its client took no part.
    model_ : Model
    result_ : Result
        The result of the run, with a privacy report that is valid as in any other run.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_columns,)
        The names of the columns, if they have names.
    """

    #: scikit-learn's metadata routing: ``fit`` gets groups and subjects without a call of ``set_fit_request``.
    __metadata_request__fit = {"groups": True, "subjects": True}  # noqa: RUF012

    def __init__(
        self,
        strategy: ProtocolStrategy,
        *,
        schema: Schema | str | Path | Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.strategy = strategy
        self.schema = schema
        self.seed = seed

    def fit(
        self,
        X: Any,
        y: object = None,  # noqa: ARG002
        *,
        groups: ArrayLike | None = None,
        subjects: ArrayLike | None = None,
    ) -> Self:
        """Run the strategy.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or table
        y : object
            Ignored.
        groups : array-like of shape (n_rows,)
            The client of each row; one client for each value. Searches and other meta-estimators
            pass the groups on once ``sklearn.set_config(enable_metadata_routing=True)`` has been
            called.
        subjects : array-like of shape (n_rows,), optional
            The person whom each row is about, for ``privacy_unit="subject"``: text or integers.

        Raises
        ------
        ValueError
            If the rows or the groups are invalid, or there are no groups.
        """
        check_is_strategy(self.strategy)
        rows = self._checked(X, reset=True)
        check_same_order(groups, as_frame(X, "X"), "X", "groups")
        if groups is None:
            raise ValueError(
                "groups is missing; pass the client of each row, as in fit(X, groups=table['site']). For GridSearchCV "
                "and the like, call sklearn.set_config(enable_metadata_routing=True) first."
            )
        owners = np.asarray(groups)
        if owners.shape != (len(rows),):
            raise ValueError(
                f"groups has shape {owners.shape} for {len(rows)} rows; give one group for each row."
            )
        if (missing := pd.isna(owners)).any():
            raise ValueError(f"groups: row {missing.argmax()} has none; give every row one.")
        names, codes = np.unique(identities(groups, "groups"), return_inverse=True)
        strategy = clone(self.strategy)
        if len(names) == 1 and strategy.min_clients is None:
            strategy.min_clients = 1
        parts = [np.flatnonzero(codes == code) for code in range(len(names))]
        columns = getattr(self, "feature_names_in_", None)
        check_same_order(subjects, as_frame(X, "X"), "X", "subjects")
        persons = None if subjects is None else subjects_of(subjects, "subjects")
        clients = FederatedRows(
            [take(rows, part) for part in parts],
            None,
            [str(name) for name in names],
            None if columns is None else list(columns),
            subjects=None if persons is None else [persons[part] for part in parts],
        )
        self.result_ = simulate(
            strategy,
            clients,
            schema=self.schema,
            seed=self.seed,
            progress=False,
        )
        self.model_ = self.result_.model
        self.labels_ = np.full(len(rows), -1, dtype=np.intp)
        for part, labels in zip(parts, self.result_.labels_of_clients, strict=True):
            if len(labels) == len(part):
                self.labels_[part] = labels
        return self

    def predict(self, X: Any) -> NDArray[np.intp]:
        """Return the cluster of each row, of shape (n_rows,)."""
        check_is_fitted(self)
        return self.model_.predict(self._checked(X, reset=False))

    def score(self, X: Any, y: object = None, sample_weight: None = None) -> float:  # noqa: ARG002
        """Return the negative cost of rows, so that more is better.

        ``sample_weight`` exists only because scikit-learn's pipelines pass it on, and must be None.
        """
        check_is_fitted(self)
        if sample_weight is not None:
            raise ValueError("sample_weight is not supported; leave it out.")
        return -self.model_.cost(self._checked(X, reset=False))

    @available_if(_can_transform)  # type: ignore[untyped-decorator]
    def transform(self, X: Any) -> Any:
        """Return the rows' places on the map, or their distances to the centers if the model has no map.

        Places have the shape (n_rows, 2), and distances the shape (n_rows, n_clusters). Models without centers, such as
        subspaces, have no transform.
        """
        check_is_fitted(self)
        places: NDArray[np.float64] = self.model_.transform(self._checked(X, reset=False))  # type: ignore[attr-defined]
        kind = (
            getattr(self, "_sklearn_output_config", {}).get("transform")
            or get_config()["transform_output"]
        )
        if kind == "default":
            return places
        names = [str(name) for name in self.get_feature_names_out()]
        if kind == "polars":
            return import_module("polars").DataFrame(places, schema=names)
        return pd.DataFrame(
            places, columns=names, index=X.index if isinstance(X, pd.DataFrame) else None
        )

    def set_output(self, *, transform: str | None = None) -> Self:
        """Say what :meth:`transform` returns: "default" (an array), "pandas" or "polars"; None changes nothing."""
        check_choice("transform", transform or "default", ("default", "pandas", "polars"))
        if transform is not None:
            # scikit-learn's clone copies this attribute.
            self._sklearn_output_config = {"transform": transform}
        return self

    @available_if(_can_transform)  # type: ignore[untyped-decorator]
    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:  # noqa: ARG002
        """Return the names of the columns of :meth:`transform`, as scikit-learn's ``set_output`` needs them.

        A name is the name of this class in lower case with a number, as in other clusterers. ``input_features`` is
        ignored.
        """
        check_is_fitted(self)
        is_map = self.result_.embedding is not None and len(self.result_.embedding) > 0
        n_columns = 2 if is_map else self.model_.n_clusters
        return np.array(
            [f"{type(self).__name__.lower()}{index}" for index in range(n_columns)], dtype=object
        )

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """Return the rows as checked numbers or, with a schema, as the table; ``reset`` also stores the columns."""
        frame = as_frame(X, "X") if reset else as_new_rows(X, "X")
        if self.schema is None:
            names = getattr(self, "feature_names_in_", None)
            if frame is not None and not reset and names is not None:
                frame = known_columns(frame, names, names, "X", "the estimator")
                frame = in_order(frame, list(names), "X", "the estimator")
            fewest = self.strategy.fewest_clusters if reset else 1
            rows = plain_array(X) if frame is None else frame
            return validate_data(
                self, rows, reset=reset, dtype=np.float64, order="C", ensure_min_samples=fewest
            )
        if frame is None:
            raise ValueError("X has no column names, which a schema needs; give a table.")
        if reset:
            self.n_features_in_ = len(frame.columns)
            self.feature_names_in_ = np.array(frame.columns, dtype=object)
        return frame

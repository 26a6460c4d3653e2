"""What is checked: a strategy, small tables that suit it, and its run on them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.checking.runs import Run, Tamper, watched_run
from flower_fedclust.engine import ClientData, ProtocolStrategy
from flower_fedclust.engine.parameters import check_is_strategy
from flower_fedclust.privacy.releases import Release

Floats = NDArray[np.float64]

SEED = 5

#: Names in an order that is neither that of the alphabet nor that of the numbers.
NAMES = ("site-b", "10", "9")


class Subject:
    """A strategy to be checked, and tables to check it on.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Never changed.
    clients : sequence of array-like of shape (n_i, n_columns), optional
        By default three blobs of some 25 rows each are made, of as many columns as the strategy expects.
    labels : sequence of array-like of shape (n_i,), optional
        True classes.
    tamper : callable, optional
        Of every client in ``run``; as in :func:`~flower_fedclust.checking.runs.watched_run`.
    """

    def __init__(
        self,
        strategy: ProtocolStrategy,
        clients: Sequence[ArrayLike] | None = None,
        labels: Sequence[ArrayLike] | None = None,
        *,
        tamper: Tamper | None = None,
    ) -> None:
        check_is_strategy(strategy)
        self._given, self._tamper = strategy, tamper
        made, classes = small_tables(strategy) if clients is None else (clients, labels)
        self.names = [*NAMES, *map(str, range(20, 20 + len(made)))][: len(made)]
        self.data = {
            name: ClientData(rows, None if classes is None else classes[index], owner=f"client {name}")
            for index, (name, rows) in enumerate(zip(self.names, made, strict=True))
        }

    @property
    def strategy(self) -> ProtocolStrategy:
        """A copy of the strategy, with a seed for what is drawn from random_state."""
        made = copy.copy(self._given)
        made.random_state = SEED if made.random_state is None else made.random_state
        return made

    def with_parameters(self, **parameters: Any) -> ProtocolStrategy:
        """Return the strategy with other parameters."""
        made: ProtocolStrategy = type(self._given)(**(self._parameters | parameters))
        for name in ("server_data_origin", "server_columns"):
            setattr(made, name, getattr(self._given, name))
        return made

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: getattr(self.strategy, name) for name in self._given.parameter_names()}

    @property
    def rows(self) -> list[Floats]:
        """The tables."""
        return [client.rows for client in self.data.values()]

    @property
    def n_columns(self) -> int:
        """Of the tables."""
        return int(self.rows[0].shape[1])

    @cached_property
    def run(self) -> Run:
        """A run with a seed."""
        tamper = None if self._tamper is None else dict.fromkeys(self.data, self._tamper)
        run = watched_run(self.strategy, self.data, seed=SEED, tamper=tamper)
        if not run.strategy.is_finished:
            raise AssertionError(f"it has not ended after n_protocol_rounds={self.strategy.n_protocol_rounds} rounds.")
        return run

    @cached_property
    def epsilon(self) -> float:
        """What the releases of that run compose to."""
        return self.run.strategy.report.composed_epsilon

    def changed(self, name: str, rows: ArrayLike) -> dict[str, ClientData]:
        """Return the data with other rows of one client."""
        return self.data | {name: ClientData(rows, owner=f"client {name}")}

    @property
    def releases(self) -> list[tuple[int, int, Release]]:
        """The releases with noise: number of the round, index of the array, release."""
        return [
            (number, index, release)
            for number, round_ in self.run.rounds.items()
            for index, release in enumerate(round_.releases)
            if release is not None and release.scale > 0
        ]


def small_tables(
    strategy: ProtocolStrategy, n_clients: int = 3, n_columns: int = 4, *, seed: int = 7
) -> tuple[list[Floats], list[NDArray[np.intp]]]:
    """Return blobs that suit a strategy: its columns, around its public rows, or within its bounds.

    Returns
    -------
    rows : list of ndarray of shape (n_i, n_columns)
        Of some 25 rows.
    labels : list of ndarray of shape (n_i,)
    """
    rng = np.random.default_rng(seed)
    public = np.asarray(getattr(strategy, "server_data", np.empty(0)), dtype=float)
    n_columns = strategy.expected_columns or n_columns
    center, radius = np.zeros(n_columns), 1.0
    if public.ndim == 2:
        center = public.mean(axis=0)
        radius = float(np.linalg.norm(public - center, axis=1).max())
    for name in ("max_norm", "max_l1_norm"):
        if getattr(strategy, name, None) is not None:
            center, radius = np.zeros(n_columns), float(getattr(strategy, name)) / np.sqrt(n_columns)
    directions = rng.normal(size=(strategy.n_clusters, n_columns))
    means = center + 0.6 * radius * directions / np.linalg.norm(directions, axis=1)[:, None]
    sizes = [25 + 3 * index for index in range(n_clients)]
    labels = [np.arange(size) % strategy.n_clusters for size in sizes]
    rows = [means[own] + 0.05 * radius * rng.normal(size=(len(own), n_columns)) for own in labels]
    return rows, labels


def bits_of(run: Run) -> dict[str, Any]:
    """Return all that must be the same where two runs are the same, by what it is."""
    result = run.result
    return {
        "model": [array.tobytes() for array in result.model.to_arrays()],
        "labels": [labels.tobytes() for labels in result.labels],
        "embedding": [places.tobytes() for places in result.embedding],
        "metrics": result.metrics,
        "messages": tuple(result.privacy.messages),
        "traffic": result.traffic,
        "failures": result.failures,
        "history": result.history,
    }


def difference(one: Run, other: Run) -> str:
    """Return in what two runs differ; an empty text if in nothing."""
    first, second = bits_of(one), bits_of(other)
    return ", ".join(what for what in first if first[what] != second[what])

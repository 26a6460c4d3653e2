"""A comparison: which strategies, on which rows, at which budgets, with which seeds; and the trials it consists of."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.data import find_dataset, read_table
from flower_fedclust.data.partition import parsed_scheme
from flower_fedclust.engine import Entry
from flower_fedclust.harness.jobs import SERVER_ROWS_PER_CLUSTER, RowsChoice, make_strategies, needs_server_rows
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_choice, check_integer, check_real
from flower_fedclust.outside import reading
from flower_fedclust.registry import accepted_parameters, find
from flower_fedclust.tables.schema import Schema

#: Parameters that the comparison itself sets, and the settings that they come from.
_SET_BY = {
    "n_clusters": "n_clusters",
    "epsilon": "epsilons",
    "delta": "delta",
    "random_state": "seeds",
    "server_data": "server_data",
}

# The name of a file can be longer than that of a folder may be.
_LONGEST_NAME_IN_KEY = 60


@dataclass(frozen=True)
class Trial:
    """One strategy on one scenario at one budget with one seed: all that a process must know to run it."""

    key: str  #: The name of its folder.
    strategy: str
    entry: Entry  #: Its entry in the registry, which a new process may not have.
    data: str  #: The name of the data set.
    choice: RowsChoice
    n_clusters: int | None  #: None if the number of classes is unknown; the trial will give the reason.
    epsilon: float | None
    seed: int
    parameters: Mapping[str, Any]  #: The parameters of the strategy, except n_clusters and server rows.
    variant: str | None  #: The parameters of the grid that the strategy knows, as text; None if there are none.
    engine: str
    needs_server_rows: bool  #: Whether any strategy of the comparison needs them: all are compared on the same rows.


@dataclass(frozen=True)
class Comparison:
    """Each strategy on each data set and partition, at each budget, with each seed.

    Raises
    ------
    ValueError
        If one of these is not valid; the message gives the nearest name.
    FileNotFoundError
        If a file does not exist.
    """

    strategies: tuple[str, ...]
    datasets: tuple[str, ...] = ()  #: Data sets by name; give these, ``data``, or both.
    data: Path | None = None  #: A file of rows, or a folder with one file per client.
    client_column: str | None = None  #: Columns of the file.
    label_column: str | None = None  #: Columns of the file.
    columns: tuple[str, ...] | None = None  #: The columns to cluster by; all others by default.
    schema: Path | None = None  #: A TOML file that says what is public about the file's columns.
    #: A file of public rows. Without it they are drawn from the rows, if a strategy needs some.
    server_data: Path | None = None
    n_server_rows: int | None = None  #: How many are drawn; by default 20 per cluster.
    #: How rows are spread over clients; by default "iid". Not for a file or folder that names the clients.
    partitions: tuple[str, ...] = ()
    n_clients: int = 10
    #: How many clusters, one number or several; by default as many as each data set has classes.
    n_clusters: int | tuple[int, ...] | None = None
    #: The budgets; None is no noise. By default each strategy's own. A strategy without noise runs once per
    #: seed.
    epsilons: tuple[float | None, ...] = ()
    delta: float = 1e-6
    #: A seed determines the data, the partition, the strategy and the noise, so the trials protect nobody.
    seeds: tuple[int, ...] = (0, 1, 2)
    engine: str = "inline"
    #: Parameters for all strategies that know them, or, as "STRATEGY.PARAMETER", for one.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: As ``parameters``, with several values each: every strategy runs with all combinations of those that it knows.
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.strategies:
            raise ValueError("strategies is empty; name at least one, or all.")
        for name in self.strategies:
            find(name)
        if not self.datasets and self.data is None:
            raise ValueError("there are no rows; give data sets (datasets), a file of your own (data), or both.")
        for name in self.datasets:
            find_dataset(name)
        self._check_partitions()
        for name in ("n_clients", "n_server_rows"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), at_least=1)
        for number in self._numbers_of_clusters:
            if number is not None:
                check_integer("n_clusters", number, at_least=1)
        for epsilon in self.epsilons:
            if epsilon is not None:
                check_real("epsilon", epsilon, above=0)
        check_real("delta", self.delta, above=0, below=1)
        if not self.seeds:
            raise ValueError("seeds is empty; give how many there are, or which.")
        for seed in self.seeds:
            check_integer("seed", seed, at_least=0)
        check_choice("engine", self.engine, ("inline", "ray"))
        self._check_parameters()
        self._check_files()

    def trials(self) -> list[Trial]:
        """Return the trials, in the order of the table."""
        trials = []
        for source in self._sources:
            n_classes = self._n_classes(source) if None in self._numbers_of_clusters else None
            for partition, asked, strategy in itertools.product(
                self._partitions_of(source), self._numbers_of_clusters, self.strategies
            ):
                for epsilon, point, seed in itertools.product(
                    self._epsilons_of(strategy), self._grid_of(strategy), self.seeds
                ):
                    choice = self._choice(source, partition, seed)
                    trials.append(self._trial(strategy, choice, asked or n_classes, epsilon, point))
        return trials

    def settings(self) -> dict[str, Any]:
        """Return the settings, ready for JSON; two comparisons are the same if these are equal.

        A file is identified by its name and content, so that it may be moved.
        """
        files = {
            name: {"name": path.name, "sha256": _fingerprint(path)}
            for name, path in (("data", self.data), ("server_data", self.server_data), ("schema", self.schema))
            if path is not None
        }
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        choices = [self._choice(source, one, 0) for source in self._sources for one in self._partitions_of(source)]
        settings |= {
            "data": [*self.datasets, *([] if self.data is None else [self.data.name])],
            "server_data": None if self.server_data is None else self.server_data.name,
            "schema": None if self.schema is None else self.schema.name,
            "partitions": list(dict.fromkeys(choice.partition_name for choice in choices)),
            "files": files,
        }
        del settings["datasets"]
        for name in ("grid", "schema"):
            if not settings[name]:
                del settings[name]  # as in a folder of before there was one
        # Through JSON, so that the settings can be compared with those of a file.
        plain: dict[str, Any] = json.loads(json.dumps(settings, default=dict))
        return plain

    def _trial(
        self,
        strategy: str,
        choice: RowsChoice,
        n_clusters: int | None,
        epsilon: float | None,
        point: Mapping[str, Any],
    ) -> Trial:
        given = {**_own(strategy, self.parameters), **point, "epsilon": epsilon, "delta": self.delta}
        variant = ", ".join(f"{name}={json.dumps(value)}" for name, value in point.items()) or None
        several = [f"clusters-{n_clusters}"] if len(self._numbers_of_clusters) > 1 else []
        data = choice.dataset or Path(choice.data or "").name
        shown = "none" if epsilon is None else repr(float(epsilon)).removesuffix(".0")
        where = (data[:_LONGEST_NAME_IN_KEY], choice.partition_name)
        parts = (strategy, *where, f"epsilon-{shown}", *several, *filter(None, [variant]), f"seed-{choice.seed}")
        return Trial(
            key="__".join(re.sub(r"[^A-Za-z0-9+._-]", "-", part) for part in parts),
            strategy=strategy,
            entry=find(strategy),
            data=data,
            choice=choice,
            n_clusters=n_clusters,
            epsilon=epsilon,
            seed=choice.seed,
            parameters={name: given[name] for name in given if name in accepted_parameters(strategy)},
            variant=variant,
            engine=self.engine,
            needs_server_rows=needs_server_rows(self.strategies, self.n_server_rows),
        )

    @cached_property
    def public_rows(self) -> Any:
        """The rows of ``server_data``."""
        assert self.server_data is not None
        raw = self.schema is not None
        return read_table(self.server_data, label_column=self.label_column, columns=self.columns, raw=raw).rows

    @cached_property
    def _schema(self) -> Schema | None:
        return None if self.schema is None else Schema.of(self.schema)

    @property
    def _numbers_of_clusters(self) -> tuple[int | None, ...]:
        return self.n_clusters if isinstance(self.n_clusters, tuple) else (self.n_clusters,)

    def _grid_of(self, strategy: str) -> list[dict[str, Any]]:
        """Return the points of the grid of a strategy: one without parameters if it knows none of the grid."""
        own = {
            name: values for name, values in _own(strategy, self.grid).items() if name in accepted_parameters(strategy)
        }
        return [dict(zip(own, point, strict=True)) for point in itertools.product(*own.values())]

    @property
    def _sources(self) -> tuple[str | None, ...]:
        """The data sets, and None for the file."""
        return (*self.datasets, *(() if self.data is None else (None,)))

    @property
    def _file_says_whose(self) -> str | None:
        """What names the client of each row of the file, if anything does."""
        if self.client_column is not None:
            return f"the column '{self.client_column}'"
        return "a folder with a file for each client" if self.data is not None and self.data.is_dir() else None

    def _partitions_of(self, source: str | None) -> tuple[str, ...]:
        """Return the partitions of a data set, or of the file, which has only one if it names the clients."""
        return ("iid",) if source is None and self._file_says_whose else self.partitions or ("iid",)

    def _choice(self, dataset: str | None, partition: str, seed: int) -> RowsChoice:
        own = dataset is None
        return RowsChoice(
            dataset=dataset,
            data=self.data if own else None,
            label_column=self.label_column if own or self.server_data is not None else None,
            client_column=self.client_column if own else None,
            columns=self.columns if own or self.server_data is not None else None,
            partition=partition,
            n_clients=self.n_clients,
            server_data=self.server_data,
            n_server_rows=self.n_server_rows,
            seed=seed,
            schema=self._schema if own else None,
        )

    def _epsilons_of(self, strategy: str) -> tuple[float | None, ...]:
        if "epsilon" not in accepted_parameters(strategy):
            return (None,)
        if self.epsilons:
            return self.epsilons
        own = inspect.signature(find(strategy).strategy).parameters["epsilon"].default
        return (None if own is inspect.Parameter.empty else own,)

    def _n_classes(self, dataset: str | None) -> int | None:
        try:
            return self._choice(dataset, "iid", self.seeds[0]).n_classes()
        except ValueError:
            if dataset is None:
                raise
            return None  # Its package is missing: the trials on it will say so, and the others go on.

    def _check_partitions(self) -> None:
        for partition in self.partitions:
            parsed_scheme(partition)
        says = self._file_says_whose
        if says and not self.datasets and any(partition != "column" for partition in self.partitions):
            raise ValueError(f"{says} says whose rows they are, so that there is nothing to partition; leave out one.")
        if self.client_column is not None and self.data is None:
            raise ValueError("client_column is a column of a file; give the file as data, or leave it out.")

    def _check_parameters(self) -> None:
        accepted = {name: accepted_parameters(name) for name in self.strategies}
        known = dict.fromkeys(sorted(set().union(*accepted.values())))
        for given in (*self.parameters, *self.grid):
            strategy, dot, name = given.rpartition(".")
            if name in _SET_BY:
                raise ValueError(f"{name} is not set as a parameter here; give {_SET_BY[name]}.")
            if dot:
                own = look_up(strategy, accepted, "strategy in this comparison called")
                look_up(name, dict.fromkeys(own), f"parameter of {strategy} called")
            else:
                look_up(name, known, f"parameter of {', '.join(self.strategies)} called")

    def _check_files(self) -> None:
        """Read the user's files once, because every trial needs them."""
        if self.data is not None and self._n_classes(None) is None and self.n_clusters is None:
            raise ValueError(f"{self.data.name} has no known classes to count; give n_clusters, or label_column.")
        if self.server_data is not None:
            _ = self.public_rows


def _own(strategy: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are given to all strategies, and those that are given to this one."""
    prefix = f"{strategy}."
    return {name: value for name, value in parameters.items() if "." not in name} | {
        name[len(prefix) :]: value for name, value in parameters.items() if name.startswith(prefix)
    }


def why_impossible(trial: Trial, comparison: Comparison) -> str | None:
    """Return why a trial cannot run, as far as that is known without its rows; None if nothing speaks against it."""
    if trial.n_clusters is None:
        return None  # The trial will say what its data set lacks.
    parameters = dict(trial.parameters)
    if "n_clusters" in accepted_parameters(trial.strategy):
        parameters["n_clusters"] = trial.n_clusters
    public = None
    if needs_server_rows((trial.strategy,)):
        # Of rows that are drawn only the number is known here.
        n_rows = comparison.n_server_rows or SERVER_ROWS_PER_CLUSTER * trial.n_clusters
        public = np.arange(2.0 * n_rows).reshape(n_rows, 2)
        if comparison.server_data is not None:
            public = comparison.public_rows
    try:
        make_strategies([trial.strategy], parameters, public, schema=trial.choice.schema)
    except (ValueError, ImportError) as error:
        return " ".join(str(error).split())
    return None


def _fingerprint(path: Path) -> str:
    """Return a hash of a file's content, or of the names and contents of a folder's files."""
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if not one.is_dir() and one.name[0] not in "._")
        listing = "\n".join(f"{one.name} {_fingerprint(one)}" for one in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    with reading(path, "data", "give another file") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

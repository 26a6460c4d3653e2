"""The settings of a comparison, and the trials that they describe.

A comparison is a product: each strategy on each data set and partition, with each number of
clusters, at each budget, at each point of the parameter grid, with each seed. :class:`Comparison`
holds the settings and checks them before anything runs. :meth:`Comparison.trials` multiplies them
out. A :class:`Trial` is everything that a process needs for one run, so trials can be executed
anywhere and in any order.

The second half reads settings as people write them: options of the command, a TOML file, or
arguments of :func:`flower_fedclust.compare`.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.data import Batches, FederatedRows, find_dataset, read_table
from flower_fedclust.data.partition import parsed_scheme
from flower_fedclust.data.suite import SUITE, sets_named
from flower_fedclust.engine import Entry, ProtocolStrategy
from flower_fedclust.inputs import (
    SERVER_ROWS_PER_CLUSTER,
    RowsChoice,
    make_strategies,
    needs_server_rows,
    parse_epsilon,
    why_not_its_unit,
)
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_choice, check_integer, check_real
from flower_fedclust.outside import read_toml, reading
from flower_fedclust.registry import accepted_parameters, find, strategies
from flower_fedclust.simulation import ENGINES
from flower_fedclust.tables.schema import Schema

#: Parameters that the comparison itself sets, and the settings they come from.
_SET_BY = {
    "n_clusters": "n_clusters",
    "epsilon": "epsilons",
    "delta": "delta",
    "random_state": "seeds",
    "server_data": "server_data",
}

# The most characters in one part of a trial's key. The key is the name of a folder.
_LONGEST_PART = 60

#: Where rows come from: a data set by name, a file or folder, or rows of a Python caller.
Source = str | Path | FederatedRows


@dataclass(frozen=True)
class Trial:
    """One strategy on one scenario, at one budget, with one seed: everything that a process needs to run it.

    A trial can be pickled. It names its rows (by data set, file, or a stored table) and does not
    contain them.
    """

    key: str  #: The name of the trial's folder.
    strategy: str
    entry: Entry  #: The strategy's entry in the registry, which a new process may not have.
    data: str  #: The name of the data set.
    choice: RowsChoice
    #: None if the number of classes is unknown; the trial then fails with the reason.
    n_clusters: int | None
    epsilon: float | None
    seed: int
    #: The parameters of the strategy, except n_clusters and server rows.
    parameters: Mapping[str, Any]
    #: The parameters that come from the grid, or from a strategy object, as text; None if there are none.
    variant: str | None
    engine: str
    #: Whether any strategy of the comparison needs them: all are compared on the same rows.
    needs_server_rows: bool
    instance: ProtocolStrategy | None = None  #: The strategy, if it was given as an object.
    #: The file that keeps the rows of a Python caller for the trials' processes.
    stored: Path | None = None

    def strategy_for(self, n_clusters: int, server_rows: Any, origin: str = "") -> ProtocolStrategy:
        """Return the strategy to run.

        Parameters
        ----------
        n_clusters : int
        server_rows : array-like or None
            Public rows. If the user gave them, every strategy that can use public rows gets them.
            If they were drawn from the data, only strategies that require public rows get them.
        origin : str
            Where the server rows come from, for the privacy report.
        """
        schema = self.choice.schema
        if self.instance is not None:
            return self.instance
        parameters = dict(self.parameters)
        if "n_clusters" in accepted_parameters(self.strategy):
            parameters["n_clusters"] = n_clusters
        were_given = self.choice.gives_server_rows
        (strategy,) = make_strategies(
            [self.strategy], parameters, server_rows, origin, were_given=were_given, schema=schema
        )
        prepared: ProtocolStrategy = strategy
        return prepared


@dataclass(frozen=True)
class Comparison:
    """Each strategy on each data set and partition, at each budget, with each seed.

    All settings are checked when the object is made, including that files can be read and that data
    sets, strategies and parameters exist. So a comparison does not fail after an hour because of a
    typing error.
    """

    #: Strategies by name, or as objects. Objects run as they are; n_clusters, budgets, parameters and grid apply only
    #: to names.
    strategies: tuple[str | ProtocolStrategy, ...]
    #: Data sets by name; at least one of these, ``data`` and ``clients`` is needed.
    datasets: tuple[str, ...] = ()
    data: Path | None = None  #: A file of rows, or a folder with one file per client.
    clients: FederatedRows | None = None  #: Rows of a Python caller.
    client_column: str | None = None  #: A column of the file.
    label_column: str | None = None  #: A column of the file.
    #: A column of the file that names the person of each row, if a person may have several rows.
    subject_column: str | None = None
    columns: tuple[str, ...] | None = None  #: The columns to cluster by; all others by default.
    #: The public facts about the columns of the file, or of the clients' tables.
    schema: Path | Schema | None = None
    #: A file of public rows. Without it, public rows are drawn from the data if a strategy needs them.
    server_data: Path | None = None
    #: How many public rows are drawn from the data; by default 20 per cluster.
    n_server_rows: int | None = None
    #: How rows are spread over clients; by default "iid". Not allowed if a file or folder says which client has which
    #: row.
    partitions: tuple[str, ...] = ()
    n_clients: int = 10
    #: The number of clusters, or several numbers to try; by default as many clusters as each data set has classes.
    n_clusters: int | tuple[int, ...] | None = None
    #: The privacy budgets; None means no noise. By default each strategy has its own. A strategy that takes no budget
    #: runs once per seed.
    epsilons: tuple[float | None, ...] = ()
    delta: float = 1e-6
    #: Each seed determines the data, the partition, the strategy's random choices and the noise. Noise from a known
    #: seed protects nobody.
    seeds: tuple[int, ...] = (0, 1, 2)
    engine: str = "inline"
    #: Parameters for all strategies that accept them. The name "STRATEGY.PARAMETER" sets a parameter of one strategy.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Like ``parameters``, but with several values each: every strategy runs with all combinations of the parameters
    #: that it accepts.
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check everything that can be checked before a trial runs; raise a ValueError for the first mistake.

        A comparison may run for days, so an unknown name, a missing file or a parameter that a
        strategy does not have must be found when it is made.
        """
        if not self.strategies:
            raise ValueError("strategies is empty; name at least one, or all.")
        for name in self.names:
            find(name)
        if not self._sources:
            raise ValueError(
                "there are no rows; give data sets (datasets), a file of your own (data), or both."
            )
        for name in self.datasets:
            find_dataset(name)
        self._check_partitions()
        counts = {"n_clients": (self.n_clients,), "n_server_rows": (self.n_server_rows,)}
        for name, values in {**counts, "n_clusters": self._numbers_of_clusters}.items():
            for value in values:
                if value is not None:
                    check_integer(name, value, at_least=1)
        for epsilon in self.epsilons:
            if epsilon is not None:
                check_real("epsilon", epsilon, above=0)
        check_real("delta", self.delta, above=0, below=1)
        if not self.seeds:
            raise ValueError("seeds is empty; give how many there are, or which.")
        for seed in self.seeds:
            check_integer("seed", seed, at_least=0)
        check_choice("engine", self.engine, ENGINES)
        self._check_parameters()
        self._check_files()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the strategies that were given by name; strategies given as objects are left out."""
        return tuple(strategy for strategy in self.strategies if isinstance(strategy, str))

    def trials(self) -> list[Trial]:
        """Return all trials, in the order of the table of results.

        Raises a ValueError if two of them would be the same run.
        """
        trials = []
        for source in self._sources:
            numbers = self._numbers_of_clusters
            if self._asks_for_classes:  # then there is no other number
                numbers = self._numbers_of_classes(source) or numbers
            for partition, number, strategy in itertools.product(
                self._partitions_of(source), numbers, self.strategies
            ):
                if not isinstance(strategy, str) and number != numbers[0]:
                    continue  # an object has a number of clusters of its own
                for epsilon, point, seed in itertools.product(
                    self._epsilons_of(strategy), self._grid_of(strategy), self.seeds
                ):
                    choice = self._choice(source, partition, seed)
                    trials.append(self._trial(strategy, choice, number, epsilon, point))
        if len({trial.key for trial in trials}) < len(trials):
            raise ValueError("two strategies are the same; give each once.")
        return trials

    def settings(self) -> dict[str, Any]:
        """Return the settings, ready for JSON. Two comparisons with equal settings are the same.

        The folder of a comparison keeps them, and a later call continues the comparison only if its
        own settings are equal. A file is identified by its name and the hash of its content, so it
        may be moved but not changed.
        """
        files = {
            name: {"name": path.name, "sha256": _fingerprint(path)}
            for name, path in (
                ("data", self.data),
                ("server_data", self.server_data),
                ("schema", self.schema),
            )
            if isinstance(path, Path)
        }
        if self.clients is not None:
            files["clients"] = {"name": "clients", "sha256": rows_fingerprint(self.clients)}
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        choices = [
            self._choice(source, partition, 0)
            for source in self._sources
            for partition in self._partitions_of(source)
        ]
        settings |= {
            "strategies": [
                strategy if isinstance(strategy, str) else _described(strategy)
                for strategy in self.strategies
            ],
            "data": [_data_name(source) for source in self._sources],
            "server_data": None if self.server_data is None else self.server_data.name,
            "schema": self.schema.to_json()
            if isinstance(self.schema, Schema)
            else self.schema and self.schema.name,
            "partitions": list(dict.fromkeys(choice.partition_name for choice in choices)),
            "files": files,
            # A file of settings cannot hold Python objects, and so cannot repeat such a comparison.
            "python_objects": len(self.names) < len(self.strategies)
            or isinstance(self.schema, Schema),
        }
        del settings["datasets"], settings["clients"]
        for name in ("grid", "schema", "python_objects"):
            if not settings[name]:
                del settings[name]
        # Through JSON, so that they can be compared with settings that were read from a file.
        plain: dict[str, Any] = json.loads(json.dumps(settings, default=dict))
        return plain

    def _trial(
        self,
        strategy: str | ProtocolStrategy,
        choice: RowsChoice,
        n_clusters: int | None,
        epsilon: float | None,
        point: Mapping[str, Any],
    ) -> Trial:
        """Return the trial of a strategy.

        If the strategy is a name, it gets the comparison's budget, and each of the comparison's
        parameters that it accepts. A strategy object keeps its own budget and parameters.
        """
        if isinstance(strategy, str):
            name, instance, entry = strategy, None, find(strategy)
            values = {
                **_own(strategy, self.parameters),
                **point,
                "epsilon": epsilon,
                "delta": self.delta,
            }
            parameters = {
                key: values[key] for key in values if key in accepted_parameters(strategy)
            }
            variant = ", ".join(f"{key}={json.dumps(value)}" for key, value in point.items())
        else:
            name, instance, n_clusters = strategy.name, strategy, strategy.most_clusters
            entries = [
                entry for entry in vars(type(instance)).get("entries", ()) if entry.name == name
            ]
            entry = replace(entries[0] if entries else Entry(name, ""), strategy=type(instance))
            parameters = {"delta": instance.delta} if hasattr(instance, "delta") else {}
            variant = _described(instance, without=("n_clusters", "epsilon", "delta"))
        return Trial(
            key=self._key(name, choice, n_clusters, epsilon, variant or None),
            strategy=name,
            entry=entry,
            data=_data_name(choice.source),
            choice=choice,
            n_clusters=n_clusters,
            epsilon=epsilon,
            seed=choice.seed,
            parameters=parameters,
            variant=variant or None,
            engine=self.engine,
            needs_server_rows=needs_server_rows(self.names, self.n_server_rows),
            instance=instance,
        )

    def _key(
        self,
        strategy: str,
        choice: RowsChoice,
        n_clusters: int | None,
        epsilon: float | None,
        variant: str | None,
    ) -> str:
        """Return a trial's key: its settings joined by "__", safe as the name of a folder.

        Parts that are too long are cut, and end in a hash.
        """
        has_several = len(self._numbers_of_clusters) > 1 or len(self.names) < len(self.strategies)
        # the data set may have labelings with several numbers of classes
        has_several |= (choice.dataset or "").startswith(SUITE)
        several = [f"clusters-{n_clusters}"] if has_several else []
        shown = "none" if epsilon is None else repr(float(epsilon)).removesuffix(".0")
        data = _data_name(choice.source)
        parts = (
            strategy,
            data,
            choice.partition_name,
            f"epsilon-{shown}",
            *several,
            *filter(None, [variant]),
        )
        short = [
            part if len(part) <= _LONGEST_PART else f"{part[:40]}-{_hash(part.encode())}"
            for part in parts
        ]
        return "__".join(
            re.sub(r"[^A-Za-z0-9+._-]", "-", part) for part in (*short, f"seed-{choice.seed}")
        )

    @cached_property
    def public_rows(self) -> Any:
        """The rows of ``server_data``."""
        assert self.server_data is not None
        raw = self.schema is not None
        return read_table(
            self.server_data, label_column=self.label_column, columns=self.columns, raw=raw
        ).rows

    @cached_property
    def _schema(self) -> Schema | None:
        """The schema of the rows, read from its file; None if there is none."""
        return None if self.schema is None else Schema.of(self.schema)

    @property
    def _numbers_of_clusters(self) -> tuple[int | None, ...]:
        """The numbers of clusters; None stands for the number of classes of each data set."""
        return self.n_clusters if isinstance(self.n_clusters, tuple) else (self.n_clusters,)

    @property
    def _asks_for_classes(self) -> bool:
        """Whether the classes of a data set must be counted, because no number of clusters was given."""
        return None in self._numbers_of_clusters and bool(self.names)

    def _grid_of(self, strategy: str | ProtocolStrategy) -> list[dict[str, Any]]:
        """Return the combinations of grid parameters with which a strategy runs.

        Only the parameters of the grid that the strategy accepts are combined. A strategy that
        accepts none of them runs once, with the single combination {}.
        """
        if not isinstance(strategy, str):
            return [{}]
        grid = {
            name: values
            for name, values in _own(strategy, self.grid).items()
            if name in accepted_parameters(strategy)
        }
        return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]

    @property
    def _sources(self) -> tuple[Source, ...]:
        """Where rows come from: the data sets, the user's file, and the rows of a Python caller."""
        return (
            *self.datasets,
            *(source for source in (self.data, self.clients) if source is not None),
        )

    @property
    def _file_says_whose(self) -> str | None:
        """How the user's file assigns rows to clients, in words for a message; None if it does not assign them."""
        if self.client_column is not None:
            return f"the column '{self.client_column}'"
        return (
            "a folder with a file for each client"
            if self.data is not None and self.data.is_dir()
            else None
        )

    def _partitions_of(self, source: Source) -> tuple[str, ...]:
        """Return the partitions of a source; rows whose clients are already known have only one."""
        names_clients = isinstance(source, FederatedRows) or (
            isinstance(source, Path) and self._file_says_whose
        )
        return ("iid",) if names_clients else self.partitions or ("iid",)

    def _choice(self, source: Source, partition: str, seed: int) -> RowsChoice:
        """Return the rows of a trial: a source, a partition and a seed, with the columns that the user named."""
        is_file, is_dataset = isinstance(source, Path), isinstance(source, str)
        selects = is_file or self.server_data is not None
        return RowsChoice(
            source,
            label_column=self.label_column if selects else None,
            client_column=self.client_column if is_file else None,
            subject_column=self.subject_column if is_file else None,
            columns=self.columns if selects else None,
            partition=partition,
            n_clients=self.n_clients,
            server_data=self.server_data,
            n_server_rows=self.n_server_rows,
            seed=seed,
            schema=None if is_dataset else self._schema,
        )

    def _epsilons_of(self, strategy: str | ProtocolStrategy) -> tuple[float | None, ...]:
        """Return the budgets of a strategy: its own if it is an object, (None,) if it takes none."""
        if not isinstance(strategy, str):
            return (strategy.epsilon,)
        if "epsilon" not in accepted_parameters(strategy):
            return (None,)
        if self.epsilons:
            return self.epsilons
        default = inspect.signature(find(strategy).strategy).parameters["epsilon"].default
        return (None if default is inspect.Parameter.empty else default,)

    def _numbers_of_classes(self, source: Source) -> tuple[int, ...]:
        """Return how many classes each labeling of a source has; () if the package of a data set is missing."""
        try:
            return self._choice(source, "iid", self.seeds[0]).numbers_of_classes()
        except ValueError:
            if not isinstance(source, str):
                raise
            return ()  # a package is missing: the trials of this data set fail and say so

    def _check_partitions(self) -> None:
        """Raise a ValueError for an unknown partition, or for any partition if the rows already have clients."""
        for partition in self.partitions:
            parsed_scheme(partition)
        says = self._file_says_whose
        if (
            says
            and not self.datasets
            and any(partition != "column" for partition in self.partitions)
        ):
            raise ValueError(
                f"{says} says whose rows they are, so there is nothing to partition; leave out one."
            )
        for name in ("client_column", "subject_column"):
            if getattr(self, name) is not None and self.data is None:
                raise ValueError(
                    f"{name} is a column of a file; give the file as data, or leave it out."
                )

    def _check_parameters(self) -> None:
        """Raise a ValueError for a parameter that no strategy accepts, or that is a setting of the comparison."""
        accepted = {name: accepted_parameters(name) for name in self.names}
        known = dict.fromkeys(sorted(set().union(*accepted.values())))
        for setting in (*self.parameters, *self.grid):
            strategy, dot, name = setting.rpartition(".")
            if name in _SET_BY:
                raise ValueError(
                    f"{_SET_BY[name]} is a setting of the comparison; give {name} there, not as a parameter."
                )
            if dot:
                accepted_names = look_up(strategy, accepted, "strategy in this comparison called")
                look_up(name, dict.fromkeys(accepted_names), f"parameter of {strategy} called")
            else:
                look_up(name, known, f"parameter of {', '.join(self.names)} called")

    def _check_files(self) -> None:
        """Read the user's files once: every trial needs them, so an error in them must be raised now."""
        for source in self._sources:
            if (
                not isinstance(source, str)
                and self._asks_for_classes
                and not self._numbers_of_classes(source)
            ):
                where = _data_name(source)
                raise ValueError(
                    f"{where} has no known classes to count; give n_clusters, or label_column."
                )
        if isinstance(self.data, Path) and not self._asks_for_classes:
            self._choice(self.data, "iid", self.seeds[0]).read()
        if self.server_data is not None:
            _ = self.public_rows


def why_impossible(trial: Trial, comparison: Comparison) -> str | None:
    """Return why a trial cannot run, as far as is known without its rows; None if no reason is known.

    The strategy is constructed with made-up server rows of the right size. Its own checks then say
    what is missing: a parameter, a package, or a unit of protection that the data do not have.
    """
    if trial.n_clusters is None:
        return None
    public = None
    if needs_server_rows((trial.strategy,)) and trial.instance is None:
        # Only the number of rows that will be drawn is known here.
        n_rows = comparison.n_server_rows or SERVER_ROWS_PER_CLUSTER * trial.n_clusters
        public = np.arange(2.0 * n_rows).reshape(n_rows, 2)
        if comparison.server_data is not None:
            public = comparison.public_rows
    try:
        strategy = trial.strategy_for(trial.n_clusters, public)
    except (ValueError, ImportError) as error:
        return " ".join(str(error).split())
    source = trial.choice.source
    # Whether a data set says whose rows they are is known once it is read.
    if isinstance(source, str):
        return None
    column = trial.choice.subject_column if isinstance(source, Path) else source.subjects
    return why_not_its_unit(strategy, [trial.data], [trial.data] if column is None else []) or None


def rows_fingerprint(rows: FederatedRows) -> str:
    """Return a SHA-256 hash of the clients' names, rows, labels and subjects, in their order.

    Equal fingerprints mean that two runs had the same rows on the same clients.
    """
    import pandas as pd

    digest = hashlib.sha256()
    nothing: Sequence[Any] = [None] * len(rows.names)
    all_labels, all_subjects = rows.labels or nothing, rows.subjects or nothing
    for name, part, labels, subjects in zip(
        rows.names, rows.clients, all_labels, all_subjects, strict=True
    ):
        plain = pd.util.hash_pandas_object(part) if isinstance(part, pd.DataFrame) else part
        plain = part.fingerprint() if isinstance(part, Batches) else plain
        digest.update(
            f"{name} {part.shape} {labels is None} ".encode()
            + np.ascontiguousarray(plain).tobytes()
        )
        digest.update(b"" if labels is None else str(np.asarray(labels).tolist()).encode())
        digest.update(b"" if subjects is None else subjects.fingerprint.tobytes())
    return digest.hexdigest()


def _own(strategy: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters for all strategies, updated with those that are prefixed with this strategy's name."""
    prefix = f"{strategy}."
    return {name: value for name, value in parameters.items() if "." not in name} | {
        name[len(prefix) :]: value for name, value in parameters.items() if name.startswith(prefix)
    }


def _described(strategy: ProtocolStrategy, without: tuple[str, ...] = ()) -> str:
    """Return, as text, the parameters of a strategy object that differ from their defaults.

    Arrays and models are shown as a hash, which is enough to tell two objects apart.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(type(strategy)).parameters.items()
    }
    lines = []
    for name, value in strategy.get_params().items():
        plain = isinstance(value, (str, int, float, tuple, dict, type(None)))
        text = (
            json.dumps(value, default=str)
            if plain
            else f"<{type(value).__name__} {_hash(pickle.dumps(value))}>"
        )
        if name not in without and not (plain and value == defaults[name]):
            lines.append(f"{name}={text}")
    inner = ", ".join(lines)
    return inner if without else f"{strategy.name} ({inner})"


def _hash(content: bytes) -> str:
    """Return the first 8 hexadecimal digits of a SHA-256 hash."""
    return hashlib.sha256(content).hexdigest()[:8]


def _data_name(source: Any) -> str:
    """Return the name of a source in tables: of a data set, of a file, or "clients" for rows from Python."""
    return (
        source
        if isinstance(source, str)
        else source.name
        if isinstance(source, Path)
        else "clients"
    )


def _fingerprint(path: Path) -> str:
    """Return a hash of a file's content, or of the names and contents of a folder's files."""
    if path.is_dir():
        files = sorted(
            entry for entry in path.iterdir() if not entry.is_dir() and entry.name[0] not in "._"
        )
        listing = "\n".join(f"{file.name} {_fingerprint(file)}" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    with reading(path, "data", "give another file") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Settings as a person writes them: options of the command, a TOML file, Python.


def comparison_from(settings: Mapping[str, Any]) -> Comparison:
    """Return a comparison from settings as a person typed them.

    ``set`` stands for ``parameters``. Lists may be texts with commas, ``strategies`` may be "all",
    ``seeds`` may be their number, and a budget may be "none". Raises a ValueError for an unknown
    setting, with the nearest known name.
    """
    chosen_settings = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        read = look_up(name, SETTINGS, "setting of a comparison called")
        chosen_settings["parameters" if name == "set" else name] = read(name, value)
    if "strategies" not in chosen_settings:
        raise ValueError("strategies is missing; name some, or all.")
    return Comparison(**chosen_settings)


def settings_from_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; paths in it are relative to its folder."""
    settings = {
        key.replace("-", "_"): value
        for key, value in read_toml(path, "correct the settings").items()
    }
    for key in settings:
        look_up(key, SETTINGS, f"setting of a comparison, which {path.name} has, called")
    for key in ("data", "server_data", "schema"):
        if isinstance(settings.get(key), str):
            settings[key] = str(path.parent / settings[key])
    return settings


def _text(key: str, value: Any) -> str:
    """Return a setting that must be a text that is not empty, without surrounding spaces."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {value!r}; it must be a text.")
    return value.strip()


def _path(key: str, value: Any) -> Path:
    """Return a setting as a path."""
    return value if isinstance(value, Path) else Path(_text(key, value))


def _schema(key: str, value: Any) -> Path | Schema:
    """Return a setting as the path of a schema file; the text of a schema becomes a Schema."""
    is_file = isinstance(value, Path) or (isinstance(value, str) and "\n" not in value)
    return _path(key, value) if is_file else Schema.of(value)


def _list(key: str, value: Any) -> list[Any]:
    """Return a setting as a list of at least one value; a text is split at its commas."""
    values = value.split(",") if isinstance(value, str) else value
    values = (
        [entry.strip() if isinstance(entry, str) else entry for entry in values]
        if _is_list(values)
        else [values]
    )
    if not (values := [entry for entry in values if not (isinstance(entry, str) and entry == "")]):
        raise ValueError(f"{key} is empty; give at least one, or leave it out.")
    return values


def _is_list(value: Any) -> bool:
    """Tell whether a setting was given as a list or tuple."""
    return isinstance(value, (list, tuple))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """Return a setting as texts, each once."""
    return tuple(dict.fromkeys(_text(key, entry) for entry in _list(key, value)))


def _datasets(key: str, value: Any) -> tuple[str, ...]:
    """Return the names of data sets; a battery of the suite stands for its sets."""
    names = _texts(key, value)
    groups = [sets_named(name) if name.startswith(SUITE) else [name] for name in names]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(groups)))


def _strategies(key: str, value: Any) -> tuple[Any, ...]:
    """Return strategies by name or as objects, each once; "all" stands for every installed strategy."""
    listed_strategies = [
        strategy if isinstance(strategy, ProtocolStrategy) else _text(key, strategy)
        for strategy in _list(key, value)
    ]
    return (
        tuple(strategies())
        if listed_strategies == ["all"]
        else tuple(dict.fromkeys(listed_strategies))
    )


def _integers(key: str, value: Any) -> tuple[int, ...]:
    """Return a setting as whole numbers, each once."""
    try:
        return tuple(
            dict.fromkeys(
                int(number) if isinstance(number, str) else number for number in _list(key, value)
            )
        )
    except ValueError:
        raise ValueError(
            f"{key} is '{value}'; give a whole number, or several with commas."
        ) from None


def _seeds(key: str, value: Any) -> tuple[int, ...]:
    """Return the listed seeds; a single number n stands for the seeds 0 to n - 1."""
    seeds = _integers(key, value)
    is_count = not _is_list(value) and "," not in str(value)
    return tuple(range(check_integer(key, seeds[0], at_least=1))) if is_count else seeds


def _numbers(key: str, value: Any) -> int | tuple[int, ...]:
    """Return a single number as an integer, and several numbers as a tuple."""
    numbers = _integers(key, value)
    return numbers[0] if len(numbers) == 1 else numbers


def _parameters(key: str, value: Any) -> dict[str, Any]:
    """Return a table of parameters with flat names.

    A table inside it that is named after a strategy holds that strategy's parameters:
    ``[set.fedsc-sums] n_atoms = 3`` becomes ``fedsc-sums.n_atoms``. TOML has no null, so the text
    "none" stands for None.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}; it must be a table of parameters and their values.")
    flat: dict[str, Any] = {}
    for name, content in value.items():
        # [set.fedsc-sums]
        if isinstance(content, Mapping) and (name in strategies() or ":" in name):
            flat |= {f"{name}.{inner}": nested for inner, nested in content.items()}
        else:
            flat[name] = content
    parameters = {}
    for name, content in flat.items():
        strategy, dot, parameter = name.rpartition(".")
        # TOML has no null, and its arrays are lists.
        plain = (
            tuple(content)
            if isinstance(content, list)
            else None
            if isinstance(content, str) and content == "none"
            else content
        )
        parameters[strategy + dot + parameter.replace("-", "_")] = plain
    return parameters


#: The settings that a user may give, and how each is read.
SETTINGS: Mapping[str, Callable[[str, Any], Any]] = {
    "strategies": _strategies,
    "datasets": _datasets,
    "data": _path,
    "client_column": _text,
    "label_column": _text,
    "subject_column": _text,
    "columns": _texts,
    "schema": _schema,
    "server_data": _path,
    "partitions": _texts,
    "epsilons": lambda key, value: tuple(dict.fromkeys(map(parse_epsilon, _list(key, value)))),
    "seeds": _seeds,
    "engine": _text,
    "set": _parameters,
    "grid": lambda key, value: {
        name: tuple(_list(name, values)) for name, values in _parameters(key, value).items()
    },
    "n_clusters": _numbers,
    # Comparison checks these itself.
    **dict.fromkeys(("clients", "n_server_rows", "n_clients", "delta"), lambda _, value: value),
}

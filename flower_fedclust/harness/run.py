"""Run strategies, print their results and save them, for the commands, the apps and ``fc.run_app``.

A run may take place in this process, on Ray, or through a SuperLink, but it always ends alike. The
result is saved into a folder that nobody else writes, with a page and pictures. A table, the
privacy report and the doubts are printed. If a run ends early, the privacy report of what had
already left the clients is saved.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn, Self

from flwr.server import ServerConfig
from flwr.server.compat import start_grid
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table as RichTable

from flower_fedclust.engine import ClientData, Journal, MessageStrategy, ProtocolStrategy
from flower_fedclust.engine.disk import make_private, open_private, replace_private
from flower_fedclust.harness.results import bytes_text
from flower_fedclust.inputs import RowsChoice, Strategy, read_inputs
from flower_fedclust.outside import read_json
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.results.doubts import advice_on_number
from flower_fedclust.results.files import REPORT_FILES, empty_folder, free_beside, write_report
from flower_fedclust.results.pictures import groupings_of
from flower_fedclust.results.result import Result, result_of
from flower_fedclust.results.survival import survival_figure
from flower_fedclust.tables.table_one import WIDEST_TABLE

#: Where run_app saves results by default: a SuperLink's working directory is hard to find.
RESULTS = Path.home() / "fedclust-results"
#: How long a round may take by default, in seconds; the same as in Flower's Message API.
ROUND_TIMEOUT = 3600.0
#: A file beside a run's journals, which says where its results are.
RESULTS_OF_JOURNAL = "results-are-in"
#: The page of a result, to hand to somebody.
PAGE = "clusters.html"
#: Files in a run's folder: the first shows which run has claimed the folder, the second says why a run ended early.
_MARK, _FAILURE = ".run", "failure.txt"


def run_app(
    strategy: Strategy | MessageStrategy,
    grid: Grid,
    *,
    out: str | Path | None = None,
    round_timeout: float | None = ROUND_TIMEOUT,
    journal: str | Path | None = None,
    **parameters: Any,
) -> Result:
    """Run a strategy over the nodes of a ServerApp; print its result and save it.

    A run begins when no further node has appeared for a second, unless the strategy's
    ``expected_clients`` says how many there will be.

    Parameters
    ----------
    strategy : ProtocolStrategy, class or str; or MessageStrategy
        A MessageStrategy runs by Flower's Message API, any other strategy by its Strategy API. The
        result is the same.
    grid : Grid
        What Flower gives to the ServerApp.
    out : str or Path, optional
        A new folder for the result; "" or None makes one in ``~/fedclust-results`` that is named
        after the time.
    round_timeout : float, default=3600
        How long a round may take, in seconds; clients that have not answered by then are left out
        of it. None waits as long as Flower keeps a message.
    journal : str or Path, optional
        A folder for what the server receives. If a run was interrupted, the same call continues it.
    **parameters
        Parameters of a strategy that is given by name or as a class.

    Returns
    -------
    Result

    Raises
    ------
    FileExistsError
        If the folder already holds something; before anything runs.
    ProtocolError
        If too few clients were left. What had left the clients by then is saved as a privacy
        report.

    Examples
    --------
    ::

        @app.main()
        def main(grid, context):
            strategy = fc.PrivateKMeans(n_clusters=8, epsilon=1.0, max_norm=10.0)
            result = fc.run_app(strategy, grid)
            print(result.model.cluster_centers_)
    """
    inner: Any = strategy.strategy if isinstance(strategy, MessageStrategy) else strategy
    protocol: Any = read_inputs(inner, RowsChoice(), parameters).strategy
    if protocol.expected_clients is None:
        protocol.expected_clients = (
            settled_number_of_nodes(grid, longest=protocol.wait_for_clients) or None
        )

    def run(protocol: ProtocolStrategy) -> Result:
        if not isinstance(strategy, MessageStrategy):
            return run_on_grid(protocol, grid, round_timeout)
        start = time.perf_counter()
        strategy.start(grid, timeout=math.inf if round_timeout is None else round_timeout)
        return result_of(protocol, {}, time.perf_counter() - start)

    results, path, failed = run_and_save([protocol], run, out, parent=RESULTS, journal=journal)
    n_clients = max((len(result.names) for result in results), default=0)
    show_all(
        results, f"{n_clients} clients, {protocol.n_clusters} clusters", path, Console(), failed
    )
    return results[0]


def run_on_grid(
    strategy: ProtocolStrategy,
    grid: Grid,
    timeout: float | None,
    clients: Mapping[str, ClientData] | None = None,
) -> Result:
    """Run a strategy by Flower's Strategy API, and return its result.

    ``clients`` are the rows of simulated clients, by name; labels and metrics are computed from
    them. Real clients keep their rows, so the result then has neither.
    """
    start = time.perf_counter()
    start_grid(
        grid=grid,
        strategy=strategy,
        config=ServerConfig(num_rounds=strategy.num_rounds, round_timeout=timeout),
    )
    return result_of(strategy, dict(clients or {}), time.perf_counter() - start)


def settled_number_of_nodes(grid: Grid, *, quiet: float = 1.0, longest: float = 60.0) -> int:
    """Wait until no new node has appeared for ``quiet`` seconds, and return how many nodes there are.

    The nodes of a simulation appear one after the other while the server begins. ``longest`` limits
    the wait, in seconds.
    """
    start = since = time.monotonic()
    n_nodes = 0
    while (
        time.monotonic() - since < (quiet if n_nodes else longest)
        and time.monotonic() - start < longest + quiet
    ):
        former, n_nodes = n_nodes, len(list(grid.get_node_ids()))
        if n_nodes != former:
            since = time.monotonic()
        time.sleep(0.05)
    return n_nodes


# Saving.


def run_and_save(
    strategies: Sequence[ProtocolStrategy],
    run: Callable[[ProtocolStrategy], Result],
    folder: str | Path | None,
    *,
    parent: Path = Path("results"),
    labels: Sequence[ArrayLike] | None = None,
    journal: str | Path | None = None,
    subject: str = "",
) -> tuple[list[Result], Path, dict[str, Exception]]:
    """Run strategies one after the other, and save each result at once; if one fails, the others still run.

    Each result has a folder of its own, with a page about ``subject`` and pictures; all metrics are
    in one file. If a run ends early, the privacy report of what had left the clients by then is
    saved. With a journal, the same call continues an interrupted run in its former folder. Files
    that this run has not written are never removed: if the folder holds any, the results go into a
    new folder beside it.

    Returns
    -------
    results : list of Result
    folder : Path
        The absolute path of the folder.
    failed : dict of str to Exception
        The errors of the strategies that have no result, by name.
    """
    out = NewFolder(folder or _folder_of_now(Path(parent)), journal)
    results: list[Result] = []
    failed: dict[str, Exception] = {}
    with out:
        for strategy in strategies:
            kept = None if journal is None else Journal(Path(journal) / strategy.name)
            if kept is not None:
                strategy.journal = kept
            try:
                with kept or nullcontext():
                    results.append(run(strategy))
                _save(results, out, labels, subject)
            except BaseException as error:
                _save_report(out, strategy.name, error)
                if not isinstance(error, Exception):
                    raise
                failed[strategy.name] = error
    return results, out.path, failed


class NewFolder:
    """The folder of a run's results, which nobody else writes.

    The folder is claimed when there is something to save. If another run has claimed it by then, or
    somebody has put files into it, the results go into a folder beside it, under another name, and
    a warning says so.

    A run with a journal may be interrupted and continued. To find its folder again, the claim puts
    the same random word into the folder and into the journal.
    """

    def __init__(self, folder: str | Path, journal: str | Path | None = None) -> None:
        path = Path(folder).absolute()
        self.path, self._is_ours = path, False
        self._note = None if journal is None else Path(journal).absolute() / RESULTS_OF_JOURNAL
        known = (
            {}
            if self._note is None or not self._note.exists()
            else read_json(self._note, "choose another journal")
        )
        if known.get("wanted") == str(path) and "claimed" in known:
            claimed = Path(str(known["claimed"]))
            mark = claimed / _MARK
            if mark.is_file() and mark.read_text(encoding="utf-8") == known.get("mark"):
                self.path, self._is_ours = claimed, True
        if not self._is_ours:
            empty_folder(path)
        _check_writable(self.path, "results")
        if self._note is not None:
            _check_writable(self._note.parent, "journal")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the mark, unless a journal needs it.

        The saved files now show other runs that the folder is taken.
        """
        if self._is_ours and (
            self._note is None or [entry.name for entry in self.path.iterdir()] == [_MARK]
        ):
            (self.path / _MARK).unlink(missing_ok=True)

    def claim(self) -> Path:
        """Make the folder for this run alone, if that has not been done yet, and return it."""
        if self._is_ours:
            return self.path
        wanted, mark = self.path, secrets.token_hex(16)
        while not _made_for_one(self.path, mark):
            self.path = free_beside(wanted)
        self._is_ours = True
        if self._note is not None:
            known = {"wanted": str(wanted), "claimed": str(self.path), "mark": mark}
            replace_private(
                make_private(self._note.parent) / self._note.name, json.dumps(known).encode()
            )
        if self.path != wanted:
            warnings.warn(
                f"{wanted} holds something that this run has not written; its results are in {self.path}.",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.path


def _made_for_one(path: Path, mark: str) -> bool:
    """Put a mark into a new or empty folder. Return False if it is not empty, or if another run was faster."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        path.mkdir(mode=0o700, exist_ok=True)  # labels are confidential
        # only one of two processes may create it
        with open_private(path / _MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            file.write(mark.encode())
    except FileExistsError:
        return False
    if all(entry.name == _MARK for entry in path.iterdir()):
        return True
    (path / _MARK).unlink()
    return False


def _check_writable(path: Path, label: str) -> None:
    """Raise a PermissionError now if a folder cannot be made or written, and not after hours of rounds."""
    there = next(
        folder for folder in (path, *path.parents) if folder.exists() or folder.is_symlink()
    )
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise PermissionError(f"{path} cannot be written; name another folder for the {label}.")


def _save(
    results: Sequence[Result], out: NewFolder, labels: Sequence[ArrayLike] | None, subject: str
) -> None:
    """Save the last result with its page and pictures, and the metrics of all results so far.

    If the disk is full, the result is saved without labels; if even that fails, the error says what
    was lost. A run that has spent its epsilon must not end without a trace.
    """
    result, path = results[-1], out.claim()
    folder = _folder_for(path / result.strategy)
    try:
        if not (folder / "result.json").exists():  # this run saved it before it was interrupted
            result.save(folder)
    except OSError as error:
        _save_small(result, folder, error)
    try:
        result.page(folder / PAGE, subject=subject)
        if find_spec("matplotlib") is not None:
            result.plot(folder / "clusters.png")
            if result.survival is not None:
                survival_figure(result.survival, folder / "survival.png")
        if result.embedding:
            _draw(result, folder, labels)
        metrics = json.dumps([result.summary() for result in results], indent=2)
        (path / "metrics.json").write_text(f"{metrics}\n", encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"the result is saved in {folder}, but page, pictures or metrics.json are not: {error}."
        ) from error


def _folder_for(folder: Path) -> Path:
    """Return the folder for a strategy's result; the report of an attempt that ended early is removed from it.

    If the folder holds anything else that is not a result, a free folder beside it is returned.
    """
    if not folder.exists():
        return folder
    if (folder / _FAILURE).exists():
        for name in (_FAILURE, *REPORT_FILES):
            (folder / name).unlink(missing_ok=True)
    is_empty = not any(folder.iterdir())
    if is_empty or (folder / "result.json").exists():
        return folder
    return free_beside(folder)


def _save_small(result: Result, folder: Path, error: OSError) -> NoReturn:
    """Save a result without its labels if there is no room for all of it, and raise an OSError."""
    try:
        replace(result, labels_of_clients=[], embedding=[], row_ids=[], server_row_ids=None).save(
            folder
        )
    except OSError:
        raise OSError(
            f"the run has ended, and nothing of its result can be saved in {folder}: {error}; mend this and run "
            "again, which spends its epsilon once more unless there is a journal."
        ) from error
    raise OSError(
        f"the result is saved in {folder} without the labels of its rows: {error}; 'fedclust predict' finds them "
        "with the saved model, once there is room."
    ) from error


def _save_report(out: NewFolder, name: str, error: BaseException) -> None:
    """Save the privacy report of a run that ended early, unless nothing had left a client.

    A report that cannot be saved is printed, because the run may have ended for the same reason: a
    full disk.
    """
    report: PrivacyReport | None = getattr(error, "privacy_report", None)
    if report is None:
        return
    try:
        folder = _folder_for(out.claim() / name)
        folder.mkdir(exist_ok=True)
        (folder / _FAILURE).write_text(f"{str(error) or type(error).__name__}\n", encoding="utf-8")
        write_report(report, folder)
    except OSError as also:
        print(
            f"The privacy report of what has left the clients cannot be saved ({also}). It is:\n\n{report}"
        )


def _folder_of_now(parent: Path) -> Path:
    """Return a new folder that is named after the current time."""
    named = parent / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    numbered = (named.with_name(f"{named.name}_{number}") for number in count(2))
    return next(path for path in chain([named], numbered) if not path.exists())


def _draw(result: Result, folder: Path, labels: Sequence[ArrayLike] | None) -> None:
    """Draw a map as a PNG and as an interactive page, colored by cluster, by client and by class."""
    from flower_fedclust.harness.pictures import map_figure, map_page

    title = f"{result.strategy}, {len(result.names)} clients"
    columns = {"cluster": result.labels_of_clients} if result.labels_of_clients else {}
    groupings = groupings_of(result.embedding, result.names, labels, columns)
    map_figure(
        result.embedding,
        sorted(groupings, key=lambda grouping: grouping.name != "cluster"),
        folder / "map.png",
        title=title,
    )
    map_page(result.embedding, groupings, folder / "map.html", title=title)


# Printing.


def show_all(
    results: Sequence[Result],
    title: str,
    path: Path,
    console: Console,
    failed: Mapping[str, Exception],
) -> None:
    """Print the table, what protects each strategy, and where the results are saved; then raise the first failure.

    The privacy report of the first strategy is printed in full. Each other strategy gets one line,
    because its report is in the folder.
    """
    if not console.is_terminal:
        console.width = 140  # A log has no width; rich would assume 80 columns and cut the table.
    if results:
        console.print(results_table(results, title))
    lines = [f"\n{result.privacy}" for result in results[:1]] + (
        ["\nThe others:"] if len(results) > 1 else []
    )
    for result in results[1:]:
        unprotected = "; ".join(
            dict.fromkeys(message.content for message in result.privacy.unprotected)
        )
        lines.append(f"  {result.strategy}: {result.privacy.guarantee()}")
        lines[-1] += f" Unprotected: {unprotected}." if unprotected else ""
    for lines_of in (number_lines, partial(cluster_lines, console=console), doubt_lines):
        lines += [f"\n{said}" for said in map(lines_of, results) if said]
    lines += [
        f"{result.strategy}: client {failure.client} failed in round {failure.round}: {failure.reason}"
        for result in results
        for failure in result.failures
    ]
    if results or len(failed) > 1:  # a single strategy's error is raised below
        lines += [f"{name} failed: {error}" for name, error in failed.items()]
    if path.exists() and any(path.iterdir()):
        lines.append(f"\nSaved in {path}")
        files = (PAGE, "clusters.png", "survival.png", "map.png", "privacy.txt")
        shown = [Path(result.strategy, name) for result in results for name in files]
        for file in shown:
            if (path / file).exists():
                lines.append(
                    f"  {file}{', one page to hand to somebody' if file.name == PAGE else ''}"
                )
    print_lines(console, *lines)
    for error in failed.values():
        raise error


def results_table(results: Sequence[Result], title: str) -> RichTable:
    """Return a table for the terminal with a row per strategy: metrics, epsilon, traffic and time.

    A star beside an epsilon means that its guarantee does not cover the whole run.
    """
    table = RichTable(title=title, title_justify="left")
    table.add_column("strategy", no_wrap=True)
    metrics = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI", "cost_per_row": "cost per row"}
    known = [name for name in metrics if any(name in result.metrics for result in results)]
    for heading in (
        *(metrics[name] for name in known),
        "epsilon",
        "rounds",
        "up",
        "down",
        "seconds",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        values = (result.metrics.get(name) for name in known)
        star = "" if result.privacy.covers_everything else "*"
        table.add_row(
            result.strategy,
            *("" if value is None else f"{value:.4f}" for value in values),
            f"{result.privacy.epsilon:.3g}{star}" if result.privacy.releases else "none",
            str(result.summary()["rounds"]),
            bytes_text(result.bytes_up),
            bytes_text(result.bytes_down),
            f"{result.seconds:.2f}",
        )
    return table


def number_lines(result: Result) -> str:
    """Return the sentence about the number of clusters; "" if the run did not choose it."""
    if result.number is None:
        return ""
    return f"{result.strategy}: {advice_on_number(result.number, result.doubts)}"


def cluster_lines(result: Result, console: Console) -> str:
    """Return the description of the clusters, Table One unless it is too wide, and the survival of the rows."""
    lines = [] if result.clusters is None else [str(result.clusters)]
    if result.clusters is not None:
        table = result.clusters.table_one()
        is_narrow = result.clusters.n_clusters <= WIDEST_TABLE
        fits = is_narrow and (not console.is_terminal or table.width <= console.width)
        lines.append(f"\n{table}" if fits else "\nTable One is in table-one.md.")
    if result.survival is not None:
        lines.append(str(result.survival) if not lines else f"\n{result.survival}")
    return "\n".join([f"{result.strategy}:", *lines]) if lines else ""


def doubt_lines(result: Result) -> str:
    """Return the doubts about a result, a line each; "" if there are none."""
    if not result.doubts:
        return ""
    return "\n".join(
        [f"Doubts about {result.strategy}:", *(f"  {doubt}" for doubt in result.doubts)]
    )


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are, without markup or wrapping."""
    console.print("\n".join(lines), markup=False, emoji=False, highlight=False, soft_wrap=True)

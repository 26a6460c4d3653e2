"""Run the trials of a comparison in this process, in processes of their own, or as tasks of Ray.

Each trial writes its own folder when it ends, whatever the outcome: a result, or the reason why
there is none. So a comparison can be stopped at any time, and the next call runs only what is
missing.

By default each trial has a process of its own. Its peak memory is then its own, and a run that is
killed (for lack of memory, for example) takes no other run with it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flower_fedclust import registry
from flower_fedclust.data import Batches, FederatedRows
from flower_fedclust.engine import ProtocolError
from flower_fedclust.engine.cluster import connected, sent_by_value
from flower_fedclust.engine.progress import bar, is_shown
from flower_fedclust.exact.device import on_device, open_device
from flower_fedclust.harness.comparison import Comparison, Trial, rows_fingerprint, why_impossible
from flower_fedclust.harness.folder import (
    COLUMNS,
    LEFT_OUT,
    ComparisonFolder,
    as_json,
    installed_versions,
    is_disk_full,
)
from flower_fedclust.harness.results import by_remedy, duration_text
from flower_fedclust.inputs import ReadRows
from flower_fedclust.models import TableModel
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.metrics import best_agreement
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.results.files import as_cell
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import simulate

# A process may be killed by chance, so a trial gets a second attempt.
_ATTEMPTS = 2
# Modules that are imported once, in the process from which all others are forked, so that the seconds of a trial do
# not include their import.
_PRELOADED = [
    __name__,
    "sklearn.cluster",
    "sklearn.datasets",
    "scipy.optimize",
    "sklearn.metrics",
    "sklearn.neighbors",
    "dp_accounting.pld",
    "dp_accounting.rdp",
]
# Exit code of a process that imported the user's script and would have started the comparison again.
_UNGUARDED = 113
#: The seconds after which the table of all runs is written again, and the seconds after which the next line about
#: progress is printed.
SECONDS_BETWEEN_TABLES, SECONDS_BETWEEN_LINES = 10.0, 20.0
# How often Ray restarts a task whose machine or process was lost.
_RETRIES = 3
# How many tasks Ray is given beyond the number that can run at once, so that no core waits for its next task.
_AHEAD = 2

#: Name of a score of a map -> its column in the table.
_MAP_SCORES = {
    "ca_10": "map_ca_10",
    "npa_10": "map_npa_10",
    "nmi": "map_nmi",
    "trustworthiness": "map_trustworthiness",
}


def _check_where(
    comparison: Comparison, jobs: int | None, on: str | None, device: str | None
) -> None:
    """Raise a ValueError if the places to run contradict each other: processes, Ray, or a graphics card."""
    if jobs is not None:
        check_integer("jobs", jobs, at_least=1)
    if on is not None and comparison.engine != "inline":
        engine = comparison.engine
        raise ValueError(
            f"on='...' runs comparisons on Ray, and engine='{engine}' runs clients on Ray; leave out one."
        )
    if device not in (None, "cpu") and (
        jobs != 1 or on is not None or comparison.engine != "inline"
    ):
        raise ValueError(
            f'device is "{device}", and one process owns a card; set jobs to 1, and leave out on and engine.'
        )


def run_comparison(
    comparison: Comparison,
    out: str | Path,
    *,
    jobs: int | None = None,
    on: str | None = None,
    retry_failed: bool = False,
    progress: bool | None = None,
    announce: Callable[[list[str]], object] | None = None,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Run the trials of a comparison that have not ended yet; return the rows of all ended trials, in order.

    ``jobs``, ``on``, ``retry_failed``, ``progress`` and ``device`` are described at
    :func:`flower_fedclust.compare`. Before the first run, ``announce`` is called with the lines
    that say which runs are impossible, and what each lacks.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)
    _check_where(comparison, jobs, on, device)
    trials = comparison.trials()
    folder = ComparisonFolder(out)
    opened = None if device is None else open_device(device)
    with on_device(opened), folder.opened(comparison.settings(), list(map(_known_before, trials))):
        ended = {trial.key: row for trial in trials if (row := folder.row(trial.key)) is not None}
        repeated = {key for key, row in ended.items() if retry_failed and row["status"] != "done"}
        waiting = [trial for trial in trials if trial.key not in ended.keys() - repeated]
        reasons = {trial.key: why_impossible(trial, comparison) for trial in waiting}
        impossible = {key: reason for key, reason in reasons.items() if reason is not None}
        for trial in waiting:
            if trial.key in impossible:
                record_failure(trial, folder, impossible[trial.key], status=LEFT_OUT)
                ended[trial.key] = folder.row(trial.key) or {}
        if impossible and announce is not None:
            head = f"{len(impossible)} of {len(trials)} runs are not possible and are left out:"
            announce([head, *failure_lines([ended[key] for key in impossible], LEFT_OUT)])
        waiting = [trial for trial in waiting if trial.key not in impossible]

        def rows() -> list[dict[str, Any]]:
            return [ended[trial.key] for trial in trials if trial.key in ended]

        def run(stored: Sequence[Trial]) -> Generator[Trial, None, None]:
            if on is not None:
                return run_on_ray(stored, folder, on, jobs)
            if jobs == 1 or comparison.engine != "inline":
                return _run_here(stored, folder)
            return _run_in_processes(stored, folder, jobs or joblib.cpu_count())

        # An earlier call that was killed may not have written its last trials into the tables.
        folder.write_tables(rows())
        written = time.monotonic()
        # closing() ends all processes, whatever happens here.
        with (
            _stored_once(waiting) as stored,
            _progress(len(trials), len(trials) - len(waiting), progress, announce) as says,
            closing(run(stored)) as finished,
        ):
            try:
                for number, trial in enumerate(finished, len(trials) - len(waiting) + 1):
                    row = folder.row(trial.key)
                    if row is None:
                        place = folder.trials / trial.key
                        raise FileNotFoundError(
                            f"{place} was just written and is gone; do not move its folder."
                        )
                    ended[trial.key] = row
                    says(number)
                    if time.monotonic() - written > SECONDS_BETWEEN_TABLES:
                        folder.write_tables(rows())
                        written = time.monotonic()
            finally:
                folder.write_tables(rows())
        return rows()


@contextmanager
def _progress(
    n_runs: int, n_done: int, progress: bool | None, announce: Callable[[list[str]], object] | None
) -> Iterator[Callable[[int], object]]:
    """Show how many runs are done, and yield a function that takes the number of finished runs.

    This is a progress bar if there is a terminal, or if ``announce`` is None. Otherwise
    ``announce`` is called with a line from time to time, which estimates how much time is left.
    ``progress=False`` shows nothing.
    """
    if is_shown(progress) or progress is False or announce is None:
        with bar("runs", n_runs, progress, n_done) as says:
            yield lambda number: says("", number)
        return
    start = said = time.monotonic()

    def line(number: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= SECONDS_BETWEEN_LINES and number < n_runs:
            left = (now - start) / (number - n_done) * (n_runs - number)
            announce([f"{number} of {n_runs} runs done; about {duration_text(left)} left."])
            said = now

    yield line


@contextmanager
def _stored_once(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Write rows given in Python to one temporary file, so that they need not be sent to each process."""
    with tempfile.TemporaryDirectory(prefix="fedclust-") as folder:
        stored, paths = [], dict[int, Path]()
        for trial in trials:
            rows = trial.choice.source
            if isinstance(rows, FederatedRows):
                if id(rows) not in paths:
                    paths[id(rows)] = Path(folder, f"rows-{len(paths)}.pkl")
                    paths[id(rows)].write_bytes(pickle.dumps(rows, protocol=5))
                choice = replace(trial.choice, source=None, partition=trial.choice.partition_name)
                trial = replace(trial, choice=choice, stored=paths[id(rows)])
            stored.append(trial)
        yield stored


def failure_lines(rows: Sequence[Mapping[str, Any]], status: str = "failed") -> list[str]:
    """Return a line for each remedy: how many runs of which strategies it would fix."""
    lines = []
    for remedy, same in by_remedy([row for row in rows if row["status"] == status]).items():
        lines.append(
            f"{len(same)} of {', '.join(dict.fromkeys(str(row['strategy']) for row in same))}: {remedy}"
        )
    return lines


# One trial.


def execute(trial: Trial, folder: ComparisonFolder, read: ReadRows | None = None) -> None:
    """Run one trial in this process and write its folder, even if the trial fails; raise only for a full disk."""
    forget_peak_memory()
    row = _known_before(trial)
    with (
        folder.new_trial(trial.key) as place,
        warnings.catch_warnings(record=True) as warned,
        one_thread(),
    ):
        try:
            row |= _outcome(trial, row, place, read)
            row["status"] = "done"
        except Exception as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            row |= {"status": "failed", "reason": _sentence(error)}
            if not isinstance(error, (ValueError, ImportError, ProtocolError)):
                (place / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
        # With another engine, the memory is used by other processes.
        row["peak_memory_mb"] = peak_memory_mb() if trial.engine == "inline" else None
        _write_row(place, row, list(dict.fromkeys(str(warning.message) for warning in warned)))


def record_failure(
    trial: Trial, folder: ComparisonFolder, reason: str, *, status: str = "failed"
) -> None:
    """Write the folder of a trial that did not run, or not to its end."""
    with folder.new_trial(trial.key) as place:
        _write_row(place, _known_before(trial) | {"status": status, "reason": reason})


def _known_before(trial: Trial) -> dict[str, Any]:
    """Return the entries of a trial's row that are known before the trial begins."""
    names = ("key", "strategy", "variant", "data", "n_clusters", "epsilon", "seed", "engine")
    known = {name: getattr(trial, name) for name in names}
    known["partition"] = trial.choice.partition_name
    known["delta"] = None if trial.epsilon is None else trial.parameters.get("delta")
    return known | installed_versions()


def _outcome(
    trial: Trial, row: dict[str, Any], place: Path, read: ReadRows | None
) -> dict[str, Any]:
    """Run the strategy, write its result into ``place``, and return the entries of the row that follow from the run.

    ``row`` gets its first entries before the run, so that a trial that fails still says how many
    rows and clients it had.
    """
    _register(trial)
    read = read or _read(trial)
    n_clusters = trial.n_clusters or next(iter(trial.choice.numbers_of_classes(read)), None)
    if n_clusters is None:
        raise ValueError(f"{trial.data} has no known classes to count; give n_clusters.")
    rows = trial.choice.load(n_clusters, needs_server_rows=trial.needs_server_rows, read=read)
    # Entries that are also written if the trial fails from here on.
    public = None if trial.choice.server_data is not None else rows.server_rows
    row.update(
        n_clusters=n_clusters,
        n_clients=len(rows.clients),
        n_rows=sum(map(len, rows.clients)),
        n_public=0 if public is None else len(public),
        n_columns=rows.clients[0].shape[1],
        rows_sha256=rows_fingerprint(rows),
    )
    if rows.labels is not None:
        counts = np.unique(np.concatenate(rows.labels), return_counts=True)[1]
        row.update(n_classes=len(counts), largest_class=float(counts.max() / counts.sum()))
    strategy = trial.strategy_for(n_clusters, rows.server_rows, rows.server_rows_origin)
    options: dict[str, Any] = {
        "engine": trial.engine,
        "seed": trial.seed,
        "progress": False,
        "n_jobs": 1,
    }
    if trial.instance is not None:
        options["schema"] = trial.choice.schema
    result = simulate(strategy, rows, **options)
    scores = _map_scores(result, rows, trial.seed) | _suite_scores(result, rows, read, n_clusters)
    result.save(place)
    if rows.labels is not None:
        labeled = zip(rows.names, rows.labels, strict=True)
        classes = [
            (as_cell(name), as_cell(label)) for name, part in labeled for label in part.tolist()
        ]
        pd.DataFrame(classes, columns=["client", "class"]).to_csv(
            place / "classes.csv", index=False
        )
    report = result.privacy.to_dict()
    return {
        **result.metrics,
        **scores,
        "delta": report["delta"],
        "privacy_unit": report["unit"],
        "noise": report["noise"],
        "epsilon_spent": report["epsilon"],
        "covers_everything": report["covers_everything"],
        "guarantee": report["guarantee"],
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "rounds": result.summary()["rounds"],
        "seconds": result.seconds,
    }


def _read(trial: Trial) -> ReadRows:
    """Return the rows of a trial, before any are drawn for the server or spread over clients."""
    read = trial.choice.read(whole=trial.needs_server_rows)
    return read if trial.stored is None else replace(read, rows=pd.read_pickle(trial.stored))


def _register(trial: Trial) -> None:
    """Register the trial's strategy, which this process may not know; module:Class needs no registration."""
    if (
        trial.instance is None
        and ":" not in trial.strategy
        and trial.strategy not in registry.names()
    ):
        registry.REGISTERED[trial.strategy] = trial.entry


def _suite_scores(
    result: Result, rows: FederatedRows, read: ReadRows, n_clusters: int
) -> dict[str, float]:
    """Return the scores for the labeling that fits best; the id of a row is its index in each labeling."""
    labelings = getattr(read.rows, "labelings", None)
    if labelings is None or not result.labels_of_clients or rows.row_ids is None:
        return {}
    return best_agreement(
        labelings[np.concatenate(rows.row_ids)],
        np.concatenate(result.labels_of_clients),
        n_clusters,
    )


def _map_scores(result: Result, rows: FederatedRows, seed: int) -> dict[str, float]:
    """Return the quality of the map that a strategy made; {} if it made none.

    Clients that failed have no places in the map and are left out.
    """
    # A client that failed has no place in the map.
    shown = [
        index
        for index, places in enumerate(result.embedding)
        if len(places) == len(rows.clients[index])
    ]
    if not shown or any(isinstance(rows.clients[index], Batches) for index in shown):
        return {}
    from flower_fedclust.numerics.map_quality import map_quality

    def of_shown(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([parts[index] for index in shown])

    labels = None if rows.labels is None else of_shown(rows.labels)
    parts = rows.clients
    if isinstance(result.model, TableModel):
        parts = [result.model.prepare(client) for client in parts]
    scores = map_quality(of_shown(parts), of_shown(result.embedding), labels, random_state=seed)
    return {column: scores[name] for name, column in _MAP_SCORES.items() if name in scores}


def _write_row(place: Path, row: Mapping[str, Any], said: Sequence[str] = ()) -> None:
    """Write the row of a trial, and its warnings, into its folder."""
    ordered = {name: row.get(name) for name in (*COLUMNS, "rows_sha256")}
    (place / "run.json").write_text(as_json({**ordered, "warnings": list(said)}), encoding="utf-8")


def _sentence(error: BaseException) -> str:
    """Return an error as one line; errors of other packages begin with their type."""
    text = " ".join(str(error).split())
    is_ours = isinstance(error, (ValueError, ImportError, ProtocolError, OSError))
    return text if is_ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def forget_peak_memory() -> None:
    """Restart the measurement of peak memory (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory_mb() -> float | None:
    """Return the largest resident memory of this process, libraries included; None if it is unknown."""
    try:
        # Not getrusage, whose figure a process inherits from its parent.
        match = re.search(
            r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii")
        )
    except OSError:
        return None
    return None if match is None else round(int(match[1]) * 1024 / 1e6, 1)


# Runs in this process, and in other processes.


def _run_here(trials: Sequence[Trial], folder: ComparisonFolder) -> Generator[Trial, None, None]:
    """Run trials one after the other in this process."""
    for trial in trials:
        execute(trial, folder)
        yield trial


def _run_in_processes(
    trials: Sequence[Trial], folder: ComparisonFolder, jobs: int
) -> Generator[Trial, None, None]:
    """Run each trial in its own process, at most ``jobs`` at a time, and yield it when it has ended.

    A process that dies is tried a second time, because the system may kill a process by chance when
    memory is short. All processes are ended if the caller stops early. Raises an OSError if the
    disk is full: no further run can be saved then.
    """
    context = _context(trials)
    waiting, attempts = deque(trials), dict.fromkeys((trial.key for trial in trials), 0)
    working: dict[Any, tuple[BaseProcess, Trial]] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                trial = waiting.popleft()
                attempts[trial.key] += 1
                # Not a daemon, because a daemon cannot start processes.
                process = context.Process(
                    target=_work, args=(trial, folder.path), name=trial.key, daemon=False
                )
                with _script_left_alone(trial):
                    process.start()
                working[process.sentinel] = (process, trial)
            for sentinel in wait(list(working)):
                process, trial = working.pop(sentinel)
                process.join()
                code = process.exitcode
                if code == errno.ENOSPC:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if code == _UNGUARDED:
                    raise RuntimeError(
                        f"'{trial.strategy}' on '{trial.data}' is defined in this script, which every process of a "
                        'comparison imports; put what the script does below if __name__ == "__main__":, or its '
                        "definitions into a file of their own."
                    )
                if code != 0 and attempts[trial.key] < _ATTEMPTS:
                    waiting.append(trial)
                    continue
                if code != 0:
                    _record_death(trial, folder, code or 0)
                yield trial
    finally:
        for process, _ in working.values():
            process.kill()
        for process, _ in working.values():
            process.join()


@contextmanager
def _script_left_alone(trial: Trial) -> Iterator[None]:
    """Within the block, new processes do not run the user's script, unless it defines what the trial needs."""
    script = vars(sys.modules["__main__"])
    is_needed = trial.entry.strategy.__module__ == "__main__" or trial.data.startswith("__main__:")
    path = None if is_needed else script.pop("__file__", None)
    try:
        yield
    finally:
        if path is not None:
            script["__file__"] = path


def _work(trial: Trial, out: Path) -> None:
    """Run one trial in a child process.

    The child leaves Ctrl-C to its parent, and ends when its parent does. Its exit code tells the
    parent of a full disk.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        execute(trial, ComparisonFolder(out))
    except OSError as error:
        if not is_disk_full(error):
            raise
        sys.exit(errno.ENOSPC)


def _end_with_parent() -> None:
    """Wait for the parent process to end, then end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _record_death(trial: Trial, folder: ComparisonFolder, code: int) -> None:
    """Write the folder of a trial whose process died twice, with the signal or exit code."""
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}, {_ATTEMPTS} times; it may need more memory than there is"
    else:
        how = f"ended with code {code}, {_ATTEMPTS} times, without a result"
    record_failure(trial, folder, f"The process of this run {how}.")


def _context(trials: Sequence[Trial]) -> Any:
    """Return the way to start processes.

    If the system allows it, processes are forked from a server process that has imported everything
    and computed nothing. So they start fast. A fork of this process would lose its threads.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # The fork server also imports the modules of the strategies.
    of_trials = {trial.entry.strategy.__module__ for trial in trials} - {"__main__"}
    context.set_forkserver_preload([*_PRELOADED, *of_trials])
    return context


# On Ray, on one machine or many.


def run_on_ray(
    trials: Sequence[Trial], folder: ComparisonFolder, on: str, jobs: int | None = None
) -> Generator[Trial, None, None]:
    """Run each trial as a task of one core, and yield it when its folder is written here.

    Rows are read here and put into Ray's store once, even if many trials use them, and are sent to
    each machine once. Results come back through Ray, so the machines need no shared file system.
    """
    import ray

    homes = {trial.entry.strategy.__module__ for trial in trials}
    with connected(on), sent_by_value(homes):
        run = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_as_task)
        store = _Store(ray.put)
        waiting, working = deque(trials), dict[Any, Trial]()
        while waiting or working:
            most = jobs or int(ray.cluster_resources().get("CPU", 1)) + _AHEAD  # type: ignore[no-untyped-call]
            while waiting and len(working) < most:
                trial = waiting.popleft()
                try:
                    rows = store.rows_of(trial)
                except (ValueError, ImportError, OSError):
                    execute(trial, folder)  # the message says why
                    yield trial
                else:
                    working[run.remote(trial, rows)] = trial
            for done in ray.wait(list(working), timeout=60.0)[0] if working else ():
                trial = working.pop(done)
                try:
                    packed = ray.get(done)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    message = next(iter(str(cause).splitlines()), "")
                    record_failure(
                        trial, folder, f"The task of this run ended without a result: {message}"
                    )
                else:
                    with (
                        folder.new_trial(trial.key) as place,
                        zipfile.ZipFile(io.BytesIO(packed)) as archive,
                    ):
                        archive.extractall(place)
                yield trial


class _Store:
    """References to rows in Ray's object store; equal rows are stored once.

    Trials of different strategies on one data set share their rows. Trials with different seeds do,
    too, if the data set is not random. So rows are compared by content.
    """

    def __init__(self, put: Callable[[ReadRows], Any]) -> None:
        self._put = put
        self._by_choice: dict[Any, Any] = {}
        self._by_content: dict[bytes, Any] = {}

    def rows_of(self, trial: Trial) -> Any:
        """Return the reference to a trial's rows, reading and storing them if they are new."""
        choice = trial.choice
        key = (
            choice.dataset,
            choice.data,
            trial.stored,
            choice.seed if choice.dataset is not None else None,
        )
        if key not in self._by_choice:
            read = _read(trial)
            # A data set that takes no seed is the same for every seed.
            content = hashlib.sha256(pickle.dumps(read, protocol=5)).digest()
            if content not in self._by_content:
                self._by_content[content] = self._put(read)
            self._by_choice[key] = self._by_content[content]
        return self._by_choice[key]


def _run_as_task(trial: Trial, read: ReadRows) -> bytes:
    """Run a trial in this task of Ray, and return its folder as the bytes of a ZIP file."""
    if trial.instance is None and trial.strategy not in registry.names():
        # The class was sent by value, because this machine may not have its module, also that of module:Class.
        registry.REGISTERED[trial.strategy] = trial.entry
    with tempfile.TemporaryDirectory(prefix="fedclust-") as path:
        folder = ComparisonFolder(path)
        folder.trials.mkdir()
        execute(trial, folder, read)
        place, packed = folder.trials / trial.key, io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(entry for entry in place.rglob("*") if entry.is_file()):
                archive.write(file, file.relative_to(place))
        return packed.getvalue()

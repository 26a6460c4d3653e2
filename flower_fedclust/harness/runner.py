"""Running a comparison: one trial at a time, in processes, or as tasks of Ray; no trial twice."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import logging
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
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

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flower_fedclust.data import FederatedRows
from flower_fedclust.engine import ProtocolError
from flower_fedclust.engine.progress import is_shown
from flower_fedclust.harness.comparison import Comparison, Trial, rows_fingerprint, why_impossible
from flower_fedclust.harness.folder import COLUMNS, ComparisonFolder, as_json, installed_versions, is_disk_full
from flower_fedclust.inputs import ReadRows
from flower_fedclust.models import TableModel
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import strategies
from flower_fedclust.results.files import as_cell
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import simulate

# A process may be killed by chance; the second time, the death is recorded.
_ATTEMPTS = 2
# Imported once, in the process from which all others are forked, so that a trial's seconds include no import but those
# of its strategies' modules and of what they import when they need it.
_PRELOADED = [
    __name__,
    "flwr_datasets.partitioner",
    "sklearn.cluster",
    "sklearn.datasets",
    "scipy.optimize",
    "sklearn.metrics",
    "sklearn.neighbors",
    "dp_accounting.pld",
    "dp_accounting.rdp",
]
# The exit code of a process that was about to run the user's script, and in it the comparison, once more.
_UNGUARDED = 113
# How often a task of Ray begins again if its machine or process was lost.
_RETRIES = 3
# Tasks handed to Ray beyond those that can run, so that no core waits for the next.
_AHEAD = 2
_PORT = 10001  # of Ray's own client server

#: The scores of a map, and their columns in the table.
_MAP_SCORES = {"ca_10": "map_ca_10", "npa_10": "map_npa_10", "nmi": "map_nmi", "trustworthiness": "map_trustworthiness"}


def run_comparison(
    comparison: Comparison,
    out: str | Path,
    *,
    jobs: int | None = None,
    on: str | None = None,
    retry_failed: bool = False,
    progress: bool | None = None,
    announce: Callable[[list[str]], object] | None = None,
) -> list[dict[str, Any]]:
    """Run the trials of a comparison that have not ended yet, and return the rows of its table.

    Parameters
    ----------
    comparison : Comparison
    out : str or Path
        A new folder, or one that holds this comparison; trials that have ended there are not repeated.
    jobs : int, optional
        How many trials run at the same time; by default one per core. Each has a new process with one thread for linear
        algebra, so that its seconds and memory include what is compiled or calibrated for it and nothing else. With
        ``jobs=1``, or with engine "ray", which uses all cores, they run in this process, one after the other.
    on : str, optional
        Where the trials run, if not on this machine's cores: "ray", a Ray started here for this comparison;
        "ray://HOST" or "ray://HOST:PORT", a cluster elsewhere; "auto" or "HOST:PORT", the cluster that this machine is
        part of. Trials are tasks of one core each; ``jobs`` limits how many run at once. If a machine is lost, its
        trials run elsewhere. The folder stays here.
    retry_failed : bool, default=False
        Whether trials that failed are repeated.
    progress : bool, optional
        Whether to show a progress bar; by default only if the output is a terminal.
    announce : callable, optional
        Called before the first run with the lines that say which runs are not possible and what each lacks.

    Returns
    -------
    list of dict of str to anything
        One for each trial that has ended, in order, with :data:`flower_fedclust.harness.folder.COLUMNS`.

    Raises
    ------
    FileExistsError
        If the folder holds another comparison, or something else; it is not changed.
    RuntimeError
        If a script defines a strategy or a data set and calls this outside of ``if __name__ == "__main__":``.
    DiskFullError
        If there is no room left. Finished trials are kept, and the same call continues from there.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)
    if jobs is not None:
        check_integer("jobs", jobs, at_least=1)
    if on is not None and comparison.engine == "ray":
        raise ValueError(
            "on makes each run a task of Ray, and engine 'ray' each client of a run; leave out one of them."
        )
    trials = comparison.trials()
    folder = ComparisonFolder(out)
    with folder.opened(comparison.settings()), folder.says_when_full():
        ended = {trial.key: row for trial in trials if (row := folder.row(trial.key)) is not None}
        repeated = {key for key, row in ended.items() if retry_failed and row["status"] == "failed"}
        waiting = [trial for trial in trials if trial.key not in ended.keys() - repeated]
        reasons = {trial.key: why_impossible(trial, comparison) for trial in waiting}
        impossible = {key: reason for key, reason in reasons.items() if reason is not None}
        for trial in waiting:
            if trial.key in impossible:
                record_failure(trial, folder, impossible[trial.key])
                ended[trial.key] = folder.row(trial.key) or {}
        if impossible and announce is not None:
            said = failure_lines([ended[key] for key in impossible])
            announce([f"{len(impossible)} of {len(trials)} runs are not possible and are left out:", *said])
        waiting = [trial for trial in waiting if trial.key not in impossible]

        def rows() -> list[dict[str, Any]]:
            return [ended[trial.key] for trial in trials if trial.key in ended]

        folder.write_tables(rows())  # a process that was killed may not have written its last trials
        # closing: whatever happens here, no process is left running.
        with (
            _stored_once(waiting) as stored,
            _progress_bar(len(trials), len(trials) - len(waiting), progress) as bar,
            closing(_running(stored, folder, jobs, on)) as finished,
        ):
            for trial in finished:
                row = folder.row(trial.key)
                if row is None:
                    place = folder.trials / trial.key
                    raise FileNotFoundError(f"{place} was just written and is gone; do not move its folder.")
                ended[trial.key] = row
                folder.write_tables(rows())
                bar.advance(bar.task_ids[0])
        return rows()


def _running(
    trials: Sequence[Trial], folder: ComparisonFolder, jobs: int | None, on: str | None
) -> Generator[Trial, None, None]:
    if on is not None:
        return run_on_ray(trials, folder, on, jobs)
    if jobs == 1 or any(trial.engine == "ray" for trial in trials):
        return _run_here(trials, folder)
    return _run_in_processes(trials, folder, jobs or _n_cores())


@contextmanager
def _stored_once(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Keep the rows of a Python caller in one temporary file, instead of sending them to each process."""
    with tempfile.TemporaryDirectory(prefix="fedclust-") as folder:
        stored, paths = [], dict[int, Path]()
        for trial in trials:
            rows = trial.choice.given
            if isinstance(rows, FederatedRows):
                if id(rows) not in paths:
                    paths[id(rows)] = Path(folder, f"rows-{len(paths)}.pkl")
                    paths[id(rows)].write_bytes(pickle.dumps(rows, protocol=5))
                choice = replace(trial.choice, given=None, partition=trial.choice.partition_name)
                trial = replace(trial, choice=choice, stored=paths[id(rows)])
            stored.append(trial)
        yield stored


def progress_columns() -> list[ProgressColumn]:
    """Return the columns of a progress bar."""
    text = TextColumn("{task.description}")
    return [text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]


@contextmanager
def _progress_bar(total: int, done: int, progress: bool | None) -> Iterator[Progress]:
    with Progress(*progress_columns(), console=Console(stderr=True), disable=not is_shown(progress)) as bar:
        bar.add_task("runs", total=total, completed=done)
        yield bar


def failures_by_remedy(failed: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Group (strategy, reason) of failed runs by what would mend them: remedy -> {strategy: runs}, the most first."""
    found: dict[str, dict[str, int]] = {}
    for strategy, reason in failed:
        missing = re.match(rf"{re.escape(strategy)} needs (\w+)\.$|(\w+) is missing;", reason)
        name = missing and (missing[1] or missing[2])
        remedy = f"give {name} (--set {name}=...)" if name else reason or "No reason was written."
        runs = found.setdefault(remedy, {})
        runs[strategy] = runs.get(strategy, 0) + 1
    return dict(sorted(found.items(), key=lambda one: -sum(one[1].values())))


def failure_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each remedy, with the number of runs and the strategies that it would mend."""
    failed = [(str(row["strategy"]), str(row["reason"] or "")) for row in rows if row["status"] == "failed"]
    return [
        f"{sum(runs.values())} of {', '.join(runs)}: {remedy}" for remedy, runs in failures_by_remedy(failed).items()
    ]


# One trial.


def execute(trial: Trial, folder: ComparisonFolder, read: ReadRows | None = None) -> None:
    """Run one trial in this process and write its folder, even if the trial fails; only a full disk is raised."""
    forget_peak_memory()
    row = _known_before(trial)
    with folder.new_trial(trial.key) as place, warnings.catch_warnings(record=True) as warned, one_thread():
        try:
            row |= _outcome(trial, row, place, read)
            row["status"] = "done"
        except Exception as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            row |= {"status": "failed", "reason": _sentence(error)}
            if not isinstance(error, (ValueError, ImportError, ProtocolError)):
                (place / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
        # Ray's processes are not this one.
        row["peak_memory_mb"] = peak_memory_mb() if trial.engine == "inline" else None
        _write_row(place, row, list(dict.fromkeys(str(warning.message) for warning in warned)))


def record_failure(trial: Trial, folder: ComparisonFolder, reason: str) -> None:
    """Write the folder of a trial that did not run, or not to its end."""
    with folder.new_trial(trial.key) as place:
        _write_row(place, _known_before(trial) | {"status": "failed", "reason": reason})


def _known_before(trial: Trial) -> dict[str, Any]:
    """Return the part of the row that is known before the trial begins."""
    names = ("key", "strategy", "variant", "data", "n_clusters", "epsilon", "seed", "engine")
    known = {name: getattr(trial, name) for name in names}
    delta = None if trial.epsilon is None else trial.parameters.get("delta")
    return known | {"partition": trial.choice.partition_name, "delta": delta} | installed_versions()


def _outcome(trial: Trial, row: dict[str, Any], place: Path, read: ReadRows | None) -> dict[str, Any]:
    """Run the strategy, write its result, and return its part of the row."""
    _register(trial)
    read = read or _read(trial)
    n_clusters = trial.n_clusters or trial.choice.n_classes(read)
    if n_clusters is None:
        raise ValueError(f"{trial.data} has no known classes to count; give n_clusters.")
    rows = trial.choice.load(n_clusters, needs_server_rows=trial.needs_server_rows, read=read)
    # Written also if the trial fails from here on.
    row.update(
        n_clusters=n_clusters,
        n_clients=len(rows.clients),
        n_rows=sum(map(len, rows.clients)),
        n_columns=rows.clients[0].shape[1],
        n_classes=None if rows.labels is None else len(np.unique(np.concatenate(rows.labels))),
        rows_sha256=rows_fingerprint(rows),
    )
    strategy = trial.strategy_for(n_clusters, rows.server_rows, rows.server_rows_origin)
    options: dict[str, Any] = {"engine": trial.engine, "seed": trial.seed, "progress": False}
    if trial.made is not None:
        options["schema"] = trial.choice.schema
    result = simulate(strategy, rows, **options)
    scores = _map_scores(result, rows, trial.seed)
    result.save(place)
    if rows.labels is not None:
        _write_classes(place / "classes.csv", rows.names, rows.labels)
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
    if trial.stored is None:
        return trial.choice.read()
    public = trial.choice.read_public()
    return ReadRows(pd.read_pickle(trial.stored), public)


def _register(trial: Trial) -> None:
    """Make a strategy known that this process may not have; module:Class is found without the registry."""
    if trial.made is None and ":" not in trial.strategy:
        strategies().setdefault(trial.strategy, trial.entry)


def _map_scores(result: Result, rows: FederatedRows, seed: int) -> dict[str, float]:
    # A client that failed has no place in the map.
    shown = [index for index, places in enumerate(result.embedding) if len(places) == len(rows.clients[index])]
    if not shown:
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


def _write_classes(path: Path, names: Sequence[str], labels: Sequence[NDArray[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("client", "class"))
        table.writerows(
            (as_cell(name), as_cell(label)) for name, part in zip(names, labels, strict=True) for label in part.tolist()
        )


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    is_ours = isinstance(error, (ValueError, ImportError, ProtocolError, OSError))
    return text if is_ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def forget_peak_memory() -> None:
    """Start the measurement of peak memory anew, if the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory_mb() -> float | None:
    """Return the largest resident memory of this process, libraries included."""
    try:
        # Not getrusage: a process inherits its figure from its parent.
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    except OSError:
        found = None
    if found is not None:
        return round(int(found[1]) * 1024 / 1e6, 1)
    try:
        import resource
    except ImportError:
        return None  # Windows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)


# In this process, and in processes of their own.


def _run_here(trials: Sequence[Trial], folder: ComparisonFolder) -> Generator[Trial, None, None]:
    for trial in trials:
        execute(trial, folder)
        yield trial


def _run_in_processes(trials: Sequence[Trial], folder: ComparisonFolder, jobs: int) -> Generator[Trial, None, None]:
    """Run each trial in a process of its own, whose memory and death concern no other trial."""
    context = _context(trials)
    waiting, attempts = deque(trials), dict.fromkeys((trial.key for trial in trials), 0)
    working: dict[Any, tuple[BaseProcess, Trial]] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                trial = waiting.popleft()
                attempts[trial.key] += 1
                # Not a daemon, which could not start processes.
                process = context.Process(target=_work, args=(trial, folder.path), name=trial.key, daemon=False)
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
    """Keep a new process from running the user's script, unless the script defines what the trial needs."""
    script = vars(sys.modules["__main__"])
    is_needed = trial.entry.strategy.__module__ == "__main__" or trial.data.startswith("__main__:")
    path = None if is_needed else script.pop("__file__", None)
    try:
        yield
    finally:
        if path is not None:
            script["__file__"] = path


def _work(trial: Trial, out: Path) -> None:
    """Run one trial as a child process: leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        execute(trial, ComparisonFolder(out))
    except OSError as error:
        if not is_disk_full(error):
            raise
        sys.exit(errno.ENOSPC)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _record_death(trial: Trial, folder: ComparisonFolder, code: int) -> None:
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}, {_ATTEMPTS} times; it may need more memory than there is"
    else:
        how = f"ended with code {code}, {_ATTEMPTS} times, without a result"
    record_failure(trial, folder, f"The process of this run {how}.")


def _context(trials: Sequence[Trial]) -> Any:
    # Forked from a process that has imported everything and computed nothing: the start is fast, and no thread is lost,
    # as it would be if this process were forked.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    of_trials = {trial.entry.strategy.__module__ for trial in trials} - {"__main__"}  # each process imports that one
    context.set_forkserver_preload([*_PRELOADED, *of_trials])
    return context


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# On Ray, on one machine or many.


def run_on_ray(
    trials: Sequence[Trial], folder: ComparisonFolder, on: str, jobs: int | None = None
) -> Generator[Trial, None, None]:
    """Run each trial as a task of one core, and yield it when its folder is written here.

    Rows are read here and put into Ray's store once, whatever the number of trials on them; from there they go to each
    machine once. Results come back through Ray, so that no file system need be shared.
    """
    import ray

    with _connected(on), _sent_by_value(trials):
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
                    execute(trial, folder)  # which says why
                    yield trial
                else:
                    working[run.remote(trial, rows)] = trial
            for done in ray.wait(list(working), timeout=60.0)[0] if working else ():
                trial = working.pop(done)
                try:
                    packed = ray.get(done)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    what = next(iter(str(cause).splitlines()), "")
                    record_failure(trial, folder, f"The task of this run ended without a result: {what}")
                else:
                    with folder.new_trial(trial.key) as place, zipfile.ZipFile(io.BytesIO(packed)) as archive:
                        archive.extractall(place)
                yield trial


class _Store:
    """References to rows in Ray's store; the same rows are stored once."""

    def __init__(self, put: Callable[[ReadRows], Any]) -> None:
        self._put = put
        self._by_choice: dict[Any, Any] = {}
        self._by_content: dict[bytes, Any] = {}

    def rows_of(self, trial: Trial) -> Any:
        choice = trial.choice
        key = (choice.dataset, choice.data, trial.stored, choice.seed if choice.dataset is not None else None)
        if key not in self._by_choice:
            read = _read(trial)
            # A data set that takes no seed is the same for each.
            content = hashlib.sha256(pickle.dumps(read, protocol=5)).digest()
            if content not in self._by_content:
                self._by_content[content] = self._put(read)
            self._by_choice[key] = self._by_content[content]
        return self._by_choice[key]


def _run_as_task(trial: Trial, read: ReadRows) -> bytes:
    """Run a trial where this task is, and return its folder as a ZIP file."""
    if trial.made is None:
        strategies().setdefault(trial.strategy, trial.entry)  # its module came by value, and may not be here
    with tempfile.TemporaryDirectory(prefix="fedclust-") as path:
        folder = ComparisonFolder(path)
        folder.trials.mkdir()
        execute(trial, folder, read)
        place, packed = folder.trials / trial.key, io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(one for one in place.rglob("*") if one.is_file()):
                archive.write(file, file.relative_to(place))
        return packed.getvalue()


@contextmanager
def _sent_by_value(trials: Sequence[Trial]) -> Iterator[None]:
    """Send the code of strategies that are not in this package along: other machines may not have it."""
    from ray import cloudpickle

    homes = {trial.entry.strategy.__module__.partition(".")[0] for trial in trials} - {__package__.partition(".")[0]}
    modules = [sys.modules[name] for name in sorted(homes - {"__main__"})]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def _connected(on: str) -> Iterator[None]:
    """Connect to Ray, or start it, and leave it as it was; a process that is connected already stays so."""
    import ray

    is_address = on.startswith("ray://") or on == "auto" or on.rpartition(":")[2].isdecimal()
    if not (is_address or on == "ray"):
        raise ValueError(f"on is '{on}'; give ray, ray://HOST, auto, or HOST:PORT.")
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if on == "ray":
        options |= {"address": "local", "include_dashboard": False}
    else:
        has_port = ":" in on.removeprefix("ray://") or on == "auto"
        options |= {"address": on if has_port else f"{on}:{_PORT}"}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a coming change
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, OSError) as error:
        said = str(error).partition("\n")[0]
        raise ConnectionError(f"Ray at {on} cannot be reached: {said}") from None
    try:
        yield
    finally:
        ray.shutdown()

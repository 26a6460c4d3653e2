"""Running a comparison: each trial in a process of its own, and no trial twice."""

from __future__ import annotations

import csv
import errno
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from flower_fedclust.data import FederatedRows
from flower_fedclust.lab.compare import Comparison, Trial, why_impossible
from flower_fedclust.lab.comparison_folder import COLUMNS, ComparisonFolder, as_json, installed_versions, is_disk_full
from flower_fedclust.lab.jobs import make_strategies
from flower_fedclust.lab.show import progress_columns
from flower_fedclust.lab.summary import failure_lines
from flower_fedclust.numerics.checks import check_integer
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.protocol import ProtocolError
from flower_fedclust.registry import accepted_parameters, strategies
from flower_fedclust.results import Result
from flower_fedclust.simulation import simulate

#: The scores of a map, and their columns in the table.
_MAP_SCORES = {"ca_10": "map_ca_10", "npa_10": "map_npa_10", "nmi": "map_nmi", "trustworthiness": "map_trustworthiness"}
# A process may be killed by chance; the second time, the death is recorded.
_ATTEMPTS = 2
# Imported once, in the process from which all others are forked, so that no trial's seconds include an import.
_PRELOADED = ["__main__", __name__, "flwr_datasets.partitioner"]


def run_comparison(
    comparison: Comparison,
    out: str | Path,
    *,
    jobs: int | None = None,
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
        ``jobs=1`` all run in this process, one after the other, as they always do with Ray, which uses all cores.
    retry_failed : bool, default=False
        Whether trials that failed are repeated.
    progress : bool, optional
        Whether to show a progress bar; by default only if the output is a terminal.
    announce : callable, optional
        It is given, before the first run, the lines that say which runs are not possible and what each lacks.

    Returns
    -------
    list of dict of str to anything
        One for each trial that has ended, in order, with :data:`flower_fedclust.lab.comparison_folder.COLUMNS`.

    Raises
    ------
    FileExistsError
        If the folder holds another comparison, or something else; it is not changed.
    DiskFullError
        If there is no room left. Finished trials are kept, and the same call continues from there.
    """
    jobs = _n_cores() if jobs is None else check_integer("jobs", jobs, at_least=1)
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
                ended[trial.key] = _record_impossible(trial, folder, impossible[trial.key])
        if impossible and announce is not None:
            said = failure_lines([ended[key] for key in impossible])
            announce([f"{len(impossible)} of {len(trials)} runs are not possible and are left out:", *said])
        waiting = [trial for trial in waiting if trial.key not in impossible]

        def rows() -> list[dict[str, Any]]:
            return [ended[trial.key] for trial in trials if trial.key in ended]

        folder.write_tables(rows())  # a process that was killed may not have written its last trials
        run_all = _run_here if jobs == 1 or comparison.engine == "ray" else _run_in_processes
        # closing: whatever happens here, no process is left running.
        with (
            _progress_bar(len(trials), len(trials) - len(waiting), progress) as bar,
            closing(run_all(waiting, folder, jobs)) as finished,
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


def execute(trial: Trial, folder: ComparisonFolder) -> None:
    """Run one trial in this process and write its folder, also if the trial fails.

    Raises
    ------
    OSError
        If there is no room left; then nothing is written.
    """
    forget_peak_memory()
    row = _asked(trial)
    with folder.new_trial(trial.key) as place, warnings.catch_warnings(record=True) as warned, one_thread():
        try:
            row |= _outcome(trial, row, place)
            row["status"] = "done"
        except Exception as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            row |= {"status": "failed", "reason": _sentence(error)}
            if not isinstance(error, (ValueError, ImportError, ProtocolError)):
                (place / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
        # Ray's processes are not this one.
        row["peak_memory_mb"] = peak_memory_mb() if trial.engine == "inline" else None
        said = list(dict.fromkeys(str(warning.message) for warning in warned))
        _write_row(place, row, said)


def _asked(trial: Trial) -> dict[str, Any]:
    """Return the part of the row that is known before the trial begins."""
    names = ("key", "strategy", "variant", "data", "n_clusters", "epsilon", "seed", "engine")
    asked = {name: getattr(trial, name) for name in names}
    delta = None if trial.epsilon is None else trial.parameters.get("delta")
    return asked | {"partition": trial.choice.partition_name, "delta": delta} | installed_versions()


def _outcome(trial: Trial, row: dict[str, Any], place: Path) -> dict[str, Any]:
    """Run the strategy, write its result, and return its part of the row."""
    if ":" not in trial.strategy:  # module:Class is found without the registry
        strategies().setdefault(trial.strategy, trial.entry)
    n_clusters = trial.n_clusters or trial.choice.n_classes()
    if n_clusters is None:
        raise ValueError(f"{trial.data} has no known classes to count; give n_clusters.")
    rows = trial.choice.load(n_clusters, needs_server_rows=trial.needs_server_rows)
    # Written also if the trial fails from here on.
    row.update(
        n_clusters=n_clusters,
        n_clients=len(rows.clients),
        n_rows=sum(map(len, rows.clients)),
        n_columns=rows.clients[0].shape[1],
        n_classes=None if rows.labels is None else len(np.unique(np.concatenate(rows.labels))),
    )
    parameters = dict(trial.parameters)
    if "n_clusters" in accepted_parameters(trial.strategy):
        parameters["n_clusters"] = n_clusters
    (strategy,) = make_strategies(
        [trial.strategy],
        parameters,
        rows.server_rows,
        rows.server_rows_origin,
        were_given=trial.choice.gives_server_rows,
    )
    result = simulate(strategy, rows, engine=trial.engine, seed=trial.seed, progress=False)  # type: ignore[arg-type]
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


def _map_scores(result: Result, rows: FederatedRows, seed: int) -> dict[str, float]:
    # A client that failed has no place in the map.
    shown = [index for index, places in enumerate(result.embedding) if len(places) == len(rows.clients[index])]
    if not shown:
        return {}
    from flower_fedclust.numerics.map_quality import map_quality

    def of_shown(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([parts[index] for index in shown])

    labels = None if rows.labels is None else of_shown(rows.labels)
    scores = map_quality(of_shown(rows.clients), of_shown(result.embedding), labels, random_state=seed)
    return {column: scores[name] for name, column in _MAP_SCORES.items() if name in scores}


def _write_row(place: Path, row: Mapping[str, Any], said: Sequence[str] = ()) -> None:
    ordered = {name: row.get(name) for name in COLUMNS}
    (place / "run.json").write_text(as_json({**ordered, "warnings": list(said)}), encoding="utf-8")


def _write_classes(path: Path, names: Sequence[str], labels: Sequence[NDArray[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("client", "class"))
        table.writerows((name, label) for name, part in zip(names, labels, strict=True) for label in part.tolist())


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    is_ours = isinstance(error, (ValueError, ImportError, ProtocolError, OSError))
    return text if is_ours and text else f"{type(error).__name__}: {text}".rstrip(": ")


def _run_here(trials: Sequence[Trial], folder: ComparisonFolder, _: int) -> Generator[Trial, None, None]:
    for trial in trials:
        execute(trial, folder)
        yield trial


def _run_in_processes(trials: Sequence[Trial], folder: ComparisonFolder, jobs: int) -> Generator[Trial, None, None]:
    """Run each trial in a process of its own, whose memory and death concern no other trial."""
    context = _context()
    waiting, attempts = deque(trials), dict.fromkeys((trial.key for trial in trials), 0)
    working: dict[Any, tuple[BaseProcess, Trial]] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                trial = waiting.popleft()
                attempts[trial.key] += 1
                # Not a daemon, which could not start processes.
                process = context.Process(target=_work, args=(trial, folder.path), name=trial.key, daemon=False)
                process.start()
                working[process.sentinel] = (process, trial)
            for sentinel in wait(list(working)):
                process, trial = working.pop(sentinel)
                process.join()
                code = process.exitcode
                if code == errno.ENOSPC:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
    with folder.new_trial(trial.key) as place:
        _write_row(place, _asked(trial) | {"status": "failed", "reason": f"The process of this run {how}."})


def _record_impossible(trial: Trial, folder: ComparisonFolder, reason: str) -> dict[str, Any]:
    with folder.new_trial(trial.key) as place:
        _write_row(place, _asked(trial) | {"status": "failed", "reason": reason})
    return folder.row(trial.key) or {}


def _context() -> Any:
    # Forked from a process that has imported everything and computed nothing: the start is fast, and no thread is lost,
    # as it would be if this process were forked.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


@contextmanager
def _progress_bar(total: int, done: int, progress: bool | None) -> Iterator[Progress]:
    shown = sys.stderr.isatty() if progress is None else progress
    with Progress(*progress_columns(), console=Console(stderr=True), disable=not shown) as bar:
        bar.add_task("runs", total=total, completed=done)
        yield bar

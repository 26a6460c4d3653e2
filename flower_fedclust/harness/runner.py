"""Running a comparison: each trial in a process of its own, and no trial twice."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from flower_fedclust.data import FederatedRows
from flower_fedclust.engine.progress import is_shown
from flower_fedclust.harness.comparison import Comparison, Trial, why_impossible
from flower_fedclust.harness.comparison_folder import ComparisonFolder, is_disk_full
from flower_fedclust.harness.execution import execute, record_failure
from flower_fedclust.harness.ray_runs import run_on_ray
from flower_fedclust.harness.show import progress_columns
from flower_fedclust.harness.summary import failure_lines
from flower_fedclust.numerics.checks import check_integer

# A process may be killed by chance; the second time, the death is recorded.
_ATTEMPTS = 2
# Imported once, in the process from which all others are forked, so that no trial's seconds include an import. What a
# trial imports where it uses it is among them, and so are the modules of its strategies.
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
# The code with which a process ends that was about to run the user's script, and in it the comparison, once more.
_UNGUARDED = 113


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
        ``jobs=1`` all run in this process, one after the other, as they always do with Ray, which uses all cores.
    on : str, optional
        Where the trials run, if not on this machine's cores: "ray", a Ray started here for this comparison;
        "ray://HOST" or "ray://HOST:PORT", a cluster elsewhere; "auto" or "HOST:PORT", the cluster that this machine is
        part of. Trials are tasks of one core each; ``jobs`` limits how many run at once. Of a lost machine, its trials
        run elsewhere. The folder stays here.
    retry_failed : bool, default=False
        Whether trials that failed are repeated.
    progress : bool, optional
        Whether to show a progress bar; by default only if the output is a terminal.
    announce : callable, optional
        It is given, before the first run, the lines that say which runs are not possible and what each lacks.

    Returns
    -------
    list of dict of str to anything
        One for each trial that has ended, in order, with :data:`flower_fedclust.harness.comparison_folder.COLUMNS`.

    Raises
    ------
    FileExistsError
        If the folder holds another comparison, or something else; it is not changed.
    RuntimeError
        If a strategy or a data set is of a script that calls this outside of ``if __name__ == "__main__":``.
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
                trial = replace(trial, choice=replace(trial.choice, given=paths[id(rows)]))
            stored.append(trial)
        yield stored


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
                        f"'{trial.strategy}' on '{trial.data}' is of this script, which every process of a comparison "
                        'imports; put what the script does below if __name__ == "__main__":, or what it defines in a '
                        "file of its own."
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
    """Have a process that starts not run the user's script anew, as it would, unless the trial is of that script."""
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


@contextmanager
def _progress_bar(total: int, done: int, progress: bool | None) -> Iterator[Progress]:
    with Progress(*progress_columns(), console=Console(stderr=True), disable=not is_shown(progress)) as bar:
        bar.add_task("runs", total=total, completed=done)
        yield bar

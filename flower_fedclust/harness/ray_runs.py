"""The trials of a comparison as tasks of Ray, on one machine or many."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flower_fedclust.harness.comparison import Trial
from flower_fedclust.harness.comparison_folder import ComparisonFolder
from flower_fedclust.harness.execution import execute, record_failure
from flower_fedclust.inputs import ReadRows
from flower_fedclust.registry import strategies

# How often a task begins again whose machine or process was lost.
_RETRIES = 3
# Tasks that are handed over beyond those that can run, so that no core waits for the next.
_AHEAD = 2
_PORT = 10001  # of Ray's own client server


def run_on_ray(
    trials: Sequence[Trial], folder: ComparisonFolder, on: str, jobs: int | None = None
) -> Generator[Trial, None, None]:
    """Run each trial as a task of one core, and yield it when its folder is written here.

    Rows are read here and put into Ray's store once, whatever the number of trials on them; from there they go to each
    machine once. Results come back through Ray, so that no file system need be shared.

    Parameters
    ----------
    trials : sequence of Trial
    folder : ComparisonFolder
    on : str
        "ray", "ray://HOST[:PORT]", "auto" or "HOST:PORT", as for ``run_comparison``.
    jobs : int, optional
        How many run at the same time; by default as many as the cluster has cores.

    Raises
    ------
    ValueError
        If ``on`` is none of these.
    ConnectionError
        If there is no such cluster.
    """
    import ray

    with _connected(on), _sent_by_value(trials):
        run = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_one)
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
                    _unpack(ray.get(done), trial, folder)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    what = next(iter(str(cause).splitlines()), "")
                    record_failure(trial, folder, f"The task of this run ended without a result: {what}")
                yield trial


class _Store:
    """References to rows in Ray's store; rows that are the same have one."""

    def __init__(self, put: Callable[[ReadRows], Any]) -> None:
        self._put = put
        self._by_choice: dict[Any, Any] = {}
        self._by_content: dict[bytes, Any] = {}

    def rows_of(self, trial: Trial) -> Any:
        choice = trial.choice
        key = (choice.dataset, choice.data, choice.given, choice.seed if choice.dataset is not None else None)
        if key not in self._by_choice:
            read = choice.read()
            # A data set that takes no seed is the same for each.
            content = hashlib.sha256(pickle.dumps(read, protocol=5)).digest()
            if content not in self._by_content:
                self._by_content[content] = self._put(read)
            self._by_choice[key] = self._by_content[content]
        return self._by_choice[key]


def _run_one(trial: Trial, read: ReadRows) -> bytes:
    """Run a trial where this task is, and return its folder as a ZIP file."""
    strategies().setdefault(trial.strategy, trial.entry)  # its module may not be here
    with tempfile.TemporaryDirectory(prefix="fedclust-") as path:
        folder = ComparisonFolder(path)
        folder.trials.mkdir()
        execute(trial, folder, read)
        place, packed = folder.trials / trial.key, io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(one for one in place.rglob("*") if one.is_file()):
                archive.write(file, file.relative_to(place))
        return packed.getvalue()


def _unpack(packed: bytes, trial: Trial, folder: ComparisonFolder) -> None:
    with folder.new_trial(trial.key) as place, zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(place)


@contextmanager
def _sent_by_value(trials: Sequence[Trial]) -> Iterator[None]:
    """Have the code of strategies that are not of this package sent along: other machines may not have it."""
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
    """Connect to Ray, or start it, and leave it as it was; in a process that is connected, nothing is to be done."""
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
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do some day
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, OSError) as error:
        said = str(error).partition("\n")[0]
        raise ConnectionError(f"There is no Ray at {on} that can be reached: {said}") from None
    try:
        yield
    finally:
        ray.shutdown()

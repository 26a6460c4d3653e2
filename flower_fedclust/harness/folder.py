"""The folder of a comparison: its settings, a folder per trial, and the table of all trials.

Layout::

    comparison.json    the settings and the planned runs
    runs/KEY/          the result of each trial that has ended; run.json has its row of the table
    results.csv        the table of all trials that have ended; also as results.parquet
    report.html        the page, once somebody has asked for it
"""

from __future__ import annotations

import errno
import json
import math
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from flower_fedclust.format import FORMAT, FormatError, check_format
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import read_json
from flower_fedclust.results.files import free_beside

_PACKAGES = ("flwr", "numpy", "scikit-learn", "flower-fedclust")
_KINDS = (
    ("string", ("key", "strategy", "variant", "data", "partition")),
    ("Int64", ("n_clients", "n_rows", "n_public", "n_columns", "n_classes", "n_clusters")),
    ("Float64", ("largest_class",)),
    ("Float64", ("epsilon", "delta")),
    ("string", ("privacy_unit", "noise")),
    ("Int64", ("seed",)),
    ("string", ("engine", "status", "reason")),
    ("Float64", ("accuracy", "nmi", "ari", "nca", "adjusted_accuracy")),
    ("Float64", ("cost", "cost_per_row", "cost_of_one_cluster", "largest_cluster")),
    ("Float64", ("silhouette", "davies_bouldin", "calinski_harabasz")),
    ("Float64", ("map_ca_10", "map_npa_10", "map_nmi", "map_trustworthiness", "epsilon_spent")),
    ("boolean", ("covers_everything",)),
    ("string", ("guarantee",)),
    ("Int64", ("bytes_up", "bytes_down", "rounds")),
    ("Float64", ("seconds", "peak_memory_mb")),
    ("string", ("python", *(name.replace("-", "_") for name in _PACKAGES))),
)
#: The columns of the table and their types.
COLUMNS: Mapping[str, str] = {name: kind for kind, names in _KINDS for name in names}

#: The status of runs that are known to be impossible before the first run starts.
LEFT_OUT = "left out"
_SETTINGS = "comparison.json"
_LOCK = ".lock"
_UNFINISHED = ".unfinished"


class ComparisonFolder:
    """The folder of a comparison, which one process at a time may write.

    It holds files that people can read: settings, a table, and a folder with the result of each
    trial. Every file, and every trial's folder, is written under another name and then moved. So a
    process that is killed leaves nothing incomplete, and a trial is done if its folder exists.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.trials = self.path / "runs"

    @contextmanager
    def opened(
        self, settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]] = ()
    ) -> Iterator[None]:
        """Create the folder if needed, and lock it for a comparison and its planned runs, both ready for JSON.

        Raises a FileExistsError if the folder holds anything else, or if another process is writing
        it.
        """
        self._check(settings)
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise FileExistsError(
                f"Another process is writing this comparison into {self.path}; wait for it, or name another folder."
            ) from None
        try:
            self._check(settings)
            self.trials.mkdir(exist_ok=True)
            if not (self.path / _SETTINGS).exists():
                started = datetime.now().astimezone().isoformat(timespec="seconds")
                content = {
                    "format": FORMAT,
                    **settings,
                    "versions": installed_versions(),
                    "started": started,
                }
                self.write(
                    _SETTINGS,
                    json.dumps(content | {"runs": [dict(run) for run in runs]}, indent=2).encode(),
                )
            self._forget_unfinished(runs)
            yield
        finally:
            self._forget_unfinished(runs)
            lock.release()

    def _forget_unfinished(self, runs: Sequence[Mapping[str, Any]]) -> None:
        """Remove the unfinished results of runs that were killed.

        Only the process that holds the lock may call this.
        """
        keys = {run["key"] for run in runs}
        for left in self.trials.glob(f"*{_UNFINISHED}"):
            if left.name.rsplit(".", 2)[0] in keys:
                shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def new_trial(self, key: str) -> Iterator[Path]:
        """Yield a temporary folder for a trial's files, and move it to its place when all of them are written.

        The final place may already exist. The record of a failed attempt there is replaced. If
        there is a result, another process was faster, and the new result goes beside it. Anything
        else is moved aside, never deleted.
        """
        unfinished = Path(mkdtemp(prefix=f"{key}.", suffix=_UNFINISHED, dir=self.trials))
        try:
            yield unfinished
            self._put(unfinished, self.trials / key)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _put(self, unfinished: Path, place: Path) -> None:
        """Move a trial's folder to its place, or to a free name next to it."""
        status = (self.row(place.name) or {}).get("status")
        if status == "done":
            place = free_beside(place)
            warnings.warn(
                f"another process has finished this run, too; this result is in {place}.",
                stacklevel=4,
            )
        elif status is not None:
            shutil.rmtree(place, ignore_errors=True)
        elif place.exists():
            place.rename(free_beside(place))
        unfinished.rename(place)

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a trial that has ended; None if it has not ended."""
        row = json_object(self.trials / key / "run.json")
        return row if row.get("status") in ("done", "failed", LEFT_OUT) else None

    def write_tables(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``results.csv`` and ``results.parquet``, a row per trial."""
        table = results_frame(rows)
        self.write("results.csv", table.to_csv(index=False).encode())
        self.write("results.parquet", table.to_parquet(index=False))

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the folder. A reader sees either the old content or the new one, never half of it."""
        temporary = self.path / f".{name}.new"
        try:
            temporary.write_bytes(content)
            temporary.replace(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise a FileExistsError if the folder holds anything but this comparison.

        A folder without settings may hold only what this class creates before it writes the
        settings. In a folder with settings, these must equal the settings of this comparison; the
        error names the first that differs.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise FileExistsError(f"{self.path} is a file; name a new folder.")
        path = self.path / _SETTINGS
        if not path.exists():
            ours = (_LOCK, f".{_SETTINGS}.new", self.trials.name)
            stranger = next(
                (
                    entry.name
                    for entry in self.path.rglob("*")
                    if entry.name not in ours or entry.is_symlink()
                ),
                None,
            )
            if stranger is not None or self.trials.is_file():
                raise FileExistsError(
                    f"{self.path} holds something other than a comparison ({stranger}); choose an empty folder."
                )
            return
        try:
            known = read_json(path, "choose an empty folder")
            check_format(known.get("format"), str(path), remedy="choose an empty folder")
            differs = [name for name in settings if known[name] != settings[name]]
        except FormatError as error:
            raise FileExistsError(str(error)) from None
        except (DataError, KeyError):
            raise FileExistsError(
                f"{path} does not hold this comparison; choose an empty folder."
            ) from None
        if differs:
            name = differs[0]
            there, here = (
                json.dumps(content[name], ensure_ascii=False) for content in (known, settings)
            )
            raise FileExistsError(
                f"{self.path} holds another comparison: its {name.replace('_', ' ')} is {there}, and here it is "
                f"{here}; give the same settings, or choose an empty folder."
            )


def results_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame that has every column of :data:`COLUMNS`, in order and with its type."""
    columns = {
        name: pd.array([row.get(name) for row in rows], dtype=kind)
        for name, kind in COLUMNS.items()
    }
    return pd.DataFrame(columns)


def installed_versions() -> dict[str, str | None]:
    """Return the installed versions that a result may depend on; None for a package that runs from source."""

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version()} | {
        name.replace("-", "_"): version(name) for name in _PACKAGES
    }


def is_disk_full(error: OSError) -> bool:
    """Tell whether an error means that the disk, or the user's quota, is full."""
    return error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def as_json(row: Mapping[str, Any]) -> str:
    """Return a row as JSON text; NaN and infinity become null, because JSON has neither."""
    lost = {
        name: None
        for name, value in row.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return json.dumps({**row, **lost}, indent=2, allow_nan=False) + "\n"


def json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; {} if the file is missing or cannot be read."""
    try:
        return read_json(path, "run again")
    except DataError:
        return {}

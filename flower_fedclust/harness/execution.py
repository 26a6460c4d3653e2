"""One trial of a comparison: its rows, its run, and what it writes."""

from __future__ import annotations

import csv
import re
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data import FederatedRows
from flower_fedclust.engine import ProtocolError
from flower_fedclust.harness.comparison import Trial, rows_fingerprint
from flower_fedclust.harness.comparison_folder import (
    COLUMNS,
    ComparisonFolder,
    as_json,
    installed_versions,
    is_disk_full,
)
from flower_fedclust.inputs import ReadRows
from flower_fedclust.models import TableModel
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.registry import strategies
from flower_fedclust.results.labels import as_cell
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import simulate

#: The scores of a map, and their columns in the table.
_MAP_SCORES = {"ca_10": "map_ca_10", "npa_10": "map_npa_10", "nmi": "map_nmi", "trustworthiness": "map_trustworthiness"}


def execute(trial: Trial, folder: ComparisonFolder, read: ReadRows | None = None) -> None:
    """Run one trial in this process and write its folder, also if the trial fails.

    Parameters
    ----------
    trial : Trial
    folder : ComparisonFolder
    read : ReadRows, optional
        The rows of its choice, if they were read before.

    Raises
    ------
    OSError
        If there is no room left; then nothing is written.
    """
    forget_peak_memory()
    row = asked(trial)
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
        said = list(dict.fromkeys(str(warning.message) for warning in warned))
        write_row(place, row, said)


def asked(trial: Trial) -> dict[str, Any]:
    """Return the part of the row that is known before the trial begins."""
    names = ("key", "strategy", "variant", "data", "n_clusters", "epsilon", "seed", "engine")
    known = {name: getattr(trial, name) for name in names}
    delta = None if trial.epsilon is None else trial.parameters.get("delta")
    return known | {"partition": trial.choice.partition_name, "delta": delta} | installed_versions()


def _outcome(trial: Trial, row: dict[str, Any], place: Path, read: ReadRows | None) -> dict[str, Any]:
    """Run the strategy, write its result, and return its part of the row."""
    if ":" not in trial.strategy:  # module:Class is found without the registry
        strategies().setdefault(trial.strategy, trial.entry)
    read = read or trial.choice.read()
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
    schema = trial.choice.schema if trial.made is not None else None
    result = simulate(strategy, rows, schema=schema, engine=trial.engine, seed=trial.seed, progress=False)  # type: ignore[arg-type]
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
    parts = rows.clients
    if isinstance(result.model, TableModel):
        parts = [result.model.prepare(client) for client in parts]
    scores = map_quality(of_shown(parts), of_shown(result.embedding), labels, random_state=seed)
    return {column: scores[name] for name, column in _MAP_SCORES.items() if name in scores}


def record_failure(trial: Trial, folder: ComparisonFolder, reason: str) -> None:
    """Write the folder of a trial that did not run, or not to its end."""
    with folder.new_trial(trial.key) as place:
        write_row(place, asked(trial) | {"status": "failed", "reason": reason})


def write_row(place: Path, row: Mapping[str, Any], said: Sequence[str] = ()) -> None:
    """Write the row of a trial, and what the trial warned of, into its folder."""
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

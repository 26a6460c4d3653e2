"""A result as a folder, and back: CSV, JSON and NumPy's arrays, and nothing that is pickled."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.results.doubts import Doubt
from flower_fedclust.results.findings import Findings
from flower_fedclust.results.labels import as_cell, from_cell, read_labels, write_labels, write_left_out
from flower_fedclust.models import Model
from flower_fedclust.format import read_stamped, stamp
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.outside import parsing, read_csv, read_json, reading
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.engine import Failure, Traffic
from flower_fedclust.engine.rounds import ReleasedSizes
from flower_fedclust.tables.description import Clusters

T = TypeVar("T")

_DESCRIPTION, _METRICS, _TRAFFIC, _PRIVACY = "result.json", "metrics.json", "traffic.csv", "privacy.json"
#: What the file of rows is called that no client had, and why none had them.
_LEFT_OUT, _MADE_PUBLIC = "left-out.csv", "made public for the server"


#: In bytes, of the name of a client in that of a file: file systems take 255 for the whole.
LONGEST_FILE_NAME = 200


def empty_folder(path: str | Path) -> Path:
    """Return the absolute path of a folder that does not exist or is empty; raise FileExistsError otherwise."""
    path = Path(path).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} already holds something; name a new folder, so that nothing is lost.")
    return path


def write_report(report: PrivacyReport, folder: Path) -> None:
    """Write ``privacy.json`` and ``privacy.txt`` into a folder."""
    (folder / _PRIVACY).write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    (folder / "privacy.txt").write_text(f"{report}\n", encoding="utf-8")


def save_findings(result: Findings, folder: str | Path) -> Path:
    """Write what a run found; see :meth:`flower_fedclust.Result.save`."""
    path = empty_folder(folder)
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=not is_new)  # of two that save at once, one alone makes it
    path.chmod(0o700)  # labels are as much as the rows say
    try:
        _write(result, path)
    except BaseException:  # no room is left, say: what is half there would be in the way of the next attempt
        for left in path.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        if is_new:
            path.rmdir()
        raise
    return path


def _write(result: Findings, path: Path) -> None:
    """Write the files of a result into an empty folder; the last is the one without which it is none."""
    result.model.save(path)
    centers = getattr(result.model, "cluster_centers_", None)
    if centers is not None:
        np.savetxt(path / "centers.csv", centers, delimiter=",", fmt="%.17g")
    files = _file_names(result.names)
    if result.labels:
        (path / "labels").mkdir()
        for index in range(len(result.labels)):
            _write_labels(result, index, path / "labels" / f"{files[index]}.csv")
    if result.server_row_ids is not None:
        write_left_out(path / _LEFT_OUT, result.server_row_ids, id_column=result.id_column, why=_MADE_PUBLIC)
    if result.embedding:
        (path / "embedding").mkdir()
        for file, places in zip(files, result.embedding, strict=False):
            np.savetxt(
                path / "embedding" / f"{file}.csv", places, delimiter=",", fmt="%.17g", header="x,y", comments=""
            )
    (path / _METRICS).write_text(json.dumps(result.summary(), indent=2) + "\n", encoding="utf-8")
    if result.clusters is not None:
        result.clusters.to_csv(path / "clusters.csv")
        (path / "clusters.txt").write_text(f"{result.clusters}\n", encoding="utf-8")
    write_report(result.privacy, path)
    with (path / _TRAFFIC).open("w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, [column.name for column in fields(Traffic)])
        table.writeheader()
        table.writerows({**asdict(row), "client": as_cell(row.client)} for row in result.traffic)
    description = {
        **stamp(),
        "clients": result.names,
        "files": files,
        "sizes": None if result.sizes is None else {**asdict(result.sizes), "counts": result.sizes.counts.tolist()},
        "clusters": None if result.clusters is None else result.clusters.to_dict(),
    }
    (path / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def _write_labels(result: Findings, index: int, path: Path) -> None:
    """Write the labels of a client; of one without any, why."""
    name, labels = result.names[index], result.labels[index]
    ids = result.row_ids[index] if result.row_ids else np.arange(len(labels))
    if len(labels) == len(ids):
        write_labels(path, ids.tolist(), labels.tolist(), id_column=result.id_column)
        return
    reasons = [failure.reason for failure in result.failures if failure.client == name]
    why = reasons[-1] if reasons else f"client {name} took no part."
    write_left_out(path, ids, id_column=result.id_column, why=why)


def read_findings(folder: str | Path) -> dict[str, Any]:
    """Return what :func:`save_findings` wrote, by the names of the fields; see :func:`flower_fedclust.load`."""
    path = find_folder(folder, _DESCRIPTION)
    description = read_stamped(path / _DESCRIPTION, beside=path / "model.npz")
    again = "run again"
    model, summary = Model.load(path), read_json(path / _METRICS, again)
    privacy = read_json(path / _PRIVACY, again)
    with parsing(str(path), "a saved result", again):
        names, files = [str(name) for name in description["clients"]], [_inside(name) for name in description["files"]]
        # A result of a deployment has no labels; where there are any, one file for each client, in their order.
        read = [read_labels(path / "labels" / f"{name}.csv") for name in files if (path / "labels").exists()]
        public = read_labels(path / _LEFT_OUT) if (path / _LEFT_OUT).exists() else None
        places = [path / "embedding" / f"{name}.csv" for name in files if (path / "embedding").exists()]
        traffic = [_traffic(row) for row in read_csv(path / _TRAFFIC, again)]
        return {
            "strategy": summary["strategy"],
            "model": model,
            "labels": [one.labels for one in read],
            "names": names,
            "privacy": PrivacyReport.from_dict(privacy),
            "traffic": traffic,
            "failures": [Failure(**failure) for failure in summary["failures"]],
            "metrics": summary["metrics"],
            "seconds": summary["seconds"],
            "embedding": [_places(place) for place in places],
            "history": {
                name: [math.nan if value is None else value for value in values]
                for name, values in summary["history"].items()
            },
            "doubts": tuple(Doubt(**doubt) for doubt in summary["doubts"]),
            "row_ids": [one.row_ids for one in read],
            "id_column": next((one.id_column for one in read), "row"),
            "server_row_ids": None if public is None else public.row_ids,
            "number": _if_any(summary["number"], _number),
            "sizes": _if_any(description["sizes"], _sizes),
            "clusters": _if_any(description["clusters"], Clusters.from_dict),
        }


def find_folder(folder: str | Path, file: str) -> Path:
    """Return the folder itself, or the only one inside that holds a file of this name.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If several inside do.
    """
    path = Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    inside = [] if (path / file).exists() else sorted(found.parent for found in path.glob(f"*/{file}"))
    if len(inside) > 1:
        raise ValueError(
            f"{folder} holds {len(inside)} results; name one of the folders {', '.join(one.name for one in inside)}."
        )
    return inside[0] if inside else path


def _if_any(written: Any, read: Callable[[Any], T]) -> T | None:
    return None if written is None else read(written)


def _number(written: dict[str, Any]) -> ClusterNumber:
    """Undo :meth:`ClusterNumber.to_dict`, where what is not finite is None."""
    kept = {one.name: written[one.name] for one in fields(ClusterNumber)}
    found: dict[str, Any] = {name: [math.nan if one is None else one for one in kept[name]] for name in kept}
    return ClusterNumber(**found)


def _sizes(written: dict[str, Any]) -> ReleasedSizes:
    return ReleasedSizes(**{**written, "counts": np.array(written["counts"], dtype=np.float64)})


def _places(path: Path) -> NDArray[np.float64]:
    with reading(path, "a map", "run again") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2).reshape(-1, 2)


def _inside(name: Any) -> str:
    """Return the name of a file in the folder of a result; raise ValueError if it leads out of it."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("it names a file outside its folder")
    return name


def _traffic(row: dict[str, str]) -> Traffic:
    up, down = int(row["bytes_up"]), int(row["bytes_down"])
    client = from_cell(row["client"])
    return Traffic(int(row["round"]), row["task"], client, bytes_down=down, bytes_up=up, ledger=row["ledger"])


def _file_names(names: Sequence[str]) -> list[str]:
    """Return names that any file system takes and tells apart, like those given where that can be."""
    safe = ["".join(letter if _is_safe(letter) else "_" for letter in name) for name in names]
    safe = [name.encode()[:LONGEST_FILE_NAME].decode(errors="ignore") for name in safe]
    numbered = [f"{index}-{name}" for index, name in enumerate(safe)]
    chosen = [
        file if file == name and name.strip(".") and not name.startswith("-") else number
        for file, name, number in zip(safe, names, numbered, strict=True)
    ]
    return chosen if len({file.lower() for file in chosen}) == len(chosen) else numbered


def _is_safe(letter: str) -> bool:
    """Tell whether the name of a file may have a letter: not where the system writes names in ASCII alone, say."""
    try:
        letter.encode(sys.getfilesystemencoding())
    except UnicodeEncodeError:
        return False
    return letter.isalnum() or letter in "-_."

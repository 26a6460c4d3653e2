"""A result as a folder of CSV, JSON and NumPy arrays, without pickles, and files of labels.

Everything is written in forms that other programs read, and can be read back without running code.
A folder is complete if it has ``result.json``, which is written last. Labels reveal as much as
rows, so files and folders can be read by their owner only.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import count, repeat
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from flower_fedclust.data.federation import ROW
from flower_fedclust.engine import Failure, Traffic
from flower_fedclust.engine.rounds import ReleasedSizes
from flower_fedclust.format import read_stamped, stamp
from flower_fedclust.models import Model
from flower_fedclust.numerics.blocks import blocks
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.validity import ClusterNumber, PeakNumber
from flower_fedclust.outside import parsing, read_csv, read_json, reading
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.results.doubts import Basis, Doubt
from flower_fedclust.results.result_data import Form, ResultData
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.survival import Survival

T = TypeVar("T")
Content = TypeVar("Content", bound=BaseModel)

_DESCRIPTION, _METRICS, _TRAFFIC, _PRIVACY = (
    "result.json",
    "metrics.json",
    "traffic.csv",
    "privacy.json",
)
#: The files of a privacy report.
REPORT_FILES = (_PRIVACY, "privacy.txt")
#: The file that lists the rows that no client had because they were made public, and the reason that it gives for
#: them.
_LEFT_OUT, _MADE_PUBLIC = "left-out.csv", "made public for the server"
#: The columns of a file of labels, after the ids.
_CLUSTER, _REASON = "cluster", "why"

#: The most bytes of a client's name in the name of a file; file systems allow 255 for the whole name.
LONGEST_FILE_NAME = 200

# A spreadsheet reads a cell that begins like this as a formula.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


# The fields of result.json and metrics.json, and their types. Other fields are refused.


def _checked_file_name(name: str) -> str:
    """Return the name of a file; raise a ValueError if it leads out of the folder."""
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("names a file outside its folder")
    return name


def _checked_number(value: float) -> float:
    """Return a number, which may be infinite; raise a ValueError for NaN."""
    if math.isnan(value):
        raise ValueError("is not a number")
    return value


_FileName: TypeAlias = Annotated[str, AfterValidator(_checked_file_name)]
_Number: TypeAlias = Annotated[float, AfterValidator(_checked_number)]
_NotNegative: TypeAlias = Annotated[FiniteFloat, Field(ge=0)]


class _Fields(BaseModel):
    """Base of the two classes; types must match exactly: True is not a number, and "1" is not an integer."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _SizeFields(_Fields):
    counts: list[_Number]
    deviation: _Number
    sum_deviation: _Number


class _FailureFields(_Fields):
    round: NonNegativeInt
    task: str
    client: str
    reason: str


class _DoubtFields(_Fields):
    code: str
    sentence: str
    numbers: dict[str, Any]
    basis: Basis


class _Description(_Fields):
    """The fields of ``result.json``."""

    format: int
    version: str | None
    clients: list[str]
    form: Form
    floor: NonNegativeInt
    files: list[_FileName]
    n_rows: list[NonNegativeInt]
    table_rows: NonNegativeInt | None
    sizes: _SizeFields | None
    clusters: dict[str, Any] | None
    survival: dict[str, Any] | None

    @model_validator(mode="after")
    def _one_for_each_client(self) -> Self:
        """Check that there is one file for each client, and a number of rows for each.

        A deployment has no labels, and so no numbers of rows.
        """
        n_clients = len(self.clients)
        if len(self.files) != n_clients:
            raise ValueError(f"files has length {len(self.files)}, and clients {n_clients}")
        if len(set(self.files)) != n_clients:
            raise ValueError("files has a name twice")
        if len(self.n_rows) not in (0, n_clients):
            raise ValueError(f"n_rows has length {len(self.n_rows)}, and clients {n_clients}")
        if (self.form == "table") != (self.table_rows is not None):
            raise ValueError(f"form is '{self.form}', but table_rows says otherwise")
        return self


class _Summary(_Fields):
    """The fields of ``metrics.json``."""

    strategy: str
    metrics: dict[str, _Number | None]
    seconds: _NotNegative
    clients: NonNegativeInt
    rounds: NonNegativeInt
    bytes_down: NonNegativeInt
    bytes_up: NonNegativeInt
    epsilon: _NotNegative | None
    delta: _NotNegative | None
    history: dict[str, list[FiniteFloat | None]]
    failures: list[_FailureFields]
    doubts: list[_DoubtFields]
    number: dict[str, Any] | None


def _checked(written: dict[str, Any], kind: type[Content], path: Path) -> Content:
    """Return the fields of a file; raise a DataError that names the file and the first wrong field."""
    try:
        return kind.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        reasons = {"extra_forbidden": "is unknown", "missing": "is missing"}
        reason = reasons.get(first["type"], first["msg"])
        reason = reason.removeprefix("Value error, ").replace("Input should be", "should be")
        raise DataError(f"{path}: {f'{place} {reason}'.strip()}; run again.") from None


# Files of labels.


def as_cell(text: object) -> object:
    """Return a text, with a quote in front if a spreadsheet would run it as a formula. Numbers are not changed."""
    if not isinstance(text, str) or _FORMULA.match(text) is None:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def from_cell(text: str) -> str:
    """Undo :func:`as_cell`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


@dataclass(frozen=True)
class LabelFile:
    """The content of a file of labels."""

    row_ids: NDArray[Any]  #: Ids or numbers of all rows, of shape (n_rows,).
    labels: NDArray[np.intp]  #: Labels of the rows that have one, of shape (n_labels,).
    id_column: str = ROW
    why: str = ""  #: Why the first row without a label has none.


def write_labels(
    path: Path,
    row_ids: Iterable[Any],
    labels: Iterable[int | None],
    *,
    id_column: str = ROW,
    why: Iterable[str] | None = None,
) -> None:
    """Write a new file of labels, which only its owner can read.

    Parameters
    ----------
    path : Path
    row_ids : iterable
    labels : iterable of int or None
        None for a row that was left out.
    id_column : str, default="row"
        The name of the ids. If another column has that name, "(id)" is appended.
    why : iterable of str, optional
        For each row the reason why it was left out, or "".
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            name = f"{id_column} (id)" if id_column in (_CLUSTER, _REASON) else id_column
            table.writerow([as_cell(name), _CLUSTER, *([] if why is None else [_REASON])])
            cells = map(as_cell, row_ids)
            table.writerows(
                zip(cells, labels, strict=True)
                if why is None
                else zip(cells, labels, why, strict=True)
            )
    except BaseException:
        path.unlink(missing_ok=True)  # a truncated CSV file looks complete
        raise


def each(array: NDArray[Any]) -> Iterator[Any]:
    """Yield the entries of a long array as Python's own values, without holding all of them in memory."""
    for part in blocks(len(array), 1, block_entries=2**14):
        yield from array[part].tolist()


def _write_left_out(path: Path, row_ids: NDArray[Any], *, id_column: str, why: str) -> None:
    """Write a file for rows that have no labels, all for the same reason."""
    n_rows = len(row_ids)
    write_labels(
        path, each(row_ids), repeat(None, n_rows), id_column=id_column, why=repeat(why, n_rows)
    )


def read_labels(path: Path) -> LabelFile:
    """Read a file that :func:`write_labels` wrote; ids are text unless all are integers."""
    import pandas as pd

    with reading(path, "a file of labels", "run again, or predict again") as file:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
        clusters, ids = frame[_CLUSTER], frame.iloc[:, 0]
        has_none = (clusters == "").to_numpy()
        reasons = frame[_REASON][has_none].tolist() if _REASON in frame else []
        labels = clusters[~has_none].astype(np.intp).to_numpy()
        return LabelFile(
            _as_ids([from_cell(name) for name in ids]),
            labels,
            from_cell(frame.columns[0]),
            *reasons[:1],
        )


def _as_ids(names: list[str]) -> NDArray[Any]:
    """Return names as integers if all are written as integers are, and otherwise as texts."""
    try:
        numbers = np.array([int(name) for name in names], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(names)
    return numbers if list(map(str, numbers.tolist())) == names else np.array(names)


# Folders.


def empty_folder(path: str | Path) -> Path:
    """Return the absolute path of a folder that is empty or does not exist; raise a FileExistsError for any other."""
    path = Path(path).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} already holds something; choose a new folder, so that nothing is lost."
        )
    return path


def free_beside(path: Path) -> Path:
    """Return the first free path of NAME-2, NAME-3 and so on."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(path for path in numbered if not path.exists() and not path.is_symlink())


def find_folder(folder: str | Path, file: str) -> Path:
    """Return the folder that holds a file of this name: the folder itself, or the only one inside it."""
    path = Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    inside = (
        [] if (path / file).exists() else sorted(match.parent for match in path.glob(f"*/{file}"))
    )
    if len(inside) > 1:
        raise ValueError(
            f"{folder} holds {len(inside)} results; name one of the folders "
            f"{', '.join(inner.name for inner in inside)}."
        )
    return inside[0] if inside else path


def _file_names(names: Sequence[str]) -> list[str]:
    """Return names for the clients' files.

    The names of files are valid on any file system, distinct, and as similar to the clients' names
    as possible.
    """
    safe = ["".join(letter if _is_safe(letter) else "_" for letter in name) for name in names]
    safe = [name.encode()[:LONGEST_FILE_NAME].decode(errors="ignore") for name in safe]
    numbered = [f"{index}-{name}" for index, name in enumerate(safe)]
    chosen = []
    for file, name, number in zip(safe, names, numbered, strict=True):
        is_usable = file == name and name.strip(".") and not name.startswith("-")
        chosen.append(file if is_usable else number)
    # On some file systems, two names that differ only in case mean the same file.
    n_different = len({file.lower() for file in chosen})
    return chosen if n_different == len(chosen) else numbered


def _is_safe(letter: str) -> bool:
    """Tell whether the name of a file may contain a letter, also on systems whose file names are ASCII."""
    try:
        letter.encode(sys.getfilesystemencoding())
    except UnicodeEncodeError:
        return False
    return letter.isalnum() or letter in "-_."


def write_report(report: PrivacyReport, folder: Path) -> None:
    """Write ``privacy.json`` and ``privacy.txt`` into a folder."""
    as_json, as_text = (folder / name for name in REPORT_FILES)
    as_json.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    as_text.write_text(f"{report}\n", encoding="utf-8")


def save_result(result: ResultData, folder: str | Path) -> Path:
    """Write a result into an empty folder; see :meth:`flower_fedclust.Result.save`.

    The files are first written into a temporary folder inside, and moved when all are complete. So
    two processes that save at the same time never mix or remove each other's files, and a failed
    attempt leaves nothing that looks like a result.
    """
    path = empty_folder(folder)
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=not is_new)  # only one of two processes that save at once can create it
    fresh, moved = Path(mkdtemp(prefix=".saving-", dir=path)), list[Path]()
    try:
        if any(entry != fresh for entry in path.iterdir()):
            raise FileExistsError(
                f"Another process saves into {path}; choose another folder, so that nothing is lost."
            )
        path.chmod(0o700)  # labels reveal as much as rows
        _write_files(result, fresh)
        # The description is moved last: a folder that has it has all files.
        for file in sorted(fresh.iterdir(), key=lambda file: file.name == _DESCRIPTION):
            moved.append(file.rename(path / file.name))
    except BaseException:  # for example a full disk: half a result would block the next attempt
        for left in (fresh, *moved):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(
                missing_ok=True
            )
        if is_new:
            with suppress(OSError):  # somebody else has put something there
                path.rmdir()
        raise
    fresh.rmdir()
    return path


def _write_files(result: ResultData, path: Path) -> None:
    """Write the files of a result; ``result.json`` comes last and shows that the others are complete.

    Files for people are CSV and text, and those for programs JSON and NumPy arrays: the model,
    centers, labels by client, rows that were left out, the map, metrics, descriptions, survival,
    the privacy report and the traffic.
    """
    result.model.save(path)
    centers = getattr(result.model, "cluster_centers_", None)
    if centers is not None:
        np.savetxt(path / "centers.csv", centers, delimiter=",", fmt="%.17g")
    files = _file_names(result.names)
    if result.labels_of_clients:
        (path / "labels").mkdir()
        for index in range(len(result.labels_of_clients)):
            _write_labels_of_client(result, index, path / "labels" / f"{files[index]}.csv")
    if result.server_row_ids is not None:
        _write_left_out(
            path / _LEFT_OUT, result.server_row_ids, id_column=result.id_column, why=_MADE_PUBLIC
        )
    if result.embedding:
        (path / "embedding").mkdir()
        for file, places in zip(files, result.embedding, strict=False):
            name = path / "embedding" / f"{file}.csv"
            np.savetxt(name, places, delimiter=",", fmt="%.17g", header="x,y", comments="")
    (path / _METRICS).write_text(json.dumps(result.summary(), indent=2) + "\n", encoding="utf-8")
    if result.clusters is not None:
        result.clusters.to_csv(path / "clusters.csv")
        (path / "clusters.txt").write_text(f"{result.clusters}\n", encoding="utf-8")
        result.clusters.table_one().save(path)
    if result.survival is not None:
        result.survival.to_csv(path / "survival.csv")
        (path / "survival.txt").write_text(f"{result.survival}\n", encoding="utf-8")
    write_report(result.privacy, path)
    with (path / _TRAFFIC).open("w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, [column.name for column in fields(Traffic)])
        table.writeheader()
        table.writerows({**asdict(row), "client": as_cell(row.client)} for row in result.traffic)
    description = {
        **stamp(),
        "clients": result.names,
        "form": result.form,
        "floor": result.floor,
        "files": files,
        # With these numbers, read_result() notices if a file of labels has lost lines.
        "n_rows": [
            len(_ids_of_client(result, index)) for index in range(len(result.labels_of_clients))
        ],
        # The number of rows of the table, if the clients were given as one table.
        "table_rows": _table_rows(result) if result.form == "table" else None,
        "sizes": None
        if result.sizes is None
        else {**asdict(result.sizes), "counts": result.sizes.counts.tolist()},
        "clusters": None if result.clusters is None else result.clusters.to_dict(),
        "survival": None if result.survival is None else result.survival.to_dict(),
    }
    (path / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def _write_labels_of_client(result: ResultData, index: int, path: Path) -> None:
    """Write a client's labels or, if it has none, the reason."""
    name, labels = result.names[index], result.labels_of_clients[index]
    ids = _ids_of_client(result, index)
    if len(labels) == len(ids):
        write_labels(path, each(ids), each(labels), id_column=result.id_column)
        return
    reasons = [failure.reason for failure in result.failures if failure.client == name]
    why = reasons[-1] if reasons else f"client {name} took no part."
    _write_left_out(path, ids, id_column=result.id_column, why=why)


def _table_rows(result: ResultData) -> int:
    """Return how many rows the table of all clients has, including the rows that were made public."""
    n_public = 0 if result.server_row_ids is None else len(result.server_row_ids)
    return n_public + sum(
        len(_ids_of_client(result, index)) for index in range(len(result.labels_of_clients))
    )


def _ids_of_client(result: ResultData, index: int) -> NDArray[Any]:
    """Return the ids of a client's rows, or their numbers."""
    if result.row_ids:
        return result.row_ids[index]
    return np.arange(len(result.labels_of_clients[index]))


def read_result(folder: str | Path) -> dict[str, Any]:
    """Return the fields of the result that :func:`save_result` wrote; see :func:`flower_fedclust.load`.

    Everything is checked on the way: the format, the names of files (which must not lead out of the
    folder), that every row has a label that the model knows, and that numbers are numbers. Raises a
    ValueError that names the damaged file.
    """
    path = find_folder(folder, _DESCRIPTION)
    again = "run again"
    stamped = read_stamped(path / _DESCRIPTION, beside=path / "model.npz")
    model, written = Model.load(path), read_json(path / _METRICS, again)
    description = _checked(stamped, _Description, path / _DESCRIPTION)
    summary = _checked(written, _Summary, path / _METRICS)
    privacy = read_json(path / _PRIVACY, again)
    with parsing(str(path), "a saved result", again):
        names, files = description.clients, description.files
        _check_agreement(description, summary, path)
        # There is a file for each client, in their order; a deployment has none, because it has no labels.
        read = [
            read_labels(path / "labels" / f"{name}.csv")
            for name in files[: len(description.n_rows)]
        ]
        public = read_labels(path / _LEFT_OUT) if (path / _LEFT_OUT).exists() else None
        for labels, n_rows, name in zip(read, description.n_rows, names[: len(read)], strict=True):
            _check_labels(labels, n_rows, model.n_clusters, name)
        if description.form == "table":
            _check_row_numbers(
                [labels.row_ids for labels in (*read, *filter(None, [public]))],
                description.table_rows,
            )
        places = [
            path / "embedding" / f"{name}.csv" for name in files if (path / "embedding").exists()
        ]
        return {
            "strategy": summary.strategy,
            "model": model,
            "labels_of_clients": [labels.labels for labels in read],
            "form": description.form,
            "floor": description.floor,
            "names": names,
            "privacy": PrivacyReport.from_dict(privacy),
            "traffic": [_traffic(row) for row in read_csv(path / _TRAFFIC, again)],
            "failures": [Failure(**dict(failure)) for failure in summary.failures],
            "metrics": {
                name: math.nan if value is None else value
                for name, value in summary.metrics.items()
            },
            "seconds": summary.seconds,
            "embedding": [_places(place) for place in places],
            "history": {
                name: [math.nan if value is None else value for value in values]
                for name, values in summary.history.items()
            },
            "doubts": tuple(Doubt(**dict(doubt)) for doubt in summary.doubts),
            "row_ids": [labels.row_ids for labels in read],
            "id_column": next((labels.id_column for labels in read), "row"),
            "server_row_ids": None if public is None else public.row_ids,
            "number": _unless_none(summary.number, _number),
            "sizes": _unless_none(description.sizes, _sizes),
            "clusters": _unless_none(description.clusters, Clusters.from_dict),
            "survival": _unless_none(description.survival, Survival.from_dict),
        }


def _check_agreement(description: _Description, summary: _Summary, path: Path) -> None:
    """Raise a DataError if the files of a saved result disagree about its clients or its labels."""
    n_clients = len(description.clients)
    if summary.clients != n_clients:
        raise DataError(
            f"{_METRICS}: clients is {summary.clients}, but {_DESCRIPTION} names {n_clients}; run again."
        )
    if (path / "labels").exists() != bool(description.n_rows):
        wrong = "is missing" if description.n_rows else "is there, but n_rows is empty"
        raise DataError(f"the folder labels {wrong}; run again.")


def _unless_none(written: Any, read: Callable[[Any], T]) -> T | None:
    """Return None for None, and otherwise what ``read`` makes of the value."""
    return None if written is None else read(written)


def _number(written: dict[str, Any]) -> ClusterNumber | PeakNumber:
    """Undo ``to_dict`` of a number of clusters, where None stands for any number that is not finite."""
    kind = PeakNumber if "rises" in written else ClusterNumber
    # A field with a default may be missing: results that were saved earlier do not have it.
    kept = {
        field.name: written[field.name]
        for field in fields(kind)
        if field.name in written or field.default is MISSING
    }
    ran_with, has_noise = kept.pop("ran_with", None), kept.pop("has_noise", True)
    numbers: dict[str, Any] = {
        name: [math.nan if value is None else value for value in kept[name]] for name in kept
    }
    if kind is PeakNumber:
        return PeakNumber(**numbers)
    if ran_with is not None and (type(ran_with) is not int or ran_with not in numbers["numbers"]):
        raise DataError(f"{_METRICS}: number.ran_with is none of number.numbers; run again.")
    if type(has_noise) is not bool:
        raise DataError(f"{_METRICS}: number.has_noise is neither true nor false; run again.")
    return ClusterNumber(**numbers, ran_with=ran_with, has_noise=has_noise)


def _sizes(written: _SizeFields) -> ReleasedSizes:
    """Return the released sizes that a result wrote."""
    return ReleasedSizes(**{**dict(written), "counts": np.array(written.counts, dtype=np.float64)})


def _places(path: Path) -> NDArray[np.float64]:
    """Return the places on a map that a result wrote, of shape (n_rows, 2)."""
    with reading(path, "a map", "run again") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2).reshape(-1, 2)


def _check_labels(labels: LabelFile, n_rows: int, n_clusters: int, name: str) -> None:
    """Raise a DataError unless every row of a client has a label that the model knows, or none has one."""
    if len(labels.row_ids) != n_rows:
        raise DataError(
            f"the labels of client {name} have {len(labels.row_ids)} lines for {n_rows} rows; run again."
        )
    if len(labels.labels) not in (0, n_rows):
        raise DataError(f"only some rows of client {name} have a label; run again.")
    if not ((labels.labels >= -1) & (labels.labels < n_clusters)).all():
        raise DataError(f"a label of client {name} is no cluster of the model; run again.")


def _check_row_numbers(numbers: Sequence[NDArray[Any]], n_rows: int | None) -> None:
    """Raise a DataError unless the files of labels together have every row of a table exactly once."""
    every = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *numbers]))
    if not np.array_equal(every, np.arange(n_rows or 0)):
        raise DataError("the files of labels do not have every row once; run again.")


def _traffic(row: dict[str, str]) -> Traffic:
    """Return the traffic in one line of ``traffic.csv``."""
    up, down = int(row["bytes_up"]), int(row["bytes_down"])
    client = from_cell(row["client"])
    return Traffic(
        int(row["round"]), row["task"], client, bytes_down=down, bytes_up=up, ledger=row["ledger"]
    )

"""The files of a site about a run: its answers, the client's memory between rounds, and the site's own result.

If a site is restarted during a run and a question is asked again, it must give the same answer. A
new answer would have new noise, and two noisy values of one sum reveal more than one. So every
answer is kept, in one SQLite file, together with what the client remembers between rounds.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from flwr.app import Array, ArrayRecord, Context
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status

from flower_fedclust.engine.client_data import ClientData, Outline
from flower_fedclust.engine.disk import joined, make_private, parted
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.store import Store
from flower_fedclust.engine.wire import decode
from flower_fedclust.format import FORMAT, check_format
from flower_fedclust.models import Model
from flower_fedclust.outside import parsing
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.privacy.report import Message, PrivacyReport
from flower_fedclust.results.result import Result
from flower_fedclust.site.ledger import LedgerError
from flower_fedclust.site.policy import printable, unit_of
from flower_fedclust.tables.schema import Schema

#: Prefix of the keys under which a client remembers things in its Context; see ``ProtocolClient.remember``.
REMEMBERED = "fedclust."

#: The name of the file in a site's folder, and the names of what older versions wrote instead.
FILE, OLDER = "kept.sqlite", ("runs", "table.json")

#: The name under which the file holds a client's memory of a run. Answers have other names.
MEMORY = "memory"

#: The place in the file where the outline of the table is kept.
TABLE = "table"

#: Remedy for a file that cannot be read.
REMEDY = "restore it from a backup, or move it away: then the site refuses the rounds that it has answered"


class Kept:
    """Everything that a site keeps, in a file that only the site's account can read.

    Each run has a place in the file. The place is named by a hash of the run's name, because a
    server chooses that name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.store = Store(self.path, "answers", REMEDY)

    def check_version(self) -> None:
        """Raise a LedgerError if an older version has kept answers in this folder: this version would not find them."""
        for name in OLDER:
            if (self.folder / name).exists():
                raise LedgerError(
                    f"{self.folder / name} is of an older version, which this one does not read; use the version that "
                    "wrote it until its runs have ended, and then move it away."
                )

    def check(self, entries: Iterable[Mapping[str, Any]], *, whole: bool = False) -> None:
        """Raise a LedgerError if there is a kept answer that the ledger does not know.

        In that case, lines of the ledger are missing.

        With ``whole``, the content of each answer is also compared with its hash in the ledger.
        """
        self.check_version()
        known: dict[tuple[str, str], str] = {}
        runs = {TABLE}
        for entry in entries:
            known[place_of(entry["run"]), entry["answer"]] = entry.get("sent", "")
            runs.add(place_of(entry["run"]))
        for place, name, _ in self.store.names():
            if place not in runs or (
                place != TABLE and name != MEMORY and (place, name) not in known
            ):
                raise LedgerError(
                    f"{self.path} has an answer ({place}, {name}) that the ledger does not know: lines of the ledger "
                    "are missing."
                )
            sent = known.get((place, name))
            if (
                whole
                and sent
                and hashlib.sha256(self.store.get(place, name) or b"").hexdigest() != sent
            ):
                raise LedgerError(
                    f"{self.path}: the answer ({place}, {name}) is not what the ledger says was sent; the site does "
                    "not send it again."
                )

    def forget_old_runs(self, keep_days: int) -> None:
        """Remove the runs without an answer in the last ``keep_days`` days, and keep the ledger.

        A run whose answer is being computed is not removed.
        """
        oldest, last = time.time() - keep_days * 86400, dict[str, float]()
        for place, _, changed in self.store.names():
            last[place] = max(changed, last.get(place, changed))
        for place in [
            place for place, changed in last.items() if changed < oldest and place != TABLE
        ]:
            with suppress(Timeout), _lock_of(self.folder, place, 0), self.store.changing():
                self.store.forget(place)


class KeptRun:
    """What is kept about one run."""

    def __init__(self, kept: Kept, run: str) -> None:
        self.place = place_of(run)
        self._kept = kept
        self._known: dict[str, int] = {}

    def answer(self, name: str) -> bytes | None:
        """Return an answer as it was sent; None if it is not kept."""
        return self._kept.store.get(self.place, name)

    def restore(self, context: Context) -> None:
        """Put what the client remembered of this run into a Context, and nothing of other runs."""
        for key in [key for key in context.state if key.startswith(REMEMBERED)]:
            del context.state[key]
        content = self._kept.store.get(self.place, MEMORY)
        if content is not None:
            about, tensors = _read(content, str(self._kept.path))
            rest = iter(tensors)
            for key, fields in about["memory"].items():
                arrays = {
                    name: Array(dtype, tuple(shape), stype, next(rest))
                    for name, dtype, shape, stype in fields
                }
                context.state[key] = ArrayRecord(arrays)
        self._known = _identities(context)

    def keep(self, context: Context, answers: Mapping[str, bytes]) -> None:
        """Write answers, and the client's memory if it has changed; return when both are on the disk.

        Answers and memory are written together or not at all. So an answer that was lost is
        computed again from the same memory as before.
        """
        known = _identities(context)
        if known == self._known and not answers:
            return
        with self._kept.store.changing():
            for name, content in answers.items():
                self._kept.store.put(self.place, name, content)
            if known != self._known:
                self._kept.store.put(self.place, MEMORY, _memory_to_bytes(context, known))
        self._known = known


def _memory_to_bytes(context: Context, keys: Iterable[str]) -> bytes:
    """Return the records that a client remembers as bytes."""
    records = {key: dict(context.state.array_records[key]) for key in keys}
    memory = {
        key: [[name, array.dtype, array.shape, array.stype] for name, array in arrays.items()]
        for key, arrays in records.items()
    }
    tensors = [array.data for arrays in records.values() for array in arrays.values()]
    return joined({"format": FORMAT, "memory": memory}, tensors)


def _identities(context: Context) -> dict[str, int]:
    """Return the identity of each record that a client remembers; it changes if the record was replaced."""
    return {
        key: id(record)
        for key, record in context.state.items()
        if key.startswith(REMEMBERED) and isinstance(record, ArrayRecord)
    }


#: The number of locks that all runs of a site share. With one lock for each run, a server could make the site create
#: any number of files.
N_LOCKS = 256


def run_lock(site_folder: Path, run: str, timeout: float = -1) -> FileLock:
    """Return the lock under which the answers of a run are computed.

    Two equal messages at the same time must not get two draws of the noise.
    """
    return _lock_of(site_folder, place_of(run), timeout)


def _lock_of(site_folder: Path, place: str, timeout: float) -> FileLock:
    """Return the lock of a place; several places may share one."""
    number = int.from_bytes(hashlib.sha256(place.encode()).digest()[:8]) % N_LOCKS
    return FileLock(
        make_private(site_folder / "locks") / f"{number}.lock", timeout=timeout, mode=0o600
    )


def place_of(run: str) -> str:
    """Return the place of a run: a hash of its name."""
    return hashlib.sha256(run.encode()).hexdigest()[:20]


def answer_to_bytes(answer: FitRes | EvaluateRes) -> bytes:
    """Return an answer as bytes; :func:`answer_from_bytes` reads them."""
    about: dict[str, Any] = {
        "format": FORMAT,
        "num_examples": answer.num_examples,
        "metrics": dict(answer.metrics),
    }
    if isinstance(answer, EvaluateRes):
        return joined(about | {"loss": answer.loss}, [])
    return joined(about, answer.parameters.tensors)


def answer_from_bytes(content: bytes) -> FitRes | EvaluateRes:
    """Return the answer that :func:`answer_to_bytes` wrote."""
    about, tensors = _read(content, "the answer that was kept")
    if "loss" in about:
        return evaluate_res(about["loss"], about["num_examples"], about["metrics"])
    return fit_res(tensors, about["metrics"], about["num_examples"])


def _read(content: bytes, label: str) -> tuple[dict[str, Any], list[bytes]]:
    """Return the facts and the arrays in kept bytes.

    Raise an error that names ``label`` if another version wrote them.
    """
    about, tensors = parted(content)
    check_format(
        about.get("format"),
        label,
        "this site",
        "use the version that wrote it until the run has ended",
    )
    return about, tensors


def fit_res(tensors: list[bytes], metrics: Mapping[str, Any], num_examples: int = 1) -> FitRes:
    """Return Flower's reply to a round."""
    return FitRes(
        Status(Code.OK, ""), Parameters(tensors, "numpy.ndarray"), num_examples, dict(metrics)
    )


def evaluate_res(loss: float, num_examples: int, metrics: Mapping[str, Any]) -> EvaluateRes:
    """Return Flower's reply to a request to evaluate a model."""
    return EvaluateRes(Status(Code.OK, ""), loss, num_examples, dict(metrics))


# The outline: facts about the table that messages may use before anybody looks at a row.


def read_outline(kept: Kept, asked: str) -> Outline | None:
    """Return the outline of the table that ``asked`` describes; None if none is kept."""
    content = kept.store.get(TABLE, TABLE)
    if content is None:
        return None
    with parsing(str(kept.path), "the outline of a table", REMEDY):
        content_read = json.loads(content)
        if (content_read["format"], content_read["asked"]) != (FORMAT, asked):
            return None
        columns, schema = content_read["columns"], content_read["schema"]
        return Outline(
            content_read["n_rows"],
            content_read["n_columns"],
            None if columns is None else tuple(columns),
            None if schema is None else Schema.from_json(schema),
            most_rows=content_read["most_rows"],
            n_subjects=content_read["n_subjects"],
        )


def write_outline(kept: Kept, asked: str, outline: Outline) -> None:
    """Keep the outline of a table, for messages that come before anybody may look at its rows."""
    schema = None if outline.schema is None else outline.schema.to_json()
    about = {
        "asked": asked,
        "n_rows": outline.n_rows,
        "n_columns": outline.n_columns,
        "columns": outline.columns,
    }
    about |= {"schema": schema, "most_rows": outline.most_rows, "n_subjects": outline.n_subjects}
    content = json.dumps({"format": FORMAT, **about}).encode()
    if kept.store.get(TABLE, TABLE) != content:
        with kept.store.changing():
            kept.store.put(TABLE, TABLE, content)


# The site's own result of a run.


def save_result(
    kept: Kept,
    name: str,
    data: ClientData,
    entries: Sequence[Mapping[str, Any]],
    context: Context,
    config: Mapping[str, Any],
    arrays: Parameters,
) -> Path:
    """Save a run's result at a site, for ``fc.load``, and return its folder; an earlier result is not replaced.

    Parameters
    ----------
    kept : Kept
    name : str
        The site.
    data : ClientData
    entries : sequence of mapping
        The ledger's entries of the run.
    context : Context
        The client's memory of the run is put into it.
    config, arrays : mapping, Parameters
        The message with the model.
    """
    run, strategy = entries[0]["run"], entries[0]["strategy"] or "run"
    results, kept_run = make_private(kept.folder / "results"), KeptRun(kept, run)
    mark = kept_run.place[:8]
    former = next((folder for folder in results.iterdir() if folder.name.endswith(mark)), None)
    if former is not None:
        return former
    kept_run.restore(context)
    model = Model.named(str(config.get("model"))).from_arrays(decode(arrays))
    if model.columns_ is None:
        model.columns_ = data.columns
    # The places and the labels of rows that the client has computed or received during the run.
    answer, labels = data.cluster(model, _recalled(context, "places")), _recalled(context, "labels")
    result = Result(
        strategy=strategy,
        model=model,
        labels_of_clients=[
            answer.labels
            if labels is None or len(labels) != data.n_rows
            else labels.astype(np.intp)
        ],
        names=[name],
        privacy=report_of(entries, strategy),
        traffic=[],
        failures=[],
        metrics={},
        seconds=0.0,
        embedding=[] if answer.places is None else [answer.places],
        row_ids=[data.ids],
        id_column=data.id_column,
    )
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    saved = result.save(make_private(results / f"{stamp} {strategy.replace(',', ' ')} {mark}"))
    for kind in ("clusters", "survival"):
        if said := str(config.get(kind, "")):  # the limits on messages bound its length
            lines = "".join(f"{printable(line)}\n" for line in said.split("\n"))
            (saved / f"{kind}.txt").write_text(lines, encoding="utf-8")
    return saved


def report_of(entries: Sequence[Mapping[str, Any]], strategy: str) -> PrivacyReport:
    """Return the privacy report of a run as one site's ledger gives it: what has left this site.

    It may differ from the server's report. Noise multipliers follow from the site's own clipping.
    Noise that others are said to add is called a promise. An answer that was charged but never sent
    is marked.

    Parameters
    ----------
    entries : sequence of mapping
        The ledger's entries of the run, at least one.
    strategy : str
    """
    messages: list[Message] = []
    notes = [
        "This is what has left one site, by its own ledger; multipliers are relative to the site's clipping."
    ]
    places: set[NoisePlace] = set()
    for entry in entries:
        number, task = entry["round"], entry["task"]
        if task == ENROL and entry.get("sent"):
            messages.append(
                Message(number, task, "name and columns", "of this site", harmless=True)
            )
        for array in entry["arrays"]:
            covered, detail = array.get("covered"), f"one per {array.get('per', 'client')}"
            if covered == "kept at the site":
                continue
            detail += ", masked for a secure sum" if array.get("masked") else ""
            detail += "" if entry.get("sent") else ", charged and not sent"
            release = _release_of(array)
            if release is not None:
                places.add("clients" if array["shares"] > 1 else "local")
            elif covered is not None and covered.startswith("noise of the server"):
                detail += ", with noise that the server promises to add"
                places.add("server")
            message = Message(
                number,
                task,
                array["content"],
                detail,
                release,
                post_processing=covered == "computed from rows that carry noise",
                reveals=array.get("reveals", "sums"),
            )
            messages.append(message)
    if any(entry["is_claim"] for entry in entries):
        notes.append(
            "The epsilon of this run rests on noise that others add; the site cannot check it."
        )
    epsilon = max(entry["epsilon"] for entry in entries)
    return PrivacyReport(
        strategy=strategy,
        messages=tuple(messages),
        requested_epsilon=epsilon or None,
        delta=max(entry["delta"] for entry in entries) or None,
        unit=unit_of(max(entries, key=lambda entry: float(entry["epsilon"]))) if epsilon else None,
        noise=next(iter(sorted(places)), None) if len(places) == 1 else None,
        notes=tuple(notes),
    )


def _release_of(array: Mapping[str, Any]) -> Release | None:
    """Return the release of an array with noise, from its entry in the ledger; None without noise."""
    if "multiplier" not in array:
        return None
    return Release(
        array["mechanism"],
        1.0,
        array["multiplier"],
        "in units of what the site clips to",
        array["relation"],
        share=array["share"],
    )


def _recalled(context: Context, key: str) -> Any:
    """Return the first array that the client remembers under a key; None if there is none."""
    record = context.state.get(f"{REMEMBERED}{key}")
    arrays = record.to_numpy_ndarrays() if isinstance(record, ArrayRecord) else []
    return arrays[0] if arrays else None

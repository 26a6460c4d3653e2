"""What a site keeps of a run: its answers, what the client remembers from round to round, and the site's own result."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock, Timeout
from flwr.app import Array, ArrayRecord, Context
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status

from flower_fedclust.engine.client_data import ClientData, Outline
from flower_fedclust.engine.disk import joined, make_private, open_private, parted, replace_private
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.wire import decode
from flower_fedclust.format import FORMAT, check_format
from flower_fedclust.models import Model
from flower_fedclust.outside import parsing, read_json
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.privacy.report import Message, PrivacyReport
from flower_fedclust.results.result import Result
from flower_fedclust.site.ledger import LedgerError
from flower_fedclust.site.policy import printable
from flower_fedclust.tables.schema import Schema

#: Prefix of the keys under which a client remembers things in its Context; see ``ProtocolClient.remember``.
REMEMBERED = "fedclust."

#: Suffix of the files of answers.
ANSWER = ".answer"

#: The file of what a client remembers.
MEMORY = "memory"


class RunFolder:
    """The folder of one run; its name is a hash, because the run's name may come from anybody."""

    def __init__(self, all_runs: Path, run: str) -> None:
        self.path = all_runs / _folder_of(run)
        self._known: dict[str, int] = {}

    def keep(self, name: str, answer: bytes) -> IO[bytes]:
        """Write an answer, and return its open file: wait until it is on the disk before the answer leaves.

        The hash in the ledger shows whether the file is complete.
        """
        make_private(self.path)
        file = open_private(self.path / f"{name}{ANSWER}")
        file.write(answer)
        return file

    def kept(self, name: str) -> bytes | None:
        """Return an answer as it was sent, or None."""
        path = self.path / f"{name}{ANSWER}"
        return path.read_bytes() if path.exists() else None

    def restore(self, context: Context) -> None:
        """Put what the client remembered of this run, and nothing of other runs, into a Context."""
        for key in [key for key in context.state if key.startswith(REMEMBERED)]:
            del context.state[key]
        path = self.path / MEMORY
        if path.exists():
            about, tensors = _read(path.read_bytes(), str(path))
            rest = iter(tensors)
            for key, fields in about["memory"].items():
                arrays = {name: Array(dtype, tuple(shape), stype, next(rest)) for name, dtype, shape, stype in fields}
                context.state[key] = ArrayRecord(arrays)
        self._known = _identities(context)

    def remember(self, context: Context, before: Sequence[IO[bytes]] = ()) -> None:
        """Write what the client remembers, if it has changed.

        The files ``before`` (the answer) reach the disk first: an answer that is not on the disk may be computed again,
        from what was remembered then.
        """
        known = _identities(context)
        if known == self._known:
            return
        records = {key: dict(context.state.array_records[key]) for key in known}
        memory = {
            key: [[name, array.dtype, array.shape, array.stype] for name, array in arrays.items()]
            for key, arrays in records.items()
        }
        tensors = [array.data for arrays in records.values() for array in arrays.values()]
        make_private(self.path)
        replace_private(self.path / MEMORY, joined({"format": FORMAT, "memory": memory}, tensors), before)
        self._known = known


def _identities(context: Context) -> dict[str, int]:
    return {
        key: id(record)
        for key, record in context.state.items()
        if key.startswith(REMEMBERED) and isinstance(record, ArrayRecord)
    }


#: How many locks the runs of a site share, so that no server can make it create more files.
N_LOCKS = 256


def run_lock(site_folder: Path, run: str, timeout: float = -1) -> FileLock:
    """Return the lock under which a run is computed: equal messages at once must not get two draws of the noise."""
    return _lock_of(site_folder, _folder_of(run), timeout)


def _lock_of(site_folder: Path, name: str, timeout: float) -> FileLock:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % N_LOCKS
    return FileLock(make_private(site_folder / "locks") / f"{number}.lock", timeout=timeout, mode=0o600)


def _folder_of(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:20]


def check_kept(all_runs: Path, entries: Iterable[Mapping[str, Any]], *, whole: bool = False) -> None:
    """Raise a LedgerError if an answer is kept that the ledger does not know: the ledger's last lines are missing.

    ``whole`` also compares the content of each answer with the hash in the ledger.
    """
    known: dict[str, dict[str, str]] = {}
    for entry in entries:
        known.setdefault(_folder_of(entry["run"]), {})[entry["answer"] + ANSWER] = entry.get("sent", "")
    for folder in all_runs.iterdir() if all_runs.exists() else ():
        own, kept = known.get(folder.name), list(folder.glob(f"*{ANSWER}"))
        for path in [folder] if own is None else [path for path in kept if path.name not in own]:
            raise LedgerError(f"{path} is kept, but the ledger does not know it: lines of the ledger are missing.")
        for path in kept if whole else ():
            sent = (own or {})[path.name]
            if sent and hashlib.sha256(path.read_bytes()).hexdigest() != sent:
                raise LedgerError(f"{path} is not what the ledger says was sent; the site does not send it again.")


def forget_old_runs(all_runs: Path, keep_days: int) -> None:
    """Remove the folders of runs without an answer for so many days, but not of one that computes. The ledger stays."""
    oldest = time.time() - keep_days * 86400
    for folder in all_runs.iterdir() if all_runs.exists() else ():
        if folder.is_dir() and all(file.stat().st_mtime < oldest for file in [folder, *folder.iterdir()]):
            with suppress(Timeout), _lock_of(all_runs.parent, folder.name, 0):
                shutil.rmtree(folder)


def answer_to_bytes(answer: FitRes | EvaluateRes) -> bytes:
    """Return an answer as bytes."""
    about: dict[str, Any] = {"format": FORMAT, "num_examples": answer.num_examples, "metrics": dict(answer.metrics)}
    if isinstance(answer, EvaluateRes):
        return joined(about | {"loss": answer.loss}, [])
    return joined(about, answer.parameters.tensors)


def answer_from_bytes(content: bytes) -> FitRes | EvaluateRes:
    """Return the answer that :func:`answer_to_bytes` wrote."""
    about, tensors = _read(content, "the answer that was kept")
    if "loss" in about:
        return evaluate_res(about["loss"], about["num_examples"], about["metrics"])
    return fit_res(tensors, about["metrics"], about["num_examples"])


def _read(content: bytes, what: str) -> tuple[dict[str, Any], list[bytes]]:
    about, tensors = parted(content)
    check_format(about.get("format"), what, "this site", "use the version that wrote it until the run has ended")
    return about, tensors


def fit_res(tensors: list[bytes], metrics: Mapping[str, Any], num_examples: int = 1) -> FitRes:
    """Return Flower's answer to a round."""
    return FitRes(Status(Code.OK, ""), Parameters(tensors, "numpy.ndarray"), num_examples, dict(metrics))


def evaluate_res(loss: float, num_examples: int, metrics: Mapping[str, Any]) -> EvaluateRes:
    """Return Flower's answer to a request to evaluate a model."""
    return EvaluateRes(Status(Code.OK, ""), loss, num_examples, dict(metrics))


# What a site knows of its table without looking at a row.

#: The remedy if the file cannot be read.
REMEDY = "remove it, and start the site again"


def read_outline(path: Path, asked: str) -> Outline | None:
    """Return the outline of the table that ``asked`` describes; None if the file has none of it."""
    if not path.exists():
        return None
    found = read_json(path, REMEDY)
    check_format(found.get("format"), str(path), remedy=REMEDY)
    with parsing(str(path), "the outline of a table", REMEDY):
        if found["asked"] != asked:
            return None
        columns, schema = found["columns"], found["schema"]
        return Outline(
            found["n_rows"],
            found["n_columns"],
            None if columns is None else tuple(columns),
            None if schema is None else Schema.from_json(schema),
        )


def write_outline(path: Path, asked: str, outline: Outline) -> None:
    """Keep what is known of a table, for messages that come before anybody may look at its rows."""
    schema = None if outline.schema is None else outline.schema.to_json()
    about = {"asked": asked, "n_rows": outline.n_rows, "n_columns": outline.n_columns, "columns": outline.columns}
    content = json.dumps({"format": FORMAT, **about, "schema": schema}).encode()
    make_private(path.parent)
    with FileLock(f"{path}.lock", mode=0o600):
        if not path.exists() or path.read_bytes() != content:
            replace_private(path, content)


# The site's own result of a run.


def save_result(
    folder: Path,
    name: str,
    data: ClientData,
    entries: Sequence[Mapping[str, Any]],
    context: Context,
    config: Mapping[str, Any],
    arrays: Parameters,
) -> Path:
    """Save a run's result at a site, as ``fc.load`` reads it, and return its folder; keep an earlier one.

    ``entries`` are the ledger's for the run, ``config`` and ``arrays`` the message with the model. What the client
    remembers of the run is put into ``context``.
    """
    run, strategy = entries[0]["run"], entries[0]["strategy"] or "run"
    results, run_folder = make_private(folder / "results"), RunFolder(folder / "runs", run)
    mark = run_folder.path.name[:8]
    former = next((one for one in results.iterdir() if one.name.endswith(mark)), None)
    if former is not None:
        return former
    run_folder.restore(context)
    model = Model.named(str(config.get("model"))).from_arrays(decode(arrays))
    if model.columns_ is None:
        model.columns_ = data.columns
    # The places and labels that the client found in the run, or was told.
    found, own = data.cluster(model, _recalled(context, "places")), _recalled(context, "labels")
    result = Result(
        strategy=strategy,
        model=model,
        labels=[found.labels if own is None or len(own) != data.n_rows else own.astype(np.intp)],
        names=[name],
        privacy=report_of(entries, strategy),
        traffic=[],
        failures=[],
        metrics={},
        seconds=0.0,
        embedding=[] if found.places is None else [found.places],
        row_ids=[data.ids],
        id_column=data.id_column,
    )
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    saved = result.save(make_private(results / f"{stamp} {strategy.replace(',', ' ')} {mark}"))
    if described := str(config.get("clusters", "")):  # its length is limited with the message
        lines = "".join(f"{printable(line)}\n" for line in described.split("\n"))
        (saved / "clusters.txt").write_text(lines, encoding="utf-8")
    return saved


def report_of(entries: Sequence[Mapping[str, Any]], strategy: str) -> PrivacyReport:
    """Return the privacy report of a run from one site's ledger: what has left this site."""
    messages: list[Message] = []
    notes = ["This is what has left one site, by its own ledger; multipliers are relative to the site's clipping."]
    places: set[NoisePlace] = set()
    for entry in entries:
        number, task = entry["round"], entry["task"]
        if task == ENROL and entry.get("sent"):
            messages.append(Message(number, task, "name and columns", "of this site", harmless=True))
        for array in entry["arrays"]:
            covered, detail = array.get("covered"), f"one per {array.get('per', 'client')}"
            if covered == "kept at the site":
                continue
            detail += ", masked for a secure sum" if array.get("masked") else ""
            detail += "" if entry.get("sent") else ", charged and not sent"
            release = None
            if "multiplier" in array:
                bound = "in units of what the site clips to"
                multiplier = array["multiplier"]
                release = Release(array["mechanism"], 1.0, multiplier, bound, array["relation"], share=array["share"])
                places.add("clients" if array["shares"] > 1 else "local")
            elif covered is not None and covered.startswith("noise of the server"):
                detail += ", with noise that the server promises to add"
                places.add("server")
            derived, kind = covered == "computed from rows that carry noise", array.get("reveals", "sums")
            message = Message(number, task, array["content"], detail, release, post_processing=derived, reveals=kind)
            messages.append(message)
    if any(entry["is_claim"] for entry in entries):
        notes.append("The epsilon of this run rests on noise that others add; the site cannot check it.")
    epsilon = max(entry["epsilon"] for entry in entries)
    return PrivacyReport(
        strategy=strategy,
        messages=tuple(messages),
        requested_epsilon=epsilon or None,
        delta=max(entry["delta"] for entry in entries) or None,
        unit="record" if epsilon else None,
        noise=next(iter(sorted(places)), None) if len(places) == 1 else None,
        notes=tuple(notes),
    )


def _recalled(context: Context, key: str) -> Any:
    record = context.state.get(f"{REMEMBERED}{key}")
    arrays = record.to_numpy_ndarrays() if isinstance(record, ArrayRecord) else []
    return arrays[0] if arrays else None

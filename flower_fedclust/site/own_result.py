"""A site's own result of a run: the model, labels of its rows, and a report of what has left the site."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.common import Parameters

from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.disk import make_private
from flower_fedclust.engine.wire import decode
from flower_fedclust.models import Model, TableModel
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.privacy.report import Message, PrivacyReport
from flower_fedclust.results.result import Result
from flower_fedclust.site.kept import REMEMBERED, RunFolder


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
    rows = data.table if isinstance(model, TableModel) else data.rows
    # The places and labels that the client found in the run, or was told.
    found, own = model.cluster(rows, _recalled(context, "places")), _recalled(context, "labels")
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
    return result.save(make_private(results / f"{stamp} {strategy.replace(',', ' ')} {mark}"))


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

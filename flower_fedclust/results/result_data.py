"""The data of a result, and how it is shown in ten lines."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import ROW
from flower_fedclust.engine import Failure, Traffic
from flower_fedclust.engine.rounds import ReleasedSizes
from flower_fedclust.models import Model
from flower_fedclust.numerics.metrics import cluster_sizes
from flower_fedclust.numerics.validity import ClusterNumber, PeakNumber
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.results.doubts import Doubt
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.floors import FLOOR
from flower_fedclust.tables.survival import Survival

#: The form in which clients were given: several rows or tables, a dict of them, or one table of all.
Form = Literal["list", "dict", "table"]
#: The most cluster sizes that are listed.
_MOST_SIZES = 12
#: The number of characters in a line, and the number in its first column.
_WIDTH, _MARGIN = 118, 13


@dataclass(frozen=True, repr=False)
class ResultData:
    """The fields of a :class:`~flower_fedclust.Result`, which documents them."""

    strategy: str
    model: Model
    labels_of_clients: list[NDArray[np.intp]]
    names: list[str]
    privacy: PrivacyReport
    traffic: list[Traffic]
    failures: list[Failure]
    metrics: dict[str, float]
    seconds: float
    embedding: list[NDArray[np.float64]] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    number: ClusterNumber | PeakNumber | None = None
    sizes: ReleasedSizes | None = None
    clusters: Clusters | None = None
    survival: Survival | None = None
    row_ids: list[NDArray[Any]] = field(default_factory=list)
    id_column: str = ROW
    server_row_ids: NDArray[Any] | None = None
    form: Form = "list"
    floor: int = FLOOR

    @property
    def labels(self) -> list[NDArray[np.intp]] | dict[str, NDArray[np.intp]] | NDArray[np.intp]:
        """The cluster of each row, in the form in which the clients were given.

        If the clients were a dict, it is a dict by client. If they were one table, it is one array
        in the order of the table's rows, with -1 for rows that have no cluster. Otherwise it is a
        list, in the order of the clients.
        """
        if self.form == "dict":
            return dict(zip(self.names, self.labels_of_clients, strict=False))
        if self.form == "list" or not self.labels_of_clients:
            return self.labels_of_clients
        everywhere = [
            *self.row_ids,
            *([] if self.server_row_ids is None else [self.server_row_ids]),
        ]
        by_id = np.full(1 + max(int(ids.max(initial=-1)) for ids in everywhere), -1, dtype=np.intp)
        for ids, labels in zip(self.row_ids, self.labels_of_clients, strict=True):
            if len(ids) == len(labels):  # otherwise the client took no part
                by_id[ids] = labels
        return by_id

    @property
    def bytes_down(self) -> int:
        """Bytes from the server to all clients."""
        return sum(row.bytes_down for row in self.traffic)

    @property
    def bytes_up(self) -> int:
        """Bytes from all clients to the server."""
        return sum(row.bytes_up for row in self.traffic)

    @property
    def n_rounds(self) -> int:
        """The number of rounds of the run."""
        return max((row.round for row in self.traffic), default=0)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the run, ready for JSON: a metric that is NaN is None."""
        return {
            "strategy": self.strategy,
            "metrics": {
                name: None if math.isnan(value) else value for name, value in self.metrics.items()
            },
            "seconds": self.seconds,
            "clients": len(self.names),
            "rounds": self.n_rounds,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "epsilon": self.privacy.to_dict()["epsilon"],
            "delta": self.privacy.delta,
            "history": {
                name: [value if math.isfinite(value) else None for value in values]
                for name, values in self.history.items()
            },
            "failures": [asdict(failure) for failure in self.failures],
            "doubts": [doubt.to_dict() for doubt in self.doubts],
            "number": None if self.number is None else self.number.to_dict(),
        }

    def __repr__(self) -> str:
        lines = [self._headline()]
        for name, text in self._facts().items():
            lines.append(
                f"{name:<{_MARGIN}}{textwrap.shorten(text, _WIDTH - _MARGIN, placeholder=' ...')}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left;vertical-align:top">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._facts().items()
        )
        return (
            f'<div style="max-width:60em"><p><b>{escape(self._headline())}</b></p><table>{rows}</table>'
            f"<details><summary>The privacy report</summary>"
            f'<pre style="white-space:pre-wrap">{escape(str(self.privacy))}</pre></details></div>'
        )

    def _headline(self) -> str:
        """Return the first line: strategy, clusters, rows, clients, rounds and seconds."""
        n_rows, n_clients = sum(map(len, self.labels_of_clients)), len(self.names)
        rows = f" of {n_rows:,} rows" if n_rows else ""
        return (
            f"{self.strategy}: {self.model.n_clusters:,} clusters{rows} at {n_clients:,} "
            f"client{'' if n_clients == 1 else 's'}, in {self.n_rounds:,} rounds and {self.seconds:.2g} s"
        )

    def _facts(self) -> dict[str, str]:
        """Return at most nine facts about the result, by name.

        The facts answer what a reader asks first: how large are the clusters, how good are they,
        what protects the rows and what is not protected, what failed, what is in doubt, and what
        else does the result hold?
        """
        facts: dict[str, str] = {}
        if any(map(len, self.labels_of_clients)):
            facts["sizes"] = _sizes_as_text(self)
        if "cost_per_row" in self.metrics:
            facts["cost"] = f"{self.metrics['cost_per_row']:.4g} per row"
            if "cost_of_one_cluster" in self.metrics:
                facts["cost"] += (
                    f"; with one cluster for all rows {self.metrics['cost_of_one_cluster']:.4g}"
                )
        scores = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI"}
        if scored := [
            f"{name} {self.metrics[key]:.3f}" for key, name in scores.items() if key in self.metrics
        ]:
            facts["scores"] = ", ".join(scored)
        facts["privacy"] = _guarantee_as_text(self.privacy)
        contents = list(
            dict.fromkeys(f"{array.content} ({array.detail})" for array in self.privacy.unprotected)
        )
        facts["unprotected"] = "; ".join(contents) or "nothing that depends on the rows"
        if self.failures:
            first = self.failures[0]
            facts["failed"] = (
                f"{len(self.failures)}: {first.client} in round {first.round}: {first.reason}"
            )
        if self.doubts:
            facts["doubts"] = f"{len(self.doubts)}: {self.doubts[0]}"
        facts["model"] = repr(self.model)
        described = "print(.clusters), " if self.clusters is not None else ""
        described += "print(.survival), " if self.survival is not None else ""
        facts["look at"] = (
            f"{described}.model.predict(table), .labels, .metrics, .doubts, print(.privacy), .save(folder)"
        )
        return facts


def _guarantee_as_text(report: PrivacyReport) -> str:
    """Return the guarantee in one line, which begins with what it covers."""
    of_run, of_releases = "The whole run is covered by ", "The releases below compose to "
    text = report.guarantee()
    if text.startswith(of_releases):
        covered = text.removeprefix(of_releases).partition(". ")[0]
        text = f"none for the whole run; what noise covers has {covered}"
    text = text.removeprefix(of_run).rstrip(".")
    if report.releases and any("drawn from a seed" in note for note in report.notes):
        text += "; its noise has a seed and protects nobody"
    return text


def _sizes_as_text(result: ResultData) -> str:
    """Return the sizes of the clusters, or their range if there are many clusters."""
    sizes = cluster_sizes(result.labels_of_clients, result.model.n_clusters)
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(f"{size:,}" for size in sizes)
    return f"{sizes.min():,} to {sizes.max():,}, and {np.count_nonzero(sizes == 0):,} empty"

"""What a run found, as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import ROW
from flower_fedclust.results.doubts import Doubt
from flower_fedclust.models import Model
from flower_fedclust.numerics.validity import ClusterNumber
from flower_fedclust.privacy.report import PrivacyReport
from flower_fedclust.engine import Failure, Traffic
from flower_fedclust.engine.rounds import ReleasedSizes
from flower_fedclust.tables.description import Clusters


@dataclass(frozen=True, repr=False)
class Findings:
    """What a run found; :class:`~flower_fedclust.Result` says what each field is, and can show, draw and save it."""

    strategy: str
    model: Model
    labels: list[NDArray[np.intp]]
    names: list[str]
    privacy: PrivacyReport
    traffic: list[Traffic]
    failures: list[Failure]
    metrics: dict[str, float]
    seconds: float
    embedding: list[NDArray[np.float64]] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    number: ClusterNumber | None = None
    sizes: ReleasedSizes | None = None
    clusters: Clusters | None = None
    row_ids: list[NDArray[Any]] = field(default_factory=list)
    id_column: str = ROW
    server_row_ids: NDArray[Any] | None = None

    @property
    def bytes_down(self) -> int:
        """Bytes from the server to all clients."""
        return sum(row.bytes_down for row in self.traffic)

    @property
    def bytes_up(self) -> int:
        """Bytes from all clients to the server."""
        return sum(row.bytes_up for row in self.traffic)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the run, ready for JSON."""
        return {
            "strategy": self.strategy,
            "metrics": self.metrics,
            "seconds": self.seconds,
            "clients": len(self.names),
            "rounds": max((row.round for row in self.traffic), default=0),
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

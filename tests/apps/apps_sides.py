"""One Lloyd step from two public points, with noise."""

from collections.abc import Mapping

import numpy as np

import flower_fedclust as fc
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.protocol import Entry, Sum, answers


class SidesClient(fc.FrameClient):
    @answers("sums of the clipped rows by side", "numbers of rows by side")
    def by_side(self, points, *frame):
        rows = self.enter(*frame)
        return rows.sums(rows.nearest(points), len(points))


class Sides(fc.ClippedStrategy):
    """Two clusters: one Lloyd step from two opposite public points, with noise."""

    entries = (Entry("sides", "one Lloyd step from two opposite points, with noise", "nowhere"),)
    client_type = SidesClient
    n_protocol_rounds = 1

    def shares(self) -> Mapping[str, Share]:
        """Return three quarters for the sums and a quarter for the counts."""
        return {"sums": Share("gaussian", 0.75), "counts": Share("laplace", 0.25)}

    def protocol(self):
        frame = fc.Frame(np.zeros(self.n_columns), self.max_norm)
        points = np.outer([-1.0, 1.0], np.ones(self.n_columns)) * self.max_norm / 4
        sums, counts = yield Sum(
            SidesClient.by_side.asked(points, *frame.arrays),
            releases=[
                self.release("sums", self.max_norm, "the client clips every row to this norm"),
                self.release("counts", 1.0, "a row counts once, at one side"),
            ],
        )
        return fc.KMeansModel(sums / np.maximum(counts, 1.0)[:, None])

"""One Lloyd step from two public points, with noise."""

import numpy as np

from flower_fedclust import authoring


class SidesClient(authoring.FrameClient):
    @authoring.by_row(sums="sums of the clipped rows by side", counts="numbers of rows by side")
    def by_side(rows, points):
        nearest = rows.nearest(points)
        return authoring.at(nearest, len(points), rows), authoring.at(nearest, len(points))


class Sides(authoring.ClippedStrategy):
    """Two clusters: one Lloyd step from two opposite public points, with noise."""

    entries = (
        authoring.Entry("sides", "one Lloyd step from two opposite points, with noise", "nowhere"),
    )
    client_type = SidesClient
    n_protocol_rounds = 1

    def parts(self):
        """Return three quarters for the sums and a quarter for the counts."""
        answer = SidesClient.by_side
        return {
            "sums": authoring.Part(answer, 0.75),
            "counts": authoring.Part(answer, 0.25, mechanism="laplace"),
        }

    def protocol(self):
        frame = authoring.Frame(np.zeros(self.n_columns), self.max_norm)
        points = np.outer([-1.0, 1.0], np.ones(self.n_columns)) * self.max_norm / 4
        sums, counts = yield authoring.Sum(
            SidesClient.by_side.asked(points, frame=frame), parts=["sums", "counts"]
        )
        return authoring.KMeansModel(sums / np.maximum(counts, 1.0)[:, None])

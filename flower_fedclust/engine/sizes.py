"""How large the clusters are, as a run has released it: what its server may say of noise without asking again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Round, Sum, Total
from flower_fedclust.privacy.releases import Release

#: A size within so many standard deviations of its noise may be 0.
DEVIATIONS = 2.0


@dataclass(frozen=True)
class ReleasedSizes:
    """The last numbers of rows by cluster that the server was sent, for the centers that it had asked with."""

    #: With noise, if there is any, of shape (n_clusters,); in rows, or in parts of all rows.
    counts: NDArray[np.float64]
    deviation: float = 0.0  #: The standard deviation of the noise in each; 0 without noise.
    #: That of the noise in each entry of the sums that came beside the counts, in the same rows or parts of them.
    sum_deviation: float = 0.0

    @classmethod
    def of_round(cls, round_: Round, received: object, noise: Callable[[Release], float]) -> ReleasedSizes | None:
        """Return the sizes that a round brought; None if it is no sum, or none of its arrays is declared to be sizes.

        Parameters
        ----------
        round_ : Round
        received : Total or list of Reply
        noise : callable
            Takes a release, returns the standard deviation of the noise that reached the sum.
        """
        sends = round_.answer.sends
        index = next((index for index, sent in enumerate(sends) if sent.sizes), None)
        if index is None or not isinstance(round_, Sum) or not isinstance(received, Total):
            return None
        deviations = [0.0 if release is None else noise(release) for release in round_.releases] or [0.0] * len(sends)
        return cls(np.array(received[index], dtype=np.float64), deviations[index], deviations[0] if index else 0.0)

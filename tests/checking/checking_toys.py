"""Small strategies for checks and audits; they do what no strategy of the package does."""

from __future__ import annotations

import random
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from flower_fedclust.engine import (
    ClippedStrategy,
    Gather,
    GridArray,
    Protocol,
    ProtocolClient,
    Sent,
    Sum,
    answers,
    parameter,
)
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.exact.terms import ONE_COUNT, Bound
from flower_fedclust.models import KMeansModel
from flower_fedclust.strategies.common.frame import enter


class MeansClient(ProtocolClient):
    """Answers about clipped rows."""

    def _rows(self, max_norm, *, shift=0.0):
        return enter(self.rows + shift, np.zeros(self.rows.shape[1]), np.array([max_norm, 2.0]))

    @answers(
        "sum of the rows",
        Sent("number of rows", counts_rows=True),
        moved=lambda _, *arrays, max_norm: (Bound(max_norm), ONE_COUNT),
    )
    def sums(self, *, max_norm: float):
        """Return the sum and the number of the clipped rows."""
        return self._rows(max_norm).total()

    @answers(
        Sent("the clipped rows", "rows", per="row", kept_as="own"),
        moved=lambda _, *, max_norm: (Bound(max_norm),),
    )
    def keep(self, *, max_norm: float):
        """Keep the clipped rows."""
        rows = self._rows(max_norm)
        return GridArray(rows.integers, rows.exponent)

    @answers(Sent("the kept rows", "rows", per="row"))
    def kept(self):
        """Return the rows that were kept."""
        return self.rows


class Means(ClippedStrategy):
    """Centers about the mean of all rows.

    Parameters
    ----------
    n_rounds : int, default=2
        How often the sums are asked for.
    epsilon : float, default=8.0
        The privacy budget of the whole run.
    max_norm : float, default=1.0
        Rows are clipped to it.
    gathers : bool, default=False
        Whether the server sees each reply.
    """

    client_type = MeansClient
    paid_by = ("sums", "counts")  #: The parts of the budget that pay for the arrays.
    seen: ClassVar[list[int]] = []

    n_rounds: int = parameter(2, at_least=1)
    epsilon: float = parameter(8.0, above=0, at_most=1000)
    max_norm: float = parameter(1.0, above=0)
    gathers: bool = parameter(False)

    @property
    def n_protocol_rounds(self) -> int:
        """As many as asked for."""
        return self.n_rounds

    def parts(self):
        """Return half of the budget for each array."""
        answer = self.client_type.sums
        return {
            "sums": Part(answer, 0.5, self.n_rounds),
            "counts": Part(answer, 0.5, self.n_rounds, "laplace"),
        }

    def ask(self):
        """Return a round."""
        kind = Gather if self.gathers else Sum
        return kind(self.client_type.sums.asked(max_norm=self.max_norm), parts=self.paid_by)

    def protocol(self) -> Protocol:
        """Ask and divide."""
        for _ in range(self.n_rounds):
            received = yield self.ask()
            if self.gathers:
                received = (
                    sum(arrays)
                    for arrays in zip(*(reply.arrays for reply in received), strict=True)
                )
            sums, counts = received
        return KMeansModel(centers(self, sums / max(float(counts), 1.0)))


class Sending(Means):
    """Sends points, on which sums may depend.

    Parameters
    ----------
    points : array-like, optional
        What is sent.
    """

    points: ArrayLike | None = parameter(None)

    def protocol(self) -> Protocol:
        """Ask with the points."""
        arrays = [] if self.points is None else [np.asarray(self.points)]
        for _ in range(self.n_rounds):
            yield Sum(
                self.client_type.sums.asked(*arrays, max_norm=self.max_norm), parts=self.paid_by
            )
        return KMeansModel(centers(self, np.zeros(self.n_columns)))


class Unequal(Means):
    """Asks one client with much noise, and then the others with little.

    Parameters
    ----------
    min_clients : int, default=1
        How many have to answer.
    """

    min_clients: int = parameter(1, at_least=1)

    def parts(self):
        """Return a small part and a large one."""
        return {"small": Part(MeansClient.sums, 0.1), "large": Part(MeansClient.sums, 0.9)}

    def protocol(self) -> Protocol:
        """Ask for the rows of some, then of the others."""
        names = self.client_names
        question = MeansClient.sums.asked(max_norm=self.max_norm)
        for part, asked in (("small", names[:1]), ("large", names[1:])):
            sums, _ = yield Sum(question, parts=[part, None], clients=asked)
        return KMeansModel(centers(self, sums))


class KeptTwice(Means):
    """Keeps rows with noise, then the true ones under the same name, and sends them.

    Parameters
    ----------
    n_rounds : int, default=3
        How many rounds.
    """

    n_rounds: int = parameter(3, at_least=1)

    def parts(self):
        """Return the whole budget for the rows."""
        return {"rows": Part(MeansClient.keep, 1.0)}

    def protocol(self) -> Protocol:
        """Keep, keep again, and ask."""
        asked = MeansClient.keep.asked(max_norm=self.max_norm)
        yield Gather(asked, parts=["rows"])
        yield Gather(asked)
        replies = yield Gather(MeansClient.kept.asked(), rows="own")
        return KMeansModel(centers(self, replies[0].arrays[0].mean(axis=0)))


class UnluckyClient(MeansClient):
    """Fails by a coin of its own, whatever its rows are."""

    raises = False

    def fit(self, parameters, config):
        """Answer, or fail."""
        if config["task"] == "enrol" or random.random() >= 0.3:
            return super().fit(parameters, config)
        if self.raises:
            raise RuntimeError("no luck")
        return [], 1, {"client": self.name, "failure": "no luck"}


class Unlucky(Means):
    __doc__ = Means.__doc__
    client_type = UnluckyClient


def with_method(name, function, *sends, toy=Means, moved=None):
    """Return a toy whose clients have another method; it declares what the original method declares."""
    asked = getattr(toy.client_type, name)
    function.__name__ = name
    method = Askable(function, sends or asked.answer.sends, moved or asked.moved)
    return changed(toy, client_type=type("Client", (toy.client_type,), {name: method}))


def changed(toy=Means, **attributes):
    """Return a toy with other attributes."""
    return type("Broken", (toy,), {"__doc__": toy.__doc__, "__annotations__": {}, **attributes})


def centers(strategy, mean):
    """Return centers about a mean."""
    return np.clip(mean, -1e3, 1e3) + 0.1 * strategy.rng.normal(
        size=(strategy.n_clusters, strategy.n_columns)
    )

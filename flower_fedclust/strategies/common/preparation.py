"""The preparation of tables, around any strategy: what is not public of the columns is found in one or two sums.

1. Of measured columns without public bounds: a histogram of signs and binary exponents, which says where they lie.
2. Of these, and of columns whose mean, quantiles or frequencies are needed: a histogram of equal bins, gaps among them,
   and sums of entries and of their squares where a mean is wanted, all in one array.
3. Every client gets the preparation. From there on the strategy's rounds see prepared rows.

How far a row, or a client, can move these arrays: :mod:`flower_fedclust.engine.tables`.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import (
    ClientData,
    Outcome,
    PrivateStrategy,
    Protocol,
    ProtocolClient,
    ProtocolStrategy,
    Sum,
)
from flower_fedclust.engine.parameters import check_is_strategy
from flower_fedclust.engine.rounds import Array, Question, Round, Scalar, Total
from flower_fedclust.engine.tables import norm_of_row
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.models.tables import TableModel
from flower_fedclust.numerics.checks import DataError, check_real
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.strategies.common import description
from flower_fedclust.tables.columns import MEASURED, Column, Figures
from flower_fedclust.tables.histograms import (
    CROWDED,
    LARGEST_PART_BEYOND,
    N_BINS,
    N_BINS_WITHOUT_NOISE,
    Floats,
    distribution,
    part_beyond,
    quantile,
    range_of,
)
from flower_fedclust.tables.preparation import Preparation, public_interval, width_of
from flower_fedclust.tables.schema import Schema

S = TypeVar("S", bound=ProtocolStrategy)

#: The name of the share of the budget that pays for the preparation, and the part of the whole that it is.
SHARE, PART = "preparation", 0.12


def with_schema(strategy: S, schema: Schema | str | Any, *, describe: bool | float = False) -> S:
    """Return a copy of a strategy that takes tables as people have them.

    Parameters
    ----------
    strategy : ProtocolStrategy
    schema : Schema, mapping, TOML text, or the name of a TOML file
        What is public of the columns.
    describe : bool or float, default=False
        Whether the clusters are described after the run, from one more sum; or the part of the budget that pays for
        it, 0.12 if it is True. It needs a model with centers among the prepared rows.

    Raises
    ------
    ValueError
        If the schema cannot be right; the message names every key.
    """
    made = copy.copy(strategy)
    check_is_strategy(strategy)
    if getattr(strategy, "origin", None) is not None:
        raise ValueError("origin is given, and with a schema rows lie about 0 once they are prepared; leave it out.")
    part = description.PART if describe is True else float(describe)
    check_real("describe", part, at_least=0, at_most=0.8)
    made.around = TablePreparation(Schema.of(schema), part)
    return made


@dataclass(frozen=True)
class TablePreparation:
    """Prepares tables before a strategy runs, and has its model take tables.

    It is set as ``strategy.around``. :meth:`protocol` runs its own rounds, then ``yield from`` a copy of the strategy,
    then the description; all of them are one run with one budget. Its rounds ask for what every client answers
    (:class:`~flower_fedclust.engine.tables.TableAnswers`).
    """

    schema: Schema
    #: The part of the budget with which clusters are described after the run; 0 describes nothing.
    description: float = 0.0

    @property
    def enrolment(self) -> Mapping[str, Scalar]:
        """The schema."""
        return {"schema": self.schema.to_json()}

    def check(self, data: ClientData) -> None:
        """Raise a DataError that says of every column why it does not fit the schema, unless all do."""
        self.schema.check(data.table, owner=data.owner)

    def notes(self) -> list[str]:
        """Say what is taken to be public."""
        return [
            "The schema of the tables (names, kinds, bounds and categories of columns) is taken to be public, and no "
            "guarantee covers it."
        ]

    # The budget, and how many rounds there are.

    @property
    def _unbounded(self) -> dict[str, Column]:
        return {name: column for name, column in self.schema.used.items() if public_interval(column) is None}

    @property
    def _counted(self) -> dict[str, Column]:
        return {name: column for name, column in self.schema.used.items() if needs_histogram(column)}

    @property
    def _n_sums(self) -> int:
        """How many rounds bring figures of columns."""
        return bool(self._unbounded) + bool(self._counted)

    def shares(self, strategy: ProtocolStrategy) -> Mapping[str, Share]:
        """Return a share for the sums of the preparation, if there are any."""
        others = strategy.shares() if isinstance(strategy, PrivateStrategy) else {}
        parts = {SHARE: (PART, self._n_sums), description.SHARE: (self.description, 1)}
        parts = {name: (part, n_sums) for name, (part, n_sums) in parts.items() if part > 0 and n_sums > 0}
        if not parts or not others:
            return {}
        left = 1.0 - math.fsum(part for part, _ in parts.values())
        whole = math.fsum(share.fraction for share in others.values()) / left
        relation = next(iter(others.values())).relation
        return {name: Share("gaussian", whole * part, n_sums, relation) for name, (part, n_sums) in parts.items()}

    @property
    def n_columns(self) -> int:
        """How many columns prepared rows have."""
        return sum(map(width_of, self.schema.used.values()))

    def likely(self, strategy: S) -> S:
        """Return a copy of the strategy as it will run: with norms, and with prepared rows of the server."""
        likely: Any = _in_space(strategy, max_norm=1.0, max_l1_norm=1.0)
        rows: Any = getattr(likely, "server_data", None)
        if is_table(rows):  # as many rows, of as many columns, as there will be
            likely.server_data = np.eye(len(rows), self.n_columns)
        made: S = likely
        return made

    def n_rounds(self, strategy: ProtocolStrategy) -> int:
        """Return the rounds of the preparation and those of the strategy."""
        return self._n_sums + 1 + self.likely(strategy).n_protocol_rounds + bool(self.description)

    # The server half.

    def protocol(self, strategy: ProtocolStrategy) -> Protocol:
        """Find the preparation, run the strategy on prepared rows, and return a model of tables."""
        preparation = yield from self.prepare(strategy)
        strategy.preparation = preparation
        yield Sum(ProtocolClient.prepare.asked(as_bytes(json.dumps(preparation.to_dict()))))
        inner: Any = _in_space(strategy, max_norm=preparation.radius, max_l1_norm=preparation.l1_radius)
        for name in ("server_data", "init"):
            if is_table(given := getattr(inner, name, None)):
                setattr(inner, name, preparation.transform(given, owner=name))
        inner.check_parameters()
        inner.check_complete()
        found = yield from inner.protocol()
        outcome = found if isinstance(found, Outcome) else Outcome(found)
        clusters = None
        if self.description:
            clusters = yield from description.describe(strategy, preparation, outcome.model)
        return replace(outcome, model=TableModel(preparation, outcome.model), clusters=clusters)

    def prepare(self, strategy: ProtocolStrategy) -> Generator[Round, Total, Preparation]:
        """Find what is not public of the columns."""
        intervals = {name: public_interval(column) for name, column in self.schema.used.items()}
        if unbounded := self._unbounded:
            counts, deviation = yield from self._sum(strategy, "exponents", [_json(list(unbounded))], len(unbounded))
            for (name, column), row in zip(unbounded.items(), counts, strict=True):
                intervals[name] = range_of(row, deviation)
                if intervals[name] is None:
                    raise DataError(_too_few(name, column, strategy))
        figures = {name: Figures(*interval) for name, interval in intervals.items() if interval is not None}
        if counted := self._counted:
            yield from self._figures(strategy, counted, figures)
        return Preparation(self.schema, figures)

    def _figures(
        self, strategy: ProtocolStrategy, counted: Mapping[str, Column], figures: dict[str, Figures]
    ) -> Generator[Round, Total, None]:
        """Replace the figures of columns by what their histograms say."""
        noisy = isinstance(strategy, PrivateStrategy) and strategy.epsilon is not None
        asked = []
        for name, column in counted.items():
            listed = len(column.categories or ())
            asked.append((name, listed or (N_BINS if noisy else N_BINS_WITHOUT_NOISE), needs_sums(column)))
        ends = [
            # Of places in a list each has a bin of width 1.
            (0.0, float(len(column.categories))) if column.categories else (figures[name].low, figures[name].high)
            for name, column in counted.items()
        ]
        n_summed = sum(with_sums for _, _, with_sums in asked)
        total, deviation = yield from self._sum(
            strategy, "histograms", [_json(asked), np.array(ends)], len(asked), n_summed
        )
        splits = np.cumsum([n_bins + 1 for _, n_bins, _ in asked])
        *parts, sums = np.split(total, splits)
        pairs = iter(sums.reshape(-1, 2))
        for (name, _, with_sums), part in zip(asked, parts, strict=True):
            powers = next(pairs) if with_sums else None
            found = figures_of(counted[name], figures[name], part[:-1], powers, deviation)
            if found is None:
                raise DataError(f"column '{name}' has no value at any site, as far as can be seen; ignore it.")
            figures[name] = found

    def _sum(
        self, strategy: ProtocolStrategy, task: str, asked: list[Array], n_histograms: int, n_sums: int = 0
    ) -> Generator[Round, Total, tuple[Floats, float]]:
        """Return a sum, and the standard deviation of its noise."""
        of_clients = strategy.privacy_unit == "client"
        norm = norm_of_row(n_histograms, n_sums)
        question: Question = getattr(ProtocolClient, f"mean_{task}" if of_clients else task).asked(
            *asked, **({"bound": norm} if of_clients else {})
        )
        received = yield Sum(question, parts=[SHARE] if SHARE in self.shares(strategy) else [])
        return received[0], received.noise[0]


def needs_sums(column: Column) -> bool:
    """Tell whether the mean of a measured column is needed."""
    return column.kind in MEASURED and (column.gaps != "refuse" or column.scale == "standard")


def needs_histogram(column: Column) -> bool:
    """Tell whether something of a column is not public that a histogram says."""
    if column.kind in MEASURED:
        return column.bounds is None or needs_sums(column) or column.scale in ("robust", "rank")
    return column.gaps == "mean" or (column.gaps == "category" and not column.is_one_hot)


def figures_of(
    column: Column, known: Figures, counts: Floats, powers: Floats | None, deviation: float
) -> Figures | None:
    """Return the figures of a column.

    Parameters
    ----------
    column : Column
    known : Figures
        Its bounds, or the interval of its histogram.
    counts : ndarray of shape (n_bins,)
        How many entries are in which bin.
    powers : ndarray of shape (2,), optional
        The sums of entries and of their squares, where the interval is -1 to 1.
    deviation : float
        Of the noise in each count and sum.

    Returns
    -------
    Figures, or None
        None if no entry is left.
    """
    if column.categories is not None:
        kept = np.maximum(counts, 0.0)
        if kept.sum() <= 0:
            return None if deviation == 0 else known
        places = np.arange(len(kept))
        fill = float(kept @ places / kept.sum()) if column.kind == "ordinal" else float(kept.argmax())
        return replace(known, fill=fill, counts=tuple(kept.tolist()))
    parts, n_present = distribution(counts)
    edges = np.linspace(known.low, known.high, len(parts))
    found = replace(known, fill=(known.low + known.high) / 2)
    if n_present <= 2 * deviation * math.sqrt(len(counts)):
        if deviation == 0:
            return None
        # As far as the noise lets see there may be no value at all: nothing but the interval is known.
        n_present, parts, powers = 0.0, np.linspace(0.0, 1.0, len(parts)), None
        found = replace(found, center=found.fill, spread=(known.high - known.low) / 4)
    if column.bounds is None:
        beyond = part_beyond(n_present, deviation, len(counts))
        width = edges[1] - edges[0]
        if beyond <= LARGEST_PART_BEYOND:
            low, high = quantile(parts, edges, beyond), quantile(parts, edges, 1.0 - beyond)
            found = replace(found, low=low, high=max(high, low + width))
        fullest = int(np.diff(parts).argmax())
        is_about_0 = edges[fullest] <= 0 <= edges[fullest + 1]  # as of a column that is 0 for most rows
        is_full = parts[fullest + 1] - parts[fullest] > CROWDED and found.high - found.low > 8 * width
        found = replace(found, is_crowded=bool(is_full and not is_about_0))
    if powers is not None:
        middle, half = (known.low + known.high) / 2, (known.high - known.low) / 2
        mean = float(np.clip(powers[0] / n_present, -1.0, 1.0))
        variance = max(float(powers[1] / n_present) - mean**2, 1.0 / len(counts) ** 2 / 3)
        mean, spread = middle + half * mean, half * math.sqrt(variance)
        found = replace(found, fill=min(max(mean, found.low), found.high))
        if column.scale == "standard":
            found = replace(found, center=mean, spread=spread)
    if column.scale == "robust":
        first, median, third = (quantile(parts, edges, part) for part in (0.25, 0.5, 0.75))
        found = replace(found, center=median, spread=max(third - first, float(edges[1] - edges[0])))
    if column.scale == "rank":
        found = replace(
            found, low=known.low, high=known.high, quantiles=tuple(edges.tolist()), ranks=tuple(parts.tolist())
        )
    return found


def _in_space(strategy: S, *, max_norm: float, max_l1_norm: float) -> S:
    """Return a copy of a strategy, of the same run, whose rows lie in a ball; what the user gave stays."""
    inner = copy.copy(strategy)
    if inner.epsilon is not None and getattr(inner, "server_data", None) is None:
        for name, norm in (("max_norm", max_norm), ("max_l1_norm", max_l1_norm)):
            if name in inner.parameter_names() and getattr(inner, name) is None:
                setattr(inner, name, norm)
    return inner


def _json(value: Any) -> Array:
    return as_bytes(json.dumps(value))


def _too_few(name: str, column: Column, strategy: ProtocolStrategy) -> str:
    noise = "stands out of the noise" if strategy.epsilon is not None else "has a value"
    return (
        f"column '{name}': no part of its {column.kind}s {noise}, so that its bounds cannot be found; give public "
        "bounds in the schema, or ignore the column."
    )

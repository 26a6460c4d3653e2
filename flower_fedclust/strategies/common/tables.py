"""Tables around any strategy: prepare their rows before it runs, and describe its clusters afterwards.

1. For measured columns without public bounds: a histogram of signs and binary exponents, which shows their range.
2. For these columns, and for columns whose mean, quantiles or frequencies are needed: a histogram with equal bins and
   a bin for gaps; and the sums of the values and of their squares if the mean is needed. All in one array.
3. Every client gets the preparation: how to turn its table into rows of numbers. The strategy's rounds see these
   prepared rows.
4. After the strategy: sums over the rows of each cluster, which describe it in the tables' units.
5. If the schema has a time to an event: the numbers of rows of each cluster by time and event.

:mod:`flower_fedclust.engine.table_answers` has the clients' half.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Question, Round, Scalar, Total
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.exact.rows import Frame
from flower_fedclust.models import Model
from flower_fedclust.models.tables import TableModel
from flower_fedclust.numerics.checks import DataError, check_real
from flower_fedclust.numerics.survival import merged_ends, n_time_bins
from flower_fedclust.tables.cluster_sums import FEWEST_PARTS, LARGEST_POWERS, with_parts
from flower_fedclust.tables.description import Clusters
from flower_fedclust.tables.floors import FLOOR, PERSONS, ROWS, Floor
from flower_fedclust.tables.histograms import (
    FEWEST_BINS,
    LEAST_HELD,
    N_BINS,
    N_BINS_WITHOUT_NOISE,
    FoundRange,
    figures_of,
    histogram_edges,
    n_bins_for,
    range_of,
)
from flower_fedclust.tables.preparation import MOST_PARTS, Preparation, public_interval, width_of
from flower_fedclust.tables.schema import MEASURED, Figures, Schema, quoted
from flower_fedclust.tables.survival import Survival, survival_of

S = TypeVar("S", bound=ProtocolStrategy)
Floats = NDArray[np.float64]

#: The names of the parts of the budget for the preparation and for the description.
PREPARATION, DESCRIPTION = "preparation", "description"
#: The share of each by default.
SHARE = 0.12
#: The name of the part of the budget for counts by time to an event.
SURVIVAL = "survival"
#: Its share. Privacy costs grow with the squares of shares: if a strategy counts as N_RELEASES releases, this part is a
#: fifth to a quarter of the cost of the whole run.
SURVIVAL_SHARE = 0.14
#: Shares are relative to a strategy with at most this many Gaussian releases; see :func:`whole_of`.
N_RELEASES = 10


def with_schema(
    strategy: S, schema: Schema | str | Any, *, describe: bool | float = False, floor: int = FLOOR
) -> S:
    """Return a copy of a strategy that takes tables with columns of any kind.

    Parameters
    ----------
    strategy : ProtocolStrategy
    schema : Schema, mapping, TOML text, or the name of a TOML file
        What is public about the columns. If one is a time to an event, one more sum after the run
        counts the rows of each cluster by time and event; 0.14 of the budget pays for it.
    describe : bool or float, default=False
        Whether to describe the clusters after the run, from one more sum; or the share of the
        budget that pays for it, 0.12 if True. A row's cluster must follow from points among the
        prepared rows, such as centers. If the strategy has more than ten Gaussian releases, the
        share is relative to the budget that ten such releases would have at the same cost.
    floor : int, default=10
        The smallest number of rows that a description prints; 0 prints all.

    Raises
    ------
    ValueError
        If the schema is not valid; the message names every key.
    """
    prepared = copy.copy(strategy)
    check_is_strategy(strategy)
    if getattr(strategy, "origin", None) is not None:
        raise ValueError(
            "origin is given, but prepared rows lie around 0; leave origin out if there is a schema."
        )
    part = SHARE if describe is True else float(describe)
    tables = TablePreparation(Schema.of(schema), part, Floor(floor).least)
    check_real("describe", part, at_least=0, at_most=0.65 if tables.schema.of_outcome else 0.8)
    prepared.tables = tables
    return prepared


def check_schema(describe: bool | float, schema: object) -> None:
    """Raise a ValueError if clusters are to be described without a schema."""
    if describe and schema is None:
        raise ValueError(
            "describe is given and schema is not; clusters are described in the units, bounds and categories that a "
            "schema makes public: 'fedclust schema init rows.csv' drafts one."
        )


def whole_of(parts: Iterable[Part]) -> float:
    """Return the total fraction of a strategy's parts, to which the shares of the parts for tables are relative.

    Epsilons of Laplace releases add up, so their fractions are simply added. Gaussian releases cost
    the inverse squares of their noise multipliers: if a strategy divides the same cost into more
    releases, the sum of their fractions grows. Therefore more than :data:`N_RELEASES` Gaussian
    releases count as :data:`N_RELEASES` equal ones of the same total cost. Then the noise of other
    parts does not depend on how finely a strategy divides its budget.
    """
    used = [part for part in parts if part.at_most > 0]
    gaussian = [part for part in used if part.mechanism == "gaussian"]
    of_others = math.fsum(part.fraction for part in used if part.mechanism != "gaussian")
    cost = math.fsum(part.fraction**2 / part.at_most for part in gaussian)
    return of_others + min(
        math.fsum(part.fraction for part in gaussian), math.sqrt(N_RELEASES * cost)
    )


@dataclass(frozen=True)
class TablePreparation:
    """Prepares tables before a strategy runs, and makes its model take tables; it is ``strategy.tables``.

    :meth:`protocol` runs the preparation, then a copy of the strategy, then the description. All of them are one run
    with one budget.
    """

    schema: Schema
    #: The share of the budget that pays for describing the clusters; 0 if they are not described.
    description: float = 0.0
    #: The smallest number of rows that the description prints.
    floor: int = FLOOR

    @property
    def enrolment(self) -> Mapping[str, Scalar]:
        """The schema, as it is sent in the message that enrols a client."""
        return {"schema": self.schema.to_json()}

    def check(self, data: ClientData) -> None:
        """Raise a DataError that names every column that does not fit the schema."""
        data.check(self.schema)

    def notes(self) -> list[str]:
        """Return the notes of the privacy report about the schema."""
        return [
            "The schema of the tables (names, kinds, bounds and categories of columns) is taken to be public, and no "
            "guarantee covers it."
        ]

    # The budget and the number of rounds.

    @property
    def _unbounded(self) -> Schema | None:
        """The columns whose bounds are not public; None if there are none."""
        return self.schema.of_columns(lambda column: public_interval(column) is None)

    @property
    def _counted(self) -> Schema | None:
        """The columns that need a histogram; None if there are none."""
        return self.schema.of_columns(lambda column: column.needs_histogram)

    @property
    def _n_sums(self) -> int:
        """The number of sums that the preparation takes: 0, 1 or 2."""
        return bool(self._unbounded) + bool(self._counted)

    def parts(self, strategy: PrivateStrategy) -> Mapping[str, Part]:
        """Return the parts of the budget for the preparation, the description and the counts by time.

        The strategy's own parts are not included. The fractions are relative to the total that
        :func:`whole_of` returns for the strategy's parts.
        """
        wanted = {PREPARATION: (SHARE, self._n_sums), DESCRIPTION: (self.description, 1)}
        wanted[SURVIVAL] = (SURVIVAL_SHARE, int(self._counts_times(strategy)))
        wanted = {
            name: (share, n_sums)
            for name, (share, n_sums) in wanted.items()
            if share > 0 and n_sums > 0
        }
        of_strategy = whole_of(strategy.parts().values())
        whole = of_strategy / (1.0 - math.fsum(share for share, _ in wanted.values()))
        answers = {
            PREPARATION: (ProtocolClient.exponents, ProtocolClient.histograms),
            DESCRIPTION: (ProtocolClient.description,),
            SURVIVAL: (ProtocolClient.survival,),
        }
        return {
            name: Part(answers[name], whole * share, n_sums)
            for name, (share, n_sums) in wanted.items()
            if of_strategy
        }

    def _counts_times(self, strategy: ProtocolStrategy) -> bool:
        """Tell whether a run counts rows by their time to an event."""
        return bool(self.schema.of_outcome) and strategy.privacy_unit != "client"

    @property
    def n_columns(self) -> int:
        """The number of columns of prepared rows."""
        return sum(map(width_of, self.schema.used.values()))

    def likely(self, strategy: S) -> S:
        """Return a copy of the strategy as it will probably run: with norms, and with numbers for the server's rows."""
        likely: Any = _in_ball(strategy, max_norm=1.0, max_l1_norm=1.0)
        rows: Any = getattr(likely, "server_data", None)
        if is_table(rows):  # with as many rows and columns as the run will have
            likely.server_data = np.eye(len(rows), self.n_columns)
        typed_copy: S = likely
        return typed_copy

    def n_rounds(self, strategy: ProtocolStrategy) -> int:
        """Return the largest number of rounds of the whole run, the strategy's own included."""
        return (
            self._n_sums
            + 1
            + self.likely(strategy).n_protocol_rounds
            + bool(self.description)
            + self._counts_times(strategy)
        )

    # The server half.

    def protocol(self, strategy: ProtocolStrategy) -> Protocol:
        """Find the preparation, run the strategy on prepared rows, and return a model of tables.

        The description and the counts by time follow in further rounds, if they were asked for. All
        of it is one run, with one budget and one report.
        """
        preparation = yield from self.prepare(strategy)
        inner: Any = _in_ball(
            strategy, max_norm=preparation.radius, max_l1_norm=preparation.l1_radius
        )
        for name in ("server_data", "init"):
            if is_table(rows := getattr(inner, name, None)):
                setattr(inner, name, preparation.transform(rows, owner=name))
        inner.check_parameters()
        inner.check_complete()
        result = yield from inner.protocol()
        outcome = result if isinstance(result, Outcome) else Outcome(result)
        clusters = None
        if self.description:
            clusters = yield from describe(strategy, preparation, outcome.model, self.floor)
        survival = None
        if self._counts_times(strategy):
            survival = yield from ask_survival(
                strategy, preparation, outcome.model, clusters, self.floor
            )
        return replace(
            outcome,
            model=TableModel(preparation, outcome.model),
            clusters=clusters,
            survival=survival,
        )

    def prepare(self, strategy: ProtocolStrategy) -> Generator[Round, Total, Preparation]:
        """Find the facts about the columns that are not public, and send the preparation to every client.

        1. Where bounds are not public: a histogram of signs and exponents, whose clear bins give a
           rough range.
        2. Where a mean, quantiles or frequencies are needed: a histogram of equal bins within that
           range.

        A column without a clear range is left out. Raises a DataError if no column is left.
        """
        intervals: dict[str, tuple[float, float] | FoundRange | None] = {
            name: public_interval(column) for name, column in self.schema.used.items()
        }
        n_bins = N_BINS_WITHOUT_NOISE if strategy.epsilon is None else N_BINS
        if unbounded := self._unbounded:
            received = yield _summed(
                strategy, ProtocolClient.exponents.asked(unbounded), PREPARATION
            )
            deviation = received.noise[0]
            for name, counts in zip(unbounded.used, received[0], strict=True):
                intervals[name] = range_of(counts, deviation, len(unbounded.used))
            n_rows = float(
                np.where(received[0] > 3 * deviation, received[0], 0.0).sum(axis=1).max()
            )
            n_bins = n_bins_for(n_rows, deviation, fewest=FEWEST_BINS, most=n_bins)
        figures = {
            name: Figures(*interval[:2])
            for name, interval in intervals.items()
            if interval is not None
        }
        if counted := self.schema.of_columns(lambda column: column.needs_histogram, among=figures):
            held = {
                name: interval.n_held
                for name, interval in intervals.items()
                if isinstance(interval, FoundRange)
            }
            counted_figures = yield from _count(strategy, counted, figures, held, n_bins)
            figures = {
                name: figure for name, figure in figures.items() if name not in counted.used
            } | counted_figures
        lost = [name for name in self.schema.used if name not in figures]
        if not figures:
            raise DataError(left_out(lost, strategy.epsilon))
        preparation = Preparation(self.schema.without(lost), figures)
        yield Sum(ProtocolClient.prepare.asked(preparation_as_bytes(preparation)))
        strategy.n_columns = preparation.n_columns
        return preparation


def _count(
    strategy: ProtocolStrategy,
    schema: Schema,
    known: Mapping[str, Figures],
    held: Mapping[str, float],
    n_bins: int,
) -> Generator[Round, Total, dict[str, Figures]]:
    """Return the figures of columns, computed from their histograms.

    ``known`` has the range of each column. For ranges that the run has found, ``held`` has the
    number of values inside. A column is left out if no site has a value of it. It is also left out
    if most values lie outside the range, because such a range comes from noise or a few stray
    values.
    """
    columns = schema.used
    edges = np.array(
        [histogram_edges(known[name].low, known[name].high, n_bins) for name in columns]
    )
    received = yield _summed(strategy, ProtocolClient.histograms.asked(schema, edges), PREPARATION)
    noise = received.noise[0]
    widths = [len(column.categories or ()) or n_bins for column in columns.values()]
    *histograms, sums = np.split(received[0], np.cumsum([width + 1 for width in widths]))
    pairs = iter(sums.reshape(-1, 2))
    # Each histogram counts every row once; rows without a value are in the last bin.
    n_rows = float(
        np.average(
            [counts.sum() for counts in histograms],
            weights=[1 / len(histogram) for histogram in histograms],
        )
    )
    figures_by_name = {}
    for (name, column), counts in zip(columns.items(), histograms, strict=True):
        powers = next(pairs) if column.needs_mean else None
        n_entries = n_rows - float(counts[-1])
        n_beyond = max(n_entries - held.get(name, math.inf), 0.0)
        if n_beyond > max((1 - LEAST_HELD) * n_entries, 0.0):
            continue
        figures = figures_of(
            column,
            known[name],
            counts[:-1],
            powers,
            noise,
            n_columns=len(columns),
            n_entries=n_entries,
            n_beyond=n_beyond,
        )
        if figures is not None:
            figures_by_name[name] = figures
    return figures_by_name


def left_out(names: Sequence[str], epsilon: float | None) -> str:
    """Return why columns could not be used, with a remedy."""
    columns, their = ("columns", "their") if len(names) > 1 else ("column", "its")
    remedy = f"give public bounds in the schema, or ignore the {columns}"
    if epsilon is None:
        return f"{columns} {quoted(names)}: no part of {their} range has a value; {remedy}."
    return (
        f"{columns} {quoted(names)}: no range that holds most of {their} values stands out of the noise, so any bounds "
        f"are noise; {remedy}."
    )


def describe(
    strategy: ProtocolStrategy, preparation: Preparation, model: Model, floor: int = FLOOR
) -> Generator[Round, Total, Clusters | None]:
    """Ask for sums over the rows of each cluster, in one round; return a description of the clusters from the sums.

    Returns None if :func:`why_not` gives a reason.
    """
    if why_not(strategy, model):
        return None
    arrays, points = model.to_arrays(), model.exact_points
    preparation = with_parts(preparation, _n_parts(strategy, preparation, model.n_clusters))
    if points is None:
        described = preparation_as_bytes(preparation)
        (sums,) = yield Sum(
            ProtocolClient.plain_description.asked(
                described, *arrays, model=model.name, floor=floor
            )
        )
        return Clusters(preparation, np.asarray(sums, dtype=np.float64), floor=floor)
    frame = _frame_of(preparation, points)
    question = ProtocolClient.description.asked(
        preparation, *arrays, frame=frame, model=model.name, floor=floor
    )
    # Without noise there is no guarantee for clients, so rows are counted: the floor is a number of rows.
    of_clients = strategy.privacy_unit == "client" and strategy.epsilon is not None
    (sums,) = received = (
        yield _summed(strategy, question, DESCRIPTION)
        if strategy.epsilon is not None
        else Sum(question)
    )
    return Clusters(
        preparation,
        np.asarray(sums, dtype=np.float64),
        received.noise[0],
        of_clients,
        floor,
        _counted_as(strategy),
    )


def _counted_as(strategy: ProtocolStrategy) -> str:
    """Return whether sums count "rows" or "persons".

    If the guarantee covers persons, a row counts as a fraction, and all rows of a person add up to 1.
    """
    return PERSONS if strategy.privacy_unit == "subject" and strategy.epsilon is not None else ROWS


def _frame_of(preparation: Preparation, points: Floats) -> Frame:
    """Return a frame that holds all prepared rows and the points that they are compared with."""
    radius = max(preparation.radius, float(np.linalg.norm(points, axis=1).max()) * (1 + 2.0**-30))
    return Frame(np.zeros(preparation.n_columns), radius)


def ask_survival(
    strategy: ProtocolStrategy,
    preparation: Preparation,
    model: Model,
    clusters: Clusters | None,
    floor: int,
) -> Generator[Round, Total, Survival | None]:
    """Count the rows of each cluster by time and event, in one round.

    Returns None if :func:`why_not` gives a reason.
    """
    if why_not(strategy, model, SURVIVAL):
        return None
    arrays, points, schema = model.to_arrays(), model.exact_points, preparation.schema
    ends = _ends_for(strategy, schema, model.n_clusters, clusters)
    if points is None:
        described = preparation_as_bytes(preparation)
        question = ProtocolClient.plain_survival.asked(
            described, ends, *arrays, model=model.name, floor=floor
        )
        (sums,) = yield Sum(question)
        counts = _with_few_missing(np.asarray(sums, dtype=np.float64), clusters, floor)
        return survival_of(schema, ends, counts, 0.0, floor)
    frame = _frame_of(preparation, points)
    question = ProtocolClient.survival.asked(
        preparation, ends, *arrays, frame=frame, model=model.name, floor=floor
    )
    (sums,) = received = yield _summed(strategy, question, SURVIVAL)
    counts, deviation = np.asarray(sums, dtype=np.float64), received.noise[0]
    if deviation == 0:
        counts = _with_few_missing(counts, clusters, floor)
    return survival_of(schema, ends, counts, deviation, floor, _counted_as(strategy))


def _with_few_missing(counts: Floats, clusters: Clusters | None, floor: int) -> Floats:
    """Return exact counts, to which a cluster's uncounted rows are added as missing if they are fewer than the floor.

    A row is uncounted if it was recorded after time 0 (the schema's time of the row is positive) or
    has no such time. Its cluster's size less all counts would reveal how many uncounted rows there
    are.
    """
    if clusters is None:
        return counts
    uncounted = clusters.sums[:, 0] - counts.sum(axis=1)
    filled = counts.copy()
    filled[:, -1] += np.where((uncounted > 0) & (uncounted < floor), uncounted, 0.0)
    return filled


def _ends_for(
    strategy: ProtocolStrategy, schema: Schema, n_clusters: int, clusters: Clusters | None
) -> Floats:
    """Return the upper ends of the time bins to ask for; neighboring bins are joined if noise would hide them."""
    ends = np.array(next(column.bins for column in schema.of_outcome.values() if column.bins))
    if SURVIVAL not in _paid(strategy) or not isinstance(strategy, PrivateStrategy):
        return ends
    n_rows = strategy.n_released_rows if clusters is None else float(clusters.sums[:, 0].sum())
    return merged_ends(
        ends, n_time_bins(n_rows / n_clusters, strategy.noise_of(SURVIVAL), len(ends))
    )


def _n_parts(strategy: ProtocolStrategy, preparation: Preparation, n_clusters: int) -> int:
    """Return into how many intervals to divide a column's range for counting rows.

    The number follows from what the run has released about the number of rows.
    """
    if not isinstance(strategy, PrivateStrategy) or strategy.epsilon is None:
        return MOST_PARTS
    used = preparation.schema.used
    n_measured = sum(column.kind in MEASURED for column in used.values())
    deviation = strategy.noise_of(
        DESCRIPTION, math.sqrt(1 + LARGEST_POWERS * n_measured + len(used))
    )
    n_rows = strategy.n_released_rows / n_clusters
    return n_bins_for(n_rows, deviation, fewest=FEWEST_PARTS, most=MOST_PARTS)


def why_not(strategy: ProtocolStrategy, model: Model, part: str = DESCRIPTION) -> str:
    """Return why the clusters of a model cannot be described, or counted by time and event; "" if they can.

    ``part`` is the part of the budget that would pay for the description or the counts.
    """
    if model.stays_with_server:
        return "the model contains what single rows have sent, so it is sent to no client"
    if model.exact_points is None and strategy.tables is not None and part in _paid(strategy):
        return f"the cluster of a row is not an exact choice there, so no guarantee could cover the {part}"
    return ""


def _summed(strategy: ProtocolStrategy, question: Question, part: str) -> Sum:
    """Return the round for a sum over rows; if the guarantee covers clients, for a sum over the clients' means.

    ``part`` of the budget pays for the noise, if the run's budget has such a part.
    """
    if not isinstance(strategy, PrivateStrategy):
        return Sum(question)
    return strategy.summed(question, *(name for name in [part] if name in _paid(strategy)))


def _paid(strategy: ProtocolStrategy) -> Mapping[str, Part]:
    """Return the parts of a run's budget, by name; {} without an epsilon."""
    is_private = isinstance(strategy, PrivateStrategy) and strategy.epsilon is not None
    return strategy.all_parts() if isinstance(strategy, PrivateStrategy) and is_private else {}


def _in_ball(strategy: S, *, max_norm: float, max_l1_norm: float) -> S:
    """Return a copy of a strategy with bounds on the norms of its rows, except where the user gave a bound."""
    inner = copy.copy(strategy)
    if inner.epsilon is not None and getattr(inner, "server_data", None) is None:
        for name, norm in (("max_norm", max_norm), ("max_l1_norm", max_l1_norm)):
            if name in inner.parameter_names() and getattr(inner, name) is None:
                setattr(inner, name, norm)
    return inner

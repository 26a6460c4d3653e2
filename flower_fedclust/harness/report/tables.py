"""The tables of a report: which contenders and columns they have, and which of their values are marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.data import Contender, Scenario, Spread
from flower_fedclust.harness.report.texts import (
    bytes_text,
    count_text,
    deviation_text,
    measure_text,
    number_text,
    share_text,
)
from flower_fedclust.harness.report.verdict import LEVEL, differences


@dataclass(frozen=True)
class Column:
    """One column of numbers: how they are shown, and whether more or less of it is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False
    is_last: bool = False  #: Whether it stands after the guarantee.

    def best(self, contenders: Sequence[Contender]) -> str | None:
        """Return the best mean as it is shown, so that ties are ties; None if fewer than two have one."""
        comparable = (one.spread(self.name) for one in contenders if one.is_comparable(self.name))
        means = [spread.mean for spread in comparable if spread is not None]
        if len(means) < 2:
            return None
        return self.show(max(means) if self.higher_is_better else min(means))

    def deviation(self, spread: Spread, text: str) -> str:
        """Return the deviation beside a mean that is shown as ``text``."""
        if self.show in (share_text, number_text, _seconds):
            return deviation_text(spread, text)
        # Rounds and bytes seldom depend on the seed; then there is nothing to say.
        return f"± {self.show(spread.deviation)}" if spread.deviation else ""


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


COLUMNS = (
    Column("accuracy", "accuracy", share_text, higher_is_better=True),
    Column("nmi", "NMI", share_text, higher_is_better=True),
    Column("ari", "ARI", share_text, higher_is_better=True),
    Column("cost_per_row", "cost per row", number_text),
    Column("silhouette", "silhouette", share_text, higher_is_better=True),
    Column("bytes_up", "sent by clients", bytes_text),
    Column("seconds", "seconds", _seconds),
    Column("rounds", "rounds", count_text, is_last=True),
    Column("bytes_down", "sent to clients", bytes_text, is_last=True),
    Column("peak_memory_mb", "peak memory, MB", count_text, is_last=True),
    Column("davies_bouldin", "Davies-Bouldin", number_text, is_last=True),
    Column("calinski_harabasz", "Calinski-Harabasz", number_text, higher_is_better=True, is_last=True),
    Column("map_ca_10", "map: class by neighbours", share_text, higher_is_better=True, is_last=True),
    Column("map_npa_10", "map: neighbours kept", share_text, higher_is_better=True, is_last=True),
    Column("map_nmi", "map: NMI", share_text, higher_is_better=True, is_last=True),
    Column("map_trustworthiness", "map: trustworthiness", share_text, higher_is_better=True, is_last=True),
)


@dataclass(frozen=True)
class ResultsTable:
    """The table of one scenario: the pooled references, then the others, the best first, then what collapsed."""

    scenario: Scenario

    @cached_property
    def done(self) -> list[Contender]:
        """The contenders that have a result."""
        return [one for one in self.scenario.contenders if one.trials]

    @cached_property
    def groups(self) -> dict[str, list[Contender]]:
        """The rows by the class of their body."""
        federated = [one for one in self.scenario.federated if one.trials]
        collapsed = [one for one in federated if self.scenario.collapse(one)]
        ranked = self.scenario.ranked(federated)
        # A cost in another space cannot be ranked; it comes after those that can.
        unranked = [one for one in federated if one not in ranked and one not in collapsed]
        return {
            "pooled": [one for one in self.scenario.pooled if one.trials],
            "sortable": ranked + unranked,
            "sortable collapsed": collapsed,
        }

    @cached_property
    def columns(self) -> list[Column]:
        """The columns that any contender has, that of the measure first."""
        columns = [column for column in COLUMNS if any(one.spread(column.name) for one in self.done)]
        return sorted(columns, key=lambda column: column.name != self.scenario.measure)

    @property
    def first(self) -> list[Column]:
        """The columns before the guarantee."""
        return [column for column in self.columns if not column.is_last]

    @property
    def last(self) -> list[Column]:
        """The columns after it."""
        return [column for column in self.columns if column.is_last]

    @cached_property
    def best(self) -> dict[str, str | None]:
        """The best of each column, among those that neither pool the rows nor collapsed."""
        return {column.name: column.best(self.groups["sortable"]) for column in self.columns}

    @cached_property
    def near(self) -> list[Contender]:
        """Those of which chance may have decided that they are not the best."""
        return [one.other for one in differences(self.scenario) if one.p_value >= LEVEL]

    @property
    def order(self) -> str:
        """How the rows are sorted by the measure."""
        return "descending" if self.scenario.higher_is_better else "ascending"

    @property
    def has_gap(self) -> bool:
        """Whether there is a column for the distance to the pooled reference."""
        return self.scenario.reference is not None and bool(self.scenario.federated)

    @property
    def guarantees(self) -> list[str]:
        """The classes of guarantees to choose from."""
        return list(dict.fromkeys(one.guarantee_kind for one in self.done if not one.is_pooled))

    @property
    def has_daggers(self) -> bool:
        """Whether any value is marked as one that cannot be compared."""
        return any(one.spread("cost_per_row") and not one.is_comparable("cost_per_row") for one in self.done)

    @property
    def caption(self) -> str:
        """What the numbers and signs are."""
        counts = sorted({len(one.trials) for one in self.done})
        over = "the mean and the standard deviation over " if counts[-1] > 1 else ""
        fewer = ", or fewer where runs failed or have not ended" if len(counts) > 1 else ""
        stars = " ★ is the best of a column among those that neither pool the rows nor collapsed."
        near = " ≈ may be as good." if self.near else ""
        return (
            f"{self.scenario.name}: {over}{plural(counts[-1], 'seed')}{fewer}."
            f"{stars if self.scenario.federated else ''}{near}"
        )

    def notes(self, one: Contender) -> list[str]:
        """Return what stands below the name of a contender."""
        collapse = self.scenario.collapse(one)
        kind = "pooled reference" if one.is_pooled else f"collapsed: {collapse}" if collapse else ""
        return list(filter(None, (one.variant, kind)))

    def gap(self, one: Contender) -> tuple[str, float] | None:
        """Return the distance to the best pooled reference, as text and number: a difference, or for a cost a ratio."""
        top, own = self.scenario.quality(self.scenario.reference), self.scenario.quality(one)
        if top is None or own is None or one is self.scenario.reference:
            return None
        if not self.scenario.higher_is_better:
            return (f"× {own.mean / top.mean:.3g}", own.mean / top.mean) if top.mean > 0 else None
        gap = own.mean - top.mean
        # The condition avoids "-0.000".
        return (f"{gap:+.3f}".replace("-", "−") if abs(gap) >= 0.0005 else "0.000"), gap


@dataclass(frozen=True)
class OverviewRow:
    """A strategy at a budget, with its result and whether it is the best in each scenario."""

    title: str
    epsilon: float | None
    is_pooled: bool
    cells: Sequence[tuple[str, bool]]


def overview_rows(scenarios: Sequence[Scenario]) -> list[OverviewRow]:
    """Return the results in all scenarios, a row a strategy and budget; what failed everywhere is told elsewhere."""
    best = [scenario.quality(scenario.best(scenario.federated)) for scenario in scenarios]

    def key(one: Contender) -> tuple[bool, str, bool, float]:
        return (not one.is_pooled, one.title, one.epsilon is None, one.epsilon or 0.0)

    def cell(scenario: Scenario, top: Spread | None, group: list[Contender]) -> tuple[str, bool]:
        own = [one for one in group if one in scenario.contenders]
        spread = scenario.quality(scenario.best(own))
        if spread is None:
            failed = any(one.failed and not one.trials for one in own)
            return ("collapsed" if any(map(scenario.collapse, own)) else "failed" if failed else ""), False
        text = measure_text(scenario.measure, spread.mean)
        is_rival = not own[0].is_pooled and top is not None
        return text, is_rival and top is not None and text == measure_text(scenario.measure, top.mean)

    rows = []
    everyone = sorted((one for scenario in scenarios for one in scenario.contenders), key=key)
    for _, same in groupby(everyone, key):
        group = list(same)
        if any(one.trials for one in group):
            cells = [cell(scenario, top, group) for scenario, top in zip(scenarios, best, strict=True)]
            rows.append(OverviewRow(group[0].title, group[0].epsilon, group[0].is_pooled, cells))
    return rows

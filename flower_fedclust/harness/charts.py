"""The charts of a scenario: which series are drawn on which axes, and where; the page's templates draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from flower_fedclust.harness.results import (
    Contender,
    Scenario,
    Spread,
    bytes_text,
    capital,
    number_text,
)

#: How many series a chart may have.
MOST_SERIES = 8
# In units of the picture, which is scaled to the width of the page; of a letter, and of a line, in a label.
_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 16, 62
_LETTER, _LINE = 8.8, 17.0
#: How many digits are as wide as the picture in a row of a table.
_HEAD = 18

#: Colors and marks for each class of guarantees, and for pooled references, in every chart.
KINDS = {
    "whole run covered": "c0",
    "covered in part": "c1",
    "no guarantee": "c2",
    "rows pooled": "pooled",
}


@dataclass(frozen=True)
class Axis:
    """A scale from the least to the greatest value, with its title and its ticks."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    is_logarithmic: bool = False

    @property
    def short_ticks(self) -> list[tuple[float, str]]:
        """The ticks that the head of a table has room for, with their texts: all, every second, and so on."""
        texts = [f"{tick:g}" for tick in self.ticks]
        for step in range(1, len(texts) + 1):
            kept = list(zip(self.ticks, texts, strict=True))[::step]
            places = [(self.at(tick) * _HEAD, len(text) / 2) for tick, text in kept]
            if all(
                at + half + 1 <= after - other for (at, half), (after, other) in pairwise(places)
            ):
                break
        return kept

    def at(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def name(self) -> str:
        """The measure of a chart."""
        return self.title.removesuffix(" (logarithmic)")

    def text(self, value: float) -> str:
        """Return a value as a label."""
        if "bytes" in self.title:
            return bytes_text(value, ".3g")
        return f"{value:.4g}" if abs(value) < 1e5 else number_text(value, 2)


@dataclass(frozen=True)
class Series:
    """Points with one name and one look; a line joins them."""

    name: str
    look: str  #: The CSS class of the series, by which the templates also choose its point symbol.
    points: Sequence[tuple[float, float]]
    label: str = ""  #: The text beside the last point.
    is_hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """Series on one pair of axes, with a legend and a table of their numbers."""

    about: str  #: The scenario.
    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    keys: Sequence[tuple[str, str]] = ()  #: The legend: names and looks.
    #: Whether labels stand right of the axes, and not among the points.
    labels_outside: bool = False

    width, height, left, top, bottom = _WIDTH, _HEIGHT, _LEFT, _TOP, _HEIGHT - _BOTTOM

    @property
    def name(self) -> str:
        """The name of the chart, complete without its surroundings."""
        return f"{self.about}: {self.title}"

    @cached_property
    def right(self) -> float:
        """Where the axes end."""
        longest = (
            max((len(one.label) for one in self.series), default=0) if self.labels_outside else 0
        )
        return _WIDTH - max(_RIGHT, 38 + _LETTER * longest if longest else 0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies, from the left and from the top."""
        across, up = (
            self.x.at(x) * (self.right - self.left),
            self.y.at(y) * (self.bottom - self.top),
        )
        return round(self.left + across, 1), round(self.bottom - up, 1)

    def line(self, series: Series) -> str:
        """Return the path through the points of a series."""
        return "M" + "L".join("{} {}".format(*self.at(*point)) for point in series.points)

    def placed_labels(self) -> list[tuple[Series, float, float, bool]]:
        """Return each label with its place, and whether it ends there; none lies over another."""
        labeled = [(one, *self.at(*one.points[-1])) for one in self.series if one.label]
        if self.labels_outside:
            heights = apart([y for _, _, y in labeled], self.bottom + 2.0)
            return [
                (one, self.right + 26, y, False)
                for (one, _, _), y in zip(labeled, heights, strict=True)
            ]
        taken: list[tuple[float, float, float]] = []
        placed = []
        for one, x, y in sorted(labeled, key=lambda each: (-each[2], each[1])):
            width, is_left = _LETTER * len(one.label), x > (self.left + self.right) / 2
            start, y = (x - 12 - width if is_left else x + 12), y - 10
            while any(
                abs(y - at) < _LINE and start < right and left < start + width
                for left, right, at in taken
            ):
                y -= _LINE / 2
            taken.append((start, start + width, y))
            placed.append((one, x - 12 if is_left else x + 12, y, is_left))
        return placed

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the rows of the numbers: a row for each x, or for each series if they have one point."""
        if all(len(one.points) == 1 for one in self.series):
            rows = [
                [one.name, self.x.text(x), self.y.text(y)]
                for one in self.series
                for x, y in one.points
            ]
            return ["strategy", self.x.name, self.y.name], rows
        by_series = [dict(one.points) for one in self.series]
        shown = sorted({x for one in by_series for x in one})
        rows = [
            [
                f"{x:g}",
                *(self.y.text(one[x]) if x in one else number_text(None) for one in by_series),
            ]
            for x in shown
        ]
        return [self.x.name, *(one.name for one in self.series)], rows


def apart(wanted: Sequence[float], most: float) -> list[float]:
    """Return heights a line apart, as near to those wanted as their order and the greatest height allow."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = [0.0] * len(wanted)
    least, limit = -math.inf, most
    for index in order:
        placed[index] = max(least, wanted[index])
        least = placed[index] + _LINE
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - _LINE
    return placed


def linear_axis(
    title: str, values: Sequence[float], *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Axis:
    """Return a scale that holds the values, with round ticks, and no values that are impossible."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - room, high + room
    # The smallest round step with which there are about five ticks.
    wanted = (high - low) / 5
    power_of_ten = 10.0 ** math.floor(math.log10(wanted))
    round_steps = [factor * power_of_ten for factor in (1, 2, 2.5, 5, 10)]
    step = next(round_step for round_step in round_steps if round_step >= 0.999 * wanted)
    least, most = within
    low = max(step * math.floor(low / step), least)
    high = min(step * math.ceil(high / step), most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Axis(title, low, high, [round(step * index, 12) for index in range(first, last + 1)])


def logarithmic_axis(title: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic scale that holds the positive values, with a tick at each if they are few."""
    room = 1.35 if max(values) <= 4 * min(values) else (max(values) / min(values)) ** 0.06
    low, high = min(values) / room, max(values) * room
    ticks = sorted(set(values))
    if len(ticks) > MOST_SERIES or "bytes" in title:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in (
            (1.0,),
            (1.0, 3.0),
            (1.0, 2.0, 5.0),
            (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
        ):
            ticks = [
                step * 10.0**decade
                for decade in decades
                for step in steps
                if low <= step * 10.0**decade <= high
            ]
            if len(ticks) >= 3:
                break
        ticks = ticks[:: math.ceil(len(ticks) / 6)] or [min(values)]
    return Axis(f"{title} (logarithmic)", low, high, ticks, is_logarithmic=True)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any values, logarithmic if they are positive and span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(name, values)
    return linear_axis(name, values)


def quality_axis(scenario: Scenario, contenders: Sequence[Contender]) -> Axis:
    """Return a scale for the measure that ranks, with room for the deviations."""
    spreads = [spread for _, spread in _measured(scenario, contenders)]
    values = [
        spread.mean + sign * (spread.deviation or 0.0) for spread in spreads for sign in (-1, 0, 1)
    ]
    if scenario.measure.higher_is_better:
        shares = [min(max(value, -1.0), 1.0) for value in values]
        return linear_axis(scenario.measure.heading, shares, within=(min(0.0, *values), 1.0))
    return _axis_of(scenario.measure.heading, [value for value in values if value > 0] or values)


def _measured(
    scenario: Scenario, contenders: Sequence[Contender]
) -> list[tuple[Contender, Spread]]:
    """Return the contenders that did not collapse and can be compared, with their measure."""
    ranked = scenario.ranked(contenders)
    return [(one, spread) for one in ranked if (spread := scenario.quality(one)) is not None]


def epsilon_charts(scenario: Scenario) -> list[Chart]:
    """Return quality against epsilon, the best strategies first; [] if there are not several epsilons."""
    private = [
        pair for pair in _measured(scenario, scenario.contenders) if (pair[0].epsilon or 0.0) > 0
    ]
    if len({one.epsilon for one, _ in private}) < 2:
        return []
    without = scenario.best(one for one in scenario.federated if one.epsilon is None)
    levels = _measured(scenario, [one for one in (scenario.reference, without) if one is not None])
    # All charts have the same axes, so that they can be compared.
    x = logarithmic_axis("epsilon", [one.epsilon or 1.0 for one, _ in private])
    y = quality_axis(scenario, [one for one, _ in (*private, *levels)])
    budgets = sorted({one.epsilon or 1.0 for one, _ in private})
    lines = [
        Series(name, "pooled", [(at, spread.mean) for at in budgets], name)
        for one, spread in levels
        for name in [one.title if one.is_pooled else f"{one.title}, no epsilon"]
    ]
    by_title: dict[str, list[tuple[Contender, Spread]]] = {}
    for one, spread in private:
        by_title.setdefault(one.title, []).append((one, spread))
    series = [
        Series(
            title,
            f"c{index % MOST_SERIES}",
            sorted((one.epsilon or 1.0, spread.mean) for one, spread in group),
            title,
            is_hollow=not all(one.is_covered for one, _ in group),
        )
        for index, (title, group) in enumerate(by_title.items())
    ]
    said = "Left is more private. Diamonds: the best of the pooled references, and the best without epsilon. Hollow "
    said += "marks: no guarantee covers the whole run."
    charts = []
    for start in range(0, len(series), MOST_SERIES):
        title = f"{capital(scenario.measure.heading)} against epsilon"
        title += (
            f" ({start // MOST_SERIES + 1} of {-(-len(series) // MOST_SERIES)})"
            if len(series) > MOST_SERIES
            else ""
        )
        part = [*lines, *series[start : start + MOST_SERIES]]
        charts.append(Chart(scenario.name, title, said, x, y, part, labels_outside=True))
    return charts


def bytes_chart(scenario: Scenario) -> Chart | None:
    """Return quality against the bytes of a run, in both directions; None if they are not known."""
    measured = [
        (one, sent.mean + received.mean, spread)
        for one, spread in _measured(scenario, scenario.contenders)
        if (sent := one.spread("bytes_up"))
        and (received := one.spread("bytes_down"))
        and sent.mean + received.mean > 0
    ]
    if not measured:
        return None
    rivals = [
        (one, price, scenario.measure.sign * spread.mean)
        for one, price, spread in measured
        if not one.is_pooled
    ]
    is_best = pareto_front([price for _, price, _ in rivals], [gain for _, _, gain in rivals])
    front = {one.name for (one, _, _), is_on in zip(rivals, is_best, strict=True) if is_on}
    found = {one.guarantee_kind for one, _, _ in measured}
    return Chart(
        scenario.name,
        f"{capital(scenario.measure.heading)} against bytes",
        "All bytes of a run, from the clients and to them. Left is cheaper. Named: those that no other beats in one "
        "without losing in the other.",
        logarithmic_axis("bytes", [price for _, price, _ in measured]),
        quality_axis(scenario, [one for one, _, _ in measured]),
        [
            Series(
                one.name,
                KINDS[one.guarantee_kind],
                [(price, spread.mean)],
                one.name if one.name in front else "",
            )
            for one, price, spread in measured
        ],
        [(kind, look) for kind, look in KINDS.items() if kind in found],
    )


def pareto_front(prices: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Tell for each point whether no other is at least as cheap and as good, and cheaper or better."""
    price, gain = np.asarray(prices, dtype=float), np.asarray(gains, dtype=float)
    return [
        not np.any(
            (price <= price[at]) & (gain >= gain[at]) & ((price < price[at]) | (gain > gain[at]))
        )
        for at in range(len(price))
    ]

"""The charts of a scenario: which series are drawn, on which axes, and where each label stands.

This module computes places in a picture of fixed size; the page's templates draw them as SVG. Each
chart also has a table of its numbers, so that nobody has to read values from a picture.
"""

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

#: The most series that a chart may have.
MOST_SERIES = 8
# Sizes in the chart's own units, which the page scales to its width. In this order: the chart, its margins, the width
# of a letter, and the height of a line.
_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 16, 62
_LETTER, _LINE = 8.8, 17.0
#: The width of the small chart in a row of a table, measured in digits: so many digits fit into the heading above it.
_HEAD = 18

#: The CSS class of each kind of guarantee, and of pooled references; it gives the color and the mark in every chart.
KINDS = {
    "whole run covered": "c0",
    "covered in part": "c1",
    "no guarantee": "c2",
    "rows pooled": "pooled",
}


@dataclass(frozen=True)
class Axis:
    """A scale from the least to the greatest value, linear or logarithmic, with its title and its ticks."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    is_logarithmic: bool = False

    @property
    def short_ticks(self) -> list[tuple[float, str]]:
        """The ticks that fit into the narrow heading of a table's column, with their texts.

        If there is no room for all ticks, only every second is returned, or every third, and so on.
        """
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
        """Return where a value lies on the axis: 0 at the low end, 1 at the high end."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def name(self) -> str:
        """The title without the remark that the axis is logarithmic."""
        return self.title.removesuffix(" (logarithmic)")

    def text(self, value: float) -> str:
        """Format a value of this axis as a label."""
        if "bytes" in self.title:
            return bytes_text(value, ".3g")
        return f"{value:.4g}" if abs(value) < 1e5 else number_text(value, 2)


@dataclass(frozen=True)
class Series:
    """Points with one name and one look, joined by a line."""

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
    #: Whether labels stand to the right of the axes instead of among the points.
    labels_outside: bool = False

    width, height, left, top, bottom = _WIDTH, _HEIGHT, _LEFT, _TOP, _HEIGHT - _BOTTOM

    @property
    def name(self) -> str:
        """The scenario and the title, so that a chart can be understood without the page around it."""
        return f"{self.about}: {self.title}"

    @cached_property
    def right(self) -> float:
        """The x coordinate at which the axes end; labels that stand outside need room to the right of it."""
        longest = (
            max((len(series.label) for series in self.series), default=0)
            if self.labels_outside
            else 0
        )
        return _WIDTH - max(_RIGHT, 38 + _LETTER * longest if longest else 0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point in the picture: (from the left, from the top)."""
        across, up = (
            self.x.at(x) * (self.right - self.left),
            self.y.at(y) * (self.bottom - self.top),
        )
        return round(self.left + across, 1), round(self.bottom - up, 1)

    def line(self, series: Series) -> str:
        """Return the SVG path through the points of a series."""
        return "M" + "L".join("{} {}".format(*self.at(*point)) for point in series.points)

    def placed_labels(self) -> list[tuple[Series, float, float, bool]]:
        """Return each label as (series, x, y, whether the text ends at x), placed so that none covers another.

        Labels beside the axes are moved up or down as little as possible. Labels among the points
        are moved up until they are free.
        """
        labeled = [(series, *self.at(*series.points[-1])) for series in self.series if series.label]
        if self.labels_outside:
            heights = apart([y for _, _, y in labeled], self.bottom + 2.0)
            return [
                (series, self.right + 26, y, False)
                for (series, _, _), y in zip(labeled, heights, strict=True)
            ]
        taken: list[tuple[float, float, float]] = []
        placed = []
        for series, x, y in sorted(labeled, key=lambda each: (-each[2], each[1])):
            width, is_left = _LETTER * len(series.label), x > (self.left + self.right) / 2
            start, y = (x - 12 - width if is_left else x + 12), y - 10
            while any(
                abs(y - at) < _LINE and start < right and left < start + width
                for left, right, at in taken
            ):
                y -= _LINE / 2
            taken.append((start, start + width, y))
            placed.append((series, x - 12 if is_left else x + 12, y, is_left))
        return placed

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """The numbers of the chart as headings and rows.

        There is a row for each x; or a row for each series, if every series is a single point.
        """
        if all(len(series.points) == 1 for series in self.series):
            rows = [
                [series.name, self.x.text(x), self.y.text(y)]
                for series in self.series
                for x, y in series.points
            ]
            return ["strategy", self.x.name, self.y.name], rows
        by_series = [dict(series.points) for series in self.series]
        shown = sorted({x for points in by_series for x in points})
        rows = [
            [
                f"{x:g}",
                *(
                    self.y.text(points[x]) if x in points else number_text(None)
                    for points in by_series
                ),
            ]
            for x in shown
        ]
        return [self.x.name, *(series.name for series in self.series)], rows


def apart(wanted: Sequence[float], most: float) -> list[float]:
    """Return heights of labels that are at least a line apart, and as near to the wanted heights as possible.

    The order of the labels is kept, and no height exceeds ``most``. The first pass moves labels
    down where they overlap. The second moves them up where they would leave the picture.
    """
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
    """Return a linear axis that holds the values, with about five round ticks.

    ``within`` limits the axis to possible values: an accuracy, for example, does not exceed 1.
    """
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
    """Return a logarithmic axis that holds the positive values.

    If there are few values, each has a tick. Otherwise the ticks are round numbers within each
    decade.
    """
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
    """Return a logarithmic axis if the values are positive and span a factor of more than 30, else a linear one."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(name, values)
    return linear_axis(name, values)


def quality_axis(scenario: Scenario, contenders: Sequence[Contender]) -> Axis:
    """Return an axis for the measure that ranks the contenders, with room for their standard deviations."""
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
    """Return the contenders that can be ranked, the best first, each with its spread."""
    ranked = scenario.ranked(contenders)
    return [
        (contender, spread)
        for contender in ranked
        if (spread := scenario.quality(contender)) is not None
    ]


def epsilon_charts(scenario: Scenario) -> list[Chart]:
    """Return charts of quality against epsilon, the best strategies first.

    A chart has at most :data:`MOST_SERIES` strategies, so there may be several charts; all have the
    same axes. Returns [] if the comparison has fewer than two epsilons.
    """
    private = [
        pair for pair in _measured(scenario, scenario.contenders) if (pair[0].epsilon or 0.0) > 0
    ]
    if len({contender.epsilon for contender, _ in private}) < 2:
        return []
    without = scenario.best(
        contender for contender in scenario.federated if contender.epsilon is None
    )
    levels = _measured(
        scenario,
        [contender for contender in (scenario.reference, without) if contender is not None],
    )
    # All charts have the same axes, so that they can be compared.
    x = logarithmic_axis("epsilon", [contender.epsilon or 1.0 for contender, _ in private])
    y = quality_axis(scenario, [contender for contender, _ in (*private, *levels)])
    budgets = sorted({contender.epsilon or 1.0 for contender, _ in private})
    lines = [
        Series(name, "pooled", [(at, spread.mean) for at in budgets], name)
        for contender, spread in levels
        for name in [contender.title if contender.is_pooled else f"{contender.title}, no epsilon"]
    ]
    by_title: dict[str, list[tuple[Contender, Spread]]] = {}
    for contender, spread in private:
        by_title.setdefault(contender.title, []).append((contender, spread))
    series = [
        Series(
            title,
            f"c{index % MOST_SERIES}",
            sorted((contender.epsilon or 1.0, spread.mean) for contender, spread in group),
            title,
            is_hollow=not all(contender.is_covered for contender, _ in group),
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
    """Return a chart of quality against the bytes that a run sends in both directions; None if they are unknown.

    Only contenders on the Pareto front are named: no other is both better and cheaper.
    """
    measured = [
        (contender, sent.mean + received.mean, spread)
        for contender, spread in _measured(scenario, scenario.contenders)
        if (sent := contender.spread("bytes_up"))
        and (received := contender.spread("bytes_down"))
        and sent.mean + received.mean > 0
    ]
    if not measured:
        return None
    rivals = [
        (contender, price, scenario.measure.sign * spread.mean)
        for contender, price, spread in measured
        if not contender.is_pooled
    ]
    is_best = pareto_front([price for _, price, _ in rivals], [gain for _, _, gain in rivals])
    front = {
        contender.name for (contender, _, _), is_on in zip(rivals, is_best, strict=True) if is_on
    }
    kinds = {contender.guarantee_kind for contender, _, _ in measured}
    return Chart(
        scenario.name,
        f"{capital(scenario.measure.heading)} against bytes",
        "All bytes of a run, from the clients and to them. Left is cheaper. Named: those that no other beats in one "
        "without losing in the other.",
        logarithmic_axis("bytes", [price for _, price, _ in measured]),
        quality_axis(scenario, [contender for contender, _, _ in measured]),
        [
            Series(
                contender.name,
                KINDS[contender.guarantee_kind],
                [(price, spread.mean)],
                contender.name if contender.name in front else "",
            )
            for contender, price, spread in measured
        ],
        [(kind, look) for kind, look in KINDS.items() if kind in kinds],
    )


def pareto_front(prices: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Return for each point whether it is on the Pareto front.

    A point is off the front if another point is at least as cheap and at least as good, and is
    better in one of the two.
    """
    price, gain = np.asarray(prices, dtype=float), np.asarray(gains, dtype=float)
    return [
        not np.any(
            (price <= price[at]) & (gain >= gain[at]) & ((price < price[at]) | (gain > gain[at]))
        )
        for at in range(len(price))
    ]

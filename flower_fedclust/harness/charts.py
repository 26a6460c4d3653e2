"""The charts of a scenario: what is drawn on which axes, and where; the page's templates draw it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flower_fedclust.harness.results import (
    Contender,
    Scenario,
    Spread,
    TrialResult,
    bytes_text,
    capital,
    deviation_text,
    measure_text,
    number_text,
    plural,
)
from flower_fedclust.harness.verdict import Ranks
from flower_fedclust.registry import strategies

#: How many series a chart may have.
MOST_SERIES = 8
_MOST_ROUNDS = 25
# In units of the picture, which is scaled to the width of the page; of a letter, and of a line, in a label.
_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 16, 62
_LETTER, _LINE = 8.8, 17.0

#: Marks within a circle of radius 1; ten colors and seven marks make seventy pairs.
_MARKS = (
    "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1-1 0Z",
    "M-.85-.85H.85V.85H-.85Z",
    "M0-1.15L1.05.8H-1.05Z",
    "M0-1.25L1.25 0L0 1.25L-1.25 0Z",
    "M0 1.15L-1.05-.8H1.05Z",
    "M0-1.3L.38-.45L1.25-.4L.58.17L.8 1.05L0 .56L-.8 1.05L-.58.17L-1.25-.4L-.38-.45Z",
    "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
)
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2", "12 5")


@dataclass(frozen=True)
class Style:
    """The look of one series of a chart; a pooled reference has the color of the text."""

    index: int
    is_pooled: bool = False

    @property
    def color(self) -> str:
        """A class of the style sheet, which has a light and a dark color for it."""
        return "pooled" if self.is_pooled else f"c{self.index % 10}"

    @property
    def dash(self) -> str | None:
        """A pattern for lines."""
        return None if self.is_pooled else _DASHES[self.index % len(_DASHES)] or None

    @property
    def outline(self) -> str:
        """The path of its mark, within a circle of radius 1."""
        return _MARKS[self.index % len(_MARKS)]


#: The looks of the classes of guarantees.
_KINDS = {
    "whole run covered": Style(0),
    "covered in part": Style(1),
    "no guarantee": Style(2),
    "rows pooled": Style(3, is_pooled=True),
}


@dataclass(frozen=True)
class Axis:
    """A scale from the least to the greatest value, with its title and its ticks."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def text(self, value: float) -> str:
        """Return the label of a tick."""
        if "bytes" in self.title.lower():
            return bytes_text(value, "g")
        return f"{value:g}" if abs(value) < 1e5 else number_text(value, 2)


@dataclass(frozen=True)
class Point:
    """One contender in a chart; without x, a horizontal line."""

    x: float | None
    y: float
    style: Style
    tip: str
    label: str = ""  #: The text beside it.
    is_hollow: bool = False
    is_front: bool = False  #: Whether no other point is better and cheaper.


@dataclass(frozen=True)
class Chart:
    """What is drawn on one pair of axes, with its numbers as a table and a legend."""

    about: str  #: The scenario.
    title: str
    description: str
    x: Axis
    y: Axis
    points: Sequence[Point]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    levels: Sequence[Point] = ()
    #: Each series is a line through its points in their order.
    lines: Sequence[tuple[Style, Sequence[tuple[float, float]]]] = ()
    #: Names of series right of the axes, at the height of a value.
    labels: Sequence[tuple[Style, float, str]] = ()
    keys: Sequence[tuple[str, Style]] = ()  #: The legend.

    width, height, left, top, bottom = _WIDTH, _HEIGHT, _LEFT, _TOP, _HEIGHT - _BOTTOM

    @property
    def name(self) -> str:
        """The name of the chart, complete without its surroundings."""
        return f"{self.about}: {self.title}"

    @cached_property
    def right(self) -> float:
        """Where the axes end."""
        return _WIDTH - max([_RIGHT, *(28 + _LETTER * len(text) for _, _, text in self.labels)])

    def at_x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        return self.left + self.x.at(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        """Return where a value lies from top to bottom."""
        return self.bottom - self.y.at(value) * (self.bottom - self.top)

    def placed_levels(self) -> list[tuple[float, str]]:
        """Return how far down the names of levels stand, each above its line or above the name below it."""
        named = [level for level in self.levels if level.label]
        lines = [self.at_y(level.y) for level in named]
        free = [min(other for other in lines if line - other < _LINE + 7) - 7 for line in lines]  # not across a line
        heights = apart([-height for height in free], math.inf)
        # A name that would leave the chart stands below its line instead.
        heights = [-height if -height > self.top else self.top + _LINE * (2 + n) for n, height in enumerate(heights)]
        return [(height, level.label) for level, height in zip(named, heights, strict=True)]

    def placed_labels(self) -> list[tuple[Style, float, str]]:
        """Return the names of the series at the ends of their lines, none over another."""
        heights = apart([self.at_y(value) for _, value, _ in self.labels], self.bottom + 2.0)
        return [(style, height, text) for (style, _, text), height in zip(self.labels, heights, strict=True)]

    def placed_names(self) -> list[tuple[float, float, str, bool]]:
        """Return the names of points: where, the text, and whether it ends there; each above all it would lie on."""
        taken: list[tuple[float, float, float]] = []
        placed = []
        named = [(point, point.x) for point in self.points if point.label and point.x is not None]
        for point, value in sorted(named, key=lambda one: (one[0].y, one[1])):
            x, y, width = self.at_x(value), self.at_y(point.y) - 10, _LETTER * len(point.label)
            is_left = x > (self.left + self.right) / 2
            start = x - 12 - width if is_left else x + 12
            while any(abs(y - at) < _LINE and start < right and left < start + width for left, right, at in taken):
                y -= _LINE / 2
            taken.append((start, start + width, y))
            placed.append((x + (-12 if is_left else 12), y, point.label, is_left))
        return placed

    @property
    def front(self) -> list[tuple[float, float]]:
        """The places of the points that no other beats, from left to right."""
        front = [(point.x, point.y) for point in self.points if point.is_front and point.x is not None]
        return [(self.at_x(x), self.at_y(y)) for x, y in sorted(front)]

    @property
    def staircase(self) -> str:
        """The path of the best that each price buys: it stays the same until the next point of the front."""
        (x, y), *rest = self.front
        return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest) + f"H{self.right:.1f}"


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


def linear_axis(title: str, values: Sequence[float], *, within: tuple[float, float] | None = None) -> Axis:
    """Return a scale that holds the values, with round ticks, and nothing beyond what is possible."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - room, high + room
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= (high - low) / 5 * 0.999)
    low, high = step * math.floor(low / step), step * math.ceil(high / step)
    if within is not None:
        low, high = max(low, within[0]), min(high, within[1])
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(title, low, high, [round(step * index, 12) for index in range(first, last + 1)])


def logarithmic_axis(title: str, values: Sequence[float], *, ticks_at_values: bool = False) -> Axis:
    """Return a logarithmic scale that holds the positive values, with ticks at the values if asked and they are few."""
    room = 1.35 if max(values) <= 4 * min(values) else (max(values) / min(values)) ** 0.06
    low, high = min(values) / room, max(values) * room
    different = sorted(set(values))
    if ticks_at_values and len(different) <= 8:
        return Axis(title, low, high, different, is_logarithmic=True)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) >= 3:
            break
    ticks = ticks[:: math.ceil(len(ticks) / 6)]
    return Axis(title, low, high, ticks or different, is_logarithmic=True)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any values, logarithmic if they are positive and span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(f"{name} (logarithmic)", values)
    return linear_axis(name, values)


def _quality_axis(scenario: Scenario, spreads: Sequence[Spread]) -> Axis:
    values = [spread.mean + sign * (spread.deviation or 0.0) for spread in spreads for sign in (-1, 0, 1)]
    if scenario.higher_is_better:
        shares = [min(max(value, -1.0), 1.0) for value in values]
        return linear_axis(scenario.measure_name, shares, within=(min(0.0, *values), 1.0))
    return _axis_of(scenario.measure_name, [value for value in values if value > 0] or values)


# A dot for each contender on a common scale.


@dataclass(frozen=True)
class Dot:
    """A row of a dot plot, with a bar from low to high."""

    name: str
    value: float
    low: float
    high: float
    text: str
    more: str
    kind: str  #: The class of its guarantee.

    @property
    def style(self) -> Style:
        """The look of its guarantee."""
        return _KINDS[self.kind]


@dataclass(frozen=True)
class DotPlot:
    """A row for each contender, on a common scale."""

    caption: str
    heading: str
    axis: Axis
    rows: Sequence[Dot]
    line: float | None = None  #: Where a line goes down through all rows.

    @property
    def keys(self) -> list[tuple[str, Style]]:
        """The legend."""
        return _keys(row.kind for row in self.rows)


def _keys(kinds: object) -> list[tuple[str, Style]]:
    found = set(kinds)  # type: ignore[call-overload]
    return [(name, style) for name, style in _KINDS.items() if name in found]


def quality_dots(scenario: Scenario) -> DotPlot | None:
    """Return a row for each contender, the best first, with a dot at its measure; None if none has it."""
    ranked = scenario.ranked(scenario.contenders)
    shown = [(one, spread) for one in ranked if (spread := scenario.quality(one)) is not None]
    if not shown:
        return None
    axis = _quality_axis(scenario, [spread for _, spread in shown])
    rows = []
    for one, spread in shown:
        low, high = (min(max(spread.mean + sign * (spread.deviation or 0.0), axis.low), axis.high) for sign in (-1, 1))
        mean, deviation = _spread_texts(scenario, spread)
        rows.append(Dot(one.name, spread.mean, low, high, mean, deviation and f"± {deviation}", one.guarantee_kind))
    top = scenario.quality(scenario.reference)
    line = f" The line is {scenario.reference.name}." if scenario.reference is not None else ""
    left_out = sum(bool(scenario.collapse(one)) for one in scenario.federated)
    caption = (
        f"{capital(scenario.measure_name)} of {plural(len(shown), 'contender')}, mean and deviation. "
        f"{capital(_better(scenario, 'right', 'left'))}.{line}"
        f"{f' {left_out} that collapsed are left out.' if left_out else ''}"
    )
    return DotPlot(caption, scenario.measure_name, axis, rows, None if top is None else top.mean)


def rank_dots(ranks: Ranks, name: str) -> DotPlot:
    """Return mean ranks, each with half the critical difference to both sides, and letters of those alike."""
    axis = linear_axis("mean rank", [1, len(ranks.contenders)], within=(1, len(ranks.contenders)))
    half = ranks.critical_difference / 2
    rows = [
        Dot(
            one.name,
            mean,
            max(mean - half, axis.low),
            min(mean + half, axis.high),
            f"{mean:.3g}",
            letters,
            one.guarantee_kind,
        )
        for one, mean, letters in zip(ranks.contenders, ranks.means, ranks.letters, strict=True)
    ]
    return DotPlot(f"{name}: mean rank over {ranks.over}. {ranks.sentence}", "mean rank", axis, rows)


# Quality against epsilon and against bytes, and what strategies recorded by round.


def epsilon_charts(scenario: Scenario) -> list[Chart]:
    """Return quality against epsilon, a chart per family of strategies; [] if there are not several epsilons."""
    private = [(one, spread) for one, spread in scenario.measured if one.epsilon is not None and one.epsilon > 0]
    if len({one.epsilon for one, _ in private}) < 2:
        return []
    families: dict[str, dict[str, list[tuple[Contender, Spread]]]] = {}
    for one, spread in private:
        families.setdefault(_family(one.strategy), {}).setdefault(one.title, []).append((one, spread))
    without = scenario.best(one for one in scenario.federated if one.epsilon is None)
    known = ((scenario.reference, "rows pooled"), (without, "best without epsilon"))
    levels = [
        (
            Point(None, quality.mean, _KINDS["rows pooled"], _tip(scenario, one, quality), f"{one.name}: {words}"),
            quality,
        )
        for one, words in known
        if one is not None and (quality := scenario.quality(one)) is not None
    ]
    # All panels have the same axes, so that they can be compared.
    y = _quality_axis(scenario, [spread for _, spread in (*private, *levels)])
    x = logarithmic_axis("epsilon (logarithmic)", [one.epsilon or 1.0 for one, _ in private], ticks_at_values=True)
    charts: list[Chart] = []
    for family, series in families.items():
        for start in range(0, len(series), MOST_SERIES):
            part = dict(list(series.items())[start : start + MOST_SERIES])
            number = f" ({start // MOST_SERIES + 1})" if len(series) > MOST_SERIES else ""
            charts.append(_epsilon_chart(scenario, f"{family}{number}", part, (x, y), [level for level, _ in levels]))
    return charts


def _epsilon_chart(
    scenario: Scenario,
    title: str,
    part: Mapping[str, Sequence[tuple[Contender, Spread]]],
    axes: tuple[Axis, Axis],
    levels: Sequence[Point],
) -> Chart:
    """Return quality against epsilon, of a few strategies."""
    points, rows, lines, labels = [], [], [], []
    for index, (name, group) in enumerate(part.items()):
        style = Style(index)
        places = sorted((one.epsilon or 1.0, spread.mean) for one, spread in group)
        lines += [(style, places)] if len(places) > 1 else []
        labels.append((style, places[-1][1], name))
        for one, spread in group:
            tip = _tip(scenario, one, spread)
            points.append(Point(one.epsilon or 1.0, spread.mean, style, tip, is_hollow=not one.is_covered))
            rows.append([one.name, *_spread_texts(scenario, spread), ", ".join(one.guarantee_texts)])
    has_open = any(point.is_hollow for point in points)
    return Chart(
        scenario.name,
        f"{capital(scenario.measure_name)} against epsilon: {title}",
        f"Left is more private, {_better(scenario)}."
        + (" Hollow: the guarantee does not cover the whole run." if has_open else ""),
        *axes,
        points,
        ["strategy", scenario.measure_name, "deviation", "guarantee"],
        rows,
        levels=levels,
        lines=lines,
        labels=labels,
    )


def bytes_chart(scenario: Scenario) -> Chart | None:
    """Return quality against the bytes of a run, in both directions; None if they are not known."""
    measured = []
    for one, spread in scenario.measured:
        sent, received = one.spread("bytes_up"), one.spread("bytes_down")
        if sent is not None and received is not None and sent.mean + received.mean > 0:
            measured.append((one, spread, sent.mean, received.mean))
    if not measured:
        return None
    rivals = [(one, up + down, spread.mean) for one, spread, up, down in measured if not one.is_pooled]
    flags = pareto_front([price for _, price, _ in rivals], [scenario.sign * value for _, _, value in rivals])
    front = [one for (one, _, _), is_on in zip(rivals, flags, strict=True) if is_on]
    points, rows = [], []
    for one, spread, up, down in measured:
        is_front = any(one is other for other in front)
        tip = f"{_tip(scenario, one, spread)}\n{bytes_text(up + down)}"
        label = one.name if is_front else ""
        points.append(Point(up + down, spread.mean, _KINDS[one.guarantee_kind], tip, label, is_front=is_front))
        both = [bytes_text(up), bytes_text(down)]
        rows.append([one.name, *_spread_texts(scenario, spread), *both, "yes" if is_front else "no"])
    return Chart(
        scenario.name,
        f"{capital(scenario.measure_name)} against bytes",
        f"All bytes of a run, from the clients and to them. Left is cheaper, {_better(scenario)}. No other contender "
        "is both better and cheaper than those that are named; contenders that collapsed are left out.",
        logarithmic_axis("bytes (logarithmic)", [up + down for _, _, up, down in measured]),
        _quality_axis(scenario, [spread for _, spread, _, _ in measured]),
        points,
        ["strategy", scenario.measure_name, "deviation", "from the clients", "to the clients", "on the front"],
        rows,
        keys=_keys(one.guarantee_kind for one, *_ in measured),
    )


def pareto_front(prices: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Tell for each point whether no other is at least as cheap and as good, and cheaper or better."""
    price, gain = np.asarray(prices, dtype=float), np.asarray(gains, dtype=float)
    return [
        not np.any((price <= price[at]) & (gain >= gain[at]) & ((price < price[at]) | (gain > gain[at])))
        for at in range(len(price))
    ]


def _family(name: str) -> str:
    """Return the module of a strategy of this package, or "others"."""
    entry = strategies().get(name)
    home: list[str] = entry.strategy.__module__.split(".") if entry is not None else []
    return home[2].replace("_", "-") if home[:2] == ["flower_fedclust", "strategies"] else "others"


#: A curve that a trial of a contender recorded.
_Curve = tuple[Contender, TrialResult, list[float | None]]


def curve_charts(scenario: Scenario) -> list[Chart]:
    """Return a chart for each history that a strategy recorded, with a curve for each budget and seed."""
    recorded: dict[tuple[str, str], list[_Curve]] = {}
    for one in scenario.contenders:
        for trial in one.trials:
            for name, curve in trial.history.items():
                recorded.setdefault((one.title, name), []).append((one, trial, curve))
    # A single value is no curve.
    shown = {key: curves for key, curves in recorded.items() if max(len(curve) for _, _, curve in curves) > 1}
    return [_curve_chart(scenario, f"{strategy}: {name}", name, curves) for (strategy, name), curves in shown.items()]


def _curve_chart(scenario: Scenario, title: str, name: str, curves: Sequence[_Curve]) -> Chart:
    budgets = list(dict.fromkeys(one.epsilon for one, _, _ in curves))
    styles = {epsilon: Style(index) for index, epsilon in enumerate(budgets)}
    names = [f"{one.name}, seed {trial.text('seed')}" for one, trial, _ in curves]
    lines, points = [], []
    for (one, _, curve), label in zip(curves, names, strict=True):
        known = [(float(index), value) for index, value in enumerate(curve, 1) if value is not None]
        lines += [(styles[one.epsilon], piece) for piece in _pieces(known)]
        points.append(Point(*known[-1], styles[one.epsilon], f"{label}\nat the end {number_text(known[-1][1])}"))
    longest = max(len(curve) for _, _, curve in curves)
    steps = linear_axis("round", [1, longest])
    ticks = [tick for tick in steps.ticks if tick == int(tick) and 1 <= tick <= longest]
    shown = sorted({*range(1, longest + 1, math.ceil(longest / _MOST_ROUNDS)), longest})
    rows = [
        [str(step), *(number_text(curve[step - 1] if step <= len(curve) else None) for _, _, curve in curves)]
        for step in shown
    ]
    words = ["no epsilon" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in budgets]
    return Chart(
        scenario.name,
        title,
        "By round, a curve for each seed" + ("; each epsilon has its own color." if len(budgets) > 1 else "."),
        replace(steps, low=1 - 0.03 * longest, high=longest * 1.03, ticks=ticks),
        _axis_of(name, [value for _, _, curve in curves for value in curve if value is not None]),
        points,
        ["round", *names],
        rows,
        lines=lines,
        keys=list(zip(words, styles.values(), strict=True)) if len(words) > 1 else [],
    )


def _pieces(known: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Return the parts of a curve between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, value in known:
        if pieces[-1] and pieces[-1][-1][0] != index - 1:
            pieces.append([])
        pieces[-1].append((index, value))
    return [piece for piece in pieces if len(piece) > 1]


def _better(scenario: Scenario, more: str = "up", less: str = "down") -> str:
    return f"{more if scenario.higher_is_better else less} is better"


def _spread_texts(scenario: Scenario, spread: Spread) -> tuple[str, str]:
    text = measure_text(scenario.measure, spread.mean)
    return text, deviation_text(spread, text).removeprefix("± ")


def _tip(scenario: Scenario, one: Contender, spread: Spread) -> str:
    text = measure_text(scenario.measure, spread.mean)
    return f"{one.name}\n{scenario.measure_name} {text} {deviation_text(spread, text)}".rstrip()

"""Charts as SVG: marks and dashes beside colours, a name, and numbers for whoever points at them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flower_fedclust.lab.report.markup import Html, bytes_text, joined, number_text, tag

# In units of the picture, which is scaled to the width of the page.
WIDTH, HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 28, 16, 62
#: How many series a chart may have.
MOST_SERIES = 8
# Of a letter, and of a line, in the label of a series.
_LETTER, _LINE = 8.8, 17.0

#: Marks within a circle of radius 1; ten colours and seven marks make seventy pairs.
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
_MARK_SIZE = 6.5


@dataclass(frozen=True)
class Style:
    """The look of one series of a chart; a pooled reference has the colour of the text."""

    index: int
    is_pooled: bool = False

    @property
    def color(self) -> str:
        """A class of the style sheet, which has a light and a dark colour for it."""
        return "pooled" if self.is_pooled else f"c{self.index % 10}"

    @property
    def dash(self) -> str | None:
        """A pattern for lines."""
        return None if self.is_pooled else _DASHES[self.index % len(_DASHES)] or None

    def mark(self, x: float, y: float, *, is_hollow: bool = False, size: float = _MARK_SIZE, **more: object) -> Html:
        """Return the mark at a place."""
        place = f"translate({x:.1f} {y:.1f}) scale({size:g})"
        kind = "mark hollow" if is_hollow else "mark"
        return tag("path", d=_MARKS[self.index % len(_MARKS)], transform=place, class_=kind, **more)

    def sample(self) -> Html:
        """Return a small picture of mark and line, for a legend."""
        line = tag("line", x1=1, y1=8, x2=33, y2=8, class_="line", stroke_dasharray=self.dash)
        return tag(
            "svg", line, self.mark(17, 8), class_=f"sample {self.color}", width=34, height=16, aria_hidden="true"
        )


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


@dataclass(frozen=True)
class Point:
    """One contender in a chart."""

    x: float
    y: float
    style: Style
    tip: str
    is_hollow: bool = False
    label: str = ""  #: What stands beside it.


@dataclass(frozen=True)
class Level:
    """A horizontal line: a contender that has no x."""

    y: float
    style: Style
    tip: str
    label: str = ""  #: What stands at its beginning.
    is_label_below: bool = False


@dataclass(frozen=True)
class Chart:
    """What is drawn on one pair of axes."""

    #: The scenario.
    about: str
    title: str
    description: str
    x: Axis
    y: Axis
    points: Sequence[Point] = ()
    levels: Sequence[Level] = ()
    #: The points that no other point beats; a staircase is drawn through them.
    front: Sequence[Point] = ()
    #: Each series is a line through its points in their order.
    lines: Sequence[tuple[Style, Sequence[tuple[float, float]]]] = ()
    #: What stands right of the axes, at the height of a value.
    labels: Sequence[tuple[Style, float, str]] = ()

    @property
    def name(self) -> str:
        """The name of the chart, complete without its surroundings."""
        return f"{self.about}: {self.title}"

    def svg(self) -> Html:
        """Return the picture with its name; the caption of its figure describes it."""
        parts = [self._axes(), self._front(), *map(self._level, self.levels)]
        parts += [self._line(style, places) for style, places in self.lines]
        parts += map(self._point, self.points)
        parts += [self._labels(), self._names()]
        return tag("svg", *parts, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=self.name)

    @property
    def _right(self) -> float:
        """Where the axes end."""
        return WIDTH - max([_RIGHT, *(28 + _LETTER * len(text) for _, _, text in self.labels)])

    def _x(self, value: float) -> float:
        return _LEFT + self.x.at(value) * (self._right - _LEFT)

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y.at(value) * (HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> Html:
        bottom, right = HEIGHT - _BOTTOM, self._right
        parts = []
        for value in self.y.ticks:
            y = f"{self._y(value):.1f}"
            parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", _tick_text(value, self.y), x=_LEFT - 8, y=y, dy=".35em", class_="end"))
        for value in self.x.ticks:
            x = f"{self._x(value):.1f}"
            parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
            parts.append(tag("text", _tick_text(value, self.x), x=x, y=bottom + 20, class_="middle"))
        parts.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
        middle = (_TOP + bottom) / 2
        parts.append(tag("text", self.x.title, x=(_LEFT + right) / 2, y=HEIGHT - 12, class_="middle name"))
        turned = f"rotate(-90 16 {middle:g})"
        parts.append(tag("text", self.y.title, x=16, y=middle, transform=turned, class_="middle name"))
        return tag("g", *parts, aria_hidden="true")

    def _level(self, level: Level) -> Html:
        y = f"{self._y(level.y):.1f}"
        ends = {"x1": _LEFT, "x2": self._right, "y1": y, "y2": y}
        line = tag("line", **ends, class_="line level", stroke_dasharray=level.style.dash)
        mark = level.style.mark(self._right, float(y), data_tip=level.tip, data_y=y)
        label = (
            tag("text", level.label, x=_LEFT + 6, y=float(y) + (17 if level.is_label_below else -7), class_="label")
            if level.label
            else None
        )
        return tag("g", line, mark, label, class_=level.style.color)

    def _labels(self) -> Html:
        """Draw the names of the series at the ends of their lines, none over another."""
        parts, least = [], -math.inf
        for style, value, text in sorted(self.labels, key=lambda one: -one[1]):
            least = max(least + _LINE, self._y(value))
            mark = style.mark(self._right + 16, least, size=5)
            name = tag("text", text, x=self._right + 26, y=f"{least:.1f}", dy=".35em", class_="label")
            parts.append(tag("g", mark, name, class_=style.color))
        return tag("g", *parts)

    def _line(self, style: Style, places: Sequence[tuple[float, float]]) -> Html:
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in places)
        line = tag("polyline", points=path, class_="line", stroke_dasharray=style.dash)
        return tag("g", line, class_=style.color)

    def _point(self, point: Point) -> Html:
        x, y = self._x(point.x), self._y(point.y)
        at: dict[str, Any] = {"data_x": f"{x:.1f}", "data_y": f"{y:.1f}"}
        mark = point.style.mark(x, y, is_hollow=point.is_hollow, data_tip=point.tip, **at)
        return tag("g", mark, class_=point.style.color)

    def _names(self) -> Html:
        """Draw the names of points beside them, each above all that it would lie on."""
        taken: list[tuple[float, float, float]] = []
        parts = []
        for point in sorted((one for one in self.points if one.label), key=lambda one: (one.y, one.x)):
            x, y, width = self._x(point.x), self._y(point.y) - 10, _LETTER * len(point.label)
            is_left = x > (_LEFT + self._right) / 2
            start = x - 12 - width if is_left else x + 12
            while any(
                abs(y - other) < _LINE and start < right and left < start + width for left, right, other in taken
            ):
                y -= _LINE / 2
            taken.append((start, start + width, y))
            anchor = {"x": f"{x + (-12 if is_left else 12):.1f}", "y": f"{y:.1f}"}
            parts.append(tag("text", point.label, **anchor, class_="label end" if is_left else "label"))
        return tag("g", *parts)

    def _front(self) -> Html | None:
        """Draw the best that each price buys: it stays the same until the next point of the front."""
        if not self.front:
            return None
        best = sorted(self.front, key=lambda point: (point.x, point.y))
        path = f"M{self._x(best[0].x):.1f} {self._y(best[0].y):.1f}"
        for point in best[1:]:
            path += f"H{self._x(point.x):.1f}V{self._y(point.y):.1f}"
        path += f"H{self._right}"
        places = [(f"{self._x(point.x):.1f}", f"{self._y(point.y):.1f}") for point in best]
        return tag(
            "g",
            tag("path", d=path, class_="front"),
            *(tag("circle", cx=x, cy=y, r=11, class_="ring") for x, y in places),
        )


def linear_axis(title: str, values: Sequence[float], *, within: tuple[float, float] | None = None) -> Axis:
    """Return a scale that holds the values, with round ticks, and nothing beyond what is possible."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - room, high + room
    step = _round_step((high - low) / 5)
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


def legend(names: Iterable[tuple[str, Style]]) -> Html:
    """Return what the looks of a chart mean."""
    return tag("ul", *(tag("li", style.sample(), tag("span", name)) for name, style in names), class_="legend")


def figure(chart: Chart, *below: object) -> Html:
    """Return a chart with its title above it and the given parts below."""
    tip = tag("div", class_="tip", hidden=True)
    return tag(
        "figure",
        tag("figcaption", tag("strong", chart.title), " ", tag("span", chart.description)),
        tag("div", chart.svg(), tip, class_="plot"),
        joined(below),
    )


def _round_step(least: float) -> float:
    size = 10.0 ** math.floor(math.log10(least))
    return size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= least * 0.999)


def _tick_text(value: float, axis: Axis) -> str:
    if "bytes" in axis.title.lower():
        return bytes_text(value, "g")
    return f"{value:g}" if abs(value) < 1e5 else number_text(value, 2)

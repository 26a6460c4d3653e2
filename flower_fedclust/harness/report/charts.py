"""Charts: what is drawn on which axes, and where; the templates draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flower_fedclust.harness.report.texts import bytes_text, number_text

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

    @property
    def outline(self) -> str:
        """The path of its mark, within a circle of radius 1."""
        return _MARKS[self.index % len(_MARKS)]


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
        """Return what stands at a tick."""
        if "bytes" in self.title.lower():
            return bytes_text(value, "g")
        return f"{value:g}" if abs(value) < 1e5 else number_text(value, 2)


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

    width, height, left, top, bottom = WIDTH, HEIGHT, _LEFT, _TOP, HEIGHT - _BOTTOM

    @cached_property
    def right(self) -> float:
        """Where the axes end."""
        return WIDTH - max([_RIGHT, *(28 + _LETTER * len(text) for _, _, text in self.labels)])

    def at_x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        return self.left + self.x.at(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        """Return where a value lies from top to bottom."""
        return self.bottom - self.y.at(value) * (self.bottom - self.top)

    def placed_levels(self) -> list[tuple[float, str]]:
        """Return the names of the levels and how far down they stand: above their lines, or where there is room."""
        lines = sorted(((self.at_y(level.y), level.label) for level in self.levels if level.label), reverse=True)
        placed: list[tuple[float, str]] = []
        for line, label in lines:
            y = min(other for other, _ in lines if line - other < _LINE + 7) - 7  # not across the line above
            while any(abs(y - taken) < _LINE for taken, _ in placed):
                y -= _LINE / 2
            placed.append((y if y > self.top else lines[0][0] + _LINE * (1 + len(placed)), label))
        return placed

    def placed_labels(self) -> list[tuple[Style, float, str]]:
        """Return the names of the series at the ends of their lines, none over another."""
        placed, least = [], -math.inf
        for style, value, text in sorted(self.labels, key=lambda one: -one[1]):
            least = max(least + _LINE, self.at_y(value))
            placed.append((style, least, text))
        # The lowest may have been pushed beyond the axes: all go up as far as is needed.
        limit = self.bottom + 2.0
        for index in range(len(placed) - 1, -1, -1):
            style, y, text = placed[index]
            placed[index] = (style, min(y, limit), text)
            limit = placed[index][1] - _LINE
        return placed

    def placed_names(self) -> list[tuple[float, float, str, bool]]:
        """Return the names of points: where, the text, and whether it ends there; each above all it would lie on."""
        taken: list[tuple[float, float, float]] = []
        placed = []
        for point in sorted((one for one in self.points if one.label), key=lambda one: (one.y, one.x)):
            x, y, width = self.at_x(point.x), self.at_y(point.y) - 10, _LETTER * len(point.label)
            is_left = x > (self.left + self.right) / 2
            start = x - 12 - width if is_left else x + 12
            while any(
                abs(y - other) < _LINE and start < right and left < start + width for left, right, other in taken
            ):
                y -= _LINE / 2
            taken.append((start, start + width, y))
            placed.append((x + (-12 if is_left else 12), y, point.label, is_left))
        return placed

    @property
    def staircase(self) -> str:
        """The path of the best that each price buys: it stays the same until the next point of the front."""
        first, *rest = sorted(self.front, key=lambda point: (point.x, point.y))
        path = f"M{self.at_x(first.x):.1f} {self.at_y(first.y):.1f}"
        return path + "".join(f"H{self.at_x(one.x):.1f}V{self.at_y(one.y):.1f}" for one in rest) + f"H{self.right:.1f}"


@dataclass(frozen=True)
class Figure:
    """A chart with its numbers, and what its looks mean."""

    chart: Chart
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[tuple[str, Style]] = ()


@dataclass(frozen=True)
class Dot:
    """A row of a dot plot."""

    name: str
    value: float
    low: float  #: The ends of what reaches to its sides.
    high: float
    text: str
    more: str
    style: Style
    guarantee: str


@dataclass(frozen=True)
class DotPlot:
    """A row for each contender, on a common scale."""

    caption: str
    heading: str
    axis: Axis
    rows: Sequence[Dot]
    keys: Sequence[tuple[str, Style]]
    line: float | None = None  #: Where a line goes down through all rows.


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


def _round_step(least: float) -> float:
    size = 10.0 ** math.floor(math.log10(least))
    return size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= least * 0.999)

"""The charts of one scenario: quality against epsilon and against bytes, and what strategies recorded by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flower_fedclust.lab.report.charts import (
    Axis,
    Chart,
    Level,
    Point,
    Style,
    figure,
    linear_axis,
    logarithmic_axis,
)
from flower_fedclust.lab.report.data import Contender, Scenario, Spread, TrialResult, pareto_front
from flower_fedclust.lab.report.markup import (
    Html,
    bytes_text,
    capital,
    details,
    deviation_text,
    joined,
    number_text,
    table,
    tag,
    unseen,
)
from flower_fedclust.lab.report.tables import NAMES, guarantee_texts, measure_text

_MOST_ROUNDS = 25

#: A curve that a trial of a contender recorded.
_Curve = tuple[Contender, TrialResult, list[float | None]]


def epsilon_chart(scenario: Scenario, styles: Mapping[str, Style], identifier: str) -> Html | None:
    """Return quality against epsilon with the Pareto front; None if no epsilon was asked for."""
    private = [(one, spread) for one, spread in scenario.measured if one.epsilon is not None and one.epsilon > 0]
    if not private:
        return None
    points = [
        Point(one.epsilon or 0.0, spread.mean, styles[one.strategy], _tip(scenario, one, spread), spread.deviation)
        for one, spread in private
    ]
    points = [replace(point, is_hollow=not one.is_covered) for point, (one, _) in zip(points, private, strict=True)]
    # A run that is protected in part has paid more than its epsilon says, so it is in no front.
    front = _front(scenario, [point for point in points if not point.is_hollow])
    without = [(one, spread) for one, spread in scenario.measured if one.epsilon is None]
    series: dict[str, list[tuple[float, float]]] = {}
    for (one, _), point in zip(private, points, strict=True):
        series.setdefault(one.strategy, []).append((point.x, point.y))
    has_open = any(point.is_hollow for point in points)
    chart = Chart(
        scenario.name,
        f"{capital(NAMES[scenario.measure])} against epsilon",
        f"Left is more private, {_better(scenario)}. Ringed marks and the grey staircase are the Pareto front"
        + (" of runs that are covered completely; hollow marks are covered in part or not at all" if has_open else "")
        + ("; horizontal lines have no epsilon." if without else "."),
        logarithmic_axis("epsilon (logarithmic)", [point.x for point in points], ticks_at_values=True),
        _quality_axis(scenario, scenario.measured),
        points,
        [Level(spread.mean, styles[one.strategy], _tip(scenario, one, spread)) for one, spread in without],
        front,
        [(styles[name], sorted(places)) for name, places in series.items() if len(places) > 1],
    )
    on_front = ["yes" if point in front else "no" for point in points] + ["no epsilon"] * len(without)
    rows = [
        [one.name, *_spread_cells(scenario, spread), ", ".join(guarantee_texts(one)), ringed]
        for (one, spread), ringed in zip([*private, *without], on_front, strict=True)
    ]
    return _numbered(
        chart, ["strategy", NAMES[scenario.measure], "deviation", "guarantee", "on the front"], rows, identifier
    )


def bytes_chart(scenario: Scenario, styles: Mapping[str, Style], identifier: str) -> Html | None:
    """Return quality against the bytes of a run, in both directions; None if they are not known."""
    measured = []
    for one, spread in scenario.measured:
        up, down = one.spread("bytes_up"), one.spread("bytes_down")
        if up is not None and down is not None and up.mean + down.mean > 0:
            measured.append((one, spread, up.mean, down.mean))
    if not measured:
        return None
    points = [
        Point(
            up + down,
            spread.mean,
            styles[one.strategy],
            f"{_tip(scenario, one, spread)}\n{bytes_text(up + down)}",
            spread.deviation,
        )
        for one, spread, up, down in measured
    ]
    front = _front(scenario, [point for point in points if not point.style.is_pooled])
    chart = Chart(
        scenario.name,
        f"{capital(NAMES[scenario.measure])} against bytes",
        f"All bytes of a run, from the clients and to them. Left is cheaper, {_better(scenario)}. Ringed marks and the "
        "grey staircase are the Pareto front of those that do not pool the rows.",
        logarithmic_axis("bytes (logarithmic)", [point.x for point in points]),
        _quality_axis(scenario, [(one, spread) for one, spread, _, _ in measured]),
        points,
        front=front,
    )
    rows = [
        [one.name, *_spread_cells(scenario, spread), *map(bytes_text, both), "yes" if point in front else "no"]
        for (one, spread, *both), point in zip(measured, points, strict=True)
    ]
    headings = ["strategy", NAMES[scenario.measure], "deviation", "from the clients", "to the clients", "on the front"]
    return _numbered(chart, headings, rows, identifier)


def curve_charts(scenario: Scenario, styles: Mapping[str, Style], identifier: str) -> list[Html]:
    """Return a chart for each history that a strategy recorded, with a curve for each budget and seed."""
    recorded: dict[tuple[str, str], list[_Curve]] = {}
    for one in scenario.contenders:
        for trial in one.trials:
            for name, curve in trial.history.items():
                recorded.setdefault((one.strategy, name), []).append((one, trial, curve))
    # A single value is no curve.
    shown = {key: curves for key, curves in recorded.items() if max(len(curve) for _, _, curve in curves) > 1}
    return [
        _curve_chart(scenario, f"{strategy}: {name}", name, curves, styles[strategy], f"{identifier}-{number}")
        for number, ((strategy, name), curves) in enumerate(shown.items())
    ]


def _curve_chart(
    scenario: Scenario, title: str, name: str, curves: Sequence[_Curve], style: Style, identifier: str
) -> Html:
    budgets = list(dict.fromkeys(one.epsilon for one, _, _ in curves))
    # One budget has the strategy's own colour.
    shades = {epsilon: Style(index) for index, epsilon in enumerate(budgets)}
    if len(budgets) == 1:
        shades = {budgets[0]: replace(style, is_dashed=False)}
    names = [f"{one.name}, seed {trial.text('seed')}" for one, trial, _ in curves]
    lines, points = [], []
    for (one, _, curve), label in zip(curves, names, strict=True):
        known = [(index, value) for index, value in enumerate(curve, 1) if value is not None]
        lines += [(shades[one.epsilon], piece) for piece in _pieces(known)]
        points.append(Point(*known[-1], shades[one.epsilon], f"{label}\nat the end {number_text(known[-1][1])}"))
    longest = max(len(curve) for _, _, curve in curves)
    steps = linear_axis("round", [1, longest])
    ticks = [tick for tick in steps.ticks if tick == int(tick) and 1 <= tick <= longest]
    chart = Chart(
        scenario.name,
        title,
        "By round, a curve for each seed" + ("; each epsilon has its own colour." if len(budgets) > 1 else "."),
        replace(steps, low=1 - 0.03 * longest, high=longest * 1.03, ticks=ticks),
        _axis_of(name, [value for _, _, curve in curves for value in curve if value is not None]),
        points,
        lines=lines,
    )
    shown = sorted({*range(1, longest + 1, math.ceil(longest / _MOST_ROUNDS)), longest})
    rows = [
        [str(step), *(number_text(curve[step - 1] if step <= len(curve) else None) for _, _, curve in curves)]
        for step in shown
    ]
    words = ["no epsilon" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in shades]
    items = [tag("li", shade.sample(), tag("span", word)) for word, shade in zip(words, shades.values(), strict=True)]
    keys = tag("ul", *items, class_="legend") if len(items) > 1 else None
    return _numbered(chart, ["round", *names], rows, identifier, keys)


def _pieces(known: Sequence[tuple[int, float]]) -> list[list[tuple[float, float]]]:
    """Return the parts of a curve between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, value in known:
        if pieces[-1] and pieces[-1][-1][0] != index - 1:
            pieces.append([])
        pieces[-1].append((index, value))
    return [piece for piece in pieces if len(piece) > 1]


def _front(scenario: Scenario, points: Sequence[Point]) -> list[Point]:
    sign = 1 if scenario.higher_is_better else -1
    flags = pareto_front([point.x for point in points], [sign * point.y for point in points])
    return [point for point, is_on in zip(points, flags, strict=True) if is_on]


def _quality_axis(scenario: Scenario, measured: Sequence[tuple[Contender, Spread]]) -> Axis:
    values = [spread.mean + sign * (spread.deviation or 0.0) for _, spread in measured for sign in (-1, 0, 1)]
    name = NAMES[scenario.measure]
    if scenario.higher_is_better:
        return linear_axis(name, [min(max(value, 0.0), 1.0) for value in values], within=(0.0, 1.0))
    return _axis_of(name, [value for value in values if value > 0] or values)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any values, logarithmic if they are positive and span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(f"{name} (logarithmic)", values)
    return linear_axis(name, values)


def _better(scenario: Scenario) -> str:
    return "up is better" if scenario.higher_is_better else "down is better"


def _spread_cells(scenario: Scenario, spread: Spread) -> list[str]:
    text = measure_text(scenario, spread)
    return [text, deviation_text(spread, text).removeprefix("± ")]


def _tip(scenario: Scenario, one: Contender, spread: Spread) -> str:
    text = measure_text(scenario, spread)
    return f"{one.name}\n{NAMES[scenario.measure]} {text} {deviation_text(spread, text)}".rstrip()


def _numbered(
    chart: Chart, headings: Sequence[str], rows: Sequence[Sequence[object]], identifier: str, keys: Html | None = None
) -> Html:
    """Return a chart with its numbers, which open below it."""
    summary = joined(["The numbers of this chart", unseen(f" ({chart.name})")])
    return figure(chart, keys, details(summary, table(chart.name, headings, rows, identifier=f"{identifier}-numbers")))

"""The charts of one data set: quality against epsilon and against bytes, and what strategies watched by round."""

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
from flower_fedclust.lab.report.data import Contender, Run, Spread, Trial, pareto_front
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
from flower_fedclust.lab.report.tables import (
    NAMES,
    contender_name,
    guarantee_text,
    measure_text,
)

_MOST_ROUNDS = 25


def epsilon_chart(trial: Trial, styles: Mapping[str, Style], identifier: str) -> Html | None:
    """Return quality against epsilon with the Pareto front; None where nobody was asked for an epsilon."""
    measured = _measured(trial)
    private = [(one, spread) for one, spread in measured if one.epsilon is not None and one.epsilon > 0]
    if not private:
        return None
    points = [
        Point(
            one.epsilon or 0.0,
            spread.mean,
            styles[one.strategy],
            _tip(trial, one, spread),
            spread.deviation,
            is_hollow=not one.is_covered,
        )
        for one, spread in private
    ]
    # Who protects a part of the run has paid less than its epsilon says, and is in no front.
    covered = [index for index, (one, _) in enumerate(private) if one.is_covered]
    front = _front(trial, [points[index] for index in covered])
    on_front = [points[index] in front for index in range(len(points))]
    levels = [
        Level(spread.mean, styles[one.strategy], _tip(trial, one, spread))
        for one, spread in measured
        if one.epsilon is None
    ]
    series: dict[str, list[tuple[float, float]]] = {}
    for (one, _), point in zip(private, points, strict=True):
        series.setdefault(one.strategy, []).append((point.x, point.y))
    has_open = len(covered) < len(points)
    chart = Chart(
        trial.name,
        f"{capital(NAMES[trial.measure])} against epsilon",
        "Left is more private"
        + (", up is better" if trial.higher_is_better else ", down is better")
        + ". Ringed marks and the grey staircase are the Pareto front"
        + (" of runs that are covered whole; hollow marks are covered in part, or not at all" if has_open else "")
        + ("; horizontal lines have no epsilon." if levels else "."),
        logarithmic_axis("epsilon (logarithmic)", [point.x for point in points], ticks_at_values=True),
        _quality_axis(trial, measured),
        points,
        levels,
        front,
        [(styles[name], sorted(places)) for name, places in series.items() if len(places) > 1],
    )
    rows = [
        [contender_name(one), *_spread_cells(trial, spread), guarantee_text(one), "yes" if ringed else "no"]
        for (one, spread), ringed in zip(private, on_front, strict=True)
    ]
    rows += [
        [contender_name(one), *_spread_cells(trial, spread), guarantee_text(one), "no epsilon"]
        for one, spread in measured
        if one.epsilon is None
    ]
    headings = ["strategy", NAMES[trial.measure], "deviation", "guarantee", "on the front"]
    return figure(chart, _numbers(chart.name, headings, rows, identifier))


def bytes_chart(trial: Trial, styles: Mapping[str, Style], identifier: str) -> Html | None:
    """Return quality against the bytes of a run, in both directions; None where they are not known."""
    measured = []
    for one, spread in _measured(trial):
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
            f"{_tip(trial, one, spread)}\n{bytes_text(up + down)}",
            spread.deviation,
        )
        for one, spread, up, down in measured
    ]
    federated = [point for point in points if not point.style.is_pooled]
    front = _front(trial, federated)
    chart = Chart(
        trial.name,
        f"{capital(NAMES[trial.measure])} against bytes",
        "All bytes of a run, from the clients and to them. Left is cheaper"
        + (", up is better." if trial.higher_is_better else ", down is better.")
        + " Ringed marks and the grey staircase are the Pareto front of those that do not pool the rows.",
        logarithmic_axis("bytes (logarithmic)", [point.x for point in points]),
        _quality_axis(trial, [(one, spread) for one, spread, _, _ in measured]),
        points,
        front=front,
    )
    rows = [
        [
            contender_name(one),
            *_spread_cells(trial, spread),
            bytes_text(up),
            bytes_text(down),
            "yes" if point in front else "no",
        ]
        for (one, spread, up, down), point in zip(measured, points, strict=True)
    ]
    headings = ["strategy", NAMES[trial.measure], "deviation", "from the clients", "to the clients", "on the front"]
    return figure(chart, _numbers(chart.name, headings, rows, identifier))


def curve_charts(trial: Trial, styles: Mapping[str, Style], identifier: str) -> list[Html]:
    """Return a chart for each thing that a strategy watched, with a curve for each budget and seed."""
    watched: dict[tuple[str, str], list[tuple[Contender, Run, list[float | None]]]] = {}
    for one in trial.contenders:
        for run in one.runs:
            for name, curve in _history(run).items():
                watched.setdefault((one.strategy, name), []).append((one, run, curve))
    charts: list[Html] = []
    for (strategy, name), curves in watched.items():
        # A single value has no course.
        if max(len(curve) for _, _, curve in curves) > 1:
            charts.append(_curve_chart(trial, strategy, name, curves, styles, f"{identifier}-{len(charts)}"))
    return charts


def _curve_chart(
    trial: Trial,
    strategy: str,
    name: str,
    curves: Sequence[tuple[Contender, Run, list[float | None]]],
    styles: Mapping[str, Style],
    identifier: str,
) -> Html:
    budgets = list(dict.fromkeys(one.epsilon for one, _, _ in curves))
    shades = {
        # One budget has the strategy's own colour.
        epsilon: replace(styles[strategy], is_dashed=False) if len(budgets) == 1 else Style(index)
        for index, epsilon in enumerate(budgets)
    }
    lines, points = [], []
    for one, run, curve in curves:
        tip = f"{contender_name(one)}, seed {run.text('seed')}"
        for piece in _pieces(curve):
            lines.append((shades[one.epsilon], piece))
        x, y = [(index, value) for index, value in enumerate(curve, 1) if value is not None][-1]
        points.append(Point(x, y, shades[one.epsilon], f"{tip}\nat the end {number_text(y)}"))
    longest = max(len(curve) for _, _, curve in curves)
    values = [value for _, _, curve in curves for value in curve if value is not None]
    steps = linear_axis("round", [1, longest])
    ticks = [tick for tick in steps.ticks if tick == int(tick) and 1 <= tick <= longest]
    chart = Chart(
        trial.name,
        f"{strategy}: {name}",
        "By round, a curve for each seed"
        + (", a colour, dash and mark for each epsilon." if len(budgets) > 1 else "."),
        replace(steps, low=1 - 0.03 * longest, high=longest * 1.03, ticks=ticks),
        _axis_of(name, values),
        points,
        lines=lines,
    )
    shown = sorted({*range(1, longest + 1, math.ceil(longest / _MOST_ROUNDS)), longest})
    headings = ["round", *(f"{contender_name(one)}, seed {run.text('seed')}" for one, run, _ in curves)]
    rows = [
        [str(step), *(number_text(curve[step - 1] if step <= len(curve) else None) for _, _, curve in curves)]
        for step in shown
    ]
    names = [("no epsilon" if epsilon is None else f"epsilon {epsilon:g}", style) for epsilon, style in shades.items()]
    items = [tag("li", style.sample(), tag("span", name)) for name, style in names]
    keys = tag("ul", *items, class_="legend") if len(items) > 1 else None
    return figure(chart, keys, _numbers(chart.name, headings, rows, identifier))


def _history(run: Run) -> dict[str, list[float | None]]:
    """Return what a run watched; what is not a finite number is a gap."""
    history = run.read_json("metrics.json").get("history")
    curves: dict[str, list[float | None]] = {}
    for name, values in (history if isinstance(history, dict) else {}).items():
        if isinstance(values, list):
            curve = [float(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
            if any(value is not None for value in curve):
                curves[str(name)] = curve
    return curves


def _pieces(curve: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Return the parts of a curve between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(curve, 1):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((index, value))
    return [piece for piece in pieces if len(piece) > 1]


def _measured(trial: Trial) -> list[tuple[Contender, Spread]]:
    return [(one, spread) for one in trial.contenders if (spread := trial.quality(one)) is not None]


def _front(trial: Trial, points: Sequence[Point]) -> list[Point]:
    sign = 1 if trial.higher_is_better else -1
    flags = pareto_front([point.x for point in points], [sign * point.y for point in points])
    return [point for point, is_on in zip(points, flags, strict=True) if is_on]


def _quality_axis(trial: Trial, measured: Sequence[tuple[Contender, Spread]]) -> Axis:
    values = []
    for _, spread in measured:
        reach = spread.deviation or 0.0
        values += [spread.mean - reach, spread.mean, spread.mean + reach]
    name = NAMES[trial.measure]
    if trial.higher_is_better:
        return linear_axis(name, [min(max(value, 0.0), 1.0) for value in values], within=(0.0, 1.0))
    return _axis_of(name, [value for value in values if value > 0] or values)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any positive or negative values, logarithmic where they span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(f"{name} (logarithmic)", values)
    return linear_axis(name, values)


def _spread_cells(trial: Trial, spread: Spread) -> list[str]:
    text = measure_text(trial, spread)
    return [text, deviation_text(spread, text).removeprefix("± ")]


def _tip(trial: Trial, one: Contender, spread: Spread) -> str:
    text = measure_text(trial, spread)
    return f"{contender_name(one)}\n{NAMES[trial.measure]} {text} {deviation_text(spread, text)}".rstrip()


def _numbers(name: str, headings: Sequence[str], rows: Sequence[Sequence[object]], identifier: str) -> Html:
    summary = joined(["The numbers of this chart", unseen(f" ({name})")])
    return details(summary, table(name, headings, rows, identifier=f"{identifier}-numbers"))

"""The charts of one scenario: quality against epsilon and against bytes, and what strategies recorded by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flower_fedclust.harness.pages import budget_text, plural
from flower_fedclust.harness.report.charts import (
    MOST_SERIES,
    Axis,
    Chart,
    Dot,
    DotPlot,
    Figure,
    Level,
    Point,
    Style,
    linear_axis,
    logarithmic_axis,
)
from flower_fedclust.harness.report.data import Contender, Scenario, Spread, TrialResult
from flower_fedclust.harness.report.ranks import Ranks
from flower_fedclust.harness.report.texts import NAMES, bytes_text, capital, deviation_text, measure_text, number_text
from flower_fedclust.registry import strategies

_MOST_ROUNDS = 25
#: The looks of the classes of guarantees.
_KINDS = {
    "whole run covered": Style(0),
    "covered in part": Style(1),
    "no guarantee": Style(2),
    "rows pooled": Style(3, is_pooled=True),
}

#: A curve that a trial of a contender recorded.
_Curve = tuple[Contender, TrialResult, list[float | None]]


def dot_plot(scenario: Scenario) -> DotPlot | None:
    """Return a row for each contender, the best first, with a dot at its measure; None if none has it."""
    ranked = scenario.ranked(scenario.contenders)
    if not ranked:
        return None
    shown = [(one, spread) for one in ranked if (spread := scenario.quality(one)) is not None]
    axis, top = _quality_axis(scenario, shown), scenario.quality(scenario.reference)
    rows = []
    for one, spread in shown:
        ends = [spread.mean + sign * (spread.deviation or 0.0) for sign in (-1, 1)]
        low, high = (min(max(end, axis.low), axis.high) for end in ends)
        mean, deviation = _spread_texts(scenario, spread)
        rows.append(Dot(one.name, spread.mean, low, high, mean, deviation and f"± {deviation}", *_look(one)))
    line = f" The line is {scenario.reference.name}." if scenario.reference is not None else ""
    left_out = sum(bool(scenario.collapse(one)) for one in scenario.federated)
    caption = (
        f"{capital(NAMES[scenario.measure])} of {plural(len(shown), 'contender')}, mean and deviation. "
        f"{capital(_better(scenario, 'right', 'left'))}.{line}"
        f"{f' {left_out} that collapsed are left out.' if left_out else ''}"
    )
    return DotPlot(caption, NAMES[scenario.measure], axis, rows, _keys(ranked), None if top is None else top.mean)


def rank_plot(ranks: Ranks, name: str) -> DotPlot:
    """Return mean ranks, each with half the critical difference to both sides, and letters of those alike."""
    axis = linear_axis("mean rank", [1, len(ranks.contenders)], within=(1, len(ranks.contenders)))
    half = ranks.critical_difference / 2
    rows = []
    for one, mean, letters in zip(ranks.contenders, ranks.means, ranks.letters, strict=True):
        low, high = max(mean - half, axis.low), min(mean + half, axis.high)
        rows.append(Dot(one.name, mean, low, high, f"{mean:.3g}", letters, *_look(one)))
    caption = f"{name}: mean rank over {ranks.over}. {ranks.sentence}"
    return DotPlot(caption, "mean rank", axis, rows, _keys(ranks.contenders))


def _look(one: Contender) -> tuple[Style, str]:
    return _KINDS[one.guarantee_kind], one.guarantee_kind


def _keys(contenders: Sequence[Contender]) -> list[tuple[str, Style]]:
    kinds = {one.guarantee_kind for one in contenders}
    return [(name, style) for name, style in _KINDS.items() if name in kinds]


def epsilon_charts(scenario: Scenario) -> list[Figure]:
    """Return quality against epsilon, a chart a family of strategies; [] if there are not several epsilons."""
    private = [
        (one, spread)
        for one, spread in scenario.measured
        if one.epsilon is not None and one.epsilon > 0 and not scenario.collapse(one)
    ]
    if len({one.epsilon for one, _ in private}) < 2:
        return []
    families: dict[str, dict[str, list[tuple[Contender, Spread]]]] = {}
    for one, spread in private:
        families.setdefault(_family(one.strategy), {}).setdefault(one.title, []).append((one, spread))
    reference = scenario.reference
    without = scenario.best(one for one in scenario.federated if one.epsilon is None)
    levels = [
        (one, quality, f"{one.name}: {words}")
        for one, words in ((reference, "rows pooled"), (without, "best without epsilon"))
        if one is not None and (quality := scenario.quality(one)) is not None
    ]
    # All panels have the same axes, so that they can be compared.
    y = _quality_axis(scenario, [*private, *((one, spread) for one, spread, _ in levels)])
    x = logarithmic_axis("epsilon (logarithmic)", [one.epsilon or 1.0 for one, _ in private], ticks_at_values=True)
    charts: list[Figure] = []
    for family, series in families.items():
        for start in range(0, len(series), MOST_SERIES):
            part = dict(list(series.items())[start : start + MOST_SERIES])
            number = f" ({start // MOST_SERIES + 1})" if len(series) > MOST_SERIES else ""
            charts.append(_epsilon_chart(scenario, f"{family}{number}", part, (x, y), levels))
    return charts


def _epsilon_chart(
    scenario: Scenario,
    title: str,
    part: Mapping[str, Sequence[tuple[Contender, Spread]]],
    axes: tuple[Axis, Axis],
    levels: Sequence[tuple[Contender, Spread, str]],
) -> Figure:
    """Return quality against epsilon, of a few strategies."""
    styles = {name: Style(index) for index, name in enumerate(part)}
    points = [
        Point(
            one.epsilon or 1.0,
            spread.mean,
            styles[name],
            _tip(scenario, one, spread),
            is_hollow=not one.is_covered,
        )
        for name, group in part.items()
        for one, spread in group
    ]
    places = {name: sorted((p.x, p.y) for p in points if p.style == styles[name]) for name in part}
    has_open = any(point.is_hollow for point in points)
    chart = Chart(
        scenario.name,
        f"{capital(NAMES[scenario.measure])} against epsilon: {title}",
        f"Left is more private, {_better(scenario)}."
        + (" Hollow: the guarantee does not cover the whole run." if has_open else ""),
        *axes,
        points,
        [
            Level(
                quality.mean,
                Style(0, is_pooled=True),
                _tip(scenario, one, quality),
                text,
            )
            for one, quality, text in levels
        ],
        lines=[(styles[name], line) for name, line in places.items() if len(line) > 1],
        labels=[(styles[name], line[-1][1], name) for name, line in places.items()],
    )
    rows = [
        [one.name, *_spread_texts(scenario, spread), ", ".join(one.guarantee_texts)]
        for group in part.values()
        for one, spread in group
    ]
    headings = ["strategy", NAMES[scenario.measure], "deviation", "guarantee"]
    return Figure(chart, headings, rows)


def bytes_chart(scenario: Scenario) -> Figure | None:
    """Return quality against the bytes of a run, in both directions; None if they are not known."""
    measured = []
    for one, spread in scenario.measured:
        up, down = one.spread("bytes_up"), one.spread("bytes_down")
        if up is not None and down is not None and up.mean + down.mean > 0 and not scenario.collapse(one):
            measured.append((one, spread, up.mean, down.mean))
    if not measured:
        return None
    points = [
        Point(
            up + down,
            spread.mean,
            _KINDS[one.guarantee_kind],
            f"{_tip(scenario, one, spread)}\n{bytes_text(up + down)}",
        )
        for one, spread, up, down in measured
    ]
    front = _front(scenario, [point for point in points if not point.style.is_pooled])
    points = [
        replace(point, label=one.name) if point in front else point
        for point, (one, *_) in zip(points, measured, strict=True)
    ]
    front = [point for point in points if point.label]
    chart = Chart(
        scenario.name,
        f"{capital(NAMES[scenario.measure])} against bytes",
        f"All bytes of a run, from the clients and to them. Left is cheaper, {_better(scenario)}. No other contender "
        "is both better and cheaper than those that are named; what collapsed is left out.",
        logarithmic_axis("bytes (logarithmic)", [point.x for point in points]),
        _quality_axis(scenario, [(one, spread) for one, spread, _, _ in measured]),
        points,
        front=front,
    )
    rows = [
        [one.name, *_spread_texts(scenario, spread), *map(bytes_text, both), "yes" if point in front else "no"]
        for (one, spread, *both), point in zip(measured, points, strict=True)
    ]
    headings = ["strategy", NAMES[scenario.measure], "deviation", "from the clients", "to the clients", "on the front"]
    return Figure(chart, headings, rows, _keys([one for one, *_ in measured]))


def _family(name: str) -> str:
    """Return the module of a strategy of this package, or else what all others have in common."""
    entry = strategies().get(name)
    home: list[str] = entry.strategy.__module__.split(".") if entry is not None else []
    if home[:2] == ["flower_fedclust", "strategies"]:
        return home[2].replace("_", "-")
    return "others"


def curve_charts(scenario: Scenario) -> list[Figure]:
    """Return a chart for each history that a strategy recorded, with a curve for each budget and seed."""
    recorded: dict[tuple[str, str], list[_Curve]] = {}
    for one in scenario.contenders:
        for trial in one.trials:
            for name, curve in trial.history.items():
                recorded.setdefault((one.title, name), []).append((one, trial, curve))
    # A single value is no curve.
    shown = {key: curves for key, curves in recorded.items() if max(len(curve) for _, _, curve in curves) > 1}
    return [_curve_chart(scenario, f"{strategy}: {name}", name, curves) for (strategy, name), curves in shown.items()]


def _curve_chart(scenario: Scenario, title: str, name: str, curves: Sequence[_Curve]) -> Figure:
    budgets = list(dict.fromkeys(one.epsilon for one, _, _ in curves))
    shades = {epsilon: Style(index) for index, epsilon in enumerate(budgets)}
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
    words = list(map(budget_text, shades))
    keys = list(zip(words, shades.values(), strict=True)) if len(words) > 1 else []
    return Figure(chart, ["round", *names], rows, keys)


def _pieces(known: Sequence[tuple[int, float]]) -> list[list[tuple[float, float]]]:
    """Return the parts of a curve between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for index, value in known:
        if pieces[-1] and pieces[-1][-1][0] != index - 1:
            pieces.append([])
        pieces[-1].append((index, value))
    return [piece for piece in pieces if len(piece) > 1]


def pareto_front(prices: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Tell of each point whether no other has a lower or equal price and a higher or equal gain, one of them strictly.

    Parameters
    ----------
    prices : sequence of float
        Less is better: epsilon, or bytes.
    gains : sequence of float
        More is better.
    """
    on_front = [False] * len(prices)
    best = -math.inf
    for price in sorted(set(prices)):
        here = [index for index, other in enumerate(prices) if other == price]
        highest = max(gains[index] for index in here)
        if highest > best:
            best = highest
            for index in here:
                on_front[index] = gains[index] == highest
    return on_front


def _front(scenario: Scenario, points: Sequence[Point]) -> list[Point]:
    sign = 1 if scenario.higher_is_better else -1
    flags = pareto_front([point.x for point in points], [sign * point.y for point in points])
    return [point for point, is_on in zip(points, flags, strict=True) if is_on]


def _quality_axis(scenario: Scenario, measured: Sequence[tuple[Contender, Spread]]) -> Axis:
    values = [spread.mean + sign * (spread.deviation or 0.0) for _, spread in measured for sign in (-1, 0, 1)]
    name = NAMES[scenario.measure]
    if scenario.higher_is_better:
        return linear_axis(name, [min(max(value, -1.0), 1.0) for value in values], within=(min(0.0, *values), 1.0))
    return _axis_of(name, [value for value in values if value > 0] or values)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any values, logarithmic if they are positive and span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(f"{name} (logarithmic)", values)
    return linear_axis(name, values)


def _better(scenario: Scenario, more: str = "up", less: str = "down") -> str:
    return f"{more if scenario.higher_is_better else less} is better"


def _spread_texts(scenario: Scenario, spread: Spread) -> tuple[str, str]:
    text = measure_text(scenario.measure, spread.mean)
    return text, deviation_text(spread, text).removeprefix("± ")


def _tip(scenario: Scenario, one: Contender, spread: Spread) -> str:
    text = measure_text(scenario.measure, spread.mean)
    return f"{one.name}\n{NAMES[scenario.measure]} {text} {deviation_text(spread, text)}".rstrip()

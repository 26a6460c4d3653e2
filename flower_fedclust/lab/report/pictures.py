"""The charts of one scenario: quality against epsilon and against bytes, and what strategies recorded by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flower_fedclust.lab.report.charts import (
    MOST_SERIES,
    Axis,
    Chart,
    Level,
    Point,
    Style,
    figure,
    legend,
    linear_axis,
    logarithmic_axis,
)
from flower_fedclust.lab.report.data import Contender, Scenario, Spread, TrialResult, pareto_front
from flower_fedclust.lab.report.markup import (
    NAMES,
    Html,
    bytes_text,
    capital,
    details,
    deviation_text,
    joined,
    measure_text,
    number_text,
    plural,
    table,
    tag,
    unseen,
)
from flower_fedclust.lab.report.tables import guarantee_kind, guarantee_texts
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


def dot_plot(scenario: Scenario, identifier: str) -> Html | None:
    """Return a row for each contender, the best first, with a dot at its measure; None if none has it."""
    ranked = scenario.ranked(scenario.contenders)
    if not ranked:
        return None
    shown = [(one, spread) for one in ranked if (spread := scenario.quality(one)) is not None]
    axis = _quality_axis(scenario, shown)
    top = scenario.quality(scenario.reference)

    def at(value: float) -> str:
        return f"left:{100 * min(max(axis.at(value), 0.0), 1.0):.2f}%"

    rows = []
    for one, spread in shown:
        reach = [min(max(spread.mean + sign * (spread.deviation or 0.0), axis.low), axis.high) for sign in (-1, 1)]
        ends = [100 * axis.at(max(value, axis.low)) for value in reach]
        track = [
            None if top is None else tag("i", class_="reference", style=at(top.mean)),
            tag("i", class_="whisker", style=f"left:{ends[0]:.2f}%;width:{ends[1] - ends[0]:.2f}%"),
            tag("i", class_="dot", style=at(spread.mean)),
        ]
        mean, deviation = _spread_cells(scenario, spread)
        cells = [
            tag("th", one.name, scope="row"),
            tag("td", tag("div", *track, class_="track", aria_hidden="true")),
            tag("td", mean, tag("small", f" ± {deviation}") if deviation else None),
        ]
        rows.append(tag("tr", *cells, class_=_KINDS[guarantee_kind(one)].color, data_guarantee=guarantee_kind(one)))
    ticks = [tag("span", f"{tick:g}", style=at(tick)) for tick in axis.ticks]
    head = tag(
        "tr",
        tag("th", "strategy", scope="col"),
        tag("th", tag("div", *ticks, class_="track ticks", aria_hidden="true"), unseen("picture"), scope="col"),
        tag("th", NAMES[scenario.measure], scope="col"),
    )
    line = f" The line is {scenario.reference.name}." if scenario.reference is not None else ""
    name = f"{capital(NAMES[scenario.measure])} of {plural(len(shown), 'contender')}, mean and deviation."
    left_out = sum(bool(scenario.collapse(one)) for one in scenario.federated)
    rest = f" {left_out} that collapsed are left out." if left_out else ""
    caption = tag("caption", f"{name} {capital(_better(scenario, 'right', 'left'))}.{line}{rest}", id=identifier)
    body = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="dots")
    kinds = dict.fromkeys(guarantee_kind(one) for one, _ in shown)
    box = tag("div", body, class_="box", tabindex="0", role="group", aria_labelledby=identifier)
    return tag("figure", legend((name, _KINDS[name]) for name in _KINDS if name in kinds), box)


def epsilon_charts(scenario: Scenario, identifier: str) -> list[Html]:
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
    charts: list[Html] = []
    for family, series in families.items():
        for start in range(0, len(series), MOST_SERIES):
            part = dict(list(series.items())[start : start + MOST_SERIES])
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
            number = f" ({start // MOST_SERIES + 1})" if len(series) > MOST_SERIES else ""
            chart = Chart(
                scenario.name,
                f"{capital(NAMES[scenario.measure])} against epsilon: {family}{number}",
                f"Left is more private, {_better(scenario)}."
                + (" Hollow: the guarantee does not cover the whole run." if has_open else ""),
                x,
                y,
                points,
                [
                    Level(
                        quality.mean,
                        Style(0, is_pooled=True),
                        _tip(scenario, one, quality),
                        text,
                        is_label_below=quality.mean < max(level[1].mean for level in levels) or one is not levels[0][0],
                    )
                    for one, quality, text in levels
                ],
                lines=[(styles[name], line) for name, line in places.items() if len(line) > 1],
                labels=[(styles[name], line[-1][1], name) for name, line in places.items()],
            )
            rows = [
                [one.name, *_spread_cells(scenario, spread), ", ".join(guarantee_texts(one))]
                for group in part.values()
                for one, spread in group
            ]
            headings = ["strategy", NAMES[scenario.measure], "deviation", "guarantee"]
            charts.append(_numbered(chart, headings, rows, f"{identifier}-{len(charts)}"))
    return charts


def bytes_chart(scenario: Scenario, identifier: str) -> Html | None:
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
            _KINDS[guarantee_kind(one)],
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
        [one.name, *_spread_cells(scenario, spread), *map(bytes_text, both), "yes" if point in front else "no"]
        for (one, spread, *both), point in zip(measured, points, strict=True)
    ]
    headings = ["strategy", NAMES[scenario.measure], "deviation", "from the clients", "to the clients", "on the front"]
    kinds = dict.fromkeys(guarantee_kind(one) for one, *_ in measured)
    return _numbered(
        chart, headings, rows, identifier, legend((name, _KINDS[name]) for name in _KINDS if name in kinds)
    )


def _family(name: str) -> str:
    """Return the module of a strategy of this package, or else what all others have in common."""
    entry = strategies().get(name)
    home: list[str] = entry.strategy.__module__.split(".") if entry is not None else []
    if home[:2] == ["flower_fedclust", "strategies"]:
        return home[2].replace("_", " ")
    return "baselines" if home[:1] == ["flower_fedclust"] else "others"


def curve_charts(scenario: Scenario, identifier: str) -> list[Html]:
    """Return a chart for each history that a strategy recorded, with a curve for each budget and seed."""
    recorded: dict[tuple[str, str], list[_Curve]] = {}
    for one in scenario.contenders:
        for trial in one.trials:
            for name, curve in trial.history.items():
                recorded.setdefault((one.title, name), []).append((one, trial, curve))
    # A single value is no curve.
    shown = {key: curves for key, curves in recorded.items() if max(len(curve) for _, _, curve in curves) > 1}
    return [
        _curve_chart(scenario, f"{strategy}: {name}", name, curves, f"{identifier}-{number}")
        for number, ((strategy, name), curves) in enumerate(shown.items())
    ]


def _curve_chart(scenario: Scenario, title: str, name: str, curves: Sequence[_Curve], identifier: str) -> Html:
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
    words = ["no epsilon" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in shades]
    keys = legend(zip(words, shades.values(), strict=True)) if len(words) > 1 else None
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
        return linear_axis(name, [min(max(value, -1.0), 1.0) for value in values], within=(min(0.0, *values), 1.0))
    return _axis_of(name, [value for value in values if value > 0] or values)


def _axis_of(name: str, values: Sequence[float]) -> Axis:
    """Return a scale for any values, logarithmic if they are positive and span a factor of more than 30."""
    if min(values) > 0 and max(values) > 30 * min(values):
        return logarithmic_axis(f"{name} (logarithmic)", values)
    return linear_axis(name, values)


def _better(scenario: Scenario, more: str = "up", less: str = "down") -> str:
    return f"{more if scenario.higher_is_better else less} is better"


def _spread_cells(scenario: Scenario, spread: Spread) -> list[str]:
    text = measure_text(scenario.measure, spread.mean)
    return [text, deviation_text(spread, text).removeprefix("± ")]


def _tip(scenario: Scenario, one: Contender, spread: Spread) -> str:
    text = measure_text(scenario.measure, spread.mean)
    return f"{one.name}\n{NAMES[scenario.measure]} {text} {deviation_text(spread, text)}".rstrip()


def _numbered(
    chart: Chart, headings: Sequence[str], rows: Sequence[Sequence[object]], identifier: str, keys: Html | None = None
) -> Html:
    """Return a chart with its numbers, which open below it."""
    summary = joined(["The numbers of this chart", unseen(f" ({chart.name})")])
    return figure(chart, keys, details(summary, table(chart.name, headings, rows, identifier=f"{identifier}-numbers")))

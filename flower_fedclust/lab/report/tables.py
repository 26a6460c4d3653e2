"""The tables of a report: the contenders of a scenario, with means, deviations and the best of each column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flower_fedclust.lab.report.data import Contender, Scenario, Spread
from flower_fedclust.lab.report.markup import (
    NAMES,
    NOTHING,
    Html,
    bytes_text,
    count_text,
    deviation_text,
    joined,
    measure_text,
    no_value,
    number_text,
    plural,
    share_text,
    table,
    tag,
    unseen,
)
from flower_fedclust.lab.report.verdict import LEVEL, differences

_STAR = joined([tag("span", "★", class_="star", aria_hidden="true"), unseen("(best)"), " "])
_NEAR = joined([tag("span", "≈", class_="star", aria_hidden="true"), unseen("(not surely worse than the best)"), " "])
_DAGGER = joined([tag("sup", "†", aria_hidden="true"), unseen(" (not comparable)")])


@dataclass(frozen=True)
class Column:
    """One column of numbers: how they are shown, and whether more or less of it is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False

    def cell(self, contender: Contender, best: str | None, *, is_near: bool = False) -> Html:
        """Return mean and deviation over the seeds, with a star if no mean is better as shown."""
        spread = contender.spread(self.name)
        if spread is None:
            return tag("td", no_value())
        text = self.show(spread.mean)
        is_comparable = contender.is_comparable(self.name)
        is_best = text == best and is_comparable
        return tag(
            "td",
            _STAR if is_best else _NEAR if is_near else None,
            tag("b" if is_best else "span", text),
            None if is_comparable else _DAGGER,
            tag("small", deviation) if (deviation := self._deviation(spread, text)) else None,
            class_="best" if is_best else None,
            data_value=repr(spread.mean),
            data_deviation=None if spread.deviation is None else repr(spread.deviation),
            data_column=self.name,
        )

    def best(self, contenders: Sequence[Contender]) -> str | None:
        """Return the best mean as it is shown, so that ties are ties; None if fewer than two have one."""
        comparable = (one.spread(self.name) for one in contenders if one.is_comparable(self.name))
        means = [spread.mean for spread in comparable if spread is not None]
        if len(means) < 2:
            return None
        return self.show(max(means) if self.higher_is_better else min(means))

    def _deviation(self, spread: Spread, text: str) -> str:
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
    Column("bytes_up", "sent by clients", bytes_text),
    Column("seconds", "seconds", _seconds),
    Column("rounds", "rounds", count_text),
    Column("bytes_down", "sent to clients", bytes_text),
    Column("peak_memory_mb", "peak memory, MB", count_text),
    Column("map_ca_10", "map: class by neighbours", share_text, higher_is_better=True),
    Column("map_npa_10", "map: neighbours kept", share_text, higher_is_better=True),
    Column("map_nmi", "map: NMI", share_text, higher_is_better=True),
    Column("map_trustworthiness", "map: trustworthiness", share_text, higher_is_better=True),
)

#: What stands after the guarantee.
_LAST = ("rounds", "bytes_down", "peak_memory_mb", "map_ca_10", "map_npa_10", "map_nmi", "map_trustworthiness")


def guarantee_kind(contender: Contender) -> str:
    """Return the class of the guarantee, as the page calls it wherever it sorts by it."""
    if contender.is_pooled:
        return "rows pooled"
    if contender.is_covered:
        return "whole run covered"
    return "covered in part" if contender.is_covered_in_part else "no guarantee"


def guarantee_texts(contender: Contender) -> list[str]:
    """Return how much of the run is covered and, if anything is, for whom and where the noise is drawn."""
    if not contender.trials:
        return [NOTHING]
    if not (contender.is_covered or contender.is_covered_in_part):
        return ["none"]
    unit, noise = (contender.trials[0].text(column) for column in ("privacy_unit", "noise"))
    where = {"server": "noise by the server", "clients": "noise by the clients", "local": "noise in each reply"}
    detail = ", ".join(filter(None, [f"per {unit}" if unit else "", where.get(noise, "")]))
    return list(filter(None, ["whole run" if contender.is_covered else "in part", detail]))


def scenario_table(scenario: Scenario, identifier: str) -> Html:
    """Return the table of one scenario: the pooled references, then the others, the best first, then what collapsed."""
    done = [one for one in scenario.contenders if one.trials]
    columns = [column for column in COLUMNS if any(one.spread(column.name) for one in done)]
    columns.sort(key=lambda column: column.name != scenario.measure)
    first, last = ([column for column in columns if (column.name in _LAST) == is_last] for is_last in (False, True))
    ranked = scenario.ranked(scenario.federated)
    collapsed = [one for one in scenario.federated if scenario.collapse(one)]
    has_gap = scenario.reference is not None and bool(scenario.federated)
    best = {column.name: column.best([one for one in scenario.federated if one not in collapsed]) for column in columns}
    near = [one.other for one in differences(scenario) if one.p_value >= LEVEL]
    headings = [_button("strategy"), _button("epsilon")]
    for column in first:
        is_measure = column.name == scenario.measure
        order = "descending" if scenario.higher_is_better else "ascending"
        headings.append(_button(column.heading, aria_sort=order if is_measure else None))
        if is_measure and has_gap:
            headings.append(_button("beside pooled"))
    headings += [_button("guarantee", class_="words"), *(_button(column.heading) for column in last)]

    def row(one: Contender) -> Html:
        kind = "pooled reference" if one.is_pooled else f"collapsed: {why}" if (why := scenario.collapse(one)) else None
        notes = [tag("em", note) for note in (one.variant, kind) if note]
        epsilon = ("none", "inf") if one.epsilon is None else (f"{one.epsilon:g}", repr(one.epsilon))
        cells = [
            tag("th", tag("span", one.strategy), *notes, scope="row", data_value=one.title),
            tag("th", epsilon[0], scope="row", data_value=epsilon[1]),
        ]
        stars = best if not one.is_pooled and one not in collapsed else {}
        for column in first:
            is_measure = column.name == scenario.measure
            cells.append(column.cell(one, stars.get(column.name), is_near=is_measure and one in near))
            if is_measure and has_gap:
                cells.append(_gap_cell(scenario, one))
        cells += [_guarantee_cell(one), *(column.cell(one, stars.get(column.name)) for column in last)]
        return tag("tr", *cells, data_guarantee=guarantee_kind(one))

    # A cost in another space cannot be ranked; it comes after those that can.
    unranked = [one for one in scenario.federated if one.trials and one not in ranked and one not in collapsed]
    groups = {
        "pooled": [one for one in scenario.pooled if one.trials],
        "sortable": ranked + unranked,
        "sortable collapsed": collapsed,
    }
    bodies = [tag("tbody", *map(row, group), class_=name) for name, group in groups.items() if group]
    parts = [table(_caption(scenario), headings, bodies=bodies, class_="results", identifier=identifier)]
    classes = list(dict.fromkeys(guarantee_kind(one) for one in scenario.federated if one.trials))
    if len(classes) > 1:
        options = [tag("option", "all", value=""), *(tag("option", name, value=name) for name in classes)]
        parts.insert(0, tag("p", tag("label", "Covered by a guarantee: ", tag("select", *options, data_filter=True))))
    return joined(parts)


def daggers_sentence(scenario: Scenario) -> Html | None:
    """Return what the daggers mean, if there are any."""
    strange = [one for one in scenario.contenders if one.trials and not one.is_comparable("cost_per_row")]
    if not any(one.spread("cost_per_row") for one in strange):
        return None
    return tag(
        "p",
        "† This cost is measured on a map, on eigenvectors or on the remainder of a factorisation, and cannot be "
        "compared with any other.",
        class_="note",
    )


def overview_table(scenarios: Sequence[Scenario], identifier: str) -> Html:
    """Return the results of all scenarios: a row a strategy and budget, a column a scenario."""
    keys = {(one.title, one.epsilon): one.is_pooled for scenario in scenarios for one in scenario.contenders}
    order = sorted(keys, key=lambda key: (not keys[key], key[0], key[1] is None, key[1] or 0.0))
    best = [scenario.quality(scenario.best(scenario.federated)) for scenario in scenarios]
    bodies: dict[bool, list[Html]] = {}
    for title, epsilon in order:
        if not any(
            one.trials and (one.title, one.epsilon) == (title, epsilon) for s in scenarios for one in s.contenders
        ):
            continue  # What failed everywhere is told below.
        is_pooled = keys[title, epsilon]
        cells = [
            tag("th", tag("span", title), scope="row"),
            tag("th", "none" if epsilon is None else f"{epsilon:g}", scope="row"),
        ]
        for scenario, top in zip(scenarios, best, strict=True):
            group = [one for one in scenario.contenders if (one.title, one.epsilon) == (title, epsilon)]
            spread = scenario.quality(scenario.best(group))
            if spread is None:
                collapsed = any(map(scenario.collapse, group))
                failed = any(one.failed and not one.trials for one in group)
                cells.append(tag("td", "collapsed" if collapsed else "failed" if failed else no_value()))
                continue
            text = measure_text(scenario.measure, spread.mean)
            is_best = top is not None and text == measure_text(scenario.measure, top.mean) and not is_pooled
            content = (_STAR, tag("b", text)) if is_best else (tag("span", text),)
            cells.append(tag("td", *content, class_="best" if is_best else None))
        bodies.setdefault(is_pooled, []).append(tag("tr", *cells))
    headings: list[object] = ["strategy", "epsilon"]
    headings += [
        tag("th", tag("span", scenario.name), tag("small", NAMES[scenario.measure]), scope="col")
        for scenario in scenarios
    ]
    groups = [tag("tbody", *rows, class_="pooled" if pooled else None) for pooled, rows in bodies.items()]
    caption = "Means over the seeds, by data set. ★ is the best without pooling the rows."
    return table(caption, headings, bodies=groups, class_="results", identifier=identifier)


def _caption(scenario: Scenario) -> str:
    counts = sorted({len(one.trials) for one in scenario.contenders if one.trials})
    if not counts:
        return f"{scenario.name}: every run failed."
    over = "the mean and the standard deviation over " if counts[-1] > 1 else ""
    fewer = ", or fewer where runs failed or have not ended" if len(counts) > 1 else ""
    stars = (
        " ★ is the best of a column among those that neither pool the rows nor collapsed." if scenario.federated else ""
    )
    near = " ≈ may be as good." if any(one.p_value >= LEVEL for one in differences(scenario)) else ""
    return f"{scenario.name}: {over}{plural(counts[-1], 'seed')}{fewer}.{stars}{near}"


def _guarantee_cell(one: Contender) -> Html:
    failed = f"failed: {len(one.failed)} of {plural(len(one.failed) + len(one.trials), 'run')}"
    covered, *detail = guarantee_texts(one)
    return tag(
        "td",
        tag("span", covered) if one.trials else None,
        *(tag("small", text) for text in detail),
        tag("strong", " " if one.trials else None, failed, class_="failed") if one.failed else None,
        class_="words",
        data_value=", ".join((covered, *detail)),
    )


def _gap_cell(scenario: Scenario, contender: Contender) -> Html:
    """Return the distance to the best pooled reference: a difference, or for a cost a ratio."""
    top, own = scenario.quality(scenario.reference), scenario.quality(contender)
    if (
        top is None
        or own is None
        or contender is scenario.reference
        or (not scenario.higher_is_better and top.mean <= 0)
    ):
        return tag("td", no_value())
    if not scenario.higher_is_better:
        ratio = own.mean / top.mean
        return tag("td", f"× {ratio:.3g}", data_value=repr(ratio))
    gap = own.mean - top.mean
    # The condition avoids "-0.000".
    return tag("td", f"{gap:+.3f}".replace("-", "−") if abs(gap) >= 0.0005 else "0.000", data_value=repr(gap))


def _button(heading: str, **attributes: object) -> Html:
    button = tag("button", heading, tag("span", class_="arrow", aria_hidden="true"), type="button")
    return tag("th", button, scope="col", **attributes)

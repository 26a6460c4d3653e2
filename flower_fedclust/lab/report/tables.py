"""The tables of a report: who was compared on a data set, with means, deviations and the best of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flower_fedclust.lab.report.charts import Style
from flower_fedclust.lab.report.data import Contender, Spread, Trial
from flower_fedclust.lab.report.markup import (
    NOTHING,
    Html,
    boxed_table,
    bytes_text,
    count_text,
    deviation_text,
    joined,
    no_value,
    number_text,
    plural,
    share_text,
    tag,
    unseen,
)

NAMES = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "ari": "ARI",
    "cost_per_row": "cost per row",
}
_STAR = joined([tag("span", "★", class_="star", aria_hidden="true"), unseen("(best)"), " "])


@dataclass(frozen=True)
class Column:
    """One column of numbers: how they are shown, and whether more or less of it is better."""

    name: str
    heading: str
    show: Callable[[float], str]
    higher_is_better: bool = False

    def cell(self, contender: Contender, best: str | None) -> Html:
        """Return the mean and the deviation over seeds, with a star where no mean is better as shown."""
        spread = contender.spread(self.name)
        if spread is None:
            return tag("td", no_value())
        text = self.show(spread.mean)
        is_best = text == best and contender.is_comparable(self.name)
        dagger = (
            None
            if contender.is_comparable(self.name)
            else joined([tag("sup", "†", aria_hidden="true"), unseen(" (not comparable)")])
        )
        return tag(
            "td",
            _STAR if is_best else None,
            tag("b" if is_best else "span", text),
            dagger,
            tag("small", " ", deviation) if (deviation := self._deviation(spread, text)) else None,
            class_="best" if is_best else None,
            data_value=repr(spread.mean),
            data_deviation=None if spread.deviation is None else repr(spread.deviation),
            data_column=self.name,
        )

    def best(self, contenders: Sequence[Contender]) -> str | None:
        """Return the best mean as it is shown: who is shown as equal is as good. None where there is no choice."""
        means = [
            spread.mean
            for one in contenders
            if one.is_comparable(self.name) and (spread := one.spread(self.name)) is not None
        ]
        if len(means) < 2:
            return None
        return self.show(max(means) if self.higher_is_better else min(means))

    def _deviation(self, spread: Spread, text: str) -> str:
        if self.show in (share_text, number_text, _seconds):
            return deviation_text(spread, text)
        # Rounds and bytes seldom depend on the seed: then nothing has to be said.
        return f"± {self.show(spread.deviation)}" if spread.deviation else ""


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}"


COLUMNS = (
    Column("accuracy", "accuracy", share_text, higher_is_better=True),
    Column("nmi", "NMI", share_text, higher_is_better=True),
    Column("ari", "ARI", share_text, higher_is_better=True),
    Column("cost_per_row", "cost per row", number_text),
    Column("bytes_up", "sent by clients", bytes_text),
    Column("bytes_down", "sent to clients", bytes_text),
    Column("rounds", "rounds", count_text),
    Column("seconds", "seconds", _seconds),
    Column("peak_memory_mb", "peak memory, MB", count_text),
    Column("map_ca_10", "map: class by neighbours", share_text, higher_is_better=True),
    Column("map_npa_10", "map: neighbours kept", share_text, higher_is_better=True),
    Column("map_nmi", "map: NMI", share_text, higher_is_better=True),
    Column("map_trustworthiness", "map: trustworthiness", share_text, higher_is_better=True),
)


def measure_text(trial: Trial, spread: Spread) -> str:
    """Return a mean of what the runs are judged by."""
    return share_text(spread.mean) if trial.higher_is_better else number_text(spread.mean)


def contender_name(contender: Contender) -> str:
    """Return the strategy and what it was asked for."""
    return contender.strategy if contender.epsilon is None else f"{contender.strategy}, epsilon {contender.epsilon:g}"


def guarantee_texts(contender: Contender) -> tuple[str, str]:
    """Return how much of the run is covered, and, where anything is, of whom and where the noise is drawn."""
    if not contender.runs:
        return NOTHING, ""
    if not (contender.is_covered or contender.is_covered_in_part):
        return "none", ""
    unit, noise = contender.runs[0].text("privacy_unit"), contender.runs[0].text("noise")
    where = {"server": "noise by the server", "clients": "noise by the clients", "local": "noise in each reply"}
    detail = ", ".join(filter(None, [f"per {unit}" if unit else "", where.get(noise, "")]))
    return "whole run" if contender.is_covered else "in part", detail


def guarantee_text(contender: Contender) -> str:
    """Return the same in one."""
    return ", ".join(filter(None, guarantee_texts(contender)))


def trial_table(trial: Trial, styles: Mapping[str, Style], identifier: str) -> Html:
    """Return the table of one data set: the lines to reach above, then all others, the best first."""
    done = [one for one in trial.contenders if one.runs]
    columns = [column for column in COLUMNS if any(one.spread(column.name) for one in done)]
    line = trial.best(trial.pooled)
    has_gap = line is not None and bool(trial.federated)
    best = {column.name: column.best(trial.federated) for column in columns}
    headings = [_button("strategy"), _button("epsilon"), _button("guarantee", class_="words")]
    for column in columns:
        is_measure = column.name == trial.measure
        headings.append(_button(column.heading, ("descending" if trial.higher_is_better else "ascending", is_measure)))
        if is_measure and has_gap:
            headings.append(_button("beside pooled"))

    def row(contender: Contender) -> Html:
        cells = [
            tag(
                "th",
                styles[contender.strategy].sample(),
                tag("span", contender.strategy),
                tag("em", "the line to reach") if contender.is_pooled else None,
                scope="row",
                data_value=contender.strategy,
            ),
            tag(
                "th",
                "none" if contender.epsilon is None else f"{contender.epsilon:g}",
                scope="row",
                data_value="inf" if contender.epsilon is None else repr(contender.epsilon),
            ),
            _guarantee_cell(contender),
        ]
        for column in columns:
            cells.append(column.cell(contender, None if contender.is_pooled else best[column.name]))
            if column.name == trial.measure and has_gap:
                cells.append(_gap_cell(trial, contender, line))
        return tag("tr", *cells)

    bodies = [tag("tbody", *map(row, trial.pooled), class_="pooled")] if trial.pooled else []
    bodies.append(tag("tbody", *map(row, _by_quality(trial)), class_="sortable"))
    return boxed_table(_caption(trial), headings, bodies, class_="results", identifier=identifier)


def daggers_sentence(trial: Trial) -> Html | None:
    """Return what the daggers mean, where there are any."""
    strange = [one for one in trial.contenders if one.runs and not one.is_comparable("cost_per_row")]
    if not any(one.spread("cost_per_row") for one in strange):
        return None
    return tag(
        "p",
        "† The cost lies in the space of a map or of eigenvectors, or is what a factorisation leaves: compare it "
        "with no other.",
        class_="note",
    )


def overview_table(trials: Sequence[Trial], styles: Mapping[str, Style], identifier: str) -> Html:
    """Return who reached what on each data set: a row a strategy and budget, a column a data set."""
    keys = dict.fromkeys((one.strategy, one.epsilon) for trial in trials for one in trial.contenders)
    order = sorted(keys, key=lambda key: (not styles[key[0]].is_pooled, key[0], key[1] is None, key[1] or 0.0))
    best = [trial.best(trial.federated) for trial in trials]
    bodies: dict[bool, list[Html]] = {}
    for strategy, epsilon in order:
        cells = [tag("th", styles[strategy].sample(), tag("span", strategy), scope="row")]
        cells.append(tag("th", "none" if epsilon is None else f"{epsilon:g}", scope="row"))
        for trial, winner in zip(trials, best, strict=True):
            group = [one for one in trial.contenders if (one.strategy, one.epsilon) == (strategy, epsilon)]
            one = trial.best(group)
            spread = None if one is None else trial.quality(one)
            if spread is None:
                failed = any(each.failed and not each.runs for each in group)
                cells.append(tag("td", "failed" if failed else no_value()))
                continue
            text = measure_text(trial, spread)
            top = None if winner is None else trial.quality(winner)
            is_best = top is not None and text == measure_text(trial, top) and not styles[strategy].is_pooled
            star = _STAR if is_best else None
            cells.append(tag("td", star, tag("b" if is_best else "span", text), class_="best" if is_best else None))
        bodies.setdefault(styles[strategy].is_pooled, []).append(tag("tr", *cells))
    headings = [
        tag("th", "strategy", scope="col"),
        tag("th", "epsilon", scope="col"),
        *(tag("th", tag("span", trial.name), tag("small", NAMES[trial.measure]), scope="col") for trial in trials),
    ]
    groups = [tag("tbody", *rows, class_="pooled" if pooled else None) for pooled, rows in bodies.items()]
    caption = "Means over the seeds, by data set. ★ is the best without pooling the rows."
    return boxed_table(caption, headings, groups, class_="results", identifier=identifier)


def _caption(trial: Trial) -> str:
    counts = sorted({len(one.runs) for one in trial.contenders if one.runs})
    if not counts:
        return f"{trial.name}: every run failed."
    most = counts[-1]
    over = "one seed" if most == 1 else f"the mean and the standard deviation over {plural(most, 'seed')}"
    fewer = ", or fewer where runs failed or have not ended" if len(counts) > 1 else ""
    stars = " ★ is the best of a column among those that do not pool the rows." if trial.federated else ""
    return f"{trial.name}: {over}{fewer}.{stars}"


def _by_quality(trial: Trial) -> list[Contender]:
    """Return those that do not pool the rows, the best first; without a measure last."""
    sign = -1 if trial.higher_is_better else 1

    def key(one: Contender) -> tuple[bool, float]:
        # A cost in another space is sorted by what is shown of it.
        spread = one.spread(trial.measure)
        return spread is None, 0.0 if spread is None else sign * spread.mean

    return sorted(trial.federated, key=key)


def _guarantee_cell(contender: Contender) -> Html:
    failed = f"failed: {len(contender.failed)} of {plural(len(contender.failed) + len(contender.runs), 'run')}"
    covered, detail = guarantee_texts(contender)
    return tag(
        "td",
        *([tag("span", covered), tag("small", detail) if detail else None] if contender.runs else []),
        tag("strong", " " if contender.runs else None, failed, class_="failed") if contender.failed else None,
        class_="words",
        data_value=guarantee_text(contender),
    )


def _gap_cell(trial: Trial, contender: Contender, line: Contender | None) -> Html:
    """Return the distance to the best pooled result: a difference, or for a cost a ratio."""
    top, own = (None if one is None else trial.quality(one) for one in (line, contender))
    if top is None or own is None or contender is line:
        return tag("td", no_value())
    if trial.higher_is_better:
        gap = own.mean - top.mean
        # No "-0.000".
        text = f"{gap:+.3f}".replace("-", "−") if abs(gap) >= 0.0005 else "0.000"
    elif top.mean <= 0:
        return tag("td", no_value())
    else:
        gap = own.mean / top.mean
        text = f"× {gap:.3g}"
    return tag("td", text, data_value=repr(gap))


def _button(heading: str, order: tuple[str, bool] = ("", False), class_: str | None = None) -> Html:
    button = tag("button", heading, tag("span", class_="arrow", aria_hidden="true"), type="button")
    return tag("th", button, scope="col", class_=class_, aria_sort=order[0] if order[1] else None)

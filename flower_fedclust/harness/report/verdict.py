"""What may be said of a comparison in a sentence: which is best, by how much, and where chance may have decided."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.data import Contender, Scenario
from flower_fedclust.harness.report.texts import NAMES, bytes_text, measure_text
from flower_fedclust.results.doubts import doubts_over_runs

#: Below this, a difference is said to be one.
LEVEL = 0.05
#: A paired test over fewer seeds than this tells nothing.
LEAST_SEEDS = 3
_MOST_NAMES = 5


@dataclass(frozen=True)
class Difference:
    """How the best is ahead of another contender on the same seeds."""

    other: Contender
    lead: float  #: Mean of the paired differences of the measure, above 0 if the best is better.
    p_value: float  #: Of the paired t-test, after Holm's correction for all that are compared with the best.


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): at LEVEL, no true null is rejected in 95% of families."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(p_values, dtype=float)[order]), 1.0)
    return corrected.tolist()


def differences(scenario: Scenario) -> list[Difference]:
    """Return how far the best of those that do not pool the rows is ahead of each other; [] with too few seeds."""
    ranked = scenario.ranked(scenario.federated)
    sign = 1.0 if scenario.higher_is_better else -1.0
    found: list[tuple[Contender, float, float]] = []
    for other in ranked[1:]:
        best, own = (by_seed(one, scenario.measure) for one in (ranked[0], other))
        leads = np.array([sign * (best[seed] - own[seed]) for seed in best if seed in own])
        if len(leads) >= LEAST_SEEDS:
            found.append((other, float(leads.mean()), _p_value(leads)))
    corrected = holm([p_value for _, _, p_value in found])
    return [Difference(one, lead, p_value) for (one, lead, _), p_value in zip(found, corrected, strict=True)]


def verdict(scenario: Scenario) -> str:
    """Return the result of a scenario in one sentence: the best, and the best whose whole run is covered."""
    best = scenario.best(scenario.federated)
    if best is None:
        none_is_left = any(map(scenario.collapse, scenario.contenders))
        return "No strategy is better than one cluster for all." if none_is_left else "There is nothing to rank."
    private = scenario.best(one for one in scenario.federated if one.is_covered)
    if private is None or private is best:
        covered = "; its whole run is covered" if private is best else "; of none the whole run is covered"
        return f"Best is {_described(scenario, best)}{covered}."
    return f"Best is {_described(scenario, best)}; with the whole run covered, {_described(scenario, private)}."


def collapsed(scenario: Scenario) -> str:
    """Return what collapsed, by how it did; "" if nothing did."""
    found: dict[str, list[str]] = {}
    for one in scenario.contenders:
        if why := scenario.collapse(one):
            found.setdefault(why, []).append(_name(one))
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in found.items())


def doubts(scenario: Scenario) -> list[str]:
    """Return what else speaks against the results of each contender, and in how many of its runs."""
    said = []
    for one in scenario.contenders:
        found: dict[str, list[str]] = {}
        for trial in one.trials:
            for code, sentence in trial.doubts.items():
                found.setdefault(code, []).append(sentence)
        for code, sentences in found.items():
            if code not in ("one-cluster", "no-better-than-one"):  # said of what collapsed
                share = "" if len(one.trials) == 1 else f" ({len(sentences)} of {len(one.trials)} runs)"
                said.append(f"{_name(one)}{share}: {sentences[0]}")
        # Another seed may spread the rows in another way; only runs on the same rows in the same order are compared.
        fingerprints = {trial.text("rows_sha256") for trial in one.trials}
        labels = [trial.labels for trial in one.trials if len(trial.labels)]
        if len(labels) > 1 and len(fingerprints) == 1 and fingerprints != {""}:
            said += [f"{_name(one)}: {doubt}" for doubt in doubts_over_runs(labels)]
    return said


def certainty(scenario: Scenario) -> str:
    """Return of which differences "better" may be said; "" if there is only one contender."""
    ranked = scenario.ranked(scenario.federated)
    if len(ranked) < 2:
        return ""
    found = differences(scenario)
    if not found:
        return f"Which is better cannot be told from chance: that takes at least {LEAST_SEEDS} seeds."
    sure = [one for one in found if one.p_value < LEVEL and one.lead > 0]
    unsure = [_name(one.other) for one in found if one not in sure]
    if len(unsure) > _MOST_NAMES:
        unsure[_MOST_NAMES - 1 :] = [f"{len(unsure) - _MOST_NAMES + 1} more"]
    seeds = len(by_seed(ranked[0], scenario.measure))
    test = f"paired t-tests over {plural(seeds, 'seed')}, Holm's correction, p < {LEVEL}"
    if not sure:
        others = "not over the other" if len(found) == 1 else f"over none of the {len(found)} others"
        return f"{_name(ranked[0])} is first, but “better” may be said {others} ({test})."
    others = "the other" if len(found) == 1 else f"{len(sure)} of the {len(found)} others"
    text = f"“Better” may be said of {_name(ranked[0])} over {others} ({test})"
    return f"{text}, but not over {', '.join(unsure)}." if unsure else f"{text}."


def _described(scenario: Scenario, one: Contender) -> str:
    """Return a contender with its measure, its cost beside the pooled one, its traffic and its time."""
    parts = []
    spread, reference = scenario.quality(one), scenario.reference
    top = scenario.quality(reference)
    if spread is not None and scenario.measure != "cost_per_row":
        beside = f" (pooled {measure_text(scenario.measure, top.mean)})" if top is not None else ""
        parts.append(f"{NAMES[scenario.measure]} {measure_text(scenario.measure, spread.mean)}{beside}")
    parts += filter(None, [_cost_beside(one, scenario.pooled)])
    silhouette = one.spread("silhouette") if one.is_comparable("silhouette") else None
    if silhouette is not None and scenario.measure == "cost_per_row":
        parts.append(f"silhouette {measure_text('silhouette', silhouette.mean)}")
    clients = one.spread("n_clients")
    if (sent := one.spread("bytes_up")) is not None and clients is not None and clients.mean:
        parts.append(f"{bytes_text(sent.mean / clients.mean)} a site")
    if (seconds := one.spread("seconds")) is not None:
        parts.append(f"{seconds.mean:.2g} s" if seconds.mean < 10 else f"{seconds.mean:,.0f} s")
    return f"{_name(one)}: {', '.join(parts)}"


def _name(one: Contender) -> str:
    """Return a name that can stand in a list with commas."""
    return one.title if one.epsilon is None else f"{one.title} at epsilon {one.epsilon:g}"


def _cost_beside(one: Contender, pooled: Sequence[Contender]) -> str:
    column = "cost_per_row"
    own = one.spread(column) if one.is_comparable(column) else None
    costs = [spread.mean for other in pooled if other.is_comparable(column) and (spread := other.spread(column))]
    if own is None or not costs or min(costs) <= 0:
        return ""
    percent = 100 * (own.mean / min(costs) - 1)
    if abs(percent) < 0.05:
        return "at the pooled cost"
    return f"{abs(percent):,.{0 if abs(percent) >= 10 else 1}f}% {'above' if percent > 0 else 'below'} the pooled cost"


def by_seed(one: Contender, column: str) -> dict[str, float]:
    """Return the values of a column by seed."""
    return {trial.text("seed"): value for trial in one.trials if (value := trial.number(column)) is not None}


def _p_value(leads: np.ndarray) -> float:
    """Return the p-value of a paired t-test; differences that are the same on every seed are certain, or nothing."""
    if np.ptp(leads) <= 1e-12 * max(1.0, float(np.abs(leads).max())):
        return 1.0 if abs(leads.mean()) <= 1e-12 else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal differences
        return float(stats.ttest_1samp(leads, 0.0).pvalue)

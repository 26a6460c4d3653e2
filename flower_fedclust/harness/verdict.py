"""Which strategy is best, by how much, and whether chance may have decided: sentences, tests and ranks.

Strategies run on the same seeds, which determine the rows, their partition and the noise. So two
strategies are compared by their differences on each seed: a paired t-test against the best,
corrected for the number of comparisons (Holm). Over several data sets, Friedman's test and
Nemenyi's critical difference say which mean ranks differ (Demšar 2006).

Every sentence here is conservative. While runs are missing, nobody is called the best; few seeds
are called too few; and a strategy whose runs collapsed is not ranked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flower_fedclust.harness.results import Contender, Scenario, bytes_text, listed, share_text
from flower_fedclust.names import plural
from flower_fedclust.results.doubts import doubts_over_runs

#: The level of all tests.
LEVEL = 0.05
#: A paired test over fewer seeds than this shows nothing.
LEAST_SEEDS = 3
#: With fewer seeds, a test seldom shows a difference, however large.
FEW_SEEDS = 5
#: With fewer blocks (seeds or data sets), or fewer contenders, no ranks are computed.
LEAST_BLOCKS, LEAST_CONTENDERS = 5, 3
_MOST_NAMES = 5


def verdict(scenario: Scenario) -> str:
    """Return the result of a scenario in one or two sentences.

    The sentences name the best contender, and the best one whose whole run a guarantee covers. For
    each they give the measure, the cost compared with the pooled cost, the traffic and the time.
    """
    if scenario.waiting:
        have, which = ("has", "it is") if len(scenario.waiting) == 1 else ("have", "they are")
        names = listed([contender.name for contender in scenario.waiting], most=_MOST_NAMES)
        return f"{names} {have} no result yet, so no best strategy is named until {which} done."
    best = scenario.best(scenario.federated)
    if best is None:
        none_is_left = any(contender.collapse for contender in scenario.contenders)
        return (
            "No strategy is better than one cluster for everything."
            if none_is_left
            else "There is nothing to rank."
        )
    private = scenario.best(contender for contender in scenario.federated if contender.is_covered)
    said = f"The best is {_described(scenario, best)}"
    if private is None:
        return f"{said}; no strategy's whole run is covered by a guarantee."
    if private is best:
        return f"{said}; a guarantee covers its whole run."
    return f"{said}. The best whose whole run is covered by a guarantee is {_described(scenario, private)}."


def collapsed(scenario: Scenario) -> str:
    """Return which contenders collapsed, grouped by how they did; "" if none did."""
    reasons: dict[str, list[str]] = {}
    for contender in scenario.contenders:
        if contender.collapse:
            reasons.setdefault(contender.collapse, []).append(contender.name)
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in reasons.items())


def doubts(scenario: Scenario) -> list[str]:
    """Return the reasons to doubt each contender's results, a sentence each, with the number of runs concerned.

    The runs themselves have saved most of these doubts. If several seeds had the same rows in the
    same order, there may be one more: that the runs do not agree about the clusters. A collapse is
    not repeated here, because :func:`collapsed` reports it.
    """
    said = []
    for contender in scenario.contenders:
        by_code: dict[str, list[str]] = {}
        for trial in contender.trials:
            for doubt in trial.metrics.get("doubts", ()):
                by_code.setdefault(doubt["code"], []).append(doubt["sentence"])
        for code, sentences in by_code.items():
            # collapsed() reports these.
            if code not in ("one-cluster", "no-better-than-one"):
                share = (
                    ""
                    if len(contender.trials) == 1
                    else f" ({len(sentences)} of {len(contender.trials)} runs)"
                )
                said.append(f"{contender.name}{share}: {sentences[0]}")
        # Another seed may spread the rows differently. Runs are compared only if all had the same rows in the same
        # order.
        fingerprints = {trial.text("rows_sha256") for trial in contender.trials}
        labels = [trial.labels for trial in contender.trials if len(trial.labels)]
        if len(labels) > 1 and len(fingerprints) == 1 and fingerprints != {""}:
            said += [f"{contender.name}: {doubt}" for doubt in doubts_over_runs(labels)]
    return said


def certainty(scenario: Scenario) -> str:
    """Return which differences from the best are significant.

    Returns "" if there is only one contender, or if results are missing. If there are too few
    seeds, the sentence says so.
    """
    ranked = scenario.ranked(scenario.federated)
    if len(ranked) < 2 or scenario.waiting:
        return ""
    compared = differences(scenario)
    if not compared:
        return f"Fewer than {LEAST_SEEDS} seeds cannot show whether a difference is due to chance."
    sure = [
        difference for difference in compared if difference.p_value < LEVEL and difference.lead > 0
    ]
    unsure = [difference.other.name for difference in compared if difference not in sure]
    if len(unsure) > _MOST_NAMES:
        unsure[_MOST_NAMES - 1 :] = [f"{len(unsure) - _MOST_NAMES + 1} more"]
    n_seeds = number_of_seeds(scenario)
    seeds = plural(n_seeds, "seed")
    test = f"paired t-tests over {seeds}, Holm's correction, p < {LEVEL}"
    first = ranked[0].name
    if unsure and n_seeds < FEW_SEEDS:
        better = f"{first} is significantly better than {len(sure)} of the {len(compared)} others ({test}). "
        unknown = f"{seeds} cannot show whether {first} is better than {listed(unsure, len(unsure))}: use more."
        return f"{better}{unknown}" if sure else unknown
    if not sure:
        others = "the other" if len(compared) == 1 else f"any of the {len(compared)} others"
        return f"{first} comes first, but is not significantly better than {others} ({test})."
    others = "the other" if len(compared) == 1 else f"{len(sure)} of the {len(compared)} others"
    if len(sure) == len(compared) > 1:
        others = f"all {len(compared)} others"
    text = f"{first} is significantly better than {others} ({test})"
    return f"{text}, but not than {', '.join(unsure)}." if unsure else f"{text}."


def number_of_seeds(scenario: Scenario) -> int:
    """Return with how many seeds the best contender was run; pooled references are not considered."""
    return max(
        (
            len(contender.by_seed(scenario.measure.name))
            for contender in scenario.ranked(scenario.federated)[:1]
        ),
        default=0,
    )


def undecided(scenario: Scenario) -> tuple[list[str], str]:
    """Return the contenders that do not differ significantly from the best, and the meaning of their mark."""
    names = [
        difference.other.name
        for difference in differences(scenario)
        if difference.p_value >= LEVEL and not scenario.waiting
    ]
    n_seeds = number_of_seeds(scenario)
    if n_seeds < FEW_SEEDS:
        return names, f"{plural(n_seeds, 'seed')} cannot show whether it is worse than the best"
    return names, "not significantly worse than the best"


def _described(scenario: Scenario, contender: Contender) -> str:
    """Return a contender with its measure, its cost beside the pooled cost, its traffic and its time."""
    parts = []
    spread, top = scenario.quality(contender), scenario.quality(scenario.reference)
    if spread is not None and scenario.measure.name != "cost_per_row":
        beside = f" (pooled {scenario.measure.show(top.mean)})" if top is not None else ""
        parts.append(f"{scenario.measure.heading} {scenario.measure.show(spread.mean)}{beside}")
    parts += filter(None, [_cost_beside(contender, scenario.pooled)])
    silhouette = contender.comparable("silhouette")
    if silhouette is not None and scenario.measure.name == "cost_per_row":
        parts.append(f"silhouette {share_text(silhouette.mean)}")
    clients = contender.spread("n_clients")
    if (sent := contender.spread("bytes_up")) is not None and clients is not None and clients.mean:
        parts.append(f"{bytes_text(sent.mean / clients.mean)} per site")
    if (seconds := contender.spread("seconds")) is not None:
        parts.append(f"{seconds.mean:.2g} s" if seconds.mean < 10 else f"{seconds.mean:,.0f} s")
    return f"{contender.name}: {', '.join(parts)}"


def _cost_beside(contender: Contender, pooled: Sequence[Contender]) -> str:
    """Return how far a contender's cost lies above or below the best pooled cost, in percent; "" if unknown."""
    cost = contender.comparable("cost_per_row")
    costs = [
        spread.mean for other in pooled if (spread := other.comparable("cost_per_row")) is not None
    ]
    if cost is None or not costs or min(costs) <= 0:
        return ""
    percent = 100 * (cost.mean / min(costs) - 1)
    if abs(percent) < 0.05:
        return "at the pooled cost"
    return f"{abs(percent):,.{0 if abs(percent) >= 10 else 1}f}% {'above' if percent > 0 else 'below'} the pooled cost"


# Paired differences from the best.


@dataclass(frozen=True)
class Difference:
    """The lead of the best contender over another one on the same seeds, and how sure it is."""

    other: Contender
    lead: float  #: Mean of the paired differences of the measure, above 0 if the best is better.
    #: The paired t-test's p-value, after Holm's correction for all contenders compared with the best.
    p_value: float


def differences(scenario: Scenario) -> list[Difference]:
    """Return how far the best contender is ahead of each other contender; pooled references are left out.

    Contenders that share fewer than :data:`LEAST_SEEDS` seeds with the best are left out.
    """
    ranked = scenario.ranked(scenario.federated)
    unadjusted: list[tuple[Contender, float, float]] = []
    for other in ranked[1:]:
        best, values = (
            contender.by_seed(scenario.measure.name) for contender in (ranked[0], other)
        )
        leads = np.array(
            [scenario.measure.sign * (best[seed] - values[seed]) for seed in best if seed in values]
        )
        if len(leads) >= LEAST_SEEDS:
            unadjusted.append((other, float(leads.mean()), _p_value(leads)))
    corrected = holm([p_value for _, _, p_value in unadjusted])
    return [
        Difference(contender, lead, p_value)
        for (contender, lead, _), p_value in zip(unadjusted, corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's correction for their number (Holm 1979).

    The smallest p-value is multiplied by n, the number of p-values, the next one by n - 1, and so
    on. No result may be smaller than the one before it.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(
        np.maximum.accumulate(factors * np.asarray(p_values, dtype=float)[order]), 1.0
    )
    return corrected.tolist()


def _p_value(leads: NDArray[np.float64]) -> float:
    """Return the p-value of a paired t-test that the mean lead is 0.

    If the lead is the same on every seed, its variance is 0 and the test is not possible. Then the
    p-value is 0, or 1 if the lead is 0.
    """
    if np.ptp(leads) <= 1e-12 * max(1.0, float(np.abs(leads).max())):
        return 1.0 if abs(leads.mean()) <= 1e-12 else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns of nearly equal differences
        return float(stats.ttest_1samp(leads, 0.0).pvalue)


# Mean ranks over data sets or seeds (Demšar 2006).


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of contenders over blocks (seeds, or data sets), and which of them may be equally good."""

    means: dict[str, float]  #: Mean ranks by contender, the best first.
    #: For each contender, a letter for each group of contenders that may be equally good.
    letters: dict[str, str]
    over: str  #: The blocks of the test: "seeds" or "data sets". Each block ranks all contenders.
    critical_difference: float  #: Mean ranks that differ by more than this differ significantly.
    p_value: float  #: The p-value of Friedman's test that all contenders are equally good.

    @property
    def sentence(self) -> str:
        """What the ranks and their letters mean, for a person."""
        said = f"Mean ranks are over {self.over}; 1 is the best."
        if self.p_value >= LEVEL:
            return f"{said} The differences may be due to chance (Friedman's test, p = {self.p_value:.2g})."
        return (
            f"{said} Strategies that share a letter may be equally good: their mean ranks differ by less than "
            f"{self.critical_difference:.3g}, the critical difference of Nemenyi's test at {LEVEL} (Friedman's test, "
            f"p = {self.p_value:.1g})."
        )


def critical_difference(n_contenders: int, n_blocks: int) -> float:
    """Return Nemenyi's critical difference of mean ranks, q sqrt(k (k + 1) / (12 n)).

    Here k is ``n_contenders``, n is ``n_blocks``, and q a quantile of the studentized range at the
    level :data:`LEVEL`.
    """
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, n_contenders, np.inf))
    return quantile * math.sqrt(n_contenders * (n_contenders + 1) / (12 * n_blocks))


def alike(means: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """Return the groups of sorted means that lie within a difference, as pairs of first and last index.

    Only maximal groups are returned: one that lies inside another one is left out.
    """
    groups: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(
            index
            for index, other in enumerate(means)
            if other - mean < difference or index == first
        )
        if not groups or last > groups[-1][1]:
            groups.append((first, last))
    return groups


def ranks_over_seeds(scenario: Scenario) -> Ranks | None:
    """Return the ranks within one scenario, a block per seed; None with too few seeds or contenders."""
    values = {
        contender.name: contender.by_seed(scenario.measure.name)
        for contender in scenario.ranked(scenario.contenders)
    }
    seeds = sorted(set().union(*values.values()))
    whole = [name for name, of_contender in values.items() if len(of_contender) == len(seeds)]
    losses = [[-scenario.measure.sign * values[name][seed] for name in whole] for seed in seeds]
    return (
        None
        if scenario.waiting
        else _ranks(whole, losses, f"{plural(len(seeds), 'seed')} on this data set")
    )


def ranks_over_scenarios(scenarios: Sequence[Scenario]) -> Ranks | None:
    """Return the ranks over data sets, from each contender's mean over its seeds.

    Only contenders with a value on every data set take part. Returns None if there are too few
    contenders or data sets, or if runs are missing.
    """
    columns: list[dict[str, float]] = []
    for scenario in scenarios:
        spreads = {
            contender.name: scenario.quality(contender)
            for contender in scenario.ranked(scenario.contenders)
        }
        columns.append(
            {
                name: -scenario.measure.sign * spread.mean
                for name, spread in spreads.items()
                if spread is not None
            }
        )
    whole = [name for name in columns[0] if all(name in column for column in columns)]
    losses = [[column[name] for name in whole] for column in columns]
    is_complete = not any(scenario.waiting for scenario in scenarios)
    return _ranks(whole, losses, plural(len(scenarios), "data set")) if is_complete else None


def _ranks(names: Sequence[str], losses: ArrayLike, over: str) -> Ranks | None:
    """Return the mean ranks, and Friedman's test, for a table of losses of shape (n_blocks, n_contenders)."""
    table: NDArray[np.float64] = np.asarray(losses, dtype=float)
    if len(names) < LEAST_CONTENDERS or len(table) < LEAST_BLOCKS:
        return None
    means = stats.rankdata(table, axis=1).mean(axis=0)
    # If all ranks are the same, the statistic is 0 / 0.
    p_value = (
        float(stats.friedmanchisquare(*table.T).pvalue) if np.ptp(table, axis=1).any() else 1.0
    )
    by_name = {names[index]: float(means[index]) for index in np.argsort(means, kind="stable")}
    difference = critical_difference(len(names), len(table))
    letters = dict.fromkeys(by_name, "")
    for number, (first, last) in enumerate(alike(list(by_name.values()), difference)):
        for name in list(by_name)[first : last + 1]:
            letters[name] += ascii_lowercase[number] if number < 26 else f"({number + 1})"
    return Ranks(by_name, letters, over, difference, p_value)

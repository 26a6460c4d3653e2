"""Mean ranks over data sets or seeds, and which of them chance may have put in this order (Demšar 2006)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flower_fedclust.harness.pages import plural
from flower_fedclust.harness.report.data import Contender, Scenario
from flower_fedclust.harness.report.verdict import LEVEL, by_seed

#: Over fewer blocks than this, and of fewer contenders, ranks tell nothing.
LEAST_BLOCKS, LEAST_CONTENDERS = 5, 3


@dataclass(frozen=True)
class Ranks:
    """Contenders by their mean rank, the best first; 1 is the best rank."""

    contenders: Sequence[Contender]
    means: Sequence[float]
    n_blocks: int
    over: str  #: What a contender has a rank in each of: seeds, or data sets.
    p_value: float  #: Of Friedman's test that all are alike.

    @cached_property
    def critical_difference(self) -> float:
        """How far mean ranks must lie apart to be told from chance."""
        return critical_difference(len(self.contenders), self.n_blocks)

    @cached_property
    def letters(self) -> list[str]:
        """A letter for each group of contenders that chance may have put in this order, beside all that are in it."""
        found = [""] * len(self.means)
        for number, (first, last) in enumerate(alike(self.means, self.critical_difference)):
            for index in range(first, last + 1):
                found[index] += ascii_lowercase[number] if number < 26 else f"({number + 1})"
        return found

    @property
    def sentence(self) -> str:
        """What the letters and the bars mean."""
        if self.p_value >= LEVEL:
            return f"They cannot be told from chance (Friedman's test, p = {self.p_value:.2g})."
        return (
            f"Those that share a letter may be equally good: they lie less than {self.critical_difference:.3g} apart, "
            f"the critical difference of Nemenyi's test at {LEVEL}, of which each bar shows half to both sides "
            f"(Friedman's test, p = {self.p_value:.1g})."
        )


def critical_difference(n_contenders: int, n_blocks: int) -> float:
    """Return Nemenyi's difference of mean ranks, q sqrt(k (k + 1) / (12 n)), q a quantile of the studentized range."""
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, n_contenders, np.inf))
    return quantile * math.sqrt(n_contenders * (n_contenders + 1) / (12 * n_blocks))


def alike(means: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """Return the first and the last of each largest group of sorted means that lie less than a difference apart."""
    groups: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(index for index, other in enumerate(means) if other - mean < difference or index == first)
        if not groups or last > groups[-1][1]:
            groups.append((first, last))
    return groups


def ranks_over_seeds(scenario: Scenario) -> Ranks | None:
    """Return the ranks within one scenario, a block a seed; None with too few seeds or contenders."""
    ranked = scenario.ranked(scenario.contenders)
    values = {one.name: by_seed(one, scenario.measure) for one in ranked}
    seeds = sorted(set().union(*values.values()))
    whole = [one for one in ranked if len(values[one.name]) == len(seeds)]
    sign = -1 if scenario.higher_is_better else 1
    return _ranks(
        whole,
        [[sign * values[one.name][seed] for one in whole] for seed in seeds],
        f"{plural(len(seeds), 'seed')} on this data set",
    )


def ranks_over_scenarios(scenarios: Sequence[Scenario]) -> Ranks | None:
    """Return the ranks over data sets, by the means over their seeds; None with too few of them or contenders."""
    columns = []
    for scenario in scenarios:
        sign = -1 if scenario.higher_is_better else 1
        ranked = scenario.ranked(scenario.contenders)
        columns.append({one.name: sign * spread.mean for one in ranked if (spread := scenario.quality(one))})
    whole = [one for one in scenarios[0].contenders if all(one.name in column for column in columns)]
    return _ranks(
        whole, [[column[one.name] for one in whole] for column in columns], plural(len(scenarios), "data set")
    )


def _ranks(contenders: Sequence[Contender], losses: ArrayLike, over: str) -> Ranks | None:
    table: NDArray[np.float64] = np.asarray(losses, dtype=float)
    if len(contenders) < LEAST_CONTENDERS or len(table) < LEAST_BLOCKS:
        return None
    means = stats.rankdata(table, axis=1).mean(axis=0)
    # Where all ranks are the same, the statistic is 0 / 0.
    p_value = float(stats.friedmanchisquare(*table.T).pvalue) if np.ptp(table, axis=1).any() else 1.0
    order = np.argsort(means, kind="stable")
    return Ranks([contenders[index] for index in order], means[order].tolist(), len(table), over, p_value)

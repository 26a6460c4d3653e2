"""Check whether an answer is within the policy, from the site's own clipping and its own ledger.

The server announces a plan of noise, and may lie. So for each array, the site computes the noise
multiplier from its own bound on how far one row can move the array, and compares it with the plan.
Then it converts the whole plan into an epsilon. A run is charged for all that it announced, not for
what it has used, because the moment at which it stops may depend on its outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flower_fedclust.engine.client import Request
from flower_fedclust.engine.rounds import Sent
from flower_fedclust.exact.terms import Bound
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.accounting import LONGEST_PLAN, Plan
from flower_fedclust.privacy.releases import Release
from flower_fedclust.site.policy import Policy, Refused, whom
from flower_fedclust.site.studies import EVALUATIONS, ROW_COUNT, digest

#: What the ledger records under "covered" for an array that leaves without noise: nothing protects it.
UNCOVERED = "nothing"
#: The same for a number of rows, if a plan's guarantee is about replaced rows: such a guarantee does not hide it.
COUNTED = "number of rows, which the guarantee does not hide"

#: Tolerance for rounding when a sum of budgets is compared with a limit.
ROUNDING = 1.0 - 1e-9


class OverBudget(Refused):
    """The answer would cost more than the policy allows."""

    kind = "budget"


@dataclass(frozen=True)
class Spent:
    """The budget that a data set has spent."""

    epsilon: float = 0.0  #: epsilon and delta are sums over all runs
    delta: float = 0.0
    #: The part of epsilon that rests on noise that the site cannot check: the server's noise, or the shares of noise
    #: of other clients.
    claimed: float = 0.0
    n_evaluations: int = 0


def spent(entries: Iterable[Mapping[str, Any]], data_set: str) -> Spent:
    """Return what a data set has spent, over all runs in a ledger.

    Each run counts with all that it announced, because the moment at which it stops may depend on
    its outputs.
    """
    runs: dict[str, tuple[float, float, bool]] = {}
    n_evaluations = 0
    for entry in entries:
        if entry["data_set"] != data_set:
            continue
        n_evaluations += entry["task"] == "evaluate"
        if entry["epsilon"]:
            epsilon, delta, is_claim = runs.get(entry["run"], (0.0, 0.0, False))
            runs[entry["run"]] = (
                max(epsilon, entry["epsilon"]),
                max(delta, entry["delta"]),
                is_claim or entry["is_claim"],
            )
    return Spent(
        math.fsum(epsilon for epsilon, _, _ in runs.values()),
        math.fsum(delta for _, delta, _ in runs.values()),
        math.fsum(epsilon for epsilon, _, is_claim in runs.values() if is_claim),
        n_evaluations,
    )


def uncovered(arrays: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return which kinds of data leave without noise, by the names that the operator sees when approving a study.

    ``arrays`` holds the arrays of one entry of the ledger.
    """
    named = {ROW_COUNT for array in arrays if array.get("covered") == COUNTED}
    return named | {
        array.get("reveals", EVALUATIONS) for array in arrays if array.get("covered") == UNCOVERED
    }


class Budget:
    """Decides whether a question is within a policy.

    Parameters
    ----------
    policy : Policy
    run : sequence of mapping
        The ledger's entries of this run.
    before : Spent
        What the data set has spent in other runs.
    """

    def __init__(self, policy: Policy, run: Sequence[Mapping[str, Any]], before: Spent) -> None:
        self.policy = policy
        self.run = run
        self.before = before

    def judge(self, request: Request) -> dict[str, Any]:
        """Return the entry of the ledger for an answer; raise Refused if the answer may not leave.

        The entry has the keys ``arrays``, ``epsilon``, ``delta``, ``unit``, ``plan`` and
        ``is_claim``, which says whether the site has to believe that others add noise.
        """
        self.policy.check_task(request)
        self._check_masked(request)
        plan = self._plan(request)
        of_server = plan is not None and plan.noise == "server"
        moved = request.moved(self.policy.known_rows(request.n_rows))
        arrays: list[dict[str, Any]] = []
        for sent, release, bound in zip(request.answer.sends, request.releases, moved, strict=True):
            about: dict[str, Any] = {
                "content": sent.content,
                "reveals": sent.reveals,
                "per": sent.per,
            }
            about |= {"masked": True} if request.is_masked else {}
            if (
                plan is not None
                and release is not None
                and bound is not None
                and not request.is_derived
            ):
                arrays.append(about | self._with_noise(request, release, bound))
            else:
                arrays.append(about | {"covered": self._without_noise(request, plan, sent)})
            self._check_row_count(request, sent)
        if plan is not None:
            self._check_plan(plan, arrays)
        epsilon = self._epsilon(plan)
        claims = of_server or any(array.get("shares", 1) > 1 for array in arrays)
        delta = self.policy.delta_per_run if epsilon else 0.0
        unit = whom(plan) if plan is not None and epsilon else ""
        judged = {
            "epsilon": epsilon,
            "delta": delta,
            "unit": unit,
            "is_claim": claims,
            "plan": digest(request.plan),
        }
        self.check_total(judged)
        return {"arrays": arrays, **judged}

    def check_evaluation(self) -> None:
        """Raise Refused unless a model may be evaluated once more."""
        if self.policy.secure is not None:
            raise Refused(
                "an evaluation would leave without a mask; secure in the policy is 'required'."
            )
        if self.before.n_evaluations >= self.policy.evaluations:
            raise OverBudget(
                f"this would be evaluation number {self.before.n_evaluations + 1}; evaluations in the policy is "
                f"{self.policy.evaluations}."
            )

    def _check_masked(self, request: Request) -> None:
        """Raise Refused if an answer would leave without a mask although the policy requires one."""
        if self.policy.secure is None or request.is_masked:
            return
        for sent in request.answer.sends:
            is_public = sent.counts_rows and sent.per == "client" and self.policy.row_count
            if not (sent.kept_as or is_public):
                raise Refused(
                    f"'{request.answer.task}' would send {sent.content} without a mask; secure in the policy is "
                    "'required'."
                )

    def _plan(self, request: Request) -> Plan | None:
        """Return the run's plan of noise; None if it announces none.

        The first message with noise announces the plan, and every later message has to repeat it.
        Raises Refused if the policy does not accept the plan.
        """
        plans = (entry["plan"] for entry in self.run if entry["arrays"] and entry["plan"])
        # Answers without noise may precede the first message that announces a plan.
        announced = next(plans, digest(request.plan))
        if digest(request.plan) != announced:
            raise Refused("the run announces other noise than in its first round.")
        if not request.plan:
            return None
        try:
            plan = Plan.from_dict(parse_json(request.plan, LONGEST_PLAN))
        except ValueError as error:
            raise Refused(f"{error}") from None
        least = min(plan.multipliers.values(), default=math.inf)
        if least < self.policy.least_noise_multiplier:
            raise Refused(
                f"the run announces a noise multiplier of {least:.3g}; least_noise_multiplier in the policy is "
                f"{self.policy.least_noise_multiplier:g}."
            )
        relations: set[str] = {share.relation for share in plan.shares.values()}
        if not relations <= set(self.policy.relations):
            raise Refused(
                f"the run's guarantee is for rows that differ by {', '.join(sorted(relations))}; relations in the "
                f"policy lists {', '.join(self.policy.relations)}."
            )
        if self.policy.sample is not None and plan.unit == "record" and "replace" in relations:
            # In a sample, a new row stands at another place than the row that it replaces, so all rows between them
            # move.
            raise Refused(
                "the run's guarantee is for a row that is replaced where it stands, and in a sample other rows change "
                "places with it; a site with sample in its policy takes part in runs for add-or-remove only."
            )
        if plan.noise == "server" and not self.policy.trusts_server_noise:
            raise Refused(
                "the server says that it adds the noise; trusts_server_noise in the policy is false."
            )
        return plan

    def _check_row_count(self, request: Request, sent: Sent) -> None:
        """Raise Refused if an array would reveal the number of rows, and the policy forbids that."""
        shows = (sent.per == "row" or request.is_derived) and not sent.kept_as
        if shows and not self.policy.row_count and sent.reveals not in self.policy.unprotected:
            raise Refused(
                f"'{request.answer.task}' would send {sent.reveals} ({sent.content}) that show the number of rows; "
                "row_count in the policy is false."
            )

    def _without_noise(self, request: Request, plan: Plan | None, sent: Sent) -> str:
        """Return what the ledger says about an array without noise of its own; raise Refused if it may not leave."""
        if sent.kept_as:
            return "kept at the site"
        if request.is_derived:
            return "computed from rows that carry noise"
        if plan is not None and plan.noise == "server" and sent.reveals == "sums":
            return "noise of the server, as it says"
        replaces = plan is not None and any(
            share.relation == "replace" for share in plan.shares.values()
        )
        if sent.counts_rows and self.policy.row_count and replaces:
            return COUNTED
        if sent.reveals in self.policy.unprotected:
            return UNCOVERED
        raise Refused(
            f"'{request.answer.task}' would send {sent.reveals} ({sent.content}) without noise; unprotected in "
            f"the policy does not list '{sent.reveals}'."
        )

    def _with_noise(self, request: Request, release: Release, moved: Bound) -> dict[str, Any]:
        """Return what the ledger says about an array with noise, including the share of the plan that pays for it."""
        sample = release.sample
        if sample is not None and (
            moved.sample is None or moved.sample[0] > sample[0] or moved.sample[1] < sample[1]
        ):
            raise Refused(
                f"'{request.answer.task}' does not draw {sample[0]} of {sample[1]} rows, as announced."
            )
        return {
            "mechanism": release.mechanism,
            "multiplier": release.noise_multiplier,
            "relation": release.relation,
            "share": release.share,
            "shares": request.n_shares,
        }

    def _check_plan(self, plan: Plan, arrays: Sequence[Mapping[str, Any]]) -> None:
        """Raise Refused if a share of the plan would be spent too often, or in a way that the plan does not allow.

        All arrays of a reply depend on the same sample of rows, and the plan assumes that a round
        spends each share once.
        """
        shares = [array["share"] for array in arrays if "multiplier" in array]
        if len(set(shares)) < len(shares):
            raise Refused(
                f"two arrays of one reply take their noise from one share ({', '.join(shares)})."
            )
        if len({plan.shares[name].sample for name in shares}) > 1:
            raise Refused(
                f"the arrays of one reply have shares with different samples ({', '.join(shares)})."
            )
        former = [array for entry in self.run for array in entry["arrays"]]
        taken = Counter(array["share"] for array in [*former, *arrays] if "multiplier" in array)
        for name, count in taken.items():
            if name in plan.shares and count > plan.shares[name].count:
                raise OverBudget(
                    f"the run announced {plan.shares[name].count} releases of '{name}' and asks for more."
                )

    def _epsilon(self, plan: Plan | None) -> float:
        """Return the epsilon that the run costs.

        It covers all that the run announced, so that it does not depend on anything that the server
        learns.
        """
        if plan is None:
            return 0.0
        known = (
            entry["epsilon"]
            for entry in self.run
            if entry["arrays"] and entry["delta"] == self.policy.delta_per_run
        )
        epsilon = next(known, None) or self.policy.epsilon_of(plan)
        if epsilon > self.policy.epsilon_per_run:
            raise OverBudget(
                f"the run would spend an epsilon of {epsilon:.4g} at delta {self.policy.delta_per_run:g}; "
                f"epsilon_per_run in the policy is {self.policy.epsilon_per_run:g}."
            )
        return epsilon

    def check_total(self, judged: Mapping[str, Any]) -> None:
        """Raise OverBudget if a run would make the data set spend more than the policy allows for all runs together."""
        epsilon, delta = judged["epsilon"], judged["delta"]
        for name, value, total, most in (
            ("epsilon", epsilon, self.before.epsilon + epsilon, self.policy.epsilon),
            ("delta", delta, self.before.delta + delta, self.policy.delta),
        ):
            if epsilon and total > most / ROUNDING:
                raise OverBudget(
                    f"the data set has spent {name} {total - value:.4g} in other runs, and this run would make it "
                    f"{total:.4g}; {name} in the policy is {most:g}."
                )

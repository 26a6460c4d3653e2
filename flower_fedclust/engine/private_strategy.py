"""The bases of strategies that can take noise: a budget, its shares, and the releases that it pays for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from flower_fedclust.engine.parameters import parameter
from flower_fedclust.engine.parts import Part, relation_of, releases_of_parts, shares_of
from flower_fedclust.engine.rounds import ProtocolError, Question, Round, Sum
from flower_fedclust.engine.spending import Spending
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.numerics.checks import LARGEST, SMALLEST, check_real
from flower_fedclust.privacy.accounting import Plan, Share, calibrate, delta_of_composition, divided
from flower_fedclust.privacy.releases import NoisePlace, PrivacyUnit, Relation, Release

#: A larger delta is remarked on in the report: few tables have so few rows that it is far below one over their number.
LARGE_DELTA = 1e-4


class PrivateStrategy(ProtocolStrategy):
    """Base of strategies that can take noise.

    A subclass names the parts of its privacy budget in :meth:`parts`. A round names the part that pays for each array.
    The plan of a run is made of the parts once, as soon as its clients have enrolled: what a run finds out later
    changes none of them.

    Parameters
    ----------
    epsilon : float, optional
        The privacy budget of the whole run. None is no noise and no guarantee.
    delta : float, default=1e-6
        The delta of that budget.
    noise : "server", "clients" or "local", default="server"
        Who adds the noise: the server, which is trusted to; the clients, each a share (for secure aggregation); or each
        client all of it, so that its reply is private by itself.
    budget : mapping of str to float, optional
        Parts of epsilon, by the names that ``fedclust explain`` shows; what is not named divides the rest as it would
        divide the whole.
    """

    promises: ClassVar[tuple[PrivacyUnit, ...]] = ("record",)

    # Beyond 1000 the composition is not computed reliably, and nobody is protected anyway.
    epsilon: float | None = parameter(None, above=0, at_most=1000)
    # Below 1e-12 the composition is not computed reliably.
    delta: float = parameter(1e-6, at_least=1e-12, below=1)
    noise: NoisePlace = parameter("server")
    budget: Mapping[str, float] | None = parameter(None)

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right. Extended by subclasses."""
        super().check_parameters()
        if not isinstance(self.budget, Mapping | None):
            raise ValueError(f"budget is {self.budget!r}; it must be parts by name, such as {{'votes': 0.3}}.")
        for name, part in (self.budget or {}).items():
            check_real(f"the budget of {name}", part, above=0, at_most=1)

    def privacy_notes(self) -> list[str]:
        """Add what a large delta allows."""
        notes = super().privacy_notes()
        if self.epsilon is not None and self.delta > LARGE_DELTA:
            notes.append(
                f"delta is {self.delta:g}: with this probability everything about a row may come out. "
                "Choose it far below one over the number of rows."
            )
        return notes

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the privacy budget by name, as they are where the user says nothing."""
        return {}

    @property
    def relation(self) -> Relation:
        """How neighboring data sets differ: the strongest relation that all parts of the budget support."""
        return relation_of(self.parts())

    def shares(self) -> Mapping[str, Share]:
        """Return the parts as the accounting reads them."""
        return shares_of(self.parts(), self.relation)

    def noise_multipliers(self) -> dict[str, float]:
        """Return the noise multiplier of each share, with which the whole run is (epsilon, delta)-private."""
        return calibrate(divided(self.all_shares(), self.budget), self.epsilon, delta_of_composition(self.delta))

    def all_shares(self) -> dict[str, Share]:
        """Return :meth:`all_parts` as the accounting reads them."""
        parts = self.all_parts()
        return shares_of(parts, relation_of(parts))

    def make_plan(self) -> Plan:
        """Return what all of the run's noise will be, by what is known now."""
        shares = divided(self.all_shares(), self.budget)
        return Plan(self.epsilon, self.delta, self.noise, self.privacy_unit, shares, self.noise_multipliers())

    @property
    def frozen_plan(self) -> Plan:
        """The plan of the run, made once its clients have enrolled and never changed; before that, what it would be.

        Raises
        ------
        ValueError
            In a run, if the plan composes to more than was asked for.
        """
        run = self._run
        if run is None:
            return self.make_plan()
        spending = run.spending or Spending(self.make_plan())
        if run.clients:
            run.spending = spending
        return spending.plan

    @property
    def plan_waits(self) -> bool:
        """Whether the plan is frozen by the first release, as it needs what rounds without noise find before that."""
        return False

    def freeze_plan(self) -> None:
        """Freeze the plan, unless it waits."""
        # Before the clients have enrolled, the names in a budget may be of shares that follow from their columns.
        is_early = self.budget is not None and not self.client_names
        if self.epsilon is not None and not self.plan_waits and not is_early:
            _ = self.frozen_plan

    @property
    def plan(self) -> str:
        """The frozen plan as JSON; empty without an epsilon, and as long as the plan waits."""
        is_frozen = self._run is not None and self._run.spending is not None
        return "" if self.epsilon is None or (self.plan_waits and not is_frozen) else self.frozen_plan.to_json()

    def summed(self, question: Question, *parts: str, at_most: tuple[float | None, ...] = ()) -> Sum:
        """Return the round for the sum over rows; where the guarantee is for clients, over the means of clients.

        Parameters
        ----------
        question : Question
        *parts : str
            The parts of the budget that pay for the arrays.
        at_most : tuple of (float or None)
            The norms to which a client clips its means.
        """
        return Sum(question.mean(*at_most) if self.privacy_unit == "client" else question, parts=parts)

    def noise_of(self, part: str, bound: float = 1.0) -> float:
        """Return the standard deviation of the noise in a sum that one row, or one client, can change by ``bound``.

        For post-processing; no guarantee rests on it. 0 without an epsilon.
        """
        if self.epsilon is None:
            return 0.0
        plan = self.frozen_plan
        share = plan.shares[part]
        return self.noise_of_sum(Release(share.mechanism, bound, plan.multipliers[part], "", share.relation))

    def noise_scale(self, part: str, bound: float = 1.0) -> float:
        """Return the parameter of that noise: of Gaussian noise its standard deviation, of Laplace noise its scale."""
        if self.epsilon is None:
            return 0.0
        is_laplace = self.frozen_plan.shares[part].mechanism == "laplace"
        return self.noise_of(part, bound) / (math.sqrt(2.0) if is_laplace else 1.0)

    def with_noise(self, round_: Round) -> Round:
        """Return a round with the noise that its parts of the budget pay for.

        Raises
        ------
        ProtocolError
            If a part pays for other answers, or is not in the plan; or if the round has noise that no part pays for.
        """
        if self.epsilon is None:
            return round_
        if any(round_.releases):
            raise ProtocolError(f"'{round_.task}' comes with releases; a round names parts, and the run finds these.")
        if not round_.parts:
            return round_
        declared = self.all_parts()
        for name in round_.parts:
            if name in declared and round_.asks not in declared[name].askables:
                raise ProtocolError(f"part '{name}' of the budget does not pay for '{round_.task}'.")
        questions = round_.question.values() if isinstance(round_.question, Mapping) else [round_.question]
        plan = self.frozen_plan
        found = {releases_of_parts(question, question.moved(), round_.parts, plan) for question in questions}
        if len(found) > 1:
            raise ProtocolError(
                f"a row changes what '{round_.task}' asks by another amount at each client; ask in several rounds."
            )
        return replace(round_, releases=found.pop())

    def all_parts(self) -> dict[str, Part]:
        """Return the parts of the budget of a run: the strategy's own, and the parts for preparing tables."""
        if self.tables is None:
            return dict(self.parts())
        inner = self.tables.likely(self)
        return {**inner.parts(), **self.tables.parts(inner)}


class ClippedStrategy(PrivateStrategy):
    """Base of private strategies whose clients clip every row to a norm.

    Parameters
    ----------
    max_norm : float, optional
        The Euclidean norm to which every client clips its rows; needed with an epsilon. Choose units and origin with
        it. It is public, and not taken from data.
    """

    max_norm: float | None = parameter(None, at_least=SMALLEST, at_most=LARGEST)

    @property
    def max_norm_of_rows(self) -> float | None:
        """The norm to which rows are clipped: none without an epsilon."""
        return None if self.epsilon is None else self.max_norm

    def check_complete(self) -> None:
        """Raise a ValueError unless there is a norm where there is noise."""
        super().check_complete()
        if self.epsilon is not None and self.max_norm is None:
            raise ValueError("max_norm is missing; noise for an epsilon needs a norm to which rows are clipped.")

"""The studies that a site takes part in. An operator may have to approve each one, and may stop it as it runs.

A study is one run and what it announces: its name, strategies, schema and plan of noise. An
approval is for one run. The operator sees a study as one line of text and approves this line. It
names all that may leave without noise, and nothing else leaves without noise.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.store import Store
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json, parsing
from flower_fedclust.privacy.accounting import LONGEST_PLAN, Plan
from flower_fedclust.site.policy import (
    DAY,
    WHO,
    Policy,
    Refused,
    SiteSettings,
    TooMuch,
    ago,
    printable,
    whom,
)

State = Literal["waiting", "approved", "running", "stopped"]

#: How many days a study waits for its approval, and how many days an approval waits for its run.
DAYS = 7

#: The names of two things that may leave without noise, besides the kinds of messages under ``unprotected`` in the
#: policy.
ROW_COUNT, EVALUATIONS = "the number of rows", "evaluations"

#: The file with the studies in a site's folder, the name under which it holds them, and the file that older versions
#: wrote.
FILE, STUDIES, OLDER = "studies.sqlite", "study", "studies.json"

#: Remedy for a file that cannot be read.
REMEDY = "restore it from a backup, or move it away: then no study is approved or stopped"


#: What the server is told while a study waits.
WAITS = "waiting for approval of study {}; submit the same run again once the operator of the site has approved it"


class Waiting(Refused):
    """The study waits for its approval. Only in this case the server is told the message of the error."""

    kind = "approval"


class Stopped(Refused):
    """The operator has stopped the study."""

    kind = "stopped"


@dataclass
class Study:
    """The announcement of one run, and the operator's decision about it."""

    id: str
    run: str  #: The last run that asked to take part.
    name: str
    strategy: str
    schema: str  #: Digest of the run's schema; "" without one.
    first_plan: str = ""  #: Digest of the plan of noise when the run enrolled; "" if none.
    plan: str = ""  #: Digest of the plan that the run's rounds announced.
    epsilon: float | None = None  #: The epsilon of the plan, as this site computes it.
    noise: str = ""  #: The party that adds the noise.
    unit: Literal["record", "subject"] = "record"  #: Whom epsilon protects.
    #: The kinds of messages that may leave without noise.
    open: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)  #: Kinds that have left without noise.
    #: The kinds of messages that a run has asked for without noise although ``open`` does not list them.
    refused: list[str] = field(default_factory=list)
    state: State = "waiting"
    since: float = 0.0  #: When the study came into this state.

    def is_open(self) -> bool:
        """Return whether another run with the same announcement may take the study over."""
        return self.state in ("waiting", "approved") and not self.is_over()

    def is_over(self) -> bool:
        """Return whether it is too late to approve the study, or to use its approval."""
        return self.state in ("waiting", "approved") and time.time() > self.since + DAYS * DAY

    def turn(self, state: State) -> None:
        """Put the study into another state, as of now."""
        self.state, self.since = state, time.time()

    def __str__(self) -> str:
        """Return the study as one line: first what the site has computed, then in quotes what the server chose."""
        costs, without = (
            "no plan of noise announced",
            f"without noise: {', '.join(self.open) or 'nothing'}",
        )
        if self.epsilon is not None:
            promised = ", which the sums leave without" if self.noise == "server" else ""
            costs = f"epsilon {self.epsilon:.4g} for each {WHO[self.unit]} (noise: {self.noise}{promised})"
        else:
            without += ", and a plan that it announces later waits again"
        schema = f"schema {self.schema[:12]}" if self.schema else "no schema"
        return f"{self.id}: {costs}, {without}; {schema}; named {_quoted(self.name)}, strategy {_quoted(self.strategy)}"


class Studies:
    """The studies of a site, in a file that only the site's account can read."""

    def __init__(self, settings: SiteSettings) -> None:
        self.path = Path(settings.folder) / FILE
        self.settings = settings
        self._store = Store(self.path, "studies", REMEDY)

    def read(self) -> list[Study]:
        """Return all studies; raise a DataError if the file is damaged or of an older version."""
        if (older := self.path.with_name(OLDER)).exists():
            raise DataError(
                f"{older} is of an older version, which this one does not read; {REMEDY}."
            )
        contents = list(self._store.items(STUDIES))
        with parsing(str(self.path), "studies", REMEDY):
            return [Study(**json.loads(content)) for _, content in contents]

    @contextmanager
    def _changing(self) -> Iterator[list[Study]]:
        """Yield the studies, and write all that the block has changed, even if it ends with a refusal."""
        refusal = None
        with self._store.changing():
            studies = self.read()
            before = {study.id: asdict(study) for study in studies}
            try:
                yield studies
            except (Refused, ValueError) as error:
                refusal = error
            after = {study.id: asdict(study) for study in studies}
            for gone in before.keys() - after.keys():
                self._store.forget(STUDIES, gone)
            for name, about in after.items():
                if about != before.get(name):
                    self._store.put(STUDIES, name, json.dumps(about).encode())
        if refusal is not None:
            raise refusal

    def admit(
        self, asked: Study, task: str, plan: str, entries: Iterable[Mapping[str, Any]]
    ) -> None:
        """Raise Waiting or Refused unless a message of a run may be answered.

        Parameters
        ----------
        asked : Study
            What the message announces.
        task : str
            The name of the question.
        plan : str
            The plan of noise that the message announces, as JSON; "" without one.
        entries : iterable of mapping
            The entries of the ledger.
        """
        needs = self.settings.policy.approve is not None
        if plan and needs:
            # The epsilon is computed outside the lock, because this may take seconds; the result is cached.
            self._priced(plan)
        with self._changing() as studies:
            study = next((study for study in studies if study.run == asked.run), None)
            if study is None:
                if needs and task != ENROL:
                    raise Refused(
                        "the run asks before it has enrolled; approve in the policy does not allow that."
                    )
                if plan and needs:
                    self._show(asked, plan)
                    asked.first_plan = digest(plan)
                study = next(
                    (
                        study
                        for study in studies
                        if study.is_open() and _asks(study) == _asks(asked)
                    ),
                    None,
                )
                if study is None:
                    if not plan:
                        asked.open = _named(self.settings.policy, None)
                    # If a run with the same announcement was refused in the middle, the line of this study names what
                    # that run had asked for.
                    former = next(
                        (study for study in reversed(studies) if _asks(study) == _asks(asked)), None
                    )
                    asked.open = _joined(asked.open, () if former is None else former.refused)
                    study = self._added(studies, asked, entries)
                study.run = asked.run
            if study.state == "stopped":
                raise Stopped(f"the operator has stopped study {study.id}.")
            if not needs:
                if study.state != "running":
                    study.turn("running")
                return
            self._check_approved(study, asked, task, plan)

    def _added(
        self, studies: list[Study], asked: Study, entries: Iterable[Mapping[str, Any]]
    ) -> Study:
        """Add a study, and forget old ones unless they were stopped; raise TooMuch if too many wait."""
        oldest, limit = time.time() - self.settings.keep_days * DAY, ago(self.settings.keep_days)
        live = {entry["run"] for entry in entries if entry["time"] >= limit}
        studies[:] = [
            study
            for study in studies
            if study.state == "stopped" or study.run in live or study.since > oldest
        ]
        n_waiting, most = (
            sum(study.state == "waiting" for study in studies),
            self.settings.limits.runs_per_day,
        )
        if n_waiting >= most:
            raise TooMuch(
                f"{n_waiting} studies wait for approval; runs_per_day in the limits is {most}."
            )
        asked.id = hashlib.sha256(f"{asked.run} {time.time_ns()}".encode()).hexdigest()[:12]
        asked.turn("waiting")
        studies.append(asked)
        return asked

    def _check_approved(self, study: Study, asked: Study, task: str, plan: str) -> None:
        """Raise Waiting or Refused unless a study is approved and the message asks for what was approved.

        If the message announces a plan that the operator has not seen, the study waits again.
        """
        if study.is_over():
            raise Refused(f"study {study.id} has been {study.state} for more than {DAYS} days.")
        if (study.name, study.strategy) != (asked.name, asked.strategy) or (
            asked.schema != study.schema and (asked.schema or task == ENROL)
        ):
            raise Refused(
                f"the run asks for something else than study {study.id}, which it began as."
            )
        if task != ENROL and plan and digest(plan) != study.plan:
            if study.state == "running" and study.plan:
                raise Refused(
                    f"the run announces another plan of noise than study {study.id}, which it began as."
                )
            if digest(plan) != (study.plan or study.first_plan):  # the operator has not seen it
                self._show(study, plan)
                study.turn("waiting")
            study.plan = digest(plan)
        if study.state == "waiting":
            raise Waiting(WAITS.format(study.id))
        if task != ENROL and study.state == "approved":
            study.turn("running")

    def _priced(self, plan: str) -> tuple[Plan, float]:
        """Return a plan, and the epsilon that it costs one row of this site."""
        try:
            parsed = Plan.from_dict(parse_json(plan, LONGEST_PLAN))
        except ValueError as error:
            raise Refused(f"{error}") from None
        return parsed, self.settings.policy.epsilon_of(parsed)

    def _show(self, study: Study, plan: str) -> None:
        """Write into a study what a person has to see before approving it.

        These are who adds the noise, what the plan costs one row or person of this site, and what
        may leave without noise.
        """
        parsed, study.epsilon = self._priced(plan)
        study.noise, study.unit = parsed.noise, whom(parsed)
        study.open = _joined(study.used, _named(self.settings.policy, parsed))

    def check_open(self, run: str, wanted: Iterable[str], *, is_first: bool) -> None:
        """Raise Waiting or Refused unless the study's line names all that would leave without noise.

        ``wanted`` holds the kinds of data that would leave. If the line does not name one of them,
        and no array of the run has left yet (``is_first``), the line is completed and the study
        waits again. Later in a run, such data are refused.
        """
        if self.settings.policy.approve is None or not (wanted := set(wanted)):
            return
        with self._changing() as studies:
            study = next(study for study in studies if study.run == run)
            unnamed = wanted.difference(study.open)
            if not unnamed:
                study.used = _joined(study.used, wanted)
                return
            reason = (
                f"the run asks for {', '.join(sorted(unnamed))} without noise, "
                "which the approved line does not name"
            )
            if not is_first:
                study.refused = _joined(study.refused, unnamed)
                raise Refused(f"{reason}; the line of its next run names it.")
            study.open = _joined(study.open, unnamed)
            study.turn("waiting")
            raise Waiting(f"{WAITS.format(study.id)} ({reason}; its line names it now)")

    def check_running(self, run: str) -> None:
        """Raise Stopped if the study of a run was stopped, which can also happen while an answer is computed."""
        for study in self.read():
            if study.run == run and study.state == "stopped":
                raise Stopped(f"the operator has stopped study {study.id}.")

    def approve(self, wanted: str) -> Study:
        """Approve a study that waits; raise a ValueError if it does not."""
        with self._changing() as studies:
            study = _found(studies, wanted)
            if study.state != "waiting" or study.is_over():
                over = (
                    f" for more than {DAYS} days; it has to be submitted again"
                    if study.is_over()
                    else ""
                )
                raise ValueError(
                    f"study {study.id} is {study.state}{over}; only a study that waits can be approved."
                )
            study.turn("approved")
            return study

    def stop(self, wanted: str) -> Study:
        """Refuse all later messages of a study."""
        with self._changing() as studies:
            study = _found(studies, wanted)
            study.turn("stopped")
            return study


def digest(text: str) -> str:
    """Return a SHA-256 digest of a text that a server has announced; "" for no text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _named(policy: Policy, plan: Plan | None) -> list[str]:
    """Return the names of all that may leave without noise by the policy, for the line that shows a study.

    With a plan of noise, the kinds under ``unprotected`` are left out: a kind is added to the line
    only when the run asks for it, and the study then waits again.
    """
    named: list[str] = [] if plan is not None else list(policy.unprotected)
    if (
        policy.row_count
        and plan is not None
        and any(share.relation == "replace" for share in plan.shares.values())
    ):
        named.append(ROW_COUNT)
    return [*named, EVALUATIONS] if policy.evaluations else named


def _joined(names: Iterable[str], more: Iterable[str]) -> list[str]:
    """Return all names once, sorted."""
    return sorted({*names, *more})


def _quoted(said: str) -> str:
    """Return a text of a server between quotation marks that the text cannot close."""
    return json.dumps(printable(said), ensure_ascii=False)


def _asks(study: Study) -> tuple[str, ...]:
    """Return what a study announces when it enrols, for comparing two studies."""
    return study.name, study.strategy, study.schema, study.first_plan


def _found(studies: list[Study], wanted: str) -> Study:
    """Return the study whose id begins with ``wanted``; raise a ValueError unless there is exactly one."""
    matches = [study for study in studies if wanted and study.id.startswith(wanted)]
    if len(matches) != 1:
        raise ValueError(
            f"{len(matches)} studies have an id that begins with '{wanted}'; see 'fedclust site studies'."
        )
    return matches[0]

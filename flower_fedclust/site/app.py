"""The client of a site: what a server asks goes past the policy, and what leaves is in the ledger before it does."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.protocol.client import ENROL, ProtocolClient
from flower_fedclust.protocol.client_data import ClientData
from flower_fedclust.protocol.consent import Request
from flower_fedclust.protocol.disk import make_private
from flower_fedclust.protocol.wire import decode, encode
from flower_fedclust.registry import client_types, strategies
from flower_fedclust.site.budget import Budget, spent
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.own_result import save_result
from flower_fedclust.site.policy import Refused, SiteSettings
from flower_fedclust.site.replies import (
    RunFolder,
    answer_to_bytes,
    evaluate_answer,
    evaluate_res,
    fit_answer,
    fit_res,
    forget_old_runs,
)
from flower_fedclust.tables.schema import Schema

log = logging.getLogger(__name__)

#: All that a server hears of what a site does not answer.
REFUSED, FAILED = "refused", "failed"

#: What stands in the ledger as the task where a model was evaluated.
EVALUATE = "evaluate"

#: The same where a model was received, and nothing was answered.
RECEIVE = "receive"


#: Of a run, and of a study, in characters: each answer has them in the ledger.
LONGEST_NAME = 200


class Site:
    """A site: its rows, its policy, its ledger, and what it keeps of each run.

    Parameters
    ----------
    settings : SiteSettings
        From ``site.toml``.
    load : callable, optional
        Takes nothing and returns the site's ClientData; by default what ``settings`` names is read.
    """

    def __init__(self, settings: SiteSettings, load: Callable[[], ClientData] | None = None) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        self._load = load or (lambda: load_rows(settings))
        #: The app that the server has sent, where there is one: its id, version and hash. The site does not run it.
        self.app_of_server = ""

    @cached_property
    def data(self) -> ClientData:
        """The rows of the site."""
        return self._load()

    @property
    def data_set(self) -> str:
        """Under which name budgets are added up."""
        return self.settings.data_set or self.settings.data

    @property
    def app(self) -> ClientApp:
        """The site as Flower's ClientApp."""
        return _SiteApp(self)

    def client(self, context: Context) -> Client:
        """Return the client that answers one message."""
        return _SiteClient(self, context)

    def keep_result(self, context: Context, config: Mapping[str, Any], model: Parameters) -> None:
        """Save a model that a run shares, with the site's own labels and a report of what has left the site for it.

        The first model of a run is saved, and no other; what goes wrong with it stays at the site.
        """
        run = str(config.get("run") or context.run_id)
        try:
            with self.ledger.locked():
                own = [entry for entry in self.ledger.entries if entry["run"] == run]
                if own:
                    saved = save_result(
                        self.folder, self.settings.name, self.data, own, context, str(config.get("model")), model
                    )
                    self.note("result", run=run, folder=str(saved))
        except Exception as error:
            self.note("failed", run=run, task="result", reason=f"{type(error).__name__}: {error}")

    def note(self, event: str, **facts: Any) -> None:
        """Write a line into the audit log of the site, and into Flower's log."""
        said = ", ".join(f"{name} {value}" for name, value in facts.items() if value not in (None, "", []))
        log.log(logging.INFO if event in ("answered", "repeated", "result") else logging.WARNING, "%s: %s", event, said)
        make_private(self.folder)
        line = json.dumps({"time": _now(), "event": event, **facts}) + "\n"
        with os.fdopen(
            os.open(self.folder / "audit.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a"
        ) as log_file:
            log_file.write(line)


class _SiteApp(ClientApp):
    """The site as Flower's ClientApp: of what goes wrong before a client is asked, the server hears one word, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(client_fn=site.client)
        self._site = site

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return super().__call__(message, context)
        except Exception as error:
            with suppress(OSError):  # a full disk may be what went wrong, and names a path of the site's
                self._site.note("failed", run=str(context.run_id), reason=f"{type(error).__name__}: {error}")
            raise RuntimeError(FAILED) from None


class _SiteClient(Client):
    """Answers one message of a server, which may send anything."""

    def __init__(self, site: Site, context: Context) -> None:
        self.site = site
        self.own_context = context

    def fit(self, ins: FitIns) -> FitRes:
        """Answer a task of a round."""
        config = ins.config

        def compute(client: ProtocolClient) -> FitRes:
            arrays, n_examples, metrics = client.fit(decode(ins.parameters), dict(config))
            return fit_res(encode(arrays).tensors, metrics, n_examples)

        task = str(config.get("task"))
        answer = self._answered(task, _number(config.get("round")), config, ins.parameters.tensors, compute)
        if isinstance(answer, dict):
            return fit_res([], answer)
        return fit_answer(answer)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Keep a model that is shared; evaluate one, once a run, and only if the policy says so."""
        config = ins.config
        task = EVALUATE if config.get("evaluate", True) else RECEIVE

        if config.get("share"):
            self.site.keep_result(self.own_context, config, ins.parameters)

        def compute(client: ProtocolClient) -> EvaluateRes:
            loss, n_examples, metrics = client.evaluate(decode(ins.parameters), dict(config))
            return evaluate_res(loss, n_examples, metrics)

        answer = self._answered(task, 0, config, ins.parameters.tensors, compute)
        if isinstance(answer, dict):
            return evaluate_res(0.0, 0, answer)
        return evaluate_answer(answer)

    def _answered(
        self,
        task: str,
        number: int | None,
        config: Mapping[str, Any],
        tensors: list[bytes],
        compute: Callable[[ProtocolClient], FitRes | EvaluateRes],
    ) -> bytes | dict[str, Any]:
        """Return the bytes of the answer; or, where there is none, what the server may know of that."""
        site, context = self.site, self.own_context
        run = str(config.get("run") or context.run_id)
        about = {"run": run, "round": number, "task": task, "study": str(context.run_config.get("study", ""))}
        facts: dict[str, Any] = {"client": site.settings.name}
        try:
            with site.ledger.locked():
                return self._within_lock(about, config, tensors, compute)
        except Refused as error:
            site.note("refused", **about, reason=str(error))
            return facts | {"failure": REFUSED}
        except _Failed as error:
            site.note("failed", **about, reason=str(error))
            return facts | {"failure": FAILED} | ({"missed": True} if error.missed else {})
        except Exception as error:
            site.note("failed", **about, reason=f"{type(error).__name__}: {error}")
            return facts | {"failure": FAILED}

    def _within_lock(
        self,
        about: dict[str, Any],
        config: Mapping[str, Any],
        tensors: list[bytes],
        compute: Callable[[ProtocolClient], FitRes | EvaluateRes],
    ) -> bytes:
        site, context, run = self.site, self.own_context, about["run"]
        policy, entries = site.settings.policy, site.ledger.entries
        names = _strategy_names(context)
        policy.check_run(names, about["study"])
        if about["round"] is None:
            raise Refused("the message does not say which round it is of.")
        if max(len(run), len(about["study"])) > LONGEST_NAME:
            raise Refused(f"the run or its study has a name of more than {LONGEST_NAME} characters.")
        if "schema" in config and site.data.schema is None:
            # Whether the rows fit it would say something of them, for any schema that a server can think of.
            raise Refused("the run has a schema, and site.toml names none; name the one that the sites have agreed on.")
        asked = _digest(config, tensors)
        own = [entry for entry in entries if entry["run"] == run]
        folder = RunFolder(site.folder / "runs", run)
        # Whoever comes back in the middle of a run enrols in a round in which it is asked for something, too.
        name = f"{about['task'] if about['task'] in (ENROL, EVALUATE, RECEIVE) else 'round'}-{about['round']}"
        # To enrol tells no more than the first time, and a run that goes on asks for it again.
        former = None if about["task"] == ENROL else next((entry for entry in own if entry["answer"] == name), None)
        if former is not None:
            kept = folder.kept(name)
            if former["asked"] != asked:
                raise Refused("the round was answered before, to another question.")
            if kept is None or hashlib.sha256(kept).hexdigest() != former["sent"]:
                raise Refused("the round was answered before, and the answer is not kept any more.")
            site.note("repeated", **about)
            return kept
        before = spent((entry for entry in entries if entry["run"] != run), site.data_set)
        gate = _Gate(Budget(policy, own, before))
        folder.restore(context)
        remembered = dict(context.state)
        client = self._client(names, config, gate)
        answer = compute(client)
        if about["task"] == ENROL:
            # A client forgets other runs when it enrols. What is here is of this run, into which a site comes back.
            for key, record in remembered.items():
                context.state.setdefault(key, record)
        if gate.refusal is not None:
            raise gate.refusal
        if "failure" in answer.metrics:
            reason = f"{type(client.error).__name__}: {client.error}"
            raise _Failed(reason, missed=bool(answer.metrics.get("missed")))
        content = answer_to_bytes(answer)
        judged = gate.judged
        if about["task"] == EVALUATE:
            judged = _NOTHING | {
                "arrays": [{"content": "cost, number of rows, table of classes", "covered": "nothing"}]
            }
        folder.remember(context)
        if about["task"] == ENROL and any(entry["task"] == ENROL for entry in own):
            site.note("repeated", **about)
            return content
        entry = {
            "time": _now(),
            **about,
            "strategy": ",".join(names),
            "app": site.app_of_server,
            "data_set": site.data_set,
            "answer": name,
            "asked": asked,
            "sent": hashlib.sha256(content).hexdigest(),
            "n_bytes": len(content),
            **judged,
        }
        with folder.keep(name, content) as file:
            site.ledger.append(entry, [file])
        site.note("answered", **about, epsilon=judged["epsilon"] or None)
        if about["task"] == ENROL:
            forget_old_runs(folder.path.parent, site.settings.keep_days)
        return content

    def _client(self, names: list[str], config: Mapping[str, Any], gate: _Gate) -> ProtocolClient:
        """Return the client half that a message names, if the run's strategies have it."""
        types = {found.key(): found for found in client_types(names or strategies())}
        asked = types.get(str(config.get("client")))
        if asked is None:
            raise Refused(
                f"'{config.get('client')}' is asked for, which is no part of {', '.join(names) or 'anything'}."
            )
        return asked(lambda: self.site.data, name=self.site.settings.name, context=self.own_context, consent=gate)


class _Gate:
    """Asks the budget, and keeps what it has said: a client hears a refusal as any other error."""

    says_what_failed = False

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.judged: dict[str, Any] = _NOTHING
        self.refusal: Refused | None = None

    def check(self, request: Request) -> None:
        try:
            self.judged = self.budget.judge(request)
        except Refused as error:
            self.refusal = error
            raise

    def check_evaluation(self, name: str) -> None:  # noqa: ARG002
        try:
            self.budget.check_evaluation()
        except Refused as error:
            self.refusal = error
            raise


class _Failed(Exception):  # noqa: N818
    def __init__(self, reason: str, *, missed: bool) -> None:
        super().__init__(reason)
        self.missed = missed


_NOTHING: dict[str, Any] = {"arrays": [], "epsilon": 0.0, "delta": 0.0, "is_claim": False, "plan": ""}


def load_rows(settings: SiteSettings) -> ClientData:
    """Return the rows that ``site.toml`` names.

    Raises
    ------
    DataError
        If they cannot be read, or if the label column has more values than classes have.
    """
    from flower_fedclust.data.files import read_source

    table = read_source(
        settings.data,
        settings.query,
        label_column=settings.label_column,
        id_column=settings.id_column,
        columns=settings.columns,
        raw=True,
    )
    if table.labels is not None and len(set(table.labels.tolist())) > settings.most_classes:
        raise DataError(
            f"the label column '{settings.label_column}' has more than {settings.most_classes} different values, which "
            "may be names; name another, or raise most_classes."
        )
    schema = None if settings.schema_file is None else Schema.of(Path(settings.schema_file))
    return ClientData(
        table.rows,
        table.labels,
        owner=f"site {settings.name}",
        row_ids=table.row_ids,
        id_column=settings.id_column,
        raw=True,
        schema=schema,
    )


def _strategy_names(context: Context) -> list[str]:
    """Return the strategies that the run config names; none where the app of the run has no such key."""
    return [name.strip() for name in str(context.run_config.get("strategy", "")).split(",") if name.strip()]


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**31 else None


def _digest(config: Mapping[str, Any], tensors: list[bytes]) -> str:
    # How many others are asked is no part of the question: a round that is asked again may find fewer of them.
    question = {key: value for key, value in config.items() if key != "n_clients"}
    found = hashlib.sha256(json.dumps(question, sort_keys=True, default=repr).encode())
    for tensor in tensors:
        found.update(len(tensor).to_bytes(8, "big"))
        found.update(tensor)
    return found.hexdigest()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

"""A site's client: it checks every question by the policy, and enters every answer into the ledger first.

The server may send anything, so this module treats each message as hostile. If a site does not
answer, the server hears one word, "refused" or "failed"; the reason, which may depend on rows, is
only in the site's own audit log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters

from flower_fedclust.engine.client import ProtocolClient, Request, UnitError, said_instead
from flower_fedclust.engine.client_data import ClientData, Outline
from flower_fedclust.engine.disk import make_private, open_private, replace_private
from flower_fedclust.engine.fields import (
    ENROL,
    OF_MODEL,
    OF_ROUND,
    SECURE,
    check_fields,
    check_is_ours,
)
from flower_fedclust.engine.masked import step_of
from flower_fedclust.engine.rounds import ProtocolError
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.exact.device import on_device, open_device
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.format import FormatError, check_format
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.numerics.threads import jobs
from flower_fedclust.registry import client_types, strategies
from flower_fedclust.secure import keys as crypto
from flower_fedclust.secure.client import Trust
from flower_fedclust.secure.keys import FEWEST
from flower_fedclust.site.budget import Budget, spent, uncovered
from flower_fedclust.site.kept import (
    REMEMBERED,
    Kept,
    KeptRun,
    answer_from_bytes,
    answer_to_bytes,
    evaluate_res,
    fit_res,
    read_outline,
    run_lock,
    save_result,
    write_outline,
)
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import (
    MEGABYTE,
    Refused,
    SiteSettings,
    ago,
    check_message,
    check_names,
    check_run,
    peak_memory,
    printable,
    size_of_message,
)
from flower_fedclust.site.sample import sampled
from flower_fedclust.site.studies import Studies, Study, Waiting, digest
from flower_fedclust.tables.schema import Schema

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", FitRes, EvaluateRes)

#: If a site does not answer, the server is told one of these words. It is told more only if a study waits for
#: approval, or if its message has another version's format. The audit log uses the same words.
REFUSED, FAILED = "refused", "failed"

#: The names of two tasks in the ledger: the site has evaluated a model on its rows, or has received a model only.
EVALUATE, RECEIVE = "evaluate", "receive"

#: The most times that a computation is begun, if its process ends each time before there is an answer.
ATTEMPTS = 2

#: What the ledger says about an answer without arrays.
_NOTHING: dict[str, Any] = {
    "arrays": [],
    "epsilon": 0.0,
    "delta": 0.0,
    "unit": "",
    "is_claim": False,
    "plan": "",
}
#: What the ledger says about an evaluation.
EVALUATED = _NOTHING | {
    "arrays": [{"content": "cost, number of rows, table of classes", "covered": "nothing"}]
}


def load_rows(settings: SiteSettings) -> ClientData:
    """Read the rows that ``site.toml`` names.

    Raises a DataError if the label column has more different values than the settings allow,
    because it may hold names.
    """
    from flower_fedclust.data.files import read_source

    schema = None if settings.schema_file is None else Schema.of(Path(settings.schema_file))
    table = read_source(
        settings.data,
        settings.query,
        label_column=settings.label_column,
        id_column=settings.id_column,
        subject_column=settings.subject_column
        if schema is None
        else schema.subjects_in(settings.subject_column),
        columns=settings.columns,
        raw=True,
        most_in_memory=settings.limits.rows_mb * MEGABYTE,
    )
    if table.labels is not None and len(set(table.labels.tolist())) > settings.most_classes:
        raise DataError(
            f"the label column '{settings.label_column}' has more than {settings.most_classes} different values, which "
            "may be names; name another, or raise most_classes."
        )
    return ClientData(
        table.rows,
        table.labels,
        owner=f"site {settings.name}",
        row_ids=table.row_ids,
        id_column=settings.id_column,
        raw=True,
        subjects=table.subjects,
        schema=schema,
        most_rows=max(settings.limits.most_rows, MOST_ROWS),
    )


class Site:
    """A site: its rows, its policy, its ledger, and its files about each run.

    Parameters
    ----------
    settings : SiteSettings
    load : callable, optional
        A function that returns the rows; by default, the rows are read from the file or database in
        the settings.
    """

    def __init__(
        self, settings: SiteSettings, load: Callable[[], ClientData] | None = None
    ) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.ledger = Ledger(self.folder / "ledger.jsonl")
        self.studies = Studies(settings)
        self.kept = Kept(self.folder)
        self._load = load or (lambda: load_rows(settings))
        #: The app that the server has sent, if any: its id, version and hash. The site does not run it.
        self.app_of_server = ""
        self._has_checked = False

    @cached_property
    def data(self) -> ClientData:
        """The rows of the site, loaded on first use, and sampled if the policy says so.

        Raises Refused if there are too few rows or persons.
        """
        data, most = self._load(), self.settings.policy.sample
        if most is not None and (data.n_subjects or data.n_rows) > most:
            # The key stays at the site: all runs get the same sample, and nobody else can compute it.
            key = crypto.derive(self.identity.private_bytes_raw(), crypto.digest(b"sample"))
            data = sampled(data, most, key)
        self._check_enough(data.outline)
        write_outline(self.kept, self._table_asked, data.outline)
        return data

    @property
    def outline(self) -> Outline:
        """What the site may use about its table before a charge.

        These are the columns, and bounds on the numbers of rows and persons.

        The outline was written when the site started, or when it last looked at its rows. Raises
        Refused if there were too few rows then: such a site answers nothing, not even its name.
        """
        outline = read_outline(self.kept, self._table_asked) or self.data.outline
        self._check_enough(outline)
        policy, limits = self.settings.policy, self.settings.limits
        # A sample of rows has at most policy.sample rows. A sample of persons may have any number of rows.
        most = limits.most_rows if policy.sample is None or outline.n_subjects else policy.sample
        return replace(
            outline,
            n_rows=policy.known_rows(outline.n_rows),
            most_rows=max(most, MOST_ROWS),
            n_subjects=min(outline.n_subjects, policy.fewest_subjects),
        )

    @property
    def _table_asked(self) -> str:
        """A digest of the settings that determine which rows and columns the site has."""
        settings = self.settings
        asked = (
            settings.data,
            settings.query,
            settings.columns,
            settings.label_column,
            settings.id_column,
            settings.policy.sample,
        )
        schema = settings.schema_file and Path(settings.schema_file).read_text(encoding="utf-8")
        return digest(repr((*asked, settings.subject_column, schema)))

    def _check_enough(self, outline: Outline) -> None:
        """Raise Refused if a table has fewer rows, or persons, than the policy asks for."""
        reason = next(self.settings.policy.too_few(outline.n_rows, outline.n_subjects), None)
        if reason is not None:
            raise Refused(f"{self.data_set} {reason}.")

    @property
    def data_set(self) -> str:
        """The name under which the ledger adds up what runs have spent on these rows."""
        return self.settings.data_set or self.settings.data

    @property
    def identity(self) -> Ed25519PrivateKey:
        """The private key with which the site signs its keys of secure sums; made on first use."""
        path = make_private(self.folder) / "secure.key"
        if not path.exists():
            with self.kept.store.changing():  # one process makes it, and the others wait
                if not path.exists():
                    replace_private(path, Ed25519PrivateKey.generate().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())

    @property
    def public_key(self) -> str:
        """The public key, in hexadecimal digits, that other sites name under ``[peers]``."""
        return self.identity.public_key().public_bytes_raw().hex()

    @property
    def trust(self) -> Trust:
        """The identity of the site, the public keys that it knows, and the fewest clients of a secure sum."""
        peer_settings = self.settings.peers
        peers = (
            None
            if peer_settings is None
            else {name: bytes.fromhex(key) for name, key in peer_settings.items()}
        )
        fewest = max(FEWEST, self.settings.policy.fewest_clients)
        return Trust(self.identity.private_bytes_raw(), peers, fewest)

    @property
    def app(self) -> ClientApp:
        """The site as Flower's ClientApp."""
        return _SiteApp(self)

    def client(self, context: Context) -> Client:
        """Return the client that answers one message."""
        return _SiteClient(self, context)

    def create_ledger(self) -> None:
        """Create the ledger, once, before the first run.

        Raises a LedgerError if the folder already has a ledger, or answers.
        """
        self.kept.check([])
        self.ledger.create()

    def check_kept(self, *, whole: bool = False) -> None:
        """Raise a LedgerError if answers are kept that the ledger does not know.

        This is checked once per process. With ``whole`` it is checked again, and so is the content
        of each answer.
        """
        if whole or not self._has_checked:
            self.kept.check(self.ledger.entries, whole=whole)
            self._has_checked = True

    def keep_result(self, context: Context, config: Mapping[str, Any], model: Parameters) -> None:
        """Save the first model that a run shares, with the site's labels and a report of what has left the site.

        If that fails, the audit log says why, and the server is not told.
        """
        run = str(config.get("run") or context.run_id)
        try:
            check_message(self.settings.limits, config, model.tensors)
            self.studies.check_running(run)
            with self.ledger.locked():
                entries = [entry for entry in self.ledger.entries if entry["run"] == run]
            if entries:
                with run_lock(self.folder, run):
                    saved = save_result(
                        self.kept, self.settings.name, self.data, entries, context, config, model
                    )
                self.note("result", run=run, folder=str(saved))
        except Exception as error:
            self.note("failed", run=run, task="result", reason=_why(error))

    def note(self, event: str, **facts: Any) -> None:
        """Write a line into the site's audit log, and into Flower's log.

        Texts from others are shortened and made printable. A full audit log is renamed, and
        replaces the older one.
        """
        facts = {name: printable(value) for name, value in facts.items()}
        words = ", ".join(
            f"{name} {value}" for name, value in facts.items() if value not in (None, "", [])
        )
        is_well = event in ("answered", "repeated", "result")
        log.log(logging.INFO if is_well else logging.WARNING, "%s: %s", event, words)
        path = make_private(self.folder) / "audit.jsonl"
        if path.exists() and path.stat().st_size > self.settings.limits.log_mb * MEGABYTE:
            with suppress(FileNotFoundError):  # another process has renamed it
                path.rename(path.with_name("audit.1.jsonl"))
        with open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab") as log_file:
            log_file.write(json.dumps({"time": ago(0), "event": event, **facts}).encode() + b"\n")


class _SiteApp(ClientApp):
    """The site as Flower's ClientApp. Even about an error outside the client, the server gets only one word."""

    def __init__(self, site: Site) -> None:
        super().__init__(client_fn=site.client)
        self._site = site

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return super().__call__(message, context)
        except Exception as error:
            # The error may be a full disk, whose message would name a path at the site.
            with suppress(OSError):
                self._site.note("failed", run=str(context.run_id), reason=_why(error))
            raise RuntimeError(FAILED) from None


class _SiteClient(Client):
    """Answers one message of a server, which may send anything."""

    def __init__(self, site: Site, context: Context) -> None:
        self.site = site
        self.own_context = context
        self.began = time.monotonic()

    def fit(self, ins: FitIns) -> FitRes:
        """Answer the question of a round."""

        def compute(client: ProtocolClient) -> FitRes:
            arrays, n_examples, metrics = client.fit(decode(ins.parameters), dict(ins.config))
            return fit_res(encode(arrays).tensors, metrics, n_examples)

        return self._answered(
            str(ins.config.get("task")),
            _number(ins.config.get("round")),
            ins,
            compute,
            partial(fit_res, []),
        )

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Keep a model that the run shares, or evaluate a model once per run, if the policy allows it."""

        def compute(client: ProtocolClient) -> EvaluateRes:
            loss, n_examples, metrics = client.evaluate(decode(ins.parameters), dict(ins.config))
            return evaluate_res(loss, n_examples, metrics)

        task = EVALUATE if ins.config.get("evaluate", True) else RECEIVE
        return self._answered(task, 0, ins, compute, partial(evaluate_res, 0.0, 0))

    def _answered(
        self,
        task: str,
        number: int | None,
        ins: FitIns | EvaluateIns,
        compute: Callable[[ProtocolClient], Answer],
        without_answer: Callable[[dict[str, Any]], Answer],
    ) -> Answer:
        """Return the answer; if there is none, a reply with the one word that the server may know.

        Parameters
        ----------
        task, number : str, int or None
            The name of the question and the number of its round.
        ins : FitIns or EvaluateIns
            The message.
        compute : callable
            Computes the answer with a client.
        without_answer : callable
            Returns a reply with facts and without arrays.
        """
        site, context, config = self.site, self.own_context, ins.config
        name = site.settings.name
        check_is_ours(config, name)
        try:
            check_format(config.get("format"), "this message", "this site")
        except FormatError as error:  # this message says nothing about the rows
            site.note(REFUSED, run=str(context.run_id), reason=str(error), kind="format")
            return without_answer(said_instead(name, f"client {name}: {error}"))
        is_model = isinstance(ins, EvaluateIns)
        try:
            check_fields(config, OF_MODEL if is_model else OF_ROUND, name)
            if not is_model and task in (EVALUATE, RECEIVE):
                raise DataError(
                    f"client {name}: a message of a round has the task '{task}', as one with a model has."
                )
        except ValueError as error:
            site.note(REFUSED, run=str(context.run_id), reason=str(error), kind="fields")
            return without_answer(said_instead(name, REFUSED))
        if config.get("share") and is_model:
            site.keep_result(context, config, ins.parameters)
        run = str(config.get("run") or context.run_id)
        study = str(context.run_config.get("study", ""))
        about = {"run": run, "round": number, "task": task, "study": study}
        try:
            check_names(run=run, task=task, study=study)
            check_message(site.settings.limits, config, ins.parameters.tensors)
            site.settings.policy.check_floor(task, config)
            with site.ledger.locked():
                site.check_kept()
            threads, device = site.settings.limits.threads, open_device(site.settings.limits.device)
            with (
                run_lock(site.folder, run),
                jobs(threads),
                on_device(device),
                site.kept.store.opened(),
            ):
                answer = answer_from_bytes(
                    self._of_run(about, config, ins.parameters.tensors, compute)
                )
            answer.metrics["ledger"] = site.ledger.witness
            return cast(Answer, answer)
        except Exception as error:
            word, kind = (REFUSED, error.kind) if isinstance(error, Refused) else (FAILED, None)
            reason = str(error) if isinstance(error, Refused | _Failed) else _why(error)
            site.note(word, **about, reason=reason, kind=kind)
            if isinstance(error, Waiting):
                return without_answer(said_instead(name, reason) | {"waiting": True})
            missed = isinstance(error, _Failed) and error.missed
            return without_answer(said_instead(name, word) | ({"missed": True} if missed else {}))

    def _of_run(
        self,
        about: dict[str, Any],
        config: Mapping[str, Any],
        tensors: list[bytes],
        compute: Callable[[ProtocolClient], FitRes | EvaluateRes],
    ) -> bytes:
        """Judge a message, charge it, compute and keep the answer, in this order; return the answer's bytes.

        Only the steps after the charge see rows. If the same question was answered before, that
        answer is returned again.
        """
        site, context, run, task = self.site, self.own_context, about["run"], about["task"]
        names = self._strategies_of(about, config)
        # These tasks have answers of their own: a site that comes back during a run enrols in a round that also asks
        # for something else.
        is_other = task in (ENROL, EVALUATE, RECEIVE)
        step = "" if is_other else step_of(config)
        # The step "mask" of a secure sum is the answer of its round; the other steps reveal nothing about rows.
        is_step = step not in ("", "mask")
        about["task"] = f"{SECURE} {step}" if is_step else task
        name = (
            f"{task if is_other else f'{SECURE}-{step}' if is_step else 'round'}-{about['round']}"
        )
        question: dict[str, Any] = {
            "strategy": ",".join(names),
            "app": site.app_of_server,
            "data_set": site.data_set,
            "answer": name,
        }
        question |= {"asked": _digest(config, tensors), "n_asked": size_of_message(config, tensors)}
        with site.ledger.locked():
            entries = list(site.ledger.entries)
            check_run(site.settings.limits, entries, run, site.settings.keep_days)
        schema, plan = str(config.get("schema", "")), str(config.get("plan", ""))
        study = Study("", run, about["study"], question["strategy"], digest(schema))
        site.studies.admit(study, task, plan, entries)
        kept_run = KeptRun(site.kept, run)
        entries_of_run = [entry for entry in entries if entry["run"] == run]
        # Enrolling again reveals nothing new, and a run that is continued asks for it again.
        enrolled = next((entry for entry in entries_of_run if task == ENROL == entry["task"]), None)
        former = (
            None
            if task == ENROL
            else next((entry for entry in entries_of_run if entry["answer"] == name), None)
        )
        kept = None if former is None else _kept_answer(former, kept_run, question["asked"])
        if kept is not None:
            site.note("repeated", **about)
            return kept
        gate = _Gate(site, run, former, {**about, **question})
        client = self._client(names, config, gate)
        kept_run.restore(context)
        if enrolled is not None:
            gate.entry = enrolled
        elif task in (ENROL, RECEIVE) or is_step:
            gate.charge(_NOTHING)
        try:
            return self._computed(about, lambda: compute(client), client, gate, kept_run)
        except Exception:
            if gate.entry is not None and "sent" not in gate.entry:
                with site.ledger.locked():
                    site.ledger.note(gate.entry, sent="")
            raise
        finally:
            # The secrets are in the site's own file, which Flower does not read.
            context.state.pop(f"{REMEMBERED}{SECURE}", None)

    def _computed(
        self,
        about: dict[str, Any],
        compute: Callable[[], FitRes | EvaluateRes],
        client: ProtocolClient,
        gate: _Gate,
        kept_run: KeptRun,
    ) -> bytes:
        """Compute an answer, and return its bytes once they and the ledger are on the disk.

        If the client fails before the charge, nothing that it did depends on values of rows, so the
        server may be told "refused". After the charge, it is told only "failed". The answer and the
        client's memory are written together. So if the site restarts before that, it computes the
        answer again from the same memory.
        """
        site, context = self.site, self.own_context
        remembered = dict(context.state)
        answer = compute()
        site.studies.check_running(about["run"])
        if gate.refusal is not None:
            raise gate.refusal
        if "failure" in answer.metrics:
            # Nothing before the charge depends on the values of rows, so the site may refuse: the message makes no
            # sense, or the client has missed an earlier round.
            is_early, error = gate.entry is None, client.error
            says_nothing = isinstance(error, UnitError) or not isinstance(error, DataError)
            if is_early and isinstance(error, ProtocolError | ValueError) and says_nothing:
                raise Refused(_why(error))
            raise _Failed(_why(error), missed=is_early and bool(answer.metrics.get("missed")))
        entry, content = gate.entry, answer_to_bytes(answer)
        if entry is None:
            raise _Failed("it was computed without a charge.")
        if entry["task"] == ENROL:
            # A client that enrols forgets what it remembered. What was restored belongs to this run, and is put back.
            for key, record in remembered.items():
                context.state.setdefault(key, record)
        if entry.get("sent"):
            kept_run.keep(context, {})
            site.note("repeated", **about)
        else:
            kept_run.keep(context, {entry["answer"]: content})
            with site.ledger.locked():
                site.ledger.note(
                    entry, sent=hashlib.sha256(content).hexdigest(), n_bytes=len(content)
                )
            took = {"seconds": round(time.monotonic() - self.began, 2), "memory_mb": peak_memory()}
            site.note("answered", **about, epsilon=entry["epsilon"] or None, **took)
        if entry["task"] == ENROL:
            site.kept.forget_old_runs(site.settings.keep_days)
        return content

    def _strategies_of(self, about: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """Return the strategies that the run names; raise Refused if the site does not take part in this run."""
        named = str(self.own_context.run_config.get("strategy", ""))
        check_names(strategy=named)
        names = [name.strip() for name in named.split(",") if name.strip()]
        self.site.settings.policy.check_run(names, about["study"])
        if about["round"] is None:
            raise Refused("the message does not say which round it belongs to.")
        if "schema" in config and self.site.outline.schema is None:
            # Whether the rows fit a schema reveals something about them, and a server could try one schema after
            # another.
            raise Refused(
                "the run has a schema, but site.toml names none; name the one that the sites agreed on."
            )
        return names

    def _client(self, names: list[str], config: Mapping[str, Any], gate: _Gate) -> ProtocolClient:
        """Return the client half that a message names; raise Refused if the run's strategies do not have it."""
        types = {
            client_type.key(): client_type for client_type in client_types(names or strategies())
        }
        asked = types.get(str(config.get("client")))
        if asked is None:
            known = ", ".join(names) or "any strategy"
            raise Refused(
                f"the message asks for '{config.get('client')}', which is not part of {known}."
            )
        site, context = self.site, self.own_context
        name, outline = site.settings.name, site.outline
        return asked(
            lambda: site.data,
            name=name,
            context=context,
            consent=gate,
            trust=site.trust,
            outline=outline,
        )


class _Gate:
    """The Consent of a client: it checks the budget and charges the ledger before anything is computed.

    Parameters
    ----------
    site : Site
    run : str
    former : dict or None
        The ledger's entry of an earlier computation of the same answer that was interrupted, if
        there was one.
    about : mapping
        The fields of a new entry that follow from the message.
    """

    says_what_failed = False

    def __init__(
        self, site: Site, run: str, former: dict[str, Any] | None, about: Mapping[str, Any]
    ) -> None:
        self.site = site
        self.run = run
        self.former = former
        self.about = about
        #: The ledger's entry, once the message is charged.
        self.entry: dict[str, Any] | None = None
        self.refusal: Refused | None = None  #: Kept here because the client catches every error.

    def check(self, request: Request) -> None:
        """Charge an answer; raise Refused if it may not leave."""
        self._decide(
            lambda: self._budget.judge(request), lambda judged: self._budget.check_total(judged)
        )

    def check_evaluation(self, name: str) -> None:  # noqa: ARG002
        """Charge the evaluation of a model; raise Refused if the policy does not allow another one."""

        def judged() -> dict[str, Any]:
            self._budget.check_evaluation()
            return EVALUATED

        self._decide(judged, lambda _: self._budget.check_evaluation())

    @property
    def _budget(self) -> Budget:
        """The budget that is left, by the ledger as it is now."""
        entries, data_set = self.site.ledger.entries, self.site.data_set
        others = [
            entry for entry in entries if entry["run"] == self.run and entry is not self.former
        ]
        before = spent((entry for entry in entries if entry["run"] != self.run), data_set)
        return Budget(self.site.settings.policy, others, before)

    def _decide(
        self, judge: Callable[[], dict[str, Any]], again: Callable[[dict[str, Any]], None]
    ) -> None:
        """Judge an answer and charge it; a refusal is kept, because the client catches every error."""
        try:
            judged = judge()
            is_first = not any(entry["arrays"] for entry in self._budget.run)
            self.site.studies.check_open(self.run, uncovered(judged["arrays"]), is_first=is_first)
            self.charge(judged, lambda: again(judged))
        except Refused as error:
            self.refusal = error
            raise

    def charge(self, judged: dict[str, Any], again: Callable[[], None] = lambda: None) -> None:
        """Write the entry, if the answer is still within the budget: other runs may have spent some of it meanwhile."""
        ledger, former, settings = self.site.ledger, self.former, self.site.settings
        with ledger.locked():
            again()
            if former is None:
                check_run(settings.limits, ledger.entries, self.run, settings.keep_days)
                self.entry = ledger.append({"time": ago(0), **self.about, **judged})
            elif judged != {key: former[key] for key in judged}:
                raise Refused("the round was charged before, by another policy or with other rows.")
            else:
                self.entry = ledger.note(former, begun=former.get("begun", 1) + 1)


class _Failed(Exception):  # noqa: N818
    """An answer could not be computed; the message is for the site's operator."""

    def __init__(self, reason: str, *, missed: bool = False) -> None:
        super().__init__(reason)
        self.missed = missed


def _kept_answer(entry: Mapping[str, Any], kept_run: KeptRun, asked: str) -> bytes | None:
    """Return the kept answer to the same question; None if it was never finished and may be computed again.

    Raises Refused if the question differs from the former one, and _Failed if the former
    computation failed.
    """
    kept = kept_run.answer(entry["answer"])
    if entry["asked"] != asked:
        raise Refused("the round was answered before, to another question.")
    if entry.get("sent") == "":
        raise _Failed("the round failed before, and is not computed again.")
    if "sent" not in entry:
        if kept is None and entry.get("begun", 1) < ATTEMPTS:
            return None
        raise _Failed(
            "the round was charged before, and the process ended before its answer could leave."
        )
    if kept is None or hashlib.sha256(kept).hexdigest() != entry["sent"]:
        raise Refused("the round was answered before, but the answer is no longer kept.")
    return kept


def _why(error: Exception | None) -> str:
    """Return an error's type, message and place in the code, for the audit log."""
    where = traceback.extract_tb(None if error is None else error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}" + "".join(
        f" ({Path(at.filename).name}:{at.lineno})" for at in where
    )


def _number(value: Any) -> int | None:
    """Return the number of a round; None if it is not a usable whole number."""
    return value if type(value) is int and 0 < value < 2**31 else None


def _digest(config: Mapping[str, Any], tensors: list[bytes]) -> str:
    """Return a hash of a question: its settings and its arrays."""
    # The number of clients is not part of the question: when a round is repeated, fewer clients may be left.
    question = {key: value for key, value in config.items() if key != "n_clients"}
    question_hash = hashlib.sha256(json.dumps(question, sort_keys=True, default=repr).encode())
    for tensor in tensors:
        question_hash.update(len(tensor).to_bytes(8, "big"))
        question_hash.update(tensor)
    return question_hash.hexdigest()

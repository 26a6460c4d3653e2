"""Checks of what a run gives, and of what it depends on."""

# ruff: noqa: D401 - the docstrings are promises, not orders

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flower_fedclust.engine as fp
from flower_fedclust.checking.check import check, require
from flower_fedclust.checking.grid import LocalGrid
from flower_fedclust.checking.runs import Run, watched_run
from flower_fedclust.checking.subject import SEED, Subject, difference
from flower_fedclust.engine.client import ENROL
from flower_fedclust.engine.replies import client_order
from flower_fedclust.engine.rounds import Askable, Round
from flower_fedclust.engine.run import EVALUATE
from flower_fedclust.engine.wire import EXPONENTS
from flower_fedclust.models import Model
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import noise_seed_of, simulate


@check
def a_seed_repeats_every_bit(subject: Subject) -> None:
    """The same seed gives the same bits, from one instance that runs twice as from two instances."""
    instance = subject.strategy
    before = {name: copy.copy(value) for name, value in vars(instance).items()}
    for how in ("again", "a third time"):
        result = simulate(instance, subject.rows, names=subject.names, seed=SEED)
        found = _difference(result, subject.run.result)
        require(not found, f"run {how}, it gives another {found}.")
    for name, value in vars(instance).items():
        require(value is before[name] or np.array_equal(value, before[name]), f"a run changes the strategy's {name}.")


def _difference(one: Result, other: Result) -> str:
    parts: dict[str, tuple[Sequence[NDArray[Any]], Sequence[NDArray[Any]]]] = {
        "model": (one.model.to_arrays(), other.model.to_arrays()),
        "labels": (one.labels, other.labels),
        "embedding": (one.embedding, other.embedding),
    }
    found = [
        what
        for what, (first, second) in parts.items()
        if [array.tobytes() for array in first] != [array.tobytes() for array in second]
    ]
    found += [what for what in ("traffic", "failures") if getattr(one, what) != getattr(other, what)]
    return ", ".join(found + ["report"] * (one.privacy.messages != other.privacy.messages))


@check
def the_rows_are_left_as_they_are(subject: Subject) -> None:
    """No client changes the rows of its site."""
    given = [rows.copy() for rows in subject.rows]
    simulate(subject.strategy, given, names=subject.names, seed=SEED)
    for name, rows, before in zip(subject.names, given, subject.rows, strict=True):
        require(np.array_equal(rows, before), f"the rows of client {name} are changed.")


@check
def the_message_api_gives_the_same_bits(subject: Subject) -> None:
    """A run under Flower's Message API is the inline run, bit for bit."""
    strategy = subject.strategy
    strategy.noise_seed = SEED
    clients = list(subject.data.values())
    app = fp.client_app(
        strategy.client_type,
        lambda context: clients[int(context.node_config["partition-id"])],
        name=lambda context: subject.names[int(context.node_config["partition-id"])],
        noise_seed=lambda context: noise_seed_of(SEED, int(context.node_config["partition-id"])),
    )
    fp.MessageStrategy(strategy).start(LocalGrid(app, len(clients)))
    found = difference(Run(strategy, subject.data, SEED), subject.run)
    require(not found, f"the Message API gives another {found}.")


@check
def the_order_of_the_clients_changes_nothing(subject: Subject) -> None:
    """Clients that connect and answer in another order give the same bits: their names decide the order."""
    run = watched_run(subject.strategy, subject.data, seed=SEED, order=subject.names[::-1])
    found = difference(run, subject.run)
    require(not found, f"clients in another order give another {found}.")
    order = run.strategy.client_names
    require(order == sorted(subject.names, key=client_order), f"the clients are taken in the order {order}.")


@check
def every_number_is_finite(subject: Subject) -> None:
    """No client fails; model, labels, places and metrics are finite; there is a label for every row."""
    result = subject.run.result
    reasons = [failure.reason for failure in result.failures]
    require(not reasons, f"of {len(subject.names)} clients with plain rows some fail: {' '.join(reasons)}")
    check_finite(result)
    for name, rows, labels in zip(subject.names, subject.rows, result.labels, strict=True):
        require(len(labels) == len(rows), f"client {name} has {len(rows)} rows and gets {len(labels)} labels.")
    for places, rows in zip(result.embedding, subject.rows, strict=False):
        require(len(places) == len(rows), f"{len(rows)} rows have {len(places)} places on the map.")


def check_finite(result: Result, *, metrics: bool = True) -> None:
    """Raise an AssertionError unless all that a result says is a finite number, and a label a cluster."""
    for array in result.model.to_arrays():
        require(np.isfinite(array).all(), "the model is not made of finite numbers.")
    for labels in result.labels:
        in_range = ((labels >= 0) & (labels < result.model.n_clusters)).all()
        require(labels.dtype.kind in "iu" and in_range, "a label is not the number of a cluster.")
    for places in result.embedding:
        require(np.isfinite(places).all(), "a place on the map is not finite.")
    for name, value in result.metrics.items() if metrics else ():
        require(np.isfinite(value), f"the metric {name} is {value}.")


@check
def the_number_of_rounds_is_enough(subject: Subject) -> None:
    """The run ends within n_protocol_rounds, and the report has every round that ran and no other."""
    strategy = subject.run.strategy
    ran = sorted({row.round for row in strategy.traffic})
    require(ran == list(range(1, len(ran) + 1)), f"the rounds that ran are {ran}.")
    require(len(ran) <= strategy.num_rounds, f"{len(ran)} rounds ran, and num_rounds is {strategy.num_rounds}.")
    listed = {message.round for message in strategy.report.messages}
    silent = {number for number, round_ in subject.run.rounds.items() if not _is_listed(round_)}
    require(set(ran) - silent <= listed <= set(ran), f"the rounds {ran} ran, and the report has {sorted(listed)}.")


def _is_listed(round_: Round) -> bool:
    return bool(round_.answer.sends) and not round_.answer.keeps


@check
def all_that_leaves_is_declared_and_reported(subject: Subject) -> None:
    """Every array on the wire is declared by the client's method and is in the report, and nothing else is sent."""
    run, report = subject.run, subject.run.strategy.report
    listed = {(message.round, message.task, message.content) for message in report.messages}
    unprotected = {(message.round, message.content) for message in report.unprotected}
    for exchange in run.exchanges:
        assert exchange.res is not None
        task = str(exchange.ins.config["task"])
        require(exchange.res.num_examples == 1, f"'{task}' says how many rows a client has.")
        allowed = {"format", "client", "columns"} if task == ENROL else {"format", "client", EXPONENTS}
        require(set(exchange.res.metrics) <= allowed, f"'{task}' sends {sorted(exchange.res.metrics)} beside arrays.")
        if task == ENROL:
            continue
        asked = getattr(run.strategy.client_type, task, None)
        require(isinstance(asked, Askable), f"'{task}' is no method that is marked with @answers.")
        assert isinstance(asked, Askable)
        round_ = run.rounds.get(exchange.round)
        answer = asked.answer if round_ is None or round_.task != task else round_.answer
        sends = () if answer.keeps else answer.sends
        n_arrays = len(exchange.arrays)
        require(n_arrays == len(sends), f"'{task}' declares {len(sends)} arrays and sends {n_arrays}.")
        for sent in sends:
            where = (exchange.round, task, sent.content)
            require(where in listed, f"'{task}' sends '{sent.content}', which the report does not have.")
    for message in report.messages:
        has_noise = message.release is not None and message.release.noise_multiplier > 0
        free = has_noise or message.post_processing or message.harmless or message.counts_rows
        said = (message.round, message.content) in unprotected
        require(free or said, f"'{message.content}' carries no noise and is not listed as unprotected.")
        require(not (has_noise and said), f"'{message.content}' carries noise and is listed as unprotected.")
        require(message.task == ENROL or not message.harmless, f"'{message.content}' is called harmless.")


@check
def units_are_public(subject: Subject) -> None:
    """The units of what is sent follow from the message: those of a round are the same for all clients."""
    units: dict[tuple[int, str], set[str]] = {}
    for exchange in subject.run.exchanges:
        assert exchange.res is not None
        key = (exchange.round, str(exchange.ins.config["task"]))
        units.setdefault(key, set()).add(str(exchange.res.metrics.get(EXPONENTS)))
    for (number, task), found in units.items():
        require(len(found) == 1, f"in round {number} the clients answer '{task}' in different units: {sorted(found)}.")


@check
def what_has_an_entry_for_every_row_is_no_sum(subject: Subject) -> None:
    """An array with an entry for every row, which a round gathers, says that it reveals codes or rows."""
    for round_ in subject.run.rounds.values():
        for sent in round_.answer.sends:
            if sent.per == "row" and not sent.kept_as:
                require(sent.reveals in ("codes", "rows"), f"'{sent.content}' is said to reveal {sent.reveals}.")
    for exchange in subject.run.exchanges:
        asked = subject.run.rounds.get(exchange.round)
        if asked is None or asked.rows or asked.task != exchange.ins.config["task"]:
            continue
        rows = {row.tobytes() for row in subject.data[exchange.client].rows}
        for sent, array in zip(asked.answer.sends, exchange.arrays, strict=False):
            if array.ndim == 2 and array.shape[1] == subject.n_columns and sent.reveals == "sums":
                own = sum(row.tobytes() in rows for row in np.ascontiguousarray(array, dtype=np.float64))
                few = own < max(2, len(rows) // 2)  # the sum over a cluster of one row is that row
                require(few, f"'{sent.content}' has {own} rows of the client, and is said to reveal sums.")


@check
def the_evaluation_is_asked_for_once(subject: Subject) -> None:
    """With federated_evaluation the clients count after the run, and the report lists that as unprotected."""
    strategy = evaluated(subject)
    if strategy is None:
        return
    run = watched_run(strategy, subject.data, seed=SEED)
    found = run.strategy.evaluation
    require(found is not None and "cost" in found, "federated_evaluation=True brings no evaluation.")
    assert found is not None
    for name, value in found.items():
        require(np.isfinite(value), f"the evaluation's {name} is {value}.")
    listed = [message for message in run.strategy.report.unprotected if message.task == EVALUATE]
    require(len(listed) == 3, "the evaluation is not listed as unprotected, once.")
    require(subject.run.strategy.evaluation is None, "an evaluation ran that nobody asked for.")


def evaluated(subject: Subject) -> fp.ProtocolStrategy | None:
    """Return the strategy with a federated evaluation; None where it refuses to have one, in a sentence."""
    try:
        return subject.with_parameters(federated_evaluation=True)
    except ValueError as error:
        require("federated_evaluation" in str(error), f"federated_evaluation=True is refused with: {error}")
        return None


@check
def the_model_can_be_sent_and_used(subject: Subject) -> None:
    """The model survives to_arrays and from_arrays, is found by its name, labels new rows and refuses other columns."""
    model = subject.run.strategy.outcome.model
    again = Model.named(model.name).from_arrays([np.array(array) for array in model.to_arrays()])
    require(type(again) is type(model), f"the model of the name {model.name} is a {type(again).__name__}.")
    new = subject.rows[0][::-1] * (1 + 1e-3)
    labels = model.predict(new)
    require(labels.shape == (len(new),) and labels.dtype.kind in "iu", "predict does not give one label a row.")
    require(((labels >= 0) & (labels < model.n_clusters)).all(), "predict gives a label that is no cluster.")
    require(np.array_equal(again.predict(new), labels), "the model labels otherwise after from_arrays.")
    require(again.cost(new) == model.cost(new) and np.isfinite(model.cost(new)), "its cost changes, or is not finite.")
    for what, bad, said in (
        ("another number of columns", np.ones((2, subject.n_columns + 1)), "columns"),
        ("NaN", np.where(np.arange(new.size).reshape(new.shape) == 1, np.nan, new), "NaN"),
    ):
        try:
            model.predict(bad)
        except ValueError as error:
            require(said in str(error), f"rows with {what} are refused with: {error}")
        else:
            raise AssertionError(f"the model takes rows with {what}.")


@check
def the_result_can_be_saved(subject: Subject) -> None:
    """result.save writes model, labels, metrics, report and traffic; its tables have a line for every row."""
    result = subject.run.result
    with tempfile.TemporaryDirectory() as folder:
        saved = result.save(Path(folder) / "run")
        written = {path.relative_to(saved).parts[0] for path in saved.rglob("*")}
        wanted = {"model.npz", "labels", "metrics.json", "privacy.json", "privacy.txt", "traffic.csv"}
        require(wanted <= written, f"{sorted(wanted - written)} is not written.")
        for folder_name, tables in (("labels", result.labels), ("embedding", result.embedding)):
            if tables:
                lines = sorted(
                    len(path.read_text(encoding="utf-8").splitlines()) - 1 for path in (saved / folder_name).iterdir()
                )
                require(lines == sorted(map(len, tables)), f"the files of {folder_name} have {lines} rows.")
        with np.load(saved / "model.npz") as arrays:
            model = type(result.model).from_arrays([arrays[name] for name in arrays.files])
        require(np.array_equal(model.predict(subject.rows[0]), result.model.predict(subject.rows[0])), "it differs.")

"""Checks of what happens where a client, or its rows, are not as they should be."""

# ruff: noqa: D401 - the docstrings are promises, not orders

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.common import FitRes

from flower_fedclust.checking.about_parameters import is_a_sentence
from flower_fedclust.checking.about_runs import check_finite
from flower_fedclust.checking.check import check, require
from flower_fedclust.checking.neighbours import extreme_rows
from flower_fedclust.checking.runs import Run, Tamper, watched_run
from flower_fedclust.checking.subject import SEED, Subject
from flower_fedclust.engine import ClientData, ProtocolError
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.results.result import Result

Data = Mapping[str, ClientData]


def survived(subject: Subject, what: str, data: Data, *, metrics: bool = True, **options: Any) -> Run | str:
    """Return the run if it ends with finite numbers, or the sentence with which it stops.

    Raises
    ------
    AssertionError
        If it ends otherwise, or if a message quotes a value of a row.
    """
    return _finite(what, data, _ended(subject, what, data, **options), metrics=metrics)


def _finite(what: str, data: Data, found: tuple[Run, Result] | str, *, metrics: bool) -> Run | str:
    """Return the run, or the sentence, if all numbers are finite and no message quotes a value."""
    if isinstance(found, str):
        return found
    run, result = found
    try:
        check_finite(result, metrics=metrics)
    except AssertionError as broken:
        raise AssertionError(f"where {what}, {broken}") from None
    for failure in result.failures:
        _check_discretion(what, failure.reason, data)
    return run


def _ended(subject: Subject, what: str, data: Data, **options: Any) -> tuple[Run, Result] | str:
    """Return the run and its result, whatever its numbers are, or the sentence with which it stops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = watched_run(subject.strategy, data, seed=SEED, **options)
            result = run.result if run.strategy.is_finished else None
        except (ValueError, ProtocolError) as error:
            said = str(error)
            require(is_a_sentence(said), f"where {what}, it stops without a sentence: {said}")
            _check_discretion(what, said, data)
            return said
        except Exception as error:
            raise AssertionError(f"where {what}, it stops with {type(error).__name__}: {error}") from None
    if result is None:
        raise AssertionError(f"where {what}, it has not ended after {run.strategy.num_rounds} rounds.")
    return run, result


def _check_discretion(what: str, said: str, data: Data) -> None:
    """Raise an AssertionError if a message has a number of many digits that is a value of a row."""
    numbers = {float(text) for text in re.findall(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?", said)}
    for name, client in data.items():
        values = client.rows.ravel()
        for number in numbers:
            near = np.isclose(values, number, rtol=1e-3, atol=0).any()
            require(not near, f"where {what}, a message quotes a value of client {name}: {said}")


def _check_named(what: str, found: Run | str, client: str) -> None:
    if isinstance(found, str):
        return
    named = {failure.client for failure in found.strategy.failures}
    ids = {client, str(9000 + list(found.data).index(client))}  # a client that never enrolled has no name
    require(named & ids, f"where {what}, no failure names it.")
    require(named <= ids, f"where {what}, the failures name {sorted(named)}.")


def _silent(_: Callable[[], FitRes]) -> FitRes:
    raise TimeoutError("gone")


def _unforeseen(honest: Callable[[], FitRes]) -> FitRes:
    res = honest()
    return FitRes(res.status, encode([]), 1, {**res.metrics, "failure": "client failed with KeyError; see its log."})


def _not_finite(honest: Callable[[], FitRes]) -> FitRes:
    res = honest()
    arrays = [np.full(array.shape, np.nan) for array in decode(res.parameters)]
    return FitRes(res.status, encode(arrays), 1, res.metrics)


def _other_shapes(honest: Callable[[], FitRes]) -> FitRes:
    res = honest()
    arrays = [np.zeros((*array.shape, 2), array.dtype) for array in decode(res.parameters)]
    return FitRes(res.status, encode(arrays), 1, res.metrics)


def _too_many(honest: Callable[[], FitRes]) -> FitRes:
    res = honest()
    return FitRes(res.status, encode([*decode(res.parameters), np.zeros(1)]), 1, res.metrics)


FAULTS = {
    "is silent": _silent,
    "raises": _unforeseen,
    "sends NaN": _not_finite,
    "sends other shapes": _other_shapes,
    "sends an array more": _too_many,
}


def _in_round(number: int, fault: Callable[[Callable[[], FitRes]], FitRes]) -> Tamper:
    return lambda current, honest: fault(honest) if current == number else honest()


@check
def a_client_that_fails_is_named(subject: Subject) -> None:
    """A client that is silent, raises, or sends NaN, other shapes or an array more."""
    victim = subject.names[1]
    numbers = sorted(subject.run.rounds)
    for index, (how, fault) in enumerate(FAULTS.items()):
        asked = [number for number in numbers if subject.run.sent(number).get(victim)]
        if asked:
            number = asked[0 if index % 2 else -1]
            what = f"client {victim} {how} in round {number}"
            found = survived(subject, what, subject.data, tamper={victim: _in_round(number, fault)})
            _check_named(what, found, victim)


@check
def a_client_that_is_never_there_is_survived(subject: Subject) -> None:
    """A client that does not answer from the first round on, or from the second, is named, and the others go on."""
    victim = subject.names[0]
    for start in (1, 2):
        tamper: Tamper = lambda number, honest, start=start: honest() if number < start else _silent(honest)  # type: ignore[misc] # noqa: E731
        what = f"client {victim} is silent from round {start} on"
        found = survived(subject, what, subject.data, tamper={victim: tamper})
        asked = start == 1 or any(victim in subject.run.sent(number) for number in subject.run.rounds)
        if asked:
            _check_named(what, found, victim)


@check
def a_client_with_other_columns_is_left_out(subject: Subject) -> None:
    """A client that has a column more than the others is left out by name."""
    victim = subject.names[0]
    rows = subject.data[victim].rows
    what = f"client {victim} has a column more"
    data = subject.changed(victim, np.hstack([rows, rows[:, :1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = watched_run(subject.strategy, data, seed=SEED)
    _check_named(what, run, victim)
    require(victim not in run.strategy.client_names, f"where {what}, it takes part.")


@check
def what_a_client_raises_stays_there(subject: Subject) -> None:
    """The message of an error of a library, which may quote a row, does not reach the server."""
    secret = "4711.0815"

    class Careless(subject.strategy.client_type):  # type: ignore[misc, name-defined]
        @property
        def rows(self) -> Any:
            raise KeyError(secret)

    client = Careless(next(iter(subject.data.values())), name="a")
    for exchange in subject.run.exchanges:
        if exchange.client == subject.names[0]:
            arrays, _, facts = client.fit(decode(exchange.ins.parameters), dict(exchange.ins.config))
            require(secret not in str(facts), f"'{exchange.ins.config['task']!s}' tells the server what was raised.")
            require(not arrays or "failure" not in facts, "a client that failed sends arrays all the same.")


@check
def rows_that_are_few_or_equal_are_survived(subject: Subject) -> None:
    """A client of one row, a client whose rows are equal, and rows that are equal everywhere."""
    first = subject.names[0]
    row = subject.rows[0][:1]
    equal = np.tile(row, (20, 1))
    survived(subject, "a client has one row", subject.changed(first, row))
    survived(subject, "the rows of a client are equal", subject.changed(first, equal))
    survived(subject, "all rows are equal", {name: ClientData(equal, owner=f"client {name}") for name in subject.names})


@check
def extreme_values_are_survived(subject: Subject) -> None:
    """A row of 1e300, of the largest float, of 1e-300 or of the smallest: finite numbers, or one sentence."""
    _run_on_extreme_rows(subject, metrics=False)


@check
def metrics_of_extreme_values_are_finite(subject: Subject) -> None:
    """The same for the metrics, whose squares overflow first."""
    _run_on_extreme_rows(subject, metrics=True)


def _run_on_extreme_rows(subject: Subject, *, metrics: bool) -> None:
    for index, (what, _) in enumerate(extreme_rows(subject.n_columns)):
        data, found = _ended_on_extreme_row(subject, index)
        _finite(f"a client has {what}", data, found, metrics=metrics)


@lru_cache(maxsize=16)
def _ended_on_extreme_row(subject: Subject, index: int) -> tuple[Data, tuple[Run, Result] | str]:
    """Return the data with an extreme row and how a run on them ends: two checks look at it."""
    what, row = extreme_rows(subject.n_columns)[index]
    data = subject.changed(subject.names[0], np.vstack([subject.rows[0], row]))
    return data, _ended(subject, f"a client has {what}", data)

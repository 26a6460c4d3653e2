"""The promises of every strategy, as named checks.

Each function marked with ``@check`` is one promise: its docstring states it, and its body tries to
break it, on a run of a few small tables. :func:`check_strategy` runs all of them, as scikit-learn's
``check_estimator`` does for estimators. They are meant for authors of strategies, so each failure
is one sentence that says what was found.
"""

# ruff: noqa: D401 - the docstrings are promises, not commands

from __future__ import annotations

import ast
import copy
import inspect
import logging
import math
import pickle
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import numpy as np
from flwr.common import FitRes
from numpy.typing import ArrayLike
from sklearn.base import clone

from flower_fedclust.checking.audit import audit_subject
from flower_fedclust.checking.books import findings_of_wire
from flower_fedclust.checking.by_row import findings_by_row
from flower_fedclust.checking.neighbors import extreme_rows, hard_pairs, how_far
from flower_fedclust.checking.noise import Drawer, compare_with_law
from flower_fedclust.checking.runs import (
    SEED,
    LocalGrid,
    Subject,
    WatchedRun,
    bits_of,
    data_of,
    difference,
    watched_run,
)
from flower_fedclust.engine import (
    ClientData,
    Consent,
    MessageStrategy,
    PrivateStrategy,
    ProtocolError,
    ProtocolStrategy,
    Sum,
    client_app,
)
from flower_fedclust.engine.messages import EVALUATE
from flower_fedclust.engine.parameters import _declared, _documented
from flower_fedclust.engine.progress import quiet
from flower_fedclust.engine.replies import add_up, client_order, values_of
from flower_fedclust.engine.rounds import Array
from flower_fedclust.engine.wire import EXPONENTS, decode, encode, with_hash
from flower_fedclust.models import Model
from flower_fedclust.names import look_up
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.privacy.accounting import divided
from flower_fedclust.results.result import Result
from flower_fedclust.simulation import noise_seed_of, simulate

#: The smallest fraction of epsilon that a run spends if noise covers everything and all rounds ran.
SPENT = 0.97

#: Noisy arrays of at least this many numbers are never equal by chance.
LONG = 8

#: How many numbers of each release's noise are tested.
N_NUMBERS = 200
#: Noise is wrong if its p-value is at most this. The test finds noise that is half too wide or a third too narrow. The
#: seeds, and so the verdict, never change.
WRONG_NOISE = 5e-7

#: The draws, the seconds and the false-alarm rate of the small audit. The rate is tiny because suites run every day.
AUDIT_RUNS, AUDIT_SECONDS, AUDIT_FALSE_ALARM = 40, 0.5, 1e-9

Data = Mapping[str, ClientData]


@dataclass(frozen=True)
class Check:
    """One promise. Calling it with a :class:`Subject` raises an AssertionError if the promise is broken."""

    name: str
    promise: str  #: The promise, in words.
    function: Callable[[Subject], None]

    def __call__(self, subject: Subject) -> None:
        """Raise an AssertionError with one sentence that begins with the name of the check, or return."""
        try:
            # Many checks make clients fail, which is not logged here.
            with quiet(logging.CRITICAL + 1, "flwr", "flower_fedclust"), one_thread():
                self.function(subject)
        except AssertionError as broken:
            raise AssertionError(f"{self.name}: {broken}") from None
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise AssertionError(f"{self.name}: it ends with {message}.") from error


#: All checks by name, in the order of this file.
CHECKS: dict[str, Check] = {}


def check(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Add a function to the suite; its docstring states the promise."""
    name = function.__name__
    CHECKS[name] = Check(name, inspect.cleandoc(function.__doc__ or ""), function)
    return function


def require(promised: object, problem: str) -> None:
    """Raise an AssertionError with the problem as its message, unless the promise holds."""
    if not promised:
        raise AssertionError(problem)


def strategy_checks() -> list[Check]:
    """Return all checks, in the order in which they run; ``check(Subject(strategy))`` runs one."""
    return list(CHECKS.values())


def check_strategy(
    strategy: ProtocolStrategy,
    clients: Sequence[ArrayLike] | None = None,
    *,
    labels: Sequence[ArrayLike] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Check that a strategy keeps the promises that every strategy makes.

    This is like scikit-learn's ``check_estimator``. The strategy runs about fifty times on small
    tables, with its own parameters. Give it few rounds, and check it once for each place of the
    noise and each unit of privacy that you need.

    Parameters
    ----------
    strategy : ProtocolStrategy
        One of the package or your own. It is not changed.
    clients : sequence of array-like of shape (n_i, n_columns), optional
        Tables of a few rows; by default three are made, with as many columns as the strategy
        expects.
    labels : sequence of array-like of shape (n_i,), optional
        True classes.
    skip : collection of str, optional
        Names of checks to leave out; :func:`~flower_fedclust.checking.strategy_checks` lists them.

    Raises
    ------
    AssertionError
        If a promise is broken; one sentence names the check and says what was found.
    ValueError
        If ``skip`` names a check that does not exist.
    """
    for name in skip:
        look_up(name, CHECKS, "check")
    subject = Subject(strategy, clients, labels)
    for check in strategy_checks():
        if check.name not in skip:
            check(subject)


# Promises about a strategy before it runs.


@check
def a_clone_has_the_same_parameters(subject: Subject) -> None:
    """scikit-learn's clone, get_params and set_params work, and a clone has not run."""
    strategy = subject.run.strategy
    copied = clone(strategy)
    require(type(copied) is type(strategy), f"a clone is of the type {type(copied).__name__}.")
    require(
        set(strategy.get_params()) == set(strategy.parameter_names()),
        "get_params does not have all parameters.",
    )
    for name, value in strategy.get_params(deep=False).items():
        require(_same(copied.get_params()[name], value), f"a clone has another {name}.")
    require(
        not copied.is_finished and copied._run is None,
        "a clone of a strategy that has run claims to have run.",
    )
    copied.set_params(n_clusters=strategy.n_clusters + 1)
    require(copied.n_clusters == strategy.n_clusters + 1, "set_params does not change n_clusters.")


def _same(value: Any, other: Any) -> bool:
    """Tell whether two values of a parameter are equal; arrays are compared entry by entry."""
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    return bool(value is other or value == other or repr(value) == repr(other))


@check
def the_signature_is_the_parameters(subject: Subject) -> None:
    """The constructor takes the parameters and nothing else, all by name; n_clusters also by position."""
    signature = inspect.signature(type(subject.strategy)).parameters
    names = subject.strategy.parameter_names()
    require(
        set(signature) == set(names),
        f"the signature and the parameters differ in {sorted(set(signature) ^ set(names))}.",
    )
    positional = [
        name
        for name, parameter in signature.items()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    require(set(positional) <= {"n_clusters"}, f"the constructor takes {positional} by position.")


@check
def every_parameter_is_documented(subject: Subject) -> None:
    """The docstring describes every parameter, with its type and its default, and nothing else."""
    cls = type(subject.strategy)
    names = cls.parameter_names()
    for name, text in cls.parameter_docs.items():
        if name in names:
            _check_default(
                name, text.partition("\n")[0], inspect.signature(cls).parameters[name].default
            )
    missing = [name for name in names if name not in cls.parameter_docs]
    require(not missing, f"the docstring does not describe {', '.join(missing)}.")
    stale = sorted(set(_documented(cls.__doc__ or "")) - set(names))
    require(
        not stale, f"the docstring describes {', '.join(stale)}, but there is no such parameter."
    )
    unseen = [name for name in names if name not in _documented(cls.__doc__ or "")]
    require(not unseen, f"help() does not show {', '.join(unseen)}.")


def _check_default(name: str, head: str, default: Any) -> None:
    """Fail unless the documented type and default of a parameter agree with the signature."""
    require(" : " in head, f"the docstring gives no type of {name}.")
    stated = re.search(r"default=(.+?)\.*$", head.strip())
    if default is inspect.Parameter.empty:
        require(
            stated is None and "optional" not in head,
            f"{name} is required, but its docstring has a default.",
        )
    elif default is None:
        require(
            "optional" in head or (stated and stated[1] == "None"),
            f"the default of {name} is None, undocumented.",
        )
    else:
        value: Any = "no value" if stated is None else stated[1]
        with suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
        require(
            value == default,
            f"the docstring gives {value} as the default of {name}, which is {default!r}.",
        )


@check
def a_bad_value_is_refused_by_name(subject: Subject) -> None:
    """A value outside the declared type, choices or bounds is refused in one sentence with the parameter's name."""
    for name, hint, bounds in _declared(type(subject.strategy)):
        for value in _bad_values(hint, bounds):
            try:
                subject.with_parameters(**{name: value})
            except ValueError as error:
                said = str(error)
                require(
                    re.search(rf"\b{name}\b", said),
                    f"{name}={value!r} is refused without its name: {said}",
                )
                require(
                    _is_sentence(said), f"{name}={value!r} is not refused in a sentence: {said}"
                )
            except Exception as error:
                raise AssertionError(
                    f"{name}={value!r} raises a {type(error).__name__}: {error}"
                ) from None
            else:
                raise AssertionError(f"{name}={value!r} is accepted.")
    refused = subject.strategy.set_params(n_clusters=1)
    try:
        watched_run(refused, subject.data)
    except ValueError as error:
        require("n_clusters is 1" in str(error), f"a run with n_clusters=1 says: {error}")
    else:
        raise AssertionError("a run with n_clusters=1 is not refused.")


def _bad_values(hint: Any, bounds: dict[str, float]) -> Iterator[Any]:
    """Yield values that a parameter must refuse: of another type, or just outside its bounds.

    ``hint`` is the declared type, and ``bounds`` the declared bounds by name ("at_least", "above",
    "at_most", "below").
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    numbers = {int, float} & set(kinds)
    if any(get_origin(kind) is Literal for kind in kinds):
        yield "nonsense"
    if numbers:
        yield from (math.nan, math.inf, "1", True)
        if NoneType not in kinds:
            yield None
        at_least, above = bounds.get("at_least", -math.inf), bounds.get("above", -math.inf)
        if float not in numbers:
            yield 1.5
            yield int(max(at_least, 0)) - 1
        elif math.isfinite(at_least):
            yield at_least - 0.001
        if math.isfinite(above):
            yield above
        if math.isfinite(bounds.get("below", math.inf)):
            yield bounds["below"]
        if math.isfinite(at_most := bounds.get("at_most", math.inf)):
            yield int(at_most) + 1 if float not in numbers else 1.001 * at_most
    elif kinds == (bool,):
        yield from ("yes", 1)


def _is_sentence(text: str) -> bool:
    """Tell whether a text reads like one or two sentences on one line, and not like an error of a library."""
    return (
        "\n" not in text
        and text.rstrip().endswith((".", "?"))
        and len(text.split()) > 3
        and "Traceback" not in text
    )


@check
def it_can_be_pickled_and_copied(subject: Subject) -> None:
    """A strategy that was pickled, or copied deeply, runs as the strategy itself does."""
    for how, copied in (
        ("pickled", pickle.loads(pickle.dumps(subject.strategy))),
        ("copied deeply", copy.deepcopy(subject.strategy)),
    ):
        run = watched_run(copied, subject.data, seed=SEED)
        differing = difference(run.result, subject.run.result)
        require(not differing, f"a strategy that was {how} gives another {differing}.")


@check
def its_name_stands_for_it(subject: Subject) -> None:
    """The strategy's name is one of its class's entries, and fits its parameters."""
    strategy = subject.strategy
    if not strategy.entries:
        return
    fitting = [entry for entry in strategy.entries if entry.name == strategy.name]
    require(fitting, f"its name is {strategy.name}, which is not among its entries.")
    for parameter, value in fitting[0].fixed.items():
        require(
            getattr(strategy, parameter) == value,
            f"{strategy.name} stands for {parameter}={value!r}.",
        )


# Promises about the results of a run.


@check
def a_seed_repeats_every_bit(subject: Subject) -> None:
    """The same seed gives the same bits, whether one instance runs twice or two instances run once."""
    instance = subject.strategy
    before = {name: copy.copy(value) for name, value in vars(instance).items()}
    for how in ("again", "a third time"):
        result = simulate(instance, subject.data, seed=SEED)
        # Metrics and history need labels.
        differing = difference(result, subject.run.result, leave_out=("metrics", "history"))
        require(not differing, f"run {how}, it gives another {differing}.")
    for name, value in vars(instance).items():
        require(
            value is before[name] or np.array_equal(value, before[name]),
            f"a run changes the strategy's {name}.",
        )


@check
def the_rows_are_left_as_they_are(subject: Subject) -> None:
    """No client changes its site's rows."""
    tables = {name: rows.copy() for name, rows in zip(subject.names, subject.rows, strict=True)}
    data = {
        name: data_of(subject.strategy, table, f"client {name}") for name, table in tables.items()
    }
    simulate(subject.strategy, data, seed=SEED)
    for name, before in zip(subject.names, subject.rows, strict=True):
        require(np.array_equal(tables[name], before), f"the rows of client {name} are changed.")


@check
def the_message_api_gives_the_same_bits(subject: Subject) -> None:
    """A run under Flower's Message API equals the inline run bit for bit."""
    strategy = subject.strategy
    strategy.noise_seed = SEED
    clients = list(subject.data.values())
    app = client_app(
        strategy.client_type,
        lambda context: clients[int(context.node_config["partition-id"])],
        name=lambda context: subject.names[int(context.node_config["partition-id"])],
        noise_seed=lambda context: noise_seed_of(SEED, int(context.node_config["partition-id"])),
    )
    MessageStrategy(strategy).start(LocalGrid(app, len(clients)))
    differing = difference(WatchedRun(strategy, subject.data, SEED).result, subject.run.result)
    require(not differing, f"the Message API gives another {differing}.")


@check
def the_order_of_the_clients_changes_nothing(subject: Subject) -> None:
    """Clients that connect and answer in another order give the same bits: their names decide the order."""
    run = watched_run(subject.strategy, subject.data, seed=SEED, order=subject.names[::-1])
    differing = difference(run.result, subject.run.result)
    require(not differing, f"clients in another order give another {differing}.")
    order = run.strategy.client_names
    require(
        order == sorted(subject.names, key=client_order),
        f"the clients are taken in the order {order}.",
    )


@check
def every_number_is_finite(subject: Subject) -> None:
    """No client fails; model, labels, places and metrics are finite; every row has a label."""
    result = subject.run.result
    reasons = [failure.reason for failure in result.failures]
    require(
        not reasons,
        f"some of {len(subject.names)} clients with ordinary rows fail: {' '.join(reasons)}",
    )
    _check_finite(result)
    for name, rows, labels in zip(
        subject.names, subject.rows, result.labels_of_clients, strict=True
    ):
        require(
            len(labels) == len(rows),
            f"client {name} has {len(rows)} rows and gets {len(labels)} labels.",
        )
    for places, rows in zip(result.embedding, subject.rows, strict=False):
        require(len(places) == len(rows), f"{len(rows)} rows have {len(places)} places on the map.")


def _check_finite(result: Result) -> None:
    """Fail if the model, labels, places or metrics of a result are not finite and in range."""
    for array in result.model.to_arrays():
        require(np.isfinite(array).all(), "the model has numbers that are not finite.")
    for labels in result.labels_of_clients:
        in_range = ((labels >= 0) & (labels < result.model.n_clusters)).all()
        require(labels.dtype.kind in "iu" and in_range, "a label is not the number of a cluster.")
    for places in result.embedding:
        require(np.isfinite(places).all(), "a place on the map is not finite.")
    for name, value in result.metrics.items():
        require(np.isfinite(value), f"the metric {name} is {value}.")


@check
def the_number_of_rounds_is_enough(subject: Subject) -> None:
    """The run ends within n_protocol_rounds, and the report has every round that ran and no other."""
    run, strategy = subject.run, subject.run.strategy
    ran = sorted({row.round for row in strategy.traffic})
    require(ran == list(range(1, len(ran) + 1)), f"the rounds that ran are {ran}.")
    require(
        len(ran) <= strategy.num_rounds,
        f"{len(ran)} rounds ran, and num_rounds is {strategy.num_rounds}.",
    )
    listed = {message.round for message in strategy.report.messages}
    silent = {
        number
        for number, round_ in run.rounds.items()
        if not round_.answer.sends or round_.answer.keeps
    }
    require(
        set(ran) - silent <= listed <= set(ran),
        f"the rounds {ran} ran, and the report has {sorted(listed)}.",
    )


@check
def all_that_leaves_is_declared_and_reported(subject: Subject) -> None:
    """Every array on the wire is declared by the client's method and is in the report, and nothing else is sent."""
    findings = findings_of_wire(subject.run)
    require(not findings, f"{'; '.join(findings)}.")


@check
def units_are_public(subject: Subject) -> None:
    """The units of what is sent follow from the message: all clients use the same ones in a round."""
    units: dict[tuple[int, str], set[str]] = {}
    for exchange in subject.run.exchanges:
        assert exchange.res is not None
        units.setdefault((exchange.round, exchange.task), set()).add(
            str(exchange.res.metrics.get(EXPONENTS))
        )
    for (number, task), used in units.items():
        require(
            len(used) == 1,
            f"in round {number} the clients answer '{task}' in different units: {sorted(used)}.",
        )


@check
def what_has_an_entry_for_every_row_is_no_sum(subject: Subject) -> None:
    """A gathered array with an entry for every row declares that it reveals codes or rows."""
    for round_ in subject.run.rounds.values():
        for sent in round_.answer.sends:
            if sent.per == "row" and not sent.kept_as:
                require(
                    sent.reveals in ("codes", "rows"),
                    f"'{sent.content}' is said to reveal {sent.reveals}.",
                )
    for exchange in subject.run.exchanges:
        asked = subject.run.rounds.get(exchange.round)
        if asked is None or asked.rows or asked.task != exchange.task:
            continue
        rows = {row.tobytes() for row in subject.data[exchange.client].rows}
        for sent, array in zip(asked.answer.sends, exchange.arrays, strict=False):
            if array.ndim == 2 and array.shape[1] == subject.n_columns and sent.reveals == "sums":
                n_own_rows = sum(
                    row.tobytes() in rows for row in np.ascontiguousarray(array, dtype=np.float64)
                )
                # The sum over a cluster of one row is that row.
                few = n_own_rows < max(2, len(rows) // 2)
                require(
                    few,
                    f"'{sent.content}' has {n_own_rows} rows of the client, and is said to reveal sums.",
                )


@check
def the_evaluation_is_asked_for_once(subject: Subject) -> None:
    """With federated_evaluation the clients are asked once, after the run; the report lists this as unprotected."""
    try:
        strategy = subject.with_parameters(federated_evaluation=True)
    except ValueError as error:
        require(
            "federated_evaluation" in str(error),
            f"federated_evaluation=True is refused with: {error}",
        )
        return
    run = watched_run(strategy, subject.data, seed=SEED)
    evaluation = run.strategy.evaluation
    require(
        evaluation is not None and "cost" in evaluation,
        "federated_evaluation=True gives no evaluation.",
    )
    assert evaluation is not None
    for name, value in evaluation.items():
        require(np.isfinite(value), f"the evaluation's {name} is {value}.")
    listed = [message for message in run.strategy.report.unprotected if message.task == EVALUATE]
    require(len(listed) == 3, "the evaluation is not listed as unprotected exactly once.")
    require(subject.run.strategy.evaluation is None, "an evaluation ran that nobody asked for.")


@check
def the_model_can_be_sent_and_used(subject: Subject) -> None:
    """The model survives to_arrays and from_arrays, is found by its name, labels new rows and refuses other columns."""
    model = subject.run.strategy.outcome.model
    again = Model.named(model.name).from_arrays([np.array(array) for array in model.to_arrays()])
    require(
        type(again) is type(model), f"the name {model.name} stands for a {type(again).__name__}."
    )
    new = subject.rows[0][::-1] * (1 + 1e-3)
    labels = model.predict(new)
    require(
        labels.shape == (len(new),) and labels.dtype.kind in "iu",
        "predict does not give one label per row.",
    )
    require(
        ((labels >= 0) & (labels < model.n_clusters)).all(),
        "predict gives a label that is not the number of a cluster.",
    )
    require(
        np.array_equal(again.predict(new), labels),
        "the model gives other labels after from_arrays.",
    )
    require(
        again.cost(new) == model.cost(new) and np.isfinite(model.cost(new)),
        "its cost changes, or is not finite.",
    )
    for label, bad, said in (
        ("another number of columns", np.ones((2, subject.n_columns + 1)), "columns"),
        ("NaN", np.where(np.arange(new.size).reshape(new.shape) == 1, np.nan, new), "NaN"),
    ):
        try:
            model.predict(bad)
        except ValueError as error:
            require(said in str(error), f"rows with {label} are refused with: {error}")
        else:
            raise AssertionError(f"the model accepts rows with {label}.")


@check
def the_result_can_be_saved(subject: Subject) -> None:
    """result.save writes model, labels, metrics, report and traffic; its tables have a line for every row."""
    result = subject.run.result
    with tempfile.TemporaryDirectory() as folder:
        saved = result.save(Path(folder) / "run")
        written = {path.relative_to(saved).parts[0] for path in saved.rglob("*")}
        wanted = {
            "model.npz",
            "labels",
            "metrics.json",
            "privacy.json",
            "privacy.txt",
            "traffic.csv",
        }
        require(wanted <= written, f"{sorted(wanted - written)} is not written.")
        for folder_name, tables in (
            ("labels", result.labels_of_clients),
            ("embedding", result.embedding),
        ):
            if tables:
                texts = [
                    path.read_text(encoding="utf-8") for path in (saved / folder_name).iterdir()
                ]
                lines = sorted(len(text.splitlines()) - 1 for text in texts)
                require(
                    lines == sorted(map(len, tables)),
                    f"the files of {folder_name} have {lines} rows.",
                )
        with np.load(saved / "model.npz") as arrays:
            model = type(result.model).from_arrays([arrays[name] for name in arrays.files])
        same = np.array_equal(model.predict(subject.rows[0]), result.model.predict(subject.rows[0]))
        require(same, "the saved model gives other labels.")


# Promises about failing clients and unusual rows.


def _survived(subject: Subject, event: str, data: Data, **options: Any) -> WatchedRun | str:
    """Return the run if it ends with finite numbers, or the sentence with which it stops.

    Raises an AssertionError if the run ends in any other way, or if a message quotes a value of a
    row. ``event`` completes "where ..." in messages.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = watched_run(subject.strategy, data, seed=SEED, **options)
            if run.strategy.is_finished:
                _ = run.result
        except (ValueError, ProtocolError) as error:
            said = str(error)
            require(_is_sentence(said), f"where {event}, it stops without a sentence: {said}")
            _check_discretion(event, said, data)
            return said
        except Exception as error:
            raise AssertionError(
                f"where {event}, it stops with {type(error).__name__}: {error}"
            ) from None
    require(
        run.strategy.is_finished,
        f"where {event}, it has not ended after {run.strategy.num_rounds} rounds.",
    )
    try:
        _check_finite(run.result)
    except AssertionError as broken:
        raise AssertionError(f"where {event}, {broken}") from None
    for failure in run.result.failures:
        _check_discretion(event, failure.reason, data)
    return run


def _check_discretion(event: str, said: str, data: Data) -> None:
    """Fail if a message contains a number with many digits that is a value of a row."""
    numbers = {float(text) for text in re.findall(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?", said)}
    for name, client in data.items():
        for number in numbers:
            near = np.isclose(client.rows, number, rtol=1e-3, atol=0).any()
            require(not near, f"where {event}, a message quotes a value of client {name}: {said}")


def _check_named(event: str, outcome: WatchedRun | str, client: str) -> None:
    """Fail unless the failures of a run name this client, and no other."""
    if isinstance(outcome, str):
        return
    named = {failure.client for failure in outcome.strategy.failures}
    # A client that never enrolled has no name.
    ids = {client, str(9000 + list(outcome.data).index(client))}
    require(named & ids, f"where {event}, no failure names it.")
    require(named <= ids, f"where {event}, the failures name {sorted(named)}.")


def _silent(_: Callable[[], FitRes]) -> FitRes:
    """Do not answer."""
    raise TimeoutError("gone")


def _raising(honest: Callable[[], FitRes]) -> FitRes:
    """Answer that the client failed with an error."""
    res = honest()
    return FitRes(
        res.status,
        encode([]),
        1,
        {**res.metrics, "failure": "client failed with KeyError; see its log."},
    )


def _sending(
    change: Callable[[list[Array]], list[Array]],
) -> Callable[[Callable[[], FitRes]], FitRes]:
    """Return a fault that changes the arrays of the honest reply."""

    def sent(honest: Callable[[], FitRes]) -> FitRes:
        res = honest()
        return with_hash(replace(res, parameters=encode(change(decode(res.parameters)))))

    return sent


FAULTS = {
    "is silent": _silent,
    "raises": _raising,
    "sends NaN": _sending(lambda arrays: [np.full(array.shape, np.nan) for array in arrays]),
    "sends other shapes": _sending(
        lambda arrays: [np.zeros((*array.shape, 2), array.dtype) for array in arrays]
    ),
    "sends an array more": _sending(lambda arrays: [*arrays, np.zeros(1)]),
}


def _survived_fault(
    subject: Subject,
    victim: str,
    event: str,
    numbers: Collection[int],
    fault: Callable[[Callable[[], FitRes]], FitRes],
) -> None:
    """Check a run in which one client has a fault in these rounds: it goes on, and names the client."""

    def tamper(number: int, honest: Callable[[], FitRes]) -> FitRes:
        return fault(honest) if number in numbers else honest()

    event = f"client {victim} {event}"
    outcome = _survived(subject, event, subject.data, tamper={victim: tamper})
    if any(
        number == 1 or victim in subject.run.sent(number)
        for number in {1, *subject.run.rounds} & set(numbers)
    ):
        _check_named(event, outcome, victim)


@check
def a_client_that_fails_is_named(subject: Subject) -> None:
    """A client that is silent, raises, or sends NaN, wrong shapes or an extra array does not end the run.

    The run reports which client failed.
    """
    victim = subject.names[1]
    asked = [
        number for number in sorted(subject.run.rounds) if subject.run.sent(number).get(victim)
    ]
    for index, (how, fault) in enumerate(FAULTS.items() if asked else ()):
        number = asked[0 if index % 2 else -1]
        _survived_fault(subject, victim, f"{how} in round {number}", {number}, fault)


@check
def a_client_that_is_never_there_is_survived(subject: Subject) -> None:
    """A client that never answers, or not from the second round on, is named; the others go on."""
    for start in (1, 2):
        rounds = range(start, subject.strategy.num_rounds + 1)
        _survived_fault(
            subject, subject.names[0], f"is silent from round {start} on", rounds, _silent
        )


@check
def a_client_with_other_columns_is_left_out(subject: Subject) -> None:
    """A client that has a column more than the others is left out by name."""
    victim = subject.names[0]
    rows = subject.data[victim].rows
    event = f"client {victim} has a column more"
    data = subject.changed(victim, np.hstack([rows, rows[:, :1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = watched_run(subject.strategy, data, seed=SEED)
    _check_named(event, run, victim)
    require(victim not in run.strategy.client_names, f"where {event}, it takes part.")


@check
def rows_that_are_few_or_equal_are_survived(subject: Subject) -> None:
    """The run survives a client with one row, a client whose rows are equal, and rows that are equal everywhere."""
    first = subject.names[0]
    row = subject.rows[0][:1]
    equal = np.tile(row, (20, 1))
    _survived(subject, "a client has one row", subject.changed(first, row))
    _survived(subject, "the rows of a client are equal", subject.changed(first, equal))
    everywhere = {
        name: data_of(subject.strategy, equal, f"client {name}") for name in subject.names
    }
    _survived(subject, "all rows are equal", everywhere)


@check
def extreme_values_are_survived(subject: Subject) -> None:
    """With a row of 1e300, 1e-300, or the largest or smallest float, a run gives finite numbers or one sentence.

    The metrics are finite, too, although the squares in them are the first numbers to overflow.
    """
    for label, row in extreme_rows(subject.n_columns):
        _survived(
            subject,
            f"a client has {label}",
            subject.changed(subject.names[0], np.vstack([subject.rows[0], row])),
        )


# Promises about privacy.


def _is_private(subject: Subject) -> bool:
    """Tell whether the strategy was given an epsilon."""
    return isinstance(subject.strategy, PrivateStrategy) and subject.strategy.epsilon is not None


def _noisy_arrays(run: WatchedRun) -> set[bytes]:
    """Return the noisy arrays of a run as bytes; if all are short, they are joined into one.

    A short array could repeat by chance.
    """
    arrays_with_noise: list[Array] = []
    for number in run.rounds:
        replies = run.replies(number)
        if run.strategy.noise != "server":
            replies += [values_of(arrays) for arrays in run.sent(number).values()]
        arrays_with_noise += [
            arrays[index]
            for arrays in replies
            for index, _ in run.noisy(number)
            if index < len(arrays)
        ]
    long = {array.tobytes() for array in arrays_with_noise if array.size >= LONG}
    return long or {b"".join(array.tobytes() for array in arrays_with_noise)} - {b""}


@check
def noise_that_protects_is_never_repeated(subject: Subject) -> None:
    """Without a seed no two runs have the same noise, whatever random_state is; another seed gives other noise."""
    if not subject.releases:
        return
    first, second = (_noisy_arrays(watched_run(subject.strategy, subject.data)) for _ in range(2))
    require(not first & second, "two runs with one random_state have the same noise.")
    other = _noisy_arrays(watched_run(subject.strategy, subject.data, seed=SEED + 1))
    require(not _noisy_arrays(subject.run) & other, "two seeds give the same noise.")


@check
def epsilon_is_spent_and_not_exceeded(subject: Subject) -> None:
    """The report's epsilon is at most what was asked for; if all is covered and all rounds ran, nearly all of it."""
    if not _is_private(subject):
        return
    strategy = subject.run.strategy
    asked = cast(float, strategy.epsilon)
    report = strategy.report
    require(report.releases, f"epsilon is {asked:g}, but no message carries noise.")
    require(
        subject.epsilon <= asked * (1 + 1e-6),
        f"epsilon is {asked:g}, but {subject.epsilon:.6g} is spent.",
    )
    drawn = any(message.clients is not None for message in report.messages)
    if (
        report.covers_everything
        and len(subject.run.rounds) == strategy.num_rounds - 1
        and not drawn
    ):
        require(
            subject.epsilon >= SPENT * asked,
            f"epsilon is {asked:g}, but only {subject.epsilon:.4g} is spent.",
        )


@check
def the_class_says_for_whom_it_can_be_private(subject: Subject) -> None:
    """A run is covered as a whole for the units that the class promises, and for no others."""
    strategy, report = subject.run.strategy, subject.run.strategy.report
    promised = strategy.privacy_unit in strategy.promises
    if report.covers_everything:
        require(
            promised,
            f"everything is covered per {report.unit}, but promises is {strategy.promises}.",
        )
    elif _is_private(subject):
        uncovered = sorted({message.content for message in report.unprotected})
        require(
            not promised,
            f"promises is {strategy.promises}, but nothing covers {', '.join(uncovered)}.",
        )


@check
def the_budget_can_be_divided_by_name(subject: Subject) -> None:
    """Each release belongs to a share; a budget by name changes the multipliers of these shares and not the total."""
    if not _is_private(subject):
        return
    strategy = cast(PrivateStrategy, subject.run.strategy)
    shares = strategy.shares()
    require(shares, "an epsilon is given, but shares() is empty.")
    used = Counter(release.share for _, _, release in subject.releases)
    require(
        set(used) <= set(shares),
        f"releases belong to {sorted(set(used) - set(shares))}, but there is no such share.",
    )
    for name, n_releases in used.items():
        allowed = shares[name].count
        require(
            n_releases <= allowed,
            f"share {name} is for {allowed} releases, but {n_releases} carry its noise.",
        )
    fractions = {name: share.fraction for name, share in divided(shares, strategy.budget).items()}
    current = {
        name: fraction / math.fsum(fractions.values()) for name, fraction in fractions.items()
    }
    for name in shares:
        part = 1.0 if len(shares) == 1 else 0.5 * current[name]
        changed = divided(shares, {name: part})
        require(
            math.isclose(changed[name].fraction, part), f"budget={{'{name}': {part:g}}} is ignored."
        )
    if len(shares) > 1:
        _check_division(subject, current)


def _check_division(subject: Subject, current: dict[str, float]) -> None:
    """Fail unless another division of the budget changes the noise as it should, and spends no more in total.

    ``current`` has the current fraction of each share. In the other division, every second share
    gets half of its fraction.
    """
    wanted = {
        name: part * (0.5 if index % 2 else 1.0)
        for index, (name, part) in enumerate(current.items())
    }
    budget = {name: part / math.fsum(wanted.values()) for name, part in wanted.items()}
    other = Subject(subject.with_parameters(budget=budget), subject.rows)
    before = {release.share: release.noise_multiplier for _, _, release in subject.releases}
    after = {release.share: release.noise_multiplier for _, _, release in other.releases}
    for name in before.keys() & after.keys():
        more = budget[name] > current[name]
        heard = after[name] < before[name] if more else after[name] > before[name]
        require(
            heard,
            f"{'more' if more else 'less'} budget for {name} gives a multiplier of {after[name]:.4g}.",
        )
    asked = cast(float, subject.strategy.epsilon)
    require(
        other.epsilon <= asked * (1 + 1e-6),
        f"another budget spends {other.epsilon:.6g} of epsilon {asked:g}.",
    )
    if subject.epsilon >= SPENT * asked:
        require(
            other.epsilon >= SPENT * asked,
            f"another budget spends only {other.epsilon:.4g} of {asked:g}.",
        )


@check
def noise_off_is_no_noise(subject: Subject) -> None:
    """Without epsilon the protocol gets exact sums, and the report makes no promise."""
    strategy = subject.strategy
    if _is_private(subject):
        try:
            strategy = subject.with_parameters(epsilon=None, budget=None)
        except ValueError:
            return  # the class always needs an epsilon
    elif subject.releases:
        return  # another parameter sets its noise
    run = watched_run(strategy, subject.data, seed=SEED)
    require(not run.strategy.report.releases, "without epsilon the report has releases.")
    require(
        "None" in run.strategy.report.guarantee(), "without epsilon the report gives a guarantee."
    )
    for number, round_ in run.rounds.items():
        if isinstance(round_, Sum) and not round_.answer.keeps and round_.answer.sends:
            sent = run.sent(number)
            asked = [name for name in run.strategy.client_names if sent.get(name)]
            exact = values_of(add_up([sent[name] for name in asked]))
            same = all(
                np.array_equal(received, two)
                for received, two in zip(run.received[number], exact, strict=True)
            )
            require(
                same,
                f"without epsilon the sums of '{round_.task}' differ from the sums of the replies.",
            )
            require(
                run.received[number].n_clients == len(asked),
                "a sum counts the wrong number of clients.",
            )


@check
def noise_has_its_declared_scale(subject: Subject) -> None:
    """The noise of every release is as wide as the release says, wherever it is drawn."""
    if not subject.releases:
        return
    drawer = Drawer(subject.run, subject.names[0])
    drawer.draw_numbers(N_NUMBERS)
    for drawn in drawer.seeded.values():
        test = compare_with_law([drawn])
        wrong = ", ".join(part for part, likely in test.p_values.items() if likely <= WRONG_NOISE)
        where = f"the noise of '{drawn.content}' in round {drawn.round}"
        require(not wrong, f"{where} is {test.factor:.3g} times as wide as declared: {wrong}.")


@check
def no_neighbor_moves_a_release_too_far(subject: Subject) -> None:
    """No row or client that comes, goes or is replaced moves a release by more than its sensitivity.

    The rows lie far out, half way between points that the server sent, or at the ends of what a
    float can hold.
    """
    if not subject.releases:
        return
    client = subject.names[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pairs in hard_pairs(subject, subject.run, client, all_kinds=False).values():
            for change in how_far(subject.run, client, pairs):
                require(
                    not change.is_too_far,
                    f"{change.neighbors.description}: '{change.content}' of round {change.round} moves by "
                    f"{change.ratio:.6g} times its sensitivity.",
                )


@check
def what_a_row_adds_follows_from_that_row(subject: Subject) -> None:
    """In an answer by row, what a row adds depends neither on its place nor on other rows nor on the batch."""
    findings = findings_by_row(subject.run, subject.names[0])
    require(not findings, f"{'; '.join(findings)}.")


@check
def a_site_can_tell_what_noise_is_worth(subject: Subject) -> None:
    """Every method that takes noise declares how far a row moves its arrays, and no less than the release says."""
    site = subject.run.sites[0].new_client()
    for number, index, release in subject.releases:
        round_ = subject.run.rounds[number]
        moved = site.moved(round_.rows, round_.question_for(None))
        if moved is None:
            raise AssertionError(
                f"'{round_.task}' takes noise and does not declare how far one row moves what it sends: give "
                "@answers(..., moved=...), or sites with their own policy will not answer it."
            )
        bound = moved[index].of(release.mechanism, release.relation, subject.strategy.privacy_unit)
        scale = release.scale * (
            math.sqrt(0.5) if release.triangle and not moved[index].triangle else 1.0
        )
        multiplier = scale / bound if 0 < bound < math.inf else 0.0
        require(
            multiplier > release.noise_multiplier * (1 - 1e-9),
            f"the noise multiplier of '{round_.task}' is {release.noise_multiplier:.6g} according to its release, and "
            f"{multiplier:.6g} according to its client.",
        )


@check
def a_site_that_allows_sums_alone_sends_nothing_else(subject: Subject) -> None:
    """If sites consent to sums only, a run that needs more stops with a sentence that names what; all others run."""
    refused = _kinds_beyond_sums(subject.run)
    try:
        run = watched_run(subject.strategy, subject.data, seed=SEED, consent=Consent({"sums"}))
    except ProtocolError as error:
        require(refused, f"it sends sums only, and a site that consents to sums refuses: {error}")
        named = any(f"does not send {kind}" in str(error) for kind in refused)
        require(named, f"the refusal does not name {' or '.join(sorted(refused))}: {error}")
    else:
        require(not refused, f"a site that consents to sums sends {' and '.join(sorted(refused))}.")
        same = bits_of(run.result)["model"] == bits_of(subject.run.result)["model"]
        require(same, "a site's consent changes the result.")


def _kinds_beyond_sums(run: WatchedRun) -> set[str]:
    """Return the kinds of data other than sums that clients send without noise."""
    kinds: set[str] = set()
    for _, round_, sent, release, from_noisy in run.declared():
        is_local = run.strategy.noise == "local" or (
            run.strategy.noise == "clients" and not isinstance(round_, Sum)
        )
        is_covered = from_noisy or (release is not None and is_local)
        if sent.reveals != "sums" and not sent.kept_as and not is_covered:
            kinds.add(sent.reveals)
    return kinds


@check
def a_small_audit_finds_nothing(subject: Subject) -> None:
    """An audit of a few seconds finds no broken promise; ``fedclust audit`` makes a large one."""
    if subject.releases:
        result = audit_subject(
            subject, runs=AUDIT_RUNS, seconds=AUDIT_SECONDS, false_alarm=AUDIT_FALSE_ALARM
        )
        require(not result.broken, result.sentence)

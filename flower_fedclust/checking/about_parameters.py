"""Checks of what a strategy is before it runs."""

# ruff: noqa: D401 - the docstrings are promises, not orders

from __future__ import annotations

import ast
import copy
import inspect
import math
import pickle
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from sklearn.base import clone

from flower_fedclust.checking.check import check, require
from flower_fedclust.checking.runs import watched_run
from flower_fedclust.checking.subject import SEED, Subject, difference
from flower_fedclust.engine.parameters import _declared, _documented


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one is other or one == other or repr(one) == repr(other))


@check
def a_clone_has_the_same_parameters(subject: Subject) -> None:
    """scikit-learn's clone, get_params and set_params work, and a clone has not run."""
    strategy = subject.run.strategy
    copied = clone(strategy)
    require(type(copied) is type(strategy), f"a clone is of the type {type(copied).__name__}.")
    require(set(strategy.get_params()) == set(strategy.parameter_names()), "get_params does not have all parameters.")
    for name, value in strategy.get_params(deep=False).items():
        require(_same(copied.get_params()[name], value), f"a clone has another {name}.")
    require(not copied.is_finished and copied._run is None, "a clone of a strategy that has run has run, too.")
    copied.set_params(n_clusters=strategy.n_clusters + 1)
    require(copied.n_clusters == strategy.n_clusters + 1, "set_params does not change n_clusters.")


@check
def the_repr_names_class_and_clusters(subject: Subject) -> None:
    """The repr begins with the class and shows the number of clusters."""
    text = repr(subject.strategy)
    require(text.startswith(f"{type(subject.strategy).__name__}("), f"the repr begins with {text[:30]!r}.")
    require(f"n_clusters={subject.strategy.n_clusters}" in text, "the repr does not show n_clusters.")


@check
def the_signature_is_the_parameters(subject: Subject) -> None:
    """The constructor takes the parameters and nothing else, all by name, n_clusters by position too."""
    found = inspect.signature(type(subject.strategy)).parameters
    names = subject.strategy.parameter_names()
    require(set(found) == set(names), f"the signature has {sorted(set(found) ^ set(names))} too many or too few.")
    positional = [name for name, one in found.items() if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    require(set(positional) <= {"n_clusters"}, f"the constructor takes {positional} by position.")


@check
def every_parameter_is_documented(subject: Subject) -> None:
    """Every parameter has an entry in the docstring, with its type and its default, and no entry is of another."""
    cls = type(subject.strategy)
    names = cls.parameter_names()
    for name, head in _heads(cls.parameter_docs).items():
        if name in names:
            _check_default(name, head, inspect.signature(cls).parameters[name].default)
    missing = [name for name in names if name not in cls.parameter_docs]
    require(not missing, f"the docstring says nothing of {', '.join(missing)}.")
    stale = sorted(set(_documented(cls.__doc__ or "")) - set(names))
    require(not stale, f"the docstring speaks of {', '.join(stale)}, which is no parameter.")
    unseen = [name for name in names if name not in _documented(cls.__doc__ or "")]
    require(not unseen, f"help() does not show {', '.join(unseen)}.")


def _heads(documented: dict[str, str]) -> dict[str, str]:
    return {name: text.partition("\n")[0] for name, text in documented.items()}


def _check_default(name: str, head: str, default: Any) -> None:
    require(" : " in head, f"the docstring gives no type of {name}.")
    stated = re.search(r"default=(.+?)$", head.strip())
    if default is inspect.Parameter.empty:
        require(stated is None and "optional" not in head, f"{name} must be given, and its docstring has a default.")
    elif default is None:
        require("optional" in head or (stated and stated[1] == "None"), f"the default of {name} is None, undocumented.")
    else:
        require(stated is not None, f"the docstring does not say that the default of {name} is {default!r}.")
        assert stated is not None
        try:
            value = ast.literal_eval(stated[1].rstrip("."))
        except (ValueError, SyntaxError):
            value = stated[1]
        require(value == default, f"the docstring gives {stated[1]} as the default of {name}, which is {default!r}.")


@check
def a_bad_value_is_refused_by_name(subject: Subject) -> None:
    """A value outside of the declared type, choices or bounds gives one sentence with the parameter's name."""
    for name, hint, bounds in _declared(type(subject.strategy)):
        for value in _bad_values(hint, bounds):
            try:
                subject.with_parameters(**{name: value})
            except ValueError as error:
                said = str(error)
                require(re.search(rf"\b{name}\b", said), f"{name}={value!r} is refused without its name: {said}")
                require(is_a_sentence(said), f"{name}={value!r} is not refused in a sentence: {said}")
            except Exception as error:
                raise AssertionError(f"{name}={value!r} gives a {type(error).__name__}: {error}") from None
            else:
                raise AssertionError(f"{name}={value!r} is taken.")
    refused = subject.strategy.set_params(n_clusters=1)
    try:
        watched_run(refused, subject.data)
    except ValueError as error:
        require("n_clusters is 1" in str(error), f"a run with n_clusters=1 says: {error}")
    else:
        raise AssertionError("a run with n_clusters=1 is not refused.")


def _bad_values(hint: Any, bounds: dict[str, float]) -> Iterator[Any]:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    is_literal = any(get_origin(kind) is Literal for kind in kinds)
    numbers = {int, float} & set(kinds)
    if is_literal:
        yield "nonsense"
    if numbers:
        yield from (math.nan, math.inf, "1", True)
        if NoneType not in kinds:
            yield None
        at_least, above = bounds.get("at_least", -math.inf), bounds.get("above", -math.inf)
        if float not in numbers:
            yield 1.5
            at_least = max(at_least, 0)
            yield int(at_least) - 1
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


def is_a_sentence(text: str) -> bool:
    """Tell whether a text reads as one or two sentences on one line, and not as what a library raised."""
    return "\n" not in text and text.rstrip().endswith((".", "?")) and len(text.split()) > 3 and "Traceback" not in text


@check
def it_can_be_pickled_and_copied(subject: Subject) -> None:
    """A strategy that was pickled, or copied deeply, runs as the strategy itself does."""
    for how, made in (
        ("pickled", pickle.loads(pickle.dumps(subject.strategy))),
        ("copied deeply", copy.deepcopy(subject.strategy)),
    ):
        run = watched_run(made, subject.data, seed=SEED)
        found = difference(run, subject.run)
        require(not found, f"a strategy that was {how} gives another {found}.")


@check
def its_name_stands_for_it(subject: Subject) -> None:
    """The name of a strategy is one of those under which its class is known, and fits its parameters."""
    strategy = subject.strategy
    if not strategy.entries:
        return
    fitting = [entry for entry in strategy.entries if entry.name == strategy.name]
    require(fitting, f"its name is {strategy.name}, which is not among its entries.")
    for parameter, value in fitting[0].fixed.items():
        require(getattr(strategy, parameter) == value, f"{strategy.name} stands for {parameter}={value!r}.")

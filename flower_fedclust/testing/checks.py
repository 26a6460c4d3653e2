"""One suite for every strategy: what each promises, as checks with names."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from flower_fedclust.names import look_up
from flower_fedclust.numerics.threads import one_thread
from flower_fedclust.progress import quiet
from flower_fedclust.protocol import ProtocolStrategy
from flower_fedclust.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """One promise."""

    name: str
    promise: str  #: In words.
    function: Callable[[Subject], None]  #: Takes a :class:`Subject`, and raises an AssertionError with one sentence.

    def __call__(self, subject: Subject) -> None:
        """Check one strategy.

        Raises
        ------
        AssertionError
            With one sentence that begins with the name of the check.
        """
        try:
            # Many checks are about clients that fail.
            with quiet(logging.CRITICAL + 1, "flwr", "flower_fedclust"), one_thread():
                self.function(subject)
        except AssertionError as broken:
            raise AssertionError(f"{self.name}: {broken}") from None
        except Exception as error:
            found = " ".join(f"{type(error).__name__}: {error}".split())
            raise AssertionError(f"{self.name}: it ends with {found}.") from error


_CHECKS: dict[str, Check] = {}


def check(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Enter a function in the suite; its docstring is the promise."""
    name = function.__name__
    _CHECKS[name] = Check(name, inspect.cleandoc(function.__doc__ or ""), function)
    return function


def require(promised: object, found: str) -> None:
    """Raise an AssertionError that says what was found, unless what was promised holds."""
    if not promised:
        raise AssertionError(found)


def strategy_checks() -> list[Check]:
    """Return all checks, in the order in which they run; ``check(Subject(strategy))`` runs one."""
    from flower_fedclust.testing import (  # noqa: F401
        about_audits,
        about_failures,
        about_parameters,
        about_privacy,
        about_runs,
    )

    return list(_CHECKS.values())


def check_strategy(
    strategy: ProtocolStrategy,
    clients: Sequence[ArrayLike] | None = None,
    *,
    labels: Sequence[ArrayLike] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Check that a strategy keeps the promises that every strategy makes.

    Like scikit-learn's ``check_estimator``. The strategy is run some fifty times on small tables, as it is given: give
    it few rounds, and check it once for each place of the noise and each unit of privacy that matters.

    Parameters
    ----------
    strategy : ProtocolStrategy
        Of ours or anybody's. It is not changed.
    clients : sequence of array-like of shape (n_i, n_columns), optional
        Tables of a few rows; by default three are made, of as many columns as the strategy expects.
    labels : sequence of array-like of shape (n_i,), optional
        True classes.
    skip : collection of str, optional
        Names of checks that are left out; :func:`strategy_checks` lists them.

    Raises
    ------
    AssertionError
        If a promise is broken: one sentence that names the check and what was found.
    ValueError
        If there is no check of a name that is to be left out.
    """
    checks = strategy_checks()
    for name in skip:
        look_up(name, _CHECKS, "check")
    subject = Subject(strategy, clients, labels)
    for one in checks:
        if one.name not in skip:
            one(subject)

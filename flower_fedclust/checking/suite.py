"""One suite for every strategy: what each promises, as checks with names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numpy.typing import ArrayLike

from flower_fedclust.checking import (  # noqa: F401
    about_audits,
    about_failures,
    about_parameters,
    about_privacy,
    about_runs,
)
from flower_fedclust.checking.check import CHECKS, Check
from flower_fedclust.checking.subject import Subject
from flower_fedclust.engine import ProtocolStrategy
from flower_fedclust.names import look_up


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
        look_up(name, CHECKS, "check")
    subject = Subject(strategy, clients, labels)
    for one in checks:
        if one.name not in skip:
            one(subject)

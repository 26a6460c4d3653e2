"""What a check is, and how a function becomes one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass

from flower_fedclust.checking.subject import Subject
from flower_fedclust.engine.progress import quiet
from flower_fedclust.numerics.threads import one_thread


@dataclass(frozen=True)
class Check:
    """One promise.

    Parameters
    ----------
    name : str
    promise : str
        In words.
    function : callable
        Takes a :class:`Subject`, and raises an AssertionError with one sentence.
    """

    name: str
    promise: str
    function: Callable[[Subject], None]

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


#: All checks by name, in the order in which their modules are read.
CHECKS: dict[str, Check] = {}


def check(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """Enter a function in the suite; its docstring is the promise."""
    name = function.__name__
    CHECKS[name] = Check(name, inspect.cleandoc(function.__doc__ or ""), function)
    return function


def require(promised: object, found: str) -> None:
    """Raise an AssertionError that says what was found, unless what was promised holds."""
    if not promised:
        raise AssertionError(found)

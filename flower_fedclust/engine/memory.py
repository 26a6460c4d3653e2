"""What a client remembers from one message to the next, kept rows among it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.common import Parameters
from numpy.typing import NDArray

from flower_fedclust.engine.rounds import Array, Askable
from flower_fedclust.engine.wire import as_bytes, as_text, decode
from flower_fedclust.numerics.checks import DataError

if TYPE_CHECKING:
    from flower_fedclust.engine.client_data import ClientData

#: A key with this suffix holds the name of the noisy rows from which the value under the key was computed.
OF = " of"


class MissedRoundError(Exception):
    """A client lacks what an earlier round left with others. This reveals nothing about its rows."""


class Memory:
    """What a client remembers, in the Context that Flower gives it with every message of a run."""

    name: str
    context: Context | None
    _stand_in: NDArray[np.float64] | None
    _derives_from: str  # the noisy rows that the current method may read; it may read no others

    if TYPE_CHECKING:  # a client also has these

        @property
        def source(self) -> ClientData:
            """What the client has: rows, or a table."""

        @property
        def data(self) -> ClientData:
            """The same, prepared."""

    def remember(self, key: str, arrays: Sequence[Array]) -> None:
        """Keep arrays in the Context's state until a later round."""
        if self.context is None:
            raise RuntimeError("a client without a Context cannot remember; give it context=...")
        self.context.state[f"fedclust.{key}"] = ArrayRecord([np.asarray(array) for array in arrays])
        origin = f"fedclust.{key}{OF}"
        self.context.state.pop(origin, None)
        if self._derives_from:
            self.context.state[origin] = ArrayRecord([as_bytes(self._derives_from)])

    def recall(self, key: str) -> list[Array] | None:
        """Return what :meth:`remember` kept under this key, or None.

        While an answer is computed from noisy rows, only what was computed from the same rows is returned.
        """
        if self._derives_from:
            origin = self._kept(f"{key}{OF}")
            if origin is None or as_text(origin[0]) != self._derives_from:
                return None
        return self._kept(key)

    def _kept(self, key: str) -> list[Array] | None:
        if self.context is None or f"fedclust.{key}" not in self.context.state:
            return None  # the usual case; looking up a missing record is slow
        record = self.context.state[f"fedclust.{key}"]
        if not isinstance(record, ArrayRecord):
            return None
        kept = Parameters([array.data for array in record.values()], "numpy.ndarray")
        return [array.copy("K") for array in decode(kept)]  # faster than Flower's own function

    def _forget(self) -> None:
        """Drop what an earlier run has left, which this run's report does not cover."""
        self._stand_in = None
        if self.context is not None:
            for key in [key for key in self.context.state if key.startswith("fedclust.")]:
                del self.context.state[key]

    def _check_may_look(self) -> None:
        """Raise a DataError if a method that should read noisy rows only reads the client's own."""
        if self._derives_from:
            raise DataError(
                f"client {self.name}: what was asked for takes the client's own rows, and not its {self._derives_from}."
            )

    def _kept_rows(self, key: str) -> NDArray[np.float64] | None:
        if not key:
            return None
        kept = self.recall(key)
        if kept is None:
            raise MissedRoundError(f"client {self.name} has not kept its {key}; it missed the round that makes them.")
        # Only what is declared with kept_as may stand for rows.
        if key not in _kept_by(type(self)):  # type: ignore[arg-type]  # mypy #11470
            raise DataError(f"{type(self).__name__} keeps no rows called '{key}'.")
        return np.asarray(kept[0], dtype=np.float64)

    def _has_noise(self, key: str) -> bool:
        """Return whether kept rows carry noise, so that computing from them reveals nothing more."""
        return bool(key) and self._origin(key)[0]

    def _is_of_one_row(self, key: str) -> bool:
        """Return whether each kept row depends on a single row of the client."""
        return not key or self._origin(key)[1]

    def _origin(self, key: str) -> tuple[bool, bool]:
        """Return whether kept rows carry noise, and whether each depends on a single row; False if none are kept."""
        kept = self.recall(key)
        return (False, False) if kept is None else (bool(kept[1][0]), bool(kept[1][1]))


@lru_cache(maxsize=256)
def _kept_by(kind: type[Memory]) -> frozenset[str]:
    """Return the names under which a class keeps rows."""
    asked = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
    return frozenset(sent.kept_as for askable in asked for sent in askable.answer.sends if sent.kept_as)

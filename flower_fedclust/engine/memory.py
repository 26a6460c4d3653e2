"""What a client remembers from one message to the next, and the rows that it has kept in the place of its own."""

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

#: What ends the key under which it stands from which rows with noise something was computed that is remembered.
OF = " of"


class MissedRoundError(Exception):
    """A client does not have what an earlier round would have left with it; this says nothing of its rows."""


class Memory:
    """What a client remembers, in the Context that Flower gives it with every message of a run."""

    name: str
    context: Context | None
    _stand_in: NDArray[np.float64] | None
    _derives_from: str  # kept rows with noise, to which alone a method that is being called may look

    if TYPE_CHECKING:  # what a client has besides

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

        While an answer is computed from rows that carry noise, that is what was remembered from the same rows.
        """
        if self._derives_from:
            origin = self._kept(f"{key}{OF}")
            if origin is None or as_text(origin[0]) != self._derives_from:
                return None
        return self._kept(key)

    def _kept(self, key: str) -> list[Array] | None:
        if self.context is None or f"fedclust.{key}" not in self.context.state:
            return None  # so it is most often, and to ask for what is missing takes long
        record = self.context.state[f"fedclust.{key}"]
        if not isinstance(record, ArrayRecord):
            return None
        kept = Parameters([array.data for array in record.values()], "numpy.ndarray")
        return [array.copy("K") for array in decode(kept)]  # as Flower's own function, which takes longer

    def _forget(self) -> None:
        """Drop what an earlier run has left: a run that took it for its own would not be what its report says."""
        self._stand_in = None
        if self.context is not None:
            for key in [key for key in self.context.state if key.startswith("fedclust.")]:
                del self.context.state[key]

    def _check_may_look(self) -> None:
        """Raise a DataError in a method whose answer is said to follow from rows with noise, and which reads others."""
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
        # Of what a method remembers for itself nobody says that it may stand for rows.
        if key not in _kept_by(type(self)):  # type: ignore[arg-type]  # mypy #11470
            raise DataError(f"{type(self).__name__} keeps no rows called '{key}'.")
        return np.asarray(kept[0], dtype=np.float64)

    def _has_noise(self, key: str) -> bool:
        """Tell whether the rows kept under this name carry noise: what is computed from them reveals no more."""
        return bool(key) and self._origin(key)[0]

    def _is_of_one_row(self, key: str) -> bool:
        """Tell whether each of the rows kept under this name follows from one row of the client alone."""
        return not key or self._origin(key)[1]

    def _origin(self, key: str) -> tuple[bool, bool]:
        """Return whether rows kept under this name carry noise, and whether each is of one row: no rows, neither."""
        kept = self.recall(key)
        return (False, False) if kept is None else (bool(kept[1][0]), bool(kept[1][1]))


@lru_cache(maxsize=256)
def _kept_by(kind: type[Memory]) -> frozenset[str]:
    """Return the names under which a class keeps rows."""
    asked = [value for name in dir(kind) if isinstance(value := getattr(kind, name), Askable)]
    return frozenset(sent.kept_as for askable in asked for sent in askable.answer.sends if sent.kept_as)

"""The names under which a strategy is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.rounds import KINDS, Askable, Kind

#: What a strategy is taken for.
Finds = Literal["round", "any form", "soft", "map"]


@dataclass(frozen=True)
class Entry:
    """A name of a strategy, as ``fedclust`` and ``flwr run`` know it.

    A class has one or more, in its ``entries``; adding or removing a strategy changes nothing else.

    Parameters
    ----------
    name : str
    summary : str
        One line.
    source : str
        Where the algorithm comes from.
    fixed : mapping of str to anything
        Parameters that the name stands for.
    example : mapping of str to anything
        What ``fedclust explain`` and the tests take where nothing else is said, for parameters without which the
        strategy cannot run.
    needs : tuple of str
        Parameters without which the name would promise too much, although the class does without.
    finds : "round", "any form", "soft", "map" or None
        What somebody who chooses a strategy would take it for: round clusters, clusters of any form, soft memberships,
        or a map; None for what is there to be compared with.
    strategy : type of ProtocolStrategy
        The class; the registry fills it in.
    """

    name: str
    summary: str
    source: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    finds: Finds | None = None
    strategy: Any = None

    @property
    def units(self) -> tuple[str, ...]:
        """For whom a run under this name can be private as a whole: "record", "client", both or nobody."""
        return () if "epsilon" in self.fixed else tuple(self.strategy.promises)

    @property
    def reveals(self) -> tuple[Kind, ...]:
        """The kinds of messages that a strategy may ask the clients for, from the declarations of their methods."""
        client_type = self.strategy.client_type
        asked = [
            value
            for name in dir(client_type)
            if isinstance(value := getattr(client_type, name), Askable) and not hasattr(ProtocolClient, name)
        ]
        found = {sent.reveals for askable in asked for sent in askable.answer.sends if not sent.kept_as}
        return tuple(kind for kind in KINDS if kind in found)

    def is_of(self, parameters: Mapping[str, Any]) -> bool:
        """Tell whether these parameters are those that the name stands for."""
        return all(
            type(parameters[key]) is type(value) and parameters[key] == value for key, value in self.fixed.items()
        )


def name_among(entries: Sequence[Entry], parameters: Mapping[str, Any]) -> str | None:
    """Return the name that stands for parameters: of those that fit, the one that fixes most; None without entries."""
    fitting = [entry for entry in entries if entry.is_of(parameters)] or list(entries)
    return max(fitting, key=lambda entry: len(entry.fixed)).name if fitting else None

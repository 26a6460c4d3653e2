"""Flower's pieces around a strategy or a client: which may be there, and which would change what is sent."""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np
from flwr.server.strategy import Strategy
from flwr.serverapp.strategy import Strategy as StrategyOfMessages

from flower_fedclust.engine.rounds import Array, ProtocolError

#: Flower's mods cannot read a message without arrays, so that one with none carries these, and says so under this key:
#: what goes to a client, and what comes back.
EMPTY = "empty"
TO_CLIENT: list[Array] = [np.zeros(1)]
TO_SERVER: list[Array] = [np.ones(1)]

#: Modules of Flower whose mods change what a client sends.
CHANGING = ("centraldp_mods", "localdp_mod", "secure_aggregation")

INSTEAD = "give epsilon to the strategy instead, and noise='local' or 'clients' for noise of the clients' own."


def refuse_wrapper(strategy: object) -> None:
    """Raise a ProtocolError if the caller of the caller is a strategy of Flower's that wraps this one.

    Such a wrapper clips updates of a model and adds noise to it. A protocol sends none: what it would change are counts
    and sums.
    """
    wrapper = sys._getframe(2).f_locals.get("self")
    is_strategy = isinstance(wrapper, Strategy if isinstance(strategy, Strategy) else StrategyOfMessages)
    if is_strategy and wrapper is not strategy and getattr(wrapper, "strategy", None) is strategy:
        raise ProtocolError(
            f"{type(wrapper).__name__} clips updates of a model, and a clustering strategy sends none; take it away, "
            f"and {INSTEAD}"
        )


def changing_mod() -> str | None:
    """Return the name of a mod of Flower's that stands before the caller and would change what it sends."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("flwr.") and ".mod." in module and any(part in module for part in CHANGING):
            owner = frame.f_locals.get("self")
            return frame.f_code.co_name if owner is None else type(owner).__name__
        frame = frame.f_back
    return None


def by_mod(reason: str) -> str:
    """Return why nothing came back from a client; of a mod that found no wrapper of its own, in our words."""
    if "clipping_norm" in reason or "secaggplus" in reason:
        return f"one of Flower's mods that change what clients send stands before it; take it away, and {INSTEAD[:-1]}"
    return reason

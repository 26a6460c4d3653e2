"""The steps of a secure sum at a client: what it remembers between them, and its answer as integers to mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedclust.engine.fields import SECURE
from flower_fedclust.engine.rounds import Array
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import Sendable, on_grid
from flower_fedclust.secure.client import SecureClient
from flower_fedclust.secure.keys import Words

#: The steps of secure sums: the first two happen once in a run, the other four for each sum.
STEPS = ("keys", "roster", "share", "mask", "confirm", "open")


def step_of(config: Mapping[str, Any]) -> str:
    """Return the step of a secure sum that a message asks for, or "" if it asks for none."""
    if SECURE not in config:
        return ""
    about = parse_json(str(config[SECURE]))
    step = about.get("step") if isinstance(about, dict) else None
    if step not in STEPS:
        raise DataError("a message asks for a step of a secure sum that there is not.")
    return str(step)


def answer_step(client: Any, arrays: list[Array], config: Mapping[str, Any]) -> list[Sendable]:
    """Return a client's answer to one step, after its secrets have been saved in its memory."""
    step, run, number = step_of(config), str(config.get("run")), int(config["round"])
    about = parse_json(str(config[SECURE]))
    secure = SecureClient(client.name, client.trust, client.recall(SECURE))
    found: list[Sendable]
    if step == "keys":
        found = [secure.keys(run)]
    elif step == "roster":
        found = [secure.roster(run, about.get("names"), arrays[0])]
    elif step == "share":
        found = list(secure.share(run, number))
    elif step == "mask":
        n_invited = secure.invite(run, number, about.get("clients"), int(config.get("n_shares", 1)))
        answering, sent = client._answered(arrays, config)
        answers = [on_grid(array) for array in sent]
        # In a run with a plan, noise covers the sum, so values may not decide whether a client answers.
        if not config.get("plan") and any(
            answer.largest > (2**63 - 1) // n_invited for answer in answers
        ):
            raise DataError(
                f"client {client.name} cannot send so large a sum: the sum over all clients could overflow."
            )
        masked = secure.mask(answering.question(), words_of(answers))
        found = list(like(answers, masked.view(np.int64)))
    elif step == "confirm":
        found = list(secure.confirm(run, number, about.get("clients")))
    else:
        found = [secure.open(run, number, *arrays)]
    client.remember(SECURE, secure.to_arrays(), is_own=True)
    return found


def words_of(arrays: Sequence[GridArray]) -> Words:
    """Return the integers of all arrays as one vector of unsigned 64-bit words."""
    return np.concatenate(
        [np.zeros(0, np.uint64), *(array.integers.ravel().view(np.uint64) for array in arrays)]
    )


def like(arrays: Sequence[GridArray], integers: Array) -> list[GridArray]:
    """Undo :func:`words_of`: cut a vector of integers into arrays with the shapes and units of these arrays."""
    ends = np.cumsum([array.integers.size for array in arrays])
    parts = np.split(integers, ends[:-1])
    return [
        GridArray(part.reshape(array.integers.shape), array.exponent)
        for part, array in zip(parts, arrays, strict=True)
    ]

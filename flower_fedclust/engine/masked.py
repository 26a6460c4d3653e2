"""The steps of a secure sum at a client: what it remembers between them, and its answer as integers to mask."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedclust.engine.rounds import Array
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.numerics.checks import DataError
from flower_fedclust.outside import parse_json
from flower_fedclust.privacy.noise import Sendable, on_grid
from flower_fedclust.secure.client import SecureClient
from flower_fedclust.secure.keys import digest, noise_colluders

#: The field of a message that names the step, and the key under which a client remembers its secrets.
SECURE = "secure"

#: Fields of a message that may differ between clients or rounds that are asked the same.
NO_QUESTION = {SECURE, "round", "n_clients"}


#: The steps of a run, then of each of its sums.
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


def question_of(config: Mapping[str, Any], arrays: Sequence[Array], led: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """Return the hash of all that a message asks, with its arrays and what earlier questions ``led`` to, by key."""
    asked = json.dumps({key: config[key] for key in sorted(config) if key not in NO_QUESTION})
    parts = [f"{array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes() for array in arrays]
    earlier = [part for key, asked_before in led for part in (key.encode(), asked_before)]
    return digest(b"question", asked.encode(), len(parts), *parts, *earlier)


def answer_step(client: Any, arrays: list[Array], config: Mapping[str, Any]) -> list[Sendable]:
    """Return a client's answer to one step; what it has to remember is kept before anything is returned."""
    step, run, number = step_of(config), str(config.get("run")), int(config["round"])
    about = parse_json(str(config[SECURE]))
    secure = SecureClient(client.name, client.trust, client.recall(SECURE))
    found: list[Sendable]
    if step == "keys":
        found = [secure.keys(run)]
    elif step == "roster":
        found = [secure.roster(run, list(map(str, about["names"])), arrays[0])]
    elif step == "share":
        found = list(secure.share(run, number))
    elif step == "mask":
        found = _masked(client, secure, arrays, config, np.array(about["clients"]))
    elif step == "confirm":
        found = list(secure.confirm(run, number, np.array(about["clients"])))
    else:
        found = [secure.open(run, number, *arrays)]
    client.remember(SECURE, secure.to_arrays(), is_own=True)
    return found


def _masked(
    client: Any, secure: SecureClient, arrays: list[Array], config: Mapping[str, Any], invited: Array
) -> list[Sendable]:
    """Return a client's answer to a question, masked."""
    run, number, n_shares = str(config.get("run")), int(config["round"]), int(config.get("n_shares", 1))
    least = n_shares + noise_colluders(secure.n_clients)
    secure.check_mask(run, number, invited, least)
    answers = [on_grid(array) for array in client._answer(arrays, config)]
    if any(one.largest > (2**63 - 1) // len(invited) for one in answers):
        raise DataError(f"client {client.name} cannot send so large a sum: the sum over all clients could overflow.")
    flat = [one.integers.ravel().view(np.uint64) for one in answers]
    words = np.concatenate([np.zeros(0, dtype=np.uint64), *flat])
    masked = secure.mask(run, number, invited, least, client.question(), words)
    return list(like(answers, masked.view(np.int64)))


def like(arrays: Sequence[GridArray], integers: Array) -> list[GridArray]:
    """Return integers, one after the other, as arrays of these shapes and units."""
    ends = np.cumsum([array.integers.size for array in arrays])
    parts = np.split(integers, ends[:-1])
    return [
        GridArray(part.reshape(array.integers.shape), array.exponent) for part, array in zip(parts, arrays, strict=True)
    ]

"""Which clients are drawn for which round, where each is to be drawn as often as any other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedclust.engine import ProtocolStrategy


def most_turns(strategy: ProtocolStrategy, fraction: float, n_rounds: int) -> int:
    """Return in how many rounds a client has a part at most; before a run knows its clients, in all of them."""
    n_clients = len(strategy.client_names)
    if n_clients == 0:
        return n_rounds
    n_drawn = min(strategy.n_to_draw(fraction, n_clients), n_clients)
    return -(-n_rounds * n_drawn // n_clients)


def drawn_in_turns(
    clients: Sequence[str], n_drawn: int, n_rounds: int, rng: np.random.Generator, *, most: int | None = None
) -> list[list[str]]:
    """Draw clients for all rounds: everybody once, in random order, before anybody is drawn again.

    Any round's clients are a uniform sample of all. That each is drawn ``n_rounds * n_drawn / len(clients)`` times, or
    once more, spares privacy budget: independent samples cost as much as the client would that is drawn most often.

    Parameters
    ----------
    clients : sequence of str
    n_drawn : int
        In a round.
    n_rounds : int
    rng : numpy.random.Generator
    most : int, optional
        In how many rounds a client may have a part: there are fewer rounds if so many would need more. That is so only
        where clients have left since :func:`most_turns` was asked.

    Returns
    -------
    list of list of str
        For each round, in the order of ``clients``.
    """
    n_drawn = min(n_drawn, len(clients))
    if most is not None:
        n_rounds = min(n_rounds, most * len(clients) // n_drawn)
    waiting: list[int] = []
    rounds = []
    for _ in range(n_rounds):
        now, waiting = waiting[:n_drawn], waiting[n_drawn:]
        if len(now) < n_drawn:
            # Of the next turn, those that this round has already come later in it.
            order = rng.permutation(len(clients)).tolist()
            already = set(now)
            new = [index for index in order if index not in already][: n_drawn - len(now)]
            taken = set(new)
            waiting = [index for index in order if index not in taken]
            now += new
        rounds.append([clients[index] for index in sorted(now)])
    return rounds

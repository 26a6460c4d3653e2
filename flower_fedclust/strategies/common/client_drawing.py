"""Draw clients for each round so that every client is drawn equally often, which saves privacy budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedclust.engine import ProtocolStrategy


def most_rounds_per_client(strategy: ProtocolStrategy, fraction: float, n_rounds: int) -> int:
    """Return the largest number of rounds in which one client takes part: n_rounds if clients are not known yet."""
    n_clients = len(strategy.client_names)
    if n_clients == 0:
        return n_rounds
    n_drawn = min(strategy.n_to_draw(fraction, n_clients), n_clients)
    return -(-n_rounds * n_drawn // n_clients)


def draw_equally_often(
    clients: Sequence[str],
    n_drawn: int,
    n_rounds: int,
    rng: np.random.Generator,
    *,
    most: int | None = None,
) -> list[list[str]]:
    """Draw clients for all rounds: everybody once, in random order, before anybody is drawn again.

    The clients of each round are a uniform sample. Each client is drawn ``n_rounds * n_drawn /
    len(clients)`` times, rounded down or up. With independent samples, the client that happens to
    be drawn most often would determine the cost.

    Parameters
    ----------
    clients : sequence of str
    n_drawn : int
        Clients of one round.
    n_rounds : int
    rng : numpy.random.Generator
    most : int, optional
        The largest number of rounds for one client. If clients have left since
        :func:`most_rounds_per_client` was called, the others would be drawn more often. To prevent
        this, fewer rounds are returned.

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
            # Clients already drawn in this round go to the end of the new order, so that no round has a client twice.
            order = rng.permutation(len(clients)).tolist()
            already = set(now)
            new = [index for index in order if index not in already][: n_drawn - len(now)]
            taken = set(new)
            waiting = [index for index in order if index not in taken]
            now += new
        rounds.append([clients[index] for index in sorted(now)])
    return rounds

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_fedclust.strategies.common.client_drawing import (
    draw_equally_often,
    most_rounds_per_client,
)

SIZES = st.tuples(st.integers(1, 12), st.integers(1, 14), st.integers(0, 25), st.integers(0, 2**32))


def names(n_clients):
    return [f"site {index}" for index in range(n_clients)]


def drawn(n_clients, n_drawn, n_rounds, seed, **options):
    return draw_equally_often(
        names(n_clients), n_drawn, n_rounds, np.random.default_rng(seed), **options
    )


def counted(rounds):
    return Counter(name for now in rounds for name in now)


class Known:
    """What a strategy knows about its clients."""

    def __init__(self, n_clients, n_drawn):
        self.client_names, self.n_drawn = names(n_clients), n_drawn

    def n_to_draw(self, fraction, n_clients):
        return self.n_drawn


@given(SIZES)
def test_every_client_is_drawn_equally_often_or_once_more(case):
    n_clients, n_drawn, n_rounds, _ = case
    rounds = drawn(*case)
    assert len(rounds) == n_rounds
    for number, now in enumerate(rounds):
        assert len(set(now)) == len(now) == min(n_drawn, n_clients)
        assert now == [name for name in names(n_clients) if name in now]
        counts = counted(rounds[: number + 1])
        assert max(counts.values()) - min(counts[name] for name in names(n_clients)) <= 1
    fair = math.ceil(n_rounds * min(n_drawn, n_clients) / n_clients)
    most = most_rounds_per_client(Known(n_clients, n_drawn), 0.5, n_rounds)
    assert most == fair == max(counted(rounds).values(), default=0)


def test_before_a_run_knows_its_clients_one_may_be_in_every_round():
    assert most_rounds_per_client(Known(0, 2), 0.5, 7) == 7


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_clients_of_any_round_are_a_uniform_sample(number):
    # Two of five clients: the third round takes the one who is left, and one of the next order.
    pairs = Counter(tuple(drawn(5, 2, 3, seed)[number]) for seed in range(2000))
    assert len(pairs) == 10
    assert all(abs(count - 200) < 5 * math.sqrt(200 * 0.9) for count in pairs.values())


@given(SIZES, st.integers(1, 12))
def test_if_clients_have_left_the_others_are_drawn_no_more_often_than_planned(case, n_before):
    n_clients, n_drawn, n_rounds, _ = case
    most = max(most_rounds_per_client(Known(n_before, n_drawn), 0.5, n_rounds), 1)
    rounds = drawn(*case, most=most)
    assert max(counted(rounds).values(), default=0) <= most
    if n_before == n_clients:
        assert rounds == drawn(*case)
    elif len(rounds) < n_rounds:  # and there are as many rounds as that allows
        assert max(counted(drawn(n_clients, n_drawn, len(rounds) + 1, 0)).values()) > most

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_fedclust.strategies.common.turns import drawn_in_turns, most_turns

sizes = st.tuples(st.integers(1, 12), st.integers(1, 14), st.integers(0, 25), st.integers(0, 2**32))


def names(n_clients):
    return [f"site {index}" for index in range(n_clients)]


def drawn(n_clients, n_drawn, n_rounds, seed):
    return drawn_in_turns(names(n_clients), n_drawn, n_rounds, np.random.default_rng(seed))


class Known:
    """What a strategy knows of its clients."""

    def __init__(self, n_clients, n_drawn):
        self.client_names, self.n_drawn = names(n_clients), n_drawn

    def n_to_draw(self, fraction, n_clients):
        return self.n_drawn


@given(sizes)
def test_every_client_is_drawn_equally_often_or_once_more(case):
    n_clients, n_drawn, n_rounds, _ = case
    rounds, most = drawn(*case), most_turns(Known(n_clients, case[1]), 0.5, n_rounds)
    counts = Counter(name for drawn in rounds for name in drawn)
    fair = n_rounds * min(n_drawn, n_clients) / n_clients
    assert all(math.floor(fair) <= counts[name] <= math.ceil(fair) for name in names(n_clients))
    assert most == math.ceil(fair) == max(counts.values(), default=0)


@given(sizes)
def test_clients_of_a_round_are_so_many_all_different_and_in_their_order(case):
    n_clients, n_drawn, n_rounds, _ = case
    rounds = drawn(*case)
    assert len(rounds) == n_rounds
    for now in rounds:
        assert len(set(now)) == len(now) == min(n_drawn, n_clients)
        assert now == [name for name in names(n_clients) if name in now]


@given(sizes)
def test_nobody_is_drawn_again_before_everybody_was(case):
    n_clients = case[0]
    rounds = drawn(*case)
    counts = Counter()
    for now in rounds:
        counts.update(now)
        assert max(counts.values()) - min(counts[name] for name in names(n_clients)) <= 1


@pytest.mark.parametrize("n_drawn", [4, 5, 100])
def test_as_many_as_there_are_is_everybody_in_every_round(n_drawn):
    assert drawn(4, n_drawn, 3, 0) == [names(4)] * 3


def test_the_papers_numbers_give_thirty_rounds_to_each_of_a_hundred_clients():
    rounds = drawn(100, 30, 100, 0)
    assert set(Counter(name for now in rounds for name in now).values()) == {30}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_clients_of_any_round_are_a_uniform_sample(number):
    # Of five clients two: the third round takes the one who is left, and one of the next turn.
    pairs = Counter(tuple(drawn(5, 2, 3, seed)[number]) for seed in range(2000))
    assert len(pairs) == 10
    assert all(abs(count - 200) < 5 * math.sqrt(200 * 0.9) for count in pairs.values())


def test_same_randomness_gives_the_same_rounds_and_another_gives_others():
    assert drawn(7, 3, 6, 1) == drawn(7, 3, 6, 1)
    assert drawn(7, 3, 6, 1) != drawn(7, 3, 6, 2)


def test_no_round_has_nobody():
    assert drawn(3, 2, 0, 0) == []


def test_before_a_run_knows_its_clients_one_may_be_in_every_round():
    assert most_turns(Known(0, 2), 0.5, 7) == 7


@given(sizes, st.integers(1, 12))
def test_where_clients_have_left_the_others_are_drawn_no_more_often_than_planned(case, n_before):
    n_clients, n_drawn, n_rounds, seed = case
    most = max(most_turns(Known(n_before, n_drawn), 0.5, n_rounds), 1)
    rng = np.random.default_rng(seed)
    rounds = drawn_in_turns(names(n_clients), n_drawn, n_rounds, rng, most=most)
    counts = Counter(name for now in rounds for name in now)
    assert max(counts.values(), default=0) <= most
    if n_before == n_clients:
        assert rounds == drawn(*case)
    elif len(rounds) < n_rounds:  # and as many rounds as that allows
        assert (
            max(Counter(name for now in drawn(n_clients, n_drawn, len(rounds) + 1, 0) for name in now).values()) > most
        )

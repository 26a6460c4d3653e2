"""Before the noise nobody looks: what the server decides does not depend on values that noise will cover."""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, paid, proxies_of, replaced, serve

import flower_fedclust as fc
from flower_fedclust.engine import ClientData, Gather, ProtocolError, Sent, Sum, answers
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.shards import _Joined
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.terms import Bound
from flower_fedclust.privacy.noise import SeededNoise, sample_gaussian
from flower_fedclust.results.result import result_of

#: A row adds at most 2^40 units of 2^-20, and the server cannot know how many rows a client has.
ANYTHING = Bound(2.0**20, 2.0**20, words="nothing")

ONE_ROW = paid("gaussian", 1.0, moved=ANYTHING)


class AnyClient(ToyClient):
    @answers(Sent("sum of the rows"), moved=lambda *_, **__: (ANYTHING,))
    def any_sum(self):
        return GridArray(self.rows.astype(np.int64).sum(axis=0), -20)

    @answers(
        Sent("number of rows", counts="every row"),
        moved=lambda *_, **__: (Bound(1.0, 1.0, words="a row"),),
    )
    def count(self):
        return np.array([len(self.rows)])


class AnyToy(Toy):
    client_type = AnyClient


def numbers(*values):
    """Return clients with one row each."""
    return [np.full((1, 2), value) for value in values]


@dataclass
class Seen:
    """What the server decides, keeps and prints before the noise, and what the protocol gets after it."""

    decided: dict[str, Any] = field(default_factory=dict)
    received: list[Any] = field(default_factory=list)


def seen(strategy, clients, caplog, *, secure=False):
    """Run a strategy with one and the same noise."""
    found, data = Seen(), {str(index): ClientData(rows) for index, rows in enumerate(clients)}
    progress: list[Any] = []
    strategy.secure, strategy.noise_seed = secure, 0
    strategy.on_round = lambda number, task: progress.append((number, task))
    strategy.on_received = lambda _, received: found.received.append(received)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "flower_fedclust"):
        run_inline(strategy, data, range(len(data)))
    found.decided = {
        "clients": strategy.client_names,
        "failures": strategy.failures,
        "traffic": strategy.traffic,
        "progress": progress,
        "n_clients": [getattr(one, "n_clients", None) for one in found.received],
        "largest": strategy.largest_client,
        "doubts": [
            one.code for one in result_of(strategy, {}, 0.0).doubts if one.code == "one-client"
        ],
        "notes": strategy.report.notes,
        "messages": strategy.report.messages,
        "logs": [record.getMessage() for record in caplog.records],
    }
    return found


# Neighbors: rows that differ by one, with the same noise.

LIMIT = (2**63 - 1) // 3
ROW = 2**25

#: Values of three clients, and another value of the last one: on both sides of what a check once compared.
NEIGHBORS = {
    "65,536 times the others": ((ROW, ROW, 65_536 * ROW), 65_537 * ROW),
    "65,536 times one other": ((0, 9 * ROW, 9 * 65_536 * ROW), 9 * 65_537 * ROW),
    "a client with nothing": ((1, 1, 0), 2**42),
    "among clients with nothing": ((0, 0, 0), 2**52),
    "a third of 63 bits": ((1, 1, LIMIT - LIMIT % 2**11 - 2**12), LIMIT - LIMIT % 2**11 + 2**12),
}


@pytest.mark.parametrize("noise", ["server", "clients"])
@pytest.mark.parametrize(("values", "other"), NEIGHBORS.values(), ids=NEIGHBORS)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_values_that_noise_will_cover_decide_nothing(values, other, noise, secure, caplog):
    def run(*values):
        strategy = AnyToy(
            [Sum(AnyClient.any_sum.asked(), releases=[ONE_ROW])], epsilon=1.0, noise=noise
        )
        return seen(strategy, numbers(*values), caplog, secure=secure)

    one, two = run(*values), run(*values[:2], other)
    assert one.decided == two.decided
    assert not one.decided["failures"]
    assert one.decided["n_clients"] == [3]
    moved = (two.received[0][0] - one.received[0][0]) * 2.0**20
    np.testing.assert_allclose(moved, float(other) - float(values[2]), rtol=1e-6, atol=2**12)


def test_a_reply_of_a_gather_round_is_not_compared_before_its_noise(caplog):
    def run(last):
        strategy = AnyToy([Gather(AnyClient.any_sum.asked(), releases=[ONE_ROW])], epsilon=1.0)
        return seen(strategy, numbers(ROW, ROW, last), caplog)

    one, two = run(65_536 * ROW), run(65_537 * ROW)
    assert one.decided == two.decided
    assert [reply.client for reply in two.received[0]] == ["0", "1", "2"]


@pytest.mark.parametrize("sizes", [(3, 3, 24, 25), (1, 1, 65_536, 65_537)])
def test_how_many_rows_a_client_has_decides_nothing_where_noise_will_cover_it(sizes, caplog):
    *others, before, after = sizes
    release = paid("laplace", 1.0, moved=Bound(1.0, 1.0, words="a row"))

    def run(size):
        strategy = AnyToy([Sum(AnyClient.count.asked(), releases=[release])], epsilon=1.0)
        return seen(strategy, [np.ones((one, 2)) for one in (*others, size)], caplog)

    one, two = run(before), run(after)
    assert one.decided == two.decided
    assert one.decided["largest"] is None
    assert (one.decided["failures"], one.decided["doubts"]) == ([], [])
    assert two.received[0][0] - one.received[0][0] == after - before


@pytest.mark.parametrize("size", [65_536, 65_537])
def test_private_kmeans_counts_a_client_with_most_of_the_rows(size):
    rows = [np.zeros((1, 2))] * 4 + [np.zeros((size, 2))]
    result = fc.simulate(fc.PrivateKMeans(2, epsilon=1.0, max_norm=1.0), rows, seed=1)
    assert result.failures == []
    assert result.privacy.covers_everything


def test_without_noise_the_same_values_are_still_compared(caplog):
    strategy = AnyToy([Sum(AnyClient.any_sum.asked())])
    found = seen(strategy, numbers(1, 1, 1, 2**50), caplog)
    assert [failure.client for failure in found.decided["failures"]] == ["3"]
    assert found.decided["n_clients"] == [3]


def test_with_noise_of_each_clients_own_a_reply_is_private_and_compared(caplog):
    small = paid("gaussian", 1.0, moved=Bound(1e-3, 1e-3, words="nothing"))

    class Clipped(AnyClient):
        @answers(
            Sent("sum of the rows"), moved=lambda *_, **__: (Bound(1e-3, 1e-3, words="nothing"),)
        )
        def any_sum(self):
            return GridArray(self.rows.astype(np.int64).sum(axis=0), -20)

    class ClippedToy(AnyToy):
        client_type = Clipped

    strategy = ClippedToy(
        [Gather(Clipped.any_sum.asked(), releases=[small])], epsilon=1.0, noise="local"
    )
    found = seen(strategy, numbers(1, 1, 1, 2**50), caplog)
    assert [failure.client for failure in found.decided["failures"]] == ["3"]


# What no honest client can fail is still checked.


@pytest.mark.parametrize(
    ("sent", "said"),
    [([np.array([-1])], "below 0"), ([np.array([2**23])], "does not fit the number of rows")],
)
def test_an_impossible_count_is_left_out_whatever_the_noise(sent, said):
    proxies = proxies_of(AnyClient, numbers(1, 1, 1, 1))
    proxies[3].misbehave[2] = replaced(sent)
    release = paid("laplace", 1.0, moved=Bound(1.0, 1.0, words="a row"))
    strategy = serve(
        AnyToy([Sum(AnyClient.count.asked(), releases=[release])], epsilon=1.0), proxies
    )
    (failure,) = strategy.failures
    assert failure.client == "3"
    assert said in failure.reason


# Overflow is decided on the noisy sum.

HUGE = 2**62 - 2**40


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
@pytest.mark.parametrize("noise", ["server", "clients"])
def test_a_sum_beyond_63_bits_ends_the_run_after_the_noise_and_names_no_client(noise, secure):
    strategy = AnyToy(
        [Sum(AnyClient.any_sum.asked(), releases=[ONE_ROW])], epsilon=1.0, noise=noise
    )
    strategy.secure = secure
    with pytest.raises(
        ProtocolError, match="with its noise, the sum of sum of the rows exceeds 63 bits"
    ) as caught:
        run_inline(
            strategy,
            {str(index): ClientData(rows) for index, rows in enumerate(numbers(HUGE, HUGE, HUGE))},
            range(3),
        )
    assert "client" not in str(caught.value).replace("fewer clients", "")
    assert strategy.failures == []


@pytest.mark.parametrize("above", [-3, -2, -1, 0, 1])
def test_noise_decides_whether_a_sum_fits_63_bits(above):
    # The same raw sum is beyond 63 bits or not, as its noise has it.
    drawn = sample_gaussian(
        np.nextafter(ONE_ROW.scale, np.inf) * 2.0**20, 2, SeededNoise([0, 2])
    ).tolist()
    assert max(drawn) > 2**30
    target = 2**63 - 1 - max(drawn) + above
    parts = [target // 3 + (index < target % 3) for index in range(3)]

    class Exact(AnyClient):
        @answers(Sent("sum of the rows"), moved=lambda *_, **__: (ANYTHING,))
        def any_sum(self):
            return GridArray(np.full(2, parts[int(self.name)]), -20)

    class ExactToy(AnyToy):
        client_type = Exact

    strategy = ExactToy([Sum(Exact.any_sum.asked(), releases=[ONE_ROW])], epsilon=1.0)
    strategy.noise_seed = 0
    data = {str(index): ClientData(rows) for index, rows in enumerate(numbers(1, 1, 1))}
    if above <= 0:
        run_inline(strategy, data, range(3))
        assert strategy.is_finished
    else:
        with pytest.raises(ProtocolError, match="exceeds 63 bits"):
            run_inline(strategy, data, range(3))


def test_clients_that_answer_together_have_the_same_bits_in_any_number_of_sums(monkeypatch):
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(5, 2)) for _ in range(40)]
    made = []

    class Counted(_Joined):
        def __init__(self, *args):
            made.append(self)
            super().__init__(*args)

    monkeypatch.setattr("flower_fedclust.engine.shards._Joined", Counted)

    def run(most_rows):
        monkeypatch.setattr("flower_fedclust.engine.shards.MOST_ROWS", most_rows)
        monkeypatch.setattr("flower_fedclust.engine.shards.REPLY_ENTRIES", 64)
        made.clear()
        model = fc.simulate(fc.PrivateKMeans(2, epsilon=5.0, max_norm=3.0), clients, seed=1).model
        return len(made), model.cluster_centers_

    few, expected = run(2**23 - 1)
    many, found = run(30)
    assert many > few
    np.testing.assert_array_equal(found, expected)

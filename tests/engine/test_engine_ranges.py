"""What the server can know of a reply before it uses it."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_toys import Toy, drive, on_grid, paid, proxies_of, serve
from flwr.common import Code, EvaluateRes, FitRes, Status

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import bad_client
from flower_fedclust.authoring import GridArray
from flower_fedclust.engine import Gather, ProtocolClient, Sent, Sum, answers
from flower_fedclust.engine.replies import Inspection, ReplyError
from flower_fedclust.engine.wire import encode, with_hash
from flower_fedclust.exact.terms import ONE_COUNT, Bound
from flower_fedclust.format import FORMAT

CLIPPED = Bound(1.0, math.sqrt(2.0))


class CountingClient(ProtocolClient):
    @answers(Sent("number of rows", counts_rows=True))
    def row_count(self):
        return np.array(len(self.rows))

    @answers("sum of the clipped rows", moved=lambda _: (CLIPPED,))
    def clipped_sum(self):
        return on_grid(np.clip(self.rows, -1, 1).sum(axis=0) / np.sqrt(2))

    @answers(Sent("votes", counts="every row"), moved=lambda _: (ONE_COUNT,))
    def votes(self):
        return np.array([len(self.rows) - 1, 1])

    @answers(Sent("places", "codes", per="row"), Sent("means", "centers"), Sent("sizes", "centers"))
    def places(self):
        return self.rows[:, :1], self.rows[:2], np.array([1, len(self.rows) - 1])


class Counting(Toy):
    client_type = CountingClient


COUNT = Sum(CountingClient.row_count.asked())


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 2)) for n in (5, 3, 7, 4)]


def bad_reply(clients, rounds, arrays, exponents=None, **parameters):
    """Return the failures where client 1 answers the last round with other arrays."""
    metrics = (
        {"client": "1"}
        if exponents is None
        else {"client": "1", "exponents": json.dumps(exponents)}
    )
    proxies = proxies_of(CountingClient, clients, seed=1)
    proxies[1].misbehave[1 + len(rounds)] = lambda res: with_hash(
        FitRes(res.status, encode(arrays), 1, metrics | {"format": FORMAT})
    )
    toy = Counting(rounds, **parameters)
    drive(toy, proxies)
    return [(failure.client, failure.reason) for failure in toy.failures]


@pytest.mark.parametrize(
    ("method", "arrays", "exponents", "reason"),
    [
        (CountingClient.votes, [np.array([4, -1])], None, "client 1 sent votes below 0."),
        (
            CountingClient.votes,
            [np.array([3, 1])],
            None,
            "client 1 sent votes, which does not fit the number of rows that it stated.",
        ),
        (
            CountingClient.clipped_sum,
            [np.array([4 * 2**40, 0])],
            [-40],
            "client 1 sent sum of the clipped rows, larger than its clipping allows for the rows that it stated.",
        ),
        (
            CountingClient.clipped_sum,
            [np.array([2**62, 0])],
            [-40],
            "client 1 sent sum of the clipped rows, so large that the sum could overflow.",
        ),
    ],
)
def test_what_no_rows_can_give_is_left_out_by_name(clients, method, arrays, exponents, reason):
    assert bad_reply(clients, [COUNT, Sum(method.asked())], arrays, exponents) == [("1", reason)]


@pytest.mark.parametrize(
    ("places", "means", "sizes"),
    [((3, 1), (2, 2), 3), ((2, 1), (2, 2), 2), ((0, 1), (2, 2), 2), ((3, 1), (0, 2), 0)],
    ids=["more sizes than means", "fewer entries than rows", "no entries", "no centers"],
)
def test_what_has_an_entry_for_each_row_or_center_has_equally_many(clients, places, means, sizes):
    rounds = [COUNT, Gather(CountingClient.places.asked())]
    ((name, _),) = bad_reply(clients, rounds, [np.ones(places), np.ones(means), np.ones(sizes)])
    assert name == "1"


def test_a_client_that_says_a_million_times_what_others_say_is_left_out(clients):
    ((name, reason),) = bad_reply(clients, [COUNT], [np.array(4_000_000)])
    assert name == "1"
    assert reason.startswith(
        "client 1 sent number of rows, more than 65,536 times as large as most sent"
    )


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("noise", ["clients", "local"])
def test_noise_is_never_taken_for_a_lie_and_what_is_beyond_its_tail_is(clients, mechanism, noise):
    sums = Sum(CountingClient.clipped_sum.asked(), releases=[paid(mechanism, 5.0, moved=CLIPPED)])
    votes = Sum(CountingClient.votes.asked(), releases=[paid(mechanism, 5.0, moved=ONE_COUNT)])
    many = [COUNT] + 40 * [sums, votes]
    toy = serve(
        Counting(many, noise=noise, epsilon=1.0, min_clients=2), proxies_of(CountingClient, clients)
    )
    assert toy.failures == []
    inspection = Inspection(toy)
    inspection.check_numbers("1", COUNT, [np.array(3)])
    inspection.check_numbers("1", sums, [GridArray(np.array([60, 0]))])
    with pytest.raises(ReplyError, match="larger than its clipping allows"):
        inspection.check_numbers("1", sums, [GridArray(np.array([1000, 0]))])


@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({}, "101"),
        ({"client": "a"}, "a"),
        ({"client": "a", "columns": "[1]"}, "a"),
        ({"client": "a", "columns": "[" * 100_000}, "a"),
        ({"client": "a", "columns": str(10**18)}, "a"),
        ({"client": "", "columns": "2"}, "101"),
        ({"client": "0", "columns": "[1]"}, "101"),  # another's name
    ],
)
def test_a_client_that_enrols_without_name_or_columns_is_left_out(clients, metrics, named):
    proxies = proxies_of(CountingClient, clients)
    proxies[1].misbehave[1] = lambda res: with_hash(
        FitRes(res.status, res.parameters, 1, metrics | {"format": FORMAT})
    )
    toy = serve(Counting([COUNT]), proxies)
    assert toy.client_names == ["0", "2", "3"]
    assert [failure.client for failure in toy.failures] == [named]


@pytest.mark.parametrize(
    ("loss", "n_rows", "metrics"),
    [
        (np.nan, 3, {}),
        (-1.0, 3, {}),
        (1.0, -3, {}),
        (1.0, 3, {"table": "["}),
        (1.0, 3, {"table": "[" * 100_000}),
        (1.0, 2**62, {"table": json.dumps([[1, [2**62, 0]]])}),
        (1.0, 3, {"table": json.dumps([[1, [2**62, 2**62]], [2, [2**62, 2**62 + 3]]])}),
        (1.0, 3, {"table": "[[1, [1.5, 1.5]]]"}),
        (1.0, 3, {"table": 7}),
        (10**400, 3, {}),
        ("much", 3, {}),
        (None, None, None),
        (1.0, 3, {"table": "[[1, [1, -1]]]"}),
        (1.0, 3, {"table": "[[1, [2, 2]]]"}),
        (1.0, 3, {"table": "[[1, [3]]]"}),
    ],
)
def test_an_evaluation_that_no_rows_can_give_is_left_out(clients, loss, n_rows, metrics):
    proxies = proxies_of(CountingClient, clients)
    proxies[1].evaluate = lambda ins, timeout, group_id: with_hash(
        EvaluateRes(Status(Code.OK, ""), loss, n_rows, metrics | {"format": FORMAT})
    )
    toy = serve(Counting([COUNT], federated_evaluation=True), proxies)
    assert toy.evaluation["n_rows"] == 16
    assert [(failure.task, failure.client) for failure in toy.failures] == [("evaluate", "1")]


@pytest.mark.parametrize("strategy", ["federated-kmeans", "private-kmeans", "dp-fedc"])
@pytest.mark.parametrize(
    "fault", ["half of the rows", "1.7e308", "a million times too large", "columns that are none"]
)
def test_one_bad_client_is_survived_or_ends_the_run_by_name(strategy, fault):
    assert bad_client.ending_of(strategy, fault)[0] in ("survived", "ended")

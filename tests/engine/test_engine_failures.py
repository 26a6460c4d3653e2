import io
import json
import re

import numpy as np
import pytest
from engine_toys import ByHand, Toy, ToyClient, drive, paid, proxies_of, raising, replaced, serve
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import Code, FitRes, Parameters, Status
from flwr.server import Server, SimpleClientManager
from sklearn.base import clone

from flower_fedclust.data import read_table
from flower_fedclust.engine import (
    ClientData,
    DataError,
    Gather,
    ProtocolError,
    Sent,
    Sum,
    TooFewError,
    answers,
)
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.replies import ReplyError, checked_arrays
from flower_fedclust.engine.shards import Shard
from flower_fedclust.engine.wire import EXPONENTS, encode, with_hash
from flower_fedclust.format import FORMAT
from flower_fedclust.models import KMeansModel
from flower_fedclust.simulation import simulate
from flower_fedclust.strategies.baselines.federated_kmeans import FederatedKMeans

#: What the toy's client sends as the sum of its rows: two integers in a unit of 2^-40.
SUMS = np.array([2**40, -(2**41)])


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 2)) for n in (5, 3, 7, 4)]


class MoodyClient(ToyClient):
    """Fails where its name is among those that the server names."""

    @answers("number")
    def bad_value(self, *, who):
        if self.name in who.split(","):
            raise DataError(f"client {self.name} has no such thing.")
        return np.array([1])

    @answers("number")
    def bad_luck(self, *, who):
        if self.name in who.split(","):
            raise KeyError(f"secret {self.rows[0, 0]}")
        return np.array([1])


class Moody(Toy):
    client_type = MoodyClient


def test_client_that_refuses_is_reported_and_survived(clients):
    toy = Moody([Sum(MoodyClient.bad_value.asked(who="1")), Sum(ToyClient.visits.asked())])
    result = simulate(toy, clients)
    assert result.model.brought[0][0] == [3.0]
    assert result.model.brought[1][0] == [4.0]
    (failure,) = result.failures
    assert (failure.round, failure.task, failure.client) == (2, "bad_value", "1")
    assert failure.reason == "client 1 has no such thing."


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            DataError("row 3, column 'a' is NaN; fill it in."),
            "row 3, column 'a' is NaN; fill it in.",
        ),
        (KeyError("secret 41.3"), "client 3 failed with KeyError; its own log says more."),
        (
            ValueError("could not convert 'Kari Nordmann'"),
            "client 3 failed with ValueError; its own log says more.",
        ),
        (
            FileNotFoundError("Kari Nordmann.csv"),
            "client 3 failed with FileNotFoundError; its own log says more.",
        ),
    ],
)
def test_only_the_message_of_a_data_error_leaves_the_client(error, said):
    def load():
        raise error

    client = ToyClient(load, name="3")
    expected = {"format": FORMAT, "client": "3", "failure": said}
    assert client.fit([], {"task": "enrol", "round": 1}) == ([], 1, expected)
    assert client.evaluate([np.eye(2)], {"model": "k-means"}) == (0.0, 0, expected)


def test_a_client_says_that_its_file_is_missing_or_its_rows_are_not_wrapped(tmp_path):
    for load, said in (
        (lambda: read_table(tmp_path / "north.csv"), "north.csv"),
        (np.eye(2), "give ClientData(rows)"),
    ):
        assert (
            said in ToyClient(load, name="3").fit([], {"task": "enrol", "round": 1})[2]["failure"]
        )


def test_a_file_that_changes_between_rounds_ends_the_clients_part_and_no_value_is_said(tmp_path):
    file = tmp_path / "north.csv"

    def load():
        return ClientData(read_table(file, raw=True).rows, owner="client north.csv", raw=True)

    def ask(task, number):
        client = ToyClient(load, name="north", context=context)
        return client.fit([], {"task": task, "round": number})

    context = Context(0, 0, UserConfig(), RecordDict(), UserConfig())
    file.write_text("a,b\n1,2\n3,4\n")
    assert "failure" not in ask("enrol", 1)[2]
    file.write_text("a,b\n1,2\n3,4\n")  # the same rows
    assert len(ask("moments", 2)[0]) == 2
    file.write_text("a,b\n1,2\n3,5\n")
    arrays, _, facts = ask("moments", 3)
    assert arrays == []
    assert facts["failure"] == (
        "client north: the data has changed since the run began (column 'b'); "
        "leave it as it is until the run has ended."
    )
    assert "failure" not in ask("enrol", 1)[2]  # of another run


def test_columns_in_another_order_at_a_site_are_put_right_and_others_are_left_out(clients):
    data = {str(index): ClientData(rows, columns=["a", "b"]) for index, rows in enumerate(clients)}
    strategy = FederatedKMeans(2, init=clients[0][:2], federated_evaluation=True)
    run_inline(strategy, data, [None] * 4)
    other = data | {
        "1": ClientData(clients[1][:, ::-1], columns=["b", "a"]),
        "4": ClientData(clients[0], columns=["a", "c"]),
    }
    again = clone(strategy)
    run_inline(again, other, [None] * 5)
    assert np.array_equal(
        again.outcome.model.cluster_centers_, strategy.outcome.model.cluster_centers_
    )
    assert list(again.outcome.model.columns_) == ["a", "b"]
    assert again.evaluation == strategy.evaluation
    assert {failure.client for failure in again.failures} == {"4"}


def test_whoever_stops_a_run_stops_it_at_once_and_what_flower_raises_for_a_client_does_not_end_it(
    clients, monkeypatch
):
    asked = []

    def fit(self, index, ins):
        asked.append(index)
        if ins.config["task"] == "visits" and index == 1:
            raise raised
        return fit_of_client(self, index, ins)

    fit_of_client = Shard.fit
    monkeypatch.setattr(Shard, "fit", fit)
    raised = OSError("the line is down")
    result = simulate(Toy([Sum(ToyClient.visits.asked())], min_clients=2), clients)
    assert [(failure.client, failure.task) for failure in result.failures] == [("1", "visits")]
    asked.clear()
    raised = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        simulate(Toy([Sum(ToyClient.visits.asked())]), clients)
    assert asked == [0, 1]  # they enroll together


@pytest.mark.parametrize("task", ["dance", "remember", "fit", "__init__", "data"])
def test_task_that_is_no_marked_method_is_a_failure_with_a_sentence(clients, task):
    (proxy,) = proxies_of(ToyClient, clients[:1])
    arrays, _, facts = proxy.client().fit([], {"task": task, "round": 2})
    assert arrays == []
    assert facts["failure"] == f"ToyClient has no answer called '{task}'."


def test_round_that_names_a_method_of_another_client_stops_with_a_sentence(clients):
    with pytest.raises(ProtocolError) as caught:
        simulate(Toy([Sum(MoodyClient.bad_value.asked(who=""))]), clients)
    assert str(caught.value) == (
        "ToyClient has no method 'bad_value'; the strategy's client_type must inherit from the class whose method a "
        "round names."
    )


@pytest.mark.parametrize(
    ("arrays", "exponents", "sentence"),
    [
        (
            [np.array([3]), np.array([np.nan, 0.0])],
            None,
            "client 1 sent an array that is not made of finite numbers.",
        ),
        (
            [np.array([3]), np.array([np.inf, 0.0])],
            None,
            "client 1 sent an array that is not made of finite numbers.",
        ),
        (
            [np.array([1 + 2j]), SUMS],
            None,
            "client 1 sent an array that is not made of finite numbers.",
        ),
        (
            [np.array(["x"]), SUMS],
            None,
            "client 1 sent an array that is not made of finite numbers.",
        ),
        (
            [np.array([3]), np.zeros(2)],
            None,
            "client 1 sent sum of the rows .* as floats; .* integers in a unit.",
        ),
        ([np.array([3]), np.zeros(2)], [0, -40], "client 1 sent an array in a unit that is not .*"),
        (
            [np.array([3]), SUMS.astype(np.int32)],
            [0, -40],
            "client 1 sent an array in a unit that is not .*",
        ),
        ([np.array([3]), SUMS], [0, 1e9], "client 1 sent an array in a unit that is not .*"),
        ([np.array([3]), SUMS], [0, True], "client 1 sent an array in a unit that is not .*"),
        (
            [np.array([3]), SUMS],
            [0],
            "client 1 sent a list of units of another length than its arrays.",
        ),
        (
            [np.array([3]), SUMS],
            {"0": 1},
            "client 1 sent a list of units of another length than its arrays.",
        ),
        (
            [np.array([3]), SUMS],
            [0, -41],
            "client 1 sent arrays of the shapes .* where most sent .*",
        ),
        ([np.array([3])], None, "client 1 sent 1 arrays where 2 were asked for."),
        (
            [np.array([3]), np.zeros(3, np.int64)],
            [0, -40],
            "client 1 sent arrays of the shapes .* where most sent .*",
        ),
        (
            [np.array([3]), SUMS[:, None]],
            [0, -40],
            "client 1 sent arrays of the shapes .* where most sent .*",
        ),
        ([np.array(3), SUMS], [0, -40], "client 1 sent arrays of the shapes .* where most sent .*"),
    ],
)
def test_rubbish_is_counted_as_a_failure_and_never_added_up(clients, arrays, exponents, sentence):
    proxies = proxies_of(ToyClient, clients)
    metrics = (
        {"client": "1"} if exponents is None else {"client": "1", EXPONENTS: json.dumps(exponents)}
    )
    proxies[1].misbehave[2] = lambda res: with_hash(
        FitRes(res.status, encode(arrays), 1, metrics | {"format": FORMAT})
    )
    toy = Toy([Sum(ToyClient.moments.asked())])
    drive(toy, proxies)
    (failure,) = toy.failures
    assert (failure.round, failure.task, failure.client) == (2, "moments", "1")
    assert re.fullmatch(sentence, failure.reason)
    others = np.concatenate([clients[0], clients[2], clients[3]])
    count, sums = toy.outcome.model.brought[0]
    assert count == [len(others)]
    np.testing.assert_allclose(sums, others.sum(axis=0), atol=1e-10)


OBJECTS = io.BytesIO()
np.save(OBJECTS, np.array([{"a": 1}], dtype=object), allow_pickle=True)
SHORT = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9,), }"


@pytest.mark.parametrize("tensor", [b"", b"rubbish", SHORT, OBJECTS.getvalue()])
def test_bytes_that_are_no_array_of_numbers_are_counted_as_a_failure(clients, tensor):
    proxies = proxies_of(ToyClient, clients)
    proxies[1].misbehave[2] = lambda res: FitRes(
        res.status, Parameters([tensor, tensor], "numpy.ndarray"), res.num_examples, res.metrics
    )
    toy = Toy([Sum(ToyClient.moments.asked())])
    drive(toy, proxies)
    assert [failure.client for failure in toy.failures] == ["1"]
    assert toy.outcome.model.brought[0][0] == [16.0]


def test_rubbish_is_left_out_of_a_gather_round_too(clients):
    proxies = proxies_of(ToyClient, clients)
    proxies[2].misbehave[2] = replaced([np.full((3, 2), np.nan)])
    toy = Toy([Gather(ToyClient.all_rows.asked())])
    drive(toy, proxies)
    assert [reply.client for reply in toy.outcome.model.brought[0]] == ["0", "1", "3"]


@pytest.mark.parametrize("run", [drive, serve])
def test_proxy_that_raises_is_reported_and_survived_and_asked_again(clients, run):
    proxies = proxies_of(ToyClient, clients)
    proxies[3].misbehave[2] = raising(TimeoutError("no answer in\n60 s"))
    toy = Toy([Sum(ToyClient.moments.asked()), Sum(ToyClient.moments.asked())])
    run(toy, proxies)
    (failure,) = toy.failures
    assert (failure.round, failure.task, failure.client) == (2, "moments", "3")
    assert failure.reason == "client 3 did not answer (TimeoutError: no answer in 60 s)."
    first, second = toy.outcome.model.brought
    assert first[0] == [15.0]
    assert second[0] == [19.0]


def test_reply_with_a_status_that_is_not_ok_is_a_failure(clients):
    proxies = proxies_of(ToyClient, clients)
    proxies[0].misbehave[2] = lambda res: FitRes(
        Status(Code.FIT_NOT_IMPLEMENTED, "no"), res.parameters, 1, {}
    )
    toy = serve(Toy([Sum(ToyClient.moments.asked())]), proxies)
    assert [failure.client for failure in toy.failures] == ["0"]
    assert toy.outcome.model.brought[0][0] == [14.0]


def test_two_clients_are_enough_where_nothing_is_said_and_one_is_not(clients):
    toy = Moody([Sum(MoodyClient.bad_value.asked(who="0,2"))])
    assert simulate(toy, clients).model.brought[0][0] == [2.0]
    toy = Moody([Sum(MoodyClient.bad_value.asked(who="0,2,3"))])
    with pytest.raises(ProtocolError, match="1 clients answered and 2 have to"):
        simulate(toy, clients)


def test_too_few_connected_clients_stop_the_run_with_a_sentence(clients):
    toy = Toy([Sum(ToyClient.moments.asked())], min_clients=3)
    toy.wait_for_clients = 0.0
    with pytest.raises(
        ProtocolError, match="2 clients are connected and min_clients is 3; start more clients"
    ):
        drive(toy, proxies_of(ToyClient, clients[:2]))


class LateManager(SimpleClientManager):
    """Shows one more client each time it is asked how many there are."""

    def __init__(self, proxies):
        super().__init__()
        self.late = list(proxies)

    def num_available(self):
        if self.late:
            self.register(self.late.pop(0))
        return super().num_available()


@pytest.mark.parametrize(("n_missing", "seconds"), [(0, 30.0), (1, 0.5)])
def test_run_waits_for_the_clients_it_expects_and_begins_without_clients_that_never_come(
    clients, n_missing, seconds
):
    toy = Toy([Sum(ToyClient.moments.asked())])
    toy.expected_clients = len(clients) + n_missing
    toy.wait_for_clients = seconds
    server = Server(client_manager=LateManager(proxies_of(ToyClient, clients)), strategy=toy)
    server.fit(num_rounds=toy.num_rounds, timeout=None)
    assert len(toy.client_names) == len(clients)


def test_clients_of_the_same_name_are_left_out_as_nobody_knows_who_is_who(clients):
    toy = Toy([Sum(ToyClient.moments.asked())])
    drive(toy, proxies_of(ToyClient, clients, ["oslo", "bergen", "oslo", "bodø"]))
    assert toy.client_names == ["bergen", "bodø"]
    assert {failure.client for failure in toy.failures} == {"100", "102"}
    assert toy.failures[0].reason.startswith(
        "2 clients call themselves 'oslo' (nodes 100, 102), so that none"
    )


def test_client_with_other_columns_than_most_is_left_out_with_a_sentence(clients):
    proxies = proxies_of(ToyClient, [*clients, np.ones((6, 3))])
    toy = serve(Toy([Sum(ToyClient.moments.asked())]), proxies)
    (failure,) = toy.failures
    assert (failure.task, failure.client) == ("enrol", "4")
    assert failure.reason == "client 4 has 3 columns where most have 2 columns."
    assert toy.outcome.model.brought[0][0] == [19.0]


def test_client_with_other_columns_than_the_server_rows_says_so(clients):
    class Wide(Toy):
        expected_columns = 3

    toy = serve(
        Wide([Sum(ToyClient.moments.asked())]),
        proxies_of(ToyClient, [np.ones((2, 3)), np.zeros((2, 3)), clients[0]]),
    )
    (failure,) = toy.failures
    assert failure.reason == "client 2 has 2 columns where the server expects 3."


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[1.0, np.nan]], "client 1: row 0, column 1 is NaN; fill it in or drop the row."),
        (np.zeros((0, 2)), "client 1 has no rows; give at least one."),
        ([["a", 1.0]], "client 1: column 0 is not numeric; encode it as numbers or leave it out."),
    ],
)
def test_bad_rows_of_one_client_are_reported_in_a_sentence_and_the_rest_goes_on(
    clients, rows, sentence
):
    class Late(ByHand):
        def client(self):
            return ToyClient(
                lambda: ClientData(self.rows, owner=f"client {self.name}"), name=self.name
            )

    proxies = [
        Late(index, ToyClient, data, name=str(index))
        for index, data in enumerate([clients[0], rows])
    ]
    proxies += [Late(2, ToyClient, clients[1], name="2")]
    toy = serve(Toy([Sum(ToyClient.moments.asked())]), proxies)
    assert [failure.reason for failure in toy.failures] == [sentence]
    assert toy.outcome.model.brought[0][0] == [8.0]


def test_order_in_which_failures_come_changes_nothing(clients):
    def failures(reorder):
        proxies = proxies_of(
            ToyClient, [*clients, np.ones((2, 3)), np.ones((2, 4)), np.ones((2, 5))]
        )
        proxies[0].misbehave[2] = replaced([np.zeros(1)])
        proxies[1].misbehave[2] = replaced([np.full(1, np.nan), np.zeros(2)])
        toy = Toy([Sum(ToyClient.moments.asked())])
        drive(toy, proxies, reorder=reorder)
        return toy.failures

    assert failures(list) == failures(lambda results: results[::-1])


def test_round_with_another_number_of_releases_than_arrays_is_an_error(clients):
    release = paid("gaussian", 1.0)
    with pytest.raises(ProtocolError, match="'moments' sends 2 arrays; the round has 1 releases"):
        simulate(Toy([Sum(ToyClient.moments.asked(), releases=[release])]), clients)


def test_a_reply_with_other_columns_than_the_rows_is_refused():
    sends = (Sent("the rows", has_columns=True),)
    assert len(checked_arrays("3", [np.zeros((2, 4))], sends, 4)) == 1
    with pytest.raises(
        ReplyError,
        match=r"client 3 sent an array of the shape \(2, 5\) where the rows have 4 columns",
    ):
        checked_arrays("3", [np.zeros((2, 5))], sends, 4)


class GoesOn(Toy):
    """Asks three clients, and goes on with what all clients say if too few of the three answer."""

    def protocol(self):
        try:
            brought = yield Sum(ToyClient.moments.asked(), clients=["0", "1", "2"])
        except TooFewError as error:
            self.told = str(error)
            brought = yield Sum(ToyClient.moments.asked(power=2))
        return KMeansModel(np.stack([brought[1], brought[1]]))

    @property
    def n_protocol_rounds(self):
        return 2


def silent_in_the_second_round():
    """Return four clients, of which two do not answer when they are asked first."""
    proxies = proxies_of(ToyClient, [np.full((3, 2), value) for value in (1.0, 2.0, 3.0, 4.0)])
    for proxy in proxies[:2]:
        proxy.misbehave[2] = raising(ConnectionError("gone"))
    return proxies


def test_a_protocol_is_told_that_too_few_have_answered_and_may_go_on():
    toy = GoesOn([])
    drive(toy, silent_in_the_second_round())
    assert toy.told.startswith("round 2 ('moments'): 1 clients answered and 2 have to")
    np.testing.assert_array_equal(toy.outcome.model.cluster_centers_[0], [90.0, 90.0])
    assert [one.round for one in toy.failures] == [2, 2]


def test_a_run_that_went_on_without_a_round_goes_on_from_its_journal(tmp_path):
    results = []
    for proxies in (silent_in_the_second_round(), []):
        toy = GoesOn([])
        toy.journal = Journal(tmp_path / "journal")
        with toy.journal:
            drive(toy, proxies)
        results.append(toy)
    first, again = results
    assert again.told == first.told
    np.testing.assert_array_equal(
        again.outcome.model.cluster_centers_, first.outcome.model.cluster_centers_
    )
    assert again.report == first.report


def test_a_protocol_that_does_not_go_on_ends_with_the_error_and_its_report():
    with pytest.raises(TooFewError, match="1 clients answered and 2 have to") as caught:
        drive(
            Toy([Sum(ToyClient.moments.asked(), clients=["0", "1", "2"])]),
            silent_in_the_second_round(),
        )
    assert [message.task for message in caught.value.privacy_report.messages][-1] == "moments"

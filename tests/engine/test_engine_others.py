"""What the clients do that a round does not ask: they get a task of their own, and nothing of theirs is used."""

import json

import numpy as np
import pytest
from engine_toys import (
    Toy,
    ToyClient,
    drive,
    on_grid,
    paid,
    proxies_of,
    raising,
    replaced,
    serve,
    toy_answers,
)
from flwr.common import FitRes, parameters_to_ndarrays

from flower_fedclust.checking import LocalGrid
from flower_fedclust.engine import (
    ClientData,
    DataError,
    Failure,
    Gather,
    MessageStrategy,
    ProtocolError,
    Sent,
    Sum,
    answers,
    client_app,
)
from flower_fedclust.engine.rounds import MissedRoundError
from flower_fedclust.engine.wire import encode, with_hash
from flower_fedclust.privacy.releases import NOISE_PLACES
from flower_fedclust.simulation import simulate

RELEASE = paid("gaussian", 3.0)
SHARED = np.array([3.0, 4.0])
HALF = ("0", "2")


class StandingByClient(ToyClient):
    @toy_answers("what was sent, times a weight")
    def tell(self, array, *own, weight=1.0):
        return on_grid(weight * array + sum(own))

    @answers()
    def note(self, *arrays, **arguments):
        self.remember(
            "noted", [np.array(len(arrays)), *arrays, np.array(arguments.get("weight", -1.0))]
        )

    @answers("what was noted")
    def noted(self):
        found = self.recall("noted")
        return (
            np.array([-1.0])
            if found is None
            else np.concatenate([np.ravel(array) for array in found])
        )

    @answers()
    def note_rows(self, *arrays, **arguments):
        self.remember("noted", [self.rows.sum(axis=0)])

    @answers(Sent("a copy of the rows", per="row", kept_as="copy"))
    def keep(self):
        return 10.0 * self.rows

    @answers()
    def stumble(self, *arrays, who="1", **arguments):
        if self.name in who.split(","):
            raise DataError(f"client {self.name} stumbles.")

    @answers()
    def fall(self, *arrays, **arguments):
        raise RuntimeError(f"the patient's row is {self.rows[0].tolist()}")

    @answers()
    def miss(self, *arrays, **arguments):
        raise MissedRoundError(f"client {self.name} was not there.")


class StandingBy(Toy):
    client_type = StandingByClient


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 2)) for n in (5, 3, 7, 4)]


TELL, NOTE = StandingByClient.tell.asked(SHARED), StandingByClient.note.asked(SHARED)
STUMBLE, MOMENTS = StandingByClient.stumble.asked(), StandingByClient.moments.asked()


def half(kind=Sum, question=TELL, **options):
    return kind(question, **({"clients": HALF, "others": NOTE} | options))


def run(rounds, clients, misbehave=None, by=drive, **options):
    proxies = proxies_of(StandingByClient, clients)
    for index, what in (misbehave or {}).items():
        proxies[index].misbehave[2] = what
    toy = StandingBy(rounds, **options)
    by(toy, proxies)
    return toy, proxies


# Who is given which task, with what.


def test_clients_that_a_round_does_not_ask_get_the_other_task(clients):
    _, proxies = run([half()], clients)
    assert [(proxy.asked["tell"], proxy.asked["note"]) for proxy in proxies] == [
        (1, 0),
        (0, 1),
        (1, 0),
        (0, 1),
    ]


def test_without_another_task_they_hear_nothing_of_the_round(clients):
    _, proxies = run([half(others=None)], clients)
    assert [sum(proxy.asked.values()) for proxy in proxies] == [2, 1, 2, 1]


def test_they_are_asked_their_own_question_and_none_that_is_for_a_single_client(clients):
    own = {"0": np.full(2, 100.0), "2": np.full(2, 200.0)}
    questions = {
        name: StandingByClient.tell.asked(SHARED, array, weight=2.0) for name, array in own.items()
    }
    note = StandingByClient.note.asked(SHARED, weight=2.0)
    toy, proxies = run([half(Gather, questions, clients=None, others=note)], clients)
    assert [reply.arrays[0].tolist() for reply in toy.outcome.model.brought[0]] == [
        [106.0, 108.0],
        [206.0, 208.0],
    ]
    for proxy in proxies[1::2]:
        n_arrays, array, weight = proxy.client().recall("noted")
        assert (n_arrays, array.tolist(), weight) == (1, SHARED.tolist(), 2.0)
        (received,) = parameters_to_ndarrays(proxy.received[1].parameters)
        assert np.array_equal(received, SHARED)
        assert json.loads(proxy.received[1].config["arguments"]) == {"weight": 2.0}


def test_they_see_the_rows_that_the_round_names(clients):
    rounds = [
        Sum(StandingByClient.keep.asked()),
        half(rows="copy", others=StandingByClient.note_rows.asked()),
    ]
    _, proxies = run(rounds, clients)
    for proxy, rows in zip(proxies[1::2], clients[1::2], strict=True):
        np.testing.assert_allclose(proxy.client().recall("noted")[0], 10.0 * rows.sum(axis=0))


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_they_are_told_nothing_of_the_noise(clients, noise):
    _, proxies = run([half(releases=[RELEASE])], clients, noise=noise, epsilon=1.0, delta=1e-6)
    for proxy in proxies[1::2]:
        # The last three are told to everybody.
        told = {"format", "client", "task", "round", "arguments", "run", "n_clients", "plan"}
        assert set(proxy.received[1].config) == told
    for proxy in proxies[::2]:
        assert (
            ("parts" in proxy.received[1].config)
            == ("n_shares" in proxy.received[1].config)
            == (noise != "server")
        )


def test_where_a_round_asks_all_there_are_no_others(clients):
    toy, proxies = run([half(clients=None)], clients)
    assert [proxy.asked["note"] for proxy in proxies] == [0] * 4
    assert toy.outcome.model.brought[0][0].tolist() == (4 * SHARED).tolist()


def test_a_fraction_is_drawn_as_it_is_without_others_and_all_the_rest_gets_the_other_task(clients):
    many = clients * 5
    drawn = []
    for others in (NOTE, None):
        rounds = [Gather(StandingByClient.tell.asked(SHARED), fraction=0.25, others=others)] * 3
        toy, proxies = run(rounds, many, random_state=3)
        drawn.append([[reply.client for reply in replies] for replies in toy.outcome.model.brought])
        assert {proxy.asked["tell"] + proxy.asked["note"] for proxy in proxies} == {3} or not others
        assert sum(proxy.asked["note"] for proxy in proxies) == (3 * 15 if others else 0)
    assert drawn[0] == drawn[1]
    assert [len(names) for names in drawn[0]] == [5, 5, 5]


# Nothing of theirs is used.


@pytest.mark.parametrize("kind", [Sum, Gather])
def test_what_the_round_brings_is_what_it_brings_without_others(clients, kind):
    def brought(others):
        toy, _ = run(
            [half(kind, MOMENTS, others=others), Sum(StandingByClient.moments.asked())], clients
        )
        first, second = toy.outcome.model.brought
        first = [array for reply in first for array in reply.arrays] if kind is Gather else first
        return [array.tolist() for array in (*first, *second)], toy.report.messages

    assert brought(NOTE) == brought(None)


@pytest.mark.parametrize("by", [drive, serve])
@pytest.mark.parametrize("kind", [Sum, Gather])
@pytest.mark.parametrize(
    "arrays", [[np.full(2, 1e6)], [np.full(3, np.nan)], [np.ones(1)] * 5], ids=["fits", "bad", "5"]
)
def test_arrays_that_one_of_them_sends_anyway_change_nothing(clients, kind, arrays, by):
    toy, _ = run([half(kind)], clients, {1: replaced(arrays)}, by)
    honest, _ = run([half(kind)], clients, by=by)
    for one, other in zip(
        toy.outcome.model.brought[0], honest.outcome.model.brought[0], strict=True
    ):
        assert getattr(one, "client", None) == getattr(other, "client", None)
        assert np.array_equal(
            getattr(one, "arrays", [one])[0], getattr(other, "arrays", [other])[0]
        )
    assert toy.failures == []
    assert toy.report.messages == honest.report.messages


def test_one_of_them_cannot_take_the_name_of_a_client_that_was_asked(clients):
    def renamed(res):
        return with_hash(FitRes(res.status, encode([np.full(2, 1e6)]), 1, res.metrics))

    toy, _ = run([half(Gather)], clients, {1: renamed})
    assert [(reply.client, reply.arrays[0].tolist()) for reply in toy.outcome.model.brought[0]] == [
        ("0", SHARED.tolist()),
        ("2", SHARED.tolist()),
    ]


# Traffic and report.


def test_the_report_says_how_many_were_drawn_and_lists_only_them(clients):
    rounds = [
        half(),
        half(Gather, StandingByClient.all_rows.asked()),
        Sum(StandingByClient.moments.asked()),
    ]
    toy, _ = run(rounds, clients)
    assert [(m.task, m.detail, m.clients) for m in toy.report.messages] == [
        ("enrol", "one per client", None),
        ("tell", "sum over the clients, 2 of 4 clients asked", ("0", "2")),
        ("all_rows", "one per row, 2 of 4 clients asked", ("0", "2")),
        ("moments", "sum over the clients", None),
        ("moments", "sum over the clients", None),
    ]


@pytest.mark.parametrize("others", [NOTE, None])
def test_a_client_that_was_asked_and_is_silent_counts_as_drawn(clients, others):
    toy, _ = run([half(clients="012", others=others)], clients, {2: raising(TimeoutError("gone"))})
    (message,) = [message for message in toy.report.messages if message.task == "tell"]
    assert message.detail == "sum over the clients, 3 of 4 clients asked"
    assert message.clients == ("0", "1", "2")


# Failures.


def test_one_that_refuses_is_a_failure_of_its_own_task_and_the_run_goes_on(clients):
    toy, _ = run([half(others=STUMBLE), Sum(StandingByClient.moments.asked())], clients)
    assert toy.failures == [Failure(2, "stumble", "1", "client 1 stumbles.")]
    assert toy.outcome.model.brought[0][0].tolist() == (2 * SHARED).tolist()
    assert toy.outcome.model.brought[1][0] == [19.0]
    told = [message for message in toy.report.unprotected if message.task == "stumble"]
    assert [message.content for message in told] == [
        "why client 1 could not answer (a row and a column, no value)"
    ]


def test_one_that_missed_a_round_says_nothing_of_its_rows(clients):
    toy, _ = run([half(others=StandingByClient.miss.asked())], clients)
    assert [(failure.task, failure.reason) for failure in toy.failures] == [
        ("miss", "client 1 was not there."),
        ("miss", "client 3 was not there."),
    ]
    assert [message.task for message in toy.report.messages] == ["enrol", "tell"]


@pytest.mark.parametrize("by", [drive, serve])
def test_one_that_is_silent_is_a_failure_of_its_own_task_and_in_the_traffic(clients, by):
    toy, _ = run(
        [half(), Sum(StandingByClient.moments.asked())],
        clients,
        {1: raising(TimeoutError("gone"))},
        by,
    )
    assert toy.failures == [
        Failure(2, "note", "1", "client 1 did not answer (TimeoutError: gone).")
    ]
    down = len(encode([SHARED]).tensors[0])
    assert [
        (row.client, row.task, row.bytes_down, row.bytes_up)
        for row in toy.traffic
        if row.round == 2
    ] == [
        ("0", "tell", down, down),
        ("1", "note", down, 0),
        ("2", "tell", down, down),
        ("3", "note", down, 0),
    ]
    assert toy.outcome.model.brought[1][0] == [19.0]


@pytest.mark.parametrize("min_clients", [None, 2])
def test_failures_among_them_do_not_count_against_min_clients(clients, min_clients):
    gone = raising(TimeoutError("gone"))
    toy, _ = run([half()], clients, {1: gone, 3: gone}, min_clients=min_clients)
    assert toy.is_finished
    assert [failure.client for failure in toy.failures] == ["1", "3"]


def test_where_clients_bring_the_noise_all_that_are_asked_have_to_answer_and_no_others(clients):
    private = {"noise": "clients", "epsilon": 1.0, "delta": 1e-6}
    rounds = [half(clients="012", releases=[RELEASE])]
    toy, proxies = run(rounds, clients, {3: raising(TimeoutError("gone"))}, **private)
    assert toy.is_finished
    assert [proxy.received[1].config["n_shares"] for proxy in proxies[:3]] == [3, 3, 3]
    with pytest.raises(
        ProtocolError, match=r"2 clients answered and 3 have to .*share of the noise is missing too"
    ):
        run(rounds, clients, {2: raising(TimeoutError("gone"))}, **private)


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_a_sum_has_the_noise_of_its_release_and_none_of_theirs(noise):
    size = 4000
    rounds = [half(question=StandingByClient.tell.asked(np.zeros(size)), releases=[RELEASE])]
    toy = StandingBy(rounds, noise=noise, epsilon=1.0, delta=1e-6)
    (noisy,) = simulate(toy, [np.ones((2, 2))] * 4, seed=1).model.brought[0]
    assert np.std(noisy) == pytest.approx(
        RELEASE.scale * (np.sqrt(2) if noise == "local" else 1.0), rel=0.05
    )


# What is refused.


def test_a_task_for_them_that_sends_something_is_refused_with_a_sentence(clients):
    for asked in (HALF, None):
        with pytest.raises(ProtocolError) as caught:
            run([half(clients=asked, others=MOMENTS)], clients)
        assert (
            str(caught.value)
            == "'moments' is for clients that a round does not ask, and sends something."
        )


def test_a_question_for_them_that_their_class_does_not_know_is_refused_with_a_sentence(clients):
    class Dancing(ToyClient):
        @answers()
        def dance(self):
            pass

    with pytest.raises(
        ProtocolError,
        match="StandingByClient has no method 'dance'; the strategy's client_type must",
    ):
        run([half(others=Dancing.dance.asked())], clients)


# Elsewhere.


def test_a_run_under_the_message_api_is_the_inline_run(clients):
    rounds = [
        Sum(StandingByClient.tell.asked(SHARED, weight=2.0), fraction=0.5, others=NOTE),
        half(others=STUMBLE),
        Gather(StandingByClient.noted.asked()),
    ]
    inline = simulate(StandingBy(rounds, random_state=1), clients)
    strategy = StandingBy(rounds, random_state=1)
    app = client_app(
        StandingByClient, lambda context: ClientData(clients[context.node_config["partition-id"]])
    )
    MessageStrategy(strategy).start(LocalGrid(app, 4))
    assert strategy.traffic == inline.traffic
    assert strategy.failures == inline.failures
    assert strategy.report.messages == inline.privacy.messages
    found, expected = strategy.outcome.model.brought[2], inline.model.brought[2]
    assert [(r.client, r.arrays[0].tolist()) for r in found] == [
        (r.client, r.arrays[0].tolist()) for r in expected
    ]
    assert sum(len(reply.arrays[0]) > 1 for reply in found) == 2


# Randomness that a client shares with nobody.


def generator(name, random_state=5):
    return StandingByClient(np.ones((1, 2)), name=name).generator(random_state)


@pytest.mark.parametrize(
    ("name", "random_state"), [("bergen", 5), ("osl", 5), ("oslo0", 5), ("Oslo", 5), ("oslo", 6)]
)
def test_another_client_and_another_random_state_draw_otherwise(name, random_state):
    assert not np.array_equal(
        generator("oslo").uniform(size=9), generator(name, random_state).uniform(size=9)
    )

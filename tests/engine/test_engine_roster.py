"""Clients that come late, go, come back, or are silent."""

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, manager_of, on_grid, paid, proxies_of, raising
from flwr.server import SimpleClientManager

import flower_fedclust as fc
from flower_fedclust.checking.runs import watched_run
from flower_fedclust.engine import Gather, ProtocolError, Sent, Sum, answers
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import MissedRoundError
from flower_fedclust.exact.terms import Bound
from flower_fedclust.models import KMeansModel

MOMENTS = Sum(ToyClient.moments.asked())


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 2)) for n in (5, 3, 7, 4)]


def drive_on(toy, manager, before=lambda number: None, *, wait=0.0):
    """Call the strategy as Flower does; ``before`` is called with the number of each round before it."""
    toy.wait_for_clients = wait
    toy.initialize_parameters(manager)
    for number in range(1, toy.num_rounds + 1):
        before(number)
        results, failures = [], []
        for proxy, ins in toy.configure_fit(number, None, manager):
            try:
                results.append((proxy, proxy.fit(ins)))
            except Exception as error:
                failures.append(error)
        toy.aggregate_fit(number, results, failures)


def run(toy, manager, before=lambda number: None, *, wait=0.0):
    drive_on(toy, manager, before, wait=wait)
    return [int(brought[0][0]) for brought in toy.outcome.model.brought]


def at(number, *actions):
    return lambda now: [action() for action in actions if now == number]


def test_a_client_that_comes_late_has_a_part_from_the_next_round_on(clients):
    proxies = proxies_of(ToyClient, clients)
    manager = manager_of(proxies[:3])
    toy = Toy(3 * [MOMENTS])
    assert run(toy, manager, at(2, lambda: manager.register(proxies[3]))) == [15, 19, 19]
    assert toy.client_names == ["0", "1", "2", "3"]
    assert toy.failures == []
    assert [message.round for message in toy.report.messages if message.task == "enrol"] == [1, 2]


def test_a_client_that_went_and_comes_back_as_another_node_is_itself_again(clients):
    proxies = proxies_of(ToyClient, clients)
    again = proxies_of(ToyClient, clients[:1], ["2"])[0]
    again.rows, again.cid = clients[2], "777"
    manager = manager_of(proxies)
    steps = {3: lambda: manager.unregister(proxies[2]), 4: lambda: manager.register(again)}
    toy = Toy(5 * [MOMENTS])
    assert run(toy, manager, lambda number: steps.get(number, int)()) == [19, 12, 12, 19, 19]
    assert [(one.round, one.client, one.reason) for one in toy.failures] == [
        (number, "2", "client 2 is not connected.") for number in (3, 4)
    ]


@pytest.mark.parametrize(
    ("rows", "name", "reason"),
    [
        (np.ones((2, 2)), "2", "2 clients call themselves '2'"),
        (np.ones((2, 3)), "late", "client late has 3 columns where most have 2 columns."),
    ],
)
def test_a_late_client_has_a_name_of_its_own_and_the_columns_of_the_others(
    clients, rows, name, reason
):
    manager = manager_of(proxies_of(ToyClient, clients))
    late = proxies_of(ToyClient, [rows], [name])[0]
    late.cid = "777"
    toy = Toy(2 * [MOMENTS])
    assert run(toy, manager, at(2, lambda: manager.register(late))) == [19, 19]
    assert toy.failures[0].reason.startswith(reason)


def test_who_is_silent_again_and_again_is_asked_less_and_less_often_and_taken_back_when_it_answers(
    clients,
):
    proxies = proxies_of(ToyClient, clients)
    for number in (2, 3, 5):
        proxies[3].misbehave[number] = raising(TimeoutError("gone"))
    toy = Toy(12 * [MOMENTS])
    counts = run(toy, manager_of(proxies))
    assert [2 + index for index, count in enumerate(counts) if count == 15] == [2, 3, 4, 5, 6, 7, 8]
    assert proxies[3].asked["moments"] == 12 - 4  # not in rounds 4, 6, 7 and 8
    reasons = {failure.round: failure.reason for failure in toy.failures}
    assert reasons[4] == "client 3 was silent 2 times and was not asked."


def test_with_the_clients_noise_those_that_are_there_bring_all_of_it(clients):
    proxies = proxies_of(ToyClient, clients)
    manager = manager_of(proxies)
    releases = [paid("gaussian", 1.0), paid("gaussian", 2.0)]
    toy = Toy(2 * [Sum(ToyClient.moments.asked(), releases=releases)], noise="clients", epsilon=1.0)
    run(toy, manager, at(3, lambda: manager.unregister(proxies[0])))
    shares = [proxies[1].received[number].config["n_shares"] for number in (1, 2)]
    assert shares == [4, 3]
    assert len(toy.report.releases) == 4


def test_too_few_that_are_there_end_the_run_before_anything_is_sent(clients):
    proxies = proxies_of(ToyClient, clients[:2])
    manager = manager_of(proxies)
    with pytest.raises(ProtocolError) as caught:
        run(Toy(2 * [MOMENTS]), manager, at(3, lambda: manager.unregister(proxies[0])))
    assert (
        str(caught.value)
        == "round 3 ('moments'): 1 clients answered and 2 have to. client 0 is not connected."
    )
    assert proxies[1].asked["moments"] == 1


class ComingBack(SimpleClientManager):
    """Has all of its clients again only when it has been asked for them a few times."""

    gone = None
    left = 3

    def all(self):
        self.left -= self.gone is not None
        return {
            cid: proxy for cid, proxy in super().all().items() if cid != self.gone or self.left < 0
        }


def test_where_too_few_are_there_they_are_waited_for(clients):
    proxies = proxies_of(ToyClient, clients[:2])
    manager = ComingBack()
    for proxy in proxies:
        manager.register(proxy)

    def before(number):
        manager.gone = proxies[0].cid if number == 3 else None

    assert run(Toy(2 * [MOMENTS]), manager, before, wait=30.0) == [8, 8]


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_dp_fedc_goes_on_where_one_of_four_clients_is_frozen(epsilon):
    rng = np.random.default_rng(0)
    data = {
        name: fc.ClientData(rng.normal(size=(20, 3)), owner=f"client {name}") for name in "abcd"
    }
    private = {} if epsilon is None else {"epsilon": epsilon, "max_norm": 3.0}
    strategy = fc.DPFedC(2, n_rounds=8, random_state=0, **private)

    def frozen(number, honest):
        if number >= 4:
            raise TimeoutError("frozen")
        return honest()

    found = watched_run(strategy, data, seed=1, tamper={"b": frozen})
    assert found.strategy.is_finished
    assert {failure.client for failure in found.strategy.failures} == {"b"}
    answered = {
        row.round for row in found.strategy.traffic if row.task in ("factorize", "clipped_gradient")
    }
    assert max(answered) == found.strategy.num_rounds


def test_a_site_that_returns_under_its_node_enrols_first_and_is_asked_for_one_thing_a_round(
    clients,
):
    proxies = proxies_of(ToyClient, clients)
    manager = manager_of(proxies)
    steps = {3: lambda: manager.unregister(proxies[2]), 4: lambda: manager.register(proxies[2])}
    toy = Toy(5 * [MOMENTS])
    assert run(toy, manager, lambda number: steps.get(number, int)()) == [19, 12, 12, 19, 19]
    assert [ins.config["task"] for ins in proxies[2].received] == [
        "enrol",
        "moments",
        "enrol",
        "moments",
        "moments",
    ]
    assert [(one.round, one.client) for one in toy.failures] == [(3, "2"), (4, "2")]


def test_a_site_that_returns_is_asked_at_once_where_too_few_would_be_left(clients):
    proxies = proxies_of(ToyClient, clients[:3])
    manager = manager_of(proxies)
    steps = {
        3: lambda: manager.unregister(proxies[2]),
        4: lambda: [manager.unregister(proxies[0]), manager.register(proxies[2])],
    }
    toy = Toy(3 * [MOMENTS])
    assert run(toy, manager, lambda number: steps.get(number, int)()) == [15, 8, 10]
    assert [ins.config["task"] for ins in proxies[2].received] == ["enrol", "moments", "moments"]


class Remembering(ToyClient):
    @answers("sum of what is kept")
    def stored(self):
        if (kept := self.recall("stored")) is None:
            raise MissedRoundError(f"client {self.name} has nothing.")
        return kept[0]


class RememberingToy(Toy):
    client_type = Remembering


def test_a_site_that_missed_what_a_round_left_with_the_others_is_sent_it_again(clients):
    proxies = proxies_of(Remembering, clients)
    late = proxies_of(Remembering, clients[:1], ["late"])[0]
    late.cid = "777"
    manager = manager_of(proxies)
    honest = proxies[1].fit
    proxies[1].fit = lambda ins: (
        raising(TimeoutError("gone"))(None) if ins.config["round"] == 2 else honest(ins)
    )
    rounds = [
        Gather(Remembering.store.asked(np.array([1]))),
        *5 * [Sum(Remembering.stored.asked())],
    ]
    toy = RememberingToy(rounds)
    drive_on(toy, manager, at(3, lambda: manager.register(late)))
    assert [int(one[0][0]) for one in toy.outcome.model.brought[1:]] == [3, 4, 5, 5, 5]
    assert [ins.config["task"] for ins in late.received] == [
        "enrol",
        "store",
        "stored",
        "stored",
        "stored",
    ]
    assert [ins.config["task"] for ins in proxies[1].received] == [
        "enrol",
        "store",
        *4 * ["stored"],
    ]


class Keeping(ToyClient):
    @answers(Sent("the rows", "rows", per="row", kept_as="copy"), moved=lambda _: (Bound(0.2),))
    def keep(self):
        return on_grid(np.clip(self.rows, -0.1, 0.1))


class KeepingToy(Toy):
    client_type = Keeping
    n_protocol_rounds = 5

    def parts(self):
        return {"rows": Part(Keeping.keep, 1.0)}

    def protocol(self):
        yield Sum(Keeping.keep.asked(), parts=["rows"])
        for _ in range(4):
            yield Sum(Keeping.moments.asked(), rows="copy")
        return KMeansModel(np.eye(2))


def test_what_took_noise_is_sent_to_a_late_site_once_and_to_nobody_a_second_time(clients):
    proxies = proxies_of(Keeping, clients)
    late = proxies_of(Keeping, clients[:1], ["late"])[0]
    late.cid = "777"
    manager = manager_of(proxies)
    # The first when all are asked, the second when it is sent it.
    silent = {(proxies[1].fit, 2), (late.fit, 4)}

    def fit(honest):
        return lambda ins: (
            raising(OSError())(0) if (honest, ins.config["round"]) in silent else honest(ins)
        )

    proxies[1].fit, late.fit = fit(proxies[1].fit), fit(late.fit)
    toy = KeepingToy([], noise="local", epsilon=1.0)
    drive_on(toy, manager, at(3, lambda: manager.register(late)))
    asked = [ins.config["task"] for proxy in (proxies[1], late) for ins in proxy.received]
    assert asked.count("keep") == 0
    assert [message.clients for message in toy.report.messages if message.task == "keep"] == [None]
    assert toy.report.epsilon <= 1.0

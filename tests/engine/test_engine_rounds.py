import io
import sys
from collections import Counter

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, drive, manager_of, proxies_of, raising, serve
from flwr.common import parameters_to_ndarrays

from flower_fedclust.engine import Gather, ProtocolError, Sum
from flower_fedclust.simulation import simulate


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 2)) for n in (5, 3, 7, 4)]


def size_of(*arrays):
    total = 0
    for array in arrays:
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(array), allow_pickle=False)
        total += buffer.tell()
    return total


def test_sum_round_brings_the_sum_over_the_clients(clients):
    toy = Toy([Sum(ToyClient.moments.asked(power=2))])
    (sums,) = simulate(toy, clients).model.brought
    pooled = np.concatenate(clients)
    assert sums[0] == [len(pooled)]
    np.testing.assert_allclose(sums[1], (pooled**2).sum(axis=0), atol=1e-10)


def test_gather_round_brings_every_reply_with_its_client(clients):
    (replies,) = simulate(Toy([Gather(ToyClient.all_rows.asked())]), clients).model.brought
    assert [reply.client for reply in replies] == ["0", "1", "2", "3"]
    for reply, rows in zip(replies, clients, strict=True):
        assert np.array_equal(reply.arrays[0], rows)


def test_client_remembers_through_the_context_although_every_message_has_a_new_object(clients):
    toy = Toy([Gather(ToyClient.visits.asked())] * 3)
    brought = simulate(toy, clients).model.brought
    for number, replies in enumerate(brought, start=1):
        assert [reply.arrays[0][0] for reply in replies] == [number] * 4


def test_a_second_run_does_not_see_what_the_first_left_in_the_clients(clients):
    toy = Toy([Gather(ToyClient.visits.asked())])
    for _ in range(2):
        (replies,) = simulate(toy, clients).model.brought
        assert [reply.arrays[0][0] for reply in replies] == [1.0] * 4


def test_a_question_for_a_single_client_reaches_only_that_client(clients):
    own = {"2": np.array([10.0]), "0": np.array([100.0])}
    toy = Toy(
        [
            Gather(
                {
                    name: ToyClient.scaled.asked(np.array([3.0]), factor)
                    for name, factor in own.items()
                }
            )
        ]
    )
    proxies = proxies_of(ToyClient, clients)
    (replies,) = drive_and_take(toy, proxies)
    assert [(reply.client, reply.arrays[0][0]) for reply in replies] == [("0", 300.0), ("2", 30.0)]
    assert [proxy.asked["scaled"] for proxy in proxies] == [1, 0, 1, 0]


def drive_and_take(toy, proxies, **options):
    drive(toy, proxies, **options)
    return toy.outcome.model.brought


def test_fraction_draws_by_random_state_and_anew_in_every_round(clients):
    def drawn(random_state):
        rounds = [Gather(ToyClient.visits.asked(), fraction=0.5)] * 4
        brought = simulate(Toy(rounds, random_state=random_state), clients * 5).model.brought
        return [[reply.client for reply in replies] for replies in brought]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len({tuple(names) for names in drawn(1)}) > 1


def test_fraction_never_asks_fewer_than_min_clients(clients):
    (replies,) = simulate(
        Toy([Gather(ToyClient.visits.asked(), fraction=0.01)], min_clients=3), clients
    ).model.brought
    assert len(replies) == 3
    (replies,) = simulate(
        Toy([Gather(ToyClient.visits.asked(), fraction=0.01)]), clients
    ).model.brought
    assert len(replies) == 2


@pytest.mark.parametrize("seed", range(5))
def test_order_in_which_replies_come_changes_no_bit(clients, seed):
    rng = np.random.default_rng(seed)
    many = [rng.normal(size=(3, 2)) * 10.0 ** rng.integers(-8, 8) for _ in range(15)]
    rounds = [
        Sum(ToyClient.moments.asked()),
        Gather(ToyClient.all_rows.asked()),
        Sum(ToyClient.moments.asked(power=3)),
    ]

    def shuffled(results):
        return [results[index] for index in rng.permutation(len(results))]

    straight = drive_and_take(Toy(rounds), proxies_of(ToyClient, many))
    mixed = drive_and_take(Toy(rounds), proxies_of(ToyClient, many), reorder=shuffled)
    for first, second in zip(straight, mixed, strict=True):
        for one, other in zip(first, second, strict=True):
            assert getattr(one, "client", None) == getattr(other, "client", None)
            assert np.array_equal(
                getattr(one, "arrays", [one])[0], getattr(other, "arrays", [other])[0]
            )


def test_names_that_are_numbers_are_sorted_by_value_and_come_before_the_others(clients):
    names = ["10", "oslo", "9", "bergen", "2"]
    toy = Toy([Gather(ToyClient.visits.asked())])
    drive(toy, proxies_of(ToyClient, clients[:1] * 5, names))
    assert toy.client_names == ["2", "9", "10", "bergen", "oslo"]
    assert [reply.client for reply in toy.outcome.model.brought[0]] == [
        "2",
        "9",
        "10",
        "bergen",
        "oslo",
    ]


def test_model_is_returned_by_the_last_aggregate_fit(clients):
    parameters = drive(
        Toy([Sum(ToyClient.visits.asked()), Sum(ToyClient.visits.asked())]),
        proxies_of(ToyClient, clients),
    )
    (centers,) = parameters_to_ndarrays(parameters)
    assert np.array_equal(centers, [[0.0, 0.0], [1.0, 1.0]])


def test_rounds_after_the_protocol_has_returned_ask_nobody(clients):
    proxies = proxies_of(ToyClient, clients)
    toy = serve(Toy([Sum(ToyClient.visits.asked())]), proxies, num_rounds=5)
    assert toy.is_finished
    assert [sum(proxy.asked.values()) for proxy in proxies] == [2] * 4
    assert toy.configure_fit(6, None, manager_of(proxies)) == []


def test_too_few_rounds_give_an_error_that_names_num_rounds(clients):
    toy = Toy([Sum(ToyClient.moments.asked()), Sum(ToyClient.visits.asked())])
    serve(toy, proxies_of(ToyClient, clients), num_rounds=2)
    assert not toy.is_finished
    with pytest.raises(
        ProtocolError,
        match=r"had 2 rounds and stopped before 'visits'; .*give ServerConfig\(num_rounds=3\)",
    ):
        _ = toy.outcome


def test_after_an_error_the_outcome_says_what_it_was(clients):
    toy = Toy([Sum(ToyClient.moments.asked()), Sum(ToyClient.clipped.asked())])
    with pytest.raises(ProtocolError, match="0 clients answered") as caught:
        serve(toy, proxies_of(ToyClient, clients))
    with pytest.raises(ProtocolError) as said:
        _ = toy.outcome
    assert str(said.value) == f"the run ended early: {caught.value}"
    toy.rounds = toy.rounds[:1]
    serve(toy, proxies_of(ToyClient, clients))
    assert toy.outcome.model is not None


def test_strategy_runs_twice_in_a_row_and_begins_anew(clients):
    toy = Toy(
        [Sum(ToyClient.moments.asked()), Gather(ToyClient.visits.asked(), fraction=0.5)],
        random_state=5,
    )
    states = []
    for _ in range(2):
        drive(toy, proxies_of(ToyClient, clients))
        replies = toy.outcome.model.brought[1]
        states.append(
            (toy.traffic, toy.failures, toy.report.messages, [reply.client for reply in replies])
        )
    assert states[0] == states[1]
    assert len(states[1][2]) == 1 + 2 + 1


def test_on_round_is_called_after_every_round_with_its_task(clients):
    toy = Toy([Sum(ToyClient.moments.asked()), Sum(ToyClient.visits.asked())])
    calls = []
    toy.on_round = lambda number, task: calls.append((number, task))
    drive(toy, proxies_of(ToyClient, clients))
    assert calls == [(1, "enrol"), (2, "moments"), (3, "visits")]


def test_traffic_counts_the_bytes_of_the_serialised_arrays(clients):
    shared = np.zeros((5, 4))
    own = {"1": np.zeros(3), "3": np.zeros(8)}
    questions = {name: ToyClient.scaled.asked(shared[:1, :1], array) for name, array in own.items()}
    toy = Toy([Sum(ToyClient.moments.asked()), Gather(questions)])
    result = simulate(toy, clients)
    found = {
        (row.round, row.client): (row.task, row.bytes_down, row.bytes_up) for row in result.traffic
    }
    expected = {(1, name): ("enrol", 0, 0) for name in "0123"}
    expected |= {(2, name): ("moments", 0, size_of(np.zeros(1), np.zeros(2))) for name in "0123"}
    for name, array in own.items():
        expected[3, name] = (
            "scaled",
            size_of(shared[:1, :1], array),
            size_of(shared[:1, :1] * array),
        )
    assert found == expected
    assert result.bytes_down == sum(row[1] for row in expected.values())
    assert result.bytes_up == sum(row[2] for row in expected.values())


def test_report_lists_every_array_that_was_sent_and_who_sees_it(clients):
    toy = Toy(
        [
            Sum(ToyClient.moments.asked()),
            Gather(ToyClient.all_rows.asked()),
            Gather(ToyClient.visits.asked()),
        ]
    )
    report = simulate(toy, clients).privacy
    listed = [(m.round, m.task, m.content, m.detail, m.harmless) for m in report.messages]
    assert listed == [
        (1, "enrol", "name and columns", "one per client", True),
        (2, "moments", "number of rows", "sum over the clients", False),
        (2, "moments", "sum of the rows to a power", "sum over the clients", False),
        (3, "all_rows", "the rows", "one per row", False),
        (4, "visits", "how often this client was asked", "one per client", False),
    ]
    assert len(report.unprotected) == 4
    assert not report.covers_everything
    assert report.epsilon == float("inf")


def test_number_of_examples_does_not_depend_on_the_number_of_rows(clients):
    proxies = proxies_of(ToyClient, clients)
    drive(Toy([Sum(ToyClient.moments.asked()), Gather(ToyClient.all_rows.asked())]), proxies)
    assert {res.num_examples for proxy in proxies for res in proxy.sent} == {1}


def test_a_sum_knows_over_how_many_clients_it_is(clients):
    proxies = proxies_of(ToyClient, clients)
    proxies[1].misbehave[3] = raising(TimeoutError("gone"))
    rounds = [Sum(ToyClient.moments.asked())] * 2 + [
        Sum(ToyClient.visits.asked(), clients=["0", "3"])
    ]
    totals = drive_and_take(Toy(rounds), proxies)
    assert [total.n_clients for total in totals] == [4, 3, 2]
    count, _ = totals[0]
    assert (count / totals[0].n_clients).tolist() == [19 / 4]


def test_a_question_holds_the_method_its_arrays_and_plain_arguments():
    question = ToyClient.moments.asked(power=np.int64(3))
    assert (question.answer.task, question.arrays, question.arguments) == (
        "moments",
        (),
        {"power": 3},
    )
    assert type(question.arguments["power"]) is int
    assert ToyClient.scaled.asked([1, 2], 3).arrays[0].tolist() == [1, 2]


def test_a_strategy_that_yields_more_rounds_than_it_says_is_told_so(clients):
    class Short(Toy):
        n_protocol_rounds = 1

    with pytest.raises(
        ProtocolError, match=r"'visits' is round 2 of the protocol, and .* at most 1;"
    ):
        simulate(Short([Sum(ToyClient.visits.asked())] * 2), clients)


@pytest.mark.parametrize("kind", [Sum, Gather])
def test_the_log_of_a_round_takes_linear_time_in_the_number_of_clients(clients, kind):
    def n_calls(n_clients):
        toy = Toy(
            [
                kind(
                    ToyClient.moments.asked(),
                    clients=[str(index) for index in range(0, n_clients, 2)],
                )
            ]
        )
        proxies = proxies_of(ToyClient, clients[:1] * n_clients)
        manager = manager_of(proxies)
        toy.initialize_parameters(manager)
        for number in (1, 2):
            results = [
                (proxy, proxy.fit(ins)) for proxy, ins in toy.configure_fit(number, None, manager)
            ]
            calls = Counter()
            sys.setprofile(lambda frame, event, arg, calls=calls: calls.update([event]))
            try:
                toy.aggregate_fit(number, results, [])
            finally:
                sys.setprofile(None)
        return sum(calls.values())

    assert 0 < n_calls(80) <= 2 * n_calls(40)

"""What a client keeps instead of sending it, and what later rounds and the report make of it."""

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
    toy_answers,
)
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

from flower_fedclust.checking import LocalGrid
from flower_fedclust.engine import (
    ClientData,
    Failure,
    Gather,
    MessageStrategy,
    ProtocolError,
    Sent,
    Sum,
    answers,
    client_app,
)
from flower_fedclust.engine.wire import hashed
from flower_fedclust.format import FORMAT
from flower_fedclust.privacy.accounting import composed_epsilon, delta_of_composition
from flower_fedclust.privacy.noise import SeededNoise, add_noise, noise_in_floats
from flower_fedclust.privacy.releases import NOISE_PLACES
from flower_fedclust.simulation import simulate

RELEASE = paid("gaussian", 3.0, "replace")
LAPLACE = paid("laplace", 3.0, "replace")
CATCHES_UP = "client {} missed an earlier round, and is sent what that round left with the others."
MISSED = "client {0} has not kept its copy; it missed the round that makes them."


class KeepingClient(ToyClient):
    @toy_answers(Sent("a copy of the rows", per="row", kept_as="copy"))
    def keep(self, *, factor=1.0):
        return on_grid(factor * self.rows)

    @toy_answers(Sent("a copy, and ten", per="row", kept_as="second copy"))
    def keep_again(self):
        return on_grid(self.rows + 10.0)

    @toy_answers(Sent("one copy", kept_as="one"), Sent("another copy", kept_as="another"))
    def keep_two(self):
        return on_grid(self.rows), on_grid(2.0 * self.rows)

    @toy_answers(Sent("rows", kept_as="copy"), Sent("the method's noise", kept_as="own noise"))
    def keep_own_noise(self):
        own = noise_in_floats("gaussian", 1.0, self.rows.shape, self.noise_source)
        return on_grid(self.rows + own), on_grid(own)

    @answers(Sent("rows", kept_as="copy"), Sent("more", kept_as="second copy"))
    def keep_too_little(self):
        return self.rows

    @answers(Sent("rows and columns changed about", kept_as="copy"))
    def keep_transposed(self):
        return np.asfortranarray(self.rows.astype(np.float32)).T

    @toy_answers(Sent("number of rows", counts_rows=True))
    def count(self):
        return np.array([len(self.rows)])


class Keeping(Toy):
    client_type = KeepingClient


def private(rounds, **options):
    return Keeping(rounds, epsilon=1.0, delta=1e-6, **options)


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    made = [rng.normal(size=(n, 2)) + 50.0 * index for index, n in enumerate((5, 3, 7, 4))]
    return [np.round(rows * 2**20) / 2**20 for rows in made]  # on the grid of what the toy keeps


def away(proxy, *rounds):
    """Keep messages of these rounds from the client, so that it does not even work on them."""
    reached = proxy.fit

    def fit(ins, timeout=None, group_id=None):
        if ins.config["round"] in rounds:
            raise TimeoutError("gone")
        return reached(ins, timeout, group_id)

    proxy.fit = fit


def rows_of(replies):
    return {reply.client: reply.arrays[0] for reply in replies}


def is_post_processing(report, task):
    return [message.post_processing for message in report.messages if message.task == task]


# What is kept, and where.


@pytest.mark.parametrize("release", [None, RELEASE], ids=["bare", "noisy"])
@pytest.mark.parametrize("noise", NOISE_PLACES)
@pytest.mark.parametrize("kind", [Sum, Gather])
def test_reply_of_a_client_that_keeps_has_no_byte_of_an_array(clients, kind, noise, release):
    proxies = proxies_of(KeepingClient, clients)
    toy = private(
        [kind(KeepingClient.keep.asked(), releases=[release]), Sum(KeepingClient.visits.asked())],
        noise=noise,
    )
    drive(toy, proxies)
    for proxy in proxies:
        reply = proxy.sent[1]
        assert reply.parameters.tensors == []
        assert reply.metrics == hashed([], {"format": FORMAT, "client": proxy.name})
        assert reply.num_examples == 1
    assert [row.bytes_up for row in toy.traffic if row.task == "keep"] == [0] * 4


def test_later_round_sees_what_was_kept_under_its_name_and_the_next_one_the_true_rows(clients):
    rounds = [
        Sum(KeepingClient.keep.asked(factor=3.0)),
        Gather(KeepingClient.all_rows.asked()),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
        Gather(KeepingClient.all_rows.asked()),
        Sum(KeepingClient.moments.asked(), rows="copy"),
    ]
    _, before, kept, after, moments = simulate(Keeping(rounds), clients).model.brought
    for index, rows in enumerate(clients):
        assert np.array_equal(rows_of(before)[str(index)], rows)
        assert np.array_equal(rows_of(kept)[str(index)], 3.0 * rows)
        assert np.array_equal(rows_of(after)[str(index)], rows)
    np.testing.assert_allclose(moments[1], 3.0 * np.concatenate(clients).sum(axis=0))


def test_kept_array_is_in_the_contexts_state_and_nowhere_else(clients):
    proxies = proxies_of(KeepingClient, clients[:2])
    drive(
        Keeping([Sum(KeepingClient.keep.asked()), Sum(KeepingClient.moments.asked(), rows="copy")]),
        proxies,
    )
    for proxy, rows in zip(proxies, clients, strict=False):
        assert list(proxy.context.state) == ["fedclust.copy", "fedclust.copy asked"]
        kept, _ = proxy.context.state["fedclust.copy"].to_numpy_ndarrays()
        assert np.array_equal(kept, rows)
    fresh = Context(0, 1, UserConfig(), RecordDict(), UserConfig())
    other = KeepingClient(ClientData(clients[0]), name="0", context=fresh)
    _, _, facts = other.fit([], {"task": "all_rows", "round": 3, "rows": "copy"})
    assert facts["failure"] == MISSED.format(0)


def test_kept_arrays_outlive_the_client_object_by_hand_inline_and_under_the_message_api(clients):
    rounds = [
        Sum(KeepingClient.keep.asked(factor=3.0)),
        Sum(KeepingClient.moments.asked(), rows="copy"),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
    ]
    found = [simulate(Keeping(rounds), clients).model.brought]
    by_hand = Keeping(rounds)
    drive(by_hand, proxies_of(KeepingClient, clients))
    found.append(by_hand.outcome.model.brought)
    through_messages = Keeping(rounds)
    app = client_app(
        KeepingClient, lambda context: ClientData(clients[context.node_config["partition-id"]])
    )
    MessageStrategy(through_messages).start(LocalGrid(app, len(clients)))
    found.append(through_messages.outcome.model.brought)
    for other in found[1:]:
        assert np.array_equal(other[1][1], found[0][1][1])
        for one, another in zip(found[0][2], other[2], strict=True):
            assert one.client == another.client
            assert np.array_equal(one.arrays[0], another.arrays[0])


# Clients that were not there.


def test_client_that_missed_the_keeping_round_is_asked_again_and_takes_part_from_then_on(clients):
    proxies = proxies_of(KeepingClient, clients)
    away(proxies[1], 2)
    toy = Keeping(
        [
            Sum(KeepingClient.keep.asked()),
            Gather(KeepingClient.all_rows.asked(), rows="copy"),
            Sum(KeepingClient.moments.asked()),
            Sum(KeepingClient.moments.asked(), rows="copy"),
        ]
    )
    drive(toy, proxies)
    _, replies, true, kept = toy.outcome.model.brought
    assert toy.failures == [
        Failure(2, "keep", "1", "client 1 did not answer (TimeoutError: gone)."),
        Failure(3, "all_rows", "1", CATCHES_UP.format(1)),
    ]
    assert [reply.client for reply in replies] == ["0", "2", "3"]
    assert true[0] == [19.0]
    assert kept[0] == [19.0]


def test_client_that_missed_the_keeping_round_says_nothing_of_its_rows_by_saying_so(clients):
    proxies = proxies_of(KeepingClient, clients)
    away(proxies[1], 2)
    toy = private(
        [
            Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
            Sum(KeepingClient.moments.asked(), rows="copy"),
        ],
        noise="local",
    )
    drive(toy, proxies)
    assert toy.failures[-1] == Failure(3, "moments", "1", MISSED.format(1))
    assert toy.report.covers_everything
    assert not any(message.content.startswith("why") for message in toy.report.messages)


def test_name_under_which_nobody_has_kept_anything_stops_the_run_with_the_sentence(clients):
    with pytest.raises(
        ProtocolError, match="client 0 has not kept its copies; it missed the round that makes them"
    ):
        simulate(
            Keeping(
                [Sum(KeepingClient.keep.asked()), Sum(KeepingClient.moments.asked(), rows="copies")]
            ),
            clients,
        )


def test_client_that_sends_what_it_was_to_keep_has_failed(clients):
    proxies = proxies_of(KeepingClient, clients)
    proxies[3].misbehave[2] = replaced([clients[3]])
    toy = Keeping([Sum(KeepingClient.keep.asked()), Sum(KeepingClient.visits.asked())])
    drive(toy, proxies)
    reasons = ["client 3 sent 1 arrays where 0 were asked for.", CATCHES_UP.format(3)]
    assert [failure.reason for failure in toy.failures] == reasons


def test_answer_with_too_few_arrays_keeps_none_of_them(clients):
    proxies = proxies_of(KeepingClient, clients)
    with pytest.raises(ProtocolError, match="0 clients answered"):
        drive(Keeping([Sum(KeepingClient.keep_too_little.asked())]), proxies)
    assert [list(proxy.context.state) for proxy in proxies] == [[]] * 4


def test_array_that_was_kept_in_an_earlier_run_does_not_stand_in_for_one_that_was_missed(clients):
    # Several strategies in one `flwr run` share the Contexts of the clients.
    proxies = proxies_of(KeepingClient, clients)
    drive(Keeping([Sum(KeepingClient.keep.asked())]), proxies)
    away(proxies[1], 2)
    second = private(
        [
            Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
            Gather(KeepingClient.all_rows.asked(), rows="copy"),
        ],
        noise="local",
    )
    drive(second, proxies)
    assert [reply.client for reply in second.outcome.model.brought[1]] == ["0", "2", "3"]


# The noise.


@pytest.mark.parametrize("release", [RELEASE, LAPLACE], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("min_clients", [None, 2])
@pytest.mark.parametrize("noise", NOISE_PLACES)
@pytest.mark.parametrize("kind", [Sum, Gather])
def test_kept_array_has_all_the_noise_of_its_release_whatever_noise_is(
    clients, kind, noise, min_clients, release
):
    many = [np.full((1000, 2), 7.0)] * 3
    proxies = proxies_of(KeepingClient, many)
    rounds = [
        kind(KeepingClient.keep.asked(), releases=[release]),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
    ]
    toy = private(rounds, noise=noise, min_clients=min_clients)
    drive(toy, proxies)
    kept = rows_of(toy.outcome.model.brought[1])
    for proxy in proxies:
        config = proxy.received[1].config
        assert config["n_shares"] == 1
        assert json.loads(config["parts"]) == [release.share]
        drawn = kept[proxy.name] - 7.0
        assert abs(drawn.mean()) < 0.1 * release.standard_deviation
        assert np.std(drawn) == pytest.approx(release.standard_deviation, rel=0.12)
    correlations = np.corrcoef([kept[proxy.name].ravel() for proxy in proxies])
    assert np.abs(correlations - np.eye(3)).max() < 0.12


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_noise_is_in_the_kept_array_itself_and_is_not_drawn_again_when_it_is_used(clients, noise):
    proxies = proxies_of(KeepingClient, clients, seed=4)
    toy = private(
        [
            Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
            *[Gather(KeepingClient.all_rows.asked(), rows="copy")] * 2,
        ],
        noise=noise,
    )
    toy.noise_seed = 4
    drive(toy, proxies)
    first, second = (rows_of(replies) for replies in toy.outcome.model.brought[1:])
    for proxy, rows in zip(proxies, clients, strict=True):
        (noisy,) = add_noise([on_grid(rows)], [RELEASE], SeededNoise([proxy.noise_seed, 2]))
        expected = noisy.values
        kept, _ = proxy.context.state["fedclust.copy"].to_numpy_ndarrays()
        assert np.array_equal(kept, expected)
        assert np.array_equal(first[proxy.name], expected)
        assert np.array_equal(second[proxy.name], expected)


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_array_kept_without_a_release_beside_one_that_has_it_gets_no_noise(clients, noise):
    rounds = [
        Sum(KeepingClient.keep_two.asked(), releases=[RELEASE, None]),
        Gather(KeepingClient.all_rows.asked(), rows="one"),
        Gather(KeepingClient.all_rows.asked(), rows="another"),
    ]
    _, one, another = simulate(private(rounds, noise=noise), clients).model.brought
    assert not np.isclose(rows_of(one)["0"], clients[0]).any()
    assert np.array_equal(rows_of(another)["0"], 2.0 * clients[0])


@pytest.mark.parametrize("noise", NOISE_PLACES)
def test_seed_repeats_the_noise_of_what_is_kept_and_no_seed_does_not(clients, noise):
    def kept(seed):
        toy = private(
            [
                Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
                Gather(KeepingClient.all_rows.asked(), rows="copy"),
            ],
            noise=noise,
        )
        return simulate(toy, clients, seed=seed).model.brought[1][0].arrays[0]

    assert np.array_equal(kept(1), kept(1))
    assert not np.isclose(kept(1), kept(2)).any()
    assert not np.isclose(kept(None), kept(None)).any()


@pytest.mark.parametrize("seed", [1, None])
def test_noise_of_the_method_and_noise_of_the_release_are_not_the_same_numbers(seed):
    rows = [np.zeros((500, 2))] * 2
    rounds = [
        Sum(KeepingClient.keep_own_noise.asked(), releases=[RELEASE, None]),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
        Gather(KeepingClient.all_rows.asked(), rows="own noise"),
    ]
    _, copies, owns = simulate(private(rounds), rows, seed=seed).model.brought
    for copy, own in zip(copies, owns, strict=True):
        drawn = (copy.arrays[0] - own.arrays[0]).ravel() / RELEASE.scale
        own = own.arrays[0].ravel()
        assert np.std(own) == pytest.approx(1.0, rel=0.15)
        assert np.std(drawn) == pytest.approx(1.0, rel=0.15)
        assert abs(np.corrcoef(drawn, own)[0, 1]) < 0.2
        assert not np.isin(np.round(drawn, 9), np.round(own, 9)).any()
    assert not np.isin(owns[0].arrays[0], owns[1].arrays[0]).any()


# The report.


@pytest.mark.parametrize("kind", [Sum, Gather])
def test_what_is_kept_with_noise_is_a_release_and_what_is_computed_from_it_costs_nothing_more(
    clients, kind
):
    rounds = [
        kind(KeepingClient.keep.asked(), releases=[RELEASE]),
        Sum(KeepingClient.moments.asked(), rows="copy"),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
    ]
    report = simulate(private(rounds), clients).privacy
    assert [(m.task, m.detail, m.release, m.post_processing) for m in report.messages] == [
        ("enrol", "one per client", None, False),
        ("keep", "one per row, kept by the client", RELEASE, False),
        ("moments", "sum over the clients", None, True),
        ("moments", "sum over the clients", None, True),
        ("all_rows", "one per row", None, True),
    ]
    assert report.unprotected == []
    assert report.covers_everything
    assert report.composed_epsilon == composed_epsilon(
        [RELEASE], delta_of_composition(1e-6), near=1.0
    )


def keep(*releases):
    return Sum(KeepingClient.keep.asked(), releases=releases)


def keep_again(*releases):
    return Sum(KeepingClient.keep_again.asked(), rows="copy", releases=releases)


def used(rows=""):
    return Sum(KeepingClient.visits.asked(), rows=rows)


ONE_OF_TWO = Sum(KeepingClient.keep_two.asked(), releases=[RELEASE, None])

#: Rounds; for each "visits" whether its rows carried noise; and the tasks that cost budget.
REPORTED = {
    "kept as they are": (
        [keep(), used("copy"), keep_again(), used("second copy")],
        [False, False],
        [],
    ),
    "kept with noise": ([keep(RELEASE), used("copy"), used()], [True, False], ["keep"]),
    "one of two arrays": ([ONE_OF_TWO, used("one"), used("another")], [True, False], ["keep_two"]),
    "kept from noisy rows": ([keep(RELEASE), keep_again(), used("second copy")], [True], ["keep"]),
}


@pytest.mark.parametrize("case", REPORTED)
def test_the_report_knows_which_kept_rows_carry_noise(clients, case):
    rounds, expected, paid_for = REPORTED[case]
    report = simulate(private(rounds), clients).privacy
    assert is_post_processing(report, "visits") == expected
    assert [message.task for message in report.releases] == paid_for
    assert report.covers_everything == all(expected)
    listed = [message.task for message in report.messages]
    assert listed == ["enrol", *paid_for, *["visits"] * len(expected)]


@pytest.mark.parametrize("first", [keep(), keep(RELEASE)], ids=["true rows", "noisy rows"])
def test_noise_on_what_follows_from_kept_rows_is_refused_as_one_row_may_have_changed_many(
    clients, first, caplog
):
    with pytest.raises(ProtocolError, match="0 clients answered"):
        simulate(private([first, keep_again(RELEASE)]), clients)
    assert "nothing bounds what it sends" in caplog.text


def test_name_under_which_the_true_rows_are_kept_later_protects_nothing_any_more(clients):
    rounds = [
        Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
        Sum(KeepingClient.keep.asked()),
        Gather(KeepingClient.all_rows.asked(), rows="copy"),
    ]
    result = simulate(private(rounds), clients)
    assert np.array_equal(rows_of(result.model.brought[2])["0"], clients[0])
    assert is_post_processing(result.privacy, "all_rows") == [False]
    assert not result.privacy.covers_everything


@pytest.mark.parametrize("relation", ["replace", "add-or-remove"])
def test_declared_number_of_rows_is_told_apart_in_the_report(clients, relation):
    release = paid("gaussian", 3.0, relation)
    rounds = [
        Sum(KeepingClient.count.asked()),
        Sum(KeepingClient.visits.asked(), releases=[release]),
    ]
    report = simulate(private(rounds), clients).privacy
    assert [message.counts_rows for message in report.messages] == [False, True, False]
    assert report.covers_everything == (relation == "replace")
    assert [message.task for message in report.unprotected] == (
        [] if relation == "replace" else ["count"]
    )


# The declaration.


@pytest.mark.parametrize(
    "sends",
    [
        ("sent", Sent("kept", kept_as="copy")),
        (Sent("kept", kept_as="copy"), Sent("sent")),
        (Sent("kept", kept_as="copy"), Sent("kept", kept_as="other"), "sent"),
        (Sent("one", kept_as="copy"), Sent("another", kept_as="copy")),
    ],
    ids=["sent-kept", "kept-sent", "kept-kept-sent", "one-name"],
)
def test_answer_that_sends_and_keeps_arrays_or_keeps_two_under_one_name_is_refused(sends):
    with pytest.raises(ValueError, match="a method"):
        answers(*sends)


# What was watched.


def test_a_client_that_missed_the_noise_is_not_reported_as_protected(clients):
    """What it kept before has no noise: whatever is computed from it later leaves as it is, and the report says so."""
    proxies = proxies_of(KeepingClient, clients)
    proxies[1].misbehave[3] = raising(TimeoutError("gone"))
    toy = private(
        [
            Sum(KeepingClient.keep.asked()),
            Sum(KeepingClient.keep.asked(), releases=[RELEASE]),
            Gather(KeepingClient.all_rows.asked(), rows="copy"),
        ]
    )
    drive(toy, proxies)
    assert not toy.report.covers_everything
    assert [message.task for message in toy.report.unprotected] == ["all_rows"]


def test_noise_for_one_client_does_not_cover_the_others(clients):
    toy = private(
        [
            Sum(KeepingClient.keep.asked()),
            Sum(KeepingClient.keep.asked(), clients=["0", "1"], releases=[RELEASE]),
            Gather(KeepingClient.all_rows.asked(), clients=["0", "1"], rows="copy"),
            Gather(KeepingClient.all_rows.asked(), rows="copy"),
        ]
    )
    report = simulate(toy, clients).privacy
    assert [(message.round, message.task) for message in report.unprotected] == [(5, "all_rows")]


def test_an_entry_for_every_row_cannot_have_a_release_for_rows_that_come_and_go(clients):
    release = paid("gaussian", 3.0)
    with pytest.raises(
        ProtocolError,
        match=r"the number of rows shows: its release must be for rows that are replaced",
    ):
        simulate(private([Sum(KeepingClient.keep.asked(), releases=[release])]), clients)

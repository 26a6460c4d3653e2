"""Secure sums in the engine: the bits of the plain sum, and a server that sees nothing else."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from engine_toys import Toy, ToyClient, drive, manager_of, paid, proxies_of, serve, toy_answers
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server
from tested import entries

import flower_fedclust as fc
from flower_fedclust.engine import Gather, ProtocolError, Sum
from flower_fedclust.engine import strategy as strategies
from flower_fedclust.engine.rounds import Total
from flower_fedclust.engine.run import Run
from flower_fedclust.engine.secure_sums import SecureSums
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.inputs import make_strategies, needs_server_rows
from flower_fedclust.privacy.noise import SeededNoise, add_noise
from flower_fedclust.registry import find
from flower_fedclust.secure import SecureServer
from flower_fedclust.secure.keys import noise_colluders, threshold
from flower_fedclust.tables.schema import Column, Schema

RNG = np.random.default_rng(0)
CLIENTS = [RNG.normal(size=(4 + index, 2)) for index in range(10)]
MOMENTS = ToyClient.moments

#: Strategies that collect something from each client, or ask clients for different things, and the round that does.
NEEDS_REPLIES = {
    "central-dp-lloyd": "all_rows",
    "central-fastlloyd": "all_rows",
    "central-lsh": "all_rows",
    "coreset-k-median": "own_cost",
    "dp-fedc": "factorize",
    "dp-fedc-printed": "factorize",
    "dp-fedc-theorem-2": "factorise_clipped",
    "dsc": "spectral_clusters",
    "fed-ssc": "subspace_points",
    "fedsc-perturbed-factors": "clipped_codes",
    "k-fed": "local_centers",
    "pooled-kmeans": "all_rows",
    "pooled-spectral": "all_rows",
    "ppfc-gan": "synthetic_rows",
    "spp-fgc": "structural_graph",
    "spp-fgc-printed": "printed_graph",
    "spp-fgc-private-prototypes": "cell_prototypes",
}


def made(rounds, **options):
    strategy = Toy(rounds, **options)
    strategy.secure = True
    return strategy


def expected(clients, power=1):
    on_grid = [np.trunc(np.ldexp((rows**power).sum(axis=0), 40)) for rows in clients]
    return len(np.concatenate(clients)), np.ldexp(np.sum(on_grid, axis=0), -40)


def check_brought(total, clients, power=1):
    count, sums = expected(clients, power)
    assert total[0].tolist() == [count]
    np.testing.assert_array_equal(total[1], sums)
    assert total.n_clients == len(clients)


# The same bits.


def rounds_of(n_rounds=2):
    return [Sum(MOMENTS.asked(power=power)) for power in range(1, n_rounds + 1)]


def test_a_secure_sum_is_the_plain_sum_bit_for_bit():
    strategy = serve(made(rounds_of()), proxies_of(ToyClient, CLIENTS))
    for power, total in enumerate(strategy.outcome.model.brought, start=1):
        check_brought(total, CLIENTS, power)
    assert strategy.num_rounds == 1 + 2 + 2 * 4
    assert strategy.n_own_rounds == 3


def test_the_server_never_holds_an_answer_without_its_mask():
    proxies = proxies_of(ToyClient, CLIENTS)
    serve(made(rounds_of(1)), proxies)
    for proxy, rows in zip(proxies, CLIENTS, strict=True):
        count, sums = expected([rows])
        of_mask = proxy.sent[4]
        assert json.loads(proxy.received[4].config["secure"])["step"] == "mask"
        found = parameters_to_ndarrays(of_mask.parameters)
        assert found[0].tolist() != [count]
        assert (found[1] != np.ldexp(sums, 40)).all()
        assert [len(parameters_to_ndarrays(res.parameters)) for res in proxy.sent] == [
            1,
            1,
            1,
            2,
            2,
            2,
            1,
        ]


def quick_sums():
    """Strategies that take only sums, and do so quickly."""
    slow = {"fed-umap-sums", "fed-tsne-sums", "spp-fgc-plus", "fed-speclust-sums"}
    some_replies = {
        "fed-tsne",
        "fed-umap",
        "fed-speclust",
        "fedsc",
        "fedsc-perturbed-data",
        "ffcm",
        "k-means-parallel",
    }
    some_replies |= {"fed-tsne-perturbed", "fed-umap-perturbed", "fed-speclust-perturbed"}
    return sorted(set(entries()) - set(NEEDS_REPLIES) - some_replies - slow)


def of_registry(name, **parameters):
    rows = RNG.normal(size=(30, 3)) if needs_server_rows([name]) else None
    return make_strategies([name], {"n_clusters": 2, **find(name).example, **parameters}, rows)[0]


#: Strategies with as many rounds as all others together.
OF_MANY_ROUNDS = ("federated-kmeans", "private-mixture")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in OF_MANY_ROUNDS else [])
        for name in quick_sums()
    ],
)
def test_every_strategy_that_takes_only_sums_has_the_plain_result(name):
    rng = np.random.default_rng(1)
    clients = [
        np.concatenate([rng.normal(size=(15, 3)), rng.normal(size=(15, 3)) + 4]) for _ in range(4)
    ]
    strategy = of_registry(name)
    plain, secure = (
        fc.simulate(strategy, clients, seed=1, secure=is_secure) for is_secure in (False, True)
    )
    for before, after in zip(plain.model.to_arrays(), secure.model.to_arrays(), strict=True):
        np.testing.assert_array_equal(before, after)
    for before, after in zip(plain.labels, secure.labels, strict=True):
        np.testing.assert_array_equal(before, after)
    assert any("Secure sums of 4 clients" in note for note in secure.privacy.notes)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fed-tsne-sums", "fed-umap-sums", "fed-speclust-sums"])
def test_maps_of_sums_have_the_plain_result(name):
    rng = np.random.default_rng(1)
    clients = [
        np.concatenate([rng.normal(size=(15, 3)), rng.normal(size=(15, 3)) + 4]) for _ in range(4)
    ]
    strategy = of_registry(name)
    plain, secure = (
        fc.simulate(strategy, clients, seed=1, secure=is_secure) for is_secure in (False, True)
    )
    for before, after in zip(plain.labels, secure.labels, strict=True):
        np.testing.assert_array_equal(before, after)


def ask_nobody(monkeypatch):
    """Fail where a run with secure sums asks anybody for anything; its rehearsal has none."""
    enrol = Run._enrol

    def _enrol(run, strategy):
        assert run.sums is None
        return enrol(run, strategy)

    monkeypatch.setattr(Run, "_enrol", _enrol)


@pytest.mark.parametrize("name", sorted(NEEDS_REPLIES.keys() & entries()))
def test_a_strategy_that_needs_single_replies_is_refused_and_the_round_named(name, monkeypatch):
    clients = [np.random.default_rng(index).normal(size=(15, 3)) for index in range(4)]
    ask_nobody(monkeypatch)  # nobody is asked for anything
    with pytest.raises(
        (ProtocolError, ValueError), match=f"secure is set, and round '{NEEDS_REPLIES[name]}'"
    ):
        fc.simulate(of_registry(name), clients, seed=1, secure=True)


def test_noise_of_the_server_and_of_the_clients_is_the_same_as_without_masks():
    for noise in ("server", "local"):
        strategy = fc.PrivateFederatedKMeans(2, epsilon=3.0, max_norm=3.0, n_rounds=2, noise=noise)
        plain, secure = (
            fc.simulate(strategy, CLIENTS, seed=4, secure=is_secure) for is_secure in (False, True)
        )
        for before, after in zip(plain.model.to_arrays(), secure.model.to_arrays(), strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("engine", ["ray", "shards"])
def test_clients_on_ray_and_in_shards_find_the_inline_bits(engine):
    strategy = fc.FedDPKMeans(2, server_data=RNG.normal(size=(30, 2)), epsilon=None, n_rounds=1)
    inline, other = (
        fc.simulate(strategy, CLIENTS[:4], seed=1, secure=True, engine=one)
        for one in ("inline", engine)
    )
    np.testing.assert_array_equal(inline.model.cluster_centers_, other.model.cluster_centers_)


def test_the_order_of_replies_does_not_matter():
    strategy = made(rounds_of(1))
    drive(strategy, proxies_of(ToyClient, CLIENTS), reorder=lambda results: results[::-1])
    check_brought(strategy.outcome.model.brought[0], CLIENTS)


# Clients that drop out.


class Dropping:
    """A client that does not answer a step."""

    def __init__(self, proxy, step):
        self.proxy, self.step, self.fit = proxy, step, proxy.fit
        proxy.fit = self

    def __call__(self, ins, timeout=None, group_id=None):
        if json.loads(ins.config.get("secure", "{}")).get("step") == self.step:
            raise RuntimeError("the connection is lost")
        return self.fit(ins, timeout, group_id)


STEPS = ("keys", "roster", "share", "mask", "confirm", "open")


@pytest.mark.parametrize("step", STEPS)
def test_three_of_ten_clients_may_drop_out_at_any_step(step):
    proxies = proxies_of(ToyClient, CLIENTS)
    for place in (0, 4, 9):
        Dropping(proxies[place], step)
    strategy = serve(made(rounds_of(1)), proxies)
    left = [rows for place, rows in enumerate(CLIENTS) if place not in (0, 4, 9)]
    check_brought(
        strategy.outcome.model.brought[0], CLIENTS if step in ("confirm", "open") else left
    )
    assert {failure.client for failure in strategy.failures} >= {"0", "4", "9"}


def test_three_of_ten_clients_may_drop_out_at_different_steps():
    proxies = proxies_of(ToyClient, CLIENTS)
    for place, step in ((1, "share"), (5, "mask"), (8, "open")):
        Dropping(proxies[place], step)
    strategy = serve(made(rounds_of(1)), proxies)
    check_brought(
        strategy.outcome.model.brought[0],
        [rows for place, rows in enumerate(CLIENTS) if place not in (1, 5)],
    )


@pytest.mark.parametrize("step", STEPS[2:])
def test_with_more_dropouts_the_run_ends_with_a_sentence_and_nothing_opened(step):
    proxies = proxies_of(ToyClient, CLIENTS)
    for place in range(4):
        Dropping(proxies[place], step)
    strategy = made(rounds_of(1))
    with pytest.raises(
        ProtocolError, match=f"6 clients took the step '{step}' of a secure sum and 7 have to"
    ) as raised:
        serve(strategy, proxies)
    assert "nothing was opened" in str(raised.value)
    if step != "open":  # then the others have opened shares, fewer than are needed
        assert all(
            json.loads(ins.config.get("secure", "{}")).get("step") != "open"
            for one in proxies
            for ins in one.received
        )


def test_an_optional_round_that_too_few_answer_is_left_out():
    proxies = proxies_of(ToyClient, CLIENTS)
    for place in range(4):
        Dropping(proxies[place], "mask")
    rounds = [Sum(MOMENTS.asked(), needed=False), Gather(ToyClient.store.asked(np.ones(1)))]
    skipped, stored = serve(made(rounds), proxies).outcome.model.brought
    assert skipped is None
    assert len(stored) == 10


def test_a_client_that_dropped_out_of_one_sum_is_in_the_next():
    proxies = proxies_of(ToyClient, CLIENTS)
    dropping = Dropping(proxies[3], "mask")
    strategy = made(
        [*rounds_of(1), Gather(ToyClient.store.asked(np.ones(1))), Sum(MOMENTS.asked(power=3))]
    )
    strategy.on_round = lambda number, task: number == 2 and setattr(dropping, "step", "")
    brought = serve(strategy, proxies).outcome.model.brought
    check_brought(brought[0], [rows for place, rows in enumerate(CLIENTS) if place != 3])
    check_brought(brought[2], CLIENTS, 3)


@pytest.mark.parametrize("late", [["b", "a"], ["a", "b"]])
def test_a_client_that_comes_later_with_its_columns_in_another_order_answers_the_same_question(
    late,
):
    frames = [pd.DataFrame(rows, columns=["a", "b"]) for rows in CLIENTS[:5]]
    *first, last = proxies_of(ToyClient, [*frames[:4], frames[4][late]])
    manager = manager_of(first)
    bound = np.full(1, 0.1)
    strategy = made(
        [Gather(ToyClient.store.asked(bound)), *rounds_of(1), Sum(ToyClient.clipped.asked())]
    )
    strategy.on_round = lambda number, task: number == 1 and manager.register(last)
    server = Server(client_manager=manager, strategy=strategy)
    server.fit(num_rounds=strategy.num_rounds, timeout=None)
    asked = [message.config for proxy in (*first, last) for message in proxy.received]
    of_rows = [config for config in asked if config["task"] in {"store", "moments", "clipped"}]
    # Before any client has another order, too.
    assert {config.get("columns") for config in of_rows} == {'["a", "b"]'}
    total = strategy.outcome.model.brought[2]
    # It was sent the bound after the others, and took no part in the first sum.
    assert total.n_clients == 5
    clipped = [np.trunc(np.ldexp(np.clip(rows, None, 0.1).sum(axis=0), 40)) for rows in CLIENTS[:5]]
    np.testing.assert_array_equal(total[0], np.ldexp(np.sum(clipped, axis=0), -40))


class LargeClient(ToyClient):
    @toy_answers("number of rows")
    def counted(self):
        return np.array([2**60 if self.name == "2" else len(self.rows)])


class Large(Toy):
    client_type = LargeClient


def test_a_client_whose_answer_could_make_the_sum_overflow_is_left_out():
    proxies = proxies_of(LargeClient, CLIENTS)
    strategy = Large([Sum(LargeClient.counted.asked())])
    strategy.secure = True
    serve(strategy, proxies)
    assert strategy.outcome.model.brought[0][0] == sum(len(rows) for rows in CLIENTS) - len(
        CLIENTS[2]
    )
    assert strategy.outcome.model.brought[0].n_clients == 9
    assert any("could overflow" in failure.reason for failure in strategy.failures)


# What is refused.


@pytest.mark.parametrize(
    ("round_", "reason"),
    [
        (Gather(MOMENTS.asked()), "collects number of rows from each client"),
        (
            Sum({str(index): MOMENTS.asked() for index in range(10)}),
            "does not ask all clients for the same",
        ),
        (Sum(MOMENTS.asked(), fraction=0.5), "does not ask all clients for the same"),
    ],
)
@pytest.mark.parametrize("is_rehearsed", [True, False])
def test_a_round_that_shows_single_replies_is_refused_before_it_is_asked(
    round_, reason, is_rehearsed, monkeypatch
):
    if not is_rehearsed:  # as where the rehearsal does not come to the round
        monkeypatch.setattr(strategies, "rehearse", lambda *_: None)
    proxies = proxies_of(ToyClient, CLIENTS)
    with pytest.raises(ProtocolError, match=f"round 'moments' {reason}"):
        serve(made([*rounds_of(1), round_]), proxies)
    asked = {ins.config["task"] for proxy in proxies for ins in proxy.received}
    steps = {"secure keys", "secure roster", "secure share", "secure confirm", "secure open"}
    assert asked == (set() if is_rehearsed else {"enrol", "moments"} | steps)
    of_last = [
        ins.config for proxy in proxies for ins in proxy.received if ins.config["task"] == "moments"
    ]
    assert all("secure" in config for config in of_last)


class Careless(Toy):
    """Comes to its second round only with the clients of the run."""

    def protocol(self):
        if self.client_names and len(self.client_names) < 5:
            raise RuntimeError("too few for this")
        return (yield from super().protocol())


def test_a_rehearsal_leaves_nothing_and_may_fail():
    strategy = Careless(rounds_of())
    strategy.secure = True
    names = []
    strategy.on_round = lambda number, task: names.append(task)
    strategy.on_finished = names.append
    serve(strategy, proxies_of(ToyClient, CLIENTS))
    assert names == ["enrol", "moments", "moments", strategy]
    for power, total in enumerate(strategy.outcome.model.brought, start=1):
        check_brought(total, CLIENTS, power)


def test_a_strategy_for_tables_is_rehearsed_on_made_up_tables(monkeypatch):
    ask_nobody(monkeypatch)
    rows = RNG.uniform(0, 9, size=(4, 30, 2))
    frames = [pd.DataFrame(one, columns=["a", "b"]) for one in rows]
    schema = Schema(columns={name: Column(kind="number", bounds=(0, 9)) for name in "ab"})
    with pytest.raises(ProtocolError, match="round 'local_centers'"):
        fc.simulate(of_registry("k-fed"), frames, schema=schema, seed=1, secure=True)


def test_rounds_that_send_nothing_are_as_without_masks():
    rounds = [Gather(ToyClient.store.asked(np.ones(2))), *rounds_of(1)]
    check_brought(
        serve(made(rounds), proxies_of(ToyClient, CLIENTS)).outcome.model.brought[1], CLIENTS
    )


def test_two_clients_are_too_few():
    with pytest.raises(ProtocolError, match="3 have to"):
        serve(made(rounds_of(1)), proxies_of(ToyClient, CLIENTS[:2]))


@pytest.mark.parametrize(
    ("name", "value"), [("journal", "a folder"), ("federated_evaluation", True)]
)
def test_what_secure_sums_exclude_is_refused_before_anything_is_sent(name, value, tmp_path):
    strategy = fc.FedDPKMeans(2, server_data=CLIENTS[0], epsilon=None)
    given = {"journal": tmp_path / value} if name == "journal" else {}
    strategy.federated_evaluation = name != "journal"
    with pytest.raises(ValueError, match=f"^{name} is"):
        fc.simulate(strategy, CLIENTS, secure=True, **given)


# Clients that a server in the middle would have.


class Between:
    """A server that changes messages to a client."""

    def __init__(self, proxy, step, change, task=None):
        self.step, self.change, self.task, self.fit = step, change, task, proxy.fit
        proxy.fit = self

    def __call__(self, ins, timeout=None, group_id=None):
        if (
            self.task == ins.config["task"]
            or json.loads(ins.config.get("secure", "{}")).get("step") == self.step
        ):
            ins = type(ins)(ins.parameters, dict(ins.config))
            self.change(ins)
        return self.fit(ins, timeout, group_id)


def test_a_client_that_is_asked_another_question_does_not_open_and_is_not_read():
    proxies = proxies_of(ToyClient, CLIENTS)
    Between(proxies[6], "mask", lambda ins: ins.config.update(arguments='{"power": 2}'))
    with pytest.raises(
        ProtocolError,
        match="cannot be added up: 6 answered another question than the other clients",
    ):
        serve(made(rounds_of(1)), proxies)


def other_array(ins):
    ins.parameters = ndarrays_to_parameters([np.full(1, 9.0)])


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_client_that_was_asked_something_else_in_an_earlier_round_is_not_read(
    is_checked, monkeypatch
):
    # The question of the sum is the same. All but the victim have stored a bound to which all their rows are clipped.
    proxies = proxies_of(ToyClient, CLIENTS)
    Between(proxies[6], "", other_array, task="store")
    strategy = made(
        [Gather(ToyClient.store.asked(np.full(1, -9.0))), Sum(ToyClient.clipped.asked())]
    )
    victim = np.ldexp(np.trunc(np.ldexp(CLIENTS[6].sum(axis=0), 40)), -40)
    others = -9.0 * (len(np.concatenate(CLIENTS)) - len(CLIENTS[6]))
    if is_checked:  # a server that keeps to the protocol names the client
        with pytest.raises(
            ProtocolError, match=r"6 answered another question .* in an earlier round"
        ):
            serve(strategy, proxies)
        return
    monkeypatch.setattr(SecureServer, "check_questions", lambda self: None)
    total = serve(strategy, proxies).outcome.model.brought[1]
    assert (total[0] != others + victim).all()
    opened = next(
        res
        for res, ins in zip(proxies[6].sent, proxies[6].received, strict=True)
        if "open" in ins.config["task"]
    )
    assert "1 clients have confirmed its list" in opened.metrics["failure"]


def test_a_sum_cannot_be_asked_for_without_its_mask():
    # The message of the step, without the step: the client answers as to any server, if its operator lets it.
    proxies = proxies_of(ToyClient, CLIENTS)
    Between(proxies[6], "mask", lambda ins: ins.config.update(secure='{"step": "none"}'))
    strategy = serve(made(rounds_of(1)), proxies)
    check_brought(
        strategy.outcome.model.brought[0],
        [rows for place, rows in enumerate(CLIENTS) if place != 6],
    )
    assert any("that there is not" in failure.reason for failure in strategy.failures)


@pytest.mark.parametrize(
    "secure",
    [
        *("", "[]", "{", '{"step": 3}', '{"step": "mask"}', '{"step": "confirm", "clients": "x"}'),
        *('{"step": "mask", "clients": "0123456789"}', '{"step": "mask", "clients": {"0": 1}}'),
        '{"step": "mask", "clients": [[0, 1], [2]]}',
    ],
)
def test_a_step_that_cannot_be_read_gets_no_answer(secure):
    proxies = proxies_of(ToyClient, CLIENTS)
    Between(proxies[6], "mask", lambda ins: ins.config.update(secure=secure))
    serve(made(rounds_of(1)), proxies)
    assert "failure" in proxies[6].sent[4].metrics
    assert parameters_to_ndarrays(proxies[6].sent[4].parameters) == []


def test_a_client_that_lost_its_state_drops_out():
    proxies = proxies_of(ToyClient, CLIENTS)
    Between(proxies[6], "mask", lambda ins: proxies[6].context.state.clear())
    strategy = serve(made(rounds_of()), proxies)
    for power, total in enumerate(strategy.outcome.model.brought, start=1):
        check_brought(total, [rows for place, rows in enumerate(CLIENTS) if place != 6], power)
    assert any("has lost them" in failure.reason for failure in strategy.failures)


def test_enrolling_again_does_not_begin_the_run_again():
    proxies = proxies_of(ToyClient, CLIENTS)
    serve(made(rounds_of(1)), proxies)
    enrol, keys = proxies[0].received[:2]
    proxies[0].fit(enrol)
    assert "has sent its key for this run before" in proxies[0].fit(keys).metrics["failure"]


# Noise of the clients.


def test_noise_is_divided_among_those_that_are_left_without_colluders():
    release = paid("gaussian", 1.0)
    rounds = [Sum(MOMENTS.asked(), releases=[None, release])]
    proxies = proxies_of(ToyClient, CLIENTS)
    strategy = serve(made(rounds, noise="clients", epsilon=1.0, min_clients=8), proxies)
    asked = next(
        ins.config for ins in proxies[0].received if "mask" in ins.config.get("secure", "")
    )
    assert asked["n_shares"] == 8 - noise_colluders(10) == 7
    assert strategy.outcome.model.brought[0].noise[1] == pytest.approx(
        release.standard_deviation * (10 / 7) ** 0.5
    )
    assert any(
        "1/7 of the noise, and no sum of fewer than 8" in note for note in strategy.report.notes
    )


def test_a_list_with_too_few_shares_of_noise_is_not_opened():
    proxies = proxies_of(ToyClient, CLIENTS)
    for place in (0, 1, 2):  # seven are left: enough for the masks, and not for the noise
        Dropping(proxies[place], "mask")
    strategy = made(
        [Sum(MOMENTS.asked(), releases=[None, paid("gaussian", 1.0)])],
        noise="clients",
        epsilon=1.0,
        min_clients=8,
    )
    with pytest.raises(
        ProtocolError, match="7 clients took the step 'mask' of a secure sum and 8 have to"
    ):
        serve(strategy, proxies)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_shares_that_are_left_have_at_least_the_variance_that_is_accounted_for(mechanism):
    n, least = 10, 7
    assert least == threshold(n)
    # So many are left of the shortest list without those that withhold theirs.
    n_shares = least - noise_colluders(n)
    release = paid(mechanism, 1.0)
    zeros = [GridArray(np.zeros(20_000, np.int64), -4)]
    shares = [
        add_noise(zeros, [release], SeededNoise([7, index]), n_shares=n_shares)[0].values
        for index in range(n_shares)
    ]
    found = float(np.sum(shares, axis=0).var())
    # The deviation of a variance over 20,000 entries is below 1.6% for either mechanism.
    assert found > release.standard_deviation**2 * (1 - 4 * 0.016)
    assert found < release.standard_deviation**2 * (1 + 4 * 0.016) + 1.0


def test_a_secure_sum_of_more_rows_than_63_bits_hold_is_refused_before_it_is_asked(monkeypatch):
    def run():
        return fc.simulate(
            fc.PrivateKMeans(3, epsilon=5.0, max_norm=12.0), CLIENTS[:4], seed=1, secure=True
        )

    usual = run().model.to_arrays()
    # 4 clients of 2^37 rows would need 64 bits. The noisy number of rows says that there are fewer.
    begin = SecureSums.__init__

    def begin_with_many(sums, run_id, settings):
        begin(sums, run_id, replace(settings, most_rows=2**37))

    monkeypatch.setattr(SecureSums, "__init__", begin_with_many)
    for before, after in zip(usual, run().model.to_arrays(), strict=True):
        np.testing.assert_array_equal(before, after)
    note = SecureSums.note_rows

    def note_rows(sums, round_, total, n_clients):
        note(sums, round_, Total([2.0**60 * one for one in total], 4, total.noise), n_clients)

    monkeypatch.setattr(SecureSums, "note_rows", note_rows)
    with pytest.raises(
        ProtocolError,
        match=r"with up to 549,755,813,888 rows their secure sum could exceed 63 bits",
    ):
        run()

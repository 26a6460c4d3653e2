import os

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, drive, paid, proxies_of, raising, with_releases
from flwr.common import FitIns, ndarrays_to_parameters

from flower_fedclust.engine import Gather, ProtocolError, Sum
from flower_fedclust.engine.wire import HASH
from flower_fedclust.format import FORMAT
from flower_fedclust.simulation import simulate

GAUSSIAN = paid("gaussian", 3.0)
LAPLACE = paid("laplace", 5.0)
ROWS = 400


ZEROS = ToyClient.scaled.asked(np.zeros(ROWS), np.zeros(ROWS))


def noisy(rounds=(), *, release=GAUSSIAN, kind=Sum, noise="server", **options):
    """Return a strategy of two rounds in which each client sends zeros, so that what arrives is the noise."""
    return Toy(rounds or [kind(ZEROS, releases=[release])] * 2, epsilon=1.0, noise=noise, **options)


@pytest.fixture
def clients():
    return [np.full((2, 2), float(index)) for index in range(5)]


def scale_of(noise, release):
    return np.std(noise) if release.mechanism == "gaussian" else np.mean(np.abs(noise))


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize(
    ("noise", "factor"), [("server", 1.0), ("clients", 1.0), ("local", np.sqrt(5))]
)
def test_noise_of_a_sum_has_the_scale_of_the_release_wherever_it_is_drawn(
    clients, release, noise, factor
):
    brought = simulate(noisy(release=release, noise=noise), clients, seed=1).model.brought
    drawn = np.concatenate([arrays[0] for arrays in brought])
    if release.mechanism == "laplace" and noise == "local":
        assert np.std(drawn) == pytest.approx(np.sqrt(2) * release.scale * factor, rel=0.15)
    else:
        assert scale_of(drawn, release) == pytest.approx(release.scale * factor, rel=0.15)


def test_every_reply_of_a_gather_round_has_noise_of_its_own(clients):
    for noise in ("server", "local"):
        replies = simulate(noisy(noise=noise, kind=Gather), clients, seed=1).model.brought[0]
        assert len({reply.arrays[0].tobytes() for reply in replies}) == len(clients)
        for reply in replies:
            assert np.std(reply.arrays[0]) == pytest.approx(GAUSSIAN.scale, rel=0.2)


def test_a_share_of_the_noise_is_not_reported_to_cover_a_reply_that_the_server_sees(clients):
    # With noise="clients" a reply alone carries a fifth of the variance, and in a Gather round the server sees it.
    try:
        result = simulate(noisy(noise="clients", kind=Gather), clients, seed=1)
    except (ProtocolError, ValueError):
        return
    enough = all(
        np.std(reply.arrays[0]) > 0.8 * GAUSSIAN.scale for reply in result.model.brought[0]
    )
    assert enough or not result.privacy.covers_everything


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_noise_of_two_rounds_is_independent(clients, noise):
    first, second = simulate(noisy(noise=noise), clients, seed=1).model.brought
    assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 0.2


def test_noise_of_two_clients_is_independent(clients):
    replies = simulate(noisy(noise="local", kind=Gather), clients, seed=1).model.brought[0]
    correlations = np.corrcoef([reply.arrays[0] for reply in replies])
    assert np.abs(correlations - np.eye(len(clients))).max() < 0.2


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_seed_repeats_the_noise_and_no_seed_does_not(clients, noise):
    def run(seed):
        return simulate(noisy(noise=noise), clients, seed=seed).model.brought[0][0]

    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))
    assert not np.array_equal(run(None), run(None))


def test_report_says_that_a_seed_protects_nobody(clients):
    assert any("from a seed" in note for note in simulate(noisy(), clients, seed=1).privacy.notes)
    assert not any("seed" in note for note in simulate(noisy(), clients).privacy.notes)


def test_array_without_a_release_gets_no_noise_beside_one_that_has_it(clients):
    for noise in ("server", "clients", "local"):
        toy = noisy([Sum(ToyClient.moments.asked(), releases=[None, GAUSSIAN])], noise=noise)
        result = simulate(toy, clients)
        count, sums = result.model.brought[0]
        assert count == [10.0]
        assert not np.array_equal(sums, [20.0, 20.0])
        assert [message.content for message in result.privacy.unprotected] == ["number of rows"]


def test_share_sized_noise_is_asked_for_only_where_the_clients_draw_it(clients):
    for noise, shares in (("server", None), ("clients", 5), ("local", 1)):
        proxies = proxies_of(ToyClient, clients)
        drive(noisy(noise=noise), proxies)
        configs = [proxy.received[1].config for proxy in proxies]
        assert [config.get("n_shares") for config in configs] == [shares] * 5
        assert [("parts" in config) for config in configs] == [noise != "server"] * 5


def test_min_clients_alone_bring_all_the_noise(clients):
    proxies = proxies_of(ToyClient, clients, seed=7)
    for proxy in proxies[:3]:
        proxy.misbehave = {2: raising(TimeoutError("gone")), 3: raising(TimeoutError("gone"))}
    toy = noisy(noise="clients", min_clients=2)
    drive(toy, proxies)
    drawn = np.concatenate([arrays[0] for arrays in toy.outcome.model.brought])
    assert np.std(drawn) == pytest.approx(GAUSSIAN.scale, rel=0.1)


def test_missing_client_is_survived_where_min_clients_is_given_or_the_noise_is_drawn_elsewhere(
    clients,
):
    for options in (
        {"noise": "clients", "min_clients": 4},
        {"noise": "server"},
        {"noise": "local"},
    ):
        proxies = proxies_of(ToyClient, clients)
        proxies[4].misbehave[2] = raising(TimeoutError("gone"))
        toy = noisy(**options)
        drive(toy, proxies)
        assert toy.is_finished


def test_sample_of_the_clients_brings_all_the_noise_between_them(clients):
    toy = noisy([Sum(ZEROS, releases=[GAUSSIAN], fraction=0.6)], noise="clients")
    proxies = proxies_of(ToyClient, clients)
    drive(toy, proxies)
    asked = [proxy for proxy in proxies if proxy.asked["scaled"]]
    assert [proxy.received[1].config["n_shares"] for proxy in asked] == [3, 3, 3]


def answer(client, **more):
    config = with_releases({"task": "moments", "round": 2, "n_shares": 1}, [LAPLACE, GAUSSIAN])
    arrays, _, facts = client.fit([], config | more)
    assert "failure" not in facts
    return arrays


@pytest.mark.parametrize("more", [{}, {"n_clients": 1, "run": "1", "arguments": "{}"}])
def test_no_message_makes_the_noise_of_a_client_repeatable(clients, more):
    proxies = proxies_of(ToyClient, [clients[1]] * 6)
    replies = {
        np.concatenate(answer(proxy.client(), **more)).tobytes()
        for proxy in proxies
        for _ in range(5)
    }
    assert len(replies) == 30


@pytest.mark.parametrize("name", ["seed", "noise_seed", "random_state"])
def test_a_message_that_names_a_seed_is_refused(clients, name):
    (proxy,) = proxies_of(ToyClient, clients[:1])
    arrays, _, facts = proxy.client().fit([], {"task": "moments", "round": 2, name: 1})
    assert arrays == []
    assert f"a field '{name}' that this client does not know" in facts["failure"]


def test_noise_of_a_client_comes_from_the_operating_system(clients, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or bytes(size))
    (proxy,) = proxies_of(ToyClient, clients[:1])
    first, second = answer(proxy.client()), answer(proxy.client(), run="2")
    assert asked
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_noise_of_the_server_comes_from_the_operating_system(clients, monkeypatch):
    def run():
        return simulate(noisy(), clients).model.brought[0][0]

    np.random.seed(0)  # noqa: NPY002
    before = run()
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(before, run())
    monkeypatch.setattr(os, "urandom", bytes)
    assert np.array_equal(run(), run())


def test_global_seed_of_numpy_does_not_touch_the_noise_of_a_client(clients):
    (proxy,) = proxies_of(ToyClient, clients[:1])
    replies = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        replies.append(answer(proxy.client()))
    assert not np.array_equal(replies[0][1], replies[1][1])


def test_random_state_does_not_touch_the_noise(clients):
    def run():
        toy = noisy()
        toy.random_state = 0
        return simulate(toy, clients).model.brought[0][0]

    assert not np.array_equal(run(), run())


def test_seed_of_a_client_gives_other_noise_in_another_round(clients):
    (proxy,) = proxies_of(ToyClient, clients[:1], seed=4)
    assert np.array_equal(answer(proxy.client())[1], answer(proxy.client())[1])
    assert not np.array_equal(answer(proxy.client())[1], answer(proxy.client(), round=3)[1])


def test_server_that_adds_the_noise_gets_the_sum_without_it(clients):
    # Trusting the server means just this: it is the report that says so.
    proxies = proxies_of(ToyClient, clients)
    ins = FitIns(ndarrays_to_parameters([]), {"task": "moments", "round": 2})
    res = proxies[1].fit(ins)
    assert res.metrics == {
        "format": FORMAT,
        "client": "1",
        "exponents": "[null, -40]",
        HASH: res.metrics[HASH],
    }
    assert "trusted" in str(simulate(noisy(), clients).privacy)


@pytest.mark.parametrize("noise", ["server", "clients", "local"])
def test_how_far_the_noise_is_from_its_law_is_in_every_message_with_noise(clients, noise):
    report = simulate(noisy(noise=noise), clients).privacy
    distances = [message.variation for message in report.messages if message.release is not None]
    # ROWS entries, each within 2^-84 of its law, or five shares of it.
    assert distances == pytest.approx(
        [ROWS * (5 if noise == "clients" else 1) * 2.0**-84] * 2, rel=1e-3, abs=0
    )
    assert report.is_noise_exact_enough


def test_a_round_that_lacks_shares_of_its_noise_is_not_reported_as_covered(clients):
    proxies = proxies_of(ToyClient, clients)
    proxies[4].misbehave[2] = raising(TimeoutError("gone"))
    with pytest.raises(ProtocolError) as caught:
        drive(noisy(noise="clients"), proxies)
    report = caught.value.privacy_report
    assert not report.covers_everything
    (message,) = report.unprotected
    assert "shares of it are missing" in message.detail

"""What clients and server compute, and each attack that the protocol has to stand."""

import copy

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure_runs import (
    QUESTION,
    RUN,
    again,
    begun,
    clients_of,
    confirm,
    hashed,
    mask,
    masked,
    open_shares,
    plain_sum,
    secure_sum,
    share,
    words_of,
)

from flower_fedclust.numerics.checks import DataError
from flower_fedclust.secure import Refusal, SecureClient, SecureServer, SumError, Trust
from flower_fedclust.secure.client import FORWARDED, OPENED, PAIRS, SELF, mask_of
from flower_fedclust.secure.keys import (
    KEY,
    SIGNED,
    list_of,
    noise_colluders,
    sign,
    threshold,
    tolerated,
    xor,
)

N = 10  # so that t = 7


def names(*places):
    return {f"site {place}" for place in places}


@pytest.fixture
def clients():
    return clients_of(N)


@pytest.fixture
def server(clients):
    return begun(clients)


# What is computed.


@pytest.mark.parametrize("n", [3, 4, 10, 31])
def test_the_sum_is_the_plain_sum_modulo_2_64(n):
    clients = clients_of(n)
    server, words = begun(clients), words_of(clients)
    for number in (1, 2, 5):
        question = b"question %d" % number
        np.testing.assert_array_equal(
            secure_sum(server, clients, words, number, question), plain_sum(words, clients)
        )


@pytest.mark.parametrize("step", range(4))
def test_clients_may_drop_out_before_any_step(server, clients, step):
    words, gone = words_of(clients), [set()] * 4
    gone[step] = names(0, 4, 9)
    left = set(clients) - gone[step] if step < 2 else set(clients)
    np.testing.assert_array_equal(
        secure_sum(server, clients, words, gone=gone), plain_sum(words, left)
    )
    # They may take part in the next sum.
    np.testing.assert_array_equal(
        secure_sum(server, clients, words, 2, b"another"), plain_sum(words, clients)
    )


def test_clients_may_drop_out_before_different_steps(server, clients):
    words = words_of(clients)
    found = secure_sum(server, clients, words, gone=[names(0), names(3), names(5), ()])
    np.testing.assert_array_equal(found, plain_sum(words, set(clients) - names(0, 3)))


@pytest.mark.parametrize("step", range(4))
def test_with_more_dropouts_nothing_is_opened(server, clients, step):
    gone = [set()] * 4
    gone[step] = names(0, 3, 4, 9)
    with pytest.raises((Refusal, SumError), match=r"at least 7|6 of 7|7 have to"):
        secure_sum(server, clients, words_of(clients), gone=gone)


def test_a_process_needs_nothing_but_what_the_last_one_kept(clients):
    def restarted():
        clients.update({name: again(client) for name, client in clients.items()})

    for name, client in clients.items():
        clients[name] = SecureClient(name, client.trust)
    server = SecureServer(RUN)
    for name, client in clients.items():
        server.take_key(name, client.keys(RUN))
    restarted()
    keys = server.roster(list(clients))
    for name, client in clients.items():
        server.take_roster(name, client.roster(RUN, server.names, keys))
    words = words_of(clients)
    for step in (share, lambda *given: mask(*given, words), confirm, open_shares):
        restarted()
        step(server, clients)
    np.testing.assert_array_equal(server.total(), plain_sum(words, clients))


def test_an_empty_answer_has_an_empty_sum(server, clients):
    assert secure_sum(server, clients, words_of(clients, 0)).shape == (0,)


def test_masked_answers_are_unlike_the_answers_and_each_other(server, clients):
    share(server, clients)
    zeros = {name: np.zeros(4000, np.uint64) for name in clients}
    mask(server, clients, zeros)
    bits = np.array([np.unpackbits(server._sum.masked[place].view(np.uint8)) for place in range(N)])
    assert (abs(bits.mean(axis=1) - 0.5) < 0.006).all()  # 256,000 bits: six deviations
    assert (abs(np.corrcoef(bits) - np.eye(N)) < 0.012).all()


def test_thresholds():
    assert [threshold(n) for n in (3, 4, 5, 10, 100)] == [3, 3, 4, 7, 67]
    assert [tolerated(n) for n in (3, 4, 5, 10, 100)] == [2, 1, 2, 3, 33]
    assert [noise_colluders(n) for n in (3, 19, 20, 100)] == [1, 1, 2, 10]


# Masks are bound to the question, the round and the list.


def masked_for(clients, server, who, number=1, question=QUESTION, invited=None, words=0):
    invited = server.invited() if invited is None else invited
    return masked(clients[who], server, invited, np.full(3, words, np.uint64), number, question)


def test_different_questions_in_one_round_end_in_garbage(server, clients):
    # Pasquini et al. 2022: the victim gets real centers, and everybody else a frame in which all answers are known.
    share(server, clients)
    victim = "site 3"
    for name in clients:
        question = (
            b"real centers" if name == victim else b"a frame that clips all rows to a known value"
        )
        server.take_masked(
            name, masked_for(clients, server, name, question=question, words=9 * (name == victim))
        )
    server.arrived()
    # Each confirms the list under its own question, so the victim and the others do not agree, and nobody opens.
    confirm(server, clients)
    with pytest.raises(Refusal, match="1 clients have confirmed"):
        open_shares(server, {victim: clients[victim]}, gone=set(clients) - {victim})
    open_shares(server, clients, gone={victim})
    # Even who could open everything would find masks that do not cancel.
    for question in (b"real centers", b"a frame that clips all rows to a known value"):
        server._sum.questions = {0: hashed(question)}
        assert (server.total() != 9).all()


def test_a_second_question_in_one_round_is_refused(server, clients):
    share(server, clients)
    masked_for(clients, server, "site 3")
    with pytest.raises(Refusal, match="does not follow"):
        masked_for(clients, server, "site 3", question=b"another")


def test_masks_depend_on_the_list_of_invited_clients(server, clients):
    of_two_lists = [
        mask_of(PAIRS, listed, QUESTION, 3)(bytes(KEY)) for listed in ([0, 1], [0, 1, 2])
    ]
    assert (of_two_lists[0] != of_two_lists[1]).all()
    share(server, clients)
    fewer = list(range(8))
    assert (
        masked_for(copy.deepcopy(clients), server, "site 3")
        != masked_for(clients, server, "site 3", invited=fewer)
    ).all()
    with pytest.raises(Refusal, match="at least 7"):
        masked_for(clients_of_second_run(), server, "site 3", invited=list(range(6)))


def clients_of_second_run():
    clients = clients_of(N)
    share(begun(clients), clients)
    return clients


@pytest.mark.parametrize(
    "listed",
    [
        [0, 1, 1, 2, 3, 4, 5, 6],
        [6, 5, 4, 3, 2, 1, 0],
        [0, 1, 2, 3, 4, 5, 99],
        [-1, 0, 1, 2, 3, 4, 5, 6],
        list(range(10**5)),
        *([0.5] * 8, [False, True, 2, 3, 4, 5, 6], [[0, 1]], ["0"], "0123456789", {"0": 1}, 7, []),
    ],
)
def test_a_list_that_is_none_is_refused(server, clients, listed):
    share(server, clients)
    with pytest.raises(Refusal, match="is none"):
        masked_for(clients, server, "site 3", invited=listed)


def test_an_answer_is_not_masked_without_a_list_of_this_sum(server, clients):
    secure_sum(server, clients, words_of(clients))
    share(server, clients, 2)
    with pytest.raises(Refusal, match="was not invited"):
        clients["site 3"].mask(hashed(QUESTION), np.zeros(3, np.uint64))


@pytest.mark.parametrize(
    "listed", [None, "abc", [1, 2, 3], [["a"], ["b"], ["c"]], {"site 0": 1}, 3]
)
def test_names_that_are_not_a_list_of_names_are_refused(listed):
    clients = clients_of(3)
    keys = np.concatenate([client.keys(RUN) for client in clients.values()])
    with pytest.raises(Refusal, match="names of the clients"):
        clients["site 0"].roster(RUN, listed, keys)


def test_a_client_that_is_not_in_a_list_refuses_it(server, clients):
    share(server, clients)
    with pytest.raises(Refusal, match="not in the list"):
        masked_for(clients, server, "site 9", invited=list(range(9)))


# A server that lies about who dropped out.


def told(clients, lists, words):
    """A run up to the opening, where each client is told its own list of the answers that have arrived."""
    server = begun(clients)
    share(server, clients)
    mask(server, clients, words)
    said = {
        name: client.confirm(RUN, 1, lists[name])[0]
        for name, client in clients.items()
        if name in lists
    }
    return server, said


def received(server, said, lists, name):
    """The confirmations that reach a client; zeros from whoever has confirmed another list."""
    place = server.place(name)
    rows = np.zeros((len(lists[name]), 16), np.uint8)
    for at, other in enumerate(lists[name]):
        sender = server.names[other]
        if sender in said and place in lists[sender]:
            rows[at] = said[sender][lists[sender].index(place)]
    return rows


def test_a_server_that_shows_different_lists_gets_nothing_opened(clients):
    everybody, without = list(range(N)), list(range(1, N))
    lists = {name: everybody if place < 5 else without for place, name in enumerate(clients)}
    server, said = told(clients, lists, words_of(clients))
    for name in clients:
        with pytest.raises(Refusal, match=r"5 clients have confirmed.*7 have to"):
            clients[name].open(RUN, 1, received(server, said, lists, name), server.shares_for(name))


def test_a_client_takes_one_list_and_opens_once(server, clients):
    share(server, clients)
    mask(server, clients, words_of(clients))
    confirm(server, clients)
    with pytest.raises(Refusal, match="does not follow"):
        clients["site 1"].confirm(RUN, 1, list(range(1, N)))
    open_shares(server, clients)
    with pytest.raises(Refusal, match="does not follow"):
        open_shares(server, clients)


def test_of_a_client_said_to_have_dropped_out_only_the_keys_of_its_pairs_are_opened(clients):
    # All agree that site 0 has dropped out, though the server has its masked answer.
    words, without = words_of(clients), list(range(1, N))
    server, _ = told(clients, {}, words)
    masked = server._sum.masked.pop(0)
    confirm(server, clients)
    open_shares(server, clients)
    np.testing.assert_array_equal(server.total(), plain_sum(words, set(clients) - names(0)))
    bare = masked.copy()
    of_pair = mask_of(PAIRS, list(range(N)), QUESTION, len(masked))
    for key in server._pairs_of(0).values():
        bare -= of_pair(key)  # site 0 has added all of them
    assert (bare != words["site 0"]).all()  # its own mask is left
    secret = bytes.fromhex(clients["site 0"]._facts.secrets[SELF])
    np.testing.assert_array_equal(
        bare - mask_of(SELF, list(range(N)), QUESTION, len(bare))(secret), words["site 0"]
    )
    assert without == server.arrived()


def forked(clients, colluders, first, second, words):
    """Whether a server and colluders read site 0's answer: ``first`` are told that it arrived, ``second`` not."""
    server, n = begun(clients), len(clients)
    share(server, clients)
    mask(server, clients, words)
    both = {}
    for group, listed in ((first, list(range(n))), (second, list(range(1, n)))):
        members = {name: copy.deepcopy(clients[name]) for name in group | colluders}
        lists = dict.fromkeys(members, listed)
        said = {name: client.confirm(RUN, 1, listed)[0] for name, client in members.items()}
        opened = {}
        for name, client in members.items():
            try:
                rows = client.open(
                    RUN, 1, received(server, said, lists, name), server.shares_for(name)
                )
            except Refusal:
                continue
            opened[server.place(name) + 1] = int.from_bytes(rows[0].tobytes()[1:], "big")
        both[SELF if group is first else PAIRS] = opened
    if min(map(len, both.values())) < threshold(n):
        return False
    this = server._sum
    this.shares, this.arrived = {0: both[PAIRS]}, list(range(1, n))
    bare = this.masked[0].copy()
    for key in server._pairs_of(0).values():
        bare -= mask_of(PAIRS, list(range(n)), QUESTION, len(bare))(key)
    this.shares = {0: both[SELF]}
    bare -= mask_of(SELF, list(range(n)), QUESTION, len(bare))(server._secret(0, SELF))
    return bool((bare == words["site 0"]).all())


@pytest.mark.parametrize("n", [5, 7])
def test_the_tolerated_colluders_learn_nothing_and_one_more_reads_an_answer(n):
    assert tolerated(n) == 2 * threshold(n) - n - 1
    for more in (0, 1):
        found = []
        n_colluders = tolerated(n) + more
        colluders = names(*range(n - n_colluders, n))
        honest = [f"site {place}" for place in range(n - n_colluders)]
        for cut in range(1, len(honest) + 1):
            clients = clients_of(n)
            words = words_of(clients)
            found.append(forked(clients, colluders, set(honest[:cut]), set(honest[cut:]), words))
        assert any(found) == bool(more)


# Keys.


def pinned(n=4):
    """Clients that know each other's keys."""
    identities = {f"site {place}": Ed25519PrivateKey.generate() for place in range(n)}
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    return {
        name: SecureClient(name, Trust(key.private_bytes_raw(), public))
        for name, key in identities.items()
    }


def test_clients_that_know_each_other_add_up():
    clients = pinned()
    words = words_of(clients)
    np.testing.assert_array_equal(
        secure_sum(begun(clients), clients, words), plain_sum(words, clients)
    )


def forged(name, run=RUN):
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return np.frombuffer(sign(Ed25519PrivateKey.generate(), run, name, public), np.uint8).reshape(
        1, SIGNED
    )


def test_a_server_that_hands_out_keys_of_its_own_is_refused():
    clients = pinned()
    server = SecureServer(RUN)
    for name, client in clients.items():
        key = client.keys(RUN)
        server.take_key(name, forged(name) if name == "site 2" else key)
    keys = server.roster(list(clients))
    with pytest.raises(Refusal, match=r"key of client site 2.*pinned"):
        clients["site 0"].roster(RUN, server.names, keys)
    with pytest.raises(Refusal, match="its own key"):
        clients["site 2"].roster(RUN, server.names, keys)


def test_a_client_that_is_not_pinned_is_refused():
    clients = pinned() | {"stranger": SecureClient("stranger")}
    with pytest.raises(Refusal, match="client stranger is not signed with the key pinned"):
        begun(clients)


def test_a_key_of_another_run_or_name_is_refused(clients):
    server = SecureServer(RUN)
    with pytest.raises(SumError, match="signature"):
        server.take_key("site 0", SecureClient("site 0").keys("another run"))
    with pytest.raises(SumError, match="signature"):
        server.take_key("site 0", SecureClient("site 1").keys(RUN))
    signed = {name: client.keys(RUN) for name, client in clients.items()}
    rows = np.concatenate([*list(signed.values())[:-1], forged("site 9", "another run")])
    with pytest.raises(Refusal, match="client site 9 is not signed by its owner"):
        clients["site 0"].roster(RUN, list(clients), rows)


def test_one_client_cannot_stand_for_two(clients):
    signed = [client.keys(RUN) for client in clients.values()]
    twice = np.concatenate([*signed[:-1], forged("site 1")])
    with pytest.raises(Refusal, match="one name or one key"):
        clients["site 0"].roster(RUN, [*list(clients)[:-1], "site 1"], twice)


def test_a_key_on_which_everybody_would_agree_is_refused(clients):
    signed = [client.keys(RUN) for client in clients.values()]
    signed[-1] = np.frombuffer(
        sign(Ed25519PrivateKey.generate(), RUN, "site 9", bytes(KEY)), np.uint8
    ).reshape(1, -1)
    with pytest.raises(Refusal, match="is not a key"):
        clients["site 0"].roster(RUN, list(clients), np.concatenate(signed))


@pytest.mark.parametrize(("n", "fewest"), [(2, 3), (4, 5)])
def test_a_client_takes_part_with_enough_others_only(n, fewest):
    with pytest.raises(Refusal, match=f"takes part with {fewest} to"):
        begun(clients_of(n, fewest=fewest))


def test_clients_with_other_lists_of_keys_share_no_secret(clients):
    others = copy.deepcopy(clients)
    server = SecureServer(RUN)
    for name, client in clients.items():
        server.take_key(name, client.keys(RUN))
    others = {name: again(client) for name, client in clients.items()}
    keys = server.roster(list(clients))
    server.signed["site 9"] = forged("site 9").tobytes()
    other_keys = server.roster(list(clients))
    clients["site 0"].roster(RUN, list(clients), keys)
    others["site 0"].roster(RUN, list(clients), other_keys)
    assert clients["site 0"]._pairs[KEY : 2 * KEY] != others["site 0"]._pairs[KEY : 2 * KEY]


# Shares.


def test_shares_of_another_sum_are_of_no_use(server, clients):
    share(server, clients)
    old = [list(rows) for rows in server._sum.dealt.values()]
    share(server, clients, 2)
    mask(server, clients, words_of(clients), 2)
    confirm(server, clients, 2)
    this = server._sum
    place = server.place("site 3")
    replayed = np.frombuffer(b"".join(rows[place][:FORWARDED] for rows in old), np.uint8).reshape(
        N, FORWARDED
    )
    opened = clients["site 3"].open(RUN, 2, server.confirmations_for("site 3"), replayed)
    assert not opened.any()
    server.take_opened("site 3", opened)
    assert all(this.accused[dealer] == [3] for dealer in range(N))


def test_what_a_client_has_sent_cannot_be_returned_to_it_as_anothers(server, clients):
    share(server, clients)
    mask(server, clients, words_of(clients))
    confirm(server, clients)
    this, name, place = server._sum, "site 3", 3
    reflected = [
        this.dealt[place if dealer != place else 0][dealer][:FORWARDED] for dealer in range(N)
    ]
    shares = np.frombuffer(b"".join(reflected), np.uint8).reshape(N, FORWARDED)
    own = np.frombuffer(b"".join(this.confirmed[place].values()), np.uint8).reshape(N, -1)
    with pytest.raises(Refusal, match="1 clients have confirmed"):
        clients[name].open(RUN, 1, own, server.shares_for(name))
    assert not clients[name].open(RUN, 1, server.confirmations_for(name), shares).any()


def test_a_garbage_share_identifies_its_sender(server, clients):
    words = words_of(clients)
    share(server, clients)
    mask(server, clients, words)
    confirm(server, clients)
    bad = (
        clients["site 4"]
        .open(RUN, 1, server.confirmations_for("site 4"), server.shares_for("site 4"))
        .copy()
    )
    bad[2, -1] ^= 1
    with pytest.raises(SumError, match=r"a share of client site 2 that was not dealt to it"):
        server.take_opened("site 4", bad)
    open_shares(server, clients, gone=names(4))
    np.testing.assert_array_equal(server.total(), plain_sum(words, clients))


def test_a_dealer_of_garbage_is_named(server, clients):
    def spoiled(rows, at):
        rows = rows.copy()
        rows[:, at] ^= 1
        return rows

    for number, (at, said) in enumerate(
        [(40, "could not use the shares that it dealt"), (100, "could not use")], 1
    ):
        share(server, clients, number)
        rows, checks = server._sum.dealt[2], server._sum.secrets[2]
        dealt = spoiled(np.frombuffer(b"".join(rows), np.uint8).reshape(N, -1), at)
        server.take_shares(
            "site 2", dealt, np.frombuffer(b"".join(checks), np.uint8).reshape(2, -1)
        )
        question = b"%d" % number
        mask(server, clients, words_of(clients), number, question=question)
        confirm(server, clients, number)
        open_shares(server, clients, number)
        with pytest.raises(SumError, match=rf"shares of client site 2 were opened.*{said}"):
            server.total()


def test_shares_of_no_secret_name_their_dealer(server, clients):
    share(server, clients)
    server._sum.secrets[2][SELF] = bytes(16)
    mask(server, clients, words_of(clients))
    confirm(server, clients)
    open_shares(server, clients)
    with pytest.raises(SumError, match="client site 2 dealt shares of no secret"):
        server.total()


def test_a_dropped_client_that_locked_other_keys_is_named(server, clients):
    share(server, clients)
    row = server._sum.dealt[2][5]
    server._sum.dealt[2][5] = row[:-KEY] + xor(row[-KEY:], bytes(KEY))
    mask(server, clients, words_of(clients), gone=names(2))
    confirm(server, clients)
    open_shares(server, clients)
    with pytest.raises(SumError, match="clients site 2 and site 5 do not agree"):
        server.total()


def test_arrays_of_another_form_are_refused(server, clients):
    share(server, clients)
    mask(server, clients, words_of(clients))
    confirm(server, clients)
    for wrong in (
        np.zeros((N, 3), np.uint8),
        np.zeros((N, OPENED)),
        np.zeros((N - 1, OPENED), np.uint8),
        None,
    ):
        with pytest.raises(DataError, match="another type or shape"):
            server.take_opened("site 1", wrong)
        with pytest.raises(DataError, match="another type or shape"):
            clients["site 1"].open(RUN, 1, wrong, server.shares_for("site 1"))


# A question that comes again, and state that is lost.


def test_the_same_question_to_fewer_clients_is_refused(server, clients):
    words = words_of(clients)
    secure_sum(server, clients, words)
    with pytest.raises(Refusal, match="the difference would show single answers"):
        secure_sum(server, clients, words, 2, gone=[(), names(5), (), ()])
    # Over the same clients it brings the same sum, which shows nothing new.
    np.testing.assert_array_equal(secure_sum(server, clients, words, 3), plain_sum(words, clients))


def test_a_sum_is_not_begun_twice(server, clients):
    share(server, clients, 4)
    for number in (4, 3, 0, -1, 2**40):
        with pytest.raises(Refusal, match="begun before"):
            clients["site 1"].share(RUN, number)


def test_a_client_that_has_lost_its_state_takes_no_part(server, clients):
    share(server, clients)
    lost = SecureClient("site 1")
    with pytest.raises(Refusal, match="has lost them"):
        lost.share(RUN, 2)
    with pytest.raises(Refusal, match="has lost them"):
        masked_for({"site 1": lost}, server, "site 1")
    fresh = lost.keys(RUN)  # nobody takes it: the keys of the run are fixed
    with pytest.raises(Refusal, match="does not follow"):
        clients["site 2"].roster(RUN, server.names, np.repeat(fresh, N, axis=0))


def test_keys_are_made_once_for_a_run(server, clients):
    with pytest.raises(Refusal, match="before"):
        clients["site 1"].keys(RUN)
    with pytest.raises(Refusal, match="no keys for this run"):
        clients["site 1"].share("another run", 1)


def test_a_second_key_for_a_run_is_refused_after_the_keys_of_other_runs(server, clients):
    client = clients["site 1"]
    for run in ("another run", "a third run"):
        client.keys(run)
    for run in (RUN, "another run", "a third run"):
        with pytest.raises(Refusal, match="has sent its key for this run before"):
            again(client).keys(run)


def test_secrets_of_a_sum_are_forgotten_once_it_is_opened(server, clients):
    client = clients["site 1"]
    share(server, clients)
    secrets = client._facts.secrets
    assert [len(secret) for secret in secrets] == [2 * KEY] * 2
    mask(server, clients, words_of(clients))
    confirm(server, clients)
    open_shares(server, clients)
    kept = b"".join(array.tobytes() for array in client.to_arrays())
    assert not any(secret.encode() in kept or bytes.fromhex(secret) in kept for secret in secrets)
    assert client._facts.private == ""
    assert client._round == b""


def test_lists_of_different_clients_have_different_hashes():
    assert len({list_of(listed) for listed in ([1, 2], [12], [1, 2, 3], [2, 1, 3])}) == 3


def test_a_list_with_too_few_shares_of_noise_is_refused(server, clients):
    share(server, clients)
    mask(server, clients, words_of(clients), n_shares=7)
    with pytest.raises(Refusal, match="7 clients have masked their answers; at least 8"):
        clients["site 0"].confirm(RUN, 1, list(range(7)))

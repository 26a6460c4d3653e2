"""Clients and a server of secure sums, without Flower: each message goes through the arrays that would be sent."""

from hashlib import sha256

import numpy as np

from flower_fedclust.secure import SecureClient, SecureServer, Trust

RUN, QUESTION = "a run", b"what is asked, as 32 bytes or so"


def hashed(question):
    return question if len(question) == 32 else sha256(question).digest()


def clients_of(n, **trust):
    return {f"site {index}": SecureClient(f"site {index}", Trust(**trust)) for index in range(n)}


def again(client, trust=None):
    """A new process of the same client, which has what the last one has kept."""
    return SecureClient(client.name, trust or client.trust, client.to_arrays())


def begun(clients, run=RUN):
    """Exchange keys, and return the server."""
    server = SecureServer(run)
    for name, client in clients.items():
        server.take_key(name, client.keys(run))
    keys = server.roster(list(clients))
    for name, client in clients.items():
        server.take_roster(name, client.roster(run, server.names, keys))
    return server


def share(server, clients, number=1, gone=()):
    server.begin(number)
    for name, client in clients.items():
        if name not in gone:
            server.take_shares(name, *client.share(server.run, number))
    return server.invited()


def masked(client, server, invited, words, number=1, question=QUESTION, n_shares=1):
    client.invite(server.run, number, invited, n_shares)
    return client.mask(hashed(question), words)


def mask(server, clients, words, number=1, gone=(), question=QUESTION, n_shares=1):
    invited = server.invited()
    for name in server.named(invited):
        if name not in gone:
            server.take_masked(
                name,
                masked(clients[name], server, invited, words[name], number, question, n_shares),
            )
    return server.arrived()


def confirm(server, clients, number=1, gone=()):
    arrived = server.arrived()
    for name in server.named(arrived):
        if name not in gone:
            server.take_confirmations(name, *clients[name].confirm(server.run, number, arrived))


def open_shares(server, clients, number=1, gone=()):
    for name in server.named(server.confirmed):
        if name not in gone:
            opened = clients[name].open(
                server.run, number, server.confirmations_for(name), server.shares_for(name)
            )
            server.take_opened(name, opened)


def secure_sum(
    server, clients, words, number=1, question=QUESTION, gone=((), (), (), ()), n_shares=1
):
    """Return a sum, with clients that drop out before each of the four steps."""
    lost = [set().union(*gone[: step + 1]) for step in range(4)]
    share(server, clients, number, lost[0])
    mask(server, clients, words, number, lost[1], question, n_shares)
    confirm(server, clients, number, lost[2])
    open_shares(server, clients, number, lost[3])
    return server.total()


def words_of(clients, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(2**64, size=size, dtype=np.uint64) for name in clients}


def plain_sum(words, names):
    return np.sum([words[name] for name in names], axis=0, dtype=np.uint64)

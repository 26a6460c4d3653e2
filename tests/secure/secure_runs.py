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
    return np.array(server.invited())


def mask(server, clients, words, number=1, gone=(), question=QUESTION, least=0):
    invited = np.array(server.invited())
    for name in server.named(invited.tolist()):
        if name not in gone:
            masked = clients[name].mask(server.run, number, invited, least, hashed(question), words[name])
            server.take_masked(name, masked)
    return np.array(server.arrived())


def confirm(server, clients, number=1, gone=()):
    arrived = np.array(server.arrived())
    for name in server.named(arrived.tolist()):
        if name not in gone:
            server.take_confirmations(name, *clients[name].confirm(server.run, number, arrived))


def open_shares(server, clients, number=1, gone=()):
    for name in server.named(server.confirmed):
        if name not in gone:
            opened = clients[name].open(server.run, number, server.confirmations_for(name), server.shares_for(name))
            server.take_opened(name, opened)


def secure_sum(server, clients, words, number=1, question=QUESTION, gone=((), (), (), ()), least=0):
    """Return a sum, with clients that drop out before each of the four steps."""
    lost = [set().union(*gone[: step + 1]) for step in range(4)]
    share(server, clients, number, lost[0])
    mask(server, clients, words, number, lost[1], question, least)
    confirm(server, clients, number, lost[2])
    open_shares(server, clients, number, lost[3])
    return server.total()


def words_of(clients, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(2**64, size=size, dtype=np.uint64) for name in clients}


def plain_sum(words, names):
    return np.sum([words[name] for name in names], axis=0, dtype=np.uint64)

"""Secure sums: the server gets the sum of the clients' integers and no client's own (docs/secure.md).

``shamir``  splits a secret into shares, any t of which give it back
``keys``    keys, derived keys, masks and checks, from ``cryptography``
``client``  what a client does in each step, and what it refuses
``server``  what the server does in each step, and whom it blames

A run begins with two steps, and each sum takes four more::

    once for a run
      keys      client -> server   its X25519 key for this run, signed with its Ed25519 key
      roster    server -> client   all keys; the client checks them, and agrees on a key with every other client

    for each sum
      share     client -> server   shares of two new secrets, encrypted for each other client:
                                   one for its own mask, one for the keys of its pairs in this round
      mask      server -> client   the question, and the list of clients that dealt shares
                client -> server   its answer + its own mask + the masks of its pairs (those with later clients added,
                                   those with earlier ones subtracted)
      confirm   server -> client   the list of clients whose masked answers have arrived
                client -> server   a confirmation of this list for each client on it
      open      server -> client   the confirmations, and the encrypted shares
                client -> server   if enough have confirmed the same list: for each client on it, the share for that
                                   client's own mask; for each client that dropped out, the share for the keys of its
                                   pairs

The server then adds the masked answers, joins the shares, and takes away the masks that are left. Client and server
know neither Flower nor files: the engine carries their arrays, and keeps what a client has to remember.
"""

from flower_fedclust.secure.client import Refusal, SecureClient, Trust
from flower_fedclust.secure.server import SecureServer, Step, SumError

__all__ = ["Refusal", "SecureClient", "SecureServer", "Step", "SumError", "Trust"]

"""Secure sums: the server gets the sum of the clients' integers and no client's own (docs/secure.md).

``shamir``  a secret in shares, any t of which give it back
``keys``    keys, derived keys, masks and checks, from ``cryptography``
``client``  what a client does in each step, and what it refuses
``server``  what the server does in each step, and whom it blames

A run begins with two steps: each client sends a signed key (``keys``), and gets everybody's (``roster``). Each sum
takes four more: ``share`` deals shares of two secrets, ``mask`` sends the masked answer, ``confirm`` tells the others
which answers have arrived, as the server says, and ``open`` opens one share of each client. Client and server know
neither Flower nor files: the engine carries their arrays, and keeps what a client has to remember.
"""

from flower_fedclust.secure.client import Refusal, SecureClient, Trust
from flower_fedclust.secure.server import SecureServer, Step, SumError

__all__ = ["Refusal", "SecureClient", "SecureServer", "Step", "SumError", "Trust"]

"""Pieces that several protocols share: generators used with ``yield from``, and the clients' answers to them."""

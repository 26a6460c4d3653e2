"""Attacks on messages that no mechanism covers, in words.

The attacks themselves are in strategies/reproduce/attacks.py, in the second distribution of the repository.
"""

from __future__ import annotations

#: Kind of message, a word in its content, the function of reproduce.attacks that attacks it, and what the attack does.
_GALLERY: tuple[tuple[str, str, str, str], ...] = (
    ("codes", "kernel values", "rows_from_kernel", "compute every row"),
    ("codes", "distances", "rows_from_distances", "compute every row"),
    ("codes", "code of", "rows_from_codes", "compute every row"),
    ("codes", "synthetic rows", "membership_from_centers", "tell who is among the rows"),
    ("codes", "that was drawn", "row_by_replay", "tell which of some rows it is"),
    (
        "codes",
        "nearest rows of every row",
        "clusters_from_graph",
        "cluster the rows without asking",
    ),
    ("codes", "prototype of", "row_by_replay", "tell which of some rows it is"),
    ("codes", "", "clusters_from_codes", "cluster the rows without asking"),
    (
        "centers",
        "means of the client's prototypes",
        "images_from_prototypes",
        "look at them, where rows are images",
    ),
    ("centers", "of the client's codes", "row_by_replay", "tell which of some rows a client has"),
    ("centers", "means of", "membership_from_centers", "tell who is among the rows"),
    ("centers", "medians of the", "membership_from_centers", "tell who is among the rows"),
    ("centers", "centers of", "membership_from_centers", "tell who is among the rows"),
    (
        "sums",
        "sum of the rows in each cluster",
        "row_from_sums",
        "compute a row that came between two runs",
    ),
    ("sums", "sum of the rows, less", "row_from_sums", "compute a row that came between two runs"),
    (
        "sums",
        "k-means cost of the rows",
        "sums_by_evaluations",
        "compute the sum of the rows, and so a row that came",
    ),
    ("", "", "row_by_replay", "tell which of some rows a client has, if its others are known"),
)


def attack_by_name(content: str, reveals: str) -> str:
    """Return the name of the function that attacks an unprotected message; "" if the message is the rows."""
    return "" if reveals == "rows" else _found(content, reveals)[0]


def attack_on(content: str, reveals: str) -> str:
    """Say what somebody who sees an unprotected message can do with it, and which function does it."""
    if reveals == "rows":
        return "there is nothing to attack: these are the rows"
    function, gives = _found(content, reveals)
    return f"{gives}: {function}"


def _found(content: str, reveals: str) -> tuple[str, str]:
    if content == "sum of the rows":
        content = "sum of the rows in each cluster"  # the message describes a single cluster
    return next(
        (function, gives)
        for kind, word, function, gives in _GALLERY
        if kind in reveals and word in content
    )

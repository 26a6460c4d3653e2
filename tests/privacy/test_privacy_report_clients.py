"""Rounds that not all clients are asked in: whose epsilon it is, and what the report says of them."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from flower_fedclust.privacy.accounting import composed_epsilon, delta_of_composition
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message, PrivacyReport

DELTA = 1e-5
SUMS = Release("gaussian", 2.5, 3.0, "rows are clipped to 2.5")
LOUD = Release("gaussian", 2.5, 1.0, "rows are clipped to 2.5")
COUNTS = Release("laplace", 1.0, 4.0, "a row counts once")

NAME = Message(1, "enrol", "name and columns", "one per client", harmless=True)


def report(*messages, **options):
    fields = {"requested_epsilon": 2.0, "delta": DELTA, "unit": "record", "noise": "server"}
    return PrivacyReport("dp-fedc", messages, **(fields | options))


def asked(round_, clients, release=SUMS, **options):
    """Return a message of those clients, a letter each; None is all of them."""
    detail = "sum over the clients" if clients is None else f"sum over the clients, {len(clients)} of 8 clients asked"
    return Message(round_, "step", "sums", detail, release, clients=clients and tuple(clients), **options)


def epsilon_of(*releases):
    return composed_epsilon(releases, delta_of_composition(DELTA), near=2.0)


# Composition.


def test_epsilon_is_that_of_the_client_that_was_asked_most_often():
    assert report(asked(2, "a"), asked(3, "a"), asked(4, "b")).composed_epsilon == epsilon_of(SUMS, SUMS)
    assert report(asked(2, "a"), asked(3, "b"), asked(4, "c")).composed_epsilon == epsilon_of(SUMS)
    assert report(asked(2, "ab"), asked(3, "bc"), asked(4, "bd"), asked(5, "cd")).composed_epsilon == epsilon_of(
        *[SUMS] * 3
    )


def test_a_round_that_asks_all_counts_for_everybody():
    everybody = asked(2, None)
    assert report(everybody, asked(3, "a"), asked(4, "b")).composed_epsilon == epsilon_of(SUMS, SUMS)
    assert report(asked(3, "a"), asked(4, "b"), everybody).composed_epsilon == epsilon_of(SUMS, SUMS)
    assert report(everybody, everybody, asked(4, "b")).composed_epsilon == epsilon_of(*[SUMS] * 3)


def test_where_all_are_asked_every_release_counts():
    assert report(asked(2, None), asked(3, None)).composed_epsilon == epsilon_of(SUMS, SUMS)


def test_releases_of_different_noise_count_by_what_they_cost_and_not_by_their_number():
    assert (
        report(asked(2, "a"), asked(3, "a"), asked(4, "b", LOUD)).composed_epsilon
        == epsilon_of(LOUD)
        > epsilon_of(SUMS, SUMS)
    )
    assert report(asked(2, "a", LOUD), asked(3, "b", LOUD), asked(4, "a")).composed_epsilon == epsilon_of(LOUD, SUMS)
    both = report(asked(2, "ab"), asked(3, "a", LOUD), asked(4, "b", COUNTS))
    assert both.composed_epsilon == epsilon_of(SUMS, LOUD) > epsilon_of(SUMS, COUNTS)


def test_several_arrays_of_one_round_all_count_for_its_clients():
    assert report(asked(2, "a"), asked(2, "a", COUNTS), asked(3, "b")).composed_epsilon == epsilon_of(SUMS, COUNTS)


@pytest.mark.parametrize("seed", range(3))
def test_epsilon_is_the_largest_over_the_clients_of_what_each_was_asked_for(seed):
    rng = np.random.default_rng(seed)
    messages = []
    for number in range(2, 9):
        drawn = "".join(name for name in "abcdef" if rng.random() < 0.4)
        chosen = (SUMS, LOUD, COUNTS)[rng.integers(3)]
        messages.append(asked(number, drawn if drawn and rng.random() < 0.8 else None, chosen))
    slow = max(
        composed_epsilon(
            [m.release for m in messages if m.clients is None or name in m.clients],
            delta_of_composition(DELTA),
            near=2.0,
        )
        for name in "abcdef"
    )
    assert report(*messages).composed_epsilon == pytest.approx(slow, rel=1e-6)
    assert report(*messages[::-1]).composed_epsilon == pytest.approx(slow, rel=1e-6)


def test_a_sample_of_the_rows_counts_for_the_clients_that_were_asked():
    sampled = Release("gaussian", 1.0, 1.0, "", "replace", (5, 1000))
    drawn = report(asked(2, "a", sampled), asked(3, "b", sampled), asked(4, "a", sampled))
    assert drawn.composed_epsilon == pytest.approx(epsilon_of(sampled, sampled), rel=1e-9)
    two_arrays = report(asked(2, "a", sampled), asked(2, "a", sampled), asked(3, "b", sampled), asked(4, "b", sampled))
    assert two_arrays.composed_epsilon > drawn.composed_epsilon  # those of a are of the same rows


def test_epsilon_does_not_depend_on_who_is_who():
    first = report(asked(2, "ab"), asked(3, "bc", LOUD), asked(4, "ca"))
    second = report(asked(2, "ca"), asked(3, "ab", LOUD), asked(4, "bc"))
    assert first.composed_epsilon == second.composed_epsilon


def test_unprotected_and_harmless_messages_of_some_clients_change_no_epsilon():
    bare = asked(5, "a", None)
    mixed = report(NAME, asked(2, "b"), asked(3, "b"), bare, bare, bare)
    assert mixed.composed_epsilon == epsilon_of(SUMS, SUMS)
    assert mixed.unprotected == [bare] * 3
    assert not mixed.covers_everything


def test_a_release_without_noise_that_some_were_asked_for_is_unprotected_and_not_composed():
    without_noise = asked(3, "a", Release("gaussian", 1.0, 0.0, ""))
    mixed = report(asked(2, "b"), without_noise)
    assert mixed.composed_epsilon == epsilon_of(SUMS)
    assert mixed.unprotected == [without_noise]


def test_epsilon_is_infinite_where_nothing_that_some_were_asked_for_is_released():
    assert report(asked(2, "a", None)).composed_epsilon == math.inf
    assert report(asked(2, "a"), delta=None).composed_epsilon == math.inf
    assert report(asked(2, "a", Release("gaussian", 1.0, 0.0, ""))).composed_epsilon == math.inf


def test_releases_of_so_much_noise_that_nothing_is_spent():
    assert report(asked(2, "a", Release("gaussian", 1.0, 1e6, ""))).composed_epsilon == 0.0


def test_a_message_that_nobody_was_asked_for_costs_nobody_anything():
    assert report(asked(2, ""), asked(3, "a")).composed_epsilon == epsilon_of(SUMS)


def test_thousands_of_clients_are_composed_only_as_often_as_they_differ(monkeypatch):
    composed = []
    monkeypatch.setattr(
        "flower_fedclust.privacy.report.composed_epsilon",
        lambda releases, delta, near: composed.append(releases) or float(releases.total()),
    )
    rng = np.random.default_rng(0)
    messages = []
    for number in range(2, 42):
        drawn = tuple(str(index) for index in rng.choice(2000, size=600, replace=False))
        shorter = Release("gaussian", 1.0 / number, 3.0, f"rows are clipped to 1 / {number}")
        messages.append(Message(number, "step", "sums", "sum over the clients", shorter, clients=drawn))
    most = max(Counter(name for message in messages for name in message.clients).values())
    assert report(*messages).composed_epsilon == most
    assert len(composed) == 1


# What is said.


def section(text, heading):
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(heading))
    stop = next((index for index in range(start + 1, len(lines)) if not lines[index]), len(lines))
    return lines[start + 1 : stop]


def test_the_text_puts_rounds_of_different_clients_together_where_they_are_as_many():
    lines = section(str(report(asked(2, "abc"), asked(3, "cde"), asked(4, "fgh"))), "Protected by noise")
    assert len(lines) == 2
    assert lines[0] == "  rounds 2 to 4 'step': sums (sum over the clients, 3 of 8 clients asked)"


def test_the_text_lists_rounds_of_more_clients_apart():
    lines = section(str(report(asked(2, "abc"), asked(3, "ab"), asked(4, None), asked(5, "fgh"))), "Protected by noise")
    assert [line for line in lines if line.startswith("  round")] == [
        "  rounds 2, 5 'step': sums (sum over the clients, 3 of 8 clients asked)",
        "  round 3 'step': sums (sum over the clients, 2 of 8 clients asked)",
        "  round 4 'step': sums (sum over the clients)",
    ]


def test_the_text_does_the_same_with_what_is_unprotected():
    lines = section(str(report(asked(2, "abc", None), asked(3, "cde", None))), "Unprotected")
    assert lines == ["  rounds 2 to 3 'step': sums (sum over the clients, 3 of 8 clients asked)"]


def test_the_guarantee_is_that_of_the_client_asked_most_often():
    made = report(asked(2, "a"), asked(3, "a"), asked(4, "b"))
    assert made.guarantee() == ("The whole run is covered by (2, 1e-05)-differential privacy per record.")


def test_the_dictionary_is_json_and_gives_the_clients():
    made = report(NAME, asked(2, "ab"), asked(3, None), asked(4, "b", None))
    fields = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert [message["clients"] for message in fields["messages"]] == [None, ["a", "b"], None, ["b"]]
    assert fields["epsilon"] == made.epsilon == 2.0
    assert fields["composed_epsilon"] == made.composed_epsilon == epsilon_of(SUMS, SUMS)
    assert [message["detail"] for message in fields["messages"][1:3]] == [
        "sum over the clients, 2 of 8 clients asked",
        "sum over the clients",
    ]


def test_messages_of_different_clients_are_different_messages():
    assert asked(2, "a") != asked(2, "b")
    assert asked(2, "a") != asked(2, None)

"""Whatever a server sends, one row moves what leaves a careful site by no more than the ledger accounts for."""

import os
from dataclasses import replace

import numpy as np
import pytest
from random_servers import LIMITS, attack, of_each_client

from flower_fedclust.engine import parts
from flower_fedclust.site.policy import Policy

#: How many messages each strategy gets; ``python tests/site/random_servers.py`` sends 10,000.
N_MESSAGES = int(os.environ.get("FEDCLUST_RANDOM_MESSAGES", "0"))


def check_sound(found, n_messages):
    assert not found.wrong, "\n".join(found.wrong)
    assert found.outcomes["answered"] > n_messages / 20
    assert found.outcomes["refused"] > n_messages / 20


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    ["feddp-kmeans", "fedsc-sums", "private-kmeans", "private-mixture", "private-density"],
)
def test_a_random_server_gets_no_more_than_the_ledger_accounts_for(strategy):
    found = attack(strategy, 150)
    check_sound(found, 150)
    assert len(found.tasks) > 2
    assert found.moved > 0.99  # some row moves some answer as far as any may


@pytest.mark.long
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("strategy", of_each_client())
def test_a_random_server_gets_no_more_on_either_side_of_a_limit(strategy, limit):
    found = attack(strategy, N_MESSAGES or 60, size=LIMITS[limit])
    assert not found.wrong, "\n".join(found.wrong)


def test_a_random_server_gets_no_more_on_either_side_of_a_limit_of_the_default():
    check_sound(attack("private-kmeans", 100, size=LIMITS["2^53"]), 100)


@pytest.mark.long
def test_the_comparison_finds_a_sample_that_one_row_changes_as_a_whole(monkeypatch):
    """As ids beyond 2^53, of which floats hold every 512th, were once told apart by their order."""
    import random_servers

    def by_order(data, most, _):
        order = np.random.default_rng(0).permutation(data.n_rows)
        return data.chosen(np.sort(order[:most]))

    monkeypatch.setattr(random_servers, "sampled", by_order)
    found = attack("private-kmeans", 150, seed=2, size=LIMITS["2^62"])
    assert any("times as far" in reason for reason in found.wrong)


@pytest.mark.long
@pytest.mark.parametrize("strategy", of_each_client())
def test_a_random_server_of_any_strategy_gets_no_more_than_the_ledger_accounts_for(strategy):
    check_sound(attack(strategy, N_MESSAGES or 300, seed=1), N_MESSAGES or 300)


@pytest.mark.long
def test_the_comparison_finds_a_row_that_moves_an_answer_too_far(monkeypatch):
    """What the suite finds: here a client that takes its bounds for half of what they are."""
    release_of = parts.release_of

    def halved(*given):
        release = release_of(*given)
        return replace(release, sensitivity=0.5 * release.sensitivity)

    monkeypatch.setattr(parts, "release_of", halved)
    assert any("times as far" in reason for reason in attack("private-kmeans", 150).wrong)


def test_the_comparison_finds_a_refusal_that_depends_on_the_rows(monkeypatch):
    monkeypatch.setattr(Policy, "known_rows", lambda policy, n_rows: 1 / (n_rows == 60))
    assert any("depends on the rows" in reason for reason in attack("private-kmeans", 150).wrong)

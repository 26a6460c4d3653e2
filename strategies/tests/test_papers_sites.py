"""Strategies of the second distribution at a site with a policy, and a server that asks it for anything at all."""

import pytest
from hostile import FAILED, Server, refused, site
from test_site_hostile_servers import (
    KEEP,
    NO_LIMIT,
    NOISY_ROWS,
    REPLACED,
    arrays_of,
    plan_of,
)

from flower_fedclust_papers.coreset_kmedian import CoresetKMedianClient
from flower_fedclust_papers.ppfc_gan import PPFCGANClient


@pytest.mark.parametrize("n_epochs", [10**9, 1e9, -(10**9), 10**400, float("inf"), float("nan")])
def test_steps_without_end_are_refused_by_the_message(tmp_path, n_epochs):
    """A server could have a site compute for ever, with its ledger locked."""
    own = site(tmp_path, unprotected=["codes"])
    server = Server(own, strategy="ppfc-gan")
    asked = PPFCGANClient.synthetic_rows.asked(n_synthetic=1, n_epochs=n_epochs, random_state=0)
    reason = refused(server.ask(asked), own)
    assert "most_steps" in reason or "usable amount" in reason
    several = PPFCGANClient.synthetic_rows.asked(n_synthetic=10**4, n_epochs=10**4, random_state=0)
    assert "most_steps" in refused(server.ask(several), own)


def test_what_a_client_remembers_for_itself_is_no_table_of_rows(careful):
    other = Server(careful, 2, "coreset-k-median").ask_sum(rows="own medians")
    assert other.metrics["failure"] in ("refused", "failed")


def test_what_was_remembered_of_the_true_rows_is_not_there_for_rows_with_noise(tmp_path):
    loose = site(tmp_path, **NO_LIMIT, unprotected=["centers", "codes", "sums"])
    server = Server(loose, strategy="coreset-k-median")
    cost = CoresetKMedianClient.own_cost.asked(n_clusters=2, random_state=0)
    arrays_of(server.ask(cost, plan=plan_of([REPLACED]).to_json()))
    arrays_of(server.ask(KEEP, releases=[REPLACED]))
    coreset = CoresetKMedianClient.coreset.asked(n_samples=9, cost_per_sample=9.0, random_state=0)
    assert server.ask(coreset, rows=NOISY_ROWS).metrics == FAILED
    arrays_of(server.ask(cost, rows=NOISY_ROWS))
    arrays_of(server.ask(coreset, rows=NOISY_ROWS))

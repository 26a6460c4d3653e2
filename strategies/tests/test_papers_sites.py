"""Strategies of the second distribution at a site with a policy, and a server that asks it for anything at all."""

import json

import numpy as np
import pytest
from hostile import (
    BOTH,
    ENROL,
    FAILED,
    NO_LIMIT,
    PLAN,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan_of,
    refused,
    site,
)
from test_site_hostile_rows import BALL, KEEPING, chains, what_is_kept_comes_of_several
from test_site_hostile_servers import CENTERS, REPLACED, multipliers
from test_site_hostile_servers import added as added

from flower_fedclust.engine.parts import Part, relation_of
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.strategies.common.moments import MomentsClient
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema
from flower_fedclust_papers.coreset_kmedian import CoresetKMedianClient
from flower_fedclust_papers.maps_perturbed import PerturbedMapClient
from flower_fedclust_papers.perturbed_rows import NOISY_ROWS, PerturbedRowsClient
from flower_fedclust_papers.ppfc_gan import PPFCGANClient

KEEP = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
CODES = PerturbedMapClient.landmark_distances.asked(CENTERS)
KEEPING["perturb_rows"] = lambda _: KEEP


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


# Rows that are kept with noise.


def test_a_server_cannot_choose_a_relation_that_an_answer_does_not_support(tmp_path):
    own = site(tmp_path, relations=BOTH)
    answer = Server(own, strategy="fed-tsne-perturbed").ask(KEEP, releases=[gaussian(9.0)])
    assert "rows that are replaced" in refused(answer, own)
    assert own.ledger.read() == []


def test_rows_that_are_kept_carry_noise_for_the_norm_to_which_they_are_clipped(
    tmp_path, careful, added
):
    noise = [gaussian(5.0, relation="replace")]
    said = refused(
        Server(careful, strategy="fed-tsne-perturbed").ask(KEEP, releases=noise), careful
    )
    assert "relations in the policy" in said
    own = site(tmp_path / "own", **NO_LIMIT)
    assert arrays_of(Server(own, strategy="fed-tsne-perturbed").ask(KEEP, releases=noise)) == []
    assert [release.sensitivity for release in added] == pytest.approx([8.0])
    assert multipliers(own) == [5.0]
    endless = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=np.inf)
    refused(Server(own, 2, "fed-tsne-perturbed").ask(endless, releases=noise), own)


def test_rows_that_are_kept_without_noise_stay(careful):
    server = Server(careful, strategy="fed-tsne-perturbed")
    assert arrays_of(server.ask(KEEP)) == []
    assert "without noise" in refused(server.ask(CODES, rows=NOISY_ROWS), careful)


def test_what_was_kept_in_one_run_is_not_there_in_another(tmp_path):
    loose = site(tmp_path, **NO_LIMIT)
    first, second = (Server(loose, run, "fed-tsne-perturbed") for run in (1, 2))
    arrays_of(first.ask(KEEP, releases=[REPLACED]))
    second.context.state = first.context.state  # as for runs of a series, whose state Flower shares
    assert second.ask(CODES, rows=NOISY_ROWS).metrics == FAILED | {"missed": True}
    assert arrays_of(first.ask(CODES, rows=NOISY_ROWS))[0].shape == (60, 2)


COLUMNS = Schema.of({"columns": {name: {"kind": "number", "bounds": [-9, 9]} for name in "abc"}})


def test_what_is_said_to_follow_from_rows_with_noise_reads_no_others(tmp_path):
    loose = site(tmp_path, schema=COLUMNS, **NO_LIMIT)
    server = Server(loose, strategy="fed-tsne-perturbed")
    config = ENROL | {"client": PerturbedMapClient.key(), "schema": COLUMNS.to_json()}
    assert "failure" not in server.send([], config).metrics
    preparation = Preparation(
        COLUMNS, {name: Figures(low=-9.0, high=9.0) for name in "abc"}
    ).to_dict()
    arrays_of(server.ask(PerturbedMapClient.prepare.asked(as_bytes(json.dumps(preparation)))))
    arrays_of(
        server.ask(
            PerturbedMapClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0),
            releases=[REPLACED],
        )
    )
    bins = as_bytes(json.dumps([[name, 4, True] for name in "abc"]))
    for asked in (
        PerturbedMapClient.histograms.asked(bins, np.array(3 * [[-9.0, 9.0]])),
        PerturbedMapClient.exponents.asked(as_bytes(json.dumps(list("abc")))),
        PerturbedMapClient.description.asked(np.zeros((1, 3)), model="k-means", floor=10),
    ):
        assert server.ask(asked, rows=NOISY_ROWS).metrics == FAILED
        assert "takes the client's own rows, and not its noisy rows" in audit(loose)[-1]["reason"]


def test_what_is_computed_from_noisy_rows_shows_their_number_and_stays_unless_that_may_leave(
    tmp_path,
):
    derived = MomentsClient.clipped_column_sums.asked(frame=BALL)
    for row_count in (False, True):
        own = site(tmp_path / str(row_count), **NO_LIMIT | {"row_count": row_count})
        server = Server(own, strategy="fed-tsne-perturbed")
        arrays_of(server.ask(KEEP, releases=[REPLACED]))
        answer = server.ask(derived, rows=NOISY_ROWS)
        if row_count:
            assert arrays_of(answer)[2] == 60 * 2**15  # in units of 2^-15
        else:
            assert "row_count in the policy is false" in refused(answer, own)


def test_arrays_with_an_entry_for_every_row_stay_unless_their_kind_or_the_count_may_leave(tmp_path):
    Y, frame = np.zeros((2, 3)), (np.zeros(3), np.array([4.0, 2.0]))
    asked = PerturbedMapClient.clipped_distances.asked(Y, *frame, max_norm=4.0)
    noise = [gaussian(4.0, relation="replace")]
    careful = site(tmp_path / "careful", **NO_LIMIT | {"row_count": False})
    assert "row_count" in refused(
        Server(careful, strategy="fed-tsne-perturbed").ask(asked, releases=noise), careful
    )
    for name, allowed in {
        "counted": {},
        "listed": {"unprotected": ["codes"], "row_count": False},
    }.items():
        own = site(tmp_path / name, **NO_LIMIT | allowed)
        assert (
            len(arrays_of(Server(own, strategy="fed-tsne-perturbed").ask(asked, releases=noise))[0])
            == 60
        )


def test_kept_rows_of_a_task_that_failed_are_those_of_no_row(careful, monkeypatch):
    def failing(self, relative_noise, max_norm):
        raise ZeroDivisionError(self.rows[0, 0])

    monkeypatch.setattr(PerturbedRowsClient.perturb_rows, "function", failing)
    server = Server(careful, strategy="fed-tsne-perturbed")
    assert arrays_of(server.ask(KEEP, plan=PLAN.to_json())) == []
    asked = PerturbedMapClient.exponents.asked(COLUMNS).mean()
    answer = server.ask(asked, rows=NOISY_ROWS, plan=PLAN.to_json())
    assert not answer.metrics.get("missed")


def test_a_budget_that_pays_for_kept_rows_is_for_rows_that_are_replaced():
    assert relation_of({"a": Part(PerturbedRowsClient.perturb_rows, 1.0)}) == "replace"


@pytest.mark.parametrize(("kind", "first", "second"), list(chains()))
def test_what_is_kept_of_rows_that_come_of_several_comes_of_several(careful, kind, first, second):
    what_is_kept_comes_of_several(careful, kind, first, second)

"""A policy holds whatever strategy, shares or number of rows a run pretends to have."""

import numpy as np
import pytest
from hostile import BOTH, ROWS, SHARES, Server, arrays_of, audit, gaussian, plan, plan_of, refused, site
from test_site_hostile_servers import ANNOUNCED, NO_LIMIT, NOISE, SUM

from flower_fedclust.engine.consent import Request
from flower_fedclust.engine.rounds import Answer, Moved, Sent
from flower_fedclust.exact.rows import Frame
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.site.budget import Budget, Spent
from flower_fedclust.site.policy import Policy
from flower_fedclust.strategies.common.local_centers import LocalCentersClient
from flower_fedclust.strategies.common.moments import MomentsClient
from flower_fedclust.strategies.common.perturbed_rows import NOISY_ROWS, PerturbedRowsClient
from flower_fedclust.strategies.dp_fedc import DPFedCClient
from flower_fedclust.strategies.maps.maps import FederatedMapClient
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient

# Shares.


def gradient(batch_size, n_columns=3):
    local = {"rho": 1.0, "mu_h": 1.0, "n_membership_steps": 1, "random_state": 0, "max_norm": 4.0, "divisor": 8.0}
    W = np.eye(n_columns)
    return DPFedCClient.clipped_gradient.asked(W, batch_size=batch_size, max_gradient_norm=1.0, **local)


SAMPLED = {name: Share("gaussian", 0.5, 10, "replace", (5, 50)) for name in ("gradients", "products")}


def sampled_by(shares, names=("gradients", "products")):
    found = plan(shares)
    return [gaussian(found.multipliers[name], relation="replace", share=name) for name in names], found


def test_a_share_is_spent_once_in_a_reply(tmp_path):
    """Two arrays of one sample are not two samples: composed as such, an epsilon of 3 was one of 3.33."""
    careful = site(tmp_path, relations=BOTH)
    releases, announced = sampled_by(SAMPLED)
    config = {"strategy": "dp-fedc"}
    twice = [releases[0], releases[0]]
    said = refused(Server(careful, **config).ask(gradient(5), releases=twice, plan=announced.to_json()), careful)
    assert "name one part" in said
    assert careful.ledger.read() == []
    arrays_of(Server(careful, **config).ask(gradient(5), releases=releases, plan=announced.to_json()))


def test_arrays_of_one_reply_have_the_same_sample(tmp_path):
    """Shares whose samples differ are composed as independent ones, which those of one reply are not."""
    other = SAMPLED | {"products": Share("gaussian", 0.5, 10, "replace", (6, 50))}
    releases, announced = sampled_by(other)
    careful = site(tmp_path, relations=BOTH)
    server = Server(careful, strategy="dp-fedc")
    assert "different samples" in refused(server.ask(gradient(5), releases=releases, plan=announced.to_json()), careful)


# Strategies.


@pytest.mark.parametrize("named", ["", " ", ",", "SPP-FGC", "k-fed,spp-fgc", "spp-fgc,k-fed", "spp-fgcs", "k-fed:KFED"])
def test_a_run_names_strategies_that_the_policy_lists_and_no_others(tmp_path, named):
    chosen = site(tmp_path, strategies=["spp-fgc"], unprotected=["centers", "codes"])
    own = LocalCentersClient.local_centers.asked(n_clusters=60, random_state=0)
    server = Server(chosen, strategy=named)
    said = refused(server.ask(own, client=LocalCentersClient.key()), chosen)
    assert "strategies in the policy lists spp-fgc" in said


def test_a_run_config_without_a_strategy_is_refused_by_a_policy_that_lists_some(tmp_path):
    chosen = site(tmp_path, strategies=["spp-fgc"], unprotected=["centers", "codes"])
    server = Server(chosen, strategy="k-fed")
    server.context.run_config = {}
    for asked in (LocalCentersClient.local_centers.asked(n_clusters=60, random_state=0), None):
        answer = (
            server.ask(asked)
            if asked
            else server.send([], {"task": "enrol", "round": 1, "client": LocalCentersClient.key()})
        )
        assert "names no strategy" in refused(answer, chosen)


def test_a_listed_strategy_is_answered_by_its_own_client_half_alone(tmp_path):
    chosen = site(tmp_path, strategies=["spp-fgc"], unprotected=["centers", "codes"])
    own = LocalCentersClient.local_centers.asked(n_clusters=60, random_state=0)
    said = refused(Server(chosen, strategy="spp-fgc").ask(own, client=LocalCentersClient.key()), chosen)
    assert "no part of spp-fgc" in said


# The number of rows.

COUNTED = {"row_count": True}
DERIVED = MomentsClient.clipped_column_sums.asked(frame=Frame(np.zeros(3), 4.0))


def tables():
    """Tables of 60 rows, and of one more and one less."""
    return [ROWS, np.vstack([ROWS, ROWS[:1]]), ROWS[1:]]


def test_refusals_do_not_depend_on_the_number_of_rows(tmp_path):
    """A server that announced a sample of n rows was refused where n was more than there are: 64 refusals told n."""
    said = set()
    for index, rows in enumerate(tables()):
        own = site(tmp_path / str(index), rows=rows, relations=BOTH)
        for drawn in (5, 50, 59, 60, 61, 999):
            for of in (50, 59, 60, 61):
                # With two samples all of them are refused, some by this and some by how many rows there are to draw.
                samples = {"gradients": (min(drawn, of), of), "products": None}
                releases = [gaussian(9.0, relation="replace", share=name, sample=samples[name]) for name in SAMPLED]
                Server(own, 100 * drawn + of, strategy="dp-fedc").ask(gradient(drawn), releases=releases)
        said.add(tuple(line["reason"] for line in audit(own)))
    assert len(said) == 1
    assert {"does not draw" in reason for (reasons,) in [said] for reason in reasons} == {True, False}
    assert not any("59" in reason or "61 rows" in reason for reason in said.pop() if "announced" not in reason)


def test_a_sample_is_of_rows_that_are_public(tmp_path):
    fifty, announced = sampled_by(SAMPLED)
    sixty = {name: Share("gaussian", 0.5, 10, "replace", (5, 60)) for name in SAMPLED}
    more, of_more = sampled_by(sixty)
    careful = site(tmp_path / "careful", relations=BOTH)
    counted = site(tmp_path / "counted", relations=BOTH, **COUNTED)
    for own, releases, found, is_answered in [
        (careful, more, of_more, False),
        (careful, fifty, announced, True),
        (counted, more, of_more, True),
    ]:
        answer = Server(own, strategy="dp-fedc").ask(gradient(5), releases=releases, plan=found.to_json())
        assert ("failure" not in answer.metrics) == is_answered


@pytest.mark.parametrize(("policy", "n_rows"), [(Policy(), 50), (Policy(row_count=True), 777)])
def test_how_far_a_row_moves_an_answer_follows_from_rows_that_are_public(policy, n_rows):
    asked = []
    request = Request(
        "north",
        Answer("sum", (Sent("a sum"),)),
        (gaussian(9.0, share="a part"),),
        n_rows=777,
        n_clients=3,
        plan=plan_of([gaussian(9.0)]).to_json(),
        find_moved=lambda n_rows: asked.append(n_rows) or (Moved(1.0),),
    )
    Budget(policy, (), Spent()).judge(request)
    assert asked == [n_rows]


def test_with_too_few_rows_a_site_does_not_even_say_who_it_is(tmp_path):
    small = site(tmp_path, rows=ROWS[:49])
    enrol = {"task": "enrol", "round": 1, "client": PrivateKMeansClient.key()}
    assert "49 rows" in refused(Server(small).send([], enrol), small)
    assert "49 rows" in refused(Server(small).ask(SUM, releases=[NOISE], **ANNOUNCED), small)
    assert small.ledger.read() == []


def test_what_is_computed_from_noisy_rows_shows_their_number_and_stays_unless_that_may_leave(tmp_path):
    own = site(tmp_path, **NO_LIMIT | {"row_count": False})
    for kept, run in ((own, 1), (site(tmp_path / "counted", **NO_LIMIT), 2)):
        server = Server(kept, run, "fedsc-perturbed-data")
        keep = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
        arrays_of(server.ask(keep, releases=[gaussian(1.0, relation="replace")]))
        answer = server.ask(DERIVED, rows=NOISY_ROWS)
        if run == 1:
            assert "row_count in the policy is false" in refused(answer, own)
        else:
            assert arrays_of(answer)[2] == 60


def test_arrays_with_an_entry_for_every_row_stay_unless_their_kind_or_the_count_may_leave(tmp_path):
    Y, frame = np.zeros((2, 3)), (np.zeros(3), np.array([4.0, 2.0]))
    asked = FederatedMapClient.clipped_distances.asked(Y, *frame, max_norm=4.0)
    noise = [gaussian(4.0, relation="replace")]
    careful = site(tmp_path / "careful", **NO_LIMIT | {"row_count": False})
    assert "row_count" in refused(Server(careful, strategy="fed-tsne").ask(asked, releases=noise), careful)
    for name, allowed in {"counted": COUNTED, "listed": {"unprotected": ["codes"], "row_count": False}}.items():
        own = site(tmp_path / name, **NO_LIMIT | allowed)
        assert len(arrays_of(Server(own, strategy="fed-tsne").ask(asked, releases=noise))[0]) == 60


def test_a_count_with_noise_leaves_whatever_row_count_says(tmp_path):
    careful = site(tmp_path)
    announced = plan(SHARES)
    noise = [gaussian(announced.multipliers["row_sum"], share="row_sum")]
    count = PrivateKMeansClient.row_count.asked()
    arrays_of(Server(careful).ask(count, releases=noise, plan=announced.to_json()))
    assert careful.ledger.entries[-1]["arrays"][0]["mechanism"] == "gaussian"

"""What a site refuses where a server announces samples of rows: the noise of DP-FedC as printed gains by them."""

import numpy as np
from hostile import (
    BOTH,
    ROWS,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan,
    refused,
    site,
)

from flower_fedclust.privacy.accounting import Share
from flower_fedclust_papers.dp_fedc_printed import DPFedCPrintedClient


def gradient(batch_size, n_columns=3):
    local = {
        "rho": 1.0,
        "mu_h": 1.0,
        "mu_w": 0.0,
        "n_membership_steps": 1,
        "random_state": 0,
        "max_norm": 4.0,
        "divisor": 8.0,
    }
    W = np.eye(n_columns)
    return DPFedCPrintedClient.drawn_gradient.asked(
        W, batch_size=batch_size, max_gradient_norm=1.0, **local
    )


def server_of(own):
    return Server(own, strategy="dp-fedc-printed")


SAMPLED = {
    name: Share("gaussian", 0.5, 10, "replace", (5, 50)) for name in ("gradients", "products")
}


def sampled_by(shares):
    found = plan(shares)
    releases = [
        gaussian(found.multipliers[name], relation="replace", share=name) for name in SAMPLED
    ]
    return {"releases": releases, "plan": found.to_json()}


def test_a_share_is_spent_once_in_a_reply(tmp_path):
    """Two arrays of one sample are not two samples: composed as such, an epsilon of 3 was one of 3.33."""
    careful = site(tmp_path, relations=BOTH)
    config = sampled_by(SAMPLED)
    twice = config | {"releases": config["releases"][:1] * 2}
    assert "name one part" in refused(server_of(careful).ask(gradient(5), **twice), careful)
    assert careful.ledger.read() == []
    arrays_of(server_of(careful).ask(gradient(5), **config))


def test_arrays_of_one_reply_have_the_same_sample(tmp_path):
    """Shares whose samples differ are composed as independent ones, which those of one reply are not."""
    careful = site(tmp_path, relations=BOTH)
    other = sampled_by(SAMPLED | {"products": Share("gaussian", 0.5, 10, "replace", (6, 50))})
    assert "different samples" in refused(server_of(careful).ask(gradient(5), **other), careful)


def test_refusals_do_not_depend_on_the_number_of_rows(tmp_path):
    """A server that announced a sample of n rows was refused where n was more than there are: 64 refusals told n."""
    said = set()
    for index, rows in enumerate([ROWS, np.vstack([ROWS, ROWS[:1]]), ROWS[1:]]):
        own = site(tmp_path / str(index), rows=rows, relations=BOTH)
        for drawn in (5, 50, 59, 60, 61, 999):
            for of in (50, 59, 60, 61):
                # With two samples all are refused, some by this and some by how many rows there are to draw.
                samples = {"gradients": (min(drawn, of), of), "products": None}
                releases = [
                    gaussian(9.0, relation="replace", share=name, sample=samples[name])
                    for name in SAMPLED
                ]
                Server(own, 100 * drawn + of, strategy="dp-fedc-printed").ask(
                    gradient(drawn), releases=releases
                )
        said.add(tuple(line["reason"] for line in audit(own)))
    (reasons,) = said
    assert {"does not draw" in reason for reason in reasons} == {True, False}
    assert not any(
        "59" in reason or "61 rows" in reason for reason in reasons if "announced" not in reason
    )


def test_a_sample_is_of_rows_that_are_public(tmp_path):
    careful = site(tmp_path / "careful", relations=BOTH)
    counted = site(tmp_path / "counted", relations=BOTH, row_count=True)
    fifty, sixty = (
        sampled_by({name: Share("gaussian", 0.5, 10, "replace", (5, of)) for name in SAMPLED})
        for of in (50, 60)
    )
    for own, config, is_answered in [
        (careful, sixty, False),
        (careful, fifty, True),
        (counted, sixty, True),
    ]:
        answer = server_of(own).ask(gradient(5), **config)
        assert ("failure" not in answer.metrics) == is_answered

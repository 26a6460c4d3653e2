"""What a site answers: kinds of messages, noise of its own, and the evaluation."""

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, drive, on_grid, paid, proxies_of, toy_answers, with_releases
from flwr.app import Context, RecordDict

from flower_fedclust.engine import ClientData, Consent, Gather, Sent, Sum, answers
from flower_fedclust.engine.fields import ENROL
from flower_fedclust.engine.rounds import KINDS

RELEASE = paid("gaussian", 3.0)
REPLACED = paid("gaussian", 3.0, "replace")


class RevealingClient(ToyClient):
    @answers("a sum")
    def a_sum(self):
        return on_grid(self.rows.sum(axis=0))

    @toy_answers(Sent("centers", "centers"))
    def some_centers(self):
        return on_grid(self.rows[:2])

    @answers(Sent("codes", "codes", per="row"))
    def some_codes(self):
        return on_grid(self.rows[:, 0])

    @toy_answers(Sent("rows", "rows", per="row"), "number of rows")
    def rows_and_count(self):
        return on_grid(self.rows), np.array([1])

    @toy_answers(Sent("rows", "rows", per="row", kept_as="copy"))
    def keep(self):
        return on_grid(self.rows)


QUESTIONS = {
    "sums": RevealingClient.a_sum,
    "centers": RevealingClient.some_centers,
    "codes": RevealingClient.some_codes,
    "rows": RevealingClient.rows_and_count,
}


def reply(task, consent, *, releases=(), n_shares=1, rows="", client=None):
    client = client or RevealingClient(
        ClientData(np.arange(8.0).reshape(4, 2)), name="oslo", consent=consent
    )
    config = {"task": task, "round": 2, "rows": rows}
    if releases:
        config = with_releases(config | {"n_shares": n_shares}, releases)
    arrays, _, facts = client.fit([], config)
    return len(arrays), facts.get("failure", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("allowed", KINDS)
def test_a_site_sends_the_kinds_that_it_consents_to_and_no_others(kind, allowed):
    n_arrays, failure = reply(QUESTIONS[kind].answer.task, Consent({allowed, "sums"}))
    if kind in (allowed, "sums"):
        assert n_arrays
        assert not failure
    else:
        assert (n_arrays, failure) == (
            0,
            f"client oslo does not send {kind} ({QUESTIONS[kind].answer.sends[0].content}); its operator would have to "
            f"consent to '{kind}'.",
        )


def test_a_site_consents_to_everything_where_nothing_is_said_and_to_nothing_where_it_says_so():
    assert Consent() == Consent(KINDS)
    assert not reply("rows_and_count", None)[1]
    assert "does not send sums" in reply("a_sum", Consent(()))[1]


def test_what_carries_all_of_its_noise_needs_no_consent():
    assert not reply("some_centers", Consent(()), releases=[RELEASE])[1]


@pytest.mark.parametrize("options", [{"releases": [RELEASE], "n_shares": 2}, {}])
def test_a_share_of_the_noise_or_none_does_not_replace_consent(options):
    assert "does not send centers" in reply("some_centers", Consent({"sums"}), **options)[1]


def test_each_array_of_a_reply_needs_consent_of_its_own():
    assert (
        "does not send rows"
        in reply("rows_and_count", Consent({"sums"}), releases=[None, REPLACED])[1]
    )
    assert (
        "does not send sums (number of rows)"
        in reply("rows_and_count", Consent(()), releases=[REPLACED, None])[1]
    )


def test_what_is_kept_needs_no_consent_and_what_comes_of_it_does_unless_it_carries_noise():
    for release, refused in ((REPLACED, False), (None, True)):
        (proxy,) = proxies_of(RevealingClient, [np.arange(8.0).reshape(4, 2)])
        client = RevealingClient(
            ClientData(proxy.rows), name="oslo", context=proxy.context, consent=Consent({"sums"})
        )
        assert not reply("keep", None, releases=[release] if release else (), client=client)[1]
        assert (
            "does not send rows" in reply("rows_and_count", None, rows="copy", client=client)[1]
        ) is refused


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(
        ValueError, match="consent is 'pictures'; it must be one of: sums, centers, codes, rows"
    ):
        Consent({"sums", "pictures"})


def test_the_evaluation_is_answered_only_where_it_is_allowed():
    for allowed in (True, False):
        client = ToyClient(
            ClientData(np.ones((3, 2)), [0, 1, 1]), name="oslo", consent=Consent(evaluation=allowed)
        )
        cost, n_rows, facts = client.evaluate([np.zeros((1, 2))], {"model": "k-means"})
        assert ("table" in facts, n_rows) == ((True, 3) if allowed else (False, 0))
    assert (
        facts["failure"]
        == "client oslo does not evaluate models; its operator would have to allow it."
    )
    assert cost == 0.0


def test_no_row_is_read_for_an_evaluation_that_the_site_does_not_allow():
    loads = []

    def load():
        loads.append(1)
        return ClientData(np.ones((3, 2)), [0, 1, 1])

    context, consent = Context(1, 1, {}, RecordDict(), {}), Consent(evaluation=False)
    ToyClient(load, name="oslo", context=context, consent=consent).fit(
        [], {"task": ENROL, "round": 1}
    )
    assert loads == [1]
    asked = ToyClient(load, name="oslo", context=context, consent=consent)
    _, _, facts = asked.evaluate([np.zeros((1, 2))], {"model": "k-means"})
    assert "does not evaluate models" in facts["failure"]
    assert loads == [1]


def test_the_report_has_the_kind_of_every_message():
    class Revealing(Toy):
        client_type = RevealingClient

    toy = Revealing([Gather(askable.asked()) for askable in QUESTIONS.values()])
    drive(toy, proxies_of(RevealingClient, [np.arange(8.0).reshape(4, 2)] * 2))
    assert [message.reveals for message in toy.report.messages] == ["sums", *KINDS, "sums"]
    assert Sum(RevealingClient.a_sum.asked()).answer.sends[0].reveals == "sums"

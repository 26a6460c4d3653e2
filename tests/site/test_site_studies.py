"""A study waits until a person approves it, and ends when a person stops it."""

import json
import stat

import numpy as np
import pytest
from hostile import (
    ANNOUNCED,
    BOTH,
    ENROL,
    SHARES,
    SUM,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan,
    plan_of,
    refused,
    run,
    site,
)
from typer.testing import CliRunner

import flower_fedclust as fc
from flower_fedclust.cli.commands import app
from flower_fedclust.engine.rounds import ProtocolError
from flower_fedclust.site import studies as module
from flower_fedclust.site.ledger import Ledger
from flower_fedclust.site.policy import DAY

ASKS = ENROL | ANNOUNCED


@pytest.fixture
def own(tmp_path):
    return site(tmp_path, approve="studies", epsilon_per_run=2, epsilon=9, delta=1e-5)


def waits(answer, own):
    """Return the study that waits, once it is known that the server got nothing else."""
    (study,) = (one for one in own.studies.read() if one.state == "waiting")
    assert answer.parameters.tensors == []
    assert answer.metrics["waiting"]
    assert answer.metrics["failure"].startswith(
        f"waiting for approval of study {study.id}; submit the same run again"
    )
    return study


def test_a_study_waits_and_its_next_run_uses_the_approval_once(own):
    study = waits(Server(own, 1, study="sepsis").send([], ASKS), own)
    assert (study.name, study.strategy, study.noise) == ("sepsis", "private-kmeans", "local")
    assert study.epsilon == pytest.approx(1.0, rel=1e-2)
    assert own.ledger.entries == []
    assert stat.S_IMODE(own.studies.path.stat().st_mode) == 0o600
    own.studies.approve(study.id[:5])
    again = Server(own, 2, study="sepsis")
    assert "failure" not in again.send([], ASKS).metrics
    arrays_of(again.ask_sum())
    assert [one.state for one in own.studies.read()] == ["running"]
    assert waits(Server(own, 3, study="sepsis").send([], ASKS), own).id != study.id


def test_another_run_of_other_content_does_not_use_an_approval(own):
    own.studies.approve(waits(Server(own, 1, study="sepsis").send([], ASKS), own).id)
    more_noise = plan(SHARES, epsilon=2.0).to_json()
    for number, (study, announced) in enumerate(
        [("other", ASKS), ("sepsis", ASKS | {"plan": more_noise})], 2
    ):
        own.studies.stop(waits(Server(own, number, study=study).send([], announced), own).id)


def test_a_run_keeps_to_what_was_approved(own):
    server = Server(own, study="sepsis")
    own.studies.approve(waits(server.send([], ASKS), own).id)
    server.send([], ASKS)
    other = Server(own, study="other")
    assert "asks for something else" in refused(other.ask_sum(), own)
    arrays_of(server.ask_sum())
    dear = plan(SHARES, epsilon=2.0).to_json()
    assert "another plan of noise" in refused(server.ask_sum(plan=dear), own)


def test_a_plan_that_nobody_has_seen_waits_again_and_the_next_run_goes_through(own):
    server = Server(own)
    own.studies.approve(waits(server.send([], ENROL), own).id)
    server.send([], ENROL)
    study = waits(server.ask_sum(), own)
    assert study.epsilon == pytest.approx(1.0, rel=1e-2)
    own.studies.approve(study.id)
    again = Server(own, 2)
    again.send([], ENROL)
    arrays_of(again.ask_sum())


#: Messages without a release of the plan: without it, or with it and no parts.
OPEN = {"without a plan": {"releases": (), "plan": None}, "without parts": {"releases": ()}}


@pytest.fixture
def generous(tmp_path):
    policy = {
        "unprotected": ["sums"],
        "evaluations": 3,
        "epsilon_per_run": 2,
        "epsilon": 9,
        "delta": 1e-5,
    }
    return site(tmp_path, approve="studies", **policy)


@pytest.mark.parametrize("how", OPEN)
def test_an_approval_with_a_plan_lets_nothing_out_without_it_until_the_line_names_it(generous, how):
    """A study approved as "epsilon 1 (noise: local)" got exact sums, and its line did not say so."""
    server = Server(generous)
    study = waits(server.send([], ASKS), generous)
    assert (
        f"epsilon {study.epsilon:.4g} for each row (noise: local), without noise: evaluations;"
        in str(study)
    )
    generous.studies.approve(study.id)
    server.send([], ASKS)
    study = waits(server.ask_sum(**OPEN[how]), generous)
    assert "without noise: evaluations, sums;" in str(study)
    assert not any(entry["arrays"] for entry in generous.ledger.read())
    generous.studies.approve(study.id)
    again = Server(generous, 2)
    again.send([], ASKS)
    arrays_of(again.ask_sum())
    arrays_of(again.ask_sum(**OPEN["without parts"]))


def test_what_is_asked_for_in_the_middle_is_refused_and_stands_in_the_line_of_the_next_run(
    generous,
):
    server = Server(generous)
    generous.studies.approve(waits(server.send([], ASKS), generous).id)
    server.send([], ASKS)
    arrays_of(server.ask_sum())
    for config in OPEN.values():
        said = refused(server.ask_sum(**config), generous)
        assert "asks for sums without noise" in said or "other noise" in said
    arrays_of(server.ask_sum())
    study = waits(Server(generous, 2).send([], ASKS), generous)
    assert "without noise: evaluations, sums;" in str(study)


def test_a_run_without_a_plan_gets_what_its_line_says_and_a_later_plan_waits(generous):
    server = Server(generous)
    study = waits(server.send([], ENROL), generous)
    said = (
        "no plan of noise announced, without noise: evaluations, sums, and a plan that it "
        "announces later waits again"
    )
    assert said in str(study)
    generous.studies.approve(study.id)
    for number in (1, 2):
        server = Server(generous, number)
        server.send([], ENROL)
        arrays_of(server.ask(SUM))
        if number == 1:
            study = waits(server.ask_sum(), generous)
            assert (
                f"epsilon {study.epsilon:.4g} for each row (noise: local), without noise: evaluations, sums;"
                in str(study)
            )
            generous.studies.approve(study.id)
    arrays_of(server.ask_sum())
    assert server.evaluate(np.zeros((2, 3))).num_examples == 60


def test_a_policy_that_was_widened_does_not_widen_an_approval(tmp_path):
    own = site(tmp_path, approve="studies")
    server = Server(own)
    study = waits(server.send([], ENROL), own)
    assert "without noise: nothing," in str(study)
    own.studies.approve(study.id)
    server.site = site(tmp_path, approve="studies", unprotected=["sums"])
    server.send([], ENROL)
    assert "without noise: sums," in str(waits(server.ask(SUM), server.site))


def test_the_line_names_the_number_of_rows_and_a_server_that_adds_the_noise(tmp_path):
    own = site(
        tmp_path, approve="studies", row_count=True, relations=BOTH, trusts_server_noise=True
    )
    replaced = plan_of([gaussian(9.0, relation="replace")]).to_json()
    assert "without noise: the number of rows;" in str(
        waits(Server(own).send([], ENROL | {"plan": replaced}), own)
    )
    own.studies.stop(own.studies.read()[0].id)
    by_server = plan(SHARES, noise="server").to_json()
    study = waits(Server(own, 2).send([], ENROL | {"plan": by_server}), own)
    assert "(noise: server, which the sums leave without), without noise: nothing;" in str(study)


@pytest.mark.parametrize("field", ["study", "strategy"])
def test_a_name_cannot_pretend_to_be_the_rest_of_the_line(own, field):
    """A study had named itself with an epsilon and "without noise: nothing", which stood before its true epsilon."""
    forged = 'sepsis\', "x", epsilon 0.01, without noise nothing; no schema'
    study = waits(Server(own, **{field: forged}).send([], ASKS), own)
    computed, _, chosen = str(study).partition("; named ")
    assert (
        computed
        == f"{study.id}: epsilon {study.epsilon:.4g} for each row (noise: local), without noise: nothing; no schema"
    )
    assert json.loads(f"[{chosen.replace('strategy ', '')}]") == [study.name, study.strategy]
    assert "epsilon 0.01" in chosen


def test_nothing_is_asked_before_the_run_has_enrolled(own):
    assert "before it has enrolled" in refused(Server(own).ask_sum(), own)
    assert own.studies.read() == []


def test_after_seven_days_a_study_is_refused_and_cannot_be_approved(own, monkeypatch):
    server = Server(own)
    study = waits(server.send([], ASKS), own)
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 7 * DAY + 1)
    assert "for more than 7 days" in refused(server.send([], ASKS), own)
    with pytest.raises(ValueError, match="for more than 7 days"):
        own.studies.approve(study.id)
    assert Server(own, 2).send([], ASKS).metrics["waiting"]  # a new run opens a new request
    assert len(own.studies.read()) == 2


def test_only_so_many_studies_can_wait(tmp_path):
    own = site(tmp_path, approve="studies", limits={"runs_per_day": 3})
    for number in range(3):
        assert Server(own, number, study=f"study {number}").send([], ASKS).metrics["waiting"]
    assert "runs_per_day in the limits is 3" in refused(
        Server(own, 4, study="more").send([], ASKS), own
    )


@pytest.mark.parametrize("approve", [None, "studies"])
def test_a_stopped_study_gets_no_further_answer_even_one_that_is_being_computed(
    tmp_path, monkeypatch, approve
):
    own = site(tmp_path, approve=approve)
    server = Server(own, study="sepsis")
    server.send([], ASKS)
    (study,) = own.studies.read()
    if approve:
        own.studies.approve(study.id)
        server.send([], ASKS)
    arrays_of(server.ask_sum())
    computing = module.Studies.check_running

    def stopped_meanwhile(self, name):
        self.stop(study.id)
        computing(self, name)

    monkeypatch.setattr(module.Studies, "check_running", stopped_meanwhile)
    assert "has stopped study" in refused(server.ask_sum(), own)
    assert own.ledger.entries[-1]["sent"] == ""
    monkeypatch.undo()
    assert "has stopped study" in refused(server.ask_sum(), own)
    assert audit(own)[-1]["kind"] == "stopped"
    # also in a process of its own, and for what was answered before
    again = Server(site(tmp_path, approve=approve), study="sepsis")
    assert "has stopped study" in refused(again.ask_sum(number=2), own)


def test_a_damaged_file_opens_nothing(own):
    own.studies.path.write_text('{"format": 4, "studies": [{"id": 1}]}')
    answer = Server(own).send([], ASKS)
    assert answer.metrics["failure"] == "failed"
    assert own.ledger.entries == []


def test_the_operators_commands(tmp_path):
    own = site(tmp_path / "site", approve="studies")
    (tmp_path / "site.toml").write_text(
        'name = "north"\ndata = "x.csv"\n[policy]\napprove = "studies"\n'
    )
    Server(own, 1, study="sep\u202esis").send([], ASKS)  # is refused: the name does not print
    Server(own, 1, study="[red]sepsis").send([], ASKS)

    def said(*words):
        done = CliRunner().invoke(app, ["site", *words, str(tmp_path / "site.toml")])
        return done.output if done.exit_code == 0 else str(done.exception)

    (study,) = own.studies.read()
    costs = f"epsilon {study.epsilon:.4g} for each row (noise: local), without noise: nothing"
    line = f'{study.id}: {costs}; no schema; named "[red]sepsis", strategy "private-kmeans"'
    assert f"waiting    {line}" in said("studies")
    assert "0 studies have an id that begins with 'x'" in said("approve", "x")
    assert said("approve", study.id).startswith(f"Approved: {line}. ")
    assert "only a study that waits" in said("approve", study.id)
    assert said("stop", study.id).startswith(f"Stopped: {study.id}")
    assert "stopped" in said("studies")
    assert [line["event"] for line in audit(own)] == ["refused", "refused", "approved", "stopped"]


@pytest.mark.parametrize("expected", [None, 3])
def test_a_run_goes_on_without_a_site_that_waits_unless_it_expects_all(tmp_path, expected):
    policy = {"epsilon_per_run": 9, "epsilon": 99, "delta": 1e-4}
    names = {"north": None, "south": None, "west": "studies"}
    *others, waiting = (
        site(tmp_path / name, name=name, **policy | {"approve": need})
        for name, need in names.items()
    )
    sites = [*others, waiting]

    def strategy():
        made = fc.PrivateFederatedKMeans(2, epsilon=4.0, max_norm=5.0, noise="local", n_rounds=1)
        made.expected_clients = expected
        return made

    if expected is None:
        first = strategy()
        run(first, sites)
        assert first.client_names == ["north", "south"]
        assert first.failures[0].reason.startswith(
            "client west says: waiting for approval of study"
        )
    else:
        with pytest.raises(
            ProtocolError,
            match=r"2 clients answered and 3 have to.*west says: waiting for approval",
        ):
            run(strategy(), sites)
        assert all(
            entry["epsilon"] == 0 for own in sites for entry in Ledger(own.ledger.path).read()
        )
    waiting.studies.approve(waiting.studies.read()[0].id)
    second = strategy()
    run(second, sites)
    assert second.client_names == list(names)
    assert waiting.studies.read()[0].epsilon == pytest.approx(4.0, rel=1e-2)

"""Servers that have been changed get no more from a site than its policy allows."""

import json

import numpy as np
import pytest
from flwr.common import EvaluateIns
from hostile import (
    BALL,
    BOTH,
    NAMES,
    PLAN,
    ROWS,
    SHARES,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan,
    plan_of,
    refused,
    site,
)

from flower_fedclust.engine import ClientData
from flower_fedclust.engine.rounds import Answer, Question, Sent
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.engine.wire import encode
from flower_fedclust.exact.rows import Frame
from flower_fedclust.format import FORMAT
from flower_fedclust.models import KMeansModel
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.noise import add_noise
from flower_fedclust.privacy.releases import Release
from flower_fedclust.site.app import Site
from flower_fedclust.strategies.baselines.coreset_kmedian import CoresetKMedianClient
from flower_fedclust.strategies.common.local_centers import LocalCentersClient
from flower_fedclust.strategies.common.perturbed_rows import NOISY_ROWS, PerturbedRowsClient
from flower_fedclust.strategies.common.pooled_rows import PooledRowsClient
from flower_fedclust.strategies.fedsc import FedSCClient
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient
from flower_fedclust.tables.columns import Figures
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Schema

SUM = PrivateKMeansClient.row_sum.asked(frame=BALL)
NOISE = gaussian(PLAN.multipliers["row_sum"], share="row_sum")
ANNOUNCED = {"plan": PLAN.to_json()}


@pytest.fixture
def careful(tmp_path):
    return site(tmp_path)


@pytest.fixture
def added(monkeypatch):
    """The noise that sites add, as a list of releases."""
    releases = []

    def noted(arrays, given, *more, **options):
        releases.extend(given)
        return add_noise(arrays, given, *more, **options)

    monkeypatch.setattr("flower_fedclust.engine.client.add_noise", noted)
    return releases


def multipliers(own):
    return [array["multiplier"] for entry in own.ledger.entries for array in entry["arrays"]]


def test_what_the_policy_allows_is_answered_with_its_noise(careful):
    (total,) = arrays_of(Server(careful).ask(SUM, releases=[NOISE], **ANNOUNCED))
    assert total.shape == (3,)
    (entry,) = careful.ledger.read()
    assert entry["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert entry["arrays"][0]["multiplier"] == NOISE.noise_multiplier


def test_a_message_that_names_no_part_leaves_nothing(careful):
    assert "without noise" in refused(Server(careful).ask(SUM, **ANNOUNCED), careful)
    assert "without noise" in refused(Server(careful).ask(SUM), careful)
    assert "without noise" in refused(Server(careful).ask(SUM, parts="[null]", **ANNOUNCED), careful)
    assert "not positive" in refused(Server(careful).ask(SUM, releases=[gaussian(0.0)]), careful)
    assert careful.ledger.read() == []


@pytest.mark.parametrize("text", [None, ""])
def test_parts_without_a_plan_are_refused_before_a_charge(careful, text):
    refused(Server(careful).ask(SUM, releases=[NOISE], plan=text), careful)
    assert careful.ledger.read() == []


@pytest.mark.parametrize("radius", [1e-6, 4.0, 1e6])
def test_the_noise_grows_with_the_clipping_norm_that_a_server_chooses(tmp_path, radius):
    rows = np.random.default_rng(0).normal(size=(60, 300))
    own, frame = site(tmp_path, rows=rows), Frame(np.zeros(300), radius)
    answer = Server(own).ask(PrivateKMeansClient.row_sum.asked(frame=frame), releases=[NOISE], **ANNOUNCED)
    (exact,) = PrivateKMeansClient(ClientData(rows), name="north").row_sum(frame=frame)
    noise = (arrays_of(answer)[0] - exact.integers) * 2.0**exact.exponent
    assert noise.std() == pytest.approx(NOISE.noise_multiplier * radius, rel=0.25)
    assert multipliers(own) == [NOISE.noise_multiplier]


def test_what_a_server_says_of_sensitivities_and_triangles_is_not_read(careful, added):
    told = json.loads(PLAN.to_json())
    told["shares"]["row_sum"] |= {"sensitivity": 1e-9, "triangle": True}
    old = json.dumps([gaussian(1e9, sensitivity=1e-9, share="row_sum", triangle=True).to_dict()])
    server = Server(careful)
    arrays, fields = SUM.to_wire()
    config = {"client": PrivateKMeansClient.key(), "round": 2, "n_clients": 3, "releases": old, **fields}
    arrays_of(server.send(arrays, config | {"parts": '["row_sum"]', "plan": json.dumps(told)}))
    (release,) = added
    assert release.sensitivity == pytest.approx(BALL.radius)
    assert (release.noise_multiplier, release.triangle) == (NOISE.noise_multiplier, False)


@pytest.mark.parametrize("radius", [np.inf, np.nan, -4.0, 0.0, 1e-320])
def test_a_ball_without_a_radius_bounds_nothing(careful, radius):
    asked = PrivateKMeansClient.row_sum.asked(frame=Frame(np.zeros(3), radius))
    refused(Server(careful).ask(asked, releases=[NOISE], **ANNOUNCED), careful)
    assert careful.ledger.read() == []


def test_nothing_bounds_a_row_of_a_euclidean_ball_for_laplace_noise(careful):
    false = Release("laplace", 4.0, 50.0, "", share="row_sum")
    assert "nothing bounds" in refused(Server(careful).ask(SUM, releases=[false]), careful)


def test_rows_that_are_replaced_take_twice_the_noise_where_the_policy_lists_the_relation(tmp_path, careful, added):
    replaced = [gaussian(9.0, relation="replace")]
    assert "relations in the policy" in refused(Server(careful).ask(SUM, releases=replaced), careful)
    own = site(tmp_path / "both", relations=BOTH)
    arrays_of(Server(own).ask(SUM, releases=replaced))
    assert [release.sensitivity for release in added] == pytest.approx([2 * BALL.radius])
    assert multipliers(own) == [9.0]


def test_a_server_cannot_choose_a_relation_that_an_answer_does_not_support(tmp_path):
    own = site(tmp_path, relations=BOTH)
    kept = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    answer = Server(own, strategy="fedsc-perturbed-data").ask(kept, releases=[gaussian(9.0)])
    assert "rows that are replaced" in refused(answer, own)
    assert own.ledger.read() == []


def test_a_sum_over_rows_has_no_bound_for_a_whole_client(careful):
    of_clients = json.loads(PLAN.to_json()) | {"unit": "client"}
    assert "one client" in refused(Server(careful).ask(SUM, releases=[NOISE], plan=json.dumps(of_clients)), careful)


def test_shares_of_noise_are_bounded_by_the_policy(tmp_path, careful):
    said = refused(Server(careful).ask(SUM, releases=[NOISE], n_shares=10**12, **ANNOUNCED), careful)
    assert "1000000000000 shares" in said
    for wrong in (0, -1):
        refused(Server(careful).ask(SUM, releases=[NOISE], n_shares=wrong, **ANNOUNCED), careful)
    of_three = site(tmp_path / "three", most_shares=3)
    arrays_of(Server(of_three).ask(SUM, releases=[NOISE], n_shares=3, **ANNOUNCED))
    assert of_three.ledger.entries[0]["is_claim"]
    refused(Server(of_three, 2).ask(SUM, releases=[NOISE], n_shares=4, **ANNOUNCED), of_three)


def test_a_round_is_answered_once_with_the_same_bytes(careful):
    server = Server(careful)
    first = server.ask(SUM, releases=[NOISE], number=2, **ANNOUNCED)
    again = [server.ask(SUM, releases=[NOISE], number=2, **ANNOUNCED) for _ in range(3)]
    assert all(answer.parameters == first.parameters and answer.metrics == first.metrics for answer in again)
    assert len(careful.ledger.read()) == 1
    other = PrivateKMeansClient.row_sum.asked(frame=Frame(np.ones(3), BALL.radius))
    assert "to another question" in refused(server.ask(other, releases=[NOISE], number=2, **ANNOUNCED), careful)


def test_a_server_that_makes_up_rounds_gets_as_many_as_it_has_announced(careful):
    server = Server(careful)
    for _ in range(3):
        arrays_of(server.ask(SUM, releases=[NOISE], **ANNOUNCED))
    assert "asks for more" in refused(server.ask(SUM, releases=[NOISE], **ANNOUNCED), careful)


@pytest.mark.parametrize("number", [None, "2", 2.0, True, 0, -2, 2**31])
def test_a_round_has_a_number(careful, number):
    config = {"round": number}
    assert "which round" in refused(Server(careful).ask(SUM, releases=[NOISE], **ANNOUNCED, **config), careful)


def test_runs_without_end_spend_the_budget_once(careful):
    arrays_of(Server(careful, 1).ask(SUM, releases=[NOISE], **ANNOUNCED))
    said = refused(Server(careful, 2).ask(SUM, releases=[NOISE], **ANNOUNCED), careful)
    assert "in other runs" in said


def test_a_run_beyond_the_policy_is_refused_before_its_first_message(careful):
    more = plan(SHARES, epsilon=1.2)
    noise = gaussian(more.multipliers["row_sum"], share="row_sum")
    said = refused(Server(careful).ask(SUM, releases=[noise], plan=more.to_json()), careful)
    assert "would spend an epsilon of 1.2" in said
    assert careful.ledger.read() == []


def test_a_plan_with_another_delta_or_smaller_figures_than_its_noise_is_judged_by_its_noise(careful):
    told = json.loads(plan(SHARES, epsilon=5.0).to_json()) | {"epsilon": 0.1, "delta": 0.5}
    noise = gaussian(told["shares"]["row_sum"]["multiplier"], share="row_sum")
    assert "would spend" in refused(Server(careful).ask(SUM, releases=[noise], plan=json.dumps(told)), careful)


def test_a_run_announces_its_noise_once(careful):
    server = Server(careful)
    arrays_of(server.ask(SUM, releases=[NOISE], **ANNOUNCED))
    other = plan(SHARES, epsilon=0.5).to_json()
    assert "other noise" in refused(server.ask(SUM, releases=[NOISE], plan=other), careful)
    assert "other noise" in refused(server.ask(SUM, releases=[NOISE]), careful)


def test_noise_that_was_not_announced_is_no_part_of_the_run(careful):
    server = Server(careful)
    for release in (gaussian(99.0), gaussian(99.0, share="other")):
        assert "not in the run's plan" in refused(server.ask(SUM, releases=[release], **ANNOUNCED), careful)
    assert careful.ledger.read() == []


BROKEN = ["{", "[]", "3", "null", '{"epsilon": 1}', PLAN.to_json().replace("gaussian", "magic")]


@pytest.mark.parametrize(
    "text",
    [
        *BROKEN,
        PLAN.to_json().replace('"count": 3', '"count": 1000000000'),
        PLAN.to_json().replace('"count": 3', '"count": -3'),
        PLAN.to_json().replace('"epsilon": 1.0', '"epsilon": NaN'),
    ],
)
def test_a_plan_that_is_none_is_refused(careful, text):
    refused(Server(careful).ask(SUM, releases=[NOISE], plan=text), careful)
    assert careful.ledger.read() == []


def test_a_plan_of_the_servers_noise_is_believed_only_where_the_policy_says_so(tmp_path, careful):
    promised = {"plan": plan(SHARES, noise="server").to_json()}
    assert "trusts_server_noise" in refused(Server(careful).ask(SUM, **promised), careful)
    trusting = site(tmp_path / "trusting", trusts_server_noise=True, epsilon=5.0, delta=1e-5)
    (_total,) = arrays_of(Server(trusting).ask(SUM, **promised))
    assert trusting.ledger.entries[0]["is_claim"]
    assert trusting.ledger.entries[0]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    own = LocalCentersClient.local_centers.asked(n_clusters=2, random_state=0)
    assert "would send centers" in refused(Server(trusting, 2, "k-fed").ask(own, **promised), trusting)


def find_key(strategy):
    from flower_fedclust.registry import find

    return find(strategy).strategy.client_type.key()


def test_centers_of_a_sites_own_clusters_do_not_leave_whatever_noise_is_said_to_be_on_them(careful):
    own = LocalCentersClient.local_centers.asked(n_clusters=2, random_state=0)
    server = Server(careful, strategy="k-fed")
    for release in (None, gaussian(9.0)):
        releases = () if release is None else [release] * len(own.answer.sends)
        said = refused(server.ask(own, releases=releases), careful)
        assert "without noise" in said or "nothing bounds what it sends" in said


def test_rows_leave_only_where_the_policy_lists_them(tmp_path, careful):
    rows = PooledRowsClient.all_rows.asked()
    assert "would send rows" in refused(Server(careful, strategy="pooled-kmeans").ask(rows), careful)
    open_site = site(tmp_path / "open", unprotected=["rows"])
    np.testing.assert_array_equal(arrays_of(Server(open_site, strategy="pooled-kmeans").ask(rows))[0], ROWS)
    assert open_site.ledger.entries[0]["arrays"][0]["covered"] == "nothing"


def test_tasks_of_a_strategy_that_the_run_is_not_are_refused(careful):
    rows = PooledRowsClient.all_rows.asked()
    for key in (find_key("pooled-kmeans"), "os.system", "None"):
        assert "no part of private-kmeans" in refused(Server(careful).ask(rows, client=key), careful)


@pytest.mark.parametrize("stated", [FORMAT - 1, None, "x" * 10**6])
def test_a_message_of_another_format_is_refused_before_the_ledger_and_the_rows(careful, monkeypatch, stated):
    monkeypatch.setattr(Site, "data", property(lambda site: pytest.fail("the rows were read")))
    before = careful.ledger.read()
    server = Server(careful)
    config = {"format": stated, "task": "enrol", "round": 1, "client": PrivateKMeansClient.key(), "share": True}
    said = [server.send([], config), careful.client(server.context).evaluate(EvaluateIns(encode([]), config))]
    assert all("this site reads format" in answer.metrics["failure"] for answer in said)
    assert careful.ledger.read() == before


@pytest.mark.parametrize("task", ["fit", "_forget", "remember", "rows", "data", "__class__", "", "nothing"])
def test_only_what_is_declared_may_be_asked_for(careful, task):
    answer = Server(careful).ask(Question(Answer(task, (Sent("anything"),)), (), {}), releases=[NOISE])
    assert answer.metrics["failure"] == "failed"
    assert answer.parameters.tensors == []
    assert "no answer called" in audit(careful)[-1]["reason"]


def test_a_run_config_names_no_module_to_import(careful):
    said = refused(Server(careful, strategy="os:path").send([], {"task": "enrol", "round": 1}), careful)
    assert "class of some module" in said


def test_studies_and_strategies_are_those_of_the_policy(tmp_path):
    chosen = site(tmp_path, studies=["sepsis"], strategies=["private-kmeans"], tasks=["row_sum"])
    enrol = {"task": "enrol", "round": 1, "client": PrivateKMeansClient.key()}
    assert "study is ''" in refused(Server(chosen).send([], enrol), chosen)
    assert "names k-fed" in refused(Server(chosen, strategy="k-fed", study="sepsis").send([], enrol), chosen)
    server = Server(chosen, study="sepsis")
    assert server.send([], enrol).metrics["columns"] == "3"
    arrays_of(server.ask(SUM, releases=[NOISE], **ANNOUNCED))
    count = PrivateKMeansClient.row_count.asked()
    assert "tasks in the policy" in refused(server.ask(count, releases=[NOISE], **ANNOUNCED), chosen)


def test_few_rows_and_few_clients_answer_nothing(tmp_path, careful):
    small = site(tmp_path / "small", rows=ROWS[:49])
    assert "49 rows" in refused(Server(small).ask(SUM, releases=[NOISE], **ANNOUNCED), small)
    for n_clients in (1, 0, None):
        said = refused(Server(careful).ask(SUM, releases=[NOISE], n_clients=n_clients, **ANNOUNCED), careful)
        assert "fewest_clients" in said


CENTERS = np.zeros((2, 3))


def test_evaluation_is_unasked_for_unless_the_policy_counts_it(tmp_path, careful):
    assert "evaluations in the policy is 0" in refused(Server(careful).evaluate(CENTERS), careful)
    once = site(tmp_path / "once", evaluations=1, labels=NAMES)
    server = Server(once)
    assert server.evaluate(CENTERS).num_examples == 60
    # Two models of one center each would give the sums of the columns.
    assert "to another question" in refused(server.evaluate(CENTERS + 1), once)
    assert "evaluation number 2" in refused(Server(once, 2).evaluate(CENTERS + 1), once)


def test_columns_and_labels_are_the_sites_and_names_are_no_labels(tmp_path):
    import pandas as pd

    from flower_fedclust.site.app import Site
    from flower_fedclust.site.policy import SiteSettings

    file = tmp_path / "table.csv"
    pd.DataFrame(ROWS, columns=list("abc")).assign(name=NAMES).to_csv(file, index=False)
    given = {"name": "north", "data": "table.csv", "columns": ["a", "b"], "policy": {"evaluations": 9}}
    asked = {"label-column": "name", "columns": "c", "data": "/etc/passwd"}
    own = Site(SiteSettings.checked(given, "site.toml", tmp_path))
    own.create_ledger()
    answer = Server(own, **asked).evaluate(CENTERS[:, :2])
    assert "table" not in answer.metrics
    assert answer.num_examples == 60
    named = Site(SiteSettings.checked(given | {"label_column": "name", "folder": "other"}, "site.toml", tmp_path))
    named.create_ledger()
    answer = Server(named).evaluate(CENTERS[:, :2])
    assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "failed"}
    assert "more than 20 different values" in audit(named)[-1]["reason"]


def test_rows_that_are_kept_carry_noise_for_the_norm_to_which_they_are_clipped(tmp_path, careful, added):
    keep = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    noise = [gaussian(5.0, relation="replace")]
    said = refused(Server(careful, strategy="fedsc-perturbed-data").ask(keep, releases=noise), careful)
    assert "relations in the policy" in said
    own = site(tmp_path / "own", **NO_LIMIT)
    assert arrays_of(Server(own, strategy="fedsc-perturbed-data").ask(keep, releases=noise)) == []
    assert [release.sensitivity for release in added] == pytest.approx([8.0])
    assert multipliers(own) == [5.0]
    endless = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=np.inf)
    refused(Server(own, 2, "fedsc-perturbed-data").ask(endless, releases=noise), own)


def test_rows_that_are_kept_without_noise_stay(careful):
    server = Server(careful, strategy="fedsc-perturbed-data")
    keep = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    assert arrays_of(server.ask(keep)) == []
    codes = Question(Answer("codes", (Sent("codes", "codes", per="row"),)), (CENTERS,), {"bandwidth": 1.0})
    codes = Question(codes.answer, codes.arrays, {"bandwidth": 1.0, "regularization": 0.1, "relative_noise": 0.0})
    assert "without noise" in refused(server.ask(codes, rows=NOISY_ROWS), careful)


def test_what_a_client_remembers_for_itself_is_no_table_of_rows(careful):
    server = Server(careful, strategy="coreset-k-median")
    answer = server.ask(SUM, releases=[NOISE], rows="own medians")
    assert answer.metrics["failure"] in ("refused", "failed")


NO_LIMIT = {
    "epsilon_per_run": 50,
    "epsilon": 500,
    "delta": 1e-4,
    "least_noise_multiplier": 0.1,
    "row_count": True,
    "relations": BOTH,
}


def test_what_was_kept_in_one_run_is_not_there_in_another(tmp_path):
    loose = site(tmp_path, **NO_LIMIT)
    keep = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    first = Server(loose, 1, "fedsc-perturbed-data")
    arrays_of(first.ask(keep, releases=[gaussian(1.0, relation="replace")]))
    second = Server(loose, 2, "fedsc-perturbed-data")
    second.context.state = first.context.state  # as for runs of a series, whose state Flower shares
    codes = Question(
        Answer("codes", (Sent("codes", "codes", per="row"),)),
        (CENTERS,),
        {"bandwidth": 1.0, "regularization": 0.1, "relative_noise": 0.0},
    )
    answer = second.ask(codes, rows=NOISY_ROWS)
    assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "failed", "missed": True}
    assert arrays_of(first.ask(codes, rows=NOISY_ROWS))[0].shape == (60, 2)


COLUMNS = Schema.of({"columns": {name: {"kind": "number", "bounds": [-9, 9]} for name in "abc"}})


def test_what_is_said_to_follow_from_rows_with_noise_reads_no_others(tmp_path):
    loose = site(tmp_path, schema=COLUMNS, **NO_LIMIT)
    server = Server(loose, strategy="fedsc-perturbed-data")
    config = {"task": "enrol", "round": 1, "client": FedSCClient.key(), "schema": COLUMNS.to_json()}
    assert "failure" not in server.send([], config).metrics
    preparation = Preparation(COLUMNS, {name: Figures(low=-9.0, high=9.0) for name in "abc"})
    arrays_of(server.ask(FedSCClient.prepare.asked(preparation_as_bytes(preparation))))
    keep = FedSCClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    arrays_of(server.ask(keep, releases=[gaussian(1.0, relation="replace")]))
    for asked in (
        FedSCClient.histograms.asked(COLUMNS, np.array(3 * [[-9.0, 9.0]]), n_bins=4),
        FedSCClient.exponents.asked(COLUMNS),
        FedSCClient.description.asked(preparation, np.zeros((1, 3)), frame=Frame(np.zeros(3), 4.0), model="k-means"),
    ):
        answer = server.ask(asked, rows=NOISY_ROWS)
        assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "failed"}
        assert "takes the client's own rows, and not its noisy rows" in audit(loose)[-1]["reason"]


def test_what_was_remembered_of_the_true_rows_is_not_there_for_rows_with_noise(tmp_path):
    loose = site(tmp_path, **NO_LIMIT, unprotected=["centers", "codes", "sums"])
    server = Server(loose, strategy="coreset-k-median")
    kept = PerturbedRowsClient.perturb_rows.asked(relative_noise=0.0, max_norm=4.0)
    cost = CoresetKMedianClient.own_cost.asked(n_clusters=2, random_state=0)
    noise = [gaussian(1.0, relation="replace")]
    arrays_of(server.ask(cost, plan=plan_of(noise).to_json()))
    arrays_of(server.ask(kept, releases=noise))
    coreset = CoresetKMedianClient.coreset.asked(n_samples=9, cost_per_sample=9.0, random_state=0)
    assert server.ask(coreset, rows=NOISY_ROWS).metrics == {"format": FORMAT, "client": "north", "failure": "failed"}
    arrays_of(server.ask(cost, rows=NOISY_ROWS))
    arrays_of(server.ask(coreset, rows=NOISY_ROWS))


def test_a_schema_of_the_servers_asks_nothing_about_the_rows(careful):
    """Whether a column has any other value than those that a schema lists would be an answer, as often as one likes."""
    for bounds in ([-9, 9], [0, 1]):
        asked = Schema.of({"columns": {name: {"kind": "number", "bounds": bounds} for name in "abc"}}).to_json()
        config = {"task": "enrol", "round": 1, "client": PrivateKMeansClient.key(), "schema": asked}
        assert "site.toml names none" in refused(Server(careful).send([], config), careful)


def test_a_part_pays_for_any_answer_by_the_bound_of_that_answer(careful, added):
    server = Server(careful)
    wide = PrivateKMeansClient.row_sum.asked(frame=Frame(np.zeros(3), 5.0))
    for asked in (SUM, wide, PrivateKMeansClient.second_moment.asked(frame=BALL)):
        arrays_of(server.ask(asked, releases=[NOISE], **ANNOUNCED))
    assert [release.sensitivity for release in added] == pytest.approx([4.0, 5.0, 16.0])
    assert multipliers(careful) == [NOISE.noise_multiplier] * 3


def test_runs_whose_names_look_alike_are_different_runs_and_no_name_is_endless(careful):
    arrays_of(Server(careful).ask(SUM, releases=[NOISE], run="monday", **ANNOUNCED))
    for run in ("Monday", "monday ", "mond\u0430y", 7):
        said = refused(Server(careful).ask(SUM, releases=[NOISE], run=run, **ANNOUNCED), careful)
        assert "in other runs" in said
    for run_config in ({}, {"study": "s" * 201}):
        run = "monday" if run_config else "m" * 201
        server = Server(careful, **run_config)
        assert "200 is the most" in refused(server.ask(SUM, releases=[NOISE], run=run, **ANNOUNCED), careful)


@pytest.mark.parametrize("study", ["Sepsis", "sepsis ", " sepsis", "sepsis,other", "s\u0435psis"])
def test_a_study_is_the_one_that_the_policy_names(tmp_path, study):
    chosen = site(tmp_path, studies=["sepsis"])
    assert "the run's study is" in refused(Server(chosen, study=study).ask(SUM, releases=[NOISE], **ANNOUNCED), chosen)


def test_a_policy_that_was_changed_holds_from_the_next_answer_and_says_the_epsilon_of_its_own_delta(tmp_path):
    server = Server(site(tmp_path))
    arrays_of(server.ask(SUM, releases=[NOISE], **ANNOUNCED))
    server.site = site(tmp_path, epsilon_per_run=0.5)
    assert "epsilon_per_run in the policy is 0.5" in refused(
        server.ask(SUM, releases=[NOISE], **ANNOUNCED), server.site
    )
    server.site = site(tmp_path, epsilon_per_run=2.0, epsilon=2.0, delta_per_run=1e-9)
    arrays_of(server.ask(SUM, releases=[NOISE], **ANNOUNCED))
    first, second = server.site.ledger.entries
    assert second["delta"] == 1e-9
    assert second["epsilon"] > 1.1 * first["epsilon"]


def test_a_number_of_clusters_that_nobody_can_pay_for_is_that_of_the_rows_or_none(tmp_path):
    server = Server(site(tmp_path, unprotected=["centers"]), strategy="k-fed")
    for n_clusters in (10**5, 0, "two"):
        answer = server.ask(LocalCentersClient.local_centers.asked(n_clusters=n_clusters, random_state=0))
        if n_clusters == 10**5:
            assert len(arrays_of(answer)[0]) <= len(ROWS)
        else:
            assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "failed"}


HOSTILE_CONFIGS = [
    {},
    {"task": ["row_sum"]},
    {"parts": "{"},
    {"parts": "[null, null]"},
    {"parts": '["row_sum"]'},
    {"arguments": "[1]"},
    {"arguments": '{"self": 1}'},
    {"n_shares": "many"},
    {"n_shares": 1.5},
    {"rows": "../../etc/passwd"},
    {"n_clients": "3"},
    {"run": "../../../tmp/x"},
]


@pytest.mark.parametrize("config", HOSTILE_CONFIGS, ids=str)
def test_messages_that_make_no_sense_get_one_word_and_no_array(careful, config):
    base = {"client": PrivateKMeansClient.key(), "task": "row_sum", "round": 2} if config else {}
    answer = Server(careful).send(SUM.arrays, base | config)
    assert answer.parameters.tensors == []
    assert answer.metrics.pop("failure") in ("refused", "failed")
    assert answer.metrics.pop("missed", True) is True
    assert answer.metrics == {"format": FORMAT, "client": "north"}
    assert careful.ledger.read() == []


#: Each in a message that would be answered without it.
HOSTILE_FIELDS = [
    *({"parts": text} for text in ("", "{", "{}", "7", "[]", "[7]", '["row_sum", "row_sum"]', "[" * 10**5)),
    *({"frame": number} for number in (-1, 3, 10**9, "x", float("inf"), [1])),
    *({"view": text} for text in ("", "{", "7", "{}", '{"task": "fit", "arrays": 1}', '{"task": "x", "arrays": -1}')),
    {"view": json.dumps({"task": "cast", "arrays": 2, "frame": 2, "arguments": "{}"})},
    *({"finish": text} for text in ("", "{", "7", '["mean", []]', '["median", [1.0]]', '["mean", [NaN]]')),
    *({"finish": f'["mean", [{bound}]]'} for bound in ("-1", "0", "1e999", '"x"', "[]")),
    {"arguments": '{"rows": 1}'},
    {"arguments": '{"frame": 1}'},
]


@pytest.mark.parametrize("config", HOSTILE_FIELDS, ids=lambda config: str(config)[:60])
def test_fields_that_do_not_fit_together_are_refused_before_a_charge(careful, config):
    answer = Server(careful).ask(SUM, releases=[NOISE], **ANNOUNCED, **config)
    assert answer.parameters.tensors == []
    assert answer.metrics in (
        {"format": FORMAT, "client": "north", "failure": "refused"},
        {"format": FORMAT, "client": "north", "failure": "failed"},
    )
    assert careful.ledger.read() == []


def test_a_finish_is_clipped_to_the_norm_that_its_noise_is_for(careful, added):
    for kind, at_most in (("mean", 0.5), ("total", 7.0)):
        asked = getattr(SUM, kind)(at_most)
        arrays_of(Server(careful).ask(asked, releases=[NOISE], number=len(added) + 2, **ANNOUNCED))
        assert added[-1].sensitivity == pytest.approx(2 * at_most)
    assert multipliers(careful) == [NOISE.noise_multiplier] * 2


def test_anchors_and_shifts_that_do_not_belong_together_fail_before_rows_are_looked_at(careful):
    for anchors, shifts in [((3, 3), (2, 3)), ((0, 3), (0, 3)), ((2, 2), (2, 2)), ((3,), (3,)), ((), ())]:
        frame = Frame(np.zeros(3), 4.0, np.zeros(anchors), np.zeros(shifts), 9.0)
        asked = PrivateKMeansClient.row_sum.asked(frame=frame)
        refused(Server(careful).ask(asked, releases=[NOISE], **ANNOUNCED), careful)
    assert careful.ledger.read() == []


HOSTILE_ARRAYS = [
    [],
    [np.zeros(3)],
    [np.zeros(4), np.array([4.0, 2.0])],
    [np.full(3, np.nan), np.array([4.0, 2.0])],
    [np.zeros(3), np.array([4.0])],
    [np.zeros(3), np.array([4.0, 7.0])],
    [np.array(["a", "b", "c"]), np.array([4.0, 2.0])],
    [np.zeros((3, 3)), np.array([4.0, 2.0])],
]


@pytest.mark.parametrize("arrays", HOSTILE_ARRAYS, ids=str)
def test_arrays_that_make_no_sense_move_no_row_beyond_the_noise(careful, arrays):
    asked = Question(PrivateKMeansClient.row_sum.answer, tuple(arrays), {})
    answer = Server(careful).ask(asked, releases=[NOISE], frame=len(arrays), **ANNOUNCED)
    if "failure" not in answer.metrics:  # what was computed is bounded by the ball all the same
        assert np.abs(arrays_of(answer)[0] * 2.0**-23).max(initial=0.0) < 60 * 4.0 + 20 * NOISE.scale


def test_a_failure_says_nothing_of_the_rows(tmp_path):
    broken = site(tmp_path)
    broken._load = lambda: (_ for _ in ()).throw(ValueError("patient 7 has a fever of 41.3"))
    answer = Server(broken).ask(SUM, releases=[NOISE], **ANNOUNCED)
    assert answer.metrics == {"format": FORMAT, "client": "north", "failure": "failed"}
    assert "41.3" in audit(broken)[-1]["reason"]


def test_an_audit_log_that_cannot_be_written_tells_the_server_no_path(careful):
    (careful.folder / "audit.jsonl").mkdir(parents=True)  # as with a full disk, opening it fails
    with pytest.raises(RuntimeError, match=r"^failed$"):
        careful.app(None, Server(careful).context)


def test_a_model_that_cannot_be_is_not_evaluated(tmp_path):
    own = site(tmp_path, evaluations=5)
    for run, model in enumerate(("os", "k-means", ""), start=1):
        assert Server(own, run).evaluate(np.full((2, 9), np.nan), model=model).metrics["failure"] == "failed"
    assert [entry["sent"] for entry in own.ledger.read()] == 3 * [""]  # charged: what failed may follow from rows
    assert KMeansModel(CENTERS).name == "k-means"


def test_counts_of_rows_leave_with_noise_or_where_the_policy_says_so(tmp_path, careful):
    count = PrivateKMeansClient.row_count.asked()
    replaced = plan({"rows": Share("gaussian", 1.0, relation="replace")}).to_json()
    assert "without noise" in refused(Server(careful).ask(count, **ANNOUNCED), careful)
    uncounted = site(tmp_path / "uncounted", relations=BOTH)
    assert "without noise" in refused(Server(uncounted).ask(count, plan=replaced), uncounted)
    counted = site(tmp_path / "counted", row_count=True, relations=BOTH)
    assert arrays_of(Server(counted).ask(count, plan=replaced))[0] == 60
    assert "without noise" in refused(Server(counted, 2).ask(count, **ANNOUNCED), counted)

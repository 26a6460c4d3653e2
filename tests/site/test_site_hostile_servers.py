"""Servers that have been changed get no more from a site than its policy allows."""

import json

import numpy as np
import pandas as pd
import pytest
from flwr.common import EvaluateIns
from hostile import (
    ANNOUNCED,
    BALL,
    BOTH,
    ENROL,
    FAILED,
    NAMES,
    NOISE,
    PLAN,
    ROWS,
    SHARES,
    SUM,
    Server,
    arrays_of,
    audit,
    gaussian,
    plan,
    plan_of,
    refused,
    site,
)

from flower_fedclust.engine import ClientData, ProtocolError
from flower_fedclust.engine.client import Request
from flower_fedclust.engine.parts import Part, relation_of, releases_of_parts
from flower_fedclust.engine.rounds import Answer, Question, Sent, answers
from flower_fedclust.engine.wire import encode
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.terms import Bound
from flower_fedclust.format import FORMAT
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.privacy.noise import add_noise
from flower_fedclust.privacy.releases import Release
from flower_fedclust.registry import find
from flower_fedclust.site.app import Site
from flower_fedclust.site.budget import Budget, Spent
from flower_fedclust.site.policy import Policy, SiteSettings
from flower_fedclust.strategies.baselines.pooled import PooledRowsClient
from flower_fedclust.strategies.common.first_centers import LocalCentersClient
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient
from flower_fedclust.tables.schema import Schema

CENTERS = np.zeros((2, 3))
OWN_CENTERS = LocalCentersClient.local_centers.asked(n_clusters=2, random_state=0)
REPLACED = gaussian(1.0, relation="replace")
LOUD = plan(SHARES, epsilon=5.0)


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


def key_of(strategy):
    return find(strategy).strategy.client_type.key()


# Noise.


def test_what_the_policy_allows_is_answered_with_its_noise(careful):
    (total,) = arrays_of(Server(careful).ask_sum())
    assert total.shape == (3,)
    (entry,) = careful.ledger.read()
    assert entry["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert multipliers(careful) == [NOISE.noise_multiplier]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"releases": ()}, "without noise"),
        ({"releases": (), "plan": None}, "without noise"),
        ({"releases": (), "parts": "[null]"}, "without noise"),
        ({"releases": [gaussian(0.0)], "plan": plan_of([gaussian(0.0)]).to_json()}, "not positive"),
        ({"plan": None}, "JSON"),
        ({"plan": ""}, "JSON"),
        # Noise that the plan does not have.
        ({"releases": [gaussian(99.0)]}, "not in the run's plan"),
        ({"releases": [gaussian(99.0, share="other")]}, "not in the run's plan"),
        ({"plan": json.dumps(json.loads(PLAN.to_json()) | {"unit": "client"})}, "one client"),
        ({"n_shares": 10**12}, "1000000000000 shares"),
        *(({"n_shares": number}, "shares") for number in (0, -1)),
        *(({"n_clients": number}, "fewest_clients") for number in (1, 0, None)),
        *(({"round": number}, "which round") for number in (None, 0, -2, 2**31)),
        *(
            ({"round": number}, "a field 'round' that is not of the type int")
            for number in ("2", 2.0, True)
        ),
        *(
            ({name: 1}, f"a field '{name}' that this client does not know")
            for name in ("pad", "view_", "releases ")
        ),
        ({"plan": plan(SHARES, noise="server").to_json(), "releases": ()}, "trusts_server_noise"),
        ({"plan": plan(SHARES, epsilon=1.2).to_json()}, "would spend an epsilon of 1.2"),
        # A plan is judged by its noise, whatever else it says.
        (
            {
                "plan": json.dumps(
                    json.loads(plan(SHARES, epsilon=5.0).to_json()) | {"epsilon": 0.1, "delta": 0.5}
                )
            },
            "spend",
        ),
        *(
            ({"plan": text}, "")
            for text in ("{", "[]", "3", "null", "{}", '{"epsilon": 1}', "[" * 10**5)
        ),
        ({"plan": PLAN.to_json() + " " * 10**6}, ""),
        *(
            ({"plan": PLAN.to_json().replace(old, new)}, "")
            for old, new in [
                ("gaussian", "magic"),
                ('"count": 3', '"count": 1000000000'),
                ('"count": 3', '"count": -3'),
                ('"count": 3', '"count": true'),
                ('"epsilon": 1.0', '"epsilon": NaN'),
                ("row_sum", "r" * 1000),
            ]
        ),
        *(
            ({"question": PrivateKMeansClient.row_sum.asked(frame=Frame(np.zeros(3), radius))}, "")
            for radius in (np.inf, np.nan, -4.0, 0.0, 1e-320)
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_messages_without_the_noise_of_their_plan_are_refused_before_a_charge(
    careful, config, reason
):
    said = refused(Server(careful).ask_sum(**config), careful)
    assert reason in said
    assert careful.ledger.read() == []
    assert "Traceback" not in (careful.folder / "audit.jsonl").read_text()


@pytest.mark.parametrize("radius", [1e-6, 4.0, 1e6])
def test_the_noise_grows_with_the_clipping_norm_that_a_server_chooses(tmp_path, radius):
    rows = np.random.default_rng(0).normal(size=(60, 300))
    own, frame = site(tmp_path, rows=rows), Frame(np.zeros(300), radius)
    answer = Server(own).ask_sum(question=PrivateKMeansClient.row_sum.asked(frame=frame))
    (exact,) = PrivateKMeansClient(ClientData(rows), name="north").row_sum(frame=frame)
    noise = (arrays_of(answer)[0] - exact.integers) * 2.0**exact.exponent
    assert noise.std() == pytest.approx(NOISE.noise_multiplier * radius, rel=0.25)
    assert multipliers(own) == [NOISE.noise_multiplier]


def test_what_a_server_says_of_sensitivities_and_triangles_is_not_read(careful, added):
    told = json.loads(PLAN.to_json())
    told["shares"]["row_sum"] |= {"sensitivity": 1e-9, "triangle": True}
    assert "a plan has other fields" in refused(
        Server(careful).ask_sum(plan=json.dumps(told)), careful
    )
    old = json.dumps([gaussian(1e9, sensitivity=1e-9, share="row_sum", triangle=True).to_dict()])
    assert "a field 'old_releases'" in refused(Server(careful).ask_sum(old_releases=old), careful)
    assert careful.ledger.read() == []
    arrays_of(Server(careful).ask_sum())
    (release,) = added
    assert release.sensitivity == pytest.approx(BALL.radius)
    assert (release.noise_multiplier, release.triangle) == (NOISE.noise_multiplier, False)


def test_a_part_pays_for_any_answer_by_the_bound_of_that_answer(careful, added):
    server = Server(careful)
    wide = PrivateKMeansClient.row_sum.asked(frame=Frame(np.zeros(3), 5.0))
    for asked in (SUM, wide, PrivateKMeansClient.second_moment.asked(frame=BALL)):
        arrays_of(server.ask_sum(question=asked))
    assert [release.sensitivity for release in added] == pytest.approx([4.0, 5.0, 16.0])
    assert multipliers(careful) == [NOISE.noise_multiplier] * 3
    laplace = Release("laplace", 4.0, 50.0, "", share="row_sum")
    assert "nothing bounds" in refused(Server(careful, 2).ask(SUM, releases=[laplace]), careful)


@pytest.mark.parametrize(("kind", "at_most"), [("mean", 0.5), ("total", 7.0)])
def test_a_finish_is_clipped_to_the_norm_that_its_noise_is_for(careful, added, kind, at_most):
    arrays_of(Server(careful).ask_sum(question=getattr(SUM, kind)(at_most)))
    assert added[-1].sensitivity == pytest.approx(2 * at_most)


def test_shares_of_noise_and_the_servers_noise_are_believed_only_where_the_policy_says_so(tmp_path):
    of_three = site(tmp_path / "three", most_shares=3)
    arrays_of(Server(of_three).ask_sum(n_shares=3))
    assert of_three.ledger.entries[0]["is_claim"]
    refused(Server(of_three, 2).ask_sum(n_shares=4), of_three)
    promised = {"plan": plan(SHARES, noise="server").to_json()}
    trusting = site(tmp_path / "trusting", trusts_server_noise=True, epsilon=5.0, delta=1e-5)
    arrays_of(Server(trusting).ask(SUM, **promised))
    assert trusting.ledger.entries[0]["is_claim"]
    assert trusting.ledger.entries[0]["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert "would send centers" in refused(
        Server(trusting, 2, "k-fed").ask(OWN_CENTERS, **promised), trusting
    )


# Relations.


def test_rows_that_are_replaced_take_twice_the_noise_where_the_policy_lists_the_relation(
    tmp_path, careful, added
):
    replaced = [gaussian(9.0, relation="replace")]
    assert "relations in the policy" in refused(
        Server(careful).ask(SUM, releases=replaced), careful
    )
    own = site(tmp_path / "both", relations=BOTH)
    arrays_of(Server(own).ask(SUM, releases=replaced))
    assert [release.sensitivity for release in added] == pytest.approx([2 * BALL.radius])
    assert multipliers(own) == [9.0]


class Rows:
    """Answers with an entry for every row, and with a sum beside it."""

    @answers(Sent("codes", "codes", per="row"), "sum", moved=lambda _: (Bound(1.0), Bound(1.0)))
    def both(self):
        """Return nothing: only the declaration is read."""

    @answers("sum", moved=lambda _: (Bound(1.0),), relation="replace")
    def placed(self):
        """Return nothing: only the declaration is read."""


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize(
    ("asked", "parts", "only_replaced"),
    [
        (Rows.both.asked(), ["a", None], True),
        (Rows.both.asked(), ["a", "b"], True),
        (Rows.both.asked(), [None, "b"], False),  # the sum alone is paid for
        (Rows.placed.asked(), ["a"], True),
    ],
)
def test_paying_for_an_array_with_an_entry_for_every_row_promises_only_replacement(
    asked, parts, only_replaced, relation
):
    announced = plan({name: Share("gaussian", 0.5, relation=relation) for name in ("a", "b")})
    if only_replaced and relation == "add-or-remove":
        with pytest.raises(ProtocolError, match="replaced"):
            releases_of_parts(asked, asked.moved(), parts, announced)
    else:
        made = releases_of_parts(asked, asked.moved(), parts, announced)
        assert [release and release.relation for release in made] == [
            name and relation for name in parts
        ]


def test_a_budget_that_pays_for_such_an_array_is_for_rows_that_are_replaced():
    assert relation_of({"a": Part(PrivateKMeansClient.row_sum, 1.0)}) == "add-or-remove"
    for only in (Rows.both, Rows.placed):
        assert (
            relation_of({"a": Part(PrivateKMeansClient.row_sum, 0.5), "b": Part(only, 0.5)})
            == "replace"
        )


# Rounds, runs and budgets.


def test_a_round_is_answered_once_with_the_same_bytes(careful):
    server = Server(careful)
    first = server.ask_sum(number=2)
    again = [server.ask_sum(number=2) for _ in range(3)]
    assert all(
        answer.parameters == first.parameters and answer.metrics == first.metrics
        for answer in again
    )
    assert len(careful.ledger.read()) == 1
    other = PrivateKMeansClient.row_sum.asked(frame=Frame(np.ones(3), BALL.radius))
    assert "to another question" in refused(server.ask_sum(question=other, number=2), careful)


def test_a_run_gets_as_many_rounds_as_it_announced_and_announces_its_noise_once(careful):
    server = Server(careful)
    arrays_of(server.ask_sum())
    other = plan(SHARES, epsilon=0.5).to_json()
    assert "other noise" in refused(server.ask_sum(plan=other), careful)
    assert "other noise" in refused(server.ask(SUM, releases=[NOISE]), careful)
    for _ in range(2):
        arrays_of(server.ask_sum())
    assert "asks for more" in refused(server.ask_sum(), careful)


def test_other_runs_find_the_budget_spent_however_alike_their_names_are(careful):
    arrays_of(Server(careful).ask_sum(run="monday"))
    for run in ("Monday", "monday ", "mond\u0430y", "7"):
        assert "in other runs" in refused(Server(careful).ask_sum(run=run), careful)
    for run_config, run in (({}, "m" * 201), ({"study": "s" * 201}, "monday")):
        assert "200 is the most" in refused(Server(careful, **run_config).ask_sum(run=run), careful)


def test_a_policy_that_was_changed_holds_from_the_next_answer_and_says_the_epsilon_of_its_own_delta(
    tmp_path,
):
    server = Server(site(tmp_path))
    arrays_of(server.ask_sum())
    server.site = site(tmp_path, epsilon_per_run=0.5)
    assert "epsilon_per_run in the policy is 0.5" in refused(server.ask_sum(), server.site)
    server.site = site(tmp_path, epsilon_per_run=2.0, epsilon=2.0, delta_per_run=1e-9)
    arrays_of(server.ask_sum())
    first, second = server.site.ledger.entries
    assert second["delta"] == 1e-9
    assert second["epsilon"] > 1.1 * first["epsilon"]


# Strategies, studies and tasks.


def test_studies_strategies_and_tasks_are_those_of_the_policy(tmp_path):
    chosen = site(tmp_path, studies=["sepsis"], strategies=["private-kmeans"], tasks=["row_sum"])
    for study in ("", "Sepsis", "sepsis ", " sepsis", "sepsis,other", "s\u0435psis"):
        assert "study" in refused(Server(chosen, study=study).send([], ENROL), chosen)
    assert "names k-fed" in refused(
        Server(chosen, strategy="k-fed", study="sepsis").send([], ENROL), chosen
    )
    server = Server(chosen, study="sepsis")
    assert server.send([], ENROL).metrics["columns"] == "3"
    arrays_of(server.ask_sum())
    count = PrivateKMeansClient.row_count.asked()
    assert "tasks in the policy" in refused(server.ask_sum(question=count), chosen)


@pytest.mark.parametrize(
    "named",
    [None, "", " ", ",", "SPP-FGC", "k-fed,spp-fgc", "spp-fgc,k-fed", "spp-fgcs", "k-fed:KFED"],
)
def test_a_run_names_strategies_that_the_policy_lists_and_no_others(tmp_path, named):
    chosen = site(tmp_path, strategies=["spp-fgc"], unprotected=["centers", "codes"])
    server = Server(chosen, strategy=named or "")
    if named is None:
        server.context.run_config = {}
    for answer in (
        server.ask(OWN_CENTERS, client=LocalCentersClient.key()),
        server.send([], ENROL),
    ):
        assert "strategies in the policy lists spp-fgc" in refused(answer, chosen)


def test_a_strategy_is_answered_by_its_own_client_half_alone(tmp_path, careful):
    chosen = site(tmp_path / "chosen", strategies=["spp-fgc"], unprotected=["centers", "codes"])
    said = refused(
        Server(chosen, strategy="spp-fgc").ask(OWN_CENTERS, client=LocalCentersClient.key()), chosen
    )
    assert "not part of spp-fgc" in said
    for key in (key_of("pooled-kmeans"), "os.system", "None"):
        said = refused(Server(careful).ask(PooledRowsClient.all_rows.asked(), client=key), careful)
        assert "not part of private-kmeans" in said
    assert "class of some module" in refused(
        Server(careful, strategy="os:path").send([], ENROL), careful
    )


@pytest.mark.parametrize(
    "task", ["fit", "_forget", "remember", "rows", "data", "__class__", "", "nothing"]
)
def test_only_what_is_declared_may_be_asked_for(careful, task):
    answer = Server(careful).ask(
        Question(Answer(task, (Sent("anything"),)), (), {}), releases=[NOISE]
    )
    assert (answer.metrics, answer.parameters.tensors) == (FAILED, [])
    assert "no answer called" in audit(careful)[-1]["reason"]


@pytest.mark.parametrize("stated", [FORMAT - 1, None, "x" * 10**6])
def test_a_message_of_another_format_is_refused_before_the_ledger_and_the_rows(
    careful, monkeypatch, stated
):
    monkeypatch.setattr(Site, "data", property(lambda site: pytest.fail("the rows were read")))
    before = careful.ledger.read()
    server, config = Server(careful), ENROL | {"format": stated, "share": True}
    said = [
        server.send([], config),
        careful.client(server.context).evaluate(EvaluateIns(encode([]), config)),
    ]
    assert all("this site reads format" in answer.metrics["failure"] for answer in said)
    assert careful.ledger.read() == before


# Without noise.


def test_rows_centers_and_codes_leave_only_where_the_policy_lists_them(tmp_path, careful):
    rows = PooledRowsClient.all_rows.asked()
    assert "would send rows" in refused(
        Server(careful, strategy="pooled-kmeans").ask(rows), careful
    )
    open_site = site(tmp_path / "open", unprotected=["rows"])
    np.testing.assert_array_equal(
        arrays_of(Server(open_site, strategy="pooled-kmeans").ask(rows))[0], ROWS
    )
    assert open_site.ledger.entries[0]["arrays"][0]["covered"] == "nothing"
    server = Server(careful, strategy="k-fed")
    # Whatever noise is said to be on them.
    for releases in ((), [gaussian(9.0)] * len(OWN_CENTERS.answer.sends)):
        said = refused(server.ask(OWN_CENTERS, releases=releases), careful)
        assert "without noise" in said or "nothing bounds what it sends" in said


def test_evaluation_is_refused_unless_the_policy_counts_it(tmp_path, careful):
    assert "evaluations in the policy is 0" in refused(Server(careful).evaluate(CENTERS), careful)
    once = site(tmp_path / "once", evaluations=1, labels=NAMES)
    server = Server(once)
    assert server.evaluate(CENTERS).num_examples == 60
    # Two models of one center each would give the sums of the columns.
    assert "to another question" in refused(server.evaluate(CENTERS + 1), once)
    assert "evaluation number 2" in refused(Server(once, 2).evaluate(CENTERS + 1), once)


def test_a_model_that_cannot_be_is_not_evaluated(tmp_path):
    own = site(tmp_path, evaluations=5)
    for run, model in enumerate(("os", "k-means", ""), start=1):
        assert (
            Server(own, run).evaluate(np.full((2, 9), np.nan), model=model).metrics["failure"]
            == "failed"
        )
    # charged: a failure may follow from rows.
    assert [entry["sent"] for entry in own.ledger.read()] == 3 * [""]


def test_columns_and_labels_are_the_sites_and_names_are_no_labels(tmp_path):
    pd.DataFrame(ROWS, columns=list("abc")).assign(name=NAMES).to_csv(
        tmp_path / "table.csv", index=False
    )
    given = {
        "name": "north",
        "data": "table.csv",
        "columns": ["a", "b"],
        "policy": {"evaluations": 9},
    }
    own = Site(SiteSettings.checked(given, "site.toml", tmp_path))
    own.create_ledger()
    asked = {"label-column": "name", "columns": "c", "data": "/etc/passwd"}
    answer = Server(own, **asked).evaluate(CENTERS[:, :2])
    assert "table" not in answer.metrics
    assert answer.num_examples == 60
    named = Site(
        SiteSettings.checked(
            given | {"label_column": "name", "folder": "other"}, "site.toml", tmp_path
        )
    )
    named.create_ledger()
    assert Server(named).evaluate(CENTERS[:, :2]).metrics == FAILED
    assert "more than 20 different values" in audit(named)[-1]["reason"]


# The number of rows.


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
        find_moved=lambda n_rows: asked.append(n_rows) or (Bound(1.0),),
    )
    Budget(policy, (), Spent()).judge(request)
    assert asked == [n_rows]


def test_with_too_few_rows_a_site_does_not_even_say_who_it_is(tmp_path):
    small = site(tmp_path, rows=ROWS[:49])
    for answer in (Server(small).send([], ENROL), Server(small).ask_sum()):
        assert "49 rows" in refused(answer, small)
    assert small.ledger.read() == []


def test_counts_of_rows_leave_with_noise_or_where_the_policy_says_so(tmp_path, careful):
    count = PrivateKMeansClient.row_count.asked()
    replaced = plan({"rows": Share("gaussian", 1.0, relation="replace")}).to_json()
    assert "without noise" in refused(Server(careful).ask(count, **ANNOUNCED), careful)
    arrays_of(Server(careful).ask_sum(question=count))
    assert careful.ledger.entries[-1]["arrays"][0]["mechanism"] == "gaussian"
    uncounted = site(tmp_path / "uncounted", relations=BOTH)
    assert "without noise" in refused(Server(uncounted).ask(count, plan=replaced), uncounted)
    counted = site(tmp_path / "counted", row_count=True, relations=BOTH)
    # In units of 2^-15.
    assert arrays_of(Server(counted).ask(count, plan=replaced))[0] == 60 * 2**15
    assert "without noise" in refused(Server(counted, 2).ask(count, **ANNOUNCED), counted)


# Messages that make no sense.


def test_a_schema_of_the_servers_asks_nothing_about_the_rows(careful):
    """Whether a column has values outside of a schema would be an answer, as often as a server likes."""
    for bounds in ([-9, 9], [0, 1]):
        asked = Schema.of(
            {"columns": {name: {"kind": "number", "bounds": bounds} for name in "abc"}}
        ).to_json()
        assert "site.toml names none" in refused(
            Server(careful).send([], ENROL | {"schema": asked}), careful
        )


def test_a_number_of_clusters_that_nobody_can_pay_for_is_that_of_the_rows_or_none(tmp_path):
    server = Server(site(tmp_path, unprotected=["centers"]), strategy="k-fed")
    for n_clusters in (10**5, 0, "two"):
        answer = server.ask(
            LocalCentersClient.local_centers.asked(n_clusters=n_clusters, random_state=0)
        )
        if n_clusters == 10**5:
            assert len(arrays_of(answer)[0]) <= len(ROWS)
        else:
            assert answer.metrics == FAILED


#: Each in a message that would be answered without it.
HOSTILE_FIELDS = [
    *(
        {"parts": text}
        for text in ("", "{", "{}", "7", "[]", "[7]", "[null, null]", '["row_sum", "row_sum"]')
    ),
    {"parts": "[" * 10**5},
    *({"frame": number} for number in (-1, 3, 10**9, "x", float("inf"), [1])),
    *(
        {"view": text}
        for text in (
            "",
            "{",
            "7",
            "{}",
            '{"task": "fit", "arrays": 1}',
            '{"task": "x", "arrays": -1}',
        )
    ),
    {"view": json.dumps({"task": "cast", "arrays": 2, "frame": 2, "arguments": "{}"})},
    *(
        {"finish": text}
        for text in ("", "{", "7", '["mean", []]', '["median", [1.0]]', '["mean", [NaN]]')
    ),
    *({"finish": f'["mean", [{bound}]]'} for bound in ("-1", "0", "1e999", '"x"', "[]")),
    *(
        {"arguments": text}
        for text in ('{"rows": 1}', '{"frame": 1}', "[1]", '{"self": 1}', "null", '{"a": [1]}')
    ),
    *({"arguments": text} for text in ("[" * 100_000, '{"a":' * 100_000, '{"a": null}')),
    {"n_shares": "many"},
    {"task": ["row_sum"]},
    {"rows": "../../etc/passwd"},
    {"n_clients": "x"},
]


@pytest.mark.parametrize("config", HOSTILE_FIELDS, ids=lambda config: str(config)[:60])
def test_fields_that_do_not_fit_together_get_one_word_and_no_charge(careful, config):
    answer = Server(careful).ask_sum(**config)
    assert answer.parameters.tensors == []
    answer.metrics.pop("missed", None)
    assert answer.metrics in (FAILED, FAILED | {"failure": "refused"})
    assert "RecursionError" not in audit(careful)[-1]["reason"]
    assert careful.ledger.read() == []


HOSTILE_ARRAYS = [
    [],
    [np.zeros(3)],
    [np.zeros(4), np.array([4.0, 2.0])],
    [np.full(3, np.nan), np.array([4.0, 2.0])],
    [np.zeros(3), np.array([4.0])],
    [np.zeros(3), np.array([4.0, 7.0])],
    *([np.array(odd), np.array([4.0, 2.0])] for odd in (["a", "b", "c"], [1 + 2j] * 3)),
    [np.zeros(3, dtype="M8[D]"), np.array([4.0, 2.0])],
    [np.zeros((3, 3)), np.array([4.0, 2.0])],
]


@pytest.mark.parametrize("arrays", HOSTILE_ARRAYS, ids=str)
def test_arrays_that_make_no_sense_move_no_row_beyond_the_noise(careful, arrays):
    answer = Server(careful).ask_sum(
        question=Question(SUM.answer, tuple(arrays), {}), frame=len(arrays)
    )
    if arrays and arrays[0].dtype.kind not in "f":
        assert "only plain numbers" in refused(answer, careful)
    if "failure" not in answer.metrics:  # what was computed is bounded by the ball all the same
        assert (
            np.abs(arrays_of(answer)[0] * 2.0**-23).max(initial=0.0) < 60 * 4.0 + 20 * NOISE.scale
        )


def test_a_failure_says_nothing_of_the_rows(tmp_path):
    broken = site(tmp_path)
    broken._load = lambda: (_ for _ in ()).throw(ValueError("patient 7 has a fever of 41.3"))
    assert Server(broken).ask_sum().metrics == FAILED
    assert "41.3" in audit(broken)[-1]["reason"]


def test_an_audit_log_that_cannot_be_written_tells_the_server_no_path(careful):
    (careful.folder / "audit.jsonl").mkdir(parents=True)  # as with a full disk, opening it fails
    with pytest.raises(RuntimeError, match=r"^failed$"):
        careful.app(None, Server(careful).context)

"""Secure sums at sites: secrets in the site's folder, pinned keys, and answers without masks that are refused."""

import json
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.server import Server as FlowerServer
from flwr.server import SimpleClientManager
from hostile import (
    ENROL,
    FAILED,
    NO_LIMIT,
    SUM,
    Proxy,
    Server,
    arrays_of,
    audit,
    plan,
    refused,
    run,
    site,
)
from tested import entries

import flower_fedclust as fc
from flower_fedclust.data import read_batches
from flower_fedclust.engine import ClientData, ProtocolError
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.registry import find
from flower_fedclust.site.app import Site
from flower_fedclust.site.budget import Budget, Spent
from flower_fedclust.site.check import _reasons_of_policy
from flower_fedclust.site.kept import MEMORY, KeptRun
from flower_fedclust.site.policy import Policy, Refused, SiteSettings
from flower_fedclust.strategies.private_kmeans import PrivateKMeansClient

RNG = np.random.default_rng(5)
NAMES = ("east", "north", "south", "west")
TABLES = {
    name: np.concatenate([RNG.normal(size=(40, 3)), RNG.normal(size=(40, 3)) + 4]) for name in NAMES
}
PUBLIC = RNG.normal(size=(30, 3)) + 2


def sites_of(folder, *, pinned=True, **policy):
    """Four sites that know each other's keys."""
    given = {"secure": "required", "unprotected": ["sums"]} | policy
    made = {
        name: site(folder / name, name=name, rows=rows, **given) for name, rows in TABLES.items()
    }
    if pinned:
        peers = {name: one.public_key for name, one in made.items()}
        for one in made.values():
            one.settings = one.settings.model_copy(update={"peers": peers})
    return made


def lloyd(**options):
    strategy = fc.FedDPKMeans(2, server_data=PUBLIC, epsilon=None, random_state=0, **options)
    strategy.secure = True
    return strategy


@pytest.fixture
def sites(tmp_path):
    return sites_of(tmp_path)


def memory_of(one):
    """The place and name of what a site remembers of its only run, if there is something."""
    return next(
        ((place, name) for place, name, _ in one.kept.store.names() if name == MEMORY), None
    )


def forget_memory(one):
    with one.kept.store.changing():
        one.kept.store.forget(*memory_of(one))


def test_sites_that_require_masks_find_the_inline_result(sites):
    strategy = lloyd()
    run(strategy, list(sites.values()))
    inline = fc.simulate(
        fc.FedDPKMeans(2, server_data=PUBLIC, epsilon=None, random_state=0), TABLES
    )
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, inline.model.cluster_centers_
    )
    assert any(
        "4 of 4 clients have compared the others' keys" in note for note in strategy.report.notes
    )
    for one in sites.values():
        arrays = [array for entry in one.ledger.read() for array in entry["arrays"]]
        assert arrays
        assert all(array["masked"] for array in arrays)
        steps = [
            entry["task"] for entry in one.ledger.entries if entry["task"].startswith("secure")
        ]
        assert steps[:4] == ["secure keys", "secure roster", "secure share", "secure confirm"]


def test_noise_of_the_sites_is_added_before_the_masks(tmp_path):
    policy = {"most_shares": 3, "epsilon_per_run": 3, "epsilon": 3, "unprotected": []}
    sites = sites_of(tmp_path, **policy)
    strategy = fc.FedDPKMeans(2, server_data=PUBLIC, epsilon=2.0, noise="clients", n_rounds=1)
    strategy.secure = True
    run(strategy, list(sites.values()))
    assert strategy.is_finished
    shares = {array["shares"] for entry in sites["east"].ledger.read() for array in entry["arrays"]}
    assert shares == {3}  # four sites, of which one may withhold its noise


def test_secrets_are_in_the_sites_folder_for_its_owner_alone_and_not_with_flower(sites):
    kept, of_flower = [], []

    class Watching(Proxy):
        def fit(self, ins, timeout=None, group_id=None):
            res = super().fit(ins)
            if "secure" in ins.config:
                kept.append((json.loads(ins.config["secure"])["step"], memory_of(self.site)))
                assert kept[-1][1] is not None
                assert stat.S_IMODE(self.site.kept.path.stat().st_mode) == 0o600
                of_flower.extend(self.context.state)
            return res

    drive(lloyd(), sites, Watching)
    assert {step for step, _ in kept} == {"keys", "roster", "share", "mask", "confirm", "open"}
    assert not any("secure" in key for key in of_flower)
    for one in sites.values():
        assert stat.S_IMODE((one.folder / "secure.key").stat().st_mode) == 0o600
        facts = json.loads(state_of(one)[0].tobytes().partition(b"\0")[0])
        assert facts["secrets"] == []
        assert facts["private"] == ""


def drive(strategy, sites, proxy=Proxy, change=lambda step, site: None):
    """Run a strategy over sites; ``change`` may do something to a site before it takes a step."""

    class Changed(proxy):
        def fit(self, ins, timeout=None, group_id=None):
            if "secure" in ins.config:
                change(json.loads(ins.config["secure"])["step"], self.site)
            return super().fit(ins)

    manager = SimpleClientManager()
    for index, one in enumerate(sites.values()):
        manager.register(Changed(index, one, {"strategy": strategy.name}))
    server = FlowerServer(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)
    server.fit(num_rounds=strategy.num_rounds, timeout=None)
    return strategy


def state_of(one):
    context = Context(1, 1, UserConfig({}), RecordDict(), UserConfig({}))
    (run_name,) = {entry["run"] for entry in one.ledger.read()}
    KeptRun(one.kept, run_name).restore(context)
    return context.state["fedclust.secure"].to_numpy_ndarrays()


def test_a_site_that_loses_its_secrets_drops_out_of_the_run(sites):
    def lose(step, one):
        if step == "mask" and one.settings.name == "west" and memory_of(one) is not None:
            forget_memory(one)

    strategy = drive(lloyd(), sites, change=lose)
    left = {name: rows for name, rows in TABLES.items() if name != "west"}
    inline = fc.simulate(fc.FedDPKMeans(2, server_data=PUBLIC, epsilon=None, random_state=0), left)
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, inline.model.cluster_centers_
    )
    assert any(
        "has lost them" in line["reason"]
        for line in audit(sites["west"])
        if line["event"] == "failed"
    )


def test_sites_refuse_a_run_with_a_site_that_they_do_not_know(sites, tmp_path):
    stranger = site(tmp_path / "stranger", name="stranger", secure="required", unprotected=["sums"])
    with pytest.raises(ProtocolError, match="secure sum"):
        drive(lloyd(), sites | {"stranger": stranger})
    reasons = [line["reason"] for line in audit(sites["north"]) if line["event"] == "failed"]
    assert any(
        "client stranger is not signed with the key pinned for it" in reason for reason in reasons
    )


def test_a_policy_raises_the_smallest_number_of_clients(tmp_path):
    sites = sites_of(tmp_path, fewest_clients=5)
    with pytest.raises(ProtocolError, match="secure sum"):
        drive(lloyd(), sites)
    assert any("takes part with 5 to" in line.get("reason", "") for line in audit(sites["north"]))


# A site that limits its own weight.


def test_a_site_with_more_rows_takes_part_with_the_same_sample_in_every_run(tmp_path):
    sites = sites_of(tmp_path, sample=50)
    rows = {name: TABLES[name][one.data.ids] for name, one in sites.items()}
    for one in sites.values():
        assert len(one.data.ids) == 50
        assert (np.diff(one.data.ids) > 0).all()
        np.testing.assert_array_equal(one.data.rows, TABLES[one.settings.name][one.data.ids])
        again = Site(one.settings, lambda one=one: ClientData(TABLES[one.settings.name]))
        np.testing.assert_array_equal(again.data.ids, one.data.ids)
    assert len({tuple(one.data.ids) for one in sites.values()}) == 4  # each has a key of its own
    strategy = lloyd()
    run(strategy, list(sites.values()))
    inline = fc.simulate(fc.FedDPKMeans(2, server_data=PUBLIC, epsilon=None, random_state=0), rows)
    np.testing.assert_array_equal(
        strategy.outcome.model.cluster_centers_, inline.model.cluster_centers_
    )


@pytest.mark.parametrize("has_ids", [False, True])
def test_a_row_more_changes_one_row_of_a_sample_wherever_it_stands(tmp_path, has_ids):
    rows = np.concatenate([TABLES["east"], TABLES["east"][:5]])  # five rows twice
    settings = site(tmp_path, rows=rows, sample=50).settings

    def sample_of(rows):
        ids = [row.tobytes().hex() for row in rows] if has_ids else None
        data = Site(settings, lambda: ClientData(2 * rows if has_ids else rows, row_ids=ids)).data
        return Counter(data.ids if has_ids else map(bytes, data.rows))

    before = sample_of(rows)
    assert sample_of(rows[::-1]) == before
    changes = set()
    for more in np.random.default_rng(0).normal(size=(20, 3)):
        after = sample_of(np.insert(rows, 0, more, axis=0))
        changes.add(((after - before).total(), (before - after).total()))
    assert changes == {(0, 0), (1, 1)}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_rows_that_are_read_in_batches_have_the_same_sample(tmp_path, form):
    frame = pd.DataFrame(TABLES["east"], columns=list("abc")).assign(kind=np.arange(80) % 3)
    (tmp_path / "parts").mkdir()
    for part, rows in enumerate((frame[:30], frame[30:31], frame[31:])):
        path = tmp_path / "parts" / f"{part}.{form}"
        rows.to_parquet(path) if form == "parquet" else rows.to_csv(path, index=False)
    settings = site(tmp_path / "site", sample=50).settings
    read = read_batches(tmp_path / "parts", label_column="kind")
    in_files = Site(settings, lambda: ClientData(read.rows, read.labels)).data
    in_memory = Site(settings, lambda: ClientData(frame[list("abc")], frame["kind"])).data
    assert in_memory.is_in_memory
    assert not in_files.is_in_memory
    np.testing.assert_array_equal(in_files.ids, in_memory.ids)
    np.testing.assert_array_equal(in_files.labels, in_memory.ids % 3)
    np.testing.assert_array_equal(in_memory.labels, in_memory.ids % 3)
    found = np.concatenate([batch.rows for batch in in_files.batches(30)])
    np.testing.assert_allclose(found, TABLES["east"][in_memory.ids], rtol=1e-14)
    np.testing.assert_array_equal(in_memory.rows, TABLES["east"][in_memory.ids])


def test_the_sites_own_labels_are_of_its_sample_with_the_numbers_of_the_rows(tmp_path):
    sites = sites_of(tmp_path, sample=50)
    strategy = lloyd()
    strategy.share_model = True
    run(strategy, list(sites.values()))
    for one in sites.values():
        (folder,) = (one.folder / "results").iterdir()
        result = fc.load(folder)
        np.testing.assert_array_equal(np.asarray(result.row_ids[0]).astype(int), one.data.ids)
        expected = strategy.outcome.model.predict(one.data.rows)
        np.testing.assert_array_equal(result.labels_of_clients[0], expected)


@pytest.mark.parametrize(
    ("relation", "unit"),
    [("add-or-remove", "record"), ("replace", "record"), ("add-or-remove", "client")],
)
def test_a_sample_costs_as_much_as_noise_half_as_strong_if_rows_are_added(relation, unit):
    # A row more takes the place of another in the sample, and a row that is replaced is one row of it.
    policy = Policy(sample=100, epsilon_per_run=9.0, delta_per_run=1e-5)
    announced = replace(plan({"row_sum": Share("gaussian", 1.0, 3, relation)}), unit=unit)
    halved = {name: multiplier / 2 for name, multiplier in announced.multipliers.items()}
    paid = (
        replace(announced, multipliers=halved)
        if (relation, unit) == ("add-or-remove", "record")
        else announced
    )
    assert Budget(policy, [], Spent())._epsilon(announced) == paid.epsilon_of_row(1e-5)
    assert policy.epsilon_of(announced) == paid.epsilon_of_row(1e-5)


def test_a_sample_below_the_fewest_rows_answers_nothing(tmp_path):
    assert any("raise sample" in one for one in _reasons_of_policy(Policy(sample=20)))
    with pytest.raises(Refused, match="20 rows; fewest_rows"):
        _ = site(tmp_path, sample=20).data


# A server that does what it likes.


def keys(server, **config):
    about = {
        "task": "secure keys",
        "secure": '{"step": "keys"}',
        "client": PrivateKMeansClient.key(),
        "round": 2,
    }
    return server.send([], about | config)


@pytest.fixture
def careful(tmp_path):
    return site(
        tmp_path,
        secure="required",
        **NO_LIMIT,
        unprotected=["sums", "centers", "codes", "rows"],
        evaluations=5,
    )


def test_where_masks_are_required_nothing_leaves_without_one(careful):
    server = Server(careful)
    server.send([], ENROL)
    assert "without a mask" in refused(server.ask_sum(), careful)
    assert "without a mask" in refused(server.ask(SUM), careful)
    assert "without a mask" in refused(server.evaluate(np.zeros((2, 3)), np.zeros(3)), careful)


@pytest.mark.parametrize("name", sorted(entries()))
def test_no_task_of_any_strategy_leaves_without_a_mask(careful, name):
    kind = find(name).strategy.client_type
    server = Server(careful, strategy=name)
    asked = [one for one in (getattr(kind, task) for task in dir(kind)) if isinstance(one, Askable)]
    for one in asked:
        if not one.answer.sends or one.answer.keeps:
            continue
        for secure in (
            {},
            {"secure": "{}"},
            {"secure": '{"step": "mask", "clients": [0, 1, 2]}'},
            {"secure": "[]"},
        ):
            server.round += 1
            about = {
                "task": one.answer.task,
                "client": kind.key(),
                "round": server.round,
                "n_clients": 3,
            }
            answer = server.send([np.zeros((2, 3))], about | secure)
            assert answer.parameters.tensors == []
            assert answer.metrics.keys() <= FAILED.keys() | {"missed"}


def test_a_masked_answer_needs_a_sum_that_has_begun(careful):
    server = Server(careful)
    answer = server.ask_sum(secure='{"step": "mask", "clients": [0, 1, 2]}')
    assert answer.metrics == FAILED
    assert answer.parameters.tensors == []
    assert all(not entry["arrays"] for entry in careful.ledger.read())


@pytest.mark.parametrize("task", ["receive", "evaluate"])
def test_a_step_is_not_taken_under_the_task_of_a_message_with_a_model(careful, task):
    assert keys(Server(careful), task=task).metrics["failure"] == "refused"
    assert f"has the task '{task}'" in audit(careful)[-1]["reason"]
    assert careful.ledger.read() == []


def test_a_site_makes_keys_once_for_a_run_whoever_asks_and_however_often(careful):
    server = Server(careful)
    first = arrays_of(keys(server))[0]
    # Started twice, the site has one folder: the same message gets the same reply.
    second = Site(careful.settings, lambda: careful.data)
    again = Server(second)
    np.testing.assert_array_equal(arrays_of(keys(again))[0], first)
    assert keys(again, round=3).metrics == FAILED
    assert "sent its key for this run before" in audit(careful)[-1]["reason"]
    forget_memory(careful)
    assert keys(again, extra="another message").metrics["failure"] == "refused"


def test_enrolling_again_does_not_make_a_site_forget_its_keys(careful):
    server = Server(careful)
    server.send([], ENROL)
    keys(server)
    server.send([], ENROL | {"round": 7})
    assert keys(server, round=8).metrics == FAILED


def test_a_step_that_there_is_not_gets_one_word(careful):
    server = Server(careful)
    for number, secure in enumerate(
        ["", "[]", '{"step": "../../x"}', '{"step": ["keys"]}', "{" * 99], start=3
    ):
        answer = keys(server, secure=secure, round=number)
        assert answer.metrics["failure"] in ("failed", "refused")
        assert answer.parameters.tensors == []


def test_keys_of_peers_are_checked():
    for wrong in ("abc", "g" * 64, "A" * 64):
        with pytest.raises(ValueError, match="peers"):
            SiteSettings.checked(
                {"name": "a", "data": "b", "peers": {"c": wrong}}, "site.toml", Path()
            )

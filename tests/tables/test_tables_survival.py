"""Times to an event in a schema: never clustered by, counted once for each row, and told for each cluster."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from flwr.common import Context, RecordDict

import flower_fedclust as fc
from flower_fedclust.data import read_batches
from flower_fedclust.engine import ProtocolClient, by_row
from flower_fedclust.engine.table_answers import preparation_as_bytes
from flower_fedclust.engine.wire import as_bytes
from flower_fedclust.exact.rows import Frame
from flower_fedclust.numerics.survival import LifeTables
from flower_fedclust.results.survival import survival_figure, survival_on_page
from flower_fedclust.tables.preparation import Preparation
from flower_fedclust.tables.schema import Figures, Schema
from flower_fedclust.tables.survival import Survival, survival_of, time_sums

BINS = [5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
TIME = {
    "kind": "time-to-event",
    "event": "died",
    "bins": BINS,
    "unit": "months",
    "time_zero": "row",
}
COLUMNS = {
    "x": {"kind": "number", "bounds": [-3, 9]},
    "y": {"kind": "number", "bounds": [-3, 9]},
    "died": {"kind": "binary", "categories": ["alive", "dead"], "gaps": "category"},
    "months": {**TIME, "gaps": "category", "happened": "had died"},
}
SCHEMA = Schema.of({"columns": COLUMNS})


def people(n_rows, seed=0):
    """Two clear clusters, of which the second dies sooner."""
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=n_rows)
    until, seen = rng.exponential(np.array([60.0, 20.0])[group]), rng.exponential(80.0, n_rows)
    place = 6.0 * group + rng.normal(scale=0.5, size=(2, n_rows))
    return pd.DataFrame(
        {
            "x": place[0],
            "y": place[1],
            "months": np.where(rng.random(n_rows) < 0.05, np.nan, np.minimum(until, seen)),
            "died": np.where(
                rng.random(n_rows) < 0.05, None, np.where(until <= seen, "dead", "alive")
            ),
        }
    )


PEOPLE = people(1200)
SITES = {f"site {index}": PEOPLE.iloc[index::3] for index in range(3)}


def changed(**changes):
    return {name: COLUMNS[name] | changes.get(name, {}) for name in COLUMNS}


WRONG = {
    "event is missing": changed(months={"event": ""}),
    "bins has 0 ends": changed(months={"bins": []}),
    "bins must ascend": changed(months={"bins": [5.0, 5.0]}),
    "begin above 0": changed(months={"bins": [0.0, 5.0]}),
    "time_zero is missing": changed(months={"time_zero": ""}),
    "only rows up to time 0 count": changed(months={"time_zero": "subject"}),
    "row_time is given": changed(months={"row_time": "x"}),
    "delayed entry is not counted": changed(months={"entry": "x"}),
    "competing risks are not counted": changed(months={"competing": "x"}),
    "so calling it censored would overstate": changed(
        died={"kind": "category", "categories": ["alive", "dead", "dead of something else"]}
    ),
    "'alive' is the second category": changed(
        died={"kind": "binary", "categories": ["dead", "alive"]}
    ),
    "must be a binary column": changed(months={"event": "unknown"}),
    "row_time names 'died'": changed(months={"time_zero": "subject", "row_time": "died"}),
    "nothing is clustered by a time-to-event": changed(months={"weight": 2.0}),
    "nothing is clustered by an event": changed(died={"gaps": "mean"}),
    "only the kind time-to-event has it": changed(x={"bins": [1.0]}),
    "both times to an event": COLUMNS | {"weeks": COLUMNS["months"]},
}


@pytest.mark.parametrize("why", WRONG)
def test_a_schema_that_leaves_open_what_is_counted_is_refused_with_a_sentence(why):
    with pytest.raises(ValueError, match=why):
        Schema.of({"columns": WRONG[why]})


def test_time_and_event_are_read_and_checked_but_never_clustered_by():
    assert list(SCHEMA.used) == ["x", "y"]
    assert set(SCHEMA.of_outcome) == {"months", "died"}
    assert Schema.from_json(SCHEMA.to_json()) == Schema.from_toml(SCHEMA.to_toml()) == SCHEMA
    SCHEMA.check(PEOPLE, owner="a site")
    for column, value, why in (
        ("months", -1.0, "below 0"),
        ("died", "perhaps", "category"),
        ("months", None, None),
    ):
        wrong = PEOPLE.assign(**{column: [value, *PEOPLE[column][1:]]})
        if why is None:
            SCHEMA.check(wrong, owner="a site")
        else:
            with pytest.raises(fc.DataError, match=why):
                SCHEMA.check(wrong, owner="a site")
    with pytest.raises(fc.DataError, match="'died': the table does not have it"):
        SCHEMA.check(PEOPLE.drop(columns="died"), owner="a site")


# The answer.

PREPARATION = Preparation(SCHEMA, dict.fromkeys(["x", "y"], Figures(-3.0, 9.0)))
CENTERS = np.array([[-0.5, -0.5], [0.5, 0.5]])
FRAME = Frame(np.zeros(2), 2 * PREPARATION.radius)
QUESTION = ProtocolClient.survival.asked(
    PREPARATION, np.array(BINS), CENTERS, model="k-means", frame=FRAME
)


def client_of(table):
    made = ProtocolClient(
        fc.ClientData(table, raw=True), name="a", context=Context(0, 0, {}, RecordDict(), {})
    )
    made.remember("schema", [as_bytes(SCHEMA.to_json())])
    made.prepare(preparation_as_bytes(PREPARATION))
    return made


def counted(table, labels, n_clusters=2):
    """Return the places of rows one by one, with plain comparisons."""
    found = np.zeros((n_clusters, 2 * len(BINS) + 2))
    for months, died, label in zip(table["months"], table["died"], labels, strict=True):
        place = next((index for index, end in enumerate(BINS) if months <= end), len(BINS))
        if math.isnan(months) or not isinstance(died, str):
            found[label, -1] += 1
        elif place == len(BINS):
            found[label, -2] += 1
        else:
            found[label, place + len(BINS) * (died == "alive")] += 1
    return found


def test_rows_without_an_event_are_missing_whatever_their_time_and_said_to_be():
    """A third of the rows have no event, early and late times alike; the curve is that of the others."""
    months = np.tile([5.0, 15.0, 40.0, 70.0], 90)
    died = np.tile(["dead", "alive", "dead", "alive"], 90).astype(object)
    table = pd.DataFrame({"months": months, "died": died})
    table.loc[table.index % 12 >= 8, "died"] = None
    known = counted(table.dropna(), np.zeros(240, dtype=int), 1)
    sums = counted(table, np.zeros(360, dtype=int), 1)
    assert sums[0, -1] == 120
    assert np.array_equal(sums[0, :-1], known[0, :-1])
    survival, without = Survival(np.array(BINS), sums), Survival(np.array(BINS), known)
    assert "33% of its rows have no time or no event" in str(survival)
    assert np.array_equal(survival.tables.survival, without.tables.survival, equal_nan=True)
    assert "no event" not in str(without)
    (line,) = survival.missing
    assert line in survival_on_page(survival)["others"]


def test_missing_rows_are_not_told_if_few_others_would_follow_from_them():
    months = pd.Series([5.0] * 9 + [np.nan] * 90)
    table = pd.DataFrame({"months": months, "died": "dead"})
    survival = Survival(np.array(BINS), counted(table, np.zeros(99, dtype=int), 1))
    assert survival.missing == []
    missing = survival.frame[survival.frame["what"] == "missing"]
    assert missing["note"].tolist() == ["few"]
    assert replace(survival, floor=9).missing != []


def test_each_row_is_counted_in_one_place_in_any_batches(monkeypatch):
    client = client_of(PEOPLE)
    (whole,) = QUESTION.asks.reply_of(client, QUESTION)
    labels = (PEOPLE["x"] > 3).astype(int)
    assert np.array_equal(whole.values, counted(PEOPLE, labels))
    assert whole.values.sum() == len(PEOPLE)
    monkeypatch.setattr(by_row, "BATCH_ENTRIES", 62)
    (in_batches,) = QUESTION.asks.reply_of(client, QUESTION)
    assert np.array_equal(whole.integers, in_batches.integers)
    (bound,) = QUESTION.moved()
    assert (bound.l1, bound.l2) == (1.0, 1.0)


def test_bins_other_than_the_schemas_are_refused():
    client = client_of(PEOPLE)
    for ends in (
        [5.0, 11.0, 60.0],
        [5.0, 10.0],
        [60.0, 5.0],
        [],
        [[5.0, 60.0]],
        [5.0, np.nan, 60.0],
    ):
        asked = replace(QUESTION, arrays=(QUESTION.arrays[0], np.array(ends), QUESTION.arrays[2]))
        with pytest.raises(fc.DataError, match=r"other bins|must ascend"):
            QUESTION.asks.reply_of(client, asked)
    other = changed(months={"bins": [7.0]})
    described = Preparation(Schema.of({"columns": other}), PREPARATION.figures)
    with pytest.raises(fc.DataError, match="schema"):
        QUESTION.asks.reply_of(
            client,
            replace(QUESTION, arrays=(preparation_as_bytes(described), *QUESTION.arrays[1:])),
        )


def test_rows_after_the_subjects_time_zero_count_nowhere():
    columns = COLUMNS | {"at": {"kind": "number", "gaps": "category"}}
    columns["months"] = columns["months"] | {"time_zero": "subject", "row_time": "at"}
    schema = Schema.of({"columns": columns})
    assert list(schema.used) == ["x", "y"]
    table = PEOPLE.assign(at=np.resize([-2.0, 0.0, 1.0, np.nan], len(PEOPLE)))
    values = list(schema.values(table, owner="a site", wanted=schema.of_outcome))
    labels = np.zeros(len(table), dtype=np.intp)
    found = time_sums(values, np.array(BINS), labels, 1).array.values
    assert np.array_equal(found, counted(table[table["at"] <= 0], labels[table["at"] <= 0], 1))


# Runs.


def test_without_epsilon_a_run_has_the_life_tables_of_the_pooled_rows(tmp_path):
    result = fc.simulate(fc.PrivateKMeans(2, epsilon=None), SITES, schema=SCHEMA, seed=0)
    labels, pooled = np.concatenate(result.labels_of_clients), pd.concat(SITES.values())
    sums = counted(pooled, labels)
    assert np.array_equal(result.survival.sums, sums)
    n_bins = len(BINS)
    exact = LifeTables(np.array(BINS), sums[:, :n_bins], sums[:, n_bins:-2], sums[:, -2], fewest=10)
    assert np.array_equal(result.survival.tables.survival, exact.survival, equal_nan=True)
    new = PEOPLE[["y", "x"]]
    # Nobody knows yet what becomes of them.
    assert np.array_equal(result.model.predict(new), result.model.predict(PEOPLE))
    read = fc.load(result.save(tmp_path / "run"))
    assert (
        str(read.survival)
        == str(result.survival)
        == (tmp_path / "run/survival.txt").read_text(encoding="utf-8")[:-1]
    )
    written = pd.read_csv(tmp_path / "run/survival.csv", keep_default_na=False)
    assert set(written["what"]) == {"survival", "at risk", "median", "restricted mean", "missing"}


def test_noise_covers_the_counts_within_the_epsilon_and_half_of_the_clusters_is_told():
    strategy = fc.PrivateKMeans(2, epsilon=4.0)
    result = fc.simulate(strategy, SITES, schema=SCHEMA, describe=True, seed=0)
    assert result.privacy.covers_everything
    assert result.privacy.epsilon <= 4.0
    (message,) = [
        one for one in result.privacy.messages if one.release and one.release.share == "survival"
    ]
    assert message.release.sensitivity == pytest.approx(1.0)
    assert result.survival.deviation == pytest.approx(message.release.noise_multiplier, rel=0.01)
    sooner = int(result.model.predict(pd.DataFrame({"x": [6.0], "y": [6.0]}))[0])
    low, high = (result.survival.tables.medians[one] for one in (sooner, 1 - sooner))
    assert low.low <= 20 * math.log(2) <= low.high < high.high
    assert result.survival.log_rank.p_value < 1e-3
    assert f"Half of cluster {sooner} had died after" in str(result.survival)


def test_counting_times_costs_about_a_fifth_and_only_if_the_schema_has_one():
    without = fc.with_schema(
        fc.PrivateKMeans(2, epsilon=1.0), {"columns": {"x": COLUMNS["x"], "y": COLUMNS["y"]}}
    )
    strategy = fc.with_schema(fc.PrivateKMeans(2, epsilon=1.0), SCHEMA)
    assert "survival" not in without.all_parts()
    assert strategy.n_protocol_rounds == without.n_protocol_rounds
    multipliers, shares = strategy.noise_multipliers(), strategy.shares()
    costs = {name: shares[name].count / multipliers[name] ** 2 for name in multipliers}
    assert 0.19 < costs["survival"] / sum(costs.values()) < 0.22
    of_clients = fc.with_schema(fc.PrivateKMeans(2, epsilon=1.0, privacy_unit="client"), SCHEMA)
    assert "survival" not in of_clients.all_parts()


def test_secure_sums_and_rows_in_files_give_the_same_counts(tmp_path):
    strategy = fc.FederatedKMeans(2, random_state=0)
    plain = fc.simulate(strategy, SITES, schema=SCHEMA, seed=0)
    masked = fc.simulate(strategy, SITES, schema=SCHEMA, seed=0, secure=True)
    assert np.array_equal(plain.survival.sums, masked.survival.sums)
    files = {}
    for name, table in SITES.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        files[name] = read_batches(tmp_path / f"{name}.csv").rows
    from_files = fc.simulate(strategy, files, schema=SCHEMA, seed=0)
    assert np.array_equal(plain.survival.sums, from_files.survival.sums)


def test_a_person_with_many_rows_counts_once(tmp_path):
    twice = {
        name: pd.concat([table.assign(person=np.arange(len(table)))] * 2, ignore_index=True)
        for name, table in SITES.items()
    }
    strategy = fc.PrivateKMeans(2, epsilon=8.0, privacy_unit="subject")
    result = fc.simulate(
        strategy, twice, schema=SCHEMA, subject_column="person", seed=0, describe=True
    )
    assert result.privacy.covers_everything
    result.save(tmp_path / "saved")
    result.page(tmp_path / "saved" / "page.html")
    for name in ("clusters.txt", "clusters.csv", "survival.txt", "survival.csv", "table-one.md"):
        said = (tmp_path / "saved" / name).read_text()
        assert not re.search(r"\brows\b", said), name
        assert name == "survival.csv" or "persons" in said
    assert "persons at risk after" in (tmp_path / "saved" / "page.html").read_text()
    assert fc.load(tmp_path / "saved").survival.counted == "persons"
    error = 5 * result.survival.deviation * math.sqrt(result.survival.sums.size)
    assert result.survival.sums.sum() == pytest.approx(len(PEOPLE), abs=error)
    assert error < len(PEOPLE) / 4


def test_where_nothing_can_be_counted_the_result_says_why():
    noisy, exact = (
        fc.simulate(fc.DPFedC(2, epsilon=epsilon, n_rounds=2), SITES, schema=SCHEMA, seed=0)
        for epsilon in (10.0, None)
    )
    assert noisy.survival is None
    assert "no-survival" in [doubt.code for doubt in noisy.doubts]
    assert exact.survival.sums.sum() == len(PEOPLE)
    assert "no-survival" not in [doubt.code for doubt in exact.doubts]


# Words, numbers and pictures for people.


def test_page_and_picture_show_each_curve_and_the_rows_at_risk(tmp_path):
    sums = np.full((2, 2 * len(BINS) + 2), 30.0)
    said = survival_of(SCHEMA, np.array(BINS), sums, 4.0)
    shown = survival_on_page(said)
    assert [len(one["line"].split()) for one in shown["curves"]] == [len(BINS) + 1] * 2
    assert all(len(one["band"].split()) == 2 * (len(BINS) + 1) for one in shown["curves"])
    assert shown["curves"][0]["rows"][0] == "510"
    assert [tick["text"] for tick in shown["times"]][::6] == ["0", "60"]
    pytest.importorskip("matplotlib")
    figure = survival_figure(said, tmp_path / "survival.png")
    assert (tmp_path / "survival.png").stat().st_size > 10_000
    assert len(figure.axes[0].lines) == 3


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([400, 300, 100, 50, 20, 20, 10, 10], "had died after 5 to 10 months"),
        ([700, 100, 50, 20, 20, 10, 10, 10], "had died within 5 months"),
        ([20, 20, 20, 20, 20, 20, 20, 20], "not reached; after 60 months, 1"),
        ([50, 50, 50, 50, 80, 80, 70, 60], "had died after 50 months at the earliest"),
    ],
)
def test_words_say_when_half_had_the_event(events, words):
    sums = np.zeros((1, 2 * len(BINS) + 2))
    sums[0, :8], sums[0, -2] = events, 1000 - sum(events)
    assert words in survival_of(SCHEMA, np.array(BINS), sums, 0.0).sentence(0)


def test_no_number_of_few_rows_is_printed():
    sums = np.zeros((3, 2 * len(BINS) + 2))
    sums[0, :8], sums[0, -2:] = [40, 3, 0, 30, 4, 5, 9, 20], [80, 4]
    sums[1, :8], sums[1, 8:16] = 3.0, 4.0
    sums[2, 0], sums[2, -1] = 4.0, 300.0
    for deviation in (0.0, 12.0):
        said = survival_of(SCHEMA, np.array(BINS), sums, deviation)
        fewest = max(10.0, 3 * deviation)
        frame = said.frame
        numbers = frame[frame["what"].isin(["at risk", "missing"])]["value"].dropna()
        assert (numbers >= fewest).all()
        assert frame[frame["note"] == "few"]["value"].isna().all()
        texts = [
            said.at_risk_as_text(cluster, place)
            for cluster in range(3)
            for place in range(len(BINS) + 1)
        ]
        assert all(
            text.startswith("<") or float(text.replace(",", "")) >= fewest - 1
            for text in texts
            if text
        )
        assert "Cluster 2: too few rows for a curve." in str(said)
    exact = survival_of(SCHEMA, np.array(BINS), sums, 0.0)
    # From one end that is shown to the next, nobody or at least ten rows have died.
    died = np.add.reduceat(sums[0, :8], np.append(0, exact.shown(0)[:-1] + 1))
    assert set(died >= 10) | set(died == 0) == {True, False}
    assert all(one == 0 or one >= 10 for one in died[: len(exact.shown(0))])


def test_what_is_printed_of_exact_counts_follows_from_counts_that_are_not_small():
    bins = np.array([5.0, 10.0, 15.0, 20.0])
    events, lost = [3.0, 9.0, 20.0, 12.0], [7.0, 4.0, 11.0, 9.0]
    said = Survival(bins, np.array([[*events, *lost, 40.0, 3.0]]))
    # The same numbers of rows lie between the ends that are shown.
    others = [
        [[5.0, 7.0, 20.0, 12.0], [3.0, 8.0, 11.0, 9.0], 40.0, 3.0],
        [events, [4.0, 4.0, 11.0, 9.0], 40.0, 6.0],  # other missing rows
        [[3.0, 9.0, 20.0, 15.0], [7.0, 4.0, 11.0, 8.0], 38.0, 3.0],  # after the last end
    ]
    assert bins[said.shown(0)].tolist() == [10.0, 15.0]
    for died, censored, beyond, missing in others:
        other = Survival(bins, np.array([[*died, *censored, beyond, missing]]))
        pd.testing.assert_frame_equal(other.frame, said.frame)
        assert str(other) == str(said)
        assert survival_on_page(other) == survival_on_page(said)


@pytest.mark.parametrize("seed", range(6))
def test_the_test_of_exact_counts_follows_from_the_life_tables_that_are_printed(seed):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.uniform(0.5, 40.0, size=(3, 1)), size=(3, 2 * len(BINS) + 2)).astype(
        float
    )
    said = Survival(np.array(BINS), counts)
    for _ in range(5):
        # In each cluster, other counts have the same sums between its ends.
        others = counts.copy()
        for cluster in said.compared:
            starts = np.append(0, said.shown(cluster)[:-1] + 1)
            for first, last in zip(starts, said.shown(cluster), strict=True):
                for column in (0, len(BINS)):
                    place = slice(column + first, column + last + 1)
                    others[cluster, place] = rng.multinomial(
                        int(counts[cluster, place].sum()),
                        [1 / (last - first + 1)] * (last - first + 1),
                    )
        other = Survival(np.array(BINS), others)
        if all(np.array_equal(other.shown(cluster), said.shown(cluster)) for cluster in range(3)):
            assert other.difference == said.difference
            assert other.log_rank == said.log_rank
    assert all(set(said._in_common) <= set(said.shown(cluster)) for cluster in said.compared)


def test_a_cluster_without_a_curve_is_left_out_of_the_test_and_of_the_means():
    sums = np.zeros((3, 2 * len(BINS) + 2))
    sums[0, :8], sums[0, -2] = [40, 30, 20, 30, 14, 15, 19, 20], 80
    sums[1, :8], sums[1, -2] = 12.0, 400
    sums[2, 0] = 4.0
    said = Survival(np.array(BINS), sums)
    assert (
        "The curves differ between the clusters (log-rank test, p < 0.0001; without cluster 2)."
        in str(said)
    )
    assert (
        said.log_rank
        == LifeTables(np.array(BINS), sums[:2, :8], sums[:2, 8:16], sums[:2, -2]).log_rank()
    )
    assert "cluster 1: " in said.means[1]
    assert len(said.means) == 2
    assert said.shared_time == 60.0


@pytest.mark.parametrize("what", ["missing", "after time 0"])
def test_the_size_of_a_cluster_less_its_rows_at_risk_is_not_a_small_number(what, tmp_path):
    columns = COLUMNS | {"at": {"kind": "number", "gaps": "category"}}
    columns["months"] = columns["months"] | {"time_zero": "subject", "row_time": "at"}
    schema = Schema.of({"columns": columns})
    table = PEOPLE.dropna().assign(at=0.0).reset_index(drop=True)
    table.loc[:9, "months" if what == "missing" else "at"] = np.nan if what == "missing" else 2.0
    sites = {"a": table[:300], "b": table[300:]}
    result = fc.simulate(
        "federated-kmeans", sites, n_clusters=2, schema=schema, describe=True, seed=0
    )
    result.save(tmp_path)
    sizes, told = pd.read_csv(tmp_path / "clusters.csv"), pd.read_csv(tmp_path / "survival.csv")
    sizes = sizes[sizes["what"] == "rows"].set_index("cluster")["value"]
    at_risk = told[(told["what"] == "at risk") & (told["time"] == 0)].set_index("cluster")["value"]
    assert (sizes - at_risk).tolist() == [0.0, 0.0]


def test_a_survival_reads_back_what_it_writes_and_nothing_else():
    said = Survival(np.array([1.0, 2.0]), np.full((2, 6), 40.0), 2.0, "years", "had left")
    assert str(Survival.from_dict(json.loads(json.dumps(said.to_dict())))) == str(said)
    with pytest.raises(ValueError, match="as many"):
        Survival.from_dict(said.to_dict() | {"ends": [1.0]})

"""A site's sample: which rows it has depends on each row alone, however alike two rows are."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hostile import NO_LIMIT, Server, audit, gaussian, plan, site

from flower_fedclust.engine import ClientData
from flower_fedclust.privacy.accounting import Share
from flower_fedclust.site.app import Site
from flower_fedclust.site.sample import sampled

KEY = bytes(range(32))
N_ROWS, MOST = 2000, 200
ENTRIES = np.random.default_rng(1).normal(size=(N_ROWS, 2))


def sample_of(ids, entries, labels=None):
    """The rows of a sample, each with its id and its class."""
    data = ClientData(entries, labels, row_ids=ids)
    found = sampled(data, MOST, KEY)
    classes = np.zeros(MOST) if found.labels is None else found.labels
    kept = found.ids if ids is not None else np.zeros(MOST)
    return Counter(
        zip(kept.tolist(), map(bytes, np.asarray(found.rows)), classes.tolist(), strict=True)
    )


def changes(before, after):
    return (before - after).total(), (after - before).total()


IDS = {
    "integers beyond 2^53": [2**62 + index for index in range(N_ROWS + 1)],
    "unsigned": np.arange(2**63, 2**63 + N_ROWS + 1, dtype=np.uint64),
    "of any length": [2**80 + index for index in range(N_ROWS + 1)],
    "texts that read as one number": [f"{2**62}.{index}" for index in range(N_ROWS + 1)],
    "all equal": ["one"] * (N_ROWS + 1),
    "a few": [f"person {index % 7}" for index in range(N_ROWS + 1)],
}


@pytest.mark.parametrize("what", [*IDS, "no ids"])
def test_a_row_more_or_another_changes_one_row_of_the_sample_however_alike_ids_are(what):
    """With ids 2^62 + i, one row more had changed 41 to 53 of 200 rows: as floats, these ids are one."""
    ids = None if what == "no ids" else np.asarray(IDS[what], dtype=object)
    rng = np.random.default_rng(2)
    more = np.concatenate([rng.normal(size=(1, 2)), ENTRIES])
    seen = set()
    whole = sample_of(ids, more)
    order = rng.permutation(N_ROWS + 1)
    assert sample_of(None if ids is None else ids[order], more[order]) == whole
    for left_out in range(0, N_ROWS, 397):
        kept = np.delete(np.arange(N_ROWS + 1), left_out)
        seen.add(changes(whole, sample_of(None if ids is None else ids[kept], more[kept])))
        other = more.copy()
        other[left_out] = rng.normal(size=2)
        lost, gained = changes(whole, sample_of(ids, other))
        assert lost == gained <= 1
    assert seen <= {(0, 0), (1, 1)}
    assert len(sample_of(ids, more)) > MOST / 2


DAYS = pd.Series(pd.date_range("2000-01-01", periods=N_ROWS))
YES, TIME = np.arange(N_ROWS) % 2 == 0, pd.Timestamp("2001-01-01 03:04:05.6")


@pytest.mark.parametrize(
    ("column", "last"),
    [
        (np.arange(N_ROWS), "x"),
        (np.arange(N_ROWS), 2**70),
        (np.arange(N_ROWS), None),
        (np.arange(N_ROWS) * 1.0, 2.5),
        ([f"{index}.0" for index in range(N_ROWS)], "x"),
        (DAYS, TIME),
        (DAYS, "no day"),
        (DAYS, pd.NaT),
        (DAYS - DAYS[0], pd.Timedelta("3h")),
        (YES, "maybe"),
        (YES, None),
        (ENTRIES[:, 0], "n/a"),
    ],
)
@pytest.mark.parametrize("are_ids", [True, False])
def test_one_row_that_changes_the_type_of_a_column_changes_one_row_of_the_sample(
    column, last, are_ids
):
    """One id "x" beside whole numbers had made texts of all ids, and drawn half of the sample anew."""
    if are_ids and (pd.isna(last) or column is YES):
        return
    before = pd.DataFrame({"row": np.arange(N_ROWS), "column": column})
    after = pd.DataFrame(
        {"row": np.arange(N_ROWS + 1), "column": pd.Series([*before["column"], last])}
    )

    def rows(table):
        given = {"row_ids": table["column"]} if are_ids else {}
        data = ClientData(table[["row"]] if are_ids else table, raw=True, **given)
        return set(sampled(data, MOST, KEY).table["row"])

    assert len(rows(before) - rows(after)) <= 1


def test_entries_and_classes_that_are_one_float_are_told_apart():
    """Without ids, rows are told apart by entries: also by integers and texts of which floats know nothing."""
    table = pd.DataFrame(
        {
            "code": np.arange(2**60, 2**60 + N_ROWS),
            "text": ["1", "1.0", "01", "1e0"] * (N_ROWS // 4),
        }
    )
    labels = [f"class {index % 3}" for index in range(N_ROWS)]

    def codes(order):
        data = ClientData(
            table.iloc[order], np.array(labels)[order], raw=True, row_ids=["same"] * len(order)
        )
        return set(sampled(data, MOST, KEY).table["code"])

    whole = codes(np.arange(N_ROWS))
    for left_out in range(0, N_ROWS, 397):
        kept = np.random.default_rng(left_out).permutation(np.delete(np.arange(N_ROWS), left_out))
        assert len(whole - codes(kept)) <= 1


def test_a_sample_is_random_and_as_large_as_the_policy_says(tmp_path):
    settings = site(tmp_path, rows=ENTRIES, sample=MOST).settings
    ids = (
        Site(settings, lambda: ClientData(ENTRIES, row_ids=2**62 + np.arange(N_ROWS))).data.ids
        - 2**62
    )
    assert len(ids) == MOST
    halves = np.histogram(ids, bins=4, range=(0, N_ROWS))[0]
    assert (abs(halves - MOST / 4) < 5 * np.sqrt(MOST * 3 / 16)).all()


@pytest.mark.parametrize(("relation", "is_refused"), [("replace", True), ("add-or-remove", False)])
def test_a_site_with_a_sample_takes_no_part_where_places_of_rows_count(
    tmp_path, relation, is_refused
):
    """A row more gives another row of the sample, elsewhere: answers of this relation may depend on rows' places."""
    announced = plan({"row_sum": Share("gaussian", 1.0, 3, relation)})
    rows = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    server = Server(site(tmp_path, rows=rows, sample=MOST, **NO_LIMIT))
    answer = server.ask_sum(
        releases=[gaussian(9.0, share="row_sum", relation=relation)], plan=announced.to_json()
    )
    assert ("failure" in answer.metrics) == is_refused
    assert (
        "a sample other rows change places" in audit(server.site)[-1].get("reason", "")
    ) == is_refused

"""What a row, or a client, moves in what the preparation releases: as declared, and never more."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust.checking import Subject, extreme_rows, far_rows, how_far, neighbor_tables
from flower_fedclust.checking.suite import (
    a_site_can_tell_what_noise_is_worth,
    epsilon_is_spent_and_not_exceeded,
)

#: Every way in which a column asks for figures, on rows whose columns are called by their numbers.
COLUMNS = {
    "0": {"kind": "number"},
    "1": {"kind": "number", "scale": "standard"},
    "2": {"kind": "number", "logarithm": True, "scale": "rank"},
    "3": {"kind": "number", "bounds": [-1, 1], "scale": "robust"},
}

# With so large an epsilon that few rows tell something; what a row moves does not depend on it.
MANY = [np.random.default_rng(seed).uniform(-1, 1, (20 + seed, 4)) for seed in range(30)]
STRATEGIES = {
    "a row": fc.PrivateFederatedKMeans(2, n_rounds=1, epsilon=100.0),
    "a client": fc.PrivateKMeans(2, epsilon=400.0, privacy_unit="client"),
    "another row": fc.DPFedC(2, n_rounds=1, epsilon=100.0),
}


@pytest.fixture(
    scope="module",
    params=["a row", pytest.param("a client", marks=pytest.mark.long), "another row"],
)
def subject(request):
    strategy = fc.with_schema(STRATEGIES[request.param], {"columns": COLUMNS})
    return Subject(strategy, MANY if request.param == "a client" else MANY[:3])


def test_worst_neighbors_move_the_histograms_as_far_as_declared_and_no_farther(subject):
    rows, name = subject.rows[0], subject.names[0]
    pairs = [
        replace(pair, only=number)
        for number in (2, 3)
        for hard in (far_rows(rows), extreme_rows(4))
        for pair in neighbor_tables(rows, hard, *subject.neighboring)
    ]
    moved = list(how_far(subject.run, name, pairs))
    assert not any(one.is_too_far for one in moved)
    ours = {
        task: [one.ratio for one in moved if one.task.endswith(task)]
        for task in ("exponents", "histograms")
    }
    assert all(max(ratios) > 0.99 for ratios in ours.values())


OUTCOMES = {
    "0": {"kind": "number", "bounds": [-1, 1]},
    "1": {"kind": "number", "bounds": [-1, 1]},
    "2": {"kind": "time-to-event", "event": "3", "bins": [0.5, 1.0, 1.5, 2.0], "time_zero": "row"},
    "3": {"kind": "binary", "categories": ["0", "1"]},
}


@pytest.mark.parametrize("unit", ["record", "subject"])
def test_a_row_or_a_person_moves_what_is_told_of_clusters_and_times_as_far_as_declared(unit):
    rng = np.random.default_rng(0)
    rows = [
        np.column_stack(
            [rng.uniform(-1, 1, (40, 2)), rng.exponential(1.0, 40), rng.integers(2, size=40)]
        )
        for _ in range(3)
    ]
    strategy = fc.PrivateFederatedKMeans(2, n_rounds=1, epsilon=100.0, privacy_unit=unit)
    subject = Subject(fc.with_schema(strategy, {"columns": OUTCOMES}, describe=True), rows)
    hard = [
        [1.0, 1.0, 0.0, 1.0],
        [-1.0, 1.0, 2.5, 0.0],
        [0.0, 0.0, 0.5, 1.0],
        [5.0, -5.0, 1e6, 0.0],
    ]
    pairs = neighbor_tables(
        rows[0], [("hard", np.array(row)) for row in hard], *subject.neighboring
    )
    moved = list(how_far(subject.run, subject.names[0], pairs))
    assert not any(one.is_too_far for one in moved)
    for task in ("description", "survival"):
        ratios = [one.ratio for one in moved if one.task.endswith(task)]
        assert max(ratios) > (0.99 if task == "survival" else 0.6), task
    epsilon_is_spent_and_not_exceeded(subject)


def test_the_whole_run_is_covered_and_a_site_can_tell(subject):
    assert {"preparation"} <= {release.share for _, _, release in subject.releases}
    epsilon_is_spent_and_not_exceeded(subject)
    a_site_can_tell_what_noise_is_worth(subject)


def test_a_budget_has_a_part_of_that_name():
    schema = {"columns": COLUMNS}
    given = fc.with_schema(
        fc.PrivateKMeans(2, budget={"preparation": 0.3}), schema
    ).noise_multipliers()
    default = fc.with_schema(fc.PrivateKMeans(2), schema).noise_multipliers()
    assert given["preparation"] < 0.5 * default["preparation"]
    assert given["cells"] > default["cells"]


def test_columns_whose_bounds_cannot_be_found_are_left_out_together():
    sentence = "columns '0', '1', '2': no range that holds most of their values stands out"
    strategy = fc.with_schema(fc.PrivateKMeans(2, epsilon=0.5), {"columns": COLUMNS})
    result = fc.simulate(strategy, MANY[:2], seed=0)
    assert list(result.model.preparation.schema.used) == ["3"]
    (doubt,) = [one for one in result.doubts if one.code == "column-left-out"]
    assert sentence in doubt.sentence
    assert result.model.predict(pd.DataFrame(MANY[0], columns=list("0123"))).shape == (
        len(MANY[0]),
    )
    lost = {name: column for name, column in COLUMNS.items() if name != "3"}
    with pytest.raises(fc.DataError, match=sentence):
        fc.simulate(
            fc.with_schema(strategy, {"columns": {**lost, "3": {"kind": "ignored"}}}),
            MANY[:2],
            seed=0,
        )

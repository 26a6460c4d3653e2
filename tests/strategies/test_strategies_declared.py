"""Every method moves by what it declares at most, wherever a row comes or goes: a site's own accounting rests on it."""

import math
import warnings
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from test_strategies_every import PUBLIC, cases
from tested import PAPERS, entries

import flower_fedclust as fc
from flower_fedclust.checking import Subject, far_rows, shadow_answers
from flower_fedclust.engine.rounds import Askable
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.registry import client_types

COLUMNS = {"0": {"kind": "number"}, "1": {"kind": "number", "scale": "rank"}}
COLUMNS |= {
    "2": {"kind": "number", "bounds": [-1, 1], "scale": "robust"},
    "3": {"kind": "number", "bounds": [-1, 1]},
}

#: Without noise, so that few rows tell something.
TABLES = {
    "histograms and description": fc.with_schema(
        fc.PrivateFederatedKMeans(2, epsilon=1000.0, n_rounds=1),
        {"columns": COLUMNS},
        describe=True,
    ),
    "their means": fc.with_schema(
        fc.PrivateDensity(2, epsilon=1000.0, privacy_unit="client"),
        {"columns": COLUMNS},
        describe=True,
    ),
}
WIDE = np.random.default_rng(5).uniform(-0.2, 0.2, (3, 40, 22))

#: What no case of the registry asks for.
MORE = {
    "as many cells as clusters": fc.SPPFGCSums(
        3, epsilon=8.0, max_l1_norm=2.0, n_prototypes=3, n_lloyd_rounds=1
    ),
    "more cells than clusters": fc.SPPFGCSums(
        2, epsilon=1000.0, max_l1_norm=2.0, n_prototypes=8, n_lloyd_rounds=1
    ),
    "sums of rows": fc.FedSCSums(2, n_rounds=1, n_atoms=5),
    "many columns": fc.FedTSNESums(2, epsilon=8.0, max_norm=1.0, n_landmarks=6, perplexity=2.0),
}
if PAPERS:
    MORE = {
        "a margin in a smaller ball": fc.FedDPKMeansProofs(
            2, epsilon=8.0, server_data=PUBLIC, margin=0.9
        ),
        "a margin, of clients": fc.FedDPKMeansProofs(
            2,
            epsilon=8.0,
            server_data=PUBLIC,
            margin=0.9,
            privacy_unit="client",
            simplify_server_data=False,
            reduce_diameter=False,
        ),
        "votes in directions": fc.PEMeans(3, epsilon=8.0, max_norm=1.0, n_rounds=1, n_directions=2),
        "centers that the server merges": fc.PrivateFFCM(
            2, epsilon=8.0, max_norm=1.0, n_rounds=1, merge="k-means"
        ),
    }
MANY = [np.random.default_rng(seed).uniform(-1, 1, (20 + seed, 4)) for seed in range(30)]


@lru_cache
def all_cases():
    """Return one case for each class and unit, as the place of the noise changes no bound, and those above."""
    found = {"dp-fedc-theorem-2": cases()["dp-fedc-theorem-2"]} | MORE if PAPERS else TABLES | MORE
    seen = set()
    for name, made in cases().items():
        kind = (type(made), made.privacy_unit, getattr(made, "perturb", None))
        if made.epsilon is not None and kind not in seen:
            seen.add(kind)
            found[name] = made
    return found


def of_persons(case):
    """Whether the unit is a person, who asks what a record asks: `make check` runs these.

    `make papers` runs what it has once, and leaves nothing for later.
    """
    return case.endswith(" server-subject") and not PAPERS


@lru_cache
def subject_of(case):
    tables = MANY if case in TABLES else WIDE if case == "many columns" else None
    return Subject(all_cases()[case], tables)


def tables_like(rows):
    """Yield tables in which one row more or less stands at a place where others have to make room."""
    rng = np.random.default_rng(1)
    for index, (what, row) in enumerate(far_rows(rows)):
        table = np.vstack([row, rows])
        yield (
            (f"{what} at the top", table)
            if index % 2
            else (f"{what} among other rows", rng.permutation(table))
        )
    yield "the first row removed", rows[1:]
    yield "a row removed, and the order reversed", rows[:-1][::-1]
    yield "the same rows in another order", rng.permutation(rows)


def norms(one, other, *, triangle):
    """Return the L1 norm and the square of the Euclidean norm of the difference, of integers exactly."""
    unit = Fraction(2) ** (one.exponent if isinstance(one, GridArray) else 0)
    assert not isinstance(other, GridArray) or Fraction(2) ** other.exponent == unit
    first, second = (
        np.ravel(array.integers if isinstance(array, GridArray) else array)
        for array in (one, other)
    )
    assert first.dtype == second.dtype == np.int64
    moved = [a - b for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    weights = np.ones(len(moved), dtype=int)
    if triangle:
        weights[is_off_diagonal((math.isqrt(8 * len(moved) + 1) - 1) // 2)] = 2
    squares = sum(weight * entry**2 for weight, entry in zip(weights.tolist(), moved, strict=True))
    return sum(map(abs, moved)) * unit, squares * unit**2


def check_bound(declared, one, other, what):
    l1, squares = norms(one, other, triangle=declared.triangle)
    if declared.l1 < math.inf:
        assert l1 <= Fraction(declared.l1) * (1 + Fraction(1, 2**40)), what
    assert squares <= Fraction(declared.l2) ** 2 * (1 + Fraction(1, 2**40)), what


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.long] if of_persons(case) else [])
        for case in all_cases()
    ],
)
def test_a_row_at_any_place_moves_an_answer_no_farther_than_declared(case):
    subject = subject_of(case)
    site, name, rows = subject.run.sites[0].new_client(), subject.names[0], subject.rows[0]
    declared = {}
    for number, round_ in subject.run.rounds.items():
        moved = site.moved(round_.rows, round_.question_for(None))
        sends = round_.answer.sends
        bounded = [
            i
            for i, sent in enumerate(sends)
            if moved and moved[i].l2 < math.inf and sent.per != "row"
        ]
        if bounded:
            declared[number] = (round_.task, {index: moved[index] for index in bounded})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        true = shadow_answers(subject.run, name, rows)
        for what, others in tables_like(rows):
            answers = shadow_answers(subject.run, name, others)
            for number, (task, bounds) in declared.items():
                if true.get(number) is None:
                    continue  # this client was not asked
                for index, bound in bounds.items():
                    check_bound(
                        bound, true[number][index], answers[number][index], f"{task}: {what}"
                    )


def test_every_method_that_declares_a_bound_is_among_the_cases():
    seen = set()
    for case in all_cases():
        if of_persons(case):
            continue
        run = subject_of(case).run
        for round_ in run.rounds.values():
            seen.add(getattr(run.strategy.client_type, round_.task))
    methods = {
        found
        for kind in client_types(entries())
        for name in dir(kind)
        if isinstance(found := getattr(kind, name), Askable)
        and getattr(found, "moved", None) is not None
        # An array with an entry for every row shows how many there are: no noise hides a row that comes or goes.
        and any(sent.per != "row" for sent in found.answer.sends)
    }
    if PAPERS:  # the core's own methods are among the cases of the core
        methods = {
            method
            for method in methods
            if method.function.__module__.startswith("flower_fedclust_papers")
        }
        assert methods
    assert not {method.function.__qualname__ for method in methods - seen}

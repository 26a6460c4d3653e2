"""Every term: what one row adds is within the bound that the term states, exactly, whatever the row and the message."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from flower_fedclust.exact import kernels, terms
from flower_fedclust.exact.rows import Frame, Rows
from flower_fedclust.exact.stacks import NotStackedError, Stack, stacked
from flower_fedclust.exact.sums import directions_onto_grid, is_off_diagonal, random_directions
from flower_fedclust.numerics.dictionary import code_map, factor_map

RNG = np.random.default_rng(0)
N_COLUMNS, RADIUS, FAR = 3, 5.0, np.finfo(float).max
ALLOWANCE = 1 + Fraction(1, 2**50)  # of a bound that is a float, as in every release
POINTS = RNG.normal(size=(6, N_COLUMNS)) * 2.0
FRAMES = {norm: Frame(np.full(N_COLUMNS, 0.3), RADIUS, norm=norm) for norm in (1, 2)}
#: Sets of points that are compared.
SOLUTIONS = np.stack([POINTS[:2], POINTS[2:4], POINTS[4:]])
#: What a server may send in place of factors: any matrix.
MATRICES = {
    "factors": factor_map(POINTS, 2.0, 0.01),
    "huge": 1e12 * RNG.normal(size=(6, 6)),
    "steep": np.diag(10.0 ** np.arange(-9, 9, 3)),
}


def table():
    """Rows of all lengths: ordinary, huge, denormal, along the columns, on the points, and not finite."""
    scales = 10.0 ** RNG.choice([-300, -8, -3, 0, 1, 2, 8, 150], size=(120, 1))
    odd = [np.full(N_COLUMNS, value) for value in (0.0, 5e-324, FAR, -FAR, np.inf, np.nan)]
    axes = [
        sign * scale * row
        for row in np.eye(N_COLUMNS)
        for sign in (1, -1)
        for scale in (RADIUS, 1e9, FAR)
    ]
    between = [0.5 * (POINTS[0] + POINTS[1]), *POINTS, *(POINTS + 1e-9), np.full(N_COLUMNS, 0.3)]
    return np.vstack([RNG.normal(size=(120, N_COLUMNS)) * scales, odd, axes, between])


TABLE = table()


def labels_of(rows):
    return rows.nearest(POINTS[:4])


def weights_of(rows):
    """As authors get them wrong: above 1, below 0, infinite, not a number, and so large that their sum overflows."""
    weights = np.abs(rows.values @ RNG_WEIGHTS) + 0.01
    kinds = rows.integers[:, 0].astype(np.int64) % 7
    for kind, value in enumerate((np.nan, np.inf, -np.inf, 1e308, -1.0)):
        weights[kinds == kind, kind % 4] = value
    weights[kinds == 3] = 1e308
    return weights


RNG_WEIGHTS = RNG.normal(size=(N_COLUMNS, 4))


def vectors_of(rows):
    """Vectors of shape (2, 3), some far longer than the bound, some not finite."""
    values = rows.values[:, None, :] * np.array([1.0, -1e6])[:, None]
    kinds = rows.integers[:, 0].astype(np.int64) % 5
    for kind, value in enumerate((np.nan, np.inf, -1e308)):
        values[kinds == kind, 0, kind] = value
    return values


TERMS = {
    "rows at places": lambda rows: terms.at(labels_of(rows), 4, rows),
    "counts at places": lambda rows: terms.at(labels_of(rows), 4),
    "labels out of range": lambda rows: terms.at(5 * labels_of(rows) - 6, 4, rows),
    "counts out of range": lambda rows: terms.at(5 * labels_of(rows) - 6, 4),
    "total": terms.total,
    "count": terms.count,
    "products": terms.products,
    "squares": terms.squares,
    "weights": lambda rows: terms.weighted(weights_of(rows)),
    "weighted rows": lambda rows: terms.weighted(weights_of(rows), rows),
    "vectors": lambda rows: terms.vectors(vectors_of(rows), 0.7),
    "vectors of one number": lambda rows: terms.vectors(rows.values[:, 0], 0.7),
    "vectors in L1": lambda rows: terms.vectors(vectors_of(rows), 0.7, norm=1),
    "costs": lambda rows: terms.costs_beside_mean(rows, SOLUTIONS, 7.0),
    "costs, points far away": lambda rows: terms.costs_beside_mean(rows, 1e6 * SOLUTIONS, 7.0),
    "costs, one solution": lambda rows: terms.costs_beside_mean(rows, SOLUTIONS[:1], 7.0),
    "joined": lambda rows: terms.joined(
        terms.at(labels_of(rows), 4, rows), terms.at(labels_of(rows), 4), times=-0.3 * RADIUS
    ),
    "offsets": lambda rows: terms.total(rows.offsets(POINTS, rows.nearest(POINTS), 0.5)),
    "projected": lambda rows: terms.total(
        rows.projected(directions_onto_grid(np.full((N_COLUMNS, 2), 3.0)))
    ),
    "sketched products": lambda rows: terms.sketched_products(rows, 1, 7),
    "sketched products, clipped": lambda rows: terms.sketched_products(rows.clipped(0.1), 2, 7),
    "with a constant": lambda rows: terms.at(labels_of(rows), 4, rows.with_constant(0.3 * RADIUS)),
    "smaller radius": lambda rows: terms.products(rows.clipped(0.1)),
    "larger radius": lambda rows: terms.products(rows.clipped(1e9)),
}
KERNELS = {}
for given, to_factors in MATRICES.items():
    for r in (1e-3, 2.0, 1e3):
        about = f"{given}, bandwidth {r:g}"
        KERNELS[f"factor sum ({about})"] = lambda rows, M=to_factors, r=r: kernels.factor_sum(
            rows, POINTS, r, M
        )
        KERNELS[f"moment ({about})"] = lambda rows, M=to_factors, r=r: kernels.normalized_moment(
            rows, POINTS, r, M, np.array([3.0, -5.0, 0.0, 1e-9, 7.0, 1.0]), -20, 0.37
        )
        KERNELS[f"gradient ({about})"] = lambda rows, M=to_factors, r=r: (
            kernels.dictionary_gradient(rows.clipped(2.0), POINTS, r, M, 4.0, 0.01)
        )
for gamma in (1e-300, 1e-6, 0.02, 0.3, 40.0, 1e12):
    KERNELS[f"attraction (gamma {gamma:g})"] = lambda rows, gamma=gamma: kernels.attraction(
        rows, POINTS, gamma
    )
    KERNELS[f"attraction far away (gamma {gamma:g})"] = lambda rows, gamma=gamma: (
        kernels.attraction(rows, 1e9 * POINTS, gamma)
    )
CASES = [
    (f"{name}, L{norm}", make, FRAMES[norm])
    for name, make in (TERMS | KERNELS).items()
    for norm in (1, 2)
]
every_term = pytest.mark.parametrize(
    ("make", "frame"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)


def norms(integers, term):
    """The L1 norm and the square of the Euclidean norm, of the whole matrix where its triangle is sent: exactly."""
    entries = integers.ravel()
    weights = np.ones(entries.size, dtype=np.int64)
    if term.bound.triangle:
        weights += is_off_diagonal((math.isqrt(8 * entries.size + 1) - 1) // 2)
    absolute, unit = [abs(entry) for entry in entries.tolist()], Fraction(2) ** term.exponent
    squares = sum(
        weight * entry**2 for weight, entry in zip(weights.tolist(), absolute, strict=True)
    )
    return sum(absolute) * unit, squares * unit**2


def stated(bound):
    """Bounds as fractions: in L1 norm, and the squares for a row that is added and for one that is replaced."""
    replaced = 2.0 * bound.l2 if bound.apart is None else bound.apart
    l1 = None if bound.l1 == math.inf else Fraction(bound.l1) * ALLOWANCE
    return l1, (Fraction(bound.l2) * ALLOWANCE) ** 2, (Fraction(replaced) * ALLOWANCE) ** 2


@cache
def of_each_row(make, norm):
    return [make(FRAMES[norm].rows(row[None])) for row in TABLE]


@every_term
def test_no_row_adds_more_than_is_stated(make, frame):
    none = make(frame.rows(TABLE[:0]))
    l1, l2, _ = stated(none.bound)
    total = none.integers
    for term in of_each_row(make, frame.norm):
        of_l1, of_l2 = norms(term.integers, term)
        assert of_l2 <= l2
        assert l1 is None or of_l1 <= l1
        assert np.abs(term.integers).max() <= term.largest
        assert term.n_rows <= 1
        total = total + term.integers
    assert np.array_equal(total, make(frame.rows(TABLE)).integers)


@every_term
def test_no_two_rows_add_what_is_farther_apart_than_is_stated(make, frame):
    added = of_each_row(make, frame.norm)
    _, _, replaced = stated(added[0].bound)
    # The pairs that are farthest apart in floats are looked at exactly.
    weights = np.ones(added[0].integers.size)
    if added[0].bound.triangle:
        weights += is_off_diagonal((math.isqrt(8 * weights.size + 1) - 1) // 2)
    found = np.array([np.sqrt(weights) * term.integers.ravel() for term in added], dtype=float)
    apart = ((found[:, None] - found[None]) ** 2).sum(axis=2)
    for pair in np.argsort(apart, axis=None)[-50:]:
        one, two = (added[index] for index in np.unravel_index(pair, apart.shape))
        assert norms(one.integers - two.integers, one)[1] <= replaced


@every_term
def test_batches_add_up_to_the_same_integers_in_one_form(make, frame):
    together = make(frame.rows(TABLE))
    batches = [make(frame.rows(TABLE[start : start + 7])) for start in range(0, len(TABLE), 7)]
    assert {batch.form for batch in batches} == {together.form}
    assert np.array_equal(sum(batch.integers for batch in batches), together.integers)
    assert together.integers.dtype == np.int64


@every_term
def test_order_of_the_rows_is_no_matter(make, frame):
    order = RNG.permutation(len(TABLE))
    assert np.array_equal(make(frame.rows(TABLE[order])).integers, make(frame.rows(TABLE)).integers)


@every_term
def test_no_rows_add_zeros_in_the_same_form(make, frame):
    none = make(frame.rows(TABLE[:0]))
    assert none.form == make(frame.rows(TABLE)).form
    assert not none.integers.any()
    assert none.n_rows == 0


#: Rows, or a message, with which a bound is reached; the kernel's bounds are those of lemmas.
REACHED = {
    "rows at places": np.eye(N_COLUMNS)[:1] * 1e9,
    "counts at places": POINTS[:1],
    "total": np.eye(N_COLUMNS)[:1] * 1e9,
    "count": POINTS[:1],
    "products": np.eye(N_COLUMNS)[:1] * 1e9,
    "squares": np.eye(N_COLUMNS)[:1] * 1e9,
    "costs": np.eye(N_COLUMNS)[:1] * 1e9,
    "joined": np.eye(N_COLUMNS)[:1] * 1e9,
    "with a constant": np.eye(N_COLUMNS)[:1] * 1e9,
}


@pytest.mark.parametrize("name", REACHED)
def test_bounds_are_no_larger_than_they_have_to_be(name):
    term = TERMS[name](Frame(np.zeros(N_COLUMNS), RADIUS).rows(REACHED[name]))
    # Of a row and a count in one array the norms are added up, which is more than the norm of both.
    least = 0.7 if name == "joined" else 1 - 1e-4
    assert math.sqrt(norms(term.integers, term)[1]) >= least * term.bound.l2


def test_costs_are_those_of_a_slow_loop():
    rows = Frame(np.zeros(N_COLUMNS), RADIUS).rows(POINTS * 0.7)
    found = terms.costs_beside_mean(rows, SOLUTIONS, 9.0)
    expected = np.zeros(3)
    for row in rows.values:
        costs = np.array(
            [min(float((row - point) @ (row - point)) for point in points) for points in SOLUTIONS]
        )
        costs -= costs.mean()
        expected += costs * min(1.0, 9.0 / math.sqrt(float(costs @ costs)))
    np.testing.assert_allclose(found.array.values, expected, atol=1e-5)
    assert found.bound.l2 == 9.0


def test_bounds_of_kernels_are_nearly_reached():
    frame = Frame(np.zeros(N_COLUMNS), RADIUS)
    gamma, at_once = 0.3, np.zeros((6, N_COLUMNS))
    row = np.array([[1.0 / math.sqrt(2.0 * gamma), 0.0, 0.0]])
    pulled = kernels.attraction(frame.rows(row), at_once, gamma)
    assert np.linalg.norm(pulled.array.values) == pytest.approx(pulled.bound.l2, rel=1e-4)
    on_point = kernels.factor_sum(frame.rows(POINTS[:1]), POINTS, 0.1, np.eye(6))
    assert np.linalg.norm(on_point.array.values) == pytest.approx(1.0, rel=1e-6)
    to_codes = code_map(POINTS, 1.0, 0.01)
    step = kernels.dictionary_gradient(
        frame.rows(POINTS[:1] + 0.5), POINTS, 1.0, to_codes, 5.0, 1e-3
    )
    assert np.linalg.norm(step.array.values) == pytest.approx(1e-3, rel=1e-4)
    moment = kernels.normalized_moment(
        frame.rows(POINTS[:1]), POINTS, 0.1, np.eye(6), np.zeros(6), -20, 0.5
    )
    assert math.sqrt(norms(moment.integers, moment)[1]) == pytest.approx(moment.bound.l2, rel=1e-4)


def test_sketched_products_are_those_of_a_slow_loop_and_their_bound_is_reached():
    signs = random_directions(40, 5, seed=3)
    np.testing.assert_allclose(np.abs(signs), 1 / math.sqrt(40), atol=1e-7)
    rows = np.vstack([RNG.normal(size=(30, 40)), 3.0 * signs[:, :1].T])
    most = terms.SKETCH_MARGIN * 9.0 * math.sqrt(5 / 40)
    expected = np.zeros((40, 5))
    for row in rows:
        row = row * min(1.0, 9.0 / math.sqrt(float(row @ row)))
        short = row @ signs
        expected += np.outer(row, short * min(1.0, most / math.sqrt(float(short @ short))))
    frame = Frame(np.zeros(40), 9.0)
    found = terms.sketched_products(frame.rows(rows), 5, 3)
    np.testing.assert_allclose(found.array.values, expected, atol=0.01)
    # A row along a direction has a long projection.
    along = terms.sketched_products(frame.rows(1e9 * signs[:, :1].T), 5, 3)
    assert found.bound.l2 == pytest.approx(9.0 * most)
    assert math.sqrt(norms(along.integers, along)[1]) == pytest.approx(found.bound.l2, rel=1e-3)


@pytest.mark.parametrize("n_directions", [-1, 41])
def test_more_directions_than_columns_are_refused(n_directions):
    with pytest.raises(ValueError, match="n_directions"):
        terms.sketched_products(Frame(np.zeros(40), 9.0).rows(np.zeros((2, 40))), n_directions, 3)


# What authors get wrong


def test_a_row_whose_weights_are_no_numbers_counts_nowhere_and_too_large_ones_are_shared_out():
    weights = np.array(
        [[np.nan, 1.0], [np.inf, 0.0], [1e308, 1e308], [-1.0, 0.25], [3.0, 1.0], [0.5, 0.5]]
    )
    rows = Frame(np.zeros(2), 4.0).rows(np.tile([1.0, 2.0], (6, 1)))
    expected = np.array([[0, 0], [0, 0], [0, 0], [0, 0.25], [0.75, 0.25], [0.5, 0.5]]).sum(axis=0)
    assert terms.weighted(weights).array.values.tolist() == expected.tolist()
    assert (
        terms.weighted(weights, rows).array.values.tolist()
        == np.outer(expected, [1.0, 2.0]).tolist()
    )


def test_labels_out_of_range_count_nowhere():
    rows = Frame(np.zeros(2), 4.0).rows(np.ones((5, 2)))
    labels = np.array([-1, 0, 2, 7, -100])
    assert terms.at(labels, 2).array.values.tolist() == [1, 0]
    assert terms.at(labels, 2, rows).array.values.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_vectors_are_clipped_and_what_is_no_number_is_0():
    values = np.array([[30.0, 40.0], [0.25, 0.0], [np.nan, 1.0], [np.inf, 0.0]])
    np.testing.assert_allclose(terms.vectors(values, 1.0).array.values, [0.85, 0.8], atol=1e-7)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_vectors_need_a_bound(bound):
    with pytest.raises(ValueError, match="the bound is"):
        terms.vectors(np.ones((2, 2)), bound)


def test_nothing_bounds_a_sum_that_is_not_clipped():
    assert terms.unbounded(np.ones((2, 1)), 0, 1).bound.l2 == math.inf


def test_rows_in_a_unit_too_fine_for_their_radius_are_refused():
    with pytest.raises(ValueError, match="unit_exponent"):
        Rows(np.ones((1, 2)), -40, 1.0)


# What a client makes of its totals


@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e9])
def test_totals_of_a_client_are_clipped_as_a_whole(bound):
    with stacked(Stack([5])):
        check_clipped_totals(bound)


def check_clipped_totals(bound):
    for values in (
        RNG.normal(size=(3, 4)) * 1e6,
        np.full((3, 4), FAR),
        np.full((3, 4), np.nan),
        np.zeros((3, 4)),
    ):
        term = terms.clipped_total(values[None], bound)
        assert norms(term.integers, term)[1] <= Fraction(bound) ** 2
        assert (term.bound.of_client, term.bound.l2, term.bound.apart) == (
            bound,
            2 * bound,
            2 * bound,
        )
    matrix = np.outer(np.arange(4.0), np.arange(4.0)) * bound
    term = terms.clipped_total(matrix[None], bound, triangle=True)
    assert term.integers.shape == (1, 10)
    assert 0.99 * bound**2 <= norms(term.integers, term)[1] <= Fraction(bound) ** 2


def test_presence_and_class_of_a_client():
    with stacked(Stack([5])):
        there = terms.presence(np.array([[True, False, True]]))
    assert there.integers.tolist() == [[1, 0, 1]]
    assert there.bound.of_client == math.sqrt(3.0)
    with stacked(Stack([5, 5])):
        classes = terms.one_class(np.array([2, 0]), 4)
    assert classes.integers.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    l1, _ = norms(classes.integers[0] - classes.integers[1], classes)
    assert (classes.bound.of_client, classes.bound.l1) == (1.0, float(l1))


# Many clients at once

#: Clients with one row, and with equally and unequally many rows.
SIZES = (1, 5, 5, 30, 1, 2, len(TABLE) - 44)
FEW = [
    case
    for case in CASES
    if "bandwidth 2" in case[0] or "gamma 0.3" in case[0] or case[1] not in KERNELS.values()
]


@pytest.mark.parametrize(
    ("make", "frame"), [case[1:] for case in FEW], ids=[case[0] for case in FEW]
)
def test_many_clients_at_once_add_up_what_each_adds_up_alone(make, frame):
    stack = Stack(SIZES)
    with stacked(stack):
        together = make(frame.rows(TABLE))
    alone = [
        make(frame.rows(TABLE[start:end]))
        for start, end in zip(stack.starts, stack.ends, strict=True)
    ]
    assert together.form == alone[0].form
    assert together.n_rows == sum(term.n_rows for term in alone)
    assert np.array_equal(together.integers, [term.integers for term in alone])
    assert together.integers.dtype == np.int64


@pytest.mark.parametrize("labels", [None, np.arange(-2, len(TABLE) - 2) % 5])
def test_numbers_at_places_are_added_up_by_client(labels):
    numbers = RNG.integers(0, 2**26, size=(len(TABLE), 2)).astype(float)
    parts = [slice(0, 7), slice(7, 8), slice(8, len(TABLE))]
    expected = [
        terms.unbounded(numbers[p], 0, 2**26, None if labels is None else labels[p], 4).integers
        for p in parts
    ]
    powers = [
        terms.powers(numbers[p, 0] / 2**25 - 1, None if labels is None else labels[p], 4).integers
        for p in parts
    ]
    with stacked(Stack([7, 1, len(TABLE) - 8])):
        assert np.array_equal(terms.unbounded(numbers, 0, 2**26, labels, 4).integers, expected)
        assert np.array_equal(terms.powers(numbers[:, 0] / 2**25 - 1, labels, 4).integers, powers)


@pytest.mark.parametrize(
    "make", [terms.total, terms.count, terms.products, terms.squares, TERMS["rows at places"]]
)
def test_other_rows_than_the_clients_have_are_not_added_up_by_client(make):
    rows = FRAMES[2].rows(TABLE)
    with stacked(Stack(SIZES)), pytest.raises(NotStackedError):
        make(rows[np.arange(len(TABLE)) > 0])

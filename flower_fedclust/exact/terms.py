"""Terms: the sum over a batch of rows, as integers, with a bound on the contribution of one row.

Each function clips: whatever place, weight or vector an author computes for a row, the row adds no more than the bound.
The bound covers the row's own contribution. Authors must see to it that a row does not change what other rows add;
``check_strategy`` and the audit test this. docs/exact.md proves the bounds as lemmas, and only this package states
them. A term of no rows is all zeros, with the same unit and the same bound, so the bound of a client's answer follows
from the server's message alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.capacity import entry_bits
from flower_fedclust.exact.device import Held, device_of
from flower_fedclust.exact.exponents import reach_exponent
from flower_fedclust.exact.grid import BITS, GridArray, from_units, points_onto_grid, rows_onto_grid
from flower_fedclust.exact.kernel_sums import weight_bits, weighted_sums
from flower_fedclust.exact.lemmas import proven
from flower_fedclust.exact.rows import Labels, Rows
from flower_fedclust.exact.stacks import NotStackedError, current
from flower_fedclust.exact.subjects import COUNT_BITS, count_of_one_row, parted
from flower_fedclust.exact.sums import (
    coarse_products,
    coarsened,
    random_directions,
    second_moment,
    square_sums,
    squared_distances,
    truncated_squares,
    upper_triangle,
)
from flower_fedclust.numerics.blocks import CACHED_ENTRIES, blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Bound:
    """How much one row, or one client, can change an array.

    The function that makes the array enforces the bound, and names the lemma that proves it: :func:`proven`.
    """

    l2: float  #: The bound in Euclidean norm if a row is added or removed.
    l1: float = math.inf  #: The same bound in L1 norm, for Laplace noise.
    words: str = ""  #: How the bound is enforced, in words for the privacy report.
    #: The bound in Euclidean norm if a row is replaced; by default twice ``l2``.
    apart: float | None = None
    #: Whether the bound is the Frobenius norm of a symmetric matrix, whose upper triangle is sent.
    triangle: bool = False
    #: The bound in Euclidean norm if all rows of a client are added or removed.
    of_client: float | None = None
    #: How many rows the client draws in secret, and from how many.
    sample: tuple[int, int] | None = None

    def of(self, mechanism: str, relation: str, unit: str) -> float:
        """Return the sensitivity that a guarantee needs; infinity if nothing bounds it."""
        times = 2.0 if relation == "replace" else 1.0
        if unit == "subject" and relation == "replace":
            return math.inf  # the parts of two subjects may be farther apart than two rows
        if unit == "client":
            return (
                math.inf
                if self.of_client is None or mechanism == "laplace"
                else times * self.of_client
            )
        if mechanism == "laplace":
            return times * self.l1
        return self.apart if relation == "replace" and self.apart is not None else times * self.l2


@dataclass(frozen=True, init=False)
class Term:
    """The sum over a batch of rows of what each row adds to one array.

    Only the functions of this package that clip make terms: an author can neither build one with a smaller bound nor
    change one that was made. Inside :func:`~flower_fedclust.exact.stacks.stacked` the integers have a first axis with
    an entry for each client.
    """

    integers: Integers
    exponent: int  #: The exponent of the unit.
    bound: Bound
    largest: int  #: The largest integer that one row can add to an entry.
    n_rows: int  #: How many vectors were added up: at most one for each row of a batch.
    n_clients: int | None = None  #: The length of the first axis, if it stands for clients.

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "a term is made by at, total, count, products, squares, powers, weighted, vectors, side_by_side or joined, "
            "which clip."
        )

    @property
    def form(self) -> tuple[tuple[int, ...], int, Bound, int]:
        """The shape, the unit and the bounds, which follow from the message alone."""
        shape = self.integers.shape if self.n_clients is None else self.integers.shape[1:]
        return shape, self.exponent, self.bound, self.largest

    def reshaped(self, *shape: int) -> Term:
        """Return the same sum in another shape."""
        whole = shape if self.n_clients is None else (self.n_clients, *shape)
        return enforced(
            self.integers.reshape(whole), self.exponent, self.bound, self.largest, self.n_rows
        )

    @property
    def array(self) -> GridArray:
        """The integers in their unit."""
        return GridArray(self.integers, self.exponent)


def enforced(
    integers: Integers, exponent: int, bound: Bound, largest: int, n_rows: int = 0
) -> Term:
    """Return a term whose bound the caller has enforced; for modules of ``exact`` only."""
    term = object.__new__(Term)
    integers = np.asarray(integers)
    integers.flags.writeable = False
    stack = current()
    if stack is not None and (not integers.ndim or len(integers) != len(stack)):
        raise NotStackedError
    fields = {
        "integers": integers,
        "exponent": exponent,
        "bound": bound,
        "largest": largest,
        "n_rows": n_rows,
    }
    term.__dict__.update(fields | {"n_clients": None if stack is None else len(stack)})
    return term


def added_up(first: Term, second: Term) -> Term:
    """Return the sum of the terms of two batches of different rows, which have one form; for the engine only."""
    n_rows = first.n_rows + second.n_rows
    return enforced(
        first.integers + second.integers, first.exponent, first.bound, first.largest, n_rows
    )


def as_stack(term: Term) -> Term:
    """Return one client's term with a first axis of length 1; call it inside ``stacked(Stack([n_rows]))``."""
    return enforced(term.integers[None], term.exponent, term.bound, term.largest, term.n_rows)


def of_one_client(term: Term) -> Term:
    """Undo :func:`as_stack`; call it outside ``stacked``."""
    return enforced(term.integers[0], term.exponent, term.bound, term.largest, term.n_rows)


CLIPPED = "the client clips every row to this norm"
CLIPPED_TERM = "the client clips what each row adds to this norm"
WEIGHTS = "a row's weights add up to 1 at most"
ONE_COUNT = Bound(1.0, 1.0, "a row counts once", math.sqrt(2.0))


def _of_rows(rows: Rows) -> Bound:
    return Bound(rows.radius, rows.radius if rows.norm == 1 else math.inf, CLIPPED)


@proven("1")
def at(labels: Labels, n_places: int, rows: Rows | None = None) -> Term:
    """Add up, or count, the rows at each place, such as the rows of each cluster.

    Parameters
    ----------
    labels : ndarray of shape (n_rows,)
        The place of each row, from 0; -1 for a row that counts nowhere.
    n_places : int
    rows : Rows, optional
        The rows to add; by default, rows are counted.

    Returns
    -------
    Term
        Of shape (n_places, n_columns), or (n_places,) for counts.
    """
    labels, somewhere, shape = _places(labels, n_places)
    if somewhere is not None and rows is not None:
        rows = rows[somewhere]
    if rows is None:
        counts = np.bincount(labels, minlength=math.prod(shape)).astype(np.int64, copy=False)
        return _counted(counts.reshape(shape), len(labels))
    sums = rows.sums_at(labels, math.prod(shape)).reshape(*shape, rows.n_columns)
    return enforced(sums, rows.exponent, _of_rows(rows), 2**BITS, len(labels))


@proven("1")
def _counted(counts: Integers, n_rows: int) -> Term:
    """Return a term of counts, from the numbers of rows."""
    return enforced(counts * count_of_one_row(), -COUNT_BITS, ONE_COUNT, 2**COUNT_BITS, n_rows)


def _places(
    labels: Labels, n_places: int
) -> tuple[Labels, NDArray[np.bool_] | None, tuple[int, ...]]:
    """Return the places of rows that have one, which rows these are (None: all), and the shape of the places."""
    stack, somewhere = current(), (labels >= 0) & (labels < n_places)
    if stack is not None:
        stack.check(len(labels))
        labels = labels + n_places * stack.owners
    shape = (n_places,) if stack is None else (len(stack), n_places)
    if somewhere.all():
        return labels, None, shape
    return labels[somewhere], somewhere, shape


def _added(values: Held) -> Integers:
    """Add up rows of integers: all, or each client's."""
    stack = current()
    if stack is not None:
        return stack.added(values)
    return device_of(values).host(values.sum(axis=0)).astype(np.int64)


@proven("1")
def total(rows: Rows) -> Term:
    """Add up the rows: a term of shape (n_columns,)."""
    return enforced(_added(parted(rows.held)), rows.exponent, _of_rows(rows), 2**BITS, len(rows))


@proven("1")
def count(rows: Rows) -> Term:
    """Count the rows: a term of shape ()."""
    return _counted(_added(np.ones(len(rows))), len(rows))


@proven("2")
def products(rows: Rows) -> Term:
    """Add up the outer products of the rows with themselves; the term is the upper triangle of their sum, row by row.

    If a row has the L1 norm R, the magnitudes of all entries of its outer product add up to at most R^2.
    """
    stack = current()
    if stack is None:
        matrix, exponent = second_moment(rows.held, rows.exponent)
    else:
        coarse, exponent = coarsened(rows.integers, rows.exponent)
        matrix, exponent = stack.products(coarse, coarse), 2 * exponent
    square = rows.radius**2
    words = "the client clips every row to the root of this"
    bound = Bound(square, square if rows.norm == 1 else math.inf, words, triangle=rows.norm == 2)
    return enforced(upper_triangle(matrix), exponent, bound, 2**32, len(rows))


#: A projection to random directions is clipped to this many times its expected length.
SKETCH_MARGIN = 1.25


@proven("2a")
def sketched_products(rows: Rows, n_directions: int, seed: int) -> Term:
    """Add up the outer products of rows with their own projections to random directions: a sketch of `products`.

    The directions are public. A typical row has a short projection, but some rows have long ones, so projections are
    clipped as well, to a norm P. A row of norm R then adds a matrix of Frobenius norm ``R P`` at most.

    Returns
    -------
    Term
        Of shape (n_columns, n_directions).
    """
    n_columns = rows.n_columns
    directions = random_directions(n_columns, n_directions, seed)
    short = rows.projected(directions).clipped(
        rows.radius * SKETCH_MARGIN * math.sqrt(n_directions / n_columns)
    )
    stack = current()
    if stack is None:
        matrix, exponent = coarse_products(rows.held, short.held, rows.exponent)
    else:
        (first, exponent), (second, _) = (
            coarsened(one.integers, one.exponent) for one in (rows, short)
        )
        matrix, exponent = stack.products(first, second), 2 * exponent
    most = rows.radius * short.radius
    words = "the client clips every row, and its projection, to norms whose product is this"
    return enforced(
        matrix, exponent, Bound(most, most if rows.norm == 1 else math.inf, words), 2**32, len(rows)
    )


@proven("2g")
def squares(rows: Rows) -> Term:
    """Add up the squares of the rows' entries: a term of shape (n_columns,).

    For the vector x o x of the squares of a row x, ``||x o x||_2 <= ||x||_2^2`` and ``||x o x||_1 = ||x||_2^2``.
    Squares are not negative, so replacing a row changes the sum by at most sqrt(2) times the bound for adding one.
    """
    stack = current()
    if stack is None:
        integers, exponent = square_sums(rows.held, rows.exponent)
    else:
        each, exponent = truncated_squares(rows.integers, rows.exponent)
        integers = stack.added(each)
    square = rows.radius**2
    bound = Bound(
        square, square, "the client clips every row to the root of this", math.sqrt(2.0) * square
    )
    return enforced(integers, exponent, bound, 2 ** entry_bits(), len(rows))


@proven("1a")
def weighted(weights: Floats, rows: Rows | None = None) -> Term:
    """Add up, at each place, the rows times their weights there; or the weights alone.

    Parameters
    ----------
    weights : ndarray of shape (n_rows, n_places)
        Not negative. If the weights of a row add up to more than 1, they are divided by their sum; a row whose weights
        have no finite sum counts nowhere.
    rows : Rows, optional
    """
    bits = weight_bits()
    with np.errstate(over="ignore"):
        whole = np.maximum(np.trunc(weights * 2.0**bits), 0.0)
        sums = whole.sum(axis=1)
    too_much = ~(sums <= 2.0**bits)
    if too_much.any():
        whole[~np.isfinite(sums)], sums[~np.isfinite(sums)] = 0.0, 1.0
        whole[too_much] = np.trunc(whole[too_much] / sums[too_much, None] * 2.0**bits)
    if rows is None:
        bound = replace(ONE_COUNT, words=WEIGHTS)
        return enforced(_added(parted(whole)), -bits, bound, 2**bits, len(weights))
    stack = current()
    if stack is None:
        added, _ = weighted_sums(parted(rows.held), whole * 2.0**-bits)
    else:
        added = stack.products(whole, parted(rows.integers))
    return enforced(added, rows.exponent - bits, _of_rows(rows), 2 ** (BITS + bits), len(weights))


@proven("1b")
def vectors(values: Floats, bound: float, *, norm: int = 2) -> Term:
    """Add up one vector for each row, clipped to a norm.

    Parameters
    ----------
    values : ndarray of shape (n_rows, ...)
        In the units of the data. Each vector must be computed from its row alone, by operations that every machine
        rounds alike.
    bound : float
        The norm, positive and finite; it must follow from the message.
    norm : 1 or 2, default=2
    """
    n_rows, *shape = values.shape
    flat = np.ascontiguousarray(values).reshape(n_rows, math.prod(shape))
    integers, exponent = rows_onto_grid(flat, np.zeros(flat.shape[1]), bound, norm=norm)
    sums = _added(parted(integers))
    sums = sums.reshape((*sums.shape[:-1], *shape))
    l1 = bound if norm == 1 else math.inf
    clipped_to = Bound(bound, l1, CLIPPED_TERM)
    return enforced(sums, exponent, clipped_to, 2**BITS, n_rows)


#: Squared distances are truncated to this many bits, so that a sum of 4096, one for each solution, is exact.
COST_BITS = 40


@proven("2e")
def costs_beside_mean(rows: Rows, solutions: Floats, bound: float) -> Term:
    """Add up a vector for each row: its squared distances from the nearest point of each solution, less their mean.

    Parameters
    ----------
    solutions : ndarray of shape (n_solutions, n_points, n_columns)
        At most 4096 solutions, each with its own points, such as the centers of k-means.
    bound : float
        The norm to which the vector is clipped, in squared units of the data.

    Returns
    -------
    Term
        Of shape (n_solutions,).
    """
    exponent = max(
        rows.exponent,
        *(reach_exponent(solution) - BITS for solution in solutions),
    )
    held, device = rows.held, device_of(rows.held)
    if exponent > rows.exponent:
        held = held * math.ldexp(1.0, rows.exponent - exponent)
        device.xp.trunc(held, out=held)
    costs = np.empty((len(rows), len(solutions)))
    for place, points in enumerate(solutions):
        on_grid = points_onto_grid(points, exponent)
        cached = max(CACHED_ENTRIES, 64 * len(points))
        for block in blocks(len(rows), len(points), block_entries=device.entries(cached)):
            costs[block, place] = device.host(
                device.xp.amin(squared_distances(held[block], on_grid), 1)
            )
    # Integers below 2^40, whose sums and multiples are exact. The division below is the only step that rounds, and it
    # rounds alike on every machine.
    costs = np.trunc(costs * 2.0 ** (COST_BITS - 2 * BITS - 2))
    costs = costs * len(solutions) - costs.sum(axis=1, keepdims=True)
    power = 2 * exponent + 2 * BITS + 2 - COST_BITS
    return vectors(from_units(costs / len(solutions), power), bound)


def unbounded(
    integers: Floats | Integers,
    exponent: int,
    largest: int,
    labels: Labels | None = None,
    n_places: int = 1,
) -> Term:
    """Add up integers of each row without a bound on what a row adds, so that no noise can protect the sum.

    Parameters
    ----------
    integers : ndarray of shape (n_rows, ...)
        Floats that hold integers from 0 to ``largest``; of shape (n_rows, n_numbers) if rows have places.
    exponent : int
        Of their unit.
    largest : int
        At most 2^26 if rows have places.
    labels : ndarray of shape (n_rows,), optional
        The place of each row, as in :func:`at`.
    n_places : int, default=1

    Returns
    -------
    Term
        Of the shape of a row's integers, or of shape (n_numbers, n_places).
    """
    integers = parted(np.asarray(integers, dtype=np.float64))
    if labels is None:
        added = _added(integers.astype(np.int64))
    elif largest <= 2**26:  # float64 then holds the sums of a batch
        added = _sums_at(list(integers.T), labels, n_places)
    else:
        raise ValueError(f"largest is {largest}; it must be at most 2^26 for sums at places.")
    return enforced(added, exponent, Bound(math.inf), largest)


def _sums_at(numbers: Sequence[Floats], labels: Labels | None, n_places: int) -> Integers:
    """Add up numbers of each row at its place; the result's last two axes are (n_numbers, n_places)."""
    if labels is None:
        labels = np.zeros(len(numbers[0]), dtype=np.intp)
    labels, somewhere, shape = _places(labels, n_places)
    kept = numbers if somewhere is None else [number[somewhere] for number in numbers]
    sums = [np.bincount(labels, one, math.prod(shape)).reshape(shape) for one in kept]
    return np.stack(sums, axis=-2).astype(np.int64)


@proven("2c")
def joined(first: Term, second: Term, *, times: float) -> Term:
    """Return two terms as one array: the second, times a weight, is one more column of the first.

    A row may add to both, so their bounds are added up.

    Parameters
    ----------
    first : Term
        Of shape (n_places, n_columns).
    second : Term
        Of shape (n_places,), such as counts.
    times : float
        The finite weight: an entry of 1 in the second term becomes this value, in the units of the data.
    """
    if not math.isfinite(times):
        raise ValueError(f"times is {times}; it must be finite.")
    finer = max(0, -second.exponent)  # the factor then stays an integer
    room = max(0, entry_bits() - (first.largest - 1).bit_length())
    # The bits that are lost if a client may have so many rows that an entry would take too many bits.
    lost = max(0, finer - room)
    factor = int(math.ldexp(times, max(0, second.exponent) - first.exponent - lost))
    finer -= lost
    columns = np.left_shift(first.integers, finer), second.integers[..., None] * factor

    def both(one: float, other: float) -> float:
        return one + (abs(times) * other if factor else 0.0)

    bound = Bound(
        both(first.bound.l2, second.bound.l2),
        both(first.bound.l1, second.bound.l1),
        first.bound.words,
    )
    largest = max(first.largest << finer, abs(factor) * second.largest)
    n_rows = max(first.n_rows, second.n_rows)
    return enforced(
        np.concatenate(columns, axis=-1), first.exponent - finer, bound, largest, n_rows
    )


#: In :func:`powers` an entry of 1 is 2^20 units.
POWER_BITS = 20


@proven("2h")
def powers(values: Floats, labels: Labels | None = None, n_places: int = 1) -> Term:
    """Add up a number of each row, and its square, at the row's place; of shape (n_places, 2).

    Replacing x by y, both from -1 to 1, changes the sums by at most 2, because ``(x - y)^2 + (x^2 - y^2)^2 <= 4``: for
    s = |x + y| and d = |x - y| the left side is ``d^2 (1 + s^2)``, and s is at most 2 - d.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        Clipped to -1 and 1; NaN adds nothing.
    labels : ndarray of shape (n_rows,), optional
        The place of each row, as in :func:`at`; by default there is one place.
    n_places : int, default=1
    """
    one = 2.0**POWER_BITS
    clipped = np.clip(np.nan_to_num(values), -1.0, 1.0)
    numbers = np.trunc(clipped * one)
    squares_of = np.trunc(numbers * numbers / one)
    # The sums are below 2^53, so they are exact.
    sums = _sums_at((parted(numbers), parted(squares_of)), labels, n_places)
    n_rows = len(values)
    if labels is not None:
        n_rows = int(((labels >= 0) & (labels < n_places)).sum())
    bound = Bound(math.sqrt(2.0), 2.0, "a number of -1 to 1, and its square", 2.0)
    return enforced(sums.swapaxes(-1, -2), -POWER_BITS, bound, 2**POWER_BITS, n_rows)


@proven("2d")
def side_by_side(terms: Sequence[Term], *, words: str) -> Term:
    """Return terms as one array, joined along the last axis, in the finest of their units."""
    exponent = min(term.exponent for term in terms)
    shifts = [term.exponent - exponent for term in terms]
    parts = [np.left_shift(term.integers, shift) for term, shift in zip(terms, shifts, strict=True)]
    largest = max(term.largest << shift for term, shift in zip(terms, shifts, strict=True))
    n_rows = max(term.n_rows for term in terms)

    bounds = [term.bound for term in terms]
    l1 = math.fsum(each.l1 for each in bounds)
    l2 = math.sqrt(math.fsum(each.l2**2 for each in bounds))
    apart_each = [2.0 * each.l2 if each.apart is None else each.apart for each in bounds]
    apart = math.sqrt(math.fsum(each**2 for each in apart_each))
    bound = Bound(l2, l1, words, apart)
    return enforced(np.concatenate(parts, axis=-1), exponent, bound, largest, n_rows)


# Terms of a client's totals over all of its rows, for a guarantee that covers whole clients. The first axis of the
# arguments stands for clients.


def _check_is_finish() -> None:
    """Refuse a term of a client's totals in a function that is called once for each batch of rows.

    The bound would then hold for each batch only, and one more row may begin a new batch.
    """
    if current() is None:
        raise RuntimeError(
            "this term bounds all that a client has; use it in a function marked with finishes."
        )


@proven("3")
def clipped_total(values: Floats, bound: float, *, triangle: bool = False, words: str = "") -> Term:
    """Return each client's array, clipped as a whole to a norm (Lemma 3 of docs/exact.md).

    Parameters
    ----------
    values : ndarray of shape (n_clients, ...)
        In the units of the data; with ``triangle`` symmetric matrices.
    bound : float
    triangle : bool, default=False
        Whether the upper triangle of the matrix is sent, whose Frobenius norm is clipped.
    words : str, optional
        Names the clipped array in the report.
    """
    _check_is_finish()
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    clipped, exponent = rows_onto_grid(flat, np.zeros(flat.shape[1]), bound)
    integers = clipped.reshape(values.shape).astype(np.int64)
    # Adding, removing or replacing a row gives another array of at most this norm: a change of at most twice the norm.
    made = Bound(
        2.0 * bound,
        math.inf,
        words or "the client clips the array to this norm",
        2.0 * bound,
        triangle,
        of_client=bound,
    )
    return enforced(upper_triangle(integers) if triangle else integers, exponent, made, 2**BITS)


@proven("3")
def presence(is_there: NDArray[np.bool_]) -> Term:
    """Return at which places each client has a row, as 0 and 1; of shape (n_clients, ...)."""
    _check_is_finish()
    most = math.sqrt(math.prod(is_there.shape[1:]))
    bound = replace(ONE_COUNT, words="at most 1 at each of the places", of_client=most)
    return enforced(is_there.astype(np.int64), 0, bound, 1)


@proven("3")
def one_class(index: NDArray[np.intp], n_classes: int) -> Term:
    """Return the class that each client is in, as a 1 among zeros."""
    _check_is_finish()
    integers = (np.asarray(index)[:, None] == np.arange(n_classes)).astype(np.int64)
    root = math.sqrt(2.0)
    return enforced(
        integers, 0, Bound(root, 2.0, "a client is in one class", root, of_client=1.0), 1
    )

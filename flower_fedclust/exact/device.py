"""Where rows on the grid are stored: in NumPy arrays, or in PyTorch tensors on a processor or on a GPU (a "card").

Rows are integers that float64 holds exactly, so every device gives the same bits (docs/exact.md). The functions of this
package are written once, for both kinds of array. Functions that have the same name in NumPy and in PyTorch are taken
from ``device.xp``; those whose names differ are methods of a device. Operators, slices and in-place operators are the
same. Labels, sums, and the norms that a function returns are always NumPy arrays.

Only operations that a card computes exactly are used. A tensor is never divided by a Python number, nor a number by a
tensor (a card multiplies by the inverse), and nothing is fused, compiled, or raised to a power. Tests check each
operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, TypeAlias
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.exact.lemmas import proven
from flower_fedclust.numerics.blocks import CACHED_ENTRIES, blocks
from flower_fedclust.numerics.kmeans import (
    cluster_sums,
    compared_together,
    from_the_first,
    nearest_by_product,
    nearest_in_each_by_product,
    nearest_two,
    to_compare,
)

Floats = NDArray[np.float64]
Labels = NDArray[np.intp]

#: An array of NumPy, or a tensor of PyTorch that is used like one.
Held: TypeAlias = Any

#: Entries that a card works on at a time: 0.5 GB of float64.
CARD_ENTRIES = 2**26

#: Distances from centers that a thread computes on a card at a time for the final labels, in which all cores have a
#: thread: 128 MB.
COMPARED_ON_CARD = 2**24

#: How many threads prepare work for a card, so that it need not wait; each has a few arrays of CARD_ENTRIES on it.
CARD_THREADS = 4

#: A product of d float64 entries errs by less than d times this, times the squares of both lengths: eight times the
#: bound of the theory.
ROUNDING = 2.0**-49

#: CUDA's compute capabilities of cards whose float64 is half as fast as their float32. On all other cards float64 is 32
#: or 64 times slower than float32, and such cards are not used.
FAST_FLOAT64 = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))


class Host:
    """NumPy, on the processor."""

    name = "the processor"
    is_card = False

    #: The module, NumPy or PyTorch, for functions with the same name in both: trunc, ceil, sign, subtract, amax, amin
    #: and frexp.
    xp = np

    #: Converts a NumPy array to an array on the device.
    hold: Callable[..., Held] = staticmethod(np.asarray)
    #: Converts an array on the device to a NumPy array.
    host: Callable[..., NDArray[Any]] = staticmethod(np.asarray)
    #: Converts NumPy indices, or a mask, so that they can index an array on the device.
    index: Callable[..., Held] = staticmethod(np.asarray)
    #: Returns an uninitialized array of a given shape.
    empty: Callable[..., Held] = staticmethod(np.empty)
    #: Returns square roots.
    sqrt: Callable[..., Held] = staticmethod(np.sqrt)
    #: Returns a quotient, rounded once, of arrays or of an array and a number.
    quotient: Callable[..., Held] = staticmethod(np.divide)
    #: Returns 2^e, for e from -1022 to 1023.
    powers_of_two: Callable[..., Held] = staticmethod(partial(np.ldexp, 1.0))
    #: Returns, for each row x, the index of the center c with the smallest ``||c||^2 - 2 x.c``; ties go to the lower
    #: index. If ``least``, an array on the device, is given, the smallest values are written to it.
    nearest = staticmethod(nearest_by_product)
    #: Returns the same for the centers of each of several runs, of shape (n_runs, n_rows).
    nearest_in_each = staticmethod(nearest_in_each_by_product)
    #: Returns the nearest center of each row, and the squared distances of it and of the second nearest. Rows and
    #: centers are any NumPy arrays, so that only the labels are the same on all devices.
    nearest_two = staticmethod(nearest_two)

    def free_memory(self) -> int | None:
        """Return how many bytes are free on a card."""
        return None

    def entries(self, cached: int, most: int = CARD_ENTRIES) -> int:  # noqa: ARG002
        """Return how many entries to work on at a time: ``cached`` on a processor, up to ``most`` on a card."""
        return cached

    def square_norms(self, held: Held) -> Held:
        """Return the sum of the squares of each row."""
        if len(held) == 1:  # a whole array that a client clips: einsum has more overhead
            return np.array([np.dot(held[0], held[0])])
        return np.einsum("ij,ij->i", held, held)

    def sums_at(self, rows: Held, labels: Labels, n_places: int) -> Floats:
        """Add up the rows that have the same label; of shape (n_places, n_columns)."""
        if len(rows) * n_places > 2**14:
            return cluster_sums(rows, labels, n_places)[0]
        # For few rows, a product with a dense matrix, because a sparse matrix takes longer to make.
        sums: Floats = (np.arange(n_places)[:, None] == labels).astype(np.float64) @ rows
        return sums


class Torch:
    """PyTorch, on the processor or on a card; see :class:`Host` for what the methods do."""

    def __init__(self, device: Any) -> None:
        import torch

        self.xp, self._device = torch, device
        self.is_card = device.type != "cpu"
        self.name = (
            torch.cuda.get_device_name(device) if self.is_card else "PyTorch on the processor"
        )
        #: The labels that :meth:`nearest` found last, and their copy on the device: rows are often added up by them
        #: next.
        self._last_labels: tuple[ReferenceType[Labels], Held] | None = None
        #: The points with which :meth:`nearest` compared rows last, and their copies on the device.
        self._last_points: tuple[ReferenceType[Floats], Held, Held] | None = None

    def free_memory(self) -> int | None:
        """Return how many bytes are free on the card, including memory that PyTorch has reserved but does not use."""
        if not self.is_card:
            return None
        cuda = self.xp.cuda
        unused = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return int(cuda.mem_get_info(self._device)[0] + unused)

    def hold(self, array: NDArray[Any]) -> Held:
        """Copy a NumPy array to the device; the copy to a card goes through pinned memory, while the card computes."""
        if not self.is_card:
            return self.xp.from_numpy(array.copy())
        # PyTorch reuses a block of pinned memory as soon as its copy has ended, so a few blocks are enough.
        pinned = self.xp.empty(
            array.shape,
            dtype=self.xp.from_numpy(array[:0].copy()).dtype,
            device="cpu",  # a user may have set another default
            pin_memory=True,
        )
        pinned.numpy()[...] = array
        return pinned.to(self._device, non_blocking=True)

    def host(self, held: Held) -> NDArray[Any]:
        """Copy to an array of NumPy; from a card into pinned memory, which is ten times as fast."""
        if self.is_card:
            held = self.xp.empty_like(held, device="cpu", pin_memory=True).copy_(held)
        array: NDArray[Any] = held.numpy()
        return array

    def entries(self, cached: int, most: int = CARD_ENTRIES) -> int:
        """Return how many entries to work on at a time."""
        return min(most, CARD_ENTRIES) if self.is_card else cached

    def empty(self, shape: tuple[int, ...]) -> Held:
        """Return a tensor whose entries are not set."""
        return self.xp.empty(shape, dtype=self.xp.float64, device=self._device)

    def sqrt(self, held: Held) -> Held:
        """Return square roots."""
        # On a processor PyTorch may call a library whose roots are not always the nearest floats.
        return held.sqrt() if self.is_card else self.xp.from_numpy(np.sqrt(held.numpy()))

    def quotient(self, numerator: Held | float, divisor: Held | float) -> Held:
        """Divide two tensors. A number first becomes a tensor, because a card would multiply by its inverse."""
        is_tensor, full_like = self.xp.is_tensor, self.xp.full_like
        held: Any = divisor
        first: Any = numerator if is_tensor(numerator) else full_like(held, float(numerator))
        second: Any = divisor if is_tensor(divisor) else full_like(first, float(divisor))
        return first / second

    def powers_of_two(self, exponents: Held) -> Held:
        """Return 2 to these exponents exactly: the floats' bits are written, because PyTorch's ldexp may round."""
        return ((exponents.to(self.xp.int64) + 1023) << 52).view(self.xp.float64)

    def square_norms(self, held: Held) -> Held:
        """Return sums of squares."""
        return (held * held).sum(dim=1)

    def index(self, positions: NDArray[np.intp] | NDArray[np.bool_]) -> Held:
        """Return indices or a mask as a tensor."""
        last = self._last_labels
        if last is not None and last[0]() is positions and not positions.flags.writeable:
            return last[1]
        return self.xp.from_numpy(np.array(positions)).to(self._device)

    def nearest(
        self, rows: Held, twice: Floats, squares: Floats, least: Held | None = None
    ) -> Labels:
        """Return the nearest points."""
        held = self.xp.empty(len(rows), dtype=self.xp.int64, device=self._device)
        for block, distances in self._compared(rows, twice, squares):
            found = held[block] = distances.argmin(dim=1)
            if least is not None:
                least[block] = distances.gather(1, found[:, None])[:, 0]
        labels: Labels = self.host(held)
        self._last_labels = ref(labels), held
        return labels

    def nearest_in_each(self, rows: Held, twice: Floats, squares: Floats, n_runs: int) -> Labels:
        """Return the nearest points of each run."""
        held = self.xp.empty((n_runs, len(rows)), dtype=self.xp.int64, device=self._device)
        for block, distances in self._compared(rows, twice, squares):
            of_runs = distances.view(len(distances), n_runs, -1)
            held[:, block] = of_runs.argmin(dim=2).T
        labels: Labels = self.host(held)
        return labels

    def _compared(self, rows: Held, twice: Floats, squares: Floats) -> Iterator[tuple[slice, Held]]:
        """Yield blocks of rows: their place, and their ``||c||^2 - 2 x.c`` to all points.

        PyTorch's addmm would do both steps at once, but is half as fast on a card.
        """
        if self.is_card:
            # Otherwise cuBLAS warns of a new thread.
            self.xp.cuda.set_device(self._device)
        twice_held, squares_held = self._held_points(twice, squares)
        cached = max(CACHED_ENTRIES, 64 * len(squares))
        for block in blocks(len(rows), len(squares), block_entries=self.entries(cached)):
            yield block, (rows[block] @ twice_held).add_(squares_held)

    def _held_points(self, twice: Floats, squares: Floats) -> tuple[Held, Held]:
        """Copy points to the device, or return the last copy: all batches of a round are compared with the same."""
        last = self._last_points
        if last is None or last[0]() is not twice:
            last = self._last_points = ref(twice), self.hold(twice), self.hold(squares)
        return last[1:]

    def nearest_two(self, rows: Floats, centers: Floats) -> tuple[Labels, Floats, Floats]:
        """Return the nearest center of each row, and the squared distances of it and of the second nearest.

        Products of any floats are rounded otherwise on a card. Rows whose two nearest centers are so near to each other
        that rounding could exchange them are compared on the processor, together with the rows with which it would have
        compared them: so labels are the same there.
        """
        origin, offsets = from_the_first(centers)
        twice, squares = to_compare(offsets)
        held_twice, held_squares = self.hold(twice), self.hold(squares)
        labels = np.empty(len(rows), dtype=np.intp)
        first = np.empty(len(rows))
        second = np.empty(len(rows))
        unclear = np.empty(len(rows), dtype=bool)

        most = self.entries(max(CACHED_ENTRIES, 64 * len(squares)), COMPARED_ON_CARD)
        for block in blocks(len(rows), len(squares), block_entries=most):
            few = rows[block] if origin is None else rows[block] - origin
            square_norms = np.einsum("ij,ij->i", few, few)
            nearest, least, next_least = self._two_smallest(
                self.hold(few), held_twice, held_squares
            )
            labels[block] = nearest
            first[block] = np.maximum(least + square_norms, 0.0)
            second[block] = np.maximum(next_least + square_norms, 0.0)
            rounding = ROUNDING * rows.shape[1] * (square_norms + squares.max())
            unclear[block] = ~(second[block] > first[block] + rounding)

        for block in compared_together(len(rows), len(squares)):
            if unclear[block].any():
                labels[block], first[block], second[block] = nearest_two(rows[block], centers)
        return labels, first, second

    def _two_smallest(
        self, rows: Held, twice: Held, squares: Held
    ) -> tuple[Labels, Floats, Floats]:
        """Return the place of the smallest ``||c||^2 - 2 x.c`` of each row, and the two smallest values."""
        distances = (rows @ twice).add_(squares)
        nearest = distances.argmin(dim=1)
        first = distances.gather(1, nearest[:, None])[:, 0]
        second = distances.scatter_(1, nearest[:, None], np.inf).amin(dim=1)
        return self.host(nearest), self.host(first), self.host(second)

    def sums_at(self, rows: Held, labels: Labels, n_places: int) -> Floats:
        """Add up rows, in any order."""
        sums = self.xp.zeros((n_places, rows.shape[1]), dtype=self.xp.float64, device=self._device)
        return self.host(sums.index_add_(0, self.index(labels), rows))


Device: TypeAlias = Host | Torch
HOST = Host()
_CURRENT: ContextVar[Device] = ContextVar("device", default=HOST)


def device_of(held: Held) -> Device:
    """Return the device that holds an array."""
    return HOST if isinstance(held, np.ndarray) else _torch_on(held.device)


@lru_cache(maxsize=8)
def _torch_on(device: Any) -> Torch:
    return Torch(device)


def current_device() -> Device:
    """Return the device to which rows are copied: the processor, unless :func:`on_device` has set another."""
    return _CURRENT.get()


@contextmanager
def on_device(device: Device | None) -> Iterator[None]:
    """Copy rows to this device inside the context; None keeps the device that was set before."""
    token = _CURRENT.set(_CURRENT.get() if device is None else device)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@proven("7")
@lru_cache(maxsize=8)
def open_device(name: str) -> Device:
    """Open "cpu", a card ("cuda", "cuda:1"), or "torch": PyTorch on the processor, to test what a card computes.

    A card without fast float64 is not used: a warning says so, and the processor is opened.

    Raises
    ------
    ValueError
        If there is no such device, or if it does not multiply integers exactly.
    """
    if name == "cpu":
        return HOST
    kind, _, number = name.partition(":")
    if kind not in ("cuda", "torch") or (number and (kind == "torch" or not number.isdecimal())):
        raise ValueError(
            f'device is "{name}"; it must be "cpu", "cuda", "cuda:" and the number of a card, or "torch".'
        )
    try:
        import torch
    except ImportError:
        raise ValueError(
            f'device is "{name}" and PyTorch is not installed; pip install "flower-fedclust[deep]".'
        ) from None
    if kind == "torch":
        opened = _torch_on(torch.device("cpu"))
    else:
        n_cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= n_cards:
            raise ValueError(
                f'device is "{name}" and PyTorch finds {n_cards} cards here; leave the device out.'
            )
        card = torch.device("cuda", int(number or 0))
        if (
            torch.version.hip is not None
            or torch.cuda.get_device_capability(card) not in FAST_FLOAT64
        ):
            warnings.warn(
                f"{torch.cuda.get_device_name(card)} has no fast float64, which exact sums need; the run uses the "
                "processor.",
                RuntimeWarning,
                stacklevel=2,
            )
            return HOST
        opened = _torch_on(card)
    _check(opened)
    return opened


def _check(device: Device) -> None:
    """Raise a ValueError unless the device computes a few results exactly.

    The results are a product, nearest points, sums, truncated quotients and lengths, of rows of integers.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(-(2**22), 2**22, size=(512, 40)).astype(np.float64)
    rows[[5, 7]] = 0.0
    rows[[5, 7], 0] = (
        2.0**25 - 1.0,
        1.0 - 2.0**25,
    )  # as long as rows can be: squared distances reach 2^52
    points = rows[[3, 1, 3, 7, 5]]
    products = rows.astype(np.int64) @ points.astype(np.int64).T
    squares = np.einsum("ij,ij->i", points, points)
    labels = (squares.astype(np.int64) - 2 * products).argmin(axis=1)
    sums = np.zeros((5, 40))
    np.add.at(sums, labels, rows)
    quotients = np.trunc(rows / 7.0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))

    held = device.hold(rows)
    found_products = held @ device.hold(np.ascontiguousarray(points.T))
    found_quotients = device.xp.trunc(device.quotient(held, 7.0))
    found_lengths = device.sqrt(device.square_norms(held))
    for found, expected in (
        (device.host(found_products), products),
        (device.nearest(held, -2.0 * points.T, squares), labels),
        (device.sums_at(held, labels, 5), sums),
        (device.host(found_quotients), quotients),
        (device.host(found_lengths), lengths),
    ):
        if not np.array_equal(found, expected):
            raise ValueError(
                f"{device.name} does not compute with integers as exactly as sums need; use the processor."
            )

"""Rows in tensors have the bits of rows in NumPy's arrays, by operations that a card computes exactly."""

import ast
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

import flower_fedclust
from flower_fedclust.exact import terms
from flower_fedclust.exact.device import HOST, current_device, device_of, on_device, open_device
from flower_fedclust.exact.rows import Frame
from flower_fedclust.exact.subjects import parts_of
from flower_fedclust.exact.sums import random_directions

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

EXACT = Path(flower_fedclust.__file__).parent / "exact"

#: The devices to test: PyTorch on the processor, and a card if there is one.
DEVICES = ["torch", *(["cuda"] if torch.cuda.is_available() else [])]

#: Operations that a card computes exactly, of integers that float64 holds, or that only move or compare numbers.
MOVES = {
    "_assert_async",
    "_index_put_impl_",
    "_local_scalar_dense",
    "_to_copy",
    "_unsafe_view",
    "alias",
    "amax",
    "amin",
    "any",
    "argmin",
    "bitwise_and",
    "bitwise_not",
    "clamp",
    "clone",
    "copy_",
    "detach",
    "empty",
    "empty_like",
    "eq",
    "expand",
    "fill_",
    "full",
    "full_like",
    "gather",
    "ge",
    "gt",
    "index",
    "index_put_",
    "is_nonzero",
    "item",
    "le",
    "lift_fresh",
    "logical_not",
    "lt",
    "max",
    "min",
    "ne",
    "nonzero",
    "permute",
    "reshape",
    "resolve_conj",
    "select",
    "slice",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "zero_",
    "zeros",
}
COMPUTES = {
    "abs",
    "ceil",
    "frexp",
    "index_add_",
    "mm",
    "mul",
    "mul_",
    "neg",
    "rsub",
    "sign",
    "sqrt",
    "sub",
    "sub_",
    "sum",
    "trunc",
}


class OnlyExact(TorchDispatchMode):
    """Refuses what a card does not compute exactly."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        self.seen.add(name)
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        whole = any(not one.is_floating_point() for one in tensors)
        if name in ("div", "div_"):
            assert len(tensors) == 2, "a tensor is divided by a Python number"
        elif name in ("add", "add_", "sub", "sub_"):
            assert kwargs.get("alpha", 1) == 1, "a sum with alpha is fused"
        elif name in ("__lshift__", "add.int"):
            assert whole
        else:
            assert name in MOVES | COMPUTES, f"{name} is not known to be exact on a card"
        if name == "mm":
            assert not whole, "a card has no products of integers in int64"
        return func(*args, **kwargs)


def columns(radius, rng):
    """Return rows of all kinds: within, outside, far outside, on the boundary, zero, and no numbers."""
    rows = radius * rng.normal(size=(3000, 5)) * 10.0 ** rng.uniform(-3, 1.0, size=(3000, 1))
    with np.errstate(over="ignore"):
        rows[:40] *= 1e9
    rows[40:50] = 0.0
    rows[50:60] = np.eye(5).repeat(2, axis=0) * radius
    rows[60:64] = [[np.inf] * 5, [-np.inf, 0, 0, 0, 0], [np.nan] * 5, [1, np.nan, 2, 3, 4]]
    return rows


def answers(rows):
    """Return terms of every kind whose kernels know devices."""
    rng = np.random.default_rng(1)
    points = rows.radius * rng.normal(size=(6, 5)) / 4
    points[4] = points[1]
    bound = rows.radius / 3
    nearest = rows.nearest(points)
    offsets = rows.offsets(points, nearest, bound)
    yield terms.at(nearest, 6)
    yield terms.at(nearest, 6, rows)
    yield terms.at(nearest, 6, offsets)
    yield terms.at(nearest, 6, offsets.with_constant(bound / 7))
    yield terms.at(np.where(nearest == 2, -1, nearest), 6, offsets)
    yield terms.at(rows.nearest(1e3 * points), 6, rows)
    for labels in rows.nearest_in_each(np.stack([points, -points, points / 2])):
        yield terms.at(labels, 6, rows)
    yield terms.total(rows)
    yield terms.total(rows.with_constant(rows.radius / 3))
    yield terms.total(rows.clipped(bound))
    yield terms.total(rows[nearest == 1])
    yield terms.count(rows)
    yield terms.products(rows)
    yield terms.sketched_products(rows, 3, 0)
    yield terms.squares(rows)
    yield terms.total(rows.projected(random_directions(5, 3, 7)))
    yield terms.weighted(np.abs(rng.normal(size=(len(rows), 3))) / 5, rows)
    yield terms.costs_beside_mean(rows, np.stack([points, 3 * points]), rows.radius**2)


@pytest.mark.parametrize("divisor", [1, 3])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", [1.0, 7.3, 1e-5, 1e6, 1e-310, 1e300])
@pytest.mark.parametrize("name", DEVICES)
def test_tensors_give_the_bits_of_arrays_by_exact_operations_alone(name, radius, norm, divisor):
    rng = np.random.default_rng(0)
    frame = Frame(0.1 * radius * rng.normal(size=5), radius, norm)
    with np.errstate(over="ignore", invalid="ignore"):
        values = columns(radius, rng)
    if radius == 1e300:
        values = values[60:][:400]
    if not 1e-100 < radius < 1e100:
        kinds = [
            lambda rows: terms.total(rows),
            lambda rows: terms.at(rows.nearest(np.zeros((2, 5))), 2, rows),
        ]
    else:
        kinds = None
    device = open_device(name)
    with parts_of(divisor):
        expected = frame.rows(values)
        with OnlyExact() as watched:
            held = frame.rows(device.hold(values))
            found = [kind(held) for kind in kinds] if kinds else list(answers(held))
        wanted = [kind(expected) for kind in kinds] if kinds else list(answers(expected))
    assert device_of(held.held) is device
    assert {"trunc", "sum", "sub"} <= watched.seen
    np.testing.assert_array_equal(held.integers, expected.integers)
    for one, other in zip(found, wanted, strict=True):
        assert one.form == other.form
        np.testing.assert_array_equal(one.integers, other.integers)


@pytest.mark.parametrize("share", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("constant", [None, 0.05, 3.0, 100.0])
@pytest.mark.parametrize("bound", [1e-300, 0.001, 0.4, 0.99, 1.5, 5.0, 1e300])
def test_offsets_from_nearest_points_add_up_as_they_do_one_by_one(bound, constant, share):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(500, 3)) * np.where(rng.uniform(size=(500, 1)) < share, 2.0, 0.05)
    rows, points = Frame(np.zeros(3), 1.0).rows(values), 0.3 * rng.normal(size=(4, 3))
    nearest = rows.nearest(points)
    summed = rows.offsets(points, nearest, bound)
    singly = rows.offsets(points, nearest.copy(), bound)
    if constant is not None:
        summed, singly = summed.with_constant(constant), singly.with_constant(constant)
    one, other = terms.at(nearest, 4, summed), terms.at(nearest, 4, singly)
    assert one.form == other.form
    np.testing.assert_array_equal(one.integers, other.integers)
    np.testing.assert_array_equal(summed.integers, singly.integers)
    slow = sum(
        singly.integers[nearest == 2].astype(np.int64), np.zeros(singly.n_columns, dtype=np.int64)
    )
    np.testing.assert_array_equal(one.integers[2], slow)


def test_labels_that_decide_which_offsets_are_clipped_cannot_be_changed():
    rows = Frame(np.zeros(2), 1.0).rows(np.eye(2))
    with pytest.raises(ValueError, match="read-only"):
        rows.nearest(np.eye(2))[0] = 1


def test_nothing_in_exact_compiles_or_names_what_is_fused():
    forbidden = {
        "addcmul",
        "addcdiv",
        "addmm",
        "baddbmm",
        "pow",
        "exp2",
        "compile",
        "triton",
        "einsum_",
    }
    for name in ("device.py",):
        tree = ast.parse((EXACT / name).read_text())
        found = {
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        } & forbidden
        assert not found
    users = [path.name for path in EXACT.glob("*.py") if "torch" in {n.name for n in imports(path)}]
    assert users == ["device.py"]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from node.names


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("name", DEVICES)
def test_labels_are_the_processors_even_where_two_centers_are_equally_near(name, offset):
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.normal(size=(400, 6)), rng.integers(-2, 3, size=(400, 6))]) + offset
    centers = np.concatenate([rows[:3], offset + np.eye(6), offset - np.eye(6), rows[:1] + 1e-14])
    labels, first, second = open_device(name).nearest_two(rows, centers)
    expected, first_here, second_here = HOST.nearest_two(rows, centers)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(first, first_here, rtol=1e-9, atol=1e-9 * (1 + offset))
    np.testing.assert_allclose(second, second_here, rtol=1e-9, atol=1e-9 * (1 + offset))


def test_labels_are_compared_again_only_where_rounding_could_exchange_centers(monkeypatch):
    again = []

    def watched(rows, centers):
        again.append(len(rows))
        return HOST.nearest_two(rows, centers)

    monkeypatch.setattr("flower_fedclust.exact.device.nearest_two", watched)
    rows = np.random.default_rng(5).normal(size=(10_000, 6))
    centers, device = np.concatenate([np.eye(6), 2 * np.eye(6)]), open_device("torch")
    device.nearest_two(rows, centers)
    assert again == []
    rows[3000:3006] = 1.5 * np.eye(6)
    device.nearest_two(rows, centers)
    assert again == [2**15 // 12]


@pytest.mark.parametrize("name", DEVICES)
def test_a_single_row_between_two_centers_has_the_processors_label(name):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows, centers = rng.normal(size=(1000, 7)), rng.normal(size=(5, 7))
        distances = np.linalg.norm(centers[:, None] - centers, axis=2) + 9 * np.eye(5)
        rows[500] = centers[list(divmod(distances.argmin(), 5))].mean(axis=0)
        labels, *_ = open_device(name).nearest_two(rows, centers)
        np.testing.assert_array_equal(labels, HOST.nearest_two(rows, centers)[0])


def test_distances_of_all_rows_are_not_on_a_device_at_once():
    class Largest(TorchDispatchMode):
        n_entries = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                self.n_entries = max(self.n_entries, made.numel())
            return made

    rng = np.random.default_rng(6)
    with Largest() as largest:
        open_device("torch").nearest_two(rng.normal(size=(5000, 2)), rng.normal(size=(200, 2)))
    assert 0 < largest.n_entries < 200_000


def test_a_device_is_open_inside_a_context():
    device = open_device("torch")
    assert current_device() is HOST
    with on_device(device):
        assert current_device() is device
        with on_device(None):
            assert current_device() is device
    assert current_device() is HOST
    assert open_device("cpu") is HOST


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "torch:1", ""])
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match="it must be"):
        open_device(name)


def test_a_card_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    open_device.cache_clear()
    with pytest.raises(ValueError, match="PyTorch finds 0 cards"):
        open_device("cuda")


def test_a_card_with_slow_float64_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda card: "NVIDIA A10")
    open_device.cache_clear()
    with pytest.warns(RuntimeWarning, match="NVIDIA A10 has no fast float64"):
        assert open_device("cuda") is HOST
    open_device.cache_clear()


def test_a_device_that_multiplies_wrongly_is_refused(monkeypatch):
    device = open_device("torch")
    monkeypatch.setattr(device, "sums_at", lambda rows, labels, n: np.ones((n, rows.shape[1])))
    open_device.cache_clear()
    with pytest.raises(ValueError, match="use the processor"):
        open_device("torch")
    monkeypatch.undo()
    open_device.cache_clear()


@pytest.mark.parametrize("name", DEVICES)
def test_numbers_over_tensors_are_rounded_once(name):
    device = open_device(name)
    values = np.random.default_rng(3).uniform(1, 2, size=10_000)
    held = device.hold(values)
    np.testing.assert_array_equal(device.host(device.quotient(3.0, held)), 3.0 / values)
    np.testing.assert_array_equal(device.host(device.quotient(held, 3.0)), values / 3.0)
    np.testing.assert_array_equal(device.host(device.sqrt(held)), np.sqrt(values))
    powers = np.arange(-1022, 1024)
    np.testing.assert_array_equal(
        device.host(device.powers_of_two(device.index(powers))), np.ldexp(1.0, powers)
    )
    assert math.isinf(device.host(device.hold(np.array([np.inf])))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device.index(np.broadcast_to(np.array(3), (4,)))

"""Clients that answer honestly up to a round, then with anything at all: all such messages are made here."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.common import Code, Parameters, Status
from flwr.server import SimpleClientManager

from flower_fedclust.checking import WatchedSite
from flower_fedclust.engine.wire import EXPONENTS, decode, encode, with_hash
from flower_fedclust.numerics.threads import one_thread

#: What a text, a number or a metric may be instead.
ANYTHING: list[Any] = [
    None, "", "[" * 100_000, "{" * 5000, "9" * 5000, "[" + "0," * 50_000 + "0]", "null", "[null]", "[1e999]",
    "[-99999]", "\ud800", "\x1b[2J\nclient north sent NaN.", b"\xff" * 1000, [1.5] * 1000, {"a": 1}, object(),
    10**400, -1, 0, float("nan"), float("inf"), -0.0, 2**63, True, (), 1j,
]  # fmt: skip

#: Tensors that are no arrays, or none that anybody should take for what they say they are.
TENSORS: list[Any] = [
    b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", b"rubbish" * 100, None, 3,
]  # fmt: skip

#: Headers of arrays, each before a few bytes.
HEADERS = [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f8', 'fortran_order': True, 'shape': (0, 1000000000000000), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': " + "(1," * 60 + ")" * 60 + ", }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': [('a', '<f8'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }",
    "{'descr': ('<f8', (1000000000,)), 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '" + "<" * 9000 + "f8', 'fortran_order': False, 'shape': (2,), }",
    "-" * 9000 + "1",
    "(" * 9000,
    "__import__('os').abort()",
]

KINDS = [
    "<f8",
    ">f8",
    "<f4",
    "<f2",
    "<g",
    "<i8",
    ">i8",
    "<i1",
    "<u8",
    "|b1",
    "<c16",
    "<U8",
    "|S3",
    "<M8[s]",
]
NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-300,
    5e-324,
    1e4,
    -1e4,
    1e6,
    1e18,
    -(2.0**62),
    1e300,
    1.7e308,
    np.nan,
    np.inf,
    -np.inf,
]


def with_header(header: str) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16)


def some_array(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return another array in the place of an honest one."""
    shapes = [
        array.shape,
        (),
        (0,),
        (1,),
        array.shape[::-1],
        (*array.shape, 1),
        (*array.shape, 0),
        array.shape[1:],
    ]
    shapes += (
        [(2 * array.shape[0], *array.shape[1:]), (array.shape[0] + 1, *array.shape[1:])]
        if array.ndim
        else []
    )
    with np.errstate(all="ignore"):
        match int(rng.integers(8)):
            case 0:  # all alike
                return np.full(array.shape, rng.choice(NUMBERS)).astype(array.dtype)
            case 1:  # in proportion
                return (array.astype(float) * float(rng.choice(NUMBERS))).astype(array.dtype)
            case 2:  # one entry
                changed = array.copy()
                changed.flat[: 1 if array.size else 0] = np.array(rng.choice(NUMBERS)).astype(
                    array.dtype
                )
                return changed
            case 3:
                return array.astype(str(rng.choice(KINDS)))
            case 4:
                shape = shapes[rng.integers(len(shapes))]
                return (
                    np.resize(array, shape).astype(array.dtype)
                    if array.size
                    else np.zeros(shape, array.dtype)
                )
            case 5:  # noise
                return (rng.standard_normal(array.shape) * 10.0 ** rng.integers(-3, 12)).astype(
                    array.dtype
                )
            case 6:
                return np.asfortranarray(array)[..., ::-1] if array.ndim else array
            case _:  # any bits at all
                return np.frombuffer(rng.bytes(array.nbytes), dtype=array.dtype).reshape(
                    array.shape
                )


def some_parameters(rng: np.random.Generator, honest: Parameters) -> Any:
    arrays = decode(honest)
    match int(rng.integers(10)):
        case 0:
            return None
        case 1:
            return Parameters([], "numpy.ndarray")
        case 2:
            return Parameters([b""] * 100_000, "")
        case 3:
            return Parameters(
                [*honest.tensors, honest.tensors[-1]] if arrays else [bytes(9)], "numpy.ndarray"
            )
        case 4:
            return Parameters(
                [TENSORS[rng.integers(len(TENSORS))] for _ in honest.tensors], "numpy.ndarray"
            )
        case 5:
            return Parameters(
                [with_header(str(rng.choice(HEADERS))) for _ in honest.tensors], "numpy.ndarray"
            )
        case 6:
            flipped = [bytearray(tensor) for tensor in honest.tensors]
            for tensor in flipped:
                tensor[int(rng.integers(len(tensor)))] ^= 1 << int(rng.integers(8))
            return Parameters([bytes(tensor) for tensor in flipped], "numpy.ndarray")
        case _:
            chosen = int(rng.integers(max(len(arrays), 1))) if rng.random() < 0.5 else None
            return encode(
                [
                    some_array(rng, one) if chosen in (None, index) else one
                    for index, one in enumerate(arrays)
                ]
            )


def some_metrics(rng: np.random.Generator, honest: dict[str, Any]) -> Any:
    anything = ANYTHING[rng.integers(len(ANYTHING))]
    match int(rng.integers(6)):
        case 0:
            return anything if rng.random() < 0.3 else {}
        case 1:
            return honest | {
                str(
                    rng.choice([*honest, "failure", "missed", "empty", "table", "ledger"])
                ): anything
            }
        case 2:
            return {name: ANYTHING[rng.integers(len(ANYTHING))] for name in honest}
        case 3 if EXPONENTS in honest:
            units = [
                one if one is None else one + int(rng.integers(-60, 60))
                for one in json.loads(honest[EXPONENTS])
            ]
            return honest | {EXPONENTS: json.dumps(units)}
        case 4:
            return honest | {"failure": anything, "missed": True}
        case _:
            return honest | {f"more {index}": anything for index in range(1000)}


def with_arrays(res: Any, change: Any) -> Any:
    """Return a reply with other arrays."""
    return claimed(
        replace(res, parameters=encode([change(array) for array in decode(res.parameters)]))
    )


def claimed(res: Any) -> Any:
    """Return a reply with the hash of what it holds, as any client can compute it; as it is, if it holds nothing."""
    try:
        return with_hash(res)
    except Exception:
        return res


class Hostile(WatchedSite):
    """A client that sends anything from a round on.

    Parameters
    ----------
    seed : int
    start : int
        The first round in which it is hostile; the first of all is that in which clients enrol.
    attack : callable, optional
        Takes a task and the honest reply, and returns what is sent; by default anything at random.
    """

    def __init__(
        self, *args: Any, seed: int, start: int, attack: Any = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.attack = attack
        self.rng = np.random.default_rng([seed, start])
        self.start = start

    def fit(self, ins, timeout=None, group_id=None):
        res = super().fit(ins, timeout, group_id)
        if int(ins.config["round"]) < self.start:
            return res
        return (
            self.changed(res) if self.attack is None else self.attack(str(ins.config["task"]), res)
        )

    def evaluate(self, ins, timeout=None, group_id=None):
        return self.changed(super().evaluate(ins, timeout, group_id))

    def changed(self, honest: Any) -> Any:
        """Return another reply; at times nothing at all, or the honest one."""
        res, rng = copy.copy(honest), self.rng
        which = rng.random()
        if which < 0.05:
            raise TimeoutError("\x1b[31mno\nanswer" * 100)
        if which < 0.1:
            return res
        if which < 0.15:
            code = Code.FIT_NOT_IMPLEMENTED
            return replace(
                res, status=Status(code, str(ANYTHING[rng.integers(len(ANYTHING))])[:1000])
            )
        if which < 0.17:
            return replace(res, status=None)
        if which < 0.25:
            res = replace(res, num_examples=ANYTHING[rng.integers(len(ANYTHING))])
        if which < 0.4:
            return claimed(replace(res, metrics=some_metrics(rng, dict(res.metrics))))
        if hasattr(res, "parameters"):
            return claimed(replace(res, parameters=some_parameters(rng, res.parameters)))
        return claimed(replace(res, loss=ANYTHING[rng.integers(len(ANYTHING))]))


@dataclass
class Served:
    """A run on honest clients and hostile ones."""

    strategy: Any
    #: The rounds in which a reply that was asked for was not used.
    incomplete: set[int] = field(default_factory=set)


def served(
    strategy, data, *hostile: str, seed: int = 0, start: int = 2, attack: Any = None
) -> Served:
    """Run a strategy as Flower does, on honest clients and hostile ones."""
    found = Served(strategy := copy.copy(strategy))
    strategy.noise_seed, strategy.random_state, strategy.wait_for_clients = seed, seed, 0.0
    manager = SimpleClientManager()

    def received(round_, brought):
        number = strategy._current.number
        asked = [
            one
            for site in manager.clients.values()
            for one in site.exchanges
            if one.round == number
        ]
        n_asked = sum(one.ins.config["task"] == round_.task for one in asked)
        if round_.answer.sends and not round_.answer.keeps and brought is not None:
            found.incomplete |= (
                {number} if getattr(brought, "n_clients", len(brought)) < n_asked else set()
            )

    strategy.on_received = received
    for index, (name, own) in enumerate(data.items()):
        options = {"seed": seed, "start": start, "attack": attack} if name in hostile else {}
        kind = Hostile if name in hostile else WatchedSite
        manager.register(
            kind(index, name, strategy.client_type, own, noise_seed=seed + index, **options)
        )

    def answers(messages, ask):
        results, failures = [], []
        for proxy, ins in messages:
            try:
                results.append((proxy, getattr(proxy, ask)(ins)))
            except Exception as error:
                failures.append(error)
        return results, failures

    with one_thread():
        parameters = strategy.initialize_parameters(manager)
        for number in range(1, strategy.num_rounds + 1):
            if messages := strategy.configure_fit(number, parameters, manager):
                strategy.aggregate_fit(number, *answers(messages, "fit"))
            if messages := strategy.configure_evaluate(number, parameters, manager):
                strategy.aggregate_evaluate(number, *answers(messages, "evaluate"))
    return found
